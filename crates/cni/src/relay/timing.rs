//! The stages of a request in the agent: sent from the agent to the plugin in a header, and from
//! the plugin to its caller in a marked line on stderr. Only on request: by [`TIMING_VARIABLE`],
//! which `russet cni --timing` sets.

use serde_json::{Map, Value};

/// If set to `1`, our plugins end their stderr with a line of [`Timing`]. Nothing else changes.
pub const TIMING_VARIABLE: &str = "RUSSET_CNI_TIMING";

/// The header in which the agent answers with a [`Timing`], if the request wants one.
pub const TIMING_HEADER: &str = "russet-timing";

/// Prefix of the line on stderr.
const LINE_MARK: &str = "russet-timing: ";
/// Limit of stages: agents of other versions may have others, but not more than this.
const STAGES_MAX: usize = 32;
/// Limit of the name of a plugin or a stage.
const NAME_MAX_BYTES: usize = 64;

/// The stages of one request. They do not overlap, and need not add up to the total.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timing {
    /// The plugin.
    pub plugin: String,
    /// From the request to its answer, in microseconds.
    pub total_us: u64,
    /// Each stage that the request entered, with its microseconds, in the order of the agent's
    /// list.
    pub stages: Vec<(String, u64)>,
}

/// Whether this process should print the stages of its request.
pub fn wants_timing() -> bool {
    std::env::var_os(TIMING_VARIABLE).is_some_and(|value| value == "1")
}

// === impl Timing ===

impl Timing {
    /// One line of JSON: `{"plugin":"russet","total_us":9120,"stages":{"turn":4,"address":3100}}`.
    pub fn encode(&self) -> String {
        let stages = self.stages.iter().map(|(name, us)| (name.clone(), Value::from(*us))).collect();
        let mut object = Map::new();
        object.insert("plugin".into(), self.plugin.as_str().into());
        object.insert("total_us".into(), self.total_us.into());
        object.insert("stages".into(), Value::Object(stages));
        Value::Object(object).to_string()
    }

    /// Decodes it; none if it is invalid, which is not an error.
    pub fn decode(text: &str) -> Option<Self> {
        let name = |text: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            (text.len() <= NAME_MAX_BYTES && text.chars().all(plain)).then(|| text.to_owned())
        };
        let object: Map<String, Value> = serde_json::from_str(text).ok()?;
        let stages = object.get("stages")?.as_object().filter(|stages| stages.len() <= STAGES_MAX)?;
        let stage = |(stage, us): (&String, &Value)| Some((name(stage)?, us.as_u64()?));
        Some(Self {
            plugin: name(object.get("plugin")?.as_str()?)?,
            total_us: object.get("total_us")?.as_u64()?,
            stages: stages.iter().map(stage).collect::<Option<_>>()?,
        })
    }

    /// The line for stderr.
    pub fn line(&self) -> String {
        format!("{LINE_MARK}{}\n", self.encode())
    }

    /// Removes the lines of our plugins from the stderr of one; there may be several, if one called
    /// another.
    pub fn take(stderr: &mut Vec<u8>) -> Vec<Self> {
        if !stderr.windows(LINE_MARK.len()).any(|window| window == LINE_MARK.as_bytes()) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        let mut rest = Vec::with_capacity(stderr.len());
        for line in stderr.split_inclusive(|byte| *byte == b'\n') {
            let text =
                line.strip_prefix(LINE_MARK.as_bytes()).and_then(|line| std::str::from_utf8(line).ok());
            match text.and_then(|text| Self::decode(text.trim_end())) {
                Some(timing) => taken.push(timing),
                None => rest.extend_from_slice(line),
            }
        }
        *stderr = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing() -> Timing {
        let stages = [("turn", 4), ("address", 3100), ("wiring", 5000)];
        let stages = stages.map(|(stage, us)| (stage.to_owned(), us)).to_vec();
        Timing { plugin: "russet".into(), total_us: 9120, stages }
    }

    #[test]
    fn a_timing_survives_as_a_line_between_others() {
        let mut stderr = format!("before\n{}after", timing().line()).into_bytes();
        assert_eq!(Timing::take(&mut stderr), [timing()]);
        assert_eq!(stderr, b"before\nafter");
        assert_eq!(Timing::take(&mut stderr), []);
        assert_eq!(stderr, b"before\nafter");
    }

    #[test]
    fn what_is_no_timing_is_left_where_it_is() {
        let many: Vec<String> = (0..=STAGES_MAX).map(|n| format!("\"s{n}\":1")).collect();
        for bad in [
            "",
            "null",
            r#"{"plugin":"p","total_us":1}"#,
            r#"{"plugin":"p","total_us":-1,"stages":{}}"#,
            r#"{"plugin":"p","total_us":1,"stages":{"a":"1"}}"#,
            r#"{"plugin":"a\u001b[2J","total_us":1,"stages":{}}"#,
            r#"{"plugin":"p","total_us":1,"stages":{"a b":1}}"#,
            &format!(r#"{{"plugin":"p","total_us":1,"stages":{{{}}}}}"#, many.join(",")),
        ] {
            let text = format!("{LINE_MARK}{bad}\n").into_bytes();
            let mut stderr = text.clone();
            assert_eq!(Timing::take(&mut stderr), [], "{bad}");
            assert_eq!(stderr, text, "{bad}");
        }
    }
}
