//! Tests that the decoders terminate on arbitrary bytes.

use proptest::prelude::*;
use russet_netlink::wire::{MessageBuilder, Messages};

use crate::chain::ChainInfo;
use crate::kernel::*;
use crate::rule::RuleInfo;
use crate::set::{Set, decode_counted, decode_elements, decode_set};
use crate::table::{Table, TableInfo};
use crate::{KeyType, Rule, Transaction, conntrack, monitor, packet_log, trace};

/// Nested attributes with valid lengths, so that arbitrary bytes reach the inner decoders.
fn attributes() -> impl Strategy<Value = Vec<u8>> {
    let leaf = proptest::collection::vec(any::<u8>(), 0..24);
    leaf.prop_recursive(4, 64, 6, |inner| {
        proptest::collection::vec((0_u16..20, inner), 0..6).prop_map(|list| {
            let mut buffer = Vec::new();
            let mut message = MessageBuilder::new(&mut buffer, 0, 0);
            for (kind, payload) in &list {
                message.attr(*kind, payload);
            }
            message.finish();
            buffer.split_off(russet_netlink::wire::HEADER_BYTES)
        })
    })
}

/// A logged packet, as the kernel sends it.
fn logged(packet: &[u8], number: u32) -> Vec<u8> {
    let mut datagram = Vec::new();
    let mut message = MessageBuilder::new(&mut datagram, NFULNL_MSG_PACKET, 0);
    message.raw(&[2, 0, 0, 7]).attr(NFULA_PREFIX, b"russet|D|in\0").attr_be32(NFULA_SEQ, number);
    message.attr(NFULA_PAYLOAD, packet);
    message.finish();
    datagram
}

#[test]
fn gaps_in_the_numbers_of_logged_packets_are_lost_ones() {
    let (packets, lost) = packet_log::hear_for_test(&[logged(b"x", 3), logged(b"y", 6)].concat());
    assert_eq!(packets.len(), 4);
    assert_eq!(packets[0].prefix, "russet|D|in");
    assert_eq!(packets[1].bytes, b"y");
    // 0 to 2, 4 and 5 the first time; the second time 3 is no later one, and 4 and 5 are missing again.
    assert_eq!(lost, 7);
}

fn decode_all(kind: u16, family: u8, body: &[u8]) {
    let mut datagram = Vec::new();
    let mut message = MessageBuilder::new(&mut datagram, kind, 0);
    message.raw(&[family, 0, 0, 0]).raw(body);
    message.finish();
    for message in Messages::new(&datagram).flatten() {
        let _ = TableInfo::decode(&message);
        let _ = ChainInfo::decode(&message);
        let _ = RuleInfo::decode(&message);
        let _ = conntrack::decode_for_test(&message);
        let _ = crate::transaction::describe_for_test(&message);
        if let Some(info) = decode_set(&message) {
            let _ = decode_elements(&info.set, [body]);
        }
    }
    monitor::hear_for_test(&datagram);
    packet_log::hear_for_test(&datagram);
    trace::hear_for_test(&datagram);
    for keys in [vec![KeyType::Ipv4Addr], vec![KeyType::Ipv4Addr, KeyType::InetProto]] {
        let set = Set::new(&Table::inet("t"), "s", keys);
        let _ = decode_elements(&set, [body]);
        let _ = decode_counted(&set, [body]);
        let _ = decode_elements(&set.interval(), [body]);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(
        kind in (0_u16..32).prop_map(|n| NFNL_SUBSYS_NFTABLES << 8 | n),
        family in 0_u8..12,
        body in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        decode_all(kind, family, &body);
    }

    #[test]
    fn arbitrary_attributes_do_not_panic(
        kind in (0_u16..32).prop_map(|n| NFNL_SUBSYS_NFTABLES << 8 | n),
        family in 0_u8..12,
        body in attributes(),
    ) {
        decode_all(kind, family, &body);
    }

    #[test]
    fn a_datagram_of_arbitrary_bytes_does_not_panic(datagram in proptest::collection::vec(any::<u8>(), 0..512)) {
        monitor::hear_for_test(&datagram);
        packet_log::hear_for_test(&datagram);
        trace::hear_for_test(&datagram);
    }

    #[test]
    fn a_truncated_or_changed_log_of_packets_does_not_panic(
        cut in 0_usize..160, at in 0_usize..160, byte in any::<u8>(),
    ) {
        let mut datagram = logged(&[0x45; 40], 5);
        prop_assert_eq!(packet_log::hear_for_test(&datagram).0.len(), 2);
        datagram.truncate(cut);
        if let Some(place) = datagram.get_mut(at) {
            *place = byte;
        }
        packet_log::hear_for_test(&datagram);
    }

    #[test]
    fn a_rule_is_read_back_with_its_comment_and_digest(comment in "[ -~]{0,127}", set in "[a-z]{1,40}") {
        let table = Table::inet("t");
        let rule = Rule::in_chain(&table, "c").saddr_in(russet_addr::Family::V6, set).counter().accept();
        let rule = rule.comment(comment.clone());
        let mut change = Transaction::new();
        change.replace_rule(9, &rule);
        let batch = change.batch().map_err(|error| TestCaseError::fail(error.to_string()))?;
        let message = Messages::new(batch.as_bytes()).flatten().nth(1);
        let read = message.and_then(|message| RuleInfo::decode(&message));
        let read = read.ok_or_else(|| TestCaseError::fail("unreadable"))?;
        prop_assert_eq!(read.handle, 9);
        prop_assert_eq!(read.digest, rule.digest());
        prop_assert_eq!(read.comment, Some(comment));
    }
}
