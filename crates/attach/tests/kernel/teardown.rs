//! DEL from every state, the reaper, and the owners of links.

use russet_addr::EndpointId;
use russet_attach::marked::{self, Mark, remove_link};
use russet_attach::{
    DOOMED_GROUP, Detachment, Dialect, Reaped, Removal, Step, check, detach, detach_owned, list, reap,
    reap_one, reap_precreated,
};
use russet_linux::NetNs;
use russet_testkit::{eventually, links, pings, run};

use crate::bench::{Node, attachment, detachment, interface, ip, namespace, on_a_node, ping, routes, text};

#[test]
#[ignore = "kernel: root and ping"]
fn a_deferred_del_disconnects_the_pod_and_frees_its_names() {
    // ARCHITECTURE.md, "Time budgets"; calico-cni.md section 5.1, oracle 5
    on_a_node(|node| {
        let (a, b) = (namespace("a"), namespace("b"));
        let wanted = attachment("c1", "a", &["10.1.0.1", "fd00::1"]);
        let attached = node.attach(&wanted, &a);
        node.attach(&attachment("c2", "b", &["10.1.0.2", "fd00::2"]), &b);
        let what = detachment(&wanted, Removal::Deferred);
        let detached = detach(&mut node.socket, &what, Some(&a)).unwrap();
        assert_eq!(detached.host_ifindexes, [attached.host_ifindex]);
        let (host, inside) = (attached.host_ifindex, attached.pod_ifindex);
        assert_eq!(links(Some("a")), ["lo".to_owned(), format!("rsx{inside}")]);
        let doomed = &ip(None, &["link", "show", &format!("rsx{host}")])[0];
        assert_eq!((text(&doomed["operstate"]), text(&doomed["group"])), ("DOWN".into(), "7273".into()));
        let name = format!("rsx{host}");
        let left = |table: &str| run("ip", &[table, "show", "dev", &name]);
        assert_eq!((left("route"), left("neigh")), (String::new(), String::new()));
        assert_eq!(run("ip", &["-6", "route", "show", "dev", &name]), "");
        assert!(!pings("b", "10.1.0.1"));
        assert_ne!(check(&wanted, &mut node.socket, &a).unwrap(), []);
        // The same pod again, at once; then the reaper deletes only what is doomed.
        node.attach(&wanted, &a);
        ping("b", "10.1.0.1");
        let reaped = reap(&mut node.socket).unwrap();
        assert_eq!((reaped.count, reaped.foreign.len()), (1, 0));
        assert_eq!(links(Some("a")), ["eth0", "lo"]);
        ping("b", "fd00::1");
    });
}

/// What an ADD leaves that is killed right after it created the veth: a precreated link.
fn give_birth(netns: &str) {
    let make = ["link", "add", "russa4fc3c48bd8", "address", "ee:ee:ee:ee:ee:ee", "group", "7272"];
    run("ip", &[&make[..], &["type", "veth", "peer", "name", "eth0", "netns", netns]].concat());
}

#[test]
#[ignore = "kernel: root"]
fn a_precreated_veth_of_a_killed_add_is_removed_by_del_and_at_the_agents_start() {
    on_a_node(|node| {
        let (pod, other) = (namespace("p"), namespace("other"));
        let wanted = attachment("c1", "web-0", &["10.1.0.1"]);
        let what = detachment(&wanted, Removal::Deferred);
        let by_pod = Detachment { host_name: None, ..what.clone() };
        for (what, netns) in [(&what, None), (&by_pod, Some(&pod))] {
            give_birth("p");
            detach(&mut node.socket, what, netns).unwrap();
            assert_eq!((links(None).len(), links(Some("p"))), (1, vec!["lo".to_owned()]));
        }
        // Another pod's.
        give_birth("p");
        detach(&mut node.socket, &by_pod, Some(&other)).unwrap();
        assert_eq!(links(None).len(), 2);
        let bystander = attachment("c2", "b", &["10.1.0.2"]);
        node.attach(&bystander, &other);
        assert_eq!(reap_precreated(&mut node.socket).unwrap(), 1);
        assert_eq!(links(Some("p")), ["lo"]);
        assert_eq!(check(&bystander, &mut node.socket, &other).unwrap(), []);
    });
}

