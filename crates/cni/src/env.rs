//! The `CNI_*` variables of a request, checked and typed.
//!
//! They come from the plugin's own environment, or from the agent's request body: both produce the
//! same [`Env`].

use std::path::PathBuf;

use russet_addr::{ContainerId, EndpointId, IfName, NetworkName};

use crate::{CniArgs, CniError, Overrides, Verb};

/// The request: its verb and target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Env {
    /// `CNI_COMMAND`, with its target where it has one.
    pub call: Call,
    /// `CNI_ARGS`.
    pub args: CniArgs,
    /// `CNI_PATH`: the search path of delegated plugins.
    pub path: Vec<PathBuf>,
    /// `CNI_NETNS_OVERRIDE`: the container's namespace may be the caller's own.
    pub netns_override: bool,
    /// All `CNI_*` variables, unchanged, for delegated plugins.
    pub vars: Vec<(String, String)>,
    /// The Calico datastore settings in the runtime's environment.
    pub overrides: Overrides,
}

/// A verb that needs work, with its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Attach.
    Add(Target),
    /// Compare.
    Check(Target),
    /// Detach.
    Del(Target),
    /// Collect what no valid attachment holds.
    Gc,
    /// Report readiness.
    Status,
}

/// The endpoint of a call, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The configuration's network, `CNI_CONTAINERID` and `CNI_IFNAME`.
    pub id: EndpointId,
    /// `CNI_NETNS` unchanged; only DEL may have it empty.
    pub netns: String,
}

/// The variables, before their values are checked.
#[derive(Debug, Clone)]
pub(crate) struct Vars {
    cni: Vec<(String, String)>,
    overrides: Overrides,
}

/// The `CNI_*` variables of this process, and those of [`Overrides`]. A value that is not UTF-8 is
/// an error, because no valid name can have it.
pub fn process_vars() -> Result<Vec<(String, String)>, CniError> {
    let mut vars = Vec::new();
    for (key, value) in std::env::vars_os() {
        let Some(key) = key.to_str().filter(|key| is_ours(key)) else { continue };
        let value = value
            .into_string()
            .map_err(|value| CniError::environment(format!("{key} is not valid UTF-8"), value.display()))?;
        vars.push((key.to_owned(), value));
    }
    Ok(vars)
}

/// Whether a variable is part of a request.
pub(crate) fn is_ours(key: &str) -> bool {
    key.starts_with("CNI_") || Overrides::knows(key)
}

// === impl Vars ===

impl Vars {
    pub(crate) fn new(vars: impl IntoIterator<Item = (String, String)>) -> Self {
        let (cni, others): (Vec<_>, Vec<_>) = vars.into_iter().partition(|(key, _)| key.starts_with("CNI_"));
        Self { cni, overrides: Overrides::of(others) }
    }

    /// The value; a missing variable counts as "". The last one counts, as in an environment that
    /// is built by appending.
    fn get(&self, key: &str) -> &str {
        self.cni.iter().rev().find(|(known, _)| known == key).map_or("", |(_, value)| value)
    }

    /// Whether `CNI_COMMAND` is missing or empty: a user runs the plugin by hand.
    pub(crate) fn is_idle(&self) -> bool {
        self.get("CNI_COMMAND").is_empty()
    }

    /// The verb, if everything that it requires is there (cni-runtime.md section 1.4).
    pub(crate) fn verb(&self) -> Result<Verb, CniError> {
        let command = self.get("CNI_COMMAND");
        let unknown = || CniError::environment(format!("unknown CNI_COMMAND: {command}"), "");
        let verb = Verb::parse(command).ok_or_else(unknown)?;
        let required: &[&str] = match verb {
            Verb::Add | Verb::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            Verb::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            Verb::Gc | Verb::Status => &["CNI_PATH"],
            Verb::Version => &[],
        };
        let missing: Vec<&str> = required.iter().copied().filter(|key| self.get(key).is_empty()).collect();
        if missing.is_empty() {
            return Ok(verb);
        }
        let msg = format!("required env variables [{}] missing", missing.join(","));
        Err(CniError::environment(msg, format!("CNI_COMMAND is {verb}")))
    }

    fn target(&self, network: &NetworkName) -> Result<Target, CniError> {
        let netns = self.get("CNI_NETNS");
        if !netns.is_empty() && !netns.starts_with('/') {
            return Err(CniError::environment("CNI_NETNS is not an absolute path", shown(netns)));
        }
        Ok(Target {
            id: EndpointId {
                network: network.clone(),
                container: container_id(self.get("CNI_CONTAINERID"))?,
                ifname: ifname(self.get("CNI_IFNAME"))?,
            },
            netns: netns.to_owned(),
        })
    }

    /// Checks the values. VERSION has none to check and returns `None`.
    pub(crate) fn check(self, verb: Verb, network: &NetworkName) -> Result<Option<Env>, CniError> {
        let call = match verb {
            Verb::Add => Call::Add(self.target(network)?),
            Verb::Check => Call::Check(self.target(network)?),
            Verb::Del => Call::Del(self.target(network)?),
            Verb::Gc => Call::Gc,
            Verb::Status => Call::Status,
            Verb::Version => return Ok(None),
        };
        let args = if verb.has_target() { CniArgs::parse(self.get("CNI_ARGS"))? } else { CniArgs::default() };
        let netns_override =
            matches!(self.get("CNI_NETNS_OVERRIDE").to_ascii_lowercase().as_str(), "1" | "true");
        let path = std::env::split_paths(self.get("CNI_PATH")).filter(|dir| dir.is_absolute()).collect();
        Ok(Some(Env { call, args, path, netns_override, vars: self.cni, overrides: self.overrides }))
    }
}

