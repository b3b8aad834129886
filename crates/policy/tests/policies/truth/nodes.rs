//! Two nodes, the router between them, and the pods of [`generate`] with addresses of both
//! families. The calling thread's namespace is the router, and the host outside the cluster.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use russet_linux::NetNs;
use russet_policy::{Decisions, Policies};
use russet_testkit::run;
use russet_verdict::engine::Engine;
use russet_verdict::generate::{self, Host};
use russet_verdict::table::Delta;
use russet_verdict::world::{Config, Endpoint, Update};

use super::ADDED;
use crate::world::{apply, ip, open};

/// Both nodes, the pods, and what decides on each node.
pub struct Lab {
    pub pods: Vec<Arc<Endpoint>>,
    nodes: Vec<Node>,
    is_first: bool,
}

struct Node {
    name: String,
    address: IpAddr,
    netns: NetNs,
    engine: Engine,
    policies: Policies,
}

/// The node that is an end of probes, too.
pub const PROBED_NODE: &str = "n2";
/// Both families of the host outside the cluster.
pub const OUTSIDE: [&str; 2] = ["203.0.113.7", "2001:db8:113::7"];
const NODES: [(&str, &str); 2] = [("n1", "192.168.0.1"), ("n2", "192.168.0.2")];
const ROUTER: &str = "192.168.0.254";
/// The link layer's addresses of the two ends of each link: no neighbour has to be asked for, and
/// so no packet overtakes another that waits for an answer.
const UPPER: &str = "ee:ee:ee:ee:ee:ee";
const LOWER: &str = "02:00:00:00:00:02";

/// An update of the generated cluster, whose pods get an address of the other family.
pub fn dual_stack(update: Update) -> Update {
    match update {
        Update::Endpoint(key, Some(endpoint)) => {
            let mut endpoint = Endpoint::clone(&endpoint);
            endpoint.addresses.extend(v4_of(&endpoint).map(sixth));
            Update::Endpoint(key, Some(Arc::new(endpoint)))
        }
        other => other,
    }
}

/// The address outside all policies over which a pod is reached always.
pub fn control(pod: &Endpoint) -> IpAddr {
    let [_, _, third, last] = octets(pod);
    [10, 200, third, last].into()
}

/// The ends that are no pods.
pub fn others() -> Vec<Host> {
    generate::hosts().into_iter().filter(|host| !host.name.contains('/')).collect()
}

fn v4_of(endpoint: &Endpoint) -> Option<IpAddr> {
    endpoint.addresses.iter().copied().find(IpAddr::is_ipv4)
}

fn octets(pod: &Endpoint) -> [u8; 4] {
    match v4_of(pod) {
        Some(IpAddr::V4(address)) => address.octets(),
        _ => panic!("{} has no address of IPv4", pod.name),
    }
}

/// The address of IPv6 that belongs to one of IPv4, as [`generate`] pairs them.
fn sixth(address: IpAddr) -> IpAddr {
    let IpAddr::V4(four) = address else { return address };
    let [_, _, third, last] = four.octets().map(u16::from);
    Ipv6Addr::new(0xfd00, 0x10, 0x244, third, 0, 0, 0, last).into()
}

/// The namespace of a pod.
pub fn netns_of(pod: &Endpoint) -> String {
    format!("{}-{}", pod.namespace.as_deref().unwrap_or_default(), pod.name)
}

fn all_pods() -> Vec<Arc<Endpoint>> {
    let updates = generate::cluster().into_iter().chain([generate::pod(ADDED.0, ADDED.1, "a")]);
    let pods = updates.filter_map(|update| match dual_stack(update) {
        Update::Endpoint(_, endpoint) => endpoint,
        _ => None,
    });
    pods.collect()
}

// === impl Lab ===

impl Lab {
    /// Makes everything; no policy is in force.
    pub fn new() -> Self {
        let pods = all_pods();
        prepare();
        let mut router = vec!["addr add 203.0.113.7/32 dev lo".to_owned()];
        router.push(format!("addr add {}/128 dev lo", OUTSIDE[1]));
        for (name, address) in NODES {
            let netns = NetNs::create_named(name).unwrap();
            netns.with(prepare).unwrap();
            router.extend(uplink(name, address, &pods));
        }
        for pod in &pods {
            NetNs::create_named(&netns_of(pod)).unwrap().with(prepare).unwrap();
        }
        ip_batch(None, &router);
        for (name, address) in NODES {
            let mut node = down(address);
            let own: Vec<_> = pods.iter().filter(|pod| *pod.node == *name).collect();
            own.iter().for_each(|pod| node.extend(host_end(pod)));
            ip_batch(Some(name), &node);
            own.iter().for_each(|pod| ip_batch(Some(&netns_of(pod)), &pod_end(pod)));
        }
        let nodes = NODES.into_iter().map(|(name, address)| Node::new(name, ip(address))).collect();
        Self { pods, nodes, is_first: true }
    }

    /// The next flush is the first one of new engines: it restores the table from scratch.
    pub fn forget(&mut self) {
        self.is_first = true;
        self.nodes.iter_mut().for_each(Node::forget);
    }

    pub fn apply(&mut self, update: &Update) {
        self.nodes.iter_mut().for_each(|node| node.apply(update.clone()));
    }

    /// Has both kernels hold what the engines decide, and compares.
    pub fn flush(&mut self) {
        let is_first = std::mem::take(&mut self.is_first);
        self.nodes.iter_mut().for_each(|node| node.flush(is_first));
    }
}

// === impl Node ===

