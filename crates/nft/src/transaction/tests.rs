//! Tests of the encoding and the descriptions of transactions.

use super::*;
use crate::{ChainKind, Hook, KeyType, priority};

/// The message types of a transaction as sent, and which request an answer.
fn sent(transaction: &Transaction) -> Vec<(u16, bool)> {
    let batch = transaction.batch().unwrap();
    let messages = Messages::new(batch.as_bytes());
    messages.map(|message| message.unwrap()).map(|m| (m.kind, m.flags & NLM_F_ACK != 0)).collect()
}

#[test]
fn a_transaction_has_begin_and_end_messages_and_requests_one_answer() {
    let table = Table::inet("t");
    let mut change = Transaction::new();
    change.add_table(&table).add_chain(&Chain::new(&table, "c"));
    assert_eq!(sent(&change), [(0x10, false), (0xa00, false), (0xa03, true), (0x11, false)]);
}

#[test]
fn a_table_is_encoded_as_the_kernel_expects() {
    let mut change = Transaction::new();
    change.only_at(7).add_table(&Table::inet("t"));
    let batch = change.batch().unwrap();
    let messages: Vec<_> = Messages::new(batch.as_bytes()).map(|message| message.unwrap()).collect();
    // AF_UNSPEC, version 0, subsystem 10; then the generation.
    assert_eq!(messages[0].payload, [0, 0, 0, 10, 8, 0, 1, 0, 0, 0, 0, 7]);
    // NFPROTO_INET; then the name with its NUL and padding, and the flags.
    assert_eq!(messages[1].payload, [1, 0, 0, 0, 6, 0, 1, 0, b't', 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!(messages[2].payload, [0, 0, 0, 10]);
}

#[test]
fn ten_thousand_elements_fit_into_messages() {
    // dataplane.md section 3.3 and 7: at most ~400 elements a message (16-bit attribute length)
    let table = Table::inet("t");
    let set = Set::new(&table, "s", [KeyType::Ipv6Addr]).interval();
    let address = |index: u128| std::net::IpAddr::from((index * 2).to_be_bytes());
    let elements: Vec<_> =
        (0..10_000).map(|index| Element::new(address(index)).comment("x".repeat(127))).collect();
    let mut change = Transaction::new();
    change.add_elements(&set, &elements);
    let batch = change.batch().unwrap();
    let mut members = 0;
    for message in Messages::new(batch.as_bytes()).map(|message| message.unwrap()) {
        assert!(message.payload.len() <= ELEMENTS_MAX_BYTES + 1024);
        let list = message.attributes(NFGENMSG_BYTES).find(NFTA_SET_ELEM_LIST_ELEMENTS);
        members += list.map_or(0, |list| list.nested().count());
    }
    assert_eq!(members, 20_000);
}

#[test]
fn every_change_has_a_description() {
    let table = Table::inet("t");
    let set = Set::new(&table, "s", [KeyType::InetService]);
    let element = [Element::new(crate::KeyPart::port(80))];
    let chain = Chain::base(&table, "c", ChainKind::Nat, Hook::Output, priority::DSTNAT);
    let rule = Rule::new(&chain).accept().comment("a\u{1b}b");
    let mut change = Transaction::new();
    change.add_table(&table).add_chain(&chain).add_set(&set).add_elements(&set, &element);
    change.add_rule(&rule).replace_rule(7, &rule).delete_rule(&table, "c", 7);
    change.flush_chain(&table, "c").flush_table(&table).flush_set(&table, "s");
    change.delete_elements(&set, &element).delete_set(&table, "s").delete_table(&table);
    let all: Vec<_> = (0..change.len()).map(|index| change.requests.description(index)).collect();
    assert_eq!(
        all,
        [
            "add table inet t",
            "add chain inet t c",
            "add set inet t s",
            "add 1 keys to set inet t s",
            "add rule inet t c \"a\\u{1b}b\"",
            "replace rule inet t c \"a\\u{1b}b\"",
            "delete rule inet t c handle 7",
            "flush chain inet t c",
            "flush table inet t",
            "flush set inet t s",
            "delete 1 keys of set inet t s",
            "delete set inet t s",
            "delete table inet t",
        ]
    );
}
