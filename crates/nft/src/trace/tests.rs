//! Steps as Linux 6.18 sent them for one packet of UDP from and to 127.0.0.1; beside each is what `nft monitor trace` printed.

use super::*;

/// `inet t pre rule udp dport 7 meta nftrace set 1 (verdict continue)`
const RULE: &str = "a0000000110a000000000000000000000100000008000f000000000208000400000000030800060049f7ae8308000200\
7072650006000100740000000c00030000000000000000040c00050008000100ffffffff08000a000000000106000b0003040000180008004500001d\
3b4040004011018e7f0000017f0000010d0009009c4000070009fe1c780000001200070000000000000000000000000008000000";
/// Nothing.
const REST: &str = "48000000110a000000000000000000000100000008000f000000000208000400000000030800060049f7ae8308000200\
7072650006000100740000000c00050008000100ffffffff";
/// `inet t pre policy accept`
const POLICY: &str = "44000000110a000000000000000000000100000008000f000000000208000400000000010800060049f7ae8308000200\
7072650006000100740000000800100000000001";
/// `inet t in rule jump sub (verdict jump sub)`
const JUMP: &str = "a8000000110a000000000000000000000100000008000f000000000208000400000000030800060049f7ae8307000200\
696e000006000100740000000c00030000000000000000061400050008000100fffffffd080002007375620008000a000000000106000b0003040000\
180008004500001d3b4040004011018e7f0000017f0000010d0009009c4000070009fe1c780000001200070000000000000000000000000008000000";
/// `inet t sub rule return (verdict return)`
const RETURN: &str = "54000000110a000000000000000000000100000008000f000000000208000400000000030800060049f7ae8308000200\
7375620006000100740000000c00030000000000000000050c00050008000100fffffffb";
/// `inet t in rule udp dport 7 counter packets 0 bytes 0 drop (verdict drop)`
const DROP: &str = "54000000110a000000000000000000000100000008000f000000000208000400000000030800060049f7ae8307000200\
696e000006000100740000000c00030000000000000000070c0005000800010000000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

fn events(datagrams: &[&str]) -> Vec<TraceEvent> {
    let traced = datagrams.iter().flat_map(|datagram| hear_for_test(&bytes(datagram)));
    traced
        .map(|traced| match traced {
            Traced::Event(event) => event,
            Traced::Overrun => panic!("nothing was lost"),
        })
        .collect()
}

#[test]
fn the_steps_of_a_packet_are_read_as_nft_prints_them() {
    let events = events(&[RULE, REST, POLICY, JUMP, RETURN, DROP]);
    let steps: Vec<_> = events.iter().map(|it| (it.chain.as_str(), it.at, it.verdict.clone())).collect();
    let expected = [
        ("pre", TracedAt::Rule(4), Some(Verdict::Continue)),
        ("pre", TracedAt::Rest, Some(Verdict::Continue)),
        ("pre", TracedAt::Policy, Some(Verdict::Accept)),
        ("in", TracedAt::Rule(6), Some(Verdict::jump("sub"))),
        ("sub", TracedAt::Rule(5), Some(Verdict::Return)),
        ("in", TracedAt::Rule(7), Some(Verdict::Drop)),
    ];
    assert_eq!(steps, expected);
    assert!(events.iter().all(|it| it.id == 0x49f7_ae83 && it.table == Table::inet("t") && it.mark == 0));
    let [first, second, ..] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((first.in_index, first.out_index, second.in_index), (Some(1), None, None));
    assert_eq!((&first.network[12..16], first.network.len()), ([127, 0, 0, 1].as_slice(), 20));
    assert_eq!(first.transport, bytes("9c4000070009fe1c78"));
    assert!(second.network.is_empty());
}

#[test]
fn a_verdict_of_netfilter_may_have_an_error_number_and_others_are_none_of_ours() {
    assert_eq!(decided(1 << 16), Some(Verdict::Drop));
    // NF_QUEUE to queue 7.
    assert_eq!(decided(7 << 16 | 3), None);
}

#[test]
fn a_step_that_is_cut_or_changed_anywhere_is_no_panic() {
    for whole in [RULE, POLICY, JUMP, DROP].map(bytes) {
        for at in 0..whole.len() {
            hear_for_test(&whole[..at]);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                hear_for_test(&changed);
            }
        }
    }
}
