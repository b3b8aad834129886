//! Interprets an API server's answers, from the HTTP status and the `Status` object in the body. No
//! other module does.

use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;

use crate::connection::Cause;
use crate::{KubeError, Said};

/// Limit of the text that is repeated from a server's answer.
const MAX_MESSAGE_CHARS: usize = 500;

/// Whether a failed request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// No, it would fail again.
    Never,
    /// Only if it changes nothing: it may have been executed.
    IfRead,
    /// Yes, it was certainly not executed.
    Always,
}

/// A failed exchange.
#[derive(Debug)]
pub struct Failure {
    pub error: KubeError,
    pub again: Again,
    /// The server asked for this pause.
    pub after: Option<Duration>,
    /// 410: the server has forgotten the requested revision.
    pub expired: bool,
    /// The HTTP status, or that of an event of a watch; none without an answer.
    pub code: Option<u16>,
    /// The `reason` of an API server's `Status`: `AlreadyExists`, `Conflict`, ...; none in answers
    /// of other servers and for paths that the API does not have.
    pub reason: Option<Box<str>>,
    /// The members that a 422 names.
    pub fields: Box<[String]>,
}

/// The API's error object (meta/v1 `Status`).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    kind: String,
    reason: Option<String>,
    message: Option<String>,
    pub(crate) code: Option<u16>,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    name: Option<String>,
    causes: Option<Vec<FieldCause>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FieldCause {
    field: Option<String>,
}

// === impl Failure ===

impl Failure {
    /// Parses an unsuccessful answer. `after` is its `Retry-After`.
    pub(crate) fn of_answer(operation: &str, code: StatusCode, after: Option<Duration>, body: &[u8]) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        if status.kind == "Status" {
            return Self::of_status(operation, code.as_u16(), after, &status);
        }
        // The answer is not an API server's, but that of a proxy or of an unrelated server.
        let text = String::from_utf8_lossy(body);
        let message = match printable(text.trim()) {
            empty if empty.is_empty() => format!("HTTP {code}"),
            words => format!("HTTP {code}: {words}"),
        };
        match code.as_u16() {
            401 | 403 | 408 | 429 | 500..=599 => Self::of_code(operation, code.as_u16(), after, message),
            _ => {
                let message = format!("this is no Kubernetes API server: {message}");
                Self { code: Some(code.as_u16()), ..Self::nonsense(operation, message) }
            }
        }
    }

    /// Interprets the object of a watch's `ERROR` event.
    pub fn of_event(operation: &str, object: &str) -> Self {
        match serde_json::from_str::<Status>(object) {
            Ok(status) => Self::of_status(operation, status.code.unwrap_or(500), None, &status),
            Err(error) => Self::nonsense(operation, format!("an event that makes no sense: {error}")),
        }
    }

    /// Parses a `Status` object, which also occurs as an event of a watch.
    pub(crate) fn of_status(operation: &str, code: u16, after: Option<Duration>, status: &Status) -> Self {
        let said = status.message.as_deref().or(status.reason.as_deref()).unwrap_or("no reason given");
        let mut failure = Self::of_code(operation, code, after, printable(said));
        failure.expired |= matches!(status.reason.as_deref(), Some("Expired" | "Gone"));
        // Where a group lacks a resource, the answer names no object.
        let names_object =
            status.details.iter().any(|details| details.name.as_deref().is_some_and(|name| !name.is_empty()));
        if code != 404 || names_object {
            failure.reason = Some(status.reason.as_deref().unwrap_or_default().into());
        }
        failure.fields = status.causes().filter_map(|cause| cause.field.clone()).collect();
        if status.names_another_uid(code) {
            failure.error =
                KubeError::Replaced(Said { operation: operation.to_owned(), message: printable(said) });
        }
        failure
    }

    fn of_code(operation: &str, code: u16, after: Option<Duration>, message: String) -> Self {
        let said = Said { operation: operation.to_owned(), message: message.clone() };
        let unavailable =
            || KubeError::Unavailable { operation: operation.to_owned(), source: message.into() };
        let (error, again) = match code {
            401 => (KubeError::Unauthorized(said), Again::Never),
            403 => (KubeError::Forbidden(said), Again::Never),
            404 => (KubeError::NotFound(said), Again::Never),
            409 => (KubeError::Conflict(said), Again::Never),
            // An overloaded server refuses before it executes anything (API priority and fairness).
            429 => (unavailable(), Again::Always),
            408 | 500..=599 => (unavailable(), Again::IfRead),
            _ => (KubeError::Invalid(said), Again::Never),
        };
        Self { code: Some(code), after, expired: code == 410, ..Self::unanswered(error, again) }
    }

    /// A failure without an answer.
    fn unanswered(error: KubeError, again: Again) -> Self {
        let (after, code, reason, fields) = (None, None, None, Box::default());
        Self { error, again, after, expired: false, code, reason, fields }
    }

    /// The request was not sent.
    pub(crate) fn refused(error: KubeError) -> Self {
        Self::unanswered(error, Again::Never)
    }

    /// The connection failed.
    pub(crate) fn broken(operation: &str, source: Cause, again: Again) -> Self {
        let error =
            KubeError::Unavailable { operation: operation.to_owned(), source: with_causes(&*source).into() };
        Self::unanswered(error, again)
    }

    /// An answer that does not fit the request.
    pub fn nonsense(operation: &str, message: String) -> Self {
        let error = KubeError::Invalid(Said { operation: operation.to_owned(), message });
        Self::unanswered(error, Again::Never)
    }
}

