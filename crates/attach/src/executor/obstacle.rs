//! What to do about a name that is taken: pure, from what the links on both sides look like.

use russet_netlink::Link;

use super::AttachCause;
use crate::attachment::Dialect;
use crate::inspect;
use crate::plan::Plan;

/// The links whose names the new veth wants, and the node's end of the pod's one.
#[derive(Debug, Default)]
pub(super) struct InTheWay {
    /// The node's link with the host end's name.
    pub host: Option<Link>,
    /// The pod's link with the interface's name.
    pub pod: Option<Link>,
    /// The other end of `pod`, where it is on this node.
    pub peer: Option<Link>,
}

/// What to do about them.
#[derive(Debug)]
pub(super) enum Verdict {
    /// They are this attachment's own: keep them and repair what is missing.
    Reuse {
        /// The node's end.
        host: Link,
        /// The pod's end.
        pod: Link,
    },
    /// Remove this link; the pod's end, if it is in this pod, with it.
    Remove {
        /// The node's end.
        host: Link,
        /// The pod's end.
        pod: Option<Link>,
    },
    /// They have gone in the meantime: try again.
    Retry,
    /// Leave them alone and fail.
    Refuse(AttachCause),
}

/// Decides. The pod's side comes first: an interface that somebody else put there must keep its host end, even
/// where that has the name we want.
pub(super) fn judge(plan: &Plan, found: InTheWay, netns: &std::path::Path) -> Verdict {
    match found {
        InTheWay { pod: Some(pod), peer, .. } => judge_pod(plan, pod, peer, netns),
        InTheWay { pod: None, host: Some(host), .. } => judge_host(plan, host),
        InTheWay { pod: None, host: None, .. } => Verdict::Retry,
    }
}

fn judge_pod(plan: &Plan, pod: Link, peer: Option<Link>, netns: &std::path::Path) -> Verdict {
    let refused = AttachCause::InterfaceExists { ifname: plan.ifname.clone(), netns: netns.to_owned() };
    let Some(host) = peer.filter(|peer| inspect::is_pair(peer, &pod)) else {
        return Verdict::Refuse(refused);
    };
    let ours = inspect::owner(&host).is_some_and(|owner| owner.same_interface(&plan.owner));
    let named = host.name == plan.host_name.as_str();
    if ours && named && pod.name == plan.ifname.as_str() {
        return Verdict::Reuse { host, pod };
    }
    // Calico replaces whatever has the host end's name (calico-cni.md section 3.3, step 1).
    if ours || inspect::is_newborn(&host) || (named && plan.dialect == Dialect::Calico) {
        return Verdict::Remove { host, pod: Some(pod) };
    }
    Verdict::Refuse(refused)
}

fn judge_host(plan: &Plan, host: Link) -> Verdict {
    match inspect::owner(&host) {
        Some(owner) if owner.same_interface(&plan.owner) => Verdict::Remove { host, pod: None },
        Some(owner) if owner.container().is_some() && owner.container() == plan.owner.container() => {
            Verdict::Refuse(AttachCause::NameTaken { host_name: plan.host_name.clone(), owner })
        }
        // The same pod's sandbox before this one: host ends are named after pods.
        Some(_) => Verdict::Remove { host, pod: None },
        None if inspect::is_newborn(&host) || plan.dialect == Dialect::Calico => {
            Verdict::Remove { host, pod: None }
        }
        None => Verdict::Refuse(AttachCause::ForeignLink(plan.host_name.clone())),
    }
}
