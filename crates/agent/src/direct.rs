//! A request on a node without an agent: the same plugins, on a store that is opened for this one request.

use std::path::Path;
use std::rc::Rc;

use russet_addr::{ContainerId, Family, IfName};
use russet_attach::{Attached, Wired};
use russet_cni_spec::plugin::Outcome;
use russet_cni_spec::relay;
use russet_cni_spec::{Call, CniError, CniResult, Request, Target};
use russet_linux::sysctl;
use russet_plugins::stages::during;
use russet_plugins::{
    CalicoHost, CalicoNode, InterfaceObserver, LocalNode, Node, RequestLog, RequestOutcome, Stage, Teardown,
    Wiring,
};
use russet_store::Store;

use crate::bootstrap::{self, BootstrapError, Known};
use crate::config::{Config, Paths, StoreLocation};
use crate::datastores::EtcdDatastores;
use crate::health::{Condition, Readiness};
use crate::history::History;
use crate::journal;
use crate::node_lock::{self, Admission};
use crate::stores::BriefStore;
use crate::{stores, underlay};

/// Who carried out a request, and what came of it.
pub enum Direct {
    /// We did.
    Done(Option<CniResult>),
    /// An agent, which came while the request waited for its turn.
    HandedOver(Outcome),
}

/// Gives up the connection to another process's store when an interface is about to be wired: nothing is read or written until that has succeeded or failed.
struct PausesStore(Rc<BriefStore>);

/// Carries out `request` of the plugin called `plugin`; `log` is for the runtime's standard error. `config` reads the node's settings. It is called for a
/// plugin that works on this node's store, and only while the node's lock is held: an agent that started meanwhile may have recorded another store.
pub async fn direct(
    paths: &Paths,
    config: impl FnOnce() -> Result<Config, CniError>,
    plugin: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<Direct, CniError> {
    let local = russet_plugins::is_local(plugin);
    if local && (russet_plugins::is_ipam(plugin) || plugin == relay::OPENSHIFT_SDN) {
        // Its own lock is all that it needs, and its caller may be a main plugin that holds the node's. OpenShift's works for the server that it asks,
        // which keeps the requests for a container in order: it may be the agent that has the node's lock.
        return run_local(paths, plugin, request, log).await;
    }
    if russet_plugins::is_ipam(plugin) {
        // It works on no store of this node's, and its caller may be a main plugin that holds the node's lock.
        let host = CalicoHost::new(paths.root(), Rc::new(EtcdDatastores::of_request()));
        let result = russet_plugins::run_ipam(&host, request, log).await?;
        History::at(paths.history_file()).record(request, result.as_ref());
        return Ok(Direct::Done(result));
    }
    let calico = russet_plugins::is_calico(plugin);
    if matches!(request.env.call, Call::Status) && !calico && !local {
        return Err(CniError::not_available("no agent is running on this node", "start `russet agent`"));
    }
    let turn = async { node_lock::lock_for_request(paths, plugin, request) };
    let held = match during(Stage::Turn, turn).await? {
        Admission::Locked(held) => held,
        Admission::Answered(outcome) => return Ok(Direct::HandedOver(outcome)),
    };
    if let Call::Add(target) = &request.env.call {
        leave_to_the_agent(paths, target)?;
    }
    if local {
        return run_local(paths, plugin, request, log).await;
    }
    let done = if calico {
        // Its datastore is the configuration's, and who this node is, too.
        let host = CalicoHost::new(paths.root(), Rc::new(EtcdDatastores::of_request()));
        let node = CalicoNode::for_request(host);
        let done = russet_plugins::run_calico(&node, request, log).await;
        then_delete_links(&node.wiring, done).await?
    } else {
        Box::pin(on_own_store(&config()?, plugin, request, log)).await?
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
    let left = journal::unfinished(&path, &target.container_id, &target.ifname);
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
    let unopened = |error| CniError::try_again_later("the store cannot be opened", error);
    if !matches!(config.store, StoreLocation::Embedded) {
        let opened = stores::open(&config.paths, &config.store).await.map_err(unopened)?;
        let node = request_node(config, Rc::clone(&opened.store));
        return Box::pin(on_node(config, &node, plugin, request, log, || {})).await;
    }
    let store = Rc::new(BriefStore::new(&config.paths));
    // A DEL takes the interface down first, whatever is the matter with the store.
    if !matches!(request.env.call, Call::Del(_)) {
        store.open().await.map_err(unopened)?;
    }
    let mut node = request_node(config, Rc::clone(&store) as Rc<dyn Store>);
    node.wiring = node.wiring.with_observer(Rc::new(PausesStore(Rc::clone(&store))));
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
    let node = crate::node(config, store, Teardown::Batched, &readiness);
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
        Err(error) => return then_delete_links(&node.wiring, Err(error)).await,
    };
    // A DEL has taken the interface down. The kernel takes 20 ms and more to delete it, and the addresses are given back meanwhile. There is no journal
    // by which another process would do that later.
    let release = async {
        let done = done.released().await;
        released();
        done
    };
    let (done, deleted) = tokio::join!(release, node.wiring.reap_batch());
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

/// A plugin that works on no datastore at all.
async fn run_local(
    paths: &Paths,
    plugin: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<Direct, CniError> {
    let node = LocalNode::for_request(paths.root().to_owned());
    let done = russet_plugins::run_local(&node, plugin, request, log).await;
    let result = then_delete_links(&node.wiring, done).await?;
    History::at(paths.history_file()).record(request, result.as_ref());
    Ok(Direct::Done(result))
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
    bootstrap::ensure_pools(&node.allocator, &config.pools).await?;
    let choice = underlay::choose(config.interface.as_ref(), None)?;
    bootstrap::register(&*node.store, &node.name, &choice, Known::Replace).await
}

// === impl PausesStore ===

impl InterfaceObserver for PausesStore {
    fn wiring(&self, _: &Wired, _: &Path) -> Result<(), CniError> {
        self.0.pause();
        Ok(())
    }

    fn wired(&self, _: &Wired, _: &Attached) {}

    fn unwired(&self, _: &Wired) {}

    fn leaving(&self, _: &ContainerId, _: &IfName) {}
}
