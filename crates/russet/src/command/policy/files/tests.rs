use super::*;

fn cluster(text: &str) -> Cluster {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("all.yaml"), text).unwrap();
    std::fs::write(directory.path().join("notes.txt"), "no: [document").unwrap();
    Cluster::read(&[directory.path().to_owned()]).unwrap()
}

#[test]
fn pods_without_addresses_and_namespaces_get_both() {
    let cluster = cluster(
        "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: []}}\n---\n\
         {apiVersion: v1, kind: Pod, metadata: {name: own, namespace: shop}, spec: {hostNetwork: true}}\n---\n\
         {apiVersion: v1, kind: Pod, metadata: {name: here}}\n---\n\
         {apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}, spec: {nodeName: n1}, status: {podIP: 10.1.2.3}}\n",
    );
    let found = |name: &str| {
        let endpoints = &cluster.snapshot.endpoints;
        endpoints
            .values()
            .find(|it| *it.name == *name)
            .map(|it| it.addresses.iter().next().unwrap().to_string())
    };
    assert_eq!(found("web").as_deref(), Some("198.18.0.1"));
    assert_eq!(found("db").as_deref(), Some("10.1.2.3"));
    assert_eq!(found("own"), None, "a pod with the host's network is no endpoint");
    assert_eq!(found("here").as_deref(), Some("198.18.0.3"));
    assert!(["kns.shop", "kns.default"].iter().all(|name| cluster.snapshot.profiles.contains_key(*name)));
    assert_eq!(cluster.problems, Vec::<String>::new());
}

#[test]
fn lists_are_read_other_kinds_are_skipped_and_problems_are_named() {
    let cluster = cluster(
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: shop}}\n\
         - {apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {tier: gold}}}\n\
         - apiVersion: networking.k8s.io/v1\n  kind: NetworkPolicy\n  metadata: {name: p, namespace: shop}\n  \
         spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: rubbish}}]}]}\n",
    );
    assert_eq!(cluster.snapshot.policies.len(), 1);
    let shop = &cluster.snapshot.profiles["kns.shop"];
    assert_eq!(shop.labels.get("pcns.tier").map(|value| &**value), Some("gold"));
    assert_eq!(cluster.problems.len(), 1, "{:?}", cluster.problems);
    assert!(
        cluster.problems[0].contains("KubernetesNetworkPolicy shop/p: spec.ingress[0].from[0]"),
        "{:?}",
        cluster.problems
    );
}

#[test]
fn rules_about_services_are_closed_as_agents_without_them_enforce_them() {
    let mut cluster = cluster(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: p}\n\
         spec: {types: [Egress], egress: [{action: Deny, destination: {services: {name: db, namespace: shop}}}, {action: Allow}]}\n",
    );
    assert_eq!(cluster.problems, Vec::<String>::new(), "a cluster of files has its Services");
    let wanted = "GlobalNetworkPolicy p: spec.egress[0]: services are not known with this store: the rule denies everything in its direction";
    assert_eq!(cluster.close_unlisted(), [wanted]);
    let policy = cluster.snapshot.policies.values().next().unwrap();
    assert_eq!((policy.egress[0].destination.service.as_ref(), policy.problems.len()), (None, 1));
    assert_eq!(cluster.close_unlisted(), Vec::<String>::new(), "once is enough");
    cluster.add_policy_problems();
    assert_eq!(cluster.problems, [wanted]);
}
