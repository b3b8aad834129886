//! `russet demo`: nodes as namespaces, an agent process in each, pods attached through the real CNI
//! path, and a matrix of the connections between them. Everything happens in namespaces that the
//! demo makes and removes.
//!
//! The demo itself is one thread: children die with it (`PR_SET_PDEATHSIG` counts threads), and a
//! user namespace can only be entered by a process without threads.

mod datastore;
mod faults;
mod flannel;
mod fleet;
mod interrupt;
mod kubernetes;
mod lab;
mod leftovers;
mod matrix;
mod ping;
mod pods;
mod policies;
mod report;
mod rootless;
mod topology;

use std::process::ExitCode;
use std::time::Instant;

use crate::cli::{DemoArgs, DemoFabric, DemoMode};
use crate::command::{Failure, PROBLEMS};
use crate::output;
use datastore::Datastore;
use fleet::Fleet;
use interrupt::Interrupt;
use kubernetes::Programs;
use lab::Lab;
use report::{PodReport, Report};

/// Errors that stop a demo.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Ctrl-C or SIGTERM.
    #[error("interrupted; everything was removed")]
    Interrupted,
    /// An operation on a file or process failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        source: std::io::Error,
    },
    /// A step of the demo failed.
    #[error("{what}: {source}")]
    Step {
        /// The step.
        what: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The demo refuses to start, for a reason without a source.
    #[error("{0}")]
    Refused(String),
    /// Some pings had no answer.
    #[error("{failed} of {all} pings had no answer")]
    Unreachable { failed: usize, all: usize },
}

// === impl DemoError ===

impl DemoError {
    fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    fn namespace(source: russet_linux::NetNsError) -> Self {
        Self::step("enter a namespace", source)
    }

    fn step(what: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Step { what: what.into(), source: source.into() }
    }
}

/// Runs the demo, or cleans up after one. Exits with 3 if packets do not pass as the policies say.
pub fn run(args: DemoArgs) -> Result<ExitCode, Failure> {
    refuse_contradictions(&args)?;
    rootless::become_root()?;
    let _lock = leftovers::lock()?;
    if args.clean {
        let removed = leftovers::remove()?;
        output::progress(if removed { "removed what an earlier demo left" } else { "nothing to remove" });
        return Ok(ExitCode::SUCCESS);
    }
    leftovers::refuse_if_kept()?;
    if leftovers::remove()? {
        output::progress("removed what a killed demo left");
    }
    let programs =
        args.kubernetes.then(|| Programs::find(args.kubernetes_programs.as_deref())).transpose()?;
    let datastore = match &programs {
        Some(programs) => Datastore::Kubernetes(programs.etcd.clone()),
        None => Datastore::new(args.etcd.as_ref())?,
    };
    let interrupt = Interrupt::listen()?;
    let mut lab = Lab::new(&args);
    let mut fleet = Fleet::new(datastore, args.keep);
    let outcome = match &programs {
        Some(programs) => show_cluster(&mut lab, &mut fleet, programs, args.pods, &interrupt),
        None => show(&lab, &mut fleet, &args, &interrupt),
    };
    if let Ok(report) = &outcome {
        output::print_as(args.output.format, report, || report.text());
    }
    let kept = args.keep && outcome.is_ok();
    if kept && !rootless::is_inside() {
        fleet.keep()?;
        explain_keep(&lab, "russet demo --clean");
        explain_cluster(programs.as_ref());
    } else {
        if kept {
            explain_keep(&lab, "Ctrl-C");
            explain_cluster(programs.as_ref());
            interrupt.wait_for_ever();
        }
        let down = take_down(&lab, fleet);
        // The first error is the cause that the user needs.
        if outcome.is_ok() {
            down?;
        }
    }
    let report = outcome?;
    match report.failures() {
        0 if report.problems() > 0 => Ok(ExitCode::from(PROBLEMS)),
        0 => Ok(ExitCode::SUCCESS),
        failed => Err(DemoError::Unreachable { failed, all: report.pings.len() }.into()),
    }
}

fn refuse_contradictions(args: &DemoArgs) -> Result<(), DemoError> {
    let (is_flannel, pods) =
        (args.fabric == DemoFabric::Flannel, usize::from(args.nodes) * usize::from(args.pods));
    let why = if args.backend.is_some() && !is_flannel {
        "--backend is flannel's: add --fabric flannel".to_owned()
    } else if args.policy && is_flannel {
        "--policy needs the agent: flannel enforces no policies".to_owned()
    } else if args.break_nodes && (is_flannel || args.mode != DemoMode::Vxlan || args.nodes < 2) {
        "--break needs the agent, its tunnels and two nodes: leave out --fabric, --mode and --nodes 1"
            .to_owned()
    } else if args.policy && pods > policies::PODS_MAX {
        format!("--policy shows at most {} pods, and there would be {pods}", policies::PODS_MAX)
    } else {
        return Ok(());
    };
    Err(DemoError::Refused(why))
}

