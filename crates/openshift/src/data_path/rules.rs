//! The table `ip russet-sdn` as values. `verdicts` compares it with the kernel's and writes it.
//!
//! Rules never change with pods, peers and tenants; only elements do. A network ID with an
//! EgressNetworkPolicy has a chain and a set of its own (see `egress`). A network ID is a mark with
//! bit 24 set (see `programs`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use russet_addr::{Family, IfName, IpNet, NameError};
use russet_model::openshift::NetId;
use russet_nft::{
    Chain, ChainKind, Element, Expr, Field, Hook, KeyPart, KeyType, L4, Masquerade, MetaKey, Register, Rule,
    Set, Table, TableFamily, ct_state, priority,
};
use russet_overlay::ruleset::Ruleset;

use super::egress::{Egress, Outside};
use super::programs::{PASSED, STAMPED};
use super::{DEVICE, Port, Ports, Settings};

/// The table's name; its family is `ip`.
pub const TABLE: &str = "russet-sdn";

/// The sets and maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    /// Host ends of attached pods.
    Links,
    /// Host end to network ID.
    Netids,
    /// Pairs of host end and address from which a pod may send.
    Sources,
    /// Pairs of network ID and pod address that may communicate.
    Deliver,
    /// Pods that are reachable from every network ID: those with the global one, and where NetworkPolicies decide all.
    Globals,
    /// The networks of pods in the whole cluster.
    Cluster,
    /// Nodes that may send VXLAN.
    Peers,
    /// Host end to what its pod may reach outside of the cluster.
    Egress,
}

/// The elements of every set.
pub(super) type Elements = BTreeMap<Name, Vec<Element>>;

/// Before every other chain, connection tracking and defragmentation included
/// (`NF_IP_PRI_RAW_BEFORE_DEFRAG`).
const FIRST: i32 = -450;
/// Between connection tracking and the translation of addresses.
const TRACKED: i32 = -190;
/// Before foreign filters.
const BEFORE_FILTER: i32 = priority::FILTER - 10;
/// After every translation of sources; no other program reads the mark there.
const LAST: i32 = priority::SRCNAT + 50;
const FROM_TUNNEL: &str = "from-tunnel";
const TO_POD: &str = "to-pod";
const POD_TO_POD: &str = "pod-to-pod";
const TUNNEL_ON: &str = "tunnel-on";
const UNMASKED: &str = "unmasked";
const EGRESS: &str = "egress";
/// The port of DNS, at which a pod always reaches its own node (policy.md section 1.10).
const DNS: u16 = 53;

pub fn table() -> Table {
    Table::new(TableFamily::Ip, TABLE)
}

/// The mark that carries a network ID.
pub(super) fn mark(netid: NetId) -> u32 {
    STAMPED | netid.number()
}

// === impl Name ===

impl Name {
    pub(super) const ALL: [Self; 8] = [
        Self::Links,
        Self::Netids,
        Self::Sources,
        Self::Deliver,
        Self::Globals,
        Self::Cluster,
        Self::Peers,
        Self::Egress,
    ];

    const fn text(self) -> &'static str {
        match self {
            Self::Links => "links",
            Self::Netids => "netids",
            Self::Sources => "sources",
            Self::Deliver => "deliver",
            Self::Globals => "globals",
            Self::Cluster => "cluster",
            Self::Peers => "peers",
            Self::Egress => EGRESS,
        }
    }

    pub(super) fn set(self) -> Set {
        use KeyType::{IfName, Ipv4Addr, Mark};
        let (table, name) = (table(), self.text());
        match self {
            Self::Links => Set::new(&table, name, [IfName]),
            Self::Netids => Set::map(&table, name, [IfName], Mark),
            Self::Sources => Set::new(&table, name, [IfName, Ipv4Addr]),
            Self::Deliver => Set::new(&table, name, [Mark, Ipv4Addr]),
            Self::Globals | Self::Peers => Set::new(&table, name, [Ipv4Addr]),
            Self::Cluster => Set::prefixes(&table, name, Family::V4),
            Self::Egress => Set::verdict_map(&table, name, [IfName]),
        }
    }
}

