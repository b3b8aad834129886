//! Carries out a plan over netlink. Called by `reconcile` and `flannel`; it decides nothing,
//! collects every error and continues: one refused route must not keep the others from being
//! programmed.

use std::collections::BTreeMap;

use russet_addr::{Family, IfName, IpNet};
use russet_linux::sysctl;
use russet_netlink::{
    Address, Batch, FdbEntry, LinkAdd, LinkDel, LinkKind, LinkSet, Neighbour, NetlinkError, Socket, Vxlan,
};

use crate::observe::{FoundDevice, probe_address};
use crate::owner::Owner;
use crate::plan::{Op, batches, route};
use crate::report::{Kind, ReconcileReport};
use crate::vxlan::Device;

/// Encodes operations for netlink and tracks the interface indexes of the devices.
#[derive(Debug, Default)]
pub(crate) struct Executor {
    devices: BTreeMap<Family, u32>,
    owner: Owner,
}

// === impl Executor ===

impl Executor {
    pub(crate) fn new(found: &BTreeMap<Family, FoundDevice>, owner: &Owner) -> Self {
        let vxlan = found.iter().filter(|(_, device)| device.vxlan.is_some());
        let devices = vxlan.map(|(family, device)| (*family, device.ifindex)).collect();
        Self { devices, owner: owner.clone() }
    }

    /// Sends the operations. Returns false when the socket itself failed, which ends it. Requests
    /// for a device that could not be created are left out: that failure is reported already.
    pub(crate) fn run(&mut self, socket: &mut Socket, ops: &[Op], report: &mut ReconcileReport) -> bool {
        batches(ops).all(|batch| self.send(socket, batch, report))
    }

    fn send(&mut self, socket: &mut Socket, ops: &[Op], report: &mut ReconcileReport) -> bool {
        let mut batch = Batch::new();
        let sent: Vec<&Op> = ops.iter().filter(|op| self.encode(op, &mut batch)).collect();
        for (op, result) in sent.into_iter().zip(socket.execute_all(&batch)) {
            match result {
                Ok(()) => {
                    report.count(kind(op));
                    self.follow(socket, op, report);
                }
                Err(error) if removes(op) && error.is_not_found() => {}
                Err(error @ (NetlinkError::Refused { .. } | NetlinkError::Invalid { .. })) => {
                    report.fail(error)
                }
                Err(error) => {
                    report.fail(error);
                    return false;
                }
            }
        }
        true
    }

    /// Updates the interface indexes after an operation on a device.
    fn follow(&mut self, socket: &mut Socket, op: &Op, report: &mut ReconcileReport) {
        match op {
            Op::DeleteDevice(family, _) => _ = self.devices.remove(family),
            Op::CreateDevice(family, _) => {
                let Some(name) = self.owner.name(*family) else { return };
                ignore_router_advertisements(name, report);
                match socket.link_by_name(name) {
                    Ok(link) => _ = self.devices.insert(*family, link.index),
                    Err(error) => report.fail(error),
                }
            }
            _ => {}
        }
    }

    /// Appends the request; false when its device does not exist.
    fn encode(&self, op: &Op, batch: &mut Batch) -> bool {
        self.try_encode(op, batch).is_some()
    }

