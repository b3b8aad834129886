//! The daemon's lifecycle, in flannel's order (flannel.md section 1.5): configuration, interface,
//! backend, lease, firewall, `subnet.env`, and then one loop over changes. This file connects the
//! others and decides little. Called by `russet flanneld`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_lease::{LeaseError, SubnetManager, Wish};
use russet_linux::notify::ServiceManager;
use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};
use russet_netlink::{NetlinkError, Socket};
use russet_overlay::fast_path::FastPathMode;
use russet_overlay::firewall::Mode;
use russet_overlay::flannel::Networks;

use crate::backend::{Backend, BackendError};
use crate::carrier::{Announced, Carrier, CarrierError, FabricOptions};
use crate::drops;
use crate::flags::{FirewallKind, LeaseLost, Options};
use crate::guard::{Guard, GuardError, Order};
use crate::health::{self, Status};
use crate::interface::{self, Dump, External, InterfaceError, Stack, Wanted};
use crate::maintain::LeaseMaintainer;
use crate::readiness::ReadinessPublisher;
use crate::source::{Known, Older, Source, SourceError};
use crate::startup::StartupQuery;
use crate::subnet_env::SubnetEnv;
use crate::takeover::{self, Expected, Predecessor, TakeoverError};

/// Why the daemon exits with 1.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A flag has a value that cannot work.
    #[error("-{flag} is {value}: it must be {wanted}")]
    Flag {
        flag: &'static str,
        value: String,
        /// The allowed values.
        wanted: &'static str,
    },
    /// Signals cannot be received.
    #[error("listen to signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The health server's address is in use.
    #[error("serve health on {address}: {source}{}", if *.flannels {
        "; another flannel daemon answers there: stop it, or start this one with -takeover"
    } else {
        ""
    })]
    Health {
        address: SocketAddr,
        source: std::io::Error,
        /// Whether a flannel daemon uses the address.
        flannels: bool,
    },
    /// A check whose queries were not answered in time.
    #[error("the node could not be checked within {CHECK_DEADLINE:?}: {0}")]
    Unchecked(String),
    /// The source of leases cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The Node object of this host could not be determined or read.
    #[error("read this host's Node object: {0}")]
    Node(#[source] LeaseError),
    /// The configuration cannot be read, and retrying would not help.
    #[error("read the network config: {0}")]
    Config(#[source] LeaseError),
    /// Both families are disabled.
    #[error("the network config enables neither IPv4 nor IPv6")]
    NoFamily,
    /// The backend cannot be run.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// iptables would not see bridged packets.
    #[error("{0} does not exist: load br_netfilter (`modprobe br_netfilter`)")]
    BridgeNetfilter(&'static str),
    /// No interface was found.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The backend failed.
    #[error("register the network: {0}")]
    Carrier(#[from] CarrierError),
    /// No lease could be acquired.
    #[error("acquire a lease: {0}")]
    Lease(#[source] LeaseError),
    /// There is no flannel to take over.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    #[error("set up the firewall: {0}")]
    Firewall(#[from] GuardError),
    /// The service of the embedded store ended.
    #[error("the embedded store is no longer served")]
    Service,
}

/// State for the daemon's whole lifetime.
pub(crate) struct Daemon {
    pub(crate) options: Options,
    pub(crate) leases: Rc<dyn SubnetManager>,
    pub(crate) status: Arc<Status>,
    /// A lease is renewed this long before its end.
    pub(crate) margin: Duration,
    startup: StartupQuery,
    /// Looks for data of old daemons in the same etcd.
    older: Option<Rc<Older>>,
    /// Where to serve health once the flannel that is taken over has released the address.
    health_later: Option<SocketAddr>,
}

/// What stays the same when a lease is lost and acquired again.
pub(crate) struct NetworkContext {
    pub(crate) config: NetworkConfig,
    pub(crate) backend: Backend,
    pub(crate) external: External,
}

/// Limit of a check as a whole: it makes several calls to the datastore, each with a deadline of
/// its own.
const CHECK_DEADLINE: Duration = Duration::from_secs(15);
/// A lease lasts 24 hours; the margin must be shorter.
const MARGIN_MAX_MIN: i64 = 24 * 60 - 1;
/// Names the file of wireguard's private key (flannel.md section 1.2).
const KEY_FILE_VARIABLE: &str = "WIREGUARD_KEY_FILE";
const BRIDGE_NETFILTER: [&str; 2] =
    ["/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"];

/// Runs until a signal, the loss of the lease, or an error ends it.
pub async fn run(options: Options) -> Result<(), RunError> {
    let margin = margin(options.renew_margin_min)?;
    let stop = stop_signal().map_err(RunError::Signals)?;
    let mut source = Source::open(&options).await?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), leases = source.name, "flanneld starts");
    let status = Arc::new(Status::default());
    status.needs_fast_path.store(options.fast_path == FastPathMode::Require, Ordering::Release);
    if let Some(etcd) = &source.etcd {
        // Set only here.
        let _ = status.etcd.set(etcd.clone());
    }
    let health_later = start_health(&options, &status).await?;
    if health_later.is_some() || options.healthz_port != 0 {
        // Without a health port no metrics are served.
        tokio::spawn(drops::run(Arc::clone(&status)));
    }
    if !(options.takeover || options.takeover_check) {
        warn_of_others().await;
    }
    let service = source.service.take();
    let service = async {
        match service {
            Some(service) => service.await,
            None => std::future::pending().await,
        }
    };
    let startup = StartupQuery { once: options.takeover_check, etcd: source.etcd.clone() };
    let (once, older) = (startup.once, source.older.clone());
    let life = async {
        let (leases, known) = startup.until(|| source.leases(), "this node").await.map_err(RunError::Node)?;
        let startup = startup.clone();
        Daemon { options, leases, status, margin, startup, older, health_later }.run(&known).await
    };
    let life = async {
        match once {
            false => life.await,
            true => check(life, &startup).await,
        }
    };
    let service_manager = ServiceManager::from_env();
    tokio::select! {
        biased;
        () = stop => {
            service_manager.stopping();
            tracing::info!("stopped by a signal; the network stays as it is");
            Ok(())
        }
        result = life => result,
        never = service_manager.keep_alive() => match never {},
        () = service => Err(RunError::Service),
    }
}

/// Ends a check that takes too long, with the reason.
async fn check(
    life: impl Future<Output = Result<(), RunError>>,
    startup: &StartupQuery,
) -> Result<(), RunError> {
    let ended = tokio::time::timeout(CHECK_DEADLINE, life).await;
    ended.unwrap_or_else(|_elapsed| Err(RunError::Unchecked(startup.reason())))
}

fn margin(minutes: i64) -> Result<Duration, RunError> {
    match u64::try_from(minutes) {
        Ok(valid) if (1..=MARGIN_MAX_MIN).contains(&minutes) => Ok(Duration::from_secs(valid * 60)),
        _ => {
            let (flag, value) = ("subnet-lease-renew-margin", minutes.to_string());
            Err(RunError::Flag { flag, value, wanted: "between 1 and 1439 minutes" })
        }
    }
}

/// Resolves when the process receives a signal to end. Listens from the call on.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Starts the health server. Returns the address if that is not possible yet, because the flannel
/// that is to be taken over uses it; a check serves nothing.
async fn start_health(options: &Options, status: &Arc<Status>) -> Result<Option<SocketAddr>, RunError> {
    let Some(address) = health_address(options)?.filter(|_| !options.takeover_check) else { return Ok(None) };
    match serve_health(address, status).await {
        Err(RunError::Health { flannels: true, .. }) if options.takeover => Ok(Some(address)),
        served => served.map(|()| None),
    }
}

/// None if health is not to be served.
fn health_address(options: &Options) -> Result<Option<SocketAddr>, RunError> {
    let flag = |flag, value: String, wanted| RunError::Flag { flag, value, wanted };
    let port = u16::try_from(options.healthz_port)
        .map_err(|_| flag("healthz-port", options.healthz_port.to_string(), "between 0 and 65535"))?;
    let ip: IpAddr = match options.healthz_ip.as_str() {
        "" => std::net::Ipv6Addr::UNSPECIFIED.into(),
        text => text.parse().map_err(|_| flag("healthz-ip", text.to_owned(), "an IP address"))?,
    };
    Ok((port != 0).then(|| SocketAddr::new(ip, port)))
}

async fn serve_health(address: SocketAddr, status: &Arc<Status>) -> Result<(), RunError> {
    match health::bind(address).await {
        Ok(listener) => {
            tokio::spawn(health::serve(listener, Arc::clone(status)));
            Ok(())
        }
        Err(source) => {
            let taken = source.kind() == std::io::ErrorKind::AddrInUse;
            let flannels = taken && health::is_flannels(address).await;
            Err(RunError::Health { address, source, flannels })
        }
    }
}

/// Two daemons on one node would undo each other's changes for ever; this line is the only
/// immediate sign.
async fn warn_of_others() {
    match tokio::task::spawn_blocking(Predecessor::all).await {
        Ok(Ok(others)) => {
            for other in others {
                tracing::warn!(
                    process = other.name,
                    pid = other.pid,
                    "another flannel daemon runs on this node: the two undo each other's rules and write the same lease. Stop it, or start this one with -takeover"
                );
            }
        }
        Ok(Err(error)) => tracing::warn!(%error, "look for other flannel daemons on this node"),
        // A panic of the thread is in the log.
        Err(_panic) => {}
    }
}

// === impl Daemon ===

impl Daemon {
    async fn run(&mut self, known: &Known) -> Result<(), RunError> {
        let network = self.startup.until(|| self.network(), "the network config").await;
        let config = network.map_err(RunError::Config)?;
        let stack = Stack::from_families(config.enable_ipv4, config.enable_ipv6).ok_or(RunError::NoFamily)?;
        let key_file = std::env::var_os(KEY_FILE_VARIABLE).filter(|path| !path.is_empty());
        let backend = Backend::parse(&config.backend, self.options.extension_shell)?
            .with_macs(known.macs)
            .with_key_file(key_file.map(Into::into));
        backend.check_allowed(self.options.allow_extension)?;
        let external = self.external(stack, known)?;
        let before = self.before();
        if self.options.takeover || self.options.takeover_check {
            let expected = Expected {
                config: &config,
                backend: &backend,
                external: &external,
                env: &before,
                masquerade: self.options.ip_masq_given.then_some(self.options.ip_masq),
                answers: self.other_at_health_port().await?,
            };
            if !self.take_over(&expected, stack).await? {
                return Ok(());
            }
            if let Some(address) = self.health_later.take() {
                serve_health(address, &self.status).await?;
            }
        } else {
            self.check_bridge_netfilter(stack)?;
        }
        let former = Networks { v4: before.network, v6: before.ipv6_network };
        let options = FabricOptions {
            swallow: self.options.blackhole_route,
            guard: self.options.tunnel_guard,
            guard_pods: self.options.pod_guard,
            fast_path: self.options.fast_path,
            former,
        };
        let mut carrier = Carrier::open(&backend, &external, &config, options).await?;
        let context = NetworkContext { config, backend, external };
        let mut wish = Wish {
            attributes: context.attributes(carrier.announced()),
            previous: SubnetKey { v4: before.subnet, v6: before.ipv6_subnet },
        };
        let mut guard = None;
        loop {
            let lease = self.startup.until(|| self.leases.acquire(&context.config, &wish), "a lease").await;
            let lease = lease.map_err(RunError::Lease)?;
            let mtu = carrier.announced().mtu;
            tracing::info!(subnet = %lease.key, mtu, "this node has a lease");
            carrier.own(&lease.key, &self.status).await?;
            let env = self.subnet_env(&context, &lease.key, mtu);
            let order = Order::new(&self.options, &context.config, &lease.key, &before);
            match &mut guard {
                None => guard = Some(Guard::start(order, Arc::clone(&self.status)).await?),
                Some(guard) => guard.change(order),
            }
            let mut readiness = ReadinessPublisher::new(env, &self.options.subnet_file, &self.status);
            readiness.publish();
            let lost = LeaseMaintainer::new(self, &context, &mut carrier, &lease, readiness).run().await;
            tracing::warn!(subnet = %lease.key, why = %lost, "the lease is lost");
            if self.options.lease_lost == LeaseLost::Exit {
                return Ok(());
            }
            // The tunnel's MAC may differ from that at the start.
            wish = Wish { attributes: context.attributes(carrier.announced()), previous: lease.key };
        }
    }

    /// The network's configuration; if there is none, the error mentions one found elsewhere.
    async fn network(&self) -> Result<NetworkConfig, LeaseError> {
        match (self.leases.network().await, &self.older) {
            (Err(LeaseError::NoConfig { at }), Some(older)) => Err(match older.advice().await {
                Some(advice) => LeaseError::ConfigElsewhere { at, advice },
                None => LeaseError::NoConfig { at },
            }),
            (answer, _) => answer,
        }
    }

    /// The address of another flannel daemon's health server, if it is the one that this daemon is
    /// to use.
    async fn other_at_health_port(&self) -> Result<Option<SocketAddr>, RunError> {
        match health_address(&self.options)? {
            Some(address) if self.options.takeover_check => {
                Ok(health::is_flannels(address).await.then_some(address))
            }
            _ => Ok(self.health_later),
        }
    }

    /// Ends the flannel that runs here and adopts its mode of rules; false for a mere check.
    /// Refuses before anything is changed.
    async fn take_over(&mut self, expected: &Expected<'_>, stack: Stack) -> Result<bool, RunError> {
        let standing = Carrier::survey(expected.backend, expected.external, expected.config).await?;
        let mut survey = takeover::survey(expected, &*self.leases, &standing).await?;
        self.options.firewall = self.options.firewall.or(survey.rules.map(|mode| match mode {
            Mode::Nft => FirewallKind::Nft,
            Mode::Iptables => FirewallKind::Iptables,
        }));
        self.check_bridge_netfilter(stack)?;
        if self.options.takeover_check {
            tracing::info!("flannel can be taken over: {survey}");
            return Ok(false);
        }
        tracing::info!("flannel is taken over: {survey}");
        survey.retire(expected.backend.ends_with_its_daemon()).await?;
        Ok(true)
    }

    /// Only iptables processes bridged packets, so only its rules need the module.
    fn check_bridge_netfilter(&self, stack: Stack) -> Result<(), RunError> {
        if self.options.firewall() != FirewallKind::Iptables {
            return Ok(());
        }
        let needed = [stack.has_v4(), stack.has_v6()];
        for (file, _) in BRIDGE_NETFILTER.into_iter().zip(needed).filter(|(_, needed)| *needed) {
            if !Path::new(file).exists() {
                return Err(RunError::BridgeNetfilter(file));
            }
        }
        Ok(())
    }

    fn external(&self, stack: Stack, known: &Known) -> Result<External, RunError> {
        let wanted = Wanted::new(&self.options, known);
        let dump = Dump::read(&mut Socket::route()?, &wanted)?;
        let external = interface::choose(&dump, stack, &wanted)?;
        tracing::info!(
            interface = external.name,
            address = external.public().map(|address| address.to_string()).collect::<Vec<_>>().join(", "),
            mtu = external.mtu,
            "the interface towards the other nodes"
        );
        Ok(external)
    }

    /// The `subnet.env` of an earlier daemon on this node.
    fn before(&self) -> SubnetEnv {
        SubnetEnv::read(&self.options.subnet_file).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %self.options.subnet_file.display(), "read the previous subnet");
            SubnetEnv::default()
        })
    }

    fn subnet_env(&self, context: &NetworkContext, own: &SubnetKey, mtu: u32) -> SubnetEnv {
        SubnetEnv {
            network: context.config.v4(),
            subnet: own.v4,
            ipv6_network: context.config.v6(),
            ipv6_subnet: own.v6,
            mtu,
            ipmasq: self.options.ip_masq,
        }
    }
}

