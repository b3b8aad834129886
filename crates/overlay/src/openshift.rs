//! OpenShift's tenants without Open vSwitch (cni-runtime.md sections 4.4, 4.5 and A.3): pods are routed, their network IDs travel as VXLAN
//! network identifiers, and nf_tables judges.
//!
//! A pod's packet is stamped where it starts, by the node that knows the pod: its network ID becomes the VNI of the outer header. It is judged where
//! it arrives, by the node that knows the destination; between pods of one node at the end of `postrouting`. Whoever is not known is dropped. Used by
//! the agent's OpenShift server and its follower of tenants; docs/openshift-tenants.md has the packet's way.

mod alias;
mod device;
mod peers;
mod port;
mod programs;
mod reconcile;
mod rules;
mod verdicts;
mod work;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use russet_addr::{ContainerId, IfName, Ipv4Net};
use russet_linux::bpf::{BpfError, Program};
use russet_linux::sysctl::SysctlError;
use russet_model::openshift::{Namespace, NetId};
use russet_netlink::{BatchError, NetlinkError, Socket};
use russet_nft::CommitError;

use crate::report::Report;
use verdicts::Verdicts;
use work::Work;

pub use rules::{TABLE, table};
pub use work::Outcome;

/// What a node's part of the network is. Addresses are trusted: they were parsed from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where pods have their addresses.
    pub cluster: Vec<Ipv4Net>,
    /// Where services have theirs.
    pub service: Option<Ipv4Net>,
    /// Where this node's pods have theirs.
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

/// A pod's interface: as it should be, or as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The host's end of the veth, which the plugin made.
    pub host_veth: IfName,
    /// The pod's address, from which its MAC follows.
    pub address: Ipv4Addr,
    /// The network ID of its namespace; without one, nothing of it passes.
    pub netid: Option<NetId>,
    /// Its sandbox.
    pub sandbox: ContainerId,
    /// Its namespace, so that a later life of the agent knows whose it is.
    pub namespace: Namespace,
}

/// Another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The address that we send to, and the only one that it may send from.
    pub host_ip: Ipv4Addr,
    /// Where its pods have their addresses.
    pub subnet: Ipv4Net,
}

/// One node's data path, in the network namespace of the thread that opened it; every call belongs on a thread that is in it.
///
/// Nothing is taken out of the kernel when it is dropped: packets go on while the agent restarts.
#[derive(Debug)]
pub struct Sdn {
    settings: Settings,
    socket: Socket,
    verdicts: Verdicts,
    /// The ports that are attached, by their link.
    ports: BTreeMap<IfName, Port>,
    /// None before they were told.
    peers: Option<peers::Told>,
    /// What guards pods, as the kernel has it since it was needed first.
    delivery: Option<Program>,
}

