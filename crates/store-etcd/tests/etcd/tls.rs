//! TLS and client certificates.

use std::time::{Duration, Instant};

use russet_model::Prefix;
use russet_store::{Step, Store, StoreError};
use russet_store_etcd::{Etcd, EtcdV2, Settings, SettingsError};
use russet_testkit::certificates::{certificates, path, request, sign};
use russet_testkit::run;

use crate::server::{Clients, Cluster};
use crate::{SOON, key};

/// A member that requires TLS and client certificates from `ca`.
fn secured() -> (Cluster, Settings) {
    let directory = certificates("localhost");
    let at = directory.path().to_owned();
    let files = |options: [&str; 3], names: [&str; 3]| {
        options.iter().zip(names).map(|(option, name)| format!("--{option}={}", path(&at, name))).collect()
    };
    let etcdctl: Vec<String> = files(["cacert", "cert", "key"], ["ca.pem", "client.pem", "client.key"]);
    let mut server: Vec<String> =
        files(["trusted-ca-file", "cert-file", "key-file"], ["ca.pem", "server.pem", "server.key"]);
    server.extend(["--client-cert-auth".to_owned(), "--enable-v2".to_owned()]);
    let cluster = Cluster::start_in(directory, 1, "https", |_| server.clone(), etcdctl);
    let settings = Settings {
        ca: Some(cluster.path().join("ca.pem")),
        cert: Some(cluster.path().join("client.pem")),
        key: Some(cluster.path().join("client.key")),
        deadline: Duration::from_secs(3),
        ..cluster.settings()
    };
    (cluster, settings)
}

