use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use russet_kube::ObjectEvent;
use russet_model::openshift::{egressnetworkpolicy_key, netnamespace_key};
use russet_store::sim::Rng;
use russet_store::{Event, Record, Revision};
use russet_verdict::evaluator::judge;
use russet_verdict::flow::Flow;
use russet_verdict::ir::{Direction, Protocol};
use russet_verdict::snapshot::Snapshot;
use russet_verdict::translate::Translator;
use russet_verdict::world::{Config, Endpoint, EndpointKey, EndpointKind};

use super::*;
use crate::tenants::View;

const OUTSIDE: [&str; 4] = ["1.2.3.4", "8.8.8.8", "0.0.0.0", "255.255.255.255"];

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

fn allow(to: Value) -> Value {
    json!({ "type": "Allow", "to": to })
}

fn deny(to: Value) -> Value {
    json!({ "type": "Deny", "to": to })
}

fn cidr(text: &str) -> Value {
    json!({ "cidrSelector": text })
}

/// Only 1.2.3.0/24 is allowed.
fn almost_all() -> Value {
    json!([allow(cidr("1.2.3.0/24")), deny(cidr("0.0.0.0/0"))])
}

/// A view of a store without records.
fn known() -> View {
    let mut view = View::default();
    view.take(Event::Snapshot(russet_store::Snapshot::default()));
    view
}

fn put(view: &mut View, key: russet_model::Key, value: Value) {
    let value = value.to_string().into_bytes();
    view.take(Event::Put(Record { key, value, revision: Revision::default() }));
}

fn put_netid(view: &mut View, name: &str, netid: u32) {
    put(view, netnamespace_key(&namespace(name)), json!({ "netname": name, "netid": netid }));
}

fn put_policy(view: &mut View, (in_namespace, name): (&str, &str), rules: Value) {
    let key = egressnetworkpolicy_key(&namespace(in_namespace), name);
    put(view, key, json!({ "spec": { "egress": rules } }));
}

/// The addresses outside that a network ID may reach.
fn open(view: &View, netid: u32) -> Vec<&'static str> {
    let (egress, _) = view.egress().unwrap();
    let denied = egress.get(&NetId::new(netid).unwrap()).expect("a known network ID");
    OUTSIDE.into_iter().filter(|address| !denied.contains(address.parse().unwrap())).collect()
}

#[test]
fn k123_rules_count_in_their_order_and_0_0_0_0_32_means_every_address() {
    // kubernetes.md K123
    let mut view = known();
    put_netid(&mut view, "x", 10);
    assert_eq!(open(&view, 10), OUTSIDE, "without a policy");
    put_policy(&mut view, ("x", "e"), almost_all());
    assert_eq!(open(&view, 10), ["1.2.3.4"]);
    put_policy(&mut view, ("x", "e"), json!([deny(cidr("0.0.0.0/0")), allow(cidr("1.2.3.0/24"))]));
    assert_eq!(open(&view, 10), [""; 0]);
    put_policy(&mut view, ("x", "e"), json!([allow(cidr("8.8.8.8/32")), deny(cidr("0.0.0.0/32"))]));
    assert_eq!(open(&view, 10), ["8.8.8.8"]);
    put_policy(&mut view, ("x", "e"), json!([deny(cidr("8.8.8.0/24"))]));
    assert_eq!(open(&view, 10), ["1.2.3.4", "0.0.0.0", "255.255.255.255"], "what no rule covers is allowed");
    view.take(Event::Deleted {
        key: egressnetworkpolicy_key(&namespace("x"), "e"),
        revision: Revision::default(),
    });
    assert_eq!(open(&view, 10), OUTSIDE);
}

#[test]
fn k123_two_policies_of_a_namespace_deny_everything() {
    // kubernetes.md K123
    let mut view = known();
    put_netid(&mut view, "x", 10);
    put_netid(&mut view, "y", 11);
    put_policy(&mut view, ("x", "e"), almost_all());
    put_policy(&mut view, ("x", "f"), json!([]));
    assert_eq!(open(&view, 10), ["1.2.3.4"], "one without rules is none");
    put_policy(&mut view, ("x", "f"), json!([allow(cidr("0.0.0.0/0"))]));
    assert_eq!((open(&view, 10), open(&view, 11)), (vec![], OUTSIDE.to_vec()));
    assert_eq!(view.egress().unwrap().1, [Override::Several(namespace("x"))]);
}

#[test]
fn k123_a_policy_of_one_namespace_denies_everything_to_all_that_share_its_network_id() {
    // kubernetes.md K123
    let mut view = known();
    put_netid(&mut view, "x", 10);
    put_policy(&mut view, ("x", "e"), almost_all());
    put_netid(&mut view, "y", 10);
    assert_eq!(open(&view, 10), [""; 0]);
    assert_eq!(view.egress().unwrap().1, [Override::Shared(NetId::new(10).unwrap(), namespace("x"))]);
    put_netid(&mut view, "y", 11);
    assert_eq!((open(&view, 10), open(&view, 11)), (vec!["1.2.3.4"], OUTSIDE.to_vec()));
    assert_eq!(view.egress().unwrap().1, []);
}

