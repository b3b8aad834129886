//! Links in the way: Russet's are removed or kept, foreign ones are an error and stay unchanged.

use russet_attach::{
    Attachment, Dialect, Executor, Hooks, Refusal, Removal, Step, check, detach, list, plan,
};
use russet_linux::NetNs;
use russet_testkit::{links, run};

use crate::bench::{attachment, detachment, interface, ip, namespace, on_a_node, ping, routes, snapshot};

#[test]
#[ignore = "kernel: root"]
fn a_foreign_link_with_the_host_ends_name_is_an_error_that_names_it() {
    on_a_node(|node| {
        let pod = namespace("p");
        run("ip", &["link", "add", "russa4fc3c48bd8", "type", "bridge"]);
        let before = snapshot("p");
        let error = node.attach_error(&attachment("c1", "web-0", &["10.1.0.1"]), &pod);
        assert_eq!(
            error,
            "attach russet:net1/c1/eth0: create veth: link russa4fc3c48bd8 exists already on the node and is not ours \
             to replace"
        );
        assert_eq!(snapshot("p"), before);
    });
}

#[test]
#[ignore = "kernel: root"]
fn in_calicos_dialect_a_link_with_the_host_ends_name_is_replaced() {
    // calico-cni.md section 5.1, oracle 6
    on_a_node(|node| {
        let pod = namespace("p");
        run("ip", &["link", "add", "caliabc123", "type", "veth", "peer", "name", "old"]);
        let wanted = interface(Dialect::Calico, "abc123", "eth0", "", &["10.1.0.1"]);
        node.attach(&wanted, &pod);
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
        assert_eq!(links(None), ["caliabc123", "lo"]);
    });
}

