//! A request on a node without an agent: the same plugins, on a store that is opened for this one request.

use std::path::Path;
use std::rc::Rc;

use russet_addr::{EndpointId, Family};
use russet_attach::{Attached, Wired};
use russet_cni_spec::plugin::Outcome;
use russet_cni_spec::table::{self, Needs};
use russet_cni_spec::{Call, CniError, CniResult, Request, Target};
use russet_journal::History;
use russet_linux::sysctl;
use russet_overlay::underlay;
use russet_plugins::stages::during;
use russet_plugins::{
    CalicoHost, CalicoNode, InterfaceObserver, Node, RequestLog, RequestOutcome, Stage, Teardown, Wiring,
};
use russet_store::{Store, StoreError};

use crate::bootstrap::{self, BootstrapError, Known};
use crate::config::{Config, IpamMode, Paths, StoreLocation};
use crate::datastores::OpenDatastores;
use crate::health::{Condition, Readiness};
use crate::node_lock::{self, Admission};
use crate::pods::Pods;
use crate::policies;
use crate::stores;
use crate::stores::BriefStore;

/// Who carried out a request, and what came of it.
pub enum Direct {
    /// We did.
    Done(Option<CniResult>),
    /// An agent, which came while the request waited for its turn.
    HandedOver(Outcome),
}

/// What happens when an interface is about to be wired: the connection to another process's store is given up, since nothing is read or written until
/// that has succeeded or failed, and the pod's addresses are held where policies are in force.
struct BeforeWiring {
    paths: Paths,
    store: Option<Rc<BriefStore>>,
}

