//! Sets, chains and rules of the table; their number does not depend on that of policies. Pure.
//!
//! ```text
//! chain raw-prerouting { type filter hook prerouting priority raw; what passes; meta l4proto @ported meta l4proto . th sport @failsafe-out accept; ...-for4, ...6
//!                     meta priority set none; meta nfproto ipv4 jump raw-in4; ...6
//!                     meta priority set none; meta nfproto ipv4 jump untracked-in4; ...6
//!                     meta priority WORD counter notrack, for the words that allow; meta priority set none }
//! chain raw-output  { type filter hook output priority raw; the same with raw-out4, untracked-out4 and failsafe-in; goto passed4 }
//! chain prerouting  { type filter hook prerouting priority mangle; what passes; tracked; ct state untracked goto prerouting-untracked4, ...6; jump pre-dnat4, ...6; goto cleared }
//! chain input       { type filter hook input priority filter; the same with input-untracked4 and input4 }
//! chain forward     { type filter hook forward priority filter; tracked; ct state untracked goto forward-untracked4, ...6
//!                     meta nfproto ipv4 jump forward-in4, ...6; meta nfproto ipv4 goto forward-rest4, ...6 }
//! chain forward-rest4 { jump forward-out4; goto passed4 }
//! chain postrouting { type filter hook postrouting priority filter; fib saddr type local goto output; ip6 saddr fe80::/10 goto output }
//! chain output      { what passes; tracked; ct state untracked goto output-untracked4, ...6; jump output4, ...6; goto passed4, ...6 }
//! what passes:
//!     meta l4proto @ported meta l4proto . th dport @failsafe-in accept
//!     meta l4proto @ported meta l4proto . th dport . ip saddr @failsafe-in-for4 accept; ...6
//!     meta l4proto @ported meta l4proto . th dport @tunnels accept; meta l4proto @encapsulations accept
//!     icmpv6 type 133-136 ip6 hoplimit 255 accept; icmpv6 type { 130, 131, 132, 143 } accept, one rule each
//! tracked:
//!     ct state related accept; ct direction reply accept
//! chain input-untracked4 {
//!     meta priority set none; jump untracked-in4; meta priority WORD goto cleared, for the words that allow
//!     jump input4; goto cleared
//! }
//! chain input4      {
//!     iifname { lo, russ*, cali* } return, one rule each
//!     meta priority set none; meta priority set iifname map @ways-input4
//!     meta priority none meta priority set 0:4; meta priority set meta priority map @others; meta priority 0:4 return
//!     meta priority 0:2 return
//!     goto judge4
//! }
//! chain untracked-in4 { the same, but goto find4 }
//! chain find4       {
//!     meta priority set meta priority . ip saddr map @sources4; the same with source-ranges4
//!     meta priority set meta priority . ip daddr map @destinations4; the same with destination-ranges4
//!     meta priority set meta priority . meta l4proto . th dport map @ports; the same with port-ranges, protocols and rest
//!     meta priority set meta priority . th sport map @source-ports
//! }
//! chain judge4      { jump find4; meta priority vmap @words; goto denied }
//! chain passed4     { restore the priority }
//! chain cleared     { meta priority set none }
//! chain denied      { limit rate 100/second burst 100 packets counter log prefix "russet|D|host" group 7273 snaplen 96; counter drop }
//! chain log-denied  { the same, for what a rule asks to log }
//! chain log-allowed { limit rate 100/second burst 100 packets counter log prefix "russet|A|host" group 7273 snaplen 96 }
//! chain from-pods   { type filter hook input priority 201; iifname { russ*, cali* } goto to-node, one rule each }
//! chain to-node     { meta priority set 0:3; meta priority vmap @endpoint-to-host; goto not-to-node }
//! chain may-to-node { meta priority set none; counter accept }
//! chain not-to-node {
//!     ct state related accept; ct direction reply accept
//!     icmpv6 type { 130-133, 135, 136 } accept, one rule each
//!     counter drop
//! }
//! ```
//!
//! Packets of the node's own processes are judged behind the translation of destinations, where the
//! interface is the one that they leave by. Each packet of the side that began a connection is judged, so
//! that no connection has to be remembered, and a change ends those that it forbids. A packet of a failsafe
//! port is accepted before anything else is asked. A state travels in the packet's priority, as
//! identities do in the table of decisions.
//!
//! What a rule of a policy with `doNotTrack` allows is not tracked, and later chains let it pass for the same
//! reason: they ask the same states again, because other programs leave packets untracked, too, and a mark
//! of the packet is theirs. Its answers are packets of their own.
//!
//! What pods send to the node is decided last: behind the policies of the pods, which are what
//! `russet flows` shows, and behind IPVS, which takes what is for a Service out of the same hook.