#[test]
fn k123_the_global_network_id_is_never_restricted() {
    // kubernetes.md K123
    let mut view = known();
    put_netid(&mut view, "x", 0);
    put_policy(&mut view, ("x", "e"), almost_all());
    put_policy(&mut view, ("x", "f"), almost_all());
    assert_eq!(open(&view, 0), OUTSIDE);
    assert_eq!(
        view.egress().unwrap().1,
        [Override::Global(namespace("x")), Override::Global(namespace("x"))]
    );
    put_netid(&mut view, "x", 10);
    assert_eq!((open(&view, 0), open(&view, 10)), (OUTSIDE.to_vec(), vec![]));
}

#[test]
fn objects_of_the_api_count_beside_records_and_nothing_is_known_before_they_are_listed() {
    let mut view = View::default();
    assert_eq!(view.egress(), None, "no record was read");
    view = known();
    put_netid(&mut view, "x", 10);
    view.expect_objects();
    assert_eq!(view.egress(), None);
    let object = |name: &str| json!({ "metadata": { "namespace": "x", "name": name }, "spec": { "egress": almost_all() } });
    view.take_objects(ObjectEvent::Snapshot(vec![object("e"), json!({ "metadata": { "name": "e" } })]));
    assert_eq!(open(&view, 10), ["1.2.3.4"]);
    put_policy(&mut view, ("x", "e"), json!([]));
    assert_eq!(open(&view, 10), ["1.2.3.4"], "a record of the same object");
    put_policy(&mut view, ("x", "f"), almost_all());
    assert_eq!(open(&view, 10), [""; 0], "a second policy");
    view.take_objects(ObjectEvent::Deleted(object("e")));
    assert_eq!(open(&view, 10), ["1.2.3.4"]);
    view.take_objects(ObjectEvent::Changed(object("g")));
    assert_eq!(open(&view, 10), [""; 0]);
    let key = egressnetworkpolicy_key(&namespace("x"), "f");
    view.take(Event::Deleted { key, revision: Revision::default() });
    assert_eq!(open(&view, 10), ["1.2.3.4"]);
    // The records of a new snapshot are others, and the objects stay.
    view.take(Event::Snapshot(russet_store::Snapshot::default()));
    put_netid(&mut view, "x", 11);
    assert_eq!(open(&view, 11), ["1.2.3.4"]);
    view.take_objects(ObjectEvent::Snapshot(Vec::new()));
    assert_eq!(open(&view, 11), OUTSIDE);
}

#[test]
fn what_cannot_be_read_opens_nothing_and_is_named() {
    let read = |value: &[u8]| EgressPolicy::read(&namespace("x"), "e", value);
    let everything = Denied::everything();
    for bad in
        ["\u{1}", "[]", "null", r#"{"spec":[]}"#, r#"{"spec":{"egress":1}}"#, r#"{"spec":{"egress":[1]}}"#]
    {
        let (policy, problems) = read(bad.as_bytes());
        assert_eq!((policy.has_rules, &*policy.denied), (true, &everything), "{bad}");
        assert!(!problems.is_empty(), "{bad}");
    }
    assert_eq!(read(b"\xff").0, EgressPolicy::closed());
    let of_rules =
        |rules: Value| read(json!({ "metadata": 7, "spec": { "egress": rules } }).to_string().as_bytes());
    let many = of_rules(json!(vec![allow(cidr("8.0.0.0/8")); RULES_PER_POLICY_MAX + 1]));
    assert_eq!((many.0, many.1.len()), (EgressPolicy::closed(), 1));
    let (good, problems) = of_rules(almost_all());
    assert_eq!((good.has_rules, problems), (true, vec![]));
}

#[test]
fn names_are_their_addresses_and_without_any_they_open_nothing() {
    // policy.md P98
    let mut view = known();
    put_netid(&mut view, "x", 10);
    let name = |name: &str| json!({ "dnsName": name });
    put_policy(&mut view, ("x", "e"), json!([allow(name("a.example.")), deny(cidr("0.0.0.0/0"))]));
    assert_eq!(view.egress(), None, "the names are not tried yet");
    assert_eq!(view.names().unwrap(), BTreeSet::from(["a.example".into()]));
    assert!(view.set_names_tried() && !view.set_names_tried());
    assert_eq!(open(&view, 10), [""; 0]);
    let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<BTreeSet<_>>();
    assert!(view.set_name("a.example".into(), addresses(&["1.2.3.4", "9.9.9.9"])));
    assert_eq!(open(&view, 10), ["1.2.3.4"]);
    assert!(!view.set_name("a.example".into(), addresses(&["9.9.9.9", "1.2.3.4"])));
    assert!(view.set_name("a.example".into(), addresses(&["8.8.8.8"])));
    assert_eq!(open(&view, 10), ["8.8.8.8"], "the old address is not allowed any more");
    let rules = json!([allow(cidr("1.0.0.0/8")), deny(name("b.example")), allow(name("a.example"))]);
    put_policy(&mut view, ("x", "e"), rules);
    assert_eq!(open(&view, 10), ["1.2.3.4"], "b.example has no address yet");
    assert!(view.set_name("b.example".into(), addresses(&["0.0.0.0"])));
    assert_eq!(open(&view, 10), ["1.2.3.4", "8.8.8.8", "255.255.255.255"]);
    view.keep_names(&BTreeSet::from(["b.example".into()]));
    assert!(!view.is_resolved("a.example") && view.is_resolved("b.example"));
    let many: Vec<Value> = (0..=NAMES_MAX).map(|number| allow(name(&format!("n{number}.example")))).collect();
    let text = json!({ "spec": { "egress": many } }).to_string();
    let (policy, problems) = EgressPolicy::read(&namespace("x"), "e", text.as_bytes());
    assert_eq!((policy.names().count(), problems.len()), (NAMES_MAX, 1));
}

/// A namespace with its network ID, and the rules of its policies by their names.
type RandomNamespace = (String, Option<u32>, Vec<(String, Value)>);

/// A cluster of a few namespaces whose network IDs and policies are random, as documents.
fn random_cluster(rng: &mut Rng) -> Vec<RandomNamespace> {
    let nets = ["1.2.3.0/24", "8.0.0.0/8", "8.8.8.8/32", "0.0.0.0/32", "0.0.0.0/0", "10.128.0.0/14", "x"];
    let rule = |rng: &mut Rng| {
        let to = cidr(nets[rng.below(nets.len() as u64) as usize]);
        if rng.below(2) == 0 { allow(to) } else { deny(to) }
    };
    let mut namespaces = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let netid = (rng.below(8) > 0).then(|| [0, 10, 11, 12, 13, 14][rng.below(6) as usize]);
        let count = [0, 1, 1, 1, 2][rng.below(5) as usize];
        let policies = (0..count).map(|number| {
            let rules: Vec<Value> = (0..rng.below(5)).map(|_| rule(rng)).collect();
            (format!("p{number}"), json!(rules))
        });
        namespaces.push((name.to_owned(), netid, policies.collect()));
    }
    namespaces
}

