use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use russet_addr::IpNet;

use super::*;
use crate::Dns;

fn net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (any::<[u8; 4]>(), 0..=32u8).prop_map(|(ip, len)| IpNet::new(ip.into(), len).unwrap()),
        (any::<[u8; 16]>(), 0..=128u8).prop_map(|(ip, len)| IpNet::new(ip.into(), len).unwrap()),
    ]
}

fn gateway() -> impl Strategy<Value = Option<std::net::IpAddr>> {
    option::of(net().prop_map(|net| net.addr()))
}

fn attribute() -> impl Strategy<Value = Option<u32>> {
    option::of(1..u32::MAX)
}

prop_compose! {
    fn route()(dst in net(), gw in gateway(), mtu in attribute(), advmss in attribute(), priority in attribute(),
               table in option::of(any::<u32>()), scope in option::of(any::<u32>())) -> Route {
        Route { dst, gw, mtu, advmss, priority, table, scope }
    }
}

prop_compose! {
    fn interface()(name in "\\PC{0,15}", mac in "([0-9a-f:]{17})?", sandbox in "(/[a-z]{1,8})?", mtu in attribute(),
                   socket_path in "(/s)?", pci_id in "(0000)?") -> Interface {
        Interface { name, mac, sandbox, mtu, socket_path, pci_id }
    }
}

prop_compose! {
    fn dns()(nameservers in vec("[0-9.]{0,9}", 0..3), domain in "[a-z.]{0,9}", search in vec("[a-z.]{0,9}", 0..3),
             options in vec(".{0,9}", 0..2)) -> Dns {
        Dns { nameservers, domain, search, options }
    }
}

prop_compose! {
    fn full()(interfaces in vec(interface(), 0..4), routes in vec(route(), 0..5), dns in dns(),
              ips in vec((net(), gateway(), option::of(0..4u32)), 0..5)) -> CniResult {
        let count = u32::try_from(interfaces.len()).unwrap();
        let ip = |(address, gateway, interface): (IpNet, _, Option<u32>)| {
            IpConfig { address, gateway, interface: interface.filter(|index| *index < count) }
        };
        let ips = ips.into_iter().map(ip).collect();
        CniResult { cni_version: Version::LATEST, interfaces, ips, routes, dns }
    }
}

fn version() -> impl Strategy<Value = Version> {
    proptest::sample::select(Version::ALL.to_vec())
}

/// A result as that version can say it.
fn result() -> impl Strategy<Value = CniResult> {
    (full(), version())
        .prop_map(|(result, version)| result.convert(version).unwrap_or_else(|_| CniResult::empty(version)))
}

proptest! {
    // cni-runtime.md section 1.8, the laws of conversion

    #[test]
    fn what_is_written_is_read_back(result in result()) {
        prop_assert_eq!(&CniResult::decode(&result.encode(), Version::V0_1_0).unwrap(), &result);
    }

    #[test]
    fn conversion_to_the_same_version_changes_nothing(result in result()) {
        prop_assert_eq!(&result.convert(result.cni_version).unwrap(), &result);
    }

    #[test]
    fn only_the_conversion_of_a_result_without_addresses_to_0_2_fails(result in result(), to in version()) {
        let old = Version::V0_2_0;
        let fails = result.cni_version > old && to <= old && result.ips.is_empty();
        prop_assert_eq!(result.convert(to).is_err(), fails);
    }

    #[test]
    fn a_conversion_via_0_4_0_changes_nothing(result in result(), to in version()) {
        // C -> A is C -> 0.4.0 -> A, and A -> C is A -> 0.4.0 -> C
        let middle = result.convert(Version::V0_4_0).unwrap();
        let crosses = result.cni_version.shape() != to.shape();
        if let (true, Ok(direct)) = (crosses, result.convert(to)) {
            prop_assert_eq!(middle.convert(to).unwrap(), direct);
        }
    }

    #[test]
    fn a_way_up_and_back_loses_nothing(result in result(), to in version()) {
        if to >= result.cni_version && (!result.ips.is_empty() || result.cni_version.shape() != Shape::A) {
            let there = result.convert(to).unwrap();
            prop_assert_eq!(there.convert(result.cni_version).unwrap(), result);
        }
    }

    #[test]
    fn any_bytes_give_a_result_or_an_error(bytes: Vec<u8>, text in "[\\[\\]{}\",:a-z0-9./ ]{0,60}") {
        let _ = CniResult::decode(&bytes, Version::V1_0_0);
        let _ = CniResult::decode(text.as_bytes(), Version::V0_2_0);
    }
}

#[test]
fn attributes_of_routes_survive_0_3_and_not_0_2() {
    // cni-runtime.md section 6.2 item 40
    let text = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1450}],
        "ips":[{"address":"10.0.0.2/24","interface":0},{"address":"10.0.0.3/24"}],
        "routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1","mtu":1400,"table":7},{"dst":"::/0","mtu":1400}]}"#;
    let result = CniResult::decode(text.as_bytes(), Version::V1_1_0).unwrap();
    let middle = result.convert(Version::V0_3_1).unwrap();
    assert_eq!((middle.routes[0].mtu, middle.routes[0].table), (Some(1400), Some(7)));
    assert_eq!(middle.interfaces[0].mtu, None);
    let old = result.convert(Version::V0_2_0).unwrap();
    assert_eq!(old.routes, [Route::new("0.0.0.0/0".parse().unwrap(), "10.0.0.1".parse().ok())]);
    assert_eq!((old.ips.len(), old.ips[0].interface, old.interfaces.len()), (1, None, 0));
    let error = CniResult::empty(Version::V1_1_0).convert(Version::V0_2_0).unwrap_err();
    assert_eq!(error.to_string(), "cannot convert: no valid IP addresses");
}

#[test]
fn old_results_gain_versions_and_keep_their_order() {
    // cni-runtime.md section 1.8: ip4 first, then ip6; routes likewise
    let text = r#"{"cniVersion":"0.2.0","ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]},
        "ip4":{"ip":"10.0.0.2/24","routes":[{"dst":"0.0.0.0/0"}]},"dns":{"domain":"a"}}"#;
    let result = CniResult::decode(text.as_bytes(), Version::V0_2_0).unwrap();
    let new = result.convert(Version::V1_0_0).unwrap();
    let ips: Vec<String> = new.ips.iter().map(|ip| ip.address.to_string()).collect();
    assert_eq!(ips, ["10.0.0.2/24", "fd00::2/64"]);
    assert_eq!(new.routes[0].dst.to_string(), "0.0.0.0/0");
    assert_eq!(new.dns.domain, "a");
}
