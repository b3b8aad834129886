//! `russet policy recommend`: NetworkPolicies that allow the flows that were seen, and nothing else.

mod input;
mod text;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use russet_agent::Paths;
use russet_model::time::rfc3339;
use russet_verdict::recommend::{self, Judged, Recommendation, Seen, Wanted, Window};
use russet_verdict::snapshot::Snapshot;
use russet_verdict::world::Endpoint;
use serde_json::{Value, json};

use super::datastore::Datastore;
use super::files::Cluster;
use crate::cli::policy::{IsolatedArg, RecommendArgs, RecommendFormat};
use crate::command::place::Place;
use crate::command::{Failure, PROBLEMS};
use crate::{USAGE, output};

/// A shorter window misses what happens once a day.
const WINDOW_MIN: Duration = Duration::from_secs(24 * 3600);
/// More flows are counted, and not listed on standard error.
const SHOWN_MAX: usize = 50;

#[derive(Debug, thiserror::Error)]
enum RecommendError {
    /// Nothing was seen.
    #[error(
        "no allowed flow of {0} is among {1}: flows that pass are recorded only while `russet flows -f` runs, and only of pods that policies judge; docs/policy.md says how to collect them"
    )]
    Nothing(String, String),
    /// What was seen is of no pod that can get one.
    #[error("no pod of {0} gets a policy: the notes say why")]
    NoPolicy(String),
}

/// Prints the policies, if they deny nothing that was seen.
pub async fn run(args: RecommendArgs) -> Result<ExitCode, Failure> {
    let is_stdin = |file: &std::path::PathBuf| file.as_os_str() == input::STDIN;
    if args.flows.as_ref().is_some_and(is_stdin) && args.files.iter().any(is_stdin) {
        output::progress("error: -f and --flows cannot both be standard input; give a file for one of them");
        return Ok(ExitCode::from(USAGE));
    }
    let wanted = wanted(&args);
    let oldest = args.window.and_then(|span| SystemTime::now().checked_sub(span.0));
    let paths = Paths::new(&args.place.root);
    let (before, notes) = cluster(args.files, args.place).await?;
    notes.iter().for_each(|note| output::progress(&output::visible(note)));
    let namespace = wanted.namespace.clone();
    let of_namespace = |it: &&Arc<Endpoint>| it.namespace.as_deref() == namespace.as_deref();
    let pods = before.snapshot.endpoints.values().filter(of_namespace);
    let addresses = pods.flat_map(|pod| &pod.addresses).copied().collect();
    let mut reader = input::Reader { window: Window::default(), namespace, addresses, oldest };
    let origin = match &args.flows {
        Some(file) => {
            reader.read_file(file)?;
            file.display().to_string()
        }
        None => {
            reader.ask_agent(&paths)?;
            let line = "the flows are those that this node's agent has in memory: collect them on all nodes for a day or more, and give --flows";
            output::progress(line);
            "the flows of this node".to_owned()
        }
    };
    let span = reader.window.span();
    let (flows, left_out) = seen(reader.window, &before.snapshot);
    let of = wanted.namespace.as_ref().map_or("any namespace".to_owned(), |it| format!("namespace {it}"));
    if flows.is_empty() {
        return Err(RecommendError::Nothing(of, origin).into());
    }
    let mut found = recommend::recommend(&before.snapshot, &flows, &wanted);
    found.notes.extend(left_out);
    if found.policies.is_empty() {
        found.notes.iter().for_each(|it| note(it));
        return Err(RecommendError::NoPolicy(of).into());
    }
    let mut after = before.clone();
    after.problems.clear();
    super::what_if::delete(&mut after.snapshot, &args.delete)?;
    for policy in &found.policies {
        after.put(&policy.name, &policy.document());
    }
    let judged = recommend::judge(&before.snapshot, &after.snapshot, &flows);
    found.notes.extend(window_note(span));
    found.notes.extend(judged_notes(&judged));
    print(&args.format, args.despite, (&found, &judged), span)
}

/// The flows of a window, and a note about those that it leaves out.
fn seen(window: Window, snapshot: &Snapshot) -> (Vec<Seen>, Option<String>) {
    let (mut flows, denied) = window.finish();
    let count = denied.len();
    let again = recommend::allowed_now(snapshot, denied);
    let left_out = count - again.len();
    flows.extend(again);
    let text = || {
        format!(
            "flows left out because they were denied when they were last seen, and are by now: {left_out}"
        )
    };
    (flows, (left_out > 0).then(text))
}

