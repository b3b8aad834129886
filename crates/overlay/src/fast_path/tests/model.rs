//! What the programs shall do with a packet, without their code.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, Mac};

use super::super::layout::{self, Carried, Node, Traffic, Tunnel};
use super::super::{Content, FastPath};
use super::frame::{ETHERNET_BYTES, Frame, OUTER_BYTES, Outer, Transport, checksum};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuple {
    pub from: IpAddr,
    pub to: IpAddr,
    pub ports: (u16, u16),
    pub protocol: u8,
}

/// The value of `flows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    pub epoch: u32,
    pub ifindex: u32,
    pub out_ifindex: u32,
    pub node: u32,
    /// Seconds since a packet took the kernel's path.
    pub age_s: u64,
    pub answered_epoch: u32,
    /// Of the pod that sends it.
    pub from_place: u32,
    /// The number of readings when its connection began, and its side of that.
    pub begun: Option<(u32, Side)>,
    pub packets: u64,
    pub bytes: u64,
}

/// Which direction of a connection a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Asks = 1,
    Accepts = 2,
}

/// The value of `ended`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedSum {
    pub carried: Carried,
    /// Of the first one.
    pub port: u16,
}

/// The value of `notes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    pub tuple: Tuple,
    pub ifindex: u32,
    pub epoch: u32,
    pub node: u32,
    pub from_place: u32,
    pub is_of_device: bool,
}

/// When outer packets have passed the kernel's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    pub epoch: u32,
    pub age_s: u64,
}

/// The value of `tunnels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TunnelTo {
    pub sent: Passed,
    pub received: Passed,
}

/// The value of `handed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Handed {
    pub epoch: u32,
    pub node: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Left,
    Carried,
}

#[derive(Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    pub frame: Vec<u8>,
}

/// Where in a connection a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Within,
    Acknowledges,
    Begins(Side),
    Ends,
}

/// The maps.
#[derive(Debug)]
pub struct Model {
    pub epoch: u32,
    content: Content,
    numbers: BTreeMap<Node, u32>,
    pub flows: BTreeMap<Tuple, Flow>,
    /// By their places.
    pub notes: BTreeMap<u32, Note>,
    /// By the numbers of nodes.
    pub tunnels: BTreeMap<u32, TunnelTo>,
    pub handed: Handed,
    /// How often the agent has begun or ended to read flows.
    pub readings: u32,
    /// What was carried of connections that have ended, by tuple and interfaces.
    pub ended: BTreeMap<(Tuple, u32, u32), EndedSum>,
    places: BTreeMap<u32, u32>,
    /// What was carried of pods' interfaces, by their indexes.
    pub traffic: BTreeMap<u32, Traffic>,
    /// Linux has it since 6.3.
    pub changes_family: bool,
}

const THROUGH_KERNEL_S: u64 = 20;
/// Ages are read back as one of these: tests take less than a second.
const AGES_S: [u64; 4] = [0, 5, 30, LONG_AGO_S];
/// Of what never was: its time is the machine's start.
const LONG_AGO_S: u64 = 120;

fn now_ns() -> u64 {
    // CLOCK_MONOTONIC, in hundredths of a second, as far as the machine was never suspended.
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    (seconds * 1e9) as u64
}

fn age_s(at_ns: u64) -> u64 {
    // The program's clock may be some hundredths of a second ahead.
    let age_s = now_ns().wrapping_sub(at_ns).cast_signed().max(0).cast_unsigned() / 1_000_000_000;
    AGES_S.into_iter().rev().find(|age| *age <= age_s).unwrap()
}

// === impl Tuple ===

impl Tuple {
    pub fn reversed(self) -> Self {
        Self { from: self.to, to: self.from, ports: (self.ports.1, self.ports.0), protocol: self.protocol }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut key = [layout::address(self.from), layout::address(self.to)].concat();
        key.extend(self.ports.0.to_be_bytes());
        key.extend(self.ports.1.to_be_bytes());
        key.extend(u32::from(self.protocol).to_ne_bytes());
        key
    }
}

// === impl Flow ===

