//! The answers of the test server: objects, and `Status` objects with the texts of a real server.

use hyper::body::Bytes;
use serde_json::{Value, json};

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
    pub(crate) retry_after: bool,
}

// === impl Answer ===

impl Answer {
    pub(crate) fn object(object: &Value) -> Self {
        Self {
            code: 200,
            content_type: "application/json",
            body: object.to_string().into(),
            retry_after: false,
        }
    }

    /// A path that the API does not have.
    pub(crate) fn no_page() -> Self {
        let body = Bytes::from_static(b"404 page not found\n");
        Self { code: 404, content_type: "text/plain; charset=utf-8", body, retry_after: false }
    }

    pub(crate) fn not_found(kind: &str, name: &str) -> Self {
        let plural = plural(kind);
        let details = json!({ "name": name, "kind": plural });
        Self::status(404, "NotFound", &format!("{plural} {name:?} not found"), details)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::status(401, "Unauthorized", "Unauthorized", Value::Null)
    }

    pub(crate) fn forbidden(verb: &str, resource: &str, namespace: &str, name: &str) -> Self {
        let scope = match namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let plural = resource.split('/').next().unwrap_or(resource);
        let message = format!(
            "{plural} {name:?} is forbidden: User \"system:serviceaccount:kube-system:calico-cni-plugin\" cannot {verb} resource \
             {resource:?} in API group \"\" {scope}"
        );
        Self::status(403, "Forbidden", &message, json!({ "name": name, "kind": plural }))
    }

    pub(crate) fn modified(kind: &str, name: &str) -> Self {
        let plural = plural(kind);
        let message = format!(
            "Operation cannot be fulfilled on {plural} {name:?}: the object has been modified; please apply your changes to the latest \
             version and try again"
        );
        Self::status(409, "Conflict", &message, json!({ "name": name, "kind": plural }))
    }

    pub(crate) fn immutable_uid(kind: &str, name: &str, uid: &str) -> Self {
        let problem = format!("Invalid value: {uid:?}: field is immutable");
        let cause = json!({ "reason": "FieldValueInvalid", "message": problem, "field": "metadata.uid" });
        let message = format!("{kind} {name:?} is invalid: metadata.uid: {problem}");
        Self::status(422, "Invalid", &message, json!({ "name": name, "kind": kind, "causes": [cause] }))
    }

    pub(crate) fn expired(message: &str) -> Self {
        Self::status(410, "Expired", message, Value::Null)
    }

    pub(crate) fn bad_request(message: &str) -> Self {
        Self::status(400, "BadRequest", message, Value::Null)
    }

    pub(crate) fn unsupported_media_type() -> Self {
        let message = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
                       application/merge-patch+json, application/strategic-merge-patch+json";
        Self::status(415, "UnsupportedMediaType", message, Value::Null)
    }

    /// A failure that the test requested.
    pub(crate) fn failure(code: u16) -> Self {
        let reason = match code {
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        let mut answer = Self::status(code, reason, "the test wants this to fail", Value::Null);
        answer.retry_after = code == 429;
        answer
    }

    fn status(code: u16, reason: &str, message: &str, details: Value) -> Self {
        let mut status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code });
        if !details.is_null() {
            status["details"] = details;
        }
        Self { code, ..Self::object(&status) }
    }
}

fn plural(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}
