//! Sets, chains and rules of the table; their number does not depend on that of policies. Pure.
//!
//! ```text
//! chain ends-forward { type filter hook forward priority filter + N; iifname "cali*" jump from-end }
//! chain ends-input   { type filter hook input priority filter + N; for IPv6 neighbour discovery and icmpv6 type { 130, 131, 132 } accept
//!                      ct direction reply accept; iifname "cali*" jump from-end }
//! chain from-end    { iif @ends return; goto denied-out }, or nothing while ends are not guarded
//! chain to-end      { oif @ends return; fib saddr type local return; ip6 saddr fe80::/10 return; goto denied-in }, likewise
//! chain postrouting { type filter hook postrouting priority filter + N; oifname "cali*" jump to-end; ct mark & MASK == @fresh accept
//!                     meta nfproto ipv4 goto forwarded4; meta nfproto ipv6 goto forwarded6 }
//! chain input       { type filter hook input priority 101 + N; the same, with local4 and local6 }
//! chain forwarded4  {
//!     ip saddr != @pods4 ip daddr != @pods4 accept
//!     ct state related accept; ct state invalid counter drop; ct direction reply goto reply4
//!     ip saddr @pods4 jump out4; meta l4proto @sampled ip saddr @pods4 jump sampled-out
//!     ip daddr @pods4 jump in4; meta l4proto @sampled ip daddr @pods4 jump sampled-in; goto judged4
//! }
//! chain reply4      { meta l4proto icmp accept; ip daddr @pods4 jump rout4; ip saddr @pods4 jump rin4; goto judged4 }
//! chain local4      { for IPv6 icmpv6 type { 130, 131, 132 } accept; ip saddr != @pods4 accept; ct direction reply accept; ct state ... ; jump out4; sampled as above; goto judged4 }
//! chain in4         {
//!     fib saddr type local return
//!     ip daddr @held4 goto denied-in
//!     meta priority set none; meta priority set ip saddr map @ids4
//!     meta priority none meta priority set ip saddr map @nets4
//!     meta priority none meta priority set 0:1
//!     meta priority set meta priority . ip daddr . meta l4proto . th dport map @in4; meta priority vmap @words-in
//!     the same with in4r, in4p and in4d
//!     meta priority & ffff:8000 == ffff:8000 goto in4-sources
//!     the same with in4e
//!     meta priority ffff:2 goto denied-in, and so for the other words that deny
//! }
//! chain in4-sources { meta priority set meta priority . th sport map @sources4; meta priority vmap @words-in; goto denied-in }
//! chain denied-in   { ct direction reply goto denied-reply-in
//!                     limit rate 100/second burst 100 packets counter log prefix "russet|D|in" group 7273 snaplen 96; counter drop }
//! chain sampled-in  { limit rate 100/second burst 100 packets counter log prefix "russet|S|in" group 7273 snaplen 96 }
//! chain judged4     { restore the priority; jump epoch; accept }
//! chain epoch       { ct mark set ct mark & ~MASK | EPOCH }
//! ```
//!
//! What is for a process of the node is judged at the end of the hook input: where kube-proxy uses IPVS, the node has the
//! addresses of Services itself, and IPVS takes their packets away there and sends them on from output.
//!
//! The set `ends` has the indexes of the host ends of Calico's plugins whose pods are decided; what comes from or goes to
//! another one is denied, because such a plugin asks no agent before it wires a pod. An index, unlike a name, is that of one
//! interface only. Where packets enter, no interface is known at postrouting on kernels before 5.7, and IPVS takes away
//! what it sends on: hence the hooks forward and input.
//!
//! Behind postrouting's address translation of destinations and before that of sources, a request
//! has its real client and its real server, and so has a reply. The chains `rout4` and `rin4` judge
//! a reply by the decision for its request. nft cannot list rules which look up what they loaded
//! from a map, so identities and words travel in the packet's priority, which the last chain sets to
//! what the kernel's forwarding sets it to.

use russet_addr::Family;
use russet_nft::{
    Chain, ChainKind, Element, Field, Hook, KeyPart, KeyType, L4, Rule, Set, Table, Verdict, ct_state,
    priority,
};
use russet_verdict::ir::Direction;
use russet_verdict::table::{Identity, Word};

use super::epoch::{Epoch, MarkBits};
use super::words;
use crate::priority::restored;
use crate::ruleset::{CALICO_PREFIX, LINK_LOCAL};
use crate::table_spec::TableSpec;

