//! What of flannel's v2 data is to be in the new store, and how that stands there. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use russet_lease::Paths;
use russet_model::Key;
use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};
use russet_store::Record;
use russet_store_etcd::Life;

/// What there is at one of both places.
#[derive(Debug, Default)]
pub struct Found {
    /// The network's configuration.
    pub config: Option<Record>,
    /// The leases, and what else is among them. How long they live is known on the v2 side only.
    pub leases: Vec<(Record, Life)>,
}

/// What is to be done.
#[derive(Debug, Default)]
pub struct Plan {
    /// The configuration; none when the old data have none.
    pub config: Option<Planned>,
    /// The leases, in the order of their subnets.
    pub leases: Vec<Planned>,
    /// What is not carried over: v2 key and reason.
    pub left: Vec<(Key, String)>,
    /// What stands in the way, whatever is asked for: v2 key and reason.
    pub problems: Vec<(Key, String)>,
}

/// One record to be.
#[derive(Debug)]
pub struct Planned {
    /// Where.
    pub key: Key,
    /// What.
    pub value: Vec<u8>,
    /// How long it is to live; none for ever.
    pub time_left: Option<Duration>,
    /// How it stands.
    pub state: State,
}

/// How a planned record stands in the new store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is not there.
    Missing,
    /// It is there. A lease there may say more than the old one: its node has written it since.
    Same,
    /// Its node has another lease there by now.
    Moved(String),
    /// Something else is there: the reason.
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
    pub fn of(old: &Found, new: &Found, prefix: &str) -> Self {
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

    /// Everything that is planned.
    pub fn all(&self) -> impl Iterator<Item = &Planned> {
        self.leases.iter().chain(&self.config)
    }
}

/// Where the old data lie: the v2 API knows no keys without a `/` at their beginning.
pub fn old_paths(prefix: &str) -> Paths {
    Paths::new(&format!("/{prefix}"))
}

/// A lease in its place. Lists also have what merely begins like one: somebody's `subnets.bak/10.5.1.0-24`.
fn read(record: &Record, paths: &Paths) -> Result<Lease, String> {
    let subnet = record.key.as_str().parse::<SubnetKey>().map_err(|error| error.to_string())?;
    if paths.lease(&subnet) != record.key {
        return Err(format!("the lease of that subnet lies at {}", paths.lease(&subnet)));
    }
    let attributes = Attributes::from_json(&record.value).map_err(|error| error.to_string())?;
    Ok(Lease { subnet, attributes })
}

fn config_state(old: &Record, new: Option<&Record>) -> State {
    let Some(new) = new else { return State::Missing };
    let meant = |record: &Record| NetworkConfig::parse(&record.value).and_then(NetworkConfig::validated).ok();
    if new.value == old.value || meant(old).is_some_and(|old| meant(new) == Some(old)) {
        return State::Same;
    }
    State::Differs("another network config is there".to_owned())
}

fn lease_state(lease: &Lease, there: &[Lease]) -> State {
    if let Some(present) = there.iter().find(|present| present.subnet == lease.subnet) {
        return match is_same_node(&present.attributes, &lease.attributes) {
            true => State::Same,
            false => State::Differs(format!("it is the lease of {} there", name(&present.attributes))),
        };
    }
    let of_node = there.iter().find(|present| is_same_node(&present.attributes, &lease.attributes));
    if let Some(present) = of_node {
        return State::Moved(present.subnet.to_string());
    }
    match there.iter().find(|present| present.subnet.overlaps(&lease.subnet)) {
        Some(present) => State::Differs(format!(
            "it overlaps {}, the lease of {}",
            present.subnet,
            name(&present.attributes)
        )),
        None => State::Missing,
    }
}

/// What a node is recognised by (flannel.md section 0 item 3).
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

    fn found(config: Option<&str>, leases: &[(&str, &str, u64)]) -> Found {
        let life =
            |seconds| if seconds == 0 { Life::Forever } else { Life::For(Duration::from_secs(seconds)) };
        let leases = leases
            .iter()
            .map(|(subnet, value, seconds)| (record(&format!("subnets/{subnet}"), value), life(*seconds)));
        Found { config: config.map(|config| record("config", config)), leases: leases.collect() }
    }

    const CONFIG: &str = r#"{"Network":"10.5.0.0/16"}"#;
    const ONE: &str = r#"{"PublicIP":"192.0.2.1"}"#;
    const ONE_LATER: &str = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan"}"#;
    const TWO: &str = r#"{"PublicIP":"192.0.2.2"}"#;

    fn states(plan: &Plan) -> Vec<State> {
        plan.all().map(|planned| planned.state.clone()).collect()
    }

    #[test]
    fn an_empty_store_gets_everything_with_the_time_that_it_has_left() {
        let old = found(
            Some(CONFIG),
            &[("10.5.2.0-24", TWO, 0), ("10.5.1.0-24", ONE, 77), ("x", ONE, 5), ("10.5.3.0-24", "{", 5)],
        );
        let plan = Plan::of(&old, &Found::default(), PREFIX);
        assert_eq!(states(&plan), [State::Missing, State::Missing, State::Missing]);
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
    fn what_is_there_already_is_left_as_it_is() {
        let old = found(Some(CONFIG), &[("10.5.1.0-24", ONE, 77), ("10.5.2.0-24", TWO, 77)]);
        let same = found(
            Some(r#"{ "network": "10.5.0.0/16", "SubnetLen": 24 }"#),
            &[("10.5.1.0-24", ONE_LATER, 0), ("10.5.9.0-24", TWO, 0)],
        );
        let plan = Plan::of(&old, &same, PREFIX);
        assert_eq!(states(&plan), [State::Same, State::Moved("10.5.9.0-24".into()), State::Same]);
    }

    #[test]
    fn what_lies_beside_the_leases_is_no_lease() {
        let beside = || (record("subnets.bak/10.5.1.0-24", ONE), Life::Forever);
        let mut old = found(Some(CONFIG), &[("10.5.1.0-24", ONE, 77)]);
        old.leases.push(beside());
        let new = Found { leases: vec![beside()], ..Found::default() };
        let plan = Plan::of(&old, &new, PREFIX);
        assert_eq!(states(&plan), [State::Missing, State::Missing]);
        assert_eq!(plan.leases[0].time_left, Some(Duration::from_secs(77)), "the record of the lease itself");
        let reason = "the lease of that subnet lies at /n/subnets/10.5.1.0-24".to_owned();
        assert_eq!(plan.left, [(Key::from_stored("/n/subnets.bak/10.5.1.0-24"), reason)]);
    }

    #[test]
    fn another_config_and_leases_of_other_nodes_stand_in_the_way() {
        let old = found(Some(CONFIG), &[("10.5.1.0-24", ONE, 77)]);
        for theirs in ["10.5.1.0-24", "10.5.1.0-25", "10.5.0.0-16"] {
            let other = found(Some(r#"{"Network":"10.6.0.0/16"}"#), &[(theirs, TWO, 0)]);
            let plan = Plan::of(&old, &other, PREFIX);
            assert!(matches!(&states(&plan)[..], [State::Differs(_), State::Differs(_)]), "{theirs}");
        }
        assert_eq!(Plan::of(&found(None, &[]), &Found::default(), PREFIX).problems.len(), 1);
        assert_eq!(Plan::of(&found(Some("{"), &[]), &Found::default(), PREFIX).problems.len(), 1);
    }
}
