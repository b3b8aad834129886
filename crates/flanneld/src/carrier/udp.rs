//! The running backend `udp`: connects the proxy ([`crate::udp`]) with the daemon's loop. The proxy has
//! threads of its own; this passes it leases, and starts it again when its device was deleted.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_addr::Ipv4Net;
use russet_lease::Lease;
use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};
use russet_netlink::{Monitor, Socket, Topic};
use russet_overlay::fast_path::FastPathMode;
use tokio::time::{Interval, MissedTickBehavior};

use super::{CarrierError, FabricOptions};
use crate::health::Status;
use crate::interface::External;
use crate::readable_fd::ReadableFd;
use crate::udp::{
    DEVICE, FastPath, OVERHEAD_BYTES, Offloads, Options, Proxy, UdpError, Via, remove_leftovers,
};

/// The proxy and its routes.
pub struct Relay {
    options: Options,
    proxy: Option<Proxy>,
    monitor: Monitor,
    readable_fd: ReadableFd,
    routes: Vec<(Ipv4Net, Via)>,
    /// When programs of the fast path are looked for next.
    look: Interval,
    /// What was logged last of the fast path: why it carries nothing.
    logged: Option<Option<String>>,
}

/// The minimum that IPv4 requires of a link.
const MTU_MIN_BYTES: u32 = 68;
/// Whether programs are still attached causes no event.
const LOOK: Duration = Duration::from_secs(5);
/// The lease's data of a node whose kernel takes packets out of datagrams. flannel's daemons ignore it.
const DECAPSULATES: &str = r#"{"KernelDecap":true}"#;
/// Limit of events discarded in one call; further ones cause another comparison.
const EVENTS_MAX: usize = 10_000;

// === impl Relay ===

impl Relay {
    /// Prepares the options; nothing runs before there is a lease, because the device needs its
    /// address.
    pub fn new(
        port: u16,
        external: &External,
        config: &NetworkConfig,
        wanted: FabricOptions,
    ) -> Result<Self, CarrierError> {
        let no_v4 = CarrierError::Family { backend: "udp", carries: "IPv4", has: "IPv6" };
        let (Some(network), Some(local)) = (config.v4(), external.v4) else { return Err(no_v4) };
        let mtu = external.mtu.checked_sub(OVERHEAD_BYTES).filter(|mtu| *mtu >= MTU_MIN_BYTES);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let options = Options {
            tun: DEVICE.to_owned(),
            mtu: mtu.ok_or(CarrierError::Mtu(external.mtu))?,
            own: Ipv4Addr::UNSPECIFIED,
            network,
            local,
            port,
            queues: Options::queues_for(processors),
            offload: true,
            guard: wanted.guard,
            fast_path: load(wanted.fast_path, external.ifindex),
        };
        let monitor = Monitor::open(&[Topic::Links, Topic::Addresses, Topic::Routes]);
        let monitor = monitor.map_err(|error| CarrierError::Listen(std::io::Error::other(error)))?;
        let readable_fd = ReadableFd::new(&monitor).map_err(CarrierError::Listen)?;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { options, proxy: None, monitor, readable_fd, routes: Vec::new(), look, logged: None })
    }

    /// What other nodes have to know of this one.
    pub fn data(&self) -> Option<String> {
        let fast_path = self.options.fast_path.as_ref();
        fast_path.filter(|fast_path| fast_path.carries()).map(|_| DECAPSULATES.to_owned())
    }

    /// The MTU of pods in bytes.
    pub fn mtu(&self) -> u32 {
        self.options.mtu
    }

    /// Starts the proxy; a port in use ends the daemon.
    pub fn own(&mut self, own: &SubnetKey, status: &Status) -> Result<(), CarrierError> {
        if let Some(fast_path) = &self.options.fast_path {
            // The same one for as long as the process lives.
            let _ = status.fast_path.set(Arc::clone(fast_path));
        }
        let subnet = own.v4.ok_or(CarrierError::Family { backend: "udp", carries: "IPv4", has: "IPv6" })?;
        // The device's name is free once the old proxy is gone.
        self.proxy = None;
        self.options.own = subnet.network();
        Ok(self.start()?)
    }

    fn start(&mut self) -> Result<(), UdpError> {
        let proxy = Proxy::start(self.options.clone())?;
        proxy.reset(&self.routes);
        tracing::info!(device = %proxy.device(), offloads = words(proxy.offloads()), "the udp backend runs");
        self.proxy = Some(proxy);
        self.log_fast_path();
        Ok(())
    }

    /// Logs whether the fast path carries packets, when that has changed.
    fn log_fast_path(&mut self) {
        let Some(fast_path) = &self.options.fast_path else { return };
        let failure = fast_path.failure();
        if self.logged.as_ref() == Some(&failure) {
            return;
        }
        match &failure {
            None => tracing::info!("the fast path carries packets to and from nodes that have it"),
            Some(reason) => {
                tracing::warn!(reason, "this process carries all packets: the fast path cannot be used");
            }
        }
        self.logged = Some(failure);
    }

    /// Replaces all peers; false if the proxy does not run.
    pub fn reset(&mut self, leases: &[Lease]) -> bool {
        self.routes = leases.iter().filter_map(route).collect();
        if let Some(proxy) = &self.proxy {
            proxy.reset(&self.routes);
        }
        self.proxy.is_some()
    }

    /// Changes some peers; false if the proxy does not run.
    pub fn change(&mut self, gone: &[Lease], put: &[Lease]) -> bool {
        for (subnet, _) in gone.iter().filter_map(route) {
            self.routes.retain(|(known, _)| *known != subnet);
            if let Some(proxy) = &self.proxy {
                proxy.remove(subnet);
            }
        }
        for (subnet, via) in put.iter().filter_map(route) {
            self.routes.retain(|(known, _)| *known != subnet);
            self.routes.push((subnet, via));
            if let Some(proxy) = &self.proxy {
                proxy.put(subnet, via);
            }
        }
        self.proxy.is_some()
    }

    /// Resolves when another program may have changed the device or its route.
    pub async fn changed_externally(&mut self) {
        tokio::select! {
            readable = self.readable_fd.readable() => {
                if let Err(error) = readable {
                    tracing::error!(%error, "listen to the kernel");
                    return std::future::pending().await;
                }
            }
            () = disturbed(&mut self.look, self.proxy.as_ref()) => return,
        }
        // Drains the events without an await in between, because a cancelled call would lose them.
        // Which events they were does not matter; the comparison that follows costs four messages.
        let _ = (0..EVENTS_MAX).all(|_| matches!(self.monitor.next(Duration::ZERO), Ok(Some(_))));
    }

    /// Repairs the device and its route, or starts the proxy again if they are gone; false if that
    /// must be tried again.
    pub fn resync(&mut self, status: &Status) -> bool {
        let failure = self.proxy.as_ref().map_or(Some("it does not run".to_owned()), Proxy::failure);
        let result = match (failure, &self.proxy) {
            (None, Some(proxy)) => {
                if proxy.repair_fast_path() {
                    tracing::info!("another program has changed what is attached for the fast path");
                    status.repairs.fetch_add(1, Ordering::Relaxed);
                }
                proxy.repair()
            }
            (failure, _) => {
                tracing::warn!(reason = failure.unwrap_or_default(), "the udp backend is restarted");
                self.proxy = None;
                status.repairs.fetch_add(1, Ordering::Relaxed);
                self.start()
            }
        };
        if let Err(error) = &result {
            status.failures.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "repair the udp backend");
        }
        self.log_fast_path();
        result.is_ok()
    }
}

