//! `russet explain`: who reaches whom and why, by the documents of files, or by the datastore and
//! what this node's kernel holds.

mod agents;
mod decisions;
mod egress;
mod fast_path;
mod path;
mod reachable;
mod report;
mod this_node;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::ExitCode;

use russet_addr::Family;
use russet_verdict::explain::{Explanation, OtherPods, Peer, Probe, Question, QuestionError, protocol_name};
use russet_verdict::flow::Flow;
use russet_verdict::ir::Protocol;
use russet_verdict::snapshot::Snapshot;
use serde_json::{Value, json};

use super::place::Place;
use super::policy::datastore::{Datastore, OtherPod, pod_name};
use super::policy::files::Cluster;
use super::{Failure, PROBLEMS, runtime};
use crate::cli::policy::{ExplainArgs, FamilyArg};
use crate::output;
use report::Report;
use this_node::ThisNode;

/// More flows of one question are counted, and not printed as text.
const SHOWN_MAX: usize = 8;
/// What is asked where neither the question nor the destination names a port.
const PING: Probe = Probe { protocol: Protocol::ICMP, port: 0 };

#[derive(Debug, thiserror::Error)]
enum AskError {
    /// The pod exists, and nothing can be sent to it or by it.
    #[error("pod {0} has no address: it is {1}; see `kubectl describe pod`")]
    WithoutAddress(String, String),
    /// The protocol has ports, and none is given.
    #[error("--proto {0} needs a PORT")]
    NoPort(String),
    /// The datastore has no such node.
    #[error("there is no node {0}; see `russet get nodes`")]
    NoNode(String),
}

/// Explains each flow that the question means.
pub fn run(args: ExplainArgs) -> Result<ExitCode, Failure> {
    let family = args.family.map(|family| match family {
        FamilyArg::V4 => Family::V4,
        FamilyArg::V6 => Family::V6,
    });
    let probe = args.probe();
    if let Some(Probe { protocol, port: 0 }) = probe.filter(|probe| probe.protocol.has_ports()) {
        return Err(AskError::NoPort(protocol_name(protocol)).into());
    }
    let question = Question { from: args.from.clone(), to: args.to.clone(), probe, family };
    if args.files.is_empty() {
        return runtime()?.block_on(of_cluster(args, question));
    }
    let cluster = Cluster::read(&args.files)?;
    cluster.problems.iter().for_each(|problem| output::progress(&format!("note: {problem}")));
    let flows = question.flows(&cluster.snapshot)?;
    Ok(print(&args, (&cluster.snapshot, &OtherPods::new()), &flows, &Report::default()))
}

async fn of_cluster(mut args: ExplainArgs, mut question: Question) -> Result<ExitCode, Failure> {
    let place = Place::open_cluster(std::mem::take(&mut args.place)).await?;
    let mut data = Datastore::read(&place).await?;
    data.resolve_names(&place).await;
    let (mut report, family) = (Report::default(), question.family);
    data.notes.iter().for_each(|text| report.note("datastore", text.clone()));
    for peer in [&mut question.from, &mut question.to] {
        *peer = own_end(&data, peer.clone(), family, &mut report)?;
    }
    let snapshot = &data.cluster.snapshot;
    let flows = match question.flows(snapshot) {
        Err(QuestionError::NoPort(_)) => {
            report.note("port", "the destination names no port: a ping is asked; give PORT".to_owned());
            Question { probe: Some(PING), ..question }.flows(snapshot)?
        }
        flows => flows?,
    };
    let other =
        args.node.as_deref().filter(|name| data.node.as_ref().is_none_or(|own| own.as_str() != *name));
    let mut node = match other {
        Some(_) => None,
        None => ThisNode::read(&place, data.node.as_ref(), &mut report).await?,
    };
    let pairs: BTreeSet<_> = flows.iter().map(|flow| (flow.source, flow.destination)).collect();
    let pairs: Vec<_> = pairs.into_iter().take(SHOWN_MAX).collect();
    for pair in pairs.iter().copied() {
        path::owners(&place, snapshot, pair, &mut report).await?;
        if let Some(node) = &mut node {
            node.path(&data, pair, &mut report)?;
        }
        if let Some(name) = other {
            other_node(&data, name, pair, &mut report)?;
        }
    }
    agents::compare(&place, snapshot, pairs, &mut report).await;
    if let Some(node) = &mut node {
        node.compare(&data, &flows, &mut report);
        fast_path::look(&place.paths, &flows, &mut report);
    }
    egress::explain(&data, &flows, &mut report);
    Ok(print(&args, (snapshot, &data.other_pods()), &flows, &report))
}

