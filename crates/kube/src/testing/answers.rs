//! The answers of the test server: objects, and `Status` objects with the texts of a real server.

use hyper::body::Bytes;
use serde_json::{Value, json};

use super::kinds::Kind;

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
    pub(crate) retry_after: bool,
    pub(crate) warnings: Vec<String>,
}

// === impl Answer ===

impl Answer {
    pub(crate) fn object(object: &Value) -> Self {
        Self {
            code: 200,
            content_type: "application/json",
            body: object.to_string().into(),
            retry_after: false,
            warnings: Vec::new(),
        }
    }

    /// A path that the API does not have.
    pub(crate) fn no_page() -> Self {
        let body = Bytes::from_static(b"404 page not found\n");
        let content_type = "text/plain; charset=utf-8";
        Self { code: 404, content_type, body, retry_after: false, warnings: Vec::new() }
    }

    /// An object was removed.
    pub(crate) fn removed(kind: Kind, object: &Value) -> Self {
        let metadata = &object["metadata"];
        let details = json!({ "name": metadata["name"], "group": kind.group, "kind": kind.plural, "uid": metadata["uid"] });
        Self::object(
            &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details }),
        )
    }

    pub(crate) fn exists(kind: Kind, name: &str) -> Self {
        let resource = kind.resource();
        let details = json!({ "name": name, "group": kind.group, "kind": kind.plural });
        Self::status(409, "AlreadyExists", &format!("{resource} {name:?} already exists"), details)
    }

    /// A precondition or the resource version of a request does not hold.
    pub(crate) fn conflict(kind: Kind, name: &str, problem: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {problem}", kind.resource());
        Self::status(
            409,
            "Conflict",
            &message,
            json!({ "name": name, "group": kind.group, "kind": kind.plural }),
        )
    }

    pub(crate) fn invalid(kind: Kind, name: &str, field: &str, reason: &str, problem: &str) -> Self {
        let cause = json!({ "reason": reason, "message": problem, "field": field });
        let details = json!({ "name": name, "group": kind.group, "kind": kind.kind, "causes": [cause] });
        let message = format!("{} {name:?} is invalid: {field}: {problem}", kind.id());
        Self::status(422, "Invalid", &message, details)
    }

    /// The object of the event that a server sends whose etcd cannot serve streamed lists.
    pub(crate) fn no_watch_list() -> Value {
        let message = "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled";
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": "InternalError", "code": 500 })
    }

    /// A request that is larger than the server or its etcd accepts.
    pub(crate) fn too_big(code: u16) -> Self {
        match code {
            413 => Self::status(
                413,
                "RequestEntityTooLarge",
                "Request entity too large: limit is 3145728",
                Value::Null,
            ),
            _ => Self::status(
                500,
                "",
                "rpc error: code = ResourceExhausted desc = trying to send message larger than max",
                Value::Null,
            ),
        }
    }

    /// A resource that a group of the API does not have.
    pub(crate) fn no_resource() -> Self {
        Self::status(404, "NotFound", "the server could not find the requested resource", json!({}))
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

    /// Parameters of a list or watch that contradict each other.
    pub(crate) fn invalid_options(field: &str, problem: &str) -> Self {
        let cause = json!({ "reason": "FieldValueForbidden", "message": problem, "field": field });
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {problem}");
        let details = json!({ "group": "meta.k8s.io", "kind": "ListOptions", "causes": [cause] });
        Self::status(422, "Invalid", &message, details)
    }

    /// A revision that the server has not reached.
    pub(crate) fn too_large(revision: u64, newest: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {revision}, current: {newest}");
        let cause = json!({ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" });
        Self::status(504, "Timeout", &message, json!({ "causes": [cause], "retryAfterSeconds": 1 }))
    }

    /// An operation of a JSON patch that cannot be applied, such as a test that fails.
    pub(crate) fn refused_patch(operation: &Value) -> Self {
        let message = format!("the server rejected our request due to an error in our request: {operation}");
        Self::status(422, "Invalid", &message, json!({}))
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
    Kind::of_id(kind).map_or_else(|| format!("{}s", kind.to_lowercase()), |kind| kind.resource())
}
