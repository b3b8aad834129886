//! What a capture is about, and on which interfaces which packets belong to it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use russet_addr::Family;
use russet_agent::Paths;
use russet_agent::status::{AgentStatus, STATUS_PATH};
use russet_journal::Attachment;
use russet_netlink::{Address, FdbEntry, Link, NetlinkError, Socket};
use serde_json::json;

use super::headers::{self, Ip};
use super::pause::Paused;
use super::pcapng::LinkType;
use crate::command::Failure;
use crate::command::ask::ask;
use crate::output;

/// The interfaces of a capture.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// For the file's name.
    pub name: String,
    pub places: Vec<Place>,
    pub choice: Choice,
    /// What the fast path would carry past these places.
    pub passed_by: Paused,
}

/// An interface, and which of its packets are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub ifindex: u32,
    pub name: String,
    pub description: String,
    pub wanted: Wanted,
}

/// Which packets of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// Those of these addresses.
    Addresses(Vec<IpAddr>),
    /// The same, and a tunnel's packets that have those inside.
    Outside(Vec<IpAddr>),
    /// Frames from or to these MACs.
    Macs(Vec<[u8; 6]>),
    /// A tunnel's packets from or to these addresses.
    Tunnel(Vec<IpAddr>),
}

/// What holds on all interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    pub host: Option<IpAddr>,
    pub port: Option<u16>,
    /// Ports of the tunnels.
    pub vxlan_ports: Vec<u16>,
}

/// What the kernel has.
#[derive(Debug, Default)]
struct Kernel {
    links: Vec<Link>,
    addresses: Vec<Address>,
    /// Of the devices of tunnels.
    fdb: Vec<FdbEntry>,
    /// The interfaces of default routes.
    default_links: BTreeSet<u32>,
}

/// What a name can mean.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Pod(Box<Attachment>),
    Peer(Vec<IpAddr>),
    Interface(String),
}

/// The agent answers from memory.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// A beginning of a container's id that is shorter may be anything.
const CONTAINER_MIN_CHARS: usize = 4;
/// Devices of tunnels.
const TUNNELS: [&str; 3] = ["vxlan", "ipip", "wireguard"];

/// Finds out what `name` is, and where its packets are.
pub fn plan(paths: &Paths, name: &str, choice: Choice) -> Result<Plan, Failure> {
    let view = russet_journal::view(&paths.journal_file())
        .map_err(|error| format!("read the journal {}: {error}", paths.journal_file().display()))?;
    let attachments = view.map(|view| view.attachments).unwrap_or_default();
    let kernel = Kernel::read()?;
    let target = match find(name, &attachments, &kernel)? {
        Some(target) => target,
        None => peer(paths, name)?,
    };
    let passed_by = kernel.passed_by(&target);
    let places = match &target {
        Target::Pod(attachment) => kernel.places_of_pod(attachment)?,
        Target::Peer(addresses) => kernel.places_of_peer(name, addresses)?,
        Target::Interface(interface) => {
            kernel.place(interface, "as it was named", Wanted::All).into_iter().collect()
        }
    };
    let choice = Choice { vxlan_ports: kernel.vxlan_ports(), ..choice };
    Ok(Plan { name: name.to_owned(), places, choice, passed_by })
}

/// A pod, an interface or an address; None if it can only be a node's name.
fn find(name: &str, attachments: &[Attachment], kernel: &Kernel) -> Result<Option<Target>, String> {
    let is_meant = |it: &&Attachment| {
        let pod = it.pod.as_deref().unwrap_or_default();
        let is_container = name.len() >= CONTAINER_MIN_CHARS && it.container.starts_with(name);
        pod == name || pod.split_once('/').is_some_and(|(_, pod)| pod == name) || is_container
    };
    let found: Vec<&Attachment> = attachments.iter().filter(is_meant).collect();
    // A pod can have several interfaces, and an interface several plugins: the first one that has a host end here.
    let pods: BTreeSet<&str> = found.iter().map(|it| it.pod.as_deref().unwrap_or(&it.container)).collect();
    let is_interface = kernel.links.iter().any(|link| link.name == name);
    if pods.len() + usize::from(is_interface) > 1 {
        let all: Vec<&str> = pods.into_iter().chain(is_interface.then_some("an interface")).collect();
        return Err(format!(
            "{name} can be any of: {}; give NAMESPACE/POD, or more of the container's id",
            all.join(", ")
        ));
    }
    let best = found.iter().find(|it| it.host_name.is_some()).or_else(|| found.first());
    Ok(match (best, name.parse::<IpAddr>()) {
        (Some(attachment), _) => Some(Target::Pod(Box::new((*attachment).clone()))),
        (None, _) if is_interface => Some(Target::Interface(name.to_owned())),
        (None, Ok(address)) => Some(Target::Peer(vec![address])),
        (None, Err(_)) => None,
    })
}