/// What can go wrong; each names the operation and its subject.
#[derive(Debug, thiserror::Error)]
pub enum SdnError {
    /// A link, address, neighbour or route.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A transaction of nf_tables.
    #[error("table {TABLE}: {0}")]
    Nft(#[from] CommitError),
    /// A sysctl.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// A program of the tunnel device.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// An address that is not this node's to give.
    #[error("attach {address} of sandbox {sandbox}: it is not a pod's address of {own}")]
    Foreign {
        /// The address.
        address: Ipv4Addr,
        /// Whose it should have been.
        sandbox: ContainerId,
        /// This node's subnet.
        own: Ipv4Net,
    },
    /// Another sandbox has the address, and its link is there.
    #[error("attach {address} of sandbox {sandbox}: sandbox {holder} has it on link {link}")]
    Taken {
        /// The address.
        address: Ipv4Addr,
        /// Who wants it.
        sandbox: ContainerId,
        /// Who has it.
        holder: ContainerId,
        /// Where.
        link: IfName,
    },
    /// What limits the pod's traffic was there before the guard.
    #[error("attach program {program} to link {ifindex}: qdisc ingress has the place of clsact")]
    NoPlace {
        /// The guard.
        program: String,
        /// The link.
        ifindex: u32,
    },
    /// The link is not a veth, or has a record of another's.
    #[error("attach sandbox {sandbox}: link {link} {problem}")]
    Link {
        /// Whose.
        sandbox: ContainerId,
        /// The link.
        link: IfName,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// The tunnel device, and its alias.
pub const DEVICE: &str = "vxlan-sdn";
/// The protocol of all routes that are ours: 114 and 115 are the overlay's and flannel's, which would remove them.
pub const ROUTE_PROTOCOL: u8 = 116;
/// The group of pods' links that are about to go: whatever happens to one of these is our own doing.
pub const LEAVING_GROUP: u32 = 7275;
/// What the outer headers take: IPv4, UDP, VXLAN, Ethernet.
pub const OVERHEAD_BYTES: u32 = 50;

// === impl Settings ===

impl Settings {
    /// The address that the node itself has in its subnet, the pods' gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.own.network().to_bits() | 1)
    }

    /// Whether a pod of this node may have the address.
    fn is_pods(&self, address: Ipv4Addr) -> bool {
        let reserved = [self.own.network(), self.own.broadcast(), self.gateway()];
        self.own.contains(&address) && !reserved.contains(&address)
    }
}

// === impl Sdn ===

impl Sdn {
    /// Opens the conversation with the kernel and reads which ports stand; changes nothing yet.
    pub fn open(settings: Settings) -> Result<Self, SdnError> {
        let verdicts = Verdicts::open(&settings)?;
        let (socket, ports) = (Socket::route()?, BTreeMap::new());
        let mut sdn = Self { settings, socket, verdicts, ports, peers: None, delivery: None };
        sdn.ports = sdn.ports()?.into_iter().map(|port| (port.host_veth.clone(), port)).collect();
        Ok(sdn)
    }

    /// What it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Brings everything, whatever others did to it, to the ports that are attached and the peers as they were told last: the table of verdicts, the tunnel
    /// device with its programs, ways. A port whose link is gone is attached no more.
    pub fn restore(&mut self) -> Outcome {
        let mut work = Work::mends();
        reconcile::run(self, &mut work);
        work.finish()
    }

    /// What [`Self::restore`] would do, in words; changes nothing.
    pub fn differences(&mut self) -> Outcome {
        let mut work = Work::looks();
        reconcile::run(self, &mut work);
        work.finish()
    }

    /// Brings routes, neighbours and permitted senders to exactly these peers; costs what changed since the last time.
    pub fn peers(&mut self, peers: &[Peer]) -> Report {
        let mut work = Work::mends();
        peers::bring(self, peers, &mut work);
        work.finish().report
    }

    /// Attaches a pod: its record, its verdict entries, and only then the way to it. An error leaves nothing but the record.
    pub fn attach(&mut self, port: &Port) -> Result<(), SdnError> {
        port::attach(self, port)
    }

    /// Detaches a sandbox, and gives its links, down and without a way, for [`delete_links`]. Succeeds when there is nothing of it.
    pub fn detach(&mut self, sandbox: &ContainerId) -> Result<Vec<IfName>, SdnError> {
        port::detach(self, sandbox)
    }

    /// Whether a sandbox is attached, and its link is there.
    pub fn stands(&mut self, sandbox: &ContainerId) -> Result<bool, SdnError> {
        let Some(port) = self.ports.values().find(|port| port.sandbox == *sandbox) else { return Ok(false) };
        match self.socket.link_by_name(&port.host_veth) {
            Ok(link) => Ok(reconcile::is_of(port, &link)),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives ports that are attached other network IDs, all in one transaction; those that are not attached are left out. When this returns, no
    /// packet is judged by the old ones any more, except those that are being judged.
    pub fn renumber(&mut self, ports: &[Port]) -> Result<(), SdnError> {
        let known =
            |port: &&Port| self.ports.get(&port.host_veth).is_some_and(|held| held.sandbox == port.sandbox);
        let mut wanted = self.ports.clone();
        for port in ports.iter().filter(known) {
            if let Some(held) = wanted.get_mut(&port.host_veth) {
                held.netid = port.netid;
            }
        }
        self.judge_by(wanted)
    }

    /// The ports that stand, from the links' aliases and the table of verdicts: what a later life of the agent begins with.
    pub fn ports(&mut self) -> Result<Vec<Port>, SdnError> {
        let netids = self.verdicts.netids()?;
        let links = self.socket.links()?;
        Ok(links.iter().filter_map(|link| alias::standing(link, &netids)).collect())
    }

    /// Takes everything out: ways, device, table; pods' links stay, without a way.
    pub fn withdraw(&mut self) -> Report {
        reconcile::withdraw(self)
    }

    /// The ports as this life of the agent knows them, without asking the kernel.
    pub fn attached(&self) -> impl Iterator<Item = &Port> {
        self.ports.values()
    }

    /// One transaction from the entries that are there to those of `wanted`.
    fn judge_by(&mut self, wanted: BTreeMap<IfName, Port>) -> Result<(), SdnError> {
        self.verdicts.change(&self.settings, &self.ports, &wanted)?;
        self.ports = wanted;
        Ok(())
    }
}

/// Deletes what detached sandboxes left, which takes the kernel tens of milliseconds each: nobody needs to wait for the data path meanwhile.
pub fn delete_links(links: Vec<IfName>) -> Result<(), SdnError> {
    if links.is_empty() { Ok(()) } else { port::delete(&mut Socket::route()?, links) }
}

// === impl SdnError ===

impl From<BatchError> for SdnError {
    fn from(error: BatchError) -> Self {
        Self::Netlink(error.error)
    }
}
