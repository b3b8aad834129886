//! The error object of CNI: what a plugin prints on stdout when it fails.

use std::fmt::Display;

use serde_json::{Map, Value};

use crate::Version;

/// An error with a code that runtimes understand (cni-runtime.md section 1.9).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { "; " })]
pub struct CniError {
    /// The version of the configuration; empty if the sender omitted it, as Go does.
    pub cni_version: String,
    /// One of [`code`], or a plugin's own from 100 on.
    pub code: u32,
    /// What failed, in one line.
    pub msg: String,
    /// Details; may be empty.
    pub details: String,
}

/// The codes of the specification, and the two that only Go's code has.
pub mod code {
    /// The configuration's version is not supported, or lacks the verb.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field is not supported; the message holds its key and value.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// No such container; the runtime need not clean up.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// An environment variable is missing or wrong; the message names it.
    pub const ENVIRONMENT: u32 = 4;
    /// An input or output operation failed.
    pub const IO: u32 = 5;
    /// The input is not JSON of the required form.
    pub const DECODING: u32 = 6;
    /// The network configuration is wrong.
    pub const INVALID_CONFIG: u32 = 7;
    /// The network namespace cannot be used (in no specification, but Go sends it).
    pub const INVALID_NETNS: u32 = 8;
    /// A temporary condition: the same request may succeed later.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: ADD cannot be served.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: ADD cannot be served, and running pods may have lost their network.
    pub const LIMITED_CONNECTIVITY: u32 = 51;
    /// Any other internal error.
    pub const INTERNAL: u32 = 999;
}

/// Constructors, one for each code: `(what failed, details)`.
macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident,)+) => {
        impl CniError {
            $($(#[$doc])*
            pub fn $name(msg: impl Into<String>, details: impl ToString) -> Self {
                Self::new(code::$code, msg, details)
            })+
        }
    };
}

constructors! {
    /// Code 1.
    incompatible_version => INCOMPATIBLE_VERSION,
    /// Code 2.
    unsupported_field => UNSUPPORTED_FIELD,
    /// Code 3.
    unknown_container => UNKNOWN_CONTAINER,
    /// Code 4.
    environment => ENVIRONMENT,
    /// Code 5.
    io => IO,
    /// Code 6.
    decoding => DECODING,
    /// Code 7.
    invalid_config => INVALID_CONFIG,
    /// Code 8.
    invalid_netns => INVALID_NETNS,
    /// Code 11.
    try_again_later => TRY_AGAIN_LATER,
    /// Code 50.
    not_available => NOT_AVAILABLE,
    /// Code 51.
    limited_connectivity => LIMITED_CONNECTIVITY,
    /// Code 999.
    internal => INTERNAL,
}

// === impl CniError ===

impl CniError {
    /// An error with any code, labelled with the newest version until
    /// [`in_version`](Self::in_version) sets another one.
    pub fn new(code: u32, msg: impl Into<String>, details: impl ToString) -> Self {
        let cni_version = Version::LATEST.to_string();
        Self { cni_version, code, msg: msg.into(), details: details.to_string() }
    }

    /// The same error, labelled with the version of the request's configuration.
    pub fn in_version(mut self, version: Version) -> Self {
        self.cni_version = version.to_string();
        self
    }

    /// The same error, its message prefixed with `operation: `.
    pub fn during(mut self, operation: &str) -> Self {
        self.msg = format!("{operation}: {}", self.msg);
        self
    }

    /// The same error with one more detail.
    pub fn with_detail(mut self, detail: impl Display) -> Self {
        let separator = if self.details.is_empty() { "" } else { "; " };
        self.details = format!("{}{separator}{detail}", self.details);
        self
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        self.code == code::TRY_AGAIN_LATER
    }

    /// Reads an error object as plugins print it; every member may be missing except one of `code` and `msg`.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Value::Object(object) = value else { return Err("it is no JSON object".into()) };
        Self::from_object(&object).ok_or_else(|| "it has neither a code nor a message".into())
    }

    fn from_object(object: &Map<String, Value>) -> Option<Self> {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let code = object.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
        let error = Self {
            cni_version: text("cniVersion"),
            code: code.unwrap_or_default(),
            msg: text("msg"),
            details: text("details"),
        };
        (code.is_some() || !error.msg.is_empty()).then_some(error)
    }

    /// The only JSON document that a failing plugin prints.
    pub fn encode(&self) -> Vec<u8> {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        if !self.cni_version.is_empty() {
            put("cniVersion", self.cni_version.as_str().into());
        }
        put("code", self.code.into());
        put("msg", self.msg.as_str().into());
        if !self.details.is_empty() {
            put("details", self.details.as_str().into());
        }
        Value::Object(object).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_object_is_the_specifications() {
        // cni-runtime.md section 1.9
        let error = CniError::not_available("agent down", "dial unix /run/x.sock: refused");
        let text = r#"{"cniVersion":"1.1.0","code":50,"msg":"agent down","details":"dial unix /run/x.sock: refused"}"#;
        assert_eq!(String::from_utf8(error.encode()).unwrap(), text);
        assert_eq!(CniError::decode(text.as_bytes()).unwrap(), error);
        assert_eq!(error.to_string(), "agent down; dial unix /run/x.sock: refused");
        assert_eq!(CniError::io("lost", "").to_string(), "lost");
    }

    #[test]
    fn an_error_without_a_version_is_read() {
        // cni-runtime.md section 1.9: Go omits it
        let error = CniError::decode(br#"{"code":100,"msg":"old skel","extra":[]}"#).unwrap();
        assert_eq!((error.code, error.cni_version.as_str()), (100, ""));
        for bad in ["", "null", "[]", "{}", r#"{"code":-1}"#, "{\"code\":", r#"{"msg":7}"#] {
            assert!(CniError::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn control_bytes_do_not_reach_the_terminal() {
        let text = CniError::io("\u{1b}[2J\0", "").encode();
        assert!(!text.iter().any(u8::is_ascii_control));
    }
}
