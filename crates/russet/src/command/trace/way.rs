//! Joins what the kernel reports of single steps to packets with their stages. Pure: no clock, no sockets.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use russet_addr::Family;
use russet_nft::{Hook, Table, TraceEvent, TracedAt, Verdict};

use super::header::Header;
use super::table::{MarkedBy, TraceTable, Wanted, number_in};

/// The packets whose end has not been seen.
#[derive(Debug)]
pub struct Ways {
    wanted: Wanted,
    open: BTreeMap<u32, Packet>,
    done: VecDeque<Packet>,
    /// Packets that the kernel marked.
    pub marked: u64,
    /// Marked packets that were not kept, because too many were open.
    pub crowded: u64,
}

/// A packet's way through nf_tables.
#[derive(Debug, Clone)]
pub struct Packet {
    pub header: Header,
    /// Whether it is from B to A.
    pub is_back: bool,
    /// Whether it is an answer that is known by its connection, and not by the addresses of its header.
    pub is_translated: bool,
    pub at: SystemTime,
    pub in_index: Option<u32>,
    pub out_index: Option<u32>,
    /// The last one that was seen.
    pub mark: u32,
    pub stages: Vec<Stage>,
    pub end: End,
    last: Instant,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nothing was seen behind the last stage.
    Unseen,
    /// The last stage dropped it.
    Dropped,
    /// It passed all chains of this hook, `Input` or `Postrouting`.
    Passed(Hook),
}

/// A packet's way through a base chain and the chains that it calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub table: Table,
    /// In order, without repetitions. Of too many the first ones and the last one.
    pub chains: Vec<String>,
    /// The last rule with a verdict; none if the policy decided.
    pub rule: Option<u64>,
    /// None while the way goes on, and for a verdict that nf_tables has no word for.
    pub verdict: Option<Verdict>,
}

/// A packet of which nothing was seen for so long is over. Packets that wait in a queue of a program may take longer.
const SILENCE: Duration = Duration::from_millis(500);
/// The most packets whose end is awaited.
const OPEN_MAX: usize = 1024;
/// The most stages and chains that are kept of a packet.
const STAGES_MAX: usize = 64;
const CHAINS_MAX: usize = 16;

// === impl Ways ===

impl Ways {
    pub fn new(wanted: Wanted) -> Self {
        Self { wanted, open: BTreeMap::new(), done: VecDeque::new(), marked: 0, crowded: 0 }
    }

    /// Takes a step. `is_own` says that its table is that of this trace.
    pub fn take(&mut self, event: TraceEvent, is_own: bool, (now, at): (Instant, SystemTime)) {
        if let Some(by) = TraceTable::marked_by(&event.chain).filter(|_| is_own) {
            // Its rule; the policy of the chain follows.
            if matches!(event.at, TracedAt::Rule(_)) {
                self.begin(&event, by, (now, at));
            }
            return;
        }
        let Some(packet) = self.open.get_mut(&event.id) else { return };
        packet.last = now;
        packet.mark = event.mark;
        packet.out_index = event.out_index.or(packet.out_index);
        if is_own {
            packet.end = TraceTable::end(&event.chain).map_or(End::Unseen, End::Passed);
        } else if !TraceTable::is_of_a_trace(&event.table) {
            packet.step(event.table, event.chain, event.at, event.verdict);
        }
        if packet.end != End::Unseen {
            self.finish(event.id);
        }
    }

    /// The next packet that is over.
    pub fn next(&mut self, now: Instant) -> Option<Packet> {
        let is_silent = |(id, packet): (&u32, &Packet)| {
            (now.saturating_duration_since(packet.last) >= SILENCE).then_some(*id)
        };
        let silent: Vec<u32> = self.open.iter().filter_map(is_silent).collect();
        silent.into_iter().for_each(|id| self.finish(id));
        self.done.pop_front()
    }

    /// All that is left, at the end.
    pub fn rest(&mut self) -> Vec<Packet> {
        let open = std::mem::take(&mut self.open).into_values();
        self.done.drain(..).chain(open).collect()
    }

    fn begin(&mut self, event: &TraceEvent, by: MarkedBy, (now, at): (Instant, SystemTime)) {
        // The kernel uses the number of a packet again, and another packet begins here.
        self.finish(event.id);
        self.marked += 1;
        let Some(header) = Header::read(&event.network, &event.transport) else { return };
        let is_translated = by == MarkedBy::Connection;
        let direction = if is_translated { Some(true) } else { self.wanted.direction(&header) };
        let Some(is_back) = direction else { return };
        if self.open.len() >= OPEN_MAX {
            self.crowded += 1;
            return;
        }
        let packet = Packet {
            header,
            is_back,
            is_translated,
            at,
            in_index: event.in_index,
            out_index: event.out_index,
            mark: event.mark,
            stages: Vec::new(),
            end: End::Unseen,
            last: now,
        };
        self.open.insert(event.id, packet);
    }

    fn finish(&mut self, id: u32) {
        self.done.extend(self.open.remove(&id));
    }
}

// === impl Wanted ===

