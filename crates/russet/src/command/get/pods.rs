//! `russet get pods`: the pods of the whole cluster, as the blocks of addresses name them. A pod of the plugin `russet` has no record of its own
//! in the datastore; what its addresses are allocated to says its name, its node and its interface.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::ExitCode;

use russet_ipam::TIMESTAMP;
use russet_model::{Attribute, Block, HandleId, KeyKind, Prefix};
use serde::Serialize;

use super::super::place::Place;
use super::super::{Failure, PROBLEMS};
use crate::cli::resources::{GetArgs, ResourceFormat};
use crate::output::{self, yaml_of_json};

/// The `schema` of the JSON; it grows when a member changes its meaning.
const SCHEMA: u32 = 1;
/// The namespace in which policies see a container whose runtime names no pod.
const NO_NAMESPACE: &str = "default";

/// A pod's interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Pod {
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    addresses: Vec<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    /// The network and the container: `<network>.<container ID>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
    /// When its address was allocated, as it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

/// The pods, for programs.
#[derive(Debug, Serialize)]
struct Pods {
    schema: u32,
    pods: Vec<Pod>,
}

/// A requested name that no pod has.
#[derive(Debug, thiserror::Error)]
#[error("no pod {namespace}/{name} has an address; -n names another namespace, -A shows all pods")]
struct Missing {
    namespace: String,
    name: String,
}

/// Pods by handle and interface, or by address where these are not known.
type Found = BTreeMap<(Option<String>, Option<String>, Option<IpAddr>), Pod>;

pub async fn run(place: &Place, args: &GetArgs) -> Result<ExitCode, Failure> {
    let mut found = Found::new();
    let mut unreadable = 0;
    for record in place.store.list(&Prefix::blocks(None)).await?.records {
        if !matches!(record.key.kind(), KeyKind::Block(_)) {
            continue;
        }
        match Block::decode(&record.value) {
            Ok(block) => add(&mut found, &block),
            Err(error) => {
                output::progress(&output::visible(&format!("{} is passed over: {error}", record.key)));
                unreadable += 1;
            }
        }
    }
    let namespace = args.namespace.or_default();
    let is_wanted = |pod: &Pod| {
        (args.all_namespaces || pod.namespace == namespace)
            && (args.names.is_empty() || args.names.contains(&pod.name))
    };
    let mut pods: Vec<Pod> = found.into_values().filter(is_wanted).collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name, &a.interface).cmp(&(&b.namespace, &b.name, &b.interface)));
    if let Some(name) = args.names.iter().find(|name| pods.iter().all(|pod| pod.name != **name)) {
        return Err(Missing { namespace: namespace.to_owned(), name: name.clone() }.into());
    }
    output::print(&text(pods, args.format, args.all_namespaces));
    Ok(if unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) })
}

/// Adds the pods to which addresses of a block are allocated.
fn add(found: &mut Found, block: &Block) {
    for ordinal in 0..block.cidr.size() {
        let (Some(address), Some(held)) = (block.cidr.address(ordinal), block.attribute(ordinal)) else {
            continue;
        };
        let Some(pod) = Pod::of(held) else { continue };
        let known = pod.handle.is_some();
        let key = (pod.handle.clone(), pod.interface.clone(), (!known).then_some(address));
        found.entry(key).or_insert(pod).addresses.push(address);
    }
}

fn text(pods: Vec<Pod>, format: ResourceFormat, all_namespaces: bool) -> String {
    match format {
        ResourceFormat::Json => output::json(&Pods { schema: SCHEMA, pods }),
        ResourceFormat::Yaml => yaml_of_json(&output::json(&Pods { schema: SCHEMA, pods })),
        ResourceFormat::Name => {
            pods.iter().map(|pod| output::visible(&format!("pod/{}", pod.name)) + "\n").collect()
        }
        ResourceFormat::Table | ResourceFormat::Wide => {
            let is_wide = format == ResourceFormat::Wide;
            let mut heading = vec!["NAME", "NODE", "ADDRESSES"];
            if all_namespaces {
                heading.insert(0, "NAMESPACE");
            }
            if is_wide {
                heading.extend(["INTERFACE", "HANDLE", "SINCE"]);
            }
            let rows: Vec<Vec<String>> = pods.iter().map(|pod| pod.row(all_namespaces, is_wide)).collect();
            output::table(&heading, &rows)
        }
    }
}

