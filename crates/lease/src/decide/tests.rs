//! Rows of flannel.md section 10 that are decisions.

use std::collections::BTreeSet;

use russet_model::Key;
use russet_store::Revision;

use super::*;

const V4: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
const DUAL: &str = r#"{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:10:5::/48"}"#;
const V6: &str = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48"}"#;

fn config(text: &str) -> NetworkConfig {
    NetworkConfig::parse(text.as_bytes()).unwrap().validated().unwrap()
}

fn attributes(v4: &str, v6: Option<&str>) -> Attributes {
    Attributes {
        public_ip: v4.parse().unwrap(),
        public_ipv6: v6.map(|v6| v6.parse().unwrap()),
        backend_type: "vxlan".into(),
        backend_data: None,
        backend_v6_data: None,
    }
}

fn key(text: &str) -> SubnetKey {
    text.parse().unwrap()
}

fn listed(path: &str, v4: &str, v6: Option<&str>) -> Listed {
    at(&format!("/n/subnets/{path}"), path, v4, v6)
}

fn at(full: &str, path: &str, v4: &str, v6: Option<&str>) -> Listed {
    let attributes = attributes(v4, v6);
    let record = Record { key: Key::from_stored(full), value: attributes.to_json(), revision: Revision(1) };
    let key = key(path);
    Listed { in_place: full == format!("/n/subnets/{key}"), record, key, attributes: Some(attributes) }
}

fn wish(previous: &str) -> Wish {
    let previous = previous.parse().unwrap_or_default();
    Wish { attributes: attributes("192.0.2.1", Some("fd00:2::1")), previous }
}

fn decide(config: &NetworkConfig, wish: &Wish, all: &[Listed]) -> Result<String, LeaseError> {
    plan(config, wish, all, &mut Rng::new(1)).map(|plan| match plan {
        Plan::Adopt(one) => format!("adopt {}", one.key),
        Plan::Withdraw(one) => format!("withdraw {}", one.key),
        Plan::Create(key) => format!("create {key}"),
    })
}

/// Every subnet that is drawn with one of many seeds.
fn drawn(config: &NetworkConfig, all: &[Listed]) -> BTreeSet<SubnetKey> {
    let created = |seed| match plan(config, &wish(""), all, &mut Rng::new(seed)).unwrap() {
        Plan::Create(key) => key,
        other => panic!("{other:?}"),
    };
    (0..4000).map(created).collect()
}

#[test]
fn t01_one_of_the_first_hundred_free_subnets_is_drawn() {
    let all = drawn(&config(V4), &[]);
    let wanted: BTreeSet<SubnetKey> = (1..=100).map(|n| key(&format!("10.5.{n}.0-24"))).collect();
    assert_eq!(all, wanted);
}

#[test]
fn taken_subnets_of_any_length_are_left_out() {
    // flannel.md section 3.3 step 3: overlaps with any listed lease.
    let taken = [
        listed("10.5.1.0-24", "192.0.2.9", None),
        listed("10.5.2.128-25", "192.0.2.8", None),
        listed("10.5.4.0-22", "192.0.2.7", None),
        listed("10.4.0.0-15", "192.0.2.7", None),
    ];
    assert_eq!(drawn(&config(V4), &taken[..3]).first(), Some(&key("10.5.3.0-24")));
    assert_eq!(drawn(&config(V4), &taken[..3]).iter().nth(1), Some(&key("10.5.8.0-24")));
    let error = decide(&config(V4), &wish(""), &taken).unwrap_err();
    assert!(matches!(error, LeaseError::OutOfSubnets { .. }) && !error.is_retryable(), "{error}");
}

