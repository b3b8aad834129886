//! Classifies the API server's failures for the store's callers (kubernetes.md section 1.11).

use russet_kube::{Again, Failure, KubeError};
use russet_model::Key;
use russet_store::{Cause, StoreError};

/// Whether a request that failed may have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Write,
}

/// What an answer says about the object of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is no such object.
    NotFound,
    /// An object of this name exists.
    Exists,
    /// Another revision or another object of this name is stored.
    Conflict,
    /// The server does not have such a resource at all.
    NoResource,
    /// Something else.
    Other,
}

/// What to do about resource definitions that are missing.
pub(crate) const MISSING: &str = "install the resource definitions of packaging/kubernetes/crds";
/// What to do about refused credentials.
const UNAUTHORIZED: &str =
    "the credentials are expired or another cluster's: check the kubeconfig or the service account's token";

/// The verdict of a failure.
pub(crate) fn verdict(failure: &Failure) -> Verdict {
    let names = |field: &str| failure.fields.iter().any(|named| named == field);
    match (failure.code, failure.reason.as_deref()) {
        (Some(404), Some("NotFound")) => Verdict::NotFound,
        (Some(404), _) => Verdict::NoResource,
        (Some(409), Some("AlreadyExists")) => Verdict::Exists,
        (Some(409), _) => Verdict::Conflict,
        (Some(422), _) if names("metadata.uid") => Verdict::NotFound,
        (Some(422), _) if names("metadata.resourceVersion") => Verdict::Conflict,
        _ => Verdict::Other,
    }
}

/// The store's error for a failure.
pub(crate) fn error(failure: Failure, key: &Key, effect: Effect) -> StoreError {
    let key = || key.clone();
    match verdict(&failure) {
        Verdict::NotFound => StoreError::NotFound { key: key() },
        Verdict::Exists => StoreError::AlreadyExists { key: key() },
        Verdict::Conflict => StoreError::Conflict { key: key() },
        Verdict::NoResource | Verdict::Other => general(failure, effect),
    }
}

/// The store's error for a failure that says nothing about a single object.
pub(crate) fn general(failure: Failure, effect: Effect) -> StoreError {
    let missing = verdict(&failure) == Verdict::NoResource;
    let (operation, reason) = said(&failure.error);
    let source = Cause::text(reason.clone());
    let is_too_large =
        reason.contains("send message larger than max") || reason.contains("request is too large");
    match failure.code {
        _ if missing => StoreError::Unsupported {
            operation: format!("{operation}: the cluster does not serve this resource ({reason}): {MISSING}"),
        },
        Some(413) => StoreError::Full { operation, source },
        Some(500) if is_too_large => StoreError::Full { operation, source },
        Some(403) => StoreError::Unsupported {
            operation: format!("{operation}: forbidden: {reason}: grant this right to the account"),
        },
        Some(422) if reason.contains("denied request") => {
            StoreError::Unsupported { operation: format!("{operation}: forbidden: {reason}") }
        }
        Some(401) => {
            let source = Cause::text(format!("{reason}: {UNAUTHORIZED}"));
            StoreError::Unavailable { operation, source }
        }
        _ if matches!(failure.error, KubeError::Unavailable { .. }) => {
            match effect == Effect::Write && failure.again != Again::Always {
                true => StoreError::Unknown { operation, source },
                false => StoreError::Unavailable { operation, source },
            }
        }
        _ => StoreError::Invalid { operation, reason },
    }
}

/// The operation of an error and its text.
fn said(error: &KubeError) -> (String, String) {
    match error {
        KubeError::Unavailable { operation, source } => (operation.clone(), source.to_string()),
        KubeError::NotFound(said)
        | KubeError::Unauthorized(said)
        | KubeError::Forbidden(said)
        | KubeError::Conflict(said)
        | KubeError::Replaced(said)
        | KubeError::Invalid(said) => (said.operation.clone(), said.message.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn failure(code: u16, reason: &str, message: &str, field: Option<&str>) -> Failure {
        let causes: Vec<_> = field.map(|field| json!({ "field": field })).into_iter().collect();
        let status = json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
            "details": { "name": "10-1-0-0-26", "causes": causes } });
        Failure::of_event("update ipamblocks/10-1-0-0-26", &status.to_string())
    }

    fn class(code: u16, reason: &str, message: &str, field: Option<&str>) -> StoreError {
        error(failure(code, reason, message, field), &Key::ipam_config(), Effect::Write)
    }

    #[test]
    fn the_table_of_the_specification_holds() {
        // kubernetes.md section 1.11, K77
        assert!(matches!(class(409, "AlreadyExists", "", None), StoreError::AlreadyExists { .. }));
        assert!(matches!(class(409, "Conflict", "", None), StoreError::Conflict { .. }));
        assert!(matches!(class(404, "NotFound", "", None), StoreError::NotFound { .. }));
        assert!(matches!(class(422, "Invalid", "", Some("metadata.uid")), StoreError::NotFound { .. }));
        let version = Some("metadata.resourceVersion");
        assert!(matches!(class(422, "Invalid", "", version), StoreError::Conflict { .. }));
        assert!(matches!(class(422, "Invalid", "x", Some("spec.cidr")), StoreError::Invalid { .. }));
        assert!(matches!(class(429, "TooManyRequests", "", None), StoreError::Unavailable { .. }));
        for code in [500, 502, 503, 504] {
            assert!(matches!(class(code, "", "", None), StoreError::Unknown { .. }), "{code}");
            let read = error(failure(code, "", "", None), &Key::ipam_config(), Effect::Read);
            assert!(matches!(read, StoreError::Unavailable { .. }), "{code}");
        }
        assert!(matches!(class(413, "RequestEntityTooLarge", "", None), StoreError::Full { .. }));
        let large = "rpc error: trying to send message larger than max";
        assert!(matches!(class(500, "", large, None), StoreError::Full { .. }));
        assert!(matches!(class(401, "Unauthorized", "", None), StoreError::Unavailable { .. }));
        let forbidden = class(403, "Forbidden", "cannot update resource \"ipamblocks\"", None);
        assert!(
            matches!(&forbidden, StoreError::Unsupported { operation } if operation.contains("cannot update resource")),
            "{forbidden}"
        );
    }

    #[test]
    fn a_missing_resource_is_not_a_missing_object() {
        // kubernetes.md K17 and K78
        let of_group = Failure { reason: None, ..failure(404, "", "404 page not found", None) };
        let text = r#"{"kind":"Status","code":404,"reason":"NotFound","message":"the server could not find the requested resource","details":{}}"#;
        for failure in [of_group, Failure::of_event("get", text)] {
            let error = error(failure, &Key::ipam_config(), Effect::Read);
            assert!(
                matches!(&error, StoreError::Unsupported { operation } if operation.contains("does not serve")),
                "{error}"
            );
        }
    }
}
