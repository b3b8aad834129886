//! Whether pools have addresses of the cluster's services. An address that is a pod's and a service's leads to the service
//! from every node on which kube-proxy, or what stands in its place, has rules for it.

use russet_addr::{IpNet, host_net};
use russet_kube::{Client, Failure, ListQuery};
use serde_json::Value;

use super::overlap::overlap;
use crate::command::findings::{FindingKind, Findings};
use crate::command::kube::cluster;
use crate::command::place::Place;

/// Addresses that services have or may get.
#[derive(Debug, PartialEq, Eq)]
struct Services {
    net: IpNet,
    /// The object that says so.
    source: String,
}

/// The service of the API server itself: it has the first address of the range, in every cluster.
const FIRST: [&str; 6] = ["api", "v1", "namespaces", "default", "services", "kubernetes"];
const RANGES: ListQuery<'_> = ListQuery {
    operation: "list servicecidrs",
    segments: &["apis", "networking.k8s.io", "v1", "servicecidrs"],
    labels: None,
};
const REMEDY: &str = "use another pool (`russet apply` a new one, disable this one, start its pods again); the range of services is the API server's --service-cluster-ip-range, and its ServiceCIDR objects";

/// Asks the API server. A store elsewhere does not know the cluster's services.
pub async fn look(place: &Place, report: &mut Findings) {
    let Some(client) = place.kubernetes() else { return };
    let services = match services(&client).await {
        Ok(services) => services,
        Err(failure) => return report.unknown.push(format!("services: {}", failure.error)),
    };
    match place.allocator().pools().await {
        Ok(pools) => judge(pools.iter().map(|pool| pool.spec.cidr), &services, report),
        Err(error) => report.unknown.push(format!("services: {error}")),
    }
}

/// The ranges of services, or one address of them: API servers before 1.33 have no ServiceCIDR, and accounts may not have the right to list them.
async fn services(client: &Client) -> Result<Vec<Services>, Failure> {
    let mut ranges = Vec::new();
    let listed = client.list(&RANGES, |object| ranges.extend(of_range(&object))).await;
    if listed.is_ok() && !ranges.is_empty() {
        return Ok(ranges);
    }
    match cluster::get(client, "get service", &FIRST).await {
        Ok(service) => Ok(service.iter().flat_map(of_service).collect()),
        // What is wrong with the list says more, unless there is no such resource.
        Err(failure) => Err(listed.err().filter(|it| it.code != Some(404)).unwrap_or(failure)),
    }
}

/// The networks of a ServiceCIDR.
fn of_range(object: &Value) -> Vec<Services> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let source = format!("the range of services (ServiceCIDR {name})");
    texts(object.pointer("/spec/cidrs"))
        .filter_map(|text| Some(Services { net: text.parse().ok()?, source: source.clone() }))
        .collect()
}

/// The addresses of a service.
fn of_service(object: &Value) -> Vec<Services> {
    let mut addresses: Vec<&str> = texts(object.pointer("/spec/clusterIPs")).collect();
    if addresses.is_empty() {
        // API servers before 1.20 have one only.
        addresses.extend(object.pointer("/spec/clusterIP").and_then(Value::as_str));
    }
    let source = "the service default/kubernetes".to_owned();
    let parsed = addresses.into_iter().filter_map(|text| text.parse().ok());
    parsed.map(|address| Services { net: host_net(address), source: source.clone() }).collect()
}

fn texts(array: Option<&Value>) -> impl Iterator<Item = &str> {
    array.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn judge(pools: impl Iterator<Item = IpNet>, services: &[Services], report: &mut Findings) {
    for pool in pools {
        for Services { net, source } in services.iter().filter(|it| overlap(&it.net, &pool)) {
            let problem = format!(
                "it overlaps {net}, {source}: packets to a pod with such an address go to the service"
            );
            report.found(FindingKind::Overlap, format!("pool {pool}"), problem, REMEDY);
        }
    }
}

#[cfg(test)]
mod tests {
    use russet_kube::testing::Server;
    use serde_json::json;

    use super::*;

    fn look_at(server: &Server, pools: &[&str]) -> Findings {
        let mut report = Findings::default();
        let client = Client::new(server.source()).unwrap();
        match crate::command::runtime().unwrap().block_on(services(&client)) {
            Ok(services) => {
                judge(pools.iter().map(|text| text.parse().unwrap()), &services, &mut report);
            }
            Err(failure) => report.unknown.push(failure.error.to_string()),
        }
        report
    }

    fn problems(server: &Server, pools: &[&str]) -> Vec<String> {
        let report = look_at(server, pools);
        assert!(report.unknown.is_empty(), "{report:?}");
        report
            .findings
            .into_iter()
            .map(|finding| format!("{}: {}", finding.subject, finding.problem))
            .collect()
    }

    fn range(name: &str, cidrs: &Value) -> Value {
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": name }, "spec": { "cidrs": cidrs } })
    }

    fn first(spec: &Value) -> Value {
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "default", "name": "kubernetes" }, "spec": spec })
    }

    #[test]
    fn a_pool_in_a_range_of_services_is_a_finding_in_each_family() {
        let server = Server::start();
        server.put(range("kubernetes", &json!(["10.96.0.0/12", "fd00:96::/112", "nonsense", 7])));
        assert_eq!(problems(&server, &["10.244.0.0/16", "fd72::/48"]), [""; 0]);
        let wanted = "pool 10.100.0.0/16: it overlaps 10.96.0.0/12, the range of services (ServiceCIDR kubernetes): packets to a pod with such an address go to the service";
        assert_eq!(problems(&server, &["10.244.0.0/16", "10.100.0.0/16"]), [wanted]);
        assert!(
            problems(&server, &["fd00::/16"])[0].starts_with("pool fd00::/16: it overlaps fd00:96::/112")
        );
        server.put(range("more", &json!(["10.244.128.0/24"])));
        assert!(problems(&server, &["10.244.0.0/16"])[0].contains("(ServiceCIDR more)"));
    }

    #[test]
    fn without_ranges_the_address_of_the_api_servers_service_is_compared() {
        let server = Server::start();
        assert_eq!(problems(&server, &["10.96.0.0/16"]), [""; 0], "nothing is known");
        server.put(first(&json!({ "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:96::1"] })));
        assert_eq!(problems(&server, &["10.97.0.0/16"]), [""; 0]);
        let found = problems(&server, &["10.96.0.0/16", "fd00:96::/64"]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0]
                .starts_with("pool 10.96.0.0/16: it overlaps 10.96.0.1/32, the service default/kubernetes: "),
            "{found:?}"
        );
        server.put(range("kubernetes", &json!(["10.96.0.0/16"])));
        server.forbid("list servicecidrs");
        assert!(problems(&server, &["10.96.0.0/16"])[0].contains("default/kubernetes"));
        server.forbid("get services");
        let unknown = look_at(&server, &["10.96.0.0/16"]).unknown;
        assert!(unknown.len() == 1 && unknown[0].starts_with("list servicecidrs: "), "{unknown:?}");
    }
}
