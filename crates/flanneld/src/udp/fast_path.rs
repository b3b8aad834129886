//! The fast path of the backend: BPF programs that put packets into datagrams and take them out, in place of the threads
//! (`crates/linux/bpf/udp_tunnel.h`, dataplane.md section 4).
//!
//! One program is at the device, behind the kernel's routes and rules, and one at the uplink, whose packets come in
//! through the device: the kernel decides about every packet as without them, and what they do not carry takes the way
//! through the threads. They send to nodes that take packets out of datagrams by the same means only, because a packet
//! between namespaces or machines of one host may have a checksum that the kernel has yet to finish, which the threads and
//! flannel's daemon cannot read (dataplane.md section 2.6 on interoperability).
//!
//! Nothing is pinned: the device vanishes with the process, and there would be nothing to carry packets to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use russet_addr::Ipv4Net;
use russet_linux::bpf::{
    Attachable, Attachment, BpfError, Found, Map, Object, Program, Way, programs, remove_filters,
    without_own_clsact,
};
use russet_netlink::{Direction, NetlinkError, Socket};

/// The node of a subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Via {
    pub address: Ipv4Addr,
    /// Whether its kernel takes packets out of datagrams.
    pub decapsulates: bool,
}

/// The programs and their maps. At most one proxy uses them at a time.
#[derive(Debug)]
pub struct FastPath {
    uplink: u32,
    maps: BTreeMap<String, Map>,
    sends: Attachable,
    receives: Attachable,
    way: Way,
    state: Mutex<State>,
}

/// What the fast path has carried, without the outer headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    pub packets: u64,
    pub bytes: u64,
}

/// This node's end of the tunnel: `struct settings` of the C file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) local: Ipv4Addr,
    pub(super) device: u32,
    pub(super) mtu_bytes: u32,
    pub(super) port: u16,
}

#[derive(Debug, Default)]
struct State {
    /// None while no proxy uses it.
    end: Option<End>,
    wanted: BTreeMap<Ipv4Net, Via>,
    /// What the maps hold.
    written: BTreeMap<Ipv4Net, Via>,
    /// The maps may hold something else than `written`.
    is_unknown: bool,
    hooks: BTreeMap<(u32, Direction), Attachment>,
    /// Why it does not carry anything, while a proxy uses it.
    failure: Option<String>,
}

/// Removes from links what the programs of an earlier process were attached by, where the kernel has no TCX. Returns how
/// much.
pub fn remove_leftovers(socket: &mut Socket) -> Result<usize, NetlinkError> {
    remove_filters(socket, &["udp_send", "udp_receive"])
}

/// Why the fast path cannot carry packets.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Bpf(#[from] BpfError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("{0} has no Ethernet headers")]
    Headers(String),
    #[error("a queueing discipline or filter is at {0}, which has to see every packet")]
    Filtered(String),
    #[error("BPF programs of others are at link {0}, which have to see every packet")]
    Shared(u32),
}

/// Entry of the array with one.
const ONLY: [u8; 4] = [0; 4];
/// The node of subnets whose packets the threads send.
const NO_NODE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const KNOWN: [u8; 4] = 1_u32.to_ne_bytes();
/// Disciplines that links have by default.
const DEFAULTS: [&str; 6] = ["noqueue", "noop", "mq", "pfifo_fast", "fq_codel", "fq"];
/// Disciplines of which filters hang that see what a link receives.
const OF_FILTERS: [&str; 2] = ["ingress", "clsact"];

// === impl Via ===

impl From<Ipv4Addr> for Via {
    /// A node of which nothing else is known.
    fn from(address: Ipv4Addr) -> Self {
        Self { address, decapsulates: false }
    }
}

// === impl FastPath ===

impl FastPath {
    /// Loads the programs; attaches none. `uplink` is the link towards the other nodes.
    pub fn load(uplink: u32) -> Result<Self, BpfError> {
        let (sends, receives) = (Object::read(programs::UDP_SEND)?, Object::read(programs::UDP_RECEIVE)?);
        if sends.maps() != receives.maps() {
            return Err(BpfError::Object("the programs of the backend udp have different maps"));
        }
        let created = sends.maps().iter().map(|it| Ok((it.name.clone(), Map::create(it)?)));
        let maps: BTreeMap<String, Map> = created.collect::<Result<_, BpfError>>()?;
        // Both are in the order of names.
        let references: Vec<&Map> = maps.values().collect();
        let way = Way::probe();
        let load = |object| Attachable::new(Program::load(object, &references)?, way);
        let (sends, receives) = (load(&sends)?, load(&receives)?);
        Ok(Self { uplink, maps, sends, receives, way, state: Mutex::default() })
    }

