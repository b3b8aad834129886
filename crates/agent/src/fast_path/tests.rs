use russet_addr::Mac;
use russet_netlink::{Address, FdbEntry, Neighbour, Route};

use super::*;

fn dirty_of(change: Change) -> [bool; 3] {
    let signal = Signal::default();
    signal.heard(&Event::Set(change));
    let now = Instant::now();
    let (dirty, _) = signal.wait(now, now);
    [dirty.nodes, dirty.pods, dirty.underlay]
}

#[test]
fn changes_of_the_kernel_concern_pods_nodes_or_the_underlay() {
    let address = |text: &str| text.parse().unwrap();
    let net = |text: &str| text.parse().unwrap();
    let none = [false; 3];
    let pods = [false, true, false];
    let nodes = [true, false, false];
    let everything = [true; 3];
    let mac = Mac([2; 6]);
    let to_a_pod = || Route { protocol: ROUTE_PROTOCOL, ..Route::dev(net("10.244.1.2/32"), 7) };
    assert_eq!(dirty_of(Change::Route(to_a_pod())), pods);
    assert_eq!(dirty_of(Change::Route(Route::dev(net("192.0.2.9/32"), 2))), everything);
    assert_eq!(dirty_of(Change::Route(Route::blackhole(net("10.244.1.2/32")))), everything);
    let to_a_node =
        Route { protocol: ROUTE_PROTOCOL, ..Route::via(net("10.244.2.0/26"), address("10.244.2.0")) };
    assert_eq!(dirty_of(Change::Route(to_a_node)), nodes);
    assert_eq!(dirty_of(Change::Route(Route::via(net("0.0.0.0/0"), address("192.0.2.1")))), everything);
    assert_eq!(dirty_of(Change::Route(Route::dev(net("fe80::/64"), 7))), none);
    assert_eq!(dirty_of(Change::Address(Address::new(7, net("fe80::1/64")))), [false, true, true]);
    assert_eq!(dirty_of(Change::Route(Route::blackhole(net("10.244.2.0/24")))), everything);
    assert_eq!(dirty_of(Change::Neighbour(Neighbour::permanent(7, address("10.244.1.2"), mac))), pods);
    let learnt =
        Neighbour { state: NeighbourState::Reachable, ..Neighbour::permanent(2, address("192.0.2.1"), mac) };
    assert_eq!(dirty_of(Change::Neighbour(learnt)), none);
    assert_eq!(dirty_of(Change::Fdb(FdbEntry::remote(3, mac, address("192.0.2.2")))), nodes);
    let of_a_bridge = FdbEntry { table: FdbTable::Bridge, ..FdbEntry::remote(3, mac, address("192.0.2.2")) };
    assert_eq!(dirty_of(Change::Fdb(of_a_bridge)), none);
}

#[test]
fn lost_events_concern_everything_and_changes_of_pods_wait_until_they_are_quiet() {
    let signal = Signal::default();
    signal.heard(&Event::Overrun);
    let began = Instant::now();
    let (dirty, _) = signal.wait(began, began + RESYNC);
    assert_eq!([dirty.nodes, dirty.pods, dirty.underlay], [true; 3]);
    let pod = "10.244.1.2/32".parse().unwrap();
    let route = || Route { protocol: ROUTE_PROTOCOL, ..Route::dev(pod, 7) };
    signal.heard(&Event::Gone(Change::Route(route())));
    let began = Instant::now();
    assert!(signal.wait(began, began + RESYNC).0.pods);
    assert!(began.elapsed() >= QUIET);
    let now = Instant::now();
    assert!(!signal.wait(now, now).0.is_any(), "what was taken is not reported again");
}

#[test]
fn routes_wait_for_the_pause_between_comparisons_and_the_end_for_nothing() {
    let signal = Signal::default();
    signal.heard(&Event::Overrun);
    let began = Instant::now();
    let (dirty, _) = signal.wait(began + QUIET, began + RESYNC);
    assert!(dirty.nodes && began.elapsed() >= QUIET);
    signal.deaf();
    let began = Instant::now();
    assert!(signal.wait(began + RESYNC, began + RESYNC).0.is_broken);
    assert!(began.elapsed() < RESYNC);
}

#[test]
fn programs_are_attached_when_pods_interfaces_are_quiet_and_in_a_stream_of_changes_after_a_while() {
    let now = Instant::now();
    let ago = |span| now.checked_sub(span);
    let quiet_in = |changed, since| Waiting { changed, since }.quiet_in(now);
    assert_eq!(quiet_in(None, None), Duration::ZERO);
    assert_eq!(quiet_in(Some(now), None), ATTACH_QUIET);
    assert_eq!(quiet_in(Some(now), Some(now)), ATTACH_QUIET);
    assert_eq!(quiet_in(ago(ATTACH_QUIET), Some(now)), Duration::ZERO);
    assert_eq!(quiet_in(Some(now), ago(ATTACH_QUIET_MAX)), Duration::ZERO);
}
