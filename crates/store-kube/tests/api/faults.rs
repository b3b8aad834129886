//! Faults of the API server: what watches, the allocator and the choice of the group do while it is
//! away, behind, or refuses (kubernetes.md section 7.4).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use russet_kube::testing::{Seen, Server};
use russet_kube::{Source, Verb};
use russet_model::{Key, Prefix, ResourceKind};
use russet_store::{Event, Step, Store, StoreError, Watch};
use russet_store_kube::{Group, KubeStore, Pauses, Settings};
use serde_json::json;

use crate::bench::{Bench, count, handle, next, node, within};
use crate::subject::{PAUSES, settings};
use crate::watches::knows_cluster;

const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// A bench whose watches have these pauses.
fn with_pauses(pauses: Pauses) -> Bench {
    Bench::with(Group::V1, |settings| Settings { pauses, ..settings })
}

/// The watches of handles that were opened at a revision, with the time of each.
fn opened_at(server: &Server, revision: u64) -> Vec<Instant> {
    let wanted = format!("&resourceVersion={revision}&");
    let is_it = |seen: &&Seen| seen.path.contains("watch=true") && seen.path.contains(&wanted);
    server.seen().iter().filter(is_it).map(|seen| seen.at).collect()
}

async fn until(is_so: impl Fn() -> bool) {
    let looked = async {
        while !is_so() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    };
    within(looked).await;
}

async fn follow(bench: &Bench) -> Box<dyn Watch> {
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Snapshot(_)));
    watch
}

async fn create(bench: &Bench, name: &str) {
    bench.one(Step::create(handle(name), count(1))).await.unwrap();
}

#[tokio::test]
async fn a_server_that_fails_is_asked_less_and_less_often() {
    // kubernetes.md K65
    let pauses =
        Pauses { failure_min: Duration::from_millis(40), failure_max: Duration::from_millis(640), ..PAUSES };
    for code in [500, 502, 503] {
        let bench = with_pauses(pauses);
        bench.server.refuse_watch_lists();
        let mut watch = follow(&bench).await;
        knows_cluster(&bench).await;
        until(|| bench.server.seen().iter().any(|seen| seen.path.ends_with("limit=1"))).await;
        let since = bench.server.seen().len();
        bench.server.fail_next(7, code);
        bench.server.end_watches();
        create_when_back(&bench, "net.a", since).await;
        assert!(matches!(next(&mut watch).await, Event::Put(_)));
        let mut asked: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
        for seen in &bench.server.seen()[since..] {
            let path = seen.path.split('?').next().unwrap().to_owned();
            asked.entry(format!("{} {path}", seen.method)).or_default().push(seen.at);
        }
        let watches: Vec<Instant> =
            asked.into_iter().find(|(request, _)| request.ends_with("/ipamhandles")).unwrap().1;
        let gaps: Vec<Duration> = watches.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (failures, gap) in gaps.iter().take(7).enumerate() {
            let least = pauses.failure_max.min(pauses.failure_min * 2_u32.pow(failures as u32)) / 2;
            assert!(*gap >= least, "{code}: pause {failures} of {gaps:?}");
        }
    }
    let Pauses { failure_min, failure_max, .. } = Pauses::default();
    assert!(failure_max.min(failure_min * 2_u32.pow(5)) / 2 >= Duration::from_secs(1), "after five failures");
}

/// Creates a handle once the server has answered seven requests with an error.
async fn create_when_back(bench: &Bench, name: &str, since: usize) {
    until(|| bench.server.seen().len() >= since + 8).await;
    create(bench, name).await;
}

#[tokio::test]
async fn a_read_is_repeated_at_most_once_a_second_after_five_failures() {
    // kubernetes.md K65
    let bench = Bench::new();
    bench.store.group().await.unwrap();
    let since = bench.server.seen().len();
    bench.server.fail_next(1000, 503);
    let error = bench.store.get(&handle("net.a")).await.unwrap_err();
    assert!(error.retryable(), "{error}");
    let seen = bench.server.seen().split_off(since);
    let late: Vec<Duration> = seen.windows(2).skip(4).map(|pair| pair[1].at - pair[0].at).collect();
    assert!(!late.is_empty() && late.iter().all(|gap| *gap >= Duration::from_secs(1)), "{late:?}");
}