use russet_addr::{Family, IfName, IpNet};
use russet_nft::{
    Chain, ChainKind, Element, Field, Hook, KeyPart, KeyType, L4, Rule, Set, Table, Verdict, ct_state,
    priority,
};
use russet_verdict::felix::{Failsafe, FailsafePort};
use russet_verdict::hosts::{Entrance, Side, State};
use russet_verdict::ir::Direction;
use russet_verdict::table::Word;
use russet_verdict::world::EndpointToHost;

use crate::policies::{INPUT_PRIORITY_MAX, limited_log, of, words};
use crate::priority::restored;
use crate::ruleset::{CALICO_PREFIX, LINK_LOCAL, PREFIX};
use crate::table_spec::TableSpec;

/// The table's name in commands and errors.
pub(super) const HOSTS_TABLE: &str = "inet russet-hosts";

/// A set or map whose elements are what is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Interfaces and their first states.
    Ways(Entrance, Family),
    /// The first states of all other interfaces.
    Others,
    Exact(Side, Family),
    Ranges(Side, Family),
    Ports,
    PortRanges,
    Protocols,
    All,
    Sources,
}

/// What may differ between two tables of this version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    /// Whether forwarding sets the priority by the type of service
    /// (`net.ipv4.ip_forward_update_priority`).
    pub priority_by_tos: bool,
    /// The UDP ports of the node's tunnels.
    pub tunnels: Vec<u16>,
    /// What becomes of what pods send to the node.
    pub endpoint_to_host: EndpointToHost,
    /// The ports that no policy closes.
    pub failsafe: Failsafe,
}

const SIDES: [Side; 2] = [Side::Source, Side::Destination];
const PORTED: &str = "ported";
const TUNNELS: &str = "tunnels";
const ENCAPSULATIONS: &str = "encapsulations";
const FAILSAFE_IN: &str = "failsafe-in";
const FAILSAFE_OUT: &str = "failsafe-out";
const WORDS: &str = "words";
const DENIED: &str = "denied";
const LOG_DENIED: &str = "log-denied";
const LOG_ALLOWED: &str = "log-allowed";
/// The chains that drop. What a rule asks to log has a limit of its own.
pub(crate) const DENYING: [&str; 2] = [DENIED, LOG_DENIED];
/// The texts by which a logged packet is known again, with whether it passes.
const LOG_PREFIXES: [(&str, bool); 2] = [("russet|D|host", false), ("russet|A|host", true)];
const CLEARED: &str = "cleared";
const FORWARD_REST: &str = "forward-rest";
/// Chains that untracked packets leave: what allows them there, what they are judged by otherwise, and the
/// chain of those that pass.
const UNTRACKED: [(&str, Entrance, Entrance, &str); 4] = [
    ("prerouting", Entrance::UntrackedIn, Entrance::PreDnat, CLEARED),
    ("input", Entrance::UntrackedIn, Entrance::Input, CLEARED),
    ("forward", Entrance::UntrackedIn, Entrance::ForwardIn, FORWARD_REST),
    ("output", Entrance::UntrackedOut, Entrance::Output, "passed"),
];
const ENDPOINT_TO_HOST: &str = "endpoint-to-host";
const TO_NODE: &str = "to-node";
const MAY_TO_NODE: &str = "may-to-node";
const NOT_TO_NODE: &str = "not-to-node";
/// The key of the only element of the map that says what becomes of what pods send to the node.
const TO_NODE_KEY: u32 = 3;
/// Behind IPVS, and behind the decisions about what pods send, whatever the priority of that table.
const LAST: i32 = INPUT_PRIORITY_MAX + 1;
/// IP in IP and IPv6 in IP, whose other ends the overlay knows and guards.
const ENCAPSULATED: [u8; 2] = [4, 41];
const UDPLITE: u8 = 136;
/// Queries and reports of multicast listeners, without which switches lose neighbour discovery.
const LISTENERS: [u8; 4] = [130, 131, 132, 143];
/// The number that stands for all other interfaces in the first of the chains; each has its own.
const OTHERS: u32 = 4;

