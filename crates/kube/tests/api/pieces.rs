//! Watches whose lists come object by object (kubernetes.md section 4.1).

use std::collections::BTreeSet;

use russet_kube::testing::Server;
use russet_kube::{Node, Piece, Pieces};

use crate::{LIMIT, client, node};

fn watch(server: &Server) -> Pieces<Node> {
    client(server).watch_objects::<Node>("v1", "nodes").in_pieces()
}

async fn next(watch: &mut Pieces<Node>) -> Piece<Node> {
    tokio::time::timeout(LIMIT, watch.advance()).await.unwrap().unwrap()
}

/// Names of the objects of a list, which begins with the next piece, or of the one after a list that
/// the server refused to stream.
async fn list(watch: &mut Pieces<Node>) -> BTreeSet<String> {
    assert_eq!(next(watch).await, Piece::Begin);
    let mut names = BTreeSet::new();
    loop {
        match next(watch).await {
            Piece::Changed(node) => assert!(names.insert(node.metadata.name)),
            Piece::Begin => assert!(names.is_empty()),
            Piece::Complete => return names,
            Piece::Deleted(node) => panic!("{node:?}"),
        }
    }
}

fn paths(server: &Server) -> Vec<String> {
    server.seen().into_iter().map(|seen| seen.path).collect()
}

#[tokio::test]
async fn a_list_is_streamed_and_changes_follow_on_the_same_connection() {
    let server = Server::start();
    let names: Vec<String> = (0..700).map(|number| format!("n{number:03}")).collect();
    names.iter().for_each(|name| server.put(node(name, "10.1.0.0/24")));
    let mut watch = watch(&server);
    assert_eq!(list(&mut watch).await, names.iter().cloned().collect());
    server.put(node("late", "10.1.1.0/24"));
    assert!(matches!(next(&mut watch).await, Piece::Changed(node) if node.metadata.name == "late"));
    server.delete("Node", "", "n000");
    assert!(matches!(next(&mut watch).await, Piece::Deleted(node) if node.metadata.name == "n000"));
    assert_eq!(paths(&server).len(), 1, "{:?}", paths(&server));
    // Resumed, not listed again.
    server.end_watches();
    server.put(node("later", "10.1.2.0/24"));
    assert!(matches!(next(&mut watch).await, Piece::Changed(node) if node.metadata.name == "later"));
    // The server has forgotten the revision.
    server.forget_history();
    assert_eq!(list(&mut watch).await.len(), 701);
    let lists = paths(&server).iter().filter(|path| path.contains("sendInitialEvents=true")).count();
    assert_eq!(lists, 2);
}

#[tokio::test]
async fn a_server_that_does_not_stream_lists_is_asked_for_pages() {
    let server = Server::start();
    server.refuse_watch_lists();
    (0..1201).for_each(|number| server.put(node(&format!("n{number:04}"), "10.1.0.0/24")));
    let mut watch = watch(&server);
    assert_eq!(list(&mut watch).await.len(), 1201);
    let pages: Vec<String> = paths(&server).into_iter().filter(|path| path.contains("limit=500")).collect();
    assert_eq!(pages.len(), 3, "{pages:?}");
    assert!(pages.iter().all(|path| !path.contains("resourceVersion=")), "{pages:?}");
    server.put(node("late", "10.1.1.0/24"));
    assert!(matches!(next(&mut watch).await, Piece::Changed(node) if node.metadata.name == "late"));
    // It is not asked again.
    server.forget_history();
    assert_eq!(list(&mut watch).await.len(), 1202);
    assert_eq!(paths(&server).iter().filter(|path| path.contains("sendInitialEvents")).count(), 1);
}
