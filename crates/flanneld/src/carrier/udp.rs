//! The backend `udp` at work: joins `overlay`'s proxy to the loop. The proxy has threads of its own; this tells it of leases, and starts it
//! anew when somebody took its device away.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_addr::Ipv4Net;
use russet_lease::Lease;
use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_netlink::{Monitor, Topic};
use russet_overlay::udp::{DEVICE, OVERHEAD_BYTES, Offloads, Options, Proxy, UdpError};

use super::CarrierError;
use crate::ear::Ear;
use crate::health::Status;
use crate::interface::External;

/// The proxy, and what it is told.
pub struct Relay {
    options: Options,
    proxy: Option<Proxy>,
    monitor: Monitor,
    ear: Ear,
    routes: Vec<(Ipv4Net, Ipv4Addr)>,
}

/// Less than IPv4 allows for a link.
const MTU_MIN_BYTES: u32 = 68;
/// Events thrown away in one go; the rest is as good as another one that comes later.
const EVENTS_MAX: usize = 10_000;

// === impl Relay ===

impl Relay {
    /// Nothing runs before the lease is there: the device gets its address.
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
        let ear = Ear::of(&monitor).map_err(CarrierError::Listen)?;
        Ok(Self { options, proxy: None, monitor, ear, routes: Vec::new() })
    }

    /// Of pods, bytes.
    pub fn mtu(&self) -> u32 {
        self.options.mtu
    }

    /// Starts the proxy; a port that is taken ends the daemon.
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

    /// All peers anew; false when the proxy does not run.
    pub fn reset(&mut self, leases: &[Lease]) -> bool {
        self.routes = leases.iter().filter_map(route).collect();
        if let Some(proxy) = &self.proxy {
            proxy.reset(&self.routes);
        }
        self.proxy.is_some()
    }

    /// Some peers; false when the proxy does not run.
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

    /// Resolves when somebody else may have changed the device or its route.
    pub async fn stirred(&mut self) {
        if let Err(error) = self.ear.hears().await {
            tracing::error!(%error, "listen to the kernel");
            return std::future::pending().await;
        }
        // At once, without a pause in which the caller could give up: nobody would tell of these events again. Which they were does not matter,
        // the look that follows costs four messages.
        let _ = (0..EVENTS_MAX).all(|_| matches!(self.monitor.next(Duration::ZERO), Ok(Some(_))));
    }

    /// Puts the device and its route right, or starts anew where they are gone; false when that has to be tried again.
    pub fn resync(&mut self, status: &Status) -> bool {
        let failure = self.proxy.as_ref().map_or(Some("it does not run".to_owned()), Proxy::failure);
        let result = match (failure, &self.proxy) {
            (None, Some(proxy)) => proxy.repair(),
            (failure, _) => {
                tracing::warn!(reason = failure.unwrap_or_default(), "the udp backend is started anew");
                self.proxy = None;
                status.repairs.fetch_add(1, Ordering::Relaxed);
                self.start()
            }
        };
        if let Err(error) = &result {
            status.failures.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "the udp backend is not as it should be");
        }
        result.is_ok()
    }
}

fn route(lease: &Lease) -> Option<(Ipv4Net, Ipv4Addr)> {
    lease.key.v4.map(|subnet| (subnet, lease.attributes.public_ip))
}

/// What the kernel does for the tunnel, in words.
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
