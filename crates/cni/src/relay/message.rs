//! The messages between the plugin and the agent; both sides use these types.

use std::time::Duration;

use serde_json::{Map, Value};

use super::timing::Timing;
use crate::env::is_ours;
use crate::plugin::{Outcome, STDIN_MAX_BYTES};
use crate::{CniError, Verb, base64, code, field};

/// The body of `POST /v1/cni`.
///
/// On the wire: `{"v":1,"plugin":"russet","env":{"CNI_COMMAND":"ADD",...},"config":"<base64 of stdin>","deadline_ms":N}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayRequest {
    /// The plugin that the runtime executed.
    pub plugin: String,
    /// The `CNI_*` variables, and for Calico's plugins those of [`Overrides`](crate::Overrides); no
    /// others of the runtime's environment.
    pub env: Vec<(String, String)>,
    /// The bytes of stdin.
    pub config: Vec<u8>,
    /// How long the caller waits.
    pub deadline: Duration,
    /// Whether the answer should have the request's stages: member `timing`, which older agents
    /// ignore.
    pub timing: bool,
}

/// The agent's answer: status 200 for exit code 0, with what belongs on stdout as the body; any other status for
/// exit code 1, with the error object as the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayResponse {
    /// HTTP status.
    pub status: u16,
    /// The document for stdout; may be empty.
    pub body: Vec<u8>,
    /// The text for stderr, for users.
    pub stderr: String,
    /// The stages, if they were requested.
    pub timing: Option<Timing>,
}

/// The header with the text for stderr, in base64. It is omitted if there is none.
pub const STDERR_HEADER: &str = "russet-stderr";

/// Limit of this text: in base64 it fits the head that plugins accept.
pub const STDERR_MAX_BYTES: usize = 8 * 1024;

/// Limit of the part of an invalid answer that an error repeats.
const SHOWN_MAX_CHARS: usize = 200;

// === impl RelayRequest ===

impl RelayRequest {
    /// The protocol's version. The agent accepts this one and the one before.
    pub const VERSION: u32 = 1;

    /// Limit of an encoded request: base64 of the largest stdin, and the kernel's limit of one
    /// environment string, several times.
    pub const MAX_BYTES: usize = STDIN_MAX_BYTES / 3 * 4 + 1024 * 1024;

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let env = self.env.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        let deadline_ms = u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX);
        let mut object = Map::new();
        object.insert("v".into(), Self::VERSION.into());
        object.insert("plugin".into(), self.plugin.as_str().into());
        object.insert("env".into(), Value::Object(env.collect()));
        object.insert("config".into(), base64::encode(&self.config).into());
        object.insert("deadline_ms".into(), deadline_ms.into());
        if self.timing {
            object.insert("timing".into(), true.into());
        }
        Value::Object(object).to_string().into_bytes()
    }

    /// Decodes a body. Any process of root may have sent it.
    pub fn decode(bytes: &[u8]) -> Result<Self, CniError> {
        let malformed = |details: String| CniError::decoding("malformed request to the agent", details);
        let value = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
        let Value::Object(object) = value else { return Err(malformed("an object is wanted".into())) };
        let read = || {
            let config = base64::decode(field::text(&object, "config")?);
            let config = config.map_err(|error| crate::FieldError::new("config", error.to_string()))?;
            let version = field::number(&object, "v")?.unwrap_or_default();
            let deadline_ms = field::number(&object, "deadline_ms")?.unwrap_or_default();
            let plugin = field::text(&object, "plugin")?.to_owned();
            let env = field::object(&object, "env")?;
            let pair =
                |key: &String| Ok((key.clone(), env.map_or(Ok(""), |env| field::text(env, key))?.to_owned()));
            let keys = env.iter().flat_map(|env| env.keys()).filter(|key| is_ours(key));
            let env = keys.map(pair).collect::<Result<_, crate::FieldError>>()?;
            let deadline = Duration::from_millis(deadline_ms.into());
            let timing = object.get("timing").and_then(Value::as_bool).unwrap_or_default();
            Ok((version, Self { plugin, env, config, deadline, timing }))
        };
        let (version, request) = read().map_err(|error: crate::FieldError| malformed(error.to_string()))?;
        if version != Self::VERSION {
            let details = format!("the request has version {version}, the agent speaks {}", Self::VERSION);
            return Err(CniError::internal("the plugin and the agent do not fit together", details));
        }
        Ok(request)
    }
}

// === impl RelayResponse ===

impl RelayResponse {
    /// What the plugin prints, and its exit code.
    pub fn into_outcome(self, verb: Verb) -> Result<Outcome, CniError> {
        if self.status != 200 {
            let error =
                CniError::decode(&self.body).map_err(|_| self.strange("the agent refused the request"))?;
            return Ok(Outcome { stderr: self.stderr, timing: self.timing, ..Outcome::failure(&error) });
        }
        let document = serde_json::from_slice::<Value>(&self.body).is_ok_and(|value| value.is_object());
        if document || (self.body.is_empty() && verb != Verb::Add) {
            return Ok(Outcome { stdout: self.body, stderr: self.stderr, timing: self.timing, exit_code: 0 });
        }
        Err(self.strange("the agent's answer is no result"))
    }

