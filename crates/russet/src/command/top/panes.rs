//! What each pane lists. Pure.

use std::time::{Duration, SystemTime};

use russet_agent::flows::{DENIED, FlowRecord};
use russet_agent::peers::{PeerReport, PeerState};
use russet_model::time::parse_rfc3339;
use russet_view::map::{Link, MapBlock, counted};
use russet_view::page::{OperationRow, PodRow, RepairRow};

use super::line::{Line, Piece, Table, Tone};
use super::model::Model;
use crate::command::status::{self, Problem, milliseconds};
use crate::output::age;

/// A part of what is known of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pane {
    State,
    Nodes,
    Blocks,
    Flows,
    Pods,
    Operations,
    Drift,
}

/// What a pane has to show.
#[derive(Debug, Default)]
pub struct Content {
    /// Stays where it is while the lines are scrolled.
    pub heading: Option<Line>,
    pub lines: Vec<Line>,
}

/// Rows with what is to be said beside them.
struct Listed<'m> {
    table: Table,
    /// In the place of rows, if there are none.
    none: &'m str,
    notes: Vec<String>,
}

/// Columns of a bar.
const BAR: usize = 20;
/// Columns of a fact's name in `russet status`.
const FACT: usize = 11;

// === impl Pane ===

impl Pane {
    pub const ALL: [Self; 7] =
        [Self::State, Self::Nodes, Self::Blocks, Self::Flows, Self::Pods, Self::Operations, Self::Drift];

    pub const fn title(self) -> &'static str {
        match self {
            Self::State => "State",
            Self::Nodes => "Nodes",
            Self::Blocks => "Blocks",
            Self::Flows => "Flows",
            Self::Pods => "Pods",
            Self::Operations => "Operations",
            Self::Drift => "Drift",
        }
    }

    /// `1` is the first one.
    pub fn of_digit(digit: char) -> Option<Self> {
        let number = usize::try_from(digit.to_digit(10)?).ok()?;
        Self::ALL.get(number.checked_sub(1)?).copied()
    }

    /// The pane so many places on, from the last one to the first.
    pub fn at(self, places: usize) -> Self {
        Self::ALL.iter().cycle().nth(self as usize + places).copied().unwrap_or(self)
    }
}

/// What the pane that is shown has, for a terminal of `width` columns.
pub fn content(model: &Model, width: usize) -> Content {
    of(model, model.pane, width)
}

/// What a pane has.
pub fn of(model: &Model, pane: Pane, width: usize) -> Content {
    let listed = match pane {
        Pane::State => return state(model, width),
        Pane::Nodes => nodes(model),
        Pane::Blocks => blocks(model),
        Pane::Flows => flows(model),
        Pane::Pods => pods(model),
        Pane::Operations => operations(model),
        Pane::Drift => drift(model),
    };
    let (heading, mut lines) = listed.table.lines();
    let all = lines.len();
    lines.retain(|line| line.has(&model.filter));
    let heading = (!lines.is_empty()).then_some(heading);
    if all == 0 {
        lines.push(Line::new(listed.none, Tone::Plain));
    } else if lines.is_empty() {
        lines.push(Line::new(format!("None of {} contains the filter.", counted(all, "row")), Tone::Plain));
    }
    for note in &listed.notes {
        lines.push(Line::default());
        lines.extend(Line::new(note, Tone::Plain).wrapped(width, 0));
    }
    Content { heading, lines }
}

// === the panes ===

fn state(model: &Model, width: usize) -> Content {
    let status = &model.sample.status;
    let mut lines = Vec::new();
    for Problem { what, next } in status::problems(status) {
        let what = Line::of([Piece::new("! ", Tone::Bad), Piece::new(what, Tone::Bad)]);
        let next = Line::of([Piece::plain("    "), Piece::plain(next)]);
        if what.has(&model.filter) || next.has(&model.filter) {
            lines.extend(what.wrapped(width, 2));
            lines.extend(next.wrapped(width, 4));
        }
    }
    if status::problems(status).is_empty() {
        lines.push(Line::new("No problems.", Tone::Good));
    }
    lines.push(Line::default());
    let map = &model.sample.page.map;
    let mut facts: Vec<Line> =
        status::facts(status).iter().map(|fact| Line::new(fact, Tone::Plain)).collect();
    if let Some(rates) = model.rates {
        let text = format!(
            "{:<10} {:.1} new in a second, {:.1} denied packets in a second",
            "flows", rates.flows, rates.denied_packets
        );
        facts.push(Line::new(text, Tone::Plain));
    }
    facts.push(Line::new(format!("{:<10} {}", "map", map.summary()), Tone::Plain));
    facts.extend(map.links.iter().filter(|link| link.state.is_problem()).map(link));
    let shown = facts.iter().filter(|fact| fact.has(&model.filter));
    lines.extend(shown.flat_map(|fact| fact.wrapped(width, FACT)));
    Content { heading: None, lines }
}

