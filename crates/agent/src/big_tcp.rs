//! BIG TCP: lets TCP of pods pass through the kernel in packets of more than 64 KiB, where all of their path takes
//! these. The sizes belong to interfaces and not to flows, so one decision counts for all pods of the node.
//!
//! New pods get their sizes with the message that creates their veth ([`Node::packet_sizes`]); [`Keeper`] decides, and
//! has the uplink and the pods that are there already follow.
//!
//! [`Node::packet_sizes`]: russet_plugins::Node

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use russet_addr::{IfName, IpNet};
use russet_attach::packet_sizes::{self, ProbeError};
use russet_attach::{AttachCause, Dialect, Wired, naming};
use russet_journal::{Endpoint, EndpointTable};
use russet_netlink::{Link, NetlinkError, PacketSizes, Socket};
use russet_overlay::fast_path::FastPathMode;
use russet_overlay::{Encapsulation, Inputs};
use tokio::sync::watch;

use crate::config::SettingError;
use crate::health::Readiness;
use crate::reconcile::Loop;

/// Whether packets of pods may be larger than 64 KiB inside the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BigTcpMode {
    #[default]
    Off,
    /// Where kernel, uplink and paths allow it.
    Auto,
}

/// By which paths packets of pods leave the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// A pool to which packets go in a tunnel, at least to some nodes.
    pub encapsulated: Option<IpNet>,
    /// The index of the uplink; 0 on a node without a network.
    pub uplink: u32,
}

/// Keeps the sizes of pods' interfaces and of the uplink.
pub struct Keeper {
    mode: BigTcpMode,
    /// The fast path leaves IPv6 with extension headers to the kernel's path.
    has_fast_path: bool,
    has_openshift: bool,
    paths: watch::Receiver<Option<Paths>>,
    /// For new pods.
    new_pods: Rc<Cell<Option<PacketSizes>>>,
    endpoints: EndpointTable,
    readiness: Readiness,
    /// What the kernel was found to do; none before it is asked.
    kernel: Option<Result<(), String>>,
    /// What was logged last: the sizes, and why there are none.
    logged: (Option<PacketSizes>, Option<String>),
}

/// What the sizes are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decision {
    /// None is the kernel's default.
    sizes: Option<PacketSizes>,
    /// The index of the uplink whose sizes are to be raised.
    raised: Option<u32>,
}

/// What was found and done in one pass.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pass {
    /// Pods that have the sizes.
    pods: usize,
    /// Pods that have to keep the kernel's default.
    limited: usize,
    /// Interfaces that could not be changed, with the first reason.
    failed: usize,
    first_failure: Option<String>,
}

/// An error that ends a pass.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("a task was interrupted: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// About what dataplane.md section 2.5 has measured. The number is not one that people choose: on a link that is not a
/// pod's it says that an agent has set it.
const SIZE_BYTES: u32 = 190_000;
/// The subject of remarks at `/readyz?verbose`.
const SUBJECT: &str = "BIG TCP";
/// Everything is compared so often: for a pod that was attached while the decision changed, and for limits of
/// bandwidth, which are set after the pod's interface was made.
const INTERVAL: Duration = Duration::from_secs(10);
/// Every other queueing discipline has to see packets as its limits count them.
const NO_DISCIPLINE: &str = "noqueue";

// === impl BigTcpMode ===

impl FromStr for BigTcpMode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            _ => Err(SettingError::Value {
                setting: "big TCP",
                value: text.to_owned(),
                allowed: "`off` or `auto`",
            }),
        }
    }
}

impl fmt::Display for BigTcpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
        })
    }
}

// === impl Paths ===

impl Paths {
    /// Those of an overlay.
    pub fn of(inputs: &Inputs) -> Self {
        let encapsulated = inputs.pools.iter().find(|pool| pool.encapsulation != Encapsulation::None);
        Self { encapsulated: encapsulated.map(|pool| pool.cidr), uplink: inputs.underlay.ifindex }
    }

    /// Lets the keeper know, if they have changed.
    pub fn show(self, shown: &watch::Sender<Option<Self>>) {
        shown.send_if_modified(|now| now.replace(self.clone()) != Some(self));
    }
}

// === impl Keeper ===

impl Keeper {
    /// The keeper of the node that the loop keeps.
    pub fn new(keep: &Loop, endpoints: &EndpointTable) -> Self {
        let config = &keep.config;
        Self {
            mode: if config.calico { BigTcpMode::Off } else { config.big_tcp },
            has_fast_path: config.fast_path != FastPathMode::Off,
            has_openshift: config.openshift.is_some(),
            paths: keep.paths.subscribe(),
            new_pods: Rc::clone(&keep.node.packet_sizes),
            endpoints: endpoints.clone(),
            readiness: keep.readiness.clone(),
            kernel: None,
            logged: (None, None),
        }
    }

