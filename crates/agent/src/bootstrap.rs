//! What a node writes into the store before it can attach pods: the first pools, and its own
//! record.

use std::net::IpAddr;

use russet_addr::{Family, IpNet, NodeName};
use russet_ipam::{Allocator, DefaultPool, IpamError};
use russet_linux::random::random;
use russet_model::{
    ClusterInformation, ClusterInformationSpec, DecodeError, EncapMode, IpPool, Key, Node, NodeBgp, NodeSpec,
    Resource, uid,
};
use russet_overlay::underlay::{Choice, UnderlayError};
use russet_store::{Record, Step, Store, StoreError};
use russet_store_etcd::Settings as EtcdSettings;

use crate::config::DefaultPools;

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An existing record cannot be decoded. It was left unchanged.
    #[error("{key} cannot be read and was not changed: {source}")]
    Corrupt {
        /// The record's key.
        key: Key,
        /// The decoding error.
        source: DecodeError,
    },
    /// Nodes of this store are made by others, and this one was not made yet.
    #[error(
        "the cluster has no Node {0}: kubelet registers it; if kubelet uses another name, give that one with --node-name"
    )]
    NoNode(NodeName),
    /// The underlay interface could not be determined.
    #[error(transparent)]
    Underlay(#[from] UnderlayError),
    #[error("create the default pools: {0}")]
    Pools(#[source] IpamError),
    /// No address could be allocated for a tunnel. Pods of that family cannot reach other nodes;
    /// everything else works.
    #[error("allocate the tunnel's address: {0}")]
    Tunnel(#[from] IpamError),
}

/// Names of the pools that a fresh store gets (ARCHITECTURE.md, "Names and places").
const DEFAULT_POOLS: [&str; 2] = ["default-ipv4", "default-ipv6"];
/// Attempts to update this node's own record. Only an operator's edit can conflict with it.
const TRIES: usize = 10;

/// Creates the default pools for each family that has none. Existing pools are not changed.
///
/// `apply` is the command by which an operator changes pools.
pub async fn ensure_pools(
    allocator: &Allocator,
    defaults: &DefaultPools,
    apply: &str,
) -> Result<(), BootstrapError> {
    let vxlan_mode = defaults.encapsulation.vxlan_mode();
    let wanted = DEFAULT_POOLS.into_iter().zip([defaults.ipv4, defaults.ipv6]);
    let pool = |(name, cidr): (&str, Option<IpNet>)| {
        Some(DefaultPool { name: name.to_owned(), cidr: cidr?, vxlan_mode, nat_outgoing: true })
    };
    let pools: Vec<DefaultPool> = wanted.filter_map(pool).collect();
    let created = allocator.ensure_pools(&pools).await.map_err(BootstrapError::Pools)?;
    if !created.is_empty() {
        tracing::info!(pools = created.join(", "), "default pools created");
    }
    let there = allocator.pools().await.map_err(BootstrapError::Pools)?;
    for (setting, reason) in unused(defaults, &there, apply) {
        russet_store::refused("a setting of pools is not used: the store has pools already", setting, reason);
    }
    Ok(())
}

/// The pool settings that differ from both the defaults and the existing pools, each with the
/// reason why it has no effect.
fn unused(settings: &DefaultPools, there: &[IpPool], apply: &str) -> Vec<(String, String)> {
    let default = DefaultPools::default();
    let mut found = Vec::new();
    let families = [
        (Family::V4, "--ipv4-pool", settings.ipv4, default.ipv4),
        (Family::V6, "--ipv6-pool", settings.ipv6, default.ipv6),
    ];
    for (family, flag, wanted, usual) in families {
        let mut pools = there.iter().filter(|pool| pool.spec.family() == family).peekable();
        if wanted == usual || pools.peek().is_none() {
            continue;
        }
        let names: Vec<String> =
            pools.clone().map(|pool| format!("{} {}", pool.metadata.name, pool.spec.cidr)).collect();
        if wanted.is_none_or(|wanted| !pools.any(|pool| pool.spec.cidr == wanted)) {
            let wanted = wanted.map_or_else(|| "none".to_owned(), |wanted| wanted.to_string());
            let reason = format!("there is {}; change pools with `{apply}`", names.join(", "));
            found.push((format!("{flag} {wanted}"), reason));
        }
    }
    let mode = settings.encapsulation.vxlan_mode();
    let other = there.iter().find(|pool| pool.spec.vxlan_mode != mode);
    if settings.encapsulation != default.encapsulation
        && let Some(other) = other
    {
        let (name, has) = (&other.metadata.name, other.spec.vxlan_mode.as_str());
        let reason = format!("pool {name} has vxlanMode {has}; change it with `{apply}`");
        found.push((format!("--encapsulation with vxlanMode {}", mode.as_str()), reason));
    }
    found
}

/// Creates the ClusterInformation resource if there is none, as calico/node does at its first
/// start: Calico's plugin refuses to work without it (calico-cni.md section 2.1). An existing one
/// is left alone, because it may say that the datastore is locked. If the same etcd still has
/// Calico v1 data, `russet migrate calico-v1` writes the resource as its last step. While etcd does
/// not say whether it has such data, nothing is written, and the caller tries again later.
pub async fn ensure_cluster_information(
    store: &dyn Store,
    etcd: Option<&EtcdSettings>,
) -> Result<(), BootstrapError> {
    if store.get(&Key::cluster_information()).await?.is_some() {
        return Ok(());
    }
    if let Some(settings) = etcd {
        match russet_plugins::has_calico_v1_data(settings).await {
            Ok(true) => {
                tracing::warn!(
                    "no cluster information is written, because Calico v1 data is not migrated yet; run `russet migrate calico-v1`"
                );
                return Ok(());
            }
            // This is also the result where etcd has no v2 API.
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "no cluster information is written yet, because it cannot be determined whether there is Calico v1 data");
                return Ok(());
            }
        }
    }
    let cluster_guid = uid(random()).replace('-', "");
    let spec = ClusterInformationSpec {
        cluster_guid,
        datastore_ready: Some(true),
        ..ClusterInformationSpec::default()
    };
    let mut information = ClusterInformation::new(ClusterInformationSpec::NAME, spec);
    stamp(&mut information);
    let create = Step::create(Key::cluster_information(), information.encode());
    match store.commit(vec![create]).await.map_err(|failed| failed.error) {
        Ok(_) | Err(StoreError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Fills the fields that every v3 resource must have when it is created (calico-ipam.md section
/// 1.8).
fn stamp<S>(resource: &mut Resource<S>) {
    let metadata = &mut resource.metadata;
    metadata.uid.get_or_insert_with(|| uid(random()));
    metadata
        .creation_timestamp
        .get_or_insert_with(|| russet_model::time::rfc3339(std::time::SystemTime::now()));
}

/// What to do with addresses that the node's record already has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The addresses of the underlay replace them.
    Replace,
    /// They stay as long as the underlay has them: an operator, or Calico's address detection,
    /// chose them.
    Keep,
}

/// Registers this node with its addresses and keeps the rest of its record. In a Kubernetes datastore
/// that is the node's own object, whose `InternalIP` wins over other addresses of the underlay.
pub async fn register(
    store: &dyn Store,
    name: &NodeName,
    choice: &Choice,
    known: Known,
) -> Result<(), BootstrapError> {
    let own = |address: IpAddr| choice.underlay.addresses.iter().find(|own| own.addr() == address).copied();
    let address = |family, found: Option<IpNet>, internal: Option<IpAddr>| {
        let kept = found.filter(|net| known == Known::Keep && own(net.addr()).is_some());
        kept.or(internal.and_then(own)).or(choice.address(family)).or(found)
    };
    update_node(store, name, |node| {
        let spec = &mut node.spec;
        let internal = Family::BOTH.map(|family| spec.internal_ip(family));
        let entry = spec.bgp.get_or_insert_with(NodeBgp::default);
        entry.ipv4_address = address(Family::V4, entry.ipv4_address, internal[0]);
        entry.ipv6_address = address(Family::V6, entry.ipv6_address, internal[1]);
    })
    .await
}

/// Allocates addresses for this node's tunnel devices where pools need them, and publishes them.
/// `published` is this node's record: a published address whose block cannot be read, and which
/// therefore cannot be confirmed, stays in use.
pub async fn ensure_tunnels(
    store: &dyn Store,
    allocator: &Allocator,
    name: &NodeName,
    pools: &[IpPool],
    published: Option<&Node>,
) -> Result<(), BootstrapError> {
    let mut tunnels: Vec<IpAddr> = Vec::new();
    let mut failed = None;
    for family in Family::BOTH {
        let tunnelled = |pool: &&IpPool| {
            pool.spec.family() == family && pool.is_enabled() && pool.spec.vxlan_mode != EncapMode::Never
        };
        let cidrs: Vec<IpNet> = pools.iter().filter(tunnelled).map(|pool| pool.spec.cidr).collect();
        if cidrs.is_empty() {
            continue;
        }
        match allocator.ensure_tunnel_address(name, family, &cidrs).await {
            Ok(address) => tunnels.push(address),
            Err(error)
                if !error.retryable()
                    && published.is_some_and(|node| node.spec.vxlan_tunnel(family).is_some()) =>
            {
                tracing::warn!(%family, %error, "the tunnel keeps its address, which could not be confirmed");
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    update_node(store, name, |node| {
        tunnels.iter().for_each(|address| node.spec.set_vxlan_tunnel(*address));
    })
    .await?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Reads this node's record, changes it, and writes it if it differs.
pub async fn update_node(
    store: &dyn Store,
    name: &NodeName,
    change: impl Fn(&mut Node),
) -> Result<(), BootstrapError> {
    let key = Key::node(name);
    let mut last = None;
    for _ in 0..TRIES {
        let found = store.get(&key).await?;
        let is_missing = found.is_none();
        let Some(step) = node_step(&key, name, found, &change)? else { return Ok(()) };
        match store.commit(vec![step]).await {
            Ok(_) => return Ok(()),
            Err(error) if error.error.lost_race() => last = Some(error.error),
            Err(error) if is_missing && matches!(error.error, StoreError::Unsupported { .. }) => {
                return Err(BootstrapError::NoNode(name.clone()));
            }
            Err(error) => return Err(error.error.into()),
        }
    }
    Err(last.unwrap_or(StoreError::Conflict { key }).into())
}

fn node_step(
    key: &Key,
    name: &NodeName,
    found: Option<Record>,
    change: &impl Fn(&mut Node),
) -> Result<Option<Step>, BootstrapError> {
    let Some(record) = found else {
        let mut node: Node = Resource::new(name.as_str(), NodeSpec::default());
        stamp(&mut node);
        change(&mut node);
        return Ok(Some(Step::create(key.clone(), node.encode())));
    };
    let decoded = Node::decode(&record.value);
    let mut node = decoded.map_err(|source| BootstrapError::Corrupt { key: key.clone(), source })?;
    let before = node.clone();
    change(&mut node);
    Ok((node != before).then(|| Step::update(key.clone(), node.encode(), record.revision)))
}

#[cfg(test)]
mod tests;