/// Builds everything and measures.
fn show(lab: &Lab, fleet: &mut Fleet, args: &DemoArgs, interrupt: &Interrupt) -> Result<Report, DemoError> {
    let started = Instant::now();
    let say = |line: &str| report_progress(started, line);
    let (nodes, pods) = (lab.nodes.len(), lab.pods().count());
    say(&format!("{nodes} node namespaces and an outside host, joined by a switch"));
    topology::build(lab)?;
    interrupt.check()?;
    let (daemon, mode) = (lab.fabric.daemon(), lab.fabric.name());
    say(&format!("{}, and {nodes} {daemon}s ({mode})", fleet.datastore.describe()));
    fleet.start(lab, interrupt)?;
    say(&format!("{pods} pods, attached through CNI"));
    let attached = pods::attach_all(lab, interrupt)?;
    let mut report = measure(lab, fleet, attached, started, interrupt)?;
    if args.policy {
        report.policy = Some(policies::show(fleet, &report.pods, interrupt, say)?);
    }
    if args.break_nodes {
        report.faults = Some(faults::show(lab, fleet, &report.pods, interrupt, say)?);
    }
    Ok(finished(report, started))
}

/// The same in a Kubernetes cluster.
fn show_cluster(
    lab: &mut Lab,
    fleet: &mut Fleet,
    programs: &Programs,
    pods_per_node: u8,
    interrupt: &Interrupt,
) -> Result<Report, DemoError> {
    let started = Instant::now();
    let say = |line: &str| report_progress(started, line);
    let nodes = lab.nodes.len();
    say(&format!("{nodes} node namespaces and an outside host, joined by a switch"));
    topology::build(lab)?;
    interrupt.check()?;
    say("etcd, kube-apiserver, kube-controller-manager and kube-scheduler on the outside host");
    let mut cluster = kubernetes::Cluster::start(programs, fleet, interrupt)?;
    say(&format!(
        "Kubernetes {}; russet.yaml applied, and agents started as its pods",
        cluster.report().version
    ));
    cluster.install(lab, fleet, interrupt)?;
    let replicas = nodes * usize::from(pods_per_node);
    say(&format!("all nodes are Ready; a Deployment of {replicas} pods, attached through CNI"));
    let attached = cluster.run_pods(lab, fleet, replicas, interrupt)?;
    let mut report = measure(lab, fleet, attached, started, interrupt)?;
    report.kubernetes = Some(cluster.report().clone());
    Ok(finished(report, started))
}

/// Pings between all pods.
fn measure(
    lab: &Lab,
    fleet: &Fleet,
    attached: Vec<PodReport>,
    started: Instant,
    interrupt: &Interrupt,
) -> Result<Report, DemoError> {
    report_progress(started, "pings between all pods, and to the outside host");
    let pings = matrix::measure(&attached, interrupt)?;
    let blocks = fleet.blocks(lab, &attached)?;
    Ok(Report {
        schema: 1,
        mode: lab.fabric.name(),
        nodes: fleet.reports(lab),
        pods: attached,
        pings,
        blocks,
        kubernetes: None,
        policy: None,
        faults: None,
        elapsed_ms: 0,
    })
}

fn finished(mut report: Report, started: Instant) -> Report {
    report_progress(started, "done");
    report.elapsed_ms = started.elapsed().as_millis() as u64;
    report
}

fn report_progress(started: Instant, line: &str) {
    output::progress(&format!("[{:6.2} s] {line}", started.elapsed().as_secs_f64()));
}

fn take_down(lab: &Lab, fleet: Fleet) -> Result<(), DemoError> {
    let detached = pods::detach_all(lab);
    fleet.stop();
    leftovers::remove()?;
    detached
}

fn explain_cluster(programs: Option<&Programs>) {
    if programs.is_some() {
        output::progress(&format!(
            "      the cluster:   {enter} {} kubectl --kubeconfig {} get nodes,pods -A",
            lab::OUTSIDE,
            kubernetes::kubeconfig().display(),
            enter = rootless::enter_command(),
        ));
    }
}

fn explain_keep(lab: &Lab, removal: &str) {
    let Some((node, pod)) = lab.pods().next() else { return };
    output::progress(&format!(
        "kept. Enter a pod:   {enter} {}\n      enter a node:  {enter} {}\n      an agent's log: {}\n      remove it all: {removal}",
        pod.namespace,
        node.namespace,
        fleet::log_path(&node.name).display(),
        enter = rootless::enter_command(),
    ));
}
