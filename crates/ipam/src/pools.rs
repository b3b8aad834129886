//! Which pools may serve a request (calico-ipam.md section 3.4 step 4). Pure.

use std::collections::BTreeMap;

use russet_addr::{Family, IpNet, NodeName};
use russet_model::{AddressUse, IpPool, Key};

use crate::IpamError;

/// The requester and the use of the addresses.
pub struct Asker<'a> {
    /// The node.
    pub node: &'a NodeName,
    /// The labels of its record; none without a record.
    pub node_labels: Option<&'a BTreeMap<String, String>>,
    /// The labels of the pod's namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// The use of the addresses.
    pub use_: AddressUse,
}

/// The pools to take addresses from, in order. If `requested` names them, selectors and modes do
/// not apply; only the use does.
pub fn choose(
    pools: &[IpPool],
    family: Family,
    requested: Option<&[IpNet]>,
    asker: &Asker<'_>,
) -> Result<Vec<IpPool>, IpamError> {
    let enabled: Vec<&IpPool> =
        pools.iter().filter(|pool| pool.spec.family() == family && pool.is_enabled()).collect();
    let no_pool =
        |reason: &str| IpamError::NoPool { node: asker.node.clone(), family, reason: reason.to_owned() };
    let chosen = match requested {
        Some(requested) if !requested.is_empty() => named(&enabled, family, requested)?,
        _ if enabled.is_empty() => return Err(no_pool("there is no enabled pool; create one")),
        _ => selecting(&enabled, asker)?,
    };
    if chosen.is_empty() {
        return Err(no_pool("no enabled pool selects this node and namespace automatically"));
    }
    let fit: Vec<IpPool> = chosen.into_iter().filter(|pool| pool.spec.allows(asker.use_)).cloned().collect();
    if fit.is_empty() {
        let reason = format!("no pool has {} among its allowedUses", asker.use_.as_str());
        return Err(no_pool(&reason));
    }
    Ok(fit)
}

/// Whether a pool's selector matches the node. A missing record matters only if the selector uses
/// labels.
pub fn selects_node(
    pool: &IpPool,
    node: &NodeName,
    labels: Option<&BTreeMap<String, String>>,
) -> Result<bool, IpamError> {
    let name = || pool.metadata.name.clone();
    let selector = pool.spec.nodes().map_err(|source| IpamError::Selector { pool: name(), source })?;
    match labels {
        Some(labels) => Ok(selector.matches(labels)),
        None if selector.to_string() == "all()" => Ok(true),
        None => Err(IpamError::NodeMissing { node: node.clone(), key: Key::node(node), pool: name() }),
    }
}

fn named<'a>(
    enabled: &[&'a IpPool],
    family: Family,
    requested: &[IpNet],
) -> Result<Vec<&'a IpPool>, IpamError> {
    let one = |cidr: &IpNet| {
        if Family::of_net(cidr) != family {
            return Err(IpamError::PoolFamily { pool: *cidr, family });
        }
        let found = enabled.iter().find(|pool| pool.spec.cidr == *cidr).copied();
        found.ok_or(IpamError::PoolMissing { pool: *cidr })
    };
    requested.iter().map(one).collect()
}

/// The automatic pools that match both node and namespace. A pool whose selector cannot be
/// evaluated is skipped; that is an error only if no other matches.
fn selecting<'a>(enabled: &[&'a IpPool], asker: &Asker<'_>) -> Result<Vec<&'a IpPool>, IpamError> {
    let mut chosen = Vec::new();
    let mut problem = None;
    for pool in enabled.iter().filter(|pool| pool.spec.is_automatic()) {
        match selects(pool, asker) {
            Ok(true) => chosen.push(*pool),
            Ok(false) => {}
            Err(error) => {
                russet_store::refused("a pool is skipped", &pool.metadata.name, &error);
                problem.get_or_insert(error);
            }
        }
    }
    match problem {
        Some(problem) if chosen.is_empty() => Err(problem),
        _ => Ok(chosen),
    }
}

