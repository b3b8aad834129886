//! The fast path as on a kernel before Linux 6.6: its programs are attached by filters of `clsact`.

use russet_testkit::eventually;
use serde_json::Value;

use super::seen::{Stream, a_capture_sees_every_packet};
use super::{Exchange, Setup, is_carried};
use crate::node::{TIMEOUT, TestNode};

fn setup() -> Setup {
    Setup::with("vxlan", &[("RUSSET_TCX", "off")])
}

/// The names of the filters that `russet owned` lists.
fn owned(node: &TestNode) -> Vec<String> {
    let answer = node.russet_inside(&["owned", "-o", "json"]);
    let report: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
    let filters = report["objects"].as_array().unwrap().iter().filter(|object| object["kind"] == "filter");
    filters.map(|filter| filter["detail"].as_str().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, clsact; tool: etcd, etcdctl, ping"]
fn a_capture_sees_every_packet_without_tcx() {
    let setup = setup();
    // A link whose `clsact` is added drops packets for a moment (docs/fast-path.md).
    is_carried(&Exchange::tcp(&setup.client, &setup.server, false), &[&setup.one, &setup.two]);
    a_capture_sees_every_packet(&setup);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, clsact; tool: etcd, ping, tc"]
fn what_a_killed_agent_leaves_at_links_carries_nothing_and_loses_nothing_and_is_removed_by_the_next() {
    let mut setup = setup();
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    // Two pods with two programs each, the uplink with two, and the tunnels of both families.
    let has_all = |setup: &Setup| {
        let found = owned(&setup.one);
        let of = |program: &str| found.iter().filter(|name| name.ends_with(program)).count();
        ["fast_pod", "fast_uplink", "fast_learn"].map(of) == [2, 1, 5]
    };
    eventually(TIMEOUT, || has_all(&setup));
    let stream = Stream::new(&setup.client, &setup.server);
    // Another program removes some, which loses nothing; they are back with the next change of links, or after a minute.
    setup.one.inside("tc", &["filter", "del", "dev", "eth0", "ingress"]);
    far.goes_on();
    assert!(!has_all(&setup));
    setup.one.ip(&["link", "set", "vxlan.calico", "txqueuelen", "900"]);
    eventually(TIMEOUT, || has_all(&setup));
    is_carried(&far, &[&setup.one]);
    setup.one.kill_agent();
    far.goes_on();
    assert!(has_all(&setup), "{:?}", owned(&setup.one));
    // The kernel's path carries everything.
    let through_tunnel = || {
        let link: Value =
            serde_json::from_str(&setup.one.ip(&["-j", "-s", "link", "show", "vxlan.calico"])).unwrap();
        link[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
    };
    let (before, sent) = (through_tunnel(), stream.sent());
    eventually(TIMEOUT, || stream.sent() > sent + 500);
    assert!(through_tunnel() > before + 400, "{before}");
    setup.one.start_agent();
    is_carried(&far, &[&setup.one]);
    stream.arrives_whole();
    // An agent without a fast path leaves no filter.
    setup.one.kill_agent();
    setup.one.agent_args.iter_mut().filter(|arg| *arg == "require").for_each(|arg| *arg = "off".to_owned());
    setup.one.start_agent();
    assert_eq!(owned(&setup.one), Vec::<String>::new());
    far.goes_on();
    // What another one has left is removed with the node.
    assert!(!owned(&setup.two).is_empty());
    setup.two.kill_agent();
    let done = setup.two.russet_inside(&["uninstall", "--force", "--purge"]);
    assert!(done.status == 0 && done.stdout.contains("delete filter fast_uplink from link eth0"), "{done:?}");
    let left = setup.two.inside("tc", &["qdisc", "show"]);
    assert!(!left.contains("clsact"), "{left}");
}
