//! A pod's interface as OpenShift's thin plugin makes it (cni-runtime.md section 4.2): a veth first, whose host end a server attaches to the node's
//! data path, and then everything inside of the pod, once that server has said which address it has.
//!
//! The plugin `openshift-sdn` calls it. The pod's end stays down until its MAC and address are in place, and whatever was done before a step that
//! fails is undone by [`Interface::undo`]. Nothing in the node's namespace carries our alias: the host end is the server's, ours or a stock one.

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

/// The interface that the server puts into pods which shall have one of the node's own networks.
pub const MACVLAN: &str = "macvlan0";

/// Where clouds say who a machine is, unless told otherwise.
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// What the interface is to have, once the server has said so.
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
    /// The service network, where the server's configuration names it: a pod with a [`MACVLAN`] reaches it through the gateway.
    pub service: Option<Ipv4Net>,
    /// The cloud's metadata address, of which pods may only use the DNS.
    pub metadata: Ipv4Addr,
}

/// What the interface has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Of the pod's end.
    pub mac: Mac,
    /// Of both ends, in bytes.
    pub mtu: u32,
    /// Those of the settings, and those that a [`MACVLAN`] needs.
    pub routes: Vec<(Ipv4Net, Option<Ipv4Addr>)>,
}

/// Why an interface could not be made, or looked at.
#[derive(Debug, thiserror::Error)]
pub enum SdnError {
    /// The pod has such an interface.
    #[error("container veth name ({0}) already exists")]
    Exists(IfName),
    /// The namespace is the node's own.
    #[error("{} is the node's own network namespace, not a pod's", .0.display())]
    OwnNamespace(PathBuf),
    /// It is gone again.
    #[error("the interface {0} vanished while it was being set up")]
    Vanished(String),
    /// No name for the host end is free.
    #[error("no name for the host end could be found")]
    NoName,
    /// A pod with a macvlan0 needs the gateway for what its parent's address and the service network are reached through.
    #[error("the pod has a {MACVLAN}, and the server named no gateway")]
    NoGateway,
    /// A namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The kernel refused.
    #[error("{operation}: {source}")]
    Netlink {
        /// What was to be done.
        operation: &'static str,
        /// The kernel's reason.
        source: NetlinkError,
    },
    /// The kernel refused the pod's packet filter.
    #[error("block what pods may not reach: {0}")]
    Filter(#[from] CommitError),
}

/// A pod's interface while it is being made.
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
    /// Take a link of the pod down again.
    PodLinkDown(u32),
    /// Delete the pod's packet filter.
    Filter,
}

/// Tries at a name that is random: a second one is as good as never needed.
const NAME_MAX_TRIES: usize = 8;
/// The loopback's index in every namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK_IFINDEX: u32 = 1;

/// The MAC that an address gives: OpenShift's data path knows it without asking.
pub fn mac_of(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    Mac([0x0a, 0x58, a, b, c, d])
}

/// Takes down what [`Interface`] made in a pod: the veth, and the packet filter. That there is nothing is success.
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
    /// Makes the veth, the host end up and the pod's down, and leaves nothing where that fails. The kernel chooses the MTU where none is given.
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

    /// Does the rest. After an error the caller undoes everything.
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

    /// Reverses everything, newest first; goes on after an error and returns them all.
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

    /// The pod's end has its MAC and address before it is up.
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

    /// A macvlan cannot talk to its parent's own addresses, nor does the service network live on its side: both are reached through the gateway.
    fn routes_beside_macvlan(
        &mut self,
        settings: &Settings,
    ) -> Result<Vec<(Ipv4Net, Option<Ipv4Addr>)>, SdnError> {
        let Some(link) = macvlan(&mut self.pod)? else { return Ok(Vec::new()) };
        let gateway = settings.gateway.ok_or(SdnError::NoGateway)?;
        self.raise_link(link.index)?;
        // Old kernels leave the parent's index out where it is the same number.
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

    /// What is there already is left as it is: the address brings a route of its own.
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

/// A route as the stock plugin makes it: of scope global also on the link.
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
            // Either name: that of the pod's end was free a moment ago.
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