/// The table's name in commands and errors.
pub(super) const DECISIONS_TABLE: &str = "inet russet-decisions";
/// The group of `nfnetlink_log` that gets packets that are denied, and those whose decision says so.
pub const LOG_GROUP: u16 = 7273;
/// The most packets a second that a direction logs, for each of the reasons.
pub const LOGGED_PER_S: u64 = 100;
/// How many it logs at once.
pub const LOGGED_BURST: u32 = 100;
/// The bytes of a packet that are logged: the headers.
const LOGGED_BYTES: u32 = 96;

/// A set or map of one family, whose elements are what is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Local addresses that are judged.
    Pods,
    /// Those of them that are denied whatever the maps hold.
    Held,
    /// Addresses and their identities.
    Ids,
    /// Prefixes and their identities.
    Nets,
    /// Source ports and what is decided for them, by lists ([`super::lists`]).
    Sources,
    Ports(Direction),
    Ranges(Direction),
    Protocols(Direction),
    All(Direction),
    Defaults(Direction),
}

/// What becomes of a packet that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logged {
    Denied,
    DeniedReply,
    /// It passes, and a rule asks for the log.
    Allowed,
    /// It passes this end, while connections that pass are sampled.
    Sampled,
}

/// What may differ between two tables of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub epoch: Epoch,
    pub bits: MarkBits,
    /// Whether forwarding sets the priority by the type of service
    /// (`net.ipv4.ip_forward_update_priority`).
    pub priority_by_tos: bool,
    /// Of the chains that the kernel calls; see [`next_priority`].
    pub priority: i32,
    /// Whether new connections that pass are logged.
    pub samples: bool,
    /// Whether the host ends of Calico's plugins carry something only if they are in the set.
    pub guards_ends: bool,
}

pub(super) const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];
/// Where the epoch is written.
pub(super) const EPOCH_CHAIN: &str = "epoch";
const FRESH: &str = "fresh";
const PORTED: &str = "ported";
const ENDS: &str = "ends";
/// The chains of what comes from, and goes to, the host ends of Calico's plugins.
pub(super) const ENDS_CHAINS: [&str; 2] = ["from-end", "to-end"];
/// Queries, reports and ends of multicast listeners of IPv6.
const LISTENERS: [u8; 3] = [130, 131, 132];
/// The protocols whose new connections are logged when they pass; empty while nothing asks for them.
const SAMPLED: &str = "sampled";
/// The priorities that the base chains may have: before the translation of sources.
pub(super) const CHAIN_PRIORITIES: std::ops::Range<i32> = priority::FILTER..priority::SRCNAT;
/// How much later the chain of the hook input is called: behind IPVS (`NF_IP_PRI_NAT_SRC` - 2 and - 1). What IPVS takes
/// away has its real server at postrouting, and is judged there; what it leaves is for the node, whatever the address.
const BEHIND_IPVS: i32 = priority::SRCNAT + 1;
/// The latest priority of that chain.
pub(crate) const INPUT_PRIORITY_MAX: i32 = CHAIN_PRIORITIES.end - 1 + BEHIND_IPVS;

// === impl Place ===

impl Place {
    pub const EACH: [Self; 15] = {
        use Direction::{Egress, Ingress};
        [
            Self::Pods,
            Self::Held,
            Self::Ids,
            Self::Nets,
            Self::Sources,
            Self::Ports(Ingress),
            Self::Ranges(Ingress),
            Self::Protocols(Ingress),
            Self::All(Ingress),
            Self::Defaults(Ingress),
            Self::Ports(Egress),
            Self::Ranges(Egress),
            Self::Protocols(Egress),
            Self::All(Egress),
            Self::Defaults(Egress),
        ]
    };

    fn name(self, family: Family) -> String {
        let (text, suffix) = match self {
            Self::Pods => ("pods", ""),
            Self::Held => ("held", ""),
            Self::Ids => ("ids", ""),
            Self::Nets => ("nets", ""),
            Self::Sources => ("sources", ""),
            Self::Ports(direction) => (word_of(direction), ""),
            Self::Ranges(direction) => (word_of(direction), "r"),
            Self::Protocols(direction) => (word_of(direction), "p"),
            Self::All(direction) => (word_of(direction), "d"),
            Self::Defaults(direction) => (word_of(direction), "e"),
        };
        format!("{text}{}{suffix}", digit(family))
    }