impl Wanted {
    /// Whether a packet is from B to A; none if it is neither that nor from A to B.
    fn direction(&self, header: &Header) -> Option<bool> {
        let protocol = self.protocol.map(|it| number_in(it, Family::of(header.source)));
        if protocol.is_some_and(|protocol| protocol != header.protocol) {
            return None;
        }
        let is_port = |port: Option<u16>| self.port.is_none() || self.port == port;
        let Header { source, destination, ports, .. } = *header;
        let [from, to] = [ports.map(|(from, _)| from), ports.map(|(_, to)| to)];
        if self.pairs.contains(&(source, destination)) && is_port(to) {
            return Some(false);
        }
        (self.pairs.contains(&(destination, source)) && is_port(from)).then_some(true)
    }
}

// === impl Packet ===

impl Packet {
    fn step(&mut self, table: Table, chain: String, at: TracedAt, verdict: Option<Verdict>) {
        let goes_on = self.stages.last().is_some_and(|it| it.table == table && it.verdict.is_none());
        if !goes_on {
            // The last stage and the last chain are the ones that a drop is reported of: what does not fit is left out before them.
            self.stages.truncate(STAGES_MAX - 1);
            let (chains, rule, verdict) = (Vec::new(), None, None);
            self.stages.push(Stage { table, chains, rule, verdict });
        }
        let Some(stage) = self.stages.last_mut() else { return };
        if stage.chains.last() != Some(&chain) {
            stage.chains.truncate(CHAINS_MAX - 1);
            stage.chains.push(chain);
        }
        // Jumps, returns and rules without a verdict lead on within the stage.
        let is_final = matches!(verdict, None | Some(Verdict::Accept | Verdict::Drop));
        if is_final {
            stage.rule = match at {
                TracedAt::Rule(handle) => Some(handle),
                TracedAt::Rest | TracedAt::End | TracedAt::Policy => None,
            };
            stage.verdict.clone_from(&verdict);
        }
        if verdict == Some(Verdict::Drop) {
            self.end = End::Dropped;
        }
    }

