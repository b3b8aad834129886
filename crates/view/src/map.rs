//! The map of a cluster: nodes with their state and their address blocks, and what is known of the paths between them.
//!
//! A cluster of n nodes has n * (n - 1) / 2 links. Up to [`ALL_LINKS_NODES`] nodes the map has all of them, beyond that those with a problem,
//! at most [`PROBLEM_LINKS_MAX`], and a sample: from each node to the next one.

mod dot;
mod svg;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use russet_addr::{Family, IpNet};
use russet_model::{Block, EncapMode, IpPool};
use serde::{Deserialize, Serialize};

pub use svg::Styling;

/// What a map is made of.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub nodes: Vec<NodeFacts>,
    pub pools: Vec<IpPool>,
    pub blocks: Vec<BlockFacts>,
}

/// What is known of a node.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    pub name: String,
    pub state: NodeState,
    /// The addresses by which other nodes reach it, with the length of its subnet's prefix.
    pub addresses: Vec<IpNet>,
    /// Interfaces of pods.
    pub pods: Option<usize>,
    pub version: Option<String>,
    /// Seconds since it said so.
    pub age_s: Option<u64>,
    /// What is wrong with it.
    pub reasons: Vec<String>,
    /// The nodes that it does not reach, and those that only small packets of it reach.
    pub unreachable: Vec<String>,
    pub small_packets_only: Vec<String>,
}

/// A block of addresses and the node that claims it.
#[derive(Debug, Clone)]
pub struct BlockFacts {
    pub node: Option<String>,
    pub block: MapBlock,
}

/// The map, as `russet map -o json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// Grows when a member changes its meaning.
    pub schema: u32,
    /// By name.
    pub nodes: Vec<MapNode>,
    /// Those with problems first.
    pub links: Vec<Link>,
    /// Pairs of nodes in all.
    pub links_total: usize,
    /// Links with a problem that are not among `links`, because there are too many.
    pub problem_links_left_out: usize,
    /// Blocks that no node of the cluster claims.
    pub blocks_without_node: Vec<MapBlock>,
}

/// A node on the map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapNode {
    pub name: String,
    pub state: NodeState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<usize>,
    pub reasons: Vec<String>,
    pub blocks: Vec<MapBlock>,
    /// How many of its links are unreachable, whether they are among the map's or not.
    pub unreachable: usize,
}

/// How a node is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// It has stopped writing records.
    NoSign,
    NotReady,
    /// It has written nothing: its agent is older, or of another program.
    #[default]
    NoRecord,
    Ready,
}

/// A block of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapBlock {
    pub cidr: String,
    /// Addresses that are not free.
    pub in_use: usize,
    pub size: usize,
}

/// The path between two nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The names of both, in order.
    pub nodes: [String; 2],
    /// How pods' packets pass: `vxlan`, `ipip`, `route`; several where pools differ.
    pub via: Vec<Cow<'static, str>>,
    pub state: LinkState,
    /// The nodes that say so; empty unless there is a problem.
    pub reported_by: Vec<String>,
}

/// What is known of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// Probes of at least one of both are not answered.
    Unreachable,
    SmallPacketsOnly,
    /// Neither of both has a record that counts.
    Unknown,
    /// Neither of both reports one. Nodes of a large cluster probe some of the others at a time.
    NoProblem,
}

/// Up to so many nodes all links are on the map: 1,225.
pub const ALL_LINKS_NODES: usize = 50;
/// A picture with more lines shows nothing. One node that 1,000 others do not reach is still complete.
const PROBLEM_LINKS_MAX: usize = 1_000;