impl Node {
    fn new(name: &str, address: IpAddr) -> Self {
        let netns = NetNs::open_named(name).unwrap();
        let policies = netns.with(open).unwrap();
        Self { name: name.to_owned(), address, netns, engine: Engine::default(), policies }
    }

    fn forget(&mut self) {
        self.engine = Engine::with_identities(self.policies.current().identities.clone());
    }

    fn apply(&mut self, update: Update) {
        self.engine.apply(match update {
            Update::Config(config) => Update::Config(Config {
                node: self.name.as_str().into(),
                own_addresses: BTreeSet::from([self.address]),
                ..config
            }),
            // A node judges its own pods alone.
            Update::Endpoint(key, Some(endpoint)) if *endpoint.node != *self.name => {
                Update::Endpoint(key, Some(Arc::new(Endpoint { local: None, ..Endpoint::clone(&endpoint) })))
            }
            other => other,
        });
    }

    fn flush(&mut self, is_first: bool) {
        let Self { engine, policies, netns, .. } = self;
        let delta = engine.flush();
        assert_eq!(delta.exceeded.clone().unwrap_or_default(), BTreeSet::new());
        let found = netns.with(|| {
            match is_first {
                true => restore(policies, &delta),
                false => _ = apply(policies, &delta),
            }
            open()
        });
        assert_eq!(found.unwrap().current(), policies.current(), "what the kernel of {} holds", self.name);
    }
}

fn restore(policies: &mut Policies, delta: &Delta) {
    let mut wanted = Decisions::default();
    wanted.apply(delta, &BTreeSet::new());
    policies.restore(wanted, Instant::now()).unwrap();
}

/// What every namespace needs before it has links.
fn prepare() {
    run("ip", &["link", "set", "lo", "up"]);
    for (knob, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/default/accept_dad", "0"),
    ] {
        std::fs::write(format!("/proc/sys/net/{knob}"), value).unwrap();
    }
}

/// Runs lines of `ip` in the calling thread's namespace, or in a named one.
fn ip_batch(netns: Option<&str>, lines: &[String]) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(lines.join("\n").as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let place = netns.map_or_else(Vec::new, |name| vec!["-n", name]);
    run("ip", &[&place[..], &["-batch", path]].concat());
}

/// The router's end of the link to a node, and its routes there.
fn uplink(node: &str, address: &str, pods: &[Arc<Endpoint>]) -> Vec<String> {
    let six = sixth(ip(address));
    let mut lines = vec![
        format!("link add to-{node} address {UPPER} type veth peer name uplink address {LOWER} netns {node}"),
        format!("link set to-{node} addrgenmode none up"),
        format!("addr add {ROUTER}/32 dev to-{node}"),
        format!("addr add {}/128 dev to-{node} nodad", sixth(ip(ROUTER))),
    ];
    for node_address in [ip(address), six] {
        lines.push(format!("route add {node_address} dev to-{node}"));
        lines.push(format!("neigh add {node_address} lladdr {LOWER} dev to-{node} nud permanent"));
    }
    for pod in pods.iter().filter(|pod| *pod.node == *node) {
        for to in pod.addresses.iter().copied().chain([control(pod)]) {
            let via = if to.is_ipv4() { ip(address) } else { six };
            lines.push(format!("route add {to} via {via} dev to-{node}"));
        }
    }
    lines
}

/// A node's end of its link to the router.
fn down(address: &str) -> Vec<String> {
    let mut lines = vec!["link set uplink addrgenmode none up".to_owned()];
    lines.push(format!("addr add {address}/32 dev uplink"));
    lines.push(format!("addr add {}/128 dev uplink nodad", sixth(ip(address))));
    for router in [ip(ROUTER), sixth(ip(ROUTER))] {
        let source = if router.is_ipv4() { ip(address) } else { sixth(ip(address)) };
        lines.push(format!("neigh add {router} lladdr {UPPER} dev uplink nud permanent"));
        lines.push(format!("route add {router} dev uplink src {source}"));
        lines.push(format!("route add default via {router} dev uplink src {source}"));
    }
    lines
}

/// The node's end of a pod's link, and its routes to the pod.
fn host_end(pod: &Endpoint) -> Vec<String> {
    let (name, netns) = (format!("p-{}", netns_of(pod)), netns_of(pod));
    let mut lines = vec![
        format!("link add {name} address {UPPER} type veth peer name eth0 address {LOWER} netns {netns}"),
        format!("link set {name} addrgenmode none up"),
        format!("addr add 169.254.1.1/32 dev {name}"),
        format!("addr add fe80::1/64 dev {name} nodad"),
    ];
    for address in pod.addresses.iter().copied().chain([control(pod)]) {
        lines.push(format!("route add {address} dev {name}"));
        lines.push(format!("neigh add {address} lladdr {LOWER} dev {name} nud permanent"));
    }
    lines
}

/// The pod's end.
fn pod_end(pod: &Endpoint) -> Vec<String> {
    let mut lines = vec!["link set eth0 addrgenmode none up".to_owned()];
    for address in pod.addresses.iter().copied().chain([control(pod)]) {
        let (length, nodad) = if address.is_ipv4() { (32, "") } else { (128, " nodad") };
        lines.push(format!("addr add {address}/{length} dev eth0{nodad}"));
    }
    lines.push("addr add fe80::2/64 dev eth0 nodad".to_owned());
    for gateway in ["169.254.1.1", "fe80::1"] {
        lines.push(format!("neigh add {gateway} lladdr {UPPER} dev eth0 nud permanent"));
    }
    lines.push("route add 169.254.1.1 dev eth0".to_owned());
    lines.push("route add default via 169.254.1.1".to_owned());
    lines.push("route add default via fe80::1 dev eth0".to_owned());
    lines
}
