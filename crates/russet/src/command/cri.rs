//! `russet cri`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use russet_agent::Paths;
use russet_cri::{Listener, Options};
use russet_linux::notify;
use russet_runtime::{ConfigDir, Networks};
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
        notify_service_manager();
        tokio::spawn(notify_watchdog());
        match signal {
            Ok(signal) => signal.await,
            Err(error) => tracing::warn!(%error, "signals cannot be heard; the server stops"),
        }
    };
    drop(entered);
    let served = tokio.block_on(russet_cri::serve(listener, sandboxes, options, stop));
    // A hanging plugin must not keep a stopped server from ending.
    tokio.shutdown_background();
    tracing::info!("the server stopped; sandboxes go on");
    Ok(served?)
}

/// `systemctl start` waits for it.
fn notify_service_manager() {
    if let Some(Err(error)) = notify::socket().map(|socket| notify::ready(&socket)) {
        tracing::warn!(%error, "notify the service manager that the server is ready");
    }
}

/// Sends watchdog notifications for as long as the service manager wants them.
async fn notify_watchdog() {
    let (Some(socket), Some(interval)) = (notify::socket(), notify::watchdog_interval()) else { return };
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = notify::alive(&socket) {
            tracing::debug!(%error, "the watchdog notification cannot be sent");
        }
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
