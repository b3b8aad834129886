//! `russet capture`: where packets between pods are seen, and how a capture ends.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use russet_linux::process;
use russet_testkit::{Process, eventually, require_tool, run};
use rustix::process::Signal;
use serde_json::Value;

use crate::fabric::Fabric;
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};
use crate::peers::FAST;

/// What the test reads of a file, by the specification of pcapng and not by the code under test.
#[derive(Debug, Default)]
pub struct Recording {
    pub interfaces: Vec<String>,
    packets: Vec<Recorded>,
    /// Received, dropped and accepted packets of each interface.
    counts: BTreeMap<u32, [u64; 3]>,
}

#[derive(Debug, Clone)]
pub struct Recorded {
    interface: String,
    nanoseconds: u64,
    /// 1: inbound, 2: outbound.
    direction: u32,
    whole_bytes: u32,
    pub frame: Vec<u8>,
}

/// An echo request (8) or its answer (0): identifier, sequence number and data.
type Echo = (u8, Vec<u8>);

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn le16(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).into()
}

/// The options that begin at `at`.
fn options(block: &[u8], mut at: usize) -> BTreeMap<usize, Vec<u8>> {
    let mut found = BTreeMap::new();
    while le16(block, at) != 0 {
        let len = le16(block, at + 2);
        found.insert(le16(block, at), block[at + 4..at + 4 + len].to_vec());
        at += 4 + len.next_multiple_of(4);
    }
    found
}

/// The echo of an IPv4 packet.
fn echo(packet: &[u8]) -> Option<Echo> {
    let header = usize::from(packet[0] & 15) * 4;
    let is_echo = packet[0] >> 4 == 4 && packet[9] == 1 && matches!(packet[header], 0 | 8);
    is_echo.then(|| (packet[header], packet[header + 4..].to_vec()))
}

// === impl Recording ===

impl Recording {
    /// Reads a file, which has to be complete.
    pub fn read(path: &Path) -> Self {
        Self::of(&std::fs::read(path).unwrap())
    }

    fn of(mut rest: &[u8]) -> Self {
        let mut recording = Self::default();
        assert_eq!((le32(rest, 0), le32(rest, 8)), (0x0a0d_0d0a, 0x1a2b_3c4d));
        while !rest.is_empty() {
            let len = le32(rest, 4) as usize;
            let (block, behind) = rest.split_at(len);
            assert_eq!(le32(block, len - 4) as usize, len, "both lengths of a block");
            recording.add(block);
            rest = behind;
        }
        recording
    }

    fn add(&mut self, block: &[u8]) {
        match le32(block, 0) {
            0x0a0d_0d0a => assert!(self.interfaces.is_empty(), "one section"),
            1 => {
                let options = options(block, 16);
                assert_eq!((le16(block, 8), &options[&9]), (1, &vec![9]), "Ethernet, nanoseconds");
                self.interfaces.push(String::from_utf8(options[&2].clone()).unwrap());
            }
            6 => {
                let captured = le32(block, 20) as usize;
                let options = options(block, 28 + captured.next_multiple_of(4));
                self.packets.push(Recorded {
                    interface: self.interfaces[le32(block, 8) as usize].clone(),
                    nanoseconds: u64::from(le32(block, 12)) << 32 | u64::from(le32(block, 16)),
                    direction: le32(&options[&2], 0),
                    whole_bytes: le32(block, 24),
                    frame: block[28..28 + captured].to_vec(),
                });
            }
            5 => {
                let options = options(block, 20);
                let count = |option: usize| u64::from_le_bytes(options[&option][..].try_into().unwrap());
                self.counts.insert(le32(block, 8), [count(4), count(5), count(6)]);
            }
            other => panic!("a block of type {other}"),
        }
    }

    pub fn of_interface(&self, name: &str) -> Vec<&Recorded> {
        self.packets.iter().filter(|packet| packet.interface == name).collect()
    }

    /// The directions and echoes of an interface whose packets are plain.
    fn echoes(&self, name: &str) -> Vec<(u32, Echo)> {
        let all = self.of_interface(name).into_iter();
        all.filter(|it| it.frame[12..14] == [8, 0])
            .filter_map(|it| Some((it.direction, echo(&it.frame[14..])?)))
            .collect()
    }

    /// The frames inside of the tunnel's packets on the interface between nodes, with their directions.
    fn inner_frames(&self) -> Vec<(u32, Vec<u8>)> {
        let inner = |it: &&Recorded| {
            // IPv4 without options, UDP to port 4789, VNI 4096.
            assert_eq!((it.frame[14], it.frame[23], &it.frame[36..38]), (0x45, 17, &[0x12, 0xb5][..]));
            assert_eq!(it.frame[42..50], [8, 0, 0, 0, 0, 16, 0, 0]);
            (it.direction, it.frame[50..].to_vec())
        };
        self.of_interface("eth0").iter().map(inner).collect()
    }
}

/// Two nodes with a tunnel between them, and a pod on each.
struct Cluster {
    _fabric: Fabric,
    nodes: [TestNode; 2],
    pods: [TestPod; 2],
    addresses: [String; 2],
    host_end: String,
}

