//! What is seen of the packets that the fast path carries: counters of pods, flows and policies, the path that `russet flows` and
//! `russet explain` name, and captures, which pause it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use russet_linux::process;
use russet_testkit::Process;
use rustix::process::Signal;

use super::*;
use crate::capture::Recording;

/// Numbered datagrams, one each millisecond, from one pod to another.
pub(super) struct Stream {
    port: u16,
    sent: Arc<AtomicU64>,
    received: Arc<Mutex<BTreeSet<u64>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How many directions of flows the programs know at most.
const FLOWS_MAX: u32 = 65_536;
/// So many bytes has a datagram's IP packet.
const STREAM_BYTES: u64 = 20 + 8 + 8;
const BURST: u64 = 10_000;
/// So many at most are under way, so that no queue is full.
const UNDER_WAY: u64 = 64;

// === impl Stream ===

impl Stream {
    pub(super) fn new(client: &Pod, server: &Pod) -> Self {
        let (socket, port, received) = Self::ends(client, server);
        let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped, noted) = (Arc::clone(&sent), Arc::clone(&stop), Arc::clone(&received));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                socket.send(&number.to_be_bytes()).unwrap();
                let_pass(Duration::from_millis(1));
                // On a busy machine the reader may be late; what is lost is lost.
                let is_late = || (noted.lock().unwrap().len() as u64) + UNDER_WAY < number;
                (0..1000).take_while(|_| is_late()).for_each(|_| let_pass(Duration::from_millis(1)));
            }
        });
        Self { port, sent, received, stop, thread: Some(thread) }
    }

    /// A socket that is connected to one whose datagrams are noted, and the port of that.
    fn ends(client: &Pod, server: &Pod) -> (UdpSocket, u16, Arc<Mutex<BTreeSet<u64>>>) {
        let (socket, served) = client.datagrams_to(server, false);
        let to = served.local_addr().unwrap();
        let received = Arc::new(Mutex::new(BTreeSet::new()));
        let noted = Arc::clone(&received);
        std::thread::spawn(move || {
            let mut number = [0; 8];
            while served.recv(&mut number).is_ok() {
                noted.lock().unwrap().insert(u64::from_be_bytes(number));
            }
        });
        (socket, to.port(), received)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends it, and waits until every datagram has arrived.
    #[track_caller]
    pub(super) fn arrives_whole(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let sent = self.sent();
        let missing = || -> BTreeSet<u64> { &(0..sent).collect() - &*self.received.lock().unwrap() };
        (0..100).take_while(|_| !missing().is_empty()).for_each(|_| let_pass(Duration::from_millis(100)));
        assert!(missing().is_empty(), "of {sent} datagrams these have not arrived: {:?}", missing());
    }
}

/// What the agent of a node says of a flow: the member `fast_path` of what `russet explain` prints.
fn taken(node: &TestNode, ends: [&Pod; 2], (proto, port): (&str, u16)) -> Value {
    let [from, to] = ends;
    let port = port.to_string();
    let arguments = ["explain", &from.v4, &to.v4, &port, "--proto", proto, "-o", "json"];
    let answer = node.russet_inside(&arguments);
    let found: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
    found["fast_path"][0].clone()
}

/// Packets and bytes that the fast path of a node has carried to the destination.
fn there(taken: &Value) -> [u64; 2] {
    ["packets", "bytes"].map(|what| taken["there"][what].as_u64().unwrap_or_else(|| panic!("{taken:#}")))
}

/// The value of the first series whose name and labels begin and go on so; 0 without one.
fn metric(node: &TestNode, name: &str, labels: &[&str]) -> u64 {
    let page = node.get("/metrics");
    let is_meant = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
    let line = page.lines().find(is_meant);
    line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

/// How often all flows of a node were suspended, and had to be learnt.
pub fn learnt_anew(node: &TestNode) -> [u64; 2] {
    assert_eq!(metric(node, "russet_fast_path_suspended", &[]), 0);
    ["suspensions", "epochs"].map(|what| metric(node, &format!("russet_fast_path_{what}_total"), &[]))
}

/// A policy that lets UDP and TCP into the server, and nothing else.
fn transports() -> Value {
    let rule = |protocol: &str| json!({ "action": "Allow", "protocol": protocol });
    json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": { "name": "transports" },
        "spec": { "selector": "role == 'server'", "types": ["Ingress"], "ingress": [rule("UDP"), rule("TCP")] } })
}