#[tokio::test]
async fn a_forgotten_revision_costs_one_list_whose_differences_are_reported() {
    // kubernetes.md K66
    for is_event in [true, false] {
        let bench = Bench::new();
        for name in ["net.a", "net.b"] {
            create(&bench, name).await;
        }
        let mut watch = follow(&bench).await;
        knows_cluster(&bench).await;
        let since = bench.server.seen().len();
        if is_event {
            bench.server.delete(&format!("IPAMHandle.{}", bench.group), "", "net.a");
            bench.server.forget_history();
        } else {
            bench.server.fail_next(1, 410);
            bench.server.end_watches();
        }
        if is_event {
            assert!(matches!(next(&mut watch).await, Event::Deleted { key, .. } if key == handle("net.a")));
        }
        let is_list = |seen: &&Seen| seen.path.contains("/ipamhandles?limit=500");
        until(|| bench.server.seen()[since..].iter().any(|seen| is_list(&seen))).await;
        create(&bench, "net.c").await;
        let event = next(&mut watch).await;
        assert!(matches!(&event, Event::Put(record) if record.key == handle("net.c")), "no other: {event:?}");
        assert_eq!(bench.server.seen()[since..].iter().filter(is_list).count(), 1, "event: {is_event}");
    }
}

#[tokio::test]
async fn a_silent_watch_is_continued_where_it_was() {
    // kubernetes.md K67
    let bench = with_pauses(Pauses { silence: Duration::from_millis(300), ..PAUSES });
    let mut watch = follow(&bench).await;
    create(&bench, "net.a").await;
    next(&mut watch).await;
    let known = bench.server.revision();
    until(|| !opened_at(&bench.server, known).is_empty()).await;
    create(&bench, "net.b").await;
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.b")));
    assert_eq!(Pauses::default().silence, Duration::from_secs(90));
}

#[tokio::test]
async fn half_a_line_is_discarded_and_a_large_event_is_read() {
    // kubernetes.md K67
    let bench = Bench::new();
    let mut watch = follow(&bench).await;
    create(&bench, "net.a").await;
    next(&mut watch).await;
    let known = bench.server.revision();
    bench.server.send_text(r#"{"type":"DELETED","object":{"kind":"IPAMHandle","metadata":{"name":"net.a""#);
    bench.server.end_watches();
    until(|| !opened_at(&bench.server, known).is_empty()).await;
    let mut object = bench.object("IPAMHandle", "net.a").unwrap();
    object["metadata"]["annotations"]["x/y"] = json!("x".repeat(2 << 20));
    bench.server.put(object);
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.a")));
}

#[tokio::test]
async fn a_list_from_an_old_cache_takes_nothing_back() {
    // kubernetes.md K70 and K75
    let bench = Bench::new();
    create(&bench, "net.a").await;
    bench.server.freeze_cache();
    create(&bench, "net.b").await;
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    let Event::Snapshot(snapshot) = next(&mut watch).await else { panic!("the first event is the snapshot") };
    assert_eq!(snapshot.records.len(), 2);
    bench.server.forget_history();
    create(&bench, "net.c").await;
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.c")));
    assert_eq!(bench.store.list(&Prefix::handles()).await.unwrap().records.len(), 3);
    assert!(bench.store.holds(&Prefix::handles()).await.unwrap());
    let from_cache = |seen: &&Seen| seen.path.contains("resourceVersion=0");
    assert_eq!(bench.server.seen().iter().filter(from_cache).count(), 0);
}

#[tokio::test]
async fn what_an_old_cache_says_is_written_under_its_guard_only() {
    // kubernetes.md K70 and K75: the labels of a node's affinities are the only list at revision 0
    let bench = Bench::new();
    let affinity = Key::affinity(&node("node-a"), "10.1.0.16/29".parse().unwrap());
    let record = |state: &str| format!(r#"{{"state":"{state}","deleted":false}}"#);
    bench.one(Step::create(affinity.clone(), record("pending"))).await.unwrap();
    let name = "node-a-10-1-0-16-29";
    let mut object = bench.object("BlockAffinity", name).unwrap();
    object["metadata"]["labels"] = json!({});
    bench.server.put(object.clone());
    bench.server.freeze_cache();
    object["spec"]["state"] = json!("confirmed");
    bench.server.put(object);
    assert_eq!(bench.other().label_affinities(&node("node-a")).await.unwrap(), 0, "another was faster");
    assert_eq!(bench.object("BlockAffinity", name).unwrap()["spec"]["state"], "confirmed");
}

/// Replaces a token as kubelet does: a new directory, and a link to it that is renamed.
fn swap_token(directory: &Path, name: &str, token: &str) {
    std::fs::create_dir(directory.join(name)).unwrap();
    std::fs::write(directory.join(name).join("token"), token).unwrap();
    std::os::unix::fs::symlink(name, directory.join("..data_tmp")).unwrap();
    std::fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
}

#[tokio::test]
async fn a_replaced_token_is_used_by_the_next_request_and_by_watches() {
    // kubernetes.md K72
    let server = Server::start();
    server.install("crd.projectcalico.org");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    let token = directory.path().join("token");
    swap_token(directory.path(), "..1", russet_kube::testing::TOKEN);
    std::os::unix::fs::symlink("..data/token", &token).unwrap();
    let text = server.kubeconfig();
    let named = format!("token: {:?}", russet_kube::testing::TOKEN);
    std::fs::write(&path, text.replace(&named, "tokenFile: token")).unwrap();
    let store = KubeStore::connect(settings(Source::kubeconfig(&path))).unwrap();
    let mut watch = store.watch(&Prefix::handles()).await.unwrap();
    next(&mut watch).await;
    let create = |name: &str| store.commit(vec![Step::create(handle(name), count(1))]);
    // By a swap of the directory, and by a rename of the file.
    swap_token(directory.path(), "..2", "second");
    server.set_token("second");
    server.end_watches();
    create("net.a").await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(_)));
    std::fs::write(directory.path().join("new"), "third").unwrap();
    std::fs::rename(directory.path().join("new"), &token).unwrap();
    server.set_token("third");
    server.end_watches();
    create("net.b").await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.b")));
}