impl Cluster {
    fn start() -> Self {
        let mut fabric = Fabric::new();
        let mut nodes = ["node-a", "node-b"].map(|name| fabric.node(name, &FAST));
        nodes.iter_mut().for_each(TestNode::start_agent);
        let pods = nodes.each_mut().map(TestNode::pod);
        let added = [nodes[0].add_named(&pods[0], "shop", "web"), nodes[1].add_named(&pods[1], "shop", "db")];
        let addresses = added.each_ref().map(|added| added.addresses()[0].clone());
        let interfaces = added[0].result()["interfaces"].clone();
        let host_end = interfaces.as_array().unwrap().iter().find(|it| it.get("sandbox").is_none()).unwrap();
        let host_end = host_end["name"].as_str().unwrap().to_owned();
        let cluster = Self { _fabric: fabric, nodes, pods, addresses, host_end };
        eventually(TIMEOUT, || cluster.ping(1));
        // The other node can be named once it is probed.
        eventually(TIMEOUT, || {
            let status = cluster.nodes[0].russet_inside(&["status", "-o", "json"]).stdout;
            let status: Value = serde_json::from_str(&status).unwrap_or_default();
            status["peers"]["peers"][0]["underlay"] == "10.77.0.12"
        });
        cluster
    }

    /// Pings from the first node's pod to the other's.
    fn ping(&self, count: u32) -> bool {
        self.pods[0].pings(&["-c", &count.to_string(), "-i", "0.2", "-W", "2", &self.addresses[1]])
    }

    fn command(&self, args: &[&str]) -> Command {
        let node = &self.nodes[0];
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.arg("capture").args(args).arg("--root").arg(node.root()).stdin(Stdio::null());
        process::in_netns(&mut command, node.netns()).unwrap();
        command
    }

    /// Captures on the first node into a file, while `body` runs, until SIGINT.
    fn capture(&self, args: &[&str], body: impl FnOnce()) -> Recording {
        let file = self.nodes[0].path("capture.pcapng");
        let _ = std::fs::remove_file(&file);
        let mut command = self.command(&[args, &["--file", file.to_str().unwrap()]].concat());
        let mut capture = Process::start(&mut command);
        // The interfaces are described when all of them are watched.
        eventually(TIMEOUT, || {
            let ended = capture.has_ended();
            assert!(ended.is_none(), "{args:?} ended before it had written anything: {ended:?}");
            std::fs::metadata(&file).is_ok_and(|it| it.len() > 0)
        });
        body();
        assert!(capture.end(Signal::INT).success());
        let recording = Recording::read(&file);
        for (number, name) in recording.interfaces.iter().enumerate() {
            let [seen, dropped, accepted] = recording.counts[&u32::try_from(number).unwrap()];
            assert_eq!((dropped, accepted), (0, recording.of_interface(name).len() as u64), "{name}");
            assert!(seen >= accepted);
        }
        recording
    }
}

#[test]
#[ignore = "root: two nodes on an etcd with a pod each; kernel: vxlan; tool: etcd, ip, ping, tcpdump"]
fn a_ping_is_seen_at_the_host_end_inside_of_the_tunnel_and_outside_of_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let cluster = Cluster::start();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let begin = now();
    let recording =
        cluster.capture(&["shop/web", "--host", &cluster.addresses[1]], || assert!(cluster.ping(3)));
    assert_eq!(recording.interfaces, [cluster.host_end.as_str(), "vxlan.calico", "eth0"]);
    assert!(recording.packets.iter().all(|it| (begin..now()).contains(&u128::from(it.nanoseconds))));
    let at_host_end = recording.echoes(&cluster.host_end);
    // What the pod sends comes in at the host end, and goes out through the tunnel.
    let kinds: Vec<(u32, u8)> =
        at_host_end.iter().map(|(direction, (kind, _))| (*direction, *kind)).collect();
    assert_eq!(kinds, [(1, 8), (2, 0)].repeat(3));
    let opposite = |echoes: &[(u32, Echo)]| -> Vec<(u32, Echo)> {
        echoes.iter().map(|(direction, echo)| (3 - direction, echo.clone())).collect()
    };
    assert_eq!(recording.echoes("vxlan.calico"), opposite(&at_host_end));
    let frames: Vec<(u32, Vec<u8>)> =
        recording.of_interface("vxlan.calico").iter().map(|it| (it.direction, it.frame.clone())).collect();
    assert_eq!(recording.inner_frames(), frames, "the same packets, byte for byte");

    let file = cluster.nodes[0].path("capture.pcapng");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = run(require_tool("tcpdump").to_str().unwrap(), &["-nr", file.to_str().unwrap()]);
    let request = format!("{} > {}: ICMP echo request", cluster.addresses[0], cluster.addresses[1]);
    assert_eq!(shown.matches(&request).count(), 9, "{shown}");
    assert_eq!(shown.matches("VXLAN, flags [I] (0x08), vni 4096").count(), 6, "{shown}");

    // From the other node: what its agent knows it by, and its address.
    for target in ["node-b", "10.77.0.12"] {
        let recording =
            cluster.capture(&[target, "--host", &cluster.addresses[0]], || assert!(cluster.ping(2)));
        assert_eq!(recording.interfaces, ["vxlan.calico", "eth0"]);
        let kinds: Vec<(u32, u8)> =
            recording.echoes("vxlan.calico").iter().map(|(d, (kind, _))| (*d, *kind)).collect();
        assert_eq!(kinds, [(2, 8), (1, 0)].repeat(2), "{target}");
        assert_eq!(recording.inner_frames().len(), 4, "{target}");
    }
    // Neither another address nor a port is in any of them; another interface is seen by itself, with frames that are cut.
    for filter in [["--host", "10.99.0.1"], ["--port", "443"]] {
        let args = [&["shop/web"], &filter[..]].concat();
        assert!(cluster.capture(&args, || assert!(cluster.ping(1))).packets.is_empty(), "{filter:?}");
    }
    let recording = cluster.capture(&["vxlan.calico", "--snap-length", "64"], || assert!(cluster.ping(1)));
    assert!(recording.packets.iter().any(|it| it.frame.len() == 64 && it.whole_bytes == 98), "{recording:?}");
}