    fn strange(&self, msg: &str) -> CniError {
        let body: String = String::from_utf8_lossy(&self.body).chars().take(SHOWN_MAX_CHARS).collect();
        CniError::io(msg, format!("status {}: {body}", self.status))
    }
}

impl From<&Outcome> for RelayResponse {
    fn from(outcome: &Outcome) -> Self {
        let Outcome { stdout: body, stderr, timing, .. } = outcome.clone();
        if outcome.is_success() {
            return Self { status: 200, body, stderr, timing };
        }
        let code = CniError::decode(&outcome.stdout).map_or(code::INTERNAL, |error| error.code);
        let status = match code {
            code::INCOMPATIBLE_VERSION..=code::ENVIRONMENT | code::DECODING..=code::INVALID_NETNS => 400,
            code::TRY_AGAIN_LATER | code::NOT_AVAILABLE | code::LIMITED_CONNECTIVITY => 503,
            _ => 500,
        };
        Self { status, body, stderr, timing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CniResult;

    fn request() -> RelayRequest {
        RelayRequest {
            plugin: "russet".into(),
            env: vec![("CNI_COMMAND".into(), "ADD".into()), ("CNI_ARGS".into(), "A=\u{1}\"".into())],
            config: b"{\"name\":\"n\"}\0\xff".to_vec(),
            deadline: Duration::from_millis(55_000),
            timing: false,
        }
    }

    #[test]
    fn a_request_survives_a_round_trip() {
        // ARCHITECTURE.md, "ADD and DEL", step 1
        let text = String::from_utf8(request().encode()).unwrap();
        assert!(text.starts_with(r#"{"v":1,"plugin":"russet","env":{"CNI_COMMAND":"ADD","#), "{text}");
        assert!(text.ends_with(r#""deadline_ms":55000}"#), "{text}");
        assert_eq!(RelayRequest::decode(text.as_bytes()).unwrap(), request());
        let timed = RelayRequest { timing: true, ..request() };
        assert_eq!(RelayRequest::decode(&timed.encode()).unwrap(), timed);
    }

    #[test]
    fn only_cni_variables_and_calicos_reach_the_agent() {
        let body =
            br#"{"v":1,"plugin":"p","env":{"PATH":"/x","LD_PRELOAD":"/y","CNI_PATH":"/z","CALICO_ETCD_ENDPOINTS":"e"},"config":""}"#;
        let request = RelayRequest::decode(body).unwrap();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(request.env, [pair("CNI_PATH", "/z"), pair("CALICO_ETCD_ENDPOINTS", "e")]);
    }

    #[test]
    fn a_bad_request_is_refused_with_a_reason() {
        let whole = request().encode();
        for end in 0..whole.len() {
            assert!(RelayRequest::decode(&whole[..end]).is_err());
        }
        for bad in [
            "null",
            r#"{"v":2}"#,
            "{}",
            r#"{"v":1,"config":"*"}"#,
            r#"{"v":1,"env":[]}"#,
            r#"{"v":1,"env":{"CNI_X":7}}"#,
        ] {
            assert!(RelayRequest::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn outcomes_survive_the_way_over_http() {
        let outcomes = [
            (Outcome::success(Some(&CniResult::empty(crate::Version::V1_0_0))), 200),
            (Outcome::failure(&CniError::invalid_config("bad", "")), 400),
            (Outcome::failure(&CniError::io("disk", "")), 500),
            (Outcome::failure(&CniError::try_again_later("busy", "pool")), 503),
            (Outcome { stderr: "said\n".into(), ..Outcome::failure(&CniError::io("disk", "")) }, 500),
        ];
        for (outcome, status) in outcomes {
            let response = RelayResponse::from(&outcome);
            assert_eq!(response.status, status);
            assert_eq!(response.into_outcome(Verb::Add).unwrap(), outcome);
        }
        let empty = RelayResponse { status: 200, body: Vec::new(), stderr: String::new(), timing: None };
        assert_eq!(empty.into_outcome(Verb::Del).unwrap(), Outcome::default());
    }

    #[test]
    fn an_invalid_answer_becomes_an_error() {
        for (status, body) in [(200, "\u{1b}[2J"), (200, ""), (200, "{}{}"), (404, "not found"), (500, "")] {
            let response = RelayResponse { status, body: body.into(), stderr: String::new(), timing: None };
            let error = response.into_outcome(Verb::Add).unwrap_err();
            assert!(error.code == code::IO && error.details.contains(&status.to_string()), "{error}");
        }
    }
}
