//! The errors of calls to an API server, classified by what callers must do.

/// The text of a server about a request, or our own, on one line.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct Said {
    /// The operation with its subject: `get pod shop/web-0`.
    pub operation: String,
    /// The text, without control characters.
    pub message: String,
}

/// Why a request was not executed.
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// 404: there is no such object.
    #[error("{0}")]
    NotFound(Said),
    /// 401: the credentials are missing, wrong or expired.
    #[error("{0}")]
    Unauthorized(Said),
    /// 403: the credentials are valid, but lack this permission.
    #[error("{0}")]
    Forbidden(Said),
    /// 409: another client changed the object since the revision that the patch names. Not
    /// executed; read again.
    #[error("{0}")]
    Conflict(Said),
    /// The object with the patch's uid is gone, and another of the same name exists. Not executed.
    #[error("{0}")]
    Replaced(Said),
    /// The server cannot be reached, did not answer in time, or is overloaded. A patch may have
    /// taken effect nevertheless.
    #[error("{operation}: API server unavailable: {source}")]
    Unavailable { operation: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The request can never succeed, or the answer is invalid.
    #[error("{0}")]
    Invalid(Said),
}

// === impl KubeError ===

impl KubeError {
    /// Whether the object does not exist: it never did, is gone, or was replaced by another of the
    /// same name.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::NotFound(_) | Self::Replaced(_))
    }

    /// Whether the same request, unchanged, may succeed later.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// Turns "there is no such object" into `None`, for callers to whom that is an answer.
pub fn absent_is_none<T>(answer: Result<T, KubeError>) -> Result<Option<T>, KubeError> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(KubeError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Said {
        Said { operation: "get pod shop/web-0".to_owned(), message: "pods \"web-0\" not found".to_owned() }
    }

    #[test]
    fn an_error_names_request_and_answer() {
        assert_eq!(KubeError::NotFound(said()).to_string(), "get pod shop/web-0: pods \"web-0\" not found");
        let source = "connection refused".into();
        let error = KubeError::Unavailable { operation: "get node n1".to_owned(), source };
        assert_eq!(error.to_string(), "get node n1: API server unavailable: connection refused");
        assert!(error.retryable() && !KubeError::Conflict(said()).retryable());
    }

    #[test]
    fn only_a_missing_object_is_none() {
        assert!(absent_is_none::<()>(Err(KubeError::NotFound(said()))).unwrap().is_none());
        assert!(absent_is_none::<()>(Err(KubeError::Forbidden(said()))).is_err());
        assert_eq!(absent_is_none(Ok(1)).unwrap(), Some(1));
        assert!(KubeError::Replaced(said()).is_absent());
    }
}
