//! Pods that all send to each other while a test changes the permissions: each arrival is checked
//! against the time when it was sent.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use russet_linux::NetNs;

use crate::{bound, eventually, let_pass};

/// Pods that send to each other, each datagram with its sender's number and its time, until they
/// are stopped.
pub struct CrossTraffic {
    began: Instant,
    stop: Arc<AtomicBool>,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    threads: Vec<JoinHandle<()>>,
}

/// One datagram that arrived. Pods are numbered in the order in which they were given.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The sender's number.
    pub from: u8,
    /// The receiver's number.
    pub to: u8,
    /// When it was sent, by [`CrossTraffic::now`].
    pub sent_ns: u64,
}

const PORT: u16 = 5000;
/// Between two rounds of one sender.
const PAUSE: Duration = Duration::from_millis(2);
/// How many datagrams must arrive from every permitted pair.
const ENOUGH: usize = 40;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The ordered pairs of so many pods for which `wanted` holds.
pub fn pairs(pods: u8, wanted: impl Fn(u8, u8) -> bool) -> BTreeSet<(u8, u8)> {
    let all = (0..pods).flat_map(|from| (0..pods).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to && wanted(*from, *to)).collect()
}

// === impl CrossTraffic ===

impl CrossTraffic {
    /// Every pod sends to every other: pods by the names of their namespaces and by their
    /// addresses.
    pub fn start<'p>(pods: impl IntoIterator<Item = (&'p str, Ipv4Addr)>) -> Self {
        let pods: Vec<_> = pods.into_iter().collect();
        let (stop, arrivals) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut fire = Self { began: Instant::now(), stop, arrivals, threads: Vec::new() };
        for (index, (netns, address)) in pods.iter().enumerate() {
            let others = pods.iter().map(|(_, other)| *other).filter(|other| other != address);
            let netns = NetNs::open_named(netns).unwrap();
            let socket = netns.with(|| bound(|| UdpSocket::bind((*address, PORT)))).unwrap();
            fire.join(u8::try_from(index).unwrap(), socket, others.collect());
        }
        fire
    }

    fn join(&mut self, index: u8, socket: UdpSocket, others: Vec<Ipv4Addr>) {
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (sender, stop, began) = (socket.try_clone().unwrap(), Arc::clone(&self.stop), self.began);
        self.threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for other in &others {
                    let mut packet = [index; 9];
                    packet[1..].copy_from_slice(&since(began).to_be_bytes());
                    // A full queue loses packets, and has no other effect.
                    let _ = sender.send_to(&packet, (*other, PORT));
                }
                let_pass(PAUSE);
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

    /// The clock of the arrivals.
    pub fn now(&self) -> u64 {
        since(self.began)
    }

    /// Waits until enough datagrams that were sent after `since` have arrived from each of these
    /// pairs.
    #[track_caller]
    pub fn flows(&self, pairs: &BTreeSet<(u8, u8)>, since: u64) {
        eventually(TIMEOUT, || {
            let arrivals = self.arrivals.lock().unwrap();
            let came = |pair: &(u8, u8)| {
                let of_pair = |a: &&Arrival| (a.from, a.to) == *pair && a.sent_ns > since;
                arrivals.iter().rev().filter(of_pair).take(ENOUGH).count() == ENOUGH
            };
            pairs.iter().all(came)
        });
    }

    /// Stops, and returns everything that arrived.
    pub fn end(mut self) -> Vec<Arrival> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut *self.arrivals.lock().unwrap())
    }
}

fn since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap()
}
