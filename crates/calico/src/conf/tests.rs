use std::collections::BTreeMap;
use std::time::Duration;

use russet_cni_spec::code;
use russet_model::Key;
use russet_store::{Sim, Step, Store};
use russet_store_etcd::Secret;

use super::datastore::EtcdMembers;
use super::node_name::NodeChoice;
use super::*;

fn request(config: &str, vars: &[(&str, &str)]) -> Request {
    let config = format!(r#"{{"name":"net","type":"calico"{config}}}"#);
    let all = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", "/run/netns/none"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/"),
    ];
    Request::new(all.iter().chain(vars).copied(), config.into_bytes()).unwrap()
}

fn read(config: &str, vars: &[(&str, &str)]) -> CalicoConf {
    CalicoConf::read(&request(config, vars)).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(config: &str) -> CniError {
    CalicoConf::read(&request(config, &[])).unwrap_err()
}

fn endpoints(config: &str, vars: &[(&str, &str)]) -> Vec<String> {
    read(config, vars).datastore.etcd_v3().unwrap().endpoints
}

#[test]
fn the_configuration_that_calico_ships_is_read_unmodified() {
    // calico-cni.md section 1.8
    let conf = read(
        r#","cniVersion":"1.0.0","log_level":"info","log_file_path":"/var/log/calico/cni/cni.log","datastore_type":"kubernetes",
            "nodename":"worker-1","mtu":0,"ipam":{"type":"calico-ipam"},"policy":{"type":"k8s"},
            "kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"}"#,
        &[],
    );
    assert_eq!((conf.mtu_bytes, conf.num_queues, conf.nodename.as_deref()), (None, 1, Some("worker-1")));
    assert_eq!(conf.datastore.kind, DatastoreKind::Kubernetes);
    assert_eq!(conf.kubernetes.kubeconfig.as_deref(), Some(Path::new("/etc/cni/net.d/calico-kubeconfig")));
    assert!(conf.policy.is_k8s() && conf.ipam.is_calico());
    assert!(conf.ipam.assign_ipv4 && !conf.ipam.assign_ipv6);
    assert_eq!(conf.log.file.as_deref(), Some(Path::new("/var/log/calico/cni/cni.log")));
    assert_eq!((conf.log.level, conf.log.file_max_bytes), (russet_wiring::LogLevel::Info, 100_000_000));
}

