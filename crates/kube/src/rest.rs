//! Requests to any resource of the API, for callers that know the objects themselves: the datastore
//! in custom resources (kubernetes.md section 1.2).

use std::time::{Duration, SystemTime};

use hyper::Method;
use hyper::body::Bytes;

use crate::answer::Failure;
use crate::client::{Ask, Client, MAX_OBJECT_BYTES, STRATEGIC_MERGE};
use crate::lines::Lines;
use crate::path::Path;

const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
/// How long a watch may last beyond the lifetime that it asked for.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// GET; repeated until the deadline.
    Read,
    /// GET; not repeated, for callers with pauses of their own.
    ReadOnce,
    /// POST of a new object.
    Create,
    /// PUT of a whole object.
    Replace,
    /// DELETE.
    Delete,
    /// PATCH of some members; lists with a key are merged. Core kinds only.
    StrategicMerge,
    /// PATCH of some members; lists are replaced (RFC 7396).
    Merge,
    /// PATCH by a list of operations, of which one may be a test (RFC 6902).
    JsonPatch,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The operation with its subject, for messages: `get ipamblocks/10-1-0-0-26`.
    pub operation: String,
    pub verb: Verb,
    /// The path's segments after the server's address: `apis`, `crd.projectcalico.org`, `v1`, ...
    pub segments: Vec<String>,
    /// The query.
    pub query: Vec<(&'static str, String)>,
    /// JSON, or nothing.
    pub body: Vec<u8>,
    /// Limit of the whole call, repetitions included.
    pub deadline: Duration,
    /// Limit of the answer's body.
    pub limit_bytes: usize,
}

/// A successful answer.
#[derive(Debug)]
pub struct Answer {
    /// JSON.
    pub body: Bytes,
    /// The `Warning` headers, such as those about members that the server dropped.
    pub warnings: Vec<String>,
    /// The `Date` header: the server's clock in whole seconds, rounded down.
    pub date: Option<SystemTime>,
}

// === impl Request ===

impl Request {
    fn ask(&self) -> Result<Ask, Failure> {
        let query: Vec<(&str, &str)> = self.query.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let path = Path::of_segments(&self.segments).checked(&self.operation);
        let path = path.map_err(Failure::refused)?.with_query(&query);
        let (method, content_type) = match self.verb {
            Verb::Read | Verb::ReadOnce => (Method::GET, None),
            Verb::Create => (Method::POST, Some("application/json")),
            Verb::Replace => (Method::PUT, Some("application/json")),
            Verb::Delete => (Method::DELETE, Some("application/json")),
            Verb::StrategicMerge => (Method::PATCH, Some(STRATEGIC_MERGE)),
            Verb::Merge => (Method::PATCH, Some(MERGE)),
            Verb::JsonPatch => (Method::PATCH, Some(JSON_PATCH)),
        };
        let body = content_type.map(|content_type| (content_type, Bytes::from(self.body.clone())));
        let (operation, limit_bytes) = (self.operation.clone(), self.limit_bytes);
        let (deadline, is_repeated) = (Some(self.deadline), self.verb != Verb::ReadOnce);
        Ok(Ask { operation, method, path, body, limit_bytes, deadline, is_repeated })
    }
}

// === impl Client ===

impl Client {
    /// Sends a request. Reads are repeated until the deadline, writes only if they were certainly
    /// not executed.
    pub async fn request(&self, request: &Request) -> Result<Answer, Failure> {
        self.answer(&request.ask()?).await
    }

    /// Opens a watch; `lifetime` is the one that its query asks for. It ends after `silence`, which is
    /// [`SILENCE`](crate::SILENCE) but in tests.
    pub async fn follow(
        &self,
        request: &Request,
        lifetime: Duration,
        silence: Duration,
    ) -> Result<Lines, Failure> {
        let mut ask = request.ask()?;
        ask.limit_bytes = MAX_OBJECT_BYTES;
        let body = self.stream(&ask).await?;
        Ok(Lines::new(ask.operation, body, lifetime + WATCH_GRACE, silence))
    }
}
