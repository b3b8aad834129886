//! Our messages decoded by an independent implementation (`netlink-packet-route`), its messages
//! decoded by ours, and arbitrary bytes.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::net::IpAddr;

use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::IpProtocol;
use netlink_packet_route::RouteNetlinkMessage as Theirs;
use netlink_packet_route::address::{AddressAttribute, AddressFlags as TheirAddressFlags, AddressScope};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoBridge, InfoData, InfoIpTunnel, InfoKind, InfoMacVlan,
    InfoVeth, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVlanMode, VxlanDf,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};
use proptest::prelude::*;
use russet_addr::{Family, IpNet, Mac};
use russet_netlink::wire::{Attributes, Message, Messages};
use russet_netlink::{
    AddrGenMode, Address, AddressFlags, Batch, Bridge, Df, Event, FdbEntry, Ipip, Link, LinkAdd, LinkDel,
    LinkKind, LinkSet, Neighbour, NeighbourState, Peer, Route, RouteKind, Rule, Scope, Vxlan,
};

const MAC: Mac = Mac([0x66, 0x93, 0x7f, 0x54, 0xd5, 0x53]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn name(text: &str) -> russet_addr::IfName {
    text.parse().unwrap()
}

fn batch(fill: impl FnOnce(&mut Batch) -> &mut Batch) -> Batch {
    let mut batch = Batch::new();
    fill(&mut batch);
    batch
}

/// The only request of a batch as the other implementation decodes it, with the flags of its
/// header.
fn theirs(fill: impl FnOnce(&mut Batch) -> &mut Batch) -> (Theirs, u16) {
    let batch = batch(fill);
    let message = NetlinkMessage::<Theirs>::deserialize(batch.as_bytes()).unwrap();
    assert_eq!(message.header.length as usize, batch.as_bytes().len());
    let NetlinkPayload::InnerMessage(inner) = message.payload else { panic!("{message:?}") };
    (inner, message.header.flags)
}

/// A message of the other encoder as our decoder reads it.
fn ours<T>(message: Theirs, decode: impl FnOnce(&Message<'_>) -> Option<T>) -> T {
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let message = Messages::new(&bytes).next().unwrap().unwrap();
    decode(&message).unwrap()
}

fn new_link(link: &LinkAdd) -> LinkMessage {
    match theirs(|batch| batch.add_link(link)) {
        // NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE
        (Theirs::NewLink(message), 0x605) => message,
        other => panic!("{other:?}"),
    }
}

/// `IFLA_INFO_KIND` and `IFLA_INFO_DATA`.
fn info(message: &LinkMessage) -> (InfoKind, Option<InfoData>) {
    let info = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => Some(info.clone()),
        _ => None,
    });
    let (mut kind, mut data) = (None, None);
    for item in info.unwrap() {
        match item {
            LinkInfo::Kind(found) => kind = Some(found),
            LinkInfo::Data(found) => data = Some(found),
            other => panic!("{other:?}"),
        }
    }
    (kind.unwrap(), data)
}

fn assert_all<T: PartialEq + std::fmt::Debug>(found: &[T], wanted: &[T]) {
    for item in wanted {
        assert!(found.contains(item), "{item:?} in {found:?}");
    }
    assert_eq!(found.len(), wanted.len(), "{found:?}");
}

#[test]
fn a_veth_is_decoded_alike() {
    // dataplane.md section 7: the outer device up, the peer never
    let peer = Peer { netns: Some(9), mtu_bytes: Some(1450), mac: Some(MAC), ..Peer::new(name("eth0")) };
    let link =
        LinkAdd { up: true, mtu_bytes: Some(1450), netns: Some(8), ..LinkAdd::veth(name("cali1"), peer) };
    let message = new_link(&link);
    assert_eq!(message.header.flags, LinkFlags::Up);
    assert_eq!(message.header.change_mask, LinkFlags::Up);
    let (kind, data) = info(&message);
    assert_eq!(kind, InfoKind::Veth);
    let Some(InfoData::Veth(InfoVeth::Peer(inner))) = data else { panic!("{data:?}") };
    assert_eq!(inner.header.flags, LinkFlags::empty());
    assert_all(
        &inner.attributes,
        &[
            LinkAttribute::IfName("eth0".to_owned()),
            LinkAttribute::Mtu(1450),
            LinkAttribute::Address(MAC.octets().to_vec()),
            LinkAttribute::NetNsFd(9),
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
        ],
    );
    let outer: Vec<_> =
        message.attributes.into_iter().filter(|a| !matches!(a, LinkAttribute::LinkInfo(_))).collect();
    assert_all(
        &outer,
        &[
            LinkAttribute::IfName("cali1".to_owned()),
            LinkAttribute::Mtu(1450),
            LinkAttribute::NetNsFd(8),
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
        ],
    );
}