impl Flow {
    pub fn encode(&self) -> Vec<u8> {
        // As the programs compute an age: this machine may be younger.
        let through = now_ns().wrapping_sub(self.age_s * 1_000_000_000);
        let mut value = [self.epoch, self.ifindex, self.out_ifindex].map(u32::to_ne_bytes).concat();
        value.extend([self.node, self.from_place].map(|it| (it as u16).to_ne_bytes()).concat());
        value.extend(through.to_ne_bytes());
        let begun = self.begun.map_or(0, |(readings, side)| readings << 2 | side as u32);
        value.extend([self.answered_epoch, begun].map(u32::to_ne_bytes).concat());
        value.extend([self.packets, self.bytes].map(u64::to_ne_bytes).concat());
        value
    }

    pub fn decode(value: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(value[at..at + 4].try_into().unwrap());
        let half = |at: usize| u32::from(u16::from_ne_bytes(value[at..at + 2].try_into().unwrap()));
        let long = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap());
        let side = [None, Some(Side::Asks), Some(Side::Accepts), None][word(28) as usize & 3];
        Self {
            epoch: word(0),
            ifindex: word(4),
            out_ifindex: word(8),
            node: half(12),
            from_place: half(14),
            age_s: age_s(long(16)),
            answered_epoch: word(24),
            begun: side.map(|side| (word(28) >> 2, side)),
            packets: long(32),
            bytes: long(40),
        }
    }
}

// === impl Note ===

impl Note {
    /// Where it is: packets of one flow have one place.
    pub fn place(tuple: &Tuple) -> u32 {
        let key = tuple.encode();
        let word = |at: usize| u32::from_ne_bytes(key[at..at + 4].try_into().unwrap());
        let half = |at: usize| u32::from(u16::from_ne_bytes(key[at..at + 2].try_into().unwrap()));
        let mixed = (word(12) ^ word(8)).wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ word(28) ^ word(24)).wrapping_mul(0xc2b2_ae35);
        (mixed ^ (half(32) << 16 | half(34)) ^ word(36)).wrapping_mul(0x9e37_79b1) >> 24
    }

    pub fn encode(&self) -> Vec<u8> {
        let words = [self.ifindex, self.epoch, self.node, self.from_place, u32::from(self.is_of_device), 0];
        [self.tuple.encode(), words.map(u32::to_ne_bytes).concat()].concat()
    }
}

// === impl Passed ===

impl Passed {
    fn is_known(&self, epoch: u32) -> bool {
        self.epoch == epoch && self.age_s < THROUGH_KERNEL_S
    }

    fn encode(&self) -> Vec<u8> {
        let at_ns = now_ns().wrapping_sub(self.age_s * 1_000_000_000);
        [&self.epoch.to_ne_bytes()[..], &[0; 4], &at_ns.to_ne_bytes()].concat()
    }

    fn decode(value: &[u8]) -> Self {
        let at_ns = u64::from_ne_bytes(value[8..16].try_into().unwrap());
        Self { epoch: u32::from_ne_bytes(value[..4].try_into().unwrap()), age_s: age_s(at_ns) }
    }
}

// === impl TunnelTo ===

impl TunnelTo {
    /// As far as packets have passed in an epoch.
    pub fn passed(epoch: u32) -> Self {
        let passed = Passed { epoch, age_s: 0 };
        Self { sent: passed, received: passed }
    }

    pub fn encode(&self) -> Vec<u8> {
        [self.sent.encode(), self.received.encode()].concat()
    }

    pub fn decode(value: &[u8]) -> Self {
        Self { sent: Passed::decode(&value[..16]), received: Passed::decode(&value[16..]) }
    }
}

// === impl Handed ===

impl Handed {
    pub fn encode(&self) -> Vec<u8> {
        [self.epoch, self.node].map(u32::to_ne_bytes).concat()
    }

    pub fn decode(value: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(value[at..at + 4].try_into().unwrap());
        Self { epoch: word(0), node: word(4) }
    }
}

// === impl Verdict ===

impl Verdict {
    pub fn of(verdict: i32) -> Self {
        match verdict {
            -1 => Self::Left,
            7 => Self::Carried,
            other => panic!("verdict {other}"),
        }
    }
}

// === impl Model ===

impl Model {
    pub fn new(epoch: u32, content: Content, fast_path: &FastPath) -> Self {
        let (numbers, places) = (fast_path.numbers.clone(), fast_path.places.clone());
        let traffic = places.keys().map(|ifindex| (*ifindex, Traffic::default())).collect();
        let tunnels = numbers.values().map(|number| (*number, TunnelTo::default())).collect();
        Self {
            epoch,
            content,
            numbers,
            flows: BTreeMap::new(),
            notes: BTreeMap::new(),
            tunnels,
            handed: Handed::default(),
            readings: 0,
            ended: BTreeMap::new(),
            places,
            traffic,
            changes_family: true,
        }
    }

