//! When the cluster's information is written: a member of etcd that answers every question of the v2 API the same way stands for the cluster.

use std::time::Duration;

use russet_store::Sim;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Whether information is written when every question is answered like this.
async fn written(status: &str, body: &str) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = EtcdSettings::for_endpoints(&listener.local_addr().unwrap().to_string()).unwrap();
    settings.deadline = Duration::from_millis(300);
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Etcd-Index: 7\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let serve = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut question = [0; 4096];
            let _ = stream.read(&mut question).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    };
    let store = Sim::atomic(1);
    tokio::select! {
        result = ensure_cluster_information(&store, Some(&settings)) => result.unwrap(),
        () = serve => {}
    }
    store.get(&Key::cluster_information()).await.unwrap().is_some()
}

#[tokio::test]
async fn an_etcd_that_does_not_say_whether_it_has_data_of_v1_gets_no_information() {
    assert!(!written("500 Internal Server Error", "").await, "it may have some");
    assert!(
        !written("503 Service Unavailable", r#"{"errorCode":300,"message":"Raft Internal Error"}"#).await
    );
    let ready = r#"{"action":"get","node":{"key":"/calico/v1/Ready","value":"true","modifiedIndex":4}}"#;
    assert!(!written("200 OK", ready).await, "it has some");
    let nothing = r#"{"errorCode":100,"message":"Key not found","cause":"/calico","index":7}"#;
    assert!(written("404 Not Found", nothing).await, "it has none");
    assert!(written("404 Not Found", "404 page not found").await, "it has no v2 API");
}
