//! `russet controller` and `russet gc`.

use std::process::ExitCode;
use std::rc::Rc;

use russet_agent::{Paths, StoreLocation};
use russet_controller::{Limits, Metrics, Report, SETTLE, Settings, Timing};
use russet_http::health::{self, LIMITS};
use russet_http::listener::Admission;
use russet_kube::Client;
use russet_store::Store;

use super::{Failure, PROBLEMS, logging, runtime, stop_signal};
use crate::cli::Format;
use crate::cli::controller::{ClusterArgs, ControllerArgs, GcArgs, GcVerb};
use crate::output;
use crate::settings::Logging;

/// Where the lease is if nothing says it.
const NAMESPACE: &str = "kube-system";

/// A store that is not the Kubernetes API.
#[derive(Debug, thiserror::Error)]
#[error(
    "the controller works on the Kubernetes API: give --store kubernetes:FILE or kubernetes:in-cluster, not {0}"
)]
struct NotKubernetes(StoreLocation);

#[derive(Debug, thiserror::Error)]
#[error("leader election: {0}")]
struct WrongTiming(&'static str);

/// The API server, by one client for its objects and one store for Calico's data in it.
struct Access {
    client: Client,
    namespace: String,
    location: StoreLocation,
}

// === impl Access ===

impl Access {
    fn new(args: ClusterArgs) -> Result<Self, Failure> {
        let StoreLocation::Kubernetes(kube) = &args.store else {
            return Err(NotKubernetes(args.store).into());
        };
        let client = Client::new(kube.source())?;
        let namespace =
            args.namespace.or_else(|| client.own_namespace()).unwrap_or_else(|| NAMESPACE.to_owned());
        Ok(Self { client, namespace, location: args.store })
    }

    async fn store(&self) -> Result<Rc<dyn Store>, Failure> {
        Ok(russet_agent::open_store(&Paths::new("/"), &self.location).await?.store.clone())
    }
}

/// Runs until SIGTERM or SIGINT, or with `--once` until the work is done.
pub fn run(args: ControllerArgs) -> Result<ExitCode, Failure> {
    logging::start(&Logging { level: args.log_level.clone(), format: args.log_format })?;
    let access = Access::new(ClusterArgs {
        store: args.cluster.store.clone(),
        namespace: args.cluster.namespace.clone(),
    })?;
    let settings = settings(&args, access.namespace.clone());
    if let Some(reason) = settings.timing.refused() {
        return Err(WrongTiming(reason).into());
    }
    let (metrics, is_shown) = (Metrics::default(), args.once || args.dry_run);
    let done = runtime()?.block_on(async {
        let stop = stop_signal()?;
        if !args.dry_run {
            let addresses = vec![args.health_address.clone()];
            let admission = Admission::new(LIMITS);
            let never = std::future::pending();
            health::start(addresses, metrics.clone(), metrics.registry(), admission, never)?;
        }
        let store = access.store().await?;
        let mut has_problems = false;
        let mut looked = |report: &Report| {
            has_problems = report.has_problems();
            if is_shown {
                print(args.output.format, report);
            }
        };
        russet_controller::run(access.client.clone(), store, settings, metrics.clone(), &mut looked, stop)
            .await;
        Ok::<_, Failure>(has_problems)
    });
    Ok(if done? && args.once { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

fn settings(args: &ControllerArgs, namespace: String) -> Settings {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = args.identity.clone().unwrap_or_else(host);
    // A restarted process must not take the lease of one that may still end a write.
    let identity = format!("{name}_{:016x}", russet_sync::random());
    Settings {
        timing: Timing {
            lease: args.leader_elect_lease_duration.0,
            renew_deadline: args.leader_elect_renew_deadline.0,
            retry: args.leader_elect_retry_period.0,
        },
        limits: Limits { grace: args.grace.0, tunnel_grace: args.tunnel_grace.0, ..Limits::default() },
        interval: args.interval.0,
        handle_grace: args.handle_grace.0,
        taint: args.taint.clone(),
        openshift: args.openshift.then_some(SETTLE),
        dry_run: args.dry_run,
        once: args.once,
        ..Settings::new(identity, namespace)
    }
}

fn print(format: Format, report: &Report) {
    let lines = || report.to_string().lines().map(|line| format!("{}\n", output::visible(line))).collect();
    output::print_as(format, report, lines);
}

/// Runs a verb of `russet gc`.
pub fn gc(args: GcArgs) -> Result<(), Failure> {
    let GcVerb::Resume(cluster) = args.verb;
    let access = Access::new(cluster)?;
    let confirmed = runtime()?.block_on(russet_controller::resume(&access.client, &access.namespace))?;
    let names: Vec<String> = confirmed.into_iter().collect();
    match names.len() {
        0 => output::progress("the controller waits for nothing"),
        count => output::progress(&format!("{count} nodes are confirmed as gone: {}", names.join(" "))),
    }
    Ok(())
}
