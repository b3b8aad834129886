//! Converts the records of the v1 model to v3: what to write in which order, what has no
//! equivalent, and what is left out. Pure.

mod owners;

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::{BlockCidr, IpNet, NodeName};
use russet_model::v1::{self, NodeData, V1Key};
use russet_model::{
    Affinity, AffinityState, Block, ClusterInformation, ClusterInformationSpec, Handle, IpamConfig, Key,
    KeyKind, Node, Profile, ResourceKind,
};
use russet_store::Record;

use owners::{Handles, User};

/// The kind of a record, in the order of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Blocks: before anything refers to them.
    Block,
    Handle,
    Affinity,
    /// The allocator's settings.
    Settings,
    Node,
    Profile,
    Endpoint,
    /// Pools: once they are written, addresses are assigned.
    Pool,
    /// The cluster's information: once it is written, plugins use the store.
    Cluster,
}

/// One record to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub kind: Kind,
    /// The v2 key that it comes from; of several, the first.
    pub from: Key,
    pub key: Key,
    pub value: Vec<u8>,
}

/// A reason against the migration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub key: Key,
    pub reason: String,
}

/// The whole migration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub writes: Vec<Planned>,
    /// If there are any, nothing is written.
    pub problems: Vec<Problem>,
    /// Records that v3 does not need or that are not migrated: the number for each prefix of keys.
    pub left: BTreeMap<String, usize>,
}

/// How many parts of a key identify the kind of records that are left out.
const LEFT_PARTS: usize = 3;
/// The prefix of network policies, and the note that the report has for them.
const POLICIES: &str = "/calico/v1/policy/tier/";
const POLICIES_LEFT: &str =
    "/calico/v1/policy/tier, network policies: make them anew in v3, nothing enforces them there until then";
/// Longest name of a resource.
const NAME_MAX_BYTES: usize = 253;

#[derive(Default)]
struct PlanBuilder {
    plan: Plan,
    blocks: BTreeMap<BlockCidr, Block>,
    handles: Handles,
    users: Vec<User>,
    affinities: Vec<(Key, NodeName, Affinity, BlockCidr)>,
    profiles: BTreeMap<String, (Key, v1::Profile)>,
    nodes: BTreeMap<NodeName, (Key, NodeData)>,
    pools: Vec<(Key, IpNet)>,
}

// === impl Plan ===

impl Plan {
    /// Plans for all records of the v1 model.
    pub fn from_records(records: &[Record]) -> Self {
        let mut draft = PlanBuilder::default();
        for record in records {
            if let Err(reason) = draft.take(record) {
                draft.plan.problems.push(Problem { key: record.key.clone(), reason });
            }
        }
        draft.finish()
    }
}

// === impl PlanBuilder ===

impl PlanBuilder {
    fn take(&mut self, record: &Record) -> Result<(), String> {
        match V1Key::parse(&record.key) {
            Some(key) => self.take_v1(key, record),
            None => self.take_ipam(record),
        }
    }

    fn take_ipam(&mut self, record: &Record) -> Result<(), String> {
        let (key, bytes) = (&record.key, record.value.as_slice());
        let text = |error: russet_model::DecodeError| error.to_string();
        match key.kind() {
            KeyKind::Block(cidr) => {
                let block = v1::block_to_v3(&Block::decode(bytes).map_err(text)?);
                if block.cidr != cidr {
                    return Err(format!("the block of {} lies there", block.cidr));
                }
                self.blocks.insert(cidr, block);
            }
            KeyKind::Affinity { node, block } => {
                let affinity = Affinity::decode(bytes).map_err(text)?;
                self.affinities.push((key.clone(), node, affinity, block));
            }
            KeyKind::Handle(id) => {
                let handle = Handle::decode(bytes).map_err(text)?;
                self.handles.insert(id, (key.clone(), handle));
            }
            KeyKind::IpamConfig => {
                let config = IpamConfig::decode(bytes).map_err(text)?;
                self.write(Kind::Settings, key, key.clone(), config.encode());
            }
            _ => self.leave(key),
        }
        Ok(())
    }