pub(super) fn elements_of(port: &Port, outside: &Outside<'_>) -> Vec<(Name, Vec<Element>)> {
    let link = || KeyPart::if_name(&port.host_veth);
    let address = || KeyPart::from(std::net::IpAddr::from(port.address));
    let reached_by = |netid| Element::concatenation([KeyPart::mark(mark(netid)), address()]);
    let links = (Name::Links, vec![Element::new(link())]);
    // A port without a network ID: its link is known, but no element lets its packets pass.
    let Some(netid) = port.netid else { return vec![links] };
    let deliver = match netid.is_global() {
        true => vec![reached_by(NetId::GLOBAL)],
        false => vec![reached_by(NetId::GLOBAL), reached_by(netid)],
    };
    let globals = port.is_open.then(|| Element::new(address())).into_iter().collect();
    vec![
        links,
        (Name::Netids, vec![Element::new(link()).data(KeyPart::mark(mark(netid)))]),
        (Name::Sources, vec![Element::concatenation([link(), address()])]),
        (Name::Deliver, deliver),
        (Name::Globals, globals),
        (Name::Egress, outside.element(&port.host_veth, netid).into_iter().collect()),
    ]
}

pub(super) fn peer(host_ip: Ipv4Addr) -> Element {
    Element::new(KeyPart::from(std::net::IpAddr::from(host_ip)))
}

fn elements(
    settings: &Settings,
    ports: &Ports,
    peers: &BTreeSet<Ipv4Addr>,
    outside: &Outside<'_>,
) -> Elements {
    let mut all: Elements = Name::ALL.into_iter().map(|name| (name, Vec::new())).collect();
    let cluster = settings.cluster.iter().chain([&settings.own]).map(|net| IpNet::V4(net.trunc()));
    all.insert(Name::Cluster, Element::cover(cluster));
    all.insert(Name::Peers, peers.iter().copied().map(peer).collect());
    for (name, elements) in ports.values().flat_map(|port| elements_of(port, outside)) {
        all.entry(name).or_default().extend(elements);
    }
    all
}

/// The whole table.
pub(super) fn ruleset(
    settings: &Settings,
    ports: &Ports,
    peers: &BTreeSet<Ipv4Addr>,
    egress: &Egress,
) -> Result<Ruleset, NameError> {
    let device = IfName::new(DEVICE)?;
    let outside = Outside::new(ports, egress);
    let rules = [
        prerouting(&device)?,
        from_tunnel(settings),
        returned(&device),
        forward(settings, &device),
        tunnel_on(&device),
        at_the_port(settings),
        to_the_node(),
        outward(settings),
        outside.parts().map(|(_, rule, _)| rule).collect(),
        leaving(settings, &device),
        to_pod(settings, &device),
        pod_to_pod(),
    ];
    let sets = elements(settings, ports, peers, &outside);
    let sets = sets.into_iter().map(|(name, elements)| (name.set(), elements));
    Ok(Ruleset {
        chains: chains().into_iter().chain(outside.parts().map(|(chain, ..)| chain)).collect(),
        sets: sets.chain(outside.parts().map(|(.., set)| set)).collect(),
        rules: rules.into_iter().flatten().collect(),
    })
}

fn chains() -> [Chain; 14] {
    let table = &table();
    let base = |name, hook, priority| Chain::base(table, name, ChainKind::Filter, hook, priority);
    [
        Chain::new(table, FROM_TUNNEL).comment("what other nodes' pods send, its network ID in the mark"),
        Chain::new(table, TO_POD).comment("what is delivered to pods of this node"),
        Chain::new(table, POD_TO_POD).comment("what one of them sends to another"),
        Chain::new(table, TUNNEL_ON).comment("what came out of the tunnel and goes on"),
        Chain::new(table, UNMASKED)
            .comment("answers from another node to pods that spoke with this node's address"),
        Chain::new(table, EGRESS).comment("what a pod sends out of the cluster"),
        base("prerouting", Hook::Prerouting, FIRST),
        base("returned", Hook::Prerouting, TRACKED),
        base("forward", Hook::Forward, BEFORE_FILTER),
        base("input", Hook::Input, BEFORE_FILTER),
        base("untracked-in", Hook::Prerouting, priority::RAW),
        base("untracked-out", Hook::Output, priority::RAW),
        Chain::base(table, "outside", ChainKind::Nat, Hook::Postrouting, priority::SRCNAT),
        base("leaving", Hook::Postrouting, LAST),
    ]
}

fn rule(chain: &str) -> Rule {
    Rule::in_chain(&table(), chain)
}

const V4: Family = Family::V4;

