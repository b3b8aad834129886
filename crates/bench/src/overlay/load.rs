//! The loads: one-core TCP, request and response, connections, small datagrams (dataplane.md section 2.1).

use std::io::{IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use russet_linux::udp::{Inbox, PortSharing, UdpSocket as Many};
use rustix::net::{AddressFamily, MMsgHdr, SendAncillaryBuffer, SendFlags, SocketType, sockopt};

use crate::overlay::cores::{ONE, OTHER, pin_all, pin_this};
use crate::overlay::cpu::Clock;
use crate::overlay::stage::Stage;
use crate::{BoxError, Result};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// One TCP stream, everything on one core: Gb/s.
    Stream,
    /// 64 bytes there and back over TCP, everything on one core: median in us.
    RoundTrip,
    /// Connect, one byte, close, everything on one core: median in us.
    Connect,
    /// Datagrams of 64 bytes, sender and receiver on different cores: thousands that arrive in a second.
    Small,
}

/// The result.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// In the unit of the test.
    pub value: f64,
    /// CPU time of all participants for a KiB of a stream.
    pub cpu_ns_per_kib: Option<f64>,
}

const LASTS: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(200);
/// Nothing here takes long unless a path is broken.
const DEADLINE: Duration = Duration::from_secs(10);
const WRITE_BYTES: usize = 128 << 10;
const READ_BYTES: usize = 256 << 10;
const SMALL_BYTES: usize = 64;
/// Datagrams that are sent and received in one call.
const SENT_AT_ONCE: usize = 32;
const RECEIVED_AT_ONCE: usize = 8;
/// This machine's default algorithm uses pacing, which would measure its timers.
const CONGESTION: &str = "cubic";

// === impl Test ===

impl FromStr for Test {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "t1c" => Self::Stream,
            "rr1c" => Self::RoundTrip,
            "crr1c" => Self::Connect,
            "u64" => Self::Small,
            _ => return Err(format!("no test {text:?}").into()),
        })
    }
}

/// Takes one sample.
pub fn sample(stage: &Stage, test: Test) -> Result<Sample> {
    pin_all(if test == Test::Small { &[OTHER, ONE] } else { &[ONE] })?;
    // The sender's namespace is entered once: that is no part of a connection.
    let (from, _, _) = stage.ends();
    let _inside = from.enter()?;
    let value = match test {
        Test::Stream => return stream(stage),
        Test::RoundTrip => round_trip(stage)?,
        Test::Connect => connections(stage)?,
        Test::Small => small(stage)?,
    };
    Ok(Sample { value, cpu_ns_per_kib: None })
}

fn stream(stage: &Stage) -> Result<Sample> {
    let (listener, address) = listen(stage)?;
    let clock = Clock::find()?;
    let began = clock.now()?;
    let (bytes, elapsed) = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept()?;
            let (mut buffer, mut bytes) = (vec![0; READ_BYTES], 0);
            let began = Instant::now();
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok((bytes as f64, began.elapsed().as_secs_f64())),
                    more => bytes += more,
                }
            }
        });
        let mut stream = connect(address)?;
        let (buffer, began) = (vec![0x55; WRITE_BYTES], Instant::now());
        while began.elapsed() < LASTS {
            stream.write_all(&buffer)?;
        }
        drop(stream);
        ended(receiver.join())
    })?;
    let used = clock.now()? - began;
    let cpu_ns_per_kib = Some(used.as_secs_f64() * 1e9 / (bytes / 1024.0));
    Ok(Sample { value: bytes * 8e-9 / elapsed, cpu_ns_per_kib })
}

fn round_trip(stage: &Stage) -> Result<f64> {
    let (listener, address) = listen(stage)?;
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let mut buffer = [0; SMALL_BYTES];
            while stream.read_exact(&mut buffer).is_ok() {
                stream.write_all(&buffer)?;
            }
            Ok(())
        });
        let mut stream = connect(address)?;
        stream.set_nodelay(true)?;
        let mut buffer = [0x55; SMALL_BYTES];
        let median = median_us(|| {
            stream.write_all(&buffer)?;
            Ok(stream.read_exact(&mut buffer)?)
        })?;
        drop(stream);
        ended(server.join())?;
        Ok(median)
    })
}

