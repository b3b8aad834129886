//! Calico's resources as operators write and read them: kinds, valid contents, output. The verbs
//! `get`, `apply` and `delete` use this; nothing here accesses a store.

mod check;
mod cluster_policy;
mod documents;
mod endpoint;
mod felix;
mod fields;
mod kind;
mod kubernetes_policy;
mod node;
mod policy;
mod policy_peers;
mod pool;
mod profile;
mod reservation;
mod show;

pub use check::{Problems, Refused, prepare};
pub use documents::{Document, DocumentError, UnknownKinds, read, values};
pub use fields::nearest;
pub(crate) use kind::each_kind;
pub use kind::{AgentState, Definition, Kind, TableContext};
pub use policy_peers::is_built_in_tier;
pub use show::{Shown, list_value, make_portable, value, yaml};