/// Datagrams of one flow that are sent in bursts, each of which has to arrive whole.
struct Bursts {
    socket: UdpSocket,
    received: Arc<Mutex<BTreeSet<u64>>>,
    sent: u64,
}

// === impl Bursts ===

impl Bursts {
    fn send(&mut self, count: u64) {
        for number in 0..count {
            self.socket.send(&number.to_be_bytes()).unwrap();
            if number % UNDER_WAY == 0 {
                eventually(ANSWER, || self.received.lock().unwrap().contains(&number));
            }
        }
        eventually(ANSWER, || self.received.lock().unwrap().len() as u64 == count);
        self.received.lock().unwrap().clear();
        self.sent += count;
    }
}

/// Has a rule of another program count the datagrams to a port that take a node's kernel's path.
fn count_on_kernels_path(node: &TestNode, port: u16) {
    let port = port.to_string();
    let table = ["inet", "kernel_path"];
    let chain = ["f", "{ type filter hook forward priority 0; }"];
    node.inside("nft", &[&["add", "table"], &table[..]].concat());
    node.inside("nft", &[&["add", "chain"], &table[..], &chain].concat());
    node.inside("nft", &[&["add", "rule"], &table[..], &["f", "udp", "dport", &port, "counter"]].concat());
}

fn counted_on_kernels_path(node: &TestNode) -> u64 {
    let listed = node.inside("nft", &["-j", "list", "chain", "inet", "kernel_path", "f"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let rules = listed["nftables"].as_array().unwrap().iter();
    let mut parts = rules.flat_map(|it| it["rule"]["expr"].as_array().cloned().unwrap_or_default());
    parts.find_map(|it| it["counter"]["packets"].as_u64()).unwrap()
}

/// The flow to a port that `russet flows` shows on a node as let pass.
fn recorded(node: &TestNode, port: u16) -> Option<Value> {
    let report = node.russet(&["flows", "-o", "json"]).stdout;
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    let is_meant = |it: &&Value| it["port"] == port && it["verdict"] == "allowed";
    report["flows"].as_array()?.iter().find(is_meant).cloned()
}

fn of_pod(node: &TestNode, what: &str, pod: &str, direction: &str) -> u64 {
    let labels = [format!("pod=\"default/{pod}\""), format!("direction=\"{direction}\"")];
    metric(node, &format!("russet_fast_path_pod_{what}_total"), &labels.each_ref().map(String::as_str))
}

/// Packets that a pod's host end has received (`rx`) or sent, as the kernel counts them.
fn statistics(node: &TestNode, pod: &Pod, what: &str) -> u64 {
    let link = node.ip(&["-j", "-s", "link", "show", "dev", &host_end(node, pod)]);
    let link: Value = serde_json::from_str(&link).unwrap();
    link[0]["stats64"][what]["packets"].as_u64().unwrap_or_else(|| panic!("{link:#}"))
}

/// What a node counts for the policy [`transports`].
fn by_policy(node: &TestNode) -> [u64; 2] {
    let labels = ["policy=\"GlobalNetworkPolicy ", "transports\""];
    ["packets", "bytes"].map(|what| metric(node, &format!("russet_policy_fast_path_{what}_total"), &labels))
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX, conntrack; tool: etcd, etcdctl, ping, nft"]
fn what_is_carried_is_counted_by_pod_flow_and_policy_and_the_path_is_named() {
    // policy.md section 4.1; dataplane.md section 4 L1
    let setup = Setup::new("vxlan");
    let (one, two, ends) = (&setup.one, &setup.two, [&setup.client, &setup.server]);
    setup.apply("apply", &record(&setup.server, "n2", "server"));
    setup.apply("apply", &transports());
    let (socket, port, received) = Stream::ends(&setup.client, &setup.server);
    let mut bursts = Bursts { socket, received, sent: 0 };
    let question = || taken(one, ends, ("udp", port));
    let before = question();
    assert_eq!((&before["path"], there(&before)), (&"kernel".into(), [0, 0]), "{before:#}");
    eventually(TIMEOUT, || question()["why"].as_str().unwrap().starts_with("it knows no such flow"));
    count_on_kernels_path(one, port);
    // A flow that passes is recorded while flows are followed.
    let mut follow = Command::new(env!("CARGO_BIN_EXE_russet"));
    follow.args(["flows", "-f", "--root"]).arg(two.root()).stdout(Stdio::null());
    let _follow = Process::start(&mut follow);
    // Only flows that begin from then on are recorded.
    let mut begun = Vec::new();
    eventually(TIMEOUT, || {
        let (other, other_port, _) = Stream::ends(&setup.client, &setup.server);
        other.send(&[0; 8]).unwrap();
        begun.push(other_port);
        begun.iter().any(|port| recorded(two, *port).is_some())
    });
    eventually(TIMEOUT, || {
        bursts.send(5);
        let is_fast = |node| taken(node, ends, ("udp", port))["path"] == "fast";
        is_fast(one) && is_fast(two) && recorded(two, port).is_some()
    });
    bursts.send(BURST);

    // By flow: both paths together have carried what was sent.
    let now = question();
    let ([packets, bytes], by_kernel) = (there(&now), counted_on_kernels_path(one));
    assert_eq!(packets + by_kernel, bursts.sent, "{now:#}");
    assert!(packets >= BURST - 50, "{by_kernel} of {} took the kernel's path", bursts.sent);
    let one_flow = (packets * STREAM_BYTES, &1.into(), &"fast".into());
    assert_eq!((bytes, &now["flows"], &now["path"]), one_flow);
    let question_as_text = ["explain", &ends[0].v4, &ends[1].v4, &port.to_string(), "--proto", "udp"];
    let text = one.russet_inside(&question_as_text);
    assert!(text.stdout.contains("path: fast: 1 flow "), "{text:?}");

    // By pod: nothing else of the client is carried.
    assert_eq!(of_pod(one, "packets", "client", "from_pod"), packets);
    assert_eq!(of_pod(one, "bytes", "client", "from_pod"), bytes);
    assert_eq!((of_pod(one, "packets", "client", "to_pod"), carried(one)), (0, packets));
    let at_server = there(&taken(two, ends, ("udp", port)));
    assert_eq!(of_pod(two, "packets", "server", "to_pod"), at_server[0]);
    // The kernel counts what comes from a pod at its host end, and of what goes to it the rest.
    assert!(statistics(one, ends[0], "rx") >= bursts.sent);
    let rest = statistics(two, ends[1], "tx");
    assert!(rest + at_server[0] >= bursts.sent && rest < BURST / 2, "{rest} besides {at_server:?}");

    // By policy, at the end that it lets the flow into.
    eventually(TIMEOUT, || by_policy(two) == at_server);
    let flow = recorded(two, port).unwrap();
    assert_eq!(
        (&flow["path"], &flow["carried"]["packets"]),
        (&"fast".into(), &at_server[0].into()),
        "{flow:#}"
    );

    // The path is the kernel's again once rules change.
    one.inside("nft", &["delete", "table", "inet", "kernel_path"]);
    eventually(TIMEOUT, || question()["path"] == "kernel");
    let other = taken(one, ends, ("sctp", 80));
    assert_eq!(other["why"], "it carries TCP and UDP only", "{other:#}");
}

#[test]
#[ignore = "root: makes a network namespace"]
fn without_a_fast_path_the_kernels_is_named() {
    let node = TestNode::start(&[]);
    let asked = node.russet_inside(&["explain", "10.9.0.1", "10.9.0.2", "80", "-o", "json"]);
    let asked: Value = serde_json::from_str(&asked.stdout).unwrap_or_else(|_| panic!("{asked:?}"));
    let said = &asked["fast_path"][0];
    let wanted = (&"kernel".into(), &"the fast path is off (--fast-path)".into());
    assert_eq!((&said["path"], &said["why"]), wanted);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX, conntrack; tool: etcd, etcdctl, ping"]
fn what_was_carried_of_connections_that_have_ended_counts_for_their_policy() {
    let setup = Setup::new("vxlan");
    setup.apply("apply", &record(&setup.server, "n2", "server"));
    setup.apply("apply", &transports());
    let (to, other) = (setup.server.answers(false), setup.server.answers(false));
    // Programs have to be attached, and the ends of the first connections may pass them by.
    eventually(TIMEOUT, || {
        let before = carried(&setup.two);
        (0..20).for_each(|_| setup.client.exchanges(to, 20));
        carried(&setup.two) > before + 20 * 20
    });
    // More than there is room for flows.
    for _ in 0..FLOWS_MAX / 4 + 1000 {
        setup.client.exchanges(to, 1);
        setup.client.exchanges(other, 1);
    }
    // Nothing goes on: what ended is counted at its next reading. What one processor carries while another one sees the
    // end of the flow may be missing.
    let all = carried(&setup.two);
    eventually(TIMEOUT, || (all - 20..=all).contains(&by_policy(&setup.two)[0]));
    assert_eq!(carried(&setup.two), all);
}

/// A capture on the first node, which has begun.
pub(super) fn capture(node: &TestNode, target: &str, file: &Path) -> Process {
    let _ = std::fs::remove_file(file);
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(["capture", target, "--file"]).arg(file).arg("--root").arg(node.root());
    command.stdin(Stdio::null());
    let mut capture = Process::start(process::in_netns(&mut command, node.netns()).unwrap());
    eventually(TIMEOUT, || {
        assert!(capture.has_ended().is_none(), "the capture of {target} ended before it began");
        std::fs::metadata(file).is_ok_and(|it| it.len() > 0)
    });
    capture
}

/// The numbers of a stream's datagrams in the packets of an interface, which may be in VXLAN.
fn numbers(recording: &Recording, interface: &str, port: u16) -> BTreeSet<u64> {
    let number = |frame: &[u8]| {
        let at = if frame[23] == 17 && frame[36..38] == [0x12, 0xb5] { 50 } else { 0 };
        let inner = frame.get(at..)?;
        let is_meant =
            inner.get(12..15)? == [8, 0, 0x45] && inner[23] == 17 && inner.get(36..38)? == port.to_be_bytes();
        Some(u64::from_be_bytes(*inner.get(42..)?.first_chunk().filter(|_| is_meant)?))
    };
    recording.of_interface(interface).iter().filter_map(|it| number(&it.frame)).collect()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, etcdctl, ping"]
fn a_capture_sees_every_packet_and_the_fast_path_carries_them_again_behind_it() {
    a_capture_sees_every_packet(&Setup::new("vxlan"));
}

/// Captures a pod, a node and the tunnel, and kills a capture, while datagrams and connections go on.
pub(super) fn a_capture_sees_every_packet(setup: &Setup) {
    // dataplane.md section 4: the lower layer is complete
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    let near = Exchange::tcp(&setup.neighbour, &setup.server, false);
    let stream = Stream::new(&setup.client, &setup.server);
    is_carried(&far, &[&setup.one, &setup.two]);
    let of_stream = || taken(&setup.one, [&setup.client, &setup.server], ("udp", stream.port));
    eventually(TIMEOUT, || of_stream()["path"] == "fast");
    let file = setup.one.path("capture.pcapng");
    let client = &setup.client.pod.container;
    for (target, is_pod) in [(client.as_str(), true), ("10.77.0.12", false), ("vxlan.calico", false)] {
        let running = capture(&setup.one, target, &file);
        let first = stream.sent();
        let said = of_stream();
        assert!(
            said["path"] == "kernel" && said["why"].as_str().unwrap().contains("a capture runs"),
            "{said:#}"
        );
        if is_pod {
            // Other pods stay on the fast path.
            is_carried(&near, &[&setup.one]);
        }
        eventually(TIMEOUT, || stream.sent() > first + 500);
        far.goes_on();
        let last = stream.sent() - 50;
        // What was sent has arrived in the capture, too.
        eventually(TIMEOUT, || stream.sent() > last + 150);
        assert!(running.end(Signal::INT).success());
        let recording = Recording::read(&file);
        let all: BTreeSet<u64> = (first..last).collect();
        // The stream is one of IPv4.
        let is_passed =
            |it: &&String| *it != "vxlan-v6.calico" && (target != "vxlan.calico" || **it == target);
        for interface in recording.interfaces.iter().filter(is_passed) {
            let seen = numbers(&recording, interface, stream.port);
            let missing: Vec<u64> = all.difference(&seen).copied().collect();
            assert_eq!(missing, [0; 0], "{target}: {interface} has not seen them of {first}..{last}");
        }
        is_carried(&far, &[&setup.one, &setup.two]);
        eventually(TIMEOUT, || of_stream()["path"] == "fast");
    }
    // One that is killed pauses it for some seconds only, and none of the stream is lost by all of this.
    let running = capture(&setup.one, client, &file);
    eventually(ANSWER, || of_stream()["path"] == "kernel");
    running.end(Signal::KILL);
    eventually(TIMEOUT, || of_stream()["path"] == "fast");
    is_carried(&far, &[&setup.one, &setup.two]);
    stream.arrives_whole();
}