#[test]
fn t05_and_t06_small_networks_give_all_their_subnets_and_then_none() {
    let bases = |text: &str| drawn(&config(text), &[]).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(bases(r#"{"Network":"10.5.6.0/25"}"#), ["10.5.6.32-27", "10.5.6.64-27", "10.5.6.96-27"]);
    assert_eq!(bases(r#"{"Network":"10.5.6.0/28"}"#), ["10.5.6.4-30", "10.5.6.8-30", "10.5.6.12-30"]);
}

#[test]
fn t09_a_first_subnet_behind_the_last_leaves_none() {
    let config = config(r#"{"Network":"10.6.0.0/16","SubnetMin":"10.6.9.0","SubnetMax":"10.6.3.0"}"#);
    let error = decide(&config, &wish(""), &[]).unwrap_err();
    assert!(error.to_string().starts_with("out of subnets") && !error.is_retryable(), "{error}");
}

#[test]
fn t10_and_t11_a_lease_of_this_node_is_taken_again_if_it_fits_and_deleted_if_not() {
    let ours = |path: &str| decide(&config(V4), &wish(""), &[listed(path, "192.0.2.1", None)]).unwrap();
    assert_eq!(ours("10.5.7.0-24"), "adopt 10.5.7.0-24");
    assert_eq!(ours("10.5.7.0-25"), "withdraw 10.5.7.0-25");
    assert_eq!(ours("10.9.7.0-24"), "withdraw 10.9.7.0-24");
    // Never assigned by default: its base is the network's own address.
    assert_eq!(ours("10.5.0.0-24"), "withdraw 10.5.0.0-24");
    // Another node's lease is not adopted either.
    let other = [listed("10.5.7.0-25", "192.0.2.2", None)];
    assert!(decide(&config(V4), &wish(""), &other).unwrap().starts_with("create"));
}

#[test]
fn t12_and_t13_and_t14_the_previous_subnet_is_taken_where_it_is_free_and_fits() {
    let other = [listed("10.5.29.0-24", "192.0.2.2", None)];
    assert_eq!(decide(&config(V4), &wish("10.5.29.0-24"), &[]).unwrap(), "create 10.5.29.0-24");
    for previous in ["10.6.29.0-24", "10.5.29.0-25", "10.5.29.1-24", "garbage"] {
        let got = decide(&config(V4), &wish(previous), &[]).unwrap();
        assert!(got.ends_with(".0-24") && got != "create 10.5.29.0-24", "{previous}: {got}");
    }
    assert_ne!(decide(&config(V4), &wish("10.5.29.0-24"), &other).unwrap(), "create 10.5.29.0-24");
}

#[test]
fn t45_no_key_with_both_families_in_a_v4_only_network_nor_over_a_v4_only_lease() {
    let previous = "10.5.29.0-24&fd00:10:5:30::-64";
    assert_eq!(decide(&config(V4), &wish(previous), &[]).unwrap(), "create 10.5.29.0-24");
    let ours = [listed(previous, "192.0.2.1", Some("fd00:2::1"))];
    assert_eq!(decide(&config(V4), &wish(previous), &ours).unwrap(), format!("withdraw {previous}"));
    let live = [listed("10.5.29.0-24", "192.0.2.2", None)];
    let got = decide(&config(DUAL), &wish(previous), &live).unwrap();
    assert!(got.ends_with("&fd00:10:5:30::-64") && !got.contains("10.5.29.0"), "{got}");
    for key in drawn(&config(DUAL), &live) {
        assert!(!key.overlaps(&live[0].key), "{key}");
    }
}

#[test]
fn each_family_is_drawn_by_itself() {
    let all = drawn(&config(DUAL), &[]);
    let v4: BTreeSet<_> = all.iter().map(|key| key.v4.unwrap()).collect();
    let v6: BTreeSet<_> = all.iter().map(|key| key.v6.unwrap()).collect();
    assert_eq!((v4.len(), v6.len()), (100, 100));
    assert!(all.len() > 1000, "pairs, not one number for both");
    assert_eq!(v6.first().unwrap().to_string(), "fd00:10:5:1::/64");
}

#[test]
fn t46_without_ipv4_nodes_are_distinguished_by_their_ipv6_addresses() {
    let theirs = [listed("0.0.0.0-0&fd00:10:5:9::-64", "0.0.0.0", Some("fd00:2::2"))];
    let ours = [listed("0.0.0.0-0&fd00:10:5:9::-64", "0.0.0.0", Some("fd00:2::1"))];
    let mut wish = wish("");
    wish.attributes.public_ip = Ipv4Addr::UNSPECIFIED;
    assert!(decide(&config(V6), &wish, &theirs).unwrap().starts_with("create 0.0.0.0-0&"));
    assert_eq!(decide(&config(V6), &wish, &ours).unwrap(), "adopt 0.0.0.0-0&fd00:10:5:9::-64");
}

#[test]
fn a_lease_of_this_node_that_overlaps_another_nodes_is_not_taken_again() {
    let both = [listed("10.5.7.0-24", "192.0.2.1", None), listed("10.5.7.128-25", "192.0.2.2", None)];
    assert_eq!(decide(&config(V4), &wish(""), &both).unwrap(), "withdraw 10.5.7.0-24");
}

#[test]
fn copies_and_garbage_beside_a_lease_leave_it_to_its_node() {
    let mut garbage = listed("10.5.7.128-25", "192.0.2.2", None);
    garbage.attributes = None;
    let all = [
        listed("10.5.7.0-24", "192.0.2.1", None),
        at("/n/subnets-copy/10.5.7.0-24", "10.5.7.0-24", "192.0.2.1", None),
        at("/n/subnets-copy/10.5.7.0-25", "10.5.7.0-25", "192.0.2.2", None),
        garbage,
    ];
    assert_eq!(decide(&config(V4), &wish(""), &all).unwrap(), "adopt 10.5.7.0-24");
    // Other nodes do not get the subnets that they name.
    assert_ne!(decide(&config(V4), &wish("10.5.7.0-24"), &all[1..]).unwrap(), "create 10.5.7.0-24");
}

#[test]
fn of_several_leases_the_previous_one_is_adopted_and_a_misplaced_one_never() {
    let both = [listed("10.5.7.0-24", "192.0.2.1", None), listed("10.5.8.0-24", "192.0.2.1", None)];
    assert_eq!(decide(&config(V4), &wish("10.5.8.0-24"), &both).unwrap(), "adopt 10.5.8.0-24");
    assert_eq!(decide(&config(V4), &wish(""), &both).unwrap(), "adopt 10.5.7.0-24");
    let strange = [listed("x10.5.7.0-24", "192.0.2.1", None)];
    assert_ne!(decide(&config(V4), &wish("10.5.7.0-24"), &strange).unwrap(), "create 10.5.7.0-24");
}

#[test]
fn a_record_that_cannot_be_parsed_still_takes_its_subnet() {
    // flannel.md section 11 experiment 19.
    let config = config(r#"{"Network":"10.6.0.0/16","SubnetMin":"10.6.3.0","SubnetMax":"10.6.3.0"}"#);
    let mut garbage = listed("10.6.3.0-24", "192.0.2.2", None);
    garbage.attributes = None;
    assert!(matches!(decide(&config, &wish(""), &[garbage]), Err(LeaseError::OutOfSubnets { .. })));
}

#[test]
fn free_ranges_are_found_at_both_ends_of_the_number_space() {
    assert_eq!(free(0, 30, 10, vec![(5, 5), (0, 9), (0, 3)]), [10, 20, 30]);
    assert_eq!(free(10, 30, 10, vec![(0, 10), (29, 29), (12, 13)]), [30]);
    assert_eq!(free(u128::MAX - 19, u128::MAX - 9, 10, vec![]), [u128::MAX - 19, u128::MAX - 9]);
    assert!(free(0, 30, 10, vec![(0, u128::MAX)]).is_empty() && free(9, 3, 1, vec![]).is_empty());
}

#[test]
fn free_ranges_equal_those_of_a_slow_search() {
    let mut rng = Rng::new(7);
    for _ in 0..3000 {
        let (size, first) = (1 + u128::from(rng.below(9)), u128::from(rng.below(20)));
        let last = first + size * u128::from(rng.below(40));
        let taken: Vec<(u128, u128)> = (0..rng.below(12))
            .map(|_| {
                let begin = u128::from(rng.below(400));
                (begin, begin + u128::from(rng.below(if rng.clone().below(4) == 0 { 200 } else { 12 })))
            })
            .collect();
        let slow = (0..=(last - first) / size).map(|n| first + n * size);
        let slow = slow.filter(|at| taken.iter().all(|(begin, end)| *end < *at || *begin >= at + size));
        let slow: Vec<u128> = slow.take(FREE_MAX).collect();
        assert_eq!(
            free(first, last, size, taken.clone()),
            slow,
            "{first}..={last} by {size} without {taken:?}"
        );
    }
}
