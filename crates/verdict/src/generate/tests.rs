use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_testkit::Random;
use serde_json::Value;

use super::*;
use crate::evaluator;
use crate::explain::Probe;
use crate::flow::Flow;
use crate::snapshot::Snapshot;
use crate::translate;

/// As many policy sets are judged, unless `RUSSET_CASES` says otherwise.
const CASES: usize = 300;
/// As many flows are drawn in each state, of all between two ends; with `RUSSET_CASES`, all are judged.
const FLOWS: usize = 150;
/// Another seed makes other cases; a failure prints it.
const SEED: u64 = 0x1d3a;

fn seed() -> u64 {
    std::env::var("RUSSET_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(SEED)
}

fn cases_wanted() -> Option<usize> {
    std::env::var("RUSSET_CASES").ok().and_then(|text| text.parse().ok())
}

fn generated(count: usize) -> Vec<Case> {
    let mut random = Random::new(seed());
    cases(count, &mut |below| random.below(below))
}

/// Whether enforced policies of Calico's own kinds are among the documents.
fn has_calico(case: &Case) -> bool {
    ["calico-tier", "order-tie"].contains(&case.value("tiers"))
}

/// The flows that are judged in a state.
fn drawn<'a>(flows: &'a [(String, Flow)], random: &mut Random) -> Vec<&'a (String, Flow)> {
    match cases_wanted() {
        Some(_) => flows.iter().collect(),
        None => (0..FLOWS).map(|_| &flows[random.below(flows.len())]).collect(),
    }
}

/// A second reading of NetworkPolicies and ClusterNetworkPolicies, straight from the documents and
/// the texts of the APIs, which knows nothing of the one form of policies.
mod reading {
    use super::*;
    use crate::ir::Protocol;
    use crate::world::Endpoint;

    pub fn allows(snapshot: &Snapshot, policies: &[Value], flow: &Flow) -> bool {
        let (from, to) = (pod_at(snapshot, flow.source), pod_at(snapshot, flow.destination));
        let own_node = to.is_some_and(|to| {
            let addresses = |(name, node): (&russet_addr::NodeName, &std::sync::Arc<crate::world::Node>)| {
                name.as_str() == &*to.node && node.addresses.contains(&flow.source)
            };
            snapshot.nodes.iter().any(addresses)
        });
        let end = |pod: Option<&Endpoint>, direction, peer| {
            pod.is_none_or(|pod| end_allows(snapshot, policies, pod, direction, peer, flow))
        };
        end(from, "Egress", flow.destination) && (own_node || end(to, "Ingress", flow.source))
    }

    fn end_allows(
        snapshot: &Snapshot,
        policies: &[Value],
        pod: &Endpoint,
        direction: &str,
        peer: IpAddr,
        flow: &Flow,
    ) -> bool {
        let isolates = |policy: &&Value| {
            let spec = &policy["spec"];
            let types = match spec["policyTypes"].as_array() {
                Some(types) => types.iter().any(|it| it == direction),
                None => direction == "Ingress" || spec["egress"].as_array().is_some_and(|it| !it.is_empty()),
            };
            let own = policy["kind"] == "NetworkPolicy"
                && policy["metadata"]["namespace"] == *pod.namespace.as_deref().unwrap();
            types && own && labels_match(&spec["podSelector"], "pod", &pod.labels["pod"])
        };
        if let Some(allowed) = by_cluster(snapshot, policies, "Admin", pod, direction, peer, flow) {
            return allowed;
        }
        let mut isolating = policies.iter().filter(isolates).peekable();
        if isolating.peek().is_none() {
            return by_cluster(snapshot, policies, "Baseline", pod, direction, peer, flow).unwrap_or(true);
        }
        let (rules, peers) = members(direction);
        isolating.flat_map(|policy| policy["spec"][rules].as_array().into_iter().flatten()).any(|rule| {
            let own = pod.namespace.as_deref().unwrap();
            let from = rule[peers].as_array().is_none_or(|list| {
                list.is_empty() || list.iter().any(|it| peer_matches(snapshot, it, own, peer))
            });
            let ports = rule["ports"].as_array();
            from && ports
                .is_none_or(|list| list.is_empty() || list.iter().any(|it| port_matches(snapshot, it, flow)))
        })
    }

    fn members(direction: &str) -> (&'static str, &'static str) {
        if direction == "Ingress" { ("ingress", "from") } else { ("egress", "to") }
    }

