//! A connection between two pods that must outlive whatever a test does to the programs around it.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::{bound, eventually, let_pass};

/// A connection without traffic for this long counts as broken.
const STALL: Duration = Duration::from_secs(3);
const PORT: u16 = 7000;

/// A TCP connection between two pods that sends one byte there and back, again and again.
pub struct Conversation {
    echoes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

// === impl Conversation ===

impl Conversation {
    /// Between two pods, of which the second has this address; pauses after each round trip.
    pub fn start(from: &NetNs, to: &NetNs, address: &str, gap: Duration) -> Self {
        let address: IpAddr = address.parse().unwrap();
        let listener = to.with(|| bound(|| TcpListener::bind(SocketAddr::new(address, PORT)))).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
        });
        let connect = || TcpStream::connect_timeout(&SocketAddr::new(address, PORT), STALL).unwrap();
        let mut stream = from.with(connect).unwrap();
        stream.set_read_timeout(Some(STALL)).unwrap();
        let (echoes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (echoes, stop) = (Arc::clone(&echoes), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut byte = [7];
                while !stop.load(Ordering::Relaxed) {
                    stream.write_all(&byte).unwrap();
                    stream.read_exact(&mut byte).expect("the connection stalled or broke");
                    echoes.fetch_add(1, Ordering::Relaxed);
                    let_pass(gap);
                }
            })
        };
        Self { echoes, stop, thread: Some(thread) }
    }

    /// The connection has had traffic since the last call.
    pub fn assert_alive(&self) {
        let before = self.echoes.load(Ordering::Relaxed);
        eventually(STALL, || self.echoes.load(Ordering::Relaxed) > before);
    }

    /// Ends it; it must not have stalled.
    pub fn finish(mut self) {
        self.assert_alive();
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}
