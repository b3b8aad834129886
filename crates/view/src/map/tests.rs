use serde_json::json;

use super::*;
use crate::testing;

const HOSTILE: &str = "n\"]; evil [label=\"x\\<script>alert('1')</script>&amp;\u{1b}[2J\n\\";

fn node(name: &str) -> NodeFacts {
    NodeFacts {
        name: name.to_owned(),
        state: NodeState::Ready,
        addresses: vec!["10.0.0.7/24".parse().unwrap()],
        pods: Some(3),
        ..NodeFacts::default()
    }
}

fn cluster(count: usize) -> Facts {
    let nodes = (0..count).map(|n| node(&format!("node-{n:03}"))).collect();
    Facts { nodes, pools: vec![pool("10.1.0.0/16", EncapMode::Always)], blocks: Vec::new() }
}

fn pool(cidr: &str, vxlan_mode: EncapMode) -> IpPool {
    IpPool::new(
        "p",
        russet_model::IpPoolSpec { vxlan_mode, ..russet_model::IpPoolSpec::new(cidr.parse().unwrap()) },
    )
}

fn block(node: Option<&str>, cidr: &str, in_use: usize) -> BlockFacts {
    BlockFacts { node: node.map(str::to_owned), block: MapBlock { cidr: cidr.to_owned(), in_use, size: 64 } }
}

/// The strings and the bare words of a line of DOT.
#[track_caller]
fn tokens(line: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), line.chars().peekable());
    while let Some(c) = rest.next() {
        if c != '"' {
            found.push(c.to_string());
            continue;
        }
        let mut string = String::from('"');
        loop {
            match rest.next().unwrap_or_else(|| panic!("a string without an end: {line}")) {
                '\\' => string.extend(['\\', rest.next().unwrap()]),
                '"' => break,
                c => string.push(c),
            }
        }
        found.push(string);
    }
    found
}

/// Every form, which must be well-formed.
#[track_caller]
fn forms(map: &Map) -> (String, Vec<testing::Element>, String) {
    let dot = map.dot();
    assert!(dot.starts_with("graph russet {\n") && dot.ends_with("}\n"), "{dot}");
    for line in dot.lines() {
        // Outside of strings there is only what is written here.
        let bare: String = tokens(line).into_iter().filter(|token| !token.starts_with('"')).collect();
        assert!(bare.chars().all(|c| c.is_ascii_alphanumeric() || " =,;[]{}-".contains(c)), "{line}");
        assert!(bare.matches('[').count() <= 1 && bare.matches(';').count() <= 1, "{line}");
    }
    let (elements, text) = testing::read(&map.svg(Styling::Own), &[]);
    let (of_page, _) = testing::read(&map.svg(Styling::Page), &[]);
    assert!(of_page.iter().all(|element| element.name != "style" && element.get("style").is_none()));
    (dot, elements, text)
}

fn count(elements: &[testing::Element], name: &str, class: &str) -> usize {
    elements.iter().filter(|element| element.name == name && element.get("class") == Some(class)).count()
}

#[test]
fn a_map_of_nothing_is_well_formed() {
    let map = Map::new(Facts::default());
    let (_, elements, text) = forms(&map);
    assert!(text.contains("0 nodes, 0 ready; 0 links, 0 unreachable"), "{text}");
    assert_eq!(count(&elements, "g", "node good"), 0);
    assert_eq!(
        serde_json::to_value(&map).unwrap(),
        json!({"schema": 1, "nodes": [], "links": [], "links_total": 0, "problem_links_left_out": 0, "blocks_without_node": []})
    );
}

#[test]
fn one_node_and_three_are_shown_with_their_blocks_and_links() {
    let map = Map::new(Facts { blocks: vec![block(Some("node-000"), "10.1.0.0/26", 7)], ..cluster(1) });
    let (dot, elements, text) = forms(&map);
    assert!(dot.contains("10.1.0.0/26 11%") && text.contains("10.1.0.0/26 11%"), "{dot}{text}");
    assert_eq!((count(&elements, "g", "node good"), map.links.len()), (1, 0));
    let map = Map::new(Facts {
        blocks: vec![block(None, "10.1.0.64/26", 0), block(Some("gone"), "10.1.0.128/26", 1)],
        ..cluster(3)
    });
    let (dot, elements, text) = forms(&map);
    assert_eq!((count(&elements, "g", "node good"), count(&elements, "g", "link good")), (3, 3));
    assert_eq!(dot.matches(" -- ").count(), 3);
    assert!(text.contains("3 nodes, 3 ready; 3 links, 0 unreachable") && text.contains("vxlan"), "{text}");
    assert_eq!(map.left_out(), None);
    assert_eq!(map.blocks_without_node.len(), 2);
}

