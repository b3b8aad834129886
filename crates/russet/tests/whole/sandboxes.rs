//! Pods made by containerd, on one node, with the native plugin.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::cri::{Pod, Sandbox};
use russet_testkit::eventually;
use serde_json::json;

use crate::containerd::Containerd;
use crate::node::TestNode;

/// Concurrent pods.
const PODS: usize = 20;

/// Whether an address answers a ping from a sandbox.
pub fn pings(from: &Sandbox, address: &str) -> bool {
    let mut ping = Command::new("ping");
    ping.args(["-c", "1", "-W", "2", address]).stdout(Stdio::null()).stderr(Stdio::null());
    NetNs::open(&from.netns).unwrap().with(|| ping.status().unwrap().success()).unwrap()
}

#[test]
#[ignore = "root: makes network namespaces; tool: containerd, runc, busybox, ctr, ping"]
fn twenty_pods_of_containerd_at_once_reach_each_other_and_leave_nothing() {
    let mut node = TestNode::start(&[]);
    // Debian's containerd 1.6 supports versions up to 1.0.0.
    let conflist = json!({"cniVersion": "1.0.0", "name": "testnet", "plugins": [{"type": "russet"}]});
    let containerd = Containerd::start(&node, &conflist);
    let pods: Vec<Pod> = (0..PODS).map(|n| Pod::named(&format!("web-{n}"))).collect();
    let running = containerd.run_all(&pods);

    let addresses: BTreeSet<&String> = running.iter().flat_map(|(_, sandbox)| &sandbox.addresses).collect();
    assert_eq!(addresses.len(), 2 * PODS, "an address was given twice, or is missing: {running:?}");
    assert_eq!(node.allocated(), 2 * PODS);
    for (index, (_, from)) in running.iter().enumerate() {
        let to = &running[(index + 1) % PODS].1;
        for address in &to.addresses {
            assert!(pings(from, address), "{from:?} does not reach {address}");
        }
    }

    containerd.remove_all(&running);
    containerd.assert_forgotten(&running);
    eventually(Duration::from_secs(10), || node.links().is_empty());
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}
