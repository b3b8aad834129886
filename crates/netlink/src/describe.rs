//! Descriptions of requests for errors, decoded from the sent bytes, so that success costs nothing.

use std::fmt::Write as _;

use ipnet::IpNet;

use crate::address::Address;
use crate::batch::Names;
use crate::kernel::*;
use crate::neighbour::{FdbEntry, Neighbour};
use crate::route::Route;
use crate::rule::Rule;
use crate::wire::{Attributes, Message, array};

/// Describes a route request with its subject: `add route 10.1.0.0/26 via 10.0.0.7`.
pub(crate) fn describe(message: &Message<'_>, names: Names<'_>) -> String {
    let subject = match message.kind {
        RTM_NEWLINK | RTM_SETLINK | RTM_DELLINK => link(message, names),
        RTM_NEWADDR | RTM_DELADDR => address(message, names),
        RTM_NEWROUTE | RTM_DELROUTE => route(message, names),
        RTM_NEWNEIGH | RTM_DELNEIGH if message.payload.first() == Some(&AF_BRIDGE) => fdb(message, names),
        RTM_NEWNEIGH | RTM_DELNEIGH => neighbour(message, names),
        RTM_NEWRULE | RTM_DELRULE => rule(message),
        RTM_NEWQDISC | RTM_DELQDISC | RTM_NEWTFILTER | RTM_DELTFILTER => traffic_control(message, names),
        RTM_SETNEIGHTBL => Some("how a link answers for others' addresses".to_owned()),
        kind => Some(format!("netlink message {kind}")),
    };
    format!("{} {}", verb(message), subject.unwrap_or_else(|| format!("netlink message {}", message.kind)))
}

fn verb(message: &Message<'_>) -> &'static str {
    match message.kind {
        RTM_SETLINK | RTM_SETNEIGHTBL => "change",
        RTM_NEWLINK if message.flags & NLM_F_CREATE == 0 => "change",
        RTM_DELLINK | RTM_DELADDR | RTM_DELROUTE | RTM_DELNEIGH | RTM_DELRULE | RTM_DELQDISC
        | RTM_DELTFILTER => "delete",
        RTM_NEWLINK | RTM_NEWADDR | RTM_NEWROUTE | RTM_NEWNEIGH | RTM_NEWRULE | RTM_NEWQDISC
        | RTM_NEWTFILTER => match message.flags & (NLM_F_REPLACE | NLM_F_APPEND) {
            NLM_F_REPLACE => "replace",
            NLM_F_APPEND => "append",
            _ => "add",
        },
        _ => "send",
    }
}

fn link(message: &Message<'_>, names: Names<'_>) -> Option<String> {
    let index = array(message.payload, 4).map(u32::from_ne_bytes)?;
    let attributes = message.attributes(IFINFOMSG_BYTES);
    let text = |kind| attributes.find(kind).map(|attribute| attribute.text());
    if let (RTM_DELLINK, Some(group)) = (message.kind, attributes.find(IFLA_GROUP)) {
        return Some(format!("links of group {}", group.u32()?));
    }
    let mut words = match (index, text(IFLA_IFNAME)) {
        (0, Some(name)) => format!("link {name}"),
        (index, Some(name)) => format!("link {} to the name {name}", names(index)),
        (index, None) => format!("link {}", names(index)),
    };
    if let Some(info) = attributes.find(IFLA_LINKINFO) {
        words.push_str(&kind(&info.nested()));
    }
    let change = array(message.payload, 12).map_or(0, u32::from_ne_bytes);
    if message.kind == RTM_SETLINK && change & IFF_UP != 0 {
        let flags = array(message.payload, 8).map_or(0, u32::from_ne_bytes);
        words.push_str(if flags & IFF_UP != 0 { " up" } else { " down" });
    }
    let number = |kind| attributes.find(kind).and_then(|attribute| attribute.u32());
    if let Some(master) = number(IFLA_MASTER) {
        let _ = write!(words, " master {}", if master == 0 { "none".to_owned() } else { names(master) });
    }
    for (attribute, word) in [(IFLA_MTU, "mtu"), (IFLA_GROUP, "group")] {
        if let Some(value) = number(attribute) {
            let _ = write!(words, " {word} {value}");
        }
    }
    Some(words)
}

fn kind(info: &Attributes<'_>) -> String {
    let kind = info.find(IFLA_INFO_KIND).map(|kind| kind.text()).unwrap_or_default();
    let number = match kind.as_str() {
        VETH => Some(VETH_INFO_PEER),
        NETKIT => Some(IFLA_NETKIT_PEER_INFO),
        _ => None,
    };
    let peer = number.and_then(|number| info.find(IFLA_INFO_DATA)?.nested().find(number)).and_then(|peer| {
        let attributes = Attributes::new(peer.payload.get(IFINFOMSG_BYTES..)?);
        attributes.find(IFLA_IFNAME).map(|name| name.text())
    });
    if info.find(IFLA_INFO_SLAVE_KIND).is_some() {
        return " (as a bridge's port)".to_owned();
    }
    match peer {
        Some(peer) => format!(" ({kind}, peer {peer})"),
        None => format!(" ({kind})"),
    }
}

fn address(message: &Message<'_>, names: Names<'_>) -> Option<String> {
    let address = Address::decode(message)?;
    Some(format!("address {} dev {}", address.net, names(address.ifindex)))
}

fn route(message: &Message<'_>, names: Names<'_>) -> Option<String> {
    let route = Route::decode(message)?;
    let mut words = format!("{}route {}", route.kind.word(), net(&route.dst));
    if let Some(gateway) = route.gateway {
        let _ = write!(words, " via {gateway}");
    }
    if let Some(oif) = route.oif {
        let _ = write!(words, " dev {}", names(oif));
    }
    if route.table != Route::MAIN {
        let _ = write!(words, " table {}", route.table);
    }
    Some(words)
}

fn net(net: &IpNet) -> String {
    if net.prefix_len() == 0 { "default".to_owned() } else { net.to_string() }
}

fn neighbour(message: &Message<'_>, names: Names<'_>) -> Option<String> {
    let neighbour = Neighbour::decode(message)?;
    let mut words = format!("{}neighbour {}", if neighbour.proxy { "proxy " } else { "" }, neighbour.address);
    if let Some(mac) = neighbour.mac {
        let _ = write!(words, " lladdr {mac}");
    }
    let _ = write!(words, " dev {}", names(neighbour.ifindex));
    Some(words)
}

fn fdb(message: &Message<'_>, names: Names<'_>) -> Option<String> {
    let entry = FdbEntry::decode(message)?;
    let mut words = format!("forwarding entry {}", entry.mac);
    if let Some(dst) = entry.dst {
        let _ = write!(words, " dst {dst}");
    }
    let _ = write!(words, " dev {}", names(entry.ifindex));
    Some(words)
}

fn traffic_control(message: &Message<'_>, names: Names<'_>) -> Option<String> {
    let index = array(message.payload, 4).map(u32::from_ne_bytes)?;
    let kind = message.attributes(TCMSG_BYTES).find(TCA_KIND).map(|kind| kind.text()).unwrap_or_default();
    let what = if matches!(message.kind, RTM_NEWTFILTER | RTM_DELTFILTER) { "filter" } else { "qdisc" };
    Some(format!("{what} {kind} dev {}", names(index)))
}

fn rule(message: &Message<'_>) -> Option<String> {
    let rule = Rule::decode(message)?;
    Some(format!("{} rule {} to table {}", rule.family, rule.priority, rule.table))
}
