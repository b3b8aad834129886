//! `russet sandbox`: pods on a host without Kubernetes, from manifests. Pods and their life cycle
//! are in [`russet_sandbox`]; each command locks its sandboxes while it runs.

mod show;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use russet_agent::Paths;
use russet_runtime::{ConfigDir, PluginError, Runtime};
use russet_sandbox::{Builtin, Filter, Metrics, Options, Sandbox, SandboxError, Sandboxes, State};

use super::pods::PodPlaces;
use super::{FAILED, Failure};
use crate::cli::OutputArgs;
use crate::cli::pods::PodPlaceArgs;
use crate::cli::sandbox::{ExecArgs, InspectArgs, RmArgs, RunArgs, SandboxArgs, SandboxVerb};
use crate::output;
use crate::owned::pods::Keeper;
use crate::sandbox::{Cluster, Manifest, read};

#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("no pod {name:.80?}; `{ls}` shows those that there are")]
    NoPod {
        name: String,
        /// The command that lists them.
        ls: String,
    },
    #[error("{name:.80?} could be any of {}; name its namespace or its ID", pods.join(", "))]
    Ambiguous { name: String, pods: Vec<String> },
    #[error("pod {pod} exists already, as {id}; use --replace to replace it")]
    Exists { pod: String, id: String },
    #[error("{0} of {1} pods could not be taken down")]
    Some(usize, usize),
    #[error(
        "{why}; {install} sets up a network and its agent, and `russet cni lint {}/*` reports what is wrong with an existing configuration",
        conf_dir.display()
    )]
    NoNetwork {
        why: SandboxError,
        /// The commands that set up a network.
        install: String,
        conf_dir: PathBuf,
    },
    #[error(
        "no pod can be attached to network {network:?}: {source}; install the plugin, or name its directory with --cni-bin-dir"
    )]
    NoPlugin { network: String, source: PluginError },
    #[error("execute {program}: {source}")]
    Execute { program: String, source: std::io::Error },
}

/// The directories, and the locked sandboxes.
struct Place {
    paths: Paths,
    run_dir: PathBuf,
    conf_dir: PathBuf,
    runtime: Runtime,
    sandboxes: Sandboxes,
}

/// How long another command may hold the sandboxes. A hanging plugin is killed earlier, after 60 s;
/// this does not cover two of them.
const LOCK_TIMEOUT: Duration = Duration::from_secs(90);
/// The exit code of shells and container runtimes.
const NO_SUCH_PROGRAM: u8 = 127;
const CANNOT_EXECUTE: u8 = 126;
/// The minimum length of an abbreviated ID.
const ID_MIN_DIGITS: usize = 4;

pub fn run(args: SandboxArgs) -> ExitCode {
    let done = match args.verb {
        SandboxVerb::Run(run) => make(args.place, run),
        SandboxVerb::Exec(exec) => return execute(args.place, exec),
        SandboxVerb::Ls(output) => ls(args.place, output),
        SandboxVerb::Inspect(inspect) => show_one(args.place, inspect),
        SandboxVerb::Stop(names) => Place::open(args.place).and_then(|place| {
            let pods = place.find_all(&names.pods, false)?;
            each(&pods, |pod| place.sandboxes.stop(&pod.id))
        }),
        SandboxVerb::Rm(rm) => remove(args.place, rm),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::failed(error),
    }
}

fn make(args: PodPlaceArgs, run: RunArgs) -> Result<(), Failure> {
    let cluster = Cluster { servers: run.cluster_dns, domain: run.cluster_domain };
    let Manifest { config, warnings } = read(&run.file, &cluster, &russet_sandbox::node_resolv_conf()?)?;
    warnings.iter().for_each(|warning| output::progress(&format!("warning: {}", output::visible(warning))));
    let place = Place::open(args)?;
    let name = show::name(&config.metadata);
    for pod in place.pods().into_iter().filter(|pod| show::name(&pod.config.metadata) == name) {
        if pod.state == State::Ready && !run.replace {
            return Err(CommandError::Exists { pod: name, id: pod.id.to_string() }.into());
        }
        place.sandboxes.remove(&pod.id)?;
    }
    let in_own_network = !config.host_network;
    if in_own_network {
        place.require_plugins()?;
    }
    let id = place.sandboxes.run(config).map_err(|error| place.explained(error))?;
    if let Some(why) = place.no_way_out().filter(|_| in_own_network) {
        output::progress(&format!("warning: {why}"));
    }
    let pod = place.sandboxes.status(&id)?;
    output::print_as(run.output.format, &show::made(&pod, &warnings), || format!("{id}\n"));
    Ok(())
}

