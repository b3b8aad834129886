//! A veth that is created before its addresses are known.

use russet_attach::{Executor, PrecreatedVeth, check, delete_precreated, plan, precreate_veth};
use russet_linux::NetNs;
use russet_testkit::links;

use crate::bench::{Node, attachment, namespace, on_a_node, ping, snapshot};

fn precreated(node: &mut Node, netns: &NetNs) -> Option<PrecreatedVeth> {
    precreate_veth(&mut node.socket, &plan(&attachment("c1", "web-0", &[])).unwrap(), netns).unwrap()
}

#[test]
#[ignore = "kernel: root and ping"]
fn a_precreated_veth_becomes_the_interface_with_addresses() {
    on_a_node(|node| {
        let pod = namespace("p");
        let precreated = precreated(node, &pod);
        assert!(precreated.is_some());
        let wanted = attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]);
        let mut executor = Executor::new(&mut node.socket).with_precreated(precreated.clone());
        let attached = executor.attach(&plan(&wanted).unwrap(), &pod).unwrap();
        assert!(!attached.reused);
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
        node.attach(&attachment("c2", "db-0", &["10.1.0.2"]), &namespace("other"));
        ping("p", "10.1.0.2");
        // It has an owner and is not deleted any more.
        delete_precreated(&mut node.socket, &precreated.unwrap()).unwrap();
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
    });
}

#[test]
#[ignore = "kernel: root"]
fn deleting_a_precreated_veth_is_idempotent() {
    on_a_node(|node| {
        let pod = namespace("p");
        let before = snapshot("p");
        let precreated = precreated(node, &pod).unwrap();
        assert_eq!(links(Some("p")), ["eth0", "lo"]);
        for _ in 0..2 {
            delete_precreated(&mut node.socket, &precreated).unwrap();
            assert_eq!(snapshot("p"), before);
        }
    });
}

#[test]
#[ignore = "kernel: root"]
fn no_veth_is_precreated_if_a_link_is_in_the_way() {
    on_a_node(|node| {
        let pod = namespace("p");
        node.attach(&attachment("c1", "web-0", &["10.1.0.1"]), &pod);
        let before = snapshot("p");
        assert_eq!(precreated(node, &pod), None);
        assert_eq!(snapshot("p"), before);
        let own = NetNs::current().unwrap();
        assert!(
            precreate_veth(&mut node.socket, &plan(&attachment("c2", "db-0", &[])).unwrap(), &own).is_err()
        );
    });
}
