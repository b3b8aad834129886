//! Real interfaces at a real gate, compared with `ip`, `nft`, `ping` and sockets.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use russet_attach::{Attachment, Detachment, Port, Removal};
use russet_cni_spec::code;
use russet_policy::Verdict;
use russet_testkit::{self as testkit, inside, pings};

use super::*;
use crate::wiring::Wiring;

const TIMEOUT: Duration = Duration::from_secs(20);
/// An address of the node.
const NODE: &str = "192.0.2.1";

/// A node whose keeper can be blocked.
struct Node {
    socket: Socket,
    isolation: Isolation,
    held: Arc<AtomicBool>,
    release: Option<mpsc::Sender<()>>,
}

impl Node {
    fn new() -> Self {
        for knob in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/{knob}"), "1").unwrap();
        }
        testkit::run("ip", &["addr", "add", &format!("{NODE}/32"), "dev", "lo"]);
        let (release, hold) = mpsc::channel();
        let (held, hold) = (Arc::new(AtomicBool::new(false)), Mutex::new(hold));
        let is_held = Arc::clone(&held);
        let load = move || {
            if is_held.load(Ordering::SeqCst) {
                _ = hold.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
            running()
        };
        let isolation = Isolation::with_keeper(Keeper::new(Arc::new(load)));
        isolation.reconcile().unwrap();
        Self { socket: Socket::route().unwrap(), isolation, held, release: Some(release) }
    }

    /// Blocks the keeper, like a long commit of another program, until [`let_go`](Self::let_go).
    fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
        let late = self.isolation.keeper.reconcile(Instant::now() + Duration::from_millis(50));
        assert!(matches!(late, Err(KeeperError::Late(_))), "{late:?}");
    }

    fn let_go(&mut self) {
        self.held.store(false, Ordering::SeqCst);
        drop(self.release.take());
    }

    fn attach(&mut self, attachment: &Attachment, netns: &NetNs) -> Attached {
        let plan = russet_attach::plan(attachment).unwrap();
        self.isolation.attach(&mut self.socket, &plan, netns, None).unwrap_or_else(|error| panic!("{error}"))
    }

    fn verdict_state(&self, attachment: &Attachment) -> VerdictState {
        let limit = Instant::now() + TIMEOUT;
        self.isolation.keeper.verdict_state(attachment.host_name.clone(), limit).unwrap().unwrap()
    }
}

fn on_a_node<T: Send>(body: impl FnOnce(&mut Node) -> T + Send) -> T {
    testkit::in_netns_with_loopback(|| body(&mut Node::new()))
}

/// A pod with an address of each family.
fn pod(name: &str, number: u8) -> (Attachment, NetNs) {
    let netns = NetNs::create_named(name).unwrap();
    let new = Attachment::new(Dialect::Native, format!("net/{name}/eth0").parse().unwrap(), None);
    let addresses = [v4(number), format!("fd00::{number}")].map(|text| text.parse().unwrap());
    (Attachment { addresses: addresses.to_vec(), sync_delete: true, ..new }, netns)
}

fn v4(number: u8) -> String {
    format!("10.1.0.{number}")
}