// === impl Place ===

impl Place {
    pub fn each() -> Vec<Self> {
        let mut all =
            vec![Self::Others, Self::Ports, Self::PortRanges, Self::Protocols, Self::All, Self::Sources];
        for family in Family::BOTH {
            all.extend(Entrance::EACH.map(|entrance| Self::Ways(entrance, family)));
            all.extend(
                SIDES.into_iter().flat_map(|side| [Self::Exact(side, family), Self::Ranges(side, family)]),
            );
        }
        all
    }

    fn name(self) -> String {
        match self {
            Self::Ways(entrance, family) => of(&format!("ways-{}", name_of(entrance)), family),
            Self::Others => "others".to_owned(),
            Self::Exact(side, family) => of(&format!("{}s", word_of(side)), family),
            Self::Ranges(side, family) => of(&format!("{}-ranges", word_of(side)), family),
            Self::Ports => "ports".to_owned(),
            Self::PortRanges => "port-ranges".to_owned(),
            Self::Protocols => "protocols".to_owned(),
            Self::All => "rest".to_owned(),
            Self::Sources => "source-ports".to_owned(),
        }
    }

    pub fn set(self) -> Set {
        use KeyType::{ClassId, IfName, InetProto, InetService};
        let (table, name) = (table(), self.name());
        match self {
            Self::Ways(..) => Set::map(&table, name, [IfName], ClassId),
            Self::Others | Self::All => Set::map(&table, name, [ClassId], ClassId),
            Self::Exact(_, family) => Set::map(&table, name, [ClassId, KeyType::address(family)], ClassId),
            Self::Ranges(_, family) => {
                Set::map(&table, name, [ClassId, KeyType::address(family)], ClassId).interval()
            }
            Self::Ports => Set::map(&table, name, [ClassId, InetProto, InetService], ClassId),
            Self::PortRanges => Set::map(&table, name, [ClassId, InetProto, InetService], ClassId).interval(),
            Self::Protocols => Set::map(&table, name, [ClassId, InetProto], ClassId),
            Self::Sources => Set::map(&table, name, [ClassId, InetService], ClassId).interval(),
        }
    }
}

/// The table of host endpoints.
pub fn table() -> Table {
    Table::inet("russet-hosts")
}

/// The number that stands for all other interfaces.
pub(super) fn others(entrance: Entrance, family: Family) -> u32 {
    let place = match entrance {
        Entrance::Input => 0,
        Entrance::Output => 1,
        Entrance::ForwardIn => 2,
        Entrance::ForwardOut => 3,
        Entrance::PreDnat => 4,
        Entrance::RawIn => 5,
        Entrance::RawOut => 6,
        Entrance::UntrackedIn => 7,
        Entrance::UntrackedOut => 8,
    };
    OTHERS + 2 * place + if family == Family::V4 { 0 } else { 1 }
}

/// The table as it should be, besides elements.
pub(super) fn spec(shape: &Shape) -> TableSpec {
    let constants = constants(shape).into_iter().map(|(set, _)| set);
    TableSpec {
        table: table(),
        sets: Place::each().into_iter().map(Place::set).chain(constants).collect(),
        chains: chains(),
        rules: rules(shape),
        unknown_rules: None,
        obsolete_chains: &[],
        disarms: false,
    }
}