/// Loads the programs, if they are wanted. Where the kernel refuses, this process carries everything.
fn load(mode: FastPathMode, uplink: u32) -> Option<Arc<FastPath>> {
    match Socket::route().and_then(|mut socket| remove_leftovers(&mut socket)) {
        Ok(0) => {}
        Ok(filters) => tracing::info!(filters, "filters of an earlier daemon's fast path removed"),
        Err(error) => tracing::warn!(%error, "look for filters of an earlier daemon's fast path"),
    }
    if mode == FastPathMode::Off {
        return None;
    }
    let loaded = FastPath::load(uplink);
    if let Err(error) = &loaded {
        tracing::warn!(%error, "this process carries all packets: the fast path cannot be loaded");
    }
    loaded.ok().map(Arc::new)
}

/// Resolves when another program has changed what is attached.
async fn disturbed(look: &mut Interval, proxy: Option<&Proxy>) {
    loop {
        look.tick().await;
        if proxy.is_some_and(Proxy::is_fast_path_disturbed) {
            return;
        }
    }
}

fn route(lease: &Lease) -> Option<(Ipv4Net, Via)> {
    let Attributes { public_ip, backend_type, backend_data, .. } = &*lease.attributes;
    // Leases of other backends have data of another meaning.
    let data = backend_data.as_ref().filter(|_| backend_type.is_empty());
    let decapsulates = data.is_some_and(|data| decapsulates(data));
    lease.key.v4.map(|subnet| (subnet, Via { address: *public_ip, decapsulates }))
}

fn decapsulates(data: &str) -> bool {
    let data: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
    data.get("KernelDecap").and_then(serde_json::Value::as_bool) == Some(true)
}

/// Describes the kernel's offloads for the tunnel.
fn words(offloads: Offloads) -> String {
    let tun = offloads.tun;
    let all = [
        ("checksums", tun.checksum),
        ("TCP segments", tun.tcp),
        ("UDP segments", tun.udp),
        ("sends in one piece", offloads.segments),
        ("receives in one piece", offloads.joins),
    ];
    let words: Vec<&str> = all.into_iter().filter(|(_, on)| *on).map(|(word, _)| word).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lease;

    #[test]
    fn only_leases_of_this_backend_that_say_so_are_of_nodes_that_decapsulate() {
        let of = |kind: &str, data: Option<&str>| {
            let mut lease = lease("10.5.7.0-24", "10.200.0.12", kind);
            Arc::make_mut(&mut lease.attributes).backend_data = data.map(str::to_owned);
            route(&lease).unwrap().1.decapsulates
        };
        assert!(of("", Some(DECAPSULATES)) && of("", Some(r#"{"KernelDecap":true,"More":[1]}"#)));
        for data in [None, Some("null"), Some("{}"), Some(r#"{"KernelDecap":1}"#), Some("[true]"), Some("{")]
        {
            assert!(!of("", data), "{data:?}");
        }
        assert!(!of("vxlan", Some(DECAPSULATES)));
    }
}
