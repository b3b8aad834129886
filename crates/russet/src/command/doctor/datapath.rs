//! The way to other nodes: interfaces, routes, networks that overlap, MTUs, firewalls.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use russet_addr::NodeName;
use russet_agent::controllers::tunnel_faults;
use russet_journal::Attachment;
use russet_linux::sysctl;
use russet_netlink::{Link, RouteKind, Socket};
use russet_overlay::Inputs;

use super::overlap;
use crate::command::Failure;
use crate::command::findings::{FindingKind, Findings};

/// What a finding lists of many.
const SHOWN: usize = 3;

/// Examines interfaces and routes. `bridges` are those of the node's network configurations.
pub fn look(
    inputs: &Inputs,
    (journal, pod_mtu_bytes, mut bridges): (&Path, u32, BTreeSet<String>),
    report: &mut Findings,
) -> Result<(), Failure> {
    for line in tunnel_faults(inputs)? {
        match line.contains(" drops packets ") {
            true => report.found(FindingKind::Firewall, "firewall", line, "`nft list ruleset` shows the rule; the chain belongs to another program, whose configuration has to accept the port"),
            false => report.found(FindingKind::Underlay, "underlay", line, "set the interface up and give it its address again"),
        }
    }
    let mut socket = Socket::route()?;
    let links: BTreeMap<u32, Link> = socket.links()?.into_iter().map(|link| (link.index, link)).collect();
    let attachments = russet_journal::view(journal)?.map(|view| view.attachments).unwrap_or_default();
    bridges.extend(attachments.iter().filter_map(|attachment| attachment.bridge.clone()));
    overlap::look(inputs, (&links, &bridges), &mut socket, report)?;
    asymmetric_routes(inputs, &links, &mut socket, report);
    large_pods(&attachments, pod_mtu_bytes, &links, report);
    closed_pods(&attachments, &links, report);
    Ok(())
}

/// Nodes to which packets leave by another interface than that on which theirs arrive.
fn asymmetric_routes(
    inputs: &Inputs,
    links: &BTreeMap<u32, Link>,
    socket: &mut Socket,
    report: &mut Findings,
) {
    let Some(underlay) = links.get(&inputs.underlay.ifindex) else { return };
    let others = inputs.nodes.iter().filter(|(name, _)| **name != inputs.node);
    let mut astray: Vec<(&NodeName, String)> = Vec::new();
    for (name, node) in others {
        for address in [node.v4.underlay, node.v6.underlay].into_iter().flatten().map(|net| net.addr()) {
            let Ok(route) = socket.route_to(address) else { continue };
            let by = route.oif.filter(|index| *index != underlay.index && route.kind == RouteKind::Unicast);
            if let Some(link) = by.and_then(|index| links.get(&index)) {
                astray.push((name, format!("{address} of node {name} is reached by {}", link.name)));
            }
        }
    }
    let Some(count) = astray.len().checked_sub(1) else { return };
    let text: Vec<&str> = astray.iter().take(SHOWN).map(|(_, text)| text.as_str()).collect();
    let more = if count >= SHOWN { format!("; and {} more", count + 1 - SHOWN) } else { String::new() };
    report.found(
        FindingKind::AsymmetricRoute,
        underlay.name.as_str(),
        format!("it is the interface to the other nodes, and {}{more}", text.join("; ")),
        "name the right interface (`russet agent --interface`), or correct the routes (`ip route get ADDRESS`)",
    );
    strict_filter(&underlay.name, report);
}

/// With a strict reverse path filter the kernel drops what arrives on another interface than that by
/// which it would answer. The stricter of two settings counts.
fn strict_filter(interface: &str, report: &mut Findings) {
    let own = format!("net/ipv4/conf/{interface}/rp_filter");
    let read = |name: &str| sysctl::read(name).ok().and_then(|value| value.parse::<u8>().ok());
    if read(&own).max(read("net/ipv4/conf/all/rp_filter")) == Some(1) {
        report.found_setting(
            FindingKind::ReversePath,
            (&own, "2"),
            "the reverse path filter is strict: what these nodes send by this interface is dropped",
        );
    }
}

/// Pods that send larger packets than fit to other nodes.
fn large_pods(
    attachments: &[Attachment],
    pod_mtu_bytes: u32,
    links: &BTreeMap<u32, Link>,
    report: &mut Findings,
) {
    let is_large = |link: &&Link| link.mtu_bytes > pod_mtu_bytes;
    let large: Vec<String> = host_ends(attachments, links)
        .filter(|(_, link)| is_large(link))
        .map(|(_, link)| format!("{} ({})", link.name, link.mtu_bytes))
        .collect();
    if !large.is_empty() {
        let (count, some) = (large.len(), large.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", "));
        report.found(
            FindingKind::Mtu,
            "pods' interfaces",
            format!("{count} of {} have a larger MTU than the {pod_mtu_bytes} bytes that reach other nodes, for example {some}: their large packets are lost, or only path MTU discovery saves them",
                attachments.len()),
            "restart these pods: new interfaces get the right MTU; `russet journal` names the pods",
        );
    }
}

/// Pods whose own end is down: the host end is up then, and has no carrier.
fn closed_pods(attachments: &[Attachment], links: &BTreeMap<u32, Link>, report: &mut Findings) {
    let name = |attachment: &Attachment| attachment.pod.as_ref().unwrap_or(&attachment.container).clone();
    let closed: Vec<String> = host_ends(attachments, links)
        .filter(|(_, link)| link.is_up() && !link.is_running())
        .map(|(attachment, link)| format!("{} ({})", link.name, name(attachment)))
        .collect();
    if !closed.is_empty() {
        let some = closed.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        report.found(
            FindingKind::PodInterface,
            "pods' interfaces",
            format!("{} of {} have no carrier, for example {some}: the pod's end is down, and nothing reaches or leaves the pod", closed.len(), attachments.len()),
            "Russet changes nothing inside of pods: set that interface up, or restart these pods; `russet explain` from the pod says more",
        );
    }
}

/// Attachments whose interface Russet's routes lead to, with their host ends.
fn host_ends<'a>(
    attachments: &'a [Attachment],
    links: &'a BTreeMap<u32, Link>,
) -> impl Iterator<Item = (&'a Attachment, &'a Link)> {
    let by_name: BTreeMap<&str, &Link> = links.values().map(|link| (link.name.as_str(), link)).collect();
    let is_routed = |it: &&Attachment| ["russet", "calico"].contains(&it.plugin.as_str());
    attachments
        .iter()
        .filter(is_routed)
        .filter_map(move |it| Some((it, *by_name.get(it.host_name.as_deref()?)?)))
}