#[test]
#[ignore = "root: two nodes on an etcd with a pod each; kernel: vxlan; tool: etcd, ip, ping, script"]
fn a_capture_ends_at_its_limits_at_a_closed_pipe_and_before_it_does_harm() {
    let cluster = Cluster::start();
    let run = |args: &[&str]| Answer::from(cluster.command(args).output().unwrap());
    let file = cluster.nodes[0].path("limited.pcapng");
    let file = file.to_str().unwrap();
    // Probes of the agents come by themselves.
    let answer = run(&["vxlan.calico", "--count", "2", "--file", file, "-o", "json"]);
    assert_eq!(answer.status, 0, "{answer:?}");
    let summary: Value = serde_json::from_str(&answer.stdout).unwrap();
    let recording = Recording::read(Path::new(file));
    assert_eq!((recording.packets.len(), &summary["packets"]), (2, &Value::from(2)));
    assert_eq!(summary["size_bytes"], std::fs::metadata(file).unwrap().len());
    assert_eq!(summary["interfaces"][0]["written"], 2);
    let answer = run(&["vxlan.calico", "--count", "2", "--file", file]);
    assert!(answer.status == 1 && answer.stderr.contains("exists; give another --file"), "{answer:?}");
    let answer = run(&["web", "--duration", "1s", "--file", file, "--force"]);
    assert!(answer.status == 0 && answer.stderr.contains("DROPPED"), "{answer:?}");
    assert_eq!(Recording::read(Path::new(file)).interfaces.len(), 3);

    // A megabyte is soon there.
    let mut flood = Command::new("ping");
    flood.args(["-f", "-s", "1300", &cluster.addresses[1]]).stdout(Stdio::null());
    let pod = russet_linux::NetNs::open(cluster.pods[0].path()).unwrap();
    let flood = Process::start(process::in_netns(&mut flood, &pod).unwrap());
    let answer = run(&["shop/web", "--size-limit", "1", "--file", file, "--force"]);
    assert_eq!(answer.status, 0, "{answer:?}");
    let len = std::fs::metadata(file).unwrap().len();
    // The counts come at the end in any case.
    assert!((1 << 20) - 10_000 < len && len < (1 << 20) + 1000, "{len}");
    assert!(Recording::read(Path::new(file)).packets.len() > 500);

    // A reader takes some of it, and goes.
    let mut command = cluster.command(&["shop/web", "--file", "-"]);
    let mut capture = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut pipe = capture.stdout.take().unwrap();
    let mut bytes = vec![0; 100_000];
    pipe.read_exact(&mut bytes).unwrap();
    drop(pipe);
    eventually(TIMEOUT, || capture.has_ended().is_some());
    assert!(capture.has_ended().unwrap().success());
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    drop(flood);
    // One that goes while no packet comes is noticed, too.
    let mut command = cluster.command(&["shop/web", "--port", "9", "--file", "-"]);
    let mut capture = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    capture.stdout.take().unwrap().read_exact(&mut [0; 28]).unwrap();
    eventually(TIMEOUT, || capture.has_ended().is_some());
    assert!(capture.has_ended().unwrap().success());

    let answer = run(&["nothing", "--count", "1", "--file", file, "--force"]);
    assert!(
        answer.status == 1 && answer.stderr.contains("is no pod of this node, no interface"),
        "{answer:?}"
    );
    assert!(Path::new(file).exists(), "nothing is removed for a capture that cannot begin");
    let russet = env!("CARGO_BIN_EXE_russet");
    let mut script = Command::new(require_tool("script"));
    script
        .args(["-qec", &format!("{russet} capture lo --count 1 --file -"), "/dev/null"])
        .stdin(Stdio::null());
    let answer = Answer::from(script.output().unwrap());
    assert!(answer.status == 2 && answer.stdout.contains("standard output is a terminal"), "{answer:?}");
}
