//! What a server answers to parameters and bodies of other clients than ours (kubernetes.md section 4.1).

use serde_json::{Value, json};

use super::{Subject, cases};
use crate::{node, pod};

const NODES: &str = "/api/v1/nodes";
const STATUS: &str = "/api/v1/namespaces/shop/pods/web-0/status";

cases! {
    k05_patches_of_a_pods_status
    k06_a_patch_by_operations_whose_test_fails_changes_nothing
    k10_a_watch_from_a_forgotten_revision_is_one_error_of_410
    k11_a_watch_from_a_revision_of_the_future_is_silent
    k12_a_watch_list_sends_all_objects_and_a_bookmark_at_their_end
    k13_lists_with_revisions
    k14_a_patch_of_a_nodes_status_changes_no_taints
    k15_a_patch_of_a_nodes_taints_replaces_all_of_them
    k17_a_path_of_no_resource
    a_watch_gets_a_bookmark_before_the_end_that_it_asked_for
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// kubernetes.md K05
async fn k05_patches_of_a_pods_status(subject: &dyn Subject) {
    subject.create(&[pod("web-0")]);
    let raw = subject.raw();
    let other_uid = json!({ "metadata": { "uid": "00000000-0000-4000-8000-00000000dead" } });
    let refused = raw.patch(STATUS, &other_uid).await;
    assert_eq!((refused.code, refused.causes()), (422, vec!["metadata.uid".to_owned()]), "{}", refused.body);
    let other_revision = json!({ "metadata": { "resourceVersion": "1" } });
    assert_eq!(raw.patch(STATUS, &other_revision).await.code, 409);
    let before = revision(&subject.object("Pod", "shop", "web-0").unwrap());
    let nothing = raw.patch(STATUS, &json!({ "metadata": {} })).await;
    assert_eq!((nothing.code, revision(&nothing.json())), (200, before));
    let annotated = json!({ "metadata": { "annotations": { "a": "b" } } });
    let once = revision(&raw.patch(STATUS, &annotated).await.json());
    let twice = raw.patch(STATUS, &annotated).await;
    assert_eq!((twice.code, revision(&twice.json())), (200, once));
    let removed = raw.patch(STATUS, &json!({ "metadata": { "annotations": { "a": null } } })).await.json();
    assert!(removed["metadata"]["annotations"]["a"].is_null(), "{removed}");
}

/// kubernetes.md K06, and section 4.6: how a taint is removed.
async fn k06_a_patch_by_operations_whose_test_fails_changes_nothing(subject: &dyn Subject) {
    let mut tainted = node("n1", "10.1.0.0/24");
    tainted["spec"]["taints"] =
        json!([{ "key": "a", "effect": "NoSchedule" }, { "key": "b", "effect": "NoSchedule" }]);
    subject.create(&[tainted]);
    let (raw, path) = (subject.raw(), format!("{NODES}/n1"));
    let stored = || subject.object("Node", "", "n1").unwrap();
    // A real server adds one of its own to a new node.
    let keys = || -> Vec<String> {
        let taints = stored()["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let keys = taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned());
        keys.filter(|key| !key.starts_with("node.kubernetes.io/")).collect()
    };
    let operations = |revision: u64| {
        json!([{ "op": "test", "path": "/metadata/resourceVersion", "value": revision.to_string() },
            { "op": "test", "path": "/spec/taints/1/key", "value": "b" },
            { "op": "remove", "path": "/spec/taints/1" }])
    };
    let refused = raw.patch_by_operations(&path, &operations(1)).await;
    assert_eq!((refused.code, refused.causes()), (422, Vec::new()), "{}", refused.body);
    assert_eq!(keys(), ["a", "b"]);
    let patched = raw.patch_by_operations(&path, &operations(revision(&stored()))).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    assert_eq!(keys(), ["a"]);
}

/// kubernetes.md K10
async fn k10_a_watch_from_a_forgotten_revision_is_one_error_of_410(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24")]);
    let known = revision(&subject.object("Node", "", "n1").unwrap());
    subject.delete("Node", "", "n1");
    subject.forget_history();
    let path = format!("{NODES}?watch=true&resourceVersion={known}&timeoutSeconds=10");
    let events = subject.raw().get(&path).await.events();
    assert_eq!(events.len(), 1, "{events:?}");
    let (kind, status) = &events[0];
    assert_eq!(
        (kind.as_str(), &status["code"], &status["reason"]),
        ("ERROR", &json!(410), &json!("Expired"))
    );
}

/// kubernetes.md K11
async fn k11_a_watch_from_a_revision_of_the_future_is_silent(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24")]);
    let future = revision(&subject.object("Node", "", "n1").unwrap()) + 1_000_000;
    let path =
        format!("{NODES}?watch=true&allowWatchBookmarks=true&resourceVersion={future}&timeoutSeconds=3");
    let created = || subject.create(&[node("n2", "10.1.1.0/24")]);
    assert_eq!(subject.raw().get_while(&path, created).await.events(), []);
}

/// kubernetes.md K12
async fn k12_a_watch_list_sends_all_objects_and_a_bookmark_at_their_end(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24"), node("n2", "10.1.1.0/24")]);
    let raw = subject.raw();
    let path = format!("{NODES}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=1");
    let events = raw.get(&format!("{path}&resourceVersionMatch=NotOlderThan")).await.events();
    let shown: Vec<(&str, &str)> = events
        .iter()
        .map(|(kind, object)| (kind.as_str(), object["metadata"]["name"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(shown, [("ADDED", "n1"), ("ADDED", "n2"), ("BOOKMARK", "")]);
    assert_eq!(events[2].1["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert!(revision(&events[2].1) >= revision(&events[1].1));
    let refused = raw.get(&path).await;
    assert_eq!(
        (refused.code, refused.causes()),
        (422, vec!["resourceVersionMatch".to_owned()]),
        "{}",
        refused.body
    );
}

/// kubernetes.md K13
async fn k13_lists_with_revisions(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24"), node("n2", "10.1.1.0/24")]);
    let newest = revision(&subject.object("Node", "", "n2").unwrap());
    let raw = subject.raw();
    let cached = raw.get(&format!("{NODES}?resourceVersion=0&limit=1")).await.json();
    assert_eq!(cached["items"].as_array().unwrap().len(), 2);
    assert_eq!(cached["metadata"]["continue"].as_str().unwrap_or_default(), "");
    let page = raw.get(&format!("{NODES}?limit=1")).await.json();
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    let next = page["metadata"]["continue"].as_str().unwrap();
    assert_ne!(next, "");
    let both = raw.get(&format!("{NODES}?limit=1&continue={next}&resourceVersion={newest}")).await;
    assert_eq!(both.code, 400, "{}", both.body);
    let broken = raw.get(&format!("{NODES}?limit=1&continue=x")).await;
    assert_eq!(broken.code, 400, "{}", broken.body);
    let exact = raw.get(&format!("{NODES}?resourceVersion=0&resourceVersionMatch=Exact")).await;
    assert_eq!(
        (exact.code, exact.causes()),
        (422, vec!["resourceVersionMatch".to_owned()]),
        "{}",
        exact.body
    );
    let alone = raw.get(&format!("{NODES}?resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(alone.code, 422, "{}", alone.body);
    let future = newest + 1_000_000;
    let later = raw.get(&format!("{NODES}?resourceVersion={future}&resourceVersionMatch=NotOlderThan")).await;
    let status = later.json();
    assert_eq!((later.code, &status["reason"]), (504, &json!("Timeout")), "{status}");
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge", "{status}");
}

/// kubernetes.md K14
async fn k14_a_patch_of_a_nodes_status_changes_no_taints(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24")]);
    let before = subject.object("Node", "", "n1").unwrap();
    let taints = json!([{ "key": "example.org/x", "effect": "NoSchedule" }]);
    let patch = json!({ "metadata": { "annotations": { "a": "b" } }, "spec": { "taints": taints } });
    let answer = subject.raw().patch("/api/v1/nodes/n1/status", &patch).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let after = subject.object("Node", "", "n1").unwrap();
    assert_eq!((&after["spec"], &after["metadata"]["annotations"]["a"]), (&before["spec"], &json!("b")));
}

/// kubernetes.md K15: why the controller removes a taint by operations.
async fn k15_a_patch_of_a_nodes_taints_replaces_all_of_them(subject: &dyn Subject) {
    let taint = |key: &str| json!({ "key": key, "effect": "NoSchedule" });
    let mut tainted = node("n1", "10.1.0.0/24");
    tainted["spec"]["taints"] = json!([taint("a"), taint("b")]);
    subject.create(&[tainted]);
    let patch = json!({ "spec": { "taints": [taint("c")] } });
    let answer = subject.raw().patch(&format!("{NODES}/n1"), &patch).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    // That of a real server, which it adds to each new node, is gone, too.
    assert_eq!(subject.object("Node", "", "n1").unwrap()["spec"]["taints"], json!([taint("c")]));
}

/// kubernetes.md K17
async fn k17_a_path_of_no_resource(subject: &dyn Subject) {
    let raw = subject.raw();
    let no_group = raw.get("/apis/nosuch.example/v1/things").await;
    assert_eq!((no_group.code, no_group.body.as_str()), (404, "404 page not found\n"));
    let no_resource = raw.get("/api/v1/rumours").await;
    let status = no_resource.json();
    assert_eq!((no_resource.code, &status["reason"]), (404, &json!("NotFound")), "{status}");
    assert_eq!(status["message"], "the server could not find the requested resource");
}

/// A server sends it 2 s before the end if anything changed during the watch, and looks once a second whether it is time.
async fn a_watch_gets_a_bookmark_before_the_end_that_it_asked_for(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24"), node("n2", "10.1.1.0/24")]);
    let [older, newest] = ["n1", "n2"].map(|name| revision(&subject.object("Node", "", name).unwrap()));
    let raw = subject.raw();
    let path = |known| {
        format!("{NODES}?watch=true&allowWatchBookmarks=true&resourceVersion={known}&timeoutSeconds=3")
    };
    let (older, newest) = (path(older), path(newest));
    let (older, newest) = tokio::join!(raw.get(&older), raw.get(&newest));
    assert_eq!((objects(&older.events()).len(), objects(&newest.events()).len()), (1, 0));
    // A busy machine may let a watch end before the server has looked, or let the server look twice.
    for number in 3..8 {
        let known = revision(&subject.object("Node", "", &format!("n{}", number - 1)).unwrap());
        let created = node(&format!("n{number}"), "10.1.2.0/24");
        let events = raw.get_while(&path(known), || subject.create(&[created])).await.events();
        assert_eq!((kinds(&events)[0], objects(&events).len()), ("ADDED", 1), "{events:?}");
        if events.len() > 1 {
            return assert!(events.is_sorted_by_key(|(_, object)| revision(object)), "{events:?}");
        }
    }
    panic!("no watch got a bookmark");
}

/// The events that are not bookmarks.
fn objects(events: &[(String, Value)]) -> Vec<&Value> {
    events.iter().filter(|(kind, _)| kind != "BOOKMARK").map(|(_, object)| object).collect()
}

fn kinds(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(kind, _)| kind.as_str()).collect()
}
