//! `russet cri`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use russet_agent::Paths;
use russet_cri::{Door, Options};
use russet_linux::notify;
use russet_runtime::{ConfigDir, Networks};
use russet_sandbox::{Metrics, Sandboxes};
use serde_json::json;

use super::pods::PodPlaces;
use super::{Failure, logging, runtime, stop_signal};
use crate::cli::cri::{CgroupDriver, CriArgs};
use crate::owned::pods::Keeper;
use crate::settings::Logging;

/// A server that was told to stop may still hold the sandboxes for as long as it brings to an end what is under way.
const TAKEOVER_PATIENCE: Duration = Duration::from_secs(45);
/// There where systemd is the first process.
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
    let places = PodPlaces::of(args.place, Keeper::Cri);
    let tokio = runtime()?;
    let entered = tokio.enter();
    // First: a second server must not touch the sandboxes of the first one.
    let door = Door::open(&listen, TAKEOVER_PATIENCE)?;
    let sandboxes = Arc::new(open(&places)?);
    let options = Options { cgroup_driver: driver, about: about(&places, &sandboxes), health };
    // Asked for first when it is served. Whoever hears that may tell us to stop.
    let stop = async {
        let asked = stop_signal();
        tell_service_manager();
        tokio::spawn(show_life());
        match asked {
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

/// Signs of life for as long as the service manager wants them.
async fn show_life() {
    let (Some(socket), Some(interval)) = (notify::socket(), notify::watchdog_interval()) else { return };
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = notify::alive(&socket) {
            tracing::debug!(%error, "no sign of life to the service manager");
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

/// Takes the sandboxes over from the server before this one.
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
        patience: TAKEOVER_PATIENCE,
        tell_waiting: |holder| {
            let patience_s = TAKEOVER_PATIENCE.as_secs();
            tracing::warn!(%holder, patience_s, "the sandboxes are another server's; waiting until that has ended");
        },
    })?)
}

/// For people who ask how the server was started.
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
