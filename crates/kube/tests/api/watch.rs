//! The watch of nodes (flannel.md section 5.2, step 3).

use std::time::Duration;

use russet_kube::testing::Server;
use russet_kube::{Client, KubeError, Kubernetes, Node, NodeEvent, NodeWatch, StatusPatch};

use crate::{LIMIT, client, node};

async fn next(watch: &mut Box<dyn NodeWatch>) -> NodeEvent {
    tokio::time::timeout(LIMIT, watch.next()).await.unwrap().unwrap()
}

fn names(nodes: &[Node]) -> Vec<&str> {
    nodes.iter().map(|node| node.metadata.name.as_str()).collect()
}

async fn changed(watch: &mut Box<dyn NodeWatch>) -> Node {
    match next(watch).await {
        NodeEvent::Changed(node) => node,
        other => panic!("{other:?}"),
    }
}

async fn snapshot(watch: &mut Box<dyn NodeWatch>) -> Vec<Node> {
    match next(watch).await {
        NodeEvent::Snapshot(nodes) => nodes,
        other => panic!("{other:?}"),
    }
}

/// Requests that opened a watch, so far.
fn opened(server: &Server) -> Vec<String> {
    server.seen().into_iter().map(|seen| seen.path).filter(|path| path.contains("watch=true")).collect()
}

#[tokio::test]
async fn a_watch_sends_a_snapshot_and_then_changes() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    let client = client(&server);
    let mut watch = client.watch_nodes().await.unwrap();
    assert_eq!(names(&snapshot(&mut watch).await), ["n1"]);
    server.put(node("n2", "10.1.1.0/24"));
    assert_eq!(changed(&mut watch).await.metadata.name, "n2");
    client.patch_node_status("n1", &StatusPatch::of_annotations([("a", "b")])).await.unwrap();
    assert_eq!(changed(&mut watch).await.metadata.annotations["a"], "b");
    server.delete("Node", "", "n2");
    let gone = next(&mut watch).await;
    assert!(matches!(&gone, NodeEvent::Deleted(node) if node.metadata.name == "n2"), "{gone:?}");
    let first = &server.seen()[0].path;
    assert_eq!(first, "/api/v1/nodes?limit=500&resourceVersion=0");
    assert!(opened(&server)[0].contains("allowWatchBookmarks=true"));
}

#[tokio::test]
async fn a_change_between_list_and_watch_is_not_lost() {
    let server = Server::start();
    let mut watch = client(&server).watch_nodes().await.unwrap();
    assert!(snapshot(&mut watch).await.is_empty());
    server.put(node("n1", "10.1.0.0/24"));
    server.put(node("n2", "10.1.1.0/24"));
    assert_eq!(changed(&mut watch).await.metadata.name, "n1");
    assert_eq!(changed(&mut watch).await.metadata.name, "n2");
}

#[tokio::test]
async fn a_watch_that_the_server_ends_is_resumed() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    let mut watch = client(&server).watch_nodes().await.unwrap();
    snapshot(&mut watch).await;
    server.put(node("n2", "10.1.1.0/24"));
    changed(&mut watch).await;
    server.end_watches();
    server.put(node("n3", "10.1.2.0/24"));
    assert_eq!(changed(&mut watch).await.metadata.name, "n3");
    let lists = server.seen().iter().filter(|seen| seen.path.contains("limit=")).count();
    assert_eq!(lists, 1, "there was no need for a new list");
}

#[tokio::test]
async fn a_bookmark_moves_the_revision_at_which_a_watch_resumes() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    let mut watch = client(&server).watch_nodes().await.unwrap();
    snapshot(&mut watch).await;
    server.put(node("n2", "10.1.1.0/24"));
    changed(&mut watch).await;
    // Other objects change, of which this watch gets no events.
    for name in ["a", "b", "c"] {
        server.put(crate::pod(name));
    }
    server.bookmark();
    server.end_watches();
    while opened(&server).len() < 2 {
        let waited = tokio::time::timeout(Duration::from_millis(5), watch.next()).await;
        assert!(waited.is_err(), "a bookmark is no event: {waited:?}");
    }
    assert!(opened(&server)[1].contains("&resourceVersion=5&"), "n1 n2 a b c: {:?}", opened(&server));
}

#[tokio::test]
async fn a_server_that_forgot_the_revision_sends_a_new_snapshot() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    server.put(node("n2", "10.1.1.0/24"));
    let mut watch = client(&server).watch_nodes().await.unwrap();
    assert_eq!(snapshot(&mut watch).await.len(), 2);
    server.delete("Node", "", "n1");
    server.forget_history();
    assert_eq!(names(&snapshot(&mut watch).await), ["n2"]);
    let relisted = server.seen().into_iter().filter(|seen| seen.path.contains("limit=")).nth(1).unwrap();
    assert_eq!(
        relisted.path, "/api/v1/nodes?limit=500",
        "not from a cache that may be older than what we know"
    );
    server.put(node("n3", "10.1.2.0/24"));
    assert_eq!(changed(&mut watch).await.metadata.name, "n3");
}

#[tokio::test]
async fn a_list_of_several_pages_is_one_snapshot() {
    let server = Server::start();
    for number in 0..1201 {
        server.put(node(&format!("n{number:04}"), "10.1.0.0/24"));
    }
    let mut watch = client(&server).watch_nodes().await.unwrap();
    assert_eq!(snapshot(&mut watch).await.len(), 1201);
    server.forget_history();
    assert_eq!(snapshot(&mut watch).await.len(), 1201);
    let pages = server.seen().iter().filter(|seen| seen.path.contains("continue=")).count();
    assert_eq!(pages, 2);
}

#[tokio::test]
async fn dropping_a_pending_next_loses_nothing() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    let mut watch = client(&server).watch_nodes().await.unwrap();
    let mut known = Vec::new();
    for number in 0..50 {
        server.put(node(&format!("m{number:02}"), "10.1.0.0/24"));
        if number % 20 == 7 {
            server.end_watches();
        }
        for timeout_ms in [0, 1, 2] {
            if let Ok(event) = tokio::time::timeout(Duration::from_millis(timeout_ms), watch.next()).await {
                known.push(event.unwrap());
            }
        }
    }
    let mut reported = 0;
    loop {
        for event in known.drain(..) {
            reported += match event {
                NodeEvent::Snapshot(nodes) => nodes.len() - 1,
                NodeEvent::Changed(_) => 1,
                NodeEvent::Deleted(node) => panic!("{node:?}"),
            };
        }
        if reported == 50 {
            break;
        }
        known.push(next(&mut watch).await);
    }
}

#[tokio::test]
async fn a_watch_reports_that_the_server_refuses_it_and_resumes_later() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    let client = Client::with_deadline(server.source(), Duration::from_secs(3)).unwrap();
    let mut watch = client.watch_nodes().await.unwrap();
    server.fail_next(1, 403);
    let refused = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
    assert!(matches!(refused, Err(KubeError::Forbidden(_))), "{refused:?}");
    assert_eq!(snapshot(&mut watch).await.len(), 1);
    server.put(node("n2", "10.1.1.0/24"));
    changed(&mut watch).await;
    server.fail_next(1, 401);
    server.end_watches();
    let refused = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
    assert!(matches!(refused, Err(KubeError::Unauthorized(_))), "{refused:?}");
    server.put(node("n3", "10.1.2.0/24"));
    assert_eq!(changed(&mut watch).await.metadata.name, "n3");
}
