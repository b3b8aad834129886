use std::fs;

use russet_attach::{Attachment as Routed, Bridge, Dialect, Port};
use serde_json::json;

use super::*;

const BOOT: &str = "8c0b7c9e-0000-4000-8000-000000000001";

/// A journal in its own directory.
struct Desk {
    dir: tempfile::TempDir,
    metrics: JournalMetrics,
}

fn desk() -> Desk {
    Desk { dir: tempfile::tempdir().unwrap(), metrics: JournalMetrics::default() }
}

fn env(verb: &str, container: &str) -> Vec<(String, String)> {
    let vars = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", "/run/netns/p"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"),
        ("CNI_PATH", "/"),
    ];
    vars.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()
}

const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"net","type":"russet","cni.dev/valid-attachments":[{"containerID":"keep","ifname":"eth0"}]}"#;

fn request(verb: &str, container: &str) -> Request {
    use russet_cni_spec::plugin::{Prepared, prepare};
    match prepare(env(verb, container), CONFIG.into(), "test").unwrap() {
        Prepared::Request(request) => *request,
        Prepared::Answer(outcome) => panic!("{outcome:?}"),
    }
}

fn id(container: &str) -> EndpointId {
    format!("net/{container}/eth0").parse().unwrap()
}

fn leaving(container: &str) -> Effect {
    Effect::Leaving(id(container).into())
}

fn wiring(container: &str) -> Effect {
    let mut attachment = Routed::new(Dialect::Native, id(container), None);
    attachment.addresses = vec!["10.1.0.7".parse().unwrap()];
    Effect::Wiring { wired: Box::new(Wired::Routed(attachment)), netns: "/run/netns/p".into() }
}

fn port(container: &str) -> Port {
    Port {
        host_name: Port::default_host_name(&id(container)),
        id: id(container),
        bridge: Bridge {
            name: "cni0".parse().unwrap(),
            mtu: None,
            promiscuous: false,
            gateways: Vec::new(),
            force_address: false,
            mac: None,
        },
        mode: Default::default(),
        addresses: Vec::new(),
        routes: Vec::new(),
        mtu: None,
        mac: None,
        sync_delete: false,
        source_check: Default::default(),
    }
}

// === impl Desk ===

impl Desk {
    fn path(&self) -> PathBuf {
        self.dir.path().join("run/journal")
    }

    fn open(&self) -> (Journal, JournalContents) {
        Journal::open(self.path(), BOOT.to_owned(), self.metrics.clone())
    }

    /// The content that is found after a reboot.
    fn reboot(&self) -> JournalContents {
        Journal::open(self.path(), "another".to_owned(), self.metrics.clone()).1
    }

    fn failures(&self) -> u64 {
        self.metrics.write_failures.get()
    }
}

fn start(journal: &Journal, verb: &str, container: &str) -> Begun {
    let (request, env) = (request(verb, container), env(verb, container));
    journal.try_begin("russet", &request, (&env, CONFIG.as_bytes())).unwrap()
}

fn try_begin(journal: &Journal, verb: &str, container: &str) -> Result<u64, JournalError> {
    let begun = start(journal, verb, container);
    begun.written.map(|()| begun.op.unwrap())
}

fn begin(journal: &Journal, verb: &str, container: &str) -> u64 {
    try_begin(journal, verb, container).unwrap()
}

/// A complete ADD.
fn add(journal: &Journal, container: &str) -> u64 {
    let op = begin(journal, "ADD", container);
    journal.effect(&id(container), wiring(container)).unwrap();
    journal.effect(&id(container), Effect::Wired { reused: false, bridge_mac: None }).unwrap();
    journal.end(op, 0).unwrap();
    op
}

fn live(journal: &Journal) -> Vec<String> {
    journal.table.state().listed().map(|it| it.subject.id.container.to_string()).collect()
}

