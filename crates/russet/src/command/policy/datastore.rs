//! A cluster as its datastore describes it: objects of the Kubernetes API, records of Calico's
//! data, and the pods to which addresses are assigned.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{Family, NodeName};
use russet_agent::{record_document, wired_endpoint};
use russet_ipam::audit::Holder;
use russet_journal::Attachment;
use russet_kube::{Client, ListQuery};
use russet_model::{self as model, Block, KeyKind, Prefix, ResourceKind};
use russet_openshift::data_path::Port;
use russet_store::StoreError;
use russet_verdict::explain::OtherPods;
use russet_verdict::world::{Config, Endpoint, EndpointKey, Node, Update};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::egress::EgressPolicies;
use super::files::Cluster;
use crate::command::Failure;
use crate::command::place::Place;
use crate::settings;

/// What the datastore says.
#[derive(Debug)]
pub struct Datastore {
    pub cluster: Cluster,
    /// This machine's name as a node.
    pub node: Option<NodeName>,
    /// Pods of the Kubernetes API that are no ends of their own, as `namespace/name`.
    pub others: BTreeMap<String, OtherPod>,
    /// Nodes that the API server calls not ready, and its reason.
    pub not_ready: BTreeMap<String, String>,
    /// OpenShift's EgressNetworkPolicies, where they are enforced.
    pub egress: Option<EgressPolicies>,
    /// What could not be read.
    pub notes: Vec<String>,
}

/// A pod that is no end by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherPod {
    /// It uses the network of this node.
    HostNetwork(String),
    /// It has no address, or has ended; the text is its phase.
    WithoutAddress(String),
    /// It has addresses on a node, and no record says what it is.
    Unrecorded { node: String, addresses: BTreeSet<IpAddr> },
}

/// A collection of the Kubernetes API.
struct Collection {
    segments: &'static [&'static str],
    version: &'static str,
    kind: &'static str,
    /// Without it nothing can be said.
    is_needed: bool,
}

const fn collection(
    segments: &'static [&'static str],
    version: &'static str,
    kind: &'static str,
    is_needed: bool,
) -> Collection {
    Collection { segments, version, kind, is_needed }
}

const NETWORKING: &[&str] = &["apis", "networking.k8s.io", "v1", "networkpolicies"];
const CLUSTER_POLICIES: &[&str] = &["apis", "policy.networking.k8s.io", "v1alpha2", "clusternetworkpolicies"];
const SLICES: &[&str] = &["apis", "discovery.k8s.io", "v1", "endpointslices"];
const COLLECTIONS: [Collection; 7] = [
    collection(&["api", "v1", "namespaces"], "v1", "Namespace", true),
    collection(&["api", "v1", "pods"], "v1", "Pod", true),
    collection(&["api", "v1", "nodes"], "v1", "Node", true),
    collection(NETWORKING, "networking.k8s.io/v1", "NetworkPolicy", true),
    collection(CLUSTER_POLICIES, "policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", false),
    collection(&["api", "v1", "serviceaccounts"], "v1", "ServiceAccount", false),
    collection(SLICES, "discovery.k8s.io/v1", "EndpointSlice", false),
];
/// Calico's resources on which policies depend, in every datastore.
const RECORDS: [ResourceKind; 10] = [
    ResourceKind::FelixConfiguration,
    ResourceKind::GlobalNetworkPolicy,
    ResourceKind::GlobalNetworkSet,
    ResourceKind::HostEndpoint,
    ResourceKind::NetworkPolicy,
    ResourceKind::NetworkSet,
    ResourceKind::StagedGlobalNetworkPolicy,
    ResourceKind::StagedKubernetesNetworkPolicy,
    ResourceKind::StagedNetworkPolicy,
    ResourceKind::Tier,
];
/// Those that the Kubernetes API has in other forms.
const OTHER_RECORDS: [ResourceKind; 4] = [
    ResourceKind::ClusterNetworkPolicy,
    ResourceKind::KubernetesNetworkPolicy,
    ResourceKind::Profile,
    ResourceKind::WorkloadEndpoint,
];
/// The plugins whose routed interfaces policies are about.
pub const OWN_PLUGIN: &str = "russet";
pub const CALICO_PLUGIN: &str = "calico";
/// The namespace of containers that are no pods of Kubernetes, as in Calico's plugin.
const NO_NAMESPACE: &str = "default";

// === impl Datastore ===