    /// What the ClusterNetworkPolicies of a tier say; `None` is nothing, or Pass.
    fn by_cluster(
        snapshot: &Snapshot,
        policies: &[Value],
        tier: &str,
        pod: &Endpoint,
        direction: &str,
        peer: IpAddr,
        flow: &Flow,
    ) -> Option<bool> {
        let mut of_tier: Vec<&Value> = policies.iter().filter(|it| it["spec"]["tier"] == tier).collect();
        of_tier.sort_by_key(|it| it["spec"]["priority"].as_u64());
        let (rules, peers) = members(direction);
        for policy in of_tier {
            let subject = &policy["spec"]["subject"]["namespaces"];
            if !labels_match(subject, "ns", namespace_label(snapshot, pod)) {
                continue;
            }
            for rule in policy["spec"][rules].as_array().into_iter().flatten() {
                let of_peer = |it: &Value| match it.get("networks").and_then(Value::as_array) {
                    Some(nets) => nets.iter().any(|net| in_net(net, peer)),
                    None => pod_at(snapshot, peer).is_some_and(|pod| {
                        labels_match(&it["namespaces"], "ns", namespace_label(snapshot, pod))
                    }),
                };
                let port = |it: &Value| {
                    flow.protocol == Protocol::TCP
                        && it["tcp"]["destinationPort"]["number"] == flow.destination_port
                };
                let ports = rule["protocols"].as_array().is_none_or(|list| list.iter().any(port));
                if ports && rule[peers].as_array().unwrap().iter().any(of_peer) {
                    return match rule["action"].as_str().unwrap() {
                        "Accept" => Some(true),
                        "Deny" => Some(false),
                        _ => None,
                    };
                }
            }
        }
        None
    }

    fn namespace_label<'a>(snapshot: &'a Snapshot, pod: &Endpoint) -> &'a str {
        &snapshot.profiles[format!("kns.{}", pod.namespace.as_deref().unwrap()).as_str()].labels["pcns.ns"]
    }

    fn in_net(net: &Value, address: IpAddr) -> bool {
        net.as_str().unwrap().parse::<russet_addr::IpNet>().unwrap().contains(&address)
    }

    fn peer_matches(snapshot: &Snapshot, peer: &Value, own: &str, address: IpAddr) -> bool {
        if let Some(block) = peer["ipBlock"].as_object() {
            let inside = |net: &Value| in_net(net, address);
            let mut except = block.get("except").and_then(Value::as_array).into_iter().flatten();
            return inside(&block["cidr"]) && !except.any(inside);
        }
        let Some(pod) = pod_at(snapshot, address) else { return false };
        let namespace = pod.namespace.as_deref().unwrap();
        let in_namespace = match peer.get("namespaceSelector") {
            Some(selector) => labels_match(selector, "ns", namespace_label(snapshot, pod)),
            None => namespace == own,
        };
        in_namespace
            && peer
                .get("podSelector")
                .is_none_or(|selector| labels_match(selector, "pod", &pod.labels["pod"]))
    }

    fn port_matches(snapshot: &Snapshot, port: &Value, flow: &Flow) -> bool {
        let protocol = match port["protocol"].as_str().unwrap_or("TCP") {
            "UDP" => Protocol::UDP,
            "SCTP" => Protocol::SCTP,
            _ => Protocol::TCP,
        };
        let number = match (&port["port"], pod_at(snapshot, flow.destination)) {
            (Value::Null, _) => true,
            (Value::String(name), Some(pod)) => pod
                .ports
                .iter()
                .any(|it| *it.name == **name && it.port == flow.destination_port && it.protocol == protocol),
            (Value::Number(first), _) => {
                let first = first.as_u64().unwrap();
                let last = port["endPort"].as_u64().unwrap_or(first);
                (first..=last).contains(&u64::from(flow.destination_port))
            }
            _ => false,
        };
        flow.protocol == protocol && number
    }

    /// Everything has one label only.
    fn labels_match(selector: &Value, key: &str, value: &str) -> bool {
        let mut wanted = selector["matchLabels"].as_object().into_iter().flatten();
        let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
        wanted.all(|(name, wanted)| name == key && wanted == value)
            && expressions.all(|it| {
                let has = it["key"] == key;
                let listed =
                    it["values"].as_array().is_some_and(|values| values.iter().any(|it| it == value));
                match it["operator"].as_str().unwrap() {
                    "In" => has && listed,
                    "NotIn" => !(has && listed),
                    "DoesNotExist" => !has,
                    other => panic!("{other}"),
                }
            })
    }

    fn pod_at(snapshot: &Snapshot, address: IpAddr) -> Option<&Endpoint> {
        let found = snapshot.endpoints.values().find(|it| it.addresses.contains(&address));
        found.map(|endpoint| &**endpoint)
    }
}

#[test]
fn the_cases_cover_each_pair_of_features_and_all_differ() {
    let cases = generated(CASES);
    assert_eq!(cases.len(), CASES);
    assert_eq!(cases.iter().collect::<BTreeSet<_>>().len(), CASES);
    let covered: BTreeSet<Pair> = cases.iter().flat_map(|case| case.pairs().collect::<Vec<_>>()).collect();
    assert_eq!(covered, all_pairs().collect());
    assert_eq!(generated(CASES), cases, "the same seed makes the same cases");
}