    pub fn set(self, family: Family) -> Set {
        use KeyType::{ClassId, InetProto, InetService};
        let (table, name, address) = (table(), self.name(family), KeyType::address(family));
        match self {
            Self::Pods | Self::Held => Set::new(&table, name, [address]),
            Self::Ids | Self::Defaults(_) => Set::map(&table, name, [address], ClassId),
            Self::Nets => Set::map(&table, name, [address], ClassId).interval(),
            Self::Sources => Set::map(&table, name, [ClassId, InetService], ClassId).interval(),
            Self::Ports(_) => Set::map(&table, name, [ClassId, address, InetProto, InetService], ClassId),
            Self::Ranges(_) => {
                Set::map(&table, name, [ClassId, address, InetProto, InetService], ClassId).interval()
            }
            Self::Protocols(_) => Set::map(&table, name, [ClassId, address, InetProto], ClassId),
            Self::All(_) => Set::map(&table, name, [ClassId, address], ClassId),
        }
    }
}

/// The table of decisions.
pub fn table() -> Table {
    Table::inet("russet-decisions")
}

/// The table as it should be, besides elements.
pub(super) fn spec(shape: Shape) -> TableSpec {
    let decided = Family::BOTH.into_iter().flat_map(|family| Place::EACH.map(|place| place.set(family)));
    TableSpec {
        table: table(),
        sets: decided.chain(constants(shape).into_iter().map(|(set, _)| set)).chain([ends_set()]).collect(),
        chains: chains(shape),
        rules: rules(shape),
        unknown_rules: None,
        obsolete_chains: &[],
        disarms: false,
    }
}

/// The sets whose elements do not depend on decisions, with their elements.
pub(super) fn constants(shape: Shape) -> Vec<(Set, Vec<Element>)> {
    let ported = [L4::Tcp as u8, L4::Udp as u8, L4::Sctp as u8, 136];
    let ported = ported.map(|number| Element::new(KeyPart::protocol(number))).to_vec();
    let mut all = vec![
        (fresh(), vec![fresh_element(shape)]),
        (Set::new(&table(), PORTED, [KeyType::InetProto]), ported),
        (sampled(), if shape.samples { sampled_elements() } else { Vec::new() }),
    ];
    for direction in DIRECTIONS {
        let set = Set::verdict_map(&table(), words_of(direction), [KeyType::ClassId]);
        let element =
            |word: Word, verdict| Element::new(KeyPart::class_id(words::number(word))).verdict(verdict);
        let goto = |kind: &str| Verdict::goto(format!("{kind}-{}", word_of(direction)));
        let elements = [
            element(Word::ALLOW, Verdict::Return),
            element(Word::DENY, goto("denied")),
            element(Word { log: true, ..Word::ALLOW }, goto("log-allowed")),
            element(Word { log: true, ..Word::DENY }, goto("log-denied")),
            // The list of ports is not known.
            element(words::WIDE, goto("denied")),
        ];
        all.push((set, elements.to_vec()));
    }
    all
}

/// The set that says whether connections that pass are logged.
pub(super) fn sampled() -> Set {
    Set::new(&table(), SAMPLED, [KeyType::InetProto])
}

/// Its elements while they are.
pub(super) fn sampled_elements() -> Vec<Element> {
    let protocols = [L4::Tcp, L4::Udp, L4::Sctp, L4::Icmp, L4::IcmpV6];
    protocols.map(|protocol| Element::new(KeyPart::protocol(protocol as u8))).to_vec()
}

/// The set of the host ends of Calico's plugins whose pods are decided.
pub(super) fn ends_set() -> Set {
    Set::new(&table(), ENDS, [KeyType::IfIndex])
}

/// Its element for the index of an interface.
pub(super) fn end_element(index: u32) -> Element {
    Element::new(KeyPart::if_index(index))
}

/// The rules that deny what the set of ends does not have.
pub(super) fn ends_rules() -> Vec<Rule> {
    let [from, to] = ENDS_CHAINS;
    vec![
        rule(from).is_in(&[Field::IifIndex], ENDS).return_(),
        rule(from).goto("denied-out"),
        rule(to).is_in(&[Field::OifIndex], ENDS).return_(),
        // The node may always reach its own pods.
        rule(to).from_this_machine().return_(),
        rule(to).saddr(LINK_LOCAL).return_(),
        rule(to).goto("denied-in"),
    ]
}

