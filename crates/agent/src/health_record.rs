//! The short record by which each agent tells the cluster how it is, for `russet status --cluster`. In a store with leases
//! it lives for [`LIFETIME`] after its last renewal; in the Kubernetes API it is an annotation of the agent's lease, which
//! needs no further request.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use russet_addr::NodeName;
use russet_kube::{Client, HEARTBEAT_NAMESPACE, Heartbeat, KubeError, Lease, ListQuery};
use russet_model::{Key, Prefix, time};
use russet_plugins::Node;
use russet_store::{CommitError, LeaseId, Step, Store, StoreError};
use russet_sync::Rng;
use russet_view::map::{NodeFacts, NodeState};
use serde::{Deserialize, Serialize};

use crate::peers::{Encapsulated, PeerState, Traffic, tunnel_traffic};
use crate::status::{AgentStatus, StatusSource};

/// What the other nodes' operators see of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthRecord {
    /// Grows when a member changes its meaning.
    pub schema: u32,
    pub node: String,
    pub version: String,
    /// When it was written, by the node's clock, in RFC 3339.
    pub at: String,
    /// A record that is older than a few of these is of an agent that does not write any more.
    pub every_s: u64,
    pub ready: bool,
    /// Conditions that are not met, and what is wrong besides; the first [`Self::REASONS_MAX`], cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Interfaces of pods.
    pub endpoints: usize,
    /// Nodes and families that answered this one.
    pub reachable: usize,
    /// Nodes that did not, of those that were probed; the first [`Self::UNREACHABLE_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<String>,
    /// Nodes that only small packets reach, of the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub small_packets_only: Vec<String>,
    /// Encapsulated packets that were counted between this node and those in `unreachable`; at most one for each family of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encapsulated: Vec<CountedNode>,
    /// Packets that each tunnel device has sent and received since it was made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tunnels: BTreeMap<String, Traffic>,
}

/// Encapsulated packets between a node and another one that it does not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedNode {
    /// The place of the other node in [`HealthRecord::unreachable`], whose names may be long.
    pub at: usize,
    /// `4` or `6`.
    pub ip_version: u8,
    #[serde(flatten)]
    pub packets: Encapsulated,
}

/// Writes the record into a store with leases.
pub struct Publisher {
    store: Rc<dyn Store>,
    node: NodeName,
    source: StatusSource,
}

/// Where records are, below it by node.
const ROOT: &str = "/russet/health/v1/";
/// How often a record is written, less up to a tenth. 5,000 nodes make 90 small writes a second.
const INTERVAL: Duration = Duration::from_secs(60);
/// The first record comes within this time, so that agents that start together do not write together.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether the record would be another one.
const LOOK: Duration = Duration::from_secs(5);
/// The least time between two records.
const PAUSE: Duration = Duration::from_secs(15);
/// For so long the last record of an agent that has ended says when that was.
const LIFETIME: Duration = Duration::from_secs(3600);
/// A record is late after so many of its intervals.
const LATE_INTERVALS: u64 = 3;
/// A reason may name any text of the kernel or of the store.
const REASON_MAX_CHARS: usize = 200;

// === impl HealthRecord ===

impl HealthRecord {
    pub const SCHEMA: u32 = 1;
    pub const REASONS_MAX: usize = 4;
    pub const UNREACHABLE_MAX: usize = 16;
    /// The annotation of the agent's lease in the Kubernetes API.
    pub const ANNOTATION: &'static str = "russet.dev/health";
    /// A larger record is not an agent's.
    pub const MAX_BYTES: usize = 16 * 1024;

    /// The value of [`Self::ANNOTATION`] now, for the agent's lease, which is renewed every two minutes.
    pub fn annotation(source: &StatusSource) -> Option<String> {
        serde_json::to_string(&current(source, 2 * INTERVAL).with_counters()).ok()
    }