fn detachment(attachment: &Attachment, removal: Removal) -> Detachment {
    Detachment {
        id: attachment.id.clone(),
        host_name: Some(attachment.host_name.clone()),
        by_name_alone: false,
        dialect: Dialect::Native,
        removal,
    }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Packets that the pod's interface has received.
fn received(netns: &str) -> u64 {
    let links = testkit::ip_json(&["-n", netns, "-s", "link", "show", "eth0"]);
    links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

fn link_is_there(name: &IfName) -> bool {
    Socket::route().unwrap().link_by_name(name).is_ok()
}

/// Sends a datagram from the pod to the node.
fn send(netns: &str, port: u16) {
    inside(netns, &["bash", "-c", &format!("echo hello > /dev/udp/{NODE}/{port}")]);
}

fn heard(socket: &UdpSocket, timeout: Duration) -> bool {
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket.recv_from(&mut [0; 64]).is_ok()
}

/// Which of a thousand pings get no reply. It ends with the 1100th reply, however late, because the
/// last replies may overtake each other.
fn flood(netns: &'static str, to: String) -> JoinHandle<Vec<u32>> {
    std::thread::spawn(move || {
        let ping = ["ping", "-n", "-c", "1100", "-i", "0.002", "-w", "120", &to];
        let said = inside(netns, &ping);
        let reply = format!("bytes from {to}: icmp_seq=");
        let replies = said.split(&reply).skip(1);
        let answered: BTreeSet<u32> =
            replies.map(|reply| reply.split(' ').next().unwrap().parse().unwrap()).collect();
        (1..=1000).filter(|number| !answered.contains(number)).collect()
    })
}

/// Sends to the pod and from it, and asserts that nothing arrives.
fn nothing_passes(netns: &str, address: &str, node: &UdpSocket) {
    let before = received(netns);
    let mine = UdpSocket::bind((NODE, 0)).unwrap();
    // Fails if the kernel has no route.
    _ = mine.send_to(b"hello", (address, 9));
    send(netns, node.local_addr().unwrap().port());
    assert!(!heard(node, Duration::from_millis(300)), "the node heard the pod");
    assert_eq!(received(netns), before, "the pod's end received something");
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, ping, bash"]
fn an_interface_carries_nothing_before_the_gate_opens_however_slow_it_is() {
    on_a_node(|node| {
        let (attachment, netns) = pod("p1", 7);
        let (node_end, address) = (UdpSocket::bind((NODE, 0)).unwrap(), v4(7));
        node.hold();
        let plan = russet_attach::plan(&attachment).unwrap();
        let isolation = node.isolation.clone();
        std::thread::scope(|scope| {
            let adding = scope.spawn(|| {
                let mut socket = Socket::route().unwrap();
                isolation.attach(&mut socket, &plan, &netns, None).unwrap_or_else(|error| panic!("{error}"))
            });
            // Everything is configured except that the host interface is down.
            testkit::eventually(TIMEOUT, || {
                link_is_there(&attachment.host_name)
                    && inside("p1", &["ip", "route"]).contains("default via 169.254.1.1")
            });
            nothing_passes("p1", &address, &node_end);
            // Another program raises it and configures all that it needs.
            let name = attachment.host_name.as_str();
            testkit::run("ip", &["link", "set", name, "up"]);
            testkit::run("ip", &["route", "add", &address, "dev", name]);
            let mac = attachment.pod_mac().to_string();
            testkit::run(
                "ip",
                &["neigh", "replace", &address, "lladdr", &mac, "dev", name, "nud", "permanent"],
            );
            for _ in 0..3 {
                nothing_passes("p1", &address, &node_end);
            }
            assert!(!adding.is_finished());
            testkit::run("ip", &["route", "del", &address, "dev", name]);
            node.let_go();
            adding.join().unwrap();
        });
        assert_eq!(node.verdict_state(&attachment), VerdictState::InForce(Verdict::Allow));
        send("p1", node_end.local_addr().unwrap().port());
        assert!(heard(&node_end, TIMEOUT));
        assert!(pings("p1", NODE));
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_gate_that_does_not_open_in_time_leaves_nothing_and_asks_to_try_again() {
    on_a_node(|node| {
        let (attachment, netns) = pod("p1", 7);
        node.hold();
        let wiring = Wiring::default().with_verdicts(node.isolation.keeper().clone());
        let attach =
            |limit| wait(wiring.for_add(limit).attach(attachment.clone(), netns.try_clone().unwrap()));
        let failed = attach(Instant::now() + Duration::from_millis(100)).unwrap_err();
        assert_eq!(failed.error.code, code::TRY_AGAIN_LATER, "{}", failed.error);
        assert!(failed.error.details.contains("did not take the change within"), "{}", failed.error);
        assert!(failed.undone && !link_is_there(&attachment.host_name));
        assert_eq!(inside("p1", &["ip", "-o", "link"]).lines().count(), 1, "the pod has lo alone");
        node.let_go();
        // The late verdict has been removed, and the retry finds no trace of it.
        assert_eq!(node.verdict_state(&attachment), VerdictState::None);
        attach(Instant::now() + TIMEOUT).unwrap();
        assert_eq!(node.verdict_state(&attachment), VerdictState::InForce(Verdict::Allow));
        assert!(pings("p1", NODE));
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, ping"]
fn the_first_table_of_an_upgrade_loses_no_packet_of_pods_that_run() {
    testkit::in_netns_with_loopback(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let mut socket = Socket::route().unwrap();
        let pods = [pod("p1", 1), pod("p2", 2)];
        for (attachment, netns) in &pods {
            // As a version of Russet without verdicts wired it.
            Executor::new(&mut socket).attach(&russet_attach::plan(attachment).unwrap(), netns).unwrap();
        }
        testkit::eventually(TIMEOUT, || pings("p1", &v4(2)));
        let flood = flood("p1", v4(2));
        let isolation = Isolation::default();
        testkit::let_pass(Duration::from_millis(200));
        assert_eq!(isolation.reconcile().unwrap().added.len(), 2);
        // Then an ADD that finds no table, without an agent.
        // Rules first: packets may see half of a flush of everything at once, and be dropped.
        testkit::run("nft", &["flush table inet russet-policy"]);
        testkit::run("nft", &["flush", "ruleset"]);
        let (third, netns) = pod("p3", 3);
        isolation.attach(&mut socket, &russet_attach::plan(&third).unwrap(), &netns, None).unwrap();
        assert!(isolation.reconcile().unwrap().is_clean(), "the entries of all had come with the table");
        assert_eq!(flood.join().unwrap(), [0; 0], "lost");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, ping"]
fn a_verdict_comes_with_its_interface_and_leaves_before_it() {
    on_a_node(|node| {
        for removal in [Removal::Synchronous, Removal::Deferred] {
            let name = if removal == Removal::Deferred { "p1" } else { "p2" };
            let (attachment, netns) = pod(name, 7);
            let wiring = Wiring::default().with_verdicts(node.isolation.keeper().clone());
            for reused in [false, true] {
                assert_eq!(node.attach(&attachment, &netns).reused, reused);
                assert_eq!(node.verdict_state(&attachment), VerdictState::InForce(Verdict::Allow));
            }
            // The DEL of an older sandbox, which knows only the name, leaves it alone.
            let older =
                Detachment { id: "net/older/eth0".parse().unwrap(), ..detachment(&attachment, removal) };
            wait(wiring.detach(older, None)).unwrap();
            assert_eq!(node.verdict_state(&attachment), VerdictState::InForce(Verdict::Allow));
            for _ in 0..2 {
                wait(wiring.detach(detachment(&attachment, removal), netns.try_clone().ok())).unwrap();
                assert_eq!(node.verdict_state(&attachment), VerdictState::None);
            }
            // A pod that disappeared with its namespace, and then DEL.
            node.attach(&attachment, &netns);
            testkit::run("ip", &["link", "del", attachment.host_name.as_str()]);
            wait(wiring.detach(detachment(&attachment, removal), None)).unwrap();
            assert_eq!(node.verdict_state(&attachment), VerdictState::None);
            // GC removes it.
            node.attach(&attachment, &netns);
            let mut found = wait(wiring.list()).unwrap();
            found.retain(|link| !link.doomed);
            assert_eq!(found.len(), 1);
            wait(wiring.detach_owned(found.remove(0), removal)).unwrap();
            assert_eq!(node.verdict_state(&attachment), VerdictState::None);
            // An interface that is never deleted.
            node.attach(&attachment, &netns);
            testkit::run("ip", &["link", "del", attachment.host_name.as_str()]);
            assert_eq!(node.isolation.reconcile().unwrap().removed, [attachment.host_name.as_str()]);
            assert!(node.isolation.reconcile().unwrap().is_clean());
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip"]
fn an_attachment_that_fails_behind_the_gate_leaves_no_verdict() {
    on_a_node(|node| {
        let (attachment, netns) = pod("p1", 7);
        testkit::run("ip", &["route", "add", "blackhole", &v4(7)]);
        let plan = russet_attach::plan(&attachment).unwrap();
        let error = node.isolation.attach(&mut node.socket, &plan, &netns, None).unwrap_err();
        assert!(error.to_string().contains("route 10.1.0.7/32 exists already"), "{error}");
        assert_eq!(node.verdict_state(&attachment), VerdictState::None);
        // Repeated while the interface exists with its verdict in force: both stay.
        testkit::run("ip", &["route", "del", &v4(7)]);
        node.attach(&attachment, &netns);
        testkit::run("ip", &["route", "del", &v4(7)]);
        testkit::run("ip", &["route", "add", "blackhole", &v4(7)]);
        assert!(node.isolation.attach(&mut node.socket, &plan, &netns, None).is_err());
        assert_eq!(node.verdict_state(&attachment), VerdictState::InForce(Verdict::Allow));
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn check_names_the_verdict_that_was_expected_and_the_one_that_was_found() {
    on_a_node(|node| {
        let (attachment, netns) = pod("p1", 7);
        node.attach(&attachment, &netns);
        let wiring = Wiring::default().with_verdicts(node.isolation.keeper().clone());
        let check = || {
            let found = wait(wiring.check(attachment.clone(), netns.try_clone().unwrap())).unwrap();
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(check(), "");
        let name = &attachment.host_name;
        for (damage, found) in [
            ("flush map inet russet-policy to-pods", "not one of Russet's verdicts"),
            ("flush map inet russet-policy from-pods", "none, so it carries nothing"),
            ("flush table inet russet-policy", "none in force: the rules of chain from-pod were different"),
            ("delete table inet russet-policy", "none in force: the table was missing"),
        ] {
            testkit::run("nft", &[damage]);
            assert_eq!(check(), format!("node: verdict of {name}: {found}, should be allow"));
        }
        node.isolation.reconcile().unwrap();
        assert_eq!(check(), "");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, bridge, root; tools: ip"]
fn a_port_of_a_bridge_has_no_verdict_and_needs_none() {
    on_a_node(|node| {
        let (attachment, netns) = pod("p1", 7);
        let port = Port {
            id: attachment.id.clone(),
            host_name: Port::default_host_name(&attachment.id),
            bridge: russet_attach::Bridge {
                name: "br0".parse().unwrap(),
                mtu: None,
                promiscuous: false,
                gateways: vec!["10.1.0.1/24".parse().unwrap()],
                force_address: false,
                mac: None,
            },
            mode: Default::default(),
            addresses: vec!["10.1.0.7/24".parse().unwrap()],
            routes: Vec::new(),
            mtu: None,
            mac: None,
            sync_delete: true,
            source_check: Default::default(),
        };
        let wiring = Wiring::default().with_verdicts(node.isolation.keeper().clone());
        wait(wiring.attach_port(port, netns.try_clone().unwrap(), false))
            .unwrap_or_else(|it| panic!("{}", it.error));
        assert_eq!(node.verdict_state(&attachment), VerdictState::None);
        assert!(pings("p1", "10.1.0.1"));
        assert!(node.isolation.reconcile().unwrap().is_clean());
    });
}

#[test]
fn only_interfaces_of_our_wiring_have_verdicts() {
    assert_eq!(PREFIX, russet_attach::naming::prefix(Dialect::Native));
    assert!(!russet_attach::naming::doomed(7).as_str().starts_with(PREFIX));
}