/// What the datastore says of two addresses and a node that is not this machine. Agents answer on their
/// own machines only.
fn other_node(
    data: &Datastore,
    name: &str,
    (source, destination): (IpAddr, IpAddr),
    report: &mut Report,
) -> Result<(), Failure> {
    let snapshot = &data.cluster.snapshot;
    let Some((_, node)) = snapshot.nodes.iter().find(|(node, _)| node.as_str() == name) else {
        return Err(AskError::NoNode(name.to_owned()).into());
    };
    let mut is_there = false;
    for address in [source, destination] {
        let pod = snapshot.workload_at(address).filter(|(_, endpoint)| *endpoint.node == *name);
        if let Some((_, endpoint)) = pod {
            report.fact(format!(
                "{} ({address}) is a pod of node {name}, by the datastore",
                pod_name(endpoint)
            ));
        } else if node.addresses.contains(&address) {
            report.fact(format!("{address} is node {name}, by the datastore"));
        } else {
            continue;
        }
        is_there = true;
    }
    if !is_there {
        report.note("node", format!("neither end is on node {name}"));
    }
    if let Some(reason) = data.not_ready.get(name) {
        report.finding("node", format!("the API server says that node {name} is not ready: {reason}"));
    }
    report.note("node", format!("the kernel of node {name} was not compared: this machine is another one, and an agent answers on its own only; ask there, too"));
    Ok(())
}

/// The end that a pod means which policies do not know by its name: its node, or its address.
fn own_end(
    data: &Datastore,
    peer: Peer,
    family: Option<Family>,
    report: &mut Report,
) -> Result<Peer, Failure> {
    let Peer::Pod(..) = &peer else { return Ok(peer) };
    let name = peer.to_string();
    match data.others.get(&name) {
        Some(OtherPod::HostNetwork(node)) => {
            report.note(
                "host-network",
                format!(
                    "{name} uses the network of node {node}: no policy selects it, and rules see the node's address"
                ),
            );
            Ok(Peer::Node(node.clone()))
        }
        Some(OtherPod::WithoutAddress(phase)) => {
            let phase = if phase.is_empty() { "Pending" } else { phase };
            Err(AskError::WithoutAddress(name, phase.to_owned()).into())
        }
        Some(OtherPod::Unrecorded { node, addresses }) => {
            report.note("labels", format!("no workload endpoint describes {name} of node {node}: other nodes know its addresses, and no labels"));
            let counts = |address: &&IpAddr| family.is_none_or(|family| family == Family::of(**address));
            Ok(addresses.iter().find(counts).map_or(peer, |address| Peer::Address(*address)))
        }
        None => Ok(peer),
    }
}

fn print(
    args: &ExplainArgs,
    (snapshot, others): (&Snapshot, &OtherPods),
    flows: &[Flow],
    report: &Report,
) -> ExitCode {
    let explanations: Vec<_> = flows.iter().map(|flow| Explanation::beside(others, snapshot, flow)).collect();
    let denied = explanations.iter().filter(|it| !it.trace.allowed()).count();
    let mut json = json!({
        "verdict": if denied == 0 { "allowed" } else { "denied" },
        "flows": explanations.iter().map(Explanation::to_json).collect::<Vec<_>>(),
    });
    if args.files.is_empty()
        && let (Some(members), Value::Object(live)) = (json.as_object_mut(), json!(report))
    {
        members.extend(live);
    }
    output::print_as(args.output.format, &json, || explained(&explanations) + &report.to_string());
    let good = denied == 0 && report.findings.is_empty();
    if good { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) }
}

/// Denied flows come first.
fn explained(explanations: &[Explanation<'_>]) -> String {
    let mut sorted: Vec<_> = explanations.iter().collect();
    sorted.sort_by_key(|it| it.trace.allowed());
    let mut texts: Vec<String> =
        sorted.iter().take(SHOWN_MAX).map(|it| lines_visible(&it.to_string())).collect();
    if explanations.len() > SHOWN_MAX {
        texts.push(format!("and {} more flows; -o json has all\n", explanations.len() - SHOWN_MAX));
    }
    texts.join("\n")
}

/// Names in the text come from files, and may have control bytes.
fn lines_visible(text: &str) -> String {
    text.lines().map(|line| output::visible(line) + "\n").collect()
}