#[test]
fn an_unreachable_link_is_marked_in_each_form_by_text_and_not_by_colour_alone() {
    let mut facts = cluster(3);
    facts.nodes[0].unreachable = vec!["node-002".to_owned(), "node-000".to_owned(), "gone".to_owned()];
    facts.nodes[2].small_packets_only = vec!["node-000".to_owned(), "node-001".to_owned()];
    let map = Map::new(facts.clone());
    let (dot, elements, text) = forms(&map);
    assert_eq!((count(&elements, "g", "link bad"), count(&elements, "g", "link warn")), (1, 1));
    assert!(text.contains("\u{2715} unreachable") && text.contains("\u{2715} small packets only"), "{text}");
    assert!(text.contains("node-000 - node-002: unreachable, says node-000, node-002 (vxlan)"), "{text}");
    let edge = dot.lines().find(|line| line.contains(" -- ")).unwrap();
    assert!(
        edge.starts_with("  \"node-000\" -- \"node-002\" [") && edge.contains("\"vxlan: unreachable\""),
        "{edge}"
    );
    let link = &serde_json::to_value(&map).unwrap()["links"][0];
    let expected = json!({"nodes": ["node-000", "node-002"], "via": ["vxlan"], "state": "unreachable", "reported_by": ["node-000", "node-002"]});
    assert_eq!(*link, expected);
    assert_eq!(map.nodes.iter().map(|node| node.unreachable).collect::<Vec<_>>(), [1, 0, 1]);
    // A record that is too old says nothing about others.
    facts.nodes[0].state = NodeState::NoSign;
    facts.nodes[2].state = NodeState::NoSign;
    let map = Map::new(facts);
    assert!(map.links.iter().all(|link| !link.state.is_problem()), "{:?}", map.links);
    assert_eq!(map.links[0].state, LinkState::Unknown, "neither of both has a record that counts");
}

#[test]
fn a_large_cluster_has_the_links_with_problems_and_a_sample() {
    let mut facts = cluster(500);
    let others = |facts: &mut Facts| {
        facts.nodes.iter_mut().for_each(|node| node.unreachable = vec!["node-007".to_owned()])
    };
    others(&mut facts);
    let map = Map::new(facts);
    let (dot, elements, text) = forms(&map);
    let bad = map.links.iter().filter(|link| link.state == LinkState::Unreachable).count();
    assert_eq!((bad, map.links_total, map.nodes[7].unreachable), (499, 124_750, 499));
    // Two of the sample's 500 have the problem.
    assert_eq!(map.links.len(), 499 + 498);
    assert_eq!(count(&elements, "g", "node good"), 500);
    assert!(
        text.contains("997 of 124750 links are shown: all of those with a problem, and a sample"),
        "{text}"
    );
    assert!(dot.len() < 400_000, "{}", dot.len());
    let mut worst = cluster(500);
    for node in &mut worst.nodes {
        node.unreachable = (0..16).map(|n| format!("node-{n:03}")).collect();
    }
    let map = Map::new(worst);
    forms(&map);
    assert_eq!(map.links.iter().filter(|link| link.state.is_problem()).count(), 1_000);
    assert!(
        map.problem_links_left_out > 6_000
            && map.left_out().unwrap().contains(" with a problem are left out")
    );
    assert!(map.svg(Styling::Own).len() < 1_000_000);
}

#[test]
fn names_and_reasons_of_any_client_are_only_text() {
    let mut facts = cluster(2);
    facts.nodes[0].name = HOSTILE.to_owned();
    facts.nodes[0].reasons = vec![HOSTILE.to_owned(), "]]>--><!--".to_owned()];
    facts.nodes[0].version = Some(HOSTILE.to_owned());
    facts.nodes[1].unreachable = vec![HOSTILE.to_owned()];
    facts.blocks = vec![block(Some(HOSTILE), HOSTILE, 1)];
    let map = Map::new(facts);
    let (dot, elements, text) = forms(&map);
    assert!(elements.iter().all(|element| element.name != "script"), "{elements:?}");
    assert!(text.contains("<script>"), "it is text: {text}");
    assert_eq!(dot.matches(" -- ").count(), 1);
    // Two nodes and one edge, and no other statement with a label.
    assert_eq!(dot.lines().filter(|line| line.starts_with("  \"")).count(), 3);
}

#[test]
fn pools_and_subnets_say_how_packets_pass() {
    let mut far = node("b");
    far.addresses = vec!["10.9.0.7/24".parse().unwrap()];
    let via = |mode, ipip, other: &NodeFacts| {
        let mut pool = pool("10.1.0.0/16", mode);
        pool.spec.ipip_mode = ipip;
        carriers(&[pool], &node("a"), other)
    };
    use EncapMode::{Always, CrossSubnet, Never};
    assert_eq!(via(Always, Never, &node("b")), ["vxlan"]);
    assert_eq!(via(CrossSubnet, Never, &node("b")), ["route"]);
    assert_eq!(via(CrossSubnet, Never, &far), ["vxlan"]);
    assert_eq!(via(Never, Always, &far), ["ipip"]);
    assert_eq!(via(Never, Never, &far), ["route"]);
}
