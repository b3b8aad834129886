//! Where sandboxes, networks and plugins are and what makes them, on the command lines of `russet cri` and `russet sandbox`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use russet_sandbox::ImageName;

/// Where everything is, and the engine.
#[derive(Debug, Args)]
pub struct PodPlaceArgs {
    /// Put networks, plugins, results and every file of ours that is not named otherwise below this directory. Which agent is asked, and which containerd, is
    /// said elsewhere: by the network's configuration and --containerd-address.
    #[arg(long, global = true, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Where network configurations are; the first that can be used is every pod's network [default: /etc/cni/net.d].
    #[arg(long, global = true, env = "RUSSET_CNI_CONF_DIR", value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Where plugins are looked for; may be given several times, or with colons [default: /opt/cni/bin].
    #[arg(long, global = true, env = "RUSSET_CNI_BIN_DIR", value_name = "DIR", value_delimiter = ':')]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Look for the plugins of a network in PREFIX/opt/<type of its first plugin>/bin before, for loopback also in PREFIX/opt/loopback/bin, as the first
    /// kubelets did; PREFIX is mostly /.
    #[arg(long, global = true, env = "RUSSET_CNI_VENDOR_PREFIX", value_name = "PREFIX")]
    pub vendor_prefix: Option<PathBuf>,
    /// Where results of ADD are kept, for other runtimes and for the agent's search for leaks, too [default: /var/lib/cni].
    #[arg(long, global = true, env = "RUSSET_CNI_CACHE_DIR", value_name = "DIR")]
    pub cni_cache_dir: Option<PathBuf>,
    /// What makes sandboxes.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// The engine, and what it needs to know.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// What makes sandboxes. Change it only while there are none.
    #[arg(
        long,
        global = true,
        env = "RUSSET_SANDBOX_ENGINE",
        default_value = "builtin",
        value_name = "ENGINE"
    )]
    pub engine: EngineKind,
    /// With the engine of containerd: the image of the process that holds a sandbox, pulled if it is not there.
    #[arg(long, global = true, env = "RUSSET_SANDBOX_IMAGE", default_value = DEFAULT_IMAGE, value_name = "IMAGE")]
    pub sandbox_image: ImageName,
    /// With the engine of containerd: where it listens.
    #[arg(
        long,
        global = true,
        env = "CONTAINERD_ADDRESS",
        default_value = "/run/containerd/containerd.sock",
        value_name = "SOCKET"
    )]
    pub containerd_address: PathBuf,
    /// With the engine of containerd: its namespace in which containers and images are.
    #[arg(long, global = true, env = "CONTAINERD_NAMESPACE", default_value = "russet", value_name = "NAME")]
    pub containerd_namespace: String,
    /// With the engine of containerd: what makes file systems.
    #[arg(
        long,
        global = true,
        env = "CONTAINERD_SNAPSHOTTER",
        default_value = "overlayfs",
        value_name = "NAME"
    )]
    pub containerd_snapshotter: String,
}

/// Engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// A small process of our own; needs no image and no other daemon.
    Builtin,
    /// A container of containerd.
    Containerd,
}

/// Kubernetes' own, which does nothing.
const DEFAULT_IMAGE: &str = "registry.k8s.io/pause:3.10";
