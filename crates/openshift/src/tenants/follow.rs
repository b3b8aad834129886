//! The follower: applies the tenants and peers in the store to this node's data path.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use russet_addr::NodeName;
use russet_model::openshift::{Namespace, everything};
use russet_overlay::ReconcileReport;
use russet_store::{Store, Watch};
use russet_sync::Backoff;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::View;
use crate::data_path::{Egress, Peer, Port, Sdn, Tenancy};
use crate::{LOG, lock};

/// The result of one round, for logs, metrics and readiness.
#[derive(Debug)]
pub struct RoundReport {
    /// The changes of the data path.
    pub report: ReconcileReport,
    /// Number of ports whose network ID changed, or whether network IDs keep them apart.
    pub renumbered: usize,
    /// What has to be known before what pods may reach outside is in force.
    pub waits_for: Option<&'static str>,
}

/// Changes that are not applied yet.
#[derive(Debug, Default)]
struct PendingChanges {
    namespaces: BTreeSet<Namespace>,
    everybody: bool,
    peers: bool,
    egress: bool,
}

/// The pauses before the store is asked again, with jitter.
const RECONNECT_FIRST: Duration = Duration::from_secs(1);
const RECONNECT_MAX: Duration = Duration::from_secs(10);
/// Pause before a change of the kernel that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long further events are collected, so that a burst becomes one transaction. A single event
/// waits no longer than this.
const GATHER: Duration = Duration::from_millis(2);
/// Limit of events in one round; a node with thousands of peers gets that many at once.
const GATHER_MAX: usize = 4096;

/// Follows the store and never returns; `objects` is notified when objects of the Kubernetes API or
/// addresses of names in `view` have changed. When `on_round` is called, `view` is current, and the data path
/// matches it unless the report has a failure, which is retried.
pub async fn follow(
    store: Rc<dyn Store>,
    own: NodeName,
    sdn: Arc<Mutex<Sdn>>,
    (view, objects): (Rc<RefCell<View>>, Rc<Notify>),
    mut on_round: impl FnMut(RoundReport),
) {
    let (mut pending, mut backoff) =
        (PendingChanges::default(), Backoff::new(RECONNECT_FIRST, RECONNECT_MAX));
    loop {
        match store.watch(&everything()).await {
            Ok(mut watch) => {
                backoff.reset();
                let of = (&own, &sdn, &view, &*objects);
                let error = watched(watch.as_mut(), of, &mut pending, &mut on_round).await;
                tracing::warn!(target: LOG, %error, "the watch of tenants ended");
            }
            Err(error) => tracing::warn!(target: LOG, %error, "tenants are not watched"),
        }
        sleep(backoff.pause()).await;
    }
}

async fn watched(
    watch: &mut dyn Watch,
    (own, sdn, view, objects): (&NodeName, &Arc<Mutex<Sdn>>, &Rc<RefCell<View>>, &Notify),
    pending: &mut PendingChanges,
    on_round: &mut impl FnMut(RoundReport),
) -> russet_store::StoreError {
    loop {
        let limit = if pending.is_empty() { None } else { Some(RETRY) };
        if let Err(error) = gather(watch, (view, objects), pending, limit).await {
            return error;
        }
        let round = carry_out(sdn, own, view, pending).await;
        let failed = round.report.failed > 0;
        for error in &round.report.errors {
            tracing::warn!(target: LOG, %error, "a change of tenants or peers is not in force");
        }
        if !failed {
            *pending = PendingChanges { egress: round.waits_for.is_some(), ..PendingChanges::default() };
        }
        on_round(round);
    }
}

/// Waits for events, up to `limit` if there is one, and takes all that arrive together.
async fn gather(
    watch: &mut dyn Watch,
    (view, objects): (&Rc<RefCell<View>>, &Notify),
    pending: &mut PendingChanges,
    limit: Option<Duration>,
) -> Result<(), russet_store::StoreError> {
    let is_listed = view.borrow().is_listed();
    tokio::select! {
        event = watch.next() => pending.take(view, event?),
        // Before the first list of the store the view is not current, whatever objects there are.
        () = objects.notified(), if is_listed => {
            pending.egress = true;
            pending.everybody |= view.borrow_mut().takes_change_of_all();
        }
        () = sleep(limit.unwrap_or_default()), if limit.is_some() => return Ok(()),
    }
    for _ in 1..GATHER_MAX {
        match timeout(GATHER, watch.next()).await {
            Ok(event) => pending.take(view, event?),
            Err(_) => break,
        }
    }
    Ok(())
}

