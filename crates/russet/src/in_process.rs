//! The plugins that this executable contains, for runtimes in this process: they run without
//! starting a process (`russet_runtime::InProcess`).
//!
//! The path is the plugin executable's: to the agent if one runs, else directly as `russet
//! cni-direct` works, under the same locks.

use std::collections::BTreeMap;
use std::path::Path;

use russet_cni_spec::plugin::prepare;
use russet_cni_spec::relay::{self, TIMING_VARIABLE};
use russet_cni_spec::table;
use russet_cni_spec::{CniError, Outcome, Prepared, Request, process_vars};
use russet_plugins::executable::{ExecutableOwner, owner_of};
use russet_runtime::{Call, InProcess};

use crate::cli::NodeArgs;
use crate::command::cni_direct;

/// The plugins of this executable.
#[derive(Debug)]
pub struct EmbeddedPlugins;

fn answer(call: Call) -> Result<Outcome, CniError> {
    let about = format!("CNI {} plugin (Russet {})", call.kind, env!("CARGO_PKG_VERSION"));
    let timing = call.var(TIMING_VARIABLE).is_some_and(|value| value == "1");
    match prepare(vars(process_vars()?, call.vars), call.stdin, &about)? {
        Prepared::Answer(outcome) => Ok(outcome),
        Prepared::Request(request) => {
            let version = request.config.cni_version;
            carry_out(&call.kind, &request, timing).map_err(|error| error.in_version(version))
        }
    }
}

/// The environment that a plugin process would have: this process's variables (`CNI_NETNS_OVERRIDE`
/// is one of them), and those of the call.
fn vars(
    inherited: Vec<(String, String)>,
    set: Vec<(String, String)>,
) -> impl Iterator<Item = (String, String)> {
    let mut vars: BTreeMap<String, String> = inherited.into_iter().collect();
    vars.extend(set);
    vars.into_iter()
}

fn carry_out(plugin: &str, request: &Request, timing: bool) -> Result<Outcome, CniError> {
    if let Some(outcome) = relay::ask_agent(plugin, request, timing)? {
        return Ok(outcome);
    }
    let args = NodeArgs::without_flags()
        .map_err(|error| CniError::invalid_config("the node's settings cannot be used", error))?;
    Ok(cni_direct::carry_out(args, plugin, request, timing))
}

// === impl EmbeddedPlugins ===

impl InProcess for EmbeddedPlugins {
    fn stands_for(&self, kind: &str, found: Option<&Path>) -> bool {
        let foreign = found.is_some_and(|path| owner_of(path) != ExecutableOwner::Ours);
        table::find(kind).is_some() && !foreign
    }

    fn run(&self, call: Call) -> Outcome {
        answer(call).unwrap_or_else(|error| Outcome::failure(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: &str, verb: &str, stdin: &str) -> Outcome {
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", ""),
            ("CNI_PATH", "/nowhere"),
        ];
        let vars = vars.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        EmbeddedPlugins.run(Call { kind: kind.to_owned(), vars, stdin: stdin.as_bytes().to_vec() })
    }

    #[test]
    fn foreign_executables_and_plugins_are_not_run_in_process() {
        let dir = tempfile::tempdir().unwrap();
        let foreign = dir.path().join("bridge");
        std::fs::write(&foreign, "#!/bin/sh\n").unwrap();
        let own = dir.path().join("host-local");
        std::os::unix::fs::symlink("/proc/self/exe", &own).unwrap();
        assert!(EmbeddedPlugins.stands_for("bridge", None), "nothing there");
        assert!(!EmbeddedPlugins.stands_for("bridge", Some(&foreign)));
        assert!(EmbeddedPlugins.stands_for("host-local", Some(&own)));
        assert!(!EmbeddedPlugins.stands_for("macvlan", None), "no plugin of ours");
    }

    #[test]
    fn a_call_inherits_the_processs_variables_and_overrides_some() {
        // cni-runtime.md section 1.6: a runtime adds its variables to its own environment
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let inherited =
            pairs(&[("CNI_NETNS_OVERRIDE", "true"), ("CNI_CONTAINERID", "other"), ("ETCD_ENDPOINTS", "e")]);
        let had: Vec<_> = vars(inherited, pairs(&[("CNI_CONTAINERID", "c1"), ("CNI_ARGS", "")])).collect();
        let expected = [
            ("CNI_ARGS", ""),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS_OVERRIDE", "true"),
            ("ETCD_ENDPOINTS", "e"),
        ];
        assert_eq!(had, pairs(&expected));
    }

    #[test]
    fn answers_are_what_the_executable_prints() {
        let versions = call("bridge", "VERSION", "{}");
        assert!(
            versions.is_success()
                && String::from_utf8(versions.stdout).unwrap().contains("supportedVersions")
        );
        let refused = call("host-local", "DEL", "{bad");
        assert_eq!(refused.exit_code, 1);
        assert_eq!(CniError::decode(&refused.stdout).unwrap().code, russet_cni_spec::code::DECODING);
    }

    #[test]
    fn requests_do_not_share_state() {
        let dir = tempfile::tempdir().unwrap();
        let config = |range: &str| {
            serde_json::json!({ "cniVersion": "1.0.0", "name": "n", "type": "host-local",
                "agent_socket": dir.path().join("absent.sock"), "root": dir.path(),
                "ipam": { "type": "host-local", "dataDir": dir.path().join("nets"), "subnet": range } })
            .to_string()
        };
        let stuck = call("host-local", "DEL", &config("10.9.0.0/30"));
        assert!(stuck.is_success(), "{stuck:?}");
        let bad = call(
            "host-local",
            "STATUS",
            &config("10.9.0.0/30").replace("1.0.0", "1.1.0").replace("/30", "/33"),
        );
        assert_eq!(bad.exit_code, 1, "{bad:?}");
        let good = call("host-local", "STATUS", &config("10.9.0.0/30").replace("1.0.0", "1.1.0"));
        assert!(good.is_success(), "{good:?}");
    }
}