#[test]
fn attachments_and_open_operations_are_known_after_a_crash() {
    let desk = desk();
    let (journal, found) = desk.open();
    assert!(found.fresh && !found.damaged && found.open.is_empty());
    add(&journal, "a");
    add(&journal, "b");
    let del = begin(&journal, "DEL", "b");
    let half = begin(&journal, "ADD", "c");
    journal.effect(&id("c"), wiring("c")).unwrap();
    let again = begin(&journal, "ADD", "a");
    drop(journal);
    for _ in 0..2 {
        let (journal, found) = desk.open();
        assert!(!found.fresh && !found.damaged);
        let summary = |it: &OpenOperation| (it.begin.op, it.begin.verb, it.begin.repeated, it.effects.len());
        let open: Vec<_> = found.open.iter().map(summary).collect();
        assert_eq!(
            open,
            [(del, Verb::Del, false, 0), (half, Verb::Add, false, 1), (again, Verb::Add, true, 0)]
        );
        assert_eq!(live(&journal), ["a"], "what a DEL has begun to take down is attached no more");
        assert!(journal.has(&id("a")));
    }
}

#[test]
fn a_journal_of_another_boot_and_a_foreign_file_are_replaced() {
    let desk = desk();
    add(&desk.open().0, "a");
    let found = desk.reboot();
    assert!(found.fresh && found.open.is_empty());
    assert!(desk.reboot().open.is_empty());
    for foreign in [&b""[..], b"russetJ", b"russetJ9 another format", b"#!/bin/sh\n", &[0xff; 70_000]] {
        fs::write(desk.path(), foreign).unwrap();
        let (journal, found) = desk.open();
        assert!(found.fresh && live(&journal).is_empty());
        add(&journal, "a");
        assert_eq!(live(&desk.open().0), ["a"]);
    }
}

#[test]
fn a_torn_record_is_dropped_and_damage_is_reported_at_any_byte() {
    let desk = desk();
    let (journal, _) = desk.open();
    add(&journal, "a");
    let before = usize::try_from(journal.inner.borrow().log.as_ref().unwrap().used_bytes()).unwrap();
    begin(&journal, "ADD", "b");
    let after = usize::try_from(journal.inner.borrow().log.as_ref().unwrap().used_bytes()).unwrap();
    drop(journal);
    let whole = fs::read(desk.path()).unwrap();
    for byte in before..after {
        let mut torn = whole.clone();
        torn[byte..].fill(0);
        fs::write(desk.path(), &torn).unwrap();
        let (journal, found) = desk.open();
        assert!(!found.damaged && found.open.is_empty(), "torn at {byte}");
        // New entries can be appended.
        add(&journal, "c");
        assert_eq!(live(&desk.open().0), ["a", "c"], "torn at {byte}");
        fs::write(desk.path(), &whole[..byte]).unwrap();
        let (journal, found) = desk.open();
        assert!(found.damaged && found.open.is_empty(), "cut at {byte}");
        assert_eq!(live(&journal), ["a"], "cut at {byte}");
        let (again, found) = desk.open();
        assert!(found.damaged, "the next one, too, where this one was killed before it had decided");
        add(&again, "d");
        assert_eq!(view(&desk.path()).unwrap().unwrap().tail, Tail::Damaged);
        again.decided();
        assert!(!desk.open().1.damaged, "it is damaged until then");
    }
}

#[test]
fn the_end_of_an_operation_closes_earlier_ones_of_the_same_part() {
    let desk = desk();
    let (journal, _) = desk.open();
    begin(&journal, "ADD", "a");
    begin(&journal, "DEL", "b");
    begin(&journal, "ADD", "b");
    let failed = begin(&journal, "ADD", "c");
    let retried = begin(&journal, "ADD", "c");
    journal.end(retried, 11).unwrap();
    let (journal, found) = desk.open();
    assert_eq!(found.open.len(), 4, "an ADD that failed settles nothing");
    add(&journal, "a");
    add(&journal, "b");
    let (journal, found) = desk.open();
    let open: Vec<u64> = found.open.iter().map(|open| open.begin.op).collect();
    assert_eq!(open, [failed]);
    let del = begin(&journal, "DEL", "c");
    journal.end(del, 0).unwrap();
    assert!(desk.open().1.open.is_empty());
    assert!(!journal.is_open(failed));
}

