//! Transports packets between nodes: it is prepared before there is a lease, then gets this node's
//! lease and those of the other nodes. The kernel's part runs for every backend, if only to remove
//! what another backend left; `udp` and `extension` add their own. The daemon's loop is independent
//! of the backend.

mod commands;
mod fabric;
mod udp;

use std::sync::atomic::Ordering;

use russet_lease::Lease;
use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_overlay::ReconcileReport;
use russet_overlay::fast_path::FastPathMode;
use russet_overlay::flannel::ExistingDevice;

use crate::backend::{Backend, BackendError};
use crate::extension::CommandError;
use crate::health::Status;
use crate::interface::External;
use crate::udp::UdpError;

use commands::Commands;
pub use fabric::FabricOptions;
use fabric::KernelPart;
use udp::Relay;

/// A running backend.
pub struct Carrier {
    kernel_part: KernelPart,
    userspace: UserspacePart,
    announced: Announced,
}

/// The part of a backend outside of the kernel.
enum UserspacePart {
    None,
    /// udp: this process forwards the packets.
    Udp(Box<Relay>),
    /// extension: the operator's commands.
    Commands(Box<Commands>),
}

/// The data that a node publishes with its lease, and its pods' MTU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announced {
    /// `BackendData`.
    pub data: Option<String>,
    /// `BackendV6Data`.
    pub data_v6: Option<String>,
    /// The MTU of pods in bytes.
    pub mtu: u32,
}