#[test]
#[ignore = "kernel: root"]
fn in_calicos_dialect_interfaces_of_calicos_plugin_are_replaced_and_removed() {
    // calico-cni.md sections 3.3, step 1, and 3.6
    on_a_node(|node| {
        let pod = namespace("p");
        let make = ["link", "add", "caliabc123", "type", "veth", "peer", "name", "eth0", "netns", "p"];
        run("ip", &make);
        let wanted = interface(Dialect::Calico, "abc123", "eth0", "", &["10.1.0.1"]);
        let what = detachment(&wanted, Removal::Deferred);
        detach(&mut node.socket, &what, Some(&pod)).unwrap();
        assert_eq!(links(Some("p")), ["lo"]);
        run("ip", &make);
        node.attach(&wanted, &pod);
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn a_foreign_interface_in_the_pod_is_an_error_and_stays() {
    on_a_node(|node| {
        let (p, b) = (namespace("p"), namespace("b"));
        node.attach(&attachment("c1", "web-0", &["10.1.0.1"]), &p);
        node.attach(&attachment("c2", "b", &["10.1.0.2"]), &b);
        let before = snapshot("p");
        // Another container ID for the same namespace and pod, and one with another pod's name.
        for other in [attachment("c9", "web-0", &["10.1.0.9"]), attachment("c9", "web-9", &["10.1.0.9"])] {
            let error = node.attach_error(&other, &p);
            let wanted =
                "create veth: interface eth0 exists already in /run/netns/p and is not ours to replace";
            assert!(error.ends_with(wanted), "{error}");
            assert_eq!(snapshot("p"), before);
        }
        ping("b", "10.1.0.1");
        // A link of another kind.
        let d = namespace("d");
        run("ip", &["-n", "d", "link", "add", "eth0", "type", "bridge"]);
        let error = node.attach_error(&attachment("c3", "d", &["10.1.0.3"]), &d);
        assert!(error.contains("interface eth0 exists already in /run/netns/d"), "{error}");
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn the_link_of_an_old_sandbox_of_the_same_pod_is_removed() {
    // calico-cni.md sections 3.1 and 5.1, oracle 47
    on_a_node(|node| {
        let (old, new, b) = (namespace("old"), namespace("new"), namespace("b"));
        let first = attachment("c1", "web-0", &["10.1.0.1"]);
        let second = attachment("c2", "web-0", &["10.1.0.1"]);
        node.attach(&first, &old);
        node.attach(&attachment("c3", "b", &["10.1.0.3"]), &b);
        node.attach(&second, &new);
        ping("b", "10.1.0.1");
        let mut owned = list(&mut node.socket).unwrap();
        owned.retain(|link| link.doomed);
        assert_eq!(owned.len(), 1);
        assert!(owned[0].owner.is(&first.id));
        // The late DEL of the old sandbox leaves the new one alone.
        detach(&mut node.socket, &detachment(&first, Removal::Synchronous), Some(&old)).unwrap();
        assert_eq!(check(&second, &mut node.socket, &new).unwrap(), []);
        assert_eq!(links(Some("old")), ["lo"]);
        ping("b", "10.1.0.1");
    });
}

#[test]
#[ignore = "kernel: root"]
fn without_an_agent_the_old_sandboxs_link_is_deleted_at_once() {
    on_a_node(|node| {
        let (old, new) = (namespace("old"), namespace("new"));
        node.attach(&attachment("c1", "web-0", &["10.1.0.1"]), &old);
        node.attach(&Attachment { sync_delete: true, ..attachment("c2", "web-0", &["10.1.0.1"]) }, &new);
        assert_eq!(list(&mut node.socket).unwrap().len(), 1);
        assert_eq!(links(Some("old")), ["lo"]);
    });
}

#[test]
#[ignore = "kernel: root"]
fn a_route_that_leads_elsewhere_is_an_error_that_names_its_holder() {
    // calico-cni.md section 3.5
    for (family, address) in [("-4", "10.1.0.1"), ("-6", "fd00::1")] {
        on_a_node(|node| {
            let pod = namespace("p");
            run("ip", &["link", "add", "other", "type", "bridge"]);
            run("ip", &["link", "set", "other", "up"]);
            run("ip", &[family, "route", "add", address, "dev", "other"]);
            let before = snapshot("p");
            let error = node.attach_error(&attachment("c1", "web-0", &[address]), &pod);
            let wanted = format!(
                "batch of the node: route {address}/{} exists already: it leads to other (protocol 3)",
                if family == "-4" { 32 } else { 128 }
            );
            assert!(error.contains(&wanted), "{error}");
            assert_eq!(snapshot("p"), before);
        });
    }
}

#[test]
#[ignore = "kernel: root"]
fn a_route_without_a_link_is_an_error_that_names_its_type() {
    on_a_node(|node| {
        let pod = namespace("p");
        run("ip", &["route", "add", "unreachable", "10.1.0.1"]);
        let error = node.attach_error(&attachment("c1", "web-0", &["10.1.0.1"]), &pod);
        let wanted = "route 10.1.0.1/32 exists already: it is of type unreachable (protocol 3)";
        assert!(error.contains(wanted) && !error.contains('{'), "{error}");
    });
}

#[test]
#[ignore = "kernel: root"]
fn a_netns_path_that_leads_to_the_node_is_refused() {
    // cni-runtime.md, plugins#714: a PID was reused
    on_a_node(|node| {
        let own = NetNs::current().unwrap();
        let wanted = attachment("c1", "web-0", &["10.1.0.1"]);
        let error = node.attach_error(&wanted, &own);
        assert!(error.ends_with("is the node's own network namespace"), "{error}");
        detach(&mut node.socket, &detachment(&wanted, Removal::Synchronous), Some(&own)).unwrap();
        assert_eq!(links(None), ["lo"]);
    });
}

#[test]
#[ignore = "kernel: root"]
fn two_interfaces_of_a_container_cannot_share_a_host_end() {
    // Calico names host ends without a pod after the container alone (calico-cni.md section 3.1).
    on_a_node(|node| {
        let pod = namespace("p");
        node.attach(&interface(Dialect::Calico, "abc123", "eth0", "", &["10.1.0.1"]), &pod);
        let before = snapshot("p");
        let error = node.attach_error(&interface(Dialect::Calico, "abc123", "eth1", "", &["10.1.0.2"]), &pod);
        assert!(
            error.ends_with("link caliabc123 is already the host end of russet:net1/abc123/eth0"),
            "{error}"
        );
        assert_eq!(snapshot("p"), before);
    });
}

/// Stops once the veth exists, like a killed process: nothing is undone.
struct Killed;

impl Hooks for Killed {
    fn before(&mut self, step: &Step) -> Result<(), Refusal> {
        if *step == Step::CreateVeth { Ok(()) } else { std::panic::panic_any("killed") }
    }
}

#[test]
#[ignore = "kernel: root"]
fn what_a_killed_add_left_makes_room() {
    on_a_node(|node| {
        let pod = namespace("p");
        let wanted = attachment("c1", "web-0", &["10.1.0.1"]);
        let plan = plan(&wanted).unwrap();
        let attempt = std::panic::AssertUnwindSafe(|| {
            let _ = Executor::new(&mut node.socket).attach_with(&plan, &pod, &mut Killed);
        });
        assert!(std::panic::catch_unwind(attempt).is_err());
        assert_eq!(links(Some("p")), ["eth0", "lo"]);
        node.attach(&wanted, &pod);
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
        detach(&mut node.socket, &detachment(&wanted, Removal::Synchronous), Some(&pod)).unwrap();
        // Killed before the alias was written: the link is only precreated.
        let make = ["link", "add", "russa4fc3c48bd8", "address", "ee:ee:ee:ee:ee:ee", "group", "7272"];
        run("ip", &[&make[..], &["type", "veth", "peer", "name", "eth0", "netns", "p"]].concat());
        node.attach(&wanted, &pod);
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
        assert_eq!((links(None).len(), routes(None, "-4").len()), (2, 1));
        assert_eq!(ip(None, &["link", "show", "russa4fc3c48bd8"])[0]["group"], "default");
    });
}
