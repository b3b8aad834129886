//! Changes of tenants in the simulated store, one at a time and concurrently.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use russet_model::openshift::{NetIdUsers, OpenshiftKey};
use russet_store::sim::{Faults, Rng, Sim};

use super::*;

fn name(text: &str) -> Namespace {
    Namespace::new(text).unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

fn tenants(sim: &Sim) -> Tenants {
    Tenants::new(Rc::new(sim.clone()))
}

/// Every namespace's ID. The ID's record must name every user.
fn checked(sim: &Sim) -> BTreeMap<Namespace, NetId> {
    let (mut ids, mut users) = (BTreeMap::new(), BTreeMap::new());
    for (key, record) in sim.records() {
        match parse_key(&key).unwrap() {
            OpenshiftKey::NetNamespace(namespace) => {
                ids.insert(namespace, NetNamespace::decode(&record.value).unwrap().netid);
            }
            OpenshiftKey::NetId(id) => {
                users.insert(id, NetIdUsers::decode(&record.value).unwrap().users);
            }
            other => panic!("{other:?}"),
        }
    }
    for (namespace, id) in ids.iter().filter(|(_, id)| !id.is_global()) {
        assert!(
            users.get(id).is_some_and(|users| users.contains(namespace)),
            "{id} does not name {namespace}"
        );
    }
    ids
}

#[test]
fn tenants_change_as_openshift_defines() {
    // cni-runtime.md section 4.4
    let sim = Sim::atomic(1);
    let tenants = tenants(&sim);
    let act = |namespace: &str, action: Action| run(tenants.act(&name(namespace), &action));
    let [a, b] = ["a", "b"].map(|namespace| act(namespace, Action::Create).unwrap().netid);
    assert!(a != b && a >= NetId::FIRST && b >= NetId::FIRST);
    assert!(act("default", Action::Create).unwrap().netid.is_global());
    assert!(matches!(act("a", Action::Create), Err(TenantError::Exists(_, id)) if id == a));
    // A tenant that is the only user of its ID is isolated already.
    assert_eq!(act("a", Action::Isolate).unwrap().netid, a);
    assert_eq!(act("b", Action::Join(name("a"))).unwrap().netid, a);
    assert_eq!(act("b", Action::Join(name("a"))).unwrap().netid, a);
    // The ID exists as long as it has a user.
    let fresh = act("a", Action::Isolate).unwrap().netid;
    assert!(fresh != a && act("b", Action::Isolate).unwrap().netid == a);
    assert!(act("b", Action::Global).unwrap().netid.is_global());
    assert!(!sim.records().contains_key(&netid_key(a)), "it has no user any more");
    assert!(act("a", Action::Join(name("default"))).unwrap().netid.is_global());
    assert!(!act("a", Action::Isolate).unwrap().netid.is_global());
    act("a", Action::Delete).unwrap();
    assert!(matches!(act("a", Action::Delete), Err(TenantError::Missing(_))));
    assert!(
        matches!(act("b", Action::Join(name("a"))), Err(TenantError::Missing(gone)) if gone == name("a"))
    );
    for refused in [Action::Isolate, Action::Delete, Action::Join(name("b"))] {
        assert!(matches!(act("default", refused), Err(TenantError::Default)));
    }
    assert_eq!(checked(&sim).len(), 2);
    assert_eq!(sim.records().len(), 2, "no record of an ID is left");
}

#[test]
fn with_policies_every_namespace_keeps_its_own_id() {
    // cni-runtime.md section 4.4
    let sim = Sim::atomic(1);
    let network = br#"{"network":"10.128.0.0/14","hostsubnetlength":9,"pluginName":"redhat/openshift-ovs-networkpolicy"}"#;
    run(sim.commit(vec![russet_store::Step::put(clusternetwork_key(), &network[..])])).unwrap();
    let tenants = tenants(&sim);
    run(tenants.act(&name("a"), &Action::Create)).unwrap();
    for refused in [Action::Isolate, Action::Global, Action::Join(name("b"))] {
        assert!(matches!(run(tenants.act(&name("a"), &refused)), Err(TenantError::Policies)));
    }
}

#[test]
fn two_names_that_start_at_the_same_id_get_different_ones() {
    let used = BTreeSet::from([change::free_id(&name("a"), 0, &BTreeSet::new()).unwrap()]);
    let next = change::free_id(&name("a"), 0, &used).unwrap();
    assert!(!used.contains(&next) && next >= NetId::FIRST);
}

#[test]
fn a_change_whose_answer_was_lost_is_recognised_in_the_store() {
    for fault in [russet_store::sim::Fault::LostReply, russet_store::sim::Fault::LostRequest] {
        let sim = Sim::atomic(1);
        let tenants = tenants(&sim);
        sim.script([fault]);
        let created = run(tenants.act(&name("a"), &Action::Create)).unwrap();
        assert_eq!(checked(&sim), BTreeMap::from([(name("a"), created.netid)]));
        sim.script([fault]);
        run(tenants.act(&name("a"), &Action::Delete)).unwrap();
        assert!(checked(&sim).is_empty());
    }
}

/// One node's operation in progress.
type OperationFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Polls operations in random order; an operation may crash at any await.
fn interleave(mut operations: Vec<OperationFuture<'_>>, rng: &mut Rng, crashes_per_thousand: u32) {
    while !operations.is_empty() {
        let index = rng.below(operations.len() as u64) as usize;
        let done = operations[index].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if done || rng.below(1000) < u64::from(crashes_per_thousand) {
            drop(operations.swap_remove(index));
        }
    }
}

/// Pairs of namespaces that start at the same ID.
fn colliding_names() -> Vec<Namespace> {
    let mut first: BTreeMap<NetId, Namespace> = BTreeMap::new();
    let mut colliding_names = Vec::new();
    for namespace in (0..40_000).map(|number| name(&format!("p{number}"))) {
        let id = change::free_id(&namespace, 0, &BTreeSet::new()).unwrap();
        match first.remove(&id) {
            Some(other) => colliding_names.extend([other, namespace]),
            None => drop(first.insert(id, namespace)),
        }
    }
    colliding_names.truncate(6);
    assert_eq!(colliding_names.len(), 6);
    colliding_names
}

#[test]
fn concurrent_creations_never_assign_one_id_twice() {
    let names = colliding_names();
    for seed in 0..200 {
        for sim in [Sim::atomic(seed), Sim::non_atomic(seed)] {
            sim.set_faults(Faults { conflict: 20, lost_reply: 50, lost_request: 50, ..Faults::default() });
            let stores: Vec<Tenants> = names.iter().map(|_| tenants(&sim)).collect();
            let operations = stores.iter().zip(&names).map(|(tenants, namespace)| -> OperationFuture<'_> {
                Box::pin(async move {
                    let _ = tenants.act(namespace, &Action::Create).await;
                })
            });
            interleave(operations.collect(), &mut Rng::new(seed), 5);
            let ids = checked(&sim);
            let distinct: BTreeSet<NetId> = ids.values().copied().collect();
            assert_eq!(distinct.len(), ids.len(), "seed {seed}: {ids:?}");
        }
    }
}

