//! Which end of which connection the packets belong to that the fast path has carried, so that they are counted for the
//! policy that let the connection pass. Pure.

use std::collections::{BTreeMap, HashMap};

use russet_overlay::fast_path::{Carried, KnownFlow, Tuple};
use russet_verdict::flow::Flow;
use russet_verdict::ir::{Direction, Protocol};

/// What is counted already of the flows of the map.
#[derive(Debug, Default)]
pub struct Accounts {
    seen: HashMap<Tuple, Seen>,
}

/// A direction of a connection.
#[derive(Debug, Clone, Copy)]
struct Seen {
    carried: Carried,
    origin: Option<Origin>,
}

/// Which of its directions a connection began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    This,
    Reverse,
}

/// What was carried of connections that differ in nothing but the source's port, at one of their ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub direction: Direction,
    /// The first packet of one of them; none if it is not known which direction that was.
    pub flow: Option<Flow>,
    pub carried: Carried,
}

/// Limit of shares of one reading; what is beyond is counted as unknown.
const SHARES_MAX: usize = 1024;

// === impl Accounts ===

impl Accounts {
    /// What was carried since the last reading at pods' ends. `is_pod` says whether a link is the host end of a
    /// pod, and `began` which direction a connection began with, as far as it is known.
    pub fn add(
        &mut self,
        flows: &[KnownFlow],
        is_pod: impl Fn(u32) -> bool,
        mut began: impl FnMut(&Tuple) -> Option<Origin>,
    ) -> Vec<Share> {
        let before = std::mem::take(&mut self.seen);
        let mut shares: BTreeMap<(Direction, Option<Flow>), (Option<Flow>, Carried)> = BTreeMap::new();
        for flow in flows.iter().filter(|flow| flow.carried.packets > 0) {
            let known = before.get(&flow.tuple);
            let new = known.map_or(flow.carried, |known| flow.carried.since(known.carried));
            let reversed = flow.tuple.reversed();
            let of_answers = before.get(&reversed).or_else(|| self.seen.get(&reversed));
            let origin = known
                .and_then(|known| known.origin)
                .or_else(|| of_answers.and_then(|it| it.origin).map(Origin::reversed))
                .or_else(|| began(&flow.tuple));
            self.seen.insert(flow.tuple, Seen { carried: flow.carried, origin });
            if new.packets == 0 {
                continue;
            }
            for direction in ends(flow, origin, &is_pod) {
                let first = origin.map(|origin| first_packet(&flow.tuple, origin));
                let key = (direction, first.map(|first| Flow { source_port: 0, ..first }));
                let is_full = shares.len() >= SHARES_MAX && !shares.contains_key(&key);
                let (key, first) = if is_full { ((direction, None), None) } else { (key, first) };
                let (_, sum) = shares.entry(key).or_insert((first, Carried::default()));
                *sum = sum.plus(new);
            }
        }
        let share = |((direction, _), (flow, carried))| Share { direction, flow, carried };
        shares.into_iter().map(share).collect()
    }

    /// The map does not have this flow any more: if it comes again, it begins from nothing.
    pub fn forget(&mut self, tuple: &Tuple) {
        self.seen.remove(tuple);
    }
}

/// The ends of a connection that are pods of this node: the source's egress and the destination's ingress.
fn ends(flow: &KnownFlow, origin: Option<Origin>, is_pod: impl Fn(u32) -> bool) -> Vec<Direction> {
    let (source, destination) = match origin {
        Some(Origin::Reverse) => (flow.out_ifindex, flow.ifindex),
        _ => (flow.ifindex, flow.out_ifindex),
    };
    let all = [(Direction::Egress, source), (Direction::Ingress, destination)];
    all.into_iter().filter(|(_, ifindex)| is_pod(*ifindex)).map(|(direction, _)| direction).collect()
}

fn first_packet(tuple: &Tuple, origin: Origin) -> Flow {
    let tuple = if origin == Origin::Reverse { tuple.reversed() } else { *tuple };
    Flow {
        source: tuple.from,
        destination: tuple.to,
        protocol: Protocol(tuple.protocol),
        source_port: tuple.from_port,
        destination_port: tuple.to_port,
    }
}

