//! OpenShift's EgressNetworkPolicies as the node's agent enforces them: the records of the store, the objects of the
//! Kubernetes API, and what makes their rules not count (policy.md section 1.10).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{IpNet, Ipv4Net, NodeName};
use russet_kube::{Client, ListQuery, ObjectEvent, Source};
use russet_model::openshift::{
    IsolationMode, Namespace, NetId, OpenshiftKey, clusternetwork_key, everything, parse_key,
};
use russet_openshift::data_path::Held;
use russet_openshift::tenants::{Override, RULES_MAX, View, resolve_names};
use russet_store::Event;
use russet_verdict::world::{EgressFirewall, EgressPeer, Update};
use serde_json::{Map, Value, json};

use super::files::Cluster;
use crate::command::Failure;
use crate::command::place::Place;
use crate::settings::recorded;

/// The EgressNetworkPolicies of a cluster, and what this node's kernel holds of them.
#[derive(Debug, Default)]
pub struct EgressPolicies {
    /// What of each policy is not enforced as it is written, by namespace and name.
    pub policies: BTreeMap<(Namespace, String), Vec<String>>,
    /// Why the rules of policies do not count.
    pub overrides: Vec<Override>,
    /// This node's pods in the kernel; none on other machines, and where it cannot be read.
    pub held: Option<Held>,
    /// Why this node enforces none of them; none if it does.
    pub unenforced: Option<String>,
    view: View,
    /// The names in rules, by namespace.
    names: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Names without addresses, and why.
    pub unresolved: BTreeMap<Arc<str>, String>,
    /// What could not be read.
    notes: Vec<String>,
}

/// The objects of the Kubernetes API.
const SEGMENTS: [&str; 4] = ["apis", "network.openshift.io", "v1", "egressnetworkpolicies"];
const VERSION: &str = "network.openshift.io/v1";

// === impl EgressPolicies ===