/// The rules that lead there.
fn ends_entrances() -> Vec<Rule> {
    let [from, to] = ENDS_CHAINS;
    let [forward, input] = ["ends-forward", "ends-input"];
    let mut rules = vec![rule(forward).iif_prefix(CALICO_PREFIX).jump(from)];
    rules.push(rule(input).neighbour_discovery().accept());
    rules.extend(LISTENERS.map(|kind| rule(input).icmpv6_type(kind).accept()));
    rules.push(rule(input).ct_reply().accept());
    rules.push(rule(input).iif_prefix(CALICO_PREFIX).jump(from));
    rules.push(rule("postrouting").oif_prefix(CALICO_PREFIX).jump(to));
    rules
}

/// The set of the epoch in force.
pub(super) fn fresh() -> Set {
    Set::new(&table(), FRESH, [KeyType::Mark])
}

pub(super) fn fresh_element(shape: Shape) -> Element {
    Element::new(KeyPart::mark(shape.bits.mark(shape.epoch)))
}

/// The rule that writes the epoch.
pub(super) fn epoch_rule(shape: Shape) -> Rule {
    rule(EPOCH_CHAIN).set_ct_mark(shape.bits.mark(shape.epoch), shape.bits.mask())
}

/// The priority of chains that are created in the transaction that deletes those of priority `old`:
/// packets under way have to meet the new ones last. Chains of the same priority are called in the
/// opposite order, and a packet passed both: the new one before the commit, when it had no rules, and
/// the old one after it, when it had none any more (seen with Linux 6.18 in a flood of packets, one
/// in some ten replacements). Only at the end of the range this cannot be avoided.
pub(super) fn next_priority(old: i32) -> i32 {
    Some(old + 1).filter(|next| CHAIN_PRIORITIES.contains(next)).unwrap_or(CHAIN_PRIORITIES.start)
}

fn chains(shape: Shape) -> Vec<Chain> {
    let base = |name, hook, priority| Chain::base(&table(), name, ChainKind::Filter, hook, priority);
    let mut names = vec![EPOCH_CHAIN.to_owned()];
    names.extend(ENDS_CHAINS.map(str::to_owned));
    for direction in DIRECTIONS {
        names.extend(
            denying_chains(direction)
                .into_iter()
                .chain([format!("log-allowed-{}", word_of(direction)), sampling_chain(direction)]),
        );
    }
    for family in Family::BOTH {
        let judges = ["in", "out", "rin", "rout"].map(|it| of(it, family));
        names.extend(judges.each_ref().map(|judge| by_source(judge)));
        names.extend(judges);
        names.extend(["judged", "reply", "forwarded", "local"].map(|it| of(it, family)));
    }
    let regular = names.into_iter().map(|name| Chain::new(&table(), name));
    let base = [
        base("ends-forward", Hook::Forward, shape.priority),
        base("ends-input", Hook::Input, shape.priority),
        base("postrouting", Hook::Postrouting, shape.priority),
        base("input", Hook::Input, shape.priority + BEHIND_IPVS),
    ];
    regular.chain(base).collect()
}

fn rules(shape: Shape) -> Vec<Rule> {
    let mut rules = vec![epoch_rule(shape)];
    rules.extend(ends_entrances());
    rules.extend(shape.guards_ends.then(ends_rules).into_iter().flatten());
    for (hook, chain) in [("postrouting", "forwarded"), ("input", "local")] {
        rules.push(rule(hook).ct_mark_in(shape.bits.mask(), FRESH).accept());
        rules.extend(Family::BOTH.map(|family| rule(hook).family(family).goto(of(chain, family))));
    }
    for direction in DIRECTIONS {
        rules.extend(ends(direction));
    }
    for family in Family::BOTH {
        rules.extend(judged(family, shape));
        for direction in DIRECTIONS {
            rules.extend(judge(direction, false, family));
            rules.extend(judge(direction, true, family));
        }
        rules.extend(entrances(family));
    }
    rules
}

