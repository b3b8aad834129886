//! Requests of a test to its API server, by curl: a second opinion beside the clients that are tested.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use serde_json::Value;

use super::{ADMIN_TOKEN, ApiServer};
use crate::{require_tool, spawn_with_input};

/// Where objects of a kind are; empty for kinds without a namespace.
fn collection(object: &Value) -> String {
    let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
    let group = match object["apiVersion"].as_str().unwrap_or("v1") {
        core if !core.contains('/') => format!("/api/{core}"),
        group => format!("/apis/{group}"),
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{group}/namespaces/{namespace}/{plural}"),
        None => format!("{group}/{plural}"),
    }
}

impl ApiServer {
    /// Sends a request as the administrator, with a JSON body unless it is null: the status, which is 0 if there was no answer, and the body, JSON or text.
    /// A patch is a merge patch.
    pub fn request(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.request_with(ADMIN_TOKEN, method, path, body)
    }

    /// The same with the rights of a token.
    pub fn request_with(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut config = self.config(token, method, path, body);
        config.push_str("write-out = \"\\n%{http_code}\"\n");
        let text = curl(&config);
        let (body, code) = text.rsplit_once('\n').unwrap_or_default();
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
        (code.parse().unwrap_or_default(), body)
    }

    /// Creates objects, all by one process and one connection; panics unless each is new.
    #[track_caller]
    pub fn create(&self, objects: &[Value]) {
        let requests: Vec<String> = objects
            .iter()
            .map(|object| {
                let mut config = self.config(ADMIN_TOKEN, "POST", &collection(object), object);
                config.push_str("output = \"/dev/null\"\nwrite-out = \"%{http_code}\\n\"\n");
                config
            })
            .collect();
        let codes = curl(&requests.join("next\n"));
        let refused = codes.lines().zip(objects).find(|(code, _)| *code != "201");
        assert!(refused.is_none() && codes.lines().count() == objects.len(), "{refused:?}");
    }

    /// Creates an object, or replaces it.
    #[track_caller]
    pub fn put(&self, object: &Value) {
        let path = collection(object);
        let (mut code, mut answer) = self.request("POST", &path, object);
        if code == 409 {
            let name = object["metadata"]["name"].as_str().unwrap();
            (code, answer) = self.request("PUT", &format!("{path}/{name}"), object);
        }
        assert!(matches!(code, 200 | 201), "put {object}: {code} {answer}");
    }

    /// An object; none if there is none.
    #[track_caller]
    pub fn object(&self, path: &str) -> Option<Value> {
        match self.request("GET", path, &Value::Null) {
            (200, object) => Some(object),
            (404, _) => None,
            (code, answer) => panic!("get {path}: {code} {answer}"),
        }
    }

    /// Deletes an object, or all of a collection, at once, without the time that a kubelet would have for a pod; nothing happens where there is none.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        let (code, answer) = self.request("DELETE", &format!("{path}?gracePeriodSeconds=0"), &Value::Null);
        assert!(matches!(code, 200 | 404), "delete {path}: {code} {answer}");
    }

    /// How many requests the server has answered, by verb and resource, as `PATCH pods/status`: its own metric `apiserver_request_total`, in which
    /// watches count when they end. The server's own requests are among them.
    #[track_caller]
    pub fn requests(&self) -> BTreeMap<String, u64> {
        let (code, metrics) = self.request("GET", "/metrics", &Value::Null);
        assert_eq!(code, 200, "{metrics}");
        let mut counts = BTreeMap::new();
        for (request, count) in metrics.as_str().unwrap().lines().filter_map(counted) {
            *counts.entry(request).or_default() += count;
        }
        counts
    }

    fn config(&self, token: &str, method: &str, path: &str, body: &Value) -> String {
        let quoted = |text: &str| Value::String(text.to_owned()).to_string();
        let mut config = String::new();
        let kind = if method == "PATCH" { "merge-patch+json" } else { "json" };
        for (name, value) in [
            ("url", format!("{}{path}", self.url())),
            ("request", method.to_owned()),
            ("cacert", self.file("ca.pem").display().to_string()),
            ("header", format!("Authorization: Bearer {token}")),
            ("header", format!("Content-Type: application/{kind}")),
            ("max-time", "30".to_owned()),
        ] {
            let _ = writeln!(config, "{name} = {}", quoted(&value));
        }
        if !body.is_null() {
            let _ = writeln!(config, "data-binary = {}", quoted(&body.to_string()));
        }
        config.push_str("silent\n");
        config
    }
}

/// Runs curl with a configuration, whose quoted strings are those of JSON: only `\"`, `\\` and `\n` occur.
fn curl(config: &str) -> String {
    let child = spawn_with_input(Command::new(require_tool("curl")).args(["--config", "-"]), config);
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("run curl: {error}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The request and the count of a line of the metrics, if it counts requests.
fn counted(line: &str) -> Option<(String, u64)> {
    let (labels, count) = line.strip_prefix("apiserver_request_total{")?.rsplit_once("} ")?;
    let label = |name: &str| {
        let values = labels.split(',').filter_map(|label| label.split_once('='));
        values
            .filter(|(found, _)| *found == name)
            .map(|(_, value)| value.trim_matches('"'))
            .next()
            .unwrap_or_default()
    };
    let resource = [label("resource"), label("subresource")].into_iter().filter(|part| !part.is_empty());
    let request = format!("{} {}", label("verb"), resource.collect::<Vec<_>>().join("/"));
    // Prometheus' text has floating point numbers.
    count.parse::<f64>().ok().map(|count| (request, count as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_of_the_metric_are_requests_and_others_are_not() {
        let line = r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="nodes",scope="resource",subresource="status",verb="PATCH",version="v1"} 3"#;
        assert_eq!(counted(line), Some(("PATCH nodes/status".to_owned(), 3)));
        assert_eq!(counted("# TYPE apiserver_request_total counter"), None);
        assert_eq!(counted("apiserver_request_terminations_total{code=\"200\"} 3"), None);
    }

    #[test]
    fn objects_are_created_where_their_kind_is() {
        assert_eq!(collection(&json!({ "kind": "Node", "metadata": {} })), "/api/v1/nodes");
        let role = json!({ "kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": { "namespace": "shop" } });
        assert_eq!(collection(&role), "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles");
    }
}
