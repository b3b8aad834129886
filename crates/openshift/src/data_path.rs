//! OpenShift's tenants without Open vSwitch (cni-runtime.md sections 4.4, 4.5 and A.3): pods are
//! routed, their network IDs travel as VXLAN network identifiers, and nf_tables computes the
//! verdicts.
//!
//! The node of the sender stamps each packet: the pod's network ID becomes the VNI of the outer
//! header. The node of the receiver checks the packet, because it knows the destination; packets
//! between pods of one node are checked at the end of `postrouting`. Packets of unknown senders are
//! dropped. Used by the server and by the follower of tenants; docs/openshift-tenants.md
//! describes the path of a packet.

mod alias;
mod device;
mod egress;
mod held;
mod peers;
mod port;
mod programs;
mod reconcile;
mod rules;
mod steps;
mod verdicts;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use russet_addr::{ContainerId, IfName, Ipv4Net};
use russet_linux::bpf::{BpfError, Program};
use russet_linux::sysctl::SysctlError;
use russet_model::openshift::{Namespace, NetId};
use russet_netlink::{BatchError, NetlinkError, Socket};
use russet_nft::CommitError;

use russet_overlay::{ReconcileReport, controller};
use verdicts::Verdicts;

pub use egress::{Denied, Egress, Range, open_to_global};
pub use held::{Held, HeldPod};
pub use reconcile::SdnState;
pub use rules::{TABLE, table};
pub use steps::Difference;

/// The configuration of a node's part of the network. Its addresses are trusted, because they were
/// parsed from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The networks of pods' addresses.
    pub cluster: Vec<Ipv4Net>,
    /// The network of services' addresses.
    pub service: Option<Ipv4Net>,
    /// The subnet of this node's pods.
    pub own: Ipv4Net,
    /// The address that peers send to.
    pub node_ip: Ipv4Addr,
    /// The index of the link that has it.
    pub underlay: u32,
    /// The MTU of pods and tunnel.
    pub mtu: u32,
    /// The UDP port of VXLAN.
    pub vxlan_port: u16,
}

/// A pod's interface, wanted or observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The host's end of the veth, which the plugin made.
    pub host_veth: IfName,
    /// The pod's address, from which its MAC follows.
    pub address: Ipv4Addr,
    /// The network ID of its namespace; without one, none of its packets passes.
    pub netid: Option<NetId>,
    /// Pods of every network ID reach it, as far as NetworkPolicies let them. Always true of the global ID.
    pub is_open: bool,
    pub sandbox: ContainerId,
    /// Its namespace, so that a restarted agent knows it.
    pub namespace: Namespace,
}

/// What a namespace gives its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tenancy {
    /// The network ID, if there is one.
    pub netid: Option<NetId>,
    /// Whether NetworkPolicies decide instead of network IDs; none if that is not known yet.
    pub is_open: Option<bool>,
}

/// Ports by their link.
type Ports = BTreeMap<IfName, Port>;

/// Another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The address that we send to, and the only one from which it may send.
    pub host_ip: Ipv4Addr,
    /// The subnet of its pods.
    pub subnet: Ipv4Net,
}

/// One node's data path, in the network namespace of the thread that opened it; every call must
/// come from a thread in that namespace.
///
/// Dropping it removes nothing from the kernel: packets continue to flow while the agent restarts.
#[derive(Debug)]
pub struct Sdn {
    settings: Settings,
    socket: Socket,
    verdicts: Verdicts,
    /// The attached ports, by their link.
    ports: Ports,
    /// None before the first call of [`Sdn::peers`].
    peers: Option<peers::KnownPeers>,
    /// The loaded guard program of pods, kept after its first use.
    delivery: Option<Program>,
}