fn ls(args: PodPlaceArgs, output: OutputArgs) -> Result<(), Failure> {
    let pods = Place::open(args)?.pods();
    output::print_as(output.format, &show::list(&pods), || show::table(&pods));
    Ok(())
}

fn show_one(args: PodPlaceArgs, inspect: InspectArgs) -> Result<(), Failure> {
    let place = Place::open(args)?;
    let pod = place.find(&inspect.pod)?;
    let pod = place.sandboxes.status(&pod.id)?;
    output::print_as(inspect.output.format, &show::one(&pod), || show::text(&pod));
    Ok(())
}

fn remove(args: PodPlaceArgs, rm: RmArgs) -> Result<(), Failure> {
    let place = Place::open(args)?;
    let pods = if rm.all { place.pods() } else { place.find_all(&rm.pods, rm.if_exists)? };
    each(&pods, |pod| place.sandboxes.remove(&pod.id))
}

/// Continues after failures, and prints each.
fn each(pods: &[Sandbox], work: impl Fn(&Sandbox) -> Result<(), SandboxError>) -> Result<(), Failure> {
    let failed = |pod: &&Sandbox| work(pod).map_err(|error| output::error(&error)).is_err();
    match pods.iter().filter(failed).count() {
        0 => Ok(()),
        failed => Err(CommandError::Some(failed, pods.len()).into()),
    }
}

/// Executes the program in place of this process: signals and exit code are the program's own.
fn execute(args: PodPlaceArgs, exec: ExecArgs) -> ExitCode {
    let entered = || -> Result<(), Failure> {
        let place = Place::open(args)?;
        let pod = place.find(&exec.pod)?;
        // The same namespaces are entered, whatever engine made the sandbox.
        let engine = Builtin::new(&place.run_dir);
        // Releases the lock while the program runs.
        drop(place);
        Ok(engine.enter(&pod.id, &pod.config, &pod.dir)?)
    };
    if let Err(error) = entered() {
        output::error(error.as_ref());
        return ExitCode::from(FAILED);
    }
    let mut words = exec.program.iter();
    let program = words.next().cloned().unwrap_or_default();
    let mut command = std::process::Command::new(&program);
    command.args(words);
    let source = std::os::unix::process::CommandExt::exec(&mut command);
    let code = if source.kind() == std::io::ErrorKind::NotFound { NO_SUCH_PROGRAM } else { CANNOT_EXECUTE };
    output::error(&CommandError::Execute { program: program.to_string_lossy().into_owned(), source });
    ExitCode::from(code)
}

// === impl Place ===

impl Place {
    fn open(args: PodPlaceArgs) -> Result<Self, Failure> {
        let paths = Paths::new(&args.root);
        let places = PodPlaces::from_args(args, Keeper::Command);
        let options = Options {
            state_dir: places.state_dir.clone(),
            run_dir: places.run_dir.clone(),
            engine: places.engine(),
            runtime: places.runtime(),
            networks: Box::new(ConfigDir::new(&places.conf_dir)),
            metrics: Metrics::default(),
            lock_timeout: LOCK_TIMEOUT,
            on_waiting: |holder| {
                let limit_s = LOCK_TIMEOUT.as_secs();
                output::progress(&format!(
                    "waiting for {holder}, which has the pods, for {limit_s} s at most"
                ));
            },
        };
        let runtime = options.runtime.clone();
        let (run_dir, conf_dir) = (places.run_dir, places.conf_dir);
        Ok(Self { paths, run_dir, conf_dir, runtime, sandboxes: Sandboxes::open(options)? })
    }

    /// A missing plugin fails the pod's ADD and the DEL that would clean up, so nothing is started
    /// without it. Without a usable network the sandbox itself is refused.
    fn require_plugins(&self) -> Result<(), CommandError> {
        let Ok((list, _)) = ConfigDir::new(&self.conf_dir).first() else { return Ok(()) };
        let missing = |source| CommandError::NoPlugin { network: list.name.to_string(), source };
        self.runtime.require_plugins(&list).map_err(missing)
    }

