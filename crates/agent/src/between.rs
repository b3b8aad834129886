//! Where encapsulated packets between two nodes are lost: what the counters in the records of both say together. Pure. Each record
//! counts while its node does not reach the other one.

use std::time::SystemTime;

use russet_model::time;
use russet_view::map::NodeState;

use crate::health_record::HealthRecord;
use crate::peers::Encapsulated;

/// Where packets are lost between a node and another one that it does not reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub place: LossPlace,
    /// What is wrong, as a clause.
    pub what: String,
    /// What to do next, and on which node.
    pub next: String,
}

/// The places on the way to the other node and back, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossPlace {
    /// The node sends nothing.
    NotSent,
    /// The network, or what is before nf_tables on the other node.
    OnTheWay,
    /// The other node, before its tunnel.
    AtTheOther,
    /// The other node sends nothing.
    NotSentBack,
    /// The network, or what is before nf_tables on the node itself.
    OnTheWayBack,
    /// The node itself, before its tunnel.
    AtItself,
    /// Packets arrive at both, and are not answered.
    NotAnswered,
}

// === impl Loss ===

impl Loss {
    /// What the records of a node, and of one that it does not reach, say. None unless both are current and have counted at the same time.
    pub fn between(record: &HealthRecord, other: &HealthRecord, now: SystemTime) -> Option<Self> {
        let is_current = |it: &HealthRecord| matches!(it.state(now), NodeState::Ready | NodeState::NotReady);
        if !is_current(record) || !is_current(other) {
            return None;
        }
        let (node, peer) = (record.node.as_str(), other.node.as_str());
        record.counted_of(peer).find_map(|(version, to)| {
            let (_, from) = other.counted_of(node).find(|(it, _)| *it == version)?;
            let overlaps = overlap(window(record, &to)?, window(other, &from)?);
            overlaps.then(|| Self::new([node, peer], &to, &from))
        })
    }

    /// `own` was counted at the node, `others` at the other one.
    fn new([node, peer]: [&str; 2], own: &Encapsulated, others: &Encapsulated) -> Self {
        let sent = |by: &Encapsulated, back: &str| {
            format!("has sent {} encapsulated packets{back} in {}s", by.sent, by.for_s)
        };
        let arrived = |by: &Encapsulated, at: &str| {
            format!("{} arrived at {at} in {}s, and none came out of its tunnel", by.received, by.for_s)
        };
        let drops = |to: &str| format!("the network, or a firewall before {to}'s nf_tables, drops them");
        let (place, what) = if own.sent == 0 {
            let what = format!(
                "{node} has sent no encapsulated packet to {peer}: a rule of {node} drops them, or a route or forwarding entry leads elsewhere"
            );
            (LossPlace::NotSent, what)
        } else if others.received == 0 {
            let what = format!("{node} {}, and none arrived at {peer}: {}", sent(own, ""), drops(peer));
            (LossPlace::OnTheWay, what)
        } else if others.decapsulated == 0 {
            let (sent, arrived) = (sent(own, ""), arrived(others, peer));
            (
                LossPlace::AtTheOther,
                format!("{node} {sent}; {arrived}: {peer} drops them and does not answer"),
            )
        } else if others.sent == 0 {
            let what = format!(
                "{peer} receives {node}'s encapsulated packets and has sent none back: a rule of {peer} drops its answers, or a route leads elsewhere"
            );
            (LossPlace::NotSentBack, what)
        } else if own.received == 0 {
            let (sent, drops) = (sent(others, " back"), drops(node));
            let what =
                format!("{peer} receives {node}'s packets and {sent}, and none arrived at {node}: {drops}");
            (LossPlace::OnTheWayBack, what)
        } else if own.decapsulated == 0 {
            let (sent, arrived) = (sent(others, " back"), arrived(own, node));
            let what = format!("{peer} receives {node}'s packets and {sent}; {arrived}: {node} drops them");
            (LossPlace::AtItself, what)
        } else {
            let what = format!(
                "encapsulated packets arrive in both directions, and {peer} does not answer probes: a rule may drop ICMP at either end"
            );
            (LossPlace::NotAnswered, what)
        };
        Self { place, what, next: place.next_step([node, peer]) }
    }
}

// === impl LossPlace ===

impl LossPlace {
    fn next_step(self, [node, peer]: [&str; 2]) -> String {
        let look = |at: &str| format!("on {at}: russet status; russet drift; nft list ruleset");
        let network = |from: &str, to: &str| {
            format!(
                "let the tunnel's UDP port pass from {from} to {to} in the network; on {to}: nft list ruleset netdev; tc filter show"
            )
        };
        match self {
            Self::NotSent | Self::AtItself => look(node),
            Self::AtTheOther | Self::NotSentBack | Self::NotAnswered => look(peer),
            Self::OnTheWay => network(node, peer),
            Self::OnTheWayBack => network(peer, node),
        }
    }
}

/// From when to when was counted, in seconds since the epoch.
fn window(record: &HealthRecord, counted: &Encapsulated) -> Option<(u64, u64)> {
    let end = time::parse_rfc3339(&record.at)?.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Some((end.saturating_sub(counted.for_s), end))
}

