//! What needs the Kubernetes API goes through here: one small interface with the calls that the plugins and daemons need, and its objects.
//!
//! The `calico` plugin reads pods and namespaces and writes a pod's addresses into its annotations (calico-cni.md 2.2.4 and 2.5); flannel's
//! subnet manager follows nodes and patches its own (flannel.md 5). Callers hold a [`Kubernetes`] and never know who answers.

mod api;
mod error;
mod objects;
mod patch;

pub use api::{BoxFuture, Kubernetes, NodeEvent, NodeWatch};
pub use error::{KubeError, Said, absent_is_none};
pub use objects::{
    Address, Condition, Container, ContainerPort, Namespace, Node, NodeSpec, NodeStatus, ObjectMeta, Pod,
    PodIp, PodSpec, PodStatus,
};
pub use patch::StatusPatch;