#[test]
#[ignore = "kernel: root"]
fn a_precreated_veth_of_a_killed_add_is_removed_while_an_earlier_interface_is_doomed() {
    // Seen once in 10,000 operations with 500 kills: DEL, ADD, the agent dies, DEL, all within 250
    // ms.
    on_a_node(|node| {
        let pod = namespace("p");
        let wanted = attachment("c1", "web-0", &["10.1.0.1"]);
        for removal in [Removal::Deferred, Removal::Synchronous] {
            node.attach(&wanted, &pod);
            detach(&mut node.socket, &detachment(&wanted, Removal::Deferred), Some(&pod)).unwrap();
            give_birth("p");
            // Whatever happens to it before the next DEL.
            run("ip", &["link", "set", "russa4fc3c48bd8", "up"]);
            detach(&mut node.socket, &detachment(&wanted, removal), Some(&pod)).unwrap();
            let left = links(Some("p"));
            assert!(left.iter().all(|link| link == "lo" || link.starts_with("rsx")), "{left:?}");
            reap(&mut node.socket).unwrap();
            assert_eq!((links(Some("p")), links(None)), (vec!["lo".to_owned()], vec!["lo".to_owned()]));
        }
    });
}

#[test]
#[ignore = "kernel: root"]
fn a_precreated_veth_of_a_killed_add_is_listed_and_removed_and_similar_foreign_veths_are_not() {
    on_a_node(|node| {
        let _pods = (namespace("p"), namespace("q"));
        give_birth("p");
        let precreated = ["address", "ee:ee:ee:ee:ee:ee", "group", "7272"];
        let mut others = Vec::new();
        for (settings, changed) in [
            // Calico's; a foreign one in the same group; one with its other end on the node.
            (&precreated[..2], &[][..]),
            (&precreated[2..], &[]),
            (&precreated, &["alias", "mine"]),
            (&precreated, &["up"]),
        ] {
            let (name, inside) = (format!("veth{}", others.len()), format!("eth{}", others.len()));
            let peer = ["type", "veth", "peer", "name", &inside, "netns", "q"];
            run("ip", &[&["link", "add", &name][..], settings, &peer].concat());
            run("ip", &[&["link", "set", &name, "mtu", "1400"][..], changed].concat());
            others.push(name);
        }
        run(
            "ip",
            &[&["link", "add", "near"][..], &precreated, &["type", "veth", "peer", "name", "far"]].concat(),
        );
        run("ip", &[&["link", "add", "flat"][..], &precreated, &["type", "bridge"]].concat());
        others.extend(["far", "flat", "lo", "near"].map(str::to_owned));
        others.sort();
        let found = marked::read(&mut node.socket).unwrap().links;
        let [left] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            (left.name.as_str(), &left.mark, &left.owner),
            ("russa4fc3c48bd8", &Mark::Precreated, &None)
        );
        // None of the others, even if it is requested.
        for link in node.socket.links().unwrap() {
            let is_other = others.contains(&link.name);
            is_other.then(|| remove_link(&mut node.socket, link.index, &Mark::Precreated).unwrap());
        }
        // An ADD that was in progress after all has written its owner.
        run("ip", &["link", "set", "russa4fc3c48bd8", "alias", "russet:net/c1/eth0"]);
        remove_link(&mut node.socket, left.ifindex, &left.mark).unwrap();
        assert_eq!(links(None).len(), others.len() + 1);
        run("ip", &["link", "set", "russa4fc3c48bd8", "alias", ""]);
        for _ in 0..2 {
            remove_link(&mut node.socket, left.ifindex, &left.mark).unwrap();
            assert_eq!(links(None), others);
        }
    });
}

#[test]
#[ignore = "kernel: root"]
fn del_succeeds_any_number_of_times_and_from_any_state() {
    // calico-cni.md sections 3.6 and 5.1, oracles 17 and 18
    for removal in [Removal::Deferred, Removal::Synchronous] {
        on_a_node(|node| {
            let wanted = attachment("c1", "web-0", &["10.1.0.1"]);
            let what = detachment(&wanted, removal);
            let gone = |node: &mut Node, netns: Option<&NetNs>| {
                for _ in 0..3 {
                    detach(&mut node.socket, &what, netns).unwrap();
                    assert!(list(&mut node.socket).unwrap().iter().all(|link| link.doomed));
                    assert_eq!(routes(None, "-4"), [""; 0]);
                }
            };
            // Never added, with and without a namespace.
            let pod = namespace("p");
            gone(node, None);
            gone(node, Some(&pod));
            // Complete; complete, without the namespace; without the name.
            node.attach(&wanted, &pod);
            gone(node, Some(&pod));
            node.attach(&wanted, &pod);
            gone(node, None);
            // The pod's end was renamed, or put down, by the pod.
            reap(&mut node.socket).unwrap();
            node.attach(&wanted, &pod);
            run("ip", &["-n", "p", "link", "set", "eth0", "down"]);
            run("ip", &["-n", "p", "link", "set", "eth0", "name", "other"]);
            gone(node, Some(&pod));
            // The pod's end was deleted by the pod, and the host's end with it.
            reap(&mut node.socket).unwrap();
            let pod2 = namespace("p2");
            node.attach(&wanted, &pod2);
            run("ip", &["-n", "p2", "link", "del", "eth0"]);
            gone(node, Some(&pod2));
            // The namespace is gone, and with it the veth.
            let pod3 = namespace("p3");
            node.attach(&wanted, &pod3);
            drop(pod3);
            NetNs::delete_named("p3").unwrap();
            let host = wanted.host_name.to_string();
            eventually(std::time::Duration::from_secs(10), || !links(None).contains(&host));
            gone(node, None);
            reap(&mut node.socket).unwrap();
            assert_eq!(links(None), ["lo"]);
        });
    }
}

