//! What a node needs of its kernel.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::Family;
use russet_agent::conflists::Conflists;
use russet_agent::{DefaultPools, Encapsulation, FastPathMode};
use russet_linux::probe::Feature;
use russet_overlay::Inputs;

/// What the pools and the network configurations of a node need.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The families of pods' addresses.
    pub families: BTreeSet<Family>,
    /// Packets to other nodes are encapsulated.
    pub tunnel: bool,
    /// Whether the fast path is wanted.
    pub fast_path: FastPathMode,
    /// The kernel features of plugins, each with the file that names the plugin.
    pub plugins: BTreeMap<Feature, String>,
}

// === impl Needs ===

impl Needs {
    pub fn of_inputs(inputs: &Inputs) -> Self {
        let families = inputs.pools.iter().map(|pool| Family::of_net(&pool.cidr)).collect();
        let tunnel = inputs.pools.iter().any(|pool| pool.encapsulation.needs_tunnel());
        Self { families, tunnel, ..Self::default() }
    }

    /// What a new store's pools need.
    pub fn of_pools(pools: &DefaultPools) -> Self {
        let families = [pools.ipv4, pools.ipv6].iter().flatten().map(Family::of_net).collect();
        Self { families, tunnel: pools.encapsulation != Encapsulation::None, ..Self::default() }
    }

    /// The kernel features that are needed, each with what needs it.
    pub fn features(&self) -> BTreeMap<Feature, String> {
        let mut features = self.plugins.clone();
        if self.tunnel {
            features.insert(Feature::Vxlan, "pools' packets to other nodes need it".to_owned());
        }
        features.insert(Feature::Veth, "pods' interfaces need it".to_owned());
        features.insert(Feature::NfTables, "policies, masquerade and published ports need it".to_owned());
        features.insert(Feature::Conntrack, "policies and masquerade need it".to_owned());
        features
    }
}

/// The kernel features of the plugins that network configurations name.
pub fn plugins(conflists: &Conflists) -> BTreeMap<Feature, String> {
    let mut features = BTreeMap::new();
    for conflist in conflists.all() {
        for (plugin, feature) in conflist.plugins.iter().filter_map(|name| Some((name, feature_of(name)?))) {
            features
                .entry(feature)
                .or_insert_with(|| format!("plugin {plugin} of {} needs it", conflist.file));
        }
    }
    features
}

fn feature_of(plugin: &str) -> Option<Feature> {
    Some(match plugin {
        "bandwidth" => Feature::Ifb,
        "bridge" | "flannel" => Feature::Bridge,
        "dummy" => Feature::Dummy,
        "ipvlan" => Feature::Ipvlan,
        "macvlan" => Feature::Macvlan,
        "vlan" => Feature::Vlan,
        "vrf" => Feature::Vrf,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_those_of_pools_and_plugins() {
        let mut pools = DefaultPools::default();
        let needs = Needs::of_pools(&pools);
        assert_eq!(needs.families, BTreeSet::from(Family::BOTH));
        assert!(needs.features().contains_key(&Feature::Vxlan));
        (pools.ipv6, pools.encapsulation) = (None, Encapsulation::None);
        let mut needs = Needs::of_pools(&pools);
        assert_eq!(needs.families, BTreeSet::from([Family::V4]));
        assert!(!needs.features().contains_key(&Feature::Vxlan));

        let directory = tempfile::tempdir().unwrap();
        let text = r#"{"name":"lan","plugins":[{"type":"ipvlan"},{"type":"tuning"},{"type":"bandwidth"}]}"#;
        std::fs::write(directory.path().join("20-lan.conflist"), text).unwrap();
        needs.plugins = plugins(&Conflists::read(directory.path()).unwrap());
        assert_eq!(needs.features()[&Feature::Ipvlan], "plugin ipvlan of 20-lan.conflist needs it");
        assert_eq!(needs.plugins.len(), 2, "{needs:?}");
    }
}
