//! The watch of nodes (flannel.md section 5.2, step 3): what it requests, and what only the test server can do. The rest is in `conformance`.

use std::time::Duration;

use russet_kube::testing::Server;
use russet_kube::{Client, KubeError, Kubernetes, Node, NodeEvent, NodeWatch};

use crate::{LIMIT, client, node};

pub async fn next(watch: &mut Box<dyn NodeWatch>) -> NodeEvent {
    tokio::time::timeout(LIMIT, watch.next()).await.unwrap().unwrap()
}

pub fn names(nodes: &[Node]) -> Vec<&str> {
    nodes.iter().map(|node| node.metadata.name.as_str()).collect()
}

pub async fn changed(watch: &mut Box<dyn NodeWatch>) -> Node {
    match next(watch).await {
        NodeEvent::Changed(node) => node,
        other => panic!("{other:?}"),
    }
}

pub async fn snapshot(watch: &mut Box<dyn NodeWatch>) -> Vec<Node> {
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
    assert_eq!(server.seen()[0].path, "/api/v1/nodes?limit=500&resourceVersion=0");
    assert!(opened(&server)[0].contains("allowWatchBookmarks=true"));
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
async fn a_new_list_comes_in_pages_and_not_from_a_cache_that_may_be_older() {
    let server = Server::start();
    for number in 0..1201 {
        server.put(node(&format!("n{number:04}"), "10.1.0.0/24"));
    }
    let mut watch = client(&server).watch_nodes().await.unwrap();
    snapshot(&mut watch).await;
    server.forget_history();
    snapshot(&mut watch).await;
    let lists = server.seen().into_iter().map(|seen| seen.path).filter(|path| path.contains("limit="));
    let lists: Vec<String> = lists.skip(1).collect();
    assert_eq!(lists.len(), 3, "{lists:?}");
    assert_eq!(lists[0], "/api/v1/nodes?limit=500");
    assert!(lists[1..].iter().all(|path| path.contains("continue=")), "{lists:?}");
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
    // A request is sent once more after a 401.
    server.fail_next(2, 401);
    server.end_watches();
    let refused = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
    assert!(matches!(refused, Err(KubeError::Unauthorized(_))), "{refused:?}");
    server.put(node("n3", "10.1.2.0/24"));
    assert_eq!(changed(&mut watch).await.metadata.name, "n3");
}
