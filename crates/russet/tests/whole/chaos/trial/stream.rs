//! Numbered datagrams from one pod to another, counted at the receiver: none may be lost, doubled
//! or reordered.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::{bound, eventually, let_pass};

use crate::chaos::worker::Alive;
use crate::node::TIMEOUT;

/// A hundred datagrams a second, until it is finished.
pub struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Vec<u64>>,
    arrived: Arc<AtomicU64>,
}

const PORT: u16 = 7001;
const GAP: Duration = Duration::from_millis(10);
/// The last datagram arrives long before this.
const TAIL: Duration = Duration::from_millis(500);

// === impl Stream ===

impl Stream {
    /// Between two pods, to one address of the second; starts when the path works.
    pub fn start(from: &Alive, to: &Alive, address: &str) -> Self {
        let address: IpAddr = address.parse().unwrap();
        let target = SocketAddr::new(address, PORT);
        let bind = |netns: &NetNs, at: SocketAddr| netns.with(|| bound(|| UdpSocket::bind(at))).unwrap();
        let receiving = bind(&to.netns(), target);
        receiving.set_read_timeout(Some(TAIL)).unwrap();
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let sending = bind(&from.netns(), any.parse().unwrap());
        // Numbers count from one; zeros probe the path.
        eventually(TIMEOUT, || {
            sending.send_to(&0_u64.to_be_bytes(), target).is_ok() && receiving.recv(&mut [0; 8]).is_ok()
        });
        let (stop, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let sender = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || send(&sending, target, &stop))
        };
        let receiver = {
            let (stop, arrived) = (Arc::clone(&stop), Arc::clone(&arrived));
            std::thread::spawn(move || receive(&receiving, &stop, &arrived))
        };
        Self { stop, sender, receiver, arrived }
    }

    /// Ends it; returns how many arrived, which must be all, in their order.
    pub fn finish(self) -> u64 {
        let now = self.arrived.load(Ordering::Relaxed);
        eventually(TIMEOUT, || self.arrived.load(Ordering::Relaxed) > now);
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        let arrived = self.receiver.join().unwrap();
        let arrived: Vec<u64> = arrived.into_iter().filter(|number| *number != 0).collect();
        let wrong = arrived.iter().zip(1..).find(|(number, wanted)| **number != *wanted);
        assert_eq!(wrong, None, "a datagram and the one that was to come");
        assert_eq!(arrived.len() as u64, sent, "of the last datagrams some were lost");
        sent
    }
}

fn send(socket: &UdpSocket, target: SocketAddr, stop: &AtomicBool) -> u64 {
    let mut sent: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        sent += 1;
        socket.send_to(&sent.to_be_bytes(), target).expect("a pod cannot send any more");
        let_pass(GAP);
    }
    sent
}

fn receive(socket: &UdpSocket, stop: &AtomicBool, arrived: &AtomicU64) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        let mut number = [0; 8];
        match socket.recv(&mut number) {
            Ok(_) => {
                numbers.push(u64::from_be_bytes(number));
                arrived.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) if stop.load(Ordering::Relaxed) => return numbers,
            Err(_) => {}
        }
    }
}
