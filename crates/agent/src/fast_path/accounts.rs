//! Which end of which connection the packets belong to that the fast path has carried, so that they are counted for the
//! policy that let the connection pass. Pure.

use std::collections::{BTreeMap, HashMap};

use russet_overlay::fast_path::{Carried, Counted, EndedFlows, Tuple};
use russet_verdict::flow::Flow;
use russet_verdict::ir::{Direction, Protocol};

/// What is counted already of the flows of the map.
#[derive(Debug, Default)]
pub struct Accounts {
    seen: HashMap<Tuple, Seen>,
    /// Of ended connections: by tuples without the asking side's port, and interfaces.
    ended: HashMap<(Tuple, u32, u32), Carried>,
}

/// What is new in a reading.
#[derive(Debug, Default)]
struct Shares(BTreeMap<(Direction, Option<Flow>), (Option<Flow>, Carried)>);

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
        counted: &Counted,
        is_pod: impl Fn(u32) -> bool,
        mut began: impl FnMut(&Tuple) -> Option<Origin>,
    ) -> Vec<Share> {
        let mut shares = Shares::default();
        let before = std::mem::take(&mut self.seen);
        for flow in counted.flows.iter().filter(|flow| flow.carried.packets > 0) {
            let known = before.get(&flow.tuple);
            let new = known.map_or(flow.carried, |known| flow.carried.since(known.carried));
            let reversed = flow.tuple.reversed();
            let of_answers = before.get(&reversed).or_else(|| self.seen.get(&reversed));
            let origin = known
                .and_then(|known| known.origin)
                .or_else(|| of_answers.and_then(|it| it.origin).map(Origin::reversed))
                .or_else(|| began(&flow.tuple));
            self.seen.insert(flow.tuple, Seen { carried: flow.carried, origin });
            shares.count(&flow.tuple, origin, [flow.ifindex, flow.out_ifindex], &is_pod, new);
        }
        let before = std::mem::take(&mut self.ended);
        for ended in &counted.ended {
            let EndedFlows { tuple, ifindex, out_ifindex, carried, .. } = *ended;
            let key = (tuple, ifindex, out_ifindex);
            let known = before.get(&key).copied().unwrap_or_default();
            self.ended.insert(key, carried);
            let origin = if ended.is_asking() { Origin::This } else { Origin::Reverse };
            shares.count(&ended.one(), Some(origin), [ifindex, out_ifindex], &is_pod, carried.since(known));
        }
        shares.list()
    }

    /// The map does not have this flow any more: if it comes again, it begins from nothing.
    pub fn forget(&mut self, tuple: &Tuple) {
        self.seen.remove(tuple);
    }
}

// === impl Shares ===

impl Shares {
    /// Counts what is new of a direction of a connection, which came in and left through these links.
    fn count(
        &mut self,
        tuple: &Tuple,
        origin: Option<Origin>,
        links: [u32; 2],
        is_pod: impl Fn(u32) -> bool,
        new: Carried,
    ) {
        if new.packets == 0 {
            return;
        }
        for direction in ends(links, origin, is_pod) {
            let first = origin.map(|origin| first_packet(tuple, origin));
            let key = (direction, first.map(|first| Flow { source_port: 0, ..first }));
            let is_full = self.0.len() >= SHARES_MAX && !self.0.contains_key(&key);
            let (key, first) = if is_full { ((direction, None), None) } else { (key, first) };
            let (_, sum) = self.0.entry(key).or_insert((first, Carried::default()));
            *sum = sum.plus(new);
        }
    }

    fn list(self) -> Vec<Share> {
        let share = |((direction, _), (flow, carried))| Share { direction, flow, carried };
        self.0.into_iter().map(share).collect()
    }
}

/// The ends of a connection that are pods of this node: the source's egress and the destination's ingress.
fn ends(
    [ifindex, out_ifindex]: [u32; 2],
    origin: Option<Origin>,
    is_pod: impl Fn(u32) -> bool,
) -> Vec<Direction> {
    let (source, destination) = match origin {
        Some(Origin::Reverse) => (out_ifindex, ifindex),
        _ => (ifindex, out_ifindex),
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
    use russet_overlay::fast_path::KnownFlow;

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

    fn live(flows: &[KnownFlow]) -> Counted {
        Counted { flows: flows.to_vec(), ended: Vec::new() }
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
            &live(&flows),
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
        let shares = accounts.add(&live(&flows), |ifindex| ifindex == POD, |_| panic!("it is known"));
        assert_eq!(shares[0].carried.packets, 2 + 3);
        assert_eq!((accounts.add(&live(&flows), |_| true, began).len(), accounts.seen.len()), (0, 2));
        accounts.forget(&flows[0].tuple);
        assert_eq!(accounts.add(&live(&flows), |ifindex| ifindex == POD, began)[0].carried.packets, 12);
        // On a node of both ends, each counts.
        let shares = Accounts::default().add(&live(&flows), |_| true, began);
        let all: Vec<_> = shares.iter().map(|it| (it.direction, it.carried.packets)).collect();
        assert_eq!(all, [(Direction::Ingress, 15), (Direction::Egress, 15)]);
    }

    #[test]
    fn what_is_not_known_or_too_much_is_counted_together() {
        let unknown =
            Accounts::default().add(&live(&[flow(1, false, 5)]), |ifindex| ifindex == POD, |_| None);
        assert_eq!((unknown[0].flow, unknown[0].carried.packets), (None, 5));
        let ports = 1..=u16::try_from(SHARES_MAX + 50).unwrap();
        let to_port = |port| KnownFlow { tuple: Tuple { to_port: port, ..tuple(1) }, ..flow(1, false, 1) };
        let flows: Vec<KnownFlow> = ports.map(to_port).collect();
        let shares = Accounts::default().add(&live(&flows), |ifindex| ifindex == POD, |_| Some(Origin::This));
        assert_eq!(shares.len(), SHARES_MAX + 1);
        let unknown = shares.iter().find(|share| share.flow.is_none()).unwrap();
        assert_eq!(unknown.carried.packets, 50);
    }

    #[test]
    fn ended_connections_count_once_for_their_first_packet_also_when_their_sum_begins_again() {
        let mut accounts = Accounts::default();
        let ended = |is_answer: bool, packets: u64, port: u16| {
            let KnownFlow { tuple, ifindex, out_ifindex, carried, .. } = flow(0, is_answer, packets);
            EndedFlows { tuple, ifindex, out_ifindex, carried, port }
        };
        let mut add = |ended: &[EndedFlows]| {
            let counted = Counted { flows: vec![flow(1000, false, 5)], ended: ended.to_vec() };
            accounts.add(&counted, |ifindex| ifindex == POD, began)
        };
        let first = add(&[ended(false, 10, 4001), ended(true, 7, 4002)]);
        let [share] = first.as_slice() else { panic!("{first:?}") };
        assert_eq!((share.direction, share.carried.packets), (Direction::Egress, 5 + 10 + 7));
        assert_eq!(add(&[ended(false, 10, 4001), ended(true, 7, 4002)]), []);
        let next = add(&[ended(false, 3, 4003), ended(true, 9, 4004)]);
        let [share] = next.as_slice() else { panic!("{next:?}") };
        let first = share.flow.unwrap();
        assert_eq!((share.carried.packets, first.source_port, first.destination_port), (3 + 2, 4003, 80));
    }
}
