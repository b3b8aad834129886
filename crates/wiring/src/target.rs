//! The target of a request: one interface of one container, in a network namespace that exists and
//! is not the node's own.

use russet_addr::EndpointId;
use russet_attach::Pod;
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, Env};
use russet_linux::NetNs;

/// The endpoint of a request, and its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub id: EndpointId,
    /// The pod, where Kubernetes named one.
    pub pod: Option<Pod>,
    netns: String,
    netns_override: bool,
}

/// Kubernetes' limit for names of pods and namespaces.
const POD_NAME_MAX_BYTES: usize = 253;

// === impl Target ===

impl Target {
    /// Reads the target of a verb that has one.
    pub fn from_request(request: &Request, target: &russet_cni_spec::Target) -> Result<Self, CniError> {
        Ok(Self {
            id: target.id.clone(),
            pod: pod(&request.env)?,
            netns: target.netns.clone(),
            netns_override: request.env.netns_override,
        })
    }

    /// The log fields that identify the target, named as in the log of Calico's plugin.
    pub fn log_fields(&self) -> String {
        let container = format!("ContainerID={:?}", self.id.container.as_str());
        match &self.pod {
            Some(pod) => format!("{container} Namespace={:?} Pod={:?}", pod.namespace, pod.name),
            None => container,
        }
    }

    /// The namespace's path, exactly as the runtime gave it.
    pub fn netns_path(&self) -> &str {
        &self.netns
    }

    /// Opens the namespace; an error if it does not exist or is the node's own.
    pub fn open_netns(&self) -> Result<NetNs, CniError> {
        let netns = NetNs::open(&self.netns).map_err(|error| {
            CniError::environment(format!("CNI_NETNS {:?} cannot be used", self.netns), error)
        })?;
        self.refuse_own(&netns)?;
        Ok(netns)
    }

    /// Opens the namespace if it still exists; DEL works without it.
    pub fn netns_if_any(&self) -> Option<NetNs> {
        if self.netns.is_empty() {
            return None;
        }
        NetNs::open(&self.netns).ok().filter(|netns| self.refuse_own(netns).is_ok())
    }

    /// The path of a container's namespace may by now be the host's: a recycled `/proc/PID/ns/net` (cni-runtime.md section 7).
    fn refuse_own(&self, netns: &NetNs) -> Result<(), CniError> {
        let own = NetNs::current()
            .map_err(|error| CniError::internal("look at the agent's own namespace", error))?;
        if netns.same_as(&own) && !self.netns_override {
            let msg =
                format!("CNI_NETNS {:?} is the node's own network namespace, not a container's", self.netns);
            return Err(CniError::invalid_netns(msg, "CNI_NETNS_OVERRIDE=1 would allow it"));
        }
        Ok(())
    }
}

/// The pod that `CNI_ARGS` name.
pub fn pod(env: &Env) -> Result<Option<Pod>, CniError> {
    let Some(pod) = env.args.pod() else { return Ok(None) };
    for (key, value) in [("K8S_POD_NAMESPACE", pod.namespace), ("K8S_POD_NAME", pod.name)] {
        let well_formed = value.len() <= POD_NAME_MAX_BYTES
            && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
        if !well_formed {
            let details = "letters, digits, '-', '.' and '_', at most 253 bytes";
            return Err(CniError::environment(
                format!("CNI_ARGS: {key}={value:?} is no Kubernetes name"),
                details,
            ));
        }
    }
    Ok(Some(Pod { namespace: pod.namespace.to_owned(), name: pod.name.to_owned() }))
}
