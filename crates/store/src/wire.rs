//! The protocol between the owner of an embedded store and its clients over the unix socket: frames
//! of a little-endian u32 length and a postcard value. Both ends are part of this project and run
//! on one machine, so the first frame has a version, and other versions are refused.

use russet_model::{Key, Prefix};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{
    Cause, CommitError, LeaseId, MAX_COMMIT_BYTES, MAX_KEY_BYTES, MAX_STEPS, Record, Revision, StoreError,
};

/// Incremented when a frame changes its meaning.
pub(crate) const VERSION: u32 = 1;
/// Limit of a frame: the largest commit, with the longest keys and some space for numbers.
pub(crate) const FRAME_MAX_BYTES: usize = MAX_COMMIT_BYTES + MAX_STEPS * (MAX_KEY_BYTES + 64);
/// Size at which a list continues in the next frame.
pub(crate) const PART_BYTES: usize = 256 << 10;
/// The id of the greeting; requests count from 1.
pub(crate) const HELLO_ID: u64 = 0;

const LENGTH_BYTES: usize = 4;

/// Client to owner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) request: Request,
}

/// A client's request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    Hello {
        version: u32,
    },
    Get(Key),
    List(Prefix),
    /// Refused if it arrives after `expires_ms` on this machine's monotonic clock: its caller has
    /// given up by then, and may have checked the outcome.
    Commit {
        steps: Vec<WireStep>,
        expires_ms: u64,
    },
    Watch {
        prefix: Prefix,
        since: Option<u64>,
    },
    Unwatch,
    Grant {
        ttl_ms: u64,
    },
    KeepAlive(u64),
    Revoke(u64),
    Tenure(Key),
}

/// Owner to client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    pub(crate) reply: Reply,
}

/// The owner's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Hello {
        version: u32,
    },
    Record(Option<WireRecord>),
    /// A part of a list; `last` completes it.
    Part {
        records: Vec<WireRecord>,
        revision: u64,
        last: bool,
    },
    Committed(u64),
    Lease(u64),
    TtlMs(u64),
    Done,
    /// Events of a watch, complete up to revision `at`.
    Events {
        events: Vec<WireEvent>,
        at: u64,
    },
    Failed(WireError),
    /// A record and its lease, if any.
    Tenure(Option<(WireRecord, Option<u64>)>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WireRecord {
    pub(crate) key: Key,
    #[serde(with = "bytes")]
    pub(crate) value: Vec<u8>,
    pub(crate) revision: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum WireStep {
    Create { key: Key, value: Bytes, lease: Option<u64> },
    Update { key: Key, value: Bytes, revision: u64, lease: Option<u64> },
    Delete { key: Key, revision: Option<u64> },
    Put { key: Key, value: Bytes, lease: Option<u64> },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WireEvent {
    Put(WireRecord),
    Deleted { key: Key, revision: u64 },
}

/// A failure, with the cause as text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireError {
    done: usize,
    failed: usize,
    class: Class,
}

#[derive(Debug, Serialize, Deserialize)]
enum Class {
    Conflict(Key),
    AlreadyExists(Key),
    NotFound(Key),
    NoLease(u64),
    Unknown(String, String),
    Unavailable(String, String),
    Corrupt(String, String),
    Full(String, String),
    Invalid(String, String),
    Unsupported(String),
}

/// Bytes that are copied at once and not one by one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Bytes(#[serde(with = "bytes")] pub(crate) Vec<u8>);

/// What is wrong with received bytes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {0} bytes is above the limit of {FRAME_MAX_BYTES}")]
    TooLong(usize),
    #[error("a frame that cannot be read")]
    Malformed(#[from] postcard::Error),
    #[error("frame {0} has no meaning here")]
    Unexpected(&'static str),
}

/// The clock of deadlines, which all processes of this machine share.
pub(crate) fn monotonic_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0)
}

// === frames ===

/// Appends a frame to `out`.
pub(crate) fn encode(message: &impl Serialize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend([0; LENGTH_BYTES]);
    let body = std::mem::take(out);
    let mut body = postcard::to_extend(message, body)?;
    let length = body.len() - start - LENGTH_BYTES;
    let header = u32::try_from(length)
        .ok()
        .filter(|_| length <= FRAME_MAX_BYTES)
        .ok_or(FrameError::TooLong(length))?;
    if let Some(prefix) = body.get_mut(start..).and_then(|frame| frame.first_chunk_mut()) {
        *prefix = header.to_le_bytes();
    }
    *out = body;
    Ok(())
}

/// Removes the first complete frame from `bytes`: the message and the number of bytes; `None` if
/// more bytes are needed.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<Option<(T, usize)>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*header) as usize;
    if length > FRAME_MAX_BYTES {
        return Err(FrameError::TooLong(length));
    }
    match rest.get(..length) {
        None => Ok(None),
        Some(body) => Ok(Some((postcard::from_bytes(body)?, LENGTH_BYTES + length))),
    }
}

// === conversions ===

impl From<Record> for WireRecord {
    fn from(Record { key, value, revision }: Record) -> Self {
        Self { key, value, revision: revision.0 }
    }
}

