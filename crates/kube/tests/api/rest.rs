//! What the test server does like a real API server, request by request (kubernetes.md section 7.1).

use std::time::Duration;

use russet_kube::testing::Server;
use russet_kube::{Answer, Client, Failure, Request, SILENCE, Verb};
use serde_json::{Value, json};

use crate::client;

const GROUP: &str = "crd.projectcalico.org";

/// A cluster with Calico's resource definitions.
struct Cluster {
    server: Server,
    client: Client,
}

fn request(verb: Verb, path: &str, body: &Value) -> Request {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(key, value)| (&*String::leak(key.to_owned()), value.to_owned())).collect();
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let segments = path.split('/').map(str::to_owned).collect();
    let deadline = Duration::from_secs(5);
    Request { operation: path.to_owned(), verb, segments, query, body, deadline, limit_bytes: 1 << 20 }
}

impl Cluster {
    fn new() -> Self {
        let server = Server::start();
        server.install(GROUP);
        let client = client(&server);
        Self { server, client }
    }

    async fn ask(&self, verb: Verb, path: &str, body: Value) -> Result<Value, Failure> {
        let answer: Answer = self.client.request(&request(verb, path, &body)).await?;
        Ok(serde_json::from_slice(&answer.body).unwrap())
    }

    /// Code, reason and the first named member of a refusal.
    async fn refusal(&self, verb: Verb, path: &str, body: Value) -> (u16, String, String) {
        let failure = self.ask(verb, path, body).await.unwrap_err();
        let field = failure.fields.first().cloned().unwrap_or_default();
        (failure.code.unwrap(), failure.reason.as_deref().unwrap_or_default().to_owned(), field)
    }

    async fn handle(&self) -> Value {
        self.ask(Verb::Create, HANDLES, handle("net.a")).await.unwrap()
    }
}

const HANDLES: &str = "apis/crd.projectcalico.org/v1/ipamhandles";
const HANDLE: &str = "apis/crd.projectcalico.org/v1/ipamhandles/net.a";
const BLOCKS: &str = "apis/crd.projectcalico.org/v1/ipamblocks";

fn handle(name: &str) -> Value {
    json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle", "metadata": { "name": name },
        "spec": { "handleID": name, "block": { "10.1.0.16/29": 1 }, "deleted": false } })
}

fn refused(code: u16, reason: &str, field: &str) -> (u16, String, String) {
    (code, reason.to_owned(), field.to_owned())
}

#[tokio::test]
async fn replacements_are_guarded_by_revision_and_uid() {
    // kubernetes.md K01 and K02
    let cluster = Cluster::new();
    let stored = cluster.handle().await;
    let same = cluster.ask(Verb::Replace, HANDLE, stored.clone()).await.unwrap();
    assert_eq!(same, stored, "an equal object keeps its revision");
    let with = |member: &str, value: Value| {
        let mut object = stored.clone();
        object["metadata"][member] = value;
        object["spec"]["block"] = json!({});
        object
    };
    let conflict = refused(409, "Conflict", "");
    assert_eq!(cluster.refusal(Verb::Replace, HANDLE, with("uid", json!("other"))).await, conflict);
    let without = refused(422, "Invalid", "metadata.resourceVersion");
    assert_eq!(cluster.refusal(Verb::Replace, HANDLE, with("resourceVersion", Value::Null)).await, without);
    let changed = cluster.ask(Verb::Replace, HANDLE, with("labels", json!({}))).await.unwrap();
    assert_ne!(changed["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"]);
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(cluster.refusal(Verb::Replace, HANDLE, stored.clone()).await, conflict);
    cluster.server.put(json!({ "kind": "Node", "metadata": { "name": "n" } }));
    let node = json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "name": "n", "annotations": { "a": "b" } } });
    cluster.ask(Verb::Replace, "api/v1/nodes/n/status", node).await.unwrap();
    assert_eq!(cluster.server.annotation("Node", "", "n", "a").as_deref(), Some("b"), "unconditionally");
}

