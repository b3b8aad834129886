//! `russet cni`: runs a network's whole chain of plugins as a container runtime does, for people
//! and scripts. Arguments, variables, container IDs and the cache are those of cnitool
//! (cni-runtime.md section 3.6).

mod lint;
mod progress;
mod timing;

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use russet_cni_spec::{CniArgs as Pairs, CniError, ConfigList};
use russet_runtime::lint::no_way_out;
use russet_runtime::{Attachment, ConfigDir, InProcess, LoadError, Progress, Runtime, RuntimeError, Times};
use serde_json::{Map, Value, json};

use crate::cli::Format;
use crate::cli::cni::{AttachmentArgs, CniArgs, CniVerb, GcArgs, NetworkArgs, PluginArgs, StatusArgs};
use crate::in_process::EmbeddedPlugins;
use crate::output;

/// The version of the JSON that `-o json` prints.
const SCHEMA: u32 = 1;
/// The number of bytes of the hash from which cnitool makes an ID.
const ID_HASH_BYTES: usize = 10;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("{source}, and the cache in {} has no such attachment", cache.display())]
    Unknown { source: LoadError, cache: PathBuf },
    #[error("{0}")]
    Arguments(CniError),
    #[error("name the container: {0}")]
    Container(#[from] russet_addr::NameError),
}

pub fn run(args: CniArgs) -> ExitCode {
    match args.verb {
        CniVerb::Add(args) => attached("ADD", &args, |runtime, list, attachment| {
            let result = runtime.add(list, attachment)?;
            if let Some(why) = no_way_out(list).filter(|_| args.network.timing) {
                output::progress(&format!("warning: {why}"));
            }
            Ok(Some(result.to_value()))
        }),
        CniVerb::Check(args) => attached("CHECK", &args, |runtime, list, attachment| {
            runtime.check(list, attachment).map(|()| None)
        }),
        CniVerb::Del(args) => delete(&args),
        CniVerb::Gc(GcArgs { network, .. }) => run_on_list("GC", &network, json!({}), |runtime, list| {
            Ok(runtime.gc(list, None).map(|()| None)?)
        }),
        CniVerb::Status(StatusArgs { network, .. }) => {
            run_on_list("STATUS", &network, json!({}), |runtime, list| {
                Ok(runtime.status(list).map(|()| None)?)
            })
        }
        CniVerb::Version(network) => run_on_list("VERSION", &network, json!({}), versions),
        CniVerb::Validate(network) => run_on_list("VALIDATE", &network, json!({}), |runtime, list| {
            Ok(runtime.validate(list).map(|capabilities| Some(json!({ "capabilities": capabilities })))?)
        }),
        CniVerb::Lint(args) => lint::run(args),
    }
}

/// A verb about one attachment.
fn attached(
    verb: &str,
    args: &AttachmentArgs,
    work: impl FnOnce(&Runtime, &ConfigList, &Attachment) -> Result<Option<Value>, RuntimeError>,
) -> ExitCode {
    let netns = absolute(&args.netns);
    let subject = json!({ "netns": netns, "ifname": args.ifname.as_str() });
    run_on_list(verb, &args.network, subject, |runtime, list| {
        Ok(work(runtime, list, &attachment(args, &netns)?)?)
    })
}

/// DEL uses the configuration in the cache; the directory's is only for attachments without a cache
/// entry.
fn delete(args: &AttachmentArgs) -> ExitCode {
    let netns = absolute(&args.netns);
    let subject = json!({ "netns": netns, "ifname": args.ifname.as_str() });
    let of_cache = |runtime: &Runtime, error: LoadError| {
        let attachment = attachment(args, &netns)?;
        let name = args.network.network.parse().ok();
        let entry = name.and_then(|name| runtime.cached(&name, &attachment));
        let list = entry.as_ref().and_then(|entry| entry.list().ok());
        list.ok_or(Failure::Unknown { source: error, cache: args.network.cache_dir() })
    };
    run_on_list_or("DEL", &args.network, subject, of_cache, |runtime, list| {
        let mut attachment = attachment(args, &netns)?;
        if let Some(entry) = runtime.cached(&list.name, &attachment) {
            // Arguments that the command line leaves out are those of the ADD.
            if attachment.args.is_empty() {
                attachment.args = entry.attachment.args;
            }
            if attachment.capability_args.is_empty() {
                attachment.capability_args = entry.attachment.capability_args;
            }
        }
        Ok(runtime.del(list, &attachment).map(|()| None)?)
    })
}