/// What becomes of a packet whose word says more than that it passes. What is denied is logged, and what
/// a rule asks to log has a limit of its own, so that it is seen in a flood of the former. The
/// difference of a chain's counters is what the limit suppressed.
fn ends(direction: Direction) -> Vec<Rule> {
    let word = word_of(direction);
    let log = |chain: &str, logged| limited_log(rule(chain), log_prefix(logged, direction));
    let [denied, asked, replies] = denying_chains(direction);
    let mut rules = Vec::new();
    for (chain, logged) in
        [(&denied, Logged::Denied), (&asked, Logged::Denied), (&replies, Logged::DeniedReply)]
    {
        if logged != Logged::DeniedReply {
            rules.push(rule(chain).ct_reply().goto(&replies));
        }
        rules.push(log(chain, logged));
        rules.push(rule(chain).counter().drop().comment(format!("no policy allows it, {word}")));
    }
    rules.push(log(&format!("log-allowed-{word}"), Logged::Allowed));
    rules.push(log(&sampling_chain(direction), Logged::Sampled));
    rules
}

/// Logs a packet, as far as the limit allows. The counter has those that were logged.
pub(crate) fn limited_log(rule: Rule, prefix: String) -> Rule {
    let limited = rule.limit_with_burst(LOGGED_PER_S, LOGGED_BURST).counter();
    limited.log_to(prefix, LOG_GROUP, Some(LOGGED_BYTES))
}

/// The chains that log and drop: packets, those that a rule asks to log, and replies, whose ends are
/// those of their requests the other way round.
pub(super) fn denying_chains(direction: Direction) -> [String; 3] {
    ["denied", "log-denied", "denied-reply"].map(|it| format!("{it}-{}", word_of(direction)))
}

fn sampling_chain(direction: Direction) -> String {
    format!("sampled-{}", word_of(direction))
}

/// The text by which a logged packet is known again: no policy's name is in the kernel.
pub(super) fn log_prefix(logged: Logged, direction: Direction) -> String {
    let (letter, end) = match logged {
        Logged::Denied => ('D', ""),
        Logged::DeniedReply => ('D', "|reply"),
        Logged::Allowed => ('A', ""),
        Logged::Sampled => ('S', ""),
    };
    format!("russet|{letter}|{}{end}", word_of(direction))
}

/// The chains that a packet enters whose connection was not judged in this epoch.
fn entrances(family: Family) -> Vec<Rule> {
    let name = |chain| of(chain, family);
    let [forwarded, local, reply] = ["forwarded", "local", "reply"].map(name);
    let pods = Place::Pods.name(family);
    let to = |rule: Rule, chain| rule.daddr_in(family, &*pods).jump(of(chain, family));
    let from = |rule: Rule, chain| rule.saddr_in(family, &*pods).jump(of(chain, family));
    let is_sampled = |chain| rule(chain).is_in(&[Field::L4Proto], SAMPLED);
    let sample_from =
        |chain| is_sampled(chain).saddr_in(family, &*pods).jump(sampling_chain(Direction::Egress));
    let mut rules = Vec::new();
    if family == Family::V6 {
        // Else every connection ends when an entry of the neighbour cache expires.
        rules.extend([&forwarded, &local].map(|chain| rule(chain).neighbour_discovery().accept()));
        // The node is the multicast router of its pods, as with Felix.
        rules.extend(LISTENERS.map(|kind| rule(&local).icmpv6_type(kind).accept()));
    }
    rules.extend([
        rule(&forwarded).saddr_not_in(family, &*pods).daddr_not_in(family, &*pods).accept(),
        rule(&local).saddr_not_in(family, &*pods).accept(),
    ]);
    for chain in [&forwarded, &local] {
        rules.push(rule(chain).ct_state(ct_state::RELATED).accept());
        rules.push(rule(chain).ct_state(ct_state::INVALID).counter().drop().comment("not of a connection"));
    }
    let icmp = if family == Family::V4 { L4::Icmp } else { L4::IcmpV6 };
    rules.extend([
        rule(&forwarded).ct_reply().goto(&reply),
        from(rule(&forwarded), "out"),
        sample_from(&forwarded),
        to(rule(&forwarded), "in"),
        is_sampled(&forwarded).daddr_in(family, &*pods).jump(sampling_chain(Direction::Ingress)),
        rule(&forwarded).goto(name("judged")),
        // Their type and code are not those of the request.
        rule(&reply).protocol(icmp).accept(),
        to(rule(&reply), "rout"),
        from(rule(&reply), "rin"),
        rule(&reply).goto(name("judged")),
        // The node may always reach its own pods.
        rule(&local).ct_reply().accept(),
        rule(&local).jump(name("out")),
        sample_from(&local),
        rule(&local).goto(name("judged")),
    ]);
    rules
}

