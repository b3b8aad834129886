//! The table in real kernels: which packets it checks, adding and removing entries, and repairs
//! during traffic.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::time::Duration;

use russet_addr::IfName;
use russet_policy::{Entry, Verdict, VerdictReport, VerdictState, Verdicts};
use russet_testkit::{eventually, in_netns_with_loopback, nft_json, run};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(20);

/// A pod's namespace, wired by hand: its host end has `name`, and both ends have addresses of
/// 10.9.`subnet`.0/24 and fd09:`subnet`::/64.
fn pod(name: &str, subnet: u8) {
    let netns = format!("ns-{name}");
    run("ip", &["netns", "add", &netns]);
    // Link-local addresses are usable at once.
    let nodad = "net.ipv6.conf.default.accept_dad=0";
    run("sysctl", &["-w", nodad]);
    run("ip", &["netns", "exec", &netns, "sysctl", "-w", nodad]);
    run("ip", &["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &netns]);
    for (side, host) in [(&[][..], 1), (&["-n", &netns][..], 2)] {
        let link = if host == 1 { name } else { "eth0" };
        let v4 = format!("10.9.{subnet}.{host}/24");
        let v6 = format!("fd09:{subnet}::{host}/64");
        run("ip", &[side, &["addr", "add", &v4, "dev", link]].concat());
        run("ip", &[side, &["addr", "add", &v6, "dev", link, "nodad"]].concat());
        run("ip", &[side, &["link", "set", link, "up"]].concat());
        if host == 2 {
            let (v4, v6) = (format!("10.9.{subnet}.1"), format!("fd09:{subnet}::1"));
            run("ip", &[side, &["route", "add", "default", "via", &v4]].concat());
            run("ip", &[side, &["-6", "route", "add", "default", "via", &v6]].concat());
        }
    }
}

fn forward() {
    for knob in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/{knob}"), "1").unwrap();
    }
}

/// Whether a packet and its reply arrive.
fn pings(from: Option<&str>, to: &str) -> bool {
    let mut command = std::process::Command::new(russet_testkit::require_tool("ip"));
    let (netns, args) = match from {
        Some(name) => (format!("ns-{name}"), ["ping", "-n", "-c", "1", "-W", "1", to]),
        None => (String::new(), ["ping", "-n", "-c", "1", "-W", "1", to]),
    };
    let output = match from {
        Some(_) => command.args(["netns", "exec", &netns]).args(args).output(),
        None => std::process::Command::new(russet_testkit::require_tool("ping")).args(&args[1..]).output(),
    };
    output.unwrap().status.success()
}

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn allow(text: &str) -> Entry {
    Entry::allow(name(text))
}

/// Everything in the table except handles and counters, as nft lists it.
fn listed() -> Vec<Value> {
    let listing = nft_json(&["list", "table", "inet", "russet-policy"]);
    let objects = listing["nftables"].as_array().unwrap().iter();
    objects.filter(|object| object.get("metainfo").is_none()).cloned().collect()
}

fn in_map(map: &str) -> Vec<String> {
    let objects = listed();
    let map = objects.iter().filter_map(|object| object.get("map")).find(|it| it["name"] == map).unwrap();
    let elements = map["elem"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = elements
        .iter()
        .map(|pair| {
            assert_eq!(pair[1], serde_json::json!({"accept": null}), "{pair}");
            pair[0].as_str().unwrap().to_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: nft, ip"]
fn nft_lists_the_table_as_specified() {
    in_netns_with_loopback(|| {
        let mut verdicts = Verdicts::open().unwrap();
        let report = verdicts.reconcile(&[allow("russ1"), allow("russ2")]).unwrap();
        assert_eq!(report.structure.as_deref(), Some("the table was missing"));
        assert_eq!(report.added, [name("russ1"), name("russ2")]);
        let ours = run("nft", &["-n", "list", "table", "inet", "russet-policy"]);
        let text = "table inet russet-policy {
            map from-pods { type ifname : verdict; elements = { \"russ1\" : accept, \"russ2\" : accept } }
            map to-pods { type ifname : verdict; elements = { \"russ1\" : accept, \"russ2\" : accept } }
            set sources4 { type ifname . ipv4_addr; flags interval; }
            set sources6 { type ifname . ipv6_addr; flags interval; }
            chain guard-source {
                ip6 saddr fe80::/10 return
                iifname . ip saddr @sources4 return
                iifname . ip6 saddr @sources6 return
                counter drop comment \"not the pod's address\"
            }
            chain guard-udp {
                udp sport 67 udp dport 68 counter drop comment \"a pod is no DHCP server\"
                udp sport 547 udp dport 546 counter drop comment \"a pod is no DHCP server\"
            }
            chain guard-icmpv6 {
                icmpv6 type 134 counter drop comment \"a pod is no router\"
                icmpv6 type 137 counter drop comment \"a pod is no router\"
            }
            chain guard-protocol { meta l4proto ipv6-icmp goto guard-icmpv6; meta l4proto udp goto guard-udp; }
            chain guard {
                meta l4proto != tcp jump guard-protocol
                ip daddr 127.0.0.0/8 counter drop comment \"the node's loopback addresses\"
                fib saddr . iif oif 0 jump guard-source
            }
            chain calico-ends { }
            chain from-pod {
                meta l4proto != tcp jump guard-protocol
                ip daddr 127.0.0.0/8 counter drop comment \"the node's loopback addresses\"
                fib saddr . iif oif 0 jump guard-source
                iifname vmap @from-pods
                counter drop
            }
            chain to-pod { oifname vmap @to-pods; counter drop; }
            chain prerouting { type filter hook prerouting priority raw; policy accept; iifname \"russ*\" goto from-pod; goto calico-ends; }
            chain postrouting { type filter hook postrouting priority filter; policy accept; oifname \"russ*\" goto to-pod; }
        }";
        run("nft", &["delete", "table", "inet", "russet-policy"]);
        run("nft", &[text]);
        let theirs = run("nft", &["-n", "list", "table", "inet", "russet-policy"]);
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&ours), sorted(&theirs));
        // We recognise the table as ours.
        assert_eq!(verdicts.reconcile(&[allow("russ1"), allow("russ2")]).unwrap(), VerdictReport::default());
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: nft, ip, ping"]
fn an_interface_without_an_entry_carries_nothing_in_either_direction() {
    in_netns_with_loopback(|| {
        forward();
        pod("russ1", 1);
        pod("russ2", 2);
        pod("other", 3);
        let mut verdicts = Verdicts::open().unwrap();
        // Host name, peer in a pod, and the node itself, by each family.
        let paths = [(Some("russ1"), "10.9.2.2"), (Some("russ1"), "fd09:2::2"), (Some("russ2"), "10.9.1.2")];
        let node = [
            (Some("russ1"), "10.9.1.1"),
            (Some("russ1"), "fd09:1::1"),
            (None, "10.9.1.2"),
            (None, "fd09:1::2"),
        ];
        let others = [(Some("other"), "10.9.3.1"), (None, "fd09:3::2"), (None, "127.0.0.1")];
        let all = |what: &[(Option<&str>, &str)], expected: bool| {
            for (from, to) in what {
                assert_eq!(pings(*from, to), expected, "{from:?} to {to}");
            }
        };
        all(&paths, true);
        verdicts.reconcile(&[allow("russ2")]).unwrap();
        all(&paths, false);
        all(&node, false);
        all(&others, true);
        verdicts.put(&allow("russ1")).unwrap();
        all(&paths, true);
        all(&node, true);
        assert!(verdicts.remove(&name("russ2")).unwrap());
        assert!(!verdicts.remove(&name("russ2")).unwrap());
        all(&paths, false);
        all(&node, true);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: nft, ip"]
fn the_nodes_packet_to_a_service_is_checked_by_its_translated_destination() {
    in_netns_with_loopback(|| {
        forward();
        pod("russ1", 1);
        pod("uplink", 2);
        run("ip", &["route", "add", "172.30.0.0/16", "dev", "uplink"]);
        let dnat = "add table ip kube; add chain ip kube out { type nat hook output priority -100; };
            add rule ip kube out ip daddr 172.30.0.1 dnat to 10.9.1.2";
        run("nft", &[dnat]);
        assert!(pings(None, "172.30.0.1"));
        let mut verdicts = Verdicts::open().unwrap();
        verdicts.reconcile(&[]).unwrap();
        let received = || {
            let links = russet_testkit::ip_json(&["-n", "ns-russ1", "-s", "link", "show", "eth0"]);
            links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
        };
        let before = received();
        assert!(!pings(None, "172.30.0.1"));
        assert_eq!(received(), before, "the pod's end saw a packet");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: nft, ip"]
fn a_put_is_repeatable_and_needs_a_complete_table() {
    in_netns_with_loopback(|| {
        let mut verdicts = Verdicts::open().unwrap();
        let entry = allow("russ1");
        assert!(verdicts.put(&entry).unwrap_err().is_incomplete());
        assert!(matches!(verdicts.verdict_state(&entry.host_name).unwrap(), VerdictState::Unjudged(_)));
        assert!(!verdicts.remove(&entry.host_name).unwrap());
        verdicts.reconcile(&[]).unwrap();
        assert_eq!(verdicts.verdict_state(&entry.host_name).unwrap(), VerdictState::None);
        for _ in 0..2 {
            verdicts.put(&entry).unwrap();
            assert!(verdicts.holds(&entry).unwrap());
            assert_eq!(
                (in_map("from-pods"), in_map("to-pods")),
                (vec!["russ1".into()], vec!["russ1".into()])
            );
        }
        // Half of the entry, and a different verdict.
        run("nft", &["delete element inet russet-policy to-pods { russ1 }"]);
        assert_eq!(verdicts.verdict_state(&entry.host_name).unwrap(), VerdictState::Other);
        verdicts.put(&entry).unwrap();
        run(
            "nft",
            &[
                "delete element inet russet-policy to-pods { russ1 }; add element inet russet-policy to-pods { russ1 : drop }",
            ],
        );
        assert_eq!(verdicts.verdict_state(&entry.host_name).unwrap(), VerdictState::Other);
        verdicts.put(&entry).unwrap();
        assert_eq!(verdicts.verdict_state(&entry.host_name).unwrap(), VerdictState::InForce(Verdict::Allow));
        assert!(verdicts.withdraw().unwrap());
        assert!(!verdicts.withdraw().unwrap());
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tool: nft"]
fn a_put_after_our_own_commits_still_notices_foreign_changes_of_the_table() {
    in_netns_with_loopback(|| {
        let mut verdicts = Verdicts::open().unwrap();
        for damage in [
            "flush table inet russet-policy",
            "add table inet russet-policy { flags dormant; }",
            "delete table inet russet-policy",
        ] {
            verdicts.reconcile(&[]).unwrap();
            for entry in [allow("russ1"), allow("russ2")] {
                verdicts.put(&entry).unwrap();
                assert!(verdicts.remove(&entry.host_name).unwrap());
                verdicts.put(&entry).unwrap();
            }
            // Unrelated changes do not delay a put.
            run("nft", &["add table inet unrelated; delete table inet unrelated"]);
            verdicts.put(&allow("russ3")).unwrap();
            assert!(verdicts.holds(&allow("russ3")).unwrap());
            verdicts.put(&allow("russ4")).unwrap();
            run("nft", &[damage]);
            assert!(verdicts.put(&allow("russ5")).unwrap_err().is_incomplete(), "{damage}");
        }
    });
}

/// A set without a name belongs to its rule: no reason to create the table anew.
const WITH_ANONYMOUS_SET: &str = "insert rule inet russet-policy prerouting tcp dport { 80, 443 } accept";

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: nft"]
fn every_change_of_the_table_is_repaired_in_one_transaction() {
    in_netns_with_loopback(|| {
        let mut verdicts = Verdicts::open().unwrap();
        let wanted = [allow("russ1"), allow("russ2")];
        verdicts.reconcile(&wanted).unwrap();
        let good = run("nft", &["list", "table", "inet", "russet-policy"]);
        let structure = |text: &'static str| (Some(text), 0, 0);
        for (damage, (fault, added, removed)) in [
            ("flush table inet russet-policy", structure("the rules of chain from-pod were different")),
            ("flush ruleset", (Some("the table was missing"), 2, 0)),
            ("flush map inet russet-policy from-pods", (None, 2, 0)),
            ("delete element inet russet-policy to-pods { russ2 }", (None, 1, 0)),
            ("add element inet russet-policy to-pods { russ3 : accept }", (None, 0, 1)),
            (
                "add element inet russet-policy from-pods { russ3 : drop }; delete element inet russet-policy from-pods { russ1 }",
                (None, 1, 1),
            ),
            (
                "insert rule inet russet-policy prerouting accept",
                structure("the rules of chain prerouting were different"),
            ),
            (
                "flush chain inet russet-policy postrouting; delete chain inet russet-policy postrouting",
                structure("chain postrouting was missing"),
            ),
            (
                "add table inet russet-policy { flags dormant; }",
                (Some("the table was dormant or owned by another process"), 2, 0),
            ),
            (
                "delete table inet russet-policy; add table inet russet-policy; add chain inet russet-policy prerouting { type filter hook output priority 0; }",
                (Some("chain prerouting was different"), 2, 0),
            ),
            (
                "delete table inet russet-policy; add table inet russet-policy; add map inet russet-policy to-pods { type mark : verdict; }",
                (Some("map to-pods was different"), 2, 0),
            ),
        ] {
            run("nft", &[damage]);
            let report = verdicts.reconcile(&wanted).unwrap_or_else(|error| panic!("{damage}: {error}"));
            let found = (report.structure.as_deref(), report.added.len(), report.removed.len());
            assert_eq!(found, (fault, added, removed), "{damage}");
            assert!(verdicts.reconcile(&wanted).unwrap().is_clean(), "{damage}");
            let sorted = |text: &str| {
                let mut lines: Vec<String> =
                    text.lines().map(|line| line.trim().replace("packets 0 bytes 0 ", "")).collect();
                lines.sort();
                lines
            };
            assert_eq!(
                sorted(&run("nft", &["list", "table", "inet", "russet-policy"])),
                sorted(&good),
                "{damage}"
            );
        }
        for (foreign, fault) in [
            ("add chain inet russet-policy x; add rule inet russet-policy x accept", "chain x was not known"),
            ("add set inet russet-policy x { type mark; }", "map x was not known"),
            (WITH_ANONYMOUS_SET, "the rules of chain prerouting were different"),
        ] {
            run("nft", &[foreign]);
            assert_eq!(verdicts.reconcile(&wanted).unwrap().structure.as_deref(), Some(fault));
            assert!(verdicts.reconcile(&wanted).unwrap().is_clean(), "{foreign}");
        }
        // `complete` keeps the entries of other processes.
        run("nft", &["add element inet russet-policy to-pods { russ3 : accept }"]);
        assert!(verdicts.complete(&wanted).unwrap().is_clean());
        assert_eq!(in_map("to-pods"), ["russ1", "russ2", "russ3"]);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: nft, ip, ping"]
fn the_table_of_an_earlier_version_is_replaced_and_keeps_its_elements() {
    in_netns_with_loopback(|| {
        forward();
        pod("russ1", 1);
        pod("russ2", 2);
        // As it was before the verdicts of pods' packets were evaluated together with the guards.
        let old = "table inet russet-policy {
            map from-pods { type ifname : verdict; elements = { \"russ1\" : accept, \"russ2\" : accept } }
            map to-pods { type ifname : verdict; elements = { \"russ1\" : accept, \"russ2\" : accept } }
            set sources4 { type ifname . ipv4_addr; flags interval; elements = { \"cali1\" . 192.0.2.0/24 } }
            set sources6 { type ifname . ipv6_addr; flags interval; }
            chain from-pod { iifname vmap @from-pods; counter drop; }
            chain to-pod { oifname vmap @to-pods; counter drop; }
            chain forward { type filter hook forward priority filter; iifname \"russ*\" goto from-pod; }
            chain input { type filter hook input priority filter; iifname \"russ*\" goto from-pod; }
            chain postrouting { type filter hook postrouting priority filter; oifname \"russ*\" goto to-pod; }
            chain guard-source { iifname . ip saddr @sources4 accept; counter drop; }
            chain guard { fib saddr . iif oif 0 goto guard-source; }
            chain guard-calico { goto guard; }
            chain prerouting {
                type filter hook prerouting priority raw
                iifname \"russ*\" goto guard
                iifname \"cali*\" goto guard-calico
            }
        }";
        run("nft", &[old]);
        let mut verdicts = Verdicts::open().unwrap();
        // A process without an agent knows one interface only.
        assert!(verdicts.put(&allow("russ3")).unwrap_err().is_incomplete());
        let report = verdicts.complete(&[allow("russ3")]).unwrap();
        assert_eq!((report.added, report.removed), (vec![name("russ3")], vec![]));
        assert_eq!(in_map("from-pods"), ["russ1", "russ2", "russ3"]);
        let text = run("nft", &["list table inet russet-policy"]);
        assert!(text.contains("192.0.2.0/24") && text.contains("iifname \"cali*\" goto guard"), "{text}");
        assert!(!text.contains("hook forward") && !text.contains("hook input"), "{text}");
        assert!(verdicts.reconcile(&[allow("russ1"), allow("russ2"), allow("russ3")]).unwrap().is_clean());
        assert!(pings(Some("russ1"), "10.9.2.2"));
        assert!(verdicts.remove(&name("russ2")).unwrap());
        assert!(!pings(Some("russ1"), "10.9.2.2"));
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: nft, ip, ping"]
fn recreating_the_table_loses_no_packet_of_interfaces_with_an_entry() {
    in_netns_with_loopback(|| {
        forward();
        pod("russ1", 1);
        pod("russ2", 2);
        let flood = || {
            // It ends with the 3100th reply, however late; the last ones may overtake each other.
            let ping = ["ping", "-n", "-c", "3100", "-i", "0.002", "-w", "120", "10.9.2.2"];
            run("ip", &[&["netns", "exec", "ns-russ1"][..], &ping].concat())
        };
        let wanted: Vec<Entry> = (1..2000).map(|index| allow(&format!("russ{index}"))).collect();
        eventually(DEADLINE, || pings(Some("russ1"), "10.9.2.2"));
        let flood = std::thread::spawn(flood);
        let mut verdicts = Verdicts::open().unwrap();
        verdicts.reconcile(&wanted).unwrap();
        let mut rounds = 0;
        while !flood.is_finished() {
            match rounds % 3 {
                0 => _ = verdicts.withdraw().unwrap(),
                1 => _ = run("nft", &["flush table inet russet-policy"]),
                _ => _ = run("nft", &["delete element inet russet-policy from-pods { russ1999 }"]),
            }
            verdicts.reconcile(if rounds % 3 == 2 { &wanted[..1998] } else { &wanted }).unwrap();
            verdicts.reconcile(&wanted).unwrap();
            rounds += 1;
        }
        let said = flood.join().unwrap();
        let replies = said.split("bytes from 10.9.2.2: icmp_seq=").skip(1);
        let answered: BTreeSet<u32> =
            replies.map(|reply| reply.split(' ').next().unwrap().parse().unwrap()).collect();
        let lost: Vec<u32> = (1..=3000).filter(|number| !answered.contains(number)).collect();
        assert!(lost.is_empty(), "{lost:?}");
        assert!(rounds > 5, "{rounds} rounds");
    });
}

/// Not a test: measures the cost of an entry.
#[test]
#[ignore = "kernel: nf_tables, root; a measurement"]
fn speed_of_an_entry_among_many() {
    in_netns_with_loopback(|| {
        let mut verdicts = Verdicts::open().unwrap();
        for others in [0, 1000, 10_000] {
            let wanted: Vec<Entry> = (0..others).map(|index| allow(&format!("russ{index}"))).collect();
            let began = std::time::Instant::now();
            verdicts.reconcile(&wanted).unwrap();
            let whole = began.elapsed();
            let entry = allow("russx");
            let mut times = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..200 {
                let mut timed = |index: usize, work: &mut dyn FnMut()| {
                    let began = std::time::Instant::now();
                    work();
                    times[index].push(began.elapsed());
                };
                timed(0, &mut || verdicts.put(&entry).unwrap());
                timed(1, &mut || assert!(verdicts.holds(&entry).unwrap()));
                timed(2, &mut || assert!(verdicts.remove(&entry.host_name).unwrap()));
            }
            let median = times.map(|mut times| {
                times.sort();
                times[times.len() / 2]
            });
            println!(
                "{others} others: reconcile {whole:?}, put {:?}, holds {:?}, remove {:?}",
                median[0], median[1], median[2]
            );
        }
    });
}

/// Not a test either: CPU time of a round trip of two forwarded packets, without and with the
/// table, between pods and between other interfaces.
#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, ping, bash; a measurement"]
fn speed_of_a_packet() {
    const ROUND_TRIPS: u32 = 20_000;
    in_netns_with_loopback(|| {
        forward();
        for (index, name) in ["russ1", "russ2", "other1", "other2"].iter().enumerate() {
            pod(name, index as u8 + 1);
        }
        let mut verdicts = Verdicts::open().unwrap();
        let wanted: Vec<Entry> = (0..500).map(|index| allow(&format!("russ{index}"))).collect();
        let cost = |from: &str, to: &str| {
            let time = format!("TIMEFORMAT='%U %S'; time ping -f -q -n -c {ROUND_TRIPS} {to} >&2");
            let args =
                ["netns", "exec", &format!("ns-{from}"), "bash", "-c", &format!("({time}) 2>&1 | tail -1")];
            let times = run("ip", &args);
            let seconds: f64 = times.split_whitespace().map(|it| it.parse::<f64>().unwrap()).sum();
            seconds * 1e9 / f64::from(ROUND_TRIPS)
        };
        let mut best = [f64::MAX; 4];
        for _ in 0..5 {
            for (index, (from, to)) in [("russ1", "10.9.2.2"), ("other1", "10.9.4.2")].into_iter().enumerate()
            {
                verdicts.withdraw().unwrap();
                best[index * 2] = best[index * 2].min(cost(from, to));
                verdicts.reconcile(&wanted).unwrap();
                best[index * 2 + 1] = best[index * 2 + 1].min(cost(from, to));
            }
        }
        let [pods, judged, others, passed] = best;
        println!(
            "pods: {pods:.0} ns, with the table {judged:.0}; other interfaces: {others:.0} ns, with the table {passed:.0}"
        );
    });
}
