//! Choices over constructed dumps.

use russet_netlink::{OperState, Scope};

use super::*;

fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        flags: 1,
        mtu_bytes: 1500,
        mac: None,
        kind: None,
        alias: None,
        group: 0,
        master: None,
        link: None,
        link_netnsid: None,
        operstate: OperState::Up,
        tx_queue_len: 1000,
        sizes: Default::default(),
        tso_max_bytes: 0,
        addr_gen_mode: None,
        vxlan: None,
        ipip: None,
        bridge_port: None,
    }
}

fn address(ifindex: u32, net: &str, flags: u32) -> Address {
    Address {
        ifindex,
        net: net.parse().unwrap(),
        peer: None,
        broadcast: None,
        scope: Scope::Universe,
        flags: AddressFlags(flags),
        protocol: 0,
    }
}

fn default(family: &str, oif: u32) -> Route {
    Route { oif: Some(oif), ..Route::new(family.parse().unwrap()) }
}

const PERMANENT: u32 = 0x80;

/// A loopback, two networks, and a dynamic first address on eth1.
fn dump() -> Dump {
    Dump {
        links: vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1")],
        addresses: vec![
            address(1, "127.0.0.1/8", PERMANENT),
            address(2, "10.200.0.11/24", PERMANENT),
            address(3, "169.254.7.7/16", PERMANENT),
            address(3, "192.168.5.9/24", 0),
            address(3, "192.168.5.10/24", PERMANENT | 0x01),
            address(2, "fe80::1/64", PERMANENT),
            address(2, "fd00:200::aaaa/64", 0x01),
            address(2, "fd00:200::dddd/64", PERMANENT | 0x20),
            address(2, "fd00:200::bbbb/64", 0),
            address(2, "fd00:200::11/64", PERMANENT),
            address(3, "fd00:5::11/64", PERMANENT),
        ],
        defaults: vec![default("0.0.0.0/0", 2), default("::/0", 2)],
        route: None,
    }
}

fn wish(iface: &[&str], regex: &[&str]) -> Wanted {
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Wanted { iface: own(iface), iface_regex: own(regex), ..Wanted::default() }
}

fn chosen(stack: Stack, wanted: &Wanted) -> String {
    let text = |address: Option<String>| address.unwrap_or_else(|| "-".to_owned());
    match choose(&dump(), stack, wanted) {
        Ok(e) => format!(
            "{} {} {}",
            e.name,
            text(e.v4.map(|address| address.to_string())),
            text(e.v6.map(|address| address.to_string()))
        ),
        Err(error) => format!("error: {error}"),
    }
}

/// flannel.md section 1.4, issue #2293 of flannel.
#[test]
fn without_a_request_the_default_route_decides_and_the_best_address_is_taken() {
    let none = Wanted::default();
    assert_eq!(chosen(Stack::V4, &none), "eth0 10.200.0.11 -");
    assert_eq!(chosen(Stack::V6, &none), "eth0 - fd00:200::11");
    assert_eq!(chosen(Stack::Dual, &none), "eth0 10.200.0.11 fd00:200::11");
    let mut apart = dump();
    apart.defaults[1].oif = Some(3);
    let error = choose(&apart, Stack::Dual, &none).unwrap_err().to_string();
    assert!(error.contains("eth0 and eth1"), "{error}");
    let mut several = dump();
    several.defaults[0].oif = None;
    several.defaults[0].multipath = vec![russet_netlink::NextHop { oif: 3, gateway: None }];
    assert_eq!(choose(&several, Stack::V4, &none).unwrap().v4.unwrap().to_string(), "192.168.5.10");
}

/// flannel.md sections 1.4 and 10.
#[test]
fn t36_without_a_default_route_and_a_request_there_is_no_interface() {
    let bare = Dump { defaults: Vec::new(), ..dump() };
    for (stack, family) in [(Stack::V4, "IPv4"), (Stack::V6, "IPv6"), (Stack::Dual, "IPv4")] {
        let error = choose(&bare, stack, &Wanted::default()).unwrap_err().to_string();
        assert!(error.contains("-iface"), "{family}: {error}");
    }
    assert_eq!(chosen(Stack::V4, &wish(&["eth1"], &[])), "eth1 192.168.5.10 -");
}

/// flannel.md sections 1.4 and 10.
#[test]
fn t35_the_first_request_that_matches_is_taken() {
    assert_eq!(chosen(Stack::V4, &wish(&["eth7", "eth1", "eth0"], &[])), "eth1 192.168.5.10 -");
    assert_eq!(chosen(Stack::V4, &wish(&["eth7"], &["eth0"])), "eth0 10.200.0.11 -");
    assert_eq!(
        chosen(Stack::V4, &wish(&["lo", "eth0"], &[])),
        "eth0 10.200.0.11 -",
        "lo has no usable address"
    );
    assert!(chosen(Stack::V4, &wish(&["eth7"], &["("])).starts_with("error: none of"));
}

