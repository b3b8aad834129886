//! OpenShift's tenants (cni-runtime.md section 4.4): which network ID a namespace has, changed in the store by `russet netnamespace`, and
//! followed by every node's agent.
//!
//! Two nodes never give one ID to two namespaces: every ID in use has a record of its own, which names its namespaces and which every change of them
//! is guarded by. A change writes the new ID's record first and the old one's last, so that on a store that takes steps one by one an ID's
//! record never names too few.

mod change;
mod follow;
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

pub use follow::{Told, follow};
pub use view::{Changed, View};

/// The tenants of a store.
pub struct Tenants {
    store: Rc<dyn Store>,
}

/// What can be done to a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A namespace that has none gets one, with an ID of its own; `default` gets the global one.
    Create,
    /// The namespace is gone.
    Delete,
    /// It may talk to all, and all to it.
    Global,
    /// It gets the ID that another namespace has.
    Join(Namespace),
    /// It gets an ID of its own, unless it has one.
    Isolate,
}

/// Why a tenant stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// The store.
    #[error("{operation}: {source}")]
    Store {
        /// What was being done.
        operation: String,
        /// Why not.
        source: StoreError,
    },
    /// What the store holds is not what its key says.
    #[error("read {key}: {source}")]
    Malformed {
        /// Where.
        key: Key,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// There is no such tenant.
    #[error("there is no NetNamespace {0}")]
    Missing(Namespace),
    /// There is one already.
    #[error("NetNamespace {0} is there already, with network ID {1}")]
    Exists(Namespace, NetId),
    /// `default` is global, always.
    #[error("NetNamespace default stays global: it cannot be isolated, joined to a tenant or deleted")]
    Default,
    /// Policies need an ID for every namespace.
    #[error(
        "the cluster isolates by network policies, for which every namespace keeps a network ID of its own"
    )]
    Policies,
    /// All IDs are in use.
    #[error("no network ID is left: all from {first} to {last} are in use", first = NetId::FIRST, last = NetId::MAX)]
    Full,
    /// Somebody else changed the same tenants, again and again.
    #[error("change NetNamespace {0}: others change the same tenants; try again")]
    Busy(Namespace),
}

/// Times that a change is planned anew because somebody else was faster. Each time somebody got on.
const TRIES_MAX: u32 = 64;

// === impl Tenants ===

impl Tenants {
    /// The tenants of a store.
    pub fn new(store: Rc<dyn Store>) -> Self {
        Self { store }
    }

    /// All tenants, in the order of their names.
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

    /// Carries out an action, and answers with the tenant as it is then; after a deletion, as it was.
    pub async fn act(&self, namespace: &Namespace, action: &Action) -> Result<NetNamespace, TenantError> {
        self.permitted(namespace, action).await?;
        // What we wrote ourselves while the answer was lost.
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

    /// What needs no look at tenants to be refused.
    async fn permitted(&self, namespace: &Namespace, action: &Action) -> Result<(), TenantError> {
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
            (Action::Join(other), Some(_)) => self.of(other).await?,
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

    /// An ID that nobody has. Which one follows from the name, so that an ID that was somebody's is hardly ever soon somebody else's: a
    /// node that has not heard yet of the end of the first would let both talk.
    async fn fresh(&self, namespace: &Namespace, attempt: u32) -> Result<Wish, TenantError> {
        let keys = self.store.keys(&netids()).await.map_err(|source| failed("list network IDs", source))?;
        let recorded = keys.iter().filter_map(|key| match parse_key(key)? {
            russet_model::openshift::OpenshiftKey::NetId(id) => Some(id),
            _ => None,
        });
        let used = recorded.chain(self.list().await?.into_iter().map(|tenant| tenant.netid)).collect();
        change::free_id(namespace, attempt, &used).map(|id| Wish::Id(id, None)).ok_or(TenantError::Full)
    }

    /// The ID of another namespace, and who has it.
    async fn of(&self, other: &Namespace) -> Result<Wish, TenantError> {
        let (tenant, _) = self.read(other).await?.ok_or_else(|| TenantError::Missing(other.clone()))?;
        let held = self.users(tenant.netid).await?;
        // A tenant that somebody wrote by hand has no record of its ID.
        let held = held.unwrap_or_else(|| Held { users: [other.clone()].into(), revision: None });
        Ok(Wish::Id(tenant.netid, (!tenant.netid.is_global()).then_some(held)))
    }

    async fn is_alone(&self, tenant: &NetNamespace) -> Result<bool, TenantError> {
        if tenant.netid.is_global() {
            return Ok(false);
        }
        // Not by the ID's record: it may name one too many.
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

/// Reads a tenant, whose key says the same name.
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
