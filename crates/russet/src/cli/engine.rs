//! What makes sandboxes, on the command lines of `russet cri` and `russet sandbox`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use russet_sandbox::ImageName;

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
