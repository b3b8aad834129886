//! `-takeover`: a real flannel v0.20.0's state is made by hand as in flannel.md sections 6.2, 6.3
//! and 7.1, and our daemon replaces it under traffic; then back. Not one packet may be lost, and no
//! object may exist twice.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use russet_linux::{NetNs, process};
use russet_testkit::{bound, copy_program, eventually, let_pass, run};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::faults::rules_of;
use super::lab::{Host, Lab};
use crate::node::{TIMEOUT, TestPod};
use crate::pinging::Pinging;

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
const HOST_GW: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#;
/// The first node's subnet and, in `vxlan`, MAC.
const KEY: &str = "10.5.129.0-24";
const MAC: &str = "0a:70:0b:90:fc:11";
const VXLAN_LEASE: &str = r#"{"PublicIP":"10.77.0.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:70:0b:90:fc:11"}}"#;
const HOST_GW_LEASE: &str = r#"{"PublicIP":"10.77.0.11","PublicIPv6":null,"BackendType":"host-gw"}"#;

/// v0.20.0's rules, on a host whose FORWARD chain drops.
const RULES: &str = r#"*nat
:FLANNEL-POSTRTG - [0:0]
-A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.129.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
:FORWARD DROP [0:0]
:FLANNEL-FWD - [0:0]
-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
"#;
/// Its jumps, inserted on top.
const JUMPS: &str = r#"*nat
-I POSTROUTING 1 -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
COMMIT
*filter
-I FORWARD 1 -m comment --comment "flanneld forward" -j FLANNEL-FWD
COMMIT
"#;

/// The rules of a current flannel with `EnableNFTables`, the unused one included (flannel.md
/// section 7.2).
const NFT_RULES: &str = r#"
table ip flannel-ipv4 {
    chain forward { type filter hook forward priority filter; policy accept;
        ip saddr 10.5.0.0/16 accept
        ip daddr 10.5.0.0/16 accept
    }
    chain postrtg { type nat hook postrouting priority srcnat; policy accept;
        meta mark & 0x4000 == 0x4000 return
        ip saddr 10.5.129.0/24 ip daddr 10.5.0.0/16 return
        ip saddr 10.5.0.0/16 ip daddr 10.5.129.0/24 return
        ip saddr != 10.5.129.0/24 ip daddr 10.5.0.0/16 return
        ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
        ip saddr != 10.5.0.0/16 ip daddr 10.5.0.0/16 masquerade fully-random
    }
}
"#;

/// The firewall that a flannel uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Iptables,
    Nft,
}

// === impl Rules ===

impl Rules {
    /// What flannel does at each start: it flushes and fills its chains.
    fn fill(self, host: &Host) {
        match self {
            Self::Iptables => feed(host, &["iptables-restore", "--noflush"], RULES),
            Self::Nft => {
                let anew = "table ip flannel-ipv4\ndelete table ip flannel-ipv4\n";
                feed(host, &["nft", "-f", "-"], &format!("{anew}{NFT_RULES}"));
            }
        }
    }

    fn jump(self, host: &Host) {
        if self == Self::Iptables {
            feed(host, &["iptables-restore", "--noflush"], JUMPS);
        }
    }

    /// Jumps, chains and tables exist once each, and none of the other kind.
    fn assert_once(self, host: &Host) {
        let (rules, tables) = (sh(host, "iptables-save"), host.nft(&["list", "tables"]));
        let chains = usize::from(self == Self::Iptables);
        for line in ["-A POSTROUTING", "-A FORWARD", ":FLANNEL-POSTRTG", ":FLANNEL-FWD"] {
            let found =
                rules.lines().filter(|rule| rule.starts_with(line) && rule.contains("FLANNEL")).count();
            assert_eq!(found, chains, "{line}:\n{rules}");
        }
        assert_eq!(tables.contains("table ip flannel-ipv4"), self == Self::Nft, "{tables}");
    }
}

/// Long enough for another process to react.
const SECOND: Duration = Duration::from_secs(1);

/// The node whose daemon is replaced, and its peer, with a pod each.
struct Swap {
    lab: Lab,
    here: Host,
    there: Host,
    rules: Rules,
    pods: [(TestPod, String); 2],
}

/// A process with flannel's name, and perhaps a supervisor; ends when it is dropped.
struct StandIn(Child);

