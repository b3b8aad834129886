//! A pod's interface as OpenShift's thin plugin makes it (cni-runtime.md section 4.2): first a
//! veth, whose host end a server attaches to the node's data path, and then everything inside the
//! pod, after that server has returned its address.
//!
//! The plugin `openshift-sdn` calls it. The pod's end stays down until its MAC and address are set,
//! and [`Interface::undo`] reverses the steps before a failed one. Nothing in the node's namespace
//! has our alias: the host end belongs to the server, ours or a stock one.

mod block;
mod compare;
mod macvlan;

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};
use russet_addr::{IfName, Mac, host_net};
use russet_linux::random::random;
use russet_linux::{NetNs, NetNsError};
use russet_netlink::{
    Address, Batch, Link, LinkAdd, LinkDel, LinkSet, NetlinkError, Peer, Route, Scope, Socket,
};
use russet_nft::CommitError;

use crate::{ROUTE_PROTOCOL, inspect};

pub use compare::compare;
pub use macvlan::{MacvlanError, add_macvlan, remove_macvlan};

/// The interface that the server adds to pods on one of the node's own networks.
pub const MACVLAN: &str = "macvlan0";

/// The default metadata address of clouds.
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// The settings of the interface, as the server returned them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The pod's address in the node's subnet.
    pub address: Ipv4Net,
    /// The subnet's gateway.
    pub gateway: Option<Ipv4Addr>,
    /// Destinations and next hops; without one they are on the link.
    pub routes: Vec<(Ipv4Net, Option<Ipv4Addr>)>,
    /// The MTU of these routes, in bytes.
    pub route_mtu: Option<u32>,
    /// The service network, if the server's configuration has it: a pod with a [`MACVLAN`] reaches
    /// it through the gateway.
    pub service: Option<Ipv4Net>,
    /// The cloud's metadata address, of which pods may only use the DNS.
    pub metadata: Ipv4Addr,
}

/// The resulting interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The MAC of the pod's end.
    pub mac: Mac,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// Those of the settings, and those that a [`MACVLAN`] needs.
    pub routes: Vec<(Ipv4Net, Option<Ipv4Addr>)>,
}

/// Why an interface could not be created or read.
#[derive(Debug, thiserror::Error)]
pub enum SdnError {
    /// The pod has an interface of this name.
    #[error("container veth name ({0}) already exists")]
    Exists(IfName),
    /// The namespace is the node's own.
    #[error("{} is the node's own network namespace, not a pod's", .0.display())]
    OwnNamespace(PathBuf),
    /// The interface was deleted meanwhile.
    #[error("the interface {0} vanished while it was being set up")]
    Vanished(String),
    /// No free name for the host end was found.
    #[error("no name for the host end could be found")]
    NoName,
    /// A pod with a macvlan0 needs the gateway to reach its parent's address and the service
    /// network.
    #[error("the pod has a {MACVLAN}, and the server named no gateway")]
    NoGateway,
    /// A namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The kernel refused.
    #[error("{operation}: {source}")]
    Netlink {
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: NetlinkError,
    },
    /// The kernel refused the pod's packet filter.
    #[error("block what pods may not reach: {0}")]
    Filter(#[from] CommitError),
}

/// A pod's interface while it is being created.
#[derive(Debug)]
pub struct Interface {
    netns: NetNs,
    host: Socket,
    pod: Socket,
    ifname: IfName,
    host_name: IfName,
    pod_ifindex: u32,
    undo: Vec<Reversal>,
}

/// How to reverse one change.
#[derive(Debug)]
enum Reversal {
    /// Delete the veth in the node's namespace, and with it its addresses and routes.
    Veth,
    /// Set a link of the pod down again.
    PodLinkDown(u32),
    /// Delete the pod's packet filter.
    Filter,
}

/// Attempts to find a free random name; a second one is almost never needed.
const NAME_MAX_TRIES: usize = 8;
/// The loopback's index in every namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK_IFINDEX: u32 = 1;

/// The MAC that is derived from an address: OpenShift's data path uses it without ARP.
pub fn mac_of(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    Mac([0x0a, 0x58, a, b, c, d])
}

/// Removes the veth and the packet filter of a pod, if they exist.
pub fn remove(netns: &NetNs, ifname: &IfName) -> Result<(), SdnError> {
    refuse_own(netns)?;
    let mut pod = netns.with(Socket::route)?.map_err(doing("open a netlink socket"))?;
    let link = inspect::by_name(&mut pod, ifname).map_err(doing("look for the pod's interface"))?;
    if let Some(link) = link.filter(|link| link.kind.as_deref() == Some("veth")) {
        let mut batch = Batch::new();
        batch.delete_link(&LinkDel::Index(link.index));
        let deleted = pod.execute(&batch).map_err(NetlinkError::from);
        inspect::present(deleted).map_err(doing("delete the pod's interface"))?;
    }
    netns.with(block::remove)?
}

// === impl Interface ===

impl Interface {
    /// Creates the veth with its host end up and the pod's end down, or leaves nothing on failure.
    /// The kernel chooses the MTU if none is given.
    pub fn create(netns: NetNs, ifname: IfName, mtu: Option<u32>) -> Result<Self, SdnError> {
        refuse_own(&netns)?;
        let mut host = Socket::route().map_err(doing("open a netlink socket"))?;
        let mut pod = netns.with(Socket::route)?.map_err(doing("open a netlink socket"))?;
        if inspect::by_name(&mut pod, &ifname).map_err(doing("look for the pod's interface"))?.is_some() {
            return Err(SdnError::Exists(ifname));
        }
        let host_name = create_veth(&mut host, &netns, &ifname, mtu)?;
        let undo = vec![Reversal::Veth];
        let mut made = Self { netns, host, pod, ifname, host_name, pod_ifindex: 0, undo };
        match made.raise_host_end() {
            Ok(()) => Ok(made),
            Err(error) => {
                made.undo();
                Err(error)
            }
        }
    }

