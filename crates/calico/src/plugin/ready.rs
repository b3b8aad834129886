//! Preconditions of an ADD: the datastore is not locked, and the readiness gates of the
//! configuration are open (calico-cni.md section 2.1, steps 5, 6, 9 and 10).

use std::path::Path;
use std::time::{Duration, Instant};

use russet_cni_spec::CniError;
use russet_model::{ClusterInformation, Key};
use russet_store::StoreError;
use russet_wiring::{RequestLog, failure};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::workload::Workload;
use crate::Datastore;
use crate::conf::CalicoConf;

/// The kernel's default.
const MTU_DEFAULT_BYTES: u32 = 1500;
/// The file in which Felix writes the MTU that fits into its tunnels.
const MTU_FILE: &str = "var/lib/calico/mtu";
/// Interval between two requests to a gate (calico-cni.md section 1.3).
const GATE_INTERVAL: Duration = Duration::from_secs(5);
const GATE_TIMEOUT: Duration = Duration::from_secs(30);
/// A gate runs on this node, so it answers quickly or not at all.
const GATE_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Only `HTTP/1.1 204` of the answer is read.
const STATUS_LINE_BYTES: usize = 12;

/// Refuses impossible requests before any allocation.
pub fn refuse_impossible(conf: &CalicoConf, workload: &Workload, log: &RequestLog) -> Result<(), CniError> {
    dataplane(conf)?;
    match conf.device_type.as_str() {
        "" | "veth" => {}
        "netkit" => log.warn("device_type: netkit is not supported; the pod gets a veth"),
        other => {
            let details = "leave it out, or write \"veth\"";
            return Err(CniError::invalid_config(format!("device_type: {other:?} is not known"), details));
        }
    }
    if conf.num_queues > 1 {
        log.warn(format!("num_queues: {} is ignored: veths have one queue", conf.num_queues));
    }
    if workload.pod.is_none() && conf.ip_addrs_no_ipam {
        let details = "feature_control.ip_addrs_no_ipam works for Kubernetes' pods only";
        return Err(CniError::unsupported_field(
            "requested feature is not supported for this runtime",
            details,
        ));
    }
    Ok(())
}

fn dataplane(conf: &CalicoConf) -> Result<(), CniError> {
    let options = &conf.dataplane_options;
    let Some(kind) = options.get("type") else { return Ok(()) };
    let unsupported = |msg: String, details: &str| Err(CniError::unsupported_field(msg, details));
    match (kind.as_str(), options.get("socket").and_then(Value::as_str)) {
        (Some("grpc"), None | Some("")) => {
            unsupported("dataplane_options: the type grpc needs a socket".to_owned(), "")
        }
        (Some("grpc"), Some(_)) => {
            let details = "leave dataplane_options out: this plugin wires pods itself";
            unsupported("dataplane_options: the type grpc is not supported".to_owned(), details)
        }
        _ => unsupported(format!("dataplane_options: invalid dataplane type: {kind}"), "leave it out"),
    }
}

/// The MTU of the pod's interface, in bytes: from the configuration, otherwise from Felix's file,
/// otherwise the kernel's default.
pub fn mtu_bytes(conf: &CalicoConf, root: &Path) -> Result<u32, CniError> {
    if let Some(mtu) = conf.mtu_bytes {
        return Ok(mtu);
    }
    let file = root.join(MTU_FILE);
    match std::fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().map_err(|error| {
            let msg = format!("{} holds no MTU: {:.40?}", file.display(), text.trim());
            CniError::invalid_config(msg, error)
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !conf.require_mtu_file => {
            Ok(MTU_DEFAULT_BYTES)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let msg = format!("{} is required and is not there yet", file.display());
            Err(CniError::try_again_later(msg, "calico/node (or the russet agent in Calico mode) writes it"))
        }
        Err(error) => Err(CniError::io(format!("read {}", file.display()), error)),
    }
}

/// Fails while an upgrade has locked the datastore.
pub async fn datastore(datastore: &Datastore) -> Result<(), CniError> {
    if datastore.recent.is_ready() {
        return Ok(());
    }
    let (key, asked) = (Key::cluster_information(), Instant::now());
    let failed =
        |error: StoreError| failure::store("the cluster's information could not be read", &error, &error);
    let Some(record) = datastore.store.get(&key).await.map_err(failed)? else {
        let details = "calico/node (or the russet agent in Calico mode) creates it in a fresh datastore";
        return Err(CniError::try_again_later(format!("there is no {key}"), details));
    };
    let information = ClusterInformation::decode(&record.value)
        .map_err(|error| CniError::new(failure::CORRUPT_RECORD, format!("{key} cannot be decoded"), error))?;
    match information.spec.datastore_ready {
        Some(true) => {
            datastore.recent.record_ready(asked);
            Ok(())
        }
        _ => {
            let details = format!("datastoreReady of {key} is not true: an upgrade is in progress");
            Err(CniError::try_again_later("Calico is currently not ready to process requests", details))
        }
    }
}

pub async fn gates(urls: &[String]) -> Result<(), CniError> {
    let end = tokio::time::Instant::now() + GATE_TIMEOUT;
    for url in urls {
        let gate = GateUrl::parse(url)?;
        while let Err(reason) = gate.check().await {
            if tokio::time::Instant::now() + GATE_INTERVAL > end {
                let msg = format!("the readiness gate {url} is still closed");
                return Err(CniError::try_again_later(msg, reason));
            }
            tracing::debug!(url, reason, "readiness gate is closed");
            tokio::time::sleep(GATE_INTERVAL).await;
        }
    }
    Ok(())
}

/// The parsed URL of a readiness gate.
#[derive(Debug, PartialEq, Eq)]
struct GateUrl {
    authority: String,
    address: String,
    path: String,
}

// === impl GateUrl ===

impl GateUrl {
    fn parse(url: &str) -> Result<Self, CniError> {
        let refused = |why: &str| CniError::unsupported_field(format!("readiness_gates: {url:?}"), why);
        let rest = url.strip_prefix("http://").ok_or_else(|| refused("only http:// is supported"))?;
        let (authority, path) = match rest.find(['/', '?', '#']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let printable = |c: char| c.is_ascii_graphic();
        if authority.is_empty() || authority.contains('@') || !url.chars().all(printable) {
            return Err(refused("http://host:port/path is wanted"));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { authority: authority.to_owned(), address, path })
    }

    /// Asks the gate; the error says why it counts as closed.
    async fn check(&self) -> Result<(), String> {
        let answer = tokio::time::timeout(GATE_REQUEST_TIMEOUT, self.status()).await;
        let status = answer.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
        if (200..400).contains(&status) { Ok(()) } else { Err(format!("it answers {status}")) }
    }

    async fn status(&self) -> std::io::Result<u16> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let Self { authority, path, .. } = self;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut line = [0; STATUS_LINE_BYTES];
        stream.read_exact(&mut line).await?;
        status_code(&line).ok_or_else(|| std::io::Error::other("that is no HTTP"))
    }
}

/// The status code in `HTTP/1.1 204`. The bytes are not trusted.
fn status_code(line: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(line).ok().filter(|line| line.starts_with("HTTP/1."))?;
    line.get("HTTP/1.1 ".len()..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_non_ascii_status_line_is_refused_without_panic() {
        assert_eq!(status_code(b"HTTP/1.1 204"), Some(204));
        for line in ["HTTP/1.1\u{e9}20", "HTTP/1.\u{1f600}2", "HTTP/1.1 2x4", "HTTP/2   204"] {
            assert_eq!(status_code(line.as_bytes()), None, "{line}");
        }
    }
}