#[test]
#[ignore = "kernel: root"]
fn a_del_after_a_gc_also_renames_the_pods_end() {
    on_a_node(|node| {
        let pod = namespace("p");
        let wanted = attachment("c1", "web-0", &["10.1.0.1"]);
        let inside = node.attach(&wanted, &pod).pod_ifindex;
        let owned = list(&mut node.socket).unwrap();
        assert!(detach_owned(&mut node.socket, &owned[0], Removal::Deferred).unwrap());
        assert_eq!(links(Some("p")), ["eth0", "lo"], "GC knows no namespace");
        for _ in 0..2 {
            detach(&mut node.socket, &detachment(&wanted, Removal::Deferred), Some(&pod)).unwrap();
            assert_eq!(links(Some("p")), ["lo".to_owned(), format!("rsx{inside}")]);
        }
        // Its name is free before the reaper runs.
        node.attach(&wanted, &pod);
        assert_eq!(reap(&mut node.socket).unwrap().count, 1);
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
    });
}

#[test]
#[ignore = "kernel: root"]
fn del_works_from_every_half_built_state() {
    on_a_node(|node| {
        let wanted = attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]);
        let plan = russet_attach::plan(&wanted).unwrap();
        for (index, step) in plan.steps.iter().enumerate() {
            for removal in [Removal::Deferred, Removal::Synchronous] {
                let pod = namespace("p");
                let mut part = plan.clone();
                part.steps.truncate(index + 1);
                assert_eq!(part.steps[0], Step::CreateVeth);
                russet_attach::Executor::new(&mut node.socket).attach(&part, &pod).unwrap();
                // A Go runtime that lost its state has no name to offer.
                let what = Detachment { host_name: None, ..detachment(&wanted, removal) };
                detach(&mut node.socket, &what, Some(&pod)).unwrap();
                assert!(!links(Some("p")).contains(&"eth0".to_owned()), "{step} {removal:?}");
                assert!(list(&mut node.socket).unwrap().iter().all(|link| link.doomed));
                reap(&mut node.socket).unwrap();
                assert_eq!((links(None), links(Some("p"))), (vec!["lo".into()], vec!["lo".into()]));
                NetNs::delete_named("p").unwrap();
            }
        }
    });
}

#[test]
#[ignore = "kernel: root"]
fn del_touches_only_its_own_container_and_interface() {
    on_a_node(|node| {
        let pod = namespace("p");
        let wanted = attachment("c1", "web-0", &["10.1.0.1"]);
        node.attach(&wanted, &pod);
        let other_container =
            Detachment { id: "net1/c2/eth0".parse().unwrap(), ..detachment(&wanted, Removal::Synchronous) };
        let other_interface =
            Detachment { id: "net1/c1/eth1".parse().unwrap(), ..detachment(&wanted, Removal::Synchronous) };
        for what in [other_container, other_interface] {
            assert_eq!(detach(&mut node.socket, &what, Some(&pod)).unwrap().host_ifindexes, [0; 0]);
        }
        assert_eq!(check(&wanted, &mut node.socket, &pod).unwrap(), []);
        // Nor an interface that another network wired, even with our host name.
        let foreign = namespace("f");
        run("ip", &["link", "add", "veth9", "type", "veth", "peer", "name", "eth0", "netns", "f"]);
        let what =
            Detachment { id: "net1/c7/eth0".parse().unwrap(), ..detachment(&wanted, Removal::Deferred) };
        detach(&mut node.socket, &what, Some(&foreign)).unwrap();
        assert_eq!(links(Some("f")), ["eth0", "lo"]);
    });
}