    fn take_v1(&mut self, parsed: V1Key, record: &Record) -> Result<(), String> {
        let (key, bytes) = (&record.key, record.value.as_slice());
        let text = |error: russet_model::DecodeError| error.to_string();
        match &parsed {
            // The operator set this flag for the old programs.
            V1Key::Ready => {}
            V1Key::Pool(net) => {
                let pool = v1::Pool::decode(bytes).map_err(text)?;
                if pool.cidr != *net {
                    return Err(format!("the pool of {} lies there", pool.cidr));
                }
                self.take_pool(key, &pool)?;
            }
            V1Key::Endpoint(id) => {
                let endpoint = v1::Endpoint::decode(bytes).map_err(text)?;
                let converted = id.to_v3(&endpoint)?;
                self.users.extend(User::from_endpoint(key, id, &endpoint));
                let (namespace, name) = (converted.metadata.namespace.clone(), &converted.metadata.name);
                dns_name(name)?;
                let to = Key::workload_endpoint(&namespace.unwrap_or_default(), name);
                self.write(Kind::Endpoint, key, to.map_err(|e| e.to_string())?, converted.encode());
            }
            V1Key::Profile { name, part } => {
                let (_, profile) = self
                    .profiles
                    .entry(name.clone())
                    .or_insert_with(|| (key.clone(), v1::Profile::default()));
                profile.read(*part, bytes).map_err(text)?;
            }
            V1Key::HostIp(node)
            | V1Key::HostMetadata(node)
            | V1Key::HostOrchestrators(node)
            | V1Key::HostTunnel(node)
            | V1Key::Bgp { node, .. } => {
                let (_, data) =
                    self.nodes.entry(node.clone()).or_insert_with(|| (key.clone(), NodeData::default()));
                data.read(&parsed, bytes).map_err(text)?;
            }
        }
        Ok(())
    }

    fn take_pool(&mut self, key: &Key, pool: &v1::Pool) -> Result<(), String> {
        let overlaps = |other: &IpNet| other.contains(&pool.cidr) || pool.cidr.contains(other);
        if let Some((other, _)) = self.pools.iter().find(|(_, net)| overlaps(net)) {
            return Err(format!("it overlaps {other}, which v3 does not allow"));
        }
        self.pools.push((key.clone(), pool.cidr));
        let converted = pool.to_v3();
        let to = Key::pool(&converted.metadata.name).map_err(|error| error.to_string())?;
        self.write(Kind::Pool, key, to, converted.encode());
        Ok(())
    }

    fn write(&mut self, kind: Kind, from: &Key, key: Key, value: Vec<u8>) {
        self.plan.writes.push(Planned { kind, from: from.clone(), key, value });
    }

    fn leave(&mut self, key: &Key) {
        if key.as_str().starts_with(POLICIES) {
            *self.plan.left.entry(POLICIES_LEFT.to_owned()).or_default() += 1;
            return;
        }
        let parts: Vec<&str> = key.as_str().split('/').skip(1).take(LEFT_PARTS).collect();
        *self.plan.left.entry(format!("/{}", parts.join("/"))).or_default() += 1;
    }

    fn problem(&mut self, key: Key, reason: impl Into<String>) {
        self.plan.problems.push(Problem { key, reason: reason.into() });
    }

    fn finish(mut self) -> Plan {
        self.finish_addresses();
        self.finish_affinities();
        self.finish_nodes();
        self.finish_profiles();
        self.finish_cluster();
        self.find_collisions();
        let Plan { writes, problems, .. } = &mut self.plan;
        writes.sort_by(|a, b| (a.kind, &a.key).cmp(&(b.kind, &b.key)));
        problems.sort();
        self.plan
    }

