use russet_addr::ContainerId;
use russet_model::openshift::Namespace;
use russet_store::sim::Rng;

use super::*;
use crate::data_path::Port;

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn denied(rules: &[(bool, &str)]) -> Vec<String> {
    let rules: Vec<(bool, Ipv4Net)> = rules.iter().map(|(allow, text)| (*allow, net(text))).collect();
    let shown = |range: &Range| format!("{}-{}", range.first, range.last);
    Denied::by_rules(&rules).ranges().iter().map(shown).collect()
}

#[test]
fn k123_the_first_rule_that_covers_an_address_decides() {
    // kubernetes.md K123
    assert_eq!(denied(&[]), [""; 0]);
    assert_eq!(denied(&[(true, "0.0.0.0/0")]), [""; 0]);
    assert_eq!(denied(&[(false, "0.0.0.0/0")]), ["0.0.0.0-255.255.255.255"]);
    let allowed_first = [(true, "1.2.3.0/24"), (false, "0.0.0.0/0")];
    assert_eq!(denied(&allowed_first), ["0.0.0.0-1.2.2.255", "1.2.4.0-255.255.255.255"]);
    assert_eq!(denied(&[allowed_first[1], allowed_first[0]]), ["0.0.0.0-255.255.255.255"]);
    let nested = [(false, "10.1.0.0/16"), (true, "10.0.0.0/8"), (false, "0.0.0.0/0")];
    assert_eq!(
        denied(&nested),
        ["0.0.0.0-9.255.255.255", "10.1.0.0-10.1.255.255", "11.0.0.0-255.255.255.255"]
    );
    // Two that touch are one range; the kernel's sets refuse others.
    assert_eq!(denied(&[(false, "10.0.1.0/24"), (false, "10.0.0.0/24")]), ["10.0.0.0-10.0.1.255"]);
    assert_eq!(
        denied(&[(true, "255.255.255.255/32"), (false, "255.255.255.254/31")]),
        ["255.255.255.254-255.255.255.254"]
    );
}

#[test]
fn ranges_say_of_every_address_what_its_first_rule_says() {
    let mut rng = Rng::new(1);
    for _ in 0..300 {
        let rules: Vec<(bool, Ipv4Net)> = (0..rng.below(8))
            .map(|_| {
                let address = Ipv4Addr::from_bits(0xffff_ff00 + rng.below(256) as u32);
                let len = if rng.below(8) == 0 { 0 } else { 24 + rng.below(9) as u8 };
                (rng.below(2) == 0, Ipv4Net::new(address, len).unwrap())
            })
            .collect();
        let found = Denied::by_rules(&rules);
        for last in 0..=255 {
            let address = Ipv4Addr::from_bits(0xffff_ff00 + last);
            let first = rules.iter().find(|(_, net)| net.contains(&address));
            assert_eq!(
                found.contains(address),
                first.is_some_and(|(allow, _)| !allow),
                "{rules:?} {address}"
            );
        }
        let apart =
            |pair: &[Range]| u64::from(pair[0].last.to_bits()) + 1 < u64::from(pair[1].first.to_bits());
        assert!(found.ranges().windows(2).all(apart), "{found:?}");
        assert_eq!(Denied::read(&found.elements()), found);
    }
}

fn port(number: u32, netid: Option<u32>) -> (IfName, Port) {
    let host_veth = IfName::new(format!("veth{number}")).unwrap();
    let port = Port {
        host_veth: host_veth.clone(),
        address: Ipv4Addr::from_bits(0x0a80_0000 + number),
        netid: netid.map(|netid| NetId::new(netid).unwrap()),
        is_open: netid == Some(0),
        sandbox: ContainerId::new(format!("s{number}")).unwrap(),
        namespace: Namespace::new("x").unwrap(),
    };
    (host_veth, port)
}

#[test]
fn only_network_ids_of_ports_are_restricted_and_beyond_the_limit_the_largest_is_closed() {
    let id = |number| NetId::new(number).unwrap();
    let many = |count: usize| {
        let host = |index: usize| Ipv4Net::new(Ipv4Addr::from_bits(index as u32 * 2), 32).unwrap();
        Arc::new(Denied::by_rules(&(0..count).map(|index| (false, host(index))).collect::<Vec<_>>()))
    };
    let ports: Ports =
        [port(1, Some(10)), port(2, Some(11)), port(3, Some(12)), port(4, None), port(5, Some(14))].into();
    let mut egress = open_to_global();
    egress.extend([
        (id(10), many(RANGES_MAX - 1)),
        (id(11), many(1)),
        (id(12), Arc::default()),
        (id(13), many(2)),
    ]);
    let found = Outside::new(&ports, &egress);
    assert_eq!(found.restricted, [(id(10), many(RANGES_MAX - 1)), (id(11), many(1))].into());
    egress.insert(id(11), many(2));
    let found = Outside::new(&ports, &egress);
    let everything = Denied::everything();
    assert_eq!(found.restricted, [(id(10), Arc::new(everything.clone())), (id(11), many(2))].into());
    let verdicts = [10, 12, 0, 14].map(|number| found.verdict(id(number)));
    let chain = Verdict::goto(names(id(10), &everything).0);
    assert_eq!(verdicts, [Some(chain), Some(Verdict::Return), Some(Verdict::Return), None]);
}
