//! What carries packets between nodes: prepared before there is a lease, told of it, and then of the other nodes' leases. The kernel's part
//! is there for every backend, if only to remove what another one left; `udp` and `extension` add theirs. The loop calls this and knows no
//! backend.

mod commands;
mod fabric;
mod udp;

use std::sync::atomic::Ordering;

use russet_lease::Lease;
use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_overlay::Report;
use russet_overlay::flannel::Standing;

use crate::backend::{Backend, BackendError};
use crate::extension::CommandError;
use crate::health::Status;
use crate::interface::External;

use commands::Commands;
pub use fabric::Manner;
use fabric::Woven;
use udp::Relay;

/// A backend at work.
pub struct Carrier {
    woven: Woven,
    over: Over,
    announced: Announced,
}

/// What a backend has beside the kernel's part.
enum Over {
    /// Nothing.
    None,
    /// udp: we carry the packets.
    Udp(Box<Relay>),
    /// extension: the operator's commands.
    Commands(Box<Commands>),
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
    Backend(#[from] BackendError),
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
        manner: Manner,
    ) -> Result<Self, CarrierError> {
        if let (false, Some(_)) = (backend.carries_v6(), config.v6()) {
            let has = if config.v4().is_some() { "both" } else { "IPv6" };
            return Err(CarrierError::Family { backend: backend.name(), carries: "IPv4", has });
        }
        let mut data = None;
        let over = match backend {
            Backend::Udp { port } => Over::Udp(Box::new(Relay::new(*port, external, config, manner.guard)?)),
            Backend::Extension(extension) => {
                data = extension.before_lease().await?.map(|text| commands::json_string(&text));
                Over::Commands(Box::new(Commands::new(extension.clone(), external, config)))
            }
            _ => Over::None,
        };
        let (woven, mut announced) = Woven::open(backend, external, config, manner).await?;
        match &over {
            Over::Udp(relay) => announced.mtu = relay.mtu(),
            Over::Commands(_) => announced.data = data,
            Over::None => {}
        }
        Ok(Self { woven, over, announced })
    }

    /// What the lease should say, and pods' MTU.
    pub const fn announced(&self) -> &Announced {
        &self.announced
    }

    /// The devices that [`open`](Self::open) would make or adopt, as they stand; changes nothing. None where a daemon's end takes them with it.
    pub async fn survey(
        backend: &Backend,
        external: &External,
        config: &NetworkConfig,
    ) -> Result<Vec<Standing>, CarrierError> {
        match backend {
            Backend::Udp { .. } | Backend::Extension(_) | Backend::Alloc => Ok(Vec::new()),
            kernel => Woven::survey(kernel, external, config).await,
        }
    }

    /// Takes this node's subnets in.
    pub async fn own(&mut self, own: &SubnetKey, status: &Status) -> Result<(), CarrierError> {
        self.woven.own(own, status).await?;
        match &mut self.over {
            Over::None => Ok(()),
            Over::Udp(relay) => relay.own(own),
            Over::Commands(commands) => commands.own(own).await,
        }
    }

    /// Brings everything to exactly these leases; false when something is left to be tried again.
    pub async fn reset(&mut self, leases: Vec<Lease>, status: &Status) -> bool {
        status.resyncs.fetch_add(1, Ordering::Relaxed);
        let kernels: &[Lease] = if matches!(self.over, Over::None) { &leases } else { &[] };
        let woven = self.woven.reset(kernels, status).await;
        // Also where the kernel's part failed: nobody tells of these leases again.
        let over = match &mut self.over {
            Over::None => true,
            Over::Udp(relay) => relay.reset(&leases),
            Over::Commands(commands) => commands.reset(leases).await,
        };
        woven && over
    }

    /// Carries out what became of some leases; false when something is left to be tried again.
    pub async fn change(&mut self, gone: Vec<Lease>, put: Vec<Lease>, status: &Status) -> bool {
        match &mut self.over {
            Over::None => self.woven.change(&gone, &put, status).await,
            Over::Udp(relay) => relay.change(&gone, &put),
            Over::Commands(commands) => commands.change(gone, put).await,
        }
    }

    /// Resolves when something that is ours was changed by somebody else, or may have been.
    pub async fn stirred(&mut self) {
        match &mut self.over {
            Over::Udp(relay) => tokio::select! {
                () = self.woven.stirred() => {}
                () = relay.stirred() => {}
            },
            Over::None | Over::Commands(_) => self.woven.stirred().await,
        }
    }

    /// Compares with what should be, and puts right what is not: whether that succeeded, and whether the lease should say something else from
    /// now on, which is [`announced`](Self::announced).
    pub async fn resync(&mut self, status: &Status) -> (bool, bool) {
        status.resyncs.fetch_add(1, Ordering::Relaxed);
        let over = match &mut self.over {
            Over::Udp(relay) => relay.resync(status),
            Over::None | Over::Commands(_) => true,
        };
        let (woven, news) = self.woven.resync(status).await;
        let changed = news.is_some();
        if let Some(news) = news {
            self.announced = news;
        }
        (over && woven, changed)
    }
}

/// One line for each device that had to be made anew, with why.
fn note_replaced(replaced: &[String]) {
    for device in replaced {
        tracing::warn!(device, "a device was replaced; packets were lost meanwhile");
    }
}

/// Logs and counts how a run on the kernel went.
fn note(report: &Report, what: &str, status: &Status) {
    note_replaced(&report.replaced);
    for error in report.errors.iter().take(LOGGED_MAX) {
        tracing::warn!(%error, "{what}");
    }
    for refusal in &report.refusals {
        russet_store::refused("a lease is not programmed", format_args!("{:?}", refusal.subject), refusal);
    }
    let changed: usize = report.changed.values().sum();
    if changed > 0 || report.failed > 0 {
        tracing::info!(changed, failed = report.failed, "{what}");
    }
    status.failures.fetch_add(report.failed as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extension::Extension;
    use crate::testing::{external, lease};

    /// flannel.md section 6.8.
    #[tokio::test]
    #[ignore = "tool: touch, as a command of an operator"]
    async fn peers_are_told_of_also_where_the_kernels_part_failed() {
        let directory = tempfile::tempdir().unwrap();
        let subnet_add = format!("touch {}/$PUBLIC_IP", directory.path().display());
        let config = NetworkConfig::parse(br#"{"Network":"10.5.0.0/16"}"#).unwrap();
        let commands = Commands::new(Extension { subnet_add, ..Extension::default() }, &external(), &config);
        let over = Over::Commands(Box::new(commands));
        let mut carrier = Carrier { woven: fabric::tests::broken(), over, announced: Announced::default() };
        let peer = lease("10.5.7.0-24", "10.200.0.12", "extension");
        assert!(!carrier.reset(vec![peer], &Status::default()).await);
        assert!(directory.path().join("10.200.0.12").exists());
    }
}
