//! Pools that the datastore has and Russet does not carry. An operator has to see this in the log, at
//! `/readyz?verbose` and on the standard error of an ADD.

use russet_model::{AddressUse, EncapMode, IpPool};

/// Why pods of some pools reach no other node; none if all pools are carried.
pub fn pools<'a>(pools: impl IntoIterator<Item = &'a IpPool>) -> Option<String> {
    let uncarried = |pool: &&IpPool| {
        let spec = &pool.spec;
        let ipip = spec.vxlan_mode == EncapMode::Never && spec.ipip_mode != EncapMode::Never;
        ipip && pool.is_enabled() && spec.allows(AddressUse::Workload)
    };
    let shown = |pool: &IpPool| {
        format!("{} ({}, ipipMode {})", pool.metadata.name, pool.spec.cidr, pool.spec.ipip_mode.as_str())
    };
    let found: Vec<String> = pools.into_iter().filter(uncarried).map(shown).collect();
    (!found.is_empty()).then(|| {
        format!(
            "IPIP pools are not carried, so that their pods reach no other node: {}; set vxlanMode and ipipMode Never, disable the pool, or run calico/node on this node",
            found.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_enabled_ipip_pool_for_pods_is_missing() {
        let pool = |change: &dyn Fn(&mut russet_model::IpPoolSpec)| {
            let mut spec = russet_model::IpPoolSpec::new("10.65.0.0/16".parse().unwrap());
            (spec.vxlan_mode, spec.ipip_mode) = (EncapMode::Never, EncapMode::Always);
            change(&mut spec);
            pools([&IpPool::new("p", spec)])
        };
        let text = pool(&|_| ()).unwrap();
        assert!(text.contains("p (10.65.0.0/16, ipipMode Always)"), "{text}");
        assert_eq!(pool(&|spec| spec.disabled = true), None);
        assert_eq!(pool(&|spec| spec.vxlan_mode = EncapMode::CrossSubnet), None);
        assert_eq!(pool(&|spec| spec.ipip_mode = EncapMode::Never), None);
        assert_eq!(pool(&|spec| spec.allowed_uses = vec!["Tunnel".to_owned()]), None);
    }
}
