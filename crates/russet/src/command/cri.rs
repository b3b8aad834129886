//! `russet cri`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use russet_agent::Paths;
use russet_cri::{Address, Door, Options};
use russet_linux::notify;
use russet_runtime::{ConfigDir, Networks, Runtime};
use russet_sandbox::{Metrics, Sandboxes};
use serde_json::json;

use super::engine::engine;
use super::{Failure, logging, runtime, stop_signal};
use crate::cli::cri::{CgroupDriver, CriArgs};
use crate::cli::engine::EngineArgs;
use crate::in_process::Ours;
use crate::owned::pods::Keeper;
use crate::settings::Logging;

/// Where everything is.
struct Places {
    listen: Address,
    conf_dir: PathBuf,
    bin_dirs: Vec<PathBuf>,
    cache_dir: PathBuf,
    state_dir: PathBuf,
    run_dir: PathBuf,
    engine: EngineArgs,
}

/// A server that was told to stop may still hold the sandboxes for as long as it brings to an end what is under way.
const TAKEOVER_PATIENCE: Duration = Duration::from_secs(45);
/// There where systemd is the first process.
const SYSTEMD: &str = "/run/systemd/system";

/// Serves until SIGTERM or SIGINT.
pub fn run(args: CriArgs) -> Result<(), Failure> {
    logging::start(&Logging { level: args.log_level.clone(), format: args.log_format })?;
    let driver = driver(args.cgroup_driver);
    let health = args.health_address.0;
    let places = Places::of(args)?;
    let tokio = runtime()?;
    let entered = tokio.enter();
    // First: a second server must not touch the sandboxes of the first one.
    let door = Door::open(&places.listen, TAKEOVER_PATIENCE)?;
    let sandboxes = Arc::new(places.open()?);
    let options = Options { cgroup_driver: driver, about: places.about(&sandboxes), health };
    // Asked for first when it is served.
    let stop = async {
        tell_service_manager();
        match stop_signal() {
            Ok(asked) => asked.await,
            Err(error) => tracing::warn!(%error, "signals cannot be heard; the server stops"),
        }
    };
    drop(entered);
    let served = tokio.block_on(russet_cri::serve(door, sandboxes, options, stop));
    // What hangs in a plugin does not keep a server that was told to end.
    tokio.shutdown_background();
    tracing::info!("the server stopped; sandboxes go on");
    Ok(served?)
}

/// `systemctl start` waits for it.
fn tell_service_manager() {
    if let Some(Err(error)) = notify::socket().map(|socket| notify::ready(&socket)) {
        tracing::warn!(%error, "tell the service manager that the server is ready");
    }
}

fn driver(given: Option<CgroupDriver>) -> russet_cri::CgroupDriver {
    match given {
        Some(CgroupDriver::Systemd) => russet_cri::CgroupDriver::Systemd,
        Some(CgroupDriver::Cgroupfs) => russet_cri::CgroupDriver::Cgroupfs,
        None if Path::new(SYSTEMD).exists() => russet_cri::CgroupDriver::Systemd,
        None => russet_cri::CgroupDriver::Cgroupfs,
    }
}

// === impl Places ===

impl Places {
    fn of(args: CriArgs) -> Result<Self, Failure> {
        let paths = Paths::new(&args.root);
        let below = |path: &str| args.root.join(path);
        let listen = match args.listen {
            Some(listen) => listen,
            None => paths.run_dir().join("cri.sock").display().to_string().parse()?,
        };
        let bin_dirs = match args.cni_bin_dir.is_empty() {
            true => vec![below("opt/cni/bin")],
            false => args.cni_bin_dir,
        };
        Ok(Self {
            listen,
            conf_dir: args.cni_conf_dir.unwrap_or_else(|| below("etc/cni/net.d")),
            bin_dirs,
            cache_dir: args.cache_dir.unwrap_or_else(|| below("var/lib/cni")),
            state_dir: Keeper::Cri.state_dir(&paths),
            run_dir: Keeper::Cri.run_dir(&paths),
            engine: args.engine,
        })
    }

    /// Takes the sandboxes over from the server before this one.
    fn open(&self) -> Result<Sandboxes, Failure> {
        let mut runtime = Runtime::new(self.bin_dirs.clone(), &self.cache_dir);
        runtime.in_process = Some(Arc::new(Ours));
        let networks = Networks::watch(ConfigDir::new(&self.conf_dir), runtime.clone())?;
        Ok(Sandboxes::open(russet_sandbox::Options {
            state_dir: self.state_dir.clone(),
            run_dir: self.run_dir.clone(),
            engine: engine(&self.engine, &self.run_dir),
            runtime,
            networks: Box::new(networks),
            metrics: Metrics::new(),
            patience: TAKEOVER_PATIENCE,
            tell_waiting: |holder| {
                let patience_s = TAKEOVER_PATIENCE.as_secs();
                tracing::warn!(%holder, patience_s, "the sandboxes are another server's; waiting until that has ended");
            },
        })?)
    }

    /// For people who ask how the server was started.
    fn about(&self, sandboxes: &Sandboxes) -> serde_json::Value {
        json!({
            "engine": sandboxes.engine_name(),
            "stateDir": self.state_dir,
            "runDir": self.run_dir,
            "cniConfDir": self.conf_dir,
            "cniBinDirs": self.bin_dirs,
            "cniCacheDir": self.cache_dir,
        })
    }
}
