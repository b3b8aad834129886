//! The journal as `russet journal` shows it. It is read from the file, so no agent has to run.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use russet_addr::EndpointId;
use russet_attach::Wired;
use russet_model::time;
use serde::Serialize;

use super::entry::{Effect, Interface, OpenOperation};
use super::frame::Tail;
use super::{TableState, Verb, log, time_of};
use crate::endpoints::Endpoint;

/// The content of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// Incremented when a field changes its meaning.
    pub schema: u32,
    pub boot_id: String,
    pub size_bytes: u64,
    /// Number of records.
    pub records: usize,
    /// What follows them: `clean`, `torn` or `damaged`.
    pub tail: Tail,
    pub attachments: Vec<Attachment>,
    /// Operations in progress, or open when their agent died.
    pub unfinished: Vec<Operation>,
}

/// A plugin's part of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attachment {
    pub network: String,
    pub container: String,
    /// The interface's name in the container.
    pub ifname: String,
    /// `namespace/name`, if there is a pod.
    pub pod: Option<String>,
    pub plugin: String,
    /// When it was made, in RFC 3339.
    pub since: String,
    /// The host end, if the plugin makes one.
    pub host_name: Option<String>,
    pub addresses: Vec<IpAddr>,
    /// The bridge that the host end is a port of.
    pub bridge: Option<String>,
    /// The path of the pod's namespace.
    pub netns: Option<String>,
}

/// An operation that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// Its number.
    pub op: u64,
    pub verb: Verb,
    pub plugin: String,
    pub network: String,
    /// The container; none for GC.
    pub container: Option<String>,
    /// The interface's name in the container.
    pub ifname: Option<String>,
    /// `namespace/name`, if there is a pod.
    pub pod: Option<String>,
    /// When it began, in RFC 3339.
    pub began: String,
    /// An ADD of an attachment that was complete before.
    pub repeated: bool,
    /// Its changes, and when.
    pub effects: Vec<String>,
}

/// How often a torn file is read again, because its writer may be writing.
const READS_MAX: usize = 3;

/// Reads the journal at `path`; none if there is none.
pub fn read(path: &Path) -> io::Result<Option<View>> {
    let mut contents = log::read(path)?;
    // It may look torn because it was read while it was written.
    for _ in 1..READS_MAX {
        if contents.as_ref().is_none_or(|it| it.tail == Tail::Clean) {
            break;
        }
        contents = log::read(path)?;
    }
    let Some(contents) = contents else { return Ok(None) };
    let records = contents.entries.len();
    let mut state = TableState::default();
    contents.entries.into_iter().for_each(|entry| state.apply(entry));
    Ok(Some(View {
        schema: View::SCHEMA,
        boot_id: contents.boot,
        size_bytes: contents.size_bytes,
        records,
        tail: contents.tail,
        attachments: state.listed().cloned().map(Attachment::from).collect(),
        unfinished: state.open.into_values().map(Operation::from).collect(),
    }))
}

/// Whether an agent of this boot left an ADD or DEL of this interface unfinished. While an agent
/// runs, operations in progress count, too.
pub fn unfinished(path: &Path, id: &EndpointId) -> io::Result<bool> {
    let Some(view) = read(path)? else { return Ok(false) };
    if view.boot_id != russet_linux::host::boot_id()? {
        return Ok(false);
    }
    let is_its = |open: &Operation| {
        open.container.as_deref() == Some(id.container.as_str())
            && open.ifname.as_deref() == Some(id.ifname.as_str())
    };
    Ok(view.unfinished.iter().any(is_its))
}

// === impl View ===

impl View {
    /// Version of the JSON format.
    pub const SCHEMA: u32 = 1;
}

// === impl Attachment ===

impl From<Endpoint> for Attachment {
    fn from(live: Endpoint) -> Self {
        let wired = live.wired.as_deref();
        Self {
            network: live.subject.id.network.to_string(),
            container: live.subject.id.container.to_string(),
            ifname: live.subject.id.ifname.to_string(),
            pod: live.pod,
            plugin: live.subject.plugin,
            since: time::rfc3339(time_of(live.since_ms)),
            host_name: wired.map(|wired| wired.host_name().to_string()),
            addresses: wired.map(|wired| wired.addresses()).unwrap_or_default(),
            bridge: wired.and_then(Wired::bridge).map(ToString::to_string),
            netns: live.netns.map(|path| path.display().to_string()),
        }
    }
}

// === impl Operation ===

impl From<OpenOperation> for Operation {
    fn from(open: OpenOperation) -> Self {
        let effects =
            open.effects.iter().map(|(at, it)| format!("{} {}", time::rfc3339(time_of(*at)), text(it)));
        let (container, ifname) =
            open.begin.interface.as_ref().map(|it| (it.container.to_string(), it.ifname.to_string())).unzip();
        Self {
            op: open.begin.op,
            verb: open.begin.verb,
            plugin: open.begin.plugin,
            network: open.begin.network.to_string(),
            container,
            ifname,
            pod: open.begin.pod,
            began: time::rfc3339(time_of(open.begin.at_ms)),
            repeated: open.begin.repeated,
            effects: effects.collect(),
        }
    }
}

fn text(effect: &Effect) -> String {
    match effect {
        Effect::Wiring { wired, .. } => {
            let addresses: Vec<String> = wired.addresses().iter().map(ToString::to_string).collect();
            format!("wiring {} for {}", wired.host_name(), addresses.join(", "))
        }
        Effect::Wired { reused: false, .. } => "wired".to_owned(),
        Effect::Wired { reused: true, .. } => "wired again".to_owned(),
        Effect::Leaving(Interface { container, ifname }) => format!("removing {ifname} of {container}"),
    }
}
