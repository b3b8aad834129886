//! Nodes of a test in network namespaces of their own, on one bridge.

use russet_linux::NetNs;

use crate::{in_netns_with_loopback, sh, sh_json};

/// Runs `body` in a new network namespace with the bridge `br0`, on which [`on_bridge`] puts nodes.
pub fn with_bridge<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    in_netns_with_loopback(|| {
        sh("ip link add br0 type bridge");
        sh("ip link set br0 up");
        body()
    })
}

/// Makes the namespace `name`, whose interface `w0` is on the bridge and has these addresses with their lengths; the
/// bridge's port is `port-NAME`.
#[track_caller]
pub fn on_bridge(name: &str, addresses: &[String]) -> NetNs {
    let netns = NetNs::create_named(name).expect("create a namespace");
    sh(&format!("ip link add port-{name} type veth peer name w0 netns {name}"));
    sh(&format!("ip link set port-{name} master br0 up"));
    sh(&format!("ip -n {name} link set lo up"));
    sh(&format!("ip -n {name} link set w0 up"));
    add_addresses(name, "w0", addresses);
    netns
}

/// Adds addresses with their lengths to an interface in a named namespace; IPv6 addresses are usable at once.
#[track_caller]
pub fn add_addresses(netns: &str, interface: &str, addresses: &[String]) {
    for address in addresses {
        let flags = if address.contains(':') { "nodad" } else { "" };
        sh(&format!("ip -n {netns} addr add {address} dev {interface} {flags}"));
    }
}

/// Index and MTU of an interface in a named namespace.
#[track_caller]
pub fn index_and_mtu(netns: &str, interface: &str) -> (u32, u32) {
    let shown = &sh_json(&format!("ip -n {netns} -j link show dev {interface}"))[0];
    let number = |name: &str| u32::try_from(shown[name].as_u64().expect(name)).expect(name);
    (number("ifindex"), number("mtu"))
}