    /// The stage that dropped it.
    pub fn dropped_by(&self) -> Option<&Stage> {
        self.stages.last().filter(|_| self.end == End::Dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::tests::ipv4;
    use super::*;

    const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];

    fn wanted(port: Option<u16>) -> Wanted {
        let pairs = [(A.into(), B.into())].into();
        Wanted { pairs, protocol: None, port }
    }

    fn step(id: u32, table: &str, chain: &str, at: TracedAt, verdict: Verdict) -> TraceEvent {
        TraceEvent {
            id,
            table: Table::inet(table),
            chain: chain.into(),
            at,
            verdict: Some(verdict),
            network: Vec::new(),
            transport: Vec::new(),
            in_index: Some(2),
            out_index: None,
            mark: 0,
        }
    }

    fn mark(id: u32, source: [u8; 4], destination: [u8; 4], ports: [u8; 4]) -> TraceEvent {
        let network = ipv4(source, destination, 17);
        let rule = step(id, "russet-trace-0", "prerouting", TracedAt::Rule(1), Verdict::Continue);
        TraceEvent { network, transport: ports.to_vec(), ..rule }
    }

    fn walk(ways: &mut Ways, events: Vec<TraceEvent>, now: Instant) {
        for event in events {
            let is_own = event.table.name == "russet-trace-0";
            ways.take(event, is_own, (now, SystemTime::UNIX_EPOCH));
        }
    }

    #[test]
    fn steps_become_stages_and_a_packet_ends_where_it_is_dropped_or_has_passed() {
        use TracedAt::{End as Returned, Policy, Rule};
        let (mut ways, now) = (Ways::new(wanted(Some(80))), Instant::now());
        let events = vec![
            mark(7, A, B, [0, 9, 0, 80]),
            mark(8, B, A, [0, 80, 0, 9]),
            step(7, "russet-trace-0", "prerouting", Policy, Verdict::Accept),
            step(7, "russet-trace-1", "prerouting", Rule(1), Verdict::Continue),
            step(7, "t", "base", Rule(4), Verdict::jump("sub")),
            step(7, "t", "sub", Returned, Verdict::Return),
            step(8, "t", "base", Rule(5), Verdict::Accept),
            step(7, "t", "base", Policy, Verdict::Accept),
            step(7, "t", "other", Rule(6), Verdict::goto("sub")),
            step(7, "t", "sub", Rule(9), Verdict::Drop),
            // The step with the interface is the first one of the chain.
            TraceEvent {
                out_index: Some(3),
                ..step(8, "russet-trace-0", "postrouting", TracedAt::Rest, Verdict::Continue)
            },
            step(8, "russet-trace-0", "postrouting", Policy, Verdict::Accept),
            // Neither is another program's packet one of this trace, nor what comes behind an end.
            step(9, "t", "base", Rule(4), Verdict::Drop),
            step(7, "t", "base", Rule(4), Verdict::Drop),
        ];
        walk(&mut ways, events, now);
        let dropped = ways.next(now).unwrap();
        assert_eq!((dropped.is_back, dropped.end, dropped.in_index), (false, End::Dropped, Some(2)));
        let stage = |chains: &[&str], rule, verdict| Stage {
            table: Table::inet("t"),
            chains: chains.iter().map(|it| (*it).to_owned()).collect(),
            rule,
            verdict: Some(verdict),
        };
        let stages = [
            stage(&["base", "sub", "base"], None, Verdict::Accept),
            stage(&["other", "sub"], Some(9), Verdict::Drop),
        ];
        assert_eq!(dropped.stages, stages);
        assert_eq!(dropped.dropped_by(), Some(&stages[1]));
        let passed = ways.next(now).unwrap();
        let end = (passed.is_back, passed.end, passed.out_index);
        assert_eq!(end, (true, End::Passed(Hook::Postrouting), Some(3)));
        assert!(ways.next(now).is_none() && ways.rest().is_empty());
        assert_eq!(ways.marked, 2);
    }

    #[test]
    fn a_packet_that_is_seen_no_more_and_a_number_that_is_used_again_end_a_way() {
        let (mut ways, now) = (Ways::new(wanted(None)), Instant::now());
        walk(&mut ways, vec![mark(7, A, B, [0; 4]), mark(7, A, B, [1; 4])], now);
        assert_eq!(ways.next(now).unwrap().header.ports, Some((0, 0)));
        assert!(ways.next(now).is_none());
        assert_eq!(ways.next(now + SILENCE).unwrap().end, End::Unseen);
    }

    #[test]
    fn packets_of_other_ports_protocols_and_ends_are_no_packets_of_the_trace() {
        let now = Instant::now();
        let mut ways = Ways::new(wanted(Some(80)));
        walk(&mut ways, vec![mark(1, A, B, [0, 80, 0, 9]), mark(2, A, [9; 4], [0, 9, 0, 80])], now);
        assert!(ways.rest().is_empty() && ways.marked == 2);
        let mut ways = Ways::new(Wanted { protocol: Some(6), ..wanted(None) });
        walk(&mut ways, vec![mark(1, A, B, [0, 80, 0, 9])], now);
        assert!(ways.rest().is_empty());
    }

    #[test]
    fn an_answer_that_is_known_by_its_connection_is_one_from_b_whatever_its_addresses() {
        let (mut ways, now) = (Ways::new(wanted(Some(80))), Instant::now());
        let answer = mark(1, [9; 4], [8; 4], [31, 144, 0, 9]);
        walk(&mut ways, vec![TraceEvent { chain: "answers-prerouting".into(), ..answer }], now);
        let packet = ways.rest().remove(0);
        assert!(packet.is_back && packet.is_translated);
        walk(&mut ways, vec![mark(1, B, A, [0, 80, 0, 9])], now);
        assert!(!ways.rest()[0].is_translated);
    }

    #[test]
    fn the_drop_behind_more_chains_and_stages_than_are_kept_is_that_of_its_chain() {
        let (mut ways, now) = (Ways::new(wanted(None)), Instant::now());
        let jumps = (0..100)
            .map(|number| step(1, "t", &format!("c{number}"), TracedAt::Rule(number), Verdict::jump("next")));
        walk(&mut ways, std::iter::once(mark(1, A, B, [0; 4])).chain(jumps).collect(), now);
        walk(&mut ways, vec![step(1, "t", "deep", TracedAt::Rule(7), Verdict::Drop)], now);
        let packet = ways.next(now).unwrap();
        let stage = packet.dropped_by().unwrap();
        let (first, last) = (stage.chains.first().unwrap(), stage.chains.last().unwrap());
        assert_eq!((first.as_str(), last.as_str(), stage.rule), ("c0", "deep", Some(7)));
        assert_eq!(stage.chains.len(), CHAINS_MAX);

        let passed = (0..100).map(|rule| step(1, "t", "c", TracedAt::Rule(rule), Verdict::Accept));
        walk(&mut ways, std::iter::once(mark(1, A, B, [0; 4])).chain(passed).collect(), now);
        walk(&mut ways, vec![step(1, "last", "guard", TracedAt::Rule(7), Verdict::Drop)], now);
        let packet = ways.next(now).unwrap();
        assert_eq!((packet.end, packet.stages.len()), (End::Dropped, STAGES_MAX));
        assert_eq!(packet.dropped_by().unwrap().table.name, "last");
    }

    #[test]
    fn packets_without_an_end_are_not_kept_without_bound() {
        let (mut ways, now) = (Ways::new(wanted(None)), Instant::now());
        let many = u32::try_from(OPEN_MAX).unwrap() + 3;
        walk(&mut ways, (0..many).map(|id| mark(id, A, B, [0; 4])).collect(), now);
        assert_eq!((ways.open.len(), ways.crowded), (OPEN_MAX, 3));
        let hostile = (0..1000).map(|rule| step(1, "t", "c", TracedAt::Rule(rule), Verdict::Accept));
        walk(&mut ways, hostile.collect(), now);
        assert_eq!(ways.open[&1].stages.len(), STAGES_MAX);
    }
}
