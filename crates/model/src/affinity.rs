//! A node's affinity to a block (calico-ipam.md section 1.5). The owner and the block are only in
//! the key.

use std::fmt;

use crate::json::{self, DecodeError, Extra, Fields, Object};

/// The affinity's record.
#[derive(Debug, Clone, PartialEq)]
pub struct Affinity {
    /// The state of the claim or its release.
    pub state: AffinityState,
    /// Always false outside Kubernetes.
    pub deleted: bool,
    /// Unknown members.
    pub extra: Extra,
}

/// The state of a claim, or of its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinityState {
    /// Announced; the block may belong to another owner.
    Pending,
    /// The block belongs to this owner. Records of v2 peers have no state and mean this.
    Confirmed,
    /// Being released.
    PendingDeletion,
}

// === impl Affinity ===

impl Affinity {
    /// An affinity in this state.
    pub fn new(state: AffinityState) -> Self {
        Self { state, deleted: false, extra: Extra::new() }
    }

    /// The same record in another state.
    #[must_use]
    pub fn with_state(&self, state: AffinityState) -> Self {
        Self { state, ..self.clone() }
    }

    /// Decodes an affinity; an empty value is one of a v2 peer, and so confirmed.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.is_empty() {
            return Ok(Self::new(AffinityState::Confirmed));
        }
        let mut fields = Fields::parse("affinity", bytes)?;
        let state = match fields.string("state")?.as_deref() {
            Some("pending") => AffinityState::Pending,
            Some("confirmed" | "") | None => AffinityState::Confirmed,
            Some("pendingDeletion") => AffinityState::PendingDeletion,
            Some(other) => return Err(fields.error("state", format!("unknown state {other:.60?}"))),
        };
        let deleted = fields.boolean("deleted")?.unwrap_or(false);
        Ok(Self { state, deleted, extra: fields.rest() })
    }

    /// Writes the claim.
    pub fn encode(&self) -> Vec<u8> {
        let value = Object::default().put("state", self.state.as_str()).put("deleted", self.deleted);
        json::encode(&value.finish(&self.extra))
    }
}

// === impl AffinityState ===

impl AffinityState {
    /// The state as it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Confirmed => "confirmed",
            Self::PendingDeletion => "pendingDeletion",
        }
    }
}

impl fmt::Display for AffinityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_a_round_trip_byte_for_byte() {
        // calico-ipam.md section 1.5, TV1, TV11
        for text in [
            r#"{"state":"pending","deleted":false}"#,
            r#"{"state":"confirmed","deleted":false}"#,
            r#"{"state":"pendingDeletion","deleted":false,"future":{"z":1,"a":2}}"#,
        ] {
            let affinity = Affinity::decode(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(affinity.encode()).unwrap(), text);
        }
    }

    #[test]
    fn data_of_v2_means_confirmed() {
        // calico-ipam.md section 1.9, TV16
        for text in ["", "{}", r#"{"state":""}"#] {
            assert_eq!(Affinity::decode(text.as_bytes()).unwrap().state, AffinityState::Confirmed);
        }
    }

    #[test]
    fn rubbish_is_named() {
        for text in ["null", "[]", r#"{"state":7}"#, r#"{"state":"lost"}"#, r#"{"deleted":"no"}"#] {
            assert!(
                Affinity::decode(text.as_bytes()).unwrap_err().to_string().starts_with("affinity"),
                "{text}"
            );
        }
    }
}
