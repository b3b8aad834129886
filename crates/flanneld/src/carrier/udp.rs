//! The running backend `udp`: connects the proxy ([`crate::udp`]) with the daemon's loop. The proxy has
//! threads of its own; this passes it leases, and starts it again when its device was deleted.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_addr::Ipv4Net;
use russet_lease::Lease;
use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_netlink::{Monitor, Topic};

use super::CarrierError;
use crate::health::Status;
use crate::interface::External;
use crate::readable_fd::ReadableFd;
use crate::udp::{DEVICE, OVERHEAD_BYTES, Offloads, Options, Proxy, UdpError};

/// The proxy and its routes.
pub struct Relay {
    options: Options,
    proxy: Option<Proxy>,
    monitor: Monitor,
    readable_fd: ReadableFd,
    routes: Vec<(Ipv4Net, Ipv4Addr)>,
}

/// The minimum that IPv4 requires of a link.
const MTU_MIN_BYTES: u32 = 68;
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
        guard: bool,
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
            guard,
        };
        let monitor = Monitor::open(&[Topic::Links, Topic::Addresses, Topic::Routes]);
        let monitor = monitor.map_err(|error| CarrierError::Listen(std::io::Error::other(error)))?;
        let readable_fd = ReadableFd::new(&monitor).map_err(CarrierError::Listen)?;
        Ok(Self { options, proxy: None, monitor, readable_fd, routes: Vec::new() })
    }

    /// The MTU of pods in bytes.
    pub fn mtu(&self) -> u32 {
        self.options.mtu
    }

    /// Starts the proxy; a port in use ends the daemon.
    pub fn own(&mut self, own: &SubnetKey) -> Result<(), CarrierError> {
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
        Ok(())
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
        if let Err(error) = self.readable_fd.readable().await {
            tracing::error!(%error, "listen to the kernel");
            return std::future::pending().await;
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
            (None, Some(proxy)) => proxy.repair(),
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
        result.is_ok()
    }
}

fn route(lease: &Lease) -> Option<(Ipv4Net, Ipv4Addr)> {
    lease.key.v4.map(|subnet| (subnet, lease.attributes.public_ip))
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
