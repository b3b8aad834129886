//! The sections of the page: a heading, a table with a caption, or the map. Every datum passes through [`xml`].

use super::{FlowRow, NodePage, OperationRow, PeerRow, PodRow, RepairRow, Section};
use crate::escape::xml;
use crate::map::{MapBlock, Styling};

/// Identifiers and headings.
pub const TITLES: [(&str, &str); 8] = [
    ("state", "State"),
    ("topology", "Topology"),
    ("blocks", "Address blocks"),
    ("peers", "Other nodes"),
    ("flows", "Flows"),
    ("pods", "Pods"),
    ("operations", "Operations"),
    ("repairs", "Drift"),
];

pub fn all(page: &NodePage) -> Vec<Section> {
    let bodies = [
        state(page),
        topology(page),
        blocks(page),
        peers(page),
        flows(page),
        pods(page),
        operations(page),
        repairs(page),
    ];
    let section = |((id, title), body): ((&'static str, &str), String)| Section {
        id,
        html: format!("<h2 id=\"{id}-title\">{title}</h2>\n{body}"),
    };
    TITLES.into_iter().zip(bodies).map(section).collect()
}

fn state(page: &NodePage) -> String {
    let mut text = match page.problems.len() {
        0 => "<p class=\"good\">No problems.</p>\n".to_owned(),
        count => {
            format!("<p class=\"bad\">{count} {}:</p>\n", if count == 1 { "problem" } else { "problems" })
        }
    };
    if !page.problems.is_empty() {
        let items = page.problems.iter().map(|problem| format!("<li>{}</li>\n", xml(problem)));
        text.push_str(&format!("<ul class=\"problems\">\n{}</ul>\n", items.collect::<String>()));
    }
    let latency = page.latency_us.map(|us| format!(", {}", milliseconds(us))).unwrap_or_default();
    let facts = [
        ("Agent", format!("up {}", span(page.uptime_s))),
        ("Datastore", format!("{}{latency}", page.datastore)),
        ("Pods", format!("{} interfaces", page.pods_total)),
        ("Repairs", format!("{} since the agent's start", page.repairs_total)),
    ];
    text.push_str("<dl>\n");
    for (name, fact) in facts {
        text.push_str(&format!("<dt>{name}</dt><dd>{}</dd>\n", xml(&fact)));
    }
    text.push_str("</dl>\n");
    text
}

fn topology(page: &NodePage) -> String {
    let map = page.map.svg(Styling::Page);
    // A scroller must be reachable with the keyboard.
    let mut text = format!(
        "<div class=\"scroller\" id=\"topology-map\" tabindex=\"0\" role=\"region\" aria-label=\"Map of nodes\">\n{map}</div>\n{}",
        note(page.map_note.as_deref())
    );
    let bad: Vec<Vec<String>> = page
        .map
        .links
        .iter()
        .filter(|link| link.state.is_problem())
        .take(ROWS_MAX)
        .map(|link| {
            let [a, b] = link.nodes.each_ref().map(|name| xml(name));
            vec![
                a,
                b,
                state_cell(link.state.class(), link.state.as_str()),
                xml(&link.via()),
                xml(&link.reported_by.join(", ")),
            ]
        })
        .collect();
    if !bad.is_empty() {
        text.push_str(&table(
            "topology-links",
            "Links with a problem",
            &["From", "To", "State", "Via", "Reported by"],
            &bad,
        ));
    }
    text
}

/// Each block is a cell, whose class is the tenth of it that is in use; the number is in it as text.
fn blocks(page: &NodePage) -> String {
    let with_node = page.map.nodes.iter().map(|node| (node.name.as_str(), &node.blocks));
    let without = [("no node", &page.map.blocks_without_node)];
    let rows: Vec<(&str, &Vec<MapBlock>)> =
        with_node.chain(without).filter(|(_, blocks)| !blocks.is_empty()).collect();
    if rows.is_empty() {
        return "<p class=\"note\">No blocks are known.</p>\n".to_owned();
    }
    let mut text = scroller("blocks-table", "Blocks of addresses, with the part of each that is in use");
    text.push_str(
        "<thead><tr><th scope=\"col\">Node</th><th scope=\"col\">Blocks</th></tr></thead>\n<tbody>\n",
    );
    for (node, blocks) in rows {
        let cells: String = blocks.iter().map(cell).collect();
        text.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td><ul class=\"heat\">{cells}</ul></td></tr>\n",
            xml(node)
        ));
    }
    text.push_str("</tbody>\n</table>\n</div>\n");
    text
}

fn cell(block: &MapBlock) -> String {
    let (percent, in_use, size) = (block.percent(), block.in_use, block.size);
    let tenth = (percent / 10).min(10);
    format!(
        "<li class=\"heat-{tenth}\"><span>{}</span> <b>{percent}%</b> <small>{in_use} of {size}</small></li>",
        xml(&block.cidr)
    )
}

fn peers(page: &NodePage) -> String {
    let row = |peer: &PeerRow| {
        let class = match &*peer.state {
            "reachable" => "good",
            "unreachable" => "bad",
            "unknown" => "unknown",
            _ => "warn",
        };
        vec![
            xml(&peer.node),
            format!("IPv{}", peer.ip_version),
            state_cell(class, &peer.state),
            xml(&peer.path),
            xml(&peer.probed),
            peer.rtt_us.map_or_else(dash, milliseconds),
            format!("{} of {}", peer.lost, peer.lost_of),
            peer.reason.as_deref().map_or_else(dash, xml),
        ]
    };
    let heading = ["Node", "Family", "State", "Path", "Probed", "Round trip", "Lost", "Reason"];
    let rows: Vec<Vec<String>> = page.peers.iter().map(row).collect();
    let text = listed(
        "peers-table",
        "Other nodes, as probes from this node find them",
        &heading,
        &rows,
        "No other node is probed.",
    );
    text + &note(page.peers_note.as_deref())
}