fn connections(stage: &Stage) -> Result<f64> {
    let (listener, address) = listen(stage)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut byte = [0; 1];
            loop {
                let (mut stream, _) = listener.accept()?;
                if done.load(Ordering::Acquire) {
                    return Ok(());
                }
                stream.read_exact(&mut byte)?;
                stream.write_all(&byte)?;
            }
        });
        let mut byte = [0x55; 1];
        let median = median_us(|| {
            let mut stream = connect(address)?;
            stream.write_all(&byte)?;
            stream.read_exact(&mut byte)?;
            // Closed by a reset, so that no port waits.
            Ok(sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?)
        });
        done.store(true, Ordering::Release);
        drop(connect(address)?);
        ended(server.join())?;
        median
    })
}

fn small(stage: &Stage) -> Result<f64> {
    let (_, to, address) = stage.ends();
    let target = SocketAddrV4::new(address, 9000);
    let mut sink = to.with(|| Many::bind(target, PortSharing::Alone))??;
    sink.plain();
    let sender = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    sender.connect(target)?;
    let (done, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            pin_this(ONE)?;
            let mut inbox = Inbox::new(RECEIVED_AT_ONCE);
            while !done.load(Ordering::Acquire) {
                sink.wait(&mut inbox, RECEIVED_AT_ONCE)?;
                arrived.fetch_add(inbox.arrivals().count() as u64, Ordering::Relaxed);
            }
            Ok(())
        });
        let flood = scope.spawn(|| {
            pin_this(OTHER)?;
            flood(&sender, WARM_UP)?;
            let (before, began) = (arrived.load(Ordering::Relaxed), Instant::now());
            flood(&sender, LASTS)?;
            let count = arrived.load(Ordering::Relaxed) - before;
            Ok(count as f64 / began.elapsed().as_secs_f64() / 1000.0)
        });
        let rate = ended(flood.join());
        done.store(true, Ordering::Release);
        sink.shut();
        ended(receiver.join())?;
        rate
    })
}

fn flood(sender: &UdpSocket, lasts: Duration) -> Result<()> {
    let payload = [0x55; SMALL_BYTES];
    let pieces = [IoSlice::new(&payload)];
    let began = Instant::now();
    while began.elapsed() < lasts {
        let mut controls: [SendAncillaryBuffer<'_, '_, '_>; SENT_AT_ONCE] = Default::default();
        let mut messages = controls.each_mut().map(|control| MMsgHdr::new(&pieces, control));
        match rustix::net::sendmmsg(sender, &mut messages, SendFlags::empty()) {
            // A full queue loses packets, which is what is measured.
            Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::CONNREFUSED) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Does something again and again.
fn median_us(mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    let mut samples = Vec::with_capacity(1 << 17);
    while began.elapsed() < WARM_UP + LASTS {
        let (before, warm) = (Instant::now(), began.elapsed() >= WARM_UP);
        once()?;
        if warm {
            samples.push(before.elapsed());
        }
    }
    samples.sort_unstable();
    let median = samples.get(samples.len() / 2).ok_or("not a single round trip")?;
    Ok(median.as_secs_f64() * 1e6)
}

fn listen(stage: &Stage) -> Result<(TcpListener, SocketAddrV4)> {
    let (_, to, address) = stage.ends();
    let listener = to.with(|| TcpListener::bind((address, 0)))??;
    sockopt::set_tcp_congestion(&listener, CONGESTION)?;
    let port = listener.local_addr()?.port();
    Ok((listener, SocketAddrV4::new(address, port)))
}

fn connect(address: SocketAddrV4) -> Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_tcp_congestion(&socket, CONGESTION)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(DEADLINE))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(DEADLINE))?;
    rustix::net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

fn ended<T>(joined: std::thread::Result<Result<T>>) -> Result<T> {
    joined.map_err(|_| "a thread of the load panicked")?
}