/// The sets whose elements do not depend on policies, with their elements.
pub(super) fn constants(shape: &Shape) -> Vec<(Set, Vec<Element>)> {
    let ported = [L4::Tcp as u8, L4::Udp as u8, L4::Sctp as u8, UDPLITE];
    let protocols =
        |all: &[u8]| all.iter().map(|it| Element::new(KeyPart::protocol(*it))).collect::<Vec<_>>();
    let port = |protocol, port| Element::concatenation([KeyPart::protocol(protocol), KeyPart::port(port)]);
    let word = |word: Word, verdict| Element::new(KeyPart::class_id(words::number(word))).verdict(verdict);
    let words = vec![
        word(Word::ALLOW, Verdict::Return),
        word(Word::DENY, Verdict::goto(DENIED)),
        word(Word { log: true, ..Word::ALLOW }, Verdict::goto(LOG_ALLOWED)),
        word(Word { log: true, ..Word::DENY }, Verdict::goto(LOG_DENIED)),
    ];
    let set = |name: &str, key: &[KeyType]| Set::new(&table(), name, key);
    let to_port = [KeyType::InetProto, KeyType::InetService];
    let to_node = match shape.endpoint_to_host {
        EndpointToHost::Accept | EndpointToHost::Return => MAY_TO_NODE,
        EndpointToHost::Drop => NOT_TO_NODE,
    };
    let to_node = Element::new(KeyPart::class_id(TO_NODE_KEY)).verdict(Verdict::goto(to_node));
    let tunnels = shape.tunnels.iter().map(|number| port(L4::Udp as u8, *number)).collect();
    let mut all = vec![
        (set(PORTED, &[KeyType::InetProto]), protocols(&ported)),
        (set(ENCAPSULATIONS, &[KeyType::InetProto]), protocols(&ENCAPSULATED)),
        (set(TUNNELS, &to_port), tunnels),
        (Set::verdict_map(&table(), WORDS, [KeyType::ClassId]), words),
        (Set::verdict_map(&table(), ENDPOINT_TO_HOST, [KeyType::ClassId]), vec![to_node]),
    ];
    let Failsafe { inbound, outbound } = &shape.failsafe;
    for (name, ports) in [(FAILSAFE_IN, inbound), (FAILSAFE_OUT, outbound)] {
        let for_all = ports.iter().filter(|it| it.peers.is_none());
        all.push((set(name, &to_port), for_all.map(|it| port(it.protocol.0, it.port)).collect()));
        all.extend(Family::BOTH.map(|family| {
            let key = [KeyType::InetProto, KeyType::InetService, KeyType::address(family)];
            (set(&for_some(name, family), &key).interval(), ports_for_some(ports, family))
        }));
    }
    all
}

/// The failsafe ports that are only for peers of this family.
fn ports_for_some(ports: &[FailsafePort], family: Family) -> Vec<Element> {
    let of_family = ports.iter().filter_map(|it| Some((it, it.peers?)));
    let of_family = of_family.filter(|(_, net)| Family::of_net(net) == family);
    let element = |(it, net): (&FailsafePort, IpNet)| {
        let peers = KeyPart::addresses(net.network()..=net.broadcast());
        Element::concatenation([KeyPart::protocol(it.protocol.0), KeyPart::port(it.port), peers])
    };
    of_family.map(element).collect()
}

/// The set beside one of failsafe ports that has those which are only for some peers.
fn for_some(failsafe: &str, family: Family) -> String {
    of(&format!("{failsafe}-for"), family)
}

fn chains() -> Vec<Chain> {
    let base = |name, hook, at| Chain::base(&table(), name, ChainKind::Filter, hook, at);
    let plain = ["output", CLEARED, DENIED, LOG_DENIED, LOG_ALLOWED, TO_NODE, MAY_TO_NODE, NOT_TO_NODE];
    let mut names = plain.map(str::to_owned).to_vec();
    for family in Family::BOTH {
        names.extend(Entrance::EACH.map(|entrance| of(name_of(entrance), family)));
        names.extend(UNTRACKED.map(|(chain, ..)| of(&format!("{chain}-untracked"), family)));
        names.extend(["find", "judge", "passed", FORWARD_REST].map(|it| of(it, family)));
    }
    let regular = names.into_iter().map(|name| Chain::new(&table(), name));
    let hooks = [
        ("raw-prerouting", Hook::Prerouting, priority::RAW),
        ("raw-output", Hook::Output, priority::RAW),
        // Behind connection tracking, and before the translation of destinations.
        ("prerouting", Hook::Prerouting, priority::MANGLE),
        ("input", Hook::Input, priority::FILTER),
        ("forward", Hook::Forward, priority::FILTER),
        ("postrouting", Hook::Postrouting, priority::FILTER),
        ("from-pods", Hook::Input, LAST),
    ];
    regular.chain(hooks.map(|(name, hook, at)| base(name, hook, at))).collect()
}

