//! One module per verb; each takes its arguments and returns an exit code.

mod agent;
mod apply;
pub mod ask;
mod capture;
mod cni;
pub mod cni_direct;
mod completions;
mod controller;
mod cri;
mod delete;
mod demo_forward;
mod doctor;
mod drift;
mod explain;
mod findings;
pub mod flanneld;
mod flows;
mod get;
mod install;
mod ipam;
mod journal;
mod kube;
mod logging;
mod man;
mod map;
mod migrate;
pub mod netavark;
mod netnamespace;
mod owned;
pub mod place;
mod pods;
pub mod policy;
mod report;
mod sandbox;
mod status;
mod store;
mod top;
mod trace;
mod ui;
mod uninstall;
mod version;

use std::process::ExitCode;

use crate::cli::{Cli, Verb};

/// Exit code for "failed".
const FAILED: u8 = 1;
/// Exit code for "ran well and found problems" (ARCHITECTURE.md, "Names and places").
pub const PROBLEMS: u8 = 3;

/// Runs one verb.
pub fn run(cli: Cli) -> ExitCode {
    let result = match cli.verb {
        Verb::Agent(args) => agent::run(*args),
        Verb::Controller(args) => return controller::run(*args).unwrap_or_else(failed),
        Verb::Gc(args) => controller::gc(args),
        Verb::Demo(args) => return crate::demo::run(args).unwrap_or_else(failed),
        Verb::DemoForward(args) => demo_forward::run(args),
        Verb::Store(args) => store::run(args),
        Verb::Flanneld(args) => return flanneld::run(args.words),
        Verb::Cni(args) => return cni::run(args),
        Verb::Netavark(args) => return netavark::run(args),
        Verb::Cri(args) => cri::run(args),
        Verb::Sandbox(args) => return sandbox::run(args),
        Verb::CniDirect(args) => return cni_direct::run(args),
        Verb::Ipam(args) => return ipam::run(args).unwrap_or_else(failed),
        Verb::Get(args) => return get::run(args).unwrap_or_else(failed),
        Verb::NetNamespace(args) => netnamespace::run(args),
        Verb::Journal(args) => journal::run(args),
        Verb::Kube(args) => return kube::run(args).unwrap_or_else(failed),
        Verb::Install(args) => install::run(args),
        Verb::Apply(args) => apply::run(args),
        Verb::Delete(args) => delete::run(args),
        Verb::Explain(args) => return explain::run(*args).unwrap_or_else(failed),
        Verb::Policy(args) => return policy::run(args).unwrap_or_else(failed),
        Verb::Flows(args) => return flows::run(args).unwrap_or_else(failed),
        Verb::Doctor(args) => return doctor::run(*args).unwrap_or_else(failed),
        Verb::Status(args) => return status::run(args).unwrap_or_else(failed),
        Verb::Report(args) => report::run(args),
        Verb::Capture(args) => return capture::run(args).unwrap_or_else(failed),
        Verb::Trace(args) => return trace::run(*args).unwrap_or_else(failed),
        Verb::Map(args) => map::run(args),
        Verb::Ui(args) => ui::run(args),
        Verb::Top(args) => return top::run(args).unwrap_or_else(failed),
        Verb::Drift(args) => return drift::run(args).unwrap_or_else(failed),
        Verb::Owned(args) => owned::run(args),
        Verb::Uninstall(args) => uninstall::run(args),
        Verb::Migrate(args) => return migrate::run(args).unwrap_or_else(failed),
        Verb::Completions(args) => return completions::run(&args),
        Verb::Man(args) => man::run(&args),
        Verb::Version(args) => version::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error),
    }
}

fn failed(error: Failure) -> ExitCode {
    crate::output::error(error.as_ref());
    if let Some(store) = place::used() {
        crate::output::progress(&format!("store: {store}"));
    }
    ExitCode::from(FAILED)
}

/// Commands return this error to [`run`], which prints it once and turns it into an exit code.
pub type Failure = Box<dyn std::error::Error>;

/// The runtime of a daemon: one thread for asynchronous tasks, and more for blocking work.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    /// Blocking work is netlink, files, locks, IPAM plugins and DNS. Some of it may hang, and must
    /// not delay the rest: each kind limits how many of these threads it uses. Threads start on
    /// demand and end when idle.
    const BLOCKING_THREADS_MAX: usize = 64;
    /// Blocking work has shallow stacks; small ones keep the agent's memory small.
    const STACK_BYTES: usize = 512 * 1024;
    russet_linux::memory::limit_heaps();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).thread_stack_size(STACK_BYTES).build()
}

/// Resolves when the process receives SIGTERM or SIGINT, or its terminal is closed. The signals are
/// caught from this call on, which must be inside a runtime; before it, a signal ends the process.
pub fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}
