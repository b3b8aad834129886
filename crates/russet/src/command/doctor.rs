//! `russet doctor`: what is wrong on this node, what was seen, and what to do about it.

mod agent;
mod clock;
mod datapath;
mod kernel;
mod needs;
mod others;
mod overlap;
mod rights;
mod services;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use russet_agent::{Config, OverlayInputsError, Paths, overlay_inputs};
use russet_linux::sysctl;
use russet_overlay::Inputs;

use super::findings::{FindingKind, Findings, Repair};
use super::place::{self, Place};
use super::{Failure, kube, runtime};
use crate::cli::doctor::DoctorArgs;
use crate::cli::store::StoreChoice;
use crate::output;
use crate::settings::{self, Chosen, recorded};
use needs::Needs;

/// A datastore that takes longer for one read delays every ADD by some multiple of it.
const SLOW_READ: Duration = Duration::from_millis(250);

/// What to do about settings that cannot be read.
const CORRECT: &str = "correct what the message names, and start the agent; until then plugins without an agent refuse each ADD";
/// What to do about a store that does not answer.
const REACHABLE: &str = "see that it runs and that its address, certificates and rights are right: `russet ipam show -v` names the setting";

/// The node, as far as its records and its store describe it.
struct Described {
    config: Config,
    /// None if they cannot be computed; a finding says why.
    inputs: Option<Inputs>,
    pod_mtu_bytes: u32,
}

/// Examines the node.
pub fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let paths = Paths::new(&args.store.root);
    let mut report = Findings { schema: 1, looked_at: vec!["kernel", "node"], ..Findings::default() };
    let conflists = below(&args.store.root, &args.cni_conf_dir);
    let host_local = below(&args.store.root, Path::new(kube::node::HOST_LOCAL));
    let conflists = kube::node::look(&conflists, &host_local, &mut report);
    let described = runtime()?.block_on(describe(args.store, &mut report));
    let mut needs = match &described {
        Some(Described { inputs: Some(inputs), .. }) => Needs::of_inputs(inputs),
        Some(Described { config, .. }) => Needs::of_pools(&config.pools),
        None => Needs::of_pools(&Default::default()),
    };
    needs.plugins = needs::plugins(&conflists);
    if let Some(Described { config, .. }) = described.as_ref().filter(|it| !it.config.calico) {
        needs.fast_path = config.fast_path;
    }
    kernel::look(&needs, &mut report);
    if let Some(Described { config, inputs, pod_mtu_bytes }) = &described {
        if let Some(inputs) = inputs {
            let journal = config.paths.journal_file();
            let bridges: BTreeSet<String> =
                conflists.all().iter().flat_map(|conflist| conflist.bridges.clone()).collect();
            if let Err(error) = datapath::look(inputs, (&journal, *pod_mtu_bytes, bridges), &mut report) {
                report.unknown.push(format!("interfaces and routes: {error}"));
            }
        }
        agent::look(&config.paths, &mut report);
    } else if paths.cni_socket().exists() {
        agent::look(&paths, &mut report);
    }
    if args.fix {
        repair(&mut report);
    }
    output::print_as(args.output.format, &report, || report.text("nothing found"));
    Ok(report.exit_code())
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// What the last agent recorded, and what the store says; None on a node on which no agent has run.
async fn describe(choice: StoreChoice, report: &mut Findings) -> Option<Described> {
    let paths = Paths::new(&choice.root);
    let records = recorded::look(&paths);
    if let Some(doubt) = records.doubt {
        let remedy = "until then plugins without an agent refuse each ADD: docs/configuration.md";
        report.found(FindingKind::Settings, "settings", doubt.to_string(), remedy);
    }
    if let Err(error) = settings::check_file(&paths) {
        report.found(FindingKind::Settings, "settings file", error.to_string(), CORRECT);
    }
    let place = match records.known.is_some() || choice.location.store.is_some() {
        true => open(choice, report).await,
        false => None,
    };
    if let Some(place) = &place {
        services::look(place, report).await;
        others::look(place, records.known.as_ref().map(|known| &known.node_name), report).await;
    }
    let config = match records.known?.config(paths) {
        Ok(config) => config,
        Err(error) => {
            report.found(FindingKind::Settings, "settings", error.to_string(), CORRECT);
            return None;
        }
    };
    let mut described = Described { config, inputs: None, pod_mtu_bytes: 0 };
    let Some(place) = place else { return Some(described) };
    rights::look(&place, &described.config, report).await;
    match overlay_inputs(&described.config, &*place.store).await {
        Ok((inputs, mtu)) => (described.inputs, described.pod_mtu_bytes) = (Some(inputs), mtu),
        Err(OverlayInputsError::Underlay(error)) => report.found(
            FindingKind::Underlay,
            "underlay",
            error.to_string(),
            "give the interface to the other nodes with --interface, or set it up with an address",
        ),
        Err(error) => report.unknown.push(format!("routes and tunnels: {error}")),
    }
    Some(described)
}

/// Opens the store and reads from it; looks at the cluster if the store is the Kubernetes API. What fails is a finding.
async fn open(choice: StoreChoice, report: &mut Findings) -> Option<Place> {
    report.looked_at.push("datastore");
    let chosen = match place::choose(choice) {
        Ok(chosen) => chosen,
        Err(error) => {
            report.found(FindingKind::Settings, "datastore", error.to_string(), CORRECT);
            return None;
        }
    };
    let subject = chosen.location.to_string();
    let (place, took) = match read(chosen).await {
        Ok(read) => read,
        Err(error) => {
            report.found(FindingKind::Store, subject, format!("it cannot be read: {error}"), REACHABLE);
            return None;
        }
    };
    if took > SLOW_READ {
        let ms = took.as_millis();
        let problem =
            format!("it takes {ms} ms to read the pools: each pod's start waits for several such answers");
        report.found(FindingKind::Store, subject, problem, "look at its disk and at the network to it");
    }
    if let Some(client) = place.kubernetes() {
        report.looked_at.push("cluster");
        kube::cluster::look(&client, report).await;
    }
    Some(place)
}

/// The open store, and how long a read takes.
async fn read(chosen: Chosen) -> Result<(Place, Duration), Failure> {
    Place::require(&chosen)?;
    let place = Place::of(chosen).await?;
    // The first one may open a connection.
    place.allocator().pools().await?;
    let start = Instant::now();
    place.allocator().pools().await?;
    Ok((place, start.elapsed()))
}

/// Sets what findings name; the others keep their remedies.
fn repair(report: &mut Findings) {
    for finding in &mut report.findings {
        let Some((name, value)) = &finding.setting else { continue };
        finding.repair = Some(match sysctl::write_if_different(name, value) {
            Ok(_) => Repair::Done,
            Err(error) => Repair::Failed(error.to_string()),
        });
    }
}