/// A node that the agent knows.
fn peer(paths: &Paths, name: &str) -> Result<Target, Failure> {
    let unknown = |why: &str| {
        let name = output::visible(name);
        format!(
            "{name} is no pod of this node, no interface and no node that its agent probes{why}; `{}` and `ip link` show what there is; of another node give the address",
            paths.command("journal")
        )
    };
    let answer: Result<AgentStatus, _> =
        ask(&paths.cni_socket(), (STATUS_PATH, AgentStatus::SCHEMA), &json!({}), STATUS_TIMEOUT);
    let status = answer.map_err(|error| unknown(&format!(" ({error})")))?;
    let of_node = status.peers.peers.iter().filter(|peer| peer.node == name);
    let addresses: BTreeSet<IpAddr> =
        of_node.filter_map(|peer| peer.underlay.as_ref()?.parse().ok()).collect();
    if addresses.is_empty() {
        return Err(unknown("").into());
    }
    Ok(Target::Peer(addresses.into_iter().collect()))
}

// === impl Kernel ===

impl Kernel {
    fn read() -> Result<Self, NetlinkError> {
        let mut socket = Socket::route()?;
        let mut kernel = Self { links: socket.links()?, addresses: socket.addresses()?, ..Self::default() };
        for link in kernel.links.iter().filter(|link| link.vxlan.is_some()) {
            kernel.fdb.extend(socket.fdb(link.index)?);
        }
        for family in Family::BOTH {
            let defaults = socket.routes(family)?.into_iter().filter(|route| route.dst.prefix_len() == 0);
            kernel.default_links.extend(defaults.filter_map(|route| route.oif));
        }
        Ok(kernel)
    }

    fn tunnels(&self) -> impl Iterator<Item = &Link> {
        let is_tunnel = |link: &&Link| link.kind.as_deref().is_some_and(|kind| TUNNELS.contains(&kind));
        self.links.iter().filter(is_tunnel).filter(|link| link.is_up())
    }

    /// The interfaces through which this node reaches others.
    fn underlays(&self) -> Vec<&Link> {
        let mut indices = self.default_links.clone();
        for vxlan in self.tunnels().filter_map(|link| link.vxlan.as_ref()) {
            let of_local = self.addresses.iter().find(|it| Some(it.net.addr()) == vxlan.local);
            indices.extend(vxlan.parent.or(of_local.map(|it| it.ifindex)));
        }
        let is_one = |link: &&Link| indices.contains(&link.index) && !link.is_loopback();
        self.links.iter().filter(is_one).collect()
    }

    fn vxlan_ports(&self) -> Vec<u16> {
        let ports: BTreeSet<u16> =
            self.links.iter().filter_map(|link| Some(link.vxlan.as_ref()?.port)).collect();
        ports.into_iter().collect()
    }

    /// What the fast path must not carry while a target is captured. At the interfaces to other nodes all packets are
    /// seen in any case.
    fn passed_by(&self, target: &Target) -> Paused {
        let is_tunnel = |link: &Link| link.kind.as_deref().is_some_and(|kind| TUNNELS.contains(&kind));
        let is_passed_by = |link: &&Link| link.is_of_pair() || is_tunnel(link);
        let named = |name: &str| self.links.iter().find(|link| link.name == name);
        let index = |name: &str| named(name).filter(is_passed_by).map(|link| link.index);
        let interface = match target {
            Target::Pod(attachment) => attachment.host_name.as_deref().and_then(index),
            Target::Interface(name) => index(name),
            Target::Peer(_) => None,
        };
        let peers = match target {
            Target::Peer(addresses) => addresses.iter().copied().collect(),
            _ => BTreeSet::new(),
        };
        Paused { interfaces: interface.into_iter().collect(), peers }
    }