    fn node(&self, to: IpAddr) -> Option<&Node> {
        let of = |(net, _): &(&russet_addr::IpNet, _)| net.contains(&to);
        let longest = self.content.prefixes.iter().filter(of).max_by_key(|(net, _)| net.prefix_len());
        longest.and_then(|(_, node)| node.as_ref())
    }

    /// The number of the node that has an address; 0 if none has.
    pub fn number(&self, to: IpAddr) -> u32 {
        self.node(to).map_or(0, |node| self.numbers[node])
    }

    /// Where packets to an address leave, or another link.
    pub fn out_ifindex(&self, tuple: &Tuple, is_other: bool) -> u32 {
        let endpoint = self.content.endpoints.get(&tuple.to).map(|endpoint| endpoint.ifindex);
        let node = self.node(tuple.to).map(|node| node.via_ifindex);
        if is_other { 66 } else { endpoint.or(node).unwrap_or(66) }
    }

    /// Whether the fast path takes a packet of this kind at all.
    fn takes(frame: &Frame) -> bool {
        let headers = &frame.headers;
        let is_whole = headers.from.is_ipv6() || headers.fragment & 0x3fff == 0;
        let is_known = !matches!(headers.transport, Transport::Other(_));
        is_whole && is_known && headers.ttl > 1 && !headers.has_options && frame.has_headers()
    }

    fn stage(frame: &Frame) -> Stage {
        match frame.headers.transport {
            Transport::Tcp(flags) if flags & 0x17 == 0x02 => Stage::Begins(Side::Asks),
            Transport::Tcp(flags) if flags & 0x17 == 0x12 => Stage::Begins(Side::Accepts),
            Transport::Tcp(flags) if flags & 0x07 != 0 => Stage::Ends,
            Transport::Tcp(_) if frame.headers.payload_bytes == 0 => Stage::Acknowledges,
            _ => Stage::Within,
        }
    }

    /// A direction that begins or ends is forgotten, and what was carried counts as of ended connections if the agent
    /// has not read it.
    fn forget(&mut self, tuple: &Tuple, ifindex: u32) {
        let Some(flow) = self.flows.get_mut(tuple).filter(|flow| flow.ifindex == ifindex) else { return };
        (flow.epoch, flow.answered_epoch) = (0, 0);
        let flow = *flow;
        let is_unread =
            |(readings, _): &(u32, Side)| *readings == self.readings && self.readings.is_multiple_of(2);
        let Some((_, side)) = flow.begun.filter(is_unread) else { return };
        self.flows.remove(tuple);
        if flow.packets > 0 {
            let (ports, port) = match side {
                Side::Asks => ((0, tuple.ports.1), tuple.ports.0),
                Side::Accepts => ((tuple.ports.0, 0), tuple.ports.1),
            };
            let key = (Tuple { ports, ..*tuple }, flow.ifindex, flow.out_ifindex);
            let sum = self.ended.entry(key).or_insert(EndedSum { carried: Carried::default(), port });
            sum.carried = sum.carried.plus(Carried { packets: flow.packets, bytes: flow.bytes });
        }
    }

    fn known(&mut self, tuple: &Tuple, ifindex: u32) -> Option<Flow> {
        let epoch = self.epoch;
        let is_answered = self.is_answered(tuple);
        let flow = self.flows.get_mut(tuple)?;
        if flow.epoch != epoch || flow.ifindex != ifindex || flow.age_s >= THROUGH_KERNEL_S {
            return None;
        }
        if tuple.protocol == 6 && flow.answered_epoch != epoch {
            if !is_answered {
                return None;
            }
            flow.answered_epoch = epoch;
        }
        Some(*flow)
    }

    /// Whether the other direction is known.
    fn is_answered(&self, tuple: &Tuple) -> bool {
        self.flows.get(&tuple.reversed()).is_some_and(|answer| answer.epoch == self.epoch)
    }

    /// The place of a pod's interface; 0 without one.
    pub fn place(&self, ifindex: u32) -> u32 {
        self.places.get(&ifindex).copied().unwrap_or(0)
    }

