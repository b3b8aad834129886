//! A repeated ADD finds the same veth and restores what was missing.

use russet_attach::{Attachment, Executor, Hooks, Refusal, Step, adopt, check, plan};
use russet_testkit::run;

use crate::bench::{Node, attachment, namespace, on_a_node, ping, routes, snapshot};

#[test]
#[ignore = "kernel: root"]
fn a_second_add_returns_the_same_interface_and_changes_nothing() {
    // calico-cni.md section 5.1, oracles 19 and 22
    on_a_node(|node| {
        let pod = namespace("p");
        let wanted = attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]);
        let first = node.attach(&wanted, &pod);
        let before = snapshot("p");
        let second = node.attach(&wanted, &pod);
        assert!(!first.reused && second.reused);
        assert_eq!((first.host_ifindex, first.pod_ifindex), (second.host_ifindex, second.pod_ifindex));
        assert_eq!(snapshot("p"), before);
        assert_eq!(routes(None, "-4").len(), 1);
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn a_second_add_repairs_what_is_missing() {
    on_a_node(|node| {
        let (pod, b) = (namespace("p"), namespace("b"));
        let wanted = attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]);
        let first = node.attach(&wanted, &pod);
        node.attach(&attachment("c2", "b", &["10.1.0.2", "fd00::2"]), &b);
        let name = wanted.host_name.as_str();
        for breakage in [
            &["route", "del", "10.1.0.1"][..],
            &["-6", "route", "del", "fd00::1"],
            &["link", "set", name, "down"],
            &["link", "set", name, "mtu", "1400"],
            &["neigh", "del", "10.1.0.1", "dev", name],
            &["-n", "p", "addr", "del", "10.1.0.1/32", "dev", "eth0"],
            &["-n", "p", "addr", "flush", "dev", "eth0"],
            &["-n", "p", "route", "del", "default"],
            &["-n", "p", "link", "set", "eth0", "down"],
            &["-n", "p", "neigh", "flush", "nud", "permanent"],
        ] {
            run("ip", breakage);
            assert_ne!(check(&wanted, &mut node.socket, &pod).unwrap(), [], "{breakage:?}");
            let again = node.attach(&wanted, &pod);
            assert!(again.reused && again.host_ifindex == first.host_ifindex, "{breakage:?}");
            assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), [], "{breakage:?}");
            ping("b", "10.1.0.1");
            ping("b", "fd00::1");
        }
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn an_add_with_another_address_or_mac_gets_a_new_veth() {
    on_a_node(|node| {
        let (pod, b) = (namespace("p"), namespace("b"));
        let first = node.attach(&attachment("c1", "web-0", &["10.1.0.1"]), &pod);
        node.attach(&attachment("c2", "b", &["10.1.0.2"]), &b);
        let moved = attachment("c1", "web-0", &["10.1.0.7"]);
        let second = node.attach(&moved, &pod);
        assert!(!second.reused && second.host_ifindex != first.host_ifindex);
        assert_eq!(check(&moved, &mut node.socket, &pod).unwrap(), []);
        ping("b", "10.1.0.7");
        run("ip", &["-n", "p", "link", "set", "eth0", "address", "02:00:00:00:00:01"]);
        assert!(!node.attach(&moved, &pod).reused, "a pod that has changed its MAC");
        ping("b", "10.1.0.7");
    });
}

/// Fails one step.
struct FailAt(usize);

impl Hooks for FailAt {
    fn before(&mut self, _: &Step) -> Result<(), Refusal> {
        self.0 = self.0.wrapping_sub(1);
        if self.0 == usize::MAX { Err("injected".into()) } else { Ok(()) }
    }
}

#[test]
#[ignore = "kernel: root"]
fn a_second_add_that_fails_leaves_the_first_unchanged() {
    // calico-cni.md section 5.1, oracle 21
    on_a_node(|node| {
        let pod = namespace("p");
        let first = attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]);
        node.attach(&first, &pod);
        for breakage in
            [&["route", "del", "10.1.0.1"][..], &["-n", "p", "route", "del", "default"], &["link"]]
        {
            run("ip", breakage);
            let before = snapshot("p");
            let other = Attachment { mtu: 1400, allow_ip_forwarding: true, ..first.clone() };
            for step in 0..plan(&other).unwrap().steps.len() {
                fail(node, &other, step);
                assert_eq!(snapshot("p"), before, "step {step} after {breakage:?}");
            }
            node.attach(&first, &pod);
        }
    });
}

fn fail(node: &mut Node, attachment: &Attachment, step: usize) {
    let plan = plan(attachment).unwrap();
    let pod = russet_linux::NetNs::open_named("p").unwrap();
    let error = Executor::new(&mut node.socket).attach_with(&plan, &pod, &mut FailAt(step)).unwrap_err();
    assert!(error.undo.is_empty() && error.to_string().ends_with("injected"), "{error}");
}

#[test]
#[ignore = "kernel: root"]
fn adopt_returns_complete_wirings_only() {
    on_a_node(|node| {
        let wanted = attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]);
        node.attach(&wanted, &namespace("p"));
        let half = attachment("c2", "web-1", &["10.1.0.2"]);
        node.attach(&half, &namespace("q"));
        // The host end comes up last: this one's ADD was killed before that.
        run("ip", &["link", "set", half.host_name.as_str(), "down"]);
        let adopted = adopt(&mut node.socket).unwrap();
        assert_eq!(adopted.len(), 1, "{adopted:?}");
        let mut taken = adopted[0].attachment.clone().unwrap();
        // The kernel has no pod names.
        assert_eq!((taken.pod.take(), taken.sync_delete), (None, false));
        assert_eq!(taken, Attachment { pod: None, sync_delete: false, ..wanted });
    });
}
