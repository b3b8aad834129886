//! Credentials: tokens, kubeconfigs, and their changes.

use russet_kube::testing::{Server, TOKEN};
use russet_kube::{Client, ConfigError, KubeError, Kubernetes, Overrides, Secret, Source};

use crate::{client, pod, words};

#[tokio::test]
async fn a_wrong_token_is_unauthorized_and_is_not_repeated_in_the_error() {
    let server = Server::start();
    server.put(pod("web-0"));
    let client = client(&server);
    client.pod("shop", "web-0").await.unwrap();
    server.set_token("another");
    let error = client.pod("shop", "web-0").await.unwrap_err();
    assert!(matches!(error, KubeError::Unauthorized(_)), "{error}");
    assert!(!format!("{error} {error:?}").contains(TOKEN));
    // kubernetes.md section 4.2 item 8
    assert_eq!(server.seen().len(), 3, "once more with the credentials as they are now");
}

/// calico-cni.md section 1.9: the installer rewrites the kubeconfig with a new token.
#[tokio::test]
async fn a_kubeconfig_that_cannot_be_read_leaves_the_old_one_in_use() {
    let server = Server::start();
    server.put(pod("web-0"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calico-kubeconfig");
    server.write_kubeconfig(&path);
    let client = Client::new(Source::kubeconfig(&path)).unwrap();
    client.pod("shop", "web-0").await.unwrap();

    server.set_token("renewed");
    assert!(matches!(client.pod("shop", "web-0").await, Err(KubeError::Unauthorized(_))));
    std::fs::write(&path, "half a kub").unwrap();
    assert!(
        matches!(client.pod("shop", "web-0").await, Err(KubeError::Unauthorized(_))),
        "the old one goes on"
    );
    server.write_kubeconfig(&path);
    client.pod("shop", "web-0").await.unwrap();
    std::fs::remove_file(&path).unwrap();
    client.pod("shop", "web-0").await.unwrap();
}

#[tokio::test]
async fn a_token_file_is_read_for_each_request() {
    let server = Server::start();
    server.put(pod("web-0"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    let text = server.kubeconfig().replace(&format!("token: {TOKEN:?}"), "tokenFile: token");
    std::fs::write(&path, text).unwrap();
    let client = Client::new(Source::kubeconfig(&path)).unwrap();
    let error = client.pod("shop", "web-0").await.unwrap_err();
    assert!(words(&error).contains("token: No such file"), "{error}");
    std::fs::write(directory.path().join("token"), format!("{TOKEN}\n")).unwrap();
    client.pod("shop", "web-0").await.unwrap();
    server.set_token("renewed");
    std::fs::write(directory.path().join("token"), "renewed").unwrap();
    client.pod("shop", "web-0").await.unwrap();
}

/// calico-cni.md section 1.2: the sections `kubernetes` and `policy`.
#[tokio::test]
async fn calicos_settings_reach_the_server_in_their_old_and_their_new_form() {
    let server = Server::start();
    server.put(pod("web-0"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calico-kubeconfig");
    server.write_kubeconfig(&path);
    let overrides = |server: Option<String>, token: &str| Overrides {
        server,
        token: Some(Secret::new(token)),
        ..Overrides::default()
    };
    let root = format!("{}/api/v1/", server.url());
    for source in [
        Source::of_calico(Some(path.clone()), Overrides::default()),
        Source::of_calico(None, overrides(Some(root), TOKEN)),
    ] {
        Client::new(source).unwrap().pod("shop", "web-0").await.unwrap();
    }
    server.set_token("other");
    let overridden = Source::of_calico(Some(path), overrides(None, "other"));
    Client::new(overridden).unwrap().pod("shop", "web-0").await.unwrap();
}

#[test]
fn a_configuration_that_cannot_work_is_refused_before_anything_connects() {
    let missing = Client::new(Source::kubeconfig("/nowhere/kubeconfig")).err().unwrap();
    assert!(matches!(&missing, ConfigError::File { .. }), "{missing}");
    assert!(matches!(Client::new(Source::in_cluster()).err(), Some(ConfigError::InCluster(_))));
    let server = Some("https://127.0.0.1:1".to_owned());
    let overrides =
        Overrides { server, certificate_authority: Some("/nowhere/ca.pem".into()), ..Overrides::default() };
    let error = Client::new(Source::Direct { overrides }).err().unwrap();
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}

#[tokio::test]
async fn a_token_with_control_characters_sends_no_header_of_its_own() {
    let server = Server::start();
    let token = Some(Secret::new("x\r\nX-Remote-User: admin"));
    let overrides = Overrides { server: Some(server.url()), token, ..Overrides::default() };
    let error = Client::new(Source::Direct { overrides }).unwrap().node("n1").await.unwrap_err();
    assert!(matches!(error, KubeError::Invalid(_)) && !error.to_string().contains("admin"), "{error}");
    assert!(server.seen().is_empty());
}
