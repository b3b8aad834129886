//! Limits on a pod's traffic, alone and together with the guard of OpenShift's data path at the
//! same host end.

use russet_attach::{Attachment, Limit, Owner, Shape, check_shape, shape, unshape};
use russet_linux::NetNs;
use russet_testkit::{links, run};

use crate::bench::{Node, array, attachment, ip, namespace, on_a_node, ping};

const DEVICE: &str = "bwp0123456789ab";
const LIMIT: Limit = Limit { rate_bytes: 1_000_000, burst_bytes: 1_000_000 };

/// A pod, and limits of it; another one is `10.1.0.2`.
fn limited(node: &mut Node) -> (Attachment, NetNs, Shape) {
    let pod = namespace("p");
    let wanted = attachment("c1", "p", &["10.1.0.1"]);
    node.attach(&wanted, &pod);
    node.attach(&attachment("c2", "other", &["10.1.0.2"]), &namespace("other"));
    let owner = Owner::new(&wanted.id);
    let limits = Shape {
        owner,
        ifname: wanted.id.ifname.clone(),
        device: DEVICE.parse().unwrap(),
        ingress: Some(LIMIT),
        egress: Some(LIMIT),
    };
    (wanted, pod, limits)
}

/// `tc ARGS`, where `HOST` is the pod's host end.
#[track_caller]
fn tc(host: &Attachment, args: &str) -> String {
    let name = host.host_name.as_str();
    let words: Vec<&str> = args.split(' ').map(|word| if word == "HOST" { name } else { word }).collect();
    run("tc", &words)
}

/// A `clsact` with a program for what goes to the pod, as OpenShift's data path makes it.
fn guard(host: &Attachment) {
    tc(host, "qdisc add dev HOST clsact");
    tc(host, "filter add dev HOST egress protocol all prio 1 u32 match u32 0 0 flowid 1:1");
}

#[track_caller]
fn assert_guarded(host: &Attachment) {
    assert!(tc(host, "filter show dev HOST egress").contains("flowid 1:1"), "the guard is gone");
}

/// Packets that went through the `ifb`.
fn passed() -> u64 {
    let link = &ip(None, &["-s", "link", "show", DEVICE])[0];
    link["stats64"]["rx"]["packets"].as_u64().unwrap()
}

/// The disciplines of the host end but for those that every link has.
fn disciplines(host: &Attachment) -> Vec<String> {
    let shown: serde_json::Value = serde_json::from_str(&tc(host, "-j qdisc show dev HOST")).unwrap();
    let kinds = array(&shown).iter().map(|qdisc| qdisc["kind"].as_str().unwrap().to_owned());
    kinds.filter(|kind| kind != "noqueue").collect()
}

#[test]
#[ignore = "kernel: root, ifb and ping; tool: tc"]
fn limits_are_set_and_removed_completely_without_a_guard() {
    // cni-runtime.md section 5
    on_a_node(|node| {
        let (wanted, pod, limits) = limited(node);
        // A foreign link has the name of the `ifb`.
        run("ip", &["link", "add", DEVICE, "type", "bridge"]);
        shape(&mut node.socket, &pod, &limits).unwrap_err();
        assert_eq!(disciplines(&wanted), [""; 0]);
        run("ip", &["link", "delete", DEVICE]);
        shape(&mut node.socket, &pod, &limits).unwrap();
        assert_eq!(check_shape(&mut node.socket, &pod, &limits).unwrap(), [""; 0]);
        assert_eq!(disciplines(&wanted), ["tbf", "ingress"]);
        ping("p", "10.1.0.2");
        assert!(passed() > 0, "nothing went through the ifb");
    });
}

#[test]
#[ignore = "kernel: root, ifb and ping; tool: tc"]
fn limits_do_not_change_an_existing_guard() {
    on_a_node(|node| {
        let (wanted, pod, limits) = limited(node);
        guard(&wanted);
        run("ip", &["link", "add", DEVICE, "type", "bridge"]);
        shape(&mut node.socket, &pod, &limits).unwrap_err();
        assert_eq!(disciplines(&wanted), ["clsact"]);
        assert_guarded(&wanted);
        run("ip", &["link", "delete", DEVICE]);
        // The second time as after an ADD that was killed.
        for _ in 0..2 {
            shape(&mut node.socket, &pod, &limits).unwrap();
            assert_eq!(check_shape(&mut node.socket, &pod, &limits).unwrap(), [""; 0]);
            ping("p", "10.1.0.2");
            assert!(passed() > 0, "nothing went through the ifb");
            assert_guarded(&wanted);
        }
        // A program that removes the guard and adds it again removes the limit, too.
        tc(&wanted, "qdisc del dev HOST clsact");
        guard(&wanted);
        let found = check_shape(&mut node.socket, &pod, &limits).unwrap();
        assert!(matches!(&found[..], [only] if only.starts_with("filter of ")), "{found:?}");
        unshape(&mut node.socket, &limits.device).unwrap();
        assert!(!links(None).contains(&DEVICE.to_owned()));
        assert_guarded(&wanted);
    });
}

/// Regression: `DELTFILTER` of a filter that did not exist failed the ADD, and at priority 1 it
/// removed a foreign filter.
#[test]
#[ignore = "kernel: root, ifb and ping; tool: tc"]
fn a_foreign_filter_beside_a_guard_stays_and_does_not_count_as_a_limit() {
    const NOWHERE: &str = "192.0.2.99/32";
    on_a_node(|node| {
        let (wanted, pod, limits) = limited(node);
        run("ip", &["link", "add", "ifb9", "up", "type", "ifb"]);
        guard(&wanted);
        let theirs = |prio: &str, action: &str| {
            let what = format!("protocol all prio {prio} u32 match ip dst {NOWHERE} {action}");
            tc(&wanted, &format!("filter add dev HOST ingress {what}"));
        };
        let filters = || tc(&wanted, "filter show dev HOST ingress").matches("match c0000263").count();
        for (count, (prio, action)) in
            [("10", "flowid 1:1"), ("1", "flowid 1:1"), ("1", "action mirred egress redirect dev ifb9")]
                .into_iter()
                .enumerate()
        {
            theirs(prio, action);
            unshape(&mut node.socket, &limits.device).unwrap();
            // The second time as after an ADD that was killed.
            for _ in 0..2 {
                shape(&mut node.socket, &pod, &limits).unwrap();
                assert_eq!(check_shape(&mut node.socket, &pod, &limits).unwrap(), [""; 0]);
                let before = passed();
                ping("p", "10.1.0.2");
                assert!(passed() > before, "nothing went through the ifb");
                assert_eq!(filters(), count + 1, "{prio} {action}");
                let end = node.socket.link_by_name(&wanted.host_name).unwrap().index;
                assert_eq!(node.socket.redirects(end).unwrap().len(), 1 + count / 2);
            }
        }
        tc(&wanted, "qdisc del dev HOST clsact");
        guard(&wanted);
        for action in ["flowid 1:1", "action mirred egress redirect dev ifb9"] {
            theirs("1", action);
            let found = check_shape(&mut node.socket, &pod, &limits).unwrap();
            assert!(matches!(&found[..], [only] if only.starts_with("filter of ")), "{action}: {found:?}");
        }
    });
}