#[test]
fn an_add_overtakes_open_operations_of_its_own_network_only() {
    // The ADD of another network may have succeeded, and retrying a release must not remove its
    // wiring.
    let desk = desk();
    let (journal, _) = desk.open();
    let del = begin(&journal, "DEL", "a");
    let (mut other, env) = (request("ADD", "a"), env("ADD", "a"));
    other.config.name = "other".parse().unwrap();
    let begun = journal.try_begin("russet", &other, (&env, CONFIG.as_bytes())).unwrap();
    journal.end(begun.op.unwrap(), 0).unwrap();
    assert!(journal.is_open(del) && !journal.is_overtaken(del));
    begin(&journal, "ADD", "b");
    assert!(!journal.is_overtaken(del));
    begin(&journal, "ADD", "a");
    assert!(journal.is_overtaken(del));
}

#[test]
fn a_gc_removes_attachments_that_are_not_valid_and_older_than_itself() {
    let desk = desk();
    let (journal, _) = desk.open();
    let _ = ["keep", "old"].map(|container| add(&journal, container));
    let gc = begin(&journal, "GC", "");
    journal.effect(&id("old"), leaving("old")).unwrap();
    assert_eq!(live(&journal), ["keep"], "as soon as it leaves");
    assert!(journal.open_one(gc).unwrap().takes_down(&id("old")));
    add(&journal, "new");
    assert_eq!(journal.made_after(gc), [id("new")]);
    journal.end(gc, 0).unwrap();
    assert_eq!(live(&journal), ["keep", "new"]);
}

#[test]
fn the_file_stays_small_after_many_operations() {
    let desk = desk();
    let (journal, _) = desk.open();
    (0..50).for_each(|index| _ = add(&journal, &format!("stay{index:02}")));
    let mut largest = 0;
    for index in 0..2000 {
        let container = format!("c{index}");
        add(&journal, &container);
        let del = begin(&journal, "DEL", &container);
        journal.end(del, 0).unwrap();
        largest = largest.max(fs::metadata(desk.path()).unwrap().len());
    }
    assert!(largest <= 2 * COMPACT_MIN_BYTES, "{largest}");
    assert_eq!(live(&desk.open().0).len(), 50);
    assert_eq!(desk.failures(), 0);
    let bytes = u64::try_from(desk.metrics.bytes.get()).unwrap();
    assert!(bytes <= largest && bytes > 50 * 200, "{bytes}");
    assert!(desk.metrics.records.get() >= 50);
}

#[test]
fn a_file_that_cannot_be_compacted_keeps_its_entries() {
    let desk = desk();
    let (journal, _) = desk.open();
    // Nothing can create a file with that name, not even root.
    fs::create_dir(desk.path().with_extension("new")).unwrap();
    let used = |journal: &Journal| journal.inner.borrow().log.as_ref().unwrap().used_bytes();
    let mut containers = Vec::new();
    while desk.failures() == 0 {
        containers.push(format!("c{:04}", containers.len()));
        // Panics on an error.
        add(&journal, containers.last().unwrap());
    }
    let large = used(&journal);
    assert!(large > COMPACT_MIN_BYTES, "{large}");
    containers.push("d".to_owned());
    add(&journal, "d");
    assert_eq!(desk.failures(), 1, "it is not tried each time");
    assert_eq!(live(&journal), containers);
    let read = log::read(&desk.path()).unwrap().unwrap();
    let done = read.entries.iter().filter(|it| matches!(it, Entry::End { code: 0, .. })).count();
    assert_eq!(done, containers.len());
    fs::remove_dir(desk.path().with_extension("new")).unwrap();
    assert_eq!(live(&desk.open().0), containers);
}

#[test]
fn a_compacted_file_keeps_space_for_open_operations() {
    let desk = desk();
    let (journal, _) = desk.open();
    (0..40).for_each(|index| _ = begin(&journal, "ADD", &format!("open{index}")));
    let compacted = || {
        let mut inner = journal.inner.borrow_mut();
        inner.compact(&journal.path, &journal.boot).unwrap();
        fs::metadata(desk.path()).unwrap().len() - inner.log.as_ref().unwrap().used_bytes()
    };
    assert!(compacted() >= 40 * OPERATION_ROOM_BYTES);
}