fn link(link: &Link) -> Line {
    let [a, b] = &link.nodes;
    let (state, via, by) = (link.state.as_str(), link.via(), link.reported_by.join(", "));
    Line::new(format!("{:<10} {a} - {b}: {state} ({via}), reported by {by}", "link"), Tone::Bad)
}

fn nodes(model: &Model) -> Listed<'_> {
    let row = |peer: &PeerReport| {
        let tone = match peer.state {
            PeerState::Reachable => Tone::Good,
            PeerState::Unknown => Tone::Plain,
            PeerState::SmallPacketsOnly => Tone::Warn,
            PeerState::Unreachable => Tone::Bad,
        };
        vec![
            Piece::plain(&peer.node),
            Piece::new(peer.state.as_str(), tone),
            Piece::plain(peer.path.as_str()),
            Piece::plain(&peer.probed),
            Piece::plain(peer.rtt_us.map_or_else(dash, milliseconds)),
            Piece::plain(format!("{}/{}", peer.lost, peer.lost_of)),
            Piece::plain(peer.reason.as_deref().unwrap_or("-")),
        ]
    };
    let peers = &model.sample.status.peers.peers;
    Listed {
        table: Table {
            heading: &["NODE", "STATE", "PATH", "PROBED", "RTT", "LOST", "REASON"],
            rows: peers.iter().map(row).collect(),
        },
        none: "No other node is probed.",
        notes: model.sample.page.peers_note.iter().cloned().collect(),
    }
}

fn blocks(model: &Model) -> Listed<'_> {
    let page = &model.sample.page;
    let with_node = page.map.nodes.iter().map(|node| (node.name.as_str(), &node.blocks));
    let without = [("no node", &page.map.blocks_without_node)];
    let row = |node: &str, block: &MapBlock| {
        let is_full = block.in_use >= block.size;
        let (tone, full) = if is_full { (Tone::Warn, ", full") } else { (Tone::Plain, "") };
        vec![
            Piece::plain(node),
            Piece::plain(&block.cidr),
            Piece::new(bar(block.percent(), block.in_use), tone),
            Piece::new(format!("{} of {}{full}", block.in_use, block.size), tone),
        ]
    };
    let rows = with_node
        .chain(without)
        .flat_map(|(node, blocks)| blocks.iter().map(move |block| row(node, block)))
        .collect();
    Listed {
        table: Table { heading: &["NODE", "BLOCK", "USE", "IN USE"], rows },
        none: "No blocks are known.",
        notes: page.map_note.iter().cloned().collect(),
    }
}

/// `[#####...............]  25%`. What is in use at all shows.
fn bar(percent: usize, in_use: usize) -> String {
    let filled = (percent * BAR).div_ceil(100).clamp(usize::from(in_use > 0), BAR);
    format!("[{}{}] {percent:>3}%", "#".repeat(filled), ".".repeat(BAR - filled))
}

fn flows(model: &Model) -> Listed<'_> {
    let Sources { flows, mut notes } = flow_sources(model);
    let at = &model.sample.page.at;
    let row = |flow: &&FlowRecord| {
        let decision = &flow.decision;
        let tone = if flow.verdict == DENIED { Tone::Bad } else { Tone::Good };
        let policies: Vec<String> = decision.policies.iter().map(ToString::to_string).collect();
        vec![
            Piece::plain(clock(at, &flow.last)),
            Piece::new(&flow.verdict, tone),
            Piece::plain(&decision.direction),
            Piece::plain(&decision.source.name),
            Piece::plain(&decision.destination.name),
            Piece::plain(decision.what()),
            Piece::plain(flow.packets.to_string()),
            Piece::plain(if policies.is_empty() { dash() } else { policies.join(", ") }),
            Piece::plain(&decision.reason),
        ]
    };
    let is_shown = |flow: &&FlowRecord| !model.wants_denied() || flow.verdict == DENIED;
    // The agent has the newest ones last.
    let rows = flows.iter().rev().filter(is_shown).map(|flow| row(&flow)).collect();
    if let Some(rates) = model.rates {
        let text = format!(
            "{:.1} new flows and {:.1} denied packets in a second",
            rates.flows, rates.denied_packets
        );
        notes.push(format!("{text}, between the last two answers."));
    }
    let heading = &["LAST", "VERDICT", "DIRECTION", "FROM", "TO", "WHAT", "PACKETS", "POLICIES", "REASON"];
    let none = if model.wants_denied() { "No flow was denied." } else { "No flows." };
    Listed { table: Table { heading, rows }, none, notes }
}