    /// Whether packets are carried.
    pub fn carries(&self) -> bool {
        let state = self.lock();
        state.end.is_some() && state.failure.is_none()
    }

    /// Why no packets are carried.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// What was carried to and from other nodes since the programs were loaded.
    pub fn carried(&self) -> Result<[Carried; 2], BpfError> {
        let map = self.map("carried")?;
        let mut all = [Carried::default(); 2];
        for (which, carried) in (0_u32..).zip(&mut all) {
            let value = map.get(&which.to_ne_bytes())?.unwrap_or_default();
            for numbers in value.as_chunks::<8>().0.chunks_exact(2) {
                let [packets, bytes] = numbers else { continue };
                carried.packets = carried.packets.wrapping_add(u64::from_ne_bytes(*packets));
                carried.bytes = carried.bytes.wrapping_add(u64::from_ne_bytes(*bytes));
            }
        }
        Ok(all)
    }

    /// Carries packets from now on, in the calling thread's network namespace, if it can.
    pub(super) fn start(&self, end: End) {
        let mut state = self.lock();
        state.end = Some(end);
        self.carry(&mut state);
    }

    /// Leaves everything to the kernel.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.hooks.clear();
        (state.end, state.failure) = (None, None);
        state.wanted.clear();
    }

    /// Changes the nodes of subnets.
    pub(super) fn change(&self, change: impl FnOnce(&mut BTreeMap<Ipv4Net, Via>)) {
        let mut state = self.lock();
        change(&mut state.wanted);
        if state.end.is_some() && state.failure.is_none() {
            let written = self.write(&mut state);
            self.settle(&mut state, written.map_err(Refusal::from));
        }
    }

    /// Attaches what another program has detached, or gives way to one. Returns whether that changed anything. In the network
    /// namespace in which it was started.
    pub(super) fn repair(&self) -> bool {
        let mut state = self.lock();
        if state.end.is_none() {
            return false;
        }
        let before = state.failure.clone();
        let attached = self.carry(&mut state);
        attached > 0 || before != state.failure
    }

    /// Whether a repair would change anything, as far as that costs little to know.
    pub(super) fn is_disturbed(&self) -> bool {
        let state = self.lock();
        if state.end.is_none() || state.failure.is_some() {
            return false;
        }
        let is_alone = |hook: &Attachment| hook.look() == Found { is_in_place: true, is_shared: false };
        !state.hooks.values().all(is_alone) || self.check_links(&state).is_err()
    }

    /// Returns how many programs it has attached.
    fn carry(&self, state: &mut State) -> usize {
        let tried = self.try_to_carry(state);
        let attached = *tried.as_ref().unwrap_or(&0);
        self.settle(state, tried.map(drop));
        attached
    }

    /// After a failure no program is left at a link.
    fn settle(&self, state: &mut State, tried: Result<(), Refusal>) {
        state.failure = tried.err().map(|refusal| refusal.to_string());
        if state.failure.is_some() {
            state.hooks.clear();
            state.is_unknown = true;
        }
    }

    fn try_to_carry(&self, state: &mut State) -> Result<usize, Refusal> {
        let Some(end) = state.end else { return Ok(0) };
        self.check_links(state)?;
        self.map("settings")?.put(&ONLY, &end.encode(self.uplink))?;
        self.write(state)?;
        let ends =
            [(self.uplink, Direction::Ingress, &self.receives), (end.device, Direction::Egress, &self.sends)];
        state
            .hooks
            .retain(|hook, _| ends.iter().any(|(ifindex, direction, _)| *hook == (*ifindex, *direction)));
        let mut attached = 0;
        for (ifindex, direction, program) in ends {
            let hook = (ifindex, direction);
            let found = match state.hooks.get(&hook) {
                Some(attachment) => attachment.look(),
                None => Found { is_in_place: false, is_shared: self.way.is_occupied(ifindex, direction)? },
            };
            if found.is_shared {
                return Err(Refusal::Shared(ifindex));
            }
            if !found.is_in_place {
                state.hooks.remove(&hook);
                state.hooks.insert(hook, program.attach(ifindex, direction)?);
                attached += 1;
            }
        }
        Ok(attached)
    }

    /// Whether packets may pass by what is at the links.
    fn check_links(&self, state: &State) -> Result<(), Refusal> {
        let Some(end) = state.end else { return Ok(()) };
        let mut socket = Socket::route()?;
        let (uplink, device) = (socket.link_by_index(self.uplink)?, socket.link_by_index(end.device)?);
        if uplink.mac.is_none() {
            return Err(Refusal::Headers(uplink.name));
        }
        let mut qdiscs = socket.qdiscs()?;
        without_own_clsact(self.way, &mut socket, &mut qdiscs)?;
        let has = |index, test: &dyn Fn(&str) -> bool| {
            qdiscs.iter().any(|it| it.ifindex == index && test(&it.kind))
        };
        // What queues packets at the uplink stays in their way, and what does so at the device does not.
        if has(uplink.index, &|kind| OF_FILTERS.contains(&kind)) {
            return Err(Refusal::Filtered(uplink.name));
        }
        if has(device.index, &|kind| !DEFAULTS.contains(&kind)) {
            return Err(Refusal::Filtered(device.name));
        }
        Ok(())
    }

    /// Has the maps hold the wanted subnets. A subnet never leads to a node that is not a sender.
    fn write(&self, state: &mut State) -> Result<(), BpfError> {
        let (subnets, senders) = (self.map("subnets")?, self.map("senders")?);
        if std::mem::replace(&mut state.is_unknown, true) {
            for map in [subnets, senders] {
                for (key, _) in map.entries()? {
                    map.delete(&key)?;
                }
            }
            state.written.clear();
        }
        let (before, now) = (addresses(&state.written), addresses(&state.wanted));
        for new in now.difference(&before) {
            senders.put(&new.octets(), &KNOWN)?;
        }
        for subnet in state.written.keys().filter(|subnet| !state.wanted.contains_key(subnet)) {
            subnets.delete(&prefix(*subnet))?;
        }
        for (subnet, via) in
            state.wanted.iter().filter(|(subnet, via)| state.written.get(subnet) != Some(via))
        {
            let node = if via.decapsulates { via.address } else { NO_NODE };
            subnets.put(&prefix(*subnet), &node.octets())?;
        }
        for gone in before.difference(&now) {
            senders.delete(&gone.octets())?;
        }
        state.written = state.wanted.clone();
        state.is_unknown = false;
        Ok(())
    }

    fn map(&self, name: &str) -> Result<&Map, BpfError> {
        self.maps.get(name).ok_or(BpfError::Object("a map of the backend udp is missing"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic the maps are compared entry by entry.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn addresses(subnets: &BTreeMap<Ipv4Net, Via>) -> BTreeSet<Ipv4Addr> {
    subnets.values().map(|via| via.address).collect()
}

/// `struct subnet` of the C file.
fn prefix(subnet: Ipv4Net) -> Vec<u8> {
    let bits = u32::from(subnet.prefix_len());
    [bits.to_ne_bytes(), subnet.network().octets()].concat()
}

// === impl End ===

impl End {
    fn encode(&self, uplink: u32) -> Vec<u8> {
        let numbers = [uplink, self.device, self.mtu_bytes].map(u32::to_ne_bytes);
        [&self.local.octets(), numbers.as_flattened(), &self.port.to_be_bytes(), &[0; 2]].concat()
    }
}

#[cfg(test)]
mod tests {
    use russet_linux::bpf::Packet;
    use russet_testkit::in_new_netns;

    use super::super::packet::{set_header_checksum, step_ttl};
    use super::*;

    #[test]
    fn keys_and_values_have_the_bytes_of_the_c_structures() {
        assert_eq!(
            prefix("10.5.7.9/24".parse().unwrap()),
            [&24_u32.to_ne_bytes()[..], &[10, 5, 7, 0]].concat()
        );
        let end = End { local: [192, 0, 2, 1].into(), device: 9, mtu_bytes: 1472, port: 8285 };
        let value = end.encode(2);
        assert_eq!((&value[..8], value[8]), (&[192, 0, 2, 1, 2, 0, 0, 0][..], 9));
        assert_eq!(value[12..], [0xc0, 5, 0, 0, 0x20, 0x5d, 0, 0]);
    }

    const LOOPBACK: u32 = 1;
    const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
    const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const ETHERNET_BYTES: usize = 14;
    const INNER_AT: usize = ETHERNET_BYTES + 28;
    const UNSPEC: i32 = -1;
    const REDIRECT: i32 = 7;

    /// The programs with their maps, and no link.
    fn loaded() -> FastPath {
        let fast_path = FastPath::load(LOOPBACK).unwrap();
        let end = End { local: OWN, device: LOOPBACK, mtu_bytes: 200, port: 8285 };
        fast_path.map("settings").unwrap().put(&ONLY, &end.encode(LOOPBACK)).unwrap();
        let mut state = State::default();
        state.wanted.insert("10.5.7.0/24".parse().unwrap(), PEER.into());
        fast_path.write(&mut state).unwrap();
        fast_path
    }

    /// A datagram with an inner UDP packet of so many bytes, from a node.
    fn frame(inner_bytes: u16) -> Vec<u8> {
        let ip = |bytes: u16, protocol, from: Ipv4Addr, to: Ipv4Addr| {
            let mut header =
                [[0x45, 0], bytes.to_be_bytes(), [0; 2], [0x40, 0], [9, protocol], [0; 2]].concat();
            header.extend([from.octets(), to.octets()].concat());
            set_header_checksum(&mut header);
            header
        };
        let udp = |port: u16, bytes: u16| [port, port, bytes, 0].map(u16::to_be_bytes).concat();
        let mut frame = [&[0; 12][..], &[8, 0]].concat();
        frame.extend(ip(inner_bytes + 28, 17, PEER, OWN));
        frame.extend(udp(8285, inner_bytes + 8));
        frame.extend(ip(inner_bytes, 17, [10, 5, 7, 2].into(), [10, 5, 1, 2].into()));
        frame.extend(udp(53, inner_bytes - 20));
        frame.extend((0..inner_bytes - 28).map(|number| number as u8));
        frame
    }

    fn receive(fast_path: &FastPath, frame: &[u8]) -> (i32, Vec<u8>) {
        let packet = Packet { frame, ifindex: LOOPBACK, ..Packet::default() };
        let ran = fast_path.receives.program().run(&packet).unwrap();
        (ran.verdict, ran.frame)
    }

    #[test]
    #[ignore = "kernel: BPF needs root"]
    fn a_datagram_of_a_node_becomes_its_inner_packet_with_a_decremented_ttl() {
        in_new_netns(|| {
            let fast_path = loaded();
            for inner_bytes in [28, 29, 60, 200] {
                let frame = frame(inner_bytes);
                let (verdict, out) = receive(&fast_path, &frame);
                assert_eq!(verdict, REDIRECT, "{inner_bytes}");
                let mut wanted = frame[INNER_AT..].to_vec();
                assert!(step_ttl(&mut wanted));
                assert_eq!(out[ETHERNET_BYTES..], wanted);
            }
            assert_eq!(fast_path.carried().unwrap()[1], Carried { packets: 4, bytes: 28 + 29 + 60 + 200 });
        });
    }

    /// What the threads refuse, and what only they carry, is left to them as it came.
    #[test]
    #[ignore = "kernel: BPF needs root"]
    fn datagrams_that_are_not_plain_are_left_to_the_threads_unchanged() {
        in_new_netns(|| {
            let fast_path = loaded();
            let good = frame(64);
            let is_left = |frame: &[u8], what: &str| {
                assert_eq!(receive(&fast_path, frame), (UNSPEC, frame.to_vec()), "{what}");
            };
            for end in ETHERNET_BYTES + 20..good.len() {
                is_left(&good[..end], &format!("cut off after {end} bytes"));
            }
            is_left(&[&good[..], &[0]].concat(), "a byte too many");
            is_left(&frame(201), "larger than the MTU");
            let outer = ETHERNET_BYTES;
            for (at, value, what) in [
                (12, 0x86, "another type"),
                (0, 2, "another machine's MAC"),
                (outer, 0x46, "outer options"),
                (outer, 0x65, "outer version"),
                (outer + 3, 91, "outer length"),
                (outer + 6, 0x20, "outer fragment"),
                (outer + 7, 1, "outer offset"),
                (outer + 9, 6, "outer protocol"),
                (outer + 15, 3, "a foreign sender"),
                (outer + 19, 2, "another destination"),
                (outer + 23, 0x5e, "another port"),
                (outer + 25, 7, "UDP length"),
                (INNER_AT, 0x46, "options"),
                (INNER_AT, 0x65, "version"),
                (INNER_AT + 2, 1, "length"),
                (INNER_AT + 6, 0x20, "fragment"),
                (INNER_AT + 7, 1, "offset"),
                (INNER_AT + 8, 1, "TTL 1"),
                (INNER_AT + 8, 0, "TTL 0"),
                (INNER_AT + 9, 132, "SCTP"),
            ] {
                let mut bad = good.clone();
                assert_ne!(bad[at], value, "{what}");
                bad[at] = value;
                is_left(&bad, what);
            }
            assert_eq!(fast_path.carried().unwrap()[1], Carried::default());
        });
    }
}
