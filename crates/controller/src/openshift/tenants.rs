//! Which NetNamespaces are created, changed and deleted. Pure.

use std::collections::{BTreeMap, BTreeSet};

use russet_model::openshift::{CHANGE_ANNOTATION, IsolationMode, JOIN, Namespace, NetId, NetNamespace};
use serde_json::{Value, json};

use super::{Kind, Plan, Write, annotation, name_of};

/// Limit of the part of a refused request that the log repeats.
const SHOWN_MAX_CHARS: usize = 80;

/// The network IDs, as they are after the plan so far.
#[derive(Default)]
struct Ids {
    by_name: BTreeMap<Namespace, NetId>,
    /// Also those that this plan releases: nodes do not know of that yet.
    used: BTreeSet<NetId>,
}

/// The plan for all tenants. `namespaces` has all namespaces, and whether each is being deleted.
pub(super) fn plan(mode: IsolationMode, tenants: &[Value], namespaces: &BTreeMap<String, bool>) -> Plan {
    let mut plan = Plan::default();
    // Without isolation there are none.
    if mode == IsolationMode::Subnet {
        return plan;
    }
    let (mut ids, mut requests, mut listed) = (Ids::default(), Vec::new(), BTreeSet::new());
    for object in tenants {
        let Some(name) = name_of(object) else { continue };
        listed.insert(name);
        match NetNamespace::decode(object.to_string().as_bytes()) {
            Ok(tenant) if namespaces.contains_key(name) => {
                let request = annotation(object, CHANGE_ANNOTATION)
                    .map(|change| (object, tenant.netname.clone(), change));
                requests.extend(request);
                ids.give(tenant.netname, tenant.netid);
            }
            Ok(tenant) => _ = ids.used.insert(tenant.netid),
            Err(error) => _ = plan.refused.insert(format!("NetNamespace {name} cannot be used: {error}")),
        }
        if !namespaces.contains_key(name) {
            plan.writes.push(Write::Delete(Kind::NetNamespace, object.clone()));
        }
    }
    let missing =
        namespaces.iter().filter(|(name, is_ending)| !**is_ending && !listed.contains(name.as_str()));
    for (name, _) in missing {
        create(name, &mut ids, &mut plan);
    }
    for (object, namespace, change) in requests {
        match ids.requested(mode, &namespace, change) {
            Ok(netid) => {
                plan.writes.push(Write::Replace(Kind::NetNamespace, changed(object, netid)));
                ids.give(namespace, netid);
            }
            Err(reason) => {
                let shown: String = change.chars().take(SHOWN_MAX_CHARS).collect();
                plan.refused.insert(format!("NetNamespace {namespace}: {shown:?} is refused: {reason}"));
            }
        }
    }
    plan
}

/// `default` is global, every other namespace has an ID of its own.
fn create(name: &str, ids: &mut Ids, plan: &mut Plan) {
    let Ok(namespace) = Namespace::new(name) else { return };
    let netid = if namespace.is_default() { Some(NetId::GLOBAL) } else { ids.unused(&namespace) };
    let Some(netid) = netid else {
        plan.refused.insert(format!("namespace {namespace} gets no NetNamespace: {FULL}"));
        return;
    };
    let members = json!({ "netname": name, "netid": netid.number() });
    plan.writes.push(Write::Create(Kind::NetNamespace, Kind::NetNamespace.object(name, members)));
    ids.give(namespace, netid);
}

const FULL: &str = "no network ID is left";

/// The object with another ID, and without the request for it.
fn changed(object: &Value, netid: NetId) -> Value {
    let mut object = object.clone();
    if let Some(members) = object.as_object_mut() {
        members.insert("netid".to_owned(), json!(netid.number()));
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(CHANGE_ANNOTATION);
    }
    object
}

/// FNV-1a, which is enough to spread names.
fn spread(namespace: &Namespace) -> u32 {
    let mix = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    namespace.as_str().bytes().fold(0x811c_9dc5, mix)
}

// === impl Ids ===

impl Ids {
    fn give(&mut self, namespace: Namespace, netid: NetId) {
        self.used.insert(netid);
        self.by_name.insert(namespace, netid);
    }

    /// The first free ID from one that follows from the name, so that an ID that was released is rarely
    /// given away soon.
    fn unused(&self, namespace: &Namespace) -> Option<NetId> {
        let (first, count) = (NetId::FIRST.number(), NetId::MAX.number() - NetId::FIRST.number() + 1);
        let start = spread(namespace) % count;
        let candidates = (0..count).map(|step| first + (start + step) % count);
        candidates.filter_map(|number| NetId::new(number).ok()).find(|netid| !self.used.contains(netid))
    }

    /// The ID that a request asks for.
    fn requested(&self, mode: IsolationMode, namespace: &Namespace, change: &str) -> Result<NetId, String> {
        if mode == IsolationMode::NetworkPolicy {
            return Err("the cluster isolates by network policies, for which every namespace keeps a network ID of its own".to_owned());
        }
        if change == "global" {
            return Ok(NetId::GLOBAL);
        }
        if namespace.is_default() {
            return Err("it stays global".to_owned());
        }
        if change == "isolate" {
            let kept = self.by_name.get(namespace).copied().filter(|netid| self.is_alone(*netid));
            return kept.or_else(|| self.unused(namespace)).ok_or_else(|| FULL.to_owned());
        }
        let Some(other) = change.strip_prefix(JOIN) else {
            return Err("it is none of global, join:NAMESPACE and isolate".to_owned());
        };
        let found = Namespace::new(other).ok().and_then(|other| self.by_name.get(&other));
        found.copied().ok_or_else(|| "there is no such NetNamespace".to_owned())
    }