    /// Of a packet that goes to the pod at a link, or elsewhere.
    fn count(&mut self, tuple: &Tuple, ip_bytes: usize, to: Option<u32>) {
        let flow = self.flows.get_mut(tuple).unwrap();
        flow.packets += 1;
        flow.bytes += ip_bytes as u64;
        let one = Carried { packets: 1, bytes: ip_bytes as u64 };
        let from =
            self.places.iter().find(|(_, place)| **place == flow.from_place).map(|(ifindex, _)| *ifindex);
        for (ifindex, is_from) in [(from, true), (to, false)] {
            let Some(of_pod) = ifindex.and_then(|ifindex| self.traffic.get_mut(&ifindex)) else { continue };
            let sum = if is_from { &mut of_pod.from_pod } else { &mut of_pod.to_pod };
            *sum = sum.plus(one);
        }
    }

    /// It takes the kernel's path.
    fn note(&mut self, note: Note) {
        self.notes.insert(Note::place(&note.tuple), note);
    }

    /// The node with a number, if its packets are not left to the kernel's path for a while.
    fn numbered(&self, number: u32) -> Option<Node> {
        let found = self.numbers.iter().find(|(_, of_node)| **of_node == number);
        found.map(|(node, _)| *node).filter(|node| !self.content.paused.contains(node))
    }

    /// The host end of a pod receives it.
    pub fn pod(&mut self, frame: &Frame, ifindex: u32) -> Outcome {
        let left = Outcome { verdict: Verdict::Left, frame: frame.bytes.clone() };
        if !Self::takes(frame) || frame.bytes[0] != 0 {
            return left;
        }
        let (tuple, ip_bytes) = (frame.headers.tuple(), frame.bytes.len() - ETHERNET_BYTES);
        let known = match Self::stage(frame) {
            Stage::Within | Stage::Acknowledges => self.known(&tuple, ifindex),
            Stage::Begins(_) | Stage::Ends => {
                self.forget(&tuple, ifindex);
                None
            }
        };
        let Some(flow) = known else {
            let is_pod = self.content.endpoints.contains_key(&tuple.to);
            if is_pod || self.node(tuple.to).is_some() {
                let node = if is_pod { 0 } else { self.number(tuple.to) };
                let (epoch, from_place) = (self.epoch, self.place(ifindex));
                self.note(Note { tuple, ifindex, epoch, node, from_place, is_of_device: false });
            }
            return left;
        };
        if flow.node == 0 {
            let endpoint = self.content.endpoints.get(&tuple.to).copied();
            let fits =
                |it: &super::Endpoint| it.ifindex == flow.out_ifindex && ip_bytes <= it.mtu_bytes as usize;
            let Some(endpoint) = endpoint.filter(fits) else { return left };
            self.count(&tuple, ip_bytes, Some(endpoint.ifindex));
            let frame = with_macs(forwarded(&frame.bytes), endpoint.pod_mac, endpoint.host_mac);
            return Outcome { verdict: Verdict::Carried, frame };
        }
        let fits = |it: &Node| it.via_ifindex == flow.out_ifindex && ip_bytes <= it.mtu_bytes as usize;
        let Some(node) = self.numbered(flow.node).filter(fits) else { return left };
        let is_of_device = node.vxlan.is_some_and(|headers| headers.remote.is_ipv6());
        let has_passed = is_of_device || self.tunnels[&flow.node].sent.is_known(self.epoch);
        if node.vxlan.is_some() && !has_passed {
            return left;
        }
        self.count(&tuple, ip_bytes, None);
        let inner = forwarded(&frame.bytes);
        let Some(headers) = node.vxlan else { return Outcome { verdict: Verdict::Carried, frame: inner } };
        if is_of_device {
            let frame = with_macs(inner, headers.inner_to, headers.inner_from);
            return Outcome { verdict: Verdict::Carried, frame };
        }
        let ecn = frame.headers.tos & 3;
        Outcome { verdict: Verdict::Carried, frame: encapsulated(&inner, &headers, ecn) }
    }

    /// Whether the outer headers may be taken off.
    fn may_decapsulate(&self, number: u32, frame: &Frame) -> bool {
        let headers = self.numbered(number).and_then(|node| node.vxlan);
        let has_passed = self.tunnels.get(&number).is_some_and(|it| it.received.is_known(self.epoch));
        let is_between =
            |outer: Outer| headers.is_some_and(|it| (it.remote, it.local) == (outer.from, outer.to));
        has_passed && frame.outer.is_some_and(|outer| is_between(outer) && !outer.has_met_congestion())
    }

