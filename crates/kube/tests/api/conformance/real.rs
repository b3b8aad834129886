//! A real API server as the subject of the cases.

use std::cell::{Cell, RefCell};

use russet_kube::{BoxFuture, Source};
use russet_testkit::kubernetes::{ADMIN_TOKEN, ApiServer, kubeconfig};
use russet_testkit::proxy::Proxy;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Raw, Subject};

/// Where the accounts of the client are.
const NAMESPACE: &str = "kube-system";

/// A real API server, behind a relay.
pub struct Real {
    server: RefCell<ApiServer>,
    proxy: Proxy,
    files: TempDir,
    token: RefCell<String>,
    /// The number of tokens so far; each is bound to a secret of that number.
    tokens: Cell<u32>,
}

fn path(kind: &str, namespace: &str, name: &str) -> String {
    let resource = format!("{}s/{name}", kind.to_lowercase());
    match namespace {
        "" => format!("/api/v1/{resource}"),
        namespace => format!("/api/v1/namespaces/{namespace}/{resource}"),
    }
}

fn binding(name: &str, role: &str) -> Value {
    json!({ "kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }] })
}

// === impl Real ===

impl Real {
    pub async fn new(server: ApiServer) -> Self {
        server.create(&[
            json!({ "kind": "Namespace", "metadata": { "name": "shop" } }),
            binding("russet", "cluster-admin"),
            // What `view` is made of; a controller fills that, and none runs.
            binding("reader", "system:aggregate-to-view"),
        ]);
        let proxy = Proxy::to(server.address()).await;
        let files = tempfile::tempdir().unwrap();
        let real = Self {
            server: RefCell::new(server),
            proxy,
            files,
            token: RefCell::default(),
            tokens: Cell::new(0),
        };
        real.renew_token();
        real
    }

    /// Removes what a case left.
    pub fn clear(&self) {
        let server = self.server.borrow();
        server.delete("/api/v1/nodes");
        server.delete("/api/v1/namespaces/shop/pods");
    }

    fn kubeconfig_of(&self, token: &str) -> String {
        kubeconfig(&format!("https://{}", self.proxy.address), &self.server.borrow().file("ca.pem"), token)
    }

    fn source_of(&self, name: &str, token: &str) -> Source {
        let path = self.files.path().join(name);
        std::fs::write(&path, self.kubeconfig_of(token)).unwrap();
        Source::kubeconfig(path)
    }
}

impl Subject for Real {
    fn source(&self) -> Source {
        self.source_of("russet", &self.token.borrow())
    }

    fn kubeconfig(&self) -> String {
        self.kubeconfig_of(&self.token.borrow())
    }

    fn reader(&self) -> Source {
        let token = self.server.borrow().token(NAMESPACE, "reader", "reader");
        self.source_of("reader", &token)
    }

    fn raw(&self) -> Raw {
        let server = self.server.borrow();
        Raw::tls(server.address(), ADMIN_TOKEN, &std::fs::read(server.file("ca.pem")).unwrap())
    }

    fn create(&self, objects: &[Value]) {
        self.server.borrow().create(objects);
    }

    fn replace(&self, object: &Value) {
        self.server.borrow().put(object);
    }

    fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.server.borrow().object(&path(kind, namespace, name))
    }

    fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.server.borrow().delete(&path(kind, namespace, name));
    }

    fn end_watches(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.proxy.cut())
    }

    fn forget_history(&self) {
        self.server.borrow_mut().forget_history();
    }

    fn renew_token(&self) {
        let earlier = self.tokens.get();
        self.tokens.set(earlier + 1);
        let server = self.server.borrow();
        *self.token.borrow_mut() = server.token(NAMESPACE, "russet", &format!("russet-{}", earlier + 1));
        server.delete(&path("Secret", NAMESPACE, &format!("russet-{earlier}")));
    }
}
