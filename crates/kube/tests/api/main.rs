//! The client against the test server over real HTTP: plain on the loopback interface, and with certificates that openssl makes; and against real API
//! servers (`conformance`).

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

mod calls;
mod conformance;
mod credentials;
mod failures;
mod pieces;
mod rest;
mod tls;
mod watch;

use std::time::Duration;

use russet_kube::testing::Server;
use russet_kube::{Client, KubeError};
use serde_json::{Value, json};

/// Far longer than any step takes, and far shorter than a hung test.
const LIMIT: Duration = Duration::from_secs(20);

fn client(server: &Server) -> Client {
    Client::new(server.source()).unwrap()
}

fn pod(name: &str) -> Value {
    json!({ "kind": "Pod", "metadata": { "namespace": "shop", "name": name, "labels": { "app": "web" } },
        "spec": { "nodeName": "n1", "serviceAccountName": "default", "containers": [{ "name": "web", "image": "web" }] }, "status": { "phase": "Pending" } })
}

fn node(name: &str, range: &str) -> Value {
    json!({ "kind": "Node", "metadata": { "name": name },
        "spec": { "podCIDR": range, "podCIDRs": [range] },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] } })
}

/// The text of an error of the expected class.
fn words(error: &KubeError) -> String {
    error.to_string()
}