#[test]
fn changes_that_could_not_be_written_are_written_with_the_next_entry() {
    let desk = desk();
    let (journal, _) = desk.open();
    add(&journal, "gone");
    let mut others: Vec<Endpoint> = journal.table.state().listed().cloned().collect();
    others.iter_mut().for_each(|it| it.subject.id = id("found"));
    drop(journal);
    let whole = fs::read(desk.path()).unwrap();
    fs::write(desk.path(), &whole[..whole.len() - 1]).unwrap();
    let (journal, found) = desk.open();
    assert!(found.damaged);
    // Nothing can create a file with that name, not even root.
    let hindrance = desk.path().with_extension("new");
    let hindered = |what: &dyn Fn()| {
        fs::create_dir(&hindrance).unwrap();
        what();
        fs::remove_dir(&hindrance).unwrap();
        let op = begin(&journal, "DEL", "any");
        journal.end(op, 0).unwrap();
        let read = log::read(&desk.path()).unwrap().unwrap();
        let mut state = TableState::default();
        read.entries.into_iter().for_each(|entry| state.apply(entry));
        let known = state.listed().map(|it| it.subject.id.container.to_string());
        (read.tail, known.collect::<Vec<_>>())
    };
    let of = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(hindered(&|| journal.decided()), (Tail::Clean, of(&["gone"])));
    assert_eq!(hindered(&|| journal.take_over(others.clone().into_iter())).1, of(&["found", "gone"]));
    let stays = |it: &Endpoint| it.subject.id == id("found");
    assert_eq!(hindered(&|| journal.keep(stays)).1, of(&["found"]));
}

#[test]
fn a_thousand_waiting_dels_leave_space_for_adds() {
    let desk = desk();
    let (journal, _) = desk.open();
    let container = |index| format!("{index:064}");
    let used = |journal: &Journal| journal.inner.borrow().log.as_ref().unwrap().used_bytes();
    let leaves = |container: &str| journal.effect(&id(container), leaving(container)).unwrap();
    for index in 0..1024 {
        begin(&journal, "DEL", &container(index));
        leaves(&container(index));
    }
    let before = (used(&journal), journal.table.state().clone());
    for _ in 0..20 {
        (0..1024).for_each(|index| leaves(&container(index)));
    }
    assert_eq!((used(&journal), journal.table.state().clone()), before, "each retry is reported once");
    assert_eq!(journal.open_count(), 1024);
    // Panics if it is refused.
    add(&journal, "new");
    // An older agent wrote the effect each time.
    let again = Entry::Effect { op: 0, at_ms: 1, effect: leaving(&container(0)) };
    let document = log::document(&again).unwrap();
    journal.inner.borrow_mut().log.as_mut().unwrap().append(&document).unwrap();
    let (journal, found) = desk.open();
    assert!(found.open.len() == 1024 && found.open.iter().all(|open| open.effects.len() == 1));
    assert_eq!(live(&journal), ["new"]);
}

#[test]
fn a_second_removal_after_a_new_wiring_is_recorded() {
    let desk = desk();
    let (journal, _) = desk.open();
    let gc = begin(&journal, "GC", "");
    for _ in 0..2 {
        add(&journal, "a");
        journal.effect(&id("a"), leaving("a")).unwrap();
        assert_eq!(live(&journal), Vec::<String>::new());
        assert_eq!(live(&desk.open().0), Vec::<String>::new());
    }
    assert_eq!(journal.open_one(gc).unwrap().effects.len(), 1);
}

