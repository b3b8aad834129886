//! A pod of this node: its interface at both ends, its route and its verdict.

use std::collections::BTreeSet;
use std::path::Path;

use russet_addr::IfName;
use russet_journal::Attachment;
use russet_linux::NetNs;
use russet_netlink::{Link, NetlinkError, Socket};
use russet_policy::{VerdictState, Verdicts};

use super::super::report::Report;
use super::{End, ThisNode};
use crate::command::Failure;
use crate::command::policy::datastore::{CALICO_PLUGIN, OWN_PLUGIN};

/// Whether the pod's addresses are routed to its host end, and it has the MTU of pods; ports of bridges are
/// another matter.
fn is_routed(attachment: &Attachment) -> bool {
    [OWN_PLUGIN, CALICO_PLUGIN].contains(&attachment.plugin.as_str())
}

// === impl ThisNode ===

impl ThisNode {
    /// A pod of this node: its interface at both ends, its route, its verdict.
    pub(super) fn local_pod(&mut self, end: &End<'_>, report: &mut Report) -> Result<(), Failure> {
        let name = &end.name;
        let has = |it: &&Attachment| it.addresses.contains(&end.address);
        let Some(attachment) = self.attachments.iter().find(has).cloned() else {
            let text = format!(
                "{name} is a pod of this node, and no interface with {} is attached here",
                end.address
            );
            report.finding("interface", text);
            return Ok(());
        };
        let host_name = attachment.host_name.clone().unwrap_or_default();
        let Some(link) = self.links.values().find(|link| link.name == host_name).cloned() else {
            report.finding("interface", format!("the host end {host_name} of {name} does not exist"));
            self.inside(&attachment, name, report)?;
            return Ok(());
        };
        report.fact(format!("{name} is on this node, behind {host_name} (MTU {})", link.mtu_bytes));
        let is_explained = self.inside(&attachment, name, report)?;
        if !link.is_up() {
            report.finding("interface", format!("the host end {host_name} of {name} is down"));
        } else if !link.is_running() && !is_explained {
            report.finding(
                "interface",
                format!("the host end {host_name} of {name} has no carrier: the pod's end is down"),
            );
        }
        if is_routed(&attachment) {
            self.route_to_pod(end, &link, report);
        }
        if attachment.plugin == OWN_PLUGIN {
            self.verdict(&host_name, name, report);
        }
        Ok(())
    }

    /// The pod's end. Returns whether it is down or gone.
    fn inside(&self, attachment: &Attachment, name: &str, report: &mut Report) -> Result<bool, Failure> {
        let Some(netns) = &attachment.netns else { return Ok(false) };
        let ifname = &attachment.ifname;
        let Ok(inside) = NetNs::open(Path::new(netns)) else {
            report.finding("interface", format!("the network namespace {netns} of {name} is gone"));
            return Ok(true);
        };
        let look = || -> Result<_, NetlinkError> {
            let mut socket = Socket::route()?;
            let link = socket.links()?.into_iter().find(|link| link.name == *ifname);
            let addresses = match &link {
                Some(link) => socket.addresses_of(link.index)?,
                None => Vec::new(),
            };
            Ok((link, addresses.into_iter().map(|address| address.net.addr()).collect::<BTreeSet<_>>()))
        };
        let (Some(link), addresses) = inside.run_in_thread(look)?? else {
            report.finding("interface", format!("{name} has no {ifname} in its network namespace"));
            return Ok(true);
        };
        for missing in attachment.addresses.iter().filter(|address| !addresses.contains(address)) {
            report.finding("interface", format!("{missing} is missing on {ifname} of {name}"));
        }
        if is_routed(attachment) && link.mtu_bytes > self.pod_mtu_bytes {
            let (has, fits) = (link.mtu_bytes, self.pod_mtu_bytes);
            report.finding(
                "mtu",
                format!(
                    "{ifname} of {name} has MTU {has}, and packets to other nodes have at most {fits} bytes"
                ),
            );
        }
        if !link.is_up() {
            report.finding("interface", format!("{ifname} of {name} is down"));
        }
        Ok(!link.is_up())
    }

    fn route_to_pod(&mut self, end: &End<'_>, link: &Link, report: &mut Report) {
        let found = self.socket.route_to(end.address);
        if !found.as_ref().is_ok_and(|route| route.oif == Some(link.index)) {
            let found = self.shown(found.as_ref());
            report.finding(
                "route",
                format!("{} of {} should be routed to {}: {found}", end.address, end.name, link.name),
            );
        }
    }

    /// The verdict of the pod's interface in table `inet russet-policy`.
    fn verdict(&self, host_name: &str, name: &str, report: &mut Report) {
        let Ok(host_name) = IfName::new(host_name) else { return };
        match Verdicts::open().and_then(|mut verdicts| verdicts.verdict_state(&host_name)) {
            Ok(VerdictState::InForce(verdict)) => {
                report.fact(format!("the verdict of {host_name} is {verdict}"))
            }
            Ok(VerdictState::None) => {
                report.finding(
                    "verdict",
                    format!("{host_name} of {name} has no verdict in inet russet-policy: it carries nothing"),
                );
            }
            Ok(VerdictState::Other) => {
                report.finding(
                    "verdict",
                    format!("the entries of {host_name} in inet russet-policy are not Russet's"),
                );
            }
            Ok(VerdictState::Unjudged(fault)) => {
                report.finding("verdict", format!("inet russet-policy is incomplete: {fault}"));
            }
            Err(error) => report.note("verdict", format!("inet russet-policy cannot be read: {error}")),
        }
    }
}