/// Errors of the data path; each names the operation and its subject.
#[derive(Debug, thiserror::Error)]
pub enum SdnError {
    /// A link, address, neighbour or route.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A transaction of nf_tables.
    #[error("table {TABLE}: {0}")]
    Nft(#[from] CommitError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// A program of the tunnel device.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// An address that this node may not assign.
    #[error("attach {address} of sandbox {sandbox}: it is not a pod's address of {own}")]
    Foreign {
        address: Ipv4Addr,
        /// The sandbox that requested it.
        sandbox: ContainerId,
        /// This node's subnet.
        own: Ipv4Net,
    },
    /// Another sandbox has the address, and its link exists.
    #[error("attach {address} of sandbox {sandbox}: sandbox {holder} has it on link {link}")]
    Taken {
        address: Ipv4Addr,
        /// The sandbox that requested it.
        sandbox: ContainerId,
        /// The sandbox that has it.
        holder: ContainerId,
        /// The link of that sandbox.
        link: IfName,
    },
    /// The pod's bandwidth limit was attached before the guard.
    #[error("attach program {program} to link {link}: qdisc ingress has the place of clsact")]
    NoPlace {
        /// The guard.
        program: String,
        /// The name of the link.
        link: String,
    },
    /// The link is not a veth, or carries the record of another sandbox.
    #[error("attach sandbox {sandbox}: link {link} {problem}")]
    Link {
        /// The sandbox to be attached.
        sandbox: ContainerId,
        link: IfName,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// The name of the tunnel device.
pub const DEVICE: &str = "vxlan-sdn";
/// The protocol of all our routes: 114 and 115 are the overlay's and flannel's, which would remove
/// them.
pub const ROUTE_PROTOCOL: u8 = 116;
/// The group of pods' links that are being deleted; drift detection ignores events of these.
pub const LEAVING_GROUP: u32 = 7275;
/// Bytes of the outer headers: IPv4, UDP, VXLAN, Ethernet.
pub const OVERHEAD_BYTES: u32 = 50;

/// The kinds of objects that reports count, as labels of metrics.
pub mod kind {
    /// The tunnel device, pods' links and their programs.
    pub const DEVICE: &str = "sdn_device";
    pub const ADDRESS: &str = "sdn_address";
    pub const NEIGHBOUR: &str = "sdn_neighbour";
    pub const ROUTE: &str = "sdn_route";
    pub const SYSCTL: &str = "sdn_sysctl";
    /// The table of verdicts: one transaction counts as one.
    pub const TABLE: &str = "sdn_table";
}

// === impl Settings ===

impl Settings {
    /// The node's own address in its subnet, the pods' gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.own.network().to_bits() | 1)
    }

    /// Whether the address may be assigned to a pod of this node.
    fn is_pods(&self, address: Ipv4Addr) -> bool {
        let reserved = [self.own.network(), self.own.broadcast(), self.gateway()];
        self.own.contains(&address) && !reserved.contains(&address)
    }
}

// === impl Tenancy ===

impl Tenancy {
    /// The port as it should be.
    pub fn of(self, port: &Port) -> Port {
        let is_open = match self.netid {
            None => false,
            Some(netid) => netid.is_global() || self.is_open.unwrap_or(port.is_open),
        };
        Port { netid: self.netid, is_open, ..port.clone() }
    }
}

// === impl Sdn ===

impl Sdn {
    /// Opens the sockets and reads which ports are attached; changes nothing yet.
    pub fn open(settings: Settings) -> Result<Self, SdnError> {
        let verdicts = Verdicts::open(&settings)?;
        let (socket, ports) = (Socket::route()?, BTreeMap::new());
        let mut sdn = Self { settings, socket, verdicts, ports, peers: None, delivery: None };
        sdn.ports = sdn.ports()?.into_iter().map(|port| (port.host_veth.clone(), port)).collect();
        Ok(sdn)
    }

    /// The settings that it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Reconciles everything with the attached ports and the last known peers: the table of
    /// verdicts, the tunnel device with its programs, and the routes. A port whose link is gone is
    /// detached.
    pub fn restore(&mut self) -> ReconcileReport {
        controller::reconcile(self)
    }

    /// Describes what [`Self::restore`] would do; changes nothing.
    pub fn differences(&mut self) -> ReconcileReport {
        let mut report = ReconcileReport::default();
        match controller::compare(self, &mut report) {
            Ok(found) => {
                let differences = found.map(|found| found.differences).unwrap_or_default();
                report.note(&differences);
                peers::note_differences(self, &differences);
            }
            Err(error) => report.fail(error),
        }
        report
    }

    /// Reconciles routes, neighbours and permitted senders with exactly these peers. The cost
    /// depends on what changed since the last call.
    pub fn peers(&mut self, peers: &[Peer]) -> ReconcileReport {
        peers::set(self, peers)
    }

    /// Attaches a pod: its record, its verdict entries, and only then its route. After an error
    /// only the record may remain.
    pub fn attach(&mut self, port: &Port) -> Result<(), SdnError> {
        port::attach(self, port)
    }

    /// Detaches a sandbox and returns its links, down and without a route, for [`delete_links`].
    /// Succeeds if nothing of it exists.
    pub fn detach(&mut self, sandbox: &ContainerId) -> Result<Vec<IfName>, SdnError> {
        port::detach(self, sandbox)
    }

    /// Whether a sandbox is attached, and its link exists.
    pub fn is_attached(&mut self, sandbox: &ContainerId) -> Result<bool, SdnError> {
        let Some(port) = self.ports.values().find(|port| port.sandbox == *sandbox) else { return Ok(false) };
        match self.socket.link_by_name(&port.host_veth) {
            Ok(link) => Ok(reconcile::is_of(port, &link)),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives attached ports other network IDs, in one transaction; ports that are not attached are
    /// skipped. When this returns, the old IDs apply only to packets whose evaluation has begun
    /// already.
    pub fn renumber(&mut self, ports: &[Port]) -> Result<(), SdnError> {
        let wanted = self.renumbered(ports);
        self.replace_entries(wanted)
    }

    /// Like [`Sdn::renumber`], and denies in the same transaction exactly this to all ports. What a
    /// network ID may reach that is not named is not known: nothing outside of the cluster.
    pub fn set_tenants(&mut self, ports: &[Port], mut egress: Egress) -> Result<(), SdnError> {
        egress.extend(open_to_global());
        let wanted = self.renumbered(ports);
        self.verdicts.change(&self.settings, &self.ports, &wanted, Some(egress))?;
        self.ports = wanted;
        Ok(())
    }

    fn renumbered(&self, ports: &[Port]) -> Ports {
        let known =
            |port: &&Port| self.ports.get(&port.host_veth).is_some_and(|held| held.sandbox == port.sandbox);
        let mut wanted = self.ports.clone();
        for port in ports.iter().filter(known) {
            if let Some(held) = wanted.get_mut(&port.host_veth) {
                (held.netid, held.is_open) = (port.netid, port.is_open);
            }
        }
        wanted
    }

    /// Reads the attached ports from the links' aliases and the table of verdicts: the initial
    /// state of a restarted agent.
    pub fn ports(&mut self) -> Result<Vec<Port>, SdnError> {
        let tenants = self.verdicts.tenants()?;
        let links = self.socket.links()?;
        Ok(links.iter().filter_map(|link| alias::port_of(link, &tenants)).collect())
    }

    /// Removes routes, device and table; pods' links stay, without a route.
    pub fn withdraw(&mut self) -> ReconcileReport {
        reconcile::withdraw(self)
    }

    /// The attached ports as this process knows them, without reading the kernel.
    pub fn attached(&self) -> impl Iterator<Item = &Port> {
        self.ports.values()
    }

    /// Changes the verdict entries to those of `wanted` in one transaction.
    fn replace_entries(&mut self, wanted: Ports) -> Result<(), SdnError> {
        self.verdicts.change(&self.settings, &self.ports, &wanted, None)?;
        self.ports = wanted;
        Ok(())
    }
}

/// Deletes links that detached sandboxes left. The kernel takes tens of milliseconds for each; the
/// data path is usable meanwhile.
pub fn delete_links(links: Vec<IfName>) -> Result<(), SdnError> {
    if links.is_empty() { Ok(()) } else { port::delete(&mut Socket::route()?, links) }
}

// === impl SdnError ===

impl From<BatchError> for SdnError {
    fn from(error: BatchError) -> Self {
        Self::Netlink(error.error)
    }
}
