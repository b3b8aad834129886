//! What both ends see of packets does not depend on the path: checksums, TTL, the path's MTU, and when a policy ends what
//! was open.

use std::time::SystemTime;

use rustix::net::sockopt;

use super::*;
use crate::node::{logged_at, time_between};

/// A policy ends open flows so soon after the agent has reported that it is in force.
const ENDED_AFTER: Duration = Duration::from_millis(10);
const DAY_S: u64 = 86_400;
/// In bytes, of the uplink, and within the tunnels of both families.
const UPLINK_MTU: &str = "1350";
const MTU: &str = "1300";
const MTU_IPV6: &str = "1280";

/// Datagrams with the time of sending, and the last one of those that arrived. Times are those since its start.
struct Stamped {
    start: Duration,
    last: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

fn time_of_day() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now - Duration::from_secs(now.as_secs() / DAY_S * DAY_S)
}

// === impl Stamped ===

impl Stamped {
    fn new(client: &Pod, server: &Pod) -> Self {
        let (socket, served) = client.datagrams_to(server, false);
        let (last, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (noted, stopped) = (Arc::clone(&last), Arc::clone(&stop));
        let start = time_of_day();
        std::thread::spawn(move || {
            let mut stamp = [0; 8];
            while served.recv(&mut stamp).is_ok() {
                noted.fetch_max(u64::from_be_bytes(stamp), Ordering::Relaxed);
            }
        });
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let stamp = u64::try_from(time_between(start, time_of_day()).as_micros()).unwrap();
                // While a policy denies it, the answer may be an error.
                let _ = socket.send(&stamp.to_be_bytes());
                let_pass(Duration::from_micros(200));
            }
        });
        Self { start, last, stop }
    }

    fn now(&self) -> Duration {
        time_between(self.start, time_of_day())
    }

    /// When the last one was sent that has arrived.
    fn last_sent(&self) -> Duration {
        Duration::from_micros(self.last.load(Ordering::Relaxed))
    }

    /// When a node has logged its last line with this text, if that was after `before`.
    fn logged(&self, node: &TestNode, text: &str, before: Duration) -> Option<Duration> {
        let at = logged_at(node.log().lines().rfind(|line| line.contains(text))?)?;
        Some(time_between(self.start, at)).filter(|at| (before..self.now()).contains(at))
    }

    /// Waits until datagrams arrive that are sent from now on.
    fn goes_on(&self) {
        let now = self.now();
        eventually(TIMEOUT, || self.last_sent() > now);
    }
}

impl Drop for Stamped {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, etcdctl, ping"]
fn nothing_passes_that_was_sent_10_ms_after_a_policy_is_reported_to_be_in_force() {
    let setup = Setup::new("vxlan");
    setup.apply("apply", &record(&setup.server, "n2", "server"));
    let far = Exchange::udp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    let stream = Stamped::new(&setup.client, &setup.server);
    for _ in 0..5 {
        stream.goes_on();
        is_carried(&far, &[&setup.one, &setup.two]);
        let before = stream.now();
        setup.apply("apply", &closed());
        let in_force = || stream.logged(&setup.two, "policies are in force", before);
        eventually(TIMEOUT, || in_force().is_some());
        far.stops();
        let (last, reported) = (stream.last_sent(), in_force().unwrap());
        assert!(last < reported + ENDED_AFTER, "sent at {last:?}, reported at {reported:?}");
        setup.apply("delete", &closed());
        far.resumes();
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, ping, ethtool"]
fn a_stream_arrives_whole_with_and_without_offloads_of_checksums_and_segments() {
    let setup = Setup::new("vxlan");
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    for features in [&["tso", "off", "gso", "off"][..], &["tx", "off"], &["rx", "off", "gro", "off"]] {
        let arguments = [&["-K", "eth0"], features].concat();
        for pod in [&setup.client, &setup.server] {
            pod.within(|| russet_testkit::run("ethtool", &arguments));
        }
        let arrives_whole = || {
            for is_v6 in [false, true] {
                outer::sends_much(&setup.client, &setup.server, is_v6, |address| address);
            }
        };
        arrives_whole();
        for node in [&setup.one, &setup.two] {
            node.inside("ethtool", &arguments);
        }
        arrives_whole();
        is_carried(&far, &[&setup.one, &setup.two]);
    }
}

/// Which datagrams of a known flow arrive, by the TTLs with which they are sent.
fn arriving_ttls(client: &Pod, server: &Pod, is_v6: bool) -> Vec<u32> {
    let (socket, served) = client.datagrams_to(server, is_v6);
    served.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let arrives = |ttl: u8| {
        match is_v6 {
            true => sockopt::set_ipv6_unicast_hops(&socket, Some(ttl)).unwrap(),
            false => socket.set_ttl(ttl.into()).unwrap(),
        }
        // An answer of a router may be an error of the next call.
        (0..2).any(|_| socket.send(&[1]).is_ok()) && served.recv(&mut [0]).is_ok()
    };
    assert!((0..5).all(|_| arrives(64)));
    (1..=4).filter(|ttl| arrives(*ttl)).map(u32::from).collect()
}

/// Sends datagrams of a known flow that are too large for a node's tunnel, until one arrives: by then the client knows the
/// path's MTU, and has sent it in parts.
fn learns_the_mtu(client: &Pod, server: &Pod, is_v6: bool) {
    let (family, mtu) = if is_v6 { ("-6", MTU_IPV6) } else { ("-4", MTU) };
    client.within(|| russet_testkit::run("ip", &[family, "route", "flush", "cache"]));
    let (socket, served) = client.datagrams_to(server, is_v6);
    served.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let arrives = |len: usize| socket.send(&vec![0; len]).is_ok() && served.recv(&mut [0; 2000]).is_ok();
    assert!((0..5).all(|_| arrives(100)));
    assert!(!arrives(1400));
    eventually(ANSWER, || arrives(1400));
    let to = if is_v6 { &server.v6 } else { &server.v4 };
    let route = client.within(|| russet_testkit::run("ip", &["route", "get", to]));
    assert!(route.contains(&format!("mtu {mtu}")), "{route}");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, ping"]
fn ttls_and_the_paths_mtu_are_those_of_the_kernels_path() {
    let mut setup = Setup::new("vxlan");
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    let ttls = |setup: &Setup| [false, true].map(|is_v6| arriving_ttls(&setup.client, &setup.server, is_v6));
    let by_family = ttls(&setup);
    assert_eq!(by_family, [[3, 4], [3, 4]], "a router on each node");
    // The next agent has the tunnels' devices follow the uplink; the pods stay as they are.
    setup.one.kill_agent();
    setup.one.ip(&["link", "set", "eth0", "mtu", UPLINK_MTU]);
    setup.one.start_agent();
    for (device, mtu) in [("vxlan.calico", MTU), ("vxlan-v6.calico", MTU_IPV6)] {
        eventually(TIMEOUT, || setup.one.ip(&["link", "show", device]).contains(&format!("mtu {mtu}")));
    }
    is_carried(&far, &[&setup.one, &setup.two]);
    for is_v6 in [false, true] {
        learns_the_mtu(&setup.client, &setup.server, is_v6);
        outer::sends_much(&setup.client, &setup.server, is_v6, |address| address);
    }
    for node in [&mut setup.one, &mut setup.two] {
        node.kill_agent();
    }
    let_pass(SILENT);
    assert_eq!(ttls(&setup), by_family);
    for is_v6 in [false, true] {
        learns_the_mtu(&setup.client, &setup.server, is_v6);
    }
    far.goes_on();
}
