//! The tables of legacy iptables, which nf_tables does not list, in the form in which the kernel gives
//! them: linux/netfilter/x_tables.h, linux/netfilter_ipv4/ip_tables.h and
//! linux/netfilter_ipv6/ip6_tables.h, for 64-bit machines. Only tables that this network namespace has
//! already are read: to ask for another one would make the kernel create it.

use std::collections::BTreeMap;
use std::io;

use russet_addr::Family;

use super::{IFNAMSIZ, IPPROTO_UDP, Step, UdpPacket, extension_step};
use crate::NetlinkError;
use crate::chain::{Hook, Policy};
use crate::sys;
use crate::table::{Table, TableFamily};
use crate::verdict::Verdict;

/// The rules of one table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LegacyTable {
    pub(super) table: Table,
    pub(super) bases: Vec<LegacyBase>,
    /// The rules of all chains, as they concern the packet.
    pub(super) chains: BTreeMap<String, Vec<Vec<Step>>>,
}

/// A built-in chain.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LegacyBase {
    pub(super) name: &'static str,
    pub(super) hook: Hook,
    pub(super) policy: Policy,
}

/// The offsets in a rule (`struct ipt_entry`, `struct ip6t_entry`) of one family.
struct Layout {
    /// The names of the tables of the thread's network namespace, one per line.
    names: &'static str,
    domain: i32,
    /// The level of the socket options.
    level: i32,
    /// The masks of the source and of the destination address.
    masks: std::ops::Range<usize>,
    /// The names of both interfaces, followed by their masks.
    interfaces: usize,
    protocol: usize,
    flags: usize,
    /// Flag of a rule that matches something that is not evaluated.
    unknown: u8,
    goto: u8,
    inverted: usize,
    /// The offset of the target, followed by that of the next rule.
    target: usize,
    /// The matches begin here.
    header: usize,
}

const V4: Layout = Layout {
    names: "/proc/thread-self/net/ip_tables_names",
    domain: libc::AF_INET,
    level: libc::SOL_IP,
    masks: 8..16,
    interfaces: 16,
    protocol: 80,
    flags: 82,
    // IPT_F_FRAG
    unknown: 1,
    goto: 2,
    inverted: 83,
    target: 88,
    header: 112,
};
const V6: Layout = Layout {
    names: "/proc/thread-self/net/ip6_tables_names",
    domain: libc::AF_INET6,
    level: libc::SOL_IPV6,
    masks: 32..64,
    interfaces: 64,
    protocol: 128,
    flags: 131,
    // IP6T_F_TOS
    unknown: 2,
    goto: 4,
    inverted: 132,
    target: 140,
    header: 168,
};

