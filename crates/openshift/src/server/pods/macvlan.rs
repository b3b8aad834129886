//! Whether a pod gets a macvlan0 (cni-runtime.md section 4.3): if an annotation requests it, and
//! only for a privileged pod.

use std::rc::Rc;

use russet_attach::sdn;
use russet_kube::{KubeError, Kubernetes, absent_is_none};
use russet_linux::NetNs;

use crate::server::request::{Pod, Request};
use crate::server::socket::Refusal;

/// The source of a pod's annotations and privileges.
pub enum Macvlan {
    Api(Rc<dyn Kubernetes>),
    /// The runtime, which passes annotations on. The operator has confirmed that it is trustworthy.
    Trusted,
    /// There is no source: an annotation is refused.
    Denied,
}

const ANNOTATION: &str = "pod.network.openshift.io/assign-macvlan";

// === impl Macvlan ===

impl Macvlan {
    /// Creates it, if the pod requests one.
    pub async fn add(&self, request: &Request, netns: &NetNs) -> Result<(), Refusal> {
        let Some(parent) = self.wanted(request).await? else { return Ok(()) };
        let netns = netns.try_clone().map_err(|error| Refusal::now(error.to_string()))?;
        let parent = (parent != "true").then_some(parent);
        let made = tokio::task::spawn_blocking(move || sdn::add_macvlan(&netns, parent.as_deref())).await;
        match made {
            Ok(made) => made.map_err(|error| Refusal::now(format!("pod annotation {ANNOTATION:?}: {error}"))),
            Err(error) => Err(Refusal::later(format!("creating macvlan0 was interrupted: {error}"))),
        }
    }

    /// Removes it from a namespace, if the namespace still exists.
    pub async fn remove(&self, netns: &str) -> Result<(), Refusal> {
        let netns = netns.to_owned();
        let work = move || match NetNs::open(&netns) {
            Ok(netns) if NetNs::current().is_ok_and(|own| !own.same_as(&netns)) => {
                sdn::remove_macvlan(&netns)
            }
            _ => Ok(()),
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(removed) => removed.map_err(|error| Refusal::now(error.to_string())),
            Err(error) => Err(Refusal::later(format!("removing macvlan0 was interrupted: {error}"))),
        }
    }

    /// "true", or the name of the node's link.
    async fn wanted(&self, request: &Request) -> Result<Option<String>, Refusal> {
        let (value, privileged) = match self {
            Self::Api(api) => {
                let pod = pod(&**api, &request.pod).await?;
                (pod.metadata.annotations.get(ANNOTATION).cloned(), pod.privileged())
            }
            Self::Trusted => (annotation(request), true),
            Self::Denied => (annotation(request), false),
        };
        match value.filter(|value| value != "false") {
            Some(_) if !privileged => {
                Err(Refusal::now(format!("pod has {ANNOTATION:?} annotation but is not privileged")))
            }
            wanted => Ok(wanted),
        }
    }
}

fn annotation(request: &Request) -> Option<String> {
    request.annotations.iter().find(|(key, _)| key == ANNOTATION).map(|(_, value)| value.clone())
}

/// The pod. If it no longer exists, the request fails for good.
async fn pod(api: &dyn Kubernetes, pod: &Pod) -> Result<russet_kube::Pod, Refusal> {
    let found: Result<Option<russet_kube::Pod>, KubeError> =
        absent_is_none(api.pod(&pod.namespace, &pod.name).await);
    match found {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Refusal::now(format!("pods {:?} not found", pod.name))),
        Err(error) => Err(Refusal::later(format!("read pod {}/{}: {error}", pod.namespace, pod.name))),
    }
}
