//! OpenShift's tenants (cni-runtime.md section 4.4): the network ID of each namespace, changed in
//! the store by `russet netnamespace`, and followed by every node's agent.
//!
//! Two nodes never assign one ID to two tenants: every ID in use has its own record, which names
//! its namespaces and guards every change of them. A change writes the new ID's record first and
//! the old one's last, so that even on a store that applies steps one by one an ID's record never
//! names too few namespaces.

mod change;
mod egress;
mod follow;
mod names;
mod objects;
#[cfg(test)]
mod tests;
mod view;

use std::rc::Rc;

use russet_model::openshift::{
    ClusterNetwork, IsolationMode, Namespace, NetId, NetNamespace, clusternetwork_key, netid_key, netids,
    netnamespace_key, netnamespaces, parse_key,
};
use russet_model::{DecodeError, Key};
use russet_store::{Record, Revision, Store, StoreError};

use change::{Held, Plan, Wish};

pub use egress::{Override, RULES_MAX};
pub use follow::{RoundReport, follow};
pub use names::{Notices, follow_names, resolve_names};
pub use objects::follow_objects;
pub use view::{Changed, View};

/// The tenants of a store.
pub struct Tenants {
    store: Rc<dyn Store>,
}

/// A change of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Assigns an ID of its own to a namespace without one; `default` gets the global ID.
    Create,
    /// Removes the namespace.
    Delete,
    /// The namespace can reach all others, and they can reach it.
    Global,
    /// Assigns the ID of another namespace.
    Join(Namespace),
    /// Assigns an ID of its own, unless the namespace has one.
    Isolate,
}

/// Why a tenant was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    #[error("{operation}: {source}")]
    Store {
        /// The operation.
        operation: String,
        source: StoreError,
    },
    /// A record does not match its key, or cannot be decoded.
    #[error("read {key}: {source}")]
    Malformed { key: Key, source: DecodeError },
    #[error("there is no NetNamespace {0}")]
    Missing(Namespace),
    #[error("NetNamespace {0} exists already, with network ID {1}")]
    Exists(Namespace, NetId),
    /// The global ID of `default` cannot be changed.
    #[error("NetNamespace default stays global: it cannot be isolated, joined to a tenant or deleted")]
    Default,
    /// Network policies require an ID for every namespace.
    #[error(
        "the cluster isolates by network policies, for which every namespace keeps a network ID of its own"
    )]
    Policies,
    #[error("no network ID is left: all from {first} to {last} are in use", first = NetId::FIRST, last = NetId::MAX)]
    Full,
    /// Other writers changed the same tenants each time.
    #[error("change NetNamespace {0}: other writers changed the same tenants; try again")]
    Busy(Namespace),
}

/// Attempts of one change. Each failure means that another writer succeeded.
const TRIES_MAX: u32 = 64;

// === impl Tenants ===

impl Tenants {
    pub fn new(store: Rc<dyn Store>) -> Self {
        Self { store }
    }

    /// All tenants, ordered by name.
    pub async fn list(&self) -> Result<Vec<NetNamespace>, TenantError> {
        let listed = self.store.list(&netnamespaces()).await;
        let records = listed.map_err(|source| failed("list NetNamespaces", source))?.records;
        records.iter().map(tenant).collect()
    }

    /// The tenant of a namespace.
    pub async fn get(&self, namespace: &Namespace) -> Result<NetNamespace, TenantError> {
        let (tenant, _) =
            self.read(namespace).await?.ok_or_else(|| TenantError::Missing(namespace.clone()))?;
        Ok(tenant)
    }

    /// Applies a change and returns the resulting tenant; after a deletion, the removed one.
    pub async fn act(&self, namespace: &Namespace, action: &Action) -> Result<NetNamespace, TenantError> {
        self.permitted(namespace, action).await?;
        // What an earlier attempt wrote whose answer was lost.
        let mut tried: Option<NetNamespace> = None;
        for attempt in 0..TRIES_MAX {
            let plan = match self.plan(namespace, action, attempt).await {
                Err(TenantError::Exists(..)) if tried.is_some() => Plan::Done(self.get(namespace).await?),
                Err(TenantError::Missing(_)) if tried.is_some() && *action == Action::Delete => {
                    return tried.ok_or_else(|| TenantError::Missing(namespace.clone()));
                }
                plan => plan?,
            };
            let (steps, after) = match plan {
                Plan::Done(tenant) => return Ok(tenant),
                Plan::Steps(steps, after) => (steps, after),
            };
            match self.store.commit(steps).await.map_err(|error| error.error) {
                Ok(_) => return Ok(after),
                Err(
                    StoreError::Conflict { .. }
                    | StoreError::AlreadyExists { .. }
                    | StoreError::NotFound { .. },
                ) => {}
                Err(error) if error.outcome_unknown() => tried = Some(after),
                Err(source) => return Err(failed(&format!("change NetNamespace {namespace}"), source)),
            }
        }
        Err(TenantError::Busy(namespace.clone()))
    }