fn rules(shape: &Shape) -> Vec<Rule> {
    let mut rules = raw("raw-prerouting", Direction::Ingress);
    rules.extend(raw("raw-output", Direction::Egress));
    for (chain, entrance) in [("prerouting", Entrance::PreDnat), ("input", Entrance::Input)] {
        rules.extend(spared(chain, FAILSAFE_IN, Field::Saddr));
        rules.extend(tracked(chain));
        rules.extend(enter_untracked(chain));
        rules.extend(Family::BOTH.map(|family| enter(chain, entrance, family)));
        rules.push(rule(chain).goto(CLEARED));
    }
    rules.extend(tracked("forward"));
    rules.extend(enter_untracked("forward"));
    for family in Family::BOTH {
        rules.push(enter("forward", Entrance::ForwardIn, family));
        rules.push(rule("forward").family(family).goto(of(FORWARD_REST, family)));
    }
    rules.push(rule("postrouting").from_this_machine().goto("output"));
    // A router does not forward these, so they are the node's own.
    rules.push(rule("postrouting").saddr(LINK_LOCAL).goto("output"));
    rules.extend(spared("output", FAILSAFE_OUT, Field::Daddr));
    rules.extend(tracked("output"));
    rules.extend(enter_untracked("output"));
    for family in Family::BOTH {
        rules.push(enter("output", Entrance::Output, family));
        rules.push(rule("output").family(family).goto(of("passed", family)));
    }
    for family in Family::BOTH {
        rules.extend(UNTRACKED.into_iter().flat_map(|it| untracked(it, family)));
        rules.extend(forward_rest(family));
        rules.extend(Entrance::EACH.into_iter().flat_map(|entrance| entrance_rules(entrance, family)));
        rules.extend(judge(family));
        rules.extend(passed(family, shape));
    }
    rules.push(rule(CLEARED).set_priority(0));
    rules.extend(ends());
    rules.extend(from_pods());
    rules
}

/// A chain before connection tracking: what policies for untracked packets forbid is dropped, and what a
/// rule of them allows is not tracked.
fn raw(chain: &str, direction: Direction) -> Vec<Rule> {
    let (forbidden, allowed, requests, replies) = match direction {
        Direction::Ingress => (Entrance::RawIn, Entrance::UntrackedIn, FAILSAFE_IN, FAILSAFE_OUT),
        Direction::Egress => (Entrance::RawOut, Entrance::UntrackedOut, FAILSAFE_OUT, FAILSAFE_IN),
    };
    let peer = match direction {
        Direction::Ingress => Field::Saddr,
        Direction::Egress => Field::Daddr,
    };
    let mut rules = spared(chain, requests, peer);
    // Else a half of their connections would not be tracked.
    rules.extend(failsafe(chain, replies, Field::Sport, peer));
    for entrance in [forbidden, allowed] {
        rules.push(rule(chain).set_priority(0));
        rules.extend(Family::BOTH.map(|family| enter(chain, entrance, family)));
    }
    rules.extend(allowing().map(|word| rule(chain).priority(word).counter().notrack()));
    match direction {
        Direction::Ingress => rules.push(rule(chain).goto(CLEARED)),
        Direction::Egress => {
            rules.extend(Family::BOTH.map(|it| rule(chain).family(it).goto(of("passed", it))));
        }
    }
    rules
}

/// The numbers of the words that allow.
fn allowing() -> [u32; 2] {
    [Word::ALLOW, Word { log: true, ..Word::ALLOW }].map(words::number)
}

/// What is not tracked goes to a chain of its own.
fn enter_untracked(chain: &str) -> [Rule; 2] {
    let is_untracked = |family| rule(chain).family(family).ct_state(ct_state::UNTRACKED);
    Family::BOTH.map(|family| is_untracked(family).goto(of(&format!("{chain}-untracked"), family)))
}

/// The chain of packets that are not tracked: those that a rule for untracked packets allows pass.
fn untracked(
    (chain, allowed, otherwise, end): (&str, Entrance, Entrance, &str),
    family: Family,
) -> Vec<Rule> {
    let name = of(&format!("{chain}-untracked"), family);
    let end = if end == CLEARED { end.to_owned() } else { of(end, family) };
    let mut rules = vec![rule(&name).set_priority(0), rule(&name).jump(of(name_of(allowed), family))];
    rules.extend(allowing().map(|word| rule(&name).priority(word).goto(&end)));
    rules.extend([rule(&name).jump(of(name_of(otherwise), family)), rule(&name).goto(&end)]);
    rules
}