#[tokio::test]
async fn removals_are_guarded_by_revision_and_uid() {
    // kubernetes.md K03
    let cluster = Cluster::new();
    let stored = cluster.handle().await;
    let options =
        |uid: &str, revision: &str| json!({ "preconditions": { "uid": uid, "resourceVersion": revision } });
    let text = |name: &str| stored["metadata"][name].as_str().unwrap().to_owned();
    let (uid, revision) = (text("uid"), text("resourceVersion"));
    for (wrong, named) in [(options("x", &revision), "UID"), (options(&uid, "1000"), "ResourceVersion")] {
        let failure = cluster.ask(Verb::Delete, HANDLE, wrong).await.unwrap_err();
        assert!(failure.code == Some(409) && failure.error.to_string().contains(named), "{}", failure.error);
    }
    let done = cluster.ask(Verb::Delete, HANDLE, options(&uid, &revision)).await.unwrap();
    assert_eq!((&done["kind"], &done["status"]), (&json!("Status"), &json!("Success")));
    assert_eq!(
        cluster.refusal(Verb::Delete, HANDLE, options(&uid, &revision)).await,
        refused(404, "NotFound", "")
    );
}

#[tokio::test]
async fn names_and_required_members_are_checked() {
    // kubernetes.md K04 and K09
    let cluster = Cluster::new();
    cluster.handle().await;
    assert_eq!(
        cluster.refusal(Verb::Create, HANDLES, handle("net.a")).await,
        refused(409, "AlreadyExists", "")
    );
    for name in ["Abc", "my_net.x", "-a", "a."] {
        let invalid = refused(422, "Invalid", "metadata.name");
        assert_eq!(cluster.refusal(Verb::Create, HANDLES, handle(name)).await, invalid, "{name}");
    }
    let block = |spec: Value| json!({ "kind": "IPAMBlock", "metadata": { "name": "b" }, "spec": spec });
    let whole = json!({ "cidr": "10.1.0.0/30", "strictAffinity": false, "allocations": [null, 0], "unallocated": [0], "attributes": [{}], "affinity": null });
    for member in ["strictAffinity", "attributes"] {
        let mut spec = whole.clone();
        spec[member] = Value::Null;
        let invalid = refused(422, "Invalid", &format!("spec.{member}"));
        assert_eq!(cluster.refusal(Verb::Create, BLOCKS, block(spec)).await, invalid);
    }
    let mut spec = whole.clone();
    spec["attributes"] = json!([null]);
    assert_eq!(cluster.refusal(Verb::Create, BLOCKS, block(spec)).await.0, 422);
    let stored = cluster.ask(Verb::Create, BLOCKS, block(whole)).await.unwrap();
    assert_eq!((&stored["spec"]["allocations"], stored["spec"].get("affinity")), (&json!([null, 0]), None));
}

#[tokio::test]
async fn members_that_a_schema_lacks_are_dropped_with_a_warning() {
    // kubernetes.md K08
    let cluster = Cluster::new();
    cluster.server.lack("ipamhandles", "later");
    let mut object = handle("net.a");
    object["spec"]["later"] = json!(1);
    let answer = cluster.client.request(&request(Verb::Create, HANDLES, &object)).await.unwrap();
    assert_eq!(answer.warnings, ["299 - \"unknown field \\\"spec.later\\\"\""]);
    let stored: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(stored["spec"].get("later"), None);
}

#[tokio::test]
async fn patches_are_for_core_kinds_and_their_status() {
    // kubernetes.md K05, K07 and K14
    let cluster = Cluster::new();
    cluster.handle().await;
    let patch = json!({ "metadata": { "labels": { "a": "b" } } });
    assert_eq!(cluster.refusal(Verb::StrategicMerge, HANDLE, patch).await.0, 415);
    cluster.server.put(
        json!({ "kind": "Pod", "metadata": { "name": "p", "namespace": "shop", "uid": "u" }, "spec": {} }),
    );
    let status = "api/v1/namespaces/shop/pods/p/status";
    let wrong = |member: &str| json!({ "metadata": { member: "9999", "annotations": { "a": "b" } } });
    let other = refused(422, "Invalid", "metadata.uid");
    assert_eq!(cluster.refusal(Verb::StrategicMerge, status, wrong("uid")).await, other);
    let conflict = refused(409, "Conflict", "");
    assert_eq!(cluster.refusal(Verb::StrategicMerge, status, wrong("resourceVersion")).await, conflict);
    let patch = json!({ "metadata": { "uid": "u", "annotations": { "a": "b" } }, "spec": { "taints": [1] } });
    let once = cluster.ask(Verb::StrategicMerge, status, patch.clone()).await.unwrap();
    assert_eq!(once["spec"], json!({}), "the status subresource leaves the spec");
    for unchanging in [json!({ "metadata": {} }), patch] {
        assert_eq!(cluster.ask(Verb::StrategicMerge, status, unchanging).await.unwrap(), once);
    }
    let removal = json!({ "metadata": { "annotations": { "a": null } } });
    let emptied = cluster.ask(Verb::StrategicMerge, status, removal).await.unwrap();
    assert_eq!(emptied["metadata"]["annotations"], json!({}));
}

