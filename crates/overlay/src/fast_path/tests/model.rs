//! What the programs shall do with a packet, without their code.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::Mac;

use super::super::layout::{self, Carried, Node, Traffic};
use super::super::{Content, FastPath};
use super::frame::{ETHERNET_BYTES, Frame, OUTER_BYTES, Transport, checksum};

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
    pub packets: u64,
    pub bytes: u64,
}

/// The value of `pending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    pub epoch: u32,
    pub node: u32,
    /// Seconds since it was noted.
    pub age_s: u64,
    /// Where a packet that asks for a connection left the kernel's path; 0 until then.
    pub out_ifindex: u32,
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
    Asks,
    Accepts,
    Ends,
}

/// The maps.
#[derive(Debug)]
pub struct Model {
    pub epoch: u32,
    content: Content,
    numbers: BTreeMap<Node, u32>,
    pub flows: BTreeMap<Tuple, Flow>,
    pub pending: BTreeMap<(Tuple, u32), Pending>,
    places: BTreeMap<u32, u32>,
    /// What was carried of pods' interfaces, by their indexes.
    pub traffic: BTreeMap<u32, Traffic>,
    /// Linux has it since 6.3.
    pub decapsulates_ipv6: bool,
}

const THROUGH_KERNEL_S: u64 = 20;
const HELD_UP_S: u64 = 5;
/// Ages are read back as one of these: tests take less than a second.
const AGES_S: [u64; 4] = [0, 5, 30, ENDED_S];
/// Of a flow that has ended: its time is the machine's start.
const ENDED_S: u64 = 120;

pub fn pending_key(tuple: &Tuple, ifindex: u32) -> Vec<u8> {
    [&tuple.encode()[..], &ifindex.to_ne_bytes()].concat()
}

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
        let mut value =
            [self.epoch, self.ifindex, self.out_ifindex, self.node].map(u32::to_ne_bytes).concat();
        value.extend(through.to_ne_bytes());
        value.extend([self.answered_epoch, self.from_place].map(u32::to_ne_bytes).concat());
        value.extend([self.packets, self.bytes].map(u64::to_ne_bytes).concat());
        value
    }

    pub fn decode(value: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(value[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap());
        Self {
            epoch: word(0),
            ifindex: word(4),
            out_ifindex: word(8),
            node: word(12),
            age_s: age_s(long(16)),
            answered_epoch: word(24),
            from_place: word(28),
            packets: long(32),
            bytes: long(40),
        }
    }
}

// === impl Pending ===

impl Pending {
    pub fn encode(&self) -> Vec<u8> {
        let noted = now_ns().wrapping_sub(self.age_s * 1_000_000_000);
        let words = |words: [u32; 2]| words.map(u32::to_ne_bytes).concat();
        [&words([self.epoch, self.node])[..], &noted.to_ne_bytes(), &words([self.out_ifindex, 0])].concat()
    }

