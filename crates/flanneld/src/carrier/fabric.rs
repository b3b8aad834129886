//! The kernel's part of every backend: connects `overlay`'s fabric with the daemon's loop. The
//! fabric's calls block in the kernel, so they run on a thread of their own, for which the loop
//! waits.

use std::sync::atomic::Ordering;

use russet_addr::{IfName, Mac};
use russet_lease::Lease;
use russet_model::flannel::{NetworkConfig, SubnetKey, Vtep, WireguardData, vtep_data, wireguard_data};
use russet_overlay::ReconcileReport;
use russet_overlay::fast_path::FastPathMode;
use russet_overlay::flannel::{
    self, ExistingDevice, Fabric, Networks, Peer, PeerKey, Prepared, Underlay, WireguardEnd,
};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Announced, CarrierError, log_replaced, log_report};
use crate::backend::Backend;
use crate::health::Status;
use crate::interface::External;
use crate::readable_fd::ReadableFd;

/// A fabric and its readable descriptor.
pub struct KernelPart {
    fabric: FabricSlot,
    readable_fd: ReadableFd,
    data: Data,
    announced: Announced,
}

/// Where the fabric is.
enum FabricSlot {
    Here(Box<Fabric>),
    /// A thread works with it. The caller may have given up, for example when the lease is lost;
    /// the work still runs to its end, and the next call waits for it.
    Busy(JoinHandle<Box<Fabric>>),
    /// That thread panicked.
    Lost,
}

/// The data that leases carry for the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    Nothing,
    /// The MAC of a device in the network of this number.
    Vtep(u32),
    /// A public key and a port.
    Wireguard,
}

/// Options of the fabric besides the backend.
#[derive(Debug, Clone, Copy)]
pub struct FabricOptions {
    /// Whether packets to addresses of this node that no pod has are dropped.
    pub swallow: bool,
    /// Whether only addresses of leases may send tunnel packets.
    pub guard: bool,
    /// Whether pods behind bridges are kept to the addresses of these.
    pub guard_pods: bool,
    /// Whether BPF programs carry packets of the backend `udp`.
    pub fast_path: FastPathMode,
    /// The networks of an earlier run, whose routes are removed.
    pub former: Networks,
}

// === impl KernelPart ===

impl KernelPart {
    /// Creates or adopts the devices.
    pub async fn open(
        backend: &Backend,
        external: &External,
        config: &NetworkConfig,
        options: FabricOptions,
    ) -> Result<(Self, Announced), CarrierError> {
        let (kind, data) = kernel_backend(backend);
        let (underlay, networks) = (underlay(external)?, networks(config));
        for public in external.public() {
            kind.check_public(&underlay, public)?;
        }
        let made = tokio::task::spawn_blocking(move || {
            let mut fabric = Fabric::open(kind, underlay, networks)?;
            fabric.blackhole_unknown(options.swallow);
            if !options.guard {
                fabric.open_tunnel()?;
            }
            if !options.guard_pods {
                fabric.open_pods()?;
            }
            fabric.inherit(options.former);
            let prepared = fabric.prepare()?;
            Ok::<_, CarrierError>((fabric, prepared))
        });
        let (fabric, prepared) = made.await.map_err(|_panic| CarrierError::Broken)??;
        log_replaced(&prepared.replaced);
        let readable_fd = ReadableFd::new(&fabric).map_err(CarrierError::Listen)?;
        let announced = announced(&prepared, data);
        Ok((
            Self {
                fabric: FabricSlot::Here(Box::new(fabric)),
                readable_fd,
                data,
                announced: announced.clone(),
            },
            announced,
        ))
    }

    /// The existing devices with our names; changes nothing.
    pub async fn survey(
        backend: &Backend,
        external: &External,
        config: &NetworkConfig,
    ) -> Result<Vec<ExistingDevice>, CarrierError> {
        let (kind, _) = kernel_backend(backend);
        let (underlay, networks) = (underlay(external)?, networks(config));
        let look = move || Fabric::open(kind, underlay, networks)?.survey();
        let last_resync = tokio::task::spawn_blocking(look).await;
        Ok(last_resync.map_err(|_panic| CarrierError::Broken)??)
    }

    /// Gives the devices their addresses.
    pub async fn own(&mut self, own: &SubnetKey, status: &Status) -> Result<(), CarrierError> {
        let own = *own;
        let report = self.work(move |fabric| fabric.own(own.v4, own.v6)).await?;
        log_report(&report, "devices have this node's subnet", status);
        Ok(())
    }

    /// Replaces all peers, oldest first: a node that changed its address has left a lease with its
    /// old one and the same MAC.
    pub async fn reset(&mut self, leases: &[Lease], status: &Status) -> bool {
        let mut leases: Vec<&Lease> = leases.iter().collect();
        leases.sort_by_key(|lease| lease.expires);
        let peers = leases.into_iter().filter_map(|lease| peer(self.data, lease)).collect();
        let report = self.work(move |fabric| fabric.reset(peers)).await;
        settle(report, "the kernel has all leases", status)
    }