/// Like Go's filepath.Abs, from whose result cnitool makes the container ID: removes `.` and `..`
/// without following links.
fn absolute(netns: &Path) -> PathBuf {
    let mut path = PathBuf::new();
    for part in std::path::absolute(netns).unwrap_or_else(|_| netns.to_owned()).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

fn attachment(args: &AttachmentArgs, netns: &Path) -> Result<Attachment, Failure> {
    let container = match &args.container_id {
        Some(container) => container.clone(),
        None => container_id(netns).parse()?,
    };
    let mut attachment = Attachment::new(container, netns, args.ifname.clone());
    let pairs = Pairs::parse(&args.args).map_err(Failure::Arguments)?;
    attachment.args = pairs.pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    attachment.capability_args = args.capabilities.clone();
    Ok(attachment)
}

/// `cnitool-` and the beginning of the SHA-512 of the namespace's path.
fn container_id(netns: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hash = ring::digest::digest(&ring::digest::SHA512, netns.as_os_str().as_bytes());
    let hex: String = hash.as_ref().iter().take(ID_HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("cnitool-{hex}")
}

fn versions(runtime: &Runtime, list: &ConfigList) -> Result<Option<Value>, Failure> {
    let mut plugins = Map::new();
    let dirs = runtime.dirs_of(list);
    for plugin in &list.plugins {
        let versions = runtime.versions_in(&dirs, &plugin.kind).map_err(RuntimeError::from)?;
        plugins.insert(plugin.kind.clone(), versions.into());
    }
    Ok(Some(Value::Object(plugins)))
}

fn runtime(args: &PluginArgs, cache_dir: &Path) -> Runtime {
    let mut runtime = Runtime::new(args.bin_dirs(), cache_dir);
    runtime.vendor_prefix.clone_from(&args.vendor_prefix);
    runtime
}

fn run_on_list(
    verb: &str,
    args: &NetworkArgs,
    subject: Value,
    work: impl FnOnce(&Runtime, &ConfigList) -> Result<Option<Value>, Failure>,
) -> ExitCode {
    run_on_list_or(verb, args, subject, |_, error| Err(error.into()), work)
}

/// `otherwise` supplies a configuration if the directory has no valid one.
fn run_on_list_or(
    verb: &str,
    args: &NetworkArgs,
    subject: Value,
    otherwise: impl FnOnce(&Runtime, LoadError) -> Result<ConfigList, Failure>,
    work: impl FnOnce(&Runtime, &ConfigList) -> Result<Option<Value>, Failure>,
) -> ExitCode {
    let times = Times::default();
    let mut runtime = runtime(&args.plugins, &args.cache_dir());
    let for_people = matches!(args.output.format, Format::Table | Format::Wide);
    runtime.progress = for_people.then(|| Arc::new(progress::OnTerminal) as Arc<dyn Progress>);
    runtime.in_process = args.in_process.then(|| Arc::new(EmbeddedPlugins) as Arc<dyn InProcess>);
    runtime.times = args.timing.then(|| times.clone());
    let began = Instant::now();
    let load = ConfigDir::new(args.conf_dir()).network(&args.network);
    let done = load.or_else(|error| otherwise(&runtime, error)).and_then(|list| work(&runtime, &list));
    let report = timing::TimingReport::new(began.elapsed(), times.take());
    match args.output.format {
        Format::Table | Format::Wide => {
            // Standard output has the result alone, since it may be piped on.
            if let Ok(Some(value)) = &done {
                output::print(&pretty(value));
            }
            if args.timing {
                output::progress(report.table().trim_end());
            }
        }
        format => {
            let timing = args.timing.then(|| report.to_value());
            let document = document(verb, args, subject, &done, timing);
            output::print_as(format, &document, String::new);
        }
    }
    match done {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => super::failed(Box::new(error)),
    }
}

fn document(
    verb: &str,
    args: &NetworkArgs,
    subject: Value,
    done: &Result<Option<Value>, Failure>,
    timing: Option<Value>,
) -> Value {
    let mut object = Map::new();
    object.insert("schema".into(), SCHEMA.into());
    object.insert("verb".into(), verb.into());
    object.insert("network".into(), args.network.as_str().into());
    object.extend(subject.as_object().cloned().unwrap_or_default());
    let error = done.as_ref().err().map(|failure| {
        let CniError { code, msg, details, .. } = failure.to_cni();
        json!({ "code": code, "msg": msg, "details": details })
    });
    object.insert("result".into(), done.as_ref().ok().cloned().flatten().into());
    object.insert("error".into(), error.into());
    object.extend(timing.map(|timing| ("timing".to_owned(), timing)));
    Value::Object(object)
}

/// Formats like cnitool: with four spaces of indentation.
fn pretty(value: &Value) -> String {
    use serde::Serialize;
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    match value.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned() + "\n",
        Err(_) => value.to_string() + "\n",
    }
}

// === impl Failure ===

impl Failure {
    fn to_cni(&self) -> CniError {
        match self {
            Self::Load(error) => CniError::invalid_config(error.to_string(), ""),
            Self::Runtime(error) => error.to_cni(),
            Self::Unknown { .. } => CniError::invalid_config(self.to_string(), ""),
            Self::Arguments(error) => error.clone(),
            Self::Container(error) => CniError::environment(error.to_string(), ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_called_as_cnitool_calls_it() {
        // cni-runtime.md section 3.6; printf %s /var/run/netns/testing | sha512sum | head -c 20
        assert_eq!(container_id(Path::new("/var/run/netns/testing")), "cnitool-77383ca0a0715733ca6f");
    }

    #[test]
    fn a_namespaces_path_is_made_absolute_as_cnitool_does() {
        for (given, path) in
            [("/run/netns/a", "/run/netns/a"), ("/run//x/../netns/./a/", "/run/netns/a"), ("/../a", "/a")]
        {
            assert_eq!(absolute(Path::new(given)), Path::new(path));
        }
        assert_eq!(absolute(Path::new("a/../b")), std::env::current_dir().unwrap().join("b"));
    }

    #[test]
    fn a_result_is_printed_as_cnitool_prints_it() {
        assert_eq!(
            pretty(&json!({ "ips": [{ "a": 1 }] })),
            "{\n    \"ips\": [\n        {\n            \"a\": 1\n        }\n    ]\n}\n"
        );
    }

    #[test]
    fn a_failure_is_an_object_with_cnis_code() {
        let failure = Failure::Arguments(CniError::environment("ARGS: invalid pair", ""));
        let network = network_args();
        let subject = json!({ "ifname": "eth0" });
        let document = document("ADD", &network, subject, &Err(failure), None);
        let text = r#"{"schema":1,"verb":"ADD","network":"net","ifname":"eth0","result":null,"error":{"code":4,"msg":"ARGS: invalid pair","details":""}}"#;
        assert_eq!(document.to_string(), text);
    }

    fn network_args() -> NetworkArgs {
        NetworkArgs {
            network: "net".into(),
            cni_conf_dir: None,
            plugins: PluginArgs { root: "/absent".into(), cni_bin_dir: Vec::new(), vendor_prefix: None },
            cni_cache_dir: None,
            timing: false,
            in_process: false,
            output: crate::cli::OutputArgs { format: Format::Json },
        }
    }
}