    /// The end in the node's namespace, for the server.
    pub fn host_name(&self) -> &IfName {
        &self.host_name
    }

    /// Sets up the rest. After an error the caller undoes everything.
    pub fn settle(&mut self, settings: &Settings) -> Result<Settled, SdnError> {
        let mac = mac_of(settings.address.addr());
        self.raise(mac, settings.address)?;
        self.raise_link(LOOPBACK_IFINDEX)?;
        let mut routes = settings.routes.clone();
        routes.extend(self.routes_beside_macvlan(settings)?);
        self.add_routes(&routes, settings.route_mtu)?;
        if self.netns.with(|| block::install(settings.metadata))?? {
            self.undo.push(Reversal::Filter);
        }
        let link = self.pod.link_by_index(self.pod_ifindex).map_err(doing("look at the pod's interface"))?;
        Ok(Settled { mac, mtu: link.mtu_bytes, routes })
    }

    /// Reverses everything, newest first; continues after an error and returns all errors.
    pub fn undo(&mut self) -> Vec<String> {
        let mut errors = Vec::new();
        while let Some(reversal) = self.undo.pop() {
            errors.extend(self.reverse(&reversal).err().map(|error| error.to_string()));
        }
        errors
    }

    fn reverse(&mut self, reversal: &Reversal) -> Result<(), SdnError> {
        let mut batch = Batch::new();
        let socket = match reversal {
            Reversal::Filter => return self.netns.with(block::remove)?,
            Reversal::Veth => {
                batch.delete_link(&LinkDel::Name(self.host_name.clone()));
                &mut self.host
            }
            Reversal::PodLinkDown(index) => {
                batch.set_link(&LinkSet { up: Some(false), ..LinkSet::index(*index) });
                &mut self.pod
            }
        };
        let done = socket.execute(&batch).map_err(NetlinkError::from);
        inspect::present(done).map(drop).map_err(doing("undo a step"))
    }

