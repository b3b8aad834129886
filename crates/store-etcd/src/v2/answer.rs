//! Parses a member's answer on the v2 API: records with their indexes, refusals by number, and
//! failures.

use std::time::Duration;

use russet_model::{Key, Prefix};
use russet_store::{Record, Revision};
use serde::Deserialize;

use crate::failure::{Class, Failure, printable};
use crate::v2::Life;

/// How much of an unexpected answer an error repeats.
const QUOTED_MAX: usize = 200;

/// An answer to a request that the member understood.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The request was executed.
    Done(Done),
    /// A guard failed or a key does not exist: repeating the request would not change that.
    Refused(Refusal),
}

/// The result of an executed request.
#[derive(Debug, Deserialize)]
pub(crate) struct Done {
    pub(crate) action: String,
    pub(crate) node: Node,
    /// The store's index at that moment, from the header.
    #[serde(skip)]
    pub(crate) index: u64,
}

/// A key or a directory.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    #[serde(default)]
    pub(crate) key: String,
    pub(crate) value: Option<String>,
    #[serde(default)]
    pub(crate) dir: bool,
    #[serde(default)]
    nodes: Vec<Node>,
    #[serde(default)]
    pub(crate) modified_index: u64,
    /// The remaining seconds; `None` without a time to live.
    pub(crate) ttl: Option<i64>,
}

/// A refusal with etcd's error number (etcd Documentation/v2/errorcode.md).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Refusal {
    error_code: u32,
    #[serde(default)]
    message: String,
    #[serde(default)]
    cause: String,
    /// The store's index at that moment.
    #[serde(default)]
    pub(crate) index: u64,
}

/// Refusals that describe the state of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// 100: there is no such key.
    NotFound,
    /// 101: the guard failed.
    Compare,
    /// 105: the key exists already.
    Exists,
    /// 102: the key is a directory.
    Directory,
    /// 104: a component of the path is a key and not a directory.
    NoDirectory,
    /// 108: the directory is not empty.
    NotEmpty,
    /// 401: the index is older than the member's event history.
    Cleared,
}

// === impl Reply ===

impl Reply {
    /// Parses an answer.
    pub(crate) fn read(endpoint: &str, status: u16, index: u64, body: &[u8]) -> Result<Self, Failure> {
        let nonsense = |text: String| Failure::nonsense(endpoint, &text);
        if matches!(status, 200 | 201) {
            let done: Result<Done, _> = serde_json::from_slice(body);
            let done = done.map_err(|error| nonsense(format!("an answer that cannot be read: {error}")))?;
            return Ok(Self::Done(Done { index, ..done }));
        }
        let Ok(refusal) = serde_json::from_slice::<Refusal>(body) else {
            return Err(foreign(endpoint, status, body));
        };
        match refusal.why() {
            Some(_) => Ok(Self::Refused(refusal)),
            None => Err(refusal.failure(endpoint)),
        }
    }
}

/// Parses the answer to `/version`.
pub(crate) fn version(endpoint: &str, status: u16, _index: u64, body: &[u8]) -> Result<String, Failure> {
    #[derive(Deserialize)]
    struct Version {
        etcdcluster: String,
    }
    if status != 200 {
        return Err(foreign(endpoint, status, body));
    }
    let version: Result<Version, _> = serde_json::from_slice(body);
    let version = version.map_err(|error| Failure::nonsense(endpoint, &format!("no version: {error}")))?;
    Ok(version.etcdcluster)
}

/// The failure for an answer that no etcd with the v2 API gives.
fn foreign(endpoint: &str, status: u16, body: &[u8]) -> Failure {
    let text = String::from_utf8_lossy(body.get(..QUOTED_MAX).unwrap_or(body));
    let said = match status {
        404 => {
            "it does not serve the v2 API: etcd 3.4 and 3.5 need --enable-v2, 3.6 no longer has it".to_owned()
        }
        _ => format!("HTTP status {status}: {}", printable(text.trim())),
    };
    let class = match status {
        300..=499 => Class::Refused,
        _ => Class::Ambiguous,
    };
    Failure::new(class, endpoint, said, false)
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn why(&self) -> Option<Why> {
        Some(match self.error_code {
            100 => Why::NotFound,
            101 => Why::Compare,
            102 => Why::Directory,
            104 => Why::NoDirectory,
            105 => Why::Exists,
            108 => Why::NotEmpty,
            401 => Why::Cleared,
            _ => return None,
        })
    }

    fn failure(&self, endpoint: &str) -> Failure {
        let class = match self.error_code {
            // 110: user or permission; 107 and 2xx: an invalid request.
            107 | 110 | 200..=299 => Class::Refused,
            // Refused before anything was proposed.
            300 if self.cause.contains("no leader") || self.cause.contains("too many requests") => {
                Class::NotDone
            }
            _ => Class::Ambiguous,
        };
        Failure::new(class, endpoint, self.to_string(), false)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{} ({}): {}", self.message, self.error_code, self.cause);
        f.write_str(&printable(&text))
    }
}

