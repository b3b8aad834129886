//! The fast path of two agents: what it carries, that policies, foreign rules and the death of an agent
//! have the same effect as without it, and that no packet is lost by it (docs/spec/policy.md section 4).

mod differential;
mod ipv6;
mod many_flows;
mod netkit;
mod outer;
mod seen;
mod wires;
mod without_tcx;

use std::io::{IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_linux::NetNs;
use russet_linux::udp::{DatagramBatch, PortSharing, UdpSocket as SegmentingSocket};
use russet_testkit::{eventually, let_pass};
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::kubernetes::call;
use crate::node::{TIMEOUT, TestNode, TestPod};

/// Two nodes; the client and its neighbour are on the first, the server on the second.
struct Setup {
    _fabric: Fabric,
    one: TestNode,
    two: TestNode,
    client: Pod,
    neighbour: Pod,
    server: Pod,
}

struct Pod {
    pod: TestPod,
    v4: String,
    v6: String,
}

/// A connection on which a byte goes there and back again and again.
struct Exchange {
    answers: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Answers to one request wait so long: a retransmission of TCP needs 200 ms, and an agent that starts
/// keeps both processors busy.
const ANSWER: Duration = Duration::from_secs(2);
/// A connection that is denied has no answer in this time.
const SILENT: Duration = Duration::from_secs(1);

// === impl Setup ===

impl Setup {
    fn new(encapsulation: &str) -> Self {
        Self::with(encapsulation, &[])
    }

    /// The same with variables in the agents' environment.
    fn with(encapsulation: &str, variables: &[(&str, &str)]) -> Self {
        let mut fabric = Fabric::new();
        let settings = ["--fast-path", "require", "--encapsulation", encapsulation];
        let (mut one, mut two) = (fabric.node("n1", &settings), fabric.node("n2", &settings));
        for node in [&mut one, &mut two] {
            fabric.add_ipv6(node);
            node.agent_env
                .extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
            node.start_agent();
        }
        let (client, neighbour) = (Pod::on(&mut one, "client"), Pod::on(&mut one, "neighbour"));
        let server = Pod::on(&mut two, "server");
        for address in [&server.v4, &server.v6] {
            eventually(TIMEOUT, || client.pod.pings(&["-W", "1", address]));
        }
        Self { _fabric: fabric, one, two, client, neighbour, server }
    }

    /// Adds or deletes a queueing discipline at the host ends of the first node.
    fn disciplines(&self, verb: &str, discipline: &[&str]) {
        for pod in [&self.client, &self.neighbour] {
            let host_end = host_end(&self.one, pod);
            self.one.inside("tc", &[&["qdisc", verb, "dev", &host_end], discipline].concat());
        }
    }

    /// A policy ends an exchange with the server, and its end lets it go on, on the fast path.
    fn is_decided_by_a_policy(&self, far: &Exchange) {
        self.apply("apply", &record(&self.server, "n2", "server"));
        self.apply("apply", &closed());
        far.stops();
        self.apply("delete", &closed());
        far.resumes();
        is_carried(far, &[&self.one, &self.two]);
    }

    fn apply(&self, verb: &str, document: &Value) {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args([verb, "-f", "-", "--root"]).arg(self.one.root());
        let answer = self.one.output(&mut command, document.to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
    }
}

/// The name of the host end of a pod's interface.
fn host_end(node: &TestNode, pod: &Pod) -> String {
    let route: Value = serde_json::from_str(&node.ip(&["-j", "route", "get", &pod.v4])).unwrap();
    route[0]["dev"].as_str().unwrap().to_owned()
}

/// Packets that a node's fast path has carried since its agent was started.
fn carried(node: &TestNode) -> u64 {
    let page = node.get("/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix("russet_fast_path_packets_total "));
    value.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// Waits until the fast path of both nodes carries packets of this exchange.
#[track_caller]
fn is_carried(exchange: &Exchange, nodes: &[&TestNode]) {
    for node in nodes {
        let before = carried(node);
        eventually(TIMEOUT, || carried(node) > before + 20);
    }
    exchange.goes_on();
}

// === impl Pod ===

impl Pod {
    fn on(node: &mut TestNode, name: &str) -> Self {
        let pod = node.pod();
        let answer = call(node, "ADD", &pod, name);
        assert_eq!(answer.status, 0, "{answer:?}\n{}", node.log());
        let of = |mark: char| answer.addresses().into_iter().find(|address| address.contains(mark)).unwrap();
        Self { pod, v4: of('.'), v6: of(':') }
    }

    fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        NetNs::open_named(&self.pod.netns_name).unwrap().run_in_thread(body).unwrap()
    }

    fn address(&self, is_v6: bool) -> SocketAddr {
        SocketAddr::new(if is_v6 { &self.v6 } else { &self.v4 }.parse().unwrap(), 0)
    }

    /// Gives all connections to an address, which it returns, to this function, each in a thread of its own.
    fn serves(&self, is_v6: bool, serve: fn(TcpStream)) -> SocketAddr {
        let address = self.address(is_v6);
        let listener = self.within(move || TcpListener::bind(address).unwrap());
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                std::thread::spawn(move || serve(stream));
            }
        });
        address
    }

    /// Answers each byte of all connections to an address that it returns.
    fn answers(&self, is_v6: bool) -> SocketAddr {
        self.serves(is_v6, |mut stream| {
            let mut byte = [0];
            while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
        })
    }

    /// A socket that is connected to one of a server, and that.
    fn datagrams_to(&self, server: &Self, is_v6: bool) -> (UdpSocket, UdpSocket) {
        let (from, to) = (self.address(is_v6), server.address(is_v6));
        let served = server.within(move || UdpSocket::bind(to).unwrap());
        let socket = self.within(move || UdpSocket::bind(from).unwrap());
        socket.connect(served.local_addr().unwrap()).unwrap();
        (socket, served)
    }

    /// Opens a connection, on which so many bytes go there and back.
    fn exchanges(&self, to: SocketAddr, count: usize) {
        let mut stream = self.within(move || TcpStream::connect_timeout(&to, TIMEOUT).unwrap());
        for _ in 0..count {
            stream.write_all(&[1]).unwrap();
            stream.read_exact(&mut [0]).unwrap();
        }
    }
}

// === impl Exchange ===

impl Exchange {
    fn tcp(client: &Pod, server: &Pod, is_v6: bool) -> Self {
        let address = server.answers(is_v6);
        let mut stream = client.within(move || TcpStream::connect(address).unwrap());
        stream.set_nodelay(true).unwrap();
        Self::of(move || {
            let mut byte = [1];
            stream.write_all(&byte).unwrap();
            stream.read_exact(&mut byte).is_ok()
        })
    }

    fn udp(client: &Pod, server: &Pod, is_v6: bool) -> Self {
        let (socket, served) = client.datagrams_to(server, is_v6);
        std::thread::spawn(move || {
            let mut byte = [0];
            while let Ok((_, from)) = served.recv_from(&mut byte) {
                let _ = served.send_to(&byte, from);
            }
        });
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        // What was answered late is an answer to an earlier byte, and counts as well.
        Self::of(move || socket.send(&[1]).is_ok() && socket.recv(&mut [0]).is_ok())
    }

    fn of(mut exchange: impl FnMut() -> bool + Send + 'static) -> Self {
        let (answers, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&answers), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                counted.fetch_add(u64::from(exchange()), Ordering::Relaxed);
                let_pass(Duration::from_millis(1));
            }
        });
        Self { answers, stop, thread: Some(thread) }
    }

    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    #[track_caller]
    fn goes_on(&self) {
        let before = self.answers();
        eventually(ANSWER, || self.answers() > before + 5);
    }

    /// Waits until there are answers again: TCP tries again after ever longer pauses.
    #[track_caller]
    fn resumes(&self) {
        let before = self.answers();
        eventually(TIMEOUT, || self.answers() > before);
    }

    /// Waits until there is no answer any more.
    #[track_caller]
    fn stops(&self) {
        eventually(TIMEOUT, || {
            let before = self.answers();
            let_pass(SILENT);
            self.answers() == before
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that waits for an answer ends with the pod.
        drop(self.thread.take());
    }
}

/// A policy that closes the server.
fn closed() -> Value {
    json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
        "metadata": { "name": "closed" }, "spec": { "selector": "role == 'server'", "types": ["Ingress"] } })
}

