//! The faults themselves, and their removal where the agent cannot repair them.

use std::net::IpAddr;

use russet_addr::Family;
use russet_linux::{NetNs, sysctl};
use russet_netlink::{Batch, LinkDel, LinkSet, Route, Socket};
use russet_nft::{Chain, ChainKind, Hook, L4, Nft, Rule, Table, Transaction};

use super::super::lab::Node;
use super::super::report::PodReport;
use super::DemoError;

/// A fault, with what people and programs read.
pub struct Fault {
    pub name: &'static str,
    pub done: &'static str,
    pub damage: Damage,
}

#[derive(Clone, Copy)]
pub enum Damage {
    PodRoute,
    NodeRoute,
    Neighbours,
    TunnelDown,
    TunnelDeleted,
    Forwarding,
    Tables,
    TunnelPort,
    KilledAgent,
}

/// On which node, and between which addresses.
pub struct Target {
    netns: NetNs,
    pub from: IpAddr,
    pub to: IpAddr,
}

/// All of them. The last one leaves an agent that remembers none of the others.
pub const FAULTS: [Fault; 9] = [
    Fault {
        name: "pod-route",
        done: "the route to the pod is deleted on its node",
        damage: Damage::PodRoute,
    },
    Fault {
        name: "node-route",
        done: "the route to the other node's block is deleted",
        damage: Damage::NodeRoute,
    },
    Fault {
        name: "neighbours",
        done: "the tunnel's neighbours and forwarding entries are deleted",
        damage: Damage::Neighbours,
    },
    Fault { name: "tunnel-down", done: "the tunnel device is set down", damage: Damage::TunnelDown },
    Fault { name: "tunnel-deleted", done: "the tunnel device is deleted", damage: Damage::TunnelDeleted },
    Fault { name: "forwarding", done: "forwarding is switched off", damage: Damage::Forwarding },
    Fault { name: "tables", done: "Russet's tables of nf_tables are deleted", damage: Damage::Tables },
    Fault {
        name: "tunnel-port",
        done: "a firewall drops the tunnel's packets (removed by the demo: the agent changes no foreign rule)",
        damage: Damage::TunnelPort,
    },
    Fault {
        name: "agent-killed",
        done: "the agent is killed and started again",
        damage: Damage::KilledAgent,
    },
];

/// The kernel's own port for VXLAN.
const VXLAN_PORT: u16 = 4789;
/// The foreign firewall.
const FIREWALL: &str = "demo-firewall";
const FORWARDING: &str = "net/ipv4/ip_forward";

// === impl Target ===

impl Target {
    /// The first IPv4 addresses of two pods, the first one on this node.
    pub fn new(node: &Node, from: &PodReport, to: &PodReport) -> Result<Self, DemoError> {
        let v4 = |pod: &PodReport| {
            let found = pod.ips.iter().copied().find(IpAddr::is_ipv4);
            found.ok_or_else(|| DemoError::Refused(format!("{} has no IPv4 address", pod.name)))
        };
        Ok(Self { netns: node.netns()?, from: v4(from)?, to: v4(to)? })
    }

    /// Does something with a netlink socket in the node's namespace.
    fn change(
        &self,
        what: &str,
        fill: impl FnOnce(&mut Socket, &mut Batch) -> Result<(), DemoError>,
    ) -> Result<(), DemoError> {
        let failed = |error: &dyn std::fmt::Display| DemoError::Refused(format!("{what}: {error}"));
        let opened = self.netns.with(Socket::route).map_err(DemoError::namespace)?;
        let mut socket = opened.map_err(|error| failed(&error))?;
        let mut batch = Batch::new();
        fill(&mut socket, &mut batch)?;
        match batch.is_empty() {
            true => Err(failed(&"there is nothing of that kind")),
            false => socket.execute(&batch).map_err(|error| failed(&error)),
        }
    }