/// The chain that looks up the decision for a request, or for the request that a reply answers.
fn judge(direction: Direction, reply: bool, family: Family) -> Vec<Rule> {
    let word = word_of(direction);
    let chain = of(&format!("{}{word}", if reply { "r" } else { "" }), family);
    let is_to_local = (direction == Direction::Ingress) != reply;
    let (source, destination) = (Field::Saddr(family), Field::Daddr(family));
    let (peer, local) = if is_to_local { (source, destination) } else { (destination, source) };
    let unknown = || rule(&chain).priority(0);
    let by = |rule: Rule, place: Place, key: &[Field]| rule.set_priority_by(key, &place.set(family));
    let mut rules = Vec::new();
    if direction == Direction::Ingress && !reply {
        rules.push(rule(&chain).from_this_machine().return_());
        if family == Family::V6 {
            // A router does not forward these, so they are the node's own.
            rules.push(rule(&chain).saddr(LINK_LOCAL).return_());
        }
    }
    rules.extend([
        rule(&chain).is_in(&[local], Place::Held.name(family)).goto(format!("denied-{word}")),
        rule(&chain).set_priority(0),
        by(rule(&chain), Place::Ids, &[peer]),
        by(unknown(), Place::Nets, &[peer]),
        unknown().set_priority(Identity::WORLD.number()),
    ]);
    let decide = || rule(&chain).vmap(&[Field::Priority], words_of(direction));
    let ported = || rule(&chain).is_in(&[Field::L4Proto], PORTED);
    let key = |port| [Field::Priority, local, Field::L4Proto, port];
    for place in [Place::Ports(direction), Place::Ranges(direction)] {
        rules.push(by(ported(), place, &key(if reply { Field::Sport } else { Field::Dport })));
        if !reply {
            // Type and code of ICMP are where others have the source port.
            let others = rule(&chain).is_not_in(&[Field::L4Proto], PORTED);
            rules.push(by(others, place, &key(Field::Sport)));
        }
        rules.push(decide());
    }
    let look_up = |place, key: &[Field]| [by(rule(&chain), place, key), decide()];
    rules.extend(look_up(Place::Protocols(direction), &[Field::Priority, local, Field::L4Proto]));
    rules.extend(look_up(Place::All(direction), &[Field::Priority, local]));
    // Before the default, which counts whatever the priority is.
    rules.push(rule(&chain).priority_has(words::LISTS).goto(by_source(&chain)));
    rules.extend(look_up(Place::Defaults(direction), &[local]));
    // While the map of words is created anew, or is damaged, it has no verdict for what is denied.
    let refusals = [Word::DENY, Word { log: true, ..Word::DENY }, words::WIDE].map(words::number);
    rules.extend(refusals.map(|number| rule(&chain).priority(number).goto(format!("denied-{word}"))));
    rules.extend(judge_source(&chain, direction, reply, family));
    rules
}

/// The chain that looks up the decision for the port of the source, or, in a reply, of the request's.
/// What is not there is denied: so is everything while the map is damaged.
fn judge_source(judge: &str, direction: Direction, reply: bool, family: Family) -> [Rule; 3] {
    let chain = by_source(judge);
    let key = [Field::Priority, if reply { Field::Dport } else { Field::Sport }];
    [
        rule(&chain).set_priority_by(&key, &Place::Sources.set(family)),
        rule(&chain).vmap(&[Field::Priority], words_of(direction)),
        rule(&chain).goto(format!("denied-{}", word_of(direction))),
    ]
}

fn by_source(judge: &str) -> String {
    format!("{judge}-sources")
}

/// The chain of packets that pass: their connection need not be judged again in this epoch.
fn judged(family: Family, shape: Shape) -> Vec<Rule> {
    let chain = of("judged", family);
    let mut rules = restored(|| rule(&chain), family, shape.priority_by_tos);
    rules.extend([rule(&chain).jump(EPOCH_CHAIN), rule(&chain).accept()]);
    rules
}

fn rule(chain: &str) -> Rule {
    Rule::in_chain(&table(), chain)
}

/// A name with the family's digit.
pub(crate) fn of(name: &str, family: Family) -> String {
    format!("{name}{}", digit(family))
}

const fn digit(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

const fn word_of(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    }
}

const fn words_of(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "words-in",
        Direction::Egress => "words-out",
    }
}
