//! Which engine makes sandboxes, as the command line says.

use std::path::Path;

use russet_sandbox::{Builtin, Containerd, ContainerdOptions, Engine, usual_credentials};

use crate::cli::engine::{EngineArgs, EngineKind};

/// The engine of a run directory.
pub fn engine(args: &EngineArgs, run_dir: &Path) -> Box<dyn Engine> {
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