    fn place(&self, name: &str, description: &str, wanted: Wanted) -> Option<Place> {
        let link = self.links.iter().find(|link| link.name == name)?;
        Some(Place {
            ifindex: link.index,
            name: link.name.clone(),
            description: description.to_owned(),
            wanted,
        })
    }

    fn places_of_pod(&self, attachment: &Attachment) -> Result<Vec<Place>, String> {
        let pod = output::visible(attachment.pod.as_deref().unwrap_or(&attachment.container));
        let Some(host_name) = &attachment.host_name else {
            let plugin = output::visible(&attachment.plugin);
            return Err(format!(
                "{pod} has no interface on this node, because the plugin {plugin} makes none; capture the interface below it"
            ));
        };
        let host_end = self.place(host_name, &format!("host end of {pod}"), Wanted::All);
        let host_end = host_end.ok_or_else(|| format!("the host end {host_name} of {pod} is not in this network namespace; give --root of its node, and run this in that node's namespace"))?;
        let mut places = vec![host_end];
        let addresses = || attachment.addresses.clone();
        let inside = format!("packets of {pod} inside of the tunnel");
        places.extend(
            self.tunnels().filter_map(|link| self.place(&link.name, &inside, Wanted::Addresses(addresses()))),
        );
        let outside = format!("packets of {pod} outside of the tunnel, and plain ones");
        let underlays = self.underlays();
        places.extend(
            underlays
                .iter()
                .filter_map(|link| self.place(&link.name, &outside, Wanted::Outside(addresses()))),
        );
        Ok(places)
    }

    fn places_of_peer(&self, name: &str, addresses: &[IpAddr]) -> Result<Vec<Place>, String> {
        let name = output::visible(name);
        let mut places = Vec::new();
        for link in self.tunnels() {
            let of_link = self.fdb.iter().filter(|entry| entry.ifindex == link.index);
            let of_peer = of_link.filter(|entry| entry.dst.is_some_and(|dst| addresses.contains(&dst)));
            let macs: Vec<[u8; 6]> =
                of_peer.map(|entry| entry.mac.octets()).filter(|mac| *mac != [0; 6]).collect();
            if !macs.is_empty() {
                places.extend(self.place(
                    &link.name,
                    &format!("inside of the tunnel to {name}"),
                    Wanted::Macs(macs),
                ));
            }
        }
        if places.is_empty() {
            return Err(format!(
                "there is no VXLAN tunnel to {name} here; capture a pod, or an interface with --host"
            ));
        }
        let outside = format!("outside of the tunnel to {name}");
        let tunnel = Wanted::Tunnel(addresses.to_vec());
        places.extend(
            self.underlays().iter().filter_map(|link| self.place(&link.name, &outside, tunnel.clone())),
        );
        Ok(places)
    }
}

// === impl Choice ===

impl Choice {
    /// Whether a packet of an interface is wanted. The bytes are those of the network.
    pub fn takes(&self, wanted: &Wanted, link_type: LinkType, bytes: &[u8]) -> bool {
        let packet = headers::ip(link_type, bytes);
        let inner = packet.and_then(|packet| packet.inner(&self.vxlan_ports));
        let is_any = self.host.is_none() && self.port.is_none();
        let is_of = |ip: &Ip<'_>, addresses: &[IpAddr]| addresses.iter().any(|address| ip.has(*address));
        match wanted {
            Wanted::All => is_any || self.matches(packet) || self.matches(inner),
            Wanted::Addresses(addresses) => self.matches(packet.filter(|ip| is_of(ip, addresses))),
            Wanted::Outside(addresses) => {
                self.matches(packet.filter(|ip| is_of(ip, addresses)))
                    || self.matches(inner.filter(|ip| is_of(ip, addresses)))
            }
            Wanted::Macs(wanted) => {
                let is_meant =
                    headers::macs(bytes).is_some_and(|macs| macs.iter().any(|mac| wanted.contains(mac)));
                is_meant && (is_any || self.matches(packet))
            }
            Wanted::Tunnel(addresses) => {
                packet.is_some_and(|ip| is_of(&ip, addresses)) && self.matches(inner)
            }
        }
    }