/// Carries out `request` of the plugin called `plugin`; `log` is for the runtime's standard error. `config` reads the node's settings. It is called for a
/// plugin that works on this node's store, and only while the node's lock is held: an agent that started meanwhile may have recorded another store.
pub async fn direct(
    paths: &Paths,
    config: impl FnOnce() -> Result<Config, CniError>,
    plugin: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<Direct, CniError> {
    let Some(plugin) = table::find(plugin) else { return Err(russet_plugins::unknown(plugin)) };
    if matches!(request.env.call, Call::Status) && !plugin.works_without_agent() {
        let msg = format!("no russet agent listens at {}", paths.cni_socket().display());
        return Err(CniError::not_available(msg, format!("start `{}`", paths.command("agent"))));
    }
    // The caller of an IPAM plugin may be a main plugin that holds the node's lock; it has a lock of
    // its own. A server keeps the requests for a container in order itself, and it may be that of
    // the agent that has the node's lock.
    let held = if plugin.takes_container_lock() && plugin.needs != Needs::Server {
        let lock = async { node_lock::lock_for_request(paths, plugin.name, request) };
        match during(Stage::Turn, lock).await? {
            Admission::Locked(held) => Some(held),
            Admission::Answered(outcome) => return Ok(Direct::HandedOver(outcome)),
        }
    } else {
        None
    };
    if let (Call::Add(target), Some(_)) = (&request.env.call, &held) {
        leave_to_the_agent(paths, target)?;
    }
    let done = if plugin.needs == Needs::Store {
        Box::pin(on_own_store(&config()?, plugin.name, request, log)).await?
    } else {
        let host = CalicoHost::new(paths.root(), Rc::new(OpenDatastores::of_request()));
        let mut node = CalicoNode::for_request(host);
        let observer = BeforeWiring { paths: paths.clone(), store: None };
        node.wiring = node.wiring.with_observer(Rc::new(observer));
        let work = async {
            russet_plugins::run_without_store(&node, plugin.name, request, log).await?.released().await
        };
        let done = Box::pin(work).await;
        then_delete_links(&node.wiring, done).await?
    };
    History::at(paths.history_file()).record(request, done.result.as_ref());
    drop(held);
    Ok(Direct::Done(done.settled().await?))
}

/// Refuses an ADD of an interface for which an agent that died had begun an operation: the next
/// agent finishes or undoes that operation, and would remove an interface attached in between. The
/// caller holds the container's lock, so that no agent is running.
fn leave_to_the_agent(paths: &Paths, target: &Target) -> Result<(), CniError> {
    let path = paths.journal_file();
    let left = russet_journal::unfinished(&path, &target.id);
    let left = left.map_err(|error| CniError::io(format!("read {}", path.display()), error))?;
    if !left {
        return Ok(());
    }
    let details =
        "it is finished or undone as soon as an agent starts; a new sandbox does not have to wait for that";
    Err(CniError::try_again_later("an agent that died left something unfinished for this interface", details))
}

/// A plugin that works on this node's store. The embedded one is shared with the requests that come at once.
async fn on_own_store(
    config: &Config,
    plugin: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<RequestOutcome, CniError> {
    let unopened = |error: StoreError| CniError::try_again_later("the store cannot be opened", error);
    if !matches!(config.store, StoreLocation::Embedded) && config.ipam == IpamMode::Pools {
        let opened = stores::open(&config.paths, &config.store).await.map_err(unopened)?;
        let mut node = request_node(config, Rc::clone(&opened.store));
        if let Some(kubernetes) = &opened.kubernetes {
            node = crate::with_pods(node, config, &Pods::new(kubernetes, &config.node_name));
        }
        return Box::pin(on_node(config, &node, plugin, request, log, || {})).await;
    }
    let store = Rc::new(BriefStore::new(&config.paths));
    // A DEL takes the interface down first, whatever is the matter with the store.
    if !matches!(request.env.call, Call::Del(_)) {
        store.open().await.map_err(unopened)?;
    }
    let mut whole = Rc::clone(&store) as Rc<dyn Store>;
    if let StoreLocation::Kubernetes(location) = &config.store {
        let local = stores::Opened::over(whole);
        whole = stores::with_pod_cidrs(config, location, local).map_err(unopened)?.store;
    }
    let mut node = request_node(config, whole);
    node.host.wiring = node.host.wiring.with_observer(BeforeWiring::of(config, Some(Rc::clone(&store))));
    // On the heap: in a debug build the whole request would not fit the stack of a thread.
    let work = Box::pin(on_node(config, &node, plugin, request, log, || store.pause()));
    let done = store.serve_during(work).await;
    store.close().await;
    done
}

/// This node for one request.
fn request_node(config: &Config, store: Rc<dyn Store>) -> Node {
    let readiness = Readiness::pending();
    for condition in Condition::ALL {
        readiness.met(condition);
    }
    let mut node = crate::node(config, store, Teardown::Batched, &readiness);
    node.host.wiring = node.host.wiring.with_observer(BeforeWiring::of(config, None));
    if let Some(mtu) = published_mtu(config) {
        node.mtu_bytes.set(mtu);
    }
    node
}

/// A request on a node. `released` is called when it needs the store no more.
async fn on_node(
    config: &Config,
    node: &Node,
    plugin: &str,
    request: &Request,
    log: &RequestLog,
    released: impl FnOnce(),
) -> Result<RequestOutcome, CniError> {
    let done = match Box::pin(start_on_node(config, node, plugin, request, log)).await {
        Ok(done) => done,
        Err(error) => return then_delete_links(&node.host.wiring, Err(error)).await,
    };
    // A DEL has taken the interface down. The kernel takes 20 ms and more to delete it, and the addresses are given back meanwhile. There is no journal
    // by which another process would do that later.
    let release = async {
        let done = done.released().await;
        released();
        done
    };
    let (done, deleted) = tokio::join!(release, node.host.wiring.reap_batch());
    let done = done?;
    deleted.map(|_| done)
}

/// All of a request but the release of its addresses and the deletion of links that it doomed.
async fn start_on_node(
    config: &Config,
    node: &Node,
    plugin: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<RequestOutcome, CniError> {
    if matches!(request.env.call, Call::Add(_)) {
        prepare(config, node)
            .await
            .map_err(|e| CniError::try_again_later("the node cannot be registered", e))?;
        // Only here: a node whose settings cannot be written must still get rid of its pods.
        forward_packets(node).await?;
    }
    russet_plugins::run(node, plugin, request, log).await
}

/// Deletes the links that a request doomed, even if the request failed.
async fn then_delete_links<T>(wiring: &Wiring, done: Result<T, CniError>) -> Result<T, CniError> {
    let deleted = wiring.reap_batch().await;
    let done = done?;
    deleted.map(|_| done)
}

/// Lets the node forward what its pods send, on the families that have a pool. With an agent the overlay does this.
async fn forward_packets(node: &russet_plugins::Node) -> Result<(), CniError> {
    let pools =
        node.allocator.pools().await.map_err(|e| CniError::try_again_later("the pools cannot be read", e))?;
    for (family, sysctl) in
        [(Family::V4, "net/ipv4/ip_forward"), (Family::V6, "net/ipv6/conf/all/forwarding")]
    {
        if pools.iter().any(|pool| pool.spec.family() == family) {
            sysctl::write_if_different(sysctl, "1")
                .map_err(|error| CniError::internal("let this node forward packets", error))?;
        }
    }
    Ok(())
}

/// The MTU that an agent of this boot computed.
pub(crate) fn published_mtu(config: &Config) -> Option<u32> {
    if config.mtu_bytes.is_some() {
        return config.mtu_bytes;
    }
    std::fs::read_to_string(config.paths.mtu_file()).ok()?.trim().parse().ok()
}

/// What an agent would have done at its start; on a node that had one it is there already.
async fn prepare(config: &Config, node: &russet_plugins::Node) -> Result<(), BootstrapError> {
    let key = russet_model::Key::node(&node.name);
    if node.store.get(&key).await?.is_some() {
        return Ok(());
    }
    if config.calico {
        // Calico's administrator registers pools and nodes.
        return Ok(());
    }
    if config.ipam == IpamMode::Pools {
        let apply = config.paths.command("apply");
        bootstrap::ensure_pools(&node.allocator, &config.pools, &apply).await?;
    }
    let choice = underlay::choose(config.interface.as_ref(), None)?;
    bootstrap::register(&*node.store, &node.name, &choice, Known::Replace).await
}

// === impl BeforeWiring ===

impl BeforeWiring {
    fn of(config: &Config, store: Option<Rc<BriefStore>>) -> Rc<Self> {
        Rc::new(Self { paths: config.paths.clone(), store })
    }
}

impl InterfaceObserver for BeforeWiring {
    fn wiring(&self, wired: &Wired, _: &Path) -> Result<(), CniError> {
        self.store.iter().for_each(|store| store.pause());
        policies::alone::hold(&self.paths, wired)
    }

    fn wired(&self, _: &Wired, _: &Attached) {}

    fn unwired(&self, _: &Wired) {}

    fn leaving(&self, _: &EndpointId) {}
}