#[tokio::test]
async fn lists_are_pages_of_one_snapshot() {
    // kubernetes.md K13
    let cluster = Cluster::new();
    for n in 0..5 {
        cluster.ask(Verb::Create, HANDLES, handle(&format!("net.{n}"))).await.unwrap();
    }
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let list = async |query: &str| cluster.ask(Verb::Read, &format!("{HANDLES}?{query}"), Value::Null).await;
    assert_eq!(names(&list("resourceVersion=0&limit=1").await.unwrap()).len(), 5, "the cache has no pages");
    let first = list("limit=3").await.unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    cluster.ask(Verb::Delete, &format!("{HANDLES}/net.4"), json!({})).await.unwrap();
    cluster.ask(Verb::Create, HANDLES, handle("net.5")).await.unwrap();
    let second = list(&format!("limit=3&continue={token}")).await.unwrap();
    assert_eq!([names(&first), names(&second)].concat(), ["net.0", "net.1", "net.2", "net.3", "net.4"]);
    assert_eq!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    let code = async |query: &str| list(query).await.unwrap_err().code.unwrap();
    assert_eq!(code("resourceVersion=0&resourceVersionMatch=Exact").await, 422);
    assert_eq!(code("resourceVersionMatch=NotOlderThan").await, 422);
    assert_eq!(code(&format!("resourceVersion=0&continue={token}")).await, 400);
    assert_eq!(code("fieldSelector=spec.node=x").await, 400);
    let selected = list("fieldSelector=metadata.name=net.1").await.unwrap();
    assert_eq!(names(&selected), ["net.1"]);
}

#[tokio::test]
async fn watches_begin_where_they_are_asked_to() {
    // kubernetes.md K10 to K12
    let cluster = Cluster::new();
    cluster.handle().await;
    let open = async |query: &str| {
        let request = request(
            Verb::Read,
            &format!("{HANDLES}?watch=true&allowWatchBookmarks=true&{query}"),
            &Value::Null,
        );
        cluster.client.follow(&request, Duration::from_secs(300), SILENCE).await
    };
    let next = async |lines: &mut russet_kube::Lines| -> Value {
        serde_json::from_slice(&lines.next().await.unwrap()).unwrap()
    };
    let streamed = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut lines = open(streamed).await.unwrap();
    assert_eq!(next(&mut lines).await["type"], "ADDED");
    let end = next(&mut lines).await;
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    cluster.ask(Verb::Delete, HANDLE, json!({})).await.unwrap();
    assert_eq!(next(&mut lines).await["type"], "DELETED");
    assert_eq!(open("sendInitialEvents=true").await.err().unwrap().code, Some(422));
    // A watch from the future stays silent, although objects change.
    let mut future = open("resourceVersion=1000").await.unwrap();
    cluster.handle().await;
    cluster.server.bookmark();
    assert!(tokio::time::timeout(Duration::from_millis(100), future.next()).await.is_err());
    cluster.server.forget_history();
    let mut old = open("resourceVersion=1").await.unwrap();
    let error = next(&mut old).await;
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(old.next().await.is_err(), "and the server ends it");
    cluster.server.refuse_watch_lists();
    let mut refused = open(streamed).await.unwrap();
    assert_eq!(next(&mut refused).await["object"]["code"], 500);
}

#[tokio::test]
async fn an_unknown_resource_is_no_page() {
    // kubernetes.md K17
    let cluster = Cluster::new();
    for path in ["apis/crd.projectcalico.org/v1/nothings", "apis/projectcalico.org/v3/ippools"] {
        let failure = cluster.ask(Verb::Read, path, Value::Null).await.unwrap_err();
        assert_eq!((failure.code, failure.reason), (Some(404), None), "{path}");
    }
    let object = cluster.ask(Verb::Read, HANDLE, Value::Null).await.unwrap_err();
    assert_eq!(object.reason.as_deref(), Some("NotFound"), "a missing object is something else");
}