    fn matches(&self, packet: Option<Ip<'_>>) -> bool {
        packet.is_some_and(|ip| {
            self.host.is_none_or(|host| ip.has(host))
                && self.port.is_none_or(|port| ip.ports().is_some_and(|ports| ports.contains(&port)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers::tests::{PORT, ethernet, ipv4, udp, vxlan};
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// An attachment as the journal lists it.
    fn attachment(pod: Option<&str>, container: &str, host_name: Option<&str>) -> Attachment {
        Attachment {
            network: "n".into(),
            container: container.into(),
            ifname: "eth0".into(),
            pod: pod.map(str::to_owned),
            plugin: "russet".into(),
            since: String::new(),
            host_name: host_name.map(str::to_owned),
            addresses: vec![address("10.244.1.2")],
            bridge: None,
            netns: None,
        }
    }

    #[test]
    fn packets_are_taken_by_where_they_are_and_what_is_in_them() {
        let pod = || vec![address("10.244.1.2")];
        let choice = Choice { vxlan_ports: vec![PORT], ..Choice::default() };
        let inner = ipv4([10, 244, 1, 2], [10, 244, 2, 3], 6, &[0, 80, 1, 0]);
        let plain = ethernet(0x0800, &inner);
        let arp = ethernet(0x0806, &[0; 28]);
        let outer = ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17, &udp(9, PORT, &vxlan(&plain)));
        let tunnelled = ethernet(0x0800, &outer);
        let other = ethernet(0x0800, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17, &udp(9, 53, &[0; 40])));
        let wanted = [
            Wanted::All,
            Wanted::Addresses(pod()),
            Wanted::Outside(pod()),
            Wanted::Macs(vec![[2, 0, 0, 0, 0, 2]]),
            Wanted::Macs(vec![[2, 0, 0, 0, 0, 9]]),
            Wanted::Tunnel(vec![address("10.0.0.2")]),
            Wanted::Tunnel(vec![address("10.0.0.9")]),
        ];
        let taken = |choice: &Choice, frame: &[u8]| -> Vec<bool> {
            wanted.iter().map(|wanted| choice.takes(wanted, LinkType::Ethernet, frame)).collect()
        };
        let (y, n) = (true, false);
        assert_eq!(taken(&choice, &plain), [y, y, y, y, n, n, n]);
        assert_eq!(taken(&choice, &tunnelled), [y, n, y, y, n, y, n]);
        assert_eq!(taken(&choice, &other), [y, n, n, y, n, n, n]);
        assert_eq!(taken(&choice, &arp), [y, n, n, y, n, n, n]);
        let of_host = Choice { host: Some(address("10.244.2.3")), ..choice.clone() };
        assert_eq!(taken(&of_host, &tunnelled), [y, n, y, n, n, y, n]);
        assert_eq!(taken(&of_host, &other), [n; 7]);
        let of_port = Choice { port: Some(80), ..choice.clone() };
        assert_eq!(taken(&of_port, &plain), [y, y, y, y, n, n, n]);
        assert_eq!(taken(&of_port, &arp), [n; 7]);
        assert_eq!(taken(&Choice { port: Some(81), ..choice }, &tunnelled), [n; 7]);
    }

    #[test]
    fn a_name_is_a_pod_a_container_an_address_or_a_nodes() {
        let all = [
            attachment(Some("shop/web"), "aaaa1111", Some("russ1")),
            attachment(Some("shop/web"), "aaaa1111", None),
            attachment(Some("other/web"), "bbbb2222", Some("russ2")),
            attachment(None, "cccc3333", Some("russ3")),
        ];
        let kernel = Kernel::default();
        let host_name = |name: &str| match find(name, &all, &kernel).unwrap() {
            Some(Target::Pod(attachment)) => attachment.host_name,
            other => panic!("{other:?}"),
        };
        assert_eq!(host_name("shop/web").as_deref(), Some("russ1"));
        assert_eq!(host_name("bbbb").as_deref(), Some("russ2"));
        assert_eq!(host_name("cccc3333").as_deref(), Some("russ3"));
        let error = find("web", &all, &kernel).unwrap_err();
        assert!(error.contains("other/web, shop/web"), "{error}");
        assert_eq!(find("10.0.0.2", &all, &kernel).unwrap(), Some(Target::Peer(vec![address("10.0.0.2")])));
        assert_eq!(find("node-b", &all, &kernel).unwrap(), None);
        assert_eq!(find("ccc", &all, &kernel).unwrap(), None);
        let error = kernel.places_of_pod(&all[1]).unwrap_err();
        assert!(error.contains("the plugin russet makes none"), "{error}");
    }
}