    fn new(status: &AgentStatus, every: Duration, now: SystemTime) -> Self {
        let cut = |text: String| text.chars().take(REASON_MAX_CHARS).collect::<String>();
        let reasons: Vec<String> =
            status.unmet().map(|(name, reason)| cut(format!("{name}: {reason}"))).collect();
        let of = |state: PeerState| {
            let peers = status.peers.peers.iter().filter(|peer| peer.state == state);
            let mut names: Vec<String> = peers.map(|peer| peer.node.clone()).collect();
            names.dedup();
            names.truncate(Self::UNREACHABLE_MAX);
            names
        };
        let unreachable = of(PeerState::Unreachable);
        let counted = status.peers.peers.iter().filter_map(|peer| {
            let at = unreachable.iter().position(|name| *name == peer.node)?;
            Some(CountedNode { at, ip_version: peer.ip_version, packets: peer.encapsulated? })
        });
        Self {
            schema: Self::SCHEMA,
            node: status.node.clone(),
            version: status.version.clone(),
            at: time::rfc3339(now),
            every_s: every.as_secs(),
            ready: reasons.is_empty(),
            reasons: reasons.into_iter().take(Self::REASONS_MAX).collect(),
            endpoints: status.endpoints,
            reachable: status.peers.counts.reachable,
            encapsulated: counted.collect(),
            unreachable,
            small_packets_only: of(PeerState::SmallPacketsOnly),
            tunnels: BTreeMap::new(),
        }
    }

    /// Reads what changes with every packet, and is no reason to write a record.
    fn with_counters(self) -> Self {
        Self { tunnels: tunnel_traffic(), ..self }
    }

    /// Reads a record, which any client of the store may have written. None if it is not one of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > Self::MAX_BYTES {
            return None;
        }
        serde_json::from_slice(bytes).ok().filter(|record: &Self| record.schema == Self::SCHEMA)
    }

    /// Seconds since it was written; none if its time cannot be read. A clock that is ahead counts as now.
    pub fn age_s(&self, now: SystemTime) -> Option<u64> {
        let at = time::parse_rfc3339(&self.at)?;
        Some(now.duration_since(at).unwrap_or_default().as_secs())
    }

    pub fn is_late(&self, age_s: u64) -> bool {
        age_s > self.every_s.max(1).saturating_mul(LATE_INTERVALS)
    }

    /// How its node is.
    pub fn state(&self, now: SystemTime) -> NodeState {
        match self.age_s(now) {
            None => NodeState::NoSign,
            Some(age_s) if self.is_late(age_s) => NodeState::NoSign,
            Some(_) if !self.ready => NodeState::NotReady,
            Some(_) => NodeState::Ready,
        }
    }

    /// What it says of its node, for a map.
    pub fn add_to(&self, facts: NodeFacts) -> NodeFacts {
        NodeFacts {
            pods: Some(self.endpoints),
            version: Some(self.version.clone()),
            reasons: self.reasons.clone(),
            unreachable: self.unreachable.clone(),
            small_packets_only: self.small_packets_only.clone(),
            ..facts
        }
    }

    /// The record in the lease of an agent in the Kubernetes API, if it has one.
    pub fn of_lease(lease: &Lease) -> Option<Self> {
        Self::decode(lease.annotation(Self::ANNOTATION)?.as_bytes())
    }

    /// The records in the leases of all agents.
    pub async fn of_leases(client: &Client) -> Result<Vec<Self>, KubeError> {
        let segments = ["apis", "coordination.k8s.io", "v1", "namespaces", HEARTBEAT_NAMESPACE, "leases"];
        let query = ListQuery {
            operation: "list agents' leases",
            segments: &segments,
            labels: Some(Heartbeat::SELECTOR),
        };
        let mut records = Vec::new();
        let take = |object| records.extend(Self::of_lease(&Lease::of_object(object)));
        client.list(&query, take).await.map_err(|failure| failure.error)?;
        Ok(records)
    }

    /// All records of a store with leases.
    pub fn prefix() -> Prefix {
        Prefix::from_stored(ROOT)
    }

    /// The record of a node in a store with leases.
    pub fn key(node: &str) -> Key {
        Key::from_stored(format!("{ROOT}{node}"))
    }

    /// What it has counted between its node and one that it does not reach, by family.
    pub fn counted_of(&self, node: &str) -> impl Iterator<Item = (u8, Encapsulated)> {
        let at = self.unreachable.iter().position(|name| name == node);
        let of_node = self.encapsulated.iter().filter(move |it| Some(it.at) == at);
        of_node.map(|it| (it.ip_version, it.packets))
    }

    /// Whether a reader would see another state.
    fn differs(&self, other: &Self) -> bool {
        let counted = |it: &CountedNode| {
            let Encapsulated { sent, received, decapsulated, .. } = it.packets;
            (it.at, it.ip_version, [sent, received, decapsulated].map(|count| count > 0))
        };
        let state = |it: &Self| {
            let counted: Vec<_> = it.encapsulated.iter().map(counted).collect();
            (it.ready, it.reasons.len(), it.unreachable.clone(), it.small_packets_only.clone(), counted)
        };
        state(self) != state(other)
    }
}

