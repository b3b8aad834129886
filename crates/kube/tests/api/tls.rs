//! TLS with an authority of its own.

use std::path::Path;
use std::time::Duration;

use russet_kube::testing::{Server, TOKEN, Tls};
use russet_kube::{Client, ConfigError, Kubernetes, Overrides, Secret, Source};
use russet_testkit::certificates::{certificates, sign};

use crate::{node, words};

fn server(at: &Path, client_authority: Option<&str>) -> Server {
    let read = |name: &str| std::fs::read(at.join(name)).unwrap();
    let tls = Tls {
        certificate: read("server.pem"),
        key: read("server.key"),
        client_authority: client_authority.map(read),
    };
    let server = Server::start_tls(tls);
    server.put(node("n1", "10.1.0.0/24"));
    server
}

fn kubeconfig(at: &Path, server: &Server, cluster: &str, user: &str) -> Client {
    let text = format!(
        "kind: Config\nclusters: [{{name: c, cluster: {{server: {:?}, {cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n\
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n",
        server.url()
    );
    let path = at.join("kubeconfig");
    std::fs::write(&path, text).unwrap();
    // Long enough for a handshake on a busy machine.
    Client::with_deadline(Source::kubeconfig(path), Duration::from_secs(10)).unwrap()
}

#[tokio::test]
#[ignore = "tool: openssl"]
async fn the_servers_certificate_is_checked_against_the_clusters_authority() {
    let certificates = certificates("kubernetes");
    let at = certificates.path();
    let server = server(at, None);
    let token = format!("token: {TOKEN:?}");
    let reach = |cluster: &str| kubeconfig(at, &server, cluster, &token);
    reach("certificate-authority: ca.pem").node("n1").await.unwrap();
    let pem = std::fs::read(at.join("ca.pem")).unwrap();
    let data = base64(&pem);
    reach(&format!("certificate-authority-data: {data}")).node("n1").await.unwrap();
    reach("certificate-authority: ca.pem, tls-server-name: kubernetes").node("n1").await.unwrap();
    reach("insecure-skip-tls-verify: true").node("n1").await.unwrap();

    let unknown = reach("certificate-authority: unknown.pem").node("n1").await.unwrap_err();
    assert!(unknown.retryable() && words(&unknown).contains("certificate"), "{unknown}");
    let misnamed = reach("certificate-authority: ca.pem, tls-server-name: other.example").node("n1").await;
    let misnamed = misnamed.unwrap_err();
    assert!(words(&misnamed).contains("other.example"), "{misnamed}");
    let seen = server.seen().len();
    assert_eq!(seen, 4, "nothing was sent to a server that did not prove itself");
}

#[tokio::test]
#[ignore = "tool: openssl"]
async fn a_client_certificate_logs_in() {
    let certificates = certificates("kubernetes");
    let at = certificates.path();
    let server = server(at, Some("ca.pem"));
    let reach = |user: &str| kubeconfig(at, &server, "certificate-authority: ca.pem", user);
    reach("client-certificate: client.pem, client-key: client.key").node("n1").await.unwrap();
    let key = base64(&std::fs::read(at.join("client.key")).unwrap());
    reach(&format!("client-certificate: client.pem, client-key-data: {key}")).node("n1").await.unwrap();
    assert!(reach("client-certificate: intruder.pem, client-key: intruder.key").node("n1").await.is_err());
    assert!(reach(&format!("token: {TOKEN:?}")).node("n1").await.is_err());
}

#[tokio::test]
#[ignore = "tool: openssl"]
async fn a_client_certificate_of_version_1_is_presented_and_left_to_the_server() {
    let certificates = certificates("kubernetes");
    let at = certificates.path();
    sign(at, "ca", "client", "old", &[]);
    let server = server(at, None);
    let reach = |user: &str| kubeconfig(at, &server, "certificate-authority: ca.pem", user);
    reach(&format!("client-certificate: old.pem, client-key: client.key, token: {TOKEN:?}"))
        .node("n1")
        .await
        .unwrap();
}

#[tokio::test]
#[ignore = "tool: openssl"]
async fn invalid_certificates_are_named_before_anything_connects() {
    let certificates = certificates("kubernetes");
    let at = certificates.path();
    let server = server(at, None);
    let overrides = |ca: &str| Overrides {
        server: Some(server.url()),
        token: Some(Secret::new(TOKEN)),
        certificate_authority: Some(at.join(ca)),
        ..Overrides::default()
    };
    Client::new(Source::Direct { overrides: overrides("ca.pem") }).unwrap().node("n1").await.unwrap();
    let confused = Client::new(Source::Direct { overrides: overrides("ca.key") }).err().unwrap();
    assert!(
        matches!(&confused, ConfigError::Tls { .. }) && confused.to_string().contains("no certificate"),
        "{confused}"
    );
    let mismatched = Overrides {
        client_certificate: Some(at.join("client.pem")),
        client_key: Some(at.join("server.key")),
        ..overrides("ca.pem")
    };
    let mismatched = Client::new(Source::Direct { overrides: mismatched }).err().unwrap();
    assert!(matches!(&mismatched, ConfigError::Tls { .. }), "{mismatched}");
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
