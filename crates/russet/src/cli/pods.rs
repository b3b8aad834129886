//! Directories of networks and plugins, and the engine, on the command lines of `russet cri` and
//! `russet sandbox`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use russet_sandbox::ImageName;

#[derive(Debug, Args)]
pub struct PodPlaceArgs {
    /// Put networks, plugins, results and every file of Russet that has no option of its own below
    /// this directory. The agent and containerd are named elsewhere: in the network's configuration
    /// and in --containerd-address.
    #[arg(long, global = true, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Where network configurations are; the first valid one is every pod's network [default:
    /// /etc/cni/net.d].
    #[arg(long, global = true, env = "RUSSET_CNI_CONF_DIR", value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Where plugins are looked for; may be given several times, or with colons [default: /opt/cni/bin].
    #[arg(long, global = true, env = "RUSSET_CNI_BIN_DIR", value_name = "DIR", value_delimiter = ':')]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Look for the plugins of a network first in PREFIX/opt/<type of its first plugin>/bin, for
    /// loopback also in PREFIX/opt/loopback/bin, as the first kubelets did. PREFIX is usually /.
    #[arg(long, global = true, env = "RUSSET_CNI_VENDOR_PREFIX", value_name = "PREFIX")]
    pub vendor_prefix: Option<PathBuf>,
    /// Where results of ADD are kept, also for other runtimes and for the agent's search for leaks
    /// [default: /var/lib/cni].
    #[arg(long, global = true, env = "RUSSET_CNI_CACHE_DIR", value_name = "DIR")]
    pub cni_cache_dir: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// The engine and its settings.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// The program that makes sandboxes. Change it only while there are none.
    #[arg(
        long,
        global = true,
        env = "RUSSET_SANDBOX_ENGINE",
        default_value = "builtin",
        value_name = "ENGINE"
    )]
    pub engine: EngineKind,
    /// With the engine containerd: the image of the process that holds a sandbox, pulled if it is
    /// missing.
    #[arg(long, global = true, env = "RUSSET_SANDBOX_IMAGE", default_value = DEFAULT_IMAGE, value_name = "IMAGE")]
    pub sandbox_image: ImageName,
    /// With the engine containerd: its socket.
    #[arg(
        long,
        global = true,
        env = "CONTAINERD_ADDRESS",
        default_value = "/run/containerd/containerd.sock",
        value_name = "SOCKET"
    )]
    pub containerd_address: PathBuf,
    /// With the engine containerd: its namespace for containers and images.
    #[arg(long, global = true, env = "CONTAINERD_NAMESPACE", default_value = "russet", value_name = "NAME")]
    pub containerd_namespace: String,
    /// With the engine containerd: its snapshotter, which makes file systems.
    #[arg(
        long,
        global = true,
        env = "CONTAINERD_SNAPSHOTTER",
        default_value = "overlayfs",
        value_name = "NAME"
    )]
    pub containerd_snapshotter: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// A small process of Russet; needs no image and no other daemon.
    Builtin,
    /// A container of containerd.
    Containerd,
}

/// Kubernetes' pause image, whose program only waits.
const DEFAULT_IMAGE: &str = "registry.k8s.io/pause:3.10";