    pub fn decode(value: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(value[at..at + 4].try_into().unwrap());
        let noted = u64::from_ne_bytes(value[8..16].try_into().unwrap());
        Self { epoch: word(0), node: word(4), age_s: age_s(noted), out_ifindex: word(16) }
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
        let (flows, pending) = (BTreeMap::new(), BTreeMap::new());
        Self { epoch, content, numbers, flows, pending, places, traffic, decapsulates_ipv6: true }
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
            Transport::Tcp(flags) if flags & 0x17 == 0x02 => Stage::Asks,
            Transport::Tcp(flags) if flags & 0x17 == 0x12 => Stage::Accepts,
            Transport::Tcp(flags) if flags & 0x07 != 0 => Stage::Ends,
            _ => Stage::Within,
        }
    }

    /// A direction that begins or ends is forgotten.
    fn forget(&mut self, tuple: &Tuple, ifindex: u32) {
        let Some(flow) = self.flows.get_mut(tuple).filter(|it| it.ifindex == ifindex && it.epoch != 0) else {
            return;
        };
        if flow.packets == 0 {
            self.flows.remove(tuple);
            return;
        }
        // What was carried is still to be read.
        *flow = Flow {
            ifindex,
            out_ifindex: flow.out_ifindex,
            age_s: ENDED_S,
            packets: flow.packets,
            bytes: flow.bytes,
            ..Flow::default()
        };
    }

    fn known(&mut self, tuple: &Tuple, ifindex: u32) -> Option<Flow> {
        let epoch = self.epoch;
        let answer = self.flows.get(&tuple.reversed()).copied();
        let flow = self.flows.get_mut(tuple)?;
        if flow.epoch != epoch || flow.ifindex != ifindex || flow.age_s >= THROUGH_KERNEL_S {
            return None;
        }
        if tuple.protocol == 6 && flow.answered_epoch != epoch {
            answer.filter(|answer| answer.epoch == epoch)?;
            flow.answered_epoch = epoch;
        }
        Some(*flow)
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

    fn note(&mut self, tuple: Tuple, ifindex: u32, node: u32) {
        let earlier = self.pending.get(&(tuple, ifindex));
        let may_come = |it: &Pending| it.epoch != self.epoch && it.age_s < HELD_UP_S && it.out_ifindex == 0;
        if !earlier.is_some_and(may_come) {
            let noted = Pending { epoch: self.epoch, node, age_s: 0, out_ifindex: 0 };
            self.pending.insert((tuple, ifindex), noted);
        }
    }

    /// The host end of a pod receives it.
    pub fn pod(&mut self, frame: &Frame, ifindex: u32) -> Outcome {
        let left = Outcome { verdict: Verdict::Left, frame: frame.bytes.clone() };
        if !Self::takes(frame) || frame.bytes[0] != 0 {
            return left;
        }
        let (tuple, ip_bytes) = (frame.headers.tuple(), frame.bytes.len() - ETHERNET_BYTES);
        let stage = Self::stage(frame);
        if stage != Stage::Within {
            self.forget(&tuple, ifindex);
        }
        if stage == Stage::Ends {
            return left;
        }
        let known = if stage == Stage::Within { self.known(&tuple, ifindex) } else { None };
        let Some(flow) = known else {
            let is_pod = self.content.endpoints.contains_key(&tuple.to);
            if is_pod || self.node(tuple.to).is_some() {
                self.note(tuple, ifindex, if is_pod { 0 } else { self.number(tuple.to) });
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
        let node = *self.numbers.iter().find(|(_, number)| **number == flow.node).unwrap().0;
        if self.content.paused.contains(&node)
            || node.via_ifindex != flow.out_ifindex
            || ip_bytes > node.mtu_bytes as usize
        {
            return left;
        }
        self.count(&tuple, ip_bytes, None);
        let inner = forwarded(&frame.bytes);
        let Some(headers) = node.vxlan else { return Outcome { verdict: Verdict::Carried, frame: inner } };
        let ecn = frame.headers.tos & 3;
        Outcome { verdict: Verdict::Carried, frame: encapsulated(&inner, &headers, ecn) }
    }

    /// The uplink receives it.
    pub fn uplink(&mut self, frame: &Frame, ifindex: u32) -> Outcome {
        let left = Outcome { verdict: Verdict::Left, frame: frame.bytes.clone() };
        let tunnel = self.content.tunnel.unwrap();
        if frame.outer.is_some_and(|(_, vni)| vni != tunnel.vni) || !Self::takes(frame) || frame.bytes[0] != 0
        {
            return left;
        }
        let ifindex = if frame.outer.is_some() { tunnel.ifindex } else { ifindex };
        let outer_bytes = if frame.outer.is_some() { OUTER_BYTES } else { 0 };
        let (tuple, ip_bytes) = (frame.headers.tuple(), frame.bytes.len() - ETHERNET_BYTES - outer_bytes);
        let endpoint = self.content.endpoints.get(&tuple.to).copied();
        let Some(endpoint) = endpoint.filter(|it| ip_bytes <= it.mtu_bytes as usize) else { return left };
        let stage = Self::stage(frame);
        if stage != Stage::Within {
            self.forget(&tuple, ifindex);
        }
        if stage == Stage::Ends {
            return left;
        }
        let known = if stage == Stage::Within { self.known(&tuple, ifindex) } else { None };
        let Some(flow) = known else {
            let node = if frame.outer.is_some() { self.number(tuple.from) } else { 0 };
            self.note(tuple, ifindex, node);
            return left;
        };
        if endpoint.ifindex != flow.out_ifindex {
            return left;
        }
        if let Some((from, _)) = frame.outer {
            let is_meant =
                |(node, number): &(&Node, &u32)| **number == flow.node && !self.content.paused.contains(node);
            let node = self.numbers.iter().find(is_meant);
            let headers = node.and_then(|(node, _)| node.vxlan);
            if headers.is_none_or(|headers| headers.remote != from) {
                return left;
            }
        }
        if frame.outer.is_some() && tuple.from.is_ipv6() && !self.decapsulates_ipv6 {
            return left;
        }
        self.count(&tuple, ip_bytes, Some(endpoint.ifindex));
        let inner = forwarded(&frame.bytes[outer_bytes..]);
        Outcome { verdict: Verdict::Carried, frame: with_macs(inner, endpoint.pod_mac, endpoint.host_mac) }
    }

    /// It leaves the kernel's path, having come in through `ingress_ifindex`.
    pub fn learn(&mut self, frame: &Frame, ifindex: u32, ingress_ifindex: u32) -> Outcome {
        let left = Outcome { verdict: Verdict::Left, frame: frame.bytes.clone() };
        let (tuple, stage) = (frame.headers.tuple(), Self::stage(frame));
        if !Self::takes(frame) || stage == Stage::Ends {
            return left;
        }
        if stage == Stage::Asks {
            if let Some(asking) = self.pending.get_mut(&(tuple, ingress_ifindex)) {
                asking.out_ifindex = ifindex;
            }
            return left;
        }
        let Some(pending) = self.pending.remove(&(tuple, ingress_ifindex)) else { return left };
        if pending.epoch != self.epoch {
            return left;
        }
        self.makes_known(tuple, ingress_ifindex, ifindex, pending.node);
        let asking = (tuple.reversed(), ifindex);
        let has_passed = self.pending.get(&asking).is_some_and(|it| it.out_ifindex != 0);
        if stage == Stage::Accepts && has_passed {
            let pending = self.pending.remove(&asking).unwrap();
            if pending.epoch == self.epoch {
                self.makes_known(asking.0, asking.1, pending.out_ifindex, pending.node);
            }
        }
        left
    }

    fn makes_known(&mut self, tuple: Tuple, ifindex: u32, out_ifindex: u32, node: u32) {
        let known = self.flows.get(&tuple);
        let flow = Flow {
            epoch: self.epoch,
            ifindex,
            out_ifindex,
            node,
            age_s: 0,
            answered_epoch: known.map_or(0, |known| known.answered_epoch),
            from_place: self.place(ifindex),
            packets: known.map_or(0, |known| known.packets),
            bytes: known.map_or(0, |known| known.bytes),
        };
        self.flows.insert(tuple, flow);
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
    frame.extend(headers.local.octets());
    frame.extend(headers.remote.octets());
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
