//! Decides what to do about a name that is taken: pure, from the links on both sides.

use russet_netlink::Link;

use super::AttachCause;
use crate::attachment::Dialect;
use crate::inspect;
use crate::plan::Plan;

/// The links with the new veth's names, and the node's end of the pod's one.
#[derive(Debug, Default)]
pub(super) struct InTheWay {
    /// The node's link with the host end's name.
    pub host: Option<Link>,
    /// The pod's link with the interface's name.
    pub pod: Option<Link>,
    /// The peer of `pod`, if it is on this node.
    pub peer: Option<Link>,
}

/// What to do about them.
#[derive(Debug)]
pub(super) enum Decision {
    /// They belong to this attachment: keep them and repair what is missing.
    Reuse {
        /// The node's end.
        host: Link,
        /// The pod's end.
        pod: Link,
    },
    /// Remove this link, and the pod's end if it is in this pod.
    Remove {
        /// The node's end.
        host: Link,
        /// The pod's end.
        pod: Option<Link>,
    },
    /// They are gone meanwhile: try again.
    Retry,
    /// Leave them unchanged and fail.
    Refuse(AttachCause),
}

/// Decides. The pod's side comes first: a foreign interface there must keep its host end, even if
/// that has the name we need.
pub(super) fn decide(plan: &Plan, found: InTheWay, netns: &std::path::Path) -> Decision {
    match found {
        InTheWay { pod: Some(pod), peer, .. } => decide_by_pod(plan, pod, peer, netns),
        InTheWay { pod: None, host: Some(host), .. } => decide_by_host(plan, host),
        InTheWay { pod: None, host: None, .. } => Decision::Retry,
    }
}

fn decide_by_pod(plan: &Plan, pod: Link, peer: Option<Link>, netns: &std::path::Path) -> Decision {
    let refused = AttachCause::InterfaceExists { ifname: plan.ifname.clone(), netns: netns.to_owned() };
    let Some(host) = peer.filter(|peer| inspect::is_pair(peer, &pod)) else {
        return Decision::Refuse(refused);
    };
    let ours = inspect::owner(&host).is_some_and(|owner| owner.same_interface(&plan.owner));
    let named = host.name == plan.host_name.as_str();
    if ours && named && pod.name == plan.ifname.as_str() {
        return Decision::Reuse { host, pod };
    }
    // Calico replaces whatever has the host end's name (calico-cni.md section 3.3, step 1).
    if ours || inspect::is_precreated(&host) || (named && plan.dialect == Dialect::Calico) {
        return Decision::Remove { host, pod: Some(pod) };
    }
    Decision::Refuse(refused)
}

fn decide_by_host(plan: &Plan, host: Link) -> Decision {
    match inspect::owner(&host) {
        Some(owner) if owner.same_interface(&plan.owner) => Decision::Remove { host, pod: None },
        Some(owner) if owner.container().is_some() && owner.container() == plan.owner.container() => {
            Decision::Refuse(AttachCause::NameTaken { host_name: plan.host_name.clone(), owner })
        }
        // An earlier sandbox of the same pod, because host ends are named after pods.
        Some(_) => Decision::Remove { host, pod: None },
        None if inspect::is_precreated(&host) || plan.dialect == Dialect::Calico => {
            Decision::Remove { host, pod: None }
        }
        None => Decision::Refuse(AttachCause::ForeignLink(plan.host_name.clone())),
    }
}
