//! Classifies a failed exchange with a member: whether the request was certainly not executed,
//! whether another member may succeed, and which error the caller gets. This is decided here only,
//! from the gRPC status alone.

use std::error::Error;
use std::path::Path;

use russet_store::{Cause, LeaseId, StoreError};
use tonic::{Code, ConnectError, Status};

/// An error from a member or from the connection to it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{endpoint}: {said}")]
pub struct EtcdError {
    endpoint: String,
    said: String,
}

/// What a failure means for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Certainly not executed; a later attempt or another member may succeed.
    NotDone,
    /// It is unknown whether the request was executed.
    Ambiguous,
    /// Not executed: the token, or its absence, was refused.
    Token,
    /// Not executed: the revision was compacted.
    Compacted,
    /// Not executed: there is no such lease.
    NoLease,
    /// Not executed: there is such a lease already.
    LeaseExists,
    /// Not executed: the server's space quota is used up.
    Full,
    /// The cluster found its own data corrupt.
    Corrupt,
    /// Not executed, and a repetition would be refused, too.
    Refused,
}

/// One failed exchange.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) class: Class,
    pub(crate) error: EtcdError,
    /// The connection itself is suspect and must not be used again.
    pub(crate) transport: bool,
    /// An earlier attempt of the same call may have taken effect.
    pub(crate) after_unknown: bool,
    /// The member refused the connection, or it cannot be attempted: further attempts will fail in
    /// the same way until something changes there.
    pub(crate) definite: bool,
}

/// What a call does to the store. It decides whether the call may be repeated and how it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes nothing: may be repeated.
    Read,
    /// May be repeated: executing it twice has the same effect as once.
    Idempotent,
    /// Must not be sent again once it may have arrived.
    Once,
}

// === impl EtcdError ===

impl EtcdError {
    /// The endpoint and its message.
    pub(crate) fn parts(&self) -> (&str, &str) {
        (&self.endpoint, &self.said)
    }
}

// === impl Class ===

impl Class {
    /// Whether the same request may succeed at once on another member, or later here. An ambiguous
    /// failure allows that only if a repetition does no harm.
    pub(crate) fn worth_another_try(self, effect: Effect) -> bool {
        match self {
            Self::NotDone | Self::Token => true,
            Self::Ambiguous => effect != Effect::Once,
            _ => false,
        }
    }

    /// Classifies a status from a member. The texts are etcd's (api/v3rpc/rpctypes/error.go),
    /// because its codes are too coarse.
    fn of_answer(code: Code, message: &str) -> Self {
        let says = |text: &str| message.contains(text);
        match code {
            Code::Unauthenticated => Self::Token,
            // These checks are made by interceptors before the handler, so nothing was proposed.
            Code::Unavailable if says("no leader") || says("not capable") || says("for learner") => {
                Self::NotDone
            }
            Code::ResourceExhausted if says("database space exceeded") => Self::Full,
            Code::ResourceExhausted if says("too many requests") => Self::NotDone,
            // Raft refuses before it appends the entry.
            Code::Unknown if says("proposal dropped") => Self::NotDone,
            Code::Unknown | Code::InvalidArgument
                if says("revision of auth store is old")
                    || says("revision in header is old")
                    || says("user name is empty") =>
            {
                Self::Token
            }
            Code::OutOfRange if says("has been compacted") => Self::Compacted,
            Code::NotFound if says("lease not found") => Self::NoLease,
            Code::FailedPrecondition if says("lease already exists") => Self::LeaseExists,
            Code::DataLoss => Self::Corrupt,
            Code::InvalidArgument
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::NotFound
            | Code::ResourceExhausted
            | Code::Unimplemented => Self::Refused,
            _ => Self::Ambiguous,
        }
    }
}

// === impl Failure ===

impl Failure {
    /// Classifies the status of a failed call to `endpoint`.
    pub(crate) fn of(endpoint: &str, status: &Status) -> Self {
        let unready = status.message().starts_with("Service was not ready");
        let transport = unready || status.source().is_some();
        let class = match transport {
            false => Class::of_answer(status.code(), status.message()),
            true if unready || never_connected(status) => Class::NotDone,
            true => Class::Ambiguous,
        };
        let definite = transport && is_tls(status.source());
        Self { definite, ..Self::new(class, endpoint, sentence(status), transport) }
    }

    /// There was no answer in time.
    pub(crate) fn silence(endpoint: &str, waited: std::time::Duration) -> Self {
        Self::new(Class::Ambiguous, endpoint, format!("no answer within {waited:?}"), true)
    }

    /// The connection could not be opened.
    pub(crate) fn unreachable(endpoint: &str, reason: impl Into<String>) -> Self {
        Self::new(Class::NotDone, endpoint, reason.into(), true)
    }

    /// The connection cannot be opened for a reason that waiting does not remove: refused, unknown
    /// name, certificates that do not match.
    pub(crate) fn no_way(endpoint: &str, reason: impl Into<String>) -> Self {
        Self { definite: true, ..Self::unreachable(endpoint, reason) }
    }

    /// The answer does not match the request.
    pub(crate) fn nonsense(endpoint: &str, reason: &str) -> Self {
        Self::new(Class::Corrupt, endpoint, reason.to_owned(), false)
    }

    pub(crate) fn new(class: Class, endpoint: &str, said: String, transport: bool) -> Self {
        let error = EtcdError { endpoint: endpoint.to_owned(), said };
        Self { class, error, transport, after_unknown: false, definite: false }
    }

