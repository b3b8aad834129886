//! Usual manifests, and invalid ones.

use super::*;

fn parsed(yaml: &str) -> Result<Manifest, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let cluster =
        Cluster { servers: vec!["10.96.0.10".parse().unwrap()], domain: "cluster.local".to_owned() };
    read(file.path(), &cluster, "nameserver 192.0.2.53\n").map_err(|error| error.to_string())
}

const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: ns1
  labels: {app: web}
  annotations: {kubernetes.io/ingress-bandwidth: 10M}
spec:
  hostname: web-0
  hostAliases: [{ip: 192.0.2.7, hostnames: [db, db.local]}]
  dnsConfig: {searches: [mine], options: [{name: ndots, value: "2"}, {name: edns0}]}
  securityContext:
    sysctls: [{name: net.core.somaxconn, value: "500"}]
  containers:
  - name: a
    image: nginx
    ports: [{containerPort: 80, hostPort: 18080, hostIP: 127.0.0.1}, {containerPort: 53, protocol: UDP}]
  - name: b
    ports: [{containerPort: 443}]
"#;

#[test]
fn network_names_ports_and_sysctls_are_converted() {
    // cni-runtime.md section 3.1, generatePodSandboxConfig
    let Manifest { config, warnings } = parsed(WEB).unwrap();
    assert_eq!(
        config.metadata,
        Metadata { name: "web".into(), namespace: "ns1".into(), uid: String::new(), attempt: 0 }
    );
    assert_eq!(config.hostname, "web-0");
    assert_eq!(config.labels["app"], "web");
    assert_eq!(config.annotations["kubernetes.io/ingress-bandwidth"], "10M");
    assert_eq!(config.sysctls["net.core.somaxconn"], "500");
    assert_eq!(config.host_aliases[0].hostnames, ["db", "db.local"]);
    let dns = config.dns.unwrap();
    assert_eq!(dns.searches, ["ns1.svc.cluster.local", "svc.cluster.local", "cluster.local", "mine"]);
    assert_eq!(dns.options, ["ndots:2", "edns0"]);
    let ports: Vec<_> =
        config.port_mappings.iter().map(|it| (it.protocol, it.container_port, it.host_port)).collect();
    assert_eq!(ports, [(Protocol::Tcp, 80, 18080), (Protocol::Udp, 53, 0), (Protocol::Tcp, 443, 0)]);
    assert_eq!(config.port_mappings[0].host_ip, Some("127.0.0.1".parse().unwrap()));
    assert_eq!(warnings, ["spec.containers[0].image: has no effect here"]);
}

#[test]
fn a_minimal_manifest_gets_default_namespace_and_host_name() {
    let long = "x".repeat(62);
    for (name, hostname) in [("web", "web"), (&format!("{long}-yz"), &long)] {
        let config =
            parsed(&format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}}}")).unwrap().config;
        assert_eq!((config.metadata.namespace.as_str(), config.hostname.as_str()), ("default", hostname));
        assert!(!config.host_network && config.port_mappings.is_empty());
    }
}

#[test]
fn in_the_nodes_network_a_pod_has_the_nodes_name_and_no_mapped_ports() {
    let yaml = WEB.replace("  hostname: web-0", "  hostname: web-0\n  hostNetwork: true");
    let yaml = yaml.replace("    sysctls: [{name: net.core.somaxconn, value: \"500\"}]", "    sysctls: []");
    let Manifest { config, warnings } = parsed(&yaml).unwrap();
    assert!(config.host_network && config.hostname.is_empty() && config.port_mappings.is_empty());
    assert_eq!(config.dns.unwrap().servers, ["192.0.2.53".parse::<std::net::IpAddr>().unwrap()]);
    assert!(warnings.iter().any(|it| it == "spec.hostname: has no effect with hostNetwork"), "{warnings:?}");
    // A kernel parameter of the network would be the node's.
    assert!(
        parsed(&WEB.replace("spec:\n", "spec:\n  hostNetwork: true\n")).unwrap_err().contains("somaxconn")
    );
}