    pub async fn change(&mut self, gone: &[Lease], put: &[Lease], status: &Status) -> bool {
        let mut gone: Vec<PeerKey> = gone.iter().map(|lease| key(&lease.key)).collect();
        let mut peers = Vec::with_capacity(put.len());
        for lease in put {
            match peer(self.data, lease) {
                Some(peer) => peers.push(peer),
                // It may have been usable before.
                None => gone.push(key(&lease.key)),
            }
        }
        let report = self.work(move |fabric| fabric.change(&gone, &peers)).await;
        settle(report, "the kernel has what changed of the leases", status)
    }

    /// Resolves when another program changed our objects.
    pub async fn changed_externally(&mut self) {
        loop {
            if let Err(error) = self.readable_fd.readable().await {
                tracing::error!(%error, "listen to the kernel");
                return std::future::pending().await;
            }
            let FabricSlot::Here(fabric) = &mut self.fabric else { return };
            match fabric.drifted() {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => {
                    tracing::warn!(%error, "read the kernel's events");
                    return;
                }
            }
        }
    }

    /// Repairs differences: returns whether that succeeded, and the lease data if they changed.
    pub async fn resync(&mut self, status: &Status) -> (bool, Option<Announced>) {
        let work = self.work(|fabric| (fabric.resync(), fabric.prepared())).await;
        let (report, prepared) = match work {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "compare the kernel with the leases");
                return (false, None);
            }
        };
        log_report(&report, "the kernel differed from the leases and was repaired", status);
        status.repairs.fetch_add(report.changed.values().sum::<usize>() as u64, Ordering::Relaxed);
        let announced = Announced { mtu: self.announced.mtu, ..announced(&prepared, self.data) };
        let news = (self.data != Data::Nothing && announced != self.announced).then(|| {
            self.announced = announced.clone();
            announced
        });
        (report.failed == 0, news)
    }

    /// Runs `work` on a thread of its own. Dropping this future neither stops the work nor loses
    /// the fabric.
    async fn work<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Fabric) -> T + Send + 'static,
    ) -> Result<T, CarrierError> {
        let mut fabric = self.take().await?;
        let (sender, receiver) = oneshot::channel();
        self.fabric = FabricSlot::Busy(tokio::task::spawn_blocking(move || {
            // The receiver is gone if the caller gave up.
            let _ = sender.send(what(&mut fabric));
            fabric
        }));
        let fabric = self.take().await?;
        self.fabric = FabricSlot::Here(fabric);
        receiver.await.map_err(|_panic| CarrierError::Broken)
    }

    /// Takes the fabric out, which the caller puts back before it awaits anything else.
    async fn take(&mut self) -> Result<Box<Fabric>, CarrierError> {
        if let FabricSlot::Busy(work) = &mut self.fabric {
            let back = work.await;
            self.fabric = back.map_or(FabricSlot::Lost, FabricSlot::Here);
        }
        match std::mem::replace(&mut self.fabric, FabricSlot::Lost) {
            FabricSlot::Here(fabric) => Ok(fabric),
            FabricSlot::Busy(_) | FabricSlot::Lost => Err(CarrierError::Broken),
        }
    }
}

/// Converts a lease for the kernel; none if it lacks data that the backend needs.
fn peer(data: Data, lease: &Lease) -> Option<Peer> {
    let attributes = &lease.attributes;
    let values = [attributes.backend_data.as_deref(), attributes.backend_v6_data.as_deref()];
    let (mut mac, mut wireguard) = ([None, None], [None, None]);
    match data {
        Data::Nothing => {}
        Data::Vtep(_) => mac = values.map(|data| vtep(data?)),
        Data::Wireguard => wireguard = values.map(|data| end(data?)),
    }
    if data != Data::Nothing && mac == [None, None] && wireguard == [None, None] {
        let reason = "it does not name the end of its tunnel";
        russet_store::refused("a lease is not programmed", lease.key, reason);
        return None;
    }
    Some(Peer {
        subnet: lease.key.v4,
        subnet_v6: lease.key.v6,
        public_ip: attributes.public_ip,
        public_ipv6: attributes.public_ipv6,
        mac,
        wireguard,
    })
}

fn vtep(data: &str) -> Option<Mac> {
    Vtep::from_json(data).ok().map(|vtep| vtep.mac)
}

fn end(data: &str) -> Option<WireguardEnd> {
    let data = WireguardData::from_json(data).ok()?;
    Some(WireguardEnd { public_key: data.public_key, port: data.port })
}

