//! The page of a node: what its agent knows, as HTML that works without JavaScript, and as JSON. The script replaces sections whose HTML has
//! changed; nothing is rendered twice, in two languages.

mod sections;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::escape::xml;
use crate::map::Map;

/// What an agent knows. Everything in it is bounded by the one who makes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodePage {
    /// Grows when a member changes its meaning.
    pub schema: u32,
    pub node: String,
    pub version: String,
    /// When this was read, in RFC 3339.
    pub at: String,
    pub uptime_s: u64,
    pub datastore: String,
    /// How long its last answer took, in microseconds.
    pub latency_us: Option<u64>,
    /// What is wrong, most urgent first.
    pub problems: Vec<String>,
    pub map: Map,
    /// What is to be known of the map, as that nodes are left out.
    pub map_note: Option<String>,
    pub peers: Vec<PeerRow>,
    pub peers_note: Option<String>,
    pub pods: Vec<PodRow>,
    /// Interfaces of pods, whether they are among `pods` or not.
    pub pods_total: usize,
    /// The newest first.
    pub flows: Vec<FlowRow>,
    pub flows_note: Option<String>,
    /// The newest first; those in progress before the others.
    pub operations: Vec<OperationRow>,
    /// The newest first.
    pub repairs: Vec<RepairRow>,
    /// Since the agent's start.
    pub repairs_total: u64,
}

/// Another node in one family, as this node sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PeerRow {
    pub node: String,
    pub ip_version: u8,
    pub state: Cow<'static, str>,
    pub path: Cow<'static, str>,
    pub probed: String,
    pub rtt_us: Option<u64>,
    /// Of the last `lost_of` probes.
    pub lost: u32,
    pub lost_of: u32,
    pub reason: Option<String>,
}

/// An interface of a pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodRow {
    /// `namespace/name`, or the container.
    pub name: String,
    pub interface: String,
    pub network: String,
    pub addresses: Vec<String>,
    /// In RFC 3339.
    pub since: String,
}

/// A flow about which policies decided.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlowRow {
    /// In RFC 3339.
    pub last: String,
    pub verdict: String,
    pub direction: String,
    pub from: String,
    pub to: String,
    /// Protocol and port.
    pub what: String,
    pub packets: u64,
    pub policies: Vec<String>,
    pub reason: String,
}

/// A request of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRow {
    /// When it began, in RFC 3339.
    pub began: String,
    pub verb: String,
    pub plugin: String,
    pub subject: String,
    /// None: in progress. Otherwise `done`, or the error.
    pub outcome: Option<String>,
    pub ms: Option<u64>,
}

/// A repair of drift.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RepairRow {
    /// In RFC 3339.
    pub at: String,
    pub what: Vec<String>,
    pub more: u64,
    /// The processes that made the change.
    pub by: Vec<String>,
    pub ms: f64,
    pub errors: Vec<String>,
}

/// A part of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Section {
    pub id: &'static str,
    pub html: String,
}

/// What the script asks for.
#[derive(Debug, Serialize)]
pub struct Sections {
    pub schema: u32,
    pub at: String,
    pub sections: Vec<Section>,
}

pub const STYLE: &str = concat!(include_str!("map/map.css"), include_str!("page/page.css"));
pub const ICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><circle cx=\"8\" cy=\"8\" r=\"7\" fill=\"#b5512b\"/></svg>\n";
pub const SCRIPT: &str = include_str!("page/page.js");
/// How often the script asks, and how often a browser without scripts reloads the page, in seconds.
pub const POLL_S: u64 = 2;
pub const RELOAD_S: u64 = 10;

// === impl NodePage ===

impl NodePage {
    pub const SCHEMA: u32 = 1;

    /// The whole page.
    pub fn html(&self) -> String {
        let node = xml(&self.node);
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{node} - Russet</title>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <noscript><meta http-equiv=\"refresh\" content=\"{RELOAD_S}\"></noscript>\n\
             <link rel=\"stylesheet\" href=\"style.css\">\n<link rel=\"icon\" href=\"icon.svg\">\n\
             <script src=\"script.js\" defer=\"defer\"></script>\n</head>\n<body>\n\
             <a class=\"skip\" href=\"#main\">Skip to the content</a>\n\
             <header><h1>{node}</h1><p>Russet {}, <span id=\"at\">as of {}</span> <span id=\"connection\" role=\"status\"></span></p>\n",
            xml(&self.version),
            xml(&self.at)
        );
        let sections = self.sections();
        text.push_str("<nav aria-label=\"Sections\"><ul>\n");
        for (id, title) in sections::TITLES {
            text.push_str(&format!("<li><a href=\"#{id}\">{title}</a></li>\n"));
        }
        text.push_str(
            "</ul></nav></header>\n<noscript><p class=\"note\">Without scripts the page is reloaded every ",
        );
        text.push_str(&format!("{RELOAD_S} seconds; <a href=\"./\">reload now</a>.</p></noscript>\n"));
        text.push_str(&format!("<main id=\"main\" tabindex=\"-1\" data-poll=\"{POLL_S}\">\n"));
        for Section { id, html } in &sections.sections {
            text.push_str(&format!(
                "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n{html}</section>\n"
            ));
        }
        text.push_str("</main>\n<footer><p><a href=\"data.json\">This page as JSON</a> <a href=\"map.svg\">The map as a picture</a></p></footer>\n");
        text.push_str("</body>\n</html>\n");
        text
    }

    /// The parts that change.
    pub fn sections(&self) -> Sections {
        Sections { schema: Self::SCHEMA, at: self.at.clone(), sections: sections::all(self) }
    }
}