/// The flows, and what is to be known of them.
struct Sources<'m> {
    flows: &'m [FlowRecord],
    notes: Vec<String>,
}

fn flow_sources(model: &Model) -> Sources<'_> {
    let flows = model.sample.flows.as_ref().map(|report| report.flows.as_slice()).unwrap_or_default();
    Sources { flows, notes: model.sample.page.flows_note.iter().cloned().collect() }
}

fn pods(model: &Model) -> Listed<'_> {
    let page = &model.sample.page;
    let row = |pod: &PodRow| {
        vec![
            Piece::plain(&pod.name),
            Piece::plain(&pod.interface),
            Piece::plain(&pod.network),
            Piece::plain(pod.addresses.join(", ")),
            Piece::plain(clock(&page.at, &pod.since)),
        ]
    };
    let more = page.pods_total.saturating_sub(page.pods.len());
    let more = (more > 0).then(|| format!("{more} more are left out; `russet journal` has all."));
    Listed {
        table: Table {
            heading: &["POD", "INTERFACE", "NETWORK", "ADDRESSES", "SINCE"],
            rows: page.pods.iter().map(row).collect(),
        },
        none: "No pods.",
        notes: more.into_iter().collect(),
    }
}

fn operations(model: &Model) -> Listed<'_> {
    let page = &model.sample.page;
    let row = |operation: &OperationRow| {
        let (tone, outcome) = match operation.outcome.as_deref() {
            None => (Tone::Warn, "in progress"),
            Some("done") => (Tone::Good, "done"),
            Some(error) => (Tone::Bad, error),
        };
        let so_far = || elapsed(&operation.began, &page.at).map(|span| format!("{} so far", age(span)));
        let took = operation.ms.map(|ms| format!("{ms} ms")).or_else(so_far);
        vec![
            Piece::plain(clock(&page.at, &operation.began)),
            Piece::plain(&operation.verb),
            Piece::plain(&operation.plugin),
            Piece::plain(took.unwrap_or_else(dash)),
            Piece::plain(&operation.subject),
            Piece::new(outcome, tone),
        ]
    };
    Listed {
        table: Table {
            heading: &["BEGAN", "VERB", "PLUGIN", "TOOK", "SUBJECT", "OUTCOME"],
            rows: page.operations.iter().map(row).collect(),
        },
        none: "No requests since the agent's start.",
        notes: Vec::new(),
    }
}

fn drift(model: &Model) -> Listed<'_> {
    let page = &model.sample.page;
    let row = |repair: &RepairRow| {
        let more = (repair.more > 0).then(|| format!("and {} more", repair.more));
        let what: Vec<&str> = repair.what.iter().map(String::as_str).chain(more.as_deref()).collect();
        let by = if repair.by.is_empty() { "an unknown process".to_owned() } else { repair.by.join(", ") };
        let (tone, outcome) = match repair.errors.join("; ") {
            errors if errors.is_empty() => (Tone::Good, "restored".to_owned()),
            errors => (Tone::Bad, errors),
        };
        vec![
            Piece::plain(clock(&page.at, &repair.at)),
            Piece::plain(format!("{:.2} ms", repair.ms)),
            Piece::new(outcome, tone),
            Piece::plain(what.join(", ")),
            Piece::plain(by),
        ]
    };
    Listed {
        table: Table {
            heading: &["WHEN", "TOOK", "OUTCOME", "WHAT", "CHANGED BY"],
            rows: page.repairs.iter().map(row).collect(),
        },
        none: "Nothing was repaired since the agent's start.",
        notes: Vec::new(),
    }
}

/// The time of day, if `at` is on the day of `now`; both in RFC 3339.
pub fn clock(now: &str, at: &str) -> String {
    let is_today = now.get(..11).is_some_and(|day| at.starts_with(day));
    let time = at.get(11..19).filter(|_| is_today && at.ends_with('Z'));
    time.unwrap_or(at).to_owned()
}

fn elapsed(began: &str, now: &str) -> Option<Duration> {
    let [began, now]: [SystemTime; 2] = [parse_rfc3339(began)?, parse_rfc3339(now)?];
    now.duration_since(began).ok()
}

fn dash() -> String {
    "-".to_owned()
}
