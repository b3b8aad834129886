//! What calls put on the wire. What comes of them is in `conformance`.

use russet_kube::testing::Server;
use russet_kube::{Heartbeat, Kubernetes, StatusPatch};

use crate::{client, node, pod};

#[tokio::test]
async fn patches_are_strategic_and_go_to_the_status_on_the_connection_of_the_reads() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    server.put(pod("web-0"));
    let client = client(&server);
    client.pod("shop", "web-0").await.unwrap();
    let patch = StatusPatch::of_annotations([("a", "b")]);
    client.patch_pod_status("shop", "web-0", &patch).await.unwrap();
    client.patch_node_status("n1", &patch).await.unwrap();
    let seen = server.seen();
    let shown: Vec<(&str, &str)> =
        seen.iter().map(|seen| (seen.method.as_str(), seen.path.as_str())).collect();
    let paths = [
        "/api/v1/namespaces/shop/pods/web-0",
        "/api/v1/namespaces/shop/pods/web-0/status",
        "/api/v1/nodes/n1/status",
    ];
    assert_eq!(shown, [("GET", paths[0]), ("PATCH", paths[1]), ("PATCH", paths[2])]);
    assert!(
        seen[1..].iter().all(|seen| seen.content_type == "application/strategic-merge-patch+json"),
        "{seen:?}"
    );
    assert_eq!(server.connections(), 1, "one connection serves all");
}

#[tokio::test]
async fn concurrent_calls_get_their_own_answers() {
    let server = Server::start();
    for number in 0..40 {
        server.put(pod(&format!("web-{number}")));
    }
    let client = client(&server);
    let names: Vec<String> = (0..40).map(|number| format!("web-{number}")).collect();
    let tasks = tokio::task::LocalSet::new();
    let read = tasks.run_until(async {
        let asked = names.iter().cloned().map(|name| {
            let client = client.clone();
            tokio::task::spawn_local(async move { client.pod("shop", &name).await.unwrap().metadata.name })
        });
        let mut read = Vec::new();
        for task in asked.collect::<Vec<_>>() {
            read.push(task.await.unwrap());
        }
        read
    });
    assert_eq!(read.await, names);
    let opened = server.connections();
    for name in &names {
        client.pod("shop", name).await.unwrap();
    }
    assert_eq!(server.connections(), opened, "kept connections are used again");
}

#[tokio::test]
async fn each_renewal_of_an_agents_lease_sets_its_annotation_without_a_further_request() {
    let server = Server::start();
    let value = std::sync::Arc::new(std::sync::Mutex::new(None));
    let shown = std::sync::Arc::clone(&value);
    let beat = Heartbeat::new(client(&server), "n1")
        .with_annotation("russet.dev/health", move || shown.lock().unwrap().clone());
    let first = beat.renew(None).await.unwrap();
    assert_eq!(first.annotation("russet.dev/health"), None, "nothing is known yet");
    for text in ["one", "two"] {
        *value.lock().unwrap() = Some(text.to_owned());
        let (known, requests) = (beat.renew(None).await.unwrap(), server.seen().len());
        assert_eq!(known.annotation("russet.dev/health"), Some(text));
        beat.renew(Some(known)).await.unwrap();
        assert_eq!(server.seen().len(), requests + 1);
    }
}