#[test]
fn without_a_writable_file_adds_are_refused_and_dels_carried_out() {
    let desk = desk();
    let (journal, _) = desk.open();
    add(&journal, "a");
    add(&journal, "b");
    let under_way = begin(&journal, "ADD", "c");
    // Nothing can write there, not even root; open operations stay open.
    journal.inner.borrow_mut().log = None;
    fs::rename(desk.dir.path().join("run"), desk.dir.path().join("away")).unwrap();
    fs::write(desk.dir.path().join("run"), "").unwrap();
    let error = try_begin(&journal, "ADD", "d").unwrap_err();
    assert!(error.to_string().starts_with("write the journal "), "{error}");
    let dels = ["a", "x"].map(|container| start(&journal, "DEL", container));
    assert!(dels.iter().all(|del| del.written.is_err()));
    assert!(journal.end(under_way, 0).is_err());
    assert_eq!(desk.failures(), 4);
    assert_eq!(live(&journal), ["b"], "an ADD is not done before that is written");
    assert!(
        journal.open_one(under_way).is_some(),
        "so that recovery finds it later if it cannot be undone now"
    );
    assert!(!journal.is_recorded(dels[0].op.unwrap()));
    assert!(journal.end(dels[1].op.unwrap(), 0).is_err());
    assert!(!journal.is_open(dels[1].op.unwrap()), "a DEL is over");
    fs::remove_file(desk.dir.path().join("run")).unwrap();
    begin(&journal, "DEL", "b");
    assert!(journal.is_recorded(dels[0].op.unwrap()), "with the next one that can be written");
    let (journal, found) = desk.open();
    let open: Vec<_> = found.open.iter().map(|it| it.begin.id().unwrap()).collect();
    let left = ["c", "a", "b"].map(id);
    assert_eq!(open, left, "the ADD that was refused is not there, nor the DEL that was done");
    assert_eq!(live(&journal), Vec::<String>::new());
}

#[test]
fn a_request_larger_than_an_entry_is_refused_and_the_next_one_works() {
    let desk = desk();
    let (journal, _) = desk.open();
    let large = format!("{{\"name\":\"net\",\"x\":\"{}\"}}", "x".repeat(frame::DOCUMENT_MAX_BYTES));
    let (request, env) = (request("ADD", "a"), env("ADD", "a"));
    let begun = journal.try_begin("russet", &request, (&env, large.as_bytes())).unwrap();
    assert!(begun.written.is_err() && begun.op.is_none());
    add(&journal, "b");
    assert_eq!(live(&desk.open().0), ["b"]);
    assert!(desk.open().1.open.is_empty());
}

#[test]
fn requests_without_lasting_effects_are_not_recorded() {
    let (journal, _) = desk().open();
    let (add, check, env) = (request("ADD", "a"), request("CHECK", "a"), env("ADD", "a"));
    let recorded = |plugin: &str, request| journal.try_begin(plugin, request, (&env, b"{}")).is_some();
    assert!(!recorded("loopback", &add) && !recorded("host-local", &add) && !recorded("calico-ipam", &add));
    assert!(!recorded("russet", &check) && recorded("portmap", &add));
}

#[test]
fn the_view_lists_attachments_and_open_operations_while_the_file_is_written() {
    let desk = desk();
    assert_eq!(view(&desk.path()).unwrap(), None);
    let (journal, _) = desk.open();
    add(&journal, "a");
    begin(&journal, "ADD", "b");
    journal.effect(&id("b"), wiring("b")).unwrap();
    let view = view(&desk.path()).unwrap().unwrap();
    assert_eq!((view.boot_id.as_str(), view.tail, view.records), (BOOT, Tail::Clean, 7));
    let [attachment] = &view.attachments[..] else { panic!("{view:?}") };
    assert_eq!((attachment.container.as_str(), attachment.pod.as_deref()), ("a", Some("shop/web-0")));
    assert_eq!(attachment.addresses, ["10.1.0.7".parse::<std::net::IpAddr>().unwrap()]);
    let [operation] = &view.unfinished[..] else { panic!("{view:?}") };
    assert_eq!((operation.verb, operation.container.as_deref()), (Verb::Add, Some("b")));
    assert!(operation.effects[0].contains(" wiring russ"), "{operation:?}");
    assert!(operation.effects[0].ends_with(" for 10.1.0.7"), "{operation:?}");
}

