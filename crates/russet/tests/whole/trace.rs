//! `russet trace` on a node of pods in namespaces: stages, verdicts, and what it leaves.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_linux::NetNs;
use russet_policy::{Policies, PolicySettings};
use russet_testkit::forged::routed_pod;
use russet_testkit::{Process, bound, eventually, eventually_some, in_netns_with_loopback, run, sh};
use russet_verdict::ir::{Direction, Protocol};
use russet_verdict::table::{Delta, Identity, Key, Part, Word};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(30);
/// How long it is waited for an answer to a packet that is dropped.
const DROPPED: Duration = Duration::from_millis(300);
/// The pods, by the names of their namespaces.
const A: &str = "10.9.1.2";
const B: &str = "10.9.2.2";
const A6: &str = "fd09:1::2";
const B6: &str = "fd09:2::2";

/// A trace that runs.
struct Traced {
    process: Process,
    dir: TempDir,
}

// === impl Traced ===

impl Traced {
    /// Starts a trace, and waits until it marks packets.
    fn start(args: &[&str]) -> Self {
        Self::spawn(args, None).marking()
    }

    /// Starts a trace whose output is a file, if it is not given.
    fn spawn(args: &[&str], out: Option<Stdio>) -> Self {
        let dir = TempDir::new().unwrap();
        let file = |name: &str| Stdio::from(File::create(dir.path().join(name)).unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.arg("trace").args(args).arg("--root").arg(dir.path());
        command.stdin(Stdio::null()).stdout(out.unwrap_or_else(|| file("out"))).stderr(file("err"));
        Self { process: Process::start(&mut command), dir }
    }

    fn marking(mut self) -> Self {
        eventually(TIMEOUT, || {
            assert_eq!(self.process.has_ended(), None, "{}", self.read("err"));
            self.read("err").contains("tracing ")
        });
        self
    }

    /// Ends it by a signal, and returns its packets.
    fn all(&mut self) -> Vec<Value> {
        self.process.signal(Signal::TERM);
        self.ended();
        self.packets()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The packets of `-o json` so far; the last line may not be whole.
    fn packets(&self) -> Vec<Value> {
        self.read("out").lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn packet(&self, test: impl Fn(&Value) -> bool) -> Value {
        eventually_some(TIMEOUT, || self.packets().into_iter().find(&test))
    }

    fn ended(&mut self) -> ExitStatus {
        eventually_some(TIMEOUT, || self.process.has_ended())
    }
}

fn on_a_node(body: impl FnOnce() + Send) {
    in_netns_with_loopback(|| {
        for knob in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            fs::write(format!("/proc/sys/{knob}"), "1").unwrap();
        }
        routed_pod(None, "russa", "a", [A, A6]);
        routed_pod(None, "russb", "b", [B, B6]);
        body();
    });
}

fn inside<T>(netns: &str, body: impl FnOnce() -> T) -> T {
    NetNs::open_named(netns).unwrap().with(body).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Decides that the pod B may reach only port 80 of A.
fn decide() -> Policies {
    let identity = |number| Identity::new(number).unwrap();
    let mut delta = Delta::default();
    for (address, number) in [(A, 16), (A6, 16), (B, 17), (B6, 17)] {
        delta.identities.insert(IpNet::from(ip(address)), Some(identity(number)));
    }
    for address in [A, A6] {
        let (local, direction) = (ip(address), Direction::Ingress);
        delta.defaults.insert((direction, local), Some(Word::DENY));
        let part = Part::Port(Protocol::TCP, 80);
        let key = Key { direction, local, peer: identity(17), part };
        delta.decisions.insert(key, Some(Word::ALLOW));
    }
    let mut policies = Policies::open(PolicySettings::default()).unwrap();
    policies.apply(&delta, &Default::default(), Instant::now()).unwrap();
    policies
}

/// Connects from B; whether something answers.
fn connects(address: &str, port: u16, limit: Duration) -> bool {
    let to = SocketAddr::new(ip(address), port);
    match inside("b", || TcpStream::connect_timeout(&to, limit)) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::TimedOut => false,
        Err(error) => panic!("{to}: {error}"),
    }
}

fn listen(netns: &str, address: &str, port: u16) -> TcpListener {
    inside(netns, || bound(|| TcpListener::bind((ip(address), port))))
}

fn send(netns: &str, from: (&str, u16), to: (&str, u16), bytes: &[u8]) {
    let socket = inside(netns, || bound(|| UdpSocket::bind((ip(from.0), from.1))));
    socket.send_to(bytes, (ip(to.0), to.1)).unwrap();
}

fn tables() -> String {
    run("nft", &["list", "tables"])
}

/// The last stage in a table: earlier ones of its chains have nothing to decide.
fn stage<'a>(packet: &'a Value, table: &str) -> &'a Value {
    let stages = packet["stages"].as_array().unwrap();
    stages.iter().rfind(|stage| stage["table"] == table).unwrap_or_else(|| panic!("{packet:#}"))
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, veth; tools: ip, nft"]
fn p135_a_trace_shows_stages_and_verdicts_in_both_directions_and_leaves_no_table() {
    // policy.md P135
    on_a_node(|| {
        let policies = decide();
        let servers = [(A, 80), (A, 81), (A6, 80)].map(|(address, port)| listen("a", address, port));
        for (server, client, proto) in [(A, B, "tcp"), (A6, B6, "tcp")] {
            let mut traced = Traced::start(&[client, server, "--for", "5m", "-o", "json", "--proto", proto]);
            let set = if server == A { "pairs4" } else { "pairs6" };
            let elements = run("nft", &["list", "set", "inet", "russet-trace-0", set]);
            assert_eq!(elements.matches("expires").count(), 2, "{elements}");
            // nft can print what another program's dump of the ruleset has to contain.
            let listed = run("nft", &["list", "table", "inet", "russet-trace-0"]);
            assert_eq!(
                listed.matches("limit rate 100/second burst 100 packets meta nftrace set 1").count(),
                4,
                "{listed}"
            );
            assert!(connects(server, 80, TIMEOUT) && !connects(server, 81, DROPPED));

            let there = traced.packet(|it| it["direction"] == "A -> B" && it["destination_port"] == 80);
            assert_eq!(
                (&there["verdict"], &there["reason"]),
                (&"passed".into(), &"passed: leaves by russa".into())
            );
            assert_eq!((&there["in_interface"], &there["source"]), (&"russb".into(), &client.into()));
            let decided = stage(&there, "inet russet-decisions");
            assert_eq!((&decided["hook"], &decided["verdict"]), (&"postrouting".into(), &"accept".into()));
            assert!(decided["meaning"].as_str().unwrap().contains("allowed"), "{there:#}");

            let back = traced.packet(|it| it["direction"] == "B -> A" && it["source_port"] == 80);
            assert_eq!((&back["verdict"], &back["out_interface"]), (&"passed".into(), &"russb".into()));
            assert!(back["stages"].as_array().unwrap().len() >= there["stages"].as_array().unwrap().len());

            let denied = traced.packet(|it| it["destination_port"] == 81);
            assert_eq!(denied["verdict"], "dropped");
            let reason = denied["reason"].as_str().unwrap();
            assert!(reason.starts_with("dropped by inet russet-decisions denied"), "{reason}");
            assert!(
                reason.ends_with(&format!("`russet explain {client} {server} 81` names the policy")),
                "{reason}"
            );
            assert_eq!(stage(&denied, "inet russet-decisions")["verdict"], "drop");
            assert!(stage(&denied, "inet russet-decisions")["rule"].is_string());

            traced.process.signal(Signal::TERM);
            assert_eq!(traced.ended().code(), Some(3), "{}", traced.read("err"));
            assert!(!tables().contains("trace"), "{}", tables());
        }
        drop((policies, servers));
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, veth; tools: ip, nft"]
fn p135_what_a_killed_trace_leaves_times_out_and_the_next_one_removes_it() {
    on_a_node(|| {
        let killed = Traced::start(&[B, A, "--for", "1s"]);
        killed.process.signal(Signal::KILL);
        let mut killed = killed;
        assert_eq!(killed.ended().code(), None);
        let set = || run("nft", &["list", "set", "inet", "russet-trace-0", "pairs4"]);
        assert!(set().contains("expires"), "{}", set());
        eventually(TIMEOUT, || !set().contains("expires"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        let owned = command.args(["owned", "--root"]).arg(killed.dir.path()).output().unwrap();
        let owned = String::from_utf8(owned.stdout).unwrap();
        assert!(owned.contains("inet russet-trace-0"), "{owned}");
        // The next one uses the name again, and ends by itself.
        let mut next = Traced::start(&[B, A, "--for", "1s"]);
        assert_eq!(tables().matches("russet-trace-").count(), 1, "{}", tables());
        assert_eq!(next.ended().code(), Some(0));
        assert!(!tables().contains("trace"), "{}", tables());
        assert!(next.read("err").contains("0 packets traced"), "{}", next.read("err"));
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, veth; tools: ip, nft"]
fn p135_a_drop_by_another_program_and_one_outside_of_nf_tables_are_named() {
    on_a_node(|| {
        sh("nft add table ip other");
        sh("nft add chain ip other guard { type filter hook forward priority 5 ; }");
        sh("nft add rule ip other guard udp dport 7 counter drop comment mine");
        let sent = |to: &str, port: u16| {
            inside("b", || UdpSocket::bind((ip(B), 0)).unwrap().send_to(b"x", (ip(to), port))).unwrap();
        };
        let mut traced = Traced::start(&[B, A, "7", "--proto", "udp", "--for", "5m"]);
        sent(A, 8);
        sent(A, 7);
        // Its chain has no rule for what answers.
        send("a", (A, 7), (B, 9), b"x");
        eventually(TIMEOUT, || traced.read("out").contains("dropped by ip other guard\n"));
        eventually(TIMEOUT, || traced.read("out").contains("passed: leaves by russb\n"));
        let text = traced.read("out");
        assert!(text.contains(": drop  rule ") && text.contains("\"mine\" ("), "{text}");
        assert!(text.contains("A -> B") && !text.contains("-> 8"), "{text}");
        traced.process.signal(Signal::INT);
        assert_eq!(traced.ended().code(), Some(3));

        sh("ip route add blackhole 10.9.9.9");
        let mut traced = Traced::start(&[B, "10.9.9.9", "--for", "5m", "-o", "json"]);
        sent("10.9.9.9", 9);
        let unseen = traced.packet(|it| it["destination_port"] == 9);
        assert_eq!(unseen["verdict"], "unseen");
        assert!(unseen["reason"].as_str().unwrap().contains("no route"), "{unseen:#}");
        traced.process.signal(Signal::INT);
        assert_eq!(traced.ended().code(), Some(0));
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, veth; tools: ip, nft"]
fn p135_packets_beyond_the_limit_are_counted_and_a_seventeenth_trace_is_refused() {
    on_a_node(|| {
        let mut traced = Traced::start(&[B, A, "--proto", "udp", "--for", "5m", "-o", "json"]);
        inside("b", || {
            let socket = UdpSocket::bind((ip(B), 0)).unwrap();
            for _ in 0..2000 {
                // The answers of ICMP are errors of the next call.
                let _ = socket.send_to(b"x", (ip(A), 9));
            }
        });
        traced.packet(|it| it["verdict"] == "passed");
        traced.process.signal(Signal::TERM);
        assert_eq!(traced.ended().code(), Some(0));
        let said = traced.read("err");
        assert!(said.contains("more packets were not traced: at most 100 a second"), "{said}");
        assert!(traced.packets().len() <= 1000, "{}", traced.packets().len());

        for number in 0..16 {
            let table = format!("inet russet-trace-{number}");
            sh(&format!("nft add table {table}"));
            sh(&format!("nft add set {table} pairs4 {{ type ipv4_addr . ipv4_addr ; flags timeout ; }}"));
            sh(&format!("nft add element {table} pairs4 {{ 10.0.0.1 . 10.0.0.2 timeout 1h }}"));
        }
        let refused = Command::new(env!("CARGO_BIN_EXE_russet"))
            .args(["trace", A, B, "--root"])
            .arg(traced.dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(said.contains("16 traces run on this node"), "{said}");
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, nf_conntrack, veth; tools: ip, nft"]
fn p135_a_fragmented_datagram_is_one_packet_and_one_whose_ttl_expires_is_seen_no_more() {
    on_a_node(|| {
        // Connection tracking needs whole packets.
        sh("nft add table ip tracks");
        sh("nft add chain ip tracks each { type filter hook prerouting priority 0 ; }");
        sh("nft add rule ip tracks each ct state new counter");
        let mut traced = Traced::start(&[A, B, "--proto", "udp", "--for", "5m", "-o", "json"]);
        send("a", (A, 0), (B, 9), &[0; 4000]);
        let whole = traced.packet(|it| it["destination_port"] == 9);
        assert_eq!(whole["verdict"], "passed", "{whole:#}");
        inside("a", || {
            let socket = UdpSocket::bind((ip(A), 0)).unwrap();
            socket.set_ttl(1).unwrap();
            socket.send_to(b"x", (ip(B), 10)).unwrap();
        });
        // Fragments that had been taken away would be seen no more before it.
        let expired = traced.packet(|it| it["destination_port"] == 10);
        assert_eq!(expired["verdict"], "unseen");
        assert!(expired["reason"].as_str().unwrap().contains("TTL expired"), "{expired:#}");
        let all = traced.all();
        assert_eq!(all.len(), 2, "{all:#?}");
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, veth; tools: ip, nft"]
fn p135_a_packet_from_and_to_the_same_port_is_one_packet() {
    on_a_node(|| {
        let mut traced = Traced::start(&[B, A, "500", "--proto", "udp", "--for", "5m", "-o", "json"]);
        send("b", (B, 500), (A, 500), b"x");
        send("a", (A, 500), (B, 9), b"x");
        let there = traced.packet(|it| it["destination_port"] == 500);
        let back = traced.packet(|it| it["destination_port"] == 9);
        assert_eq!((&there["direction"], &there["verdict"]), (&"A -> B".into(), &"passed".into()));
        assert_eq!((&back["direction"], &back["verdict"]), (&"B -> A".into(), &"passed".into()));
        let all = traced.all();
        assert_eq!(all.len(), 2, "{all:#?}");
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, nf_conntrack, nf_nat, veth; tools: ip, nft"]
fn p135_the_answers_of_a_service_are_traced_with_its_requests() {
    const SERVICES: [(&str, &str, &str, &str); 2] =
        [(B, A, "10.96.0.10", "ip"), (B6, A6, "fd09:9::10", "ip6")];
    on_a_node(|| {
        sh("nft add table inet services");
        sh("nft add chain inet services each { type nat hook prerouting priority dstnat ; }");
        for (client, server, service, family) in SERVICES {
            let [server, asked] = [server, service].map(ip);
            let to = SocketAddr::new(server, 5353);
            sh(&format!(
                "nft add rule inet services each {family} daddr {asked} udp dport 53 dnat {family} to {to}"
            ));
            let answering = inside("a", || bound(|| UdpSocket::bind(to)));
            let asking = inside("b", || UdpSocket::bind((ip(client), 0)).unwrap());
            // By the name of the Service its answers come from another address, and by that of the server from this one.
            for (end, port) in [(asked, 53), (server, 5353)] {
                let [name, number] = [end.to_string(), port.to_string()];
                let args = [client, &name, &number, "--proto", "udp", "--for", "5m", "-o", "json"];
                let mut traced = Traced::start(&args);
                asking.send_to(b"question", (end, port)).unwrap();
                let (_, from) = answering.recv_from(&mut [0; 8]).unwrap();
                answering.send_to(b"answer", from).unwrap();
                let there = traced.packet(|it| it["direction"] == "A -> B");
                let back = traced.packet(|it| it["direction"] == "B -> A");
                assert_eq!(
                    (&there["verdict"], &there["destination"]),
                    (&"passed".into(), &name.as_str().into())
                );
                assert_eq!(back["reason"], "passed: leaves by russb", "{back:#}");
                assert_eq!(
                    (&back["source"], &back["source_port"]),
                    (&server.to_string().into(), &5353.into())
                );
                assert_eq!(
                    (&there["translated"], &back["translated"]),
                    (&false.into(), &(port == 53).into())
                );
                let all = traced.all();
                assert_eq!(all.len(), 2, "{all:#?}");
            }
        }
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, veth; tools: ip, nft"]
fn p135_a_trace_that_goes_on_too_late_leaves_the_table_of_another_one() {
    on_a_node(|| {
        let mut late = Traced::start(&[B, A, "--for", "1s"]);
        late.process.signal(Signal::STOP);
        let set = || run("nft", &["list", "set", "inet", "russet-trace-0", "pairs4"]);
        eventually(TIMEOUT, || !set().contains("expires"));
        let mut other = Traced::start(&[B, A, "--for", "5m"]);
        assert_eq!(tables().matches("russet-trace-").count(), 1, "{}", tables());
        late.process.signal(Signal::CONT);
        assert_eq!(late.ended().code(), Some(1));
        assert!(late.read("err").contains("stopped for longer than its time"), "{}", late.read("err"));
        assert!(set().contains("expires"), "{}", set());
        other.process.signal(Signal::TERM);
        assert_eq!(other.ended().code(), Some(0), "{}", other.read("err"));
        assert!(!tables().contains("trace"), "{}", tables());
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, veth; tools: ip, nft"]
fn p135_a_trace_whose_rules_are_removed_fails() {
    on_a_node(|| {
        for removal in ["flush ruleset", "flush table inet russet-trace-0"] {
            let mut traced = Traced::start(&[B, A, "--for", "5m"]);
            sh(&format!("nft {removal}"));
            assert_eq!(traced.ended().code(), Some(1));
            assert!(traced.read("err").contains("inet russet-trace-0, which mark packets, are gone"));
            assert!(!tables().contains("trace"), "{}", tables());
        }
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables, veth; tools: ip, nft"]
fn p135_output_that_is_not_read_keeps_no_trace_from_its_end() {
    on_a_node(|| {
        // A full pipe.
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[0; 64 << 10]).unwrap();
        let args = [B, A, "--proto", "udp", "--for", "3s"];
        let mut traced = Traced::spawn(&args, Some(writer.into())).marking();
        send("b", (B, 0), (A, 9), b"x");
        assert_eq!(traced.ended().code(), Some(0));
        let said = traced.read("err");
        assert!(
            said.contains("0 packets traced") && said.contains("1 more packets were traced and not"),
            "{said}"
        );
        assert!(!tables().contains("trace"), "{}", tables());
        drop(reader);
    });
}

#[test]
#[ignore = "root: namespaces; kernel: nf_tables"]
fn p135_a_signal_ends_a_trace_whose_addresses_are_looked_up() {
    in_netns_with_loopback(|| {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let location = format!("etcd:http://{}", store.local_addr().unwrap());
        let mut traced = Traced::spawn(&["shop/web", "shop/db", "--store", &location], None);
        // It never answers.
        let _connection = store.accept().unwrap();
        traced.process.signal(Signal::TERM);
        assert_eq!(traced.ended().code(), Some(1));
        assert!(
            traced.read("err").contains("stopped while addresses were looked up"),
            "{}",
            traced.read("err")
        );
    });
}
