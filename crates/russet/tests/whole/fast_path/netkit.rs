//! Pods whose interface is a netkit pair: the fast path's program runs where they send.

use russet_testkit::require_kernel;
use rustix::process::Signal;
use serde_json::Value;

use super::seen::capture;
use super::*;
use crate::capture::Recording;

/// The kind of the host end of a pod's interface.
fn kind(node: &TestNode, pod: &Pod) -> String {
    let link = node.ip(&["-j", "-d", "link", "show", &host_end(node, pod)]);
    let link: Value = serde_json::from_str(&link).unwrap();
    link[0]["linkinfo"]["info_kind"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, netkit, BPF, TCX; tool: etcd, etcdctl, ping"]
fn flows_of_netkit_pods_take_the_fast_path_and_the_kernels_path_still_decides() {
    if require_kernel("netkit").is_skip() {
        return;
    }
    let mut setup = Setup::new("vxlan");
    assert_eq!(kind(&setup.one, &setup.client), "netkit");
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    setup.is_decided_by_a_policy(&far);
    drop(far);
    for is_v6 in [false, true] {
        let near = Exchange::tcp(&setup.client, &setup.neighbour, is_v6);
        is_carried(&near, &[&setup.one]);
        outer::sends_much(&setup.client, &setup.neighbour, is_v6, |address| address);
        outer::sends_much(&setup.client, &setup.server, is_v6, |address| address);
    }
    let datagrams = Exchange::udp(&setup.client, &setup.neighbour, false);
    is_carried(&datagrams, &[&setup.one]);
    // A capture pauses it.
    let file = setup.one.path("capture.pcapng");
    let running = capture(&setup.one, &setup.client.pod.container, &file);
    eventually(TIMEOUT, || {
        let before = carried(&setup.one);
        datagrams.goes_on();
        carried(&setup.one) == before
    });
    assert!(running.end(Signal::INT).success());
    let recording = Recording::read(&file);
    assert!(recording.of_interface(&host_end(&setup.one, &setup.client)).len() > 5);
    is_carried(&datagrams, &[&setup.one]);

    // Without an agent the pairs forward what their pods send.
    setup.one.kill_agent();
    datagrams.goes_on();
    let_pass(SILENT);
    datagrams.goes_on();
    // Pods of the next agent have veths, and reach those that are there, on the fast path.
    setup.one.agent_env.push(("RUSSET_NETKIT".to_owned(), "off".to_owned()));
    setup.one.start_agent();
    let with_veth = Pod::on(&mut setup.one, "with-veth");
    assert_eq!(
        (kind(&setup.one, &with_veth), kind(&setup.one, &setup.client)),
        ("veth".into(), "netkit".into())
    );
    drop(datagrams);
    for (from, to) in [(&with_veth, &setup.client), (&setup.client, &with_veth)] {
        is_carried(&Exchange::tcp(from, to, false), &[&setup.one]);
    }
    let interfaces = |node: &TestNode| node.ip(&["-o", "link"]).matches(": russ").count();
    let before = interfaces(&setup.one);
    for pod in [&setup.client, &with_veth] {
        assert_eq!(setup.one.del(&pod.pod).status, 0);
    }
    eventually(TIMEOUT, || interfaces(&setup.one) == before - 2);
}