/// The chain of packets that the interface by which they come in lets pass on.
fn forward_rest(family: Family) -> [Rule; 2] {
    let chain = of(FORWARD_REST, family);
    let leave = rule(&chain).jump(of(name_of(Entrance::ForwardOut), family));
    [leave, rule(&chain).goto(of("passed", family))]
}

/// What pods send to the node itself. While the map is damaged it is dropped.
fn from_pods() -> Vec<Rule> {
    let prefixes = [PREFIX, CALICO_PREFIX];
    let mut rules = prefixes.map(|prefix| rule("from-pods").iif_prefix(prefix).goto(TO_NODE)).to_vec();
    rules.extend([
        rule(TO_NODE).set_priority(TO_NODE_KEY),
        rule(TO_NODE).vmap(&[Field::Priority], ENDPOINT_TO_HOST),
        rule(TO_NODE).goto(NOT_TO_NODE),
        rule(MAY_TO_NODE).set_priority(0),
        rule(MAY_TO_NODE).counter().accept(),
    ]);
    rules.extend(tracked(NOT_TO_NODE));
    let spared = (0..=u8::MAX).filter(|kind| EndpointToHost::spares(*kind));
    rules.extend(spared.map(|kind| rule(NOT_TO_NODE).icmpv6_type(kind).accept()));
    let why = format!("{} is Drop", EndpointToHost::MEMBER);
    rules.push(rule(NOT_TO_NODE).counter().drop().comment(why));
    rules
}

/// What becomes of a packet that is denied, or whose rule asks to log it. The difference of a chain's counters is what
/// the limit suppressed.
fn ends() -> Vec<Rule> {
    let [(denied, _), (allowed, _)] = LOG_PREFIXES;
    let drop = |chain| rule(chain).counter().drop().comment("no policy of a host endpoint allows it");
    let mut rules: Vec<Rule> = DENYING
        .into_iter()
        .flat_map(|chain| [limited_log(rule(chain), denied.to_owned()), drop(chain)])
        .collect();
    rules.push(limited_log(rule(LOG_ALLOWED), allowed.to_owned()));
    rules
}

/// Whether a packet that this table has logged passes; none for other packets.
pub(crate) fn logged(prefix: &str) -> Option<bool> {
    LOG_PREFIXES.iter().find(|(known, _)| *known == prefix).map(|(_, passes)| *passes)
}

/// What passes at the node itself whatever policies say.
fn spared(chain: &str, ports: &str, peer: fn(Family) -> Field) -> Vec<Rule> {
    let mut rules = failsafe(chain, ports, Field::Dport, peer);
    let ported = rule(chain).is_in(&[Field::L4Proto], PORTED);
    rules.extend([
        ported.is_in(&[Field::L4Proto, Field::Dport], TUNNELS).accept(),
        rule(chain).is_in(&[Field::L4Proto], ENCAPSULATIONS).accept(),
        rule(chain).neighbour_discovery().accept(),
    ]);
    rules.extend(LISTENERS.map(|kind| rule(chain).icmpv6_type(kind).accept()));
    rules
}

/// What passes by failsafe ports: those for all peers, and those for some.
fn failsafe(chain: &str, ports: &str, port: Field, peer: fn(Family) -> Field) -> Vec<Rule> {
    let ported = |rule: Rule| rule.is_in(&[Field::L4Proto], PORTED);
    let for_all = ported(rule(chain)).is_in(&[Field::L4Proto, port], ports).accept();
    let for_some = Family::BOTH.map(|family| {
        let key = [Field::L4Proto, port, peer(family)];
        ported(rule(chain).family(family)).is_in(&key, for_some(ports, family)).accept()
    });
    [for_all].into_iter().chain(for_some).collect()
}

/// What belongs to a connection of which the other direction is judged.
fn tracked(chain: &str) -> [Rule; 2] {
    [rule(chain).ct_state(ct_state::RELATED).accept(), rule(chain).ct_reply().accept()]
}

