//! Pods whose interface is one end of a netkit pair, beside those with a veth.

use russet_attach::{
    Attachment, Executor, Pair, Removal, check, delete_precreated, detach, plan, precreate_veth,
};
use russet_testkit::{links, require_kernel};

use crate::bench::{attachment, detachment, ip, namespace, on_a_node, ping};

fn netkit(wanted: Attachment) -> Attachment {
    Attachment { pair: Pair::Netkit, ..wanted }
}

#[test]
#[ignore = "root; kernel: netkit; tool: ping"]
fn a_pod_with_a_netkit_pair_is_attached_checked_and_detached_as_one_with_a_veth() {
    if require_kernel("netkit").is_skip() {
        return;
    }
    on_a_node(|node| {
        let (pod, other) = (namespace("p"), namespace("other"));
        let wanted = netkit(attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]));
        let attached = node.attach(&wanted, &pod);
        let shown = &ip(None, &["-d", "link", "show", attached.host_name.as_str()])[0];
        assert_eq!(shown["linkinfo"]["info_kind"], "netkit");
        assert_eq!(shown["address"], "ee:ee:ee:ee:ee:ee");
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
        node.attach(&attachment("c2", "db-0", &["10.1.0.2", "fd00::2"]), &other);
        for (from, to) in [("p", "10.1.0.2"), ("p", "fd00::2"), ("other", "10.1.0.1"), ("other", "fd00::1")] {
            ping(from, to);
        }
        // What is asked for now changes nothing of an interface that is there.
        let again = node.attach(&attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]), &pod);
        assert!(again.reused && again.host_ifindex == attached.host_ifindex);
        detach(&mut node.socket, &detachment(&wanted, Removal::Synchronous), Some(&pod)).unwrap();
        assert_eq!(links(Some("p")), ["lo"]);
    });
}

#[test]
#[ignore = "root; kernel: netkit"]
fn a_precreated_netkit_pair_becomes_the_interface_or_is_deleted() {
    if require_kernel("netkit").is_skip() {
        return;
    }
    on_a_node(|node| {
        let pod = namespace("p");
        let empty = plan(&netkit(attachment("c1", "web-0", &[]))).unwrap();
        let precreated = precreate_veth(&mut node.socket, &empty, &pod).unwrap().unwrap();
        delete_precreated(&mut node.socket, &precreated).unwrap();
        assert_eq!(links(Some("p")), ["lo"]);
        let precreated = precreate_veth(&mut node.socket, &empty, &pod).unwrap();
        let wanted = netkit(attachment("c1", "web-0", &["10.1.0.1"]));
        let mut executor = Executor::new(&mut node.socket).with_precreated(precreated);
        executor.attach(&plan(&wanted).unwrap(), &pod).unwrap();
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
    });
}