    fn try_encode(&self, op: &Op, batch: &mut Batch) -> Option<()> {
        match op {
            Op::DeleteDevice(_, ifindex) => batch.delete_link(&LinkDel::Index(*ifindex)),
            Op::CreateDevice(family, device) => {
                batch.add_link(&link(self.owner.name(*family)?.clone(), device))
            }
            Op::MarkDevice(family) => {
                let alias = self.owner.alias.map(str::to_owned);
                batch.set_link(&LinkSet { alias, ..LinkSet::index(self.device(*family)?) })
            }
            Op::SetMtu(family, mtu) => {
                batch.set_link(&LinkSet { mtu_bytes: Some(*mtu), ..LinkSet::index(self.device(*family)?) })
            }
            Op::RaiseDevice(family) => {
                batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(self.device(*family)?) })
            }
            Op::AddAddress(family, net) => batch.replace_address(&self.address(*family, *net)?),
            Op::DeleteAddress(family, net) => batch.delete_address(&self.address(*family, *net)?),
            Op::AddProbeAddress(address) => batch.replace_address(&probe_address(*address)),
            Op::DeleteProbeAddress(address) => batch.delete_address(&probe_address(*address)),
            Op::PutNeighbour(address, mac) => {
                let ifindex = self.device(Family::of(*address))?;
                batch.replace_neighbour(&Neighbour::permanent(ifindex, *address, *mac))
            }
            Op::DeleteNeighbour(neighbour) => batch.delete_neighbour(neighbour),
            Op::PutFdb(family, mac, dst) => {
                batch.replace_fdb(&FdbEntry::remote(self.device(*family)?, *mac, *dst))
            }
            Op::DeleteFdb(entry) => batch.delete_fdb(entry),
            Op::AddRoute(dst, hop, metric) | Op::ReplaceRoute(dst, hop, metric) => {
                let device = self.devices.get(&Family::of_net(dst)).copied();
                if hop.uses_device() && device.is_none() {
                    return None;
                }
                let route = route(*dst, *hop, device, *metric, &self.owner);
                // A foreign route to the same destination makes the addition fail, and stays.
                if matches!(op, Op::AddRoute(..)) {
                    batch.add_route(&route)
                } else {
                    batch.replace_route(&route)
                }
            }
            Op::DeleteRoute(route) => batch.delete_route(route),
        };
        Some(())
    }

    fn device(&self, family: Family) -> Option<u32> {
        self.devices.get(&family).copied()
    }

    fn address(&self, family: Family, net: IpNet) -> Option<Address> {
        Some(Address::new(self.device(family)?, net))
    }
}

/// Keeps a tunnel device from configuring itself by router advertisements. The caller writes this
/// while the device is down. A kernel without IPv6 has no such sysctl and needs none.
pub(crate) fn ignore_router_advertisements(name: &IfName, report: &mut ReconcileReport) {
    match sysctl::write_if_different(&format!("net/ipv6/conf/{name}/accept_ra"), "0") {
        Ok(true) => report.count(Kind::Sysctl),
        Ok(false) => {}
        Err(error) if error.is_missing() => {}
        Err(error) => report.fail(error),
    }
}

/// Leaves outer checksums at the kernel's default.
fn link(name: IfName, device: &Device) -> LinkAdd {
    let vxlan = Vxlan {
        local: Some(device.local),
        parent: Some(device.parent),
        learning: device.learning,
        gbp: device.gbp,
        udp_csum: true,
        ..Vxlan::new(device.vni, device.port)
    };
    LinkAdd {
        mtu_bytes: Some(device.mtu),
        mac: Some(device.mac),
        ..LinkAdd::new(name, LinkKind::Vxlan(vxlan))
    }
}

fn removes(op: &Op) -> bool {
    matches!(
        op,
        Op::DeleteDevice(..)
            | Op::DeleteAddress(..)
            | Op::DeleteProbeAddress(_)
            | Op::DeleteNeighbour(_)
            | Op::DeleteFdb(_)
            | Op::DeleteRoute(_)
    )
}

fn kind(op: &Op) -> Kind {
    match op {
        Op::DeleteDevice(..)
        | Op::CreateDevice(..)
        | Op::MarkDevice(_)
        | Op::SetMtu(..)
        | Op::RaiseDevice(_) => Kind::Device,
        Op::AddAddress(..) | Op::DeleteAddress(..) | Op::AddProbeAddress(_) | Op::DeleteProbeAddress(_) => {
            Kind::Address
        }
        Op::PutNeighbour(..) | Op::DeleteNeighbour(_) => Kind::Neighbour,
        Op::PutFdb(..) | Op::DeleteFdb(_) => Kind::Fdb,
        Op::AddRoute(..) | Op::ReplaceRoute(..) | Op::DeleteRoute(_) => Kind::Route,
    }
}