/// How many of 2,000 datagrams arrive that the sender leaves to be segmented, in a flow that is known.
fn segmented_arrivals(client: &Pod, server: &Pod) -> usize {
    const COUNT: usize = 2_000;
    const AT_ONCE: usize = 40;
    let address = |pod: &Pod| SocketAddrV4::new(pod.v4.parse().unwrap(), 0);
    let to = address(server);
    let served = server.within(move || UdpSocket::bind(to).unwrap());
    served.set_read_timeout(Some(ANSWER)).unwrap();
    let SocketAddr::V4(to) = served.local_addr().unwrap() else { panic!("IPv4") };
    let from = address(client);
    let socket = client.within(move || SegmentingSocket::bind(from, PortSharing::Alone).unwrap());
    assert!(socket.segments());
    let payload = [0x5a; 1000];
    let pieces = [IoSlice::new(&payload); AT_ONCE];
    let batch =
        |count: usize| DatagramBatch { pieces: &pieces[..count], pieces_each: 1, datagram_bytes: 1000 };
    let mut buffer = [0; 2000];
    let mut arrive =
        |count: usize| (0..count).filter(|_| served.recv(&mut buffer).is_ok_and(|len| len == 1000)).count();
    for _ in 0..3 {
        socket.send(to, batch(1)).unwrap();
        assert_eq!(arrive(1), 1);
    }
    let batches = (0..COUNT / AT_ONCE).map(|_| {
        socket.send(to, batch(AT_ONCE)).unwrap();
        arrive(AT_ONCE)
    });
    batches.sum()
}

