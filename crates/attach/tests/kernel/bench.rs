//! A node in its own namespace, pods in named ones, and functions that read their state.

use std::net::IpAddr;

use russet_attach::{Attached, Attachment, Detachment, Dialect, Executor, Pod, Removal, plan};
use russet_linux::{NetNs, sysctl};
use russet_netlink::Socket;
use russet_testkit as testkit;
use serde_json::Value;

/// A node: the calling thread's namespace.
pub struct Node {
    pub socket: Socket,
}

impl Node {
    /// A node that forwards and deliberately has no default route.
    pub fn new() -> Self {
        testkit::run("ip", &["link", "set", "lo", "up"]);
        for path in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            sysctl::write_if_different(path, "1").unwrap();
        }
        Self { socket: Socket::route().unwrap() }
    }

    /// Wires `attachment` or panics.
    #[track_caller]
    pub fn attach(&mut self, attachment: &Attachment, netns: &NetNs) -> Attached {
        let plan = plan(attachment).unwrap();
        Executor::new(&mut self.socket).attach(&plan, netns).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The text of the error that wiring `attachment` ends with.
    #[track_caller]
    pub fn attach_error(&mut self, attachment: &Attachment, netns: &NetNs) -> String {
        let plan = plan(attachment).unwrap();
        Executor::new(&mut self.socket).attach(&plan, netns).unwrap_err().to_string()
    }
}

/// Runs `body` on a node of its own.
pub fn on_a_node<T: Send>(body: impl FnOnce(&mut Node) -> T + Send) -> T {
    testkit::in_new_netns(|| body(&mut Node::new()))
}

/// A pod's namespace.
pub fn namespace(name: &str) -> NetNs {
    NetNs::create_named(name).unwrap()
}

/// `eth0` of sandbox `container` of pod `shop/<pod>`.
pub fn attachment(container: &str, pod: &str, addresses: &[&str]) -> Attachment {
    interface(Dialect::Native, container, "eth0", pod, addresses)
}

/// Any interface.
pub fn interface(
    dialect: Dialect,
    container: &str,
    ifname: &str,
    pod: &str,
    addresses: &[&str],
) -> Attachment {
    let pod = (!pod.is_empty()).then(|| Pod { namespace: "shop".into(), name: pod.into() });
    Attachment {
        addresses: addresses.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect(),
        ..Attachment::new(dialect, format!("net1/{container}/{ifname}").parse().unwrap(), pod)
    }
}

/// The DEL for an ADD.
pub fn detachment(attachment: &Attachment, removal: Removal) -> Detachment {
    Detachment {
        id: attachment.id.clone(),
        by_name_alone: false,
        host_name: Some(attachment.host_name.clone()),
        dialect: attachment.dialect,
        removal,
    }
}

/// `ip -d -j ARGS` on the node, or inside the pod's namespace where that is named.
#[track_caller]
pub fn ip(netns: Option<&str>, args: &[&str]) -> Value {
    let inside: Vec<&str> = netns.iter().flat_map(|name| ["-n", *name]).collect();
    testkit::ip_json(&[&inside[..], args].concat())
}

/// The main table of a family, in `ip`'s words, sorted.
pub fn routes(netns: Option<&str>, family: &str) -> Vec<String> {
    let inside: Vec<&str> = netns.iter().flat_map(|name| ["-n", *name]).collect();
    let text = testkit::run("ip", &[&inside[..], &[family, "route"]].concat());
    let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}

/// A sysctl inside a pod.
pub fn pod_sysctl(netns: &NetNs, path: &str) -> String {
    netns.with(|| sysctl::read(path)).unwrap().unwrap()
}

/// Everything that wiring may change, on the node and in a pod, without counters and timers.
pub fn snapshot(pod: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (place, netns) in [("node", None), (pod, Some(pod))] {
        let inside: Vec<&str> = netns.iter().flat_map(|name| ["-n", *name]).collect();
        for args in [
            &["-o", "link"][..],
            &["-o", "addr"],
            &["-4", "route"],
            &["-6", "route"],
            // Others are learned, and come and go with traffic.
            &["neigh", "show", "nud", "permanent"],
            &["rule"],
            &["-6", "rule"],
        ] {
            let text = testkit::run("ip", &[&inside[..], args].concat());
            // Link-local addresses come and go on their own time.
            let lines =
                text.lines().filter(|line| !line.contains(" fe80::") && !line.starts_with("fe80::/64"));
            all.extend(lines.map(|line| format!("{place} {}: {}", args.join(" "), line.trim())));
        }
    }
    all.sort();
    let netns = NetNs::open_named(pod).unwrap();
    for path in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/disable_ipv6"]
    {
        all.push(format!("{pod} {path} = {}", pod_sysctl(&netns, path)));
    }
    all
}

/// Sends one packet from a pod and panics unless it is answered.
#[track_caller]
pub fn ping(from: &str, to: &str) {
    testkit::inside(from, &["ping", "-n", "-c", "1", "-W", "1", to]);
}

/// A JSON array's elements.
pub fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A JSON string.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
