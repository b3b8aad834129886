//! When ClusterInformation is written. An etcd member that gives the same answer to every v2
//! request stands for the cluster.

use std::time::Duration;

use russet_store::Sim;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Whether ClusterInformation is written when etcd answers every request like this.
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
async fn cluster_information_is_not_written_while_etcd_does_not_say_whether_it_has_v1_data() {
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

#[test]
fn pool_settings_without_effect_are_reported() {
    use russet_model::IpPoolSpec;

    use crate::config::Encapsulation;

    let pool = |name: &str, cidr: &str| {
        let mut spec = IpPoolSpec::new(cidr.parse().unwrap());
        spec.vxlan_mode = EncapMode::Always;
        IpPool::new(name, spec)
    };
    let there = [pool("default-ipv4", "10.244.0.0/16")];
    let default = DefaultPools::default();
    assert_eq!(unused(&default, &there, "russet apply"), [], "nothing was asked for");
    let other = DefaultPools {
        ipv4: Some("10.77.0.0/24".parse().unwrap()),
        // The store has no pool of this family, so this one is created.
        ipv6: Some("fd00:77::/64".parse().unwrap()),
        encapsulation: Encapsulation::None,
    };
    let found = unused(&other, &there, "russet apply");
    let settings: Vec<&str> = found.iter().map(|(setting, _)| setting.as_str()).collect();
    assert_eq!(settings, ["--ipv4-pool 10.77.0.0/24", "--encapsulation with vxlanMode Never"]);
    assert!(found[0].1.contains("default-ipv4 10.244.0.0/16"), "{found:?}");
    assert_eq!(unused(&other, &[], "russet apply"), [], "a fresh store");
    let none = DefaultPools { ipv4: None, ..default };
    assert_eq!(unused(&none, &there, "russet apply")[0].0, "--ipv4-pool none");
}

#[test]
fn a_pool_without_room_for_a_block_is_refused() {
    let fault = |ipv4: &str| {
        let pools = DefaultPools { ipv4: Some(ipv4.parse().unwrap()), ..DefaultPools::default() };
        pools.fault().map(|fault| fault.to_string())
    };
    let said = fault("10.0.0.0/30").unwrap();
    assert!(said.contains("--ipv4-pool 10.0.0.0/30") && said.contains("/26"), "{said}");
    assert_eq!(fault("10.0.0.0/26"), None);
}