fn selects(pool: &IpPool, asker: &Asker<'_>) -> Result<bool, IpamError> {
    let namespaces = pool
        .spec
        .namespaces()
        .map_err(|source| IpamError::Selector { pool: pool.metadata.name.clone(), source })?;
    Ok(namespaces.matches(asker.namespace_labels) && selects_node(pool, asker.node, asker.node_labels)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_model::IpPoolSpec;

    fn pool(name: &str, cidr: &str, change: impl FnOnce(&mut IpPoolSpec)) -> IpPool {
        let mut spec = IpPoolSpec::new(cidr.parse().unwrap());
        change(&mut spec);
        IpPool::new(name, spec)
    }

    fn pools() -> Vec<IpPool> {
        vec![
            pool("a", "10.1.0.0/24", |_| ()),
            pool("b", "10.2.0.0/24", |p| p.disabled = true),
            pool("c", "10.3.0.0/24", |p| p.node_selector = Some("zone == 'x'".into())),
            pool("d", "10.4.0.0/24", |p| p.allowed_uses = vec!["Tunnel".into()]),
            pool("e", "10.5.0.0/24", |p| p.namespace_selector = Some("team == 't'".into())),
            pool("f", "10.6.0.0/24", |p| p.assignment_mode = russet_model::AssignmentMode::Manual),
            pool("g", "fd80::/64", |_| ()),
        ]
    }

    fn names(
        use_: AddressUse,
        node: &[(&str, &str)],
        ns: &[(&str, &str)],
        requested: Option<&[&str]>,
    ) -> Result<String, IpamError> {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let (node_labels, namespace_labels) = (map(node), map(ns));
        let node = "node-a".parse().unwrap();
        let asker =
            Asker { node: &node, node_labels: Some(&node_labels), namespace_labels: &namespace_labels, use_ };
        let requested: Option<Vec<IpNet>> =
            requested.map(|list| list.iter().map(|c| c.parse().unwrap()).collect());
        let chosen = choose(&pools(), Family::V4, requested.as_deref(), &asker)?;
        Ok(chosen.iter().map(|pool| pool.metadata.name.as_str()).collect())
    }

    #[test]
    fn selectors_uses_and_modes_decide() {
        // calico-ipam.md section 3.4 step 4
        use AddressUse::{LoadBalancer, Tunnel, Workload};
        assert_eq!(names(Workload, &[], &[], None).unwrap(), "a");
        assert_eq!(names(Workload, &[("zone", "x")], &[], None).unwrap(), "ac");
        assert_eq!(names(Workload, &[], &[("team", "t")], None).unwrap(), "ae");
        assert_eq!(names(Tunnel, &[], &[], None).unwrap(), "ad");
        assert!(matches!(names(LoadBalancer, &[], &[], None), Err(IpamError::NoPool { .. })));
    }

    #[test]
    fn a_requested_pool_needs_no_selector_but_must_be_enabled_and_allow_the_use() {
        use AddressUse::Workload;
        assert_eq!(names(Workload, &[], &[], Some(&["10.6.0.0/24", "10.3.0.0/24"])).unwrap(), "fc");
        assert!(matches!(
            names(Workload, &[], &[], Some(&["10.2.0.0/24"])),
            Err(IpamError::PoolMissing { .. })
        ));
        assert!(matches!(
            names(Workload, &[], &[], Some(&["10.1.0.0/25"])),
            Err(IpamError::PoolMissing { .. })
        ));
        assert!(matches!(names(Workload, &[], &[], Some(&["fd80::/64"])), Err(IpamError::PoolFamily { .. })));
        assert!(matches!(names(Workload, &[], &[], Some(&["10.4.0.0/24"])), Err(IpamError::NoPool { .. })));
    }

    #[test]
    fn a_node_without_a_record_is_served_by_pools_that_need_no_label() {
        let node: NodeName = "node-a".parse().unwrap();
        let all = &pools();
        assert!(selects_node(&all[0], &node, None).unwrap());
        assert!(matches!(selects_node(&all[2], &node, None), Err(IpamError::NodeMissing { .. })));
    }
}
