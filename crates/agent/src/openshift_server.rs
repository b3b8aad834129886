//! What OpenShift's server ([`russet_openshift`]) gets from the agent.

use std::rc::Rc;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use russet_openshift::{Node, PodPolicies, Server};
use russet_store::Store;
use tokio::sync::watch;

use crate::config::Config;
use crate::health::{Condition, Readiness};
use crate::metrics::Listeners;
use crate::policies::{OpenshiftPods, Policies};

/// The server of the agent's node, if it is configured.
pub fn new(
    config: &Config,
    (store, policies): (&Rc<dyn Store>, Option<&Policies>),
    (registry, readiness, listeners): (&mut Registry, &Readiness, &Listeners),
    stopped: watch::Receiver<bool>,
) -> Option<Server> {
    let settings = config.openshift.clone()?;
    let node = Node {
        name: config.node_name.clone(),
        root: config.paths.root().to_owned(),
        run_dir: config.paths.run_dir(),
        state_dir: config.paths.state_dir(),
        interface: config.interface.clone(),
        mtu_bytes: config.mtu_bytes,
    };
    let policies = policies.map(|policies| OpenshiftPods::new(policies.clone(), readiness.clone()));
    let policies = policies.map(|policies| Arc::new(policies) as Arc<dyn PodPolicies>);
    let (store, readiness, admission) =
        ((Rc::clone(store), policies), readiness.clone(), Arc::clone(&listeners.openshift));
    let publish = move |problem: Option<&str>| {
        match problem {
            None => readiness.met(Condition::Openshift),
            Some(problem) => readiness.unmet(Condition::Openshift, problem),
        };
    };
    Some(Server::new(node, settings, store, registry, publish, admission, stopped))
}
