//! What is written, and that what the kernel holds is known again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use russet_nft::Nft;
use russet_policy::{Decisions, Policies, PolicySettings};
use russet_testkit::{Random, eventually, in_netns_with_loopback, nft_json, run};
use russet_verdict::ir::Direction::{Egress, Ingress};
use russet_verdict::ir::Protocol;
use russet_verdict::table::{Delta, Identity, Key, Part, SourceRange, Verdict, Word};

use crate::world::*;

/// Decisions of every kind: `pods` of each family have one of each part for each of `peers`.
fn everything(pods: u8, peers: u32) -> Delta {
    let mut delta = Delta { tightens: true, ..Delta::default() };
    for peer in 0..peers {
        let net: [russet_addr::IpNet; 4] = [
            format!("10.{}.{}.7/32", 100 + peer / 256, peer % 256).parse().unwrap(),
            format!("fd00:{peer:x}::7/128").parse().unwrap(),
            format!("172.{}.{}.0/24", 16 + peer / 256, peer % 256).parse().unwrap(),
            format!("fd01:{peer:x}::/32").parse().unwrap(),
        ];
        delta.identities.extend(net.map(|net| (net, Identity::new(Identity::FIRST + peer))));
    }
    let verdicts = [Verdict::Allow, Verdict::Deny, Verdict::Wide];
    for pod in 0..pods {
        for (local, direction) in [format!("10.9.9.{pod}"), format!("fd09:9::{pod:x}")]
            .iter()
            .flat_map(|it| [(ip(it), Ingress), (ip(it), Egress)])
        {
            let word = Word { verdict: verdicts[usize::from(pod) % 3], log: pod % 2 == 0 && pod % 3 != 2 };
            delta.defaults.insert((direction, local), Some(word));
            for peer in 0..peers {
                for part in
                    [tcp(80), Part::Range(Protocol::UDP, 7, 9), Part::Protocol(Protocol::SCTP), Part::All]
                {
                    let key =
                        Key { direction, local, peer: Identity::new(Identity::FIRST + peer).unwrap(), part };
                    delta.decisions.insert(key, Some(word));
                    if word == Word::WIDE && part != Part::All {
                        delta.wide.insert(key, Some(by_source(1000 + peer as u16 % 50)));
                    }
                }
            }
        }
    }
    delta
}

/// What is decided by the port of the source: it is allowed below `cut`.
fn by_source(cut: u16) -> Vec<SourceRange> {
    let range = |first, last, word| SourceRange { first, last, word };
    vec![range(0, cut - 1, Word::ALLOW), range(cut, u16::MAX, Word::DENY)]
}

fn decided(delta: &Delta) -> Decisions {
    let mut decisions = Decisions::default();
    decisions.apply(delta, &BTreeSet::new());
    decisions
}