#[test]
#[ignore = "kernel: root"]
fn a_veth_without_an_owner_is_removed_by_its_name_only_on_request() {
    // calico-cni.md section 2.5.3: what Calico's own plugin wired
    on_a_node(|node| {
        let (old, _next) = (namespace("old"), namespace("next"));
        let wanted = interface(Dialect::Calico, "c1", "eth0", "web-0", &["10.1.0.1"]);
        let name = wanted.host_name.to_string();
        let del = detachment(&wanted, Removal::Deferred);
        let by_name = Detachment { by_name_alone: true, ..del.clone() };
        let go_wires = || {
            run("ip", &["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", "old"]);
        };
        go_wires();
        // A late DEL, which cannot open the namespace any more: the link may be the next sandbox's.
        detach(&mut node.socket, &del, None).unwrap();
        assert_eq!(links(Some("old")), ["eth0", "lo"]);
        detach(&mut node.socket, &by_name, None).unwrap();
        assert_eq!((links(Some("old")), links(None)), (vec!["lo".to_owned()], vec!["lo".to_owned()]));
        // Another running container's: ours by its owner, or a device that is no pod's.
        let other = interface(Dialect::Calico, "c2", "eth0", "web-0", &["10.1.0.2"]);
        node.attach(&other, &old);
        detach(&mut node.socket, &by_name, None).unwrap();
        assert_eq!(check(&other, &mut node.socket, &old).unwrap(), []);
        detach(&mut node.socket, &detachment(&other, Removal::Synchronous), Some(&old)).unwrap();
        run("ip", &["link", "add", &name, "type", "bridge"]);
        detach(&mut node.socket, &by_name, None).unwrap();
        assert!(links(None).contains(&name));
    });
}

#[test]
#[ignore = "kernel: root"]
fn thirty_deferred_deletions_are_reaped_at_once() {
    on_a_node(|node| {
        let mut pods = Vec::new();
        for n in 0..30 {
            let pod = namespace(&format!("p{n}"));
            let wanted = attachment(&format!("c{n}"), &format!("web-{n}"), &[&format!("10.1.0.{n}")]);
            node.attach(&wanted, &pod);
            detach(&mut node.socket, &detachment(&wanted, Removal::Deferred), Some(&pod)).unwrap();
            pods.push(pod);
        }
        let owned = list(&mut node.socket).unwrap();
        assert!(owned.len() == 30 && owned.iter().all(|link| link.doomed));
        let one = reap_one(&mut node.socket).unwrap();
        assert_eq!((one.count, one.left), (1, 29));
        let began = std::time::Instant::now();
        assert_eq!(reap(&mut node.socket).unwrap().count, 29);
        println!("reaped 29 links in {:?}", began.elapsed());
        assert_eq!(reap(&mut node.socket).unwrap().count, 0);
        assert_eq!(reap_one(&mut node.socket).unwrap(), Reaped::default());
        assert_eq!(links(None), ["lo"]);
    });
}

#[test]
#[ignore = "kernel: root"]
fn a_foreign_link_in_the_doomed_group_survives() {
    on_a_node(|node| {
        let pod = namespace("p");
        let wanted = attachment("c1", "web-0", &["10.1.0.1"]);
        node.attach(&wanted, &pod);
        detach(&mut node.socket, &detachment(&wanted, Removal::Deferred), Some(&pod)).unwrap();
        let group = DOOMED_GROUP.to_string();
        run("ip", &["link", "add", "precious", "group", &group, "type", "bridge"]);
        run("ip", &["link", "add", "rsx99", "group", &group, "type", "bridge"]);
        let reaped = reap(&mut node.socket).unwrap();
        assert_eq!((reaped.count, reaped.foreign), (1, vec!["precious".to_owned(), "rsx99".to_owned()]));
        assert_eq!(links(None), ["lo", "precious", "rsx99"]);
    });
}

#[test]
#[ignore = "kernel: root"]
fn the_list_says_whose_each_link_is() {
    on_a_node(|node| {
        let (a, b) = (namespace("a"), namespace("b"));
        run("ip", &["link", "add", "russ0", "type", "bridge"]);
        run("ip", &["link", "set", "russ0", "alias", "russet:not/ours"]);
        node.attach(&attachment("c1", "a", &["10.1.0.1"]), &a);
        let long = attachment(&"c".repeat(200), "b", &["10.1.0.2"]);
        let long = {
            let network = "n".repeat(200).parse().unwrap();
            russet_attach::Attachment { id: EndpointId { network, ..long.id.clone() }, ..long }
        };
        node.attach(&long, &b);
        let owned = list(&mut node.socket).unwrap();
        assert_eq!(owned.len(), 2);
        assert_eq!(owned[0].owner.to_string(), "russet:net1/c1/eth0");
        assert!(!owned[0].doomed && owned[1].owner.is(&long.id));
        assert_eq!(check(&long, &mut node.socket, &b).unwrap(), []);
        detach(&mut node.socket, &detachment(&long, Removal::Synchronous), Some(&b)).unwrap();
        assert_eq!(list(&mut node.socket).unwrap().len(), 1);
        // GC uses only the list, and finds nothing the second time.
        assert!(detach_owned(&mut node.socket, &owned[0], Removal::Deferred).unwrap());
        assert!(list(&mut node.socket).unwrap()[0].doomed);
        assert!(detach_owned(&mut node.socket, &owned[0], Removal::Synchronous).unwrap());
        assert!(!detach_owned(&mut node.socket, &owned[0], Removal::Synchronous).unwrap());
        assert_eq!(links(None), ["lo", "russ0"]);
    });
}
