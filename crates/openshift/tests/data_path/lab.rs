//! Three nodes on one bridge, each with an `Sdn`, and pods as OpenShift's plugin makes them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use russet_addr::{ContainerId, IfName, Ipv4Net};
use russet_linux::NetNs;
use russet_model::openshift::{Namespace, NetId};
use russet_openshift::data_path::{Denied, Egress, Peer, Port, Sdn, SdnError, Settings, Tenancy};
use russet_overlay::ReconcileReport;
use russet_testkit::bridge::{index_and_mtu, on_bridge, with_bridge};
use russet_testkit::{sh, succeeds};

/// One node: namespace `nI`, interface `w0` with 192.168.77.I/24, pods in 10.128.(2I).0/23.
pub struct Node {
    pub ns: NetNs,
    pub number: u8,
    sdn: Option<Sdn>,
}

/// A pod: a network namespace named after its node and its number there.
pub struct Pod {
    pub name: String,
    pub port: Port,
}

pub fn id(number: u32) -> NetId {
    NetId::new(number).unwrap()
}

/// Rules about what is outside of the cluster; `true` allows.
pub type Rules<'a> = &'a [(bool, &'a str)];

/// Network IDs up to 20 may reach everything outside, except for what these rules deny.
pub fn egress(rules: &[(u32, Rules<'_>)]) -> Egress {
    let mut egress: Egress = (0..=20).map(|number| (id(number), Arc::default())).collect();
    egress.extend(rules.iter().map(|(number, rules)| {
        let rules: Vec<(bool, Ipv4Net)> =
            rules.iter().map(|(allow, net)| (*allow, net.parse().unwrap())).collect();
        (id(*number), Arc::new(Denied::by_rules(&rules)))
    }));
    egress
}

pub fn subnet(node: u8) -> Ipv4Net {
    Ipv4Net::new(Ipv4Addr::new(10, 128, node * 2, 0), 23).unwrap()
}

pub fn node_ip(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 77, node)
}

pub fn gateway(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 128, node * 2, 1)
}

/// Runs `body` with `count` nodes that are set up and know each other.
pub fn with_nodes(count: u8, body: impl FnOnce(&mut Vec<Node>) + Send) {
    with_bridge(|| {
        let mut nodes: Vec<Node> = (1..=count).map(Node::new).collect();
        for node in &mut nodes {
            node.start();
            sound(&node.run(Sdn::restore));
            node.deny(&[]);
        }
        introduce(&mut nodes);
        body(&mut nodes);
    });
}

/// Sets each node's peers to all others.
pub fn introduce(nodes: &mut [Node]) {
    let all: Vec<u8> = nodes.iter().map(|node| node.number).collect();
    for node in nodes {
        let others = all.iter().filter(|number| **number != node.number);
        let peers: Vec<Peer> =
            others.map(|number| Peer { host_ip: node_ip(*number), subnet: subnet(*number) }).collect();
        sound(&node.run(|sdn| sdn.peers(&peers)));
    }
}

/// Requires that nothing failed and nothing was refused.
#[track_caller]
pub fn sound(report: &ReconcileReport) {
    assert_eq!(report.failed, 0, "{:?}", report.errors);
    assert_eq!(report.refusals, [], "nothing is refused");
}

// === impl Node ===

impl Node {
    fn new(number: u8) -> Self {
        let namespace = format!("n{number}");
        let ns = on_bridge(&namespace, &[format!("{}/24", node_ip(number))]);
        sh(&format!("ip -n {namespace} route add default via 192.168.77.254"));
        ns.with(|| russet_linux::sysctl::write_if_different("net/ipv4/ip_forward", "1")).unwrap().unwrap();
        Self { ns, number, sdn: None }
    }

    pub fn settings(&self) -> Settings {
        let (underlay, _) = index_and_mtu(&format!("n{}", self.number), "w0");
        Settings {
            cluster: vec!["10.128.0.0/14".parse().unwrap()],
            service: Some("172.30.0.0/16".parse().unwrap()),
            own: subnet(self.number),
            node_ip: node_ip(self.number),
            underlay,
            mtu: 1450,
            vxlan_port: 4789,
        }
    }

    /// Starts an agent without any earlier knowledge.
    pub fn start(&mut self) {
        let settings = self.settings();
        self.sdn = Some(self.ns.with(|| Sdn::open(settings)).unwrap().unwrap());
    }

    pub fn run<T: Send>(&mut self, work: impl FnOnce(&mut Sdn) -> T + Send) -> T {
        let sdn = self.sdn.as_mut().unwrap();
        self.ns.with(|| work(sdn)).unwrap()
    }

    /// Does what OpenShift's plugin does in the pod, and has the node attach it.
    pub fn pod(&mut self, number: u8, netid: u32) -> Pod {
        let pod = self.wired(number, netid);
        self.run(|sdn| sdn.attach(&pod.port)).unwrap();
        pod
    }

    /// A pod that is not attached yet.
    pub fn wired(&mut self, number: u8, netid: u32) -> Pod {
        let node = self.number;
        let (name, link) = (format!("p{node}-{number}"), format!("veth{node}{number:07x}"));
        let address = Ipv4Addr::new(10, 128, node * 2, number);
        NetNs::create_named(&name).unwrap();
        sh(&format!("ip -n n{node} link add {link} type veth peer name eth0 netns {name}"));
        sh(&format!("ip -n n{node} link set {link} up"));
        let ip = |command: &str| sh(&format!("ip -n {name} {command}"));
        let [a, b, c, d] = address.octets();
        ip(&format!("link set eth0 address 0a:58:{a:02x}:{b:02x}:{c:02x}:{d:02x} mtu 1450"));
        ip(&format!("addr add {address}/23 dev eth0"));
        ip("link set lo up");
        ip("link set eth0 up");
        ip(&format!("route add default via {}", gateway(node)));
        ip("route add 10.128.0.0/14 dev eth0");
        let port = Port {
            host_veth: IfName::new(link).unwrap(),
            address,
            netid: Some(id(netid)),
            is_open: netid == 0,
            sandbox: ContainerId::new(format!("sandbox-{node}-{number}")).unwrap(),
            namespace: Namespace::new(format!("project-{netid}")).unwrap(),
        };
        Pod { name, port }
    }

    /// Denies this to pods of these network IDs, and nothing to others.
    pub fn deny(&mut self, rules: &[(u32, Rules<'_>)]) {
        self.run(|sdn| sdn.set_tenants(&[], egress(rules))).unwrap();
    }

    pub fn renumber(&mut self, pods: &[&Pod], netid: u32) -> Result<(), SdnError> {
        self.change(pods, Tenancy { netid: Some(id(netid)), is_open: Some(false) })
    }

    pub fn change(&mut self, pods: &[&Pod], tenancy: Tenancy) -> Result<(), SdnError> {
        let ports: Vec<Port> = pods.iter().map(|pod| tenancy.of(&pod.port)).collect();
        self.run(|sdn| sdn.renumber(&ports))
    }
}

// === impl Pod ===

impl Pod {
    /// Whether a packet and its reply arrive.
    pub fn reaches(&self, address: Ipv4Addr) -> bool {
        succeeds(&format!("ip netns exec {} ping -c1 -W1 {address}", self.name))
    }

    #[track_caller]
    pub fn assert_reaches(&self, other: &Pod) {
        let there = |_| self.reaches(other.port.address);
        if !(0..3).any(there) {
            panic!("{} does not reach {}\n{}", self.name, other.name, rulesets());
        }
    }

    #[track_caller]
    pub fn assert_apart(&self, other: &Pod) {
        assert!(!self.reaches(other.port.address), "{} reaches {}", self.name, other.name);
    }
}

fn rulesets() -> String {
    let of = |node: &str| {
        let shown = |command: &str| {
            let words: Vec<&str> = command.split_whitespace().collect();
            let output = std::process::Command::new(words[0]).args(&words[1..]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let nft = shown(&format!("ip netns exec {node} nft list table ip russet-sdn"));
        format!("{node}: {nft}{}", shown(&format!("ip -n {node} -s route")))
    };
    ["n1", "n2"].map(of).concat()
}
