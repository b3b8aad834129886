//! One node, one store: an agent's settings apply to plugins without it and to commands, whatever
//! their source was.

use std::io::Read as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use russet_testkit::{Process, bound, eventually};

use crate::configured::Configured;
use crate::fabric::Fabric;
use crate::node::{Answer, SOON, TIMEOUT, TestNode, logged_after};

const STORE: &str = "etcd:http://10.77.0.1:2379";
/// A pool that no other test's pods have: repairs read all namespaces of the machine.
const POOL: &str = "10.246.0.0/24";

/// Runs a verb with only these variables.
fn russet(root: &std::path::Path, args: &[&str], variables: &[(&str, &str)]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(args).arg("--root").arg(root).env_clear().envs(variables.iter().copied());
    command.output().unwrap().into()
}

fn record(root: &std::path::Path, store: &str) {
    std::fs::create_dir_all(root.join("run/russet")).unwrap();
    let text = format!(
        "schema = 1\nstore = {store:?}\nnode_name = 'worker-7'\nipv4_pool = 'none'\nipv6_pool = 'none'\n[origin]\nstore = 'flag --store'\n"
    );
    std::fs::write(root.join("run/russet/settings.toml"), text).unwrap();
}

fn without_its_agent(how: Configured) {
    let mut fabric = Fabric::new();
    let mut node = fabric.node_without_arguments();
    let settings = [("store", STORE), ("node_name", "worker-7"), ("ipv4_pool", POOL), ("ipv6_pool", "none")];
    how.give(&mut node, &settings);
    node.start_agent();
    let (one, two, three) = (node.pod(), node.pod(), node.pod());
    let first = node.add(&one).addresses();
    node.kill_agent();

    let second = node.add(&two).addresses();
    assert_ne!(first, second, "an address was given twice");
    assert!(!node.path("var/lib/russet/store.redb").exists(), "the plugin used a store of its own");
    let handles = || fabric.keys("/calico/ipam/v2/handle/").join(" ");
    assert!(handles().contains(&two.container), "{}", handles());
    let blocks = fabric.keys("/calico/ipam/v2/host/");
    assert!(!blocks.is_empty() && blocks.iter().all(|key| key.contains("/worker-7/")), "{blocks:?}");
    let shown = node.russet_inside(&["ipam", "show", "-v"]);
    assert!(shown.stdout.contains(POOL) && shown.stderr.contains(STORE), "{shown:?}");

    fabric.kill_etcd();
    assert_eq!(node.add(&three).code(), 11, "no etcd, no address");
    assert!(!node.path("var/lib/russet/store.redb").exists(), "the plugin fell back to a store of its own");
    fabric.start_etcd();
    eventually(TIMEOUT, || fabric.etcd_serves());
    for pod in [&one, &two, &three] {
        assert_eq!(node.del(pod).status, 0);
    }
    let handles = fabric.keys("/calico/ipam/v2/handle/").join(" ");
    assert!(!handles.contains(&one.container) && !handles.contains(&two.container), "{handles}");
    node.start_agent();
    assert!(!node.log().contains("had another setting"), "{}", node.log());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip"]
fn a_plugin_uses_the_store_of_a_killed_agent_that_was_set_up_by_flags() {
    without_its_agent(Configured::Flags);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip"]
fn a_plugin_uses_the_store_of_a_killed_agent_that_was_set_up_by_variables() {
    without_its_agent(Configured::Environment);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip"]
fn a_plugin_uses_the_store_of_a_killed_agent_that_was_set_up_by_its_file() {
    without_its_agent(Configured::File);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn without_the_agent_an_add_is_refused_where_the_settings_file_disagrees_and_a_del_succeeds() {
    let mut node = TestNode::start(&["--ipv4-pool", POOL, "--ipv6-pool", "none"]);
    let (one, two) = (node.pod(), node.pod());
    assert_eq!(node.add(&one).status, 0);
    node.kill_agent();
    Configured::File.give(&mut node, &[("store", "etcd:http://127.0.0.1:1")]);
    let refused = node.add(&two);
    assert_eq!(refused.code(), 11);
    let details = refused.error()["details"].as_str().unwrap().to_owned();
    for part in
        ["store embedded", "run/russet/settings.toml", "etc/russet/russet.toml says etcd:http://127.0.0.1:1"]
    {
        assert!(details.contains(part), "{part}: {details}");
    }
    assert_eq!(node.del(&one).status, 0);
    assert_eq!(node.allocated(), 0, "it was given back to the store that it came from");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn without_the_agent_and_its_records_no_store_is_guessed() {
    let mut node = TestNode::start(&["--ipv4-pool", POOL, "--ipv6-pool", "none"]);
    let (one, two) = (node.pod(), node.pod());
    assert_eq!(node.add(&one).status, 0);
    node.kill_agent();
    let records = ["run/russet/settings.toml", "var/lib/russet/settings.toml"].map(|name| node.path(name));
    std::fs::remove_file(&records[0]).unwrap();
    assert_eq!(node.add(&two).status, 0, "the copy holds");
    records.iter().for_each(|record| std::fs::write(record, "sto").unwrap());
    assert_eq!((node.add(&two).code(), node.del(&two).code()), (11, 11));
    let shown = node.russet(&["ipam", "show"]);
    assert!(shown.status == 1 && shown.stderr.contains("settings.toml"), "{shown:?}");
    node.start_agent();
    for pod in [&one, &two] {
        assert_eq!(node.del(pod).status, 0);
    }
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn an_agent_with_another_store_than_the_last_logs_it_and_warns_of_pods() {
    let mut node = TestNode::start(&["--node-name", "old", "--ipv4-pool", POOL, "--ipv6-pool", "none"]);
    let pod = node.pod();
    assert_eq!(node.add(&pod).status, 0);
    node.stop_agent();
    node.agent_args[1] = "new".to_owned();
    node.start_agent();
    let log = node.log();
    assert!(log.contains("had another setting") && log.contains("attached=1"), "{log}");
    node.stop_agent();
    node.start_agent();
    assert_eq!(node.log().matches("had another setting").count(), 1, "{}", node.log());
}

#[test]
fn a_reading_verb_creates_no_store_and_names_the_one_it_looked_for() {
    let root = tempfile::tempdir().unwrap();
    let looked = russet(root.path(), &["ipam", "show"], &[]);
    assert!(looked.status == 1 && looked.stderr.contains("there is no store at"), "{looked:?}");
    assert!(looked.stderr.contains("(default)"), "{looked:?}");
    assert!(!root.path().join("var").exists(), "a state directory was made");
    // A state directory alone is not a store.
    std::fs::create_dir_all(root.path().join("var/lib/russet")).unwrap();
    for args in [&["ipam", "show"][..], &["get", "ippools"], &["store", "dump"], &["netnamespace", "list"]] {
        let looked = russet(root.path(), args, &[]);
        assert!(looked.status == 1 && looked.stderr.contains("there is no store at"), "{looked:?}");
    }
    assert_eq!(std::fs::read_dir(root.path().join("var/lib/russet")).unwrap().count(), 0);
}

#[test]
fn a_verb_uses_its_flag_its_variable_and_the_agents_record_in_this_order() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("etc/russet")).unwrap();
    std::fs::write(root.path().join("etc/russet/russet.toml"), "store = 'unix:/nowhere/file'").unwrap();
    let said = |args: &[&str], variables: &[(&str, &str)]| {
        let answer = russet(root.path(), args, variables);
        assert_eq!(answer.status, 1, "{answer:?}");
        answer.stderr.lines().find(|line| line.starts_with("store: ")).unwrap_or_default().to_owned()
    };
    let file = root.path().join("etc/russet/russet.toml").display().to_string();
    assert_eq!(said(&["ipam", "show"], &[]), format!("store: unix:/nowhere/file ({file})"));
    record(root.path(), "unix:/nowhere/recorded");
    let recorded = said(&["ipam", "show"], &[]);
    assert!(recorded.starts_with("store: unix:/nowhere/recorded (the agent's settings in "), "{recorded}");
    assert!(recorded.ends_with("there from flag --store)"), "{recorded}");
    let variable = [("RUSSET_STORE", "unix:/nowhere/variable")];
    assert_eq!(said(&["ipam", "show"], &variable), "store: unix:/nowhere/variable (variable RUSSET_STORE)");
    let flag = ["ipam", "show", "--store", "unix:/nowhere/flag"];
    assert_eq!(said(&flag, &variable), "store: unix:/nowhere/flag (flag --store)");
}

#[test]
fn calicoctls_configuration_is_the_last_source_of_the_store() {
    let root = tempfile::tempdir().unwrap();
    let variables = [("ETCD_ENDPOINTS", "http://127.0.0.1:1"), ("DATASTORE_TYPE", "etcdv3")];
    let shown = russet(root.path(), &["ipam", "show"], &variables);
    assert_eq!(shown.status, 1, "{shown:?}");
    assert!(
        shown.stderr.contains("etcd:http://127.0.0.1:1") && shown.stderr.contains("variable ETCD_ENDPOINTS"),
        "{shown:?}"
    );
    assert!(!root.path().join("var").exists(), "a store was made");
    let kubernetes = russet(root.path(), &["ipam", "show"], &[("DATASTORE_TYPE", "kubernetes")]);
    assert!(kubernetes.status == 1 && kubernetes.stderr.contains("Kubernetes"), "{kubernetes:?}");
}

#[test]
fn an_agent_in_calicos_place_does_not_start_on_a_store_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(["agent", "--calico", "--root"]).arg(root.path()).env_clear();
    let mut agent = Process::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    eventually(TIMEOUT, || agent.has_ended().is_some());
    let mut refused = String::new();
    agent.stderr.take().unwrap().read_to_string(&mut refused).unwrap();
    for remedy in ["--store etcd:URL", "calicoctl.cfg"] {
        assert!(refused.contains(remedy), "{refused}");
    }
    assert!(!root.path().join("var").exists() && !root.path().join("run").exists());
}

#[test]
#[ignore = "root: makes network namespaces"]
fn an_agent_whose_etcd_is_away_says_so_long_before_its_requests_run_out() {
    for (is_silent, logged) in [(true, "the store does not answer yet"), (false, "refused")] {
        let node = TestNode::without_agent(&["--store", "etcd:http://127.0.0.1:2379"]);
        // It never accepts: connections are established, and not answered.
        let listen = || bound(|| TcpListener::bind("127.0.0.1:2379"));
        let _listener = is_silent.then(|| node.netns().with(listen).unwrap());
        let _agent = node.spawn_agent();
        eventually(TIMEOUT, || node.log().contains(logged));
        assert!(logged_after(&node.log(), logged) < SOON, "{}", node.log());
        if is_silent {
            assert!(
                !node.log().contains("the loop starts again"),
                "later than the first error:\n{}",
                node.log()
            );
        }
        eventually(TIMEOUT, || node.get("/readyz?verbose").contains("[-] store: "));
        let output = node.get("/readyz?verbose");
        assert!(output.contains("127.0.0.1:2379") && !output.contains("store: not yet"), "{output}");
    }
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_password_of_the_agents_environment_is_warned_of_once_and_named_by_plugins_without_it() {
    const PASSWORD: &str = "opensesame";
    let mut node = TestNode::without_agent(&["--calico"]);
    for (name, value) in [
        ("ETCD_ENDPOINTS", "http://127.0.0.1:2379"),
        ("ETCD_USERNAME", "russet"),
        ("ETCD_PASSWORD", PASSWORD),
    ] {
        node.agent_env.push((name.to_owned(), value.to_owned()));
    }
    {
        let _agent = node.spawn_agent();
        eventually(TIMEOUT, || node.log().contains("--etcd-password-file"));
        eventually(TIMEOUT, || !node.get("/readyz?verbose").is_empty());
    }
    let log = node.log();
    assert_eq!(log.matches("etcd's password is in the environment of this agent only").count(), 1, "{log}");
    assert!(log.contains("variable ETCD_ENDPOINTS") && !log.contains(PASSWORD), "{log}");
    let pod = node.pod();
    let added = node.add(&pod);
    assert_ne!(added.status, 0);
    let text = added.error().to_string();
    assert!(text.contains("variable ETCD_ENDPOINTS") && text.contains("--etcd-password-file"), "{text}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn an_etcd_that_is_lost_while_the_agent_runs_is_one_warning_and_one_when_it_is_back() {
    /// The client finds out within its own limits, and etcd needs time to start.
    const DEADLINE: Duration = Duration::from_secs(60);
    /// Above what the metric says while etcd is asked every 10 s.
    const SILENT_S: f64 = 12.0;
    const LOST: &str = "etcd has not answered for 10 s";
    const BACK: &str = "etcd answers again";
    let mut fabric = Fabric::new();
    let mut node = fabric.node("a", &[]);
    node.start_agent();
    let is_ready = || node.get("/readyz?verbose").starts_with("HTTP/1.1 200");
    let silence = || {
        let text = node.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix("russet_store_silence_seconds "));
        line.and_then(|value| value.trim().parse::<f64>().ok()).unwrap()
    };
    eventually(TIMEOUT, is_ready);
    fabric.kill_etcd();
    eventually(DEADLINE, || node.log().contains(LOST));
    // Longer than until the warning: it is not repeated.
    eventually(DEADLINE, || silence() > SILENT_S);
    assert!(is_ready(), "pods that are attached keep their network: {}", node.get("/readyz?verbose"));
    assert_eq!(node.log().matches(LOST).count(), 1, "{}", node.log());
    assert!(!node.log().contains(BACK), "{}", node.log());
    fabric.start_etcd();
    eventually(DEADLINE, || node.log().contains(BACK));
    eventually(DEADLINE, || silence() < SILENT_S);
    assert!(is_ready());
    assert_eq!(
        (node.log().matches(LOST).count(), node.log().matches(BACK).count()),
        (1, 1),
        "{}",
        node.log()
    );
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_pool_of_the_flags_that_is_not_used_is_named_in_the_log() {
    let mut node = TestNode::start(&["--ipv4-pool", "10.98.0.0/16"]);
    let unused = "a setting of pools is not used: the store has pools already";
    assert!(!node.log().contains(unused), "{}", node.log());
    node.stop_agent();
    node.agent_args[1] = "10.99.0.0/16".to_owned();
    node.start_agent();
    eventually(TIMEOUT, || node.log().contains(unused));
    let log = node.log();
    let line = log.lines().find(|line| line.contains(unused)).unwrap();
    assert!(line.contains("--ipv4-pool 10.99.0.0/16") && line.contains("10.98.0.0/16"), "{line}");
}
