//! The addresses of the native plugin's pods in their annotations, which programs of Calico read (kubernetes.md sections 2.4 and 2.8).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use russet_cni_spec::CniError;
use russet_kube::{KubeError, Pod, StatusPatch};
use russet_model::{ClusterInformation, Key};
use russet_plugins::{Announce, PodSandbox};
use russet_store::{BoxFuture, Store};

use crate::pods::Pods;

/// Whether pods are annotated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Annotate {
    /// While programs of Calico work in the cluster: each writes its release into ClusterInformation.
    #[default]
    Auto,
    Always,
    Never,
}

/// Writes the annotations.
pub struct Announcer {
    pods: Pods,
    /// The store of the agent, whose memory has ClusterInformation.
    store: Rc<dyn Store>,
    annotate: Annotate,
    /// The last sandbox of each pod that this process announced, by the pod's UID.
    announced: RefCell<BTreeMap<String, String>>,
}

const CONTAINER_ID: &str = "cni.projectcalico.org/containerID";
const POD_IP: &str = "cni.projectcalico.org/podIP";
const POD_IPS: &str = "cni.projectcalico.org/podIPs";
/// Attempts at a withdrawal that races with other writers of the pod, as peers have it (kubernetes.md section 2.2).
const TRIES: usize = 5;
/// Limit of remembered sandboxes: far more than a node has pods.
const ANNOUNCED_MAX: usize = 4096;

// === impl Annotate ===

impl FromStr for Annotate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err("`auto`, `always` or `never` is wanted"),
        }
    }
}

impl fmt::Display for Annotate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

// === impl Announcer ===

impl Announcer {
    pub fn new(pods: Pods, store: Rc<dyn Store>, annotate: Annotate) -> Self {
        Self { pods, store, annotate, announced: RefCell::default() }
    }

    /// Whether another program may read annotations. If that cannot be determined, they are written.
    async fn is_wanted(&self) -> bool {
        match self.annotate {
            Annotate::Always => true,
            Annotate::Never => false,
            Annotate::Auto => match self.store.get(&Key::cluster_information()).await {
                Ok(None) => false,
                Ok(Some(record)) => ClusterInformation::decode(&record.value)
                    .map_or(true, |information| !information.spec.calico_version.is_empty()),
                Err(_) => true,
            },
        }
    }

    async fn write(&self, sandbox: &PodSandbox, addresses: &[String]) -> Result<(), CniError> {
        if !self.is_wanted().await {
            return Ok(());
        }
        let failed = |error| failed("the pod's addresses could not be announced", error);
        let PodSandbox { namespace, name, uid, container } = sandbox;
        let pod = self.pods.find(namespace, name, uid.as_deref()).await.map_err(failed)?;
        let all = addresses.join(",");
        let first = addresses.first().cloned().unwrap_or_default();
        let annotations = [(CONTAINER_ID, container.clone()), (POD_IP, first), (POD_IPS, all)];
        let patch = StatusPatch::of_annotations(annotations).with_uid(&pod.metadata.uid);
        self.pods.patch(namespace, name, &patch).await.map_err(failed)?;
        let mut announced = self.announced.borrow_mut();
        if announced.len() >= ANNOUNCED_MAX {
            announced.pop_first();
        }
        announced.insert(pod.metadata.uid.clone(), container.clone());
        Ok(())
    }

    /// Empties the addresses, unless the pod has another sandbox by now (kubernetes.md K43 to K45).
    async fn remove(&self, sandbox: &PodSandbox) -> Result<(), CniError> {
        let PodSandbox { namespace, name, container, .. } = sandbox;
        let mut last = None;
        for attempt in 0..TRIES {
            let found = match self.pods.known(namespace, name).filter(|_| attempt == 0) {
                Some(known) => Some(known),
                // The watch has not seen it, or no longer: then it is gone.
                None if attempt == 0 && self.pods.is_watched() => None,
                None if attempt == 0 && self.annotate == Annotate::Never => None,
                None => self.read(namespace, name).await?,
            };
            let Some(pod) = found.filter(|pod| has_addresses_of(pod, container)) else { return Ok(()) };
            let is_newest = self.announced.borrow().get(&pod.metadata.uid) == Some(container);
            let patch =
                StatusPatch::of_annotations([(POD_IP, ""), (POD_IPS, "")]).with_uid(&pod.metadata.uid);
            let patch = match is_newest {
                true => patch,
                false => patch.with_resource_version(&pod.metadata.resource_version),
            };
            match self.pods.patch(namespace, name, &patch).await {
                Ok(_) | Err(KubeError::NotFound(_) | KubeError::Replaced(_)) => {
                    self.announced.borrow_mut().remove(&pod.metadata.uid);
                    return Ok(());
                }
                Err(error @ KubeError::Conflict(_)) => last = Some(error),
                Err(error) => return Err(failed(WITHDRAW, error)),
            }
        }
        last.map_or(Ok(()), |error| Err(failed(WITHDRAW, error)))
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Option<Rc<Pod>>, CniError> {
        match self.pods.read(namespace, name).await {
            Ok(pod) => Ok(Some(pod)),
            Err(KubeError::NotFound(_)) => Ok(None),
            Err(error) => Err(failed(WITHDRAW, error)),
        }
    }
}

impl Announce for Announcer {
    fn announce<'a>(
        &'a self,
        sandbox: &'a PodSandbox,
        addresses: &'a [String],
    ) -> BoxFuture<'a, Result<(), CniError>> {
        Box::pin(self.write(sandbox, addresses))
    }

    fn withdraw<'a>(&'a self, sandbox: &'a PodSandbox) -> BoxFuture<'a, Result<(), CniError>> {
        Box::pin(self.remove(sandbox))
    }
}

const WITHDRAW: &str = "the pod's addresses could not be withdrawn, and stay allocated until they are";

/// Whether a pod's annotations have addresses of this sandbox.
fn has_addresses_of(pod: &Pod, container: &str) -> bool {
    let annotation = |name: &str| pod.metadata.annotations.get(name).map(String::as_str).unwrap_or_default();
    annotation(CONTAINER_ID) == container
        && !(annotation(POD_IP).is_empty() && annotation(POD_IPS).is_empty())
}

fn failed(msg: &str, error: KubeError) -> CniError {
    match &error {
        KubeError::Forbidden(_) | KubeError::Invalid(_) => CniError::internal(msg, error),
        KubeError::NotFound(_) | KubeError::Replaced(_) => {
            CniError::new(russet_plugins::NO_SUCH_POD, msg, error)
        }
        _ => CniError::try_again_later(msg, error),
    }
}
