//! The decision, and what follows from it for links that are not pods'.

use super::*;

const UPLINK: u32 = 7;
const BIG: PacketSizes = PacketSizes::all(SIZE_BYTES);

fn uplink(kind: Option<&str>, sizes: PacketSizes, tso_max_bytes: u32) -> Link {
    Link {
        index: UPLINK,
        name: "eth0".to_owned(),
        flags: 1,
        mtu_bytes: 1500,
        mac: None,
        kind: kind.map(str::to_owned),
        alias: None,
        group: 0,
        master: None,
        link: None,
        link_netnsid: None,
        operstate: Default::default(),
        tx_queue_len: 0,
        sizes,
        tso_max_bytes,
        addr_gen_mode: None,
        vxlan: None,
        bridge_port: None,
        ipip: None,
    }
}

fn decided(link: Link) -> Result<Decision, String> {
    decide(None, Some(Ok(())), &[link], UPLINK, true)
}

#[test]
fn packets_that_may_take_a_tunnel_keep_their_size() {
    // dataplane.md section 2.5: not for UDP tunnels
    let links = [uplink(None, LEGACY, 524_280)];
    let tunnel = "packets to pods of 10.0.0.0/8 go into a tunnel".to_owned();
    assert_eq!(decide(Some(tunnel.clone()), Some(Ok(())), &links, UPLINK, true), Err(tunnel));
    let kernel = Some(Err("this kernel cannot".to_owned()));
    assert_eq!(decide(None, kernel, &links, UPLINK, true), Err("this kernel cannot".to_owned()));
    assert!(decide(None, None, &links, UPLINK, true).is_err());
}

#[test]
fn hardware_that_takes_large_packets_is_raised_and_other_hardware_prevents_them() {
    let able = uplink(None, LEGACY, 524_280);
    assert_eq!(decided(able), Ok(Decision { sizes: Some(BIG), raised: Some(UPLINK) }));
    let error = decided(uplink(None, LEGACY, 65_536)).unwrap_err();
    assert_eq!(error, "the driver of the uplink eth0 takes at most 65536 bytes at once");
    let error = decided(uplink(None, PacketSizes::default(), 0)).unwrap_err();
    assert!(error.contains("at most 0 bytes"), "a kernel before 5.19: {error}");
}

#[test]
fn what_lies_below_or_behind_a_virtual_uplink_is_for_its_administrator() {
    let error = decided(uplink(Some("bond"), PacketSizes { gso_ipv4: 262_144, ..LEGACY }, 524_280));
    let error = error.unwrap_err();
    assert!(
        error.starts_with("the uplink eth0 is a bond: gso_max_size, gro_max_size, gro_ipv4_max_size of it")
    );
    let raised = uplink(Some("veth"), BIG, 524_280);
    let decision = decided(raised.clone()).unwrap();
    assert_eq!(decision, Decision { sizes: Some(BIG), raised: None });
    assert_eq!(uplink_sizes(&raised, &decision), BIG);
    assert_eq!(uplink_sizes(&raised, &Decision { sizes: None, raised: None }), BIG);
}

#[test]
fn a_node_without_a_network_has_large_packets_among_its_pods() {
    let decision = decide(None, Some(Ok(())), &[], 0, true);
    assert_eq!(decision, Ok(Decision { sizes: Some(BIG), raised: None }));
    assert_eq!(decide(None, Some(Ok(())), &[], UPLINK, true), Err("the uplink is gone".to_owned()));
}

#[test]
fn with_the_fast_path_only_ipv4_has_large_packets() {
    // Those of IPv6 have an extension header, which the fast path does not take.
    let links = [uplink(None, LEGACY, 524_280)];
    let sizes = decide(None, Some(Ok(())), &links, UPLINK, false).unwrap().sizes.unwrap();
    assert_eq!(sizes, PacketSizes { gso_ipv4: SIZE_BYTES, gro_ipv4: SIZE_BYTES, ..LEGACY });
}

#[test]
fn sizes_of_an_administrator_stay_and_the_agents_own_are_taken_back() {
    let on = Decision { sizes: Some(BIG), raised: Some(UPLINK) };
    let off = Decision { sizes: None, raised: None };
    let higher = PacketSizes { gso: 400_000, ..LEGACY };
    let link = uplink(None, higher, 524_280);
    let raised = uplink_sizes(&link, &on);
    assert_eq!(raised, PacketSizes { gso: 400_000, ..BIG });
    assert_eq!(uplink_sizes(&Link { sizes: raised, ..link.clone() }, &off), higher);
    // An uplink of before.
    let other = Link { index: UPLINK + 1, sizes: BIG, ..link };
    assert_eq!(uplink_sizes(&other, &on), LEGACY);
}

#[test]
fn settings_read_back_and_paths_are_shown_when_they_change() {
    for (text, is_plain) in [("off", true), ("auto", true), ("require", false), ("", false)] {
        assert_eq!(text.parse::<BigTcpMode>().is_ok(), is_plain, "{text}");
        assert!(!is_plain || text.parse::<BigTcpMode>().unwrap().to_string() == text);
    }
    let sender = watch::Sender::new(None);
    let mut seen = sender.subscribe();
    let paths = Paths { encapsulated: Some("10.0.0.0/8".parse().unwrap()), uplink: UPLINK };
    paths.clone().show(&sender);
    assert!(seen.has_changed().unwrap());
    assert_eq!(seen.borrow_and_update().as_ref(), Some(&paths));
    paths.show(&sender);
    assert!(!seen.has_changed().unwrap());
}
