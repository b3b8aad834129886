//! `/healthz`, `/readyz` and `/metrics` (flannel.md section 7.4): one short HTTP answer for each
//! connection. Any client may connect; none can hold a connection for long.

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use russet_http::listener::{Admission, Allowed, Limits, Reason};
use russet_http::server::{self, Requests};
use russet_store_etcd::Reach;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::drops::{Counts, KINDS, since};
use crate::udp::{Carried, FastPath};

/// The daemon's state for probes and metrics; the loop writes it, the server reads it.
#[derive(Debug, Default)]
pub struct Status {
    /// Whether `subnet.env` is written.
    pub ready: AtomicBool,
    /// Subnets of other nodes that are programmed.
    pub peers: AtomicU64,
    /// Changes of leases that were applied.
    pub changes: AtomicU64,
    /// Number of comparisons of the kernel with the desired state.
    pub resyncs: AtomicU64,
    /// Signals that another program removed our rules, which are repaired, and that other objects
    /// must be compared.
    pub rules_repaired: tokio::sync::Notify,
    /// Objects that were missing or wrong, and were repaired.
    pub repairs: AtomicU64,
    /// Kernel requests that failed.
    pub failures: AtomicU64,
    /// Packets that guards dropped, by guard.
    pub drops: Mutex<Counts>,
    /// Whether the node is not ready while the fast path carries nothing.
    pub needs_fast_path: AtomicBool,
    /// The fast path of the backend `udp`; unset where there is none.
    pub fast_path: OnceLock<Arc<FastPath>>,
    /// Whether etcd answers; unset where leases come from another store.
    pub etcd: OnceLock<Reach>,
}

/// Every flannel daemon's answer to a liveness probe (flannel.md section 7.4).
const ALIVE: &str = "flanneld is running";
/// Limits of the answer of another process at the health port: its time and its size.
const ASK_DEADLINE: Duration = Duration::from_secs(1);
const ANSWER_MAX_BYTES: u64 = 4 * 1024;
/// How long the head of a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Room for probes and a Prometheus server. Requests are answered at once, so a connection that
/// stays longer is idle.
const LISTENER: Limits = Limits {
    name: "health",
    connections: 16,
    per_peer: 8,
    allowed: Allowed::Anyone,
    greeting_bytes: 0,
    greeting_timeout: REQUEST_TIMEOUT,
    idle_timeout: None,
};
/// Requests have no body.
const REQUESTS: Requests = Requests { body_max_bytes: 4096, body_timeout: REQUEST_TIMEOUT };

// === impl Status ===

impl Status {
    fn is_ready(&self) -> bool {
        let has_all = !self.needs_fast_path.load(Ordering::Acquire) || self.has_fast_path();
        has_all && self.ready.load(Ordering::Acquire)
    }

    fn has_fast_path(&self) -> bool {
        self.fast_path.get().is_some_and(|fast_path| fast_path.carries())
    }

    /// What the fast path has carried; nothing without one.
    fn carried(&self) -> String {
        let carried = self.fast_path.get().and_then(|fast_path| fast_path.carried().ok()).unwrap_or_default();
        let counter = |name: &str, help: &str, of: fn(&Carried) -> u64| {
            let name = format!("flanneld_fast_path_{name}");
            let line =
                |(direction, carried)| format!("{name}_total{{direction=\"{direction}\"}} {}\n", of(carried));
            let lines: String = ["sent", "received"].into_iter().zip(&carried).map(line).collect();
            format!("# HELP {name} {help}\n# TYPE {name} counter\n{lines}")
        };
        [
            counter("packets", "Packets that the fast path has carried.", |carried| carried.packets),
            counter("bytes", "Bytes of these packets, from their IP headers on.", |carried| carried.bytes),
        ]
        .concat()
    }

    /// Adds what guards have dropped between two looks at the kernel's counters.
    pub fn add_drops(&self, before: &Counts, now: &Counts) {
        let mut drops = self.drops.lock().unwrap_or_else(PoisonError::into_inner);
        for (kind, packets) in since(before, now) {
            *drops.entry(kind).or_default() += packets;
        }
    }

    fn guard_drops(&self) -> String {
        let drops = self.drops.lock().unwrap_or_else(PoisonError::into_inner);
        let name = "flanneld_guard_drops";
        let help = "Packets of pods and other machines that the guards dropped, by guard.";
        let line = |kind: &str| {
            let packets = drops.get(kind).copied().unwrap_or(0);
            format!("{name}_total{{kind=\"{kind}\"}} {packets}\n")
        };
        let lines: String = KINDS.into_iter().map(line).collect();
        format!("# HELP {name} {help}\n# TYPE {name} counter\n{lines}")
    }

    fn metrics(&self, admission: &Admission) -> String {
        let gauge = |name: &str, help: &str, value: u64| {
            format!("# HELP flanneld_{name} {help}\n# TYPE flanneld_{name} gauge\nflanneld_{name} {value}\n")
        };
        let counter = |name: &str, help: &str, value: &AtomicU64| {
            let value = value.load(Ordering::Relaxed);
            format!(
                "# HELP flanneld_{name} {help}\n# TYPE flanneld_{name} counter\nflanneld_{name}_total {value}\n"
            )
        };
        [
            gauge("ready", "1 once subnet.env is written.", u64::from(self.is_ready())),
            gauge("peers", "Subnets of other nodes that are programmed.", self.peers.load(Ordering::Relaxed)),
            counter("lease_changes", "Changes of leases that were applied.", &self.changes),
            counter("resyncs", "Comparisons of the kernel with the desired state.", &self.resyncs),
            counter("repairs", "Objects that were missing or wrong.", &self.repairs),
            counter("kernel_failures", "Kernel requests that failed.", &self.failures),
            self.etcd.get().map_or_else(String::new, |etcd| {
                let help = "0 when etcd has not answered for 10 s.";
                gauge("etcd_reachable", help, u64::from(!etcd.is_lost()))
            }),
            gauge("fast_path", "1 while the fast path carries packets.", u64::from(self.has_fast_path())),
            self.carried(),
            self.guard_drops(),
            refused(admission),
            "# EOF\n".to_owned(),
        ]
        .concat()
    }
}

