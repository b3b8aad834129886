//! The watch of nodes (flannel.md section 5.2, step 3).

use std::time::Duration;

use russet_kube::{Kubernetes, NodeEvent, StatusPatch};

use super::{Subject, cases, client};
use crate::node;
use crate::watch::{changed, names, next, snapshot};

cases! {
    a_watch_sends_a_snapshot_and_then_changes
    a_change_between_list_and_watch_is_not_lost
    a_watch_that_ends_is_resumed_without_a_new_snapshot
    a_server_that_forgot_the_revision_sends_a_new_snapshot
    a_list_of_several_pages_is_one_snapshot
}

async fn a_watch_sends_a_snapshot_and_then_changes(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24")]);
    let client = client(subject);
    let mut watch = client.watch_nodes().await.unwrap();
    assert_eq!(names(&snapshot(&mut watch).await), ["n1"]);
    subject.create(&[node("n2", "10.1.1.0/24")]);
    assert_eq!(changed(&mut watch).await.metadata.name, "n2");
    client.patch_node_status("n1", &StatusPatch::of_annotations([("a", "b")])).await.unwrap();
    assert_eq!(changed(&mut watch).await.metadata.annotations["a"], "b");
    subject.delete("Node", "", "n2");
    let gone = next(&mut watch).await;
    assert!(matches!(&gone, NodeEvent::Deleted(node) if node.metadata.name == "n2"), "{gone:?}");
}

async fn a_change_between_list_and_watch_is_not_lost(subject: &dyn Subject) {
    let mut watch = client(subject).watch_nodes().await.unwrap();
    assert!(snapshot(&mut watch).await.is_empty());
    subject.create(&[node("n1", "10.1.0.0/24"), node("n2", "10.1.1.0/24")]);
    assert_eq!(changed(&mut watch).await.metadata.name, "n1");
    assert_eq!(changed(&mut watch).await.metadata.name, "n2");
}

async fn a_watch_that_ends_is_resumed_without_a_new_snapshot(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24")]);
    let mut watch = client(subject).watch_nodes().await.unwrap();
    snapshot(&mut watch).await;
    for (created, name) in [("10.1.1.0/24", "n2"), ("10.1.2.0/24", "n3"), ("10.1.3.0/24", "n4")] {
        subject.create(&[node(name, created)]);
        assert_eq!(changed(&mut watch).await.metadata.name, name);
        subject.end_watches().await;
    }
    subject.delete("Node", "", "n1");
    let gone = next(&mut watch).await;
    assert!(matches!(&gone, NodeEvent::Deleted(node) if node.metadata.name == "n1"), "{gone:?}");
}

/// kubernetes.md section 4.1: a revision that is too old.
async fn a_server_that_forgot_the_revision_sends_a_new_snapshot(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24"), node("n2", "10.1.1.0/24")]);
    let mut watch = client(subject).watch_nodes().await.unwrap();
    assert_eq!(snapshot(&mut watch).await.len(), 2);
    subject.delete("Node", "", "n1");
    subject.forget_history();
    assert_eq!(names(&snapshot(&mut watch).await), ["n2"]);
    subject.create(&[node("n3", "10.1.2.0/24")]);
    assert_eq!(changed(&mut watch).await.metadata.name, "n3");
}

/// The first list comes from the server's cache, in one piece, and the second in pages of 500.
async fn a_list_of_several_pages_is_one_snapshot(subject: &dyn Subject) {
    let nodes: Vec<_> = (0..1201).map(|number| node(&format!("n{number:04}"), "10.1.0.0/24")).collect();
    subject.create(&nodes);
    let mut watch = client(subject).watch_nodes().await.unwrap();
    assert_eq!(snapshot(&mut watch).await.len(), 1201);
    subject.forget_history();
    let again = tokio::time::timeout(Duration::from_secs(60), snapshot(&mut watch)).await.unwrap();
    assert_eq!(again.len(), 1201);
}