/// Why a backend cannot work.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// The kernel's side.
    #[error(transparent)]
    Fabric(#[from] russet_overlay::flannel::FlannelError),
    /// The userspace proxy of udp.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The userspace proxy cannot run here.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A command of backend extension failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The interface's name is invalid.
    #[error(transparent)]
    Name(#[from] russet_addr::NameError),
    /// The network has IPv6 and the backend carries none, or it has no IPv4.
    #[error("backend {backend} carries {carries} only, and the network has {has}")]
    Family {
        backend: &'static str,
        /// The families that it carries.
        carries: &'static str,
        /// The families that are configured.
        has: &'static str,
    },
    /// The underlay's MTU is too small for the tunnel's overhead.
    #[error("MTU {0} of the interface leaves no room for the tunnel")]
    Mtu(u32),
    /// Listening to the kernel failed.
    #[error("listen to the kernel: {0}")]
    Listen(#[source] std::io::Error),
    /// The thread that works on the kernel panicked.
    #[error("the thread that works on the kernel ended early")]
    Broken,
}

/// Limit of the errors of one report that are logged: thousands usually have the same cause.
const LOGGED_MAX: usize = 8;

// === impl Carrier ===

impl Carrier {
    /// Prepares everything that does not need a lease.
    pub async fn open(
        backend: &Backend,
        external: &External,
        config: &NetworkConfig,
        options: FabricOptions,
    ) -> Result<Self, CarrierError> {
        if let (false, Some(_)) = (backend.carries_v6(), config.v6()) {
            let has = if config.v4().is_some() { "both" } else { "IPv6" };
            return Err(CarrierError::Family { backend: backend.name(), carries: "IPv4", has });
        }
        if options.fast_path != FastPathMode::Off && !matches!(backend, Backend::Udp { .. }) {
            tracing::warn!(backend = backend.name(), "there is no fast path for this backend");
        }
        let mut data = None;
        let userspace = match backend {
            Backend::Udp { port } => {
                UserspacePart::Udp(Box::new(Relay::new(*port, external, config, options)?))
            }
            Backend::Extension(extension) => {
                data = extension.before_lease().await?.map(|text| commands::json_string(&text));
                UserspacePart::Commands(Box::new(Commands::new(extension.clone(), external, config)))
            }
            _ => UserspacePart::None,
        };
        let (kernel_part, mut announced) = KernelPart::open(backend, external, config, options).await?;
        match &userspace {
            UserspacePart::Udp(relay) => announced.mtu = relay.mtu(),
            UserspacePart::Commands(_) => announced.data = data,
            UserspacePart::None => {}
        }
        Ok(Self { kernel_part, userspace, announced })
    }

    /// The data for the lease, and pods' MTU.
    pub const fn announced(&self) -> &Announced {
        &self.announced
    }

    /// The existing state of the devices that [`open`](Self::open) would create or adopt; changes
    /// nothing. Empty where they vanish with their daemon.
    pub async fn survey(
        backend: &Backend,
        external: &External,
        config: &NetworkConfig,
    ) -> Result<Vec<ExistingDevice>, CarrierError> {
        match backend {
            Backend::Udp { .. } | Backend::Extension(_) | Backend::Alloc => Ok(Vec::new()),
            kernel => KernelPart::survey(kernel, external, config).await,
        }
    }

    /// Applies this node's own subnets.
    pub async fn own(&mut self, own: &SubnetKey, status: &Status) -> Result<(), CarrierError> {
        self.kernel_part.own(own, status).await?;
        match &mut self.userspace {
            UserspacePart::None => Ok(()),
            UserspacePart::Udp(relay) => {
                relay.own(own, status)?;
                self.announced.data = relay.data();
                Ok(())
            }
            UserspacePart::Commands(commands) => commands.own(own).await,
        }
    }

    /// Brings everything to exactly these leases; false if something must be tried again.
    pub async fn reset(&mut self, leases: Vec<Lease>, status: &Status) -> bool {
        status.resyncs.fetch_add(1, Ordering::Relaxed);
        let kernels: &[Lease] = if matches!(self.userspace, UserspacePart::None) { &leases } else { &[] };
        let kernel_part = self.kernel_part.reset(kernels, status).await;
        // Also after a failure of the kernel's part: these leases are not delivered again.
        let userspace = match &mut self.userspace {
            UserspacePart::None => true,
            UserspacePart::Udp(relay) => relay.reset(&leases),
            UserspacePart::Commands(commands) => commands.reset(leases).await,
        };
        kernel_part && userspace
    }

    /// Applies changes of some leases; false if something must be tried again.
    pub async fn change(&mut self, gone: Vec<Lease>, put: Vec<Lease>, status: &Status) -> bool {
        match &mut self.userspace {
            UserspacePart::None => self.kernel_part.change(&gone, &put, status).await,
            UserspacePart::Udp(relay) => relay.change(&gone, &put),
            UserspacePart::Commands(commands) => commands.change(gone, put).await,
        }
    }

    /// Resolves when another program changed our objects, or may have.
    pub async fn changed_externally(&mut self) {
        match &mut self.userspace {
            UserspacePart::Udp(relay) => tokio::select! {
                () = self.kernel_part.changed_externally() => {}
                () = relay.changed_externally() => {}
            },
            UserspacePart::None | UserspacePart::Commands(_) => self.kernel_part.changed_externally().await,
        }
    }

    /// Compares the actual with the desired state and repairs the difference. Returns whether that
    /// succeeded, and whether the lease data changed, which [`announced`](Self::announced) returns.
    pub async fn resync(&mut self, status: &Status) -> (bool, bool) {
        status.resyncs.fetch_add(1, Ordering::Relaxed);
        let before = self.announced.clone();
        let userspace = match &mut self.userspace {
            UserspacePart::Udp(relay) => {
                let done = relay.resync(status);
                self.announced.data = relay.data();
                done
            }
            UserspacePart::None | UserspacePart::Commands(_) => true,
        };
        let (kernel_part, news) = self.kernel_part.resync(status).await;
        if let Some(news) = news {
            self.announced = news;
        }
        (userspace && kernel_part, self.announced != before)
    }
}

/// Logs each device that had to be created anew, with the reason.
fn log_replaced(replaced: &[String]) {
    for device in replaced {
        tracing::warn!(device, "a device was replaced; packets were lost meanwhile");
    }
}

/// Logs and counts the result of a run on the kernel.
fn log_report(report: &ReconcileReport, what: &str, status: &Status) {
    log_replaced(&report.replaced);
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
    async fn peers_are_passed_to_commands_even_if_the_kernels_part_failed() {
        let directory = tempfile::tempdir().unwrap();
        let subnet_add = format!("touch {}/$PUBLIC_IP", directory.path().display());
        let config = NetworkConfig::parse(br#"{"Network":"10.5.0.0/16"}"#).unwrap();
        let commands = Commands::new(Extension { subnet_add, ..Extension::default() }, &external(), &config);
        let userspace = UserspacePart::Commands(Box::new(commands));
        let mut carrier =
            Carrier { kernel_part: fabric::tests::broken(), userspace, announced: Announced::default() };
        let peer = lease("10.5.7.0-24", "10.200.0.12", "extension");
        assert!(!carrier.reset(vec![peer], &Status::default()).await);
        assert!(directory.path().join("10.200.0.12").exists());
    }
}
