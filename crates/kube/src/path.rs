//! Paths of the REST API. Names come from runtimes and files; a name must never lead to another
//! object.

use std::fmt::{self, Write};

use crate::{KubeError, Said};

/// Path and query of a request.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    text: String,
    /// An invalid name.
    wrong: Option<String>,
}

// === impl Path ===

impl Path {
    pub(crate) fn node(name: &str) -> Self {
        Self::of("/api/v1").then("nodes", name)
    }

    pub(crate) fn namespace(name: &str) -> Self {
        Self::of("/api/v1").then("namespaces", name)
    }

    pub(crate) fn pod(namespace: &str, name: &str) -> Self {
        Self::namespace(namespace).then("pods", name)
    }

    /// Any path.
    pub(crate) fn of_segments(segments: &[String]) -> Self {
        segments.iter().fold(Self::of(""), |path, segment| path.segment(segment))
    }

    pub(crate) fn with_query(mut self, query: &[(&str, &str)]) -> Self {
        let path = &mut self;
        for (index, (key, value)) in query.iter().enumerate() {
            path.text.push(if index == 0 { '?' } else { '&' });
            path.text.push_str(key);
            path.text.push('=');
            path.escaped(value);
        }
        self
    }

    /// The object's `status` subresource.
    pub(crate) fn status(mut self) -> Self {
        self.text.push_str("/status");
        self
    }

    /// Refuses invalid names.
    pub(crate) fn checked(self, operation: &str) -> Result<Self, KubeError> {
        match self.wrong {
            None => Ok(self),
            Some(name) => {
                let message = format!("{name:?} is no name of an object");
                Err(KubeError::Invalid(Said { operation: operation.escape_debug().to_string(), message }))
            }
        }
    }

    fn of(text: &str) -> Self {
        Self { text: text.to_owned(), wrong: None }
    }

    fn then(mut self, plural: &str, name: &str) -> Self {
        let _ = write!(self.text, "/{plural}");
        self.segment(name)
    }

    fn segment(mut self, name: &str) -> Self {
        // The rules of path segments (ValidatePathSegmentName): everything except these.
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '%']) {
            self.wrong = Some(name.to_owned());
        }
        self.text.push('/');
        self.escaped(name);
        self
    }

    fn escaped(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    self.text.push(byte.into())
                }
                other => {
                    let _ = write!(self.text, "%{other:02X}");
                }
            }
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_equal_those_of_the_api() {
        assert_eq!(
            Path::pod("shop", "web-0").status().to_string(),
            "/api/v1/namespaces/shop/pods/web-0/status"
        );
        assert_eq!(Path::node("n1.example").to_string(), "/api/v1/nodes/n1.example");
        let path = Path::of("/api/v1/nodes").with_query(&[("limit", "500"), ("continue", "a+b/=")]);
        assert_eq!(path.to_string(), "/api/v1/nodes?limit=500&continue=a%2Bb%2F%3D");
    }

    #[test]
    fn no_name_leads_elsewhere() {
        for name in ["", ".", "..", "a/b", "../../secrets/x", "a%2fb"] {
            assert!(Path::pod("shop", name).checked("get pod").is_err(), "{name:?}");
            assert!(Path::pod(name, "web-0").status().checked("get pod").is_err(), "{name:?}");
        }
        assert_eq!(Path::node("a b?c=d#\r\n").to_string(), "/api/v1/nodes/a%20b%3Fc%3Dd%23%0D%0A");
        assert!(Path::node("n1").checked("get node").is_ok());
    }
}
