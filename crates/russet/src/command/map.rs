//! `russet map`: the cluster's nodes, their address blocks, and which of them reach each other.

use std::collections::BTreeMap;
use std::time::Duration;

use russet_addr::Family;
use russet_model::{Block, IpPool, KeyKind, Node, Prefix};
use russet_view::map::{BlockFacts, Facts, Link, Map, MapNode, NodeFacts, Styling};

use super::place::Place;
use super::status::cluster::{self, NodeHealth};
use super::{Failure, runtime};
use crate::cli::map::{MapArgs, MapFormat};
use crate::output::{self, age, table, visible};

/// Up to so many links are listed whatever their state is.
const LINKS_SHOWN: usize = 15;
/// Names and blocks in one cell.
const CELL_MAX: usize = 4;

/// Prints the map.
pub fn run(args: MapArgs) -> Result<(), Failure> {
    let map = runtime()?.block_on(async {
        let place = Place::open_cluster(args.place).await?;
        Ok::<_, Failure>(Map::new(facts(&place).await?))
    })?;
    output::print(&match args.format {
        MapFormat::Text => text(&map),
        MapFormat::Dot => map.dot(),
        MapFormat::Svg => map.svg(Styling::Own),
        MapFormat::Json => output::json(&map),
        MapFormat::Yaml => output::yaml_of_json(&output::json(&map)),
    });
    Ok(())
}

/// What the datastore has of the cluster. Records that cannot be decoded are passed over, with a line on standard error.
async fn facts(place: &Place) -> Result<Facts, Failure> {
    let mut nodes: Vec<NodeFacts> = cluster::read(place).await?.nodes.iter().map(NodeHealth::facts).collect();
    let mut addresses = BTreeMap::new();
    for record in place.store.list(&Prefix::nodes()).await?.records {
        if let (KeyKind::Node(name), Some(node)) =
            (record.key.kind(), decoded(&record.key, Node::decode(&record.value)))
        {
            let both = Family::BOTH.into_iter().filter_map(|family| node.spec.address(family));
            addresses.insert(name.to_string(), both.collect());
        }
    }
    for node in &mut nodes {
        node.addresses = addresses.remove(&node.name).unwrap_or_default();
    }
    let mut pools = Vec::new();
    for record in place.store.list(&Prefix::pools()).await?.records {
        pools.extend(decoded(&record.key, IpPool::decode(&record.value)).filter(IpPool::is_enabled));
    }
    let mut blocks = Vec::new();
    for record in place.store.list(&Prefix::blocks(None)).await?.records {
        if matches!(record.key.kind(), KeyKind::Block(_)) {
            blocks.extend(decoded(&record.key, Block::decode(&record.value)).as_ref().map(BlockFacts::from));
        }
    }
    Ok(Facts { nodes, pools, blocks })
}

fn decoded<T>(key: &russet_model::Key, read: Result<T, russet_model::DecodeError>) -> Option<T> {
    let passed_over = |error| output::progress(&visible(&format!("{key} is passed over: {error}")));
    read.map_err(passed_over).ok()
}

fn text(map: &Map) -> String {
    let mut text = map.summary() + "\n";
    let bad = map.links.iter().filter(|link| link.state.is_problem());
    let shown: Vec<&Link> =
        if map.links.len() <= LINKS_SHOWN { map.links.iter().collect() } else { bad.collect() };
    let rows: Vec<Vec<String>> = map.nodes.iter().map(node_row).collect();
    text.push('\n');
    text.push_str(&table(&["NODE", "STATE", "AGE", "ADDRESSES", "PODS", "BLOCKS", "NOT REACHED"], &rows));
    if !shown.is_empty() {
        let rows: Vec<Vec<String>> = shown.into_iter().map(link_row).collect();
        text.push('\n');
        text.push_str(&table(&["FROM", "TO", "VIA", "STATE", "REPORTED BY"], &rows));
    }
    if map.problem_links_left_out > 0 {
        text.push_str(&format!("and {} more links with a problem\n", map.problem_links_left_out));
    }
    for block in &map.blocks_without_node {
        text.push_str(&visible(&format!("no node has block {} ({}% in use)", block.cidr, block.percent())));
        text.push('\n');
    }
    text
}

fn node_row(node: &MapNode) -> Vec<String> {
    let dash = || "-".to_owned();
    let blocks: Vec<String> =
        node.blocks.iter().map(|block| format!("{} {}%", block.cidr, block.percent())).collect();
    let unreachable = if node.unreachable == 0 { dash() } else { node.unreachable.to_string() };
    vec![
        node.name.clone(),
        node.state.as_str().to_owned(),
        node.age_s.map_or_else(dash, |age_s| age(Duration::from_secs(age_s))),
        some(&node.addresses),
        node.pods.map_or_else(dash, |pods| pods.to_string()),
        some(&blocks),
        unreachable,
    ]
}

fn link_row(link: &Link) -> Vec<String> {
    let [from, to] = link.nodes.clone();
    vec![from, to, link.via(), link.state.as_str().to_owned(), some(&link.reported_by)]
}

fn some(all: &[String]) -> String {
    let shown: Vec<&str> = all.iter().take(CELL_MAX).map(String::as_str).collect();
    match all.len().saturating_sub(CELL_MAX) {
        _ if shown.is_empty() => "-".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use russet_view::map::{MapBlock, NodeState};

    use super::*;

    fn node(name: &str, unreachable: &[&str]) -> NodeFacts {
        NodeFacts {
            name: name.to_owned(),
            state: NodeState::Ready,
            age_s: Some(70),
            unreachable: unreachable.iter().map(ToString::to_string).collect(),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn a_table_has_nodes_and_links_and_no_control_characters() {
        let block = MapBlock { cidr: "10.1.0.0/26\u{1b}".to_owned(), in_use: 16, size: 64 };
        let blocks = vec![
            BlockFacts { node: None, block: block.clone() },
            BlockFacts { node: Some("a".to_owned()), block },
        ];
        let map = Map::new(Facts {
            nodes: vec![node("a", &["b\u{1b}[2J"]), node("b\u{1b}[2J", &[])],
            pools: Vec::new(),
            blocks,
        });
        let page = text(&map);
        assert!(page.starts_with("2 nodes, 2 ready; 1 link, 1 unreachable\n\nNODE "), "{page}");
        assert!(page.contains("10.1.0.0/26\\u{1b} 25%") && page.contains("?    unreachable  a\n"), "{page}");
        assert!(page.contains("no node has block 10.1.0.0/26\\u{1b} (25% in use)\n"), "{page}");
        assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "{page:?}");
    }

    #[test]
    fn in_a_larger_cluster_only_links_with_problems_are_listed() {
        let mut nodes: Vec<NodeFacts> = (0..8).map(|n| node(&format!("n{n}"), &[])).collect();
        nodes[3].unreachable = vec!["n5".to_owned()];
        let page = text(&Map::new(Facts { nodes, ..Facts::default() }));
        assert_eq!(page.lines().count(), 2 + 9 + 1 + 2, "{page}");
        assert!(page.starts_with("8 nodes, 8 ready; 28 links, 1 unreachable\n"), "{page}");
    }
}
