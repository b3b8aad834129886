//! `russet ipam who`: the owner of an address by the store, and its earlier owners by this node's
//! history.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::SystemTime;

use russet_ipam::Held;
use russet_ipam::audit::Holder;
use russet_journal::{History, Tenure};
use russet_model::time;
use serde::Serialize;

use super::super::{Failure, PROBLEMS};
use super::Place;
use crate::cli::ipam::{Moment, WhoArgs};
use crate::output;

/// What is known of an address; `schema` grows when a member changes its meaning.
#[derive(Serialize)]
struct Who {
    schema: u32,
    ip: IpAddr,
    /// The time of the question, if it is not now.
    at: Option<String>,
    /// The owner in the store; absent if the question is about another time.
    now: Option<Now>,
    /// The owners in this node's history, oldest first.
    history: Vec<Tenure>,
}

#[derive(Serialize)]
struct Now {
    node: Option<String>,
    pod: Option<String>,
    handle: Option<String>,
    block: String,
    since: Option<String>,
    released_at: Option<String>,
}

/// Prints what is known; exits with 3 when nothing is.
pub async fn run(place: &Place, args: WhoArgs) -> Result<ExitCode, Failure> {
    let mut known = History::tenures(&place.paths.history_file(), args.ip)?;
    let now = match args.at {
        None => place.allocator().holder_of(args.ip).await?.map(Now::from),
        Some(Moment(moment)) => {
            known.retain(|tenure| includes(tenure, moment));
            None
        }
    };
    let who = Who { schema: 1, ip: args.ip, at: args.at.map(|at| time::rfc3339(at.0)), now, history: known };
    output::print_as(args.output.format, &who, || who.text());
    let nothing = who.now.is_none() && who.history.is_empty();
    Ok(if nothing { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

fn includes(tenure: &Tenure, moment: SystemTime) -> bool {
    let parsed = |text: &String| time::parse_rfc3339(text);
    parsed(&tenure.from).is_some_and(|from| from <= moment)
        && tenure.until.as_ref().and_then(parsed).is_none_or(|until| moment < until)
}

// === impl Now ===

impl From<Held> for Now {
    fn from(held: Held) -> Self {
        let holder = Holder::of(&held.attribute);
        let pod = match (holder.namespace, holder.pod) {
            (Some(namespace), Some(pod)) => Some(format!("{namespace}/{pod}")),
            (_, pod) => pod,
        };
        Self {
            node: holder.node,
            pod,
            handle: holder.handle,
            block: held.block.to_string(),
            since: held.attribute.get("timestamp").map(str::to_owned),
            released_at: held.attribute.released_at,
        }
    }
}

// === impl Who ===

impl Who {
    fn text(&self) -> String {
        let dash = || "-".to_owned();
        let mut text = match (&self.now, &self.at) {
            (_, Some(_)) => String::new(),
            (None, None) => format!("{} is free now\n", self.ip),
            (Some(now), None) => {
                let state = now
                    .released_at
                    .as_ref()
                    .map_or_else(|| "in use".to_owned(), |at| format!("cooling down since {at}"));
                let row = [&now.pod, &now.node, &now.since, &now.handle]
                    .map(|cell| cell.clone().unwrap_or_else(dash));
                let heading = ["NOW", "POD", "NODE", "SINCE", "HANDLE"];
                output::table(&heading, &[[vec![state], row.to_vec()].concat()])
            }
        };
        if self.history.is_empty() {
            text.push_str("this node's history has no owner of it");
            text.push_str(if self.at.is_some() { " then\n" } else { "\n" });
            return text;
        }
        let row = |tenure: &Tenure| {
            vec![
                tenure.from.clone(),
                tenure.until.clone().unwrap_or_else(dash),
                tenure.pod.clone().unwrap_or_else(dash),
                tenure.container.clone(),
                tenure.ifname.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = self.history.iter().map(row).collect();
        text.push_str(&output::table(&["FROM", "UNTIL", "POD", "CONTAINER", "INTERFACE"], &rows));
        text
    }
}