fn enter(chain: &str, entrance: Entrance, family: Family) -> Rule {
    rule(chain).family(family).jump(of(name_of(entrance), family))
}

/// The chain that finds the first state.
fn entrance_rules(entrance: Entrance, family: Family) -> Vec<Rule> {
    let chain = of(name_of(entrance), family);
    let rule = || rule(&chain);
    let comes_in = entrance.direction() == Direction::Ingress;
    let field = if comes_in { Field::IifName } else { Field::OifName };
    let of_prefix = |prefix| if comes_in { rule().iif_prefix(prefix) } else { rule().oif_prefix(prefix) };
    let loopback = IfName::loopback();
    let of_loopback = if comes_in { rule().iif(&loopback) } else { rule().oif(&loopback) };
    let others = others(entrance, family);
    // Whether a rule allows it is for the caller to ask.
    let is_asked = matches!(entrance, Entrance::UntrackedIn | Entrance::UntrackedOut);
    let next = of(if is_asked { "find" } else { "judge" }, family);
    vec![
        of_loopback.return_(),
        of_prefix(PREFIX).return_(),
        of_prefix(CALICO_PREFIX).return_(),
        rule().set_priority(0),
        rule().set_priority_by(&[field], &Place::Ways(entrance, family).set()),
        rule().priority(0).set_priority(others),
        rule().set_priority_by(&[Field::Priority], &Place::Others.set()),
        rule().priority(others).return_(),
        rule().priority(State::OPEN.number()).return_(),
        rule().goto(next),
    ]
}

/// The chain that goes from state to state, and the one that decides behind it. What no state decides is
/// denied: so is everything while a map is damaged.
fn judge(family: Family) -> Vec<Rule> {
    let (chain, judge) = (of("find", family), of("judge", family));
    let by = |rule: Rule, place: Place, key: &[Field]| rule.set_priority_by(key, &place.set());
    let mut rules = Vec::new();
    for (side, field) in [(Side::Source, Field::Saddr(family)), (Side::Destination, Field::Daddr(family))] {
        for place in [Place::Exact(side, family), Place::Ranges(side, family)] {
            rules.push(by(rule(&chain), place, &[Field::Priority, field]));
        }
    }
    for place in [Place::Ports, Place::PortRanges] {
        let key = |port| [Field::Priority, Field::L4Proto, port];
        let ported = rule(&chain).is_in(&[Field::L4Proto], PORTED);
        rules.push(by(ported, place, &key(Field::Dport)));
        // Type and code of ICMP are where others have the source port.
        let others = rule(&chain).is_not_in(&[Field::L4Proto], PORTED);
        rules.push(by(others, place, &key(Field::Sport)));
    }
    rules.push(by(rule(&chain), Place::Protocols, &[Field::Priority, Field::L4Proto]));
    rules.push(by(rule(&chain), Place::All, &[Field::Priority]));
    let ported = rule(&chain).is_in(&[Field::L4Proto], PORTED);
    rules.push(by(ported, Place::Sources, &[Field::Priority, Field::Sport]));
    rules.push(rule(&judge).jump(&chain));
    rules.push(rule(&judge).vmap(&[Field::Priority], WORDS));
    rules.push(rule(&judge).goto(DENIED));
    rules
}

/// The chain of packets that pass: they get the priority that forwarding gives them.
fn passed(family: Family, shape: &Shape) -> Vec<Rule> {
    let chain = of("passed", family);
    restored(|| rule(&chain), family, shape.priority_by_tos)
}

fn rule(chain: &str) -> Rule {
    Rule::in_chain(&table(), chain)
}

const fn name_of(entrance: Entrance) -> &'static str {
    match entrance {
        Entrance::Input => "input",
        Entrance::Output => "output",
        Entrance::ForwardIn => "forward-in",
        Entrance::ForwardOut => "forward-out",
        Entrance::PreDnat => "pre-dnat",
        Entrance::RawIn => "raw-in",
        Entrance::RawOut => "raw-out",
        Entrance::UntrackedIn => "untracked-in",
        Entrance::UntrackedOut => "untracked-out",
    }
}

const fn word_of(side: Side) -> &'static str {
    match side {
        Side::Source => "source",
        Side::Destination => "destination",
    }
}