    fn commit(
        &self,
        what: &str,
        fill: impl FnOnce(&mut Nft, &mut Transaction) -> Result<(), DemoError>,
    ) -> Result<(), DemoError> {
        let failed = |error: &dyn std::fmt::Display| DemoError::Refused(format!("{what}: {error}"));
        let opened = self.netns.with(Nft::open).map_err(DemoError::namespace)?;
        let mut nft = opened.map_err(|error| failed(&error))?;
        let mut transaction = Transaction::new();
        fill(&mut nft, &mut transaction)?;
        nft.commit(&transaction).map_err(|error| failed(&error))
    }
}

/// The most specific route to an address that is not the default.
fn route_to(socket: &mut Socket, address: IpAddr) -> Result<Route, DemoError> {
    let routes = socket.routes(Family::of(address)).map_err(|error| DemoError::step("list routes", error))?;
    let leads = |route: &Route| route.dst.prefix_len() > 0 && route.dst.contains(&address);
    let found = routes.into_iter().filter(leads).max_by_key(|route| route.dst.prefix_len());
    found.ok_or_else(|| DemoError::Refused(format!("there is no route to {address}")))
}

/// The index of the device through which the other node is reached.
fn tunnel(socket: &mut Socket, target: &Target) -> Result<u32, DemoError> {
    let route = route_to(socket, target.to)?;
    route.oif.ok_or_else(|| DemoError::Refused(format!("the route to {} has no device", target.to)))
}

// === impl Damage ===

impl Damage {
    /// Does it.
    pub fn make(self, target: &Target) -> Result<(), DemoError> {
        match self {
            Self::PodRoute => target.change("delete the pod's route", |socket, batch| {
                batch.delete_route(&route_to(socket, target.from)?);
                Ok(())
            }),
            Self::NodeRoute => target.change("delete the node's route", |socket, batch| {
                batch.delete_route(&route_to(socket, target.to)?);
                Ok(())
            }),
            Self::Neighbours => target.change("delete neighbours", |socket, batch| {
                let index = tunnel(socket, target)?;
                let failed = |error| DemoError::step("list neighbours", error);
                for neighbour in socket.neighbours_of(Family::V4, index).map_err(failed)? {
                    batch.delete_neighbour(&neighbour);
                }
                for entry in socket.fdb(index).map_err(failed)?.iter().filter(|entry| entry.dst.is_some()) {
                    batch.delete_fdb(entry);
                }
                Ok(())
            }),
            Self::TunnelDown => target.change("set the tunnel down", |socket, batch| {
                batch.set_link(&LinkSet { up: Some(false), ..LinkSet::index(tunnel(socket, target)?) });
                Ok(())
            }),
            Self::TunnelDeleted => target.change("delete the tunnel", |socket, batch| {
                batch.delete_link(&LinkDel::Index(tunnel(socket, target)?));
                Ok(())
            }),
            Self::Forwarding => {
                let written =
                    target.netns.with(|| sysctl::write(FORWARDING, "0")).map_err(DemoError::namespace)?;
                written.map_err(|error| DemoError::step("switch off forwarding", error))
            }
            Self::Tables => target.commit("delete tables", |nft, transaction| {
                let tables = nft.tables().map_err(|error| DemoError::step("list tables", error))?;
                let is_ours = |table: &Table| table.name == "russet" || table.name.starts_with("russet-");
                for info in tables.iter().filter(|info| is_ours(&info.table)) {
                    transaction.delete_table(&info.table);
                }
                Ok(())
            }),
            Self::TunnelPort => target.commit("make a firewall", |_, transaction| {
                let table = Table::inet(FIREWALL);
                let chain = Chain::base(&table, "input", ChainKind::Filter, Hook::Input, 0);
                transaction.add_table(&table).add_chain(&chain);
                transaction.add_rule(&Rule::new(&chain).protocol(L4::Udp).dport(VXLAN_PORT).drop());
                Ok(())
            }),
            Self::KilledAgent => Ok(()),
        }
    }

    /// Removes what the agent does not remove.
    pub fn clean_up(self, target: &Target) -> Result<(), DemoError> {
        match self {
            Self::TunnelPort => target.commit("remove the firewall", |_, transaction| {
                transaction.delete_table(&Table::inet(FIREWALL));
                Ok(())
            }),
            _ => Ok(()),
        }
    }
}