impl EgressPolicies {
    /// Reads the policies and applies them to `cluster`; none where no agent enforces any.
    pub async fn read(
        place: &Place,
        cluster: &mut Cluster,
        notes: &mut Vec<String>,
    ) -> Result<Option<Self>, Failure> {
        let Some((api, unenforced)) = enforcing(place).await? else { return Ok(None) };
        let mut found = Self { unenforced, ..Self::default() };
        let snapshot = match place.store.list(&everything()).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                notes.push(format!("EgressNetworkPolicies could not be read: {error}"));
                return Ok(None);
            }
        };
        let mut documents = BTreeMap::new();
        for record in &snapshot.records {
            if let Some(OpenshiftKey::EgressNetworkPolicy(namespace, name)) = parse_key(&record.key) {
                documents
                    .insert((namespace, name), serde_json::from_slice(&record.value).unwrap_or(Value::Null));
            }
        }
        found.view.take(Event::Snapshot(snapshot));
        if let Some(client) = api {
            found.add_objects(&client, &mut documents).await?;
        }
        found.add_netids(cluster);
        for ((namespace, name), document) in documents {
            found.put(cluster, (namespace, name), document);
        }
        found.view.set_names_tried();
        found.overrides = found.view.egress().map(|(_, overrides)| overrides).unwrap_or_default();
        if found.unenforced.is_none() {
            found.read_kernel();
        }
        notes.append(&mut found.notes);
        Ok(Some(found))
    }

    /// Adds the objects of the Kubernetes API. An object that is also a record is one policy.
    async fn add_objects(
        &mut self,
        client: &Client,
        documents: &mut BTreeMap<(Namespace, String), Value>,
    ) -> Result<(), Failure> {
        let query = ListQuery { operation: "list egressnetworkpolicies", segments: &SEGMENTS, labels: None };
        let mut objects = Vec::new();
        match client.list(&query, |object| objects.push(object)).await {
            Ok(()) => {}
            // A cluster may lack the definition.
            Err(failure) if failure.code == Some(404) => objects.clear(),
            Err(failure) if failure.code == Some(403) => {
                objects.clear();
                let why = "they are not enforced, unless the store has them";
                self.notes.push(format!(
                    "EgressNetworkPolicies of the Kubernetes API may not be listed ({}): {why}",
                    failure.error
                ));
            }
            Err(failure) => return Err(failure.error.into()),
        }
        for object in &objects {
            let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
            let namespace = text("/metadata/namespace").and_then(|name| Namespace::new(name).ok());
            if let (Some(namespace), Some(name)) = (namespace, text("/metadata/name")) {
                documents.insert((namespace, name.to_owned()), object.clone());
            }
        }
        self.view.take_objects(ObjectEvent::Snapshot(objects));
        Ok(())
    }

    fn add_netids(&self, cluster: &mut Cluster) {
        for namespace in self.view.namespaces() {
            if let Some(netid) = self.view.netid(namespace) {
                let (name, netid) = (namespace.as_str(), netid.number());
                let document = json!({"apiVersion": VERSION, "kind": "NetNamespace", "metadata": {"name": name}, "netname": name, "netid": netid});
                cluster.put(&format!("NetNamespace {name}"), &document);
            }
        }
    }

    /// Applies a policy, with what the agent makes of one that cannot be read: it denies everything.
    fn put(&mut self, cluster: &mut Cluster, (namespace, name): (Namespace, String), document: Value) {
        let rules = document.pointer("/spec/egress").and_then(Value::as_array).map_or(0, Vec::len);
        let has_spec = document.get("spec").is_none_or(Value::is_object);
        let (mut members, why) = match document {
            Value::Object(members) if has_spec && rules <= RULES_MAX => (members, None),
            Value::Object(_) if has_spec => (Map::new(), Some(format!("more than {RULES_MAX} rules"))),
            Value::Object(_) => (Map::new(), Some("spec is no object".to_owned())),
            _ => (Map::new(), Some("it is no document".to_owned())),
        };
        if why.is_some() {
            // A list is wanted, so everything is denied.
            members.insert("spec".to_owned(), json!({ "egress": "" }));
        }
        members.insert("metadata".to_owned(), json!({"namespace": namespace.as_str(), "name": name}));
        members.insert("apiVersion".to_owned(), VERSION.into());
        members.insert("kind".to_owned(), "EgressNetworkPolicy".into());
        let (origin, before) = (format!("EgressNetworkPolicy {namespace}/{name}"), cluster.problems.len());
        cluster.put(&origin, &Value::Object(members));
        if let Some(why) = why {
            cluster.problems.truncate(before);
            cluster.problems.push(format!("{origin}: {why}; everything is denied"));
        }
        let problems = cluster.problems.get(before..).unwrap_or_default().to_vec();
        self.policies.insert((namespace, name), problems);
    }

    fn read_kernel(&mut self) {
        match Held::read() {
            Ok(held) if held.has_table => self.held = Some(held),
            Ok(held) => {
                self.held = Some(held);
                self.unenforced = Some("table ip russet-sdn is not in this node's kernel".to_owned());
            }
            Err(error) => self.notes.push(format!("table ip russet-sdn cannot be read: {error}")),
        }
    }

    /// Gives names the addresses that the node's servers have for them now, as the agent does.
    pub async fn resolve(&mut self, place: &Place, cluster: &mut Cluster) {
        let resolv_conf = place.paths.root().join("etc/resolv.conf");
        self.unresolved = resolve_names(&resolv_conf, &mut self.view).await;
        let mut updates = Vec::new();
        for ((namespace, name), firewall) in cluster.snapshot.egress_firewalls.iter() {
            let named = firewall.rules.iter().filter_map(|(_, peer)| match peer {
                EgressPeer::Name(name, _) => Some(name.clone()),
                EgressPeer::Net(_) => None,
            });
            self.names.entry(namespace.clone()).or_default().extend(named);
            let rules = firewall.rules.iter().map(|rule| self.resolved(rule)).collect();
            let firewall = Arc::new(EgressFirewall { rules });
            updates.push(Update::EgressFirewall(namespace.clone(), name.clone(), Some(firewall)));
        }
        updates.into_iter().for_each(|update| cluster.snapshot.apply(update));
    }

    /// A rule while names have these addresses. One that denies a name without addresses denies everything.
    fn resolved(&self, (allow, peer): &(bool, EgressPeer)) -> (bool, EgressPeer) {
        let EgressPeer::Name(name, _) = peer else { return (*allow, peer.clone()) };
        match self.view.addresses(name) {
            None if !allow => (false, EgressPeer::Net(Ipv4Net::default().into())),
            found => {
                let addresses = found.into_iter().flatten().copied().map(IpAddr::from).collect();
                (*allow, EgressPeer::Name(name.clone(), addresses))
            }
        }
    }

    /// The networks of pods and services, which no EgressNetworkPolicy is about.
    pub fn cluster_nets(&self) -> BTreeSet<IpNet> {
        self.view.cluster_nets().map(IpNet::from).collect()
    }

    /// Whether NetworkPolicies are enforced on pods of OpenShift's server, too.
    pub fn with_network_policies(&self) -> bool {
        self.view.mode() == IsolationMode::NetworkPolicy
    }

    /// The address of a node.
    pub fn address_of(&self, node: &NodeName) -> Option<IpAddr> {
        self.view.host_ip(node).map(IpAddr::from)
    }

    /// The network ID of a namespace, by the store.
    pub fn netid(&self, namespace: &Namespace) -> Option<NetId> {
        self.view.netid(namespace)
    }

    /// Why the rules of a namespace's policies do not count.
    pub fn overrides_of(&self, namespace: &Namespace) -> impl Iterator<Item = &Override> {
        let netid = self.netid(namespace);
        self.overrides.iter().filter(move |it| it.concerns(namespace, netid))
    }

    /// Whether the agent would deny an address to a network ID; none if nothing is known of that.
    pub fn denies(&self, netid: NetId, address: std::net::Ipv4Addr) -> Option<bool> {
        self.view.egress()?.0.get(&netid).map(|denied| denied.contains(address))
    }

    /// The names in the rules of a namespace's policies, by which what they deny changes.
    pub fn names_of(&self, namespace: &str) -> BTreeSet<Arc<str>> {
        self.names.get(namespace).cloned().unwrap_or_default()
    }
}

