//! What carries packets between nodes, one kind a file behind one interface: prepared before there is a lease, told of it, and then of the
//! other nodes' leases. The loop in `run` calls it and knows no kind.

mod commands;
mod fabric;
mod udp;

use std::sync::atomic::Ordering;

use russet_lease::Lease;
use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_overlay::Report;

use crate::backend::Backend;
use crate::extension::CommandError;
use crate::health::Status;
use crate::interface::External;

use commands::Commands;
use fabric::Woven;
use udp::Relay;

/// A backend at work.
pub enum Carrier {
    /// vxlan, host-gw, ipip and wireguard: the kernel does it.
    Fabric(Box<Woven>),
    /// udp: we do it.
    Udp(Box<Relay>),
    /// extension: the operator's commands do it.
    Commands(Box<Commands>),
    /// alloc: nobody does it.
    None,
}

/// What a node tells with its lease, and its pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announced {
    /// `BackendData`.
    pub data: Option<String>,
    /// `BackendV6Data`.
    pub data_v6: Option<String>,
    /// Of pods, bytes.
    pub mtu: u32,
}

/// A backend that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// The kernel's side.
    #[error(transparent)]
    Fabric(#[from] russet_overlay::flannel::FlannelError),
    /// The userspace side of udp.
    #[error(transparent)]
    Udp(#[from] russet_overlay::udp::UdpError),
    /// What this version cannot do.
    #[error(transparent)]
    Backend(#[from] crate::backend::BackendError),
    /// A command of extension.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The interface's name.
    #[error(transparent)]
    Name(#[from] russet_addr::NameError),
    /// IPv6 where the backend carries none, or no IPv4.
    #[error("backend {backend} carries {carries} only, and the network has {has}")]
    Family {
        /// The backend.
        backend: &'static str,
        /// What it carries.
        carries: &'static str,
        /// What is configured.
        has: &'static str,
    },
    /// Nothing is left of the underlay's MTU.
    #[error("MTU {0} of the interface leaves no room for the tunnel")]
    Mtu(u32),
    /// Listening to the kernel.
    #[error("listen to the kernel: {0}")]
    Listen(#[source] std::io::Error),
    /// The work on the kernel broke off.
    #[error("the thread that works on the kernel ended early")]
    Broken,
}

/// Errors of one report that are logged: the rest of thousands would say the same.
const LOGGED_MAX: usize = 8;

// === impl Carrier ===

impl Carrier {
    /// Makes ready what can be made ready without a lease.
    pub async fn open(
        backend: &Backend,
        external: &External,
        config: &NetworkConfig,
    ) -> Result<(Self, Announced), CarrierError> {
        if let (false, Some(_)) = (backend.carries_v6(), config.v6()) {
            let has = if config.v4().is_some() { "both" } else { "IPv6" };
            return Err(CarrierError::Family { backend: backend.name(), carries: "IPv4", has });
        }
        match backend {
            Backend::Udp { port } => {
                let relay = Relay::new(*port, external, config)?;
                let announced = Announced { mtu: relay.mtu(), ..Announced::default() };
                Ok((Self::Udp(Box::new(relay)), announced))
            }
            Backend::Extension(extension) => {
                let data = extension.before_lease().await?;
                let commands = Commands::new(extension.clone(), external, config);
                let data = data.map(|text| commands::json_string(&text));
                let announced = Announced { data, data_v6: None, mtu: external.mtu };
                Ok((Self::Commands(Box::new(commands)), announced))
            }
            Backend::Alloc => {
                let announced = Announced { mtu: external.mtu, ..Announced::default() };
                Ok((Self::None, announced))
            }
            kernel => {
                let (woven, announced) = Woven::open(kernel, external, config).await?;
                Ok((Self::Fabric(Box::new(woven)), announced))
            }
        }
    }

    /// Takes this node's subnets in.
    pub async fn own(&mut self, own: &SubnetKey, status: &Status) -> Result<(), CarrierError> {
        match self {
            Self::Fabric(woven) => woven.own(own, status).await,
            Self::Udp(relay) => relay.own(own),
            Self::Commands(commands) => commands.own(own).await,
            Self::None => Ok(()),
        }
    }

    /// Brings everything to exactly these leases; false when something is left to be tried again.
    pub async fn reset(&mut self, leases: Vec<Lease>, status: &Status) -> bool {
        status.resyncs.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::Fabric(woven) => woven.reset(&leases, status).await,
            Self::Udp(relay) => relay.reset(&leases),
            Self::Commands(commands) => commands.reset(leases).await,
            Self::None => true,
        }
    }

    /// Carries out what became of some leases; false when something is left to be tried again.
    pub async fn change(&mut self, gone: Vec<Lease>, put: Vec<Lease>, status: &Status) -> bool {
        match self {
            Self::Fabric(woven) => woven.change(&gone, &put, status).await,
            Self::Udp(relay) => relay.change(&gone, &put),
            Self::Commands(commands) => commands.change(gone, put).await,
            Self::None => true,
        }
    }

    /// Resolves when something that is ours was changed by somebody else, or may have been.
    pub async fn stirred(&mut self) {
        match self {
            Self::Fabric(woven) => woven.stirred().await,
            Self::Udp(relay) => relay.stirred().await,
            Self::Commands(_) | Self::None => std::future::pending().await,
        }
    }

    /// Compares with what should be, and puts right what is not. Answers with what the lease should say from now on, if that changed.
    pub async fn resync(&mut self, status: &Status) -> Option<Announced> {
        status.resyncs.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::Fabric(woven) => woven.resync(status).await,
            Self::Udp(relay) => {
                relay.resync(status);
                None
            }
            Self::Commands(_) | Self::None => None,
        }
    }
}

/// Logs and counts how a run on the kernel went.
fn note(report: &Report, what: &str, status: &Status) {
    for error in report.errors.iter().take(LOGGED_MAX) {
        tracing::warn!(%error, "{what}");
    }
    for refusal in report.refusals.iter().take(LOGGED_MAX) {
        tracing::warn!(%refusal, "{what}: a lease is not programmed");
    }
    let changed: usize = report.changed.values().sum();
    if changed > 0 || report.failed > 0 {
        tracing::info!(changed, failed = report.failed, "{what}");
    }
    status.failures.fetch_add(report.failed as u64, Ordering::Relaxed);
}
