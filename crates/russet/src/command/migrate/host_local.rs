//! `russet migrate host-local`: allocates in the cluster's pools the addresses that the plugin
//! `host-local` has given to pods of this node, so that its configuration can change to `calico-ipam`
//! while they run (kubernetes.md section 2.5).
//!
//! Calico's migration locks the datastore of the whole cluster meanwhile. This one locks the
//! directory of `host-local` on its own node, and writes blocks, affinities and handles of that node
//! only: each write is guarded, and an address in a block of another node is left where it is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::ExitCode;
use std::rc::Rc;

use russet_addr::{ContainerId, IfName, NodeName};
use russet_agent::{Paths, StoreLocation};
use russet_ipam::{Allocator, IpamError, Request, SystemClock};
use russet_kube::{Client, KubeError, ObjectEvent, Pod};
use russet_model::HandleId;
use russet_plugins::host_local::{HeldAddress, Holder, NetworkDir};
use serde::{Deserialize as _, Serialize};

use super::super::{Failure, PROBLEMS, runtime};
use crate::cli::migrate::HostLocalArgs;
use crate::output;

/// A store that is not the Kubernetes API.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pods of host-local's addresses are in the Kubernetes API: give --store kubernetes:FILE, not {0}"
)]
struct NotKubernetes(StoreLocation);

/// What was done, for programs. `schema` grows when a member changes its meaning.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    node: String,
    addresses: Vec<Line>,
}

/// An address of `host-local`.
#[derive(Debug, Serialize)]
struct Line {
    address: IpAddr,
    container: String,
    /// `namespace/name` of its pod.
    pod: Option<String>,
    state: State,
    /// Why it was left.
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Allocated,
    AllocatedBefore,
    Left,
}

/// The interface of a pod's address in `host-local`'s files of old plugins, which do not name it.
const POD_INTERFACE: &str = "eth0";

/// A pod's namespace and name.
type PodName = (String, String);

/// Runs the migration.
pub fn run(args: HostLocalArgs) -> Result<ExitCode, Failure> {
    let StoreLocation::Kubernetes(location) = &args.store else {
        return Err(NotKubernetes(args.store).into());
    };
    let client = Client::new(location.source())?;
    let networks = args.root.join(args.directory.strip_prefix("/").unwrap_or(&args.directory));
    // Locked until the end: meanwhile no plugin adds or removes an address.
    let directory = NetworkDir::open_existing(networks.join(args.network.as_str()))?;
    let held = directory.as_ref().map_or_else(|| Ok(Vec::new()), NetworkDir::held)?;
    let addresses = runtime()?.block_on(migrate(&args, &client, &held))?;
    if let (Some(directory), true) = (&directory, args.remove_files) {
        let is_allocated = |held: &&HeldAddress| {
            addresses.iter().any(|line| line.address == held.address && line.state != State::Left)
        };
        directory.release(held.iter().filter(is_allocated))?;
    }
    let has_left = addresses.iter().any(|line| line.state == State::Left);
    let report = Report { schema: 1, node: args.node_name.to_string(), addresses };
    output::print_as(args.output.format, &report, || report.text());
    Ok(if has_left { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

async fn migrate(args: &HostLocalArgs, client: &Client, held: &[HeldAddress]) -> Result<Vec<Line>, Failure> {
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let store = russet_agent::open_store(&Paths::new("/"), &args.store).await?.store.clone();
    let allocator = Allocator::new(store, Rc::new(SystemClock));
    let pods = pods(client, &args.node_name).await?;
    let mut held: Vec<&HeldAddress> = held.iter().collect();
    held.sort_by_key(|held| held.address);
    let mut lines = Vec::new();
    for HeldAddress { address, holder, .. } in held {
        let pod = pods.get(address);
        let outcome = match (request(args, holder, pod), pod) {
            (Err(reason), _) => Err(reason),
            (_, None) => Err("no pod of this node reports it".to_owned()),
            (Ok(request), Some(_)) => match allocator.assign_ip(&request, *address).await {
                Ok(assigned) if assigned.existing => Ok(State::AllocatedBefore),
                Ok(_) => Ok(State::Allocated),
                Err(error) if is_of_the_address(&error) => Err(error.to_string()),
                Err(error) => return Err(error.into()),
            },
        };
        lines.push(Line {
            address: *address,
            container: container(holder).to_owned(),
            pod: pod.map(|(namespace, name)| format!("{namespace}/{name}")),
            state: outcome.as_ref().copied().unwrap_or(State::Left),
            reason: outcome.err(),
        });
    }
    Ok(lines)
}

/// The request of `calico-ipam` for the holder of an address: its DEL releases it.
fn request(args: &HostLocalArgs, holder: &Holder, pod: Option<&PodName>) -> Result<Request, String> {
    let ifname = match holder {
        Holder::Interface(_, ifname) => ifname.as_str(),
        Holder::Container(_) => POD_INTERFACE,
        Holder::None => return Err("its file names no container".to_owned()),
    };
    let container = ContainerId::new(container(holder)).map_err(|error| error.to_string())?;
    let ifname = IfName::new(ifname).map_err(|error| error.to_string())?;
    let request = Request::pod(args.node_name.clone(), HandleId::pod(&args.network, &container));
    let request = request.with_owner(&ifname, pod.map(|(namespace, name)| (&**namespace, &**name)));
    Ok(Request { borrow: false, registered_node: true, ..request })
}

fn container(holder: &Holder) -> &str {
    match holder {
        Holder::Interface(container, _) | Holder::Container(container) => container,
        Holder::None => "",
    }
}

/// Whether the rest can go on.
fn is_of_the_address(error: &IpamError) -> bool {
    matches!(
        error,
        IpamError::ForeignBlock { .. }
            | IpamError::AlreadyAssigned { .. }
            | IpamError::NotInPool { .. }
            | IpamError::NoPool { .. }
            | IpamError::Invalid(_)
    )
}

/// The addresses that pods of a node report.
async fn pods(client: &Client, node: &NodeName) -> Result<BTreeMap<IpAddr, PodName>, KubeError> {
    let mut watch = client.watch_pods(node.as_str());
    let objects = loop {
        // It begins with one.
        if let ObjectEvent::Snapshot(objects) = watch.advance().await? {
            break objects;
        }
    };
    let mut pods = BTreeMap::new();
    for pod in objects.iter().filter_map(|object| Pod::deserialize(object).ok()) {
        if pod.spec.host_network {
            continue;
        }
        let one = std::iter::once(&pod.status.pod_ip);
        let addresses = pod.status.pod_ips.iter().map(|it| &it.ip).chain(one);
        for address in addresses.filter_map(|text| text.parse::<IpAddr>().ok()) {
            pods.insert(address, (pod.metadata.namespace.clone(), pod.metadata.name.clone()));
        }
    }
    Ok(pods)
}

// === impl Report ===

impl Report {
    fn text(&self) -> String {
        if self.addresses.is_empty() {
            return "host-local has no address of this network here\n".to_owned();
        }
        let row = |line: &Line| {
            let state = match line.state {
                State::Allocated => "allocated",
                State::AllocatedBefore => "allocated before",
                State::Left => "left",
            };
            let texts = [line.pod.clone(), line.reason.clone()].map(Option::unwrap_or_default);
            let [pod, reason] = texts.map(|text| output::visible(&text));
            vec![line.address.to_string(), output::visible(&line.container), pod, state.to_owned(), reason]
        };
        let rows: Vec<Vec<String>> = self.addresses.iter().map(row).collect();
        output::table(&["ADDRESS", "CONTAINER", "POD", "STATE", "WHY"], &rows)
    }
}