// === impl NetworkContext ===

impl NetworkContext {
    /// The attributes of the lease.
    pub(crate) fn attributes(&self, announced: &Announced) -> Attributes {
        Attributes {
            public_ip: self.external.public_v4.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED),
            public_ipv6: self.external.public_v6,
            backend_type: self.backend.lease_type().to_owned(),
            backend_data: announced.data.clone(),
            backend_v6_data: announced.data_v6.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// flannel.md sections 1.3 and 10.
    #[test]
    fn t18_a_margin_outside_of_1_to_1439_minutes_is_refused() {
        for bad in [0, 1440, -5, i64::MIN, i64::MAX] {
            let error = margin(bad).unwrap_err().to_string();
            assert!(error.starts_with("-subnet-lease-renew-margin is "), "{error}");
        }
        assert_eq!(margin(1439).unwrap(), Duration::from_secs(1439 * 60));
        assert_eq!(margin(1).unwrap(), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_without_an_answer_ends_at_its_deadline_with_the_reason() {
        let startup = StartupQuery { once: true, etcd: None };
        // None of the datastore's calls ends.
        let checked = tokio::time::timeout(2 * CHECK_DEADLINE, check(std::future::pending(), &startup)).await;
        let error = checked.unwrap().unwrap_err().to_string();
        assert_eq!(error, "the node could not be checked within 15s: the datastore does not answer");
    }
}