impl Datastore {
    /// Reads everything on which policies depend.
    pub async fn read(place: &Place) -> Result<Self, Failure> {
        let mut found = Self {
            cluster: Cluster::empty(),
            node: settings::node_name(&place.paths).ok(),
            others: BTreeMap::new(),
            not_ready: BTreeMap::new(),
            egress: None,
            notes: Vec::new(),
        };
        for kind in RECORDS {
            found.records(place, kind).await?;
        }
        match place.kubernetes() {
            Some(client) => {
                for collection in &COLLECTIONS {
                    found.list(&client, collection).await?;
                }
            }
            None => {
                for kind in OTHER_RECORDS {
                    found.records(place, kind).await?;
                }
                found.add_nodes(place).await?;
                found.add_assigned(place).await?;
                // These are among the problems of the policies from here on.
                found.cluster.close_unlisted();
            }
        }
        found.cluster.add_policy_problems();
        found.egress = EgressPolicies::read(place, &mut found.cluster, &mut found.notes).await?;
        found.add_wired(place);
        found.add_config(place);
        Ok(found)
    }

    fn add_config(&mut self, place: &Place) {
        let address = self.egress.as_ref().zip(self.node.as_ref()).and_then(|(it, node)| it.address_of(node));
        let config = Config {
            node: self.node.as_ref().map(|name| name.as_str().into()).unwrap_or_default(),
            own_addresses: address.into_iter().collect(),
            cluster_nets: self.egress.as_ref().map(EgressPolicies::cluster_nets).unwrap_or_default(),
            allow_without_profile: place.is_kubernetes,
        };
        self.cluster.snapshot.apply(Update::Config(config));
    }

    /// The nodes of the pods that have addresses and no record.
    pub fn other_pods(&self) -> OtherPods {
        let pods = self.others.values().filter_map(|pod| match pod {
            OtherPod::Unrecorded { node, addresses } => Some((node, addresses)),
            OtherPod::HostNetwork(_) | OtherPod::WithoutAddress(_) => None,
        });
        pods.flat_map(|(node, addresses)| addresses.iter().map(|it| (*it, node.as_str().into()))).collect()
    }

    /// Resolves the names in EgressNetworkPolicies, for a verb that judges or shows their rules.
    pub async fn resolve_names(&mut self, place: &Place) {
        if let Some(egress) = &mut self.egress {
            egress.resolve(place, &mut self.cluster).await;
        }
    }

    async fn list(&mut self, client: &Client, collection: &Collection) -> Result<(), Failure> {
        let operation = format!("list {}", collection.segments.last().unwrap_or(&""));
        let query = ListQuery { operation: &operation, segments: collection.segments, labels: None };
        let mut objects = Vec::new();
        match client.list(&query, |object| objects.push(object)).await {
            Ok(()) => {}
            // A cluster may lack the definition.
            Err(failure) if !collection.is_needed && failure.code == Some(404) => return Ok(()),
            Err(failure) if collection.is_needed => return Err(failure.error.into()),
            Err(failure) => {
                self.notes.push(format!("{} could not be read: {}", collection.kind, failure.error));
                return Ok(());
            }
        }
        for mut object in objects {
            // Items of lists have no kind.
            if let Some(members) = object.as_object_mut() {
                members.insert("apiVersion".to_owned(), collection.version.into());
                members.insert("kind".to_owned(), collection.kind.into());
            }
            self.note(&object);
            let name = text(&object, "/metadata/name");
            self.cluster.put(&format!("{} {name}", collection.kind), &object);
        }
        Ok(())
    }

