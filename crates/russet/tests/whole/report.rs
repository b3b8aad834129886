//! `russet report`: what the archive has, that no secret of the node is in it, and that nothing keeps it from being written.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use russet_testkit::{Random, eventually, run};
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{Answer, TIMEOUT, TestNode};

const RUSSET: &str = env!("CARGO_BIN_EXE_russet");
/// The body of a private key: each line is a secret.
const KEY: [&str; 2] = [
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgkX",
    "K2DvTqkNCjLRMLm3xFYxtcCNk9lIVjzE1hC0D0hLihRANCAAQ",
];
/// The secrets of the node, by where they are set.
const BY_FLAG: &str = "Flag-Pa55word";
const BY_ENVIRONMENT: &str = "Environment+Pa55/word";
const BY_FILE: &str = "File \"Pa55\" word";
const TOKEN: &str = "kubeconfig-t0ken-7d1f";
const OF_NETWORK: &str = "network-t0ken-99ab";
const OF_POD: &str = "pod-swordfish-4711";
const SECRETS: [&str; 8] = [BY_FLAG, BY_ENVIRONMENT, BY_FILE, TOKEN, OF_NETWORK, OF_POD, KEY[0], KEY[1]];
/// The same in other notations.
const IN_OTHER_FORMS: [&str; 4] = [
    "RmxhZy1QYTU1d29yZA==",
    "Environment%2BPa55%2Fword",
    "File \\\"Pa55\\\" word",
    "cnVzc2V0OkZsYWctUGE1NXdvcmQ=",
];

/// A file below the node's root, whose path is returned.
fn write(root: &Path, path: &str, text: &str) -> String {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Text that cannot be compressed below half of its size, in lines.
fn noise(bytes: usize) -> String {
    let mut random = Random::of_thread(18, 0);
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(&format!("{:016x}{:016x}\n", random.below(usize::MAX), random.below(usize::MAX)));
    }
    text
}

/// The archive's directory, unpacked below `to`, and its bytes, not compressed.
fn unpack(archive: &Path, to: &Path) -> (PathBuf, Vec<u8>) {
    run("tar", &["-xzf", archive.to_str().unwrap(), "-C", to.to_str().unwrap()]);
    let bytes = Command::new("gzip").arg("-dc").arg(archive).output().unwrap();
    assert!(bytes.status.success());
    (to.join("russet-report"), bytes.stdout)
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The entry of the index whose source is this.
fn part<'a>(index: &'a Value, source: &str) -> &'a Value {
    let parts = index["parts"].as_array().unwrap();
    let found = parts.iter().find(|part| part["source"].as_str().unwrap().ends_with(source));
    found.unwrap_or_else(|| panic!("no part {source}: {index:#}"))
}

/// Sets up a node's secrets in every way in which a node has them.
fn set_up_secrets(node: &mut TestNode) {
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n{}\n-----END PRIVATE KEY-----\n", KEY[0], KEY[1]);
    let root = node.root().to_owned();
    let key = write(&root, "etc/russet/key.pem", &pem);
    let password = write(&root, "etc/russet/password", &format!("{BY_FLAG}\n"));
    let kubeconfig = format!("users: [{{name: u, user: {{token: {TOKEN}, client-key: {key}}}}}]\n");
    let kubeconfig = write(&root, "etc/cni/net.d/kubeconfig", &kubeconfig);
    let calicoctl = json!({"spec": {"etcdEndpoints": "http://10.0.0.1:2379", "etcdPassword": BY_FILE}});
    write(&root, "etc/calico/calicoctl.cfg", &calicoctl.to_string());
    let conflist = json!({"name": "lan", "plugins": [{"type": "bridge", "policy": {"k8s_auth_token": OF_NETWORK},
        "kubernetes": {"kubeconfig": kubeconfig}}]});
    write(&root, "etc/cni/net.d/90-lan.conflist", &conflist.to_string());
    let args =
        ["--allow-plaintext-credentials", "--etcd-username", "russet", "--etcd-password-file", &password];
    node.agent_args.extend(args.map(str::to_owned));
    node.agent_args.extend(["--log-level".to_owned(), "debug".to_owned()]);
    node.agent_env.push(("ETCD_PASSWORD".to_owned(), BY_ENVIRONMENT.to_owned()));
    node.agent_env.push(("ETCD_KEY_FILE".to_owned(), key));
}

