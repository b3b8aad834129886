//! The command line of `russet cri`.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use russet_sandbox::cri::Address;

use super::LogFormat;
use super::pods::PodPlaceArgs;

/// What `--help` ends with.
pub const EXAMPLES: &str = "Examples:
  russet cri                                          serves unix:///run/russet/cri.sock
  russet cri --listen unix:///run/x/cri.sock --cni-conf-dir /tmp/net.d --cni-bin-dir /usr/lib/cni
  russet cri --engine containerd --sandbox-image registry.example:5000/pause:1
  crictl --runtime-endpoint unix:///run/russet/cri.sock runp pod.json
  crictl --runtime-endpoint unix:///run/russet/cri.sock pods

Sandboxes outlive the server, and the next one takes them over. Containers and images are not served. More: docs/cri.md.";

#[derive(Debug, Args)]
pub struct CriArgs {
    #[command(flatten)]
    pub place: PodPlaceArgs,
    /// Where to listen [default: unix:///run/russet/cri.sock].
    #[arg(long, env = "RUSSET_CRI_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<Address>,
    /// The cgroup driver that kubelet must use; by default systemd where it runs, and cgroupfs
    /// elsewhere.
    #[arg(long, env = "RUSSET_CGROUP_DRIVER", value_name = "DRIVER")]
    pub cgroup_driver: Option<CgroupDriver>,
    /// Where /healthz, /readyz and /metrics are served: IP:PORT, unix:PATH, or `off`. The service
    /// of `russet install --with cri` sets 127.0.0.1:9472.
    #[arg(long, env = "RUSSET_CRI_HEALTH_ADDRESS", default_value = "off", value_name = "ADDRESS")]
    pub health_address: HealthAddress,
    /// How much to log: error, warn, info, debug, trace, or a filter such as info,russet_agent=debug.
    #[arg(long, env = "RUSSET_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    pub log_level: String,
    /// Log as text or as JSON.
    #[arg(long, env = "RUSSET_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// The listening address for health and metrics; `None` is `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthAddress(pub Option<russet_agent::HealthAddress>);

/// Neither an address nor `off`.
#[derive(Debug, thiserror::Error)]
#[error("wanted: an address and a port, as in 127.0.0.1:9472, unix: and the path of a socket, or off")]
pub struct HealthAddressError;

// === impl HealthAddress ===

impl FromStr for HealthAddress {
    type Err = HealthAddressError;

    fn from_str(text: &str) -> Result<Self, HealthAddressError> {
        match text {
            "off" => Ok(Self(None)),
            _ => text.parse().map(|address| Self(Some(address))).map_err(|_| HealthAddressError),
        }
    }
}

/// The cgroup driver that kubelet uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CgroupDriver {
    /// systemd creates slices.
    Systemd,
    /// kubelet and Russet create cgroups by writing to the kernel's files.
    Cgroupfs,
}