fn current(source: &StatusSource, every: Duration) -> HealthRecord {
    HealthRecord::new(&source.in_memory(), every, SystemTime::now())
}

// === impl Publisher ===

impl Publisher {
    pub fn new(node: &Node, source: &StatusSource) -> Self {
        Self { store: Rc::clone(&node.store), node: node.name.clone(), source: source.clone() }
    }

    /// Writes the record for ever, and early when the state changes. A failure is logged when it is another one than the last.
    pub async fn run(self) {
        if !self.store.claims().ttl {
            return;
        }
        let mut rng = Rng::new(russet_sync::random());
        let spread = |rng: &mut Rng, within: Duration| {
            Duration::from_millis(rng.below(u64::try_from(within.as_millis()).unwrap_or(0)))
        };
        tokio::time::sleep(spread(&mut rng, FIRST_WITHIN)).await;
        let (mut lease, mut failed) = (None, String::new());
        loop {
            let record = current(&self.source, INTERVAL).with_counters();
            match publish(&*self.store, &self.node, &record, &mut lease).await {
                Ok(()) => failed.clear(),
                Err(reason) => {
                    lease = None;
                    if failed != reason {
                        tracing::info!(
                            reason,
                            "the record for `russet status --cluster` was not written; it is tried again"
                        );
                        failed = reason;
                    }
                }
            }
            let length = INTERVAL.saturating_sub(spread(&mut rng, INTERVAL / 10));
            self.wait(&record, length).await;
        }
    }

    /// Until `length` is over, or the state has changed.
    async fn wait(&self, last: &HealthRecord, length: Duration) {
        let end = tokio::time::Instant::now() + length;
        tokio::time::sleep(PAUSE).await;
        while tokio::time::Instant::now() < end {
            if current(&self.source, INTERVAL).differs(last) {
                return;
            }
            tokio::time::sleep_until(end.min(tokio::time::Instant::now() + LOOK)).await;
        }
    }
}

