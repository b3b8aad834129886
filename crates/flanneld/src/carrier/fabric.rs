//! The kernel's part of every backend: joins `overlay`'s fabric to the loop. Its calls wait for the kernel, so they run on a thread for
//! that; what they cost the loop is the wait for the answer.

use std::sync::atomic::Ordering;

use russet_addr::{IfName, Mac};
use russet_lease::Lease;
use russet_model::flannel::{NetworkConfig, SubnetKey, Vtep, vtep_data};
use russet_overlay::Report;
use russet_overlay::flannel::{self, Fabric, Networks, Peer, PeerKey, Prepared, Standing, Underlay};

use super::{Announced, CarrierError, note};
use crate::backend::{Backend, BackendError};
use crate::ear::Ear;
use crate::health::Status;
use crate::interface::External;

/// A fabric and its ear.
pub struct Woven {
    /// Away while a thread works with it; for ever if that thread panicked.
    fabric: Option<Fabric>,
    ear: Ear,
    /// None where leases carry no data.
    vni: Option<u32>,
    announced: Announced,
}

// === impl Woven ===

impl Woven {
    /// Makes or adopts the devices.
    pub async fn open(
        backend: &Backend,
        external: &External,
        config: &NetworkConfig,
        swallow: bool,
    ) -> Result<(Self, Announced), CarrierError> {
        let (kind, vni) = kernel_backend(backend)?;
        let (underlay, networks) = (underlay(external)?, networks(config));
        for public in external.public() {
            kind.check_public(&underlay, public)?;
        }
        let made = tokio::task::spawn_blocking(move || {
            let mut fabric = Fabric::open(kind, underlay, networks)?;
            fabric.swallow_unknown(swallow);
            let prepared = fabric.prepare()?;
            Ok::<_, CarrierError>((fabric, prepared))
        });
        let (fabric, prepared) = made.await.map_err(|_panic| CarrierError::Broken)??;
        let ear = Ear::of(&fabric).map_err(CarrierError::Listen)?;
        let announced = announced(&prepared, vni);
        Ok((Self { fabric: Some(fabric), ear, vni, announced: announced.clone() }, announced))
    }

    /// What stands where the devices are to be; changes nothing.
    pub async fn survey(
        backend: &Backend,
        external: &External,
        config: &NetworkConfig,
    ) -> Result<Vec<Standing>, CarrierError> {
        let (kind, _) = kernel_backend(backend)?;
        let (underlay, networks) = (underlay(external)?, networks(config));
        let look = move || Fabric::open(kind, underlay, networks)?.survey();
        let looked = tokio::task::spawn_blocking(look).await;
        Ok(looked.map_err(|_panic| CarrierError::Broken)??)
    }

    /// Gives the devices their addresses.
    pub async fn own(&mut self, own: &SubnetKey, status: &Status) -> Result<(), CarrierError> {
        let own = *own;
        let report = self.work(move |fabric| fabric.own(own.v4, own.v6)).await?;
        note(&report, "devices have this node's subnet", status);
        Ok(())
    }

    /// All peers anew.
    pub async fn reset(&mut self, leases: &[Lease], status: &Status) -> bool {
        let peers = leases.iter().filter_map(|lease| self.peer(lease)).collect();
        let report = self.work(move |fabric| fabric.reset(peers)).await;
        settle(report, "the kernel has all leases", status)
    }

    /// Some peers.
    pub async fn change(&mut self, gone: &[Lease], put: &[Lease], status: &Status) -> bool {
        let mut gone: Vec<PeerKey> = gone.iter().map(|lease| key(&lease.key)).collect();
        let mut peers = Vec::with_capacity(put.len());
        for lease in put {
            match self.peer(lease) {
                Some(peer) => peers.push(peer),
                // It may have been usable before.
                None => gone.push(key(&lease.key)),
            }
        }
        let report = self.work(move |fabric| fabric.change(&gone, &peers)).await;
        settle(report, "the kernel has what changed of the leases", status)
    }