/// Drops packets whose source is not the sender's own address.
fn prerouting(device: &IfName) -> Result<Vec<Rule>, NameError> {
    let all = || rule("prerouting");
    Ok(vec![
        all().iif(device).goto(FROM_TUNNEL),
        all().is_in(&[Field::IifName, Field::Saddr(V4)], Name::Sources.text()).accept(),
        all().is_in(&[Field::IifName], Name::Links.text()).counter().drop().comment("not the pod's address"),
        all().iif(&IfName::new("lo")?).accept(),
        all().saddr_in(V4, Name::Cluster.text()).counter().drop().comment("a pod's address from elsewhere"),
    ])
}

/// Checks packets from the tunnel. An accepted packet loses the mark, which foreign rules could
/// misread; packets to the node itself lose it a little later.
fn from_tunnel(settings: &Settings) -> Vec<Rule> {
    let all = || rule(FROM_TUNNEL);
    let own = IpNet::V4(settings.own.trunc());
    let enters = |rule: Rule| rule.set_mark(0, u32::MAX).accept();
    vec![
        all().mark_not(STAMPED, STAMPED).counter().drop().comment("no network ID"),
        all().saddr(own).counter().drop().comment("an address of this node from another"),
        all().saddr_not_in(V4, Name::Cluster.text()).counter().drop().comment("not a pod's address"),
        enters(all().is_in(&[Field::Mark, Field::Daddr(V4)], Name::Deliver.text())),
        enters(all().daddr_in(V4, Name::Globals.text())),
        all().to_this_machine().accept(),
        all().counter().drop().comment("not reachable by this tenant"),
    ]
}

/// A reply to the node's address may be for a pod of this node whose request was masqueraded: the
/// verdict is that of the pod. A packet that still has its network ID and is for no address of this
/// node was not checked, because the rules before were missing.
fn returned(device: &IfName) -> Vec<Rule> {
    let (all, pod) = (|| rule("returned"), || rule(UNMASKED));
    let who = Field::CtOriginalSaddr;
    let enters = |rule: Rule| rule.set_mark(0, u32::MAX).accept();
    vec![
        all().iif_not(device).accept(),
        all().ct_reply().ct_snat().goto(UNMASKED),
        all().mark_not(STAMPED, STAMPED).accept(),
        // Translation of destinations comes later, so packets for this machine still have its
        // address.
        enters(all().to_this_machine()),
        all().counter().drop().comment("no verdict"),
        enters(pod().is_in(&[Field::Mark, who], Name::Deliver.text())),
        enters(pod().is_in(&[who], Name::Globals.text())),
        pod().is_in(&[who], Name::Cluster.text()).counter().drop().comment("another tenant's"),
        pod().set_mark(0, u32::MAX),
    ]
}

fn forward(settings: &Settings, device: &IfName) -> Vec<Rule> {
    let from_pod = || rule("forward").is_in(&[Field::IifName], Name::Links.text());
    // A pod that could send VXLAN to a node would choose its network ID. The rule comes after
    // translation, so that no Service hides the destination.
    let vxlan = from_pod().protocol(L4::Udp).dport(settings.vxlan_port).counter().drop();
    let mut rules = vec![vxlan.comment("a pod does not speak VXLAN")];
    if let Some(service) = settings.service {
        let untranslated = from_pod().daddr(IpNet::V4(service.trunc())).counter().drop();
        rules.push(untranslated.comment("a Service without endpoints"));
    }
    rules.push(rule("forward").iif(device).goto(TUNNEL_ON));
    // Behind all translation of destinations, so that no Service hides one.
    rules.push(from_pod().goto(EGRESS));
    rules
}

/// The node's other addresses are outside of the cluster to its pods, except for DNS (policy.md
/// section 1.10).
fn to_the_node() -> Vec<Rule> {
    let from_pod = || rule("input").is_in(&[Field::IifName], Name::Links.text());
    vec![
        from_pod().protocol(L4::Udp).dport(DNS).accept(),
        from_pod().protocol(L4::Tcp).dport(DNS).accept(),
        from_pod().goto(EGRESS),
    ]
}

/// What a pod sends out of the cluster, unless it answers: what its network ID may not reach is
/// dropped. The verdict is looked up by the link, which the sender cannot choose.
fn outward(settings: &Settings) -> Vec<Rule> {
    let all = || rule(EGRESS);
    let mut rules = vec![all().ct_reply().return_(), all().daddr_in(V4, Name::Cluster.text()).return_()];
    rules.extend(settings.service.map(|service| all().daddr(IpNet::V4(service.trunc())).return_()));
    rules.push(all().vmap(&[Field::IifName], Name::Egress.text()));
    rules.push(all().counter().drop().comment("what its tenant may reach is not known yet"));
    rules
}