#[test]
fn members_without_effect_are_reported_with_the_probable_word() {
    let yaml = "{apiVersion: v1, kind: Pod, metadata: {name: a, label: {}}, spec: {hostNetwrok: true, nodeName: n1}}";
    assert_eq!(
        parsed(yaml).unwrap().warnings,
        [
            "metadata.label: has no effect here; did you mean labels?",
            "spec.hostNetwrok: has no effect here; did you mean hostNetwork?",
            "spec.nodeName: has no effect here"
        ]
    );
}

#[test]
fn all_problems_are_reported_with_their_paths() {
    for (yaml, problem) in [
        ("", "there are 0"),
        ("---\n{kind: Pod}\n---\n{kind: Pod}\n", "there are 2"),
        ("[]", "document: an object is wanted"),
        (
            "{apiVersion: v1, kind: Deployment, metadata: {name: a}}",
            "kind: Pod is wanted, not \"Deployment\"",
        ),
        ("{apiVersion: v1, kind: Pod}", "metadata.name: is wanted"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: 7}}", "metadata.name: a string is wanted, not 7"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a/b}}", "metadata.name: at most 253 small letters"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {x: 1}}}", "metadata.labels.x: a string"),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostNetwork: yes please}}",
            "spec.hostNetwork: true or false",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {dnsPolicy: Mine}}",
            "spec.dnsPolicy: ClusterFirst, ",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {dnsPolicy: None}}",
            "spec.dnsConfig.nameservers: at least one",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {dnsConfig: {nameservers: [x]}}}",
            "spec.dnsConfig.nameservers[0]: an IP",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostAliases: [{hostnames: [b]}]}}",
            "spec.hostAliases[0].ip: an IP",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{ports: [{containerPort: 70000}]}]}}",
            "spec.containers[0].ports[0].containerPort: a port",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{ports: [{hostPort: 1}]}]}}",
            "containerPort: a port",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{ports: [{containerPort: 1, protocol: tcp}]}]}}",
            "protocol: TCP, UDP or SCTP",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{ports: [{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9}]}]}}",
            "host port 9 (tcp) is there twice",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {securityContext: {sysctls: [{name: vm.swappiness, value: '1'}]}}}",
            "vm.swappiness",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {securityContext: {sysctls: [{name: x}]}}}",
            "sysctls[0].value: is wanted",
        ),
    ] {
        let error = parsed(yaml).unwrap_err();
        assert!(error.contains(problem), "{yaml}: {error}");
    }
    let both = parsed("{apiVersion: v2, kind: Pod, metadata: {}}").unwrap_err();
    assert!(
        both.contains("apiVersion: v1 is wanted") && both.contains("; metadata.name: is wanted"),
        "{both}"
    );
}

#[test]
fn problems_of_the_members_and_of_the_whole_are_each_reported_once() {
    let all = parsed(
        "{apiVersion: v2, kind: Pod, metadata: {name: a}, spec: {securityContext: {sysctls: [{name: vm.swappiness, value: '1'}, {name: kernel.panic, value: '1'}]}}}",
    );
    let all = all.unwrap_err();
    for problem in ["apiVersion: v1 is wanted", "vm.swappiness", "kernel.panic"] {
        assert_eq!(all.matches(problem).count(), 1, "{problem}: {all}");
    }
}

#[test]
fn names_are_checked_as_kubernetes_checks_them_and_each_problem_is_printed_once() {
    let yaml = r#"{apiVersion: 7, kind: Pod, metadata: {name: Web_1, namespace: a.b, labels: {"x y": z, app: "a:b"}},
        spec: {hostname: A, hostAliases: [{ip: x, hostnames: [b_c]}], securityContext: {sysctls: [{name: 7}]},
        containers: [{ports: [{containerPort: 70000}]}]}}"#;
    let error = parsed(yaml).unwrap_err();
    for at in [
        "apiVersion",
        "metadata.name",
        "metadata.namespace",
        "metadata.labels",
        "metadata.labels.app",
        "spec.hostname",
        "spec.hostAliases[0].ip",
        "spec.hostAliases[0].hostnames[0]",
        "spec.securityContext.sysctls[0].name",
        "spec.securityContext.sysctls[0].value",
        "spec.containers[0].ports[0].containerPort",
    ] {
        assert_eq!(error.matches(&format!("{at}: ")).count(), 1, "{at}: {error}");
    }
    assert!(error.contains("not \"Web_1\""), "{error}");
}
