//! The members of the cluster as seen from here: one connection each, opened when needed, and which of them is asked first.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::backoff::random;
use crate::failure::{Failure, chain};
use crate::{Settings, SettingsError};

/// Longest wait for a connection, TLS included, before another member is tried. Within a site it takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pings find a member that stands still while a watch waits. etcd hangs up on whoever pings more often than every 5 s, or while idle.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Every endpoint, and the one in use.
pub(crate) struct Members {
    slots: Vec<Slot>,
    /// Counts up for ever; modulo the number of slots it is the one in use.
    current: AtomicUsize,
    /// Numbers connections, so that a late complaint does not close a newer one.
    opened: AtomicU64,
}

struct Slot {
    endpoint: String,
    channel: Mutex<Option<(u64, Channel)>>,
}

/// An open connection to one member.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    turn: usize,
    number: u64,
}

// === impl Members ===

impl Members {
    /// Refuses settings whose certificates cannot be used; connects to nothing.
    pub(crate) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        for endpoint in &settings.endpoints {
            prepare(settings, endpoint)?;
        }
        let slots = settings.endpoints.iter().cloned();
        let slots: Vec<Slot> = slots.map(|endpoint| Slot { endpoint, channel: Mutex::new(None) }).collect();
        // A thousand nodes with the same list shall not all ask its first member.
        let first = random() % slots.len().max(1) as u64;
        let current = AtomicUsize::new(usize::try_from(first).unwrap_or(0));
        Ok(Self { slots, current, opened: AtomicU64::new(0) })
    }

    /// How many endpoints there are.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, turn: usize) -> &Slot {
        &self.slots[turn % self.slots.len()]
    }

    pub(crate) fn endpoint(&self, connection: &Connection) -> &str {
        &self.slot(connection.turn).endpoint
    }

    /// The connection in use. When it cannot be opened the next caller, or the next try, gets another member's.
    pub(crate) async fn connection(&self, settings: &Settings) -> Result<Connection, Failure> {
        let (turn, slot, mut held) = loop {
            let turn = self.current.load(Ordering::Relaxed);
            let slot = self.slot(turn);
            let held = slot.channel.lock().await;
            if let Some((number, channel)) = &*held {
                return Ok(Connection { channel: channel.clone(), turn, number: *number });
            }
            // Whoever waited here while somebody else found the member dead does not try it again.
            if self.current.load(Ordering::Relaxed) == turn {
                break (turn, slot, held);
            }
        };
        let unreachable = |reason: String| {
            self.leave_turn(turn);
            Failure::unreachable(&slot.endpoint, reason)
        };
        // The files are read here and now: certificates get renewed.
        let prepared = prepare(settings, &slot.endpoint).map_err(|error| unreachable(error.to_string()))?;
        let channel = match tokio::time::timeout(CONNECT_TIMEOUT, prepared.connect()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(unreachable(with_causes(&error))),
            Err(_) => return Err(unreachable(format!("no connection within {CONNECT_TIMEOUT:?}"))),
        };
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        *held = Some((number, channel.clone()));
        tracing::debug!(endpoint = slot.endpoint, "etcd connected");
        Ok(Connection { channel, turn, number })
    }

    /// Something failed there: the next call goes to another member, and a suspect connection is given up.
    pub(crate) async fn leave(&self, connection: &Connection, failure: &Failure) {
        tracing::debug!(error = %failure.error, "etcd member left");
        if failure.transport {
            let mut held = self.slot(connection.turn).channel.lock().await;
            if held.as_ref().is_some_and(|(number, _)| *number == connection.number) {
                *held = None;
            }
        }
        self.leave_turn(connection.turn);
    }

    fn leave_turn(&self, turn: usize) {
        // Only the first of those who complain about the same member moves on.
        let next = turn.wrapping_add(1);
        let _ = self.current.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// An endpoint ready to connect, with the certificates as the files have them now.
fn prepare(settings: &Settings, endpoint: &str) -> Result<Endpoint, SettingsError> {
    let refused = |error: &tonic::transport::Error| SettingsError::Tls {
        endpoint: endpoint.to_owned(),
        reason: with_causes(error),
    };
    let prepared = Endpoint::from_shared(endpoint.to_owned())
        .map_err(|error| refused(&error))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(false);
    let Some(ca) = &settings.ca else { return Ok(prepared) };
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
    if let (Some(cert), Some(key)) = (&settings.cert, &settings.key) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    if let Some(name) = &settings.server_name {
        tls = tls.domain_name(name);
    }
    prepared.tls_config(tls).map_err(|error| refused(&error))
}

fn read(path: &Path) -> Result<Vec<u8>, SettingsError> {
    std::fs::read(path).map_err(|source| SettingsError::File { path: path.to_owned(), source })
}

/// An error with what lies beneath it in one line; tonic's alone says only "transport error".
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut parts: Vec<String> = chain(Some(error)).map(ToString::to_string).collect();
    parts.dedup();
    parts.join(": ")
}