/// Untracked packets, such as the tunnel's, do not pass through it.
const NAT: &str = "nat";
/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`; ip6_tables has the same numbers.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// `XT_TABLE_MAXNAMELEN`
const NAME_BYTES: usize = 32;
/// The sizes of `struct ipt_getinfo` and of `struct ipt_get_entries` without the rules.
const INFO_BYTES: usize = 84;
const ENTRIES_HEADER_BYTES: usize = 40;
/// A table of 100,000 rules; larger ones are not read every ten seconds.
const TABLE_MAX_BYTES: usize = 32 << 20;
/// How often a table is read again that was changed between the two calls.
const TRIES: u32 = 8;
/// The built-in chains, by the kernel's numbers of their hooks.
const BASES: [(&str, Hook); 5] = [
    ("PREROUTING", Hook::Prerouting),
    ("INPUT", Hook::Input),
    ("FORWARD", Hook::Forward),
    ("OUTPUT", Hook::Output),
    ("POSTROUTING", Hook::Postrouting),
];
/// The target of the entry before a user's chain, which holds the chain's name.
const HEAD: &str = "ERROR";
/// `struct xt_entry_match`, `struct xt_entry_target`: size, name, revision.
const EXTENSION_BYTES: usize = 32;
/// The standard target's verdicts. One that is not negative is the offset of another rule.
const XT_DROP: i32 = -1;
const XT_ACCEPT: i32 = -2;
const XT_RETURN: i32 = -5;
/// Inverted matches: incoming and outgoing interface, source and destination address, protocol.
const INV_INTERFACES: [u8; 2] = [0x01, 0x02];
const INV_ADDRESSES: u8 = 0x18;
const INV_PROTOCOL: u8 = 0x40;

/// The tables of the packet's family in the calling thread's network namespace.
pub(super) fn tables(packet: &UdpPacket) -> Result<Vec<LegacyTable>, NetlinkError> {
    let (layout, family) = match packet.family {
        Family::V4 => (V4, TableFamily::Ip),
        Family::V6 => (V6, TableFamily::Ip6),
    };
    // The file is missing where the kernel has no legacy iptables, or its module is not loaded.
    let names = std::fs::read_to_string(layout.names).unwrap_or_default();
    let names = names.lines().filter(|name| *name != NAT);
    let table = |name: &str| {
        let table = Table::new(family, name);
        let operation = || format!("read table {table} of legacy iptables");
        let read = read(name, &layout).map_err(|source| NetlinkError::Io { operation: operation(), source });
        let (info, rules) = read?;
        let decoded = layout.decode(&info, &rules, packet);
        let (bases, chains) = decoded.ok_or_else(|| NetlinkError::Malformed { operation: operation() })?;
        Ok(LegacyTable { table, bases, chains })
    };
    names.map(table).collect()
}

/// `struct ipt_getinfo` of a table, and its rules.
fn read(name: &str, layout: &Layout) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let socket = sys::datagram_socket(layout.domain)?;
    let mut tries = 0;
    loop {
        tries += 1;
        let mut info = named(name, INFO_BYTES);
        sys::get_option(&socket, layout.level, GET_INFO, &mut info)?;
        let size = number(&info, INFO_BYTES - 4).unwrap_or_default();
        let size_bytes = usize::try_from(size).unwrap_or(usize::MAX);
        if size_bytes > TABLE_MAX_BYTES {
            return Err(io::Error::other(format!("it has more than {TABLE_MAX_BYTES} bytes")));
        }
        let mut entries = named(name, ENTRIES_HEADER_BYTES + size_bytes);
        if let Some(place) = entries.get_mut(NAME_BYTES..NAME_BYTES + 4) {
            place.copy_from_slice(&size.to_ne_bytes());
        }
        match sys::get_option(&socket, layout.level, GET_ENTRIES, &mut entries) {
            // The table was replaced by one of another size.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries < TRIES => {}
            other => return other.map(|()| (info, entries.split_off(ENTRIES_HEADER_BYTES))),
        }
    }
}

/// A value that begins with the table's name.
fn named(name: &str, bytes: usize) -> Vec<u8> {
    // The last byte of the name's place stays zero.
    let mut value: Vec<u8> = name.bytes().take(NAME_BYTES - 1).collect();
    value.resize(bytes, 0);
    value
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

/// The built-in chains, and the rules of all chains.
type Decoded = (Vec<LegacyBase>, BTreeMap<String, Vec<Vec<Step>>>);

// === impl Layout ===

impl Layout {
    /// `None` if the bytes are not a table.
    fn decode(&self, info: &[u8], rules: &[u8], packet: &UdpPacket) -> Option<Decoded> {
        let rules = self.split(rules)?;
        let heads = rules.iter().filter_map(|(at, rule)| Some((at + rule.len(), self.head(rule)?)));
        let heads: BTreeMap<usize, String> = heads.collect();
        let (mut bases, mut chains) = (Vec::new(), BTreeMap::<String, Vec<Vec<Step>>>::new());
        let mut chain: Option<String> = None;
        for (at, rule) in &rules {
            let begun = BASES.iter().enumerate().find(|(hook, _)| hook_place(info, *hook, 36) == Some(*at));
            if let Some(name) = begun.map(|(_, (name, _))| *name).or(heads.get(at).map(String::as_str)) {
                chains.insert(name.to_owned(), Vec::new());
                chain = Some(name.to_owned());
            }
            // The last rule of a built-in chain is its policy.
            let ended = BASES.iter().enumerate().find(|(hook, _)| hook_place(info, *hook, 56) == Some(*at));
            if let Some((_, (name, hook))) = ended {
                let drops = self.verdict(rule) == Some(XT_DROP);
                let policy = if drops { Policy::Drop } else { Policy::Accept };
                bases.push(LegacyBase { name, hook: *hook, policy });
                chain = None;
            }
            if self.head(rule).is_some() {
                chain = None;
            }
            if let Some(rules) = chain.as_ref().and_then(|chain| chains.get_mut(chain)) {
                rules.push(self.steps(rule, at + rule.len(), &heads, packet)?);
            }
        }
        Some((bases, chains))
    }

    /// The rules with their offsets.
    fn split<'a>(&self, mut rest: &'a [u8]) -> Option<Vec<(usize, &'a [u8])>> {
        let (mut rules, mut at) = (Vec::new(), 0);
        while !rest.is_empty() {
            let length = short(rest, self.target + 2)?;
            // Every rule has a target, so this is never 0.
            let (rule, behind) = rest.split_at_checked(length.max(self.header))?;
            rules.push((at, rule));
            at += rule.len();
            rest = behind;
        }
        Some(rules)
    }

    fn target_of<'a>(&self, rule: &'a [u8]) -> Option<&'a [u8]> {
        rule.get(short(rule, self.target)?..)
    }

    /// The name of the chain that begins behind this entry.
    fn head(&self, rule: &[u8]) -> Option<String> {
        let target = self.target_of(rule)?;
        (extension_name(target)? == HEAD).then(|| text(target.get(EXTENSION_BYTES..).unwrap_or_default()))
    }

    /// The verdict of the standard target; `None` for another one.
    fn verdict(&self, rule: &[u8]) -> Option<i32> {
        let target = self.target_of(rule)?;
        let is_standard = extension_name(target)?.is_empty();
        is_standard.then(|| number(target, EXTENSION_BYTES))?.map(u32::cast_signed)
    }

    /// The parts of a rule; `next` is the offset of the rule behind it.
    fn steps(
        &self,
        rule: &[u8],
        next: usize,
        heads: &BTreeMap<usize, String>,
        packet: &UdpPacket,
    ) -> Option<Vec<Step>> {
        let mut steps = self.basics(rule, packet)?;
        let matches = rule.get(self.header..short(rule, self.target)?)?;
        let mut rest = matches;
        while !rest.is_empty() {
            let (extension, behind) = rest.split_at_checked(short(rest, 0)?.max(EXTENSION_BYTES))?;
            let data = extension.get(EXTENSION_BYTES..)?;
            steps.push(extension_step("match", &extension_name(extension)?, data, packet));
            rest = behind;
        }
        let goes = rule.get(self.flags)? & self.goto != 0;
        let may_accept = [Step::Unknown, Step::Decide(Verdict::Accept)];
        match self.verdict(rule) {
            Some(XT_DROP) => steps.push(Step::Decide(Verdict::Drop)),
            Some(XT_ACCEPT) => steps.push(Step::Decide(Verdict::Accept)),
            Some(XT_RETURN) => steps.push(Step::Decide(Verdict::Return)),
            Some(to) => match usize::try_from(to).ok().map(|to| (to == next, heads.get(&to))) {
                // A rule that only counts.
                Some((true, None)) => steps.push(Step::Nothing),
                Some((_, Some(chain))) if goes => steps.push(Step::Decide(Verdict::Goto(chain.clone()))),
                Some((_, Some(chain))) => steps.push(Step::Decide(Verdict::Jump(chain.clone()))),
                // A queue to a program.
                _ => steps.extend(may_accept),
            },
            None => {
                let target = self.target_of(rule)?;
                let data = target.get(EXTENSION_BYTES..)?;
                match extension_step("target", &extension_name(target)?, data, packet) {
                    Step::Unknown => steps.extend(may_accept),
                    known => steps.push(known),
                }
            }
        }
        Some(steps)
    }

    /// What a rule matches without an extension: addresses, interfaces, protocol.
    fn basics(&self, rule: &[u8], packet: &UdpPacket) -> Option<Vec<Step>> {
        let (flags, inverted) = (*rule.get(self.flags)?, *rule.get(self.inverted)?);
        let any_address = rule.get(self.masks.clone())?.iter().all(|byte| *byte == 0);
        let mut steps = Vec::new();
        if !any_address || inverted & INV_ADDRESSES != 0 || flags & self.unknown != 0 {
            steps.push(Step::Unknown);
        }
        for (index, incoming) in [true, false].into_iter().enumerate() {
            let place = |at: usize| rule.get(at..at + IFNAMSIZ);
            let wanted = place(self.interfaces + index * IFNAMSIZ)?;
            let mask = place(self.interfaces + (2 + index) * IFNAMSIZ)?;
            // At a hook of the other direction the packet has no such interface.
            let mut name =
                if packet.incoming == incoming { packet.interface.1.as_str() } else { "" }.to_owned();
            name.extend(std::iter::repeat_n('\0', IFNAMSIZ.saturating_sub(name.len())));
            let mut bytes = name.bytes().zip(wanted).zip(mask);
            let same = bytes.all(|((byte, wanted), mask)| (byte ^ wanted) & mask == 0);
            let is_inverted = INV_INTERFACES.get(index).is_some_and(|flag| inverted & flag != 0);
            steps.push(Step::Known { matches: same != is_inverted });
        }
        let protocol = short(rule, self.protocol)?;
        if protocol != 0 {
            let same = protocol == usize::from(IPPROTO_UDP);
            steps.push(Step::Known { matches: same != (inverted & INV_PROTOCOL != 0) });
        }
        Some(steps)
    }
}

/// Where the chain of a hook begins or ends, if the table has one.
fn hook_place(info: &[u8], hook: usize, list: usize) -> Option<usize> {
    let has = number(info, NAME_BYTES)? >> hook & 1 == 1;
    has.then(|| number(info, list + 4 * hook)).flatten().and_then(|at| usize::try_from(at).ok())
}

/// The name of a match or a target; the standard target has none.
fn extension_name(extension: &[u8]) -> Option<String> {
    Some(text(extension.get(2..EXTENSION_BYTES - 1)?))
}

/// Text up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(family: Family) -> UdpPacket {
        UdpPacket { family, port: 4789, interface: (7, "eth0".parse().unwrap()), incoming: true }
    }

    /// A rule of IPv4 with these addresses, interfaces and protocol in bytes that a test changes.
    fn rule(target: &str, data: &[u8]) -> Vec<u8> {
        let mut rule = vec![0; V4.header];
        let mut extension = vec![0; EXTENSION_BYTES];
        extension[2..2 + target.len()].copy_from_slice(target.as_bytes());
        extension.extend_from_slice(data);
        let length = rule.len() + extension.len();
        rule[V4.target..V4.target + 2].copy_from_slice(&u16::try_from(V4.header).unwrap().to_ne_bytes());
        rule[V4.target + 2..V4.target + 4].copy_from_slice(&u16::try_from(length).unwrap().to_ne_bytes());
        rule.extend(extension);
        rule
    }

    fn standard(verdict: i32) -> Vec<u8> {
        // Padded to 8 bytes.
        rule("", &[verdict.to_ne_bytes(), [0; 4]].concat())
    }

    /// `struct ipt_getinfo` of a table whose only built-in chain is INPUT.
    fn info(begin: usize, end: usize) -> Vec<u8> {
        let mut info = vec![0; INFO_BYTES];
        info[NAME_BYTES] = 2;
        info[40..44].copy_from_slice(&u32::try_from(begin).unwrap().to_ne_bytes());
        info[60..64].copy_from_slice(&u32::try_from(end).unwrap().to_ne_bytes());
        info
    }

    #[test]
    fn chains_begin_behind_their_names_and_a_built_in_chain_ends_with_its_policy() {
        let size = standard(0).len();
        let mut name = [0; 32];
        name[..5].copy_from_slice(b"guard");
        let head = rule(HEAD, &name);
        // INPUT: jump to guard, count; policy drop. guard: drop, return.
        let guard = 3 * size + head.len();
        let jump = i32::try_from(guard).unwrap();
        let count = i32::try_from(2 * size).unwrap();
        let verdicts = [
            standard(jump),
            standard(count),
            standard(XT_DROP),
            head,
            standard(XT_DROP),
            standard(XT_RETURN),
        ];
        let mut end = [0; 32];
        end[..5].copy_from_slice(HEAD.as_bytes());
        let table = [verdicts.concat(), rule(HEAD, &end)].concat();
        let (bases, chains) = V4.decode(&info(0, 2 * size), &table, &packet(Family::V4)).unwrap();
        assert_eq!(bases, [LegacyBase { name: "INPUT", hook: Hook::Input, policy: Policy::Drop }]);
        let last = |chain: &str| -> Vec<Step> {
            chains[chain].iter().map(|steps| steps.last().unwrap().clone()).collect()
        };
        assert_eq!(last("INPUT"), [Step::Decide(Verdict::Jump("guard".to_owned())), Step::Nothing]);
        assert_eq!(last("guard"), [Step::Decide(Verdict::Drop), Step::Decide(Verdict::Return)]);
    }

    #[test]
    fn a_table_that_is_cut_off_is_refused() {
        let table = [standard(XT_ACCEPT), standard(XT_ACCEPT)].concat();
        let decode = |bytes: &[u8]| V4.decode(&info(0, 0), bytes, &packet(Family::V4));
        assert!(decode(&table).is_some());
        assert!(decode(&table[..table.len() - 1]).is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(
            info in proptest::collection::vec(any::<u8>(), 0..100),
            mut rules in proptest::collection::vec(any::<u8>(), 0..600),
            length in 112_u16..300,
            target in 0_u16..300,
        ) {
            for (layout, family) in [(V4, Family::V4), (V6, Family::V6)] {
                let _ = layout.decode(&info, &rules, &packet(family));
                // With a length and a target that fit, the inner decoders are reached.
                if rules.len() > 300 {
                    rules[layout.target..layout.target + 2].copy_from_slice(&target.to_ne_bytes());
                    rules[layout.target + 2..layout.target + 4].copy_from_slice(&length.to_ne_bytes());
                    let rule = &rules[..usize::from(length)];
                    let _ = layout.decode(&info, rule, &packet(family));
                    let _ = layout.steps(rule, 0, &BTreeMap::new(), &packet(family));
                }
            }
        }
    }
}