fn generation() -> u32 {
    Nft::open().unwrap().generation().unwrap()
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn a_restart_reads_everything_back_and_writes_nothing() {
    in_netns_with_loopback(|| {
        let mut policies = open();
        let mut wanted = decided(&everything(4, 10));
        wanted.held.insert(ip("10.9.7.7"));
        let report = policies.restore(wanted.clone(), Instant::now()).unwrap();
        assert_eq!(report.structure.as_deref(), Some("the table was missing"));
        let (epoch, before) = (policies.epoch(), generation());
        let mut restarted = open();
        assert_eq!((restarted.current(), restarted.epoch()), (&wanted, epoch));
        assert_eq!(restarted.restore(wanted, Instant::now()).unwrap(), Default::default());
        assert_eq!(generation(), before);
        assert!(restarted.withdraw().unwrap());
        assert!(!restarted.withdraw().unwrap());
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tools: nft, iptables-nft-save"]
fn p107_what_nft_lists_loads_again_and_is_the_same() {
    // policy.md P107
    in_netns_with_loopback(|| {
        let mut policies = open();
        policies.restore(decided(&everything(5, 10)), Instant::now()).unwrap();
        // One without an interface, as after its end.
        policies.open_ends(&BTreeSet::from([1, 7007]), Instant::now()).unwrap();
        let listed = ruleset();
        assert!(
            listed.contains("ffff:1") && listed.contains("7-9") && listed.contains("172.16.9.0/24"),
            "{listed}"
        );
        assert!(nft_json(&["list", "ruleset"])["nftables"].is_array());
        run("iptables-nft-save", &[]);
        let file = tempfile::NamedTempFile::new().unwrap();
        let load = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            run("nft", &["-f", file.path().to_str().unwrap()]);
        };
        // Over itself: rules are there twice, sets once.
        load(&listed);
        load(&format!("flush ruleset\n{listed}"));
        assert_eq!(ruleset(), listed);
        run("nft", &["flush", "ruleset"]);
        load(&listed);
        assert_eq!(ruleset(), listed);
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tool: nft"]
fn ends_are_guarded_once_they_are_known_and_are_known_again_and_restored() {
    in_netns_with_loopback(|| {
        let (mut first, now) = (open(), Instant::now());
        let ends = |indexes: &[u32]| indexes.iter().copied().collect::<BTreeSet<u32>>();
        first.open_ends(&ends(&[7]), now).unwrap();
        assert_eq!((first.ends(), first.epoch()), (None, None), "nothing is decided");
        let wanted = decided(&everything(1, 1));
        first.restore(wanted.clone(), now).unwrap();
        assert_eq!(open().ends(), None, "what holds a pod without an agent knows no other");
        first.open_ends(&ends(&[1, 7]), now).unwrap();
        let mut policies = open();
        assert_eq!(policies.ends(), Some(&ends(&[1, 7])));
        let before = generation();
        policies.restore(wanted.clone(), now).unwrap();
        policies.open_ends(&ends(&[1, 7]), now).unwrap();
        assert_eq!(generation(), before);
        policies.open_ends(&ends(&[7, 8]), now).unwrap();
        assert_eq!(open().ends(), Some(&ends(&[7, 8])));
        // What another program changes is restored, and found by the next change, too.
        run("nft", &["flush", "set", "inet", "russet-decisions", "ends"]);
        assert_eq!(policies.restore(wanted.clone(), now).unwrap().elements, 2);
        assert_eq!(open().ends(), Some(&ends(&[7, 8])));
        run("nft", &["flush", "chain", "inet", "russet-decisions", "to-end"]);
        run("nft", &["flush", "chain", "inet", "russet-decisions", "from-end"]);
        policies.open_ends(&ends(&[8]), now).unwrap();
        assert_eq!(open().ends(), Some(&ends(&[8])));
        run("nft", &["delete", "table", "inet", "russet-decisions"]);
        policies.open_ends(&ends(&[]), now).unwrap();
        let found = open();
        assert_eq!((found.ends(), found.current()), (Some(&ends(&[])), &wanted));
        assert!(policies.withdraw().unwrap() && policies.ends().is_none());
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn p108_one_decision_among_100_000_is_one_transaction_of_one_element() {
    // policy.md P108
    in_netns_with_loopback(|| {
        let mut policies = open();
        let wanted = decided(&everything(80, 80));
        assert!(wanted.decisions.len() > 100_000);
        policies.restore(wanted, Instant::now()).unwrap();
        let key = key(Ingress, "10.9.9.0", Identity::FIRST + 5, tcp(80));
        let before = generation();
        let mut flip = Delta::default();
        flip.decisions.insert(key, Some(Word::DENY));
        // Removed with its old value, added with the new one.
        assert_eq!(apply(&mut policies, &flip).elements, 2);
        assert_eq!(generation(), before + 1);
        assert_eq!(apply(&mut policies, &flip).elements, 0);
        assert_eq!(generation(), before + 1);
        assert_eq!(policies.current().decisions[&key], Word::DENY);
        assert_eq!(open().current(), policies.current());
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tool: nft"]
fn changes_by_other_programs_are_found_and_repaired() {
    in_netns_with_loopback(|| {
        let mut policies = open();
        let wanted = decided(&everything(3, 5));
        policies.restore(wanted.clone(), Instant::now()).unwrap();
        let good = ruleset();
        let table = "inet russet-decisions";
        let mut epochs = BTreeSet::from([policies.epoch().unwrap().number()]);
        for damage in [
            "flush ruleset".to_owned(),
            format!("flush table {table}"),
            format!("flush map {table} in4d"),
            format!("flush map {table} sources6"),
            format!("delete element {table} sources4 {{ ffff:8000 . 1000-65535 }}"),
            format!("delete element {table} in4e {{ 10.9.9.1 }}"),
            format!("add element {table} in4e {{ 10.9.9.77 : ffff:1 }}"),
            format!("add element {table} held4 {{ 10.9.9.77 }}"),
            format!("add element {table} ids4 {{ 10.9.9.77 : ffff:77 }}"),
            format!("add element {table} nets4 {{ 10.77.0.1-10.77.0.9 : 0:10 }}"),
            format!("flush set {table} ported"),
            format!("insert rule {table} postrouting accept"),
            format!("flush chain {table} epoch"),
            format!("add chain {table} x; add rule {table} x accept"),
            format!("delete table {table}; add table {table}; add set {table} pods4 {{ type mark; }}"),
        ] {
            run("nft", &[&damage]);
            let report = policies
                .restore(wanted.clone(), Instant::now())
                .unwrap_or_else(|error| panic!("{damage}: {error}"));
            assert!(report.advanced, "{damage}: {report:?}");
            assert!(epochs.insert(policies.epoch().unwrap().number()), "{damage}");
            assert_eq!(
                policies.restore(wanted.clone(), Instant::now()).unwrap(),
                Default::default(),
                "{damage}"
            );
            // Chains of a table that replaces another in one transaction are called behind the other's.
            let is_behind = ruleset().contains("hook postrouting priority filter + 1;");
            let is_anew = damage.contains("add chain") || damage.contains("add set");
            assert_eq!(is_behind, is_anew, "{damage}");
            let (now, good) = (comparable(&ruleset()), comparable(&good));
            assert!(now == good, "{damage}: {:?}", now.iter().zip(&good).find(|(now, good)| now != good));
        }
        // A change that fits nothing the kernel holds leads to a comparison.
        run("nft", &[&format!("flush map {table} in4e")]);
        let mut delta = Delta::default();
        delta.defaults.insert((Ingress, ip("10.9.9.1")), None);
        apply(&mut policies, &delta);
        assert_eq!(open().current(), policies.current());
        assert_eq!(policies.current().defaults.len(), wanted.defaults.len() - 1);
    });
}

/// A ruleset without its epoch and the priorities of its chains, which grow when the table is created
/// anew. Sorted: sets that are created anew have another order of elements.
fn comparable(ruleset: &str) -> Vec<String> {
    let ruleset: String = ruleset.lines().filter(|line| !line.contains("type filter hook")).collect();
    let words = ruleset.split([' ', ',', '\n', '\t']).filter(|word| !word.is_empty());
    let mut words: Vec<String> = words
        .filter(|word| !word.starts_with("0x00") && !word.starts_with("0xff"))
        .map(str::to_owned)
        .collect();
    words.sort();
    words
}

#[test]
#[ignore = "kernel: nf_tables, root; tool: nft"]
fn commits_of_other_programs_do_not_stop_changes() {
    // policy.md P125
    in_netns_with_loopback(|| {
        let mut policies = open();
        policies.restore(decided(&everything(1, 1)), Instant::now()).unwrap();
        for port in 1000..1010 {
            run("nft", &["add table inet unrelated; delete table inet unrelated"]);
            let report =
                apply(&mut policies, &allowing([key(Ingress, "10.9.9.0", Identity::FIRST, tcp(port))]));
            assert_eq!((report.elements, report.structure), (1, None));
        }
        assert_eq!(open().current(), policies.current());
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn a_change_too_large_for_one_transaction_holds_what_it_concerns_until_it_is_complete() {
    in_netns_with_loopback(|| {
        let settings = PolicySettings { elements_max: 100, ..PolicySettings::default() };
        let mut policies = Policies::open(settings).unwrap();
        let delta = everything(3, 20);
        policies.restore(decided(&delta), Instant::now()).unwrap();
        assert_eq!((open().current(), policies.current().held.len()), (policies.current(), 0));
        // Everything goes away again, and comes back.
        let mut gone = Delta { tightens: true, ..Delta::default() };
        gone.identities = delta.identities.keys().map(|net| (*net, None)).collect();
        gone.decisions = delta.decisions.keys().map(|key| (*key, None)).collect();
        gone.wide = delta.wide.keys().map(|key| (*key, None)).collect();
        gone.defaults = delta.defaults.keys().map(|key| (*key, None)).collect();
        for (change, expected) in [(&gone, Decisions::default()), (&delta, decided(&delta))] {
            let before = generation();
            assert!(apply(&mut policies, change).advanced);
            assert!(generation() > before + 5);
            assert_eq!((policies.current(), open().current()), (&expected, &expected));
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn epochs_are_at_least_100_ms_apart_and_the_last_one_is_not_forgotten() {
    in_netns_with_loopback(|| {
        let mut policies = open();
        let now = Instant::now();
        policies.restore(decided(&everything(1, 1)), now).unwrap();
        let nothing = BTreeSet::new();
        let tightening = |port| forbidding([key(Ingress, "10.9.9.0", Identity::FIRST, tcp(port))]);
        let later = now + Duration::from_secs(1);
        assert!(policies.apply(&tightening(80), &nothing, later).unwrap().advanced);
        assert_eq!(policies.advance_at(), None);
        let mut again = tightening(80);
        again.decisions = allowing([key(Ingress, "10.9.9.0", Identity::FIRST, tcp(81))]).decisions;
        let report = policies.apply(&again, &nothing, later + Duration::from_millis(50)).unwrap();
        assert_eq!((report.elements, report.advanced), (1, false));
        let due = policies.advance_at().unwrap();
        assert_eq!(due, later + Duration::from_millis(100));
        assert!(!policies.advance(due - Duration::from_millis(1)).unwrap().advanced);
        assert!(policies.advance(due).unwrap().advanced);
        assert_eq!(policies.advance_at(), None);
        // Calico's behaviour: established connections are kept.
        let mut keeping =
            Policies::open(PolicySettings { rechecks: false, ..PolicySettings::default() }).unwrap();
        let epoch = keeping.epoch();
        apply(&mut keeping, &tightening(81));
        assert_eq!((keeping.epoch(), keeping.advance_at()), (epoch, None));
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn an_idle_connection_is_not_taken_as_judged_when_its_epoch_comes_round() {
    // policy.md P113
    on_a_node(|| {
        let mut policies = open();
        let rule = key(Ingress, "10.9.1.2", B, tcp(80));
        apply(&mut policies, &merged(isolated(Ingress, "10.9.1.2"), allowing([rule])));
        let server = listen(Some("a"), "10.9.1.2", 80);
        let (client, accepted) = connected(Some("b"), "10.9.1.2", &server);
        assert!(carries(&client, &accepted, true));
        let epoch = policies.epoch();
        let tightens = Delta { tightens: true, ..Delta::default() };
        apply(&mut policies, &forbidding([rule]));
        for _ in 0..254 {
            assert!(apply(&mut policies, &tightens).advanced);
        }
        assert_eq!(policies.epoch(), epoch);
        assert!(!carries(&client, &accepted, false));
    });
}

/// Two states between which the writer of the next test changes: 10.9.3.2 changes its identity, and what
/// its former one may do is allowed. Both deny it, and both allow 10.9.2.2.
fn states() -> [Decisions; 2] {
    let mut first = everything(10, 20);
    first = merged(first, isolated(Ingress, "10.9.1.2"));
    first = merged(first, allowing([key(Ingress, "10.9.1.2", B, Part::All)]));
    let mut second = first.clone();
    second.identities.insert(russet_addr::IpNet::from(ip("10.9.3.2")), Identity::new(1000));
    // So much changes that it takes several transactions.
    for (word, at) in second.decisions.values_mut().zip(0..) {
        let changed = |word: Word| Word { log: word.verdict != Verdict::Wide && !word.log, ..word };
        *word = word.map(|word| if at % 2 == 0 { changed(word) } else { word });
    }
    for (delta, allowed) in [(&mut first, 1000), (&mut second, C)] {
        delta.decisions.extend(allowing([key(Ingress, "10.9.1.2", allowed, Part::All)]).decisions);
    }
    // `everything` knows these numbers as identities of other addresses, which may do nothing here.
    first.decisions.remove(&key(Ingress, "10.9.1.2", C, Part::All));
    [decided(&first), decided(&second)]
}

const WRITER: &str = "RUSSET_TEST_WRITER";

/// The program that is killed: the next test, started by itself.
fn write_for_ever() -> ! {
    let mut policies =
        Policies::open(PolicySettings { elements_max: 200, ..PolicySettings::default() }).unwrap();
    let states = states();
    policies.restore(states[0].clone(), Instant::now()).unwrap();
    loop {
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (&states[from], &states[to]);
            let mut delta = Delta { tightens: true, ..Delta::default() };
            delta.identities = to.identities.iter().map(|(net, identity)| (*net, Some(*identity))).collect();
            delta.decisions = from.decisions.keys().map(|key| (*key, None)).collect();
            delta.decisions.extend(to.decisions.iter().map(|(key, word)| (*key, Some(*word))));
            policies.apply(&delta, &BTreeSet::new(), Instant::now()).unwrap();
        }
    }
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_process_that_is_killed_in_the_middle_of_a_change_opens_nothing() {
    const KILLS: usize = 12;
    /// More of them if by chance none was in the middle of a change.
    const KILLS_MAX: usize = 120;
    const THIS: &str = "kernel::a_process_that_is_killed_in_the_middle_of_a_change_opens_nothing";
    if std::env::var_os(WRITER).is_some() {
        write_for_ever();
    }
    on_a_node(|| {
        let states = states();
        open().restore(states[0].clone(), Instant::now()).unwrap();
        let (server, denied) = (udp(Some("a"), "10.9.1.2", 53), udp(Some("c"), "10.9.3.2", 1));
        let mut random = Random::new(7);
        let mut seen = BTreeSet::new();
        for kill in 0..KILLS_MAX {
            if kill >= KILLS && seen.contains(&false) {
                break;
            }
            server.set_nonblocking(true).unwrap();
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--ignored", "--exact", THIS]).env(WRITER, "1").stdout(std::process::Stdio::null());
            let before = generation();
            let mut child = child.spawn().unwrap();
            eventually(Duration::from_secs(20), || generation() > before + 10);
            let end = Instant::now() + Duration::from_micros(random.next_u64() % 100_000);
            while Instant::now() < end {
                denied.send_to(b"x", server.local_addr().unwrap()).unwrap();
                assert!(server.recv_from(&mut [0; 8]).is_err(), "a packet passed");
            }
            child.kill().unwrap();
            child.wait().unwrap();
            server.set_nonblocking(false).unwrap();
            assert!(!sends(&denied, &server));
            let mut next = open();
            let is_whole = states.contains(next.current());
            let is_held = next.current().held.contains(&ip("10.9.1.2"));
            assert!(is_whole || is_held, "neither a state nor held");
            seen.insert(is_whole);
            // Another process goes on from there.
            next.restore(states[0].clone(), Instant::now()).unwrap();
            assert_eq!(open().current(), &states[0]);
        }
        assert!(seen.contains(&false), "no change was interrupted");
        let allowed = udp(Some("b"), "10.9.2.2", 1);
        assert!(sends(&allowed, &server));
    });
}
