//! Probes of the other nodes through the data path of pods: an ICMP echo from the address of this node's
//! tunnel device to that of the other's, which the other node's kernel answers, whichever program keeps its
//! tunnel. They change nothing. Their results are metrics, log lines, a part of `/v1/status`, and, if
//! that is wished, a condition of readiness.
//!
//! What a node sends does not grow with the cluster: at most [`ProbeSettings::at_a_time`] nodes are
//! probed at a time ([`rotation`]). [`targets`], [`rotation`], [`prober`] and [`reason`] decide, `thread` works, and
//! [`encapsulated`] counts packets of peers that do not answer.

mod encapsulated;
mod prober;
mod reason;
mod report;
mod rotation;
mod targets;
mod thread;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use russet_addr::Family;
use russet_overlay::device_name;

use crate::controllers::Controllers;
use crate::drift::lock;
use crate::health::Readiness;
use crate::metrics::PeerMetrics;
use prober::Prober;

pub use encapsulated::Encapsulated;
pub use reason::Traffic;
pub use report::{PeerCounts, PeerReport, PeerState, PeersReport};
pub use targets::{Path, Targets};

/// What an agent does about the reachability of other nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerSettings {
    /// None: they are not probed.
    pub probes: Option<ProbeSettings>,
    /// A node that reaches none of the others is not ready.
    pub gates_readiness: bool,
}

/// How the other nodes are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSettings {
    /// The time from one probe of a node to the next.
    pub interval: Duration,
    /// How many nodes are probed at a time.
    pub at_a_time: usize,
}

/// What this node's tunnel devices have sent and received since they were made, by their names.
pub fn tunnel_traffic() -> BTreeMap<String, Traffic> {
    let text = reason::device_counters().unwrap_or_default();
    let of = |family| {
        let device = device_name(family);
        Some((device.to_owned(), reason::traffic(&text, device)?))
    };
    Family::BOTH.into_iter().filter_map(of).collect()
}

/// The probes of this node. Clones share them.
#[derive(Clone)]
pub struct PeerProbes(Option<Arc<Mutex<Shared>>>);

struct Shared {
    prober: Prober,
    /// Why no probe can be sent, if so.
    fault: Option<String>,
}

/// What the thread reports to besides.
pub struct Observers {
    pub metrics: PeerMetrics,
    pub readiness: Readiness,
    /// A node that reaches none of the others is not ready.
    pub gates_readiness: bool,
}

// === impl ProbeSettings ===

impl Default for ProbeSettings {
    /// With two families, 6.4 echoes of 64 bytes and less a second from each node, and as many answers on average.
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), at_a_time: 16 }
    }
}

// === impl PeerProbes ===

impl PeerProbes {
    /// Starts the thread, unless probes are off.
    pub fn start(
        settings: Option<ProbeSettings>,
        controllers: Controllers,
        observers: Observers,
    ) -> std::io::Result<Self> {
        let Some(settings) = settings else { return Ok(Self(None)) };
        let [a, b] = russet_linux::random::random();
        let prober = Prober::new(settings, russet_sync::random(), u16::from_be_bytes([a, b]), Instant::now());
        let shared = Arc::new(Mutex::new(Shared { prober, fault: None }));
        thread::start(Arc::clone(&shared), controllers, observers)?;
        Ok(Self(Some(shared)))
    }

    pub fn report(&self) -> PeersReport {
        let Some(shared) = &self.0 else {
            return PeersReport::not_probed("probes are off (--peer-probes off)");
        };
        let shared = lock(shared);
        let report = PeersReport::new(&shared.prober, Instant::now());
        PeersReport { not_probed: shared.fault.clone(), ..report }
    }
}