#[test]
fn the_evaluator_reads_policies_of_kubernetes_as_the_apis_describe_them() {
    let flows = super::flows();
    let mut random = Random::new(seed());
    let mut verdicts = [0_usize; 2];
    for case in generated(cases_wanted().unwrap_or(CASES)).iter().filter(|case| !has_calico(case)) {
        let mut snapshot = Snapshot::default();
        for State { updates, documents } in case.states() {
            updates.into_iter().for_each(|update| snapshot.apply(update));
            for (name, flow) in drawn(&flows, &mut random) {
                let seen = evaluator::ask(&snapshot, flow).allowed();
                let wanted = reading::allows(&snapshot, &documents, flow);
                assert_eq!(seen, wanted, "RUSSET_SEED={} {case}\n{name} in {documents:#?}", seed());
                verdicts[usize::from(seen)] += 1;
            }
        }
    }
    assert!(verdicts.iter().all(|count| *count > 10_000), "{verdicts:?}");
}

#[test]
fn each_document_of_each_case_can_be_read_as_it_is_written() {
    for document in generated(CASES).iter().flat_map(Case::documents) {
        let translated = translate::document(&document).unwrap();
        let of_policy = |update: &Update| match update {
            Update::Policy(_, Some(policy)) => policy.problems.clone(),
            _ => Vec::new(),
        };
        let problems: Vec<_> =
            translated.updates.iter().flat_map(of_policy).chain(translated.problems.clone()).collect();
        assert_eq!(problems, [], "{document}");
    }
}

#[test]
fn probes_between_all_ends_are_those_of_the_specification() {
    assert_eq!(hosts().len(), 13);
    assert_eq!(probes().len(), 7);
    assert!(probes().contains(&Probe { protocol: crate::ir::Protocol::SCTP, port: 81 }));
}

/// For each state of some cases: whether a change of its policies denies a flow that was allowed.
fn no_flow_is_denied_by(
    what: &str,
    change: impl Fn(&mut Snapshot) -> bool,
    counts: impl Fn(&Snapshot, &Flow) -> bool,
) {
    let flows = super::flows();
    let mut random = Random::new(seed());
    let (mut changed, mut allowed) = (0, 0);
    for case in generated(100) {
        let mut before = Snapshot::default();
        for State { updates, documents } in case.states() {
            updates.into_iter().for_each(|update| before.apply(update));
            let mut after = before.clone();
            if !change(&mut after) {
                continue;
            }
            changed += 1;
            for (name, flow) in drawn(&flows, &mut random) {
                if counts(&before, flow) && evaluator::ask(&before, flow).allowed() {
                    let still = evaluator::ask(&after, flow).allowed();
                    assert!(still, "RUSSET_SEED={} {case}\n{what}: {name} in {documents:#?}", seed());
                    allowed += 1;
                }
            }
        }
    }
    assert!(changed > 10 && allowed > 500, "{what}: {changed} changes, {allowed} flows");
}

#[test]
fn removing_rules_that_deny_never_denies_more() {
    let without_deny = |rules: &[crate::ir::Rule]| {
        rules.iter().filter(|rule| rule.action != crate::ir::Action::Deny).cloned().collect::<Vec<_>>()
    };
    let change = |snapshot: &mut Snapshot| {
        let before = snapshot.clone();
        for (id, policy) in before.policies.iter() {
            let (ingress, egress) = (without_deny(&policy.ingress), without_deny(&policy.egress));
            let policy = crate::ir::Policy { ingress, egress, ..(**policy).clone() };
            snapshot.apply(Update::Policy(id.clone(), Some(std::sync::Arc::new(policy))));
        }
        snapshot.policies != before.policies
    };
    no_flow_is_denied_by("without rules that deny", change, |_, _| true);
}

#[test]
fn a_network_policy_that_allows_never_denies_to_a_pod_that_another_one_isolates() {
    let more = serde_json::json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "more", "namespace": "x"},
        "spec": {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"ns": "z"}}}]}]},
    });
    let change = |snapshot: &mut Snapshot| {
        let updates = translate::document(&more).unwrap().updates;
        updates.into_iter().for_each(|update| snapshot.apply(update));
        true
    };
    // The others are isolated by the new policy itself.
    let isolated = |snapshot: &Snapshot, flow: &Flow| {
        let Some((_, pod)) = snapshot.workload_at(flow.destination) else { return true };
        pod.namespace.as_deref() != Some("x")
            || snapshot.policies.values().any(|policy| {
                policy.id.kind == crate::ir::PolicyKind::KubernetesNetworkPolicy
                    && policy.directions.ingress
                    && snapshot.selects(&policy.subject, pod)
            })
    };
    no_flow_is_denied_by("with one more that allows", change, isolated);
}
