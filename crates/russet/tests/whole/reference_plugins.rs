//! Executables with the reference plugins' names: flannel's shipped conflist as a runtime runs it,
//! without an agent and through one, with Debian's Go plugins in the path and without (flannel.md
//! section 8, docs/plugins.md).

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Child;

use russet_cni_spec::ConfigList;
use russet_linux::NetNs;
use russet_runtime::{Attachment, Runtime};
use russet_testkit as testkit;
use serde_json::{Value, json};

use crate::node::{Answer, PATH, TIMEOUT, TestNode, TestPod};

const GO_PLUGINS: &str = "/usr/lib/cni";
const ENV: &str =
    "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
/// flannel.md section 8: rendered for this `subnet.env` and the shipped conflist.
const RENDERED: &str = r#"{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.5.29.0/24"}]],"routes":[{"dst":"10.5.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#;
/// cni-runtime.md section 5.2
const SHIPPED: &str = r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[
    {"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
    {"type":"portmap","capabilities":{"portMappings":true}}]}"#;

/// A directory with our executable under these names.
pub fn installed(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        symlink(env!("CARGO_BIN_EXE_russet"), dir.path().join(name)).unwrap();
    }
    dir
}

/// Runs the shipped conflist on a machine of its own: fresh `/run` and `/var/lib`, and no agent.
fn shipped_conflist_works(ours: &[&str], more: &[&str]) {
    testkit::in_netns_with_loopback(|| {
        for dir in ["/run", "/var/lib"] {
            testkit::run("mount", &["-t", "tmpfs", "tmpfs", dir]);
        }
        for dir in ["/run/netns", "/run/flannel"] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write("/run/flannel/subnet.env", ENV).unwrap();
        let bin = installed(ours);
        let dirs = [bin.path()].into_iter().chain(more.iter().map(Path::new)).map(PathBuf::from);
        let runtime = Runtime::new(dirs.collect(), "/var/lib/cni");
        let list = ConfigList::parse(SHIPPED.as_bytes()).unwrap();
        let pod = NetNs::create_named("one").unwrap();
        let mut attachment =
            Attachment::new("abc".parse().unwrap(), "/run/netns/one", "eth0".parse().unwrap());
        let mapping = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        attachment.capability_args.insert("portMappings".into(), mapping);
        let result = runtime.add(&list, &attachment).unwrap();
        assert_eq!(result.ips[0].address.to_string(), "10.5.29.2/24");
        assert_eq!(std::fs::read_to_string("/var/lib/cni/flannel/abc").unwrap(), RENDERED);
        assert_eq!(testkit::ip_json(&["link", "show", "cni0"])[0]["mtu"], 1450);
        let listener = pod.with(|| testkit::bound(|| TcpListener::bind("0.0.0.0:80"))).unwrap();
        let accepted = std::thread::spawn(move || listener.accept().unwrap().1);
        let connect = || TcpStream::connect_timeout(&"10.5.29.1:8080".parse().unwrap(), TIMEOUT);
        connect().unwrap();
        accepted.join().unwrap();
        for _ in 0..2 {
            runtime.del(&list, &attachment).unwrap();
            assert!(connect().is_err());
        }
        assert!(!Path::new("/var/lib/cni/flannel/abc").exists());
        assert!(!Path::new("/var/lib/cni/networks/cbr0/10.5.29.2").exists());
        let links = testkit::ip_json(&["link"]);
        let names: Vec<&str> =
            links.as_array().unwrap().iter().map(|it| it["ifname"].as_str().unwrap()).collect();
        assert_eq!(names, ["lo", "cni0"]);
    });
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; root; tool: ip, mount"]
fn t54_flannels_shipped_conflist_works_with_our_plugins_alone() {
    shipped_conflist_works(&["flannel", "portmap", "bridge", "host-local"], &[]);
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; root; tool: ip, mount, the Go plugins bridge and host-local"]
fn t54_flannels_shipped_conflist_works_with_the_go_plugins_as_delegates() {
    shipped_conflist_works(&["flannel", "portmap"], &[GO_PLUGINS]);
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; root; tool: ip, mount, the Go plugin bridge"]
fn t54_flannels_shipped_conflist_works_with_the_go_bridge_on_our_host_local() {
    let go = tempfile::tempdir().unwrap();
    symlink(Path::new(GO_PLUGINS).join("bridge"), go.path().join("bridge")).unwrap();
    shipped_conflist_works(&["flannel", "portmap", "host-local"], &[go.path().to_str().unwrap()]);
}

/// Runs one of our plugins in the node as a runtime does.
pub fn call(node: &TestNode, bin: &Path, name: &str, verb: &str, pod: &TestPod, config: &Value) -> Answer {
    let mut command = pod.call(bin.join(name), verb, bin);
    node.output(command.env("PATH", PATH), config.to_string())
}

#[test]
#[ignore = "kernel: bridge, veth; root; tool: ip"]
fn an_agent_runs_flannel_bridge_and_host_local_in_one_process_whatever_is_in_the_path() {
    let mut node = TestNode::start(&[]);
    // Copies: a plugin that executed them would deadlock with them.
    let bin = tempfile::tempdir().unwrap();
    for name in ["flannel", "bridge", "host-local"] {
        testkit::copy_program(Path::new(env!("CARGO_BIN_EXE_russet")), &bin.path().join(name));
    }
    let env = node.root().join("run/flannel");
    std::fs::create_dir_all(&env).unwrap();
    std::fs::write(env.join("subnet.env"), ENV).unwrap();
    let pod = node.pod();
    let config = node.config(json!({"name": "cbr0", "cniVersion": "1.1.0", "type": "flannel",
        "delegate": {"isDefaultGateway": true}}));
    let added = call(&node, bin.path(), "flannel", "ADD", &pod, &config);
    let result = added.result();
    assert_eq!(result["ips"][0]["address"], "10.5.29.2/24");
    let held = node.root().join("var/lib/cni/networks/cbr0/10.5.29.2");
    assert!(held.exists() && node.root().join("var/lib/cni/flannel").join(&pod.container).exists());
    let mut after = config.clone();
    after["prevResult"] = result.clone();
    for (verb, config) in [("CHECK", &after), ("STATUS", &config), ("DEL", &after), ("DEL", &config)] {
        let answer = call(&node, bin.path(), "flannel", verb, &pod, config);
        assert_eq!(answer.status, 0, "{verb}: {answer:?}");
    }
    assert!(!held.exists());
}

/// Kills a plugin `after` its start, if it still runs then.
fn killed(bin: &Path, name: &str, verb: &str, container: &str, config: &Value, after: std::time::Duration) {
    let mut child = started(bin, name, verb, container, config);
    testkit::let_pass(after);
    let _ = child.kill();
    child.wait().unwrap();
}

fn started(bin: &Path, name: &str, verb: &str, container: &str, config: &Value) -> Child {
    let pod = TestPod { container: container.to_owned(), netns_name: container.to_owned() };
    testkit::spawn_with_input(pod.call(bin.join(name), verb, bin).env("PATH", PATH), config.to_string())
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; root; tool: ip, nft, mount"]
fn whenever_a_plugin_is_killed_del_leaves_nothing() {
    // flannel.md section 0; cni-runtime.md section A.5
    testkit::in_netns_with_loopback(|| {
        for dir in ["/run", "/var/lib"] {
            testkit::run("mount", &["-t", "tmpfs", "tmpfs", dir]);
        }
        std::fs::create_dir_all("/run/netns").unwrap();
        let bin = installed(&["bridge", "host-local", "portmap"]);
        let bridge = json!({"cniVersion": "1.0.0", "name": "n", "type": "bridge", "isDefaultGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]}});
        let portmap = json!({"cniVersion": "1.0.0", "name": "n", "type": "portmap",
            "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]},
            "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/16"}]}});
        for round in 0..24_u32 {
            let container = format!("c{round}");
            NetNs::create_named(&container).unwrap();
            // From immediately to well after the end, whatever the machine's speed.
            let after = std::time::Duration::from_millis(u64::from(round * 8));
            killed(bin.path(), "bridge", "ADD", &container, &bridge, after);
            killed(bin.path(), "portmap", "ADD", &container, &portmap, after);
            killed(bin.path(), "bridge", "DEL", &container, &bridge, after / 2);
            for (name, config) in [("portmap", &portmap), ("bridge", &bridge)] {
                let ended = started(bin.path(), name, "DEL", &container, config).wait().unwrap();
                assert!(ended.success(), "round {round}: {name}");
            }
            let links = testkit::ip_json(&["link"]);
            let strange = |link: &&Value| !["lo", "cni0"].contains(&link["ifname"].as_str().unwrap());
            assert_eq!(links.as_array().unwrap().iter().find(strange), None, "round {round}");
            let held = std::fs::read_dir("/var/lib/cni/networks/n").map_or(0, |entries| {
                let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
                names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).count()
            });
            assert_eq!(held, 0, "round {round}");
            let rules = testkit::run("nft", &["list", "ruleset"]);
            assert!(!rules.contains("russet:n/") && !rules.contains("ports-of-"), "round {round}: {rules}");
        }
    });
}