    /// Adds a remedy if there is no network.
    fn explained(&self, why: SandboxError) -> Failure {
        match why {
            SandboxError::NetworkNotReady(_) => {
                let install = match self.paths.root() == Path::new("/") {
                    true => "`russet install --start`".to_owned(),
                    // `--start` is for the running system's units, which another root does not have.
                    false => format!(
                        "`{}` with `{}`",
                        self.paths.command("install --in-place"),
                        self.paths.command("agent")
                    ),
                };
                CommandError::NoNetwork { why, install, conf_dir: self.conf_dir.clone() }.into()
            }
            other => other.into(),
        }
    }

    /// Why a pod of the default network does not reach other hosts, if so.
    fn no_way_out(&self) -> Option<&'static str> {
        let (list, _) = ConfigDir::new(&self.conf_dir).first().ok()?;
        russet_runtime::lint::no_way_out(&list)
    }

    fn pods(&self) -> Vec<Sandbox> {
        self.sandboxes.list(&Filter::default())
    }

    fn find(&self, name: &str) -> Result<Sandbox, CommandError> {
        find(self.pods(), name, || self.paths.command("sandbox ls"))
    }

    fn find_all(&self, names: &[String], if_exists: bool) -> Result<Vec<Sandbox>, CommandError> {
        let mut found: Vec<Sandbox> = Vec::new();
        for name in names {
            match self.find(name) {
                Ok(pod) if found.iter().any(|other| other.id == pod.id) => {}
                Ok(pod) => found.push(pod),
                Err(CommandError::NoPod { .. }) if if_exists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// `ls` gives the command that lists the pods.
fn find(pods: Vec<Sandbox>, name: &str, ls: impl Fn() -> String) -> Result<Sandbox, CommandError> {
    let named = |pod: &&Sandbox| pod.config.metadata.name == name || show::name(&pod.config.metadata) == name;
    let mut found: Vec<&Sandbox> = pods.iter().filter(named).collect();
    if found.is_empty() && name.len() >= ID_MIN_DIGITS {
        found = pods.iter().filter(|pod| pod.id.as_str().starts_with(name)).collect();
    }
    match found[..] {
        [] => Err(CommandError::NoPod { name: name.to_owned(), ls: ls() }),
        [pod] => Ok(pod.clone()),
        _ => {
            let of =
                |pod: &&Sandbox| format!("{} ({:.12})", show::name(&pod.config.metadata), pod.id.as_str());
            Err(CommandError::Ambiguous { name: name.to_owned(), pods: found.iter().map(of).collect() })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use russet_sandbox::{Config, Metadata, SandboxId};

    use super::*;

    fn pod(namespace: &str, name: &str) -> Sandbox {
        let metadata = Metadata { name: name.into(), namespace: namespace.into(), ..Metadata::default() };
        Sandbox {
            id: SandboxId::random().unwrap(),
            config: Config { metadata, ..Config::default() },
            state: State::Ready,
            created_at: SystemTime::UNIX_EPOCH,
            netns: None,
            pid: None,
            addresses: Vec::new(),
            dir: PathBuf::from("/"),
            trouble: None,
        }
    }

    #[test]
    fn a_pod_is_found_by_name_by_namespace_and_by_the_beginning_of_its_id() {
        let pods = [pod("default", "web"), pod("ns1", "web"), pod("ns1", "db")];
        let found = |name: &str| find(pods.to_vec(), name, || "russet sandbox ls".to_owned());
        assert_eq!(found("db").unwrap(), pods[2]);
        assert_eq!(found("ns1/web").unwrap(), pods[1]);
        assert_eq!(found(pods[0].id.as_str()).unwrap(), pods[0]);
        assert_eq!(found(&pods[0].id.as_str()[..16]).unwrap(), pods[0]);
        assert!(matches!(found("web"), Err(CommandError::Ambiguous { .. })));
        assert!(matches!(found("w"), Err(CommandError::NoPod { .. })));
        assert!(matches!(found(""), Err(CommandError::NoPod { .. })));
    }
}
