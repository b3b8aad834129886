//! Other IPAM plugins, requested addresses, labels of Mesos tasks and log lines, on the v1 model.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A directory with an IPAM plugin `fake` that returns 10.9.0.5 and records its verbs and its
/// input.
fn fake_ipam() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fake");
    let script = r#"#!/bin/sh
echo "$CNI_COMMAND" >>"$0.verbs"
cat >"$0.stdin"
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.9.0.5/24","gateway":"10.9.0.1"}]}'
"#;
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn verbs(dir: &tempfile::TempDir) -> String {
    std::fs::read_to_string(dir.path().join("fake.verbs")).unwrap_or_default()
}

fn delegated(store: &Rc<Sim>, dir: &tempfile::TempDir, container: &str, pod: &str) -> Container {
    let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}");
    let path = dir.path().to_str().unwrap();
    Container::of(store, request_with(container, &args, r#"{"type":"fake"}"#, path, ""))
}

#[test]
fn another_ipam_plugin_allocates_and_releases_the_addresses() {
    // calico-cni.md section 2.3, steps 3 and 4
    run(async {
        let (store, dir) = (planted().await, fake_ipam());
        let pod = delegated(&store, &dir, "f00d", "web-0");
        let address: IpAddr = "10.9.0.5".parse().unwrap();
        assert_eq!(pod.add().await, [address]);
        assert_eq!(pod.held().await, 0, "Calico's allocator was not asked");
        assert_eq!(pod.add().await, [address]);
        assert_eq!(verbs(&dir), "ADD\n", "the same container keeps what it has");
        pod.work().release_delegated(None).await.unwrap();
        assert_eq!(verbs(&dir), "ADD\nDEL\n");
        // Addresses that a newer container may use stay.
        pod.work().release_delegated(Some(&[address])).await.unwrap();
        assert_eq!(verbs(&dir), "ADD\nDEL\n");
        assert!(pod.log.text().contains("a newer container of the pod may use them"), "{}", pod.log.text());
        // A failure after the allocation releases it.
        let newer = delegated(&store, &dir, "beef", "web-0");
        let taken = newer.work().take(None).await.unwrap();
        newer.work().give_back(&taken, CniError::internal("failed", "")).await;
        assert_eq!(verbs(&dir), "ADD\nDEL\nADD\nDEL\n");
    });
}

#[test]
fn a_del_without_ipam_fails_while_another_plugin_may_hold_the_address() {
    run(async {
        let (store, dir) = (planted().await, fake_ipam());
        let pod = delegated(&store, &dir, "f00d", "web-0");
        pod.add().await;
        let without = Container::of(&store, request_with("f00d", "", "null", "/", ""));
        let stored = pod.work().records.of_workload(&pod.work().id).await.unwrap().unwrap();
        let error = without.work().refuse_others_addresses(&stored).await.unwrap_err();
        assert!(error.code == 7 && error.msg.contains("10.9.0.5"), "{error}");
        let error = without.work().take(None).await.map(|taken| taken.addresses).unwrap_err();
        assert!(error.msg.contains("ipam.type is missing"), "{error}");
        let own = Container::new(&store, "beef", Some("web-1"));
        own.add().await;
        let stored = own.work().records.of_workload(&own.work().id).await.unwrap().unwrap();
        without.work().refuse_others_addresses(&stored).await.unwrap();
    });
}

#[test]
fn the_address_that_cni_args_request_is_given() {
    run(async {
        let store = planted().await;
        let ask = |container: &str, address: &str| {
            let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;IP={address}");
            let ipam = r#"{"type":"calico-ipam"}"#;
            Container::of(&store, request_with(container, &args, ipam, "/", ""))
        };
        let first = ask("f00d", "10.1.0.77");
        for _ in 0..2 {
            assert_eq!(first.add().await, ["10.1.0.77".parse::<IpAddr>().unwrap()]);
        }
        assert_eq!(first.held().await, 1);
        let other =
            Container::of(&store, request_with("beef", "IP=10.1.0.77", r#"{"type":"calico-ipam"}"#, "/", ""));
        assert!(other.work().take(None).await.is_err(), "it is taken");
        assert_eq!(first.held().await, 1);
    });
}

#[test]
fn a_container_has_the_labels_of_its_mesos_task() {
    // calico-cni.md sections 2.3 step 5 and 2.4
    run(async {
        let store = planted().await;
        let args = r#","args":{"org.apache.mesos":{"network_info":{"labels":{"labels":[{"key":"DCOS_SPACE","value":"/a/b/c"}]}}}}"#;
        let task = Container::of(&store, request_with("f00d", "", r#"{"type":"calico-ipam"}"#, "/", args));
        task.add().await;
        let stored = task.work().records.of_workload(&task.work().id).await.unwrap().unwrap();
        assert_eq!(stored.endpoint.labels, BTreeMap::from([("DCOS_SPACE".to_owned(), "a.b.c".to_owned())]));
    });
}