    /// The tunnel of which a packet is.
    fn tunnel(&self, outer: Outer) -> Option<Tunnel> {
        let tunnel = self.content.tunnels.get(&Family::of(outer.from)).copied();
        tunnel.filter(|tunnel| tunnel.vni == outer.vni)
    }

    /// The uplink receives it.
    pub fn uplink(&mut self, frame: &Frame, ifindex: u32) -> Outcome {
        let left = Outcome { verdict: Verdict::Left, frame: frame.bytes.clone() };
        let tunnel = frame.outer.and_then(|outer| self.tunnel(outer));
        let is_tunnelled = frame.outer.is_some();
        if tunnel.is_some() != is_tunnelled || !Self::takes(frame) || frame.bytes[0] != 0 {
            return left;
        }
        let ifindex = tunnel.map_or(ifindex, |tunnel| tunnel.ifindex);
        let outer_bytes = frame.outer.map_or(0, Outer::bytes);
        let (tuple, ip_bytes) = (frame.headers.tuple(), frame.bytes.len() - ETHERNET_BYTES - outer_bytes);
        let endpoint = self.content.endpoints.get(&tuple.to).copied();
        let Some(endpoint) = endpoint.filter(|it| ip_bytes <= it.mtu_bytes as usize) else { return left };
        let known = match Self::stage(frame) {
            Stage::Within | Stage::Acknowledges => self.known(&tuple, ifindex),
            Stage::Begins(_) | Stage::Ends => {
                self.forget(&tuple, ifindex);
                None
            }
        };
        let from = if is_tunnelled { self.number(tuple.from) } else { 0 };
        let node = known.filter(|_| is_tunnelled).map_or(from, |flow| flow.node);
        let is_of_device = is_tunnelled && !self.may_decapsulate(node, frame);
        let is_of_family = |outer: Outer| outer.from.is_ipv6() == tuple.from.is_ipv6();
        let decapsulates = self.changes_family || frame.outer.is_none_or(is_of_family);
        let Some(flow) = known.filter(|_| !is_of_device) else {
            let epoch = self.epoch;
            self.note(Note { tuple, ifindex, epoch, node, from_place: 0, is_of_device });
            if !is_tunnelled || is_of_device || !decapsulates {
                return left;
            }
            // The tunnel's device receives it.
            return Outcome { verdict: Verdict::Carried, frame: frame.bytes[outer_bytes..].to_vec() };
        };
        if endpoint.ifindex != flow.out_ifindex || (is_tunnelled && !decapsulates) {
            return left;
        }
        self.count(&tuple, ip_bytes, Some(endpoint.ifindex));
        let inner = forwarded(&frame.bytes[outer_bytes..]);
        Outcome { verdict: Verdict::Carried, frame: with_macs(inner, endpoint.pod_mac, endpoint.host_mac) }
    }

    /// Whether a packet has the lower half of an epoch: those of test runs have 0.
    fn is_in_packet(epoch: u32) -> bool {
        epoch.trailing_zeros() >= 16
    }

    /// An outer packet of IPv4 that the tunnel's device has made leaves through the uplink.
    fn is_sent(&mut self, frame: &Frame, ifindex: u32) {
        let outer = frame.outer.filter(|outer| outer.from.is_ipv4());
        let (Some(outer), Handed { epoch, node }) = (outer, self.handed) else { return };
        let Some(meant) = self.numbered(node).filter(|it| it.out_ifindex == ifindex) else { return };
        let is_to_it = |it: &super::VxlanHeaders| it.local == outer.from && it.remote == outer.to;
        if epoch == self.epoch && Self::is_in_packet(epoch) && meant.vxlan.as_ref().is_some_and(is_to_it) {
            self.handed.epoch = 0;
            self.tunnels.get_mut(&node).unwrap().sent = Passed { epoch, age_s: 0 };
        }
    }