#[test]
fn what_is_denied_is_what_the_evaluator_of_policies_says() {
    // policy.md P96 and P97
    let mut rng = Rng::new(7);
    let source = "10.128.2.2".parse().unwrap();
    for round in 0..500 {
        let cluster = random_cluster(&mut rng);
        let (mut view, mut snapshot, mut translator) = (known(), Snapshot::default(), Translator::default());
        let config = Config { node: "n".into(), allow_without_profile: true, ..Config::default() };
        snapshot.apply(Update::Config(config));
        let api = "network.openshift.io/v1";
        for (name, netid, policies) in &cluster {
            let mut documents = Vec::new();
            if let Some(netid) = netid {
                put_netid(&mut view, name, *netid);
                documents
                    .push(json!({ "apiVersion": api, "kind": "NetNamespace", "metadata": { "name": name },
                    "netname": name, "netid": netid }));
            }
            for (policy, rules) in policies {
                put_policy(&mut view, (name, policy), rules.clone());
                documents.push(json!({ "apiVersion": api, "kind": "EgressNetworkPolicy",
                    "metadata": { "namespace": name, "name": policy }, "spec": { "egress": rules } }));
            }
            for document in documents {
                translator.put(&document).updates.into_iter().for_each(|update| snapshot.apply(update));
            }
        }
        let (egress, _) = view.egress().unwrap();
        for (name, netid, _) in cluster.iter().filter(|(_, netid, _)| netid.is_some()) {
            let key = EndpointKey(name.as_str().into());
            snapshot.apply(Update::Endpoint(key.clone(), Some(Arc::new(endpoint(name, source)))));
            let denied = &egress[&NetId::new(netid.unwrap()).unwrap()];
            for address in OUTSIDE.into_iter().chain(["8.9.9.9", "9.9.9.9"]) {
                let destination: Ipv4Addr = address.parse().unwrap();
                let flow = Flow {
                    source,
                    destination: destination.into(),
                    protocol: Protocol::TCP,
                    source_port: 7,
                    destination_port: 443,
                };
                let trace = judge(&snapshot, &key, Direction::Egress, &flow).unwrap();
                assert_eq!(
                    !denied.contains(destination),
                    trace.allowed,
                    "round {round}: {name} {address}: {cluster:#?}"
                );
            }
        }
    }
}

fn endpoint(namespace: &str, address: std::net::IpAddr) -> Endpoint {
    Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some(namespace.into()),
        name: "pod".into(),
        node: "n".into(),
        addresses: BTreeSet::from([address]),
        labels: BTreeMap::new(),
        profiles: Vec::new(),
        ports: Vec::new(),
        local: None,
        age: 0,
    }
}
