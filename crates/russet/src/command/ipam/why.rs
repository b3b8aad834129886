//! `russet ipam why`: explains what a request for an address would get now. Writes nothing.

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use russet_addr::{Family, IpNet, NodeName};
use russet_ipam::explain::{BlockPart, Explanation, Outcome, PoolPart, Source};
use russet_ipam::{Request, SystemClock, Use};
use russet_model::{HandleId, IpPool, Key};
use serde::Serialize;

use super::super::{Failure, PROBLEMS};
use super::Place;
use crate::cli::ipam::{PoolName, WhyArgs};
use crate::{output, settings};

/// The answer; `schema` grows when a member changes its meaning.
#[derive(Serialize)]
struct Why {
    schema: u32,
    node: String,
    families: Vec<Explanation>,
}

/// No node has this name.
#[derive(Debug, thiserror::Error)]
#[error(
    "node {node} is not registered: there is no {key}; see `{get}` or `calicoctl get nodes`, and {} on the node",
    file.display()
)]
struct NodeUnknown {
    node: NodeName,
    key: Key,
    /// The command that lists the nodes.
    get: String,
    /// The file with the node's name.
    file: PathBuf,
}

/// No pool has this name.
#[derive(Debug, thiserror::Error)]
#[error("no pool is called {name:?}; there are: {known}")]
struct NoPool {
    name: String,
    known: String,
}

/// A handle without addresses: for a handle that has one, the answer would be that address.
const TRIAL: &str = "russet-ipam-why.trial";

/// Prints the explanation; exits with 3 when no family that has pools would get an address.
pub async fn run(place: &Place, args: WhyArgs) -> Result<ExitCode, Failure> {
    let node: NodeName = match args.node {
        Some(node) => node,
        None => settings::node_name(&place.paths)?,
    };
    refuse_unknown(place, &node).await?;
    let mut request = Request::pod(node.clone(), HandleId::new(TRIAL)?);
    request.namespace_labels = args.namespace_label.iter().map(|label| label.0.clone()).collect();
    request.use_ = if args.tunnel { Use::Tunnel } else { Use::Workload };
    let named = named(place, &args.pool).await?;
    let of = |family| {
        let nets: Vec<_> = named.iter().copied().filter(|net| Family::of_net(net) == family).collect();
        (!nets.is_empty()).then_some(nets)
    };
    (request.pools4, request.pools6) = (of(Family::V4), of(Family::V6));
    let families = Explanation::of_families(place.store.clone(), Rc::new(SystemClock), &request).await?;
    let why = Why { schema: 1, node: node.to_string(), families };
    let refused = |explanation: &Explanation| matches!(explanation.outcome, Outcome::Refused { .. });
    let bad = why.families.is_empty() || why.families.iter().any(refused);
    output::print_as(args.output.format, &why, || why.text(&place.paths.command("ipam show")));
    Ok(if bad { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

/// A node without a record would get a block that no agent uses. This machine's own agent is about
/// to register its node.
async fn refuse_unknown(place: &Place, node: &NodeName) -> Result<(), Failure> {
    let key = Key::node(node);
    let is_own = || settings::node_name(&place.paths).is_ok_and(|own| own == *node);
    if place.store.get(&key).await?.is_some() || is_own() {
        return Ok(());
    }
    let (get, file) = (place.paths.command("get nodes"), place.paths.calico_nodename_file());
    Err(NodeUnknown { node: node.clone(), key, get, file }.into())
}

/// The prefixes of the pools that were named by name or by prefix.
async fn named(place: &Place, pools: &[PoolName]) -> Result<Vec<IpNet>, Failure> {
    let known = if pools.is_empty() { Vec::new() } else { place.allocator().pools().await? };
    let mut nets = Vec::new();
    for pool in pools {
        nets.push(match pool {
            PoolName::Cidr(net) => *net,
            PoolName::Name(name) => {
                let found = known.iter().find(|known| known.metadata.name == *name);
                found.ok_or_else(|| NoPool::new(name, &known))?.spec.cidr
            }
        });
    }
    Ok(nets)
}

// === impl NoPool ===

impl NoPool {
    fn new(name: &str, known: &[IpPool]) -> Self {
        let names: Vec<&str> = known.iter().map(|pool| pool.metadata.name.as_str()).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Self { name: name.to_owned(), known: output::visible(&known) }
    }
}

// === impl Why ===

impl Why {
    /// `show` is the command that lists the pools.
    fn text(&self, show: &str) -> String {
        if self.families.is_empty() {
            return format!("there is no such pool; make one, and see `{show}`\n");
        }
        self.families.iter().map(|explanation| self.family(explanation)).collect::<Vec<_>>().join("\n")
    }

    fn family(&self, explanation: &Explanation) -> String {
        let mut text = match &explanation.outcome {
            Outcome::Address { ip, from } => {
                format!(
                    "{}: {} would get an address such as {ip}, {}\n",
                    explanation.family,
                    self.node,
                    source(*from)
                )
            }
            Outcome::NotAsked { reason } => {
                format!(
                    "{}: a pod on {} starts without such an address: {reason}\n",
                    explanation.family, self.node
                )
            }
            Outcome::Refused { error } => {
                format!(
                    "{}: {} would get no address: {}\n",
                    explanation.family,
                    self.node,
                    output::visible(error)
                )
            }
        };
        let pools: Vec<Vec<String>> = explanation.pools.iter().map(pool).collect();
        text.push_str(&output::table(&["POOL", "CIDR", "SERVES", "WHY"], &pools));
        let blocks: Vec<Vec<String>> = explanation.blocks.iter().map(block).collect();
        let affinity = if explanation.strict_affinity {
            "strict affinity"
        } else {
            "others' blocks may be borrowed from"
        };
        text.push_str(&format!("{} of {} blocks; {affinity}\n", blocks.len(), explanation.block_limit));
        if !blocks.is_empty() {
            text.push_str(&output::table(&["BLOCK", "CLAIM", "FREE", "PROBLEM"], &blocks));
        }
        text
    }
}

const fn source(source: Source) -> &'static str {
    match source {
        Source::OwnBlock => "from a block that it has",
        Source::NewBlock => "from a block that it would claim",
        Source::Borrowed => "borrowed from another node's block",
    }
}

fn pool(pool: &PoolPart) -> Vec<String> {
    let serves = if pool.serves { "yes" } else { "no" };
    vec![pool.name.clone(), pool.cidr.clone(), serves.to_owned(), pool.why.clone()]
}

fn block(block: &BlockPart) -> Vec<String> {
    let free = block.free.map_or_else(|| "-".to_owned(), |free| free.to_string());
    vec![block.cidr.clone(), block.state.to_owned(), free, block.problem.clone().unwrap_or_default()]
}
