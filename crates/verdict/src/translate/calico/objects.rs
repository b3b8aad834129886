//! Tiers, profiles, network sets and endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::rule::{Scope, rules};
use crate::felix::{FailsafePort, FelixSettings};
use crate::ir::{Direction, Order, Problem, Profile, Protocol, Tier, TierDefault};
use crate::translate::read::{At, Metadata, Problems};
use crate::translate::{labels, ports};
use crate::world::{Endpoint, EndpointKind, EndpointToHost, NamedPort, NetworkSet, SetId};

/// The largest number of failsafe ports in a list: each is an element of the kernel's table.
const FAILSAFE_MAX: usize = 256;
/// The interface of a host endpoint that is all interfaces which are not of workloads.
const ALL_INTERFACES: &str = "*";

/// Reads a tier. A default action that cannot be read denies.
pub(in crate::translate) fn tier(document: &At<'_>, problems: &mut Problems) -> Result<Tier, Problem> {
    let spec = document.member("spec").ok_or_else(|| document.problem_of("spec", "it is missing"))?;
    let order = match spec.member("order") {
        None => Order::LAST,
        Some(at) => Order::new(Some(at.number().ok_or_else(|| at.problem("a number is wanted"))?)),
    };
    let default_action = match spec.opt_text("defaultAction") {
        Ok(None | Some("Deny")) => TierDefault::Deny,
        Ok(Some("Pass")) => TierDefault::Pass,
        _ => {
            problems.push(spec.problem_of("defaultAction", "Deny or Pass is wanted; it denies"));
            TierDefault::Deny
        }
    };
    Ok(Tier { order, default_action })
}

/// Reads what counts of a FelixConfiguration; the rest, and a document without settings, say nothing.
pub(in crate::translate) fn felix_settings(document: &At<'_>, problems: &mut Problems) -> FelixSettings {
    let Some(spec) = document.member("spec") else { return FelixSettings::default() };
    FelixSettings {
        endpoint_to_host: endpoint_to_host(&spec, problems),
        failsafe_inbound: failsafe_ports(&spec, FelixSettings::FAILSAFE_INBOUND, problems),
        failsafe_outbound: failsafe_ports(&spec, FelixSettings::FAILSAFE_OUTBOUND, problems),
    }
}

/// What becomes of packets of pods to their own node. A value that is none of Felix's drops them.
fn endpoint_to_host(spec: &At<'_>, problems: &mut Problems) -> Option<EndpointToHost> {
    let action = match spec.opt_text(EndpointToHost::MEMBER) {
        Ok(None) => return None,
        Ok(Some(name)) => EndpointToHost::named(name),
        Err(_) => None,
    };
    if action.is_none() {
        problems.push(spec.problem_of(EndpointToHost::MEMBER, "Accept, Drop or Return is wanted; it drops"));
    }
    Some(action.unwrap_or(EndpointToHost::Drop))
}

/// A list of failsafe ports. One of which anything cannot be read counts as missing, as with Felix: without its ports
/// the node may be cut off from its datastore.
fn failsafe_ports(spec: &At<'_>, name: &str, problems: &mut Problems) -> Option<Vec<FailsafePort>> {
    let at = spec.member(name)?;
    let read = || -> Result<Vec<FailsafePort>, Problem> {
        let items = at.items()?;
        if items.len() > FAILSAFE_MAX {
            return Err(at.problem(format!("more than {FAILSAFE_MAX} ports")));
        }
        items.iter().map(failsafe_port).collect()
    };
    match read() {
        Ok(ports) => Some(ports),
        Err(Problem { path, text }) => {
            let text = format!("{text}; the list counts as missing");
            problems.push(Problem { path, text: text.into() });
            None
        }
    }
}

fn failsafe_port(at: &At<'_>) -> Result<FailsafePort, Problem> {
    at.only(&["protocol", "port", "net"])?;
    let protocol = match at.opt_text("protocol")?.unwrap_or("TCP").to_ascii_uppercase().as_str() {
        "TCP" => Protocol::TCP,
        "UDP" => Protocol::UDP,
        "SCTP" => Protocol::SCTP,
        _ => return Err(at.problem_of("protocol", "tcp, udp or sctp is wanted")),
    };
    let port = at.member("port").ok_or_else(|| at.problem_of("port", "it is missing"))?;
    let net = at.member("net").filter(|_| !matches!(at.opt_text("net"), Ok(None)));
    let peers = net.map(|net| net.net_or_address()).transpose()?;
    Ok(FailsafePort { protocol, port: ports::number(&port)?, peers })
}

/// Reads a profile.
pub(in crate::translate) fn profile(document: &At<'_>, problems: &mut Problems) -> Result<Profile, Problem> {
    let spec = document.member("spec").ok_or_else(|| document.problem_of("spec", "it is missing"))?;
    let mut read = |direction| rules(&spec, &Scope { direction, namespace: None }, problems);
    let (ingress, egress) = (read(Direction::Ingress), read(Direction::Egress));
    Ok(Profile { ingress, egress, labels: spec.labels("labelsToApply")? })
}

