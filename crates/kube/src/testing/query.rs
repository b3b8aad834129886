//! The parameters of a list or watch, and which of them a server refuses (kubernetes.md section 4.1).

use super::answers::Answer;

/// The query of a request.
pub(super) struct Query(Vec<(String, String)>);

// === impl Query ===

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), unescape(value))).collect())
    }

    /// A parameter, unless it is missing or empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str());
        values.next().filter(|value| !value.is_empty())
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// Refuses the parameters of a list that contradict each other, and a revision that does not exist yet.
    pub(super) fn check_list(&self, newest: u64) -> Result<(), Answer> {
        let (revision, rule) = (self.get("resourceVersion"), self.get("resourceVersionMatch"));
        if self.get("sendInitialEvents").is_some() {
            let problem = "Forbidden: sendInitialEvents is forbidden for list";
            return Err(Answer::invalid_options("sendInitialEvents", problem));
        }
        match (revision, rule) {
            (None, Some(_)) => Err(Answer::invalid_options(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            )),
            (Some("0"), Some("Exact")) => Err(Answer::invalid_options(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            )),
            (Some(_), _) if self.get("continue").is_some() => {
                Err(Answer::bad_request("specifying resource version is not allowed when using continue"))
            }
            (Some(revision), _) => match revision.parse() {
                Ok(revision) if revision > newest => Err(Answer::too_large(revision, newest)),
                Ok(_) => Ok(()),
                Err(_) => Err(Answer::bad_request("resourceVersion: Invalid value")),
            },
            (None, None) => Ok(()),
        }
    }

    /// Refuses the parameters of a watch that contradict each other; the number of its revision, 0 for any state.
    pub(super) fn check_watch(&self) -> Result<u64, Answer> {
        let rule = self.get("resourceVersionMatch");
        match (self.get("sendInitialEvents"), rule) {
            (Some(_), None | Some("Exact")) => Err(Answer::invalid_options(
                "resourceVersionMatch",
                "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            )),
            (None, Some(_)) => Err(Answer::invalid_options(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )),
            _ => {
                let revision = self.get("resourceVersion").unwrap_or("0").parse();
                revision.map_err(|_| Answer::bad_request("resourceVersion: Invalid value"))
            }
        }
    }
}

pub(super) fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
