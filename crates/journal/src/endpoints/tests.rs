use russet_attach::Attachment;

use super::*;
use crate::journal::{Effect, Entry, Verb};

fn id() -> EndpointId {
    "net/abc/eth0".parse().unwrap()
}

fn wired(addresses: &[&str]) -> Wired {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Wired::Routed(Attachment { addresses, ..Attachment::new(Dialect::Native, id(), None) })
}

/// Begins an ADD, up to its wiring.
fn begin_add(table: &EndpointTable, wired: &Wired) -> u64 {
    let op = table.state().next;
    let begin = Begin {
        op,
        at_ms: 0,
        verb: Verb::Add,
        plugin: "russet".to_owned(),
        network: "net".parse().unwrap(),
        interface: Some(id().into()),
        pod: None,
        env: Vec::new(),
        config: String::new(),
        repeated: false,
    };
    let effect = Effect::Wiring { wired: Box::new(wired.clone()), netns: "/run/netns/a".into() };
    table.state().apply(Entry::Begin(begin));
    table.state().apply(Entry::Effect { op, at_ms: 1, effect });
    table.begin_wiring(&id());
    op
}

fn wire(table: &EndpointTable, op: u64) {
    let effect = Effect::Wired { reused: false, bridge_mac: None };
    table.state().apply(Entry::Effect { op, at_ms: 2, effect });
    table.state().wired(&id());
}

fn fail(table: &EndpointTable, op: u64) {
    table.state().unwired(&id());
    table.state().apply(Entry::End { op, at_ms: 3, code: 11 });
}

#[test]
fn an_interface_is_in_the_table_from_the_end_of_its_wiring_to_the_start_of_its_removal() {
    let (table, one) = (EndpointTable::default(), wired(&[]));
    let op = begin_add(&table, &one);
    assert!(table.get(&id()).is_none() && table.is_empty(), "it is not wired yet");
    wire(&table, op);
    assert_eq!(table.get(&id()).unwrap().netns, Some("/run/netns/a".into()));
    assert!(
        table.get(&"other/abc/eth0".parse().unwrap()).is_none() && table.state().listed().next().is_none()
    );
    table.state().apply(Entry::End { op, at_ms: 3, code: 0 });
    assert!(table.state().listed().next().is_some());
    // The ADD is repeated; the interface exists all the time.
    let op = begin_add(&table, &one);
    assert!(table.get(&id()).is_some());
    fail(&table, op);
    assert!(table.get(&id()).is_some());
    table.leave(&id());
    assert!(table.get(&id()).is_none() && table.is_empty());
}

#[test]
fn drift_repair_skips_an_interface_that_is_being_wired_again() {
    let (table, one) = (EndpointTable::default(), wired(&[]));
    let owner = one.owner();
    let op = begin_add(&table, &one);
    fail(&table, op);
    assert!(!table.has(&owner), "it never was");
    for again in [false, true] {
        let op = begin_add(&table, &one);
        assert!(!table.has(&owner), "{again}");
        wire(&table, op);
        assert!(table.has(&owner), "{again}");
    }
    // The earlier wiring is unchanged.
    let op = begin_add(&table, &one);
    fail(&table, op);
    assert!(table.has(&owner));
}

#[test]
fn an_interface_that_left_is_not_worked_on_any_more() {
    let table = EndpointTable::default();
    let address: IpAddr = "10.1.0.5".parse().unwrap();
    table.put(wired(&["10.1.0.5"]));
    assert!(table.routes_to(&address));
    let was = table.attached().remove(0);
    assert_eq!(table.while_attached(&was, || 7), Some(7));
    // The ADD is repeated with another address.
    let other: IpAddr = "10.1.0.6".parse().unwrap();
    table.put(wired(&["10.1.0.6"]));
    assert_eq!(table.while_attached(&was, || 7), None, "it is another one");
    let is = table.attached().remove(0);
    assert!(!table.routes_to(&address) && table.routes_to(&other));
    table.leave(&id());
    assert!(table.attached().is_empty() && !table.routes_to(&other));
    assert_eq!(table.while_attached(&is, || 7), None);
    table.put(wired(&[]));
    assert_eq!(table.while_attached(&is, || 7), None, "it was away meanwhile");
}

#[test]
fn an_interface_neither_leaves_nor_is_wired_again_while_drift_repair_works_on_one() {
    let table = EndpointTable::default();
    for change in [EndpointTable::begin_wiring, EndpointTable::leave] {
        table.put(wired(&["10.1.0.5"]));
        let endpoint = table.attached().remove(0);
        let changing = table.while_attached(&endpoint, || {
            let other = table.clone();
            let changing = std::thread::spawn(move || change(&other, &id()));
            assert!(!table.is_empty() && table.attached().len() == 1, "the table can be read");
            changing
        });
        changing.unwrap().join().unwrap();
        assert!(table.attached().is_empty());
    }
}
