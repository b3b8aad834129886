//! Limits on a pod's traffic, as the reference plugin `bandwidth` sets them (cni-runtime.md section
//! 5): a token bucket on the host end for packets to the pod, and another one on an `ifb` device
//! through which packets from the pod are sent.

use russet_addr::{IfName, Mac, NetworkName};
use russet_linux::NetNs;
use russet_netlink::{Batch, Link, LinkAdd, LinkKind, LinkSet, NetlinkError, Redirect, Socket, TokenBucket};

use crate::owner::Owner;
use crate::{detach, inspect};

/// The limits of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The owner.
    pub owner: Owner,
    /// The interface inside the pod.
    pub ifname: IfName,
    /// The name of the `ifb`.
    pub device: IfName,
    /// The limit of traffic to the pod.
    pub ingress: Option<Limit>,
    /// The limit of traffic from the pod.
    pub egress: Option<Limit>,
}

/// A limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Bytes per second.
    pub rate_bytes: u64,
    /// Bytes that may pass at once.
    pub burst_bytes: u32,
}

/// Why limits could not be set.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    /// The pod's namespace cannot be entered.
    #[error(transparent)]
    NetNs(#[from] russet_linux::NetNsError),
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// It lacks a feature.
    #[error("{source}: this kernel was built without {option}")]
    Kernel {
        /// The kernel configuration option.
        option: &'static str,
        /// The kernel's error.
        source: NetlinkError,
    },
    /// Some limits that are no longer valid could not be removed; the others were.
    #[error("{}", errors.join("; "))]
    Left {
        /// The errors, in order.
        errors: Vec<String>,
    },
    /// There is nothing to limit.
    #[error("container interface {0} has no veth peer on this node")]
    NoPeer(IfName),
}

/// How long a packet may wait, in milliseconds, as with the reference plugin.
const LATENCY_MS: u64 = 25;
const MS_PER_S: u64 = 1000;
/// Each of these attaches filters to packets that arrive on a link.
const OPEN: [&str; 2] = ["ingress", "clsact"];
/// Prefix of the alias of an `ifb` of Russet. It differs from that of pods' links.
const ALIAS_PREFIX: &str = "russet-shaper:";

/// Sets the limits and returns the `ifb`'s MAC, if there is one. A failure undoes the changes.
pub fn shape(host: &mut Socket, netns: &NetNs, what: &Shape) -> Result<Option<Mac>, ShapeError> {
    let end = host_end(host, netns, &what.ifname)?;
    let mut opened = false;
    let done = set(host, &end, what, &mut opened);
    if done.is_err() {
        let mut batch = Batch::new();
        batch.delete_root_qdisc(end.index);
        if opened {
            batch.delete_ingress(end.index);
        }
        // The first error is reported; objects that do not exist need no removal.
        let _ = host.execute_all(&batch);
        let _ = unshape(host, &what.device);
    }
    done
}

/// Removes the `ifb`, if it exists; the settings of the host end vanish with that link.
pub fn unshape(host: &mut Socket, device: &IfName) -> Result<(), NetlinkError> {
    match inspect::by_name(host, device)?.filter(is_ifb) {
        Some(link) => detach::delete(host, link.index),
        None => Ok(()),
    }
}

/// Removes the limits of a network's containers that are not valid. Continues after errors and
/// returns them together.
pub fn collect_shapes(host: &mut Socket, network: &NetworkName, valid: &[Owner]) -> Result<(), ShapeError> {
    let links = host.links()?;
    let stale = |link: &&Link| {
        is_ifb(link) && owner(link).is_some_and(|it| it.network() == network && !valid.contains(&it))
    };
    let mut errors = Vec::new();
    for link in links.iter().filter(stale) {
        let removed = detach::delete(host, link.index);
        errors.extend(removed.err().map(|error| format!("remove {}: {error}", link.name)));
    }
    if errors.is_empty() { Ok(()) } else { Err(ShapeError::Left { errors }) }
}

/// The devices that limit what pods send, and their owners.
pub fn shaped(host: &mut Socket) -> Result<Vec<(IfName, Owner)>, NetlinkError> {
    let device = |link: Link| {
        let owner = owner(&link).filter(|_| is_ifb(&link))?;
        Some((IfName::new(link.name).ok()?, owner))
    };
    Ok(host.links()?.into_iter().filter_map(device).collect())
}

/// The differences from the desired limits, as text.
pub fn check_shape(host: &mut Socket, netns: &NetNs, what: &Shape) -> Result<Vec<String>, ShapeError> {
    let end = host_end(host, netns, &what.ifname)?;
    let mut found = Vec::new();
    found.extend(differs(host, &end, what.ingress)?);
    if what.egress.is_some() {
        let device = inspect::by_name(host, &what.device)?.filter(is_ifb);
        match &device {
            Some(device) => found.extend(differs(host, device, what.egress)?),
            None => found.push(format!("ifb {}: missing", what.device)),
        }
        let through = |redirect: &Redirect| device.as_ref().is_some_and(|it| it.index == redirect.to);
        if !host.qdiscs_of(end.index)?.iter().any(|qdisc| OPEN.contains(&qdisc.kind.as_str())) {
            found.push(format!("qdisc ingress of {}: missing", end.name));
        } else if !host.redirects(end.index)?.iter().any(through) {
            found.push(format!("filter of {} that sends through {}: missing", end.name, what.device));
        }
    }
    Ok(found)
}