// === impl Pod ===

impl Pod {
    /// The pod to which an address is allocated; none for tunnels' addresses, for services, and for an address that cools down.
    fn of(held: &Attribute) -> Option<Self> {
        let member = |name: &str| held.get(name).map(str::to_owned);
        if held.released_at.is_some() || held.get("type").is_some() {
            return None;
        }
        let handle = held.handle_id.as_deref().map(|handle| HandleId::sanitized(handle).to_owned());
        let container = handle
            .as_deref()
            .and_then(|handle| handle.split_once('.'))
            .map(|(_, container)| container.to_owned());
        let (namespace, name) = match (member("namespace"), member("pod")) {
            (namespace, Some(name)) => (namespace, name),
            // A runtime without Kubernetes.
            (_, None) => (None, container.filter(|_| held.get("interface").is_some())?),
        };
        Some(Self {
            namespace: namespace.unwrap_or_else(|| NO_NAMESPACE.to_owned()),
            name,
            node: member("node"),
            addresses: Vec::new(),
            interface: member("interface"),
            handle,
            since: member(TIMESTAMP),
        })
    }

    fn row(&self, all_namespaces: bool, is_wide: bool) -> Vec<String> {
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let mut row = vec![self.name.clone(), shown(&self.node), addresses.join(",")];
        if all_namespaces {
            row.insert(0, self.namespace.clone());
        }
        if is_wide {
            row.extend([shown(&self.interface), shown(&self.handle), shown(&self.since)]);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn block(cidr: &str, attributes: &serde_json::Value) -> Block {
        let count = attributes.as_array().unwrap().len();
        let allocations: Vec<usize> = (0..count).collect();
        let block = json!({"cidr": cidr, "affinity": "host:a", "allocations": allocations, "unallocated": [], "attributes": attributes});
        Block::decode(block.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_pod_has_the_addresses_of_all_blocks_and_what_is_no_pod_is_left_out() {
        let web = json!({"handle_id": "net.c1", "secondary": {"namespace": "shop", "pod": "web", "node": "a", "interface": "eth0", "timestamp": "t"}});
        let tunnel = json!({"handle_id": "vxlan-tunnel-addr-a", "secondary": {"type": "vxlanTunnelAddress", "node": "a"}});
        let plain = json!({"handle_id": "net.c2", "secondary": {"node": "b", "interface": "eth0"}});
        let cooling = json!({"handle_id": "net.c3", "secondary": {"pod": "gone", "namespace": "shop"}, "releasedAt": "2026-01-02T03:10:00Z"});
        let mut found = Found::new();
        add(&mut found, &block("10.1.0.0/30", &json!([web, tunnel, plain, cooling])));
        add(&mut found, &block("fd00::/127", &json!([web, {"handle_id": "x", "secondary": {}}])));
        let pods: Vec<Pod> = found.into_values().collect();
        let table = text(pods.clone(), ResourceFormat::Table, true);
        assert_eq!(
            table,
            "NAMESPACE  NAME  NODE  ADDRESSES\nshop       web   a     10.1.0.0,fd00::\ndefault    c2    b     10.1.0.2\n"
        );
        assert!(text(pods.clone(), ResourceFormat::Wide, false).contains("eth0       net.c1  t\n"));
        assert_eq!(text(pods, ResourceFormat::Name, false), "pod/web\npod/c2\n");
    }

    #[test]
    fn names_of_any_client_are_only_text() {
        let hostile = json!({"handle_id": "net.\u{1b}[2J", "secondary": {"namespace": "a\nb", "pod": "\u{1b}[2J", "interface": "eth0"}});
        let mut found = Found::new();
        add(&mut found, &block("10.1.0.0/32", &json!([hostile])));
        for format in [ResourceFormat::Table, ResourceFormat::Wide, ResourceFormat::Name] {
            let text = text(found.values().cloned().collect(), format, true);
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        }
    }
}
