//! What clients rely on, as cases that run over the test server, in each run of the unit tests, and over real API servers of two releases: so the test
//! server is like the real ones, and the client works with them (kubernetes.md sections 4.1 and 7.1).

mod calls;
mod raw;
mod raw_cases;
mod real;
mod watches;

use russet_kube::testing::Server;
use russet_kube::{BoxFuture, Client, Source};
use russet_testkit::kubernetes::{Options, Release};
use russet_testkit::require_tool;
use serde_json::{Value, json};

use raw::Raw;
use real::Real;

/// A server without nodes, and with a namespace `shop` without pods.
pub trait Subject {
    /// How clients reach it, with every right.
    fn source(&self) -> Source;

    /// The text of a kubeconfig for the same.
    fn kubeconfig(&self) -> String;

    /// The same for an account that may read pods, and patch nothing.
    fn reader(&self) -> Source;

    /// For requests that the client does not send.
    fn raw(&self) -> Raw;

    /// Creates objects, which are new.
    fn create(&self, objects: &[Value]);

    /// Replaces an object.
    fn replace(&self, object: &Value);

    /// An object as it is stored; the namespace of a node is empty.
    fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value>;

    /// Deletes an object at once.
    fn delete(&self, kind: &str, namespace: &str, name: &str);

    /// Ends every watch.
    fn end_watches(&self) -> BoxFuture<'_, ()>;

    /// Forgets all events until now.
    fn forget_history(&self);

    /// Has [`Subject::source`] and [`Subject::kubeconfig`] get another token, and refuses the earlier one, now or soon.
    fn renew_token(&self);
}

type Case = for<'a> fn(&'a dyn Subject) -> BoxFuture<'a, ()>;

/// The cases of a module as a list, and each as a test of the test server.
macro_rules! cases {
    ($($name:ident)*) => {
        pub const CASES: &[(&str, crate::conformance::Case)] = &[$((stringify!($name), |subject| Box::pin($name(subject)))),*];

        mod over_the_test_server {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&crate::conformance::test_server()).await;
            })*
        }
    };
}
use cases;

#[tokio::test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
async fn the_newest_api_server_passes_the_cases_of_the_test_server() {
    over_real(Release::Newest).await;
}

#[tokio::test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
async fn an_older_api_server_passes_the_cases_of_the_test_server() {
    over_real(Release::Older).await;
}

/// kubernetes.md K12: what a client of ours meets on an etcd that distributions have.
#[tokio::test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
async fn k12_a_watch_list_on_an_old_etcd_is_an_error_of_500() {
    let old = Options { etcd: Some(require_tool("etcd")), ..Options::new(Release::Newest) };
    let server = Real::new(old.start()).await;
    let path = "/api/v1/nodes?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let events = server.raw().get(&format!("{path}&timeoutSeconds=10")).await.events();
    assert_eq!(events.len(), 1, "{events:?}");
    let (kind, status) = &events[0];
    assert_eq!(
        (kind.as_str(), &status["code"], &status["reason"]),
        ("ERROR", &json!(500), &json!("InternalError"))
    );
}

async fn over_real(release: Release) {
    let server = Real::new(Options::new(release).start()).await;
    for (name, case) in [calls::CASES, watches::CASES, raw_cases::CASES].concat() {
        eprintln!("conformance: {name}");
        server.clear();
        case(&server).await;
    }
}

fn client(subject: &dyn Subject) -> Client {
    Client::new(subject.source()).unwrap()
}

/// The test server as the real one is after its start.
fn test_server() -> Server {
    let server = Server::start();
    server.put(json!({ "kind": "Namespace", "metadata": { "name": "shop" } }));
    server
}

impl Subject for Server {
    fn source(&self) -> Source {
        self.source()
    }

    fn kubeconfig(&self) -> String {
        self.kubeconfig()
    }

    fn reader(&self) -> Source {
        self.forbid("patch pods/status");
        self.source()
    }

    fn raw(&self) -> Raw {
        Raw::plain(self.url().trim_start_matches("http://"), russet_kube::testing::TOKEN)
    }

    fn create(&self, objects: &[Value]) {
        objects.iter().for_each(|object| self.put(object.clone()));
    }

    fn replace(&self, object: &Value) {
        self.put(object.clone());
    }

    fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.object(kind, namespace, name)
    }

    fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.delete(kind, namespace, name);
    }

    fn end_watches(&self) -> BoxFuture<'_, ()> {
        self.end_watches();
        Box::pin(async {})
    }

    fn forget_history(&self) {
        self.forget_history();
    }

    fn renew_token(&self) {
        self.set_token("renewed");
    }
}