// === impl Env ===

impl Env {
    /// The interface of the call; none for GC and STATUS.
    pub fn target(&self) -> Option<&Target> {
        self.call.target()
    }

    /// The verb.
    pub fn verb(&self) -> Verb {
        self.call.verb()
    }
}

// === impl Call ===

impl Call {
    /// The verb alone.
    pub const fn verb(&self) -> Verb {
        match self {
            Call::Add(_) => Verb::Add,
            Call::Check(_) => Verb::Check,
            Call::Del(_) => Verb::Del,
            Call::Gc => Verb::Gc,
            Call::Status => Verb::Status,
        }
    }

    /// The interface of the call; none for GC and STATUS.
    pub const fn target(&self) -> Option<&Target> {
        match self {
            Call::Add(target) | Call::Check(target) | Call::Del(target) => Some(target),
            Call::Gc | Call::Status => None,
        }
    }
}

/// Checks `CNI_CONTAINERID` (cni-runtime.md section 1.10).
fn container_id(text: &str) -> Result<ContainerId, CniError> {
    ContainerId::new(text).map_err(|error| {
        let msg = if error.rule.contains("longer") { "container ID is too long" } else { BAD_ID };
        CniError::environment(msg, shown(text))
    })
}

const BAD_ID: &str = "invalid characters found in containerID";

/// Checks `CNI_IFNAME` (cni-runtime.md section 1.10).
fn ifname(text: &str) -> Result<IfName, CniError> {
    IfName::new(text).map_err(|error| {
        let (msg, details) = match text {
            "." | ".." => ("interface name is . or ..", error.rule.to_owned()),
            _ if error.rule.contains("longer") => ("interface name is too long", error.rule.to_owned()),
            _ => ("interface name contains / or : or whitespace characters", shown(text)),
        };
        CniError::environment(msg, details)
    })
}

/// Longest part of a refused value that an error repeats.
const SHOWN_MAX_CHARS: usize = 80;

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code;

    fn vars(pairs: &[(&str, &str)]) -> Vars {
        Vars::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    fn add(pairs: &[(&str, &str)]) -> Result<Env, CniError> {
        let mut all = vec![
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin:/usr/lib/cni"),
        ];
        all.extend_from_slice(pairs);
        let vars = vars(&all);
        let verb = vars.verb()?;
        Ok(vars.check(verb, &"net".parse().unwrap())?.unwrap())
    }

    #[test]
    fn missing_variables_are_listed_together() {
        // cni-runtime.md section 6.2 item 2
        let error = vars(&[("CNI_COMMAND", "ADD")]).verb().unwrap_err();
        assert_eq!(error.code, code::ENVIRONMENT);
        assert!(error.msg.contains("[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH]"), "{error}");
        assert!(vars(&[("CNI_COMMAND", "VERSION")]).verb().is_ok());
        assert!(vars(&[("CNI_COMMAND", "GC")]).verb().is_err(), "skel wants CNI_PATH everywhere");
    }

    #[test]
    fn an_unknown_command_is_named() {
        // cni-runtime.md section 6.2 item 3
        let error = vars(&[("CNI_COMMAND", "FOO")]).verb().unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (code::ENVIRONMENT, "unknown CNI_COMMAND: FOO"));
    }

    #[test]
    fn a_container_id_cannot_be_a_path() {
        // cni-runtime.md section 6.2 item 6
        let error = add(&[("CNI_CONTAINERID", "a/b")]).unwrap_err();
        assert_eq!((error.code, error.details.as_str()), (code::ENVIRONMENT, "a/b"));
        assert_eq!(error.msg, BAD_ID);
        assert!(add(&[("CNI_CONTAINERID", &"a".repeat(300_000))]).unwrap_err().details.len() < 100);
    }

    #[test]
    fn interface_names_keep_the_kernels_rule() {
        // cni-runtime.md section 6.2 item 10
        let error = add(&[("CNI_IFNAME", "a234567890123456")]).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (code::ENVIRONMENT, "interface name is too long"));
        for bad in ["a/b", "a b", "..", "a:b", "a\u{1b}b"] {
            assert_eq!(add(&[("CNI_IFNAME", bad)]).unwrap_err().code, code::ENVIRONMENT, "{bad}");
        }
    }

    #[test]
    fn the_last_of_equal_variables_counts() {
        // cni-runtime.md section 1.4
        let env = add(&[("CNI_IFNAME", "net1"), ("CNI_NETNS_OVERRIDE", "True"), ("PATH", "/bin")]).unwrap();
        assert_eq!(env.target().unwrap().id.ifname.as_str(), "net1");
        assert!(env.netns_override && env.vars.iter().all(|(key, _)| key != "PATH"));
        assert_eq!(env.path.len(), 2);
    }

    #[test]
    fn only_del_may_lack_the_namespace() {
        // cni-runtime.md section 1.4
        assert!(add(&[("CNI_NETNS", "")]).is_err());
        let env = add(&[("CNI_NETNS", ""), ("CNI_COMMAND", "DEL")]).unwrap();
        assert!(matches!(env.call, Call::Del(Target { netns, .. }) if netns.is_empty()));
        assert!(add(&[("CNI_NETNS", "run/netns/c1")]).is_err(), "relative to whom?");
    }
}
