//! The verdicts of interfaces when the agent starts: set before the first request is served, for
//! every interface that exists by then. In Calico's place, and where policies are enforced on pods of Calico's plugin,
//! also: which host ends of that plugin are guarded, and which source addresses their pods may use.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_addr::{IfName, IpNet};
use russet_journal::EndpointTable;
use russet_model::{Prefix, WorkloadEndpoint};
use russet_plugins::{Node, port_guard};
use russet_policy::Keeper;
use russet_store::StoreError;
use tokio::sync::watch;

use crate::health::{Condition, Readiness};
use crate::operations::Operations;

/// Pause between two attempts. Meanwhile no pod can be attached, and existing pods have what an
/// earlier agent left.
const RETRY: Duration = Duration::from_secs(5);

/// Limit for a commit of the table.
const GUARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Guards the host ends of Calico's plugin, or leaves them to a running Felix. The source addresses
/// that endpoints allow are read once, when the guard starts; later the plugin passes them with
/// every ADD.
pub async fn guard_calico_ends(node: &Node, on: bool) -> Result<(), StoreError> {
    let keeper = node.host.wiring.verdicts();
    let begins = on && !keeper.guards().calico.unwrap_or(false);
    let sources = if begins { Some(allowed_sources(node).await?) } else { None };
    let changed = keeper.change_guards(|guards| {
        guards.calico = Some(on);
        guards.sources = if on { sources.or(guards.sources.take()) } else { Some(BTreeMap::new()) };
    });
    if changed {
        let reconcile = move || keeper.reconcile(Instant::now() + GUARD_TIMEOUT);
        match tokio::task::spawn_blocking(reconcile).await {
            Ok(Ok(_)) => tracing::debug!(on, "guard of the host ends of Calico's plugin"),
            Ok(Err(error)) => {
                tracing::warn!(%error, on, "the guard of the host ends of Calico's plugin is not in force yet")
            }
            Err(error) => {
                tracing::warn!(%error, on, "the guard of the host ends of Calico's plugin is not in force yet")
            }
        }
    }
    Ok(())
}

/// Guards them while policies are enforced on their pods, which are known by their addresses. For an agent that is not in
/// Calico's place, where the loop does it.
pub async fn guard_policed_calico_ends(node: Node, mut wanted: watch::Receiver<bool>) {
    loop {
        let on = *wanted.borrow_and_update();
        let done = guard_calico_ends(&node, on).await;
        if let Err(error) = &done {
            tracing::debug!(%error, on, "the guard of the host ends of Calico's plugin waits for the store");
        }
        let changed = wanted.changed();
        let ended = match done {
            Ok(()) => changed.await.is_err(),
            Err(_) => tokio::time::timeout(RETRY, changed).await.is_ok_and(|changed| changed.is_err()),
        };
        if ended {
            return;
        }
    }
}

/// The source addresses that endpoints of this node allow besides their own addresses, by host end.
/// An endpoint that cannot be decoded allows none.
async fn allowed_sources(node: &Node) -> Result<BTreeMap<IfName, Vec<IpNet>>, StoreError> {
    let mut found = BTreeMap::new();
    let mut take = |record: russet_store::Record| {
        let Ok(WorkloadEndpoint { spec, .. }) = WorkloadEndpoint::decode(&record.value) else { return };
        let ours = spec.node == node.name.as_str() && !spec.allow_spoofed_source_prefixes.is_empty();
        if let Some(name) = spec.interface_name.filter(|_| ours) {
            found.insert(name, spec.allow_spoofed_source_prefixes);
        }
    };
    node.store.scan(&Prefix::workload_endpoints(), &mut take).await?;
    Ok(found)
}

/// Tells the verdicts' keeper what the ports of bridges that are attached may send, at the agent's start: later the plugin says it with every ADD.
pub fn guard_known_ports(keeper: &Keeper, endpoints: &EndpointTable) {
    let guards = endpoints.attached().iter().filter_map(|it| port_guard(it.wired.as_deref()?)).collect();
    keeper.change_guards(|all| all.ports = Some(guards));
}

/// The first attempt, before any request is served.
pub async fn begin(node: &Node, readiness: &Readiness) {
    match node.host.wiring.reconcile_verdicts().await {
        Ok(report) => {
            if node.host.wiring.verdicts().is_unsupported() {
                readiness
                    .note("verdicts: this kernel has no nf_tables, so nothing keeps pods' packets apart");
            }
            if !report.is_clean() {
                let (added, removed) = (report.added.len(), report.removed.len());
                tracing::info!(structure = report.structure, added, removed, "verdicts are in force");
            }
            readiness.met(Condition::Verdicts);
        }
        Err(error) => {
            if readiness.unmet(Condition::Verdicts, &error) {
                tracing::warn!(%error, "verdicts are not in force: no pod can be attached");
            }
        }
    }
}

/// Further attempts, until one succeeds.
pub async fn insist(node: Node, operations: Rc<Operations>, readiness: Readiness) {
    while readiness.is_unmet(Condition::Verdicts) {
        tokio::time::sleep(RETRY).await;
        let _exclusive = operations.exclusive().await;
        begin(&node, &readiness).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use russet_addr::EndpointId;
    use russet_attach::{Bridge, Port, SourceCheck, Wired};

    use super::*;

    fn port(container: &str, source_check: SourceCheck) -> Wired {
        let id: EndpointId = format!("cbr0/{container}/eth0").parse().unwrap();
        let port = Port {
            host_name: Port::default_host_name(&id),
            id,
            bridge: Bridge {
                name: "cni0".parse().unwrap(),
                mtu: None,
                promiscuous: false,
                gateways: Vec::new(),
                force_address: false,
                mac: None,
            },
            mode: Default::default(),
            addresses: vec!["10.5.29.2/24".parse().unwrap()],
            routes: Vec::new(),
            mtu: None,
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            sync_delete: false,
            source_check,
        };
        Wired::Port(port)
    }

    #[test]
    fn an_agent_that_starts_knows_what_the_ports_that_are_attached_may_send() {
        let (endpoints, keeper) = (EndpointTable::default(), Keeper::new(Arc::new(|| Ok(Vec::new()))));
        assert_eq!(keeper.guards().ports, None);
        let allowed: Vec<IpNet> = vec!["192.0.2.0/24".parse().unwrap()];
        endpoints.put(port("c1", SourceCheck::Addresses { allowed: allowed.clone() }));
        endpoints.put(port("c2", SourceCheck::Mac));
        endpoints.put(port("c3", SourceCheck::Off));
        guard_known_ports(&keeper, &endpoints);
        let guards = keeper.guards();
        let guards: Vec<_> = guards.ports.as_ref().unwrap().values().collect();
        assert_eq!(guards.len(), 2);
        let bound = guards.iter().find_map(|guard| guard.sources.as_ref()).unwrap();
        assert_eq!(
            (bound.addresses.first(), &bound.prefixes),
            (Some(&"10.5.29.2".parse().unwrap()), &allowed)
        );
        assert!(guards.iter().all(|guard| guard.mac == "02:00:00:00:00:01".parse().unwrap()));
    }
}