fn tunnel_on(device: &IfName) -> Vec<Rule> {
    let all = || rule(TUNNEL_ON);
    vec![
        all().oif(device).counter().drop().comment("nodes do not pass tunnels on"),
        // Checked for the node's own address, then translated to a pod's: its network ID is not
        // known any more.
        all()
            .ct_state(ct_state::NEW)
            .ct_dnat()
            .daddr_in(V4, Name::Cluster.text())
            .daddr_not_in(V4, Name::Globals.text())
            .counter()
            .drop()
            .comment("into a pod through this node's ports"),
    ]
}

/// Accepts VXLAN from nodes only, and exempts it from connection tracking.
fn at_the_port(settings: &Settings) -> Vec<Rule> {
    let port = |chain: &str| rule(chain).protocol(L4::Udp).dport(settings.vxlan_port);
    vec![
        port("input")
            .saddr_not_in(V4, Name::Peers.text())
            .counter()
            .drop()
            .comment("VXLAN from what is no node"),
        port("untracked-in").saddr_in(V4, Name::Peers.text()).notrack(),
        port("untracked-out").daddr_in(V4, Name::Peers.text()).notrack(),
    ]
}

/// Packets to the outside get the node's address. Packets to another node get their sender's
/// network ID, looked up by the incoming link, because the address may have been translated.
/// Packets without a network ID get no stamp, and the egress program drops them.
fn leaving(settings: &Settings, device: &IfName) -> Vec<Rule> {
    let all = || rule("leaving");
    let own = IpNet::V4(settings.own.trunc());
    let masquerade = rule("outside").saddr(own).daddr_not_in(V4, Name::Cluster.text());
    vec![
        masquerade.masquerade(Masquerade::fully_random()),
        all().is_in(&[Field::OifName], Name::Links.text()).goto(TO_POD),
        all().oif_not(device).accept(),
        all().set_mark(0, u32::MAX),
        mark_of_link(all()).accept(),
        all().saddr(gateway(settings)).set_mark(mark(NetId::GLOBAL), u32::MAX).accept(),
    ]
}

/// The node and the outside reach every pod. Packets from the tunnel were checked when they
/// arrived, unless they still have their network ID: then the rules were incomplete. Accepted
/// packets get the bit that the guard at the pod's host end requires.
fn to_pod(settings: &Settings, device: &IfName) -> Vec<Rule> {
    let all = || rule(TO_POD);
    vec![
        all().is_in(&[Field::IifName], Name::Links.text()).goto(POD_TO_POD),
        all().iif(device).mark(STAMPED, STAMPED).counter().drop().comment("no verdict"),
        passes(all().iif(device)),
        passes(all().saddr(gateway(settings))),
        // Kernels before 5.7 do not provide the incoming link here.
        all().saddr_in(V4, Name::Cluster.text()).counter().drop().comment("sender not known"),
        passes(all()),
    ]
}

/// Both ends are on this node, so this is where the verdict is made: after all translation, so that
/// no Service bypasses it, and where only the guard still reads the mark, which does not leave the
/// node.
fn pod_to_pod() -> Vec<Rule> {
    let all = || rule(POD_TO_POD);
    vec![
        all().set_mark(0, u32::MAX),
        mark_of_link(all()),
        passes(all().is_in(&[Field::Mark, Field::Daddr(V4)], Name::Deliver.text())),
        passes(all().daddr_in(V4, Name::Globals.text())),
        all().counter().drop().comment("another tenant's"),
    ]
}

/// `meta mark set 0x2000000 accept`
fn passes(rule: Rule) -> Rule {
    rule.set_mark(PASSED, u32::MAX).accept()
}

/// `meta mark set iifname map @netids`
fn mark_of_link(rule: Rule) -> Rule {
    let register = Register::FIRST;
    rule.expr(Expr::Meta { key: MetaKey::IifName, to: register })
        .expr(Expr::LookupMap { map: Name::Netids.text().to_owned(), key: register, to: register })
        .expr(Expr::SetMeta { key: MetaKey::Mark, from: register })
}

fn gateway(settings: &Settings) -> IpNet {
    IpNet::from(std::net::IpAddr::from(settings.gateway()))
}
