//! Compares flannel's v2 data with the new store and plans what to write. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use russet_lease::Paths;
use russet_model::Key;
use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};
use russet_store::Record;
use russet_store_etcd::Life;

/// The data of one of the two stores.
#[derive(Debug, Default)]
pub struct StoredData {
    pub config: Option<Record>,
    /// The leases, and other records below their prefix. Their remaining time is known only on the
    /// v2 side.
    pub leases: Vec<(Record, Life)>,
}

/// What to write.
#[derive(Debug, Default)]
pub struct Plan {
    /// The configuration; None if the old data has none.
    pub config: Option<Planned>,
    /// The leases, in the order of their subnets.
    pub leases: Vec<Planned>,
    /// What is not migrated: v2 key and reason.
    pub left: Vec<(Key, String)>,
    /// What prevents the migration, even with --force: v2 key and reason.
    pub problems: Vec<(Key, String)>,
}

/// One record of the plan.
#[derive(Debug)]
pub struct Planned {
    pub key: Key,
    pub value: Vec<u8>,
    /// Its remaining time; None if it never expires.
    pub time_left: Option<Duration>,
    pub state: RecordState,
}

/// The state of a planned record in the new store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordState {
    Missing,
    /// It exists. A lease there may have more members than the old one: its node has written it
    /// since.
    Same,
    /// Its node has another lease there by now.
    Moved(String),
    /// A different record exists: the reason.
    Differs(String),
}

/// A readable lease.
struct Lease {
    subnet: SubnetKey,
    attributes: Attributes,
}

// === impl Plan ===

impl Plan {
    /// Compares both sides.
    pub fn compare(old: &StoredData, new: &StoredData, prefix: &str) -> Self {
        let paths = Paths::new(prefix);
        let mut plan = Self::default();
        match &old.config {
            Some(record) => {
                if let Err(error) = NetworkConfig::parse(&record.value).and_then(NetworkConfig::validated) {
                    plan.problems.push((record.key.clone(), error.to_string()));
                }
                let state = config_state(record, new.config.as_ref());
                plan.config = Some(Planned {
                    key: paths.config(),
                    value: record.value.clone(),
                    time_left: None,
                    state,
                });
            }
            None => {
                plan.problems.push((paths.config(), "there is no network config in the v2 data".to_owned()))
            }
        }
        let there: Vec<Lease> =
            new.leases.iter().filter_map(|(record, _)| read(record, &paths).ok()).collect();
        let from = old_paths(prefix);
        let mut leases: BTreeMap<SubnetKey, Planned> = BTreeMap::new();
        for (record, life) in &old.leases {
            let lease = match read(record, &from) {
                Ok(lease) => lease,
                Err(reason) => {
                    plan.left.push((record.key.clone(), reason));
                    continue;
                }
            };
            let time_left = match life {
                Life::Forever => None,
                Life::For(left) => Some(*left),
            };
            let (key, state) = (paths.lease(&lease.subnet), lease_state(&lease, &there));
            leases.insert(lease.subnet, Planned { key, value: record.value.clone(), time_left, state });
        }
        plan.leases = leases.into_values().collect();
        plan
    }

    pub fn all(&self) -> impl Iterator<Item = &Planned> {
        self.leases.iter().chain(&self.config)
    }
}

/// The paths of the old data: keys of the v2 API always begin with `/`.
pub fn old_paths(prefix: &str) -> Paths {
    Paths::new(&format!("/{prefix}"))
}

/// Decodes a lease at its key. Lists also contain keys such as `subnets.bak/10.5.1.0-24`.
fn read(record: &Record, paths: &Paths) -> Result<Lease, String> {
    let subnet = record.key.as_str().parse::<SubnetKey>().map_err(|error| error.to_string())?;
    if paths.lease(&subnet) != record.key {
        return Err(format!("the lease of that subnet lies at {}", paths.lease(&subnet)));
    }
    let attributes = Attributes::from_json(&record.value).map_err(|error| error.to_string())?;
    Ok(Lease { subnet, attributes })
}

fn config_state(old: &Record, new: Option<&Record>) -> RecordState {
    let Some(new) = new else { return RecordState::Missing };
    let meant = |record: &Record| NetworkConfig::parse(&record.value).and_then(NetworkConfig::validated).ok();
    if new.value == old.value || meant(old).is_some_and(|old| meant(new) == Some(old)) {
        return RecordState::Same;
    }
    RecordState::Differs("another network config is there".to_owned())
}

fn lease_state(lease: &Lease, there: &[Lease]) -> RecordState {
    if let Some(present) = there.iter().find(|present| present.subnet == lease.subnet) {
        return match is_same_node(&present.attributes, &lease.attributes) {
            true => RecordState::Same,
            false => RecordState::Differs(format!("it is the lease of {} there", name(&present.attributes))),
        };
    }
    let of_node = there.iter().find(|present| is_same_node(&present.attributes, &lease.attributes));
    if let Some(present) = of_node {
        return RecordState::Moved(present.subnet.to_string());
    }
    match there.iter().find(|present| present.subnet.overlaps(&lease.subnet)) {
        Some(present) => RecordState::Differs(format!(
            "it overlaps {}, the lease of {}",
            present.subnet,
            name(&present.attributes)
        )),
        None => RecordState::Missing,
    }
}