    fn raise_host_end(&mut self) -> Result<(), SdnError> {
        let host = self.host.link_by_name(&self.host_name).map_err(doing("look for the host end"))?;
        self.pod_ifindex = host.link.ok_or_else(|| SdnError::Vanished(self.ifname.to_string()))?;
        let mut batch = Batch::new();
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(host.index) });
        self.host.execute(&batch).map_err(NetlinkError::from).map_err(doing("raise the host end"))
    }

    /// The pod's end gets its MAC and address before it is set up.
    fn raise(&mut self, mac: Mac, address: Ipv4Net) -> Result<(), SdnError> {
        let index = self.pod_ifindex;
        let mut batch = Batch::new();
        batch.set_link(&LinkSet { mac: Some(mac), ..LinkSet::index(index) });
        batch.add_address(&Address::new(index, IpNet::V4(address)));
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(index) });
        self.pod.execute(&batch).map_err(NetlinkError::from).map_err(doing("set up the pod's interface"))
    }

    fn raise_link(&mut self, index: u32) -> Result<(), SdnError> {
        let link = self.pod.link_by_index(index).map_err(doing("look at a link of the pod"))?;
        if link.is_up() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(index) });
        self.pod.execute(&batch).map_err(NetlinkError::from).map_err(doing("raise a link of the pod"))?;
        self.undo.push(Reversal::PodLinkDown(index));
        Ok(())
    }

    /// A macvlan cannot reach its parent's own addresses, nor the service network: both are reached
    /// through the gateway.
    fn routes_beside_macvlan(
        &mut self,
        settings: &Settings,
    ) -> Result<Vec<(Ipv4Net, Option<Ipv4Addr>)>, SdnError> {
        let Some(link) = macvlan(&mut self.pod)? else { return Ok(Vec::new()) };
        let gateway = settings.gateway.ok_or(SdnError::NoGateway)?;
        self.raise_link(link.index)?;
        // Old kernels omit the parent's index if it is the same number.
        let parent = link.link.unwrap_or(link.index);
        let addresses =
            self.host.addresses_of(parent).map_err(doing("read the addresses of macvlan0's parent"))?;
        let nets = addresses.iter().filter_map(|address| match host_net(address.net.addr()) {
            IpNet::V4(net) => Some(net),
            IpNet::V6(_) => None,
        });
        let mut wanted: Vec<Ipv4Net> = Vec::new();
        for net in nets.chain(settings.service) {
            if !wanted.contains(&net) {
                wanted.push(net);
            }
        }
        wanted.retain(|net| settings.routes.iter().all(|(dst, _)| dst != net));
        Ok(wanted.into_iter().map(|net| (net, Some(gateway))).collect())
    }

    /// Existing routes are kept: the address adds one itself.
    fn add_routes(
        &mut self,
        routes: &[(Ipv4Net, Option<Ipv4Addr>)],
        mtu: Option<u32>,
    ) -> Result<(), SdnError> {
        let mut batch = Batch::new();
        for (dst, via) in routes {
            batch.add_route(&route(self.pod_ifindex, *dst, *via, mtu));
        }
        for result in self.pod.execute_all(&batch) {
            match result {
                Err(error) if !error.is_exists() => return Err(doing("add a route of the pod")(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A route as the stock plugin makes it: with global scope also on the link.
fn route(oif: u32, dst: Ipv4Net, via: Option<Ipv4Addr>, mtu: Option<u32>) -> Route {
    Route {
        gateway: via.map(Into::into),
        oif: Some(oif),
        scope: Scope::Universe,
        protocol: ROUTE_PROTOCOL,
        mtu_bytes: mtu,
        ..Route::new(IpNet::V4(dst.trunc()))
    }
}

/// The link of that name, if it is one.
fn macvlan(pod: &mut Socket) -> Result<Option<Link>, SdnError> {
    let Ok(name) = IfName::new(MACVLAN) else { return Ok(None) };
    let link = inspect::by_name(pod, &name).map_err(doing("look for macvlan0"))?;
    Ok(link.filter(|link| link.kind.as_deref() == Some("macvlan")))
}

fn create_veth(
    host: &mut Socket,
    netns: &NetNs,
    ifname: &IfName,
    mtu: Option<u32>,
) -> Result<IfName, SdnError> {
    for _ in 0..NAME_MAX_TRIES {
        let Ok(name) = IfName::new(format!("veth{:08x}", u32::from_ne_bytes(random()))) else { continue };
        let peer = Peer { netns: Some(netns.as_raw_fd()), mtu_bytes: mtu, ..Peer::new(ifname.clone()) };
        let mut batch = Batch::new();
        batch.add_link(&LinkAdd { mtu_bytes: mtu, ..LinkAdd::veth(name.clone(), peer) });
        match host.execute(&batch) {
            Ok(()) => return Ok(name),
            // One of the names exists: that of the pod's end was free a moment ago.
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(doing("create the veth")(error.into())),
        }
    }
    Err(SdnError::NoName)
}

fn refuse_own(netns: &NetNs) -> Result<(), SdnError> {
    if inspect::is_own(netns)? { Err(SdnError::OwnNamespace(netns.path().to_owned())) } else { Ok(()) }
}

fn doing(operation: &'static str) -> impl Fn(NetlinkError) -> SdnError {
    move |source| SdnError::Netlink { operation, source }
}
