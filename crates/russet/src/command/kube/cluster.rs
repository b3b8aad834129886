//! What other networks run in the cluster, and what of their data would hinder a migration.

use russet_kube::{CALL_DEADLINE, Client, Failure, KubeError, ListQuery, Request, Verb};
use serde_json::Value;

use super::super::findings::{FindingKind, Findings};

/// DaemonSets that write conflists, addresses and routes of their own.
const NODE_PROGRAMS: [&str; 2] = ["calico-node", "kube-flannel-ds"];
const OPERATOR: &str = "tigera-operator";
/// Calico's aggregated API server.
const API_SERVICE: &str = "v3.projectcalico.org";
const GROUPS: [[&str; 3]; 2] = [["apis", "crd.projectcalico.org", "v1"], ["apis", "projectcalico.org", "v3"]];
/// Names that a finding shows.
const SHOWN: usize = 5;
const OBJECT_MAX_BYTES: usize = 4 << 20;

/// Looks at a cluster.
pub async fn look(client: &Client, report: &mut Findings) {
    let looks = [programs(client, report).await, operator(client, report).await];
    let aggregated = api_service(client, report).await;
    let handles = match &aggregated {
        Ok(false) => handle_names(client, report).await,
        _ => Ok(()),
    };
    let failures = looks.into_iter().chain([aggregated.map(drop), handles]).filter_map(Result::err);
    report.unknown.extend(failures.map(|failure| failure.error.to_string()));
}

async fn programs(client: &Client, report: &mut Findings) -> Result<(), Failure> {
    let query = ListQuery {
        operation: "list daemonsets",
        segments: &["apis", "apps", "v1", "daemonsets"],
        labels: None,
    };
    let mut found = Vec::new();
    client
        .list(&query, |object| {
            if NODE_PROGRAMS.contains(&text(&object, "/metadata/name")) && !is_ours(&object) {
                found.push(format!("DaemonSet {}", full_name(&object)));
            }
        })
        .await?;
    for subject in found {
        let problem = "its pods write their own conflist and routes on every node".to_owned();
        let remedy =
            "take Russet's steps for this network (docs/kubernetes.md), which remove it node by node";
        report.found(FindingKind::OtherNetwork, subject, problem, remedy);
    }
    Ok(())
}

async fn operator(client: &Client, report: &mut Findings) -> Result<(), Failure> {
    let query = ListQuery {
        operation: "list deployments",
        segments: &["apis", "apps", "v1", "deployments"],
        labels: None,
    };
    let mut found = Vec::new();
    client
        .list(&query, |object| {
            if text(&object, "/metadata/name") == OPERATOR {
                found.push(format!("Deployment {}", full_name(&object)));
            }
        })
        .await?;
    for subject in found {
        let problem = "it creates Calico's programs again after they were deleted".to_owned();
        let remedy = "delete its Installation, or scale it to 0, before Calico's programs are removed";
        report.found(FindingKind::Operator, subject, problem, remedy);
    }
    Ok(())
}

/// Whether Calico's API is served by a program of its own. While that is away, no namespace can be
/// deleted.
async fn api_service(client: &Client, report: &mut Findings) -> Result<bool, Failure> {
    let segments = ["apis", "apiregistration.k8s.io", "v1", "apiservices", API_SERVICE];
    let Some(service) = get(client, "get apiservice", &segments).await? else { return Ok(false) };
    if service.pointer("/spec/service").is_none_or(Value::is_null) {
        return Ok(false);
    }
    let conditions = service.pointer("/status/conditions").and_then(Value::as_array);
    let available = conditions.into_iter().flatten().find(|it| text(it, "/type") == "Available");
    if let Some(condition) = available.filter(|it| text(it, "/status") != "True") {
        let message = text(condition, "/message");
        let problem = format!("no program serves it ({message}): deleted namespaces stay in Terminating");
        let remedy =
            "start calico-apiserver again, or delete the APIService if Calico's API server is gone for good";
        report.found(FindingKind::ApiService, format!("APIService {API_SERVICE}"), problem, remedy);
    }
    Ok(true)
}