    /// Checks what can be refused without reading tenants.
    pub async fn permitted(&self, namespace: &Namespace, action: &Action) -> Result<(), TenantError> {
        if namespace.is_default() && matches!(action, Action::Isolate | Action::Join(_) | Action::Delete) {
            return Err(TenantError::Default);
        }
        if matches!(action, Action::Create | Action::Delete) {
            return Ok(());
        }
        let key = clusternetwork_key();
        let found = self.store.get(&key).await;
        let Some(record) = found.map_err(|source| failed("read the cluster's network", source))? else {
            return Ok(());
        };
        let network =
            ClusterNetwork::decode(&record.value).map_err(|source| TenantError::Malformed { key, source })?;
        if network.mode == IsolationMode::NetworkPolicy { Err(TenantError::Policies) } else { Ok(()) }
    }

    async fn plan(&self, namespace: &Namespace, action: &Action, attempt: u32) -> Result<Plan, TenantError> {
        let current = self.read(namespace).await?;
        let wish = match (action, &current) {
            (Action::Create, Some((tenant, _))) => {
                return Err(TenantError::Exists(namespace.clone(), tenant.netid));
            }
            (Action::Create, None) if namespace.is_default() => Wish::Id(NetId::GLOBAL, None),
            (Action::Create, None) => self.fresh(namespace, attempt).await?,
            (_, None) => return Err(TenantError::Missing(namespace.clone())),
            (Action::Delete, Some(_)) => Wish::Gone,
            (Action::Global, Some(_)) => Wish::Id(NetId::GLOBAL, None),
            (Action::Join(other), Some(_)) => self.joined(other).await?,
            (Action::Isolate, Some((tenant, _))) if self.is_alone(tenant).await? => {
                return Ok(Plan::Done(tenant.clone()));
            }
            (Action::Isolate, Some(_)) => self.fresh(namespace, attempt).await?,
        };
        let old = match &current {
            Some((tenant, _)) => self.users(tenant.netid).await?,
            None => None,
        };
        Ok(change::plan(namespace, current, old, wish))
    }

    /// An unused ID. It is derived from the name, so that a released ID is rarely assigned again
    /// soon: a node that has not received the release yet would let both namespaces communicate.
    async fn fresh(&self, namespace: &Namespace, attempt: u32) -> Result<Wish, TenantError> {
        let keys = self.store.keys(&netids()).await.map_err(|source| failed("list network IDs", source))?;
        let recorded = keys.iter().filter_map(|key| match parse_key(key)? {
            russet_model::openshift::OpenshiftKey::NetId(id) => Some(id),
            _ => None,
        });
        let used = recorded.chain(self.list().await?.into_iter().map(|tenant| tenant.netid)).collect();
        change::free_id(namespace, attempt, &used).map(|id| Wish::Id(id, None)).ok_or(TenantError::Full)
    }

    /// The ID of another namespace, and its users.
    async fn joined(&self, other: &Namespace) -> Result<Wish, TenantError> {
        let (tenant, _) = self.read(other).await?.ok_or_else(|| TenantError::Missing(other.clone()))?;
        let held = self.users(tenant.netid).await?;
        // A tenant that was written by hand has no record of its ID.
        let held = held.unwrap_or_else(|| Held { users: [other.clone()].into(), revision: None });
        Ok(Wish::Id(tenant.netid, (!tenant.netid.is_global()).then_some(held)))
    }

    async fn is_alone(&self, tenant: &NetNamespace) -> Result<bool, TenantError> {
        if tenant.netid.is_global() {
            return Ok(false);
        }
        // The ID's record may name one namespace too many, so it is not used here.
        let all = self.list().await?;
        Ok(all.iter().filter(|other| other.netid == tenant.netid).count() == 1)
    }

    async fn read(&self, namespace: &Namespace) -> Result<Option<(NetNamespace, Revision)>, TenantError> {
        let found = self.store.get(&netnamespace_key(namespace)).await;
        let found = found.map_err(|source| failed(&format!("read NetNamespace {namespace}"), source))?;
        found.map(|record| Ok((tenant(&record)?, record.revision))).transpose()
    }

    async fn users(&self, netid: NetId) -> Result<Option<Held>, TenantError> {
        if netid.is_global() {
            return Ok(None);
        }
        let key = netid_key(netid);
        let found = self.store.get(&key).await;
        let Some(record) = found.map_err(|source| failed(&format!("read network ID {netid}"), source))?
        else {
            return Ok(None);
        };
        Held::decode(&record).map(Some).map_err(|source| TenantError::Malformed { key, source })
    }
}

/// Decodes a tenant, whose key must have the same name.
fn tenant(record: &Record) -> Result<NetNamespace, TenantError> {
    let malformed = |source| TenantError::Malformed { key: record.key.clone(), source };
    let tenant = NetNamespace::decode(&record.value).map_err(malformed)?;
    if netnamespace_key(&tenant.netname) == record.key {
        return Ok(tenant);
    }
    let problem = format!("{} is not the name in its key", tenant.netname);
    Err(malformed(DecodeError { what: "NetNamespace", at: "netname".to_owned(), problem }))
}

fn failed(operation: &str, source: StoreError) -> TenantError {
    TenantError::Store { operation: operation.to_owned(), source }
}
