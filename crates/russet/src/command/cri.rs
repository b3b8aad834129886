//! `russet cri`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use russet_agent::Paths;
use russet_linux::notify::ServiceManager;
use russet_runtime::{ConfigDir, Networks};
use russet_sandbox::cri::{Listener, Options};
use russet_sandbox::{Metrics, Sandboxes};
use serde_json::json;

use super::pods::PodPlaces;
use super::{Failure, logging, runtime, stop_signal};
use crate::cli::cri::{CgroupDriver, CriArgs};
use crate::owned::pods::Keeper;
use crate::settings::Logging;

/// How long a stopping server may still hold the sandboxes while it finishes requests.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(45);
/// Exists if systemd is the first process.
const SYSTEMD: &str = "/run/systemd/system";

/// Serves until SIGTERM or SIGINT.
pub fn run(args: CriArgs) -> Result<(), Failure> {
    logging::start(&Logging { level: args.log_level.clone(), format: args.log_format })?;
    let driver = driver(args.cgroup_driver);
    let health = args.health_address.0;
    let listen = match args.listen {
        Some(listen) => listen,
        None => Paths::new(&args.place.root).run_dir().join("cri.sock").display().to_string().parse()?,
    };
    let places = PodPlaces::from_args(args.place, Keeper::Cri);
    let tokio = runtime()?;
    let entered = tokio.enter();
    // First: a second server must not touch the sandboxes of the first one.
    let listener = Listener::open(&listen, TAKEOVER_TIMEOUT)?;
    let sandboxes = Arc::new(open(&places)?);
    let options = Options { cgroup_driver: driver, about: about(&places, &sandboxes), health };
    // Signal handlers are installed before readiness is announced: a stop request may follow at
    // once.
    let stop = async {
        let signal = stop_signal();
        let service_manager = ServiceManager::from_env();
        // `systemctl start` waits for it.
        service_manager.ready();
        tokio::spawn(async move { service_manager.keep_alive().await });
        match signal {
            Ok(signal) => signal.await,
            Err(error) => tracing::warn!(%error, "signals cannot be heard; the server stops"),
        }
    };
    drop(entered);
    let served = tokio.block_on(russet_sandbox::cri::serve(listener, sandboxes, options, stop));
    // A hanging plugin must not keep a stopped server from ending.
    tokio.shutdown_background();
    tracing::info!("the server stopped; sandboxes go on");
    Ok(served?)
}

fn driver(given: Option<CgroupDriver>) -> russet_sandbox::cri::CgroupDriver {
    match given {
        Some(CgroupDriver::Systemd) => russet_sandbox::cri::CgroupDriver::Systemd,
        Some(CgroupDriver::Cgroupfs) => russet_sandbox::cri::CgroupDriver::Cgroupfs,
        None if Path::new(SYSTEMD).exists() => russet_sandbox::cri::CgroupDriver::Systemd,
        None => russet_sandbox::cri::CgroupDriver::Cgroupfs,
    }
}

/// Acquires the sandboxes after the previous server has ended.
fn open(places: &PodPlaces) -> Result<Sandboxes, Failure> {
    let runtime = places.runtime();
    let networks = Networks::watch(ConfigDir::new(&places.conf_dir), runtime.clone())?;
    Ok(Sandboxes::open(russet_sandbox::Options {
        state_dir: places.state_dir.clone(),
        run_dir: places.run_dir.clone(),
        engine: places.engine(),
        runtime,
        networks: Box::new(networks),
        metrics: Metrics::new(),
        lock_timeout: TAKEOVER_TIMEOUT,
        on_waiting: |holder| {
            let timeout_s = TAKEOVER_TIMEOUT.as_secs();
            tracing::warn!(%holder, timeout_s, "another server holds the sandboxes; waiting until it has ended");
        },
    })?)
}

/// Describes how the server was started, for diagnostics.
fn about(places: &PodPlaces, sandboxes: &Sandboxes) -> serde_json::Value {
    json!({
        "engine": sandboxes.engine_name(),
        "stateDir": places.state_dir,
        "runDir": places.run_dir,
        "cniConfDir": places.conf_dir,
        "cniBinDirs": places.bin_dirs,
        "cniVendorPrefix": places.vendor_prefix,
        "cniCacheDir": places.cache_dir,
    })
}