// === impl Node ===

impl Node {
    /// The record, unless the node is a directory.
    pub(crate) fn record(self) -> Option<Record> {
        if self.dir {
            return None;
        }
        let value = self.value.unwrap_or_default().into_bytes();
        Some(Record { key: Key::from_stored(self.key), value, revision: Revision(self.modified_index) })
    }

    /// The remaining lifetime.
    pub(crate) fn life(&self) -> Life {
        match self.ttl {
            None => Life::Forever,
            Some(seconds) => Life::For(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
        }
    }

    /// All records at and below this node that the prefix covers, in key order, with their
    /// remaining lifetimes.
    pub(crate) fn records(self, prefix: &Prefix) -> Vec<(Record, Life)> {
        let mut records = Vec::new();
        let mut left = vec![self];
        while let Some(mut node) = left.pop() {
            left.append(&mut node.nodes);
            let life = node.life();
            let record = node.record().filter(|record| prefix.covers(&record.key));
            records.extend(record.map(|record| (record, life)));
        }
        records.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Effect;

    fn read(status: u16, body: &str) -> Result<Reply, Failure> {
        Reply::read("http://a:2379", status, 7, body.as_bytes())
    }

    #[test]
    fn a_listing_is_its_keys_in_order_without_directories() {
        let body = r#"{"action":"get","node":{"key":"/a","dir":true,"nodes":[
            {"key":"/a/c","value":"2","modifiedIndex":5,"createdIndex":5},
            {"key":"/a/b","dir":true,"nodes":[{"key":"/a/b/x","value":"","modifiedIndex":4}],"modifiedIndex":4},
            {"key":"/a/empty","dir":true,"modifiedIndex":6}],"modifiedIndex":4}}"#;
        let Reply::Done(done) = read(200, body).unwrap() else { panic!("found") };
        assert_eq!(done.index, 7);
        let records = done.node.records(&Prefix::from_stored("/a/"));
        let records: Vec<Record> = records.into_iter().map(|(record, _)| record).collect();
        let shown: Vec<_> =
            records.iter().map(|r| (r.key.as_str(), r.value.as_slice(), r.revision.0)).collect();
        assert_eq!(shown, [("/a/b/x", &b""[..], 4), ("/a/c", b"2", 5)]);
    }

    #[test]
    fn refusals_are_classified_by_their_number() {
        let text = |code: u32| format!(r#"{{"errorCode":{code},"message":"m","cause":"c","index":3}}"#);
        for (code, why) in
            [(100, Why::NotFound), (101, Why::Compare), (105, Why::Exists), (401, Why::Cleared)]
        {
            let Reply::Refused(refusal) = read(404, &text(code)).unwrap() else { panic!("refused") };
            assert_eq!((refusal.why(), refusal.index), (Some(why), 3));
        }
        assert_eq!(read(401, &text(110)).unwrap_err().class, Class::Refused);
        assert_eq!(read(400, &text(203)).unwrap_err().class, Class::Refused);
        assert_eq!(read(500, &text(300)).unwrap_err().class, Class::Ambiguous);
        let no_leader =
            r#"{"errorCode":300,"message":"Raft Internal Error","cause":"etcdserver: no leader"}"#;
        assert_eq!(read(500, no_leader).unwrap_err().class, Class::NotDone);
    }

    #[test]
    fn a_server_without_the_v2_api_is_not_treated_as_empty() {
        let failure = read(404, "404 page not found\n").unwrap_err();
        assert_eq!(failure.class, Class::Refused);
        let error = failure.into_store_error("list".to_owned(), Effect::Read).to_string();
        assert!(error.contains("--enable-v2"), "{error}");
    }

    #[test]
    fn the_version_is_that_of_the_cluster() {
        let read = |body: &str| version("http://a:2379", 200, 0, body.as_bytes());
        assert_eq!(read(r#"{"etcdserver":"3.4.23","etcdcluster":"2.3.0"}"#).unwrap(), "2.3.0");
        assert!(read("{}").is_err() && read("").is_err());
        assert!(version("http://a:2379", 500, 0, b"").is_err());
    }

    #[test]
    fn an_invalid_answer_is_an_error_and_never_a_panic() {
        for body in ["", "[]", "{}", r#"{"node":7}"#, "\u{1b}[2J", &"[".repeat(100_000)] {
            assert!(read(200, body).is_err(), "{body:.20}");
            let failure = read(500, body).unwrap_err();
            assert!(!failure.error.to_string().chars().any(char::is_control));
        }
    }
}