fn settle(report: Result<ReconcileReport, CarrierError>, what: &str, status: &Status) -> bool {
    match report {
        Ok(report) => {
            log_report(&report, what, status);
            report.failed == 0
        }
        Err(error) => {
            tracing::error!(%error, "{what}");
            false
        }
    }
}

fn underlay(external: &External) -> Result<Underlay, CarrierError> {
    Ok(Underlay {
        ifindex: external.ifindex,
        name: IfName::new(external.name.as_str())?,
        mtu: external.mtu,
        v4: external.v4,
        v6: external.v6,
    })
}

fn networks(config: &NetworkConfig) -> Networks {
    Networks { v4: config.v4(), v6: config.v6() }
}

fn key(key: &SubnetKey) -> PeerKey {
    PeerKey { v4: key.v4, v6: key.v6 }
}

fn announced(prepared: &Prepared, data: Data) -> Announced {
    let [data, data_v6] = match data {
        Data::Nothing => [None, None],
        Data::Vtep(vni) => prepared.mac.map(|mac| Some(vtep_data(vni, mac?))),
        Data::Wireguard => prepared.wireguard.each_ref().map(|end| {
            let end = end.as_ref()?;
            Some(wireguard_data(&end.public_key, end.port?))
        }),
    };
    Announced { data, data_v6, mtu: prepared.mtu }
}

/// Converts the backend for `overlay`, with the kind of data in its leases.
fn kernel_backend(backend: &Backend) -> (flannel::Backend, Data) {
    match backend {
        Backend::Vxlan(vxlan) => (flannel::Backend::Vxlan(vxlan.clone()), Data::Vtep(vxlan.vni)),
        Backend::HostGw => (flannel::Backend::HostGw, Data::Nothing),
        Backend::Ipip { direct_routing } => {
            (flannel::Backend::Ipip { direct_routing: *direct_routing }, Data::Nothing)
        }
        Backend::Udp { .. } => (flannel::Backend::Udp, Data::Nothing),
        Backend::Alloc | Backend::Extension(_) => (flannel::Backend::Alloc, Data::Nothing),
        Backend::Wireguard(options) => (flannel::Backend::Wireguard(options.clone()), Data::Wireguard),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::net::UnixStream;

    use russet_model::flannel::Attributes;

    use super::*;

    fn lease(announced: Announced) -> Lease {
        let attributes = Attributes {
            public_ip: [192, 0, 2, 7].into(),
            public_ipv6: None,
            backend_type: String::new(),
            backend_data: announced.data,
            backend_v6_data: announced.data_v6,
        };
        let key = SubnetKey { v4: "10.5.7.0/24".parse().ok(), v6: None };
        Lease { key, attributes: attributes.into(), expires: None }
    }

    /// A fabric whose thread has panicked.
    pub fn broken() -> KernelPart {
        let (near, _far) = UnixStream::pair().unwrap();
        let readable_fd = ReadableFd::new(&near).unwrap();
        KernelPart {
            fabric: FabricSlot::Lost,
            readable_fd,
            data: Data::Nothing,
            announced: Announced::default(),
        }
    }

    #[test]
    fn what_a_node_announces_is_what_its_peers_program() {
        // flannel.md sections 3.2, 6.2 and 6.5
        let end = |port| Some(WireguardEnd { public_key: "q83vEjRWeJA=".to_owned(), port: Some(port) });
        let prepared = Prepared {
            mac: [Some(Mac([2, 0, 0, 0, 0, 4])), Some(Mac([2, 0, 0, 0, 0, 6]))],
            wireguard: [end(51820), end(51821)],
            ..Prepared::default()
        };
        for (data, values) in [
            (Data::Vtep(1), Some(r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:04"}"#)),
            (Data::Wireguard, Some(r#"{"PublicKey":"q83vEjRWeJA=","Port":51820}"#)),
            (Data::Nothing, None),
        ] {
            let announced = announced(&prepared, data);
            assert_eq!(announced.data.as_deref(), values);
            let peer = peer(data, &lease(announced)).unwrap();
            assert_eq!(peer.mac, if data == Data::Vtep(1) { prepared.mac } else { [None, None] });
            let ends = if data == Data::Wireguard { prepared.wireguard.clone() } else { [None, None] };
            assert_eq!((peer.key().v4, peer.wireguard), ("10.5.7.0/24".parse().ok(), ends));
        }
    }

    #[test]
    fn a_lease_without_tunnel_data_is_no_peer() {
        for data in [None, Some("{}".to_owned()), Some("[".to_owned())] {
            let values = Announced { data, ..Announced::default() };
            assert!(peer(Data::Vtep(1), &lease(values.clone())).is_none());
            assert!(peer(Data::Wireguard, &lease(values.clone())).is_none());
            assert!(peer(Data::Nothing, &lease(values)).is_some());
        }
    }
}
