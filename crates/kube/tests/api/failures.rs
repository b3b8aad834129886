//! Slow, overloaded and unreachable servers, and servers that are not API servers.

use std::net::TcpListener;
use std::time::Duration;

use russet_kube::testing::Server;
use russet_kube::{Client, KubeError, Kubernetes, Overrides, Source, StatusPatch};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{LIMIT, client, pod, words};

/// A third of it is the limit of one attempt of a read.
const SHORT: Duration = Duration::from_secs(1);

fn at(url: String) -> Source {
    Source::Direct { overrides: Overrides { server: Some(url), ..Overrides::default() } }
}

#[tokio::test]
async fn a_call_to_a_slow_server_ends_at_the_deadline() {
    let server = Server::start();
    server.put(pod("web-0"));
    server.delay(LIMIT * 10);
    let client = Client::with_deadline(server.source(), SHORT).unwrap();
    let read = tokio::time::timeout(LIMIT, client.pod("shop", "web-0")).await.unwrap().unwrap_err();
    assert!(
        matches!(read, KubeError::Unavailable { .. }) && words(&read).contains("no answer in time"),
        "{read}"
    );
    assert!(server.seen().len() > 1, "a read is tried again before that");
    let before = server.seen().len();
    let patch = StatusPatch::of_annotations([("a", "b")]);
    let patched = client.patch_pod_status("shop", "web-0", &patch);
    let patched = tokio::time::timeout(LIMIT, patched).await.unwrap().unwrap_err();
    assert!(patched.retryable(), "{patched}");
    assert_eq!(server.seen().len(), before + 1, "a patch that may have arrived is not sent again");
}

#[tokio::test]
async fn a_call_to_a_silent_server_ends_at_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client =
        Client::with_deadline(at(format!("http://{}", silent.local_addr().unwrap())), SHORT).unwrap();
    let error = tokio::time::timeout(LIMIT, client.node("n1")).await.unwrap().unwrap_err();
    assert!(error.retryable(), "{error}");
}

#[tokio::test]
async fn a_request_to_an_overloaded_server_is_repeated() {
    let server = Server::start();
    server.put(pod("web-0"));
    let client = client(&server);
    server.fail_next(2, 503);
    client.pod("shop", "web-0").await.unwrap();
    assert_eq!(server.seen().len(), 3);
    // 429 says that nothing was executed, so a patch may be sent again, too.
    server.fail_next(1, 429);
    client.patch_pod_status("shop", "web-0", &StatusPatch::of_annotations([("a", "b")])).await.unwrap();
    assert_eq!(server.seen().len(), 5);
    server.fail_next(1, 503);
    let error = client.patch_pod_status("shop", "web-0", &StatusPatch::default()).await.unwrap_err();
    assert!(error.retryable(), "{error}");
    assert_eq!(server.seen().len(), 6, "503 may come after the deed");
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_and_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = Client::with_deadline(at(format!("http://{address}")), SHORT).unwrap();
    let error = client.node("n1").await.unwrap_err();
    assert!(error.retryable() && words(&error).contains(&address.to_string()), "{error}");
    assert!(words(&error).starts_with("get node n1: API server unavailable: "), "{error}");
}

/// Answers one request on a connection and then closes it without announcing that.
async fn hang_up_after_each(listener: tokio::net::TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let body = r#"{"kind":"Node","metadata":{"name":"n1"}}"#;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_server_has_closed_is_replaced() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(at(format!("http://{}", listener.local_addr().unwrap()))).unwrap();
    tokio::spawn(hang_up_after_each(listener));
    for _ in 0..20 {
        assert_eq!(client.node("n1").await.unwrap().metadata.name, "n1");
    }
}

#[tokio::test]
async fn a_too_long_answer_is_refused() {
    let server = Server::start();
    server.put(pod("web-0"));
    server.answer_with(vec![b' '; 9 << 20]);
    let client = client(&server);
    let error = client.pod("shop", "web-0").await.unwrap_err();
    assert!(matches!(error, KubeError::Invalid(_)) && words(&error).contains("longer than"), "{error}");
    client.pod("shop", "web-0").await.unwrap();
}

#[tokio::test]
async fn an_invalid_answer_is_refused() {
    let server = Server::start();
    server.put(pod("web-0"));
    server.answer_with("<html>Welcome</html>");
    let error = client(&server).pod("shop", "web-0").await.unwrap_err();
    assert!(matches!(error, KubeError::Invalid(_)) && words(&error).contains("makes no sense"), "{error}");
}

/// A pod that "does not exist" because the address is wrong must not be mistaken for a deleted one.
#[tokio::test]
async fn a_404_of_a_wrong_address_is_not_a_missing_pod() {
    let server = Server::start();
    let error = Client::new(at(format!("{}/elsewhere", server.url()))).unwrap().pod("shop", "web-0").await;
    assert!(matches!(error, Err(KubeError::Unauthorized(_))));
    let mut source = server.source();
    if let Source::Direct { overrides } = &mut source {
        overrides.server = Some(format!("{}/elsewhere", server.url()));
    }
    let error = Client::new(source).unwrap().pod("shop", "web-0").await.unwrap_err();
    assert!(matches!(error, KubeError::Invalid(_)) && !error.is_absent(), "{error}");
}

#[tokio::test]
async fn an_invalid_name_is_not_requested() {
    let server = Server::start();
    let client = client(&server);
    for name in ["", "..", "../../nodes/n1"] {
        assert!(matches!(client.pod("shop", name).await, Err(KubeError::Invalid(_))), "{name:?}");
    }
    assert!(server.seen().is_empty());
}
