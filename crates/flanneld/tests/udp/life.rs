//! Start and stop of the proxy, and repair of its device in between.

use std::time::Duration;

use russet_flanneld::udp::{Count, Proxy};
use russet_netlink::{Monitor, Topic};
use russet_testkit::{eventually, ip_json, sh};

use crate::lab::{lease, node, with_nodes};
use crate::transfer::tcp;

const DEADLINE: Duration = Duration::from_secs(10);

fn devices() -> Vec<String> {
    let links = ip_json(&["-n", "h1", "link"]);
    let names = links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with("flannel")).collect()
}

/// flannel.md sections 6.1 and 14.
#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn the_device_has_the_lease_base_the_network_and_the_mtu_and_goes_with_the_proxy() {
    with_nodes(|[one, _]| {
        let proxy = one.start(one.options());
        assert_eq!(proxy.device().as_str(), "flannel0");
        let shown = ip_json(&["-n", "h1", "addr", "show", "dev", "flannel0"]);
        assert_eq!((&shown[0]["mtu"], &shown[0]["txqlen"]), (&1472.into(), &500.into()));
        assert!(shown[0]["flags"].as_array().unwrap().contains(&"UP".into()));
        let inet = |address: &&serde_json::Value| address["family"] == "inet";
        let address = shown[0]["addr_info"].as_array().unwrap().iter().find(inet).unwrap();
        assert_eq!((&address["local"], &address["prefixlen"]), (&"10.1.1.0".into(), &32.into()));
        let route = sh("ip -n h1 -d route show 10.1.0.0/16");
        assert_eq!(route.trim(), "unicast 10.1.0.0/16 dev flannel0 proto boot scope global");
        drop(proxy);
        assert_eq!(devices(), [""; 0]);
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn a_restarted_proxy_forwards_like_the_one_before() {
    with_nodes(|[one, two]| {
        let _other = two.start(two.options());
        for _ in 0..5 {
            let _proxy = one.start(one.options());
            let (answered, said) = one.ping("", "10.1.2.2");
            assert!(answered, "{said}");
            assert_eq!(devices(), ["flannel0"]);
        }
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn a_port_in_use_is_an_error_and_leaves_no_device() {
    with_nodes(|[one, _]| {
        let _first = one.start(one.options());
        for queues in [1, 3] {
            let mut options = one.options();
            options.queues = queues;
            let error = one.host.run_in_thread(|| Proxy::start(options)).unwrap().unwrap_err();
            assert!(error.to_string().starts_with("open UDP socket 192.168.77.1:8285: bind: "), "{error}");
            assert_eq!(devices(), ["flannel0"]);
        }
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn a_deleted_device_is_reported_as_a_failure() {
    with_nodes(|[one, _]| {
        let proxy = one.start(one.options());
        assert_eq!(proxy.failure(), None);
        sh("ip -n h1 link del flannel0");
        eventually(DEADLINE, || proxy.failure().is_some());
        drop(proxy);
        let again = one.start(one.options());
        assert_eq!(again.failure(), None);
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn removed_route_address_and_state_are_repaired() {
    with_nodes(|[one, two]| {
        let proxies = [one.start(one.options()), two.start(two.options())];
        for damage in [
            "ip -n h1 route del 10.1.0.0/16",
            "ip -n h1 link set flannel0 down",
            "ip -n h1 addr flush dev flannel0",
            "ip -n h1 link set flannel0 mtu 900",
        ] {
            sh(damage);
            proxies[0].repair().unwrap();
            let (answered, said) = one.ping("-s 1444 -M do", "10.1.2.2");
            assert!(answered, "after {damage}: {said}");
            assert_eq!(proxies[0].failure(), None);
        }
        // A repair after an event must not cause another event.
        let topics = [Topic::Links, Topic::Addresses, Topic::Routes];
        let mut monitor = one.host.with(|| Monitor::open(&topics)).unwrap().unwrap();
        proxies[0].repair().unwrap();
        assert!(monitor.next(Duration::ZERO).unwrap().is_none());
        sh("ip -n h1 route del 10.1.0.0/16");
        proxies[0].repair().unwrap();
        assert!(monitor.next(Duration::ZERO).unwrap().is_some());
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn added_and_removed_peers_take_effect_at_once() {
    with_nodes(|[one, two]| {
        let proxies = [one.start(one.options()), two.start(two.options())];
        proxies[0].remove(lease(2));
        assert!(!one.ping("-W 1", "10.1.2.2").0);
        // The wide prefix has no peer, the narrow one has.
        proxies[0].put("10.1.0.0/16".parse().unwrap(), node(99));
        proxies[0].put(lease(2), node(2));
        assert!(one.ping("", "10.1.2.2").0);
        proxies[0].reset(&[]);
        assert!(!one.ping("-W 1", "10.1.2.2").0);
        proxies[0].reset(&[(lease(2), node(2))]);
        assert!(one.ping("", "10.1.2.2").0);
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn a_stream_survives_the_replacement_of_its_proxy() {
    with_nodes(|[one, two]| {
        let _other = two.start(two.options());
        let mut proxy = one.start(one.options());
        one.know_the_way("10.1.2.2");
        std::thread::scope(|scope| {
            let stream = scope.spawn(|| tcp(&one.pod, &two.pod, [10, 1, 2, 2].into(), 64 << 20));
            for _ in 0..3 {
                eventually(DEADLINE, || proxy.count(Count::Sent) > 500);
                assert!(!stream.is_finished(), "the stream is still running");
                drop(proxy);
                assert_eq!(devices(), [""; 0]);
                proxy = one.start(one.options());
            }
            stream.join().unwrap();
            assert_eq!(proxy.failure(), None);
        });
    });
}