#[test]
fn null_means_absent_and_unknown_members_are_ignored() {
    // Go's decoder leaves a field alone for null
    let conf =
        read(r#","nodename":null,"mtu":null,"ipam":null,"policy":null,"etcd_endpoints":null,"x":[1]"#, &[]);
    assert_eq!((conf.nodename, conf.mtu_bytes), (None, None));
    assert!(conf.ipam.assign_ipv4);
}

#[test]
fn a_member_of_the_wrong_type_is_named() {
    for (config, named) in [
        (r#","ipam":{"assign_ipv4":false}"#, "ipam.assign_ipv4"),
        (r#","ipam":{"ipv4_pools":"10.0.0.0/8"}"#, "ipam.ipv4_pools"),
        (r#","mtu":"1500""#, "mtu"),
        (r#","mtu":-1"#, "mtu"),
        (r#","feature_control":[]"#, "feature_control"),
        (r#","readiness_gates":"http://a""#, "readiness_gates"),
        (r#","policy_setup_timeout_seconds":-1"#, "policy_setup_timeout_seconds"),
        (r#","log_file_path":"cni.log""#, "log_file_path"),
        (r#","datastore_type":"consul""#, "datastore_type"),
    ] {
        let error = refused(config);
        assert_eq!(error.code, code::INVALID_CONFIG, "{config}");
        assert!(error.msg.starts_with(&format!("{named} ")), "{config}: {error}");
    }
    assert!(refused(r#","ipam":{"assign_ipv6":true}"#).details.contains("in quotes"));
}

#[test]
fn only_the_exact_texts_switch_families() {
    // calico-ipam.md section 4.1
    let families = |v4: &str, v6: &str| {
        let conf = read(&format!(r#","ipam":{{"assign_ipv4":{v4},"assign_ipv6":{v6}}}"#), &[]);
        (conf.ipam.assign_ipv4, conf.ipam.assign_ipv6)
    };
    assert_eq!(families("null", "null"), (true, false));
    assert_eq!(families(r#""false""#, r#""true""#), (false, true));
    assert_eq!(families(r#""False""#, r#""True""#), (true, false));
    assert_eq!(families(r#""""#, r#""1""#), (true, false));
}

#[test]
fn a_prefixed_variable_beats_the_configuration_which_beats_the_bare_variable() {
    // calico-ipam.md section 4.1
    let bare = ("ETCD_ENDPOINTS", "http://bare:1");
    let prefixed = ("CALICO_ETCD_ENDPOINTS", "http://prefixed:1");
    let given = r#","etcd_endpoints":"http://given:1,http://given:2""#;
    assert_eq!(endpoints("", &[bare]), ["http://bare:1"]);
    assert_eq!(endpoints(given, &[bare]), ["http://given:1", "http://given:2"]);
    assert_eq!(endpoints(given, &[bare, prefixed]), ["http://prefixed:1"]);
    let kind = |vars: &[(&str, &str)]| read(r#","datastore_type":"etcdv3""#, vars).datastore.kind;
    assert_eq!(kind(&[("DATASTORE_TYPE", "kubernetes")]), DatastoreKind::EtcdV3);
    assert_eq!(kind(&[("CALICO_DATASTORE_TYPE", "kubernetes")]), DatastoreKind::Kubernetes);
    let here = r#","etcd_endpoints":"http://127.0.0.1:1""#;
    let conf = read(here, &[("ETCD_USERNAME", "root"), ("CALICO_ETCD_PASSWORD", "opensesame")]);
    let settings = conf.datastore.etcd_v3().unwrap();
    assert_eq!(settings.username.as_deref(), Some("root"));
    assert!(settings.password.is_some() && !format!("{conf:?}").contains("opensesame"));
}

#[test]
fn the_datastore_is_the_one_that_was_meant() {
    // calico-cni.md sections 0.2 and 1.7
    let kind = |config: &str| {
        let datastore = read(config, &[]).datastore;
        (datastore.kind, datastore.explicit)
    };
    assert_eq!(kind(r#","etcd_endpoints":"http://a:1""#), (DatastoreKind::EtcdV3, false));
    assert_eq!(kind(""), (DatastoreKind::Kubernetes, false));
    assert_eq!(kind(r#","etcd_authority":"10.0.0.1:2379""#), (DatastoreKind::EtcdV2, false));
    assert_eq!(
        kind(r#","datastore_type":"etcdv3","etcd_scheme":"http","etcd_endpoints":"http://a:1""#),
        (DatastoreKind::EtcdV3, true)
    );
    let conf = read(r#","datastore_type":"etcdv2","etcd_endpoints":"http://a:1""#, &[]);
    let error = conf.datastore.etcd_v3().unwrap_err();
    assert_eq!(error.code, code::UNSUPPORTED_FIELD);
    assert!(error.msg.contains("etcdv2") && error.details.contains("etcdv3"), "{error}");
    assert_eq!(
        kind(r#","datastore_type":"kubernetes","etcd_endpoints":"http://a:1""#),
        (DatastoreKind::Kubernetes, true)
    );
}

#[test]
fn endpoints_and_discovery_exclude_each_other() {
    // calico-ipam.md section 4.1
    let conf = read(r#","etcd_endpoints":"http://a:1","etcd_discovery_srv":"example.org""#, &[]);
    assert_eq!(conf.datastore.etcd_v3().unwrap_err().code, code::INVALID_CONFIG);
    let conf = read(r#","etcd_discovery_srv":"example.org""#, &[]);
    assert_eq!(conf.datastore.etcd_v3().unwrap_err().code, code::UNSUPPORTED_FIELD);
}

#[test]
fn certificates_go_to_https_endpoints_only() {
    let files = r#","etcd_key_file":"/k","etcd_cert_file":"/c","etcd_ca_cert_file":"/ca""#;
    let with = |endpoint: &str| {
        let conf = read(&format!(r#","etcd_endpoints":"{endpoint}"{files}"#), &[]);
        let settings = conf.datastore.etcd_v3().unwrap();
        (settings.key.is_some(), settings.cert.is_some(), settings.ca.is_some())
    };
    assert_eq!(with("https://a:1"), (true, true, true));
    assert_eq!(with("http://a:1"), (false, false, false));
    let remarks = |more: &str| read(&format!("{files}{more}"), &[]).remarks().len();
    assert_eq!(remarks(r#","etcd_endpoints":"http://a:1","hostname":"old""#), 2);
    assert_eq!(remarks(r#","etcd_endpoints":"https://a:1","hostname":"old","nodename":"new""#), 0);
}

#[test]
fn secrets_do_not_print() {
    let conf = read(
        r#","policy":{"type":"k8s","k8s_auth_token":"opensesame","k8s_api_root":"https://k:6443/api/v1/"}"#,
        &[],
    );
    assert!(!format!("{conf:?}").contains("opensesame"));
    assert_eq!(conf.kubernetes.token, Some(Secret::new("opensesame")));
    assert_eq!(conf.kubernetes.api_root.as_deref(), Some("https://k:6443"));
}

#[test]
fn labels_of_mesos_are_read() {
    // calico-cni.md section 1.2
    let conf = read(
        r#","args":{"org.apache.mesos":{"network_info":{"name":"n","labels":{"labels":[{"key":"k","value":"v"},{"key":"e"}]}}}}"#,
        &[("FELIX_INTERFACEPREFIX", "tap,cali")],
    );
    assert_eq!(conf.mesos_labels, [("k".to_owned(), "v".to_owned()), ("e".to_owned(), String::new())]);
    assert_eq!(conf.interface_prefix.as_deref(), Some("tap"));
}

#[test]
fn without_a_version_the_answer_has_calicos() {
    // calico-cni.md section 1.1
    assert_eq!(read("", &[]).result_version, Version::V0_2_0);
    assert_eq!(read(r#","cniVersion":"0.1.0""#, &[]).result_version, Version::V0_1_0);
    assert_eq!(read(r#","cniVersion":"0.4.0""#, &[]).result_version, Version::V0_4_0);
}

/// The choice on a node whose nodename file contains `file`.
fn choice(config: &str, file: Option<&str>) -> Result<NodeChoice, CniError> {
    let root = tempfile::tempdir().unwrap();
    if let Some(text) = file {
        let path = root.path().join(NODENAME_FILE);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    read(config, &[]).node_choice(root.path())
}

fn name(choice: Result<NodeChoice, CniError>) -> String {
    match choice.unwrap() {
        NodeChoice::Name(name) => name.to_string(),
        NodeChoice::Trimmed { name, .. } => format!("{name}?"),
    }
}

#[test]
fn the_node_is_named_by_nodename_then_file_then_hostname_then_host() {
    // calico-cni.md section 1.6
    let both = r#","nodename":"Given-1","hostname":"old""#;
    assert_eq!(name(choice(both, Some("filed"))), "Given-1");
    assert_eq!(name(choice(r#","hostname":"old""#, Some("filed"))), "filed");
    assert_eq!(name(choice(r#","hostname":"old""#, Some(""))), "old");
    assert_eq!(name(choice(r#","hostname":"old""#, None)), "old");
    let host = rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase();
    assert_eq!(name(choice("", None)), host);
    assert_eq!(choice(r#","nodename":"a b""#, None).unwrap_err().code, code::INVALID_CONFIG);
    assert_eq!(choice("", Some("a\nb")).unwrap_err().code, code::INVALID_CONFIG);
    assert_eq!(choice("", Some(&"a".repeat(5000))).unwrap_err().code, code::INVALID_CONFIG);
}

#[test]
fn a_newline_in_the_file_is_left_out_only_if_there_is_a_node_of_that_name() {
    // calico-cni.md section 7.2, calico-ipam.md section 9, MUST 3
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = Sim::atomic(1);
        assert_eq!(name(choice("", Some("node-a\n"))), "node-a?");
        let unknown = choice("", Some("node-a\n")).unwrap().resolve(&store).await.unwrap_err();
        assert_eq!(unknown.code, code::INVALID_CONFIG);
        let key = Key::node(&"node-a".parse().unwrap());
        store.commit(vec![Step::create(key, b"{}".to_vec())]).await.unwrap();
        let known = choice("", Some("node-a\n")).unwrap().resolve(&store).await.unwrap();
        assert_eq!(known.as_str(), "node-a");
    });
}

#[test]
fn only_the_main_plugin_insists_on_the_nodename_file() {
    // calico-cni.md section 1.3
    let root = tempfile::tempdir().unwrap();
    let error = read("", &[]).require_nodename_file(root.path()).unwrap_err();
    assert!(
        error.msg.contains("var/lib/calico/nodename") && error.details.contains("mounted /var/lib/calico/")
    );
    read(r#","nodename_file_optional":true"#, &[]).require_nodename_file(root.path()).unwrap();
}

#[test]
fn defaults_lie_below_the_root() {
    let conf = read(r#","ipam_lock_file":"/run/lock""#, &[]);
    let paths = BTreeMap::from([
        ("lock", conf.ipam_lock_file(Path::new("/"))),
        ("name", conf.nodename_file(Path::new("/"))),
        ("status", conf.endpoint_status_dir(Path::new("/t"))),
    ]);
    assert_eq!(paths["lock"], Path::new("/run/lock"));
    assert_eq!(paths["name"], Path::new("/var/lib/calico/nodename"));
    assert_eq!(paths["status"], Path::new("/t/var/run/calico/endpoint-status"));
}

#[test]
fn an_etcd_that_is_silent_is_named_before_the_plugin_stops_waiting_for_its_agent() {
    let conf = read(r#","datastore_type":"etcdv3","etcd_endpoints":"http://silent:2379""#, &[]);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let asked = async {
        let begun = tokio::time::Instant::now();
        let silent = std::future::pending::<Result<(), CniError>>();
        (conf.datastore.answer_in_time(silent).await.unwrap_err(), begun.elapsed())
    };
    let (error, waited) = runtime.block_on(asked);
    // `STATUS_DEADLINE` of cni/src/relay.rs: after it, the plugin would name the agent.
    assert!(waited < Duration::from_secs(4), "{waited:?}");
    assert_eq!(error.code, code::TRY_AGAIN_LATER);
    assert!(error.msg.contains("etcd") && error.details.contains("http://silent:2379"), "{error}");
    let answered = conf.datastore.answer_in_time(std::future::ready(Ok(7)));
    assert_eq!(runtime.block_on(answered), Ok(7));
}

#[test]
fn etcds_password_comes_from_a_file_and_does_not_go_to_another_machine_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "opensesame\n").unwrap();
    let members = |endpoints: &str, allow_plaintext: bool| EtcdMembers {
        endpoints: Some(endpoints.to_owned()),
        username: Some("calico".to_owned()),
        password_file: Some(file.clone()),
        allow_plaintext,
        ..EtcdMembers::default()
    };
    let settings = members("http://127.0.0.1:2379", false).v1_settings().unwrap();
    assert_eq!(settings.password, Some(Secret::new("opensesame")));
    let refused = members("http://10.0.0.1:2379", false).v1_settings().unwrap_err();
    assert!(refused.msg.contains("http://10.0.0.1:2379 in clear text"), "{refused}");
    members("http://10.0.0.1:2379", true).v1_settings().unwrap();
    let missing = EtcdMembers {
        password_file: Some(dir.path().join("none")),
        ..members("http://127.0.0.1:2379", false)
    };
    let missing = missing.v1_settings().unwrap_err();
    assert!(missing.msg.contains("etcd_password_file") && missing.msg.contains("none"), "{missing}");
}