#[tokio::test]
async fn five_hundred_agents_do_not_list_again_at_once() {
    // kubernetes.md K76
    const AGENTS: usize = 500;
    let bench = with_pauses(Pauses::default());
    let mut watches = Vec::new();
    for _ in 0..AGENTS {
        watches.push(follow(&bench).await);
    }
    create(&bench, "net.a").await;
    for watch in &mut watches {
        next(watch).await;
    }
    let since = bench.server.seen().len();
    bench.server.delete(&format!("IPAMHandle.{}", bench.group), "", "net.a");
    bench.server.forget_history();
    let begun = Instant::now();
    for watch in &mut watches {
        assert!(matches!(next(watch).await, Event::Deleted { .. }));
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let seen = bench.server.seen();
    let lists: Vec<Duration> = seen[since..]
        .iter()
        .filter(|seen| seen.path.contains("/ipamhandles?limit=500"))
        .map(|seen| seen.at.duration_since(begun))
        .collect();
    assert_eq!(lists.len(), AGENTS);
    let first = lists.iter().filter(|at| **at < Duration::from_secs(1)).count();
    // 28 are expected; 22 more are four standard deviations.
    assert!(first <= 50, "{first} lists in the first second");
}

/// A cluster that serves these groups, and the lock of each.
fn groups(served: &[(&str, bool)]) -> Server {
    let server = Server::start();
    for (group, ready) in served {
        server.install(group.split('/').next().unwrap());
        server.put(
            json!({ "apiVersion": group, "kind": "ClusterInformation", "metadata": { "name": "default" },
            "spec": { "datastoreReady": ready } }),
        );
    }
    server
}

#[tokio::test]
async fn the_group_is_the_one_that_the_cluster_uses() {
    // kubernetes.md K110
    let (v1, v3) = ("crd.projectcalico.org/v1", "projectcalico.org/v3");
    for (served, group) in [
        (&[(v1, true)][..], Group::V1),
        (&[(v3, true)], Group::V3),
        (&[(v1, true), (v3, true)], Group::V1),
        (&[(v1, false), (v3, true)], Group::V3),
        // Calico's aggregated API server shows the objects of the older group in the newer one.
        (&[(v1, false), (v3, false)], Group::V1),
    ] {
        let server = groups(served);
        let store = KubeStore::connect(settings(server.source())).unwrap();
        assert_eq!(store.group().await.unwrap(), group, "{served:?}");
    }
    let server = groups(&[(v3, true)]);
    let store = KubeStore::connect(settings(server.source())).unwrap();
    server.fail_next(1000, 503);
    let error = store.group().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "no guess: {error}");
    server.fail_next(0, 503);
    assert_eq!(store.group().await.unwrap(), Group::V3);
}