    /// Compares and corrects, at an interval and whenever the paths change. Without BIG TCP it ends once what an
    /// earlier agent has set is taken back.
    pub async fn run(mut self) {
        loop {
            let paths = self.paths.borrow_and_update().clone();
            let is_done = match paths {
                Some(paths) => self.pass(&paths).await,
                None => false,
            };
            if is_done && self.mode == BigTcpMode::Off {
                return;
            }
            tokio::select! {
                changed = self.paths.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// One comparison. False if something could not be changed.
    async fn pass(&mut self, paths: &Paths) -> bool {
        if self.mode == BigTcpMode::Auto && paths.encapsulated.is_none() && self.kernel.is_none() {
            self.kernel = Some(probe().await);
        }
        let (kernel, uplink) = (self.kernel.clone(), paths.uplink);
        let (mode, v6) = (self.mode, !self.has_fast_path);
        let tunnel = self.tunnel(paths);
        let decide = move |links: &[Link]| match mode {
            BigTcpMode::Off => Err(None),
            BigTcpMode::Auto => decide(tunnel, kernel, links, uplink, v6).map_err(Some),
        };
        let (endpoints, new_pods) = (self.endpoints.clone(), Rc::clone(&self.new_pods));
        let read = tokio::task::spawn_blocking(move || -> Result<_, NetlinkError> {
            let mut socket = Socket::route()?;
            let links = socket.links()?;
            Ok((decide(&links), links, socket))
        });
        let worked = async {
            let (decided, links, socket) = read.await??;
            let (decision, reason) = match decided {
                Ok(decision) => (decision, None),
                Err(reason) => (Decision { sizes: None, raised: None }, reason),
            };
            // Before the pods that are there: a pod that is attached meanwhile has the sizes already.
            new_pods.set(decision.sizes);
            let sizes = decision.sizes;
            let done = tokio::task::spawn_blocking(move || apply(socket, &links, &decision, &endpoints));
            Ok::<_, PassError>((done.await??, sizes, reason))
        };
        match worked.await {
            Ok((pass, sizes, reason)) => {
                self.report(&pass, sizes, reason);
                pass.failed == 0
            }
            Err(error) => {
                tracing::warn!(%error, "sizes of packets could not be compared");
                false
            }
        }
    }

    /// Why some packets go into a tunnel.
    fn tunnel(&self, paths: &Paths) -> Option<String> {
        let pool = paths.encapsulated.map(|pool| format!("packets to pods of {pool} go into a tunnel"));
        pool.or_else(|| self.has_openshift.then(|| "OpenShift's pods are reached by a tunnel".to_owned()))
    }

    fn report(&mut self, pass: &Pass, sizes: Option<PacketSizes>, reason: Option<String>) {
        if let Some(error) = &pass.first_failure {
            tracing::warn!(failed = pass.failed, error, "sizes of packets could not be set at interfaces");
        }
        let remark = match (&reason, sizes) {
            (Some(reason), _) => Some(format!("off: {reason}")),
            (None, Some(_)) if pass.limited > 0 => {
                Some(format!("not at {} interfaces, which have queueing disciplines", pass.limited))
            }
            _ => None,
        };
        self.readiness.remark(SUBJECT, remark);
        let now = (sizes, reason);
        if now == self.logged {
            return;
        }
        match &now {
            (_, Some(reason)) => tracing::info!(reason, "no BIG TCP: packets of pods have at most 64 KiB"),
            (Some(_), None) => tracing::info!(
                pods = pass.pods,
                bytes = SIZE_BYTES,
                "packets of pods may have more than 64 KiB"
            ),
            (None, None) => {}
        }
        self.logged = now;
    }
}

/// What the kernel does with such packets, as a reason against them if it is not right.
async fn probe() -> Result<(), String> {
    let probed = tokio::task::spawn_blocking(|| packet_sizes::probe(PacketSizes::all(SIZE_BYTES))).await;
    match probed {
        Ok(result) => result.map_err(|error: ProbeError| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether pods have BIG TCP, or why not.
fn decide(
    tunnel: Option<String>,
    kernel: Option<Result<(), String>>,
    links: &[Link],
    uplink: u32,
    v6: bool,
) -> Result<Decision, String> {
    if let Some(tunnel) = tunnel {
        return Err(tunnel);
    }
    kernel.unwrap_or_else(|| Err("the kernel was not asked".to_owned()))?;
    let big = PacketSizes::all(SIZE_BYTES);
    let sizes = if v6 { big } else { PacketSizes { gso: LEGACY.gso, gro: LEGACY.gro, ..big } };
    let raised = match uplink {
        0 => None,
        _ => {
            let link = links.iter().find(|link| link.index == uplink);
            takes(link.ok_or("the uplink is gone")?, sizes)?.then_some(uplink)
        }
    };
    Ok(Decision { sizes: Some(sizes), raised })
}

/// Whether the uplink's sizes have to be raised for such packets, or why it does not take them.
fn takes(uplink: &Link, sizes: PacketSizes) -> Result<bool, String> {
    let name = uplink.name.escape_debug();
    if uplink.tso_max_bytes < SIZE_BYTES {
        let most = uplink.tso_max_bytes;
        return Err(format!("the driver of the uplink {name} takes at most {most} bytes at once"));
    }
    let lacks = uplink.sizes.zip(sizes, |has, wanted| u32::from(has < wanted));
    let names = ["gso_max_size", "gro_max_size", "gso_ipv4_max_size", "gro_ipv4_max_size"];
    let lacking = [lacks.gso, lacks.gro, lacks.gso_ipv4, lacks.gro_ipv4];
    let lacking: Vec<&str> = names.into_iter().zip(lacking).filter(|it| it.1 != 0).map(|it| it.0).collect();
    match &uplink.kind {
        None => Ok(true),
        Some(_) if lacking.is_empty() => Ok(false),
        // What lies below, or at the other end, may take less, and would segment each packet without the hardware's help.
        Some(kind) => Err(format!(
            "the uplink {name} is a {}: {} of it and of what lies below it, or at its other end, have to be {SIZE_BYTES} or more, \
             which is not for the agent to change",
            kind.escape_debug(),
            lacking.join(", ")
        )),
    }
}

/// Has the pods and the uplink follow the decision.
fn apply(
    mut socket: Socket,
    links: &[Link],
    decision: &Decision,
    endpoints: &EndpointTable,
) -> Result<Pass, NetlinkError> {
    let mut pass = Pass::default();
    let qdiscs = socket.qdiscs()?;
    let disciplined: BTreeSet<u32> =
        qdiscs.iter().filter(|it| it.kind != NO_DISCIPLINE).map(|it| it.ifindex).collect();
    for endpoint in endpoints.attached() {
        let Some((host_name, ifname, netns)) = routed_pod(&endpoint) else { continue };
        let Some(link) = links.iter().find(|link| link.name == host_name.as_str()) else { continue };
        let wanted = match decision.sizes {
            Some(_) if disciplined.contains(&link.index) => {
                pass.limited += 1;
                LEGACY
            }
            sizes => sizes.unwrap_or(LEGACY),
        };
        pass.pods += usize::from(wanted.is_big());
        // The host end gets them last.
        if link.sizes == wanted || (!wanted.is_big() && !link.sizes.is_big()) {
            continue;
        }
        let set = || packet_sizes::set_pod(&mut socket, link, (netns, ifname), wanted);
        if let Some(Err(error)) = endpoints.while_attached(&endpoint, set) {
            pass.fail(&link.name, &error);
        }
    }
    for link in links.iter().filter(|link| !is_of_a_pod(link)) {
        let wanted = uplink_sizes(link, decision);
        if let Err(error) = packet_sizes::set_link(&mut socket, link, wanted) {
            pass.fail(&link.name, &error.into());
        }
    }
    Ok(pass)
}

/// The host end, the pod's end and the namespace of a pod that the plugin `russet` has attached. None for one that was
/// only found in the kernel: its namespace is not known.
fn routed_pod(endpoint: &Endpoint) -> Option<(&IfName, &IfName, &std::path::Path)> {
    match endpoint.wired.as_deref()? {
        Wired::Routed(it) if it.dialect == Dialect::Native => {
            Some((&it.host_name, &it.id.ifname, endpoint.netns.as_deref()?))
        }
        _ => None,
    }
}

fn is_of_a_pod(link: &Link) -> bool {
    link.name.starts_with(naming::prefix(Dialect::Native)) || naming::is_doomed(&link.name)
}

/// The sizes of a link that is not a pod's: those of a hardware uplink are raised and never lowered, and what an agent
/// has raised on another one, or before, is taken back.
fn uplink_sizes(link: &Link, decision: &Decision) -> PacketSizes {
    match decision.sizes {
        _ if link.kind.is_some() => link.sizes,
        Some(sizes) if decision.raised == Some(link.index) => link.sizes.zip(sizes, u32::max),
        _ => link.sizes.map(|bytes| if bytes == SIZE_BYTES { LEGACY.gso } else { bytes }),
    }
}

const LEGACY: PacketSizes = PacketSizes::LEGACY;

// === impl Pass ===

impl Pass {
    fn fail(&mut self, link: &str, error: &AttachCause) {
        self.failed += 1;
        self.first_failure.get_or_insert_with(|| format!("{}: {error}", link.escape_debug()));
    }
}

#[cfg(test)]
mod tests;