fn note(text: &str) {
    output::progress(&output::visible(&format!("note: {text}")));
}

fn wanted(args: &RecommendArgs) -> Wanted {
    let (ingress, egress) = match args.direction {
        IsolatedArg::Ingress => (true, false),
        IsolatedArg::Egress => (false, true),
        IsolatedArg::Both => (true, true),
    };
    Wanted { namespace: args.namespace.clone(), ingress, egress }
}

/// The documents of files, else what the datastore has.
async fn cluster(
    files: Vec<std::path::PathBuf>,
    place: crate::cli::store::StoreChoice,
) -> Result<(Cluster, Vec<String>), Failure> {
    if !files.is_empty() {
        return Ok((Cluster::read(&files)?, Vec::new()));
    }
    let data = Datastore::read(&Place::open_cluster(place).await?).await?;
    Ok((data.cluster, data.notes))
}

fn window_note(span: Option<(SystemTime, SystemTime)>) -> Option<String> {
    let (first, last) = span?;
    let length = last.duration_since(first).unwrap_or_default();
    let text = || {
        format!(
            "the flows are of {} only, from {} to {}: what happens less often is not among them; collect for 24 hours or more",
            output::age(length),
            rfc3339(first),
            rfc3339(last)
        )
    };
    (length < WINDOW_MIN).then(text)
}

fn judged_notes(judged: &Judged) -> Vec<String> {
    let counted = [
        (
            judged.denied_now,
            "flows that the policies in force deny by now, which a NetworkPolicy may not change",
        ),
        (judged.unknown, "flows that cannot be judged, because their pods are gone"),
    ];
    let counted = counted.into_iter().filter(|(count, _)| *count > 0);
    counted.map(|(count, text)| format!("{text}: {count}")).collect()
}

fn print(
    format: &RecommendFormat,
    despite: bool,
    (found, judged): (&Recommendation, &Judged),
    span: Option<(SystemTime, SystemTime)>,
) -> Result<ExitCode, Failure> {
    let is_good = judged.denied.is_empty() && found.unjudged.is_empty();
    let is_shown = is_good || despite;
    found.notes.iter().for_each(|it| note(it));
    for (what, flows) in
        [("would be denied", &judged.denied), ("cannot be judged, because a pod is gone", &found.unjudged)]
    {
        for flow in flows.iter().take(SHOWN_MAX) {
            output::progress(&output::visible(&format!("{what}: {flow}")));
        }
        if flows.len() > SHOWN_MAX {
            output::progress(&format!("and {} more; -o json has all", flows.len() - SHOWN_MAX));
        }
    }
    if !is_shown {
        output::progress(
            "flows that were seen would be denied or cannot be judged, so that no policy is printed; --despite-denied prints them",
        );
    }
    match format {
        RecommendFormat::Yaml if is_shown => output::print(&text::yaml(found)),
        RecommendFormat::Yaml => {}
        RecommendFormat::Json => output::print(&output::json(&json(found, judged, is_shown, span))),
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) })
}

fn json(
    found: &Recommendation,
    judged: &Judged,
    is_shown: bool,
    span: Option<(SystemTime, SystemTime)>,
) -> Value {
    let shown = || found.policies.iter().filter(|_| is_shown);
    let comments = shown().flat_map(|policy| {
        let of = format!("{}/{}", policy.namespace, policy.name);
        let comment = |path: String, text: &String| json!({"policy": of, "path": path, "text": text});
        let own: Vec<Value> =
            policy.comments.iter().map(|it| comment("spec.podSelector".to_owned(), it)).collect();
        let rules: Vec<Value> = policy
            .rules()
            .flat_map(|(member, index, rule)| {
                rule.comments.iter().map(move |it| (format!("spec.{member}[{index}]"), it))
            })
            .map(|(path, text)| comment(path, text))
            .collect();
        [own, rules].concat()
    });
    json!({
        "schema": 1,
        "window": span.map(|(first, last)| json!({"first": rfc3339(first), "last": rfc3339(last)})),
        "policies": shown().map(|policy| policy.document()).collect::<Vec<_>>(),
        "comments": comments.collect::<Vec<_>>(),
        "denied": judged.denied,
        "unjudged": found.unjudged,
        "notes": found.notes,
    })
}