type Pair<'a> = (&'a str, &'a str);
/// Links with problems, and the nodes that report them.
type Problems<'a> = BTreeMap<Pair<'a>, (LinkState, Vec<&'a str>)>;

// === impl Map ===

impl Map {
    pub const SCHEMA: u32 = 1;

    pub fn new(mut facts: Facts) -> Self {
        facts.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        facts.nodes.dedup_by(|a, b| a.name == b.name);
        let Facts { nodes, pools, blocks } = &facts;
        let problems = problems(nodes);
        let by_name: BTreeMap<&str, &NodeFacts> =
            nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        let link =
            |pair: Pair<'_>| Some(Link::new([by_name.get(pair.0)?, by_name.get(pair.1)?], pools, &problems));
        let mut links: Vec<Link> =
            problems.keys().take(PROBLEM_LINKS_MAX).filter_map(|pair| link(*pair)).collect();
        let problem_links_left_out = problems.len().saturating_sub(links.len());
        let others = others(nodes).into_iter().filter(|pair| !problems.contains_key(pair));
        links.extend(others.filter_map(link));
        links.sort_by(|a, b| (a.state, &a.nodes).cmp(&(b.state, &b.nodes)));
        let (mut by_node, blocks_without_node) = blocks_by_node(blocks, &by_name);
        let unreachable = unreachable_by_node(&problems);
        let map_node = |node: &NodeFacts| {
            let count = unreachable.get(node.name.as_str()).copied().unwrap_or_default();
            MapNode::new(node, by_node.remove(node.name.as_str()).unwrap_or_default(), count)
        };
        let nodes_of_map: Vec<MapNode> = nodes.iter().map(map_node).collect();
        let links_total = nodes.len() * nodes.len().saturating_sub(1) / 2;
        Self {
            schema: Self::SCHEMA,
            nodes: nodes_of_map,
            links,
            links_total,
            problem_links_left_out,
            blocks_without_node,
        }
    }

    /// A graph for Graphviz.
    pub fn dot(&self) -> String {
        dot::dot(self)
    }

    /// A picture.
    pub fn svg(&self, styling: Styling) -> String {
        svg::svg(self, styling)
    }

    /// What is on the map, in one line.
    pub fn summary(&self) -> String {
        let ready = self.nodes.iter().filter(|node| node.state == NodeState::Ready).count();
        let bad = |state| self.links.iter().filter(|link| link.state == state).count();
        let unreachable = bad(LinkState::Unreachable) + self.problem_links_left_out;
        let mut text = format!(
            "{}, {ready} ready; {}, {unreachable} unreachable",
            counted(self.nodes.len(), "node"),
            counted(self.links_total, "link")
        );
        match bad(LinkState::SmallPacketsOnly) {
            0 => {}
            small => text.push_str(&format!(", {small} for small packets only")),
        }
        text
    }

    /// What a reader should know of the links that are not shown; none if all are.
    pub fn left_out(&self) -> Option<String> {
        let more = self.links_total.saturating_sub(self.links.len());
        let problems = match self.problem_links_left_out {
            0 => "all of those with a problem".to_owned(),
            count => format!("{count} with a problem are left out"),
        };
        (more > 0).then(|| {
            format!("{} of {} links are shown: {problems}, and a sample", self.links.len(), self.links_total)
        })
    }
}

/// `1 node`, `2 nodes`.
pub fn counted(count: usize, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// What records that count say about pairs of nodes of the cluster.
fn problems(nodes: &[NodeFacts]) -> Problems<'_> {
    let names: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let mut problems = Problems::new();
    for node in nodes.iter().filter(|node| node.state.counts()) {
        let unreachable = node.unreachable.iter().map(|other| (other, LinkState::Unreachable));
        let small = node.small_packets_only.iter().map(|other| (other, LinkState::SmallPacketsOnly));
        for (other, state) in unreachable.chain(small) {
            let Some(other) = names.get(other.as_str()).filter(|other| **other != node.name) else {
                continue;
            };
            let found = problems.entry(pair(&node.name, other)).or_insert((state, Vec::new()));
            found.0 = found.0.min(state);
            if !found.1.contains(&node.name.as_str()) {
                found.1.push(&node.name);
            }
        }
    }
    problems
}

/// How many unreachable links each node has, of those that have any.
fn unreachable_by_node<'a>(problems: &Problems<'a>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for (pair, _) in problems.iter().filter(|(_, (state, _))| *state == LinkState::Unreachable) {
        for name in [pair.0, pair.1] {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

/// The links that are shown whether they have a problem or not.
fn others(nodes: &[NodeFacts]) -> Vec<Pair<'_>> {
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    if names.len() <= ALL_LINKS_NODES {
        let mut all = Vec::new();
        for (at, a) in names.iter().enumerate() {
            all.extend(names.iter().skip(at + 1).map(|b| pair(a, b)));
        }
        return all;
    }
    names.iter().zip(names.iter().cycle().skip(1)).map(|(a, b)| pair(a, b)).collect()
}

fn pair<'a>(a: &'a str, b: &'a str) -> Pair<'a> {
    if a <= b { (a, b) } else { (b, a) }
}

fn blocks_by_node<'a>(
    blocks: &'a [BlockFacts],
    known: &BTreeMap<&str, &NodeFacts>,
) -> (BTreeMap<&'a str, Vec<MapBlock>>, Vec<MapBlock>) {
    let (mut by_node, mut without): (BTreeMap<&str, Vec<MapBlock>>, _) = (BTreeMap::new(), Vec::new());
    for BlockFacts { node, block } in blocks {
        match node.as_deref().filter(|node| known.contains_key(node)) {
            Some(node) => by_node.entry(node).or_default().push(block.clone()),
            None => without.push(block.clone()),
        }
    }
    (by_node, without)
}

// === impl MapNode ===

impl MapNode {
    fn new(node: &NodeFacts, blocks: Vec<MapBlock>, unreachable: usize) -> Self {
        Self {
            name: node.name.clone(),
            state: node.state,
            age_s: node.age_s,
            version: node.version.clone(),
            addresses: node.addresses.iter().map(|net| net.addr().to_string()).collect(),
            pods: node.pods,
            reasons: node.reasons.clone(),
            blocks,
            unreachable,
        }
    }

    /// Everything about it, a line each.
    fn lines(&self) -> Vec<String> {
        let pods = self.pods.map(|pods| format!(", {pods} pods")).unwrap_or_default();
        let mut lines = vec![self.name.clone(), format!("{}{pods}", self.state.as_str())];
        lines.extend(self.addresses.iter().cloned());
        lines.extend(self.blocks.iter().map(|block| format!("{} {}%", block.cidr, block.percent())));
        lines.extend(self.reasons.iter().cloned());
        lines
    }
}

// === impl NodeState ===

impl NodeState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSign => "no sign",
            Self::NotReady => "not ready",
            Self::NoRecord => "no record",
            Self::Ready => "ready",
        }
    }

    /// A class of CSS.
    pub const fn class(self) -> &'static str {
        match self {
            Self::NoSign => "bad",
            Self::NotReady => "warn",
            Self::NoRecord => "unknown",
            Self::Ready => "good",
        }
    }

    /// Whether what the node says about others is current.
    const fn counts(self) -> bool {
        matches!(self, Self::Ready | Self::NotReady)
    }
}

