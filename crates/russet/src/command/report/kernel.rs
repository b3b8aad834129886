//! What the kernel says of this node: settings, connections, and its network objects where the programs of iproute2 are not
//! installed.

use std::collections::BTreeMap;
use std::fmt::Debug;

use russet_addr::Family;
use russet_linux::sysctl;
use russet_netlink::{NetlinkError, Socket};
use russet_nft::Conntrack;

use super::Node;

/// Settings on which pods' traffic depends.
const SYSCTLS: [&str; 32] = [
    "kernel/pid_max",
    "kernel/threads-max",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/bridge/bridge-nf-call-iptables",
    "net/core/bpf_jit_enable",
    "net/core/netdev_budget",
    "net/core/netdev_budget_usecs",
    "net/core/netdev_max_backlog",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_max",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/forwarding",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/all/send_redirects",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/neigh/default/gc_thresh1",
    "net/ipv4/neigh/default/gc_thresh2",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/ipv6/conf/all/accept_ra",
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/neigh/default/gc_thresh1",
    "net/ipv6/neigh/default/gc_thresh2",
    "net/ipv6/neigh/default/gc_thresh3",
    "net/ipv6/route/max_size",
    "net/netfilter/nf_conntrack_buckets",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
];
/// Those of each interface.
const OF_INTERFACES: [&str; 4] =
    ["ipv4/conf/{}/rp_filter", "ipv4/conf/{}/forwarding", "ipv4/conf/{}/proxy_arp", "ipv6/conf/{}/accept_ra"];
/// A node has some hundred interfaces.
const INTERFACES_MAX: usize = 2000;

/// The settings, one a line, and why one cannot be read.
pub fn sysctls(_: &Node) -> Result<String, String> {
    let mut names: Vec<String> = SYSCTLS.iter().map(ToString::to_string).collect();
    let links = Socket::route().and_then(|mut socket| socket.links()).map_err(|error| error.to_string())?;
    for link in links.iter().take(INTERFACES_MAX) {
        names.extend(OF_INTERFACES.iter().map(|name| format!("net/{}", name.replace("{}", &link.name))));
    }
    let line = |name: &String| match sysctl::read(name) {
        Ok(value) => format!("{name} = {}\n", value.trim()),
        Err(error) => format!("{name}: {error}\n"),
    };
    Ok(names.iter().map(line).collect())
}

/// How many connections are tracked, by family and protocol.
pub fn connections(_: &Node) -> Result<String, String> {
    let mut counts: BTreeMap<(String, u8), usize> = BTreeMap::new();
    for family in Family::BOTH {
        let found = Conntrack::open().and_then(|mut conntrack| conntrack.connections(family));
        for connection in found.map_err(|error| error.to_string())? {
            *counts.entry((format!("{family:?}"), connection.protocol)).or_default() += 1;
        }
    }
    let line = |((family, protocol), count): (&(String, u8), &usize)| {
        format!("{family} protocol {protocol}: {count}\n")
    };
    Ok(format!("{} connections\n", counts.values().sum::<usize>())
        + &counts.iter().map(line).collect::<String>())
}

/// The interfaces.
pub fn links(_: &Node) -> Result<String, String> {
    dump(|socket| Ok(lines(socket.links()?)))
}

pub fn addresses(_: &Node) -> Result<String, String> {
    dump(|socket| Ok(lines(socket.addresses()?)))
}

/// The routes of all tables.
pub fn routes(_: &Node) -> Result<String, String> {
    of_both(|socket, family| Ok(lines(socket.routes(family)?)))
}

/// The rules that choose a table.
pub fn rules(_: &Node) -> Result<String, String> {
    of_both(|socket, family| Ok(lines(socket.rules(family)?)))
}

pub fn neighbours(_: &Node) -> Result<String, String> {
    of_both(|socket, family| Ok(lines(socket.neighbours(family)?)))
}

/// The forwarding entries of tunnels and bridges.
pub fn forwarding_entries(_: &Node) -> Result<String, String> {
    dump(|socket| {
        let links = socket.links()?;
        let of_kind = |kind: &Option<String>| matches!(kind.as_deref(), Some("vxlan" | "bridge"));
        let mut text = String::new();
        for link in links.iter().filter(|link| of_kind(&link.kind)) {
            text += &lines(socket.fdb(link.index)?);
        }
        Ok(text)
    })
}

fn dump(read: impl FnOnce(&mut Socket) -> Result<String, NetlinkError>) -> Result<String, String> {
    Socket::route().and_then(|mut socket| read(&mut socket)).map_err(|error| error.to_string())
}

fn of_both(read: impl Fn(&mut Socket, Family) -> Result<String, NetlinkError>) -> Result<String, String> {
    dump(|socket| Ok(read(socket, Family::V4)? + &read(socket, Family::V6)?))
}

/// One object a line, with the names of its fields.
fn lines(objects: Vec<impl Debug>) -> String {
    objects.iter().map(|object| format!("{object:?}\n")).collect()
}