#[test]
fn after_concurrent_changes_only_joined_namespaces_share_an_id() {
    for seed in 0..300 {
        for sim in [Sim::atomic(seed), Sim::non_atomic(seed)] {
            let setup = tenants(&sim);
            for namespace in ["a", "b", "c", "d"] {
                run(setup.act(&name(namespace), &Action::Create)).unwrap();
            }
            sim.set_faults(Faults { conflict: 20, lost_reply: 50, lost_request: 50, ..Faults::default() });
            let mut rng = Rng::new(seed);
            // Joins only within {a, b} and within {c, d}: no ID may ever be used on both sides.
            let stores: Vec<Tenants> = (0..8).map(|_| tenants(&sim)).collect();
            let pick = |rng: &mut Rng| {
                let pair = [["a", "b"], ["c", "d"]][rng.below(2) as usize];
                let (who, other) = if rng.below(2) == 0 { (pair[0], pair[1]) } else { (pair[1], pair[0]) };
                let action = match rng.below(4) {
                    0 => Action::Isolate,
                    1 => Action::Delete,
                    2 => Action::Create,
                    _ => Action::Join(name(other)),
                };
                (name(who), action)
            };
            let picked: Vec<(Namespace, Action)> = stores.iter().map(|_| pick(&mut rng)).collect();
            let operations =
                stores.iter().zip(&picked).map(|(tenants, (who, action))| -> OperationFuture<'_> {
                    Box::pin(async move {
                        let _ = tenants.act(who, action).await;
                    })
                });
            interleave(operations.collect(), &mut rng, 5);
            let ids = checked(&sim);
            let side = |names: [&str; 2]| -> BTreeSet<NetId> {
                names.iter().filter_map(|namespace| ids.get(&name(namespace)).copied()).collect()
            };
            assert!(side(["a", "b"]).is_disjoint(&side(["c", "d"])), "seed {seed}: {picked:?} {ids:?}");
        }
    }
}
