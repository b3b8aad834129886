//! The program of tests' pods, in their images alone: without arguments it does nothing for ever, and `serve PORT` answers the questions of a test about the pod's network.
//!
//! Answers are text over HTTP:
//! - `/name`: the pod's host name;
//! - `/ready`: 200 until `/unready` was asked for;
//! - `/reach?A:P,B:P`: `/name` of others, a line for each; `/connect?A:P,B:P` only connects to them;
//! - `/stream?A:P`: from now on datagrams are sent to another pod, which echoes them; `/stream` alone says what came back.
//!
//! Only the standard library: `image::pod` compiles this file alone, as a static executable.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How a test waits for a packet that a broken network lost: not long.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between the datagrams of a stream.
const INTERVAL: Duration = Duration::from_millis(5);

static UNREADY: AtomicBool = AtomicBool::new(false);
static SENT: AtomicU64 = AtomicU64::new(0);
static RECEIVED: AtomicU64 = AtomicU64::new(0);
/// The longest time without an answer, in microseconds.
static GAP_US: AtomicU64 = AtomicU64::new(0);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => loop {
            thread::park();
        },
        ["serve", port] => serve(port.parse().expect("a port")),
        other => panic!("unknown arguments {other:?}"),
    }
}

fn serve(port: u16) {
    let echo = UdpSocket::bind(("0.0.0.0", port)).expect("bind UDP");
    thread::spawn(move || {
        let mut datagram = [0; 64];
        while let Ok((length, from)) = echo.recv_from(&mut datagram) {
            // A peer that is gone is no reason to end.
            let _ = echo.send_to(&datagram[..length], from);
        }
    });
    let listener = TcpListener::bind(("0.0.0.0", port)).expect("bind TCP");
    for stream in listener.incoming().flatten() {
        thread::spawn(move || answer(stream));
    }
}

fn answer(mut stream: TcpStream) {
    let mut line = String::new();
    if BufReader::new(&stream).read_line(&mut line).is_err() {
        return;
    }
    let target = line.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (code, body) = match path {
        "/name" => (200, host_name()),
        "/ready" => (if UNREADY.load(Ordering::Relaxed) { 503 } else { 200 }, String::new()),
        "/unready" => {
            UNREADY.store(true, Ordering::Relaxed);
            (200, String::new())
        }
        "/reach" => (200, each(query, reach)),
        "/connect" => (200, each(query, |peer| connect(peer).map(|_| "connected".to_owned()))),
        "/stream" if query.is_empty() => (200, streamed()),
        "/stream" => {
            let peer = query.to_owned();
            thread::spawn(move || stream_to(&peer));
            (200, String::new())
        }
        _ => (404, String::new()),
    };
    // The asking test may be gone.
    let _ = write!(
        stream,
        "HTTP/1.1 {code} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// A line for each peer: its address, and what `ask` says.
fn each(peers: &str, ask: fn(&str) -> std::io::Result<String>) -> String {
    let asked: Vec<_> = peers
        .split(',')
        .map(|peer| {
            let peer = peer.to_owned();
            thread::spawn(move || match ask(&peer) {
                Ok(answer) => format!("{peer} {answer}\n"),
                Err(error) => format!("{peer} error: {error}\n"),
            })
        })
        .collect();
    asked.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
}

fn connect(peer: &str) -> std::io::Result<TcpStream> {
    let address: SocketAddr = peer.parse().map_err(std::io::Error::other)?;
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn reach(peer: &str) -> std::io::Result<String> {
    let mut stream = connect(peer)?;
    stream.write_all(b"GET /name HTTP/1.1\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.split_once("\r\n\r\n").unwrap_or_default().1.to_owned())
}

/// Sends for ever; another thread counts the answers.
#[expect(clippy::disallowed_methods, reason = "the load has a rate, and waits for nothing")]
fn stream_to(peer: &str) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("bind UDP");
    socket.connect(peer).expect("connect UDP");
    let answers = socket.try_clone().expect("clone a socket");
    thread::spawn(move || {
        let mut last = Instant::now();
        let mut datagram = [0; 64];
        loop {
            // ICMP errors are reported here: what was lost is missing in the counts.
            if answers.recv(&mut datagram).is_ok() {
                RECEIVED.fetch_add(1, Ordering::Relaxed);
                let gap = u64::try_from(last.elapsed().as_micros()).unwrap_or(u64::MAX);
                GAP_US.fetch_max(gap, Ordering::Relaxed);
                last = Instant::now();
            }
        }
    });
    loop {
        if socket.send(&SENT.load(Ordering::Relaxed).to_be_bytes()).is_ok() {
            SENT.fetch_add(1, Ordering::Relaxed);
        }
        thread::sleep(INTERVAL);
    }
}

/// `SENT RECEIVED GAP`, the last one in microseconds. The last datagrams may be on their way.
fn streamed() -> String {
    let counts = [&SENT, &RECEIVED, &GAP_US].map(|count| count.load(Ordering::Relaxed).to_string());
    counts.join(" ")
}
