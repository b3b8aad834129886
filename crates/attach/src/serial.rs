//! `serde` forms of types of the netlink crate, which has no formats: an interface is written into
//! the agent's journal as a whole.

use russet_netlink::{BridgePort, Scope};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The options of a port of a bridge.
#[derive(Serialize, Deserialize)]
#[serde(remote = "BridgePort")]
pub(crate) struct BridgePortFields {
    hairpin: bool,
    isolated: bool,
}

/// A route's scope.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Scope", rename_all = "snake_case")]
enum ScopeName {
    Universe,
    Site,
    Link,
    Host,
    Nowhere,
    Other(u8),
}

#[derive(Serialize, Deserialize)]
struct Wrapped(#[serde(with = "ScopeName")] Scope);

/// A scope that the kernel may choose.
pub(crate) mod optional_scope {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(scope: &Option<Scope>, serializer: S) -> Result<S::Ok, S::Error> {
        scope.map(Wrapped).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Scope>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|Wrapped(scope)| scope))
    }
}