    /// After a TLS alert from the server: adds which client certificate was presented. With TLS 1.3
    /// the alert comes after the handshake.
    pub(crate) fn shown(mut self, certificate: Option<&Path>) -> Self {
        if self.error.said.contains("received fatal alert") && !self.error.said.contains("client certificate")
        {
            self.error.said.push_str(&match certificate {
                Some(path) => format!(" (the server was shown client certificate {})", path.display()),
                None => " (the server was shown no client certificate)".to_owned(),
            });
        }
        self
    }

    /// The error for the caller of the store.
    pub(crate) fn into_store_error(self, operation: String, effect: Effect) -> StoreError {
        let unknown = effect != Effect::Read && (self.after_unknown || self.class == Class::Ambiguous);
        let reason = self.error.to_string();
        let source = Cause::new(self.error);
        match self.class {
            Class::Full => StoreError::Full { operation, source },
            Class::Corrupt if effect == Effect::Read => StoreError::Corrupt { operation, source },
            Class::Corrupt => StoreError::Unknown { operation, source },
            _ if unknown => StoreError::Unknown { operation, source },
            Class::NotDone | Class::Ambiguous | Class::Compacted => {
                StoreError::Unavailable { operation, source }
            }
            Class::Token | Class::NoLease | Class::LeaseExists | Class::Refused => {
                StoreError::Invalid { operation, reason }
            }
        }
    }

    /// The same for a call about a lease.
    pub(crate) fn told_of_lease(self, lease: LeaseId, operation: String, effect: Effect) -> StoreError {
        match self.class {
            Class::NoLease => StoreError::NoLease { lease },
            _ => self.into_store_error(operation, effect),
        }
    }
}

/// Whether there was no connection for the request.
fn never_connected(status: &Status) -> bool {
    causes(status).any(|cause| cause.downcast_ref::<ConnectError>().is_some())
}

/// Whether TLS failed: waiting does not change certificates.
pub(crate) fn is_tls(error: Option<&(dyn Error + 'static)>) -> bool {
    chain(error).any(|cause| {
        // The error inside an `io::Error` is not among its sources.
        let carried = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause.is::<rustls::Error>() || carried.is_some_and(|carried| carried.is::<rustls::Error>())
    })
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    chain(status.source())
}

/// An error and its sources.
pub(crate) fn chain<'a>(
    mut next: Option<&'a (dyn Error + 'static)>,
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// An error and its sources in one line; tonic's own message is only "transport error".
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut parts: Vec<String> = chain(Some(error)).map(ToString::to_string).collect();
    parts.dedup();
    parts.join(": ")
}

/// The status and its sources in one line, without control characters.
fn sentence(status: &Status) -> String {
    let mut parts = vec![match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    }];
    for cause in causes(status).map(ToString::to_string) {
        if !parts.iter().any(|part| part.contains(&cause)) {
            parts.push(cause);
        }
    }
    printable(&parts.join(": "))
}

/// Replaces control characters in text from outside, for logs.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(code: Code, message: &str) -> Class {
        Failure::of("http://a:2379", &Status::new(code, message)).class
    }

    #[test]
    fn only_requests_that_were_certainly_not_executed_are_repeated() {
        for (code, message) in [
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::Cancelled, "context canceled"),
            (Code::Internal, "anything"),
            (Code::Unknown, "anything"),
        ] {
            let class = class(code, message);
            assert!(!class.worth_another_try(Effect::Once), "{message}");
            assert!(class.worth_another_try(Effect::Read), "{message}");
        }
        for (code, message) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::Unknown, "raft proposal dropped"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
        ] {
            assert!(class(code, message).worth_another_try(Effect::Once), "{message}");
        }
    }

    #[test]
    fn the_class_determines_the_error_for_the_caller() {
        let error = |code, message, effect| {
            Failure::of("http://a:2379", &Status::new(code, message))
                .into_store_error("commit".to_owned(), effect)
        };
        let timed_out = "etcdserver: request timed out";
        assert!(matches!(error(Code::Unavailable, timed_out, Effect::Once), StoreError::Unknown { .. }));
        assert!(matches!(error(Code::Unavailable, timed_out, Effect::Read), StoreError::Unavailable { .. }));
        let full = error(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Effect::Once);
        assert!(matches!(full, StoreError::Full { .. }));
        let denied = error(Code::PermissionDenied, "etcdserver: permission denied", Effect::Once);
        assert_eq!(denied.to_string(), "commit: http://a:2379: etcdserver: permission denied");
        assert!(matches!(denied, StoreError::Invalid { .. }));
        assert_eq!(
            class(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            Class::Compacted
        );
        assert_eq!(class(Code::NotFound, "etcdserver: requested lease not found"), Class::NoLease);
    }

    #[test]
    fn a_repeated_call_stays_unknown_after_an_unknown_attempt() {
        let mut failure = Failure::unreachable("http://a:2379", "connection refused");
        failure.after_unknown = true;
        assert!(matches!(
            failure.clone().into_store_error("grant".to_owned(), Effect::Idempotent),
            StoreError::Unknown { .. }
        ));
        assert!(matches!(
            failure.into_store_error("get".to_owned(), Effect::Read),
            StoreError::Unavailable { .. }
        ));
    }

    #[test]
    fn control_characters_in_a_servers_message_are_replaced() {
        let failure = Failure::of("http://a:2379", &Status::new(Code::Unknown, "\u{1b}[2Jgone\n"));
        assert!(!failure.error.to_string().chars().any(char::is_control));
    }
}