/// An etcd that asks for a user and a password.
fn require_a_password(fabric: &Fabric) {
    for words in [
        &["user", "add", &format!("russet:{BY_FLAG}")][..],
        &["role", "add", "root"],
        &["user", "grant-role", "russet", "root"],
        &["user", "add", "root:another"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        fabric.etcdctl(words);
    }
}

/// Attaches the pod `shop/web` with secrets in its arguments and in its network's configuration; returns its address.
fn attach_with_secrets(node: &mut TestNode) -> String {
    let pod = node.pod();
    let netns = pod.path();
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", pod.container.as_str()),
        ("CNI_NETNS", netns.to_str().unwrap()),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", &format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;API_CODE={OF_POD}")),
    ];
    let config = node.config(json!({"policy": {"k8s_auth_token": OF_NETWORK}}));
    let added: Answer = node.run(&env, config.to_string().as_bytes());
    added.addresses()[0].clone()
}

/// The parts of a report in `directory`, with what they are about.
fn assert_has_the_state(directory: &Path, index: &Value, address: &str) {
    let text =
        |file: &str| std::fs::read_to_string(directory.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let object = |file: &str| -> Value { serde_json::from_str(&text(file)).unwrap() };
    let has =
        |file: &str, what: &str| assert!(text(file).contains(what), "{file} without {what}: {}", text(file));
    assert_eq!((&index["node"], &index["schema"]), (&json!("node-a"), &json!(1)));
    for source in
        ["russet status -o json", "GET /metrics", "russet get ippools -o json", "/proc/self/net/softnet_stat"]
    {
        let part = part(index, source);
        assert!(part["error"].is_null() && part["truncated"] == false, "{part:#}");
        assert_eq!(part["bytes"], text(part["file"].as_str().unwrap()).len());
    }
    assert_eq!(object("status.json")["node"], "node-a");
    assert!(text("status.txt").starts_with("node-a: "));
    assert!(object("doctor.json")["findings"].is_array());
    assert_eq!(object("journal.json")["attachments"][0]["pod"], "shop/web");
    assert!(object("drift.json")["repairs"].is_array());
    assert!(object("owned.json")["objects"][0]["kind"].is_string());
    has("history.jsonl", "shop/web");
    has("kernel/routes4.txt", address);
    has("kernel/nft.txt", "table inet russet");
    has("kernel/links.txt", "vxlan.calico");
    has("kernel/sysctls.txt", "net/ipv4/ip_forward = 1\n");
    has("agent/readyz.txt", "[+]");
    has("agent/metrics.txt", "russet_peers{");
    has("agent/process.txt", "VmRSS");
    assert!(text("agent/log.txt").ends_with("the last line\n"));
    has("settings.toml", "etcd_password_file = ");
    has("cluster/ippools.json", "10.244.0.0/16");
    let network = object("networks/90-lan.conflist");
    assert_eq!(network["plugins"][0]["policy"]["k8s_auth_token"], "[removed]");
}

#[test]
#[ignore = "root: a node on an etcd with users, and a pod; kernel: vxlan; tool: etcd, ip, nft, tar, gzip"]
fn a_report_has_the_state_of_the_node_and_none_of_its_secrets() {
    let mut fabric = Fabric::new();
    let mut node = fabric.node("node-a", &["--ipv6-pool", "none"]);
    require_a_password(&fabric);
    set_up_secrets(&mut node);
    node.start_agent();
    let address = attach_with_secrets(&mut node);
    // Whatever the agent logs: a log with all of them, in the notations of programs.
    let log = write(
        node.root(),
        "log",
        &format!(
            "{}connect with {} and {}\n{} in JSON\n{KEY:?}\nCNI_ARGS=API_CODE={OF_POD};K8S_POD_NAME=web\nthe last line\n",
            node.log(),
            SECRETS[..5].join(" "),
            IN_OTHER_FORMS[..3].join(" "),
            json!({"error": BY_FILE, "headers": {"Authorization": format!("Basic {}", IN_OTHER_FORMS[3])}}),
        ),
    );
    let file = node.path("report.tar.gz");
    let args = ["report", "-o", "json", "--log", &log, "--file", file.to_str().unwrap()];
    let answer = node.russet_inside(&args);
    assert_eq!(answer.status, 0, "{answer:?}");
    assert!(answer.stderr.contains("status.json: "), "{answer:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let (directory, bytes) = unpack(&file, node.root());
    let original = std::fs::read(&log).unwrap();
    for secret in SECRETS.iter().chain(&IN_OTHER_FORMS) {
        assert!(contains(&original, secret), "{secret} was there to be removed");
        assert!(!contains(&bytes, secret), "{secret} is in the archive");
        assert!(!answer.stdout.contains(secret) && !answer.stderr.contains(secret), "{secret}: {answer:?}");
    }
    let index: Value =
        serde_json::from_slice(&std::fs::read(directory.join("report.json")).unwrap()).unwrap();
    println!("{index:#}");
    assert_eq!(index, serde_json::from_str::<Value>(&answer.stdout).unwrap());
    assert!(index["values_removed"].as_u64().unwrap() >= 12, "{index:#}");
    assert_has_the_state(&directory, &index, &address);

    // It is not replaced by mistake.
    let again = node.russet_inside(&args);
    assert!(again.status == 1 && again.stderr.contains("--force"), "{again:?}");
    let answer = node.russet_inside(&["report", "--force", "--log", &log, "--file", file.to_str().unwrap()]);
    assert!(answer.status == 0 && answer.stdout.contains(" secret values were removed"), "{answer:?}");
}

#[test]
fn an_agent_and_a_datastore_that_do_not_answer_and_files_that_are_too_long_do_not_stop_a_report() {
    let root = tempfile::tempdir().unwrap();
    // They accept connections, and that is all.
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings =
        format!("store = \"etcd:http://{}\"\nnode_name = \"node-a\"\n", store.local_addr().unwrap());
    write(root.path(), "etc/russet/russet.toml", &settings);
    let run = root.path().join("run/russet");
    std::fs::create_dir_all(&run).unwrap();
    let _agent = ["cni.sock", "health.sock"].map(|name| UnixListener::bind(run.join(name)).unwrap());
    let noise = noise(3 << 20);
    let log = write(root.path(), "log", &format!("the first line\n{noise}the last line\n"));
    write(root.path(), "var/lib/russet/history", &noise);
    let mut command = Command::new(RUSSET);
    command.args([
        "report",
        "-o",
        "json",
        "--time-limit",
        "2s",
        "--size-limit",
        "1",
        "--part-limit",
        "1",
        "--root",
    ]);
    let begin = Instant::now();
    let output = command.arg(root.path()).args(["--log", &log]).current_dir(root.path()).output().unwrap();
    let took = begin.elapsed();
    let answer = Answer::from(output);
    assert_eq!(answer.status, 0, "{answer:?}");
    println!("{took:?}\n{}", answer.stderr);
    // Some 20 parts wait for 2 s each, four at a time, and a busy machine is slow.
    assert!(took < Duration::from_secs(60), "{took:?}");

    let file = archive_in(root.path());
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("russet-report-node-a-") && name.ends_with("Z.tar.gz"), "{name}");
    assert!(std::fs::metadata(&file).unwrap().len() <= 1 << 20);
    let (directory, _) = unpack(&file, root.path());
    let index: Value =
        serde_json::from_slice(&std::fs::read(directory.join("report.json")).unwrap()).unwrap();
    println!("{index:#}");
    for source in
        ["russet status -o json", "GET /metrics", "russet get ippools -o json", "russet doctor -o json"]
    {
        let part = part(&index, source);
        assert!(
            part["error"].as_str().is_some_and(|error| error.contains("no answer within 2 s")),
            "{part:#}"
        );
        assert!(part["took_ms"].as_u64().is_some_and(|ms| ms < 20_000), "{part:#}");
    }
    // The end of the log is worth more than its beginning. Both texts do not fit.
    for (source, file) in [("/log", "agent/log.txt"), ("/history", "history.jsonl")] {
        let (part, text) = (part(&index, source), std::fs::read_to_string(directory.join(file)).unwrap());
        assert_eq!((&part["truncated"], &part["bytes"]), (&json!(true), &json!(text.len())), "{part:#}");
        assert!(
            text.lines().last().unwrap().starts_with("[russet report: cut here; this is the end of "),
            "{text}"
        );
        assert!(text.len() <= (1 << 20) + 200 && !text.contains("the first line"));
    }
    let log = std::fs::read_to_string(directory.join("agent/log.txt")).unwrap();
    assert_eq!(log.lines().rev().nth(1), Some("the last line"));
    assert!(log.len() > 500_000, "{}", log.len());
    eventually(TIMEOUT, || !has_children_of(&file));
}

/// The archive that a report has named by itself.
fn archive_in(directory: &Path) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    let mut archives = files.filter(|path| path.extension().is_some_and(|end| end == "gz"));
    archives.next().unwrap()
}

/// Whether a process of the report is still there.
fn has_children_of(file: &Path) -> bool {
    let root = file.parent().unwrap().to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|words| contains(&words, root))
}