fn record(pod: &Pod, node: &str, name: &str) -> Value {
    json!({ "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": { "name": format!("{node}-k8s-{name}-eth0"), "namespace": "default", "labels": { "role": name } },
        "spec": { "orchestrator": "k8s", "node": node, "pod": name, "endpoint": "eth0",
            "ipNetworks": [format!("{}/32", pod.v4), format!("{}/128", pod.v6)], "profiles": ["projectcalico-default-allow"] } })
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd"]
fn programs_of_many_pods_are_attached_in_parts_and_their_interfaces_deleted_one_by_one() {
    const PODS: usize = 12;
    let mut setup = Setup::new("vxlan");
    let interfaces = |node: &TestNode| node.ip(&["-o", "link"]).matches(": russ").count();
    let before = interfaces(&setup.one);
    let pods: Vec<Pod> = (0..PODS).map(|number| Pod::on(&mut setup.one, &format!("many-{number}"))).collect();
    // The last one's programs come with the last part.
    let exchanges: Vec<Exchange> = pods.iter().map(|pod| Exchange::tcp(pod, &setup.server, false)).collect();
    for exchange in &exchanges {
        is_carried(exchange, &[&setup.one, &setup.two]);
    }
    drop(exchanges);
    for pod in &pods {
        assert_eq!(setup.one.del(&pod.pod).status, 0);
    }
    let doomed = |node: &TestNode| node.ip(&["-o", "link", "show", "group", "7273"]);
    eventually(TIMEOUT, || doomed(&setup.one).is_empty() && interfaces(&setup.one) == before);
    let near = Exchange::tcp(&setup.client, &setup.neighbour, false);
    is_carried(&near, &[&setup.one]);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, etcdctl, ping, nft, tc"]
fn known_flows_take_the_fast_path_and_the_kernels_path_still_decides() {
    // policy.md sections 4.1 and 4.4 (2); dataplane.md section 4 L1
    let mut setup = Setup::new("vxlan");
    let (one, two) = (&setup.one, &setup.two);
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[one, two]);
    let (near, six) = (
        Exchange::tcp(&setup.client, &setup.neighbour, false),
        Exchange::tcp(&setup.client, &setup.neighbour, true),
    );
    let datagrams = Exchange::udp(&setup.client, &setup.server, false);
    for exchange in [&near, &six, &datagrams] {
        exchange.goes_on();
    }
    drop((near, six));
    assert_eq!(segmented_arrivals(&setup.client, &setup.server), 2_000);
    assert_eq!(segmented_arrivals(&setup.client, &setup.neighbour), 2_000);

    // A policy ends what was allowed, on both paths, and its end lets it go on.
    setup.apply("apply", &record(&setup.server, "n2", "server"));
    let closed = closed();
    setup.apply("apply", &closed);
    far.stops();
    datagrams.stops();
    setup.apply("delete", &closed);
    far.resumes();
    is_carried(&far, &[one, two]);

    // So does a rule of another program.
    setup.two.inside("nft", &["add", "table", "inet", "foreign"]);
    setup
        .two
        .inside("nft", &["add", "chain", "inet", "foreign", "f", "{ type filter hook forward priority 0; }"]);
    setup
        .two
        .inside("nft", &["add", "rule", "inet", "foreign", "f", "ip", "daddr", &setup.server.v4, "drop"]);
    far.stops();
    setup.two.inside("nft", &["delete", "table", "inet", "foreign"]);
    far.resumes();
    is_carried(&far, &[&setup.one, &setup.two]);

    // A route that leads elsewhere has its effect, and so has its end.
    let before = seen::learnt_anew(&setup.one);
    let blackhole = format!("{}/32", setup.server.v4);
    setup.one.ip(&["route", "add", "blackhole", &blackhole]);
    far.stops();
    assert!(seen::learnt_anew(&setup.one).iter().zip(before).all(|(now, before)| *now > before));
    setup.one.ip(&["route", "del", "blackhole", &blackhole]);
    far.resumes();
    is_carried(&far, &[&setup.one, &setup.two]);

    // A limit of a pod's bandwidth is not passed by.
    setup.disciplines("add", &["root", "tbf", "rate", "1gbit", "burst", "1mb", "latency", "50ms"]);
    eventually(TIMEOUT, || {
        let before = carried(&setup.one);
        far.goes_on();
        carried(&setup.one) == before
    });
    setup.disciplines("del", &["root"]);
    is_carried(&far, &[&setup.one, &setup.two]);

    // Without an agent the kernel's path carries everything; the next agent learns the flows again.
    setup.two.kill_agent();
    far.goes_on();
    let_pass(SILENT);
    far.goes_on();
    setup.two.start_agent();
    is_carried(&far, &[&setup.one, &setup.two]);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: BPF, TCX; tool: etcd, etcdctl, ping"]
fn routed_flows_take_the_fast_path_without_encapsulation() {
    // dataplane.md section 4 L2
    let setup = Setup::new("none");
    for is_v6 in [false, true] {
        let far = Exchange::tcp(&setup.client, &setup.server, is_v6);
        is_carried(&far, &[&setup.one, &setup.two]);
        let datagrams = Exchange::udp(&setup.client, &setup.server, is_v6);
        drop(far);
        is_carried(&datagrams, &[&setup.one, &setup.two]);
    }
}