/// New flows from a pod to a host outside of the network: each needs its masquerade rule at its
/// first packet.
struct OutboundFlows {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(u32, u32)>,
}

// === impl OutboundFlows ===

impl OutboundFlows {
    fn start(lab: &Lab, from: &TestPod) -> Self {
        let hub = NetNs::open_named(lab.fabric.hub()).unwrap();
        let server = hub.with(|| bound(|| UdpSocket::bind("10.77.0.1:7007"))).unwrap();
        // Ends with the test's process.
        std::thread::spawn(move || {
            let mut byte = [0];
            while let Ok((_, from)) = server.recv_from(&mut byte) {
                let _ = server.send_to(&byte, from);
            }
        });
        let pod = NetNs::open_named(&from.netns_name).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut sent, mut lost) = (0, 0);
            while !stop_flag.load(Ordering::Relaxed) {
                sent += 1;
                lost += u32::from(!gets_reply(&pod));
                let_pass(Duration::from_millis(10));
            }
            (sent, lost)
        });
        Self { stop, thread }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (sent, lost) = self.thread.join().unwrap();
        println!("{sent} new flows, {lost} lost");
        assert!(sent > 20 && lost == 0, "{lost} of {sent} new flows had no answer");
    }
}

/// One new flow, there and back.
fn gets_reply(pod: &NetNs) -> bool {
    let socket = pod.with(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.set_read_timeout(Some(SECOND)).unwrap();
    socket.connect(SocketAddr::from(([10, 77, 0, 1], 7007))).unwrap();
    socket.send(&[7]).is_ok() && socket.recv(&mut [0]).is_ok()
}

fn feed(host: &Host, words: &[&str], text: &str) {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped());
    process::in_netns(&mut command, host.node.netns()).unwrap();
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// A process that has flannel's name and does nothing, started as a service manager would: by itself, or again and again.
fn stand_in(host: &Host, again: bool) -> StandIn {
    stand_in_called("flanneld", host, again)
}

fn stand_in_called(name: &str, host: &Host, again: bool) -> StandIn {
    let program = host.node.path(name);
    copy_program(Path::new("/bin/sleep"), &program);
    let mut command = if again {
        let mut command = Command::new("sh");
        command.args(["-c", "while \"$0\" 300 || sleep 0.1; do :; done"]).arg(program);
        command
    } else {
        let mut command = Command::new(program);
        command.arg("300");
        command
    };
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    process::in_netns(&mut command, host.node.netns()).unwrap();
    StandIn(command.spawn().unwrap())
}

// === impl StandIn ===

impl StandIn {
    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // Kills its process group.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Runs a program in the node's namespace; it has to succeed.
#[track_caller]
pub fn sh(host: &Host, words: &str) -> String {
    let words: Vec<&str> = words.split_whitespace().collect();
    run("ip", &[&["netns", "exec", host.node.netns_name()], &words[..]].concat())
}

// === impl Swap ===

impl Swap {
    /// The objects of flannel on the first node, with our daemon as its peer on the second.
    fn new(config: &str, rules: Rules) -> Self {
        Self::with_flags(config, rules, &["-ip-masq", "-iface=eth0", "-takeover"])
    }

    fn with_flags(config: &str, rules: Rules, flags: &[&str]) -> Self {
        let mut lab = Lab::new(config);
        // Our daemon starts by `-takeover`; nothing is started yet.
        let mut here = lab.host(flags);
        let mut there = lab.running(&["-ip-masq", "-iface=eth0"]);
        let vxlan = config == VXLAN;
        let mtu = if vxlan { 1450 } else { 1500 };
        let env = format!(
            "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.129.1/24\nFLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=true\n"
        );
        std::fs::create_dir_all(here.env_path().parent().unwrap()).unwrap();
        std::fs::write(here.env_path(), env).unwrap();
        let pods = [here.pod(), there.pod()];
        if vxlan {
            let device = format!("ip link add flannel.1 address {MAC} mtu 1450 type vxlan");
            sh(&here, &format!("{device} id 1 dev eth0 local 10.77.0.11 dstport 8472 nolearning"));
            sh(&here, "ip address add 10.5.129.0/32 dev flannel.1");
            sh(&here, "ip link set flannel.1 up");
        }
        rules.fill(&here);
        rules.jump(&here);
        let swap = Self { lab, here, there, rules, pods };
        swap.put_leased(if vxlan { VXLAN_LEASE } else { HOST_GW_LEASE });
        swap.program_peer();
        swap
    }

    /// As real flannel writes its lease: each time by a new etcd lease.
    fn put_leased(&self, value: &str) {
        let fabric = &self.lab.fabric;
        let granted = fabric.etcdctl(&["lease", "grant", "86400"]);
        let id = granted.split_whitespace().nth(1).unwrap();
        fabric.etcdctl(&["put", "--lease", id, &self.here.lease_key(), value]);
    }

    /// What flannel programs for its peer's lease, at its start and later: everything by `replace`.
    fn program_peer(&self) {
        let (lease, subnet) = (self.lab.value(&self.there), self.peer());
        let lease: Value = serde_json::from_str(&lease).unwrap();
        let base = subnet.split('/').next().unwrap();
        let Some(mac) = lease["BackendData"]["VtepMAC"].as_str() else {
            sh(&self.here, &format!("ip route replace {subnet} via 10.77.0.12 dev eth0"));
            return;
        };
        sh(&self.here, &format!("ip neigh replace {base} lladdr {mac} dev flannel.1 nud permanent"));
        sh(&self.here, &format!("bridge fdb replace {mac} dev flannel.1 dst 10.77.0.12 self permanent"));
        sh(&self.here, &format!("ip route replace {subnet} via {base} dev flannel.1 onlink"));
    }

    /// The peer's subnet.
    fn peer(&self) -> String {
        self.there.subnet().replace('-', "/")
    }

    fn routes(&self) -> Vec<String> {
        self.here.ip(&["route", "show", &self.peer()]).lines().map(str::to_owned).collect()
    }

    /// The tunnel and the bridge; a bridge's timers change all the time.
    fn links(&self) -> String {
        self.here.ip(&["-d", "link", "show", "type", "vxlan"]) + &self.here.ip(&["link", "show", "eth0"])
    }

    /// Everything that a takeover could change.
    fn state(&self) -> String {
        let only = |text: String, keep: fn(&&str) -> bool| -> String {
            text.lines().filter(keep).map(|line| format!("{line}\n")).collect()
        };
        let parts = [
            self.links(),
            self.here.ip(&["-4", "-o", "address", "show"]),
            self.here.ip(&["-4", "route", "show", "table", "all"]),
            self.here.ip(&["neigh", "show", "nud", "permanent"]),
            only(sh(&self.here, "bridge fdb show"), |line| line.contains("flannel")),
            self.here.nft(&["list", "tables"]),
            only(sh(&self.here, "iptables-save"), |line| !line.starts_with(['#', ':'])),
            std::fs::read_to_string(self.here.env_path()).unwrap(),
            self.lab.fabric.etcdctl(&["get", &self.here.lease_key(), "--write-out", "fields"]),
        ];
        only(parts.join("\n"), |line| !line.starts_with("\"Revision\"") && !line.starts_with("\"RaftTerm\""))
    }

    /// A daemon that is refused, or only checks: its exit code, and that it changed nothing.
    #[track_caller]
    fn unchanged(&self, more: &[&str], code: i32, words: &[&str]) {
        let before = self.state();
        let mut daemon = self.here.command().args(more).spawn().unwrap();
        assert_eq!(daemon.wait().unwrap().code(), Some(code), "{words:?}");
        let log = self.here.log();
        for word in words {
            assert!(log.contains(word), "{word}: {log}");
        }
        assert_same(&before, &self.state(), &log);
    }
}

#[track_caller]
fn assert_same(before: &str, after: &str, when: &str) {
    let only = |these: &str, those: &str| -> Vec<String> {
        these.lines().filter(|line| !those.lines().any(|other| other == *line)).map(str::to_owned).collect()
    };
    let (gone, new) = (only(before, after), only(after, before));
    assert!(gone.is_empty() && new.is_empty(), "{when}: gone {gone:#?}, new {new:#?}");
}

/// Takes over under traffic, and gives back.
fn there_and_back(config: &str, rules: Rules) {
    let mut swap = Swap::new(config, rules);
    let mut flannel = stand_in(&swap.here, false);
    let (links, lease) = (swap.links(), swap.lab.value(&swap.here));
    let [(near, near_address), (far, far_address)] = swap.pods.clone();
    let pings = [Pinging::start(&near, &far_address), Pinging::start(&far, &near_address)];
    let flows = OutboundFlows::start(&swap.lab, &near);

    swap.here.start();
    eventually(TIMEOUT, || swap.routes().iter().any(|route| route.contains("proto 115")));
    let_pass(SECOND);
    assert!(!flannel.runs(), "the running daemon received SIGTERM");
    // The same device with its MAC, the same lease, the same chains; nothing twice.
    assert_eq!((swap.links(), swap.lab.value(&swap.here)), (links.clone(), lease.clone()));
    assert_eq!((swap.lab.lease_keys().len(), swap.here.subnet()), (2, KEY.to_owned()));
    assert_eq!(swap.routes().len(), 1);
    swap.rules.assert_once(&swap.here);

    // Back: our daemon leaves everything, and flannel finds it as its own.
    swap.here.stop();
    swap.program_peer();
    swap.rules.fill(&swap.here);
    swap.put_leased(&lease);
    let_pass(SECOND);
    flows.finish();
    pings.into_iter().for_each(Pinging::finish);
    assert_eq!(swap.links(), links);
    let routes = swap.routes();
    assert!(routes.len() == 1 && !routes[0].contains("proto 115"), "{routes:?}");
    swap.rules.assert_once(&swap.here);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_running_vxlan_flannel_is_replaced_and_restored_without_a_lost_packet() {
    there_and_back(VXLAN, Rules::Iptables);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_running_flannel_with_nf_tables_is_replaced_and_restored_without_a_lost_packet() {
    there_and_back(VXLAN, Rules::Nft);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_running_host_gw_flannel_is_replaced_and_restored_without_a_lost_packet() {
    there_and_back(HOST_GW, Rules::Iptables);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_check_says_what_a_takeover_would_do_and_changes_nothing() {
    let swap = Swap::new(VXLAN, Rules::Iptables);
    let mut flannel = stand_in(&swap.here, false);
    let process = format!("process {}", flannel.0.id());
    swap.unchanged(&["-takeover-check"], 0, &[KEY, "chains of iptables", &process]);
    assert!(flannel.runs());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_masquerading_flannel_is_not_replaced_without_ip_masq_unless_forced() {
    let swap = Swap::with_flags(VXLAN, Rules::Iptables, &["-iface=eth0"]);
    let mut flannel = stand_in(&swap.here, false);
    for takeover in ["-takeover-check", "-takeover"] {
        swap.unchanged(&[takeover], 1, &["FLANNEL_IPMASQ=true", "add -ip-masq"]);
    }
    assert!(flannel.runs(), "it was not touched");
    swap.unchanged(&["-takeover-check", "-ip-masq=false"], 0, &["can be taken over"]);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_flannel_called_by_its_version_is_found_and_an_ordinary_start_beside_it_warns() {
    let mut swap = Swap::with_flags(VXLAN, Rules::Iptables, &["-ip-masq", "-iface=eth0"]);
    let mut flannel = stand_in_called("flanneld-0.28.9", &swap.here, false);
    let process = format!("process {} (flanneld-0.28.9)", flannel.0.id());
    swap.unchanged(&["-takeover-check"], 0, &[&process]);
    assert!(flannel.runs());
    swap.here.start();
    let log = swap.here.log();
    let warning = log.lines().find(|line| line.contains("another flannel daemon runs on this node"));
    let warning = warning.unwrap_or_else(|| panic!("{log}"));
    assert!(warning.contains(&flannel.0.id().to_string()) && warning.contains("-takeover"), "{warning}");
    // A second daemon that renews the same lease is detected as well, if its process cannot be
    // seen.
    let lease = swap.lab.value(&swap.here);
    swap.put_leased(&lease);
    eventually(TIMEOUT, || swap.here.log().contains("another process renews this node's lease"));
}

/// Answers at the health port of a node as flannel does, from a process that has not its name.
fn answer_health(host: &Host) {
    let listener = host.node.netns().with(|| bound(|| TcpListener::bind("127.0.0.1:8081"))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The request fits into one read.
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nflanneld is running");
        }
    });
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_flannel_whose_process_cannot_be_seen_is_found_by_its_health_port() {
    let swap = Swap::with_flags(VXLAN, Rules::Iptables, &["-ip-masq", "-iface=eth0"]);
    answer_health(&swap.here);
    let health = ["-healthz-ip=127.0.0.1", "-healthz-port=8081"];
    let unseen = "a flannel daemon answers at 127.0.0.1:8081, and its process cannot be seen from here";
    swap.unchanged(&[&health[..], &["-takeover-check"]].concat(), 1, &[unseen, "hostPID: true"]);
    swap.unchanged(&[&health[..], &["-takeover"]].concat(), 1, &[unseen]);
    // An ordinary start beside it.
    swap.unchanged(&health, 1, &["serve health on 127.0.0.1:8081", "another flannel daemon answers there"]);
    swap.unchanged(
        &["-takeover-check", "-healthz-ip=127.0.0.1", "-healthz-port=8082"],
        0,
        &["can be taken over"],
    );
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn repeated_reverts_of_rules_cause_a_warning() {
    let mut lab = Lab::vxlan();
    let host = lab.running(&["-ip-masq", "-iface=eth0"]);
    let warned = || host.log().contains("another process keeps changing the rules");
    let has_guard = || host.nft(&["list", "ruleset"]).contains("russet-flannel-");
    let rules = || rules_of(&host);
    // The tunnel's guard follows the first list of leases, after the other rules.
    eventually(TIMEOUT, has_guard);
    let whole = rules();
    for _ in 0..6 {
        host.nft(&["flush", "ruleset"]);
        eventually(TIMEOUT, || rules() == whole);
    }
    eventually(TIMEOUT, warned);
    eventually(TIMEOUT, has_guard);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_check_of_a_datastore_that_does_not_answer_ends_with_the_reason() {
    let mut swap = Swap::new(VXLAN, Rules::Iptables);
    swap.lab.fabric.kill_etcd();
    let mut check = swap.here.command().arg("-takeover-check").spawn().unwrap();
    let code = russet_testkit::eventually_some(TIMEOUT, || check.try_wait().unwrap()).code();
    assert_eq!(code, Some(1), "{}", swap.here.log());
    let log = swap.here.log();
    let last = log.lines().next_back().unwrap();
    assert!(last.contains("http://10.77.0.1:2379") && last.contains("refused"), "{log}");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_node_that_does_not_match_the_flags_is_unchanged() {
    let swap = Swap::new(VXLAN, Rules::Iptables);
    let mut flannel = stand_in(&swap.here, false);
    // Its packets would use another device for a moment.
    sh(&swap.here, "ip link del flannel.1");
    swap.unchanged(&[], 1, &["there is no device flannel.1"]);
    let device = format!("ip link add flannel.1 address {MAC} type vxlan");
    sh(&swap.here, &format!("{device} id 1 dev eth0 local 10.77.0.11 dstport 4789"));
    swap.unchanged(&[], 1, &["flannel.1 would be recreated"]);
    swap.lab.fabric.etcdctl(&["del", &swap.here.lease_key()]);
    swap.unchanged(&[], 1, &["no lease is of 10.77.0.11"]);
    assert!(flannel.runs(), "the running daemon was not touched");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, iptables, nft, ping"]
fn a_flannel_that_a_supervisor_starts_again_keeps_its_place() {
    let swap = Swap::new(VXLAN, Rules::Iptables);
    let _supervisor = stand_in(&swap.here, true);
    swap.unchanged(&[], 1, &["was started again"]);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: tun; tool: etcd, ip, ping"]
fn a_daemon_of_ours_is_taken_over_as_well_and_udps_tunnel_is_there_again() {
    let mut lab = Lab::new(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}"#);
    // Both daemons serve health at one address: the second starts when the first has released it.
    let flags = ["-iface=eth0", "-healthz-ip=127.0.0.1", "-healthz-port=8081"];
    let (mut here, mut there) = (lab.running(&flags), lab.running(&flags));
    let ((near, _), (_, far)) = (here.pod(), there.pod());
    let ping = || {
        // Starts when the address answers.
        let pings = Pinging::start(&near, &far);
        let_pass(SECOND);
        pings.finish();
    };
    ping();
    let (subnet, keys) = (here.subnet(), lab.lease_keys());
    let mut command = here.command();
    let successor = StandIn(command.arg("-takeover").process_group(0).spawn().unwrap());
    assert_eq!(here.ends().code(), Some(0), "it received SIGTERM");
    ping();
    assert_eq!((here.subnet(), lab.lease_keys()), (subnet, keys));
    drop(successor);
}