    /// Blocks and handles; addresses are held by the containers that use them.
    fn finish_addresses(&mut self) {
        let users = std::mem::take(&mut self.users);
        self.plan.problems.extend(owners::settle(&mut self.blocks, &mut self.handles, &users));
        for block in self.blocks.values() {
            let key = Key::block(block.cidr);
            self.plan.writes.push(Planned {
                kind: Kind::Block,
                from: key.clone(),
                key,
                value: block.encode(),
            });
        }
        for (id, (from, handle)) in std::mem::take(&mut self.handles) {
            self.write(Kind::Handle, &from, Key::handle(&id), handle.encode());
        }
    }

    /// An affinity was claimed in a single step: a claim that its block does not confirm is a
    /// crash's leftover, and is not migrated.
    fn finish_affinities(&mut self) {
        for (key, node, affinity, block) in std::mem::take(&mut self.affinities) {
            if self.blocks.get(&block).is_some_and(|block| block.serves(&node)) {
                let confirmed = affinity.with_state(AffinityState::Confirmed);
                self.write(Kind::Affinity, &key, key.clone(), confirmed.encode());
            } else {
                *self
                    .plan
                    .left
                    .entry("affinities that their block does not confirm".to_owned())
                    .or_default() += 1;
            }
        }
    }

    fn finish_nodes(&mut self) {
        for (node, (from, data)) in std::mem::take(&mut self.nodes) {
            match dns_name(node.as_str()) {
                Ok(()) => {
                    let converted = Node::new(node.as_str(), data.to_v3());
                    self.write(Kind::Node, &from, Key::node(&node), converted.encode());
                }
                Err(reason) => self.problem(from, reason),
            }
        }
    }

    fn finish_profiles(&mut self) {
        for (name, (from, profile)) in std::mem::take(&mut self.profiles) {
            let name = v1::profile_name_in_v3(&name);
            let converted = dns_name(&name).and_then(|()| profile.to_v3().map_err(|error| error.to_string()));
            let key = Key::resource(ResourceKind::Profile, None, &name).map_err(|error| error.to_string());
            match converted.and_then(|spec| Ok((key?, spec))) {
                Ok((key, spec)) => {
                    self.write(Kind::Profile, &from, key, Profile::new(name, spec).encode());
                }
                Err(reason) => self.problem(from, reason),
            }
        }
    }

    /// Without it no v3 plugin uses the store.
    fn finish_cluster(&mut self) {
        let spec = ClusterInformationSpec { datastore_ready: Some(true), ..Default::default() };
        let cluster = ClusterInformation::new(ClusterInformationSpec::NAME, spec);
        let from = V1Key::Ready.key();
        match Key::resource(ResourceKind::ClusterInformation, None, ClusterInformationSpec::NAME) {
            Ok(key) => self.write(Kind::Cluster, &from, key, cluster.encode()),
            Err(error) => self.problem(from, error.to_string()),
        }
    }

    /// Finds pairs of v1 records that would have the same key in v3.
    fn find_collisions(&mut self) {
        let mut taken: BTreeMap<&Key, &Key> = BTreeMap::new();
        let mut collisions = BTreeSet::new();
        for planned in &self.plan.writes {
            if let Some(other) = taken.insert(&planned.key, &planned.from) {
                for (key, rival) in [(&planned.from, other), (other, &planned.from)] {
                    let reason = format!("in v3 it would be {}, and so would {rival}", planned.key);
                    collisions.insert(Problem { key: key.clone(), reason });
                }
            }
        }
        self.plan.problems.extend(collisions);
    }
}

/// Refuses a name that Calico's validation does not accept.
fn dns_name(name: &str) -> Result<(), String> {
    let label = |label: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        label.starts_with(inside) && label.ends_with(inside) && label.chars().all(|c| inside(c) || c == '-')
    };
    if name.len() <= NAME_MAX_BYTES && name.split('.').all(label) {
        return Ok(());
    }
    Err(format!(
        "{:?} can be no name in v3: lower-case letters, digits, '-' and '.', no part beginning or ending with '-'",
        name.chars().take(NAME_MAX_BYTES).collect::<String>()
    ))
}

#[cfg(test)]
mod tests;
