//! Reads the members of an object that are needed, and skips the others without storing them: an
//! object has 5 to 50 kB, of which most callers need 1 kB.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// What is kept of a value.
#[derive(Debug, Clone, Copy)]
pub enum Keep {
    /// Everything.
    All,
    /// Of an object, these members; other values are kept as they are.
    Members(&'static [(&'static str, Keep)]),
    /// Of a list, this of each item; other values are kept as they are.
    Items(&'static Keep),
}

// === impl Keep ===

impl<'de> DeserializeSeed<'de> for Keep {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keep {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let keep = match self {
            Self::Items(keep) => *keep,
            _ => Self::All,
        };
        let mut kept = Vec::new();
        while let Some(item) = items.next_element_seed(keep)? {
            kept.push(item);
        }
        Ok(kept.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let keep = match self {
                Self::Members(wanted) => {
                    wanted.iter().find(|(wanted, _)| *wanted == name).map(|(_, keep)| *keep)
                }
                _ => Some(Self::All),
            };
            match keep {
                Some(keep) => _ = kept.insert(name, members.next_value_seed(keep)?),
                None => _ = members.next_value::<IgnoredAny>()?,
            }
        }
        Ok(kept.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_wanted_members_are_kept_and_values_of_other_types_stay() {
        const PORTS: Keep = Keep::Members(&[("ports", Keep::All)]);
        const KEEP: Keep = Keep::Members(&[
            ("name", Keep::All),
            ("spec", Keep::Members(&[("containers", Keep::Items(&PORTS))])),
        ]);
        let prune = |value: Value| KEEP.deserialize(value).unwrap();
        let pod = json!({ "name": {"a": [1, -2, 2.5, null, true]}, "kind": "Pod",
            "spec": { "nodeName": "n", "containers": [{ "image": "i", "ports": [{ "name": "p" }] }, 7] } });
        let kept = json!({ "name": {"a": [1, -2, 2.5, null, true]},
            "spec": { "containers": [{ "ports": [{ "name": "p" }] }, 7] } });
        assert_eq!(prune(pod), kept);
        for other in [json!("text"), json!([{ "name": 1, "kind": 2 }]), json!(null), json!({ "spec": [1] })] {
            assert_eq!(prune(other.clone()), other);
        }
    }
}
