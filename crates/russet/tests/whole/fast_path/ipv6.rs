//! IPv6 between nodes: within VXLAN over IPv6, whose outer headers the tunnel's device makes and the programs take off.

use super::outer::{drop_outer_packets, through_device};
use super::*;

const DEVICE: &str = "vxlan-v6.calico";

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, etcdctl, ping, nft"]
fn flows_of_ipv6_take_the_fast_path_and_the_kernels_path_still_decides() {
    // policy.md sections 4.1 and 4.4 (2); dataplane.md section 4 L1
    let mut setup = Setup::new("vxlan");
    let datagrams = Exchange::udp(&setup.client, &setup.server, true);
    is_carried(&datagrams, &[&setup.one, &setup.two]);
    drop(datagrams);
    let far = Exchange::tcp(&setup.client, &setup.server, true);
    is_carried(&far, &[&setup.one, &setup.two]);
    // What the programs take off, the device of the other node does not receive.
    let (received, answers) = (through_device(&setup.two, DEVICE, "rx"), far.answers());
    eventually(TIMEOUT, || far.answers() > answers + 200);
    assert!(through_device(&setup.two, DEVICE, "rx") < received + 20);

    setup.is_decided_by_a_policy(&far);
    for (on_one, hook) in [(true, "output"), (true, "postrouting"), (false, "prerouting"), (false, "input")] {
        let node = if on_one { &setup.one } else { &setup.two };
        drop_outer_packets(node, hook);
        far.stops();
        node.inside("nft", &["delete", "table", "inet", "foreign"]);
        far.resumes();
        is_carried(&far, &[&setup.one, &setup.two]);
    }
    let blackhole = format!("{}/128", setup.server.v6);
    setup.one.ip(&["-6", "route", "add", "blackhole", &blackhole]);
    far.stops();
    setup.one.ip(&["-6", "route", "del", "blackhole", &blackhole]);
    far.resumes();
    is_carried(&far, &[&setup.one, &setup.two]);

    // Beside a node without the fast path, in both directions.
    for on_one in [true, false] {
        let of = |setup: &mut Setup, run: fn(&mut TestNode)| {
            run(if on_one { &mut setup.one } else { &mut setup.two });
        };
        of(&mut setup, TestNode::kill_agent);
        far.goes_on();
        let_pass(SILENT);
        is_carried(&far, &[if on_one { &setup.two } else { &setup.one }]);
        of(&mut setup, TestNode::start_agent);
        is_carried(&far, &[&setup.one, &setup.two]);
    }
}