#[test]
fn the_mac_of_a_ports_bridge_is_known_after_a_crash_and_older_journals_have_none() {
    let desk = desk();
    let mac = "02:00:00:00:00:07".parse().unwrap();
    let known = || {
        let wired = desk.open().0.table.state().listed().next().unwrap().wired.clone();
        let Wired::Port(port) = *wired.unwrap() else { panic!("no port") };
        port.bridge.mac
    };
    for bridge_mac in [None, Some(mac)] {
        let (journal, _) = desk.open();
        let op = begin(&journal, "ADD", "a");
        let wired = Box::new(Wired::Port(port("a")));
        let effects = [
            Effect::Wiring { wired, netns: "/run/netns/p".into() },
            Effect::Wired { reused: false, bridge_mac },
        ];
        effects.into_iter().for_each(|effect| journal.effect(&id("a"), effect).unwrap());
        journal.end(op, 0).unwrap();
        drop(journal);
        assert_eq!(known(), bridge_mac);
        assert_eq!(known(), bridge_mac, "from the file that was written anew");
    }
    let before: Effect = serde_json::from_str(r#"{"wired":{"reused":true}}"#).unwrap();
    assert_eq!(before, Effect::Wired { reused: true, bridge_mac: None });
}

#[test]
fn the_files_format_is_that_of_earlier_versions() {
    let entries = [
        r#"{"is":"begin","op":3,"at_ms":5,"verb":"DEL","plugin":"russet","network":"net","interface":{"container":"a","ifname":"eth0"},"pod":"shop/web-0","env":[["CNI_COMMAND","DEL"]],"config":"{}"}"#,
        r#"{"is":"begin","op":4,"at_ms":5,"verb":"GC","plugin":"russet","network":"net","env":[],"config":"{}"}"#,
        r#"{"is":"effect","op":3,"at_ms":6,"effect":{"leaving":{"container":"a","ifname":"eth0"}}}"#,
        r#"{"is":"live","subject":{"network":"net","interface":{"container":"a","ifname":"eth0"},"plugin":"russet"},"op":3,"since_ms":7,"wired":{"routed":{"network":"net","container":"a","ifname":"eth0","pod":null,"dialect":"native","host_name":"russ1","addresses":["10.1.0.7"],"mtu":1500,"mac":null,"allow_ip_forwarding":false,"routes":"default","route_metric":null,"sync_delete":false}},"netns":"/run/netns/p"}"#,
        r#"{"is":"live","subject":{"network":"net","interface":{"container":"a","ifname":"eth0"},"plugin":"bridge"},"op":3,"since_ms":7,"pod":"shop/web-0","wired":{"port":{"network":"net","container":"a","ifname":"eth0","host_name":"russ1","bridge":{"name":"cni0","mtu":null,"promiscuous":false,"gateways":[],"force_address":false},"mode":{"hairpin":false,"isolated":false},"addresses":["10.1.0.7/24"],"routes":[],"mtu":null,"mac":null,"sync_delete":false}}}"#,
    ];
    for text in entries {
        let entry: Entry = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&entry).unwrap(), text);
    }
}

#[test]
fn an_interface_that_was_attached_without_an_agent_is_known_with_its_pod_also_in_place_of_an_earlier_one() {
    let desk = desk();
    let (journal, _) = desk.open();
    ["a", "b"].iter().for_each(|container| _ = add(&journal, container));
    let (journal, _) = desk.open();
    let history = desk.dir.path().join("history");
    let line = |container: &str| {
        let pod = format!("shop/{container}");
        json!({ "at": "t", "verb": "ADD", "ips": ["10.1.0.9"], "container": container, "ifname": "eth0",
            "network": id(container).network.as_str(), "pod": pod })
    };
    fs::write(&history, format!("{}\n{}\n", line("b"), line("c"))).unwrap();
    let routed = |container: &str, address: &str| {
        let mut attachment = Routed::new(Dialect::Native, id(container), None);
        attachment.addresses = vec![address.parse().unwrap()];
        attachment
    };
    let found =
        [routed("a", "10.1.0.7"), routed("b", "10.1.0.8"), routed("c", "10.1.0.9"), routed("d", "10.1.0.10")];
    journal.fill(|_| true, found.into(), &history);
    let known = |container: &str| {
        let endpoint = journal.table.get(&id(container)).unwrap();
        (endpoint.pod, endpoint.wired.unwrap().addresses()[0].to_string())
    };
    let expected = [
        ("a", Some("shop/web-0"), "10.1.0.7"),
        ("b", Some("shop/b"), "10.1.0.8"),
        ("c", Some("shop/c"), "10.1.0.9"),
        ("d", None, "10.1.0.10"),
    ];
    for (container, pod, address) in expected {
        assert_eq!(known(container), (pod.map(str::to_owned), address.to_owned()), "{container}");
    }
    assert_eq!(journal.table.attached().len(), expected.len());
}