impl From<WireRecord> for Record {
    fn from(WireRecord { key, value, revision }: WireRecord) -> Self {
        Self { key, value, revision: Revision(revision) }
    }
}

impl From<crate::Step> for WireStep {
    fn from(step: crate::Step) -> Self {
        use crate::Step;
        let id = |lease: Option<LeaseId>| lease.map(|lease| lease.0);
        match step {
            Step::Create { key, value, lease } => Self::Create { key, value: Bytes(value), lease: id(lease) },
            Step::Update { key, value, revision, lease } => {
                Self::Update { key, value: Bytes(value), revision: revision.0, lease: id(lease) }
            }
            Step::Delete { key, revision } => {
                Self::Delete { key, revision: revision.map(|revision| revision.0) }
            }
            Step::Put { key, value, lease } => Self::Put { key, value: Bytes(value), lease: id(lease) },
        }
    }
}

impl From<WireStep> for crate::Step {
    fn from(step: WireStep) -> Self {
        let id = |lease: Option<u64>| lease.map(LeaseId);
        match step {
            WireStep::Create { key, value, lease } => Self::Create { key, value: value.0, lease: id(lease) },
            WireStep::Update { key, value, revision, lease } => {
                Self::Update { key, value: value.0, revision: Revision(revision), lease: id(lease) }
            }
            WireStep::Delete { key, revision } => Self::Delete { key, revision: revision.map(Revision) },
            WireStep::Put { key, value, lease } => Self::Put { key, value: value.0, lease: id(lease) },
        }
    }
}

impl From<CommitError> for WireError {
    fn from(CommitError { done, failed, error }: CommitError) -> Self {
        let class = match error {
            StoreError::Conflict { key } => Class::Conflict(key),
            StoreError::AlreadyExists { key } => Class::AlreadyExists(key),
            StoreError::NotFound { key } => Class::NotFound(key),
            StoreError::NoLease { lease } => Class::NoLease(lease.0),
            StoreError::Unknown { operation, source } => Class::Unknown(operation, source.to_string()),
            StoreError::Unavailable { operation, source } => {
                Class::Unavailable(operation, source.to_string())
            }
            StoreError::Corrupt { operation, source } => Class::Corrupt(operation, source.to_string()),
            StoreError::Full { operation, source } => Class::Full(operation, source.to_string()),
            StoreError::Invalid { operation, reason } => Class::Invalid(operation, reason),
            StoreError::Unsupported { operation } => Class::Unsupported(operation),
        };
        Self { done, failed, class }
    }
}

impl From<WireError> for CommitError {
    fn from(WireError { done, failed, class }: WireError) -> Self {
        let error = match class {
            Class::Conflict(key) => StoreError::Conflict { key },
            Class::AlreadyExists(key) => StoreError::AlreadyExists { key },
            Class::NotFound(key) => StoreError::NotFound { key },
            Class::NoLease(lease) => StoreError::NoLease { lease: LeaseId(lease) },
            Class::Unknown(operation, cause) => StoreError::Unknown { operation, source: Cause::text(cause) },
            Class::Unavailable(operation, cause) => {
                StoreError::Unavailable { operation, source: Cause::text(cause) }
            }
            Class::Corrupt(operation, cause) => StoreError::Corrupt { operation, source: Cause::text(cause) },
            Class::Full(operation, cause) => StoreError::Full { operation, source: Cause::text(cause) },
            Class::Invalid(operation, reason) => StoreError::Invalid { operation, reason },
            Class::Unsupported(operation) => StoreError::Unsupported { operation },
        };
        Self { done, failed, error }
    }
}

/// Serde for byte strings.
mod bytes {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Taker;
        impl Visitor<'_> for Taker {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_bytes(Taker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_bytes_are_an_error_and_never_panic() {
        let mut rng = crate::sim::Rng::new(42);
        for _ in 0..20_000 {
            let length = rng.below(60);
            let mut bytes: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
            if let Some(header) = bytes.get_mut(..4) {
                header.copy_from_slice(&(length as u32 - 4).to_le_bytes());
            }
            let _ = decode::<Call>(&bytes);
            let _ = decode::<Answer>(&bytes);
        }
        assert!(matches!(decode::<Call>(&[0xff; 8]), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn a_frame_is_read_only_when_it_is_complete() {
        let mut bytes = Vec::new();
        let value = Bytes(vec![9; 1000]);
        let step = WireStep::Put { key: Key::from_stored("/a"), value, lease: Some(3) };
        encode(&Call { id: 7, request: Request::Commit { steps: vec![step], expires_ms: 9 } }, &mut bytes)
            .unwrap();
        encode(&Call { id: 8, request: Request::Unwatch }, &mut bytes).unwrap();
        let (call, used) = decode::<Call>(&bytes).unwrap().unwrap();
        assert_eq!(call.id, 7);
        assert!((0..used).all(|end| decode::<Call>(&bytes[..end]).unwrap().is_none()));
        assert_eq!(decode::<Call>(&bytes[used..]).unwrap().unwrap().0.id, 8);
    }
}
