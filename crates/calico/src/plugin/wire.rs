//! The pod's interface as Calico makes it (calico-cni.md section 3).

use russet_addr::{EndpointId, IfName, IpNet};
use russet_attach::{Attached, Attachment, Detachment, Dialect, Pod, naming};
use russet_cni_spec::CniError;
use russet_linux::NetNs;
use russet_store::BoxFuture;
use russet_wiring::{AttachFailure, Target, Wiring};

use crate::CalicoNode;
use crate::conf::CalicoConf;

/// The kernel operations of an ADD, as a trait so that failures can be tested without a kernel.
pub trait Wire {
    fn attach(&self, attachment: Attachment) -> BoxFuture<'_, Result<Attached, AttachFailure>>;
    /// Allows a wired pod to send from these prefixes besides its own addresses.
    fn allow_sources(&self, host_name: IfName, nets: Vec<IpNet>) -> BoxFuture<'_, Result<(), CniError>>;
    /// Removes the interface.
    fn detach(&self, what: Detachment) -> BoxFuture<'_, Result<(), CniError>>;
}

/// The implementation for a pod's namespace.
pub struct Kernel {
    /// Access to the kernel.
    pub wiring: Wiring,
    /// The pod's namespace.
    pub netns: NetNs,
}

/// An interface without addresses, as the configuration specifies it.
pub fn attachment(node: &CalicoNode, conf: &CalicoConf, target: &Target) -> Result<Attachment, CniError> {
    let host_name = host_name(conf.interface_prefix.as_deref(), &target.id, target.pod.as_ref())?;
    let mut attachment = Attachment::new(Dialect::Calico, target.id.clone(), target.pod.clone());
    attachment.host_name = host_name;
    attachment.allow_ip_forwarding = conf.allow_ip_forwarding;
    attachment.sync_delete = node.teardown.is_synchronous();
    Ok(attachment)
}

/// The name of the host interface; operators can choose its prefix for Kubernetes pods
/// (calico-cni.md section 3.1).
pub fn host_name(prefix: Option<&str>, id: &EndpointId, pod: Option<&Pod>) -> Result<IfName, CniError> {
    let name = naming::host_end(Dialect::Calico, id, pod);
    match (prefix, pod, name.as_str().strip_prefix(naming::prefix(Dialect::Calico))) {
        (Some(prefix), Some(_), Some(rest)) => IfName::new(format!("{prefix}{rest}")).map_err(|error| {
            CniError::environment(format!("FELIX_INTERFACEPREFIX: {prefix:?} cannot be used"), error)
        }),
        _ => Ok(name),
    }
}

/// The detachment for a DEL. It names the host interface with the default prefix, because the part
/// of DEL that works without the configuration must not depend on it.
pub fn detachment_of(node: &CalicoNode, target: &Target) -> Detachment {
    let host_name = naming::host_end(Dialect::Calico, &target.id, target.pod.as_ref());
    detachment(node, target.id.clone(), Some(host_name))
}

/// Whether `name` is that of the host interface of `id` of this pod, with any prefix. It ends with
/// 44 bits of a hash of namespace and pod, which identify the pod.
pub fn is_of_pod(name: &IfName, id: &EndpointId, pod: &Pod) -> bool {
    let known = naming::host_end(Dialect::Calico, id, Some(pod));
    let hash = known.as_str().strip_prefix(naming::prefix(Dialect::Calico));
    hash.is_some_and(|hash| name.as_str().len() > hash.len() && name.as_str().ends_with(hash))
}

/// The detachment of an interface.
pub fn detachment(node: &CalicoNode, id: EndpointId, host_name: Option<IfName>) -> Detachment {
    Detachment {
        id,
        host_name,
        by_name_alone: false,
        dialect: Dialect::Calico,
        removal: node.teardown.removal(),
    }
}

// === impl Kernel ===

impl Wire for Kernel {
    fn attach(&self, attachment: Attachment) -> BoxFuture<'_, Result<Attached, AttachFailure>> {
        Box::pin(async move {
            let netns = self.netns.try_clone();
            let netns = netns.map_err(|error| CniError::internal("keep the pod's namespace open", error))?;
            self.wiring.attach(attachment, netns).await
        })
    }

    fn allow_sources(&self, host_name: IfName, nets: Vec<IpNet>) -> BoxFuture<'_, Result<(), CniError>> {
        Box::pin(self.wiring.allow_sources(host_name, nets))
    }

    fn detach(&self, what: Detachment) -> BoxFuture<'_, Result<(), CniError>> {
        Box::pin(self.wiring.detach(what, self.netns.try_clone().ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oracle_27_a_pods_host_end_is_named_after_namespace_and_pod() {
        let pod = Pod { namespace: "shop".into(), name: "web-0".into() };
        let name = |prefix, container: &str, pod: Option<&Pod>| {
            let id = format!("net/{container}/eth0").parse().unwrap();
            host_name(prefix, &id, pod).map(|name| name.to_string())
        };
        assert_eq!(name(None, "c1", Some(&pod)).unwrap(), "calia4fc3c48bd8");
        assert_eq!(name(None, "c2", Some(&pod)).unwrap(), "calia4fc3c48bd8");
        assert_eq!(name(Some("tap"), "c2", Some(&pod)).unwrap(), "tapa4fc3c48bd8");
        assert_eq!(name(Some("tap"), "abc123", None).unwrap(), "caliabc123");
        assert!(name(Some("toolong"), "c2", Some(&pod)).is_err());
    }

    #[test]
    fn a_pods_host_end_is_known_by_its_hash_under_any_prefix() {
        let pod = Pod { namespace: "shop".into(), name: "web-0".into() };
        let known = |name: &str, ifname: &str| {
            is_of_pod(&name.parse().unwrap(), &format!("net/c1/{ifname}").parse().unwrap(), &pod)
        };
        assert!(known("calia4fc3c48bd8", "eth0") && known("tapa4fc3c48bd8", "eth0"));
        for other in ["calia4fc3c48bd9", "eth0", "a4fc3c48bd8"] {
            assert!(!known(other, "eth0"), "{other}");
        }
        assert!(!known("calia4fc3c48bd8", "net1"));
    }
}