/// Whether a flannel daemon, flannel's or ours, serves its health at this address.
pub async fn is_flannels(address: SocketAddr) -> bool {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let ask = async {
        let mut stream = TcpStream::connect((ip, address.port())).await?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(ASK_DEADLINE, ask).await;
    answer.is_ok_and(|answer| answer.is_ok_and(|text| text.ends_with(ALIVE.as_bytes())))
}

/// Metrics of refused connections.
fn refused(admission: &Admission) -> String {
    let name = "flanneld_health_connections_closed";
    let help = "Connections to the health server that were refused or closed by a limit.";
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} counter\n");
    for reason in Reason::ALL {
        let (reason, count) = (reason.name(), admission.closed(reason));
        text.push_str(&format!("{name}_total{{reason=\"{reason}\"}} {count}\n"));
    }
    text
}

/// Binds the address; an address in use ends the daemon, like flannel's.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, status: Arc<Status>) {
    let admission = Admission::new(LISTENER);
    let router = Router::new().fallback(answer).with_state((status, Arc::clone(&admission)));
    server::serve(listener, admission, REQUESTS, router, pending()).await;
}

async fn answer(
    State((status, admission)): State<(Arc<Status>, Arc<Admission>)>,
    uri: Uri,
) -> impl IntoResponse {
    const TEXT: &str = "text/plain; charset=utf-8";
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let (code, kind, body) = match uri.path() {
        "/healthz" => (StatusCode::OK, TEXT, ALIVE.to_owned()),
        "/readyz" if status.is_ready() => (StatusCode::OK, TEXT, "flanneld is ready".to_owned()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, TEXT, "flanneld is not ready yet".to_owned()),
        "/metrics" => (StatusCode::OK, OPEN_METRICS, status.metrics(&admission)),
        _ => (StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned()),
    };
    (code, [(CONTENT_TYPE, kind), (CONNECTION, "close")], body)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer_to(status: &Arc<Status>, request: &str) -> String {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::clone(status)));
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        server.abort();
        answer
    }

    /// flannel.md sections 7.4 and 10.
    #[tokio::test]
    async fn t53_healthz_answers_before_readyz() {
        let status = Arc::new(Status::default());
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        let health = answer_to(&status, &get("/healthz")).await;
        assert!(
            health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("\r\n\r\nflanneld is running"),
            "{health}"
        );
        let unready = answer_to(&status, &get("/readyz?verbose")).await;
        assert!(
            unready.starts_with("HTTP/1.1 503 ") && unready.ends_with("flanneld is not ready yet"),
            "{unready}"
        );
        status.ready.store(true, Ordering::Release);
        let ready = answer_to(&status, &get("/readyz")).await;
        assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with("flanneld is ready"), "{ready}");
        assert!(answer_to(&status, &get("/")).await.starts_with("HTTP/1.1 404 "));
        assert!(answer_to(&status, "HEAD /healthz HTTP/1.0\r\n\r\n").await.ends_with("\r\n\r\n"));
        assert!(!answer_to(&status, &get("/metrics")).await.contains("etcd_reachable"));
        status.etcd.set(Reach::default()).unwrap();
        let metrics = answer_to(&status, &get("/metrics")).await;
        assert!(metrics.contains("\nflanneld_etcd_reachable 1\n"), "{metrics}");
        assert!(metrics.contains("\nflanneld_guard_drops_total{kind=\"mac\"} 0\n"), "{metrics}");
        let documented =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md"));
        let documented = documented.unwrap();
        for (name, kind) in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
            let ending = if kind == "counter" { "_total" } else { "" };
            assert!(documented.contains(&format!("| `{name}{ending}` | {kind} |")), "{name} {kind}");
        }
        status.add_drops(&Counts::from([("source", 2)]), &Counts::from([("source", 5)]));
        let metrics = answer_to(&status, &get("/metrics")).await;
        assert!(metrics.contains("\nflanneld_guard_drops_total{kind=\"source\"} 3\n"), "{metrics}");
        assert!(metrics.contains("\nflanneld_ready 1\n") && metrics.ends_with("# EOF\n"), "{metrics}");
    }

    #[tokio::test]
    async fn a_flannel_daemon_is_recognised_at_its_health_port() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(serve(listener, Arc::default()));
        assert!(is_flannels(SocketAddr::from(([0, 0, 0, 0], port))).await);
        server.abort();
        let other = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = other.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = other.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nnginx").await.unwrap();
        });
        assert!(!is_flannels(address).await);
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_refused() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let mut stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let server = tokio::spawn(serve(listener, Arc::default()));
        let endless = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(64 * 1024));
        // The server closes the connection while bytes are being sent.
        let (_, mut answer) = (stream.write_all(endless.as_bytes()).await, Vec::new());
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "));
        server.abort();
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_a_probe_from_its_answer() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::default()));
        let mut silent = Vec::new();
        for _ in 0..2 * LISTENER.connections {
            silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let displaced = "flanneld_health_connections_closed_total{reason=\"displaced\"} ";
        let count = answer.lines().find_map(|line| line.strip_prefix(displaced)?.parse::<usize>().ok());
        assert!(count.is_some_and(|count| count > 0), "{answer}");
        drop(silent);
        server.abort();
    }
}