    /// Keeps what the translation leaves out.
    fn note(&mut self, object: &Value) {
        match text(object, "/kind") {
            "Pod" => {
                let name =
                    format!("{}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"));
                self.others.extend(OtherPod::of(object).map(|pod| (name, pod)));
            }
            "Node" => {
                let reason = not_ready(object);
                self.not_ready
                    .extend(reason.map(|reason| (text(object, "/metadata/name").to_owned(), reason)));
            }
            _ => {}
        }
    }

    /// Applies the records of a kind, as an agent reads them.
    async fn records(&mut self, place: &Place, kind: ResourceKind) -> Result<(), Failure> {
        let prefix = Prefix::resources(kind);
        let records = match place.store.list(&prefix).await {
            Ok(found) => found.records,
            // The store cannot hold any.
            Err(StoreError::Unsupported { .. }) => return Ok(()),
            // A cluster may lack Calico's definitions.
            Err(error) if place.is_kubernetes => {
                self.notes.push(format!("{} could not be read: {error}", kind.plural()));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let (version, name) = kind.document();
        for record in records {
            let key = record.key.as_str();
            let names = key.strip_prefix(prefix.as_str()).unwrap_or(key);
            if let Err(error) = serde_json::from_slice::<IgnoredAny>(&record.value) {
                self.cluster.problems.push(format!("{key}: {error}"));
            }
            let mut document = record_document(kind, names, Some(&record.value));
            if let Some(members) = document.as_object_mut() {
                members.insert("apiVersion".to_owned(), version.into());
                members.insert("kind".to_owned(), name.into());
            }
            self.cluster.put(key, &document);
        }
        Ok(())
    }

    async fn add_nodes(&mut self, place: &Place) -> Result<(), Failure> {
        for record in place.store.list(&Prefix::nodes()).await?.records {
            let (KeyKind::Node(name), Ok(node)) = (record.key.kind(), model::Node::decode(&record.value))
            else {
                continue;
            };
            let address = |family| node.spec.address(family).map(|net| net.addr());
            let both = Family::BOTH.into_iter();
            let addresses: BTreeSet<IpAddr> = both
                .flat_map(|family| address(family).into_iter().chain(node.spec.internal_ip(family)))
                .collect();
            let labels = node.metadata.labels.iter();
            let labels = labels.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
            let node = Node { addresses, labels };
            self.cluster.snapshot.apply(Update::Node(name, Some(Arc::new(node))));
        }
        Ok(())
    }

    /// Notes the pods of other nodes that have addresses and no record: policies know no labels of
    /// theirs.
    async fn add_assigned(&mut self, place: &Place) -> Result<(), Failure> {
        let endpoints = self.cluster.snapshot.endpoints.values();
        let known: BTreeSet<String> = endpoints.map(|endpoint| pod_name(endpoint)).collect();
        for record in place.store.list(&Prefix::blocks(None)).await?.records {
            let (KeyKind::Block(_), Ok(block)) = (record.key.kind(), Block::decode(&record.value)) else {
                continue;
            };
            for ordinal in 0..block.allocations.len() {
                let address = block.cidr.address(ordinal);
                let (Some(address), Some(attribute)) = (address, block.attribute(ordinal)) else { continue };
                let holder = Holder::of(attribute);
                let (Some(namespace), Some(pod)) = (holder.namespace, holder.pod) else { continue };
                let name = format!("{namespace}/{pod}");
                if attribute.released_at.is_none() && !known.contains(&name) {
                    let node = holder.node.unwrap_or_default();
                    let new = || OtherPod::Unrecorded { node, addresses: BTreeSet::new() };
                    if let OtherPod::Unrecorded { addresses, .. } =
                        self.others.entry(name).or_insert_with(new)
                    {
                        addresses.insert(address);
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives the pods of this node the addresses that are wired, as the agent does: a pod's status has
    /// them only a moment after it runs, and records may lack the pod.
    fn add_wired(&mut self, place: &Place) {
        let Some(node) = self.node.clone() else { return };
        let journal = russet_journal::view(&place.paths.journal_file()).ok().flatten();
        let mut wired = wired_pods(journal.map(|view| view.attachments).unwrap_or_default());
        for (name, address) in self.openshifts_pods(place) {
            wired.entry(name).or_default().addresses.insert(address);
        }
        for (name, WiredPod { addresses, is_calico }) in wired {
            let mut endpoints = self.cluster.snapshot.endpoints.iter();
            let found = endpoints.find(|(_, it)| pod_name(it) == name && *it.node == *node.as_str());
            let found = found.map(|(key, endpoint)| {
                (key.clone(), Endpoint { addresses: addresses.clone(), ..(**endpoint).clone() })
            });
            let unrecorded = || {
                let has_profile = |name: &str| self.cluster.snapshot.profiles.contains_key(name);
                let endpoint = wired_endpoint(&name, node.as_str(), addresses, has_profile);
                (EndpointKey(format!("wired/{name}").into()), endpoint)
            };
            let (key, endpoint) = match found {
                Some(found) => found,
                // Without the record that Calico's plugin writes, nothing is decided of its pod.
                None if place.is_kubernetes || is_calico => continue,
                None => unrecorded(),
            };
            self.others.remove(&name);
            self.cluster.snapshot.apply(Update::Endpoint(key, Some(Arc::new(endpoint))));
        }
    }

    /// The pods that OpenShift's server has attached on this node. One without a record is named by its sandbox.
    fn openshifts_pods(&self, place: &Place) -> Vec<(String, IpAddr)> {
        let Some(held) = self.egress.as_ref().and_then(|it| it.held.as_ref()) else { return Vec::new() };
        let names = russet_openshift::recorded_pods(&place.paths.run_dir(), &place.paths.state_dir());
        let names = names.unwrap_or_default();
        let name = |port: &Port| match names.get(&port.sandbox) {
            Some((namespace, pod)) => format!("{namespace}/{pod}"),
            None => format!("{}/{}", port.namespace, port.sandbox),
        };
        held.pods.iter().map(|pod| (name(&pod.port), pod.port.address.into())).collect()
    }
}

/// Whether policies are about an interface: those of the plugins `russet` and `calico`, and ports of bridges.
pub fn is_policed(attachment: &Attachment) -> bool {
    [OWN_PLUGIN, CALICO_PLUGIN].contains(&attachment.plugin.as_str()) || attachment.bridge.is_some()
}

/// A pod that policies are about, as it is wired.
#[derive(Debug, Default)]
struct WiredPod {
    addresses: BTreeSet<IpAddr>,
    /// Calico's plugin has wired it.
    is_calico: bool,
}

/// The pods that policies are about. Of one with interfaces of both kinds, they are about those that the node routes, and
/// not about ports of bridges.
fn wired_pods(mut attachments: Vec<Attachment>) -> BTreeMap<String, WiredPod> {
    attachments.retain(is_policed);
    attachments.sort_by_key(|attachment| attachment.bridge.is_some());
    let mut wired: BTreeMap<String, (bool, WiredPod)> = BTreeMap::new();
    for Attachment { container, pod, bridge, addresses, plugin, .. } in attachments {
        let name = pod.unwrap_or_else(|| format!("{NO_NAMESPACE}/{container}"));
        let new =
            || (bridge.is_some(), WiredPod { is_calico: plugin == CALICO_PLUGIN, ..WiredPod::default() });
        let (is_port, known) = wired.entry(name).or_insert_with(new);
        if *is_port == bridge.is_some() {
            known.addresses.extend(addresses);
        }
    }
    wired.into_iter().map(|(name, (_, pod))| (name, pod)).collect()
}

/// The name of an endpoint, as operators write it.
pub fn pod_name(endpoint: &Endpoint) -> String {
    format!("{}/{}", endpoint.namespace.as_deref().unwrap_or_default(), endpoint.name)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The reason why a node is not ready; none where it is, or where nothing reports it.
fn not_ready(node: &Value) -> Option<String> {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array)?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    let reason = || format!("{} since {}", text(ready, "/reason"), text(ready, "/lastTransitionTime"));
    (ready["status"] != json!("True")).then(reason)
}

// === impl OtherPod ===

impl OtherPod {
    /// None for a pod that policies select and that has an address.
    fn of(pod: &Value) -> Option<Self> {
        let phase = text(pod, "/status/phase");
        let has_ended = matches!(phase, "Succeeded" | "Failed");
        if !has_ended && pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
            return Some(Self::HostNetwork(text(pod, "/spec/nodeName").to_owned()));
        }
        let has_address =
            !text(pod, "/status/podIP").is_empty() || pod.pointer("/status/podIPs/0/ip").is_some();
        (has_ended || !has_address).then(|| Self::WithoutAddress(phase.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_are_no_ends_say_why() {
        let pod = |spec: Value, status: Value| OtherPod::of(&json!({"spec": spec, "status": status}));
        let on = |host| json!({"nodeName": "n1", "hostNetwork": host});
        let running = json!({"phase": "Running", "podIP": "10.0.0.1"});
        assert_eq!(pod(on(false), running.clone()), None);
        assert_eq!(pod(on(true), running), Some(OtherPod::HostNetwork("n1".to_owned())));
        let ended = json!({"phase": "Succeeded", "podIP": "10.0.0.1"});
        assert_eq!(pod(on(true), ended), Some(OtherPod::WithoutAddress("Succeeded".to_owned())));
        let pending = Some(OtherPod::WithoutAddress("Pending".to_owned()));
        assert_eq!(pod(on(false), json!({"phase": "Pending"})), pending);
    }

    #[test]
    fn only_a_reported_condition_makes_a_node_not_ready() {
        let node = |conditions: Value| not_ready(&json!({"status": {"conditions": conditions}}));
        let ready = |status| json!([{"type": "Ready", "status": status, "reason": "NodeStatusUnknown", "lastTransitionTime": "2026-11-24T00:00:00Z"}]);
        assert_eq!(node(ready("True")), None);
        assert_eq!(node(json!([])), None);
        let reason = "NodeStatusUnknown since 2026-11-24T00:00:00Z";
        assert_eq!(
            [ready("False"), ready("Unknown")].map(node),
            [Some(reason.to_owned()), Some(reason.to_owned())]
        );
    }
}