#[test]
fn bridges_tunnels_and_raw_kinds_are_decoded_alike() {
    let bridge = LinkKind::Bridge(Bridge { vlan_filtering: true, mcast_snooping: false });
    let (kind, data) = info(&new_link(&LinkAdd::new(name("br0"), bridge)));
    let Some(InfoData::Bridge(options)) = data else { panic!("{data:?}") };
    assert_eq!(kind, InfoKind::Bridge);
    assert!(
        options.contains(&InfoBridge::ForwardDelay(0)) && options.contains(&InfoBridge::VlanFiltering(true))
    );

    for (local, theirs) in [
        ("192.0.2.1", InfoVxlan::Local("192.0.2.1".parse().unwrap())),
        ("fd00::1", InfoVxlan::Local6("fd00::1".parse().unwrap())),
    ] {
        let options = Vxlan {
            local: Some(ip(local)),
            parent: Some(3),
            df: Df::Inherit,
            ttl: 7,
            udp_csum: true,
            udp_zero_csum6_rx: true,
            ..Vxlan::new(4096, 4789)
        };
        let (kind, data) = info(&new_link(&LinkAdd::new(name("vx"), LinkKind::Vxlan(options))));
        let Some(InfoData::Vxlan(found)) = data else { panic!("{data:?}") };
        assert_eq!(kind, InfoKind::Vxlan);
        assert_all(
            &found,
            &[
                InfoVxlan::Id(4096),
                theirs,
                InfoVxlan::Link(3),
                InfoVxlan::Port(4789),
                InfoVxlan::Learning(false),
                InfoVxlan::Ttl(7),
                InfoVxlan::Df(VxlanDf::Inherit),
                InfoVxlan::UDPCsum(true),
                InfoVxlan::UDPZeroCsumTX(false),
                InfoVxlan::UDPZeroCsumRX(true),
            ],
        );
    }

    let tunnel = Ipip { local: Some(ip("192.0.2.1")), remote: Some(ip("192.0.2.2")) };
    let message = new_link(&LinkAdd::new(name("tun"), LinkKind::Ipip(tunnel)));
    let (kind, data) = info(&message);
    let Some(InfoData::IpTunnel(found)) = data else { panic!("{data:?}") };
    assert_eq!(kind, InfoKind::IpIp);
    let [local, remote] = ["192.0.2.1", "192.0.2.2"].map(ip);
    assert_all(
        &found,
        &[InfoIpTunnel::Local(local), InfoIpTunnel::Remote(remote), InfoIpTunnel::Protocol(IpProtocol::Ipip)],
    );

    let data = [&8u16.to_ne_bytes()[..], &1u16.to_ne_bytes(), &4u32.to_ne_bytes()].concat();
    let macvlan = LinkKind::Other { kind: "macvlan", data };
    let message = new_link(&LinkAdd { parent: Some(2), ..LinkAdd::new(name("mv0"), macvlan) });
    assert!(message.attributes.contains(&LinkAttribute::Link(2)));
    let (kind, data) = info(&message);
    assert_eq!(
        (kind, data),
        (InfoKind::MacVlan, Some(InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Bridge)])))
    );
}

#[test]
fn changes_and_deletions_of_links_are_decoded_alike() {
    let change = LinkSet {
        up: Some(false),
        name: Some(name("rsx7")),
        alias: Some("alias".to_owned()),
        group: Some(7273),
        mtu_bytes: Some(1400),
        mac: Some(MAC),
        master: Some(4),
        tx_queue_len: Some(5),
        addr_gen_mode: Some(AddrGenMode::None),
        netns: Some(6),
        ..LinkSet::index(7)
    };
    let (Theirs::SetLink(message), 0x5) = theirs(|batch| batch.set_link(&change)) else { panic!() };
    assert_eq!((message.header.index, message.header.flags), (7, LinkFlags::empty()));
    assert_eq!(message.header.change_mask, LinkFlags::Up);
    let mode = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
    assert_all(
        &message.attributes,
        &[
            LinkAttribute::IfName("rsx7".to_owned()),
            LinkAttribute::IfAlias("alias".to_owned()),
            LinkAttribute::Group(7273),
            LinkAttribute::Mtu(1400),
            LinkAttribute::Address(MAC.octets().to_vec()),
            LinkAttribute::Controller(4),
            LinkAttribute::TxQueueLen(5),
            LinkAttribute::NetNsFd(6),
            LinkAttribute::AfSpecUnspec(vec![mode]),
        ],
    );
    let (Theirs::DelLink(message), 0x5) = theirs(|batch| batch.delete_link(&LinkDel::Group(7273))) else {
        panic!()
    };
    assert_eq!((message.header.index, message.attributes), (0, vec![LinkAttribute::Group(7273)]));
    let (Theirs::DelLink(message), _) = theirs(|batch| batch.delete_link(&LinkDel::Index(9))) else {
        panic!()
    };
    assert_eq!((message.header.index, message.attributes), (9, vec![]));
}

