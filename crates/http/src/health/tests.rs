use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::sync::oneshot;

use super::*;

/// Longer than any step takes.
const DEADLINE: Duration = Duration::from_secs(60);
const PROBE: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// Ready when its addresses are served; forwards the problems that are reported to it.
#[derive(Clone)]
struct Daemon {
    problem: Arc<Mutex<Option<String>>>,
    reported: mpsc::SyncSender<Option<String>>,
}

impl Ready for Daemon {
    async fn reason(&self) -> Option<String> {
        self.problem.lock().unwrap().clone()
    }

    async fn verbose(&self) -> String {
        String::new()
    }

    fn served(&self, problem: Option<&str>) {
        *self.problem.lock().unwrap() = problem.map(str::to_owned);
        // The test may have stopped receiving.
        let _ = self.reported.try_send(problem.map(str::to_owned));
    }
}

struct Server {
    reported: mpsc::Receiver<Option<String>>,
    admission: Arc<Admission>,
    _stop: oneshot::Sender<()>,
}

fn start_at(addresses: Vec<Address>, registry: Registry) -> Server {
    let (tell, reported) = mpsc::sync_channel(64);
    let daemon = Daemon { problem: Arc::default(), reported: tell };
    let (_stop, stopped) = oneshot::channel();
    let admission = Admission::new(LIMITS);
    let stop = async { _ = stopped.await };
    start(addresses, daemon, registry, Arc::clone(&admission), stop).unwrap();
    Server { reported, admission, _stop }
}

impl Server {
    fn wait_for(&self, is_it: impl Fn(&Option<String>) -> bool) -> Option<String> {
        loop {
            let reported = self.reported.recv_timeout(DEADLINE).expect("it is reported");
            if is_it(&reported) {
                return reported;
            }
        }
    }
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn ask(mut stream: impl io::Read + io::Write) -> String {
    stream.write_all(PROBE).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

#[test]
fn an_address_in_use_is_reported_and_served_as_soon_as_it_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("health.sock");
    let squatter = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = squatter.local_addr().unwrap();
    let server = start_at(vec![address.into(), Address::Unix(socket.clone())], Registry::default());
    let problem = server.wait_for(Option::is_some).unwrap();
    let uid = rustix::process::getuid().as_raw();
    assert!(
        problem.starts_with(&format!("{address}: a process of user {uid} listens at port ")),
        "{problem}"
    );
    while !socket.exists() {
        server.wait_for(|_| true);
    }
    let answer = ask(unix(&socket));
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains(&problem), "{answer}");
    drop(squatter);
    server.wait_for(Option::is_none);
    assert!(ask(tcp(address)).starts_with("HTTP/1.1 200 OK"));
    assert!(ask(unix(&socket)).starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn silent_connections_do_not_keep_a_probe_from_its_answer() {
    let address = free_address();
    let server = start_at(vec![address.into()], Registry::default());
    server.wait_for(Option::is_none);
    let silent: Vec<TcpStream> = (0..2 * LIMITS.connections).map(|_| tcp(address)).collect();
    assert!(ask(tcp(address)).starts_with("HTTP/1.1 200 OK"));
    assert!(server.admission.connections() <= LIMITS.per_peer);
    drop(silent);
}

/// Reports the thread on which it is read.
#[derive(Debug)]
struct Reader(mpsc::SyncSender<Option<String>>);

impl Collector for Reader {
    fn encode(&self, _: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let name = std::thread::current().name().map(str::to_owned);
        self.0.try_send(name).map_err(|_| fmt::Error)
    }
}

#[test]
fn metrics_are_rendered_on_the_servers_own_thread() {
    let address = free_address();
    let (tell, reported) = mpsc::sync_channel(1);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Reader(tell)));
    let server = start_at(vec![address.into()], registry);
    server.wait_for(Option::is_none);
    let mut stream = tcp(address);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert_eq!(reported.recv_timeout(DEADLINE).unwrap().as_deref(), Some(THREAD));
}