/// Handles whose names Calico's migration to its native group cannot copy: it stops with the datastore
/// locked (kubernetes.md section 1.14). Only where that group is served by definitions.
async fn handle_names(client: &Client, report: &mut Findings) -> Result<(), Failure> {
    for group in GROUPS {
        if get(client, "list the resources of a group", &group).await?.is_none() {
            return Ok(());
        }
    }
    let [api, name, version] = GROUPS[0];
    let query = ListQuery {
        operation: "list ipamhandles",
        segments: &[api, name, version, "ipamhandles"],
        labels: None,
    };
    let (mut count, mut some) = (0, Vec::new());
    client
        .list(&query, |object| {
            let id = text(&object, "/spec/handleID");
            if id.chars().any(|c| c.is_ascii_uppercase()) {
                count += 1;
                if some.len() < SHOWN {
                    some.push(id.to_owned());
                }
            }
        })
        .await?;
    if count > 0 {
        let subject = format!("{count} IPAMHandles with upper case ({})", some.join(", "));
        let problem = "Calico's migration to projectcalico.org/v3 cannot copy them, and stops with the datastore locked".to_owned();
        let remedy = "delete the pods or services that hold them before a DatastoreMigration is created";
        report.found(FindingKind::HandleNames, subject, problem, remedy);
    }
    Ok(())
}

/// An object; none if there is none, or no such resource.
pub async fn get(client: &Client, operation: &str, segments: &[&str]) -> Result<Option<Value>, Failure> {
    let request = Request {
        operation: format!("{operation} {}", segments.last().unwrap_or(&"")),
        verb: Verb::Read,
        segments: segments.iter().map(ToString::to_string).collect(),
        query: Vec::new(),
        body: Vec::new(),
        deadline: CALL_DEADLINE,
        limit_bytes: OBJECT_MAX_BYTES,
    };
    match client.request(&request).await {
        Ok(answer) => Ok(serde_json::from_slice(&answer.body).ok()),
        Err(failure) if failure.code == Some(404) => Ok(None),
        Err(Failure { error: KubeError::NotFound(_), .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// In flannel's mode Russet's DaemonSet has flannel's name.
fn is_ours(object: &Value) -> bool {
    let containers = object.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    containers.into_iter().flatten().any(|container| text(container, "/image").contains("russet"))
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn full_name(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_kube::testing::Server;
    use serde_json::json;

    fn look_at(server: &Server) -> Findings {
        let mut report = Findings::default();
        let client = Client::new(server.source()).unwrap();
        crate::command::runtime().unwrap().block_on(look(&client, &mut report));
        report
    }

    fn workload(kind: &str, namespace: &str, name: &str, image: &str) -> Value {
        json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "namespace": namespace, "name": name },
            "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } } })
    }

    fn api_service(service: Value, status: &str) -> Value {
        json!({ "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": API_SERVICE },
            "spec": { "service": service },
            "status": { "conditions": [{ "type": "Available", "status": status, "message": "no endpoints" }] } })
    }

    #[test]
    fn programs_of_other_networks_are_found() {
        // kubernetes.md section 5.6
        let server = Server::start();
        server.put(workload("DaemonSet", "russet-system", "russet-agent", "localhost/russet:1"));
        server.put(workload("DaemonSet", "kube-flannel", "kube-flannel-ds", "localhost/russet:1"));
        let report = look_at(&server);
        assert!(report.findings.is_empty() && report.unknown.is_empty(), "{report:?}");
        server.put(workload("DaemonSet", "kube-system", "calico-node", "calico/node:v3.32.1"));
        server.put(workload("Deployment", "tigera-operator", "tigera-operator", "tigera/operator:v1"));
        server.put(api_service(json!({ "name": "calico-api" }), "False"));
        let kinds: Vec<_> = look_at(&server).findings.into_iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::OtherNetwork, FindingKind::Operator, FindingKind::ApiService]);
        server.forbid("list daemonsets");
        let report = look_at(&server);
        assert!(report.unknown.iter().any(|text| text.contains("daemonsets")), "{report:?}");
    }

    #[test]
    fn handles_that_a_migration_cannot_copy_are_named_before_it() {
        // kubernetes.md K114, section 1.14
        let server = Server::start();
        server.install("crd.projectcalico.org");
        let handle = |id: &str| {
            json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle", "metadata": { "name": id.to_lowercase() },
                "spec": { "handleID": id, "block": {}, "deleted": false } })
        };
        server.put(handle("net.abc"));
        server.put(handle("net.ABC-1"));
        assert_eq!(look_at(&server).findings, [], "there is no group to migrate to");
        server.install("projectcalico.org");
        let findings = look_at(&server).findings;
        assert!(
            matches!(&findings[..], [one] if one.kind == FindingKind::HandleNames && one.subject.contains("net.ABC-1")),
            "{findings:?}"
        );
        server.put(api_service(json!({ "name": "calico-api" }), "True"));
        assert_eq!(look_at(&server).findings, [], "Calico's API server shows the older group");
    }
}
