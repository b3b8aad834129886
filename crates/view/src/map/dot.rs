//! The map as a graph for Graphviz: `russet map -o dot | dot -Tpdf -o map.pdf`.

use super::{Link, LinkState, Map, MapNode, NodeState};
use crate::escape;

pub fn dot(map: &Map) -> String {
    let mut text = String::from("graph russet {\n");
    let label = [map.summary()].into_iter().chain(map.left_out()).collect::<Vec<_>>();
    text.push_str(&format!("  graph [layout=circo, overlap=false, label={}];\n", escape::dot_lines(&label)));
    text.push_str("  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\"];\n");
    text.push_str("  edge [fontname=\"sans-serif\", fontsize=10];\n");
    map.nodes.iter().for_each(|one| text.push_str(&node(one)));
    map.links.iter().for_each(|link| text.push_str(&edge(link)));
    text.push_str("}\n");
    text
}

fn node(node: &MapNode) -> String {
    let fill = match node.state {
        NodeState::Ready => "#d7f0dc",
        NodeState::NotReady => "#fdebc8",
        NodeState::NoSign => "#f8d3d3",
        NodeState::NoRecord => "#e6e6e6",
    };
    let (name, label) = (escape::dot(&node.name), escape::dot_lines(&node.lines()));
    format!("  {name} [label={label}, fillcolor=\"{fill}\"];\n")
}

fn edge(link: &Link) -> String {
    let [a, b] = link.nodes.each_ref().map(|name| escape::dot(name));
    let state = link.state.as_str();
    // Not by colour alone.
    let (look, label) = match link.state {
        LinkState::Unreachable => {
            ("color=\"#b00020\", style=dashed, penwidth=2", format!("{}: {state}", link.via()))
        }
        LinkState::SmallPacketsOnly => {
            ("color=\"#9a5b00\", style=dotted, penwidth=2", format!("{}: {state}", link.via()))
        }
        LinkState::Unknown => ("color=\"#888888\", style=dotted", link.via()),
        LinkState::NoProblem => ("color=\"#2e7d32\"", link.via()),
    };
    let by = match link.reported_by.is_empty() {
        true => state.to_owned(),
        false => format!("{state}, says {}", link.reported_by.join(", ")),
    };
    format!("  {a} -- {b} [{look}, label={}, tooltip={}];\n", escape::dot(&label), escape::dot(&by))
}