// === impl MapBlock ===

impl MapBlock {
    /// Rounded to the nearest whole number.
    pub fn percent(&self) -> usize {
        let hundredfold = self.in_use.saturating_mul(100);
        hundredfold.saturating_add(self.size / 2).checked_div(self.size).unwrap_or(0)
    }
}

impl From<&Block> for BlockFacts {
    fn from(block: &Block) -> Self {
        let size = block.cidr.size();
        let in_use = size.saturating_sub(block.unallocated.len());
        let block_of_map = MapBlock { cidr: block.cidr.to_string(), in_use, size };
        Self { node: block.node().map(|node| node.to_string()), block: block_of_map }
    }
}

// === impl Link ===

impl Link {
    fn new([a, b]: [&NodeFacts; 2], pools: &[IpPool], problems: &Problems<'_>) -> Self {
        let nodes = [a.name.clone(), b.name.clone()];
        let via = carriers(pools, a, b).into_iter().map(Cow::Borrowed).collect();
        match problems.get(&(a.name.as_str(), b.name.as_str())) {
            Some((state, by)) => {
                Self { nodes, via, state: *state, reported_by: by.iter().map(ToString::to_string).collect() }
            }
            None => {
                let is_known = a.state.counts() || b.state.counts();
                let state = if is_known { LinkState::NoProblem } else { LinkState::Unknown };
                Self { nodes, via, state, reported_by: Vec::new() }
            }
        }
    }

    /// How packets pass, for people.
    pub fn via(&self) -> String {
        if self.via.is_empty() { "?".to_owned() } else { self.via.join(", ") }
    }
}

/// How pods' packets pass between two nodes, by the cluster's pools.
fn carriers(pools: &[IpPool], a: &NodeFacts, b: &NodeFacts) -> Vec<&'static str> {
    let carrier = |pool: &IpPool| {
        let spec = &pool.spec;
        let (mode, name) = match (spec.vxlan_mode, spec.ipip_mode) {
            (EncapMode::Never, EncapMode::Never) => return "route",
            (EncapMode::Never, mode) => (mode, "ipip"),
            (mode, _) => (mode, "vxlan"),
        };
        let is_plain = mode == EncapMode::CrossSubnet && share_subnet(spec.family(), a, b);
        if is_plain { "route" } else { name }
    };
    pools.iter().map(carrier).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether two nodes are on one subnet.
fn share_subnet(family: Family, a: &NodeFacts, b: &NodeFacts) -> bool {
    let address = |node: &NodeFacts| node.addresses.iter().copied().find(|net| Family::of_net(net) == family);
    address(a).zip(address(b)).is_some_and(|(a, b)| a.contains(&b.addr()))
}

// === impl LinkState ===

impl LinkState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::SmallPacketsOnly => "small packets only",
            Self::Unknown => "unknown",
            Self::NoProblem => "no problem",
        }
    }

    /// A class of CSS.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Unreachable => "bad",
            Self::SmallPacketsOnly => "warn",
            Self::Unknown => "unknown",
            Self::NoProblem => "good",
        }
    }

    pub const fn is_problem(self) -> bool {
        matches!(self, Self::Unreachable | Self::SmallPacketsOnly)
    }
}