// === impl Status ===

impl Status {
    fn causes(&self) -> impl Iterator<Item = &FieldCause> {
        self.details.iter().flat_map(|details| details.causes.iter().flatten())
    }

    /// A precondition on the uid failed: 409 with this text, or 422 about the member (seen from
    /// servers of both kinds).
    fn names_another_uid(&self, code: u16) -> bool {
        let about_uid = || self.causes().any(|cause| cause.field.as_deref() == Some("metadata.uid"));
        match code {
            409 => self.message.as_deref().is_some_and(|message| message.contains("UID in precondition")),
            422 => about_uid(),
            _ => false,
        }
    }
}

/// Makes a foreign text safe for a log.
fn printable(text: &str) -> String {
    let shown = text.chars().take(MAX_MESSAGE_CHARS);
    shown.map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// An error with its causes in one line; hyper's alone says only "error shutting down connection".
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn failure(code: u16, body: &str) -> Failure {
        Failure::of_answer("patch pod shop/web-0", StatusCode::from_u16(code).unwrap(), None, body.as_bytes())
    }

    fn status(code: u16, reason: &str, message: &str) -> String {
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message,
            "details": { "name": "web-0", "kind": "pods" }, "code": code })
        .to_string()
    }

    #[test]
    fn the_status_decides_the_error_of_the_caller() {
        let error_of = |code, reason| failure(code, &status(code, reason, "words")).error;
        assert!(matches!(error_of(401, "Unauthorized"), KubeError::Unauthorized(_)));
        assert!(matches!(error_of(403, "Forbidden"), KubeError::Forbidden(_)));
        assert!(matches!(error_of(404, "NotFound"), KubeError::NotFound(_)));
        assert!(matches!(error_of(409, "Conflict"), KubeError::Conflict(_)));
        assert!(matches!(error_of(422, "Invalid"), KubeError::Invalid(_)));
        assert!(matches!(error_of(503, "ServiceUnavailable"), KubeError::Unavailable { .. }));
        assert!(failure(410, &status(410, "Expired", "too old resource version")).expired);
        assert_eq!(error_of(404, "NotFound").to_string(), "patch pod shop/web-0: words");
    }

    #[test]
    fn only_requests_that_were_certainly_not_executed_may_be_sent_again() {
        let again = |code| failure(code, &status(code, "", "words")).again;
        assert_eq!(again(429), Again::Always);
        assert_eq!([500, 502, 503, 504].map(again), [Again::IfRead; 4]);
        assert_eq!([400, 401, 403, 404, 409, 410, 422].map(again), [Again::Never; 7]);
    }

    #[test]
    fn another_uid_means_another_object() {
        let body =
            status(409, "Conflict", "Precondition failed: UID in precondition: a, UID in object meta: b");
        assert!(matches!(failure(409, &body).error, KubeError::Replaced(_)));
        let cause = json!({ "reason": "FieldValueInvalid", "field": "metadata.uid", "message": "field is immutable" });
        let body =
            json!({ "kind": "Status", "reason": "Invalid", "code": 422, "details": { "causes": [cause] } });
        assert!(matches!(failure(422, &body.to_string()).error, KubeError::Replaced(_)));
    }

    #[test]
    fn a_404_of_something_else_is_not_a_missing_object() {
        let error = failure(404, "404 page not found\n").error;
        assert!(
            matches!(&error, KubeError::Invalid(said) if said.message.contains("no Kubernetes API")),
            "{error}"
        );
        assert!(matches!(failure(502, "<html>").error, KubeError::Unavailable { .. }));
        assert!(matches!(failure(301, "").error, KubeError::Invalid(_)));
    }

    #[test]
    fn a_servers_text_cannot_control_the_terminal_nor_fill_it() {
        let body = status(404, "NotFound", &format!("\u{1b}[2J{}", "x".repeat(10_000)));
        let text = failure(404, &body).error.to_string();
        assert!(!text.chars().any(char::is_control) && text.len() < 1000, "{text}");
    }
}