/// The Kubernetes API whose objects count, if any, and why this machine enforces nothing; none if no agent enforces
/// EgressNetworkPolicies here. A machine without an agent's settings shows those of a cluster that has OpenShift's network.
async fn enforcing(place: &Place) -> Result<Option<(Option<Client>, Option<String>)>, Failure> {
    if let Some(known) = recorded::look(&place.paths).known {
        let Some(kubeconfig) = known.openshift()? else { return Ok(None) };
        let client = kubeconfig.map(|path| Client::new(Source::kubeconfig(path))).transpose()?;
        return Ok(Some((client, None)));
    }
    match place.store.get(&clusternetwork_key()).await {
        Ok(Some(_)) => Ok(Some((place.kubernetes(), Some("no agent has run on this machine".to_owned())))),
        // Not a cluster of OpenShift, or one that may not be read: other verbs say so.
        Ok(None) | Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use russet_verdict::evaluator::judge;
    use russet_verdict::flow::Flow;
    use russet_verdict::ir::{Direction, Protocol};
    use russet_verdict::world::{Endpoint, EndpointKey, EndpointKind};

    use super::*;

    fn names(addresses: &[&str]) -> EgressPeer {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        EgressPeer::Name("www.example.com".into(), addresses)
    }

    #[test]
    fn a_name_is_its_addresses_and_without_any_it_opens_nothing() {
        let mut policies = EgressPolicies::default();
        let everything = EgressPeer::Net("0.0.0.0/0".parse().unwrap());
        assert_eq!(policies.resolved(&(true, names(&[]))), (true, names(&[])));
        assert_eq!(policies.resolved(&(false, names(&[]))), (false, everything.clone()));
        assert_eq!(policies.resolved(&(true, everything.clone())), (true, everything));
        policies.view.set_name("www.example.com".into(), ["192.0.2.1".parse().unwrap()].into());
        for allow in [true, false] {
            assert_eq!(policies.resolved(&(allow, names(&[]))), (allow, names(&["192.0.2.1"])));
        }
    }

    /// Whether a pod of `blue` reaches an address outside while it has this policy, and the policy's problems.
    fn reaches(document: Value) -> (bool, Vec<String>) {
        let (mut cluster, mut policies) = (Cluster::empty(), EgressPolicies::default());
        let name = (Namespace::new("blue").unwrap(), "few".to_owned());
        policies.put(&mut cluster, name.clone(), document);
        let (source, destination) = ("10.128.0.2".parse().unwrap(), "203.0.113.9".parse().unwrap());
        let endpoint = Endpoint {
            kind: EndpointKind::Workload,
            namespace: Some("blue".into()),
            name: "web".into(),
            node: "n1".into(),
            addresses: [source].into(),
            labels: BTreeMap::new(),
            profiles: vec!["projectcalico-default-allow".into()],
            ports: Vec::new(),
            local: None,
            age: 1,
        };
        let key = EndpointKey("web".into());
        cluster.snapshot.apply(Update::Endpoint(key.clone(), Some(Arc::new(endpoint))));
        let flow =
            Flow { source, destination, protocol: Protocol::TCP, source_port: 1, destination_port: 443 };
        let trace = judge(&cluster.snapshot, &key, Direction::Egress, &flow).unwrap();
        assert_eq!(cluster.problems, policies.policies[&name]);
        (trace.allowed, policies.policies[&name].clone())
    }

    #[test]
    fn a_policy_that_the_agent_cannot_enforce_denies_everything_and_says_why() {
        let allow = json!({ "type": "Allow", "to": { "cidrSelector": "0.0.0.0/0" } });
        let of = |rules: usize| json!({ "spec": { "egress": vec![allow.clone(); rules] } });
        assert_eq!(reaches(of(RULES_MAX)), (true, Vec::new()));
        for (document, why) in [
            (of(RULES_MAX + 1), "more than 10000 rules; everything is denied"),
            (json!({ "spec": [] }), "spec is no object; everything is denied"),
            (Value::Null, "it is no document; everything is denied"),
            (json!({ "spec": { "egress": 7 } }), "spec.egress: a list is wanted; everything is denied"),
        ] {
            let problem = format!("EgressNetworkPolicy blue/few: {why}");
            assert_eq!(reaches(document), (false, vec![problem]));
        }
        assert_eq!(reaches(json!({})), (true, Vec::new()), "without rules");
    }
}
