//! Debian's containerd with a plugin that fails, is missing or takes too long: Russet's plugins
//! leave nothing behind.

use std::path::{Path, PathBuf};
use std::time::Duration;

use russet_testkit::cri::{Pod, StatusCode, v1};
use russet_testkit::{eventually, write_program};
use serde_json::{Value, json};

use crate::containerd::Containerd;
use crate::node::{TIMEOUT, TestNode};

/// The last plugin of a chain; it behaves as files beside it say, and records its verbs.
const FAULTY_PLUGIN: &str = r#"#!/usr/bin/python3
import json, os, sys, time
request, verb, here = json.load(sys.stdin), os.environ["CNI_COMMAND"], "HERE"
if verb == "VERSION":
    print(json.dumps({"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}))
    sys.exit()
with open(here + ".log", "a") as log:
    log.write(verb + "\n")
if verb == "ADD":
    if os.path.exists(here + ".slow"):
        time.sleep(30)
    if os.path.exists(here + ".broken"):
        print(json.dumps({"cniVersion": "1.0.0", "code": 100, "msg": "the plugin fails on request"}))
        sys.exit(1)
    print(json.dumps(request["prevResult"]))
"#;

/// Longer than the plugins before the last one take, and shorter than that one.
const DEADLINE: Duration = Duration::from_secs(10);

/// The plugin's path.
struct FaultyPlugin(PathBuf);

// === impl FaultyPlugin ===

impl FaultyPlugin {
    fn install(plugins: &Path) -> Self {
        let path = plugins.join("faulty");
        write_program(&path, &FAULTY_PLUGIN.replace("HERE", path.to_str().unwrap()));
        Self(path)
    }

    fn beside(&self, ending: &str) -> PathBuf {
        self.0.with_extension(ending)
    }

    /// The plugin has this fault during `work`.
    fn while_it_is(&self, how: &str, work: impl FnOnce()) {
        std::fs::write(self.beside(how), "").unwrap();
        work();
        std::fs::remove_file(self.beside(how)).unwrap();
    }

    /// The verbs since the last call.
    fn take(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.beside("log")).unwrap_or_default();
        let _ = std::fs::remove_file(self.beside("log"));
        log.lines().map(str::to_owned).collect()
    }
}

fn chain(node: &TestNode) -> Value {
    let ours = node.config(json!({}));
    json!({"cniVersion": "1.0.0", "name": "testnet", "plugins": [
        ours, {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "faulty"}]})
}

fn assert_nothing_is_left(node: &TestNode, containerd: &Containerd) {
    eventually(TIMEOUT, || containerd.cri().sandboxes().unwrap().is_empty());
    eventually(TIMEOUT, || node.allocated() == 0 && node.links().is_empty());
    containerd.assert_forgotten(&[]);
}

#[test]
#[ignore = "root: makes network namespaces; tool: containerd, runc, busybox, ctr, python3"]
fn containerd_detaches_after_a_failing_third_plugin() {
    // cni-runtime.md section 6.2 item 45
    let mut node = TestNode::start(&[]);
    let containerd = Containerd::start(&node, &chain(&node));
    let plugin = FaultyPlugin::install(&containerd.plugins());
    let pod = Pod { host_ports: vec![(18081, 80)], ..Pod::named("web") };
    plugin.while_it_is("broken", || {
        let refused = containerd.cri().run(&pod).unwrap_err();
        assert!(refused.to_string().contains("the plugin fails on request"), "{refused}");
    });
    let verbs = plugin.take();
    assert!(verbs[0] == "ADD" && verbs.len() > 1 && verbs[1..].iter().all(|verb| verb == "DEL"), "{verbs:?}");
    assert_nothing_is_left(&node, &containerd);
    node.stop_agent();
}

#[test]
#[ignore = "root: makes network namespaces; tool: containerd, runc, busybox, ctr, python3"]
fn containerd_removes_a_sandbox_once_its_missing_plugin_is_back() {
    // cni-runtime.md section 6.2 item 46
    let mut node = TestNode::start(&[]);
    let containerd = Containerd::start(&node, &chain(&node));
    let plugin = FaultyPlugin::install(&containerd.plugins());
    std::fs::rename(&plugin.0, plugin.beside("away")).unwrap();
    let refused = containerd.cri().run(&Pod::named("web")).unwrap_err();
    assert!(refused.to_string().contains("faulty"), "{refused}");
    let listed = containerd.cri().list(v1::PodSandboxFilter::default()).unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].state(), v1::PodSandboxState::SandboxNotready);
    std::fs::rename(plugin.beside("away"), &plugin.0).unwrap();
    containerd.cri().stop(&listed[0].id).unwrap();
    containerd.cri().remove(&listed[0].id).unwrap();
    assert_nothing_is_left(&node, &containerd);
    node.stop_agent();
}

#[test]
#[ignore = "root: makes network namespaces; tool: containerd, runc, busybox, ctr, python3"]
fn containerd_detaches_after_an_add_that_missed_its_deadline() {
    // cni-runtime.md section 6.2 item 47
    let mut node = TestNode::start(&[]);
    let containerd = Containerd::start(&node, &chain(&node));
    let plugin = FaultyPlugin::install(&containerd.plugins());
    plugin.while_it_is("slow", || {
        let request =
            v1::RunPodSandboxRequest { config: Some(Pod::named("web").config()), ..Default::default() };
        let call = (v1::RUNTIME_SERVICE, "RunPodSandbox");
        let late = containerd.cri().ask::<_, v1::RunPodSandboxResponse>(call, request, Some(DEADLINE));
        let code = late.unwrap_err().code();
        assert!(matches!(code, Some(StatusCode::DeadlineExceeded | StatusCode::Cancelled)), "{code:?}");
    });
    assert_nothing_is_left(&node, &containerd);
    let verbs = plugin.take();
    assert!(verbs.len() > 1 && verbs[0] == "ADD" && verbs[1..].iter().all(|verb| verb == "DEL"), "{verbs:?}");
    node.stop_agent();
}