/// Writes the record with a lease, which is renewed if it is there.
async fn publish(
    store: &dyn Store,
    node: &NodeName,
    record: &HealthRecord,
    lease: &mut Option<LeaseId>,
) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let id = match lease.take() {
        Some(id) => match store.keep_alive(id).await {
            Ok(_) => id,
            Err(StoreError::NoLease { .. }) => store.grant(LIFETIME).await.map_err(text)?,
            Err(error) => return Err(text(error)),
        },
        None => store.grant(LIFETIME).await.map_err(text)?,
    };
    *lease = Some(id);
    let value = serde_json::to_vec(record).map_err(|error| error.to_string())?;
    let step = Step::put(HealthRecord::key(node.as_str()), value).with_lease(id);
    store.commit(vec![step]).await.map(drop).map_err(|CommitError { error, .. }| text(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(extra: serde_json::Value) -> AgentStatus {
        let mut status = serde_json::json!({"schema": 1, "version": "0.1.0", "node": "n1", "store": "embedded", "pid": 1, "uptime_s": 0,
            "conditions": [{"name": "store"}], "remarks": []});
        status.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_record_is_small_whatever_an_agent_has_to_say() {
        let peer = |n: u32| {
            serde_json::json!({"node": format!("{n}-{}", "x".repeat(250)), "ip_version": 4, "path": "tunnel", "probed": "10.0.0.1",
            "state": if n < 32 { "unreachable" } else { "small-packets-only" }, "lost": 3, "lost_of": 3, "reason": "y".repeat(5000), "age_s": 1,
            "encapsulated": {"sent": u64::MAX, "received": u64::MAX, "decapsulated": u64::MAX, "for_s": u64::MAX}})
        };
        let counts =
            serde_json::json!({"reachable": 0, "unreachable": 64, "small_packets_only": 0, "unknown": 0});
        let peers = serde_json::json!({"known": 64, "at_a_time": 16, "interval_ms": 5000, "counts": counts, "peers": (0..64).map(peer).collect::<Vec<_>>()});
        let conditions: Vec<_> = (0..20)
            .map(|n| serde_json::json!({"name": format!("c{n}"), "reason": "\u{e9}".repeat(9000)}))
            .collect();
        let status = status(serde_json::json!({"peers": peers, "conditions": conditions}));
        let record = HealthRecord::new(&status, INTERVAL, SystemTime::UNIX_EPOCH);
        let bytes = serde_json::to_vec(&record).unwrap();
        assert!(bytes.len() < HealthRecord::MAX_BYTES, "{}", bytes.len());
        assert_eq!((record.ready, record.unreachable.len(), record.reasons.len()), (false, 16, 4));
        assert_eq!((record.small_packets_only.len(), record.encapsulated.len()), (16, 16));
        assert_eq!(HealthRecord::decode(&bytes), Some(record));
    }

    #[test]
    fn counters_are_of_nodes_by_their_places_and_a_record_may_have_none_or_others() {
        let peer = |node: &str, ip_version: u8, sent: u64| {
            serde_json::json!({"node": node, "ip_version": ip_version, "path": "tunnel", "probed": "10.0.0.1", "state": "unreachable", "lost": 3,
            "lost_of": 3, "age_s": 1, "encapsulated": {"sent": sent, "received": 0, "decapsulated": 0, "for_s": 20}})
        };
        let counts =
            serde_json::json!({"reachable": 0, "unreachable": 3, "small_packets_only": 0, "unknown": 0});
        let of = |sent: u64| {
            let peers = serde_json::json!({"known": 2, "at_a_time": 16, "interval_ms": 5000, "counts": counts,
                "peers": [peer("n2", 4, sent), peer("n2", 6, 7), peer("n3", 4, 9)]});
            let status = status(serde_json::json!({ "peers": peers }));
            HealthRecord::new(&status, INTERVAL, SystemTime::UNIX_EPOCH)
        };
        let record = of(5);
        let sent =
            |node: &str| record.counted_of(node).map(|(version, it)| (version, it.sent)).collect::<Vec<_>>();
        assert_eq!((sent("n2"), sent("n3"), sent("n4")), (vec![(4, 5), (6, 7)], vec![(4, 9)], vec![]));
        // Only what has begun or ended is worth a record.
        assert!(!record.differs(&of(6)) && record.differs(&of(0)));
        // Of an older agent, and of a client that writes what it likes.
        let mut json = serde_json::to_value(&record).unwrap();
        json["encapsulated"][0]["at"] = 99.into();
        let other = HealthRecord::decode(json.to_string().as_bytes()).unwrap();
        assert_eq!(other.counted_of("n2").count(), 1);
        json.as_object_mut().unwrap().remove("encapsulated");
        let older = HealthRecord::decode(json.to_string().as_bytes()).unwrap();
        assert_eq!(older.counted_of("n2").count(), 0);
    }

    #[test]
    fn what_is_no_record_is_ignored() {
        let record = HealthRecord::new(&status(serde_json::json!({})), INTERVAL, SystemTime::UNIX_EPOCH);
        assert!(record.ready);
        let other = serde_json::to_vec(&HealthRecord { schema: 2, ..record.clone() }).unwrap();
        let large =
            serde_json::to_vec(&HealthRecord { version: "x".repeat(HealthRecord::MAX_BYTES), ..record })
                .unwrap();
        for bytes in [&b""[..], b"{}", b"[1]", &other, &large] {
            assert_eq!(HealthRecord::decode(bytes), None);
        }
    }

    #[tokio::test]
    async fn a_record_is_renewed_with_one_lease_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = russet_store::Embedded::open(dir.path().join(russet_store::STORE_FILE)).unwrap();
        let record =
            HealthRecord { schema: HealthRecord::SCHEMA, node: "n1".to_owned(), ..HealthRecord::default() };
        let (node, mut lease): (NodeName, _) = ("n1".parse().unwrap(), None);
        publish(&store, &node, &record, &mut lease).await.unwrap();
        let first = lease.unwrap();
        publish(&store, &node, &record, &mut lease).await.unwrap();
        assert_eq!(lease, Some(first), "a renewal needs no further lease");
        let found = store.list(&HealthRecord::prefix()).await.unwrap().records;
        let found: Vec<HealthRecord> =
            found.iter().filter_map(|it| HealthRecord::decode(&it.value)).collect();
        assert_eq!(found, std::slice::from_ref(&record));
        store.revoke(first).await.unwrap();
        assert!(store.list(&HealthRecord::prefix()).await.unwrap().records.is_empty());
        // It has expired while the agent could not write.
        publish(&store, &node, &record, &mut lease).await.unwrap();
        assert_ne!(lease, Some(first));
        assert_eq!(store.list(&HealthRecord::prefix()).await.unwrap().records.len(), 1);
    }
}