    /// It leaves the kernel's path through a link, having come in through `ingress_ifindex`; 0 if this machine
    /// sends it.
    pub fn learn(&mut self, frame: &Frame, ifindex: u32, ingress_ifindex: u32) -> Outcome {
        let left = Outcome { verdict: Verdict::Left, frame: frame.bytes.clone() };
        if frame.has_outer() && frame.outer.is_some_and(|outer| self.tunnel(outer).is_some()) {
            if ingress_ifindex == 0 {
                self.is_sent(frame, ifindex);
            }
            return left;
        }
        if ingress_ifindex == 0 || frame.outer.is_some() || !Self::takes(frame) {
            return left;
        }
        let (tuple, epoch) = (frame.headers.tuple(), self.epoch);
        let is_its = |note: &Note| {
            note.epoch == epoch
                && Self::is_in_packet(epoch)
                && note.ifindex == ingress_ifindex
                && note.tuple == tuple
        };
        let note = self.notes.get(&Note::place(&tuple)).copied().filter(is_its);
        if let Some(note) = note {
            if let Some(tunnel) = self.tunnels.get_mut(&note.node).filter(|_| note.is_of_device) {
                tunnel.received = Passed { epoch, age_s: 0 };
            }
            self.makes_known(&note, Self::stage(frame), ifindex);
        }
        let is_of_pod = note.is_some() || self.content.endpoints.contains_key(&tuple.from);
        if ifindex != self.content.tunnels[&Family::V4].ifindex || !is_of_pod {
            return left;
        }
        let number = note.map_or_else(|| self.number(tuple.to), |note| note.node);
        self.send(frame, number, ifindex).unwrap_or(left)
    }

    /// What a pod has sent leaves through the tunnel's device.
    fn send(&mut self, frame: &Frame, number: u32, ifindex: u32) -> Option<Outcome> {
        let bytes = frame.bytes.len() - ETHERNET_BYTES;
        let node = self.numbered(number)?;
        let headers = node.vxlan.filter(|headers| headers.remote.is_ipv4())?;
        if node.via_ifindex != ifindex || bytes > node.mtu_bytes as usize {
            return None;
        }
        if !self.tunnels[&number].sent.is_known(self.epoch) {
            self.handed = Handed { epoch: self.epoch, node: number };
            return None;
        }
        let frame = encapsulated(&frame.bytes, &headers, frame.headers.tos & 3);
        Some(Outcome { verdict: Verdict::Carried, frame })
    }

    fn makes_known(&mut self, note: &Note, stage: Stage, out_ifindex: u32) {
        let known = self.flows.get(&note.tuple).copied();
        let flow = Flow {
            epoch: note.epoch,
            ifindex: note.ifindex,
            out_ifindex,
            node: note.node,
            from_place: note.from_place,
            begun: match stage {
                Stage::Begins(side) => Some((self.readings, side)),
                _ => None,
            },
            ..Flow::default()
        };
        let is_same = |known: &Flow| {
            let of = |flow: &Flow| (flow.epoch, flow.ifindex, flow.out_ifindex, flow.node, flow.from_place);
            of(known) == of(&flow)
        };
        let flow = match known {
            Some(known) if is_same(&known) => Flow { age_s: 0, ..known },
            Some(Flow { answered_epoch, begun, packets, bytes, .. }) => {
                Flow { answered_epoch, begun, packets, bytes, ..flow }
            }
            None => flow,
        };
        let adds_nothing = stage == Stage::Acknowledges && !self.is_answered(&note.tuple);
        if stage != Stage::Ends && (known.is_some_and(|known| is_same(&known)) || !adds_nothing) {
            self.flows.insert(note.tuple, flow);
        }
    }
}

/// A frame behind a router: the TTL is lower.
fn forwarded(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame[14] >> 4 == 6 {
        frame[21] -= 1;
        return frame;
    }
    frame[22] -= 1;
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn with_macs(mut frame: Vec<u8>, to: Mac, from: Mac) -> Vec<u8> {
    frame[..6].copy_from_slice(&to.octets());
    frame[6..12].copy_from_slice(&from.octets());
    frame
}

/// The outer MACs are left to the neighbour's entry, and the source port to the kernel.
fn encapsulated(inner: &[u8], headers: &super::VxlanHeaders, ecn: u8) -> Vec<u8> {
    let bytes = (inner.len() - ETHERNET_BYTES + OUTER_BYTES) as u16;
    let mut frame = inner[..12].to_vec();
    frame.extend([0x08, 0x00, 0x45, ecn]);
    frame.extend(bytes.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    for address in [headers.local, headers.remote] {
        let IpAddr::V4(address) = address else { panic!("IPv4") };
        frame.extend(address.octets());
    }
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(headers.port.to_be_bytes());
    frame.extend((bytes - 20).to_be_bytes());
    frame.extend([0, 0, 8, 0, 0, 0]);
    frame.extend((headers.vni << 8).to_be_bytes());
    frame.extend(headers.inner_to.octets());
    frame.extend(headers.inner_from.octets());
    frame.extend(&inner[12..]);
    frame
}