#[test]
fn attachments_that_no_longer_exist_are_removed_from_the_journal_and_not_listed() {
    let desk = desk();
    let (journal, _) = desk.open();
    let _ = ["a", "b"].map(|container| add(&journal, container));
    // Parts of a chain; the main plugin of "c" is foreign.
    for container in ["a", "b", "c"] {
        let (request, env) = (request("ADD", container), env("ADD", container));
        let op = journal.try_begin("portmap", &request, (&env, b"{}")).unwrap().op;
        journal.end(op.unwrap(), 0).unwrap();
    }
    let (journal, _) = desk.open();
    journal.fill(|wired| wired.id().container.as_str() == "a", Vec::new(), Path::new("/none"));
    let attached: Vec<EndpointId> = journal.table.attached().into_iter().map(|it| it.subject.id).collect();
    assert_eq!(attached, [id("a")]);
    let subjects = |journal: &Journal| {
        let state = journal.table.state();
        let subjects = state.listed().map(|it| &it.subject);
        subjects.map(|it| format!("{} {}", it.id.container, it.plugin)).collect::<Vec<_>>()
    };
    assert_eq!(subjects(&journal), ["a portmap", "a russet", "c portmap"]);
    assert_eq!(subjects(&desk.open().0), ["a portmap", "a russet", "c portmap"]);
}

#[test]
#[ignore = "kernel: root, for a small tmpfs in a mount namespace"]
fn a_full_file_system_stops_adds_and_open_operations_can_end() {
    russet_testkit::in_new_netns(|| {
        let desk = desk();
        rustix::mount::mount(
            "tmpfs",
            desk.dir.path(),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            c"size=1m",
        )
        .unwrap();
        let (journal, _) = desk.open();
        add(&journal, "a");
        let under_way: Vec<u64> = (0..4).map(|index| begin(&journal, "ADD", &format!("u{index}"))).collect();
        fill(desk.dir.path());
        // Their space was reserved when they began.
        for (index, op) in under_way.into_iter().enumerate() {
            let container = format!("u{index}");
            journal.effect(&id(&container), wiring(&container)).unwrap();
            journal.end(op, 0).unwrap();
        }
        let (refused, error) = (0..200)
            .find_map(|index| Some((index, try_begin(&journal, "ADD", &format!("x{index}")).err()?)))
            .unwrap();
        assert!(error.to_string().contains("No space left on device"), "{error}");
        // DELs are carried out even if they cannot be written.
        (0..20).for_each(|index| _ = try_begin(&journal, "DEL", &format!("x{index}")));
        assert!(desk.failures() > 1);
        let attached = live(&journal);
        assert_eq!(attached, ["a", "u0", "u1", "u2", "u3"]);
        std::fs::remove_file(desk.dir.path().join("filler")).unwrap();
        add(&journal, "z");
        let (journal, found) = desk.open();
        assert!(!found.damaged);
        assert_eq!(live(&journal), [attached, vec!["z".to_owned()]].concat());
        let begun = found.open.iter().filter(|open| open.begin.verb == Verb::Add).count();
        assert_eq!(begun, refused, "those that were begun before, and none that was refused");
        rustix::mount::unmount(desk.dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    });
}

fn fill(dir: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::create(dir.join("filler")).unwrap();
    for size in [4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

#[test]
fn plugins_without_an_agent_see_open_operations_of_this_boot_only() {
    let desk = desk();
    let left = |path: &Path, container: &str| unfinished(path, &id(container)).unwrap();
    assert!(!left(&desk.path(), "c1"), "there is no journal");
    let boot = russet_linux::host::boot_id().unwrap();
    let (journal, _) = Journal::open(desk.path(), boot, desk.metrics.clone());
    begin(&journal, "ADD", "c1");
    begin(&journal, "DEL", "c2");
    add(&journal, "c3");
    let open = ["c1", "c2", "c3", "c4"].map(|container| left(&desk.path(), container));
    assert_eq!(open, [true, true, false, false]);
    drop(journal);
    let other = desk.dir.path().join("run/other");
    begin(&Journal::open(other.clone(), BOOT.to_owned(), desk.metrics.clone()).0, "ADD", "c1");
    assert!(!left(&other, "c1"), "another boot's");
}
