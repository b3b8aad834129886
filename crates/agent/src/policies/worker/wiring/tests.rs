use std::collections::BTreeMap;

use russet_verdict::world::EndpointKind;

use super::*;

fn endpoint(namespace: &str, name: &str) -> Endpoint {
    Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some(namespace.into()),
        name: name.into(),
        node: "n1".into(),
        addresses: ["10.65.0.3".parse().unwrap()].into(),
        labels: BTreeMap::new(),
        profiles: Vec::new(),
        ports: Vec::new(),
        local: None,
        age: 0,
    }
}

#[test]
fn a_host_end_of_calicos_is_that_of_the_pod_or_container_that_its_name_says() {
    // calico-cni.md section 3.1
    let is_end = |name: &str, namespace: &str, pod: &str| {
        is_end_of(&IfName::new(name).unwrap(), &endpoint(namespace, pod))
    };
    assert!(is_end("calia4fc3c48bd8", "shop", "web-0"));
    assert!(is_end("lxca4fc3c48bd8", "shop", "web-0"), "FELIX_INTERFACEPREFIX");
    assert!(is_end("caliabc123", "default", "abc123"));
    assert!(is_end(&format!("cali{}", "f".repeat(11)), "default", &"f".repeat(64)));
    assert!(!is_end("calia4fc3c48bd8", "shop", "web-1"));
    assert!(!is_end("cali1abc123", "default", "abc123"), "that is another container's");

    // An interface of another plugin has any name.
    let local = |is_calico, address: &str| LocalPod {
        is_pod: false,
        is_calico,
        host_name: IfName::new("calia4fc3c48bd8").unwrap(),
        bridge: None,
        addresses: [address.parse().unwrap()].into(),
    };
    assert!(local(false, "10.65.0.3").is_at(&endpoint("shop", "web-1")));
    assert!(!local(true, "10.65.0.3").is_at(&endpoint("shop", "web-1")));
    assert!(local(true, "10.65.0.3").is_at(&endpoint("shop", "web-0")));
    assert!(!local(true, "10.65.0.4").is_at(&endpoint("shop", "web-0")));
}