fn differs(host: &mut Socket, link: &Link, limit: Option<Limit>) -> Result<Option<String>, NetlinkError> {
    let Some(limit) = limit else { return Ok(None) };
    let qdiscs = host.qdiscs_of(link.index)?;
    let found = qdiscs.iter().find(|qdisc| qdisc.is_root && qdisc.kind == "tbf").and_then(|it| it.rate_bytes);
    let (wanted, name) = (limit.rate_bytes, &link.name);
    Ok(match found {
        Some(found) if found == wanted => None,
        Some(found) => Some(format!("rate of {name}: {found} bytes a second, should be {wanted}")),
        None => Some(format!("qdisc tbf of {name}: missing")),
    })
}

/// `opened` is set if a new `ingress` was added.
fn set(host: &mut Socket, end: &Link, what: &Shape, opened: &mut bool) -> Result<Option<Mac>, ShapeError> {
    if let Some(limit) = what.ingress {
        let mut batch = Batch::new();
        batch.replace_token_bucket(end.index, &limit.bucket());
        execute(host, &batch, "CONFIG_NET_SCH_TBF")?;
    }
    let Some(limit) = what.egress else { return Ok(None) };
    let device = add_ifb(host, end, what)?;
    let mut batch = Batch::new();
    batch.replace_token_bucket(device.index, &limit.bucket());
    execute(host, &batch, "CONFIG_NET_SCH_TBF")?;
    *opened = open(host, end)?;
    let mut batch = Batch::new();
    batch.redirect_ingress(end.index, device.index);
    execute(host, &batch, "CONFIG_NET_CLS_U32 or CONFIG_NET_ACT_MIRRED")?;
    Ok(device.mac)
}

/// Enables filters for packets from the pod; returns whether that is new. An `ingress` exists after
/// an earlier ADD of the same interface; a `clsact` works as well, and belongs to another part:
/// OpenShift's guard uses it.
fn open(host: &mut Socket, end: &Link) -> Result<bool, ShapeError> {
    let mut batch = Batch::new();
    batch.add_ingress(end.index);
    match execute(host, &batch, "CONFIG_NET_SCH_INGRESS") {
        Err(ShapeError::Netlink(error)) if error.is_exists() => {
            if !host.qdiscs_of(end.index)?.iter().any(|qdisc| OPEN.contains(&qdisc.kind.as_str())) {
                return Err(error.into());
            }
        }
        result => return result.map(|()| true),
    }
    // The filter of an earlier ADD leads to a device that is gone, because add_ifb created a new
    // one. Another process may have removed the filter meanwhile.
    let mut batch = Batch::new();
    for stale in host.redirects(end.index)?.iter().filter(|redirect| redirect.to == 0) {
        batch.delete_redirect(end.index, stale);
    }
    let mut failed = host.execute_all(&batch).into_iter().filter_map(Result::err);
    match failed.find(|error| !error.is_not_found()) {
        Some(error) => Err(error.into()),
        None => Ok(false),
    }
}

/// Creates the `ifb`, and removes that of a killed ADD.
fn add_ifb(host: &mut Socket, end: &Link, what: &Shape) -> Result<Link, ShapeError> {
    unshape(host, &what.device)?;
    let mut batch = Batch::new();
    let kind = LinkKind::Other { kind: "ifb", data: Vec::new() };
    batch.add_link(&LinkAdd {
        up: true,
        mtu_bytes: Some(end.mtu_bytes),
        tx_queue_len: Some(end.tx_queue_len),
        ..LinkAdd::new(what.device.clone(), kind)
    });
    execute(host, &batch, "CONFIG_IFB")?;
    let device = host.link_by_name(&what.device)?;
    let alias = what.owner.to_string().replacen("russet:", ALIAS_PREFIX, 1);
    let mut batch = Batch::new();
    batch.set_link(&LinkSet { alias: Some(alias), ..LinkSet::index(device.index) });
    host.execute(&batch).map_err(NetlinkError::from)?;
    Ok(device)
}

fn execute(host: &mut Socket, batch: &Batch, option: &'static str) -> Result<(), ShapeError> {
    host.execute(batch).map_err(NetlinkError::from).map_err(|source| {
        // The kernel returns ENOENT for an unknown discipline, filter or action.
        if source.is_unsupported() || source.errno() == Some(libc::ENOENT) {
            ShapeError::Kernel { option, source }
        } else {
            source.into()
        }
    })
}

/// The node's end of the pod's interface.
fn host_end(host: &mut Socket, netns: &NetNs, ifname: &IfName) -> Result<Link, ShapeError> {
    let missing = || ShapeError::NoPeer(ifname.clone());
    let mut socket = netns.with(Socket::route)??;
    let pod = inspect::by_name(&mut socket, ifname)?.ok_or_else(missing)?;
    let end = inspect::by_index(host, pod.link.ok_or_else(missing)?)?;
    end.filter(|end| inspect::is_pair(end, &pod)).ok_or_else(missing)
}

fn is_ifb(link: &Link) -> bool {
    link.kind.as_deref() == Some("ifb")
}

fn owner(link: &Link) -> Option<Owner> {
    let names = link.alias.as_deref()?.strip_prefix(ALIAS_PREFIX)?;
    format!("russet:{names}").parse().ok()
}

// === impl Limit ===

impl Limit {
    fn bucket(self) -> TokenBucket {
        let waiting = self.rate_bytes.saturating_mul(LATENCY_MS) / MS_PER_S;
        let limit = waiting.saturating_add(self.burst_bytes.into());
        TokenBucket {
            rate_bytes: self.rate_bytes,
            burst_bytes: self.burst_bytes,
            limit_bytes: u32::try_from(limit).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_limit_is_25_ms_and_the_burst() {
        let bucket = Limit { rate_bytes: 1_000_000, burst_bytes: 100_000 }.bucket();
        assert_eq!(bucket.limit_bytes, 125_000);
        let bucket = Limit { rate_bytes: u64::MAX, burst_bytes: u32::MAX }.bucket();
        assert_eq!(bucket.limit_bytes, u32::MAX);
    }
}