#[test]
fn addresses_are_decoded_alike_in_both_directions() {
    let address = Address {
        peer: Some(ip("10.9.0.2")),
        broadcast: Some("10.9.0.255".parse().unwrap()),
        scope: Scope::Link,
        flags: AddressFlags::NODAD | AddressFlags::NOPREFIXROUTE,
        ..Address::new(3, net("10.9.0.1/24"))
    };
    let (Theirs::NewAddress(message), 0x605) = theirs(|batch| batch.add_address(&address)) else { panic!() };
    assert_eq!((message.header.index, message.header.prefix_len), (3, 24));
    assert_eq!(message.header.scope, AddressScope::Link);
    assert_all(
        &message.attributes,
        &[
            AddressAttribute::Local(ip("10.9.0.1")),
            AddressAttribute::Address(ip("10.9.0.2")),
            AddressAttribute::Broadcast("10.9.0.255".parse().unwrap()),
            AddressAttribute::Flags(TheirAddressFlags::Nodad | TheirAddressFlags::Noprefixroute),
        ],
    );
    assert_eq!(ours(Theirs::NewAddress(message), Address::decode), address);
    let v6 = Address::new(3, net("fd00::1/64"));
    let (deleted, 0x5) = theirs(|batch| batch.delete_address(&v6)) else { panic!() };
    assert_eq!(ours(deleted, Address::decode), v6);
}

#[test]
fn routes_are_decoded_alike_in_both_directions() {
    let base = |route: Route| Route { protocol: 114, ..route };
    let v4 = base(Route {
        oif: Some(3),
        metric: Some(5),
        onlink: true,
        mtu_bytes: Some(1400),
        prefsrc: Some(ip("10.0.0.1")),
        table: 1000,
        ..Route::via(net("10.1.0.0/26"), ip("10.0.0.7"))
    });
    let (Theirs::NewRoute(message), 0x605) = theirs(|batch| batch.add_route(&v4)) else { panic!() };
    assert_eq!(message.header.destination_prefix_length, 26);
    assert_eq!(
        (message.header.protocol, message.header.kind),
        (RouteProtocol::Other(114), RouteType::Unicast)
    );
    assert_eq!((message.header.scope, message.header.flags), (RouteScope::Universe, RouteFlags::Onlink));
    assert_all(
        &message.attributes,
        &[
            RouteAttribute::Destination(ip("10.1.0.0").into()),
            RouteAttribute::Gateway(ip("10.0.0.7").into()),
            RouteAttribute::Oif(3),
            RouteAttribute::Priority(5),
            RouteAttribute::Table(1000),
            RouteAttribute::PrefSource(ip("10.0.0.1").into()),
            RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400)]),
        ],
    );
    assert_eq!(ours(Theirs::NewRoute(message), Route::decode), v4);

    let crossed = base(Route { oif: Some(3), ..Route::via(net("10.1.0.0/26"), ip("fe80::1")) });
    let (Theirs::NewRoute(message), 0x505) = theirs(|batch| batch.replace_route(&crossed)) else { panic!() };
    assert!(message.attributes.contains(&RouteAttribute::Via(RouteVia::Inet6("fe80::1".parse().unwrap()))));
    assert_eq!(ours(Theirs::NewRoute(message), Route::decode), crossed);

    let blackhole = base(Route::blackhole(net("fd00::/122")));
    let (Theirs::NewRoute(message), 0xc05) = theirs(|batch| batch.append_route(&blackhole)) else { panic!() };
    assert_eq!(message.header.kind, RouteType::BlackHole);
    assert_eq!(ours(Theirs::NewRoute(message), Route::decode), blackhole);

    let (Theirs::DelRoute(message), 0x5) = theirs(|batch| batch.delete_route(&v4)) else { panic!() };
    assert_eq!(message.header.scope, RouteScope::NoWhere);
}