/// The members that identify a node (flannel.md section 0 item 3).
fn is_same_node(a: &Attributes, b: &Attributes) -> bool {
    if a.public_ip.is_unspecified() {
        return b.public_ip.is_unspecified() && a.public_ipv6.is_some() && a.public_ipv6 == b.public_ipv6;
    }
    a.public_ip == b.public_ip
}

fn name(node: &Attributes) -> String {
    match node.public_ipv6.filter(|_| node.public_ip.is_unspecified()) {
        Some(address) => address.to_string(),
        None => node.public_ip.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_store::Revision;

    const PREFIX: &str = "/n";

    fn record(below: &str, value: &str) -> Record {
        Record { key: Key::from_stored(format!("/n/{below}")), value: value.into(), revision: Revision(1) }
    }

    fn found(config: Option<&str>, leases: &[(&str, &str, u64)]) -> StoredData {
        let life =
            |seconds| if seconds == 0 { Life::Forever } else { Life::For(Duration::from_secs(seconds)) };
        let leases = leases
            .iter()
            .map(|(subnet, value, seconds)| (record(&format!("subnets/{subnet}"), value), life(*seconds)));
        StoredData { config: config.map(|config| record("config", config)), leases: leases.collect() }
    }

    const CONFIG: &str = r#"{"Network":"10.5.0.0/16"}"#;
    const ONE: &str = r#"{"PublicIP":"192.0.2.1"}"#;
    const ONE_LATER: &str = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan"}"#;
    const TWO: &str = r#"{"PublicIP":"192.0.2.2"}"#;

    fn states(plan: &Plan) -> Vec<RecordState> {
        plan.all().map(|planned| planned.state.clone()).collect()
    }

    #[test]
    fn an_empty_store_gets_everything_with_the_time_that_it_has_left() {
        let old = found(
            Some(CONFIG),
            &[("10.5.2.0-24", TWO, 0), ("10.5.1.0-24", ONE, 77), ("x", ONE, 5), ("10.5.3.0-24", "{", 5)],
        );
        let plan = Plan::compare(&old, &StoredData::default(), PREFIX);
        assert_eq!(states(&plan), [RecordState::Missing, RecordState::Missing, RecordState::Missing]);
        let times: Vec<_> = plan.all().map(|planned| (planned.key.as_str(), planned.time_left)).collect();
        let wanted = [
            ("/n/subnets/10.5.1.0-24", Some(Duration::from_secs(77))),
            ("/n/subnets/10.5.2.0-24", None),
            ("/n/config", None),
        ];
        assert_eq!(times, wanted);
        assert_eq!((plan.left.len(), plan.problems.len()), (2, 0));
    }

    #[test]
    fn existing_records_are_unchanged() {
        let old = found(Some(CONFIG), &[("10.5.1.0-24", ONE, 77), ("10.5.2.0-24", TWO, 77)]);
        let same = found(
            Some(r#"{ "network": "10.5.0.0/16", "SubnetLen": 24 }"#),
            &[("10.5.1.0-24", ONE_LATER, 0), ("10.5.9.0-24", TWO, 0)],
        );
        let plan = Plan::compare(&old, &same, PREFIX);
        assert_eq!(
            states(&plan),
            [RecordState::Same, RecordState::Moved("10.5.9.0-24".into()), RecordState::Same]
        );
    }

    #[test]
    fn foreign_keys_beside_the_leases_are_left_out() {
        let beside = || (record("subnets.bak/10.5.1.0-24", ONE), Life::Forever);
        let mut old = found(Some(CONFIG), &[("10.5.1.0-24", ONE, 77)]);
        old.leases.push(beside());
        let new = StoredData { leases: vec![beside()], ..StoredData::default() };
        let plan = Plan::compare(&old, &new, PREFIX);
        assert_eq!(states(&plan), [RecordState::Missing, RecordState::Missing]);
        assert_eq!(plan.leases[0].time_left, Some(Duration::from_secs(77)), "the record of the lease itself");
        let reason = "the lease of that subnet lies at /n/subnets/10.5.1.0-24".to_owned();
        assert_eq!(plan.left, [(Key::from_stored("/n/subnets.bak/10.5.1.0-24"), reason)]);
    }

    #[test]
    fn another_config_and_leases_of_other_nodes_are_problems() {
        let old = found(Some(CONFIG), &[("10.5.1.0-24", ONE, 77)]);
        for theirs in ["10.5.1.0-24", "10.5.1.0-25", "10.5.0.0-16"] {
            let other = found(Some(r#"{"Network":"10.6.0.0/16"}"#), &[(theirs, TWO, 0)]);
            let plan = Plan::compare(&old, &other, PREFIX);
            assert!(
                matches!(&states(&plan)[..], [RecordState::Differs(_), RecordState::Differs(_)]),
                "{theirs}"
            );
        }
        assert_eq!(Plan::compare(&found(None, &[]), &StoredData::default(), PREFIX).problems.len(), 1);
        assert_eq!(Plan::compare(&found(Some("{"), &[]), &StoredData::default(), PREFIX).problems.len(), 1);
    }
}