/// Whether at least half of the shorter time is common to both: an end counts for at least two intervals of probes, and so one was sent in
/// that half.
fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    let common = a.1.min(b.1).saturating_sub(a.0.max(b.0));
    let shorter = (a.1 - a.0).min(b.1 - b.0);
    shorter > 0 && common.saturating_mul(2) >= shorter
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::health_record::CountedNode;

    const NOW_S: u64 = 1_800_000_000;

    fn at(s: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(s)
    }

    /// Of `node`, which does not reach `other`: sent, received, decapsulated.
    fn record(node: &str, other: &str, [sent, received, decapsulated]: [u64; 3]) -> HealthRecord {
        let packets = Encapsulated { sent, received, decapsulated, for_s: 20 };
        HealthRecord {
            schema: HealthRecord::SCHEMA,
            node: node.to_owned(),
            at: time::rfc3339(at(NOW_S)),
            every_s: 60,
            ready: true,
            unreachable: vec![other.to_owned()],
            encapsulated: vec![CountedNode { at: 0, ip_version: 4, packets }],
            ..HealthRecord::default()
        }
    }

    /// What is said of a that does not reach b, and of b that does not reach a.
    fn both(a: [u64; 3], b: [u64; 3]) -> [Loss; 2] {
        let (a, b) = (record("a", "b", a), record("b", "a", b));
        [(&a, &b), (&b, &a)].map(|(it, other)| Loss::between(it, other, at(NOW_S + 30)).unwrap())
    }

    #[test]
    fn the_counters_of_both_ends_name_each_place_on_the_way_and_back() {
        use LossPlace::*;
        for (a, b, places) in [
            ([0, 5, 5], [5, 0, 0], [NotSent, NotSentBack]),
            ([12, 5, 5], [6, 0, 0], [OnTheWay, OnTheWayBack]),
            ([12, 5, 5], [6, 11, 0], [AtTheOther, AtItself]),
            ([12, 5, 5], [6, 11, 11], [NotAnswered, NotAnswered]),
            // Nothing passes in either direction: the first place is named.
            ([12, 0, 0], [6, 0, 0], [OnTheWay, OnTheWay]),
        ] {
            assert_eq!(both(a, b).map(|loss| loss.place), places, "{a:?} {b:?}");
        }
    }

    #[test]
    fn the_numbers_and_the_node_to_go_to_are_named() {
        let [there, back] = both([12, 5, 5], [6, 0, 0]);
        let firewall = "none arrived at b: the network, or a firewall before b's nf_tables, drops them";
        assert_eq!(there.what, format!("a has sent 12 encapsulated packets in 20s, and {firewall}"));
        let next = "let the tunnel's UDP port pass from a to b in the network; on b: ";
        assert!(there.next.starts_with(next) && back.next.starts_with(next), "{} {}", there.next, back.next);
        let received = "a receives b's packets and has sent 12 encapsulated packets back in 20s";
        assert_eq!(back.what, format!("{received}, and {firewall}"));
        let [there, back] = both([12, 5, 5], [6, 11, 0]);
        let arrived = "; 11 arrived at b in 20s, and none came out of its tunnel: b drops them";
        assert_eq!(
            there.what,
            format!("a has sent 12 encapsulated packets in 20s{arrived} and does not answer")
        );
        assert_eq!(back.what, format!("{received}{arrived}"));
        assert!(
            there.next.starts_with("on b: ") && back.next.starts_with("on b: "),
            "{} {}",
            there.next,
            back.next
        );
    }

    #[test]
    fn nothing_is_said_unless_both_are_current_and_have_counted_at_the_same_time() {
        let (a, b) = (record("a", "b", [12, 5, 5]), record("b", "a", [6, 0, 0]));
        let between = |a: &HealthRecord, b: &HealthRecord| Loss::between(a, b, at(NOW_S + 30)).is_some();
        assert!(between(&a, &b));
        let late = HealthRecord { at: time::rfc3339(at(NOW_S - 400)), ..b.clone() };
        assert!(!between(&a, &late) && !between(&late, &a));
        let silent = HealthRecord { encapsulated: Vec::new(), ..b.clone() };
        assert!(
            !between(&a, &silent) && !between(&silent, &a),
            "an older agent, or one that does not probe the other now"
        );
        // Their times of 20 s have 9 s in common, and then 10 s.
        let before = |s: u64| HealthRecord { at: time::rfc3339(at(NOW_S - s)), ..b.clone() };
        assert!(!between(&a, &before(11)) && between(&a, &before(10)));
        let mut other = b.clone();
        other.encapsulated[0].ip_version = 6;
        assert!(!between(&a, &other));
        // What any client of the store may have written.
        other = HealthRecord { at: "x".to_owned(), ..b.clone() };
        assert!(!between(&a, &other));
        other = b;
        other.encapsulated[0].packets.for_s = u64::MAX;
        assert!(between(&a, &other));
        other.encapsulated[0].packets.for_s = 0;
        assert!(!between(&a, &other));
    }
}