/// The error of a client with these settings.
async fn refusal(settings: Settings) -> String {
    let error = Etcd::connect(settings).unwrap().get(&key(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    error.to_string()
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn certificates_of_both_sides_are_checked() {
    let (cluster, settings) = secured();
    let store = Etcd::connect(settings.clone()).unwrap();
    store.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    assert_eq!(store.list(&Prefix::handles()).await.unwrap().records.len(), 1);
    let file = |name: &str| Some(cluster.path().join(name));

    // With the deadline of an operator, who does not wait for it.
    let unknown =
        Settings { ca: file("unknown.pem"), deadline: cluster.settings().deadline, ..settings.clone() };
    let begun = Instant::now();
    let error = refusal(unknown).await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(error.contains("UnknownIssuer") || error.contains("certificate"), "{error}");
    let error = refusal(Settings { server_name: Some("etcd.example".into()), ..settings.clone() }).await;
    assert!(error.contains("etcd.example"), "{error}");
    refusal(Settings { cert: None, key: None, ..settings.clone() }).await;
    refusal(Settings { cert: file("intruder.pem"), key: file("intruder.key"), ..settings.clone() }).await;
    let named = Settings { server_name: Some("localhost".into()), ..settings };
    assert!(Etcd::connect(named).unwrap().get(&key(1)).await.unwrap().is_some());
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn the_v2_engine_checks_certificates_of_both_sides_too() {
    let (cluster, settings) = secured();
    let store = EtcdV2::connect(settings.clone()).unwrap();
    store.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    assert_eq!(store.list(&Prefix::handles()).await.unwrap().records.len(), 1);
    let file = |name: &str| Some(cluster.path().join(name));
    let named = Settings { server_name: Some("localhost".into()), ..settings.clone() };
    assert!(EtcdV2::connect(named).unwrap().get(&key(1)).await.unwrap().is_some());
    for wrong in [
        Settings { ca: file("unknown.pem"), ..settings.clone() },
        Settings { server_name: Some("etcd.example".into()), ..settings.clone() },
        Settings { cert: None, key: None, ..settings.clone() },
        Settings { cert: file("intruder.pem"), key: file("intruder.key"), ..settings.clone() },
    ] {
        let error = EtcdV2::connect(wrong).unwrap().get(&key(1)).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    }
    let missing = Settings { ca: file("no-such.pem"), ..settings.clone() };
    assert!(matches!(EtcdV2::connect(missing).unwrap_err(), SettingsError::File { .. }));
    let confused = Settings { key: settings.cert.clone(), ..settings };
    assert!(matches!(EtcdV2::connect(confused).unwrap_err(), SettingsError::Tls { .. }));
}

/// A certificate as `openssl x509 -req` makes it without extensions: X.509 version 1. Go's clients
/// present it, and etcd accepts it.
#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn a_client_certificate_of_version_1_is_presented_as_it_is() {
    let (cluster, settings) = secured();
    let (key, cert) = (path(cluster.path(), "old.key"), path(cluster.path(), "old.pem"));
    request(cluster.path(), "old");
    sign(cluster.path(), "ca", "old", "old", &[]);
    let shown = run("openssl", &["x509", "-noout", "-text", "-in", &cert]);
    assert!(shown.contains("Version: 1 (0x0)"), "{shown}");
    let old = Settings { cert: Some(cert.into()), key: Some(key.into()), ..settings };
    Etcd::connect(old.clone()).unwrap().get(&crate::key(1)).await.unwrap();
    EtcdV2::connect(old).unwrap().get(&crate::key(1)).await.unwrap();
}

/// The error says whose certificate, which file, and what is wrong.
#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn the_error_names_the_file_of_a_refused_certificate() {
    let (cluster, settings) = secured();
    let file = |name: &str| Some(cluster.path().join(name));
    for both in [true, false] {
        let refusal = async |settings: Settings| match both {
            true => Etcd::connect(settings).unwrap().get(&key(1)).await.unwrap_err().to_string(),
            false => EtcdV2::connect(settings).unwrap().get(&key(1)).await.unwrap_err().to_string(),
        };
        let error = refusal(Settings { ca: file("unknown.pem"), ..settings.clone() }).await;
        assert!(error.contains("the server's certificate is refused"), "{error}");
        assert!(error.contains("unknown.pem"), "{error}");
        let intruder = Settings { cert: file("intruder.pem"), key: file("intruder.key"), ..settings.clone() };
        // The server's alert comes after the handshake, and is lost if the connection breaks before
        // it is read.
        let mut error = String::new();
        for _ in 0..10 {
            error = refusal(intruder.clone()).await;
            if error.contains("client certificate") && error.contains("intruder.pem") {
                break;
            }
        }
        assert!(error.contains("client certificate") && error.contains("intruder.pem"), "{error}");
    }
    let confused = Settings { key: file("intruder.key"), ..settings };
    let error = Etcd::connect(confused).unwrap_err().to_string();
    assert!(error.contains("client.pem does not belong to key"), "{error}");
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn a_renewed_certificate_comes_into_use_with_the_next_connection() {
    let (mut cluster, settings) = secured();
    let at = cluster.path().to_owned();
    let with = |name: &str| {
        for end in ["pem", "key"] {
            std::fs::copy(at.join(format!("{name}.{end}")), at.join(format!("mine.{end}"))).unwrap();
        }
    };
    with("intruder");
    let mine = Settings { cert: Some(at.join("mine.pem")), key: Some(at.join("mine.key")), ..settings };
    let store = Etcd::connect(mine).unwrap();
    assert!(store.get(&key(1)).await.is_err());
    with("client");
    assert_eq!(store.get(&key(1)).await.unwrap(), None);
    with("intruder");
    cluster.members[0].kill();
    cluster.members[0].start();
    cluster.wait();
    assert!(store.get(&key(1)).await.is_err());
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn missing_or_invalid_certificate_files_are_named_before_connecting() {
    let (cluster, settings) = secured();
    let missing = Settings { ca: Some(cluster.path().join("no-such.pem")), ..settings.clone() };
    let error = Etcd::connect(missing).unwrap_err();
    assert!(
        matches!(&error, SettingsError::File { .. }) && error.to_string().contains("no-such.pem"),
        "{error}"
    );
    let confused = Settings { key: settings.cert.clone(), ..settings };
    assert!(matches!(Etcd::connect(confused).unwrap_err(), SettingsError::Tls { .. }));
}