async fn carry_out(
    sdn: &Arc<Mutex<Sdn>>,
    own: &NodeName,
    view: &Rc<RefCell<View>>,
    pending: &PendingChanges,
) -> RoundReport {
    let (peers, tenants) = {
        let view = view.borrow();
        let peers = pending.peers.then(|| view.peers(own));
        let named = |namespace: &Namespace| (namespace.clone(), view.tenancy(namespace));
        let tenants: Vec<_> = pending.namespaces.iter().map(named).collect();
        (peers, tenants)
    };
    let everybody = pending.everybody.then(|| snapshot(view));
    let egress = if pending.changes_egress() { egress(view) } else { None };
    let waits_for = if pending.changes_egress() { view.borrow().waits_for_policies() } else { None };
    let sdn = Arc::clone(sdn);
    let work = move || round(&mut lock(&sdn), peers.as_deref(), &tenants, everybody.as_ref(), egress);
    match tokio::task::spawn_blocking(work).await {
        Ok((report, renumbered)) => RoundReport { report, renumbered, waits_for },
        Err(error) => {
            tracing::error!(target: LOG, %error, "applying tenants and peers was interrupted");
            let report = ReconcileReport { failed: 1, ..ReconcileReport::default() };
            RoundReport { report, renumbered: 0, waits_for }
        }
    }
}

/// Every namespace's. One that is missing has no network ID.
fn snapshot(view: &Rc<RefCell<View>>) -> BTreeMap<Namespace, Tenancy> {
    let view = view.borrow();
    view.namespaces().map(|namespace| (namespace.clone(), view.tenancy(namespace))).collect()
}

/// What pods of each network ID may not reach outside of the cluster, if that is known.
fn egress(view: &Rc<RefCell<View>>) -> Option<Egress> {
    let (egress, overrides) = view.borrow().egress()?;
    overrides.iter().for_each(super::egress::Override::report);
    Some(egress)
}

fn round(
    sdn: &mut Sdn,
    peers: Option<&[Peer]>,
    tenants: &[(Namespace, Tenancy)],
    everybody: Option<&BTreeMap<Namespace, Tenancy>>,
    egress: Option<Egress>,
) -> (ReconcileReport, usize) {
    let wanted = |port: &Port| -> Option<Tenancy> {
        match everybody {
            Some(all) => Some(all.get(&port.namespace).copied().unwrap_or_default()),
            None => tenants.iter().find(|(name, _)| *name == port.namespace).map(|(_, tenancy)| *tenancy),
        }
    };
    let changed = |port: &Port| wanted(port).map(|tenancy| tenancy.of(port)).filter(|wanted| wanted != port);
    let ports: Vec<Port> = sdn.attached().filter_map(changed).collect();
    // First revoke access, then grant it.
    let renumbered = match egress {
        Some(egress) => sdn.set_tenants(&ports, egress),
        None if ports.is_empty() => Ok(()),
        None => sdn.renumber(&ports),
    };
    let mut report = peers.map_or_else(ReconcileReport::default, |peers| sdn.peers(peers));
    if let Err(error) = renumbered {
        report.failed += 1;
        report.errors.push(error.into());
        return (report, 0);
    }
    (report, ports.len())
}

// === impl PendingChanges ===

impl PendingChanges {
    fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && !self.everybody && !self.peers && !self.egress
    }

    /// Whether what is denied may have changed: that depends on every network ID.
    fn changes_egress(&self) -> bool {
        self.egress || self.everybody || !self.namespaces.is_empty()
    }

    fn take(&mut self, view: &Rc<RefCell<View>>, event: russet_store::Event) {
        let snapshot = matches!(event, russet_store::Event::Snapshot(_));
        let changed = view.borrow_mut().take(event);
        for (key, error) in &changed.malformed {
            russet_store::refused("a record of OpenShift's network is not used", key, error);
        }
        self.everybody |= snapshot || changed.network;
        self.namespaces.extend(changed.namespaces);
        self.peers |= changed.subnets;
        self.egress |= changed.egress;
    }
}
