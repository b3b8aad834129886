//! Two tenants on three nodes, every pod sending to every other, while one of them is joined, made global and isolated again: what arrives is
//! judged by when it was sent.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_testkit::{eventually, let_pass};

use crate::lab::{Node, Pod, with_nodes};

/// One packet that arrived.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    from: u8,
    to: u8,
    sent_ns: u64,
}

/// A time in which nothing changed: from the last node's commit to the first node's next.
#[derive(Debug)]
struct Window {
    open: bool,
    from_ns: u64,
    until_ns: u64,
}

/// Pods that send and receive until they are told to stop.
struct Traffic {
    began: Instant,
    stop: Arc<AtomicBool>,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    threads: Vec<JoinHandle<()>>,
}

const PORT: u16 = 5000;
const NODES: u8 = 3;
/// Packets of its own tenant that every pair has to bring across in every window.
const ENOUGH: usize = 40;
const PATIENCE: Duration = Duration::from_secs(60);

// === impl Traffic ===

impl Traffic {
    /// Everybody sends to everybody else.
    fn start(pods: &[&Pod]) -> Self {
        let mut traffic = Self {
            began: Instant::now(),
            stop: Arc::new(AtomicBool::new(false)),
            arrivals: Arc::default(),
            threads: Vec::new(),
        };
        for (index, pod) in pods.iter().enumerate() {
            let others = pods.iter().filter(|other| other.name != pod.name);
            let others: Vec<Ipv4Addr> = others.map(|other| other.port.address).collect();
            traffic.join(u8::try_from(index).unwrap(), pod, others);
        }
        traffic
    }

    fn join(&mut self, index: u8, pod: &Pod, others: Vec<Ipv4Addr>) {
        let bind = || UdpSocket::bind((pod.port.address, PORT)).unwrap();
        let socket = NetNs::open_named(&pod.name).unwrap().with(bind).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (sender, stop, began) = (socket.try_clone().unwrap(), Arc::clone(&self.stop), self.began);
        self.threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for other in &others {
                    let mut packet = [index; 9];
                    packet[1..].copy_from_slice(&now(began).to_be_bytes());
                    // A full queue loses packets, and nothing else.
                    let _ = sender.send_to(&packet, (*other, PORT));
                }
                let_pass(Duration::from_millis(1));
            }
        }));
        let (stop, arrivals) = (Arc::clone(&self.stop), Arc::clone(&self.arrivals));
        self.threads.push(std::thread::spawn(move || {
            let mut packet = [0; 9];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((9, _)) = socket.recv_from(&mut packet) {
                    let sent_ns = u64::from_be_bytes(packet[1..].try_into().unwrap());
                    arrivals.lock().unwrap().push(Arrival { from: packet[0], to: index, sent_ns });
                }
            }
        }));
    }

    fn now(&self) -> u64 {
        now(self.began)
    }

    /// Waits until every one of these pairs brought enough across that was sent after `since`.
    #[track_caller]
    fn flows(&self, pairs: &BTreeSet<(u8, u8)>, since: u64) {
        eventually(PATIENCE, || {
            let arrivals = self.arrivals.lock().unwrap();
            let came = |pair: &(u8, u8)| {
                let of_pair = |a: &&Arrival| (a.from, a.to) == *pair && a.sent_ns > since;
                arrivals.iter().rev().filter(of_pair).take(ENOUGH).count() == ENOUGH
            };
            pairs.iter().all(came)
        });
    }

    fn end(mut self) -> Vec<Arrival> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut *self.arrivals.lock().unwrap())
    }
}

fn now(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap()
}

/// All ordered pairs of pods for which `wanted` holds.
fn pairs(wanted: impl Fn(u8, u8) -> bool) -> BTreeSet<(u8, u8)> {
    let all = (0..NODES * 2).flat_map(|from| (0..NODES * 2).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to && wanted(*from, *to)).collect()
}

/// Even pods are blue, odd ones red.
fn across(from: u8, to: u8) -> bool {
    from % 2 != to % 2
}

/// Gives the red pods an ID on every node, one after the other, and waits until the traffic is as it should be then.
fn change(nodes: &mut [Node], red: &[Pod], traffic: &Traffic, netid: u32, open: bool) -> Window {
    for (node, pod) in nodes.iter_mut().zip(red) {
        node.renumber(&[pod], netid).unwrap();
    }
    let from_ns = traffic.now();
    traffic.flows(&pairs(|from, to| open || !across(from, to)), from_ns);
    Window { open, from_ns, until_ns: traffic.now() }
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn two_tenants_on_three_nodes_change_under_traffic_and_nothing_crosses_while_isolated() {
    // issue 6, must show; cni-runtime.md section 6.2, row 51
    with_nodes(NODES, |nodes| {
        let blue: Vec<Pod> = nodes.iter_mut().map(|node| node.pod(10, 10)).collect();
        let red: Vec<Pod> = nodes.iter_mut().map(|node| node.pod(11, 11)).collect();
        let everybody: Vec<&Pod> = blue.iter().zip(&red).flat_map(|(blue, red)| [blue, red]).collect();
        let traffic = Traffic::start(&everybody);
        let mut windows = vec![change(nodes, &red, &traffic, 11, false)];
        for round in 0..5 {
            windows.push(change(nodes, &red, &traffic, 10, true));
            windows.push(change(nodes, &red, &traffic, 12 + round, false));
            windows.push(change(nodes, &red, &traffic, 0, true));
            windows.push(change(nodes, &red, &traffic, 100 + round, false));
        }
        let arrivals = traffic.end();
        let crossed = arrivals.iter().filter(|arrival| across(arrival.from, arrival.to));
        let while_isolated = |arrival: &&Arrival| {
            let within = |window: &Window| {
                !window.open && (window.from_ns..=window.until_ns).contains(&arrival.sent_ns)
            };
            windows.iter().any(within)
        };
        let wrong: Vec<&Arrival> = crossed.clone().filter(while_isolated).take(10).collect();
        assert!(wrong.is_empty(), "crossed while isolated: {wrong:?}");
        println!("{} packets arrived, {} of them across", arrivals.len(), crossed.count());
    });
}
