//! Output of pods for people and for programs.

use russet_model::time::rfc3339;
use russet_sandbox::{Metadata, Sandbox, State};
use serde_json::{Value, json};

use crate::output;

/// The version of the JSON that `-o json` prints.
const SCHEMA: u32 = 1;
/// How many digits of an ID tables show.
const ID_SHOWN_DIGITS: usize = 12;

/// `namespace/name`.
pub(super) fn name(metadata: &Metadata) -> String {
    format!("{}/{}", metadata.namespace, metadata.name)
}

/// Everything about a pod.
pub(super) fn one(pod: &Sandbox) -> Value {
    let mut value = short(pod);
    if let Value::Object(members) = &mut value {
        members.insert("pid".into(), json!(pod.pid));
        members.insert("netns".into(), json!(pod.netns));
        members.insert("files".into(), json!(pod.dir));
        members.insert("config".into(), json!(pod.config));
        members.shift_insert(0, "schema".into(), SCHEMA.into());
    }
    value
}

/// The output for a new pod.
pub(super) fn made(pod: &Sandbox, warnings: &[String]) -> Value {
    let mut value = one(pod);
    if let Value::Object(members) = &mut value {
        members.insert("warnings".into(), json!(warnings));
    }
    value
}

pub(super) fn list(pods: &[Sandbox]) -> Value {
    json!({ "schema": SCHEMA, "pods": pods.iter().map(short).collect::<Vec<_>>() })
}

fn short(pod: &Sandbox) -> Value {
    let metadata = &pod.config.metadata;
    json!({
        "id": pod.id.as_str(),
        "namespace": metadata.namespace,
        "name": metadata.name,
        "state": state(pod),
        "created_at": rfc3339(pod.created_at),
        "host_network": pod.config.host_network,
        "addresses": pod.addresses,
        "trouble": pod.trouble,
    })
}

fn state(pod: &Sandbox) -> &'static str {
    match pod.state {
        State::Ready => "ready",
        State::NotReady => "not ready",
    }
}

fn addresses(pod: &Sandbox) -> String {
    match (&pod.addresses[..], pod.config.host_network) {
        (_, true) => "the node's".to_owned(),
        ([], _) => "-".to_owned(),
        (some, _) => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    }
}

pub(super) fn table(pods: &[Sandbox]) -> String {
    let row = |pod: &Sandbox| {
        let metadata = &pod.config.metadata;
        vec![
            pod.id.as_str().chars().take(ID_SHOWN_DIGITS).collect(),
            metadata.namespace.clone(),
            metadata.name.clone(),
            state(pod).to_owned(),
            addresses(pod),
            rfc3339(pod.created_at),
        ]
    };
    let rows: Vec<Vec<String>> = pods.iter().map(row).collect();
    output::table(&["ID", "NAMESPACE", "NAME", "STATE", "ADDRESSES", "CREATED"], &rows)
}

/// One pod for people.
pub(super) fn text(pod: &Sandbox) -> String {
    let config = &pod.config;
    let mut rows = vec![
        ("pod", name(&config.metadata)),
        ("id", pod.id.to_string()),
        ("state", state(pod).to_owned()),
        ("created", rfc3339(pod.created_at)),
        ("addresses", addresses(pod)),
    ];
    let mut add = |heading, value: Option<String>| {
        rows.extend(value.filter(|value| !value.is_empty()).map(|value| (heading, value)));
    };
    add("host name", Some(config.hostname.clone()));
    add("process", pod.pid.map(|pid| pid.to_string()));
    add("netns", pod.netns.as_ref().map(|path| path.display().to_string()));
    add("files", Some(pod.dir.display().to_string()));
    add("trouble", pod.trouble.clone());
    for port in config.port_mappings.iter().filter(|port| port.host_port != 0) {
        let ip = port.host_ip.map(|ip| format!("{ip} ")).unwrap_or_default();
        let (host, inside) = (port.host_port, port.container_port);
        add("port", Some(format!("{ip}{host} -> {inside}/{}", port.protocol.as_str())));
    }
    for (key, value) in &config.labels {
        add("label", Some(format!("{key}={value}")));
    }
    let line = |(heading, value): &(&str, String)| format!("{heading:<10} {}\n", output::visible(value));
    rows.iter().map(line).collect()
}