    /// Whether one namespace only has this ID.
    fn is_alone(&self, netid: NetId) -> bool {
        !netid.is_global() && self.by_name.values().filter(|other| **other == netid).count() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, netid: u64, change: Option<&str>) -> Value {
        let mut object = Kind::NetNamespace
            .object(name, json!({ "netname": name, "netid": netid, "egressIPs": ["192.0.2.9"], "x": 1 }));
        object["metadata"]["resourceVersion"] = json!("7");
        object["metadata"]["annotations"] = json!({ "mine": "kept" });
        if let Some(change) = change {
            object["metadata"]["annotations"][CHANGE_ANNOTATION] = json!(change);
        }
        object
    }

    fn namespaces(names: &[&str]) -> BTreeMap<String, bool> {
        names.iter().map(|name| ((*name).to_owned(), false)).collect()
    }

    fn planned(mode: IsolationMode, tenants: &[Value], names: &[&str]) -> Plan {
        plan(mode, tenants, &namespaces(names))
    }

    /// The ID that a request gives to the namespace `red`, among others.
    fn red(change: &str, with: &[(&str, u64)]) -> Result<u64, String> {
        let mut tenants = vec![tenant("red", 20, Some(change))];
        tenants.extend(with.iter().map(|(name, netid)| tenant(name, *netid, None)));
        let names: Vec<&str> = tenants.iter().filter_map(name_of).collect();
        let plan = planned(IsolationMode::Multitenant, &tenants, &names);
        let [Write::Replace(Kind::NetNamespace, object)] = &plan.writes[..] else {
            assert!(plan.writes.is_empty(), "{plan:?}");
            return Err(plan.refused.first().cloned().unwrap());
        };
        assert!(plan.refused.is_empty(), "{plan:?}");
        // Everything else is as it was.
        let netid = object["netid"].as_u64().unwrap();
        let mut expected = tenant("red", netid, None);
        expected["netid"] = json!(netid);
        assert_eq!(*object, expected);
        Ok(netid)
    }

    #[test]
    fn an_annotation_changes_the_network_and_goes() {
        // kubernetes.md K122, section 6.1
        assert_eq!(red("global", &[]), Ok(0));
        assert_eq!(red("join:blue", &[("blue", 30)]), Ok(30));
        assert_eq!(red("join:blue", &[("blue", 0)]), Ok(0));
        assert_eq!(red("isolate", &[("blue", 30)]), Ok(20), "it is alone with its ID");
        let own = red("isolate", &[("blue", 20)]).unwrap();
        assert!(own >= 10 && own != 20, "{own}");
    }

    #[test]
    fn what_cannot_be_done_keeps_its_annotation_and_is_named() {
        // kubernetes.md K122
        for (change, with, reason) in [
            ("join:green", &[("blue", 30)][..], "no such NetNamespace"),
            ("join:", &[], "no such NetNamespace"),
            ("share", &[], "none of global"),
        ] {
            let refused = red(change, with).unwrap_err();
            assert!(refused.contains(reason) && refused.contains(change), "{refused}");
        }
        for change in ["isolate", "join:red"] {
            let tenants = [tenant("default", 0, Some(change)), tenant("red", 20, None)];
            let plan = planned(IsolationMode::Multitenant, &tenants, &["default", "red"]);
            assert!(plan.writes.is_empty() && plan.refused.len() == 1, "{change}: {plan:?}");
        }
    }

    #[test]
    fn where_policies_isolate_no_network_is_changed() {
        // kubernetes.md K122, section 6.3
        for change in ["global", "join:blue", "isolate"] {
            let tenants = [tenant("red", 20, Some(change)), tenant("blue", 30, None)];
            let plan = planned(IsolationMode::NetworkPolicy, &tenants, &["red", "blue"]);
            assert!(plan.writes.is_empty() && plan.refused.len() == 1, "{change}: {plan:?}");
        }
    }

    #[test]
    fn namespaces_whose_names_lead_to_one_id_get_two() {
        // kubernetes.md K121
        let mut first = BTreeMap::new();
        let names = (0_u32..).find_map(|number| {
            let name = format!("project-{number}");
            let netid = Ids::default().unused(&Namespace::new(&*name).unwrap()).unwrap();
            first.insert(netid, name.clone()).map(|other| [other, name])
        });
        let names = names.unwrap();
        let plan = planned(IsolationMode::Multitenant, &[], &[&names[0], &names[1]]);
        let ids: Vec<&Value> = plan
            .writes
            .iter()
            .map(|write| match write {
                Write::Create(_, object) => &object["netid"],
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(ids.len() == 2 && ids[0] != ids[1], "{plan:?}");
    }

    #[test]
    fn namespaces_get_tenants_and_tenants_go_with_their_namespaces() {
        let unreadable = Kind::NetNamespace.object("odd", json!({ "netid": "x" }));
        let tenants = [tenant("old", 20, None), tenant("red", 30, None), unreadable];
        let mut names = namespaces(&["default", "red", "blue", "odd"]);
        names.insert("ending".to_owned(), true);
        let plan = plan(IsolationMode::Multitenant, &tenants, &names);
        let [Write::Delete(_, old), Write::Create(_, blue), Write::Create(_, default)] = &plan.writes[..]
        else {
            panic!("{plan:?}");
        };
        assert_eq!(
            (name_of(old), name_of(blue), name_of(default)),
            (Some("old"), Some("blue"), Some("default"))
        );
        assert_eq!(default["netid"], 0);
        let netid = blue["netid"].as_u64().unwrap();
        assert!(netid >= 10 && ![20, 30].contains(&netid), "{netid}");
        assert!(plan.refused.first().unwrap().contains("NetNamespace odd cannot be used"), "{plan:?}");
        assert_eq!(planned(IsolationMode::Subnet, &tenants, &["red"]), Plan::default());
    }
}