// === impl Origin ===

impl Origin {
    const fn reversed(self) -> Self {
        match self {
            Self::This => Self::Reverse,
            Self::Reverse => Self::This,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: u32 = 7;
    const UPLINK: u32 = 2;

    fn tuple(port: u16) -> Tuple {
        let (from, to) = ([10, 1, 0, 2].into(), [10, 2, 0, 2].into());
        Tuple { from, to, from_port: port, to_port: 80, protocol: 6 }
    }

    /// From the pod here to port 80 elsewhere, or an answer.
    fn flow(port: u16, is_answer: bool, packets: u64) -> KnownFlow {
        let (tuple, ifindex, out_ifindex) =
            if is_answer { (tuple(port).reversed(), UPLINK, POD) } else { (tuple(port), POD, UPLINK) };
        let carried = Carried { packets, bytes: packets * 100 };
        KnownFlow { tuple, ifindex, out_ifindex, epoch: 1, carried }
    }

    fn began(tuple: &Tuple) -> Option<Origin> {
        Some(if tuple.to_port == 80 { Origin::This } else { Origin::Reverse })
    }

    #[test]
    fn both_directions_count_for_the_end_that_let_the_connection_pass_and_each_packet_once() {
        let mut accounts = Accounts::default();
        let flows = [flow(1000, false, 10), flow(1000, true, 8), flow(1001, false, 1), flow(1002, false, 0)];
        let mut asked = 0;
        let shares = accounts.add(
            &flows,
            |ifindex| ifindex == POD,
            |tuple| {
                asked += 1;
                began(tuple)
            },
        );
        let [share] = shares.as_slice() else { panic!("{shares:?}") };
        let first = share.flow.unwrap();
        assert_eq!(
            (share.direction, first.destination_port, share.carried.packets),
            (Direction::Egress, 80, 19)
        );
        assert_eq!((first.source, share.carried.bytes), ([10, 1, 0, 2].into(), 1900));
        assert_eq!(asked, 2, "the answers' direction follows from the other");
        // The next reading has what came since, of a flow that is learnt anew all, and of one that is gone nothing.
        let flows = [flow(1000, false, 12), flow(1000, true, 3)];
        let shares = accounts.add(&flows, |ifindex| ifindex == POD, |_| panic!("it is known"));
        assert_eq!(shares[0].carried.packets, 2 + 3);
        assert_eq!((accounts.add(&flows, |_| true, began).len(), accounts.seen.len()), (0, 2));
        accounts.forget(&flows[0].tuple);
        assert_eq!(accounts.add(&flows, |ifindex| ifindex == POD, began)[0].carried.packets, 12);
        // On a node of both ends, each counts.
        let shares = Accounts::default().add(&flows, |_| true, began);
        let all: Vec<_> = shares.iter().map(|it| (it.direction, it.carried.packets)).collect();
        assert_eq!(all, [(Direction::Ingress, 15), (Direction::Egress, 15)]);
    }

    #[test]
    fn what_is_not_known_or_too_much_is_counted_together() {
        let unknown = Accounts::default().add(&[flow(1, false, 5)], |ifindex| ifindex == POD, |_| None);
        assert_eq!((unknown[0].flow, unknown[0].carried.packets), (None, 5));
        let ports = 1..=u16::try_from(SHARES_MAX + 50).unwrap();
        let to_port = |port| KnownFlow { tuple: Tuple { to_port: port, ..tuple(1) }, ..flow(1, false, 1) };
        let flows: Vec<KnownFlow> = ports.map(to_port).collect();
        let shares = Accounts::default().add(&flows, |ifindex| ifindex == POD, |_| Some(Origin::This));
        assert_eq!(shares.len(), SHARES_MAX + 1);
        let unknown = shares.iter().find(|share| share.flow.is_none()).unwrap();
        assert_eq!(unknown.carried.packets, 50);
    }
}