#[test]
fn the_other_encoders_routes_are_read() {
    let mut message = RouteMessage::default();
    message.header.address_family = netlink_packet_route::AddressFamily::Inet;
    message.header.kind = RouteType::Unreachable;
    message.header.table = 254;
    message.attributes.push(RouteAttribute::Priority(9));
    message.attributes.push(RouteAttribute::Oif(1));
    let route = ours(Theirs::NewRoute(message), Route::decode);
    assert_eq!((route.dst, route.kind, route.metric), (net("0.0.0.0/0"), RouteKind::Unreachable, Some(9)));
    assert_eq!(route.oif, None);
}

#[test]
fn neighbours_and_forwarding_entries_are_decoded_alike_in_both_directions() {
    let neighbour = Neighbour { protocol: 114, router: true, ..Neighbour::permanent(3, ip("fd00::9"), MAC) };
    let (Theirs::NewNeighbour(message), 0x505) = theirs(|batch| batch.replace_neighbour(&neighbour)) else {
        panic!()
    };
    assert_eq!(message.header.flags, NeighbourFlags::Router);
    assert_all(
        &message.attributes,
        &[
            NeighbourAttribute::Destination("fd00::9".parse::<std::net::Ipv6Addr>().unwrap().into()),
            NeighbourAttribute::LinkLayerAddress(MAC.octets().to_vec()),
            NeighbourAttribute::Protocol(RouteProtocol::Other(114)),
        ],
    );
    assert_eq!(ours(Theirs::NewNeighbour(message), Neighbour::decode), neighbour);
    let stale = Neighbour { state: NeighbourState::Stale, ..Neighbour::permanent(3, ip("10.0.0.9"), MAC) };
    let (message, 0x605) = theirs(|batch| batch.add_neighbour(&stale)) else { panic!() };
    assert_eq!(ours(message, Neighbour::decode), stale);
    let proxy = Neighbour::proxy(3, ip("10.0.0.9"));
    let (Theirs::DelNeighbour(message), 0x5) = theirs(|batch| batch.delete_neighbour(&proxy)) else {
        panic!()
    };
    assert_eq!(message.header.flags, NeighbourFlags::Proxy);

    let entry = FdbEntry { vni: Some(9), ..FdbEntry::remote(3, MAC, ip("10.0.0.9")) };
    let (Theirs::NewNeighbour(message), 0xc05) = theirs(|batch| batch.append_fdb(&entry)) else { panic!() };
    assert_eq!(message.header.flags, NeighbourFlags::Own);
    assert_eq!(message.header.family, netlink_packet_route::AddressFamily::Bridge);
    assert!(message.attributes.contains(&NeighbourAttribute::Vni(9)));
    assert_eq!(ours(Theirs::NewNeighbour(message), FdbEntry::decode), entry);
}

#[test]
fn the_other_encoders_neighbours_are_no_forwarding_entries() {
    let mut message = NeighbourMessage::default();
    message.header.family = netlink_packet_route::AddressFamily::Inet;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(MAC.octets().to_vec()));
    let neither = ours(Theirs::NewNeighbour(message), |message| {
        Some((Neighbour::decode(message), FdbEntry::decode(message)))
    });
    assert_eq!(neither, (None, None));
}

#[test]
fn rules_are_decoded_alike_in_both_directions() {
    let rule = Rule {
        from: Some(net("10.1.0.0/24")),
        to: Some(net("10.2.0.0/16")),
        fwmark: Some((0x10, 0xf0)),
        iif: Some(name("cali0")),
        oif: Some(name("lo")),
        invert: true,
        protocol: 114,
        ..Rule::new(Family::V4, 99, 1000)
    };
    let (Theirs::NewRule(message), 0x605) = theirs(|batch| batch.add_rule(&rule)) else { panic!() };
    assert_eq!((message.header.src_len, message.header.dst_len), (24, 16));
    assert_eq!(message.header.flags, RuleFlags::Invert);
    assert_all(
        &message.attributes,
        &[
            RuleAttribute::Priority(99),
            RuleAttribute::Table(1000),
            RuleAttribute::Source(ip("10.1.0.0")),
            RuleAttribute::Destination(ip("10.2.0.0")),
            RuleAttribute::FwMark(0x10),
            RuleAttribute::FwMask(0xf0),
            RuleAttribute::Iifname("cali0".to_owned()),
            RuleAttribute::Oifname("lo".to_owned()),
            RuleAttribute::Protocol(RouteProtocol::Other(114)),
        ],
    );
    assert_eq!(ours(Theirs::NewRule(message), Rule::decode), rule);
    let mut goto = RuleMessage::default();
    goto.header.family = netlink_packet_route::AddressFamily::Inet;
    goto.header.action = netlink_packet_route::rule::RuleAction::Goto;
    assert_eq!(ours(Theirs::NewRule(goto), |message| Some(Rule::decode(message))), None);
}

