//! The directories of sandboxes, networks and plugins, and the engine, by the command line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use russet_agent::Paths;
use russet_runtime::Runtime;
use russet_sandbox::{Builtin, Containerd, ContainerdOptions, Engine, usual_credentials};

use crate::cli::pods::{EngineArgs, EngineKind, PodPlaceArgs};
use crate::in_process::EmbeddedPlugins;
use crate::owned::pods::Keeper;

/// The directories of one keeper of sandboxes.
pub struct PodPlaces {
    pub conf_dir: PathBuf,
    pub bin_dirs: Vec<PathBuf>,
    /// The prefix below which networks have plugins of their own, which are preferred.
    pub vendor_prefix: Option<PathBuf>,
    /// Results of ADD.
    pub cache_dir: PathBuf,
    /// Files that survive a reboot.
    pub state_dir: PathBuf,
    /// Files that do not survive a reboot.
    pub run_dir: PathBuf,
    engine: EngineArgs,
}

// === impl PodPlaces ===

impl PodPlaces {
    /// The directories of the command line, with the defaults.
    pub fn from_args(args: PodPlaceArgs, keeper: Keeper) -> Self {
        let below = |path: &str| args.root.join(path);
        let paths = Paths::new(&args.root);
        let bin_dirs = match args.cni_bin_dir.is_empty() {
            true => vec![below("opt/cni/bin")],
            false => args.cni_bin_dir,
        };
        Self {
            conf_dir: args.cni_conf_dir.unwrap_or_else(|| below("etc/cni/net.d")),
            bin_dirs,
            vendor_prefix: args.vendor_prefix,
            cache_dir: args.cni_cache_dir.unwrap_or_else(|| below("var/lib/cni")),
            state_dir: keeper.state_dir(&paths),
            run_dir: keeper.run_dir(&paths),
            engine: args.engine,
        }
    }

    /// The runtime that executes plugins, Russet's own without a process.
    pub fn runtime(&self) -> Runtime {
        let mut runtime = Runtime::new(self.bin_dirs.clone(), &self.cache_dir);
        runtime.in_process = Some(Arc::new(EmbeddedPlugins));
        runtime.vendor_prefix.clone_from(&self.vendor_prefix);
        runtime
    }

    /// The engine that makes sandboxes.
    pub fn engine(&self) -> Box<dyn Engine> {
        engine(&self.engine, &self.run_dir)
    }
}

fn engine(args: &EngineArgs, run_dir: &Path) -> Box<dyn Engine> {
    match args.engine {
        EngineKind::Builtin => Box::new(Builtin::new(run_dir)),
        EngineKind::Containerd => {
            let options = ContainerdOptions {
                socket: args.containerd_address.clone(),
                namespace: args.containerd_namespace.clone(),
                snapshotter: args.containerd_snapshotter.clone(),
                image: args.sandbox_image.clone(),
                credentials: usual_credentials(),
            };
            Box::new(Containerd::new(run_dir, options))
        }
    }
}