    /// Resolves when somebody else changed what is ours.
    pub async fn stirred(&mut self) {
        loop {
            if let Err(error) = self.ear.hears().await {
                tracing::error!(%error, "listen to the kernel");
                return std::future::pending().await;
            }
            match self.fabric.as_mut().map(Fabric::drifted) {
                Some(Ok(false)) => {}
                Some(Ok(true)) | None => return,
                Some(Err(error)) => {
                    tracing::warn!(%error, "hear what changed in the kernel");
                    return;
                }
            }
        }
    }

    /// Puts right what is not as it should be.
    pub async fn resync(&mut self, status: &Status) -> Option<Announced> {
        let work = self.work(|fabric| (fabric.resync(), fabric.prepared())).await;
        let (report, prepared) = match work {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "compare the kernel with the leases");
                return None;
            }
        };
        note(&report, "the kernel was not as it should be", status);
        status.repairs.fetch_add(report.changed.values().sum::<usize>() as u64, Ordering::Relaxed);
        let announced = Announced { mtu: self.announced.mtu, ..announced(&prepared, self.vni) };
        (self.vni.is_some() && announced != self.announced).then(|| {
            self.announced = announced.clone();
            announced
        })
    }

    /// Runs on a thread for it.
    async fn work<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Fabric) -> T + Send + 'static,
    ) -> Result<T, CarrierError> {
        let mut fabric = self.fabric.take().ok_or(CarrierError::Broken)?;
        let done = tokio::task::spawn_blocking(move || {
            let result = what(&mut fabric);
            (fabric, result)
        });
        let (fabric, result) = done.await.map_err(|_panic| CarrierError::Broken)?;
        self.fabric = Some(fabric);
        Ok(result)
    }

    /// The lease as the kernel needs it; none when it lacks what that takes.
    fn peer(&self, lease: &Lease) -> Option<Peer> {
        let attributes = &lease.attributes;
        let mac = |data: &Option<String>| {
            data.as_deref().and_then(|data| Vtep::from_json(data).ok()).map(|vtep| vtep.mac)
        };
        let mac: [Option<Mac>; 2] = match self.vni {
            Some(_) => [mac(&attributes.backend_data), mac(&attributes.backend_v6_data)],
            None => [None, None],
        };
        if self.vni.is_some() && mac == [None, None] {
            tracing::warn!(subnet = %lease.key, "a lease has no VTEP MAC and is not programmed");
            return None;
        }
        Some(Peer {
            subnet: lease.key.v4,
            subnet_v6: lease.key.v6,
            public_ip: attributes.public_ip,
            public_ipv6: attributes.public_ipv6,
            mac,
            wireguard: [None, None],
        })
    }
}

fn settle(report: Result<Report, CarrierError>, what: &str, status: &Status) -> bool {
    match report {
        Ok(report) => {
            note(&report, what, status);
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

fn announced(prepared: &Prepared, vni: Option<u32>) -> Announced {
    let data = |mac: Option<Mac>| Some(vtep_data(vni?, mac?));
    Announced { data: data(prepared.mac[0]), data_v6: data(prepared.mac[1]), mtu: prepared.mtu }
}

/// The backend as `overlay` has it, and the number of its network.
fn kernel_backend(backend: &Backend) -> Result<(flannel::Backend, Option<u32>), CarrierError> {
    match backend {
        Backend::Vxlan(vxlan) => {
            let options = flannel::Vxlan {
                vni: vxlan.vni,
                port: vxlan.port,
                gbp: vxlan.gbp,
                direct_routing: vxlan.direct_routing,
                learning: vxlan.learning,
                mtu: vxlan.mtu,
                mac: [None, None],
            };
            Ok((flannel::Backend::Vxlan(options), Some(vxlan.vni)))
        }
        Backend::HostGw => Ok((flannel::Backend::HostGw, None)),
        Backend::Ipip { direct_routing } => {
            Ok((flannel::Backend::Ipip { direct_routing: *direct_routing }, None))
        }
        Backend::Udp { .. } => Ok((flannel::Backend::Udp, None)),
        Backend::Alloc | Backend::Extension(_) => Ok((flannel::Backend::Alloc, None)),
        Backend::Wireguard(_) => {
            let reason = "this version makes no such tunnel; use vxlan";
            Err(BackendError::Refused { kind: "wireguard", reason }.into())
        }
    }
}
