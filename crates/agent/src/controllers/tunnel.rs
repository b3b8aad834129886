//! Whether packets can pass to and from other nodes, as far as this node can log: the interface is
//! up and has an address, and foreign rules accept the tunnels' packets. Russet changes none of
//! that. `russet drift` and readiness report it.

use russet_addr::{Family, IfName};
use russet_netlink::{NetlinkError, Socket};
use russet_nft::{DroppingChain, Nft, Table, UdpPacket};
use russet_overlay::{Inputs, underlay};

/// Prefix of the names of our own nf_tables tables: `russet`, `russet-policy`, ...
const OURS: &str = "russet";

/// Reasons why packets cannot pass to or from other nodes. Empty on a node without peers or without
/// an interface to them.
pub fn faults(inputs: &Inputs) -> Result<Vec<String>, NetlinkError> {
    if inputs.underlay.ifindex == 0 || inputs.nodes.len() < 2 {
        return Ok(Vec::new());
    }
    let mut socket = Socket::route()?;
    let link = match socket.link_by_index(inputs.underlay.ifindex) {
        Err(error) if error.is_not_found() => {
            return Ok(vec!["the interface to the other nodes is gone".to_owned()]);
        }
        link => link?,
    };
    if !(link.is_up() && link.is_running()) {
        return Ok(vec![underlay::down(&link.name)]);
    }
    if underlay::usable(socket.addresses()?, link.index).is_empty() {
        return Ok(vec![underlay::without_address(&link.name)]);
    }
    let Ok(name) = IfName::new(link.name) else { return Ok(Vec::new()) };
    closed(inputs, &name)
}

/// Foreign chains that drop every tunnel packet to or from other nodes.
fn closed(inputs: &Inputs, name: &IfName) -> Result<Vec<String>, NetlinkError> {
    let mut nft = Nft::open()?;
    let mut lines = Vec::new();
    for family in tunnelled(inputs) {
        for incoming in [true, false] {
            let interface = (inputs.underlay.ifindex, name.clone());
            let packet = UdpPacket { family, port: inputs.tunnel.port, interface, incoming };
            let found = nft.dropping(&packet, is_ours)?;
            lines.extend(found.iter().map(|chain| line(&packet, chain)));
        }
    }
    lines.sort();
    lines.dedup();
    Ok(lines)
}

/// The families of the pools whose packets use a tunnel. The outer packets have the same families.
fn tunnelled(inputs: &Inputs) -> Vec<Family> {
    let has = |family: &Family| {
        let mut pools = inputs.pools.iter();
        pools.any(|pool| Family::of_net(&pool.cidr) == *family && pool.encapsulation.needs_tunnel())
    };
    Family::BOTH.into_iter().filter(has).collect()
}

fn is_ours(table: &Table) -> bool {
    table.name.strip_prefix(OURS).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn line(packet: &UdpPacket, chain: &DroppingChain) -> String {
    let direction = if packet.incoming { "from" } else { "to" };
    format!(
        "{chain} drops packets {direction} other nodes at UDP port {}, the tunnel's: accept that port there",
        packet.port
    )
}
