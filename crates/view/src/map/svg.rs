//! The map as a picture: up to [`CIRCLE_MAX`] nodes on an ellipse, more in a grid. States differ by text or by the form of lines, not
//! by colour alone.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use super::{Link, Map, MapNode};
use crate::escape::{cut, xml};

/// Where the picture's style comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Styling {
    /// The picture has it: for a file.
    Own,
    /// The page around it has it: its policy allows no inline style.
    Page,
}

/// Where a node is, and its size.
#[derive(Debug, Clone, Copy, PartialEq)]
struct NodeBox {
    x: i32,
    y: i32,
    width: i32,
    height: i32,
    /// The lines of text in it.
    lines: usize,
    /// How many characters a line has.
    chars: usize,
}

/// With more nodes on an ellipse, boxes and lines overlap.
const CIRCLE_MAX: usize = 16;
/// With more links, their texts cover each other; the lines' titles have them.
const LABELS_MAX: usize = 30;
const MARGIN: i32 = 20;
const LINE_HEIGHT: i32 = 16;
/// Of the text below the picture.
const FOOT: i32 = 48;

/// The style, with the names of classes that the page of the agent has, too.
pub const STYLE: &str = include_str!("map.css");

pub fn svg(map: &Map, styling: Styling) -> String {
    let boxes = places(map);
    let right = |place: &NodeBox| place.x + place.width;
    let width = boxes.iter().map(right).max().unwrap_or(360).max(360) + MARGIN;
    let height = boxes.iter().map(|place| place.y + place.height).max().unwrap_or(0) + MARGIN + FOOT;
    let by_name: BTreeMap<&str, NodeBox> =
        map.nodes.iter().map(|node| node.name.as_str()).zip(boxes.iter().copied()).collect();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"map\" role=\"img\" aria-label=\"{}\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n",
        xml(&map.summary())
    );
    if styling == Styling::Own {
        text.push_str(&format!("<style>\n{STYLE}</style>\n"));
        text.push_str("<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
    }
    text.push_str("<g class=\"links\">\n");
    let with_labels = map.links.len() <= LABELS_MAX;
    // Those with problems last, so that they are on top.
    for link in map.links.iter().rev() {
        let [a, b] = link.nodes.each_ref().map(|name| by_name.get(name.as_str()));
        if let (Some(a), Some(b)) = (a, b) {
            text.push_str(&line(
                link,
                *a,
                *b,
                with_labels || link.state.is_problem() && map.links.len() <= 10 * LABELS_MAX,
            ));
        }
    }
    text.push_str("</g>\n<g class=\"nodes\">\n");
    map.nodes.iter().zip(&boxes).for_each(|(node, place)| text.push_str(&node_box(node, *place)));
    text.push_str("</g>\n");
    let foot = [map.summary()].into_iter().chain(map.left_out());
    for (at, words) in (0..).zip(foot) {
        let y = height - FOOT + LINE_HEIGHT * (at + 1);
        text.push_str(&format!("<text class=\"foot\" x=\"{MARGIN}\" y=\"{y}\">{}</text>\n", xml(&words)));
    }
    text.push_str("</svg>\n");
    text
}

/// The places of all nodes, in their order.
fn places(map: &Map) -> Vec<NodeBox> {
    let count = map.nodes.len();
    if count > CIRCLE_MAX {
        return (0..count).map(|at| in_grid(at, count)).collect();
    }
    let lines = map.nodes.iter().map(|node| node.lines().len()).max().unwrap_or(2).min(6);
    let height = LINE_HEIGHT * pixels(lines as f64) + 12;
    let (width, chars) = (190, 26);
    let shared = NodeBox { x: MARGIN, y: MARGIN, width, height, lines, chars };
    if count <= 1 {
        return vec![shared; count];
    }
    // The ellipse is so large that neighbours on it do not touch.
    let scale = (count as f64 / TAU).max(0.75);
    let (rx, ry) = (f64::from(width + 70) * scale, f64::from(height + 60) * scale);
    let at = |number: usize| {
        let angle = TAU * (number as f64) / (count as f64) - TAU / 4.0;
        let (x, y) = (rx * (1.0 + angle.cos()), ry * (1.0 + angle.sin()));
        NodeBox { x: MARGIN + pixels(x), y: MARGIN + pixels(y), ..shared }
    };
    (0..count).map(at).collect()
}

/// The place of a node in a grid that is about as wide as it is high.
fn in_grid(at: usize, count: usize) -> NodeBox {
    let (width, height, chars, lines) = if count <= 100 { (150, 44, 20, 2) } else { (96, 24, 13, 1) };
    let (gap_x, gap_y) = (26, 26);
    let wide = f64::from(width + gap_x) / f64::from(height + gap_y);
    let columns = ((count as f64 / wide).sqrt().ceil().max(1.0)) as usize;
    let (column, row) = (at % columns, at / columns);
    let x = MARGIN + pixels(column as f64) * (width + gap_x);
    // Every second column is lower, so that a line between nodes of one row does not cover those between them.
    let lower = if column % 2 == 1 { gap_y / 2 } else { 0 };
    NodeBox { x, y: MARGIN + lower + pixels(row as f64) * (height + gap_y), width, height, lines, chars }
}

/// Rounded. The conversion saturates.
fn pixels(value: f64) -> i32 {
    value.round() as i32
}

fn line(link: &Link, a: NodeBox, b: NodeBox, with_label: bool) -> String {
    let ((x1, y1), (x2, y2)) = (a.middle(), b.middle());
    let (class, state, via) = (link.state.class(), link.state.as_str(), link.via());
    let by = match link.reported_by.is_empty() {
        true => String::new(),
        false => format!(", says {}", link.reported_by.join(", ")),
    };
    let [first, second] = &link.nodes;
    let title = xml(&format!("{first} - {second}: {state}{by} ({via})"));
    let mut text = format!(
        "<g class=\"link {class}\"><title>{title}</title><line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
    );
    if with_label {
        let (x, y) = ((x1 + x2) / 2, (y1 + y2) / 2 - 4);
        let words = if link.state.is_problem() { format!("\u{2715} {state}") } else { via };
        text.push_str(&format!("<text x=\"{x}\" y=\"{y}\">{}</text>", xml(&words)));
    }
    text.push_str("</g>\n");
    text
}

fn node_box(node: &MapNode, place: NodeBox) -> String {
    let NodeBox { x, y, width, height, lines, chars } = place;
    let all = node.lines();
    let mut text = format!(
        "<g class=\"node {}\"><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>",
        node.state.class(),
        all.iter().map(|line| xml(line)).collect::<Vec<_>>().join("\n")
    );
    let more = all.len() > lines && lines > 2;
    for (at, line) in (0..).zip(all.iter().take(lines)) {
        let is_last = more && usize::try_from(at).is_ok_and(|at| at + 1 == lines);
        let words = if is_last { format!("and {} more", all.len() - lines + 1) } else { cut(line, chars) };
        let class = if at == 0 { " class=\"name\"" } else { "" };
        let y = y + 4 + LINE_HEIGHT * (at + 1) - 2;
        text.push_str(&format!("<text{class} x=\"{}\" y=\"{y}\">{}</text>", x + 8, xml(&words)));
    }
    text.push_str("</g>\n");
    text
}

// === impl NodeBox ===

impl NodeBox {
    const fn middle(self) -> (i32, i32) {
        (self.x + self.width / 2, self.y + self.height / 2)
    }
}