#[test]
fn requests_are_described_in_plain_words() {
    let gateway = Route { oif: Some(3), ..Route::via(net("0.0.0.0/0"), ip("169.254.1.1")) };
    let veth = LinkAdd::veth(name("cali1"), Peer::new(name("eth0")));
    let described = batch(|batch| {
        batch.add_route(&Route::via(net("10.1.0.0/26"), ip("10.0.0.7"))).replace_route(&gateway);
        batch.delete_route(&Route { table: 9, ..Route::blackhole(net("fd00::/122")) });
        batch.add_link(&veth).delete_link(&LinkDel::Group(7273)).delete_link(&LinkDel::Name(name("cali1")));
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::named(name("eth0")) });
        batch.set_link(&LinkSet { name: Some(name("rsx7")), group: Some(7273), ..LinkSet::index(7) });
        batch.add_address(&Address::new(3, net("10.1.0.5/32")));
        batch.replace_neighbour(&Neighbour::permanent(3, ip("169.254.1.1"), Mac::GATEWAY));
        batch
            .append_fdb(&FdbEntry::remote(3, MAC, ip("10.0.0.7")))
            .add_neighbour(&Neighbour::proxy(3, ip("::1")));
        batch.add_rule(&Rule::new(Family::V6, 99, 1000)).push(200, 0, |_| {})
    });
    let words: Vec<_> = (0..described.len()).map(|index| described.description(index)).collect();
    let expected = [
        "add route 10.1.0.0/26 via 10.0.0.7",
        "replace route default via 169.254.1.1 dev 3",
        "delete blackhole route fd00::/122 table 9",
        "add link cali1 (veth, peer eth0)",
        "delete links of group 7273",
        "delete link cali1",
        "change link eth0 up",
        "change link 7 to the name rsx7 group 7273",
        "add address 10.1.0.5/32 dev 3",
        "replace neighbour 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev 3",
        "append forwarding entry 66:93:7f:54:d5:53 dst 10.0.0.7 dev 3",
        "add proxy neighbour ::1 dev 3",
        "add IPv6 rule 99 to table 1000",
        "send netlink message 200",
    ];
    assert_eq!(words, expected);
    assert_eq!(described.description(99), "");
}

/// Runs all decoders on some bytes.
fn read_all(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = (Link::decode(&message), Address::decode(&message), Route::decode(&message));
        let _ = (Neighbour::decode(&message), FdbEntry::decode(&message), Rule::decode(&message));
        let _ = Event::decode(&message);
        for attribute in message.attributes(12) {
            let _ = (attribute.u8(), attribute.u16(), attribute.u32(), attribute.u64(), attribute.be16());
            let _ = (attribute.be32(), attribute.be64(), attribute.text(), attribute.ip(), attribute.mac());
            let _ = attribute.nested().count();
        }
    }
    let _ = Attributes::new(bytes).count();
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic_a_reader(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        read_all(&bytes);
    }

    #[test]
    fn no_payload_makes_a_decoder_panic(
        kind in 16u16..36,
        header in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), Just(7), Just(10), any::<u8>()], 0..20),
        attributes in proptest::collection::vec((0u16..60, proptest::collection::vec(any::<u8>(), 0..24)), 0..12),
    ) {
        let mut request = Batch::new();
        request.push(kind, 0, |message| {
            message.raw(&header);
            for (kind, payload) in &attributes {
                message.attr(*kind, payload);
            }
        });
        read_all(request.as_bytes());
        let _ = request.description(0);
    }

    #[test]
    fn a_flipped_byte_does_not_panic(at in 0usize..10_000, value in any::<u8>()) {
        let peer = Peer { mac: Some(MAC), ..Peer::new(name("eth0")) };
        let vxlan = Vxlan { local: Some(ip("fd00::1")), ..Vxlan::new(1, 2) };
        let sample = batch(|batch| {
            batch.add_link(&LinkAdd::veth(name("cali1"), peer));
            batch.add_link(&LinkAdd::new(name("vx"), LinkKind::Vxlan(vxlan)));
            batch.add_route(&Route { mtu_bytes: Some(1), ..Route::via(net("10.0.0.0/8"), ip("fe80::1")) });
            batch.add_rule(&Rule { to: Some(net("fd00::/8")), ..Rule::new(Family::V6, 1, 2) });
            batch.append_fdb(&FdbEntry::remote(3, MAC, ip("10.0.0.7")))
        });
        let mut bytes = sample.as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = value;
        read_all(&bytes);
    }
}