fn flows(page: &NodePage) -> String {
    let row = |flow: &FlowRow| {
        let class = if flow.verdict == "denied" { "bad" } else { "good" };
        vec![
            time(&flow.last),
            state_cell(class, &flow.verdict),
            xml(&flow.direction),
            xml(&flow.from),
            xml(&flow.to),
            xml(&flow.what),
            flow.packets.to_string(),
            xml(&flow.policies.join(", ")),
            xml(&flow.reason),
        ]
    };
    let heading = ["Last", "Verdict", "Direction", "From", "To", "What", "Packets", "Policies", "Reason"];
    let rows: Vec<Vec<String>> = page.flows.iter().map(row).collect();
    let text =
        listed("flows-table", "The last flows about which policies decided", &heading, &rows, "No flows.");
    text + &note(page.flows_note.as_deref())
}

fn pods(page: &NodePage) -> String {
    let row = |pod: &PodRow| {
        vec![
            xml(&pod.name),
            xml(&pod.interface),
            xml(&pod.network),
            xml(&pod.addresses.join(", ")),
            time(&pod.since),
        ]
    };
    let rows: Vec<Vec<String>> = page.pods.iter().map(row).collect();
    let heading = ["Pod", "Interface", "Network", "Addresses", "Since"];
    let text = listed("pods-table", "Interfaces of pods on this node", &heading, &rows, "No pods.");
    let more = page.pods_total.saturating_sub(rows.len());
    let more = (more > 0).then(|| format!("{more} more are left out; `russet journal` has all."));
    text + &note(more.as_deref())
}

fn operations(page: &NodePage) -> String {
    let row = |operation: &OperationRow| {
        let (class, outcome) = match operation.outcome.as_deref() {
            None => ("warn", "in progress"),
            Some("done") => ("good", "done"),
            Some(error) => ("bad", error),
        };
        let took = operation.ms.map_or_else(dash, |ms| format!("{ms} ms"));
        let (verb, plugin, subject) = (xml(&operation.verb), xml(&operation.plugin), xml(&operation.subject));
        vec![time(&operation.began), verb, plugin, subject, state_cell(class, outcome), took]
    };
    let rows: Vec<Vec<String>> = page.operations.iter().map(row).collect();
    let heading = ["Began", "Verb", "Plugin", "Subject", "Outcome", "Took"];
    listed(
        "operations-table",
        "The last requests of plugins",
        &heading,
        &rows,
        "No requests since the agent's start.",
    )
}

fn repairs(page: &NodePage) -> String {
    let row = |repair: &RepairRow| {
        let mut what = repair.what.clone();
        if repair.more > 0 {
            what.push(format!("and {} more", repair.more));
        }
        let lines = |all: &[String]| all.iter().map(|line| xml(line)).collect::<Vec<_>>().join("<br>");
        let by = if repair.by.is_empty() { "an unknown process".to_owned() } else { lines(&repair.by) };
        let outcome = if repair.errors.is_empty() {
            state_cell("good", "restored")
        } else {
            state_cell("bad", &repair.errors.join("; "))
        };
        vec![time(&repair.at), lines(&what), by, outcome, format!("{:.2} ms", repair.ms)]
    };
    let rows: Vec<Vec<String>> = page.repairs.iter().map(row).collect();
    let heading = ["When", "What", "Changed by", "Outcome", "Took"];
    let caption = "Changes of other programs that the agent has repaired";
    listed("repairs-table", caption, &heading, &rows, "Nothing was repaired since the agent's start.")
}

/// Rows of a table that the page itself limits.
const ROWS_MAX: usize = 50;

/// A table, or a sentence if it has no row.
fn listed(id: &str, caption: &str, heading: &[&str], rows: &[Vec<String>], none: &str) -> String {
    if rows.is_empty() {
        format!("<p class=\"note\">{none}</p>\n")
    } else {
        table(id, caption, heading, rows)
    }
}

/// A table of cells that are HTML.
fn table(id: &str, caption: &str, heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = scroller(id, caption);
    let cells: String = heading.iter().map(|name| format!("<th scope=\"col\">{name}</th>")).collect();
    text.push_str(&format!("<thead><tr>{cells}</tr></thead>\n<tbody>\n"));
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        text.push_str(&format!("<tr>{cells}</tr>\n"));
    }
    text.push_str("</tbody>\n</table>\n</div>\n");
    text
}

/// The beginning of a table. Narrow screens scroll it, which has to be possible with the keyboard.
fn scroller(id: &str, caption: &str) -> String {
    format!(
        "<div class=\"scroller\" id=\"{id}\" tabindex=\"0\" role=\"region\" aria-labelledby=\"{id}-caption\">\n<table>\n\
         <caption id=\"{id}-caption\">{caption}</caption>\n"
    )
}

fn note(text: Option<&str>) -> String {
    text.map(|text| format!("<p class=\"note\">{}</p>\n", xml(text))).unwrap_or_default()
}

fn state_cell(class: &str, text: &str) -> String {
    format!("<span class=\"{class}\">{}</span>", xml(text))
}

fn time(rfc3339: &str) -> String {
    let text = xml(rfc3339);
    format!("<time datetime=\"{text}\">{text}</time>")
}

fn dash() -> String {
    "-".to_owned()
}

fn milliseconds(us: u64) -> String {
    format!("{}.{:02} ms", us / 1000, us % 1000 / 10)
}

/// Days, hours, minutes; seconds below a minute.
fn span(seconds: u64) -> String {
    match (seconds / 86_400, seconds % 86_400 / 3_600, seconds % 3_600 / 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}
