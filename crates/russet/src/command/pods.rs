//! Where sandboxes, networks and plugins are, and which engine makes sandboxes, as the command line says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use russet_agent::Paths;
use russet_runtime::Runtime;
use russet_sandbox::{Builtin, Containerd, ContainerdOptions, Engine, usual_credentials};

use crate::cli::pods::{EngineArgs, EngineKind, PodPlaceArgs};
use crate::in_process::Ours;
use crate::owned::pods::Keeper;

/// Where everything is, for one keeper of sandboxes.
pub struct PodPlaces {
    /// Of network configurations.
    pub conf_dir: PathBuf,
    /// Of plugins.
    pub bin_dirs: Vec<PathBuf>,
    /// Below which vendors of networks have plugins of their own, which come first.
    pub vendor_prefix: Option<PathBuf>,
    /// Of results of ADD.
    pub cache_dir: PathBuf,
    /// Of what outlives a boot.
    pub state_dir: PathBuf,
    /// Of what does not.
    pub run_dir: PathBuf,
    engine: EngineArgs,
}

// === impl PodPlaces ===

impl PodPlaces {
    /// Those of the command line, with the usual ones where it is silent.
    pub fn of(args: PodPlaceArgs, keeper: Keeper) -> Self {
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

    /// What executes plugins, ours without a process of their own.
    pub fn runtime(&self) -> Runtime {
        let mut runtime = Runtime::new(self.bin_dirs.clone(), &self.cache_dir);
        runtime.in_process = Some(Arc::new(Ours));
        runtime.vendor_prefix.clone_from(&self.vendor_prefix);
        runtime
    }

    /// What makes sandboxes.
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