#[tokio::test]
async fn a_migration_that_is_rolled_back_leaves_the_older_group_in_use() {
    // kubernetes.md K112, section 1.14
    let (v1, v3) = ("crd.projectcalico.org/v1", "projectcalico.org/v3");
    let bench = Bench::new();
    let information = |group: &str, ready: bool| {
        bench.server.put(
            json!({ "apiVersion": group, "kind": "ClusterInformation", "metadata": { "name": "default" },
            "spec": { "datastoreReady": ready } }),
        );
    };
    information(v1, true);
    let mut watch = bench.store.watch(&Prefix::resources(ResourceKind::ClusterInformation)).await.unwrap();
    next(&mut watch).await;
    create(&bench, "net.a").await;
    bench.server.install("projectcalico.org");
    information(v3, false);
    information(v1, false);
    assert!(matches!(next(&mut watch).await, Event::Put(_)));
    // Its lock lets the process look at the groups again; both are locked.
    until_looked(&bench).await;
    bench.server.uninstall("projectcalico.org");
    information(v1, true);
    assert!(matches!(next(&mut watch).await, Event::Put(_)));
    create(&bench, "net.b").await;
    assert_eq!(bench.store.group().await.unwrap(), Group::V1);
    assert_eq!(bench.store.list(&Prefix::handles()).await.unwrap().records.len(), 2);
}

/// Waits until the store has looked at the newer group, which it does beside its requests.
async fn until_looked(bench: &Bench) {
    let since = bench.server.seen().len();
    let looked = async {
        while !bench.server.seen()[since..].iter().any(|seen| seen.path.contains("/projectcalico.org/v3/")) {
            bench.store.group().await.unwrap();
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    };
    within(looked).await;
}

#[tokio::test]
async fn a_resource_that_older_definitions_lack_is_empty() {
    // kubernetes.md section 1.2
    let bench = Bench::new();
    create(&bench, "net.a").await;
    bench.server.undefine("ipreservations");
    assert_eq!(bench.store.list(&Prefix::everything()).await.unwrap().records.len(), 1);
    assert!(bench.store.list(&Prefix::reservations()).await.unwrap().records.is_empty());
    assert!(!bench.store.holds(&Prefix::reservations()).await.unwrap());
    let mut watch = bench.store.watch(&Prefix::reservations()).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Snapshot(snapshot) if snapshot.records.is_empty()));
    // policy.md section 1.7: releases of Calico before 3.30 have no staged policies.
    for kind in [
        ResourceKind::StagedGlobalNetworkPolicy,
        ResourceKind::StagedKubernetesNetworkPolicy,
        ResourceKind::StagedNetworkPolicy,
    ] {
        let prefix = Prefix::resources(kind);
        assert!(bench.store.list(&prefix).await.unwrap().records.is_empty());
        bench.server.undefine(kind.plural());
        assert!(bench.store.list(&prefix).await.unwrap().records.is_empty());
        let mut watch = bench.store.watch(&prefix).await.unwrap();
        assert!(matches!(next(&mut watch).await, Event::Snapshot(snapshot) if snapshot.records.is_empty()));
    }
    bench.server.undefine("ippools");
    let error = bench.store.list(&Prefix::pools()).await.unwrap_err();
    assert!(error.to_string().contains("does not serve"), "pools are needed: {error}");
    bench.server.uninstall(bench.group);
    bench.store.list(&Prefix::reservations()).await.unwrap_err();
}

#[tokio::test]
async fn nodes_are_counted_by_a_list_of_one() {
    // kubernetes.md section 4.2 item 2
    let bench = Bench::new();
    assert_eq!(bench.store.count_nodes().await.unwrap(), 0);
    for n in 0..7 {
        bench.server.put(json!({ "kind": "Node", "metadata": { "name": format!("node-{n}") } }));
    }
    assert_eq!(bench.store.count_nodes().await.unwrap(), 7);
    assert!(bench.server.seen().last().unwrap().path.ends_with("/nodes?limit=1"));
}

#[tokio::test]
async fn a_request_that_is_read_once_is_not_repeated() {
    let bench = Bench::new();
    let request = russet_kube::Request {
        operation: "get a handle".to_owned(),
        verb: Verb::ReadOnce,
        segments: ["api", "v1", "nodes"].map(str::to_owned).to_vec(),
        query: Vec::new(),
        body: Vec::new(),
        deadline: Duration::from_secs(5),
        limit_bytes: 1 << 20,
    };
    let client = bench.store.client();
    let mut contacts = client.contacts();
    bench.server.fail_next(1, 503);
    client.request(&request).await.unwrap_err();
    assert!(!contacts.has_changed().unwrap());
    client.request(&request).await.unwrap();
    assert!(contacts.has_changed().unwrap(), "the server answers again");
    contacts.mark_unchanged();
    client.request(&request).await.unwrap();
    assert!(!contacts.has_changed().unwrap(), "it was not away");
}
