//! The store's conformance suite (ARCHITECTURE.md, "The store"). Its parts about atomic commits and
//! leases are for engines that claim them. `cargo run -p russet-store-kube --example conformance`
//! runs it over any API server.

use russet_kube::testing::Server;
use russet_store::Claims;
use russet_store::conformance::{Subject, core};
use russet_store_kube::Group;

use crate::subject::OnServer;

fn fake(group: Group) -> OnServer {
    let server = Server::start();
    server.install(group.to_string().split('/').next().unwrap());
    OnServer::fake(server)
}

#[tokio::test]
async fn an_api_server_with_calicos_resource_definitions_passes_core() {
    core(async || fake(Group::V1)).await;
}

#[tokio::test]
async fn an_api_server_with_the_native_group_passes_core() {
    core(async || fake(Group::V3)).await;
}

#[tokio::test]
async fn an_api_server_without_streamed_lists_passes_core() {
    let without = async || {
        let subject = fake(Group::V1);
        subject.server.as_ref().unwrap().refuse_watch_lists();
        subject
    };
    core(without).await;
}

#[tokio::test]
async fn the_engine_claims_neither_atomic_commits_nor_leases() {
    let claims = fake(Group::V1).store().claims();
    assert_eq!(claims, Claims { atomic: false, ttl: false });
}