/// The name of a network set.
pub(in crate::translate) fn set_id(metadata: &Metadata<'_>, global: bool) -> Result<SetId, Problem> {
    let namespace = if global { None } else { Some(metadata.wanted_namespace()?.into()) };
    Ok(SetId { namespace, name: metadata.name.into() })
}

/// Reads a network set. Nets that cannot be read are left out.
pub(in crate::translate) fn network_set(
    document: &At<'_>,
    global: bool,
    problems: &mut Problems,
) -> Result<NetworkSet, Problem> {
    let metadata = document.metadata()?;
    let mut set = NetworkSet { labels: super::labels(&metadata)?, ..NetworkSet::default() };
    if let Some(spec) = document.member("spec") {
        let nets = spec.list("nets")?;
        set.nets = nets.iter().filter_map(|at| problems.keep(at.net_or_address())).collect();
    }
    set.labels.remove(labels::NAMESPACE);
    if !global {
        let namespace = metadata.wanted_namespace()?;
        set.labels.insert(labels::NAMESPACE.into(), namespace.into());
        set.profile = Some(labels::namespace_profile(namespace));
    }
    Ok(set)
}

/// Reads a host endpoint. One without an interface's name is the interface that has one of its
/// addresses; its interface is empty.
pub(in crate::translate) fn host_endpoint(
    document: &At<'_>,
    problems: &mut Problems,
) -> Result<Endpoint, Problem> {
    let metadata = document.metadata()?;
    let spec = document.member("spec").ok_or_else(|| document.problem_of("spec", "it is missing"))?;
    let node = spec.opt_text("node")?.ok_or_else(|| spec.problem_of("node", "it is missing"))?;
    let interface = spec.opt_text("interfaceName")?.unwrap_or_default();
    if interface != ALL_INTERFACES && interface.len() > 15 {
        return Err(spec.problem_of("interfaceName", "it is longer than 15 bytes"));
    }
    Ok(Endpoint {
        kind: EndpointKind::Host { interface: interface.into() },
        namespace: None,
        name: metadata.name.into(),
        node: node.into(),
        addresses: addresses(&spec, "expectedIPs")?,
        labels: labels::own(super::labels(&metadata)?),
        profiles: profiles(&spec)?,
        ports: named_ports(&spec, problems),
        local: None,
        age: metadata.age(),
    })
}

/// Reads a workload endpoint, as the CNI plugin writes it.
pub(in crate::translate) fn workload_endpoint(
    document: &At<'_>,
    problems: &mut Problems,
) -> Result<Endpoint, Problem> {
    let metadata = document.metadata()?;
    let namespace = metadata.wanted_namespace()?;
    let spec = document.member("spec").ok_or_else(|| document.problem_of("spec", "it is missing"))?;
    let node = spec.opt_text("node")?.ok_or_else(|| spec.problem_of("node", "it is missing"))?;
    let name = spec.opt_text("pod")?.or(spec.opt_text("workload")?).or(spec.opt_text("containerID")?);
    let mut labels = labels::own(super::labels(&metadata)?);
    labels.insert(labels::NAMESPACE.into(), namespace.into());
    if let Some(orchestrator) = spec.opt_text("orchestrator")? {
        labels.insert(labels::ORCHESTRATOR.into(), orchestrator.into());
    }
    // As Felix does it: a name of 63 characters or more is in no label of the object.
    if let Some(account) = spec.opt_text("serviceAccountName")?.filter(|account| !account.is_empty()) {
        labels.insert(labels::SERVICE_ACCOUNT.into(), account.into());
    }
    Ok(Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some(namespace.into()),
        name: name.unwrap_or(metadata.name).into(),
        node: node.into(),
        addresses: addresses(&spec, "ipNetworks")?,
        labels,
        profiles: profiles(&spec)?,
        ports: named_ports(&spec, problems),
        local: None,
        age: metadata.age(),
    })
}

fn addresses(spec: &At<'_>, name: &str) -> Result<BTreeSet<IpAddr>, Problem> {
    spec.list(name)?.iter().map(|at| at.net_or_address().map(|net| net.addr())).collect()
}

fn profiles(spec: &At<'_>) -> Result<Vec<Arc<str>>, Problem> {
    spec.list("profiles")?.iter().map(|at| at.text().map(Arc::from)).collect()
}

fn named_ports(spec: &At<'_>, problems: &mut Problems) -> Vec<NamedPort> {
    let list = problems.keep_or_default(spec.list("ports"));
    list.iter().filter_map(|at| problems.keep(named_port(at)).flatten()).collect()
}

fn named_port(at: &At<'_>) -> Result<Option<NamedPort>, Problem> {
    let Some(name) = at.opt_text("name")? else { return Ok(None) };
    let port = at.member("port").ok_or_else(|| at.problem_of("port", "it is missing"))?;
    let protocol = at.member("protocol").map_or(Ok(Protocol::TCP), |at| super::rule::protocol(&at))?;
    Ok(Some(NamedPort { name: name.into(), protocol, port: ports::number(&port)? }))
}