/// flannel.md section 1.4.
#[test]
fn an_address_names_its_interface_and_only_one_of_the_networks_family() {
    assert_eq!(chosen(Stack::V4, &wish(&["192.168.5.9"], &[])), "eth1 192.168.5.9 -");
    assert_eq!(chosen(Stack::V4, &wish(&["127.0.0.1"], &[])), "lo 127.0.0.1 -");
    assert_eq!(chosen(Stack::V6, &wish(&["fd00:200::aaaa"], &[])), "eth0 - fd00:200::aaaa");
    assert_eq!(chosen(Stack::Dual, &wish(&["10.200.0.11"], &[])), "eth0 10.200.0.11 fd00:200::11");
    assert_eq!(chosen(Stack::Dual, &wish(&["fd00:5::11"], &[])), "eth1 192.168.5.10 fd00:5::11");
    for (stack, value) in [(Stack::V4, "fd00:5::11"), (Stack::V6, "10.200.0.11"), (Stack::V4, "10.200.0.12")]
    {
        assert!(chosen(stack, &wish(&[value], &[])).starts_with("error: none of"), "{value}");
    }
    let both = |v6: &str| Wanted { public_ipv6: v6.to_owned(), ..wish(&["10.200.0.11"], &[]) };
    assert_eq!(chosen(Stack::Dual, &both("fd00:200::bbbb")), "eth0 10.200.0.11 fd00:200::bbbb");
    assert!(chosen(Stack::Dual, &both("fd00:5::11")).starts_with("error"), "it is on another interface");
}

/// flannel.md section 1.4.
#[test]
fn a_pattern_is_tried_on_addresses_first_then_on_names_and_need_not_be_anchored() {
    assert_eq!(chosen(Stack::V4, &wish(&[], &["^192\\.168\\.5\\.9$"])), "eth1 192.168.5.9 -");
    assert_eq!(chosen(Stack::V4, &wish(&[], &["168"])), "eth1 192.168.5.10 -");
    assert_eq!(chosen(Stack::V4, &wish(&[], &["th1"])), "eth1 192.168.5.10 -");
    assert_eq!(chosen(Stack::V4, &wish(&[], &["[[:alpha:]]+\\d$"])), "eth0 10.200.0.11 -");
    assert_eq!(
        chosen(Stack::Dual, &wish(&[], &["10.200.0.11|fd00:200::b+"])),
        "eth0 10.200.0.11 fd00:200::bbbb"
    );
    // Both families must match; otherwise names are tried.
    assert!(chosen(Stack::Dual, &wish(&[], &["^10\\."])).starts_with("error"));
    assert_eq!(
        chosen(Stack::V4, &wish(&[], &["(", "eth0"])),
        "eth0 10.200.0.11 -",
        "an invalid pattern matches nothing"
    );
}

/// flannel.md sections 1.4 and 10.
#[test]
fn t34_a_public_address_that_is_not_local_needs_an_interface() {
    let mut options = Options { public_ip: "203.0.113.7".to_owned(), ..Options::default() };
    assert!(chosen(Stack::V4, &Wanted::new(&options, &Known::default())).starts_with("error"));
    options.iface = vec!["eth0".to_owned()];
    let external = choose(&dump(), Stack::V4, &Wanted::new(&options, &Known::default())).unwrap();
    assert_eq!(external.v4.unwrap().to_string(), "10.200.0.11");
    assert_eq!(external.public_v4.unwrap().to_string(), "203.0.113.7");
    let local = Options { public_ip: "192.168.5.9".to_owned(), ..Options::default() };
    assert_eq!(chosen(Stack::V4, &Wanted::new(&local, &Known::default())), "eth1 192.168.5.9 -");
    for bad in ["eth0", "fd00::1", "10.0.0.256"] {
        let options = Options { public_ip: bad.to_owned(), iface: vec!["eth0".into()], ..Options::default() };
        assert!(chosen(Stack::V4, &Wanted::new(&options, &Known::default())).starts_with("error"), "{bad}");
    }
}

/// flannel.md sections 1.4 and 5.1.
#[test]
fn an_annotation_of_the_node_wins_over_the_flag() {
    let options = Options { public_ip: "10.200.0.11".to_owned(), ..Options::default() };
    let known = Known { public_ip: Some("192.168.5.9".parse().unwrap()), ..Known::default() };
    assert_eq!(chosen(Stack::V4, &Wanted::new(&options, &known)), "eth1 192.168.5.9 -");
}

/// flannel.md section 1.4.
#[test]
fn the_route_to_an_address_names_the_interface_and_the_source() {
    let wanted = Wanted { can_reach: "203.0.113.1".to_owned(), ..wish(&["eth9"], &[]) };
    let source = Some("192.168.5.9".parse().unwrap());
    let route = RouteLookup { kind: RouteKind::Unicast, oif: Some(3), gateway: None, source };
    let reachable = Dump { route: Some(Ok(route)), ..dump() };
    let external = choose(&reachable, Stack::Dual, &wanted).unwrap();
    assert_eq!(
        (external.name.as_str(), external.v4.unwrap().to_string()),
        ("eth1", "192.168.5.9".to_owned())
    );
    assert_eq!(external.v6.unwrap().to_string(), "fd00:5::11");
    let cut_off = Dump { route: Some(Err("ENETUNREACH".to_owned())), ..dump() };
    assert!(choose(&cut_off, Stack::V4, &wanted).is_err());
    assert!(choose(&dump(), Stack::V4, &wanted).is_err(), "no address at all");
}

/// flannel.md section 1.4.
#[test]
fn an_mtu_of_0_is_an_error() {
    let mut dead = dump();
    dead.links[1].mtu_bytes = 0;
    let error = choose(&dead, Stack::V4, &Wanted::default()).unwrap_err().to_string();
    assert!(error.contains("MTU 0"), "{error}");
}

#[test]
fn an_invalid_pattern_is_refused_in_one_line() {
    let error = compile("^eth(").unwrap_err().to_string();
    assert_eq!(error, "iface-regex \"^eth(\" is not a regular expression: unclosed group");
}
