//! The programs on single packets beside a model of them (docs/spec/policy.md section 4.4 (1)).

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use russet_linux::bpf::{Packet, Ran};
use russet_testkit::in_new_netns;

use super::*;

mod frame;
mod model;
mod netkit;

use frame::{Frame, Headers, Outer, Transport};
use model::{EndedSum, Flow, Handed, Model, Note, Passed, Side, TunnelTo, Tuple, Verdict};

const POD: &str = "10.244.1.2";
const NEAR: &str = "10.244.1.3";
const FAR: &str = "10.244.2.2";
/// Behind the tunnel in IPv6.
const FAR_SIX: &str = "10.244.4.2";
const ROUTED: &str = "10.244.3.2";
const FOREIGN: &str = "192.0.2.77";
/// In a node's prefix, and led elsewhere.
const ELSEWHERE: &str = "10.244.2.9";
const ADDRESSES: [&str; 7] = [POD, NEAR, FAR, FAR_SIX, ROUTED, FOREIGN, ELSEWHERE];
/// Loopback: a test run is at a link that exists.
const LINK: u32 = 1;
const TUNNEL: u32 = 9;
const TUNNEL_SIX: u32 = 10;
const UPLINK: u32 = 7;
/// Where a packet came in that leaves the kernel's path.
const INGRESS: u32 = 31;
/// The outer addresses of the other node and of this one.
const REMOTE: &str = "192.0.2.2";
const LOCAL: &str = "192.0.2.3";
const PACKETS: u32 = 10_000;
/// A packet of a test run has 0 where the programs write the lower half of the epoch.
const EPOCH: u32 = 7 << 16;
const NOTE_BYTES: usize = 64;

/// The programs in the kernel, with all their maps.
struct Kernel {
    fast_path: FastPath,
    flows: Map,
    notes: Map,
    tunnels: Map,
    handed: Map,
    ended: Map,
    traffic: Map,
}

/// What the programs have written.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    flows: BTreeMap<Vec<u8>, Flow>,
    notes: BTreeMap<u32, Vec<u8>>,
    tunnels: BTreeMap<u32, TunnelTo>,
    handed: Handed,
    ended: Vec<EndedFlows>,
}

/// Repeatable choices.
struct Choices(u64);

// === impl Choices ===

impl Choices {
    /// A number below `end`.
    fn below(&mut self, end: u32) -> u32 {
        // SplitMix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((z ^ (z >> 31)) % u64::from(end)).unwrap()
    }

    fn one_in(&mut self, number: u32) -> bool {
        self.below(number) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(u32::try_from(all.len()).unwrap()) as usize]
    }
}

fn ip(text: &str, is_v6: bool) -> IpAddr {
    let v4: std::net::Ipv4Addr = text.parse().unwrap();
    let [a, b, c, d] = v4.octets();
    match is_v6 {
        true => format!("fd00:{a:x}{b:02x}:{c:x}::{d:x}").parse().unwrap(),
        false => v4.into(),
    }
}

/// The device of the tunnel in IPv4 or IPv6.
fn tunnel_ifindex(is_v6: bool) -> u32 {
    if is_v6 { TUNNEL_SIX } else { TUNNEL }
}

/// Pods and nodes of both families. The tunnel's MTU is lower than what a frame may have.
fn content() -> Content {
    let mut content = Content::default();
    let node = |tunnel: Option<bool>| Node {
        via_ifindex: tunnel.map_or(UPLINK, tunnel_ifindex),
        mtu_bytes: 400,
        out_ifindex: LINK,
        next_hop: ip("192.0.2.1", tunnel == Some(true)),
        vxlan: tunnel.map(|is_v6| VxlanHeaders {
            remote: ip(REMOTE, is_v6),
            local: ip(LOCAL, is_v6),
            vni: 4096,
            port: 4789,
            inner_to: russet_addr::Mac([0xa1; 6]),
            inner_from: russet_addr::Mac([0xa2; 6]),
        }),
    };
    for is_v6 in [false, true] {
        for (number, text) in [(1, POD), (2, NEAR)] {
            let [pod_mac, host_mac] = [number, 0x40 | number].map(|byte| russet_addr::Mac([byte; 6]));
            let endpoint = Endpoint { ifindex: 20 + u32::from(number), mtu_bytes: 400, pod_mac, host_mac };
            content.endpoints.insert(ip(text, is_v6), endpoint);
        }
        for (text, tunnel) in [(FAR, Some(false)), (FAR_SIX, Some(true)), (ROUTED, None)] {
            let net = IpNet::new(ip(text, is_v6), if is_v6 { 48 } else { 24 }).unwrap().trunc();
            content.prefixes.insert(net, Some(node(tunnel)));
        }
        content.prefixes.insert(russet_addr::host_net(ip(ELSEWHERE, is_v6)), None);
    }
    content.interfaces = [LINK, 21, 22, INGRESS].map(|ifindex| (ifindex, format!("pod{ifindex}"))).into();
    let tunnel = |is_v6| Tunnel { ifindex: tunnel_ifindex(is_v6), vni: 4096, port: 4789 };
    content.tunnels = [(Family::V4, tunnel(false)), (Family::V6, tunnel(true))].into();
    content
}

// === impl Kernel ===

impl Kernel {
    fn new() -> Self {
        let epoch = FlowEpoch::default();
        let mut fast_path = FastPath::load(Way::probe(), &epoch).unwrap();
        assert_eq!(fast_path.apply(content(), usize::MAX).unwrap(), Applied::default());
        let [flows, notes, tunnels, handed, ended, traffic] =
            ["flows", "notes", "tunnels", "handed", "ended", "traffic"]
                .map(|name| fast_path.maps.get(name).unwrap().try_clone().unwrap());
        Self { fast_path, flows, notes, tunnels, handed, ended, traffic }
    }

    fn run(&self, role: Role, frame: &[u8], (ingress_ifindex, ifindex): (u32, u32)) -> Option<Ran> {
        let packet = Packet { frame, mark: 0, ifindex, ingress_ifindex };
        // The kernel refuses test runs of frames that end in their IP headers.
        self.fast_path.programs[&role].program().run(&packet).ok()
    }

    fn epoch(&self) -> u32 {
        let value = self.fast_path.maps.get("settings").unwrap().get(&Setting::Epoch.key()).unwrap().unwrap();
        u32::from_ne_bytes(value.try_into().unwrap())
    }

    /// Makes the maps hold what the model has.
    fn hold(&self, model: &Model) {
        let settings = self.fast_path.maps.get("settings").unwrap();
        settings.put(&Setting::Epoch.key(), &model.epoch.to_ne_bytes()).unwrap();
        settings.put(&Setting::Readings.key(), &model.readings.to_ne_bytes()).unwrap();
        for map in [&self.flows, &self.ended] {
            for (key, _) in map.entries().unwrap() {
                map.delete(&key).unwrap();
            }
        }
        for ((tuple, ifindex, out_ifindex), EndedSum { carried, port }) in &model.ended {
            let longs = [carried.packets, carried.bytes].map(u64::to_ne_bytes).concat();
            let value = [&longs[..], &port.to_be_bytes(), &[0; 6]].concat();
            self.ended.put(&ended_key(tuple, *ifindex, *out_ifindex), &value).unwrap();
        }
        for (place, values) in self.notes() {
            let value = model.notes.get(&place).map(Note::encode);
            if value.is_some() || values.iter().any(|byte| *byte != 0) {
                let value = value.unwrap_or_else(|| vec![0; NOTE_BYTES]);
                put_everywhere(&self.notes, &place.to_ne_bytes(), &value);
            }
        }
        for (number, tunnel) in &model.tunnels {
            self.tunnels.put(&number.to_ne_bytes(), &tunnel.encode()).unwrap();
        }
        put_everywhere(&self.handed, &[0; 4], &model.handed.encode());
        for place in self.fast_path.places.values() {
            self.traffic.put(&place.to_ne_bytes(), &vec![0; self.traffic.value_bytes()]).unwrap();
        }
        for (tuple, flow) in &model.flows {
            self.flows.put(&tuple.encode(), &flow.encode()).unwrap();
        }
    }

    fn traffic(&self) -> BTreeMap<u32, Traffic> {
        let observer = self.fast_path.observer().unwrap();
        let of = |ifindex| Some((ifindex, observer.traffic(ifindex).unwrap()?));
        [LINK, 21, 22, INGRESS].into_iter().filter_map(of).collect()
    }

    /// All places, with the values of each processor.
    fn notes(&self) -> Vec<(u32, Vec<u8>)> {
        let entries = self.notes.entries().unwrap().into_iter();
        entries.map(|(key, values)| (u32::from_ne_bytes(key.try_into().unwrap()), values)).collect()
    }

    /// What the maps hold. A packet has changed the values of one processor at most, which are those that differ from what
    /// was held before.
    fn written(&self, held: &Model) -> Written {
        let flows = self.flows.entries().unwrap().into_iter().map(|(key, value)| (key, Flow::decode(&value)));
        let note = |(place, values): (u32, Vec<u8>)| {
            let before = held.notes.get(&place).map_or_else(|| vec![0; NOTE_BYTES], Note::encode);
            let value = changed_value(&values, &before);
            value.iter().any(|byte| *byte != 0).then_some((place, value))
        };
        let tunnel = |number: &u32| {
            let value = self.tunnels.get(&number.to_ne_bytes()).unwrap().unwrap();
            (*number, TunnelTo::decode(&value))
        };
        let handed = self.handed.get(&[0; 4]).unwrap().unwrap();
        let ended = self.fast_path.observer().unwrap().count().unwrap().ended;
        Written {
            flows: flows.collect(),
            notes: self.notes().into_iter().filter_map(note).collect(),
            tunnels: held.tunnels.keys().map(tunnel).collect(),
            handed: Handed::decode(&changed_value(&handed, &held.handed.encode())),
            ended: in_order(ended),
        }
    }
}

// === impl Written ===

impl Written {
    fn of(model: &Model) -> Self {
        Self {
            flows: model.flows.iter().map(|(tuple, flow)| (tuple.encode(), *flow)).collect(),
            notes: model.notes.iter().map(|(place, note)| (*place, note.encode())).collect(),
            tunnels: model.tunnels.clone(),
            handed: model.handed,
            ended: in_order(model.ended.iter().map(|(key, sum)| ended_flows(key, sum)).collect()),
        }
    }
}

fn in_order(mut ended: Vec<EndedFlows>) -> Vec<EndedFlows> {
    ended.sort_by_key(|it| (it.tuple, it.ifindex, it.out_ifindex));
    ended
}

fn ended_flows((tuple, ifindex, out_ifindex): &(Tuple, u32, u32), sum: &EndedSum) -> EndedFlows {
    let (from_port, to_port) = tuple.ports;
    let tuple =
        layout::Tuple { from: tuple.from, to: tuple.to, from_port, to_port, protocol: tuple.protocol };
    let EndedSum { carried, port } = *sum;
    EndedFlows { tuple, ifindex: *ifindex, out_ifindex: *out_ifindex, carried, port }
}

fn ended_key(tuple: &Tuple, ifindex: u32, out_ifindex: u32) -> Vec<u8> {
    [tuple.encode(), [ifindex, out_ifindex].map(u32::to_ne_bytes).concat()].concat()
}

/// A value of each processor.
fn put_everywhere(map: &Map, key: &[u8], value: &[u8]) {
    map.put(key, &value.repeat(map.value_bytes() / value.len())).unwrap();
}

/// The value of the processor whose value differs from what all had, or that.
fn changed_value(values: &[u8], before: &[u8]) -> Vec<u8> {
    values.chunks_exact(before.len()).find(|value| *value != before).unwrap_or(before).to_vec()
}

/// A random packet between these addresses, mostly of a kind that the fast path takes.
fn random_headers(choices: &mut Choices) -> Headers {
    let is_v6 = choices.one_in(2);
    let (from, to) = (ip(choices.of(&ADDRESSES), is_v6), ip(choices.of(&ADDRESSES), is_v6));
    let transport = match choices.below(8) {
        0 => Transport::Other(132),
        1 | 2 => Transport::Udp,
        3 => Transport::Tcp(choices.of(&[0x01, 0x02, 0x04, 0x12, 0x11, 0x14])),
        _ => Transport::Tcp(choices.of(&[0x10, 0x18, 0x50, 0x90])),
    };
    Headers {
        from,
        to,
        ports: choices.of(&[(8080, 80), (80, 8080)]),
        transport,
        ttl: choices.of(&[64, 64, 64, 255, 2, 1, 0]),
        has_options: choices.one_in(12),
        fragment: choices.of(&[0, 0, 0, 0, 0, 0, 0x4000, 0x2000, 0x0001]),
        tos: choices.of(&[0, 0xb9, 0x03]),
        payload_bytes: choices.of(&[0, 1, 64, 350, 500]),
    }
}

/// A packet of IPv4 that a pod sends.
fn from_pod(to: &str, transport: Transport, ttl: u8) -> Headers {
    Headers {
        from: ip(POD, false),
        to: ip(to, false),
        ports: (8080, 80),
        transport,
        ttl,
        has_options: false,
        fragment: 0,
        tos: 0,
        payload_bytes: 64,
    }
}

/// Its flow in a random state, and that of its answers.
fn random_state(model: &mut Model, headers: &Headers, ifindex: u32, choices: &mut Choices) {
    let tuple = headers.tuple();
    model.readings = choices.of(&[6, 6, 6, 7]);
    for (tuple, share) in [(tuple, 5), (tuple.reversed(), 3)] {
        if choices.one_in(share) {
            continue;
        }
        let flow = Flow {
            epoch: model.epoch.wrapping_sub(u32::from(choices.one_in(6))),
            ifindex: if choices.one_in(6) { 55 } else { ifindex },
            out_ifindex: model.out_ifindex(&tuple, choices.one_in(6)),
            node: model.number(if [TUNNEL, TUNNEL_SIX].contains(&ifindex) && !choices.one_in(6) {
                tuple.from
            } else {
                tuple.to
            }),
            age_s: choices.of(&[0, 0, 0, 5, 30]),
            answered_epoch: choices.of(&[0, model.epoch]),
            from_place: choices.of(&[0, model.place(ifindex)]),
            begun: choices.of(&[
                None,
                Some((6, Side::Asks)),
                Some((6, Side::Asks)),
                Some((6, Side::Accepts)),
                Some((7, Side::Asks)),
            ]),
            packets: choices.of(&[0, 7]),
            bytes: 700,
        };
        // Another connection between these ends has ended before.
        let ports = choices.of(&[(0, tuple.ports.1), (tuple.ports.0, 0)]);
        if choices.one_in(2) {
            let key = (Tuple { ports, ..tuple }, flow.ifindex, flow.out_ifindex);
            let carried = Carried { packets: 3, bytes: 300 };
            model.ended.insert(key, EndedSum { carried, port: 4000 });
        }
        model.flows.insert(tuple, flow);
    }
    // A note of the packet, and one of another with the same place.
    if choices.one_in(2) {
        let other = Tuple { ports: (tuple.ports.0, tuple.ports.1 ^ 1), ..tuple };
        let note = Note {
            tuple: choices.of(&[tuple, tuple, tuple, other]),
            ifindex: choices.of(&[ifindex, ifindex, ifindex, 55]),
            epoch: model.epoch.wrapping_sub(u32::from(choices.one_in(4))),
            node: model.number(tuple.to),
            from_place: choices.of(&[0, model.place(ifindex)]),
            is_of_device: choices.one_in(2),
        };
        model.notes.insert(Note::place(&tuple), note);
    }
    let epoch = model.epoch;
    for tunnel in model.tunnels.values_mut() {
        let mut passed = || Passed {
            epoch: if choices.one_in(4) { epoch - 1 } else { epoch },
            age_s: choices.of(&[0, 0, 0, 5, 30]),
        };
        *tunnel = TunnelTo { sent: passed(), received: passed() };
    }
    let node = model.number(ip(choices.of(&[FAR, FAR, FAR_SIX, ROUTED]), false));
    model.handed = Handed { epoch: choices.of(&[0, epoch, epoch, epoch - 1]), node };
}

/// A packet at one of the programs, where it has come in and where it is, and what the maps hold.
struct Case {
    role: Role,
    ingress_ifindex: u32,
    ifindex: u32,
    frame: Frame,
    model: Model,
}

fn random_case(kernel: &Kernel, choices: &mut Choices) -> Case {
    let roles = [Role::Pod, Role::NetkitPod, Role::Uplink, Role::Uplink, Role::Learn, Role::Learn];
    let role = choices.of(&roles);
    let mut headers = random_headers(choices);
    let is_tunnelled = match role {
        Role::Uplink => choices.one_in(2),
        Role::Learn => choices.one_in(5),
        Role::Pod | Role::NetkitPod => false,
    };
    let is_in_v6 = choices.one_in(3);
    if role == Role::Uplink && !choices.one_in(4) {
        let is_v6 = headers.from.is_ipv6();
        (headers.from, headers.to) = (ip(if is_in_v6 { FAR_SIX } else { FAR }, is_v6), ip(POD, is_v6));
    }
    let is_into_tunnel = role == Role::Learn && !is_tunnelled && choices.one_in(2);
    if is_into_tunnel && !choices.one_in(4) {
        headers.to = ip(if is_in_v6 { FAR_SIX } else { FAR }, headers.from.is_ipv6());
    }
    let mut model = Model::new(choices.of(&[EPOCH, EPOCH, EPOCH, EPOCH + 3]), content(), &kernel.fast_path);
    let ifindex = match role {
        Role::Learn => INGRESS,
        _ if is_tunnelled => tunnel_ifindex(is_in_v6),
        _ => LINK,
    };
    random_state(&mut model, &headers, ifindex, choices);
    let mut frame = Frame::new(&headers);
    if is_tunnelled {
        let [remote, local, other] = [REMOTE, LOCAL, "192.0.2.9"].map(|it| ip(it, is_in_v6));
        let far = if choices.one_in(6) { other } else { remote };
        let vni = if choices.one_in(6) { 5 } else { 4096 };
        let tos = choices.of(&[0, 0, 0, 0xb9, 0xb9, 3]);
        frame = frame.in_vxlan(match role {
            Role::Learn => Outer { from: local, to: far, vni, tos },
            _ => Outer { from: far, to: if choices.one_in(6) { other } else { local }, vni, tos },
        });
    }
    if choices.one_in(20) {
        let len = choices.below(u32::try_from(frame.bytes.len()).unwrap());
        frame = frame.cut(len as usize);
    }
    if choices.one_in(20) {
        // It is for another machine.
        if let Some(byte) = frame.bytes.first_mut() {
            *byte = 2;
        }
    }
    let ingress_ifindex =
        if is_tunnelled && role == Role::Learn { choices.of(&[0, 0, INGRESS]) } else { INGRESS };
    Case {
        role,
        ingress_ifindex,
        ifindex: if is_into_tunnel { tunnel_ifindex(is_in_v6) } else { LINK },
        frame,
        model,
    }
}

/// Runs a program on a packet and compares what it does with the model.
fn compare(kernel: &Kernel, case: &mut Case, name: &str) -> Verdict {
    let Case { role, ingress_ifindex, ifindex, frame, model } = case;
    kernel.hold(model);
    let Some(ran) = kernel.run(*role, &frame.bytes, (*ingress_ifindex, *ifindex)) else {
        return Verdict::Left;
    };
    let written = kernel.written(model);
    // A kernel without TCX may lack it.
    let is_carried = Verdict::of(ran.verdict) == Verdict::Carried;
    model.changes_family = is_carried || kernel.fast_path.way() == Way::Tcx;
    let wanted = match role {
        Role::Pod | Role::NetkitPod => model.pod(frame, *ifindex),
        Role::Uplink => model.uplink(frame, *ifindex),
        Role::Learn => model.learn(frame, *ifindex, *ingress_ifindex),
    };
    assert_eq!(Verdict::of(ran.verdict), wanted.verdict, "{name}: {frame:?} {model:?}");
    frame::assert_same(&ran.frame, &wanted.frame, name);
    assert_eq!(written, Written::of(model), "{name}: {frame:?}");
    assert_eq!(kernel.traffic(), model.traffic, "{name}: {frame:?}");
    wanted.verdict
}

/// In a network namespace with the links at which programs run.
fn in_lab(test: impl FnOnce() + Send) {
    in_new_netns(|| {
        russet_testkit::run("ip", &["link", "set", "lo", "up"]);
        for index in [TUNNEL, TUNNEL_SIX].map(|it| it.to_string()) {
            let name = format!("tunnel{index}");
            russet_testkit::run("ip", &["link", "add", "name", &name, "index", &index, "type", "bridge"]);
        }
        test();
    });
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn the_programs_do_with_every_packet_what_the_model_does() {
    // policy.md section 4.4 (1)
    let seed = std::env::var("RUSSET_SEED").map_or(1, |seed| seed.parse().unwrap());
    in_lab(|| {
        let kernel = Kernel::new();
        let mut carried =
            BTreeMap::from([Role::Pod, Role::NetkitPod, Role::Uplink, Role::Learn].map(|role| (role, 0)));
        let (mut learnt, mut sent, mut received, mut ended) = (0, 0, 0, 0);
        for number in 0..PACKETS {
            let seed = seed + u64::from(number);
            let mut case = random_case(&kernel, &mut Choices(seed));
            let (flows, tunnels) = (case.model.flows.clone(), case.model.tunnels.clone());
            let before = case.model.ended.clone();
            let name = format!("RUSSET_SEED={seed} {:?}", case.role);
            let verdict = compare(&kernel, &mut case, &name);
            *carried.get_mut(&case.role).unwrap() += u32::from(verdict == Verdict::Carried);
            learnt += u32::from(case.role == Role::Learn && case.model.flows != flows);
            ended += u32::from(case.model.ended != before);
            let differs = |of: fn(&TunnelTo) -> Passed| {
                u32::from(case.model.tunnels.iter().any(|(number, it)| of(it) != of(&tunnels[number])))
            };
            (sent, received) = (sent + differs(|it| it.sent), received + differs(|it| it.received));
        }
        println!("carried {carried:?}, learnt {learnt}, sent {sent}, received {received}, ended {ended}");
        assert!(carried.values().all(|count| *count > PACKETS / 200), "{carried:?} carried");
        assert!(learnt > PACKETS / 100, "{learnt} learnt");
        assert!(ended > PACKETS / 500, "{ended} ended");
        assert!(sent > PACKETS / 500 && received > PACKETS / 500, "{sent} sent, {received} received");
    });
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn a_packet_of_ipv6_is_never_taken_for_one_of_ipv4() {
    in_lab(|| {
        let kernel = Kernel::new();
        let mut choices = Choices(1);
        let mut headers = random_headers(&mut choices);
        (headers.from, headers.to) = (ip(POD, false), ip(NEAR, false));
        (headers.transport, headers.ttl, headers.fragment) = (Transport::Udp, 64, 0);
        (headers.has_options, headers.payload_bytes) = (false, 64);
        let mut model = Model::new(kernel.epoch(), content(), &kernel.fast_path);
        let out_ifindex = model.out_ifindex(&headers.tuple(), false);
        let flow = Flow { epoch: model.epoch, ifindex: LINK, out_ifindex, ..Flow::default() };
        model.flows.insert(headers.tuple(), flow);
        let (role, frame) = (Role::Pod, Frame::new(&headers));
        let mut case = Case { role, ingress_ifindex: 0, ifindex: LINK, frame, model };
        assert_eq!(compare(&kernel, &mut case, "IPv4"), Verdict::Carried);
        let mapped = |address: IpAddr| match address {
            IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
            IpAddr::V6(_) => address,
        };
        (headers.from, headers.to) = (mapped(headers.from), mapped(headers.to));
        let frame = Frame::new(&headers);
        let ran = kernel.run(Role::Pod, &frame.bytes, (0, LINK)).unwrap();
        assert_eq!((Verdict::of(ran.verdict), ran.frame), (Verdict::Left, frame.bytes));
    });
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn suspended_flows_are_carried_again_once_they_are_resumed_and_learnt() {
    in_lab(|| {
        let kernel = Kernel::new();
        let epoch = kernel.fast_path.epoch.clone();
        let first = kernel.epoch();
        epoch.raise().unwrap();
        assert_eq!(kernel.epoch(), first + 1);
        epoch.suspend().unwrap();
        let seen = epoch.state().suspensions;
        epoch.suspend().unwrap();
        epoch.raise().unwrap();
        epoch.resume(seen).unwrap();
        assert_eq!(kernel.epoch(), SUSPENDED, "there was another suspension since");
        for number in 0..100 {
            let mut choices = Choices(number);
            let Case { role, ingress_ifindex, ifindex, frame, mut model } =
                random_case(&kernel, &mut choices);
            model.epoch = SUSPENDED;
            kernel.hold(&model);
            let Some(ran) = kernel.run(role, &frame.bytes, (ingress_ifindex, ifindex)) else { continue };
            assert_eq!((Verdict::of(ran.verdict), &ran.frame), (Verdict::Left, &frame.bytes));
        }
        epoch.resume(epoch.state().suspensions).unwrap();
        assert!(kernel.epoch() > first + 2, "what was learnt before is not known any more");
    });
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn what_is_paused_is_left_and_carried_again_and_its_counters_go_on() {
    in_lab(|| {
        let mut kernel = Kernel::new();
        let counted = |kernel: &Kernel| kernel.traffic().values().map(|it| it.from_pod.packets).sum::<u64>();
        let runs = |kernel: &Kernel| {
            let verdict = |to: &str| {
                let frame = Frame::new(&from_pod(to, Transport::Udp, 64));
                Verdict::of(kernel.run(Role::Pod, &frame.bytes, (0, LINK)).unwrap().verdict)
            };
            [NEAR, FAR, FAR_SIX, ROUTED].map(verdict)
        };
        let mut model = Model::new(kernel.epoch(), content(), &kernel.fast_path);
        for to in [NEAR, FAR, FAR_SIX, ROUTED] {
            let tuple = from_pod(to, Transport::Udp, 64).tuple();
            let (out_ifindex, node) = (model.out_ifindex(&tuple, false), model.number(tuple.to));
            let node = if to == NEAR { 0 } else { node };
            let (epoch, ifindex) = (model.epoch, LINK);
            let from_place = model.place(LINK);
            model
                .flows
                .insert(tuple, Flow { epoch, ifindex, out_ifindex, node, from_place, ..Flow::default() });
        }
        model.tunnels.insert(model.number(ip(FAR, false)), TunnelTo::passed(model.epoch));
        kernel.hold(&model);
        let (carried, left) = (Verdict::Carried, Verdict::Left);
        assert_eq!(runs(&kernel), [carried; 4]);
        let paused = |interfaces: &[u32], peers: &[IpAddr]| {
            let peers = peers.iter().copied().collect();
            let mut content = content();
            content.pause(&Paused { interfaces: interfaces.iter().copied().collect(), peers });
            content
        };
        for (interfaces, peers, wanted) in [
            (&[22][..], &[][..], [left, carried, carried, carried]),
            (&[TUNNEL], &[], [carried, left, carried, carried]),
            (&[TUNNEL_SIX], &[], [carried, carried, left, carried]),
            (&[], &[ip(REMOTE, false)], [carried, left, carried, carried]),
            (&[], &[ip(REMOTE, true)], [carried, carried, left, carried]),
            (&[UPLINK], &[ip("192.0.2.1", false)], [carried; 4]),
            (&[], &[], [carried; 4]),
        ] {
            let epoch = kernel.epoch();
            kernel.fast_path.apply(paused(interfaces, peers), usize::MAX).unwrap();
            assert_eq!(runs(&kernel), wanted, "{interfaces:?} {peers:?}");
            assert_eq!(kernel.epoch(), epoch, "other flows stay as they are");
        }
        // The fast path begins again from nothing, and what was counted does not.
        let before = counted(&kernel);
        assert!(before > 10);
        kernel.fast_path.is_unknown = true;
        kernel.fast_path.apply(content(), usize::MAX).unwrap();
        assert_eq!(counted(&kernel), before);
        let mut without = content();
        without.interfaces.remove(&LINK);
        kernel.fast_path.apply(without, usize::MAX).unwrap();
        assert_eq!((counted(&kernel), kernel.traffic().len()), (0, 3));
    });
}

#[test]
#[ignore = "kernel: bpf(2) needs root; measures"]
fn the_time_of_a_carried_packet() {
    in_lab(|| {
        // As long as its TTL lasts, a packet to a pod of this node is carried again as it is then.
        const TIMES: u32 = 200;
        const ROUNDS: u32 = 20_000;
        let time_of = |kernel: &Kernel| {
            let headers = from_pod(NEAR, Transport::Tcp(0x10), 255);
            let mut model = Model::new(kernel.epoch(), content(), &kernel.fast_path);
            let (epoch, from_place) = (model.epoch, model.place(LINK));
            let flow = Flow {
                epoch,
                ifindex: LINK,
                out_ifindex: 22,
                answered_epoch: epoch,
                from_place,
                ..Flow::default()
            };
            model.flows.insert(headers.tuple(), flow);
            kernel.hold(&model);
            let frame = Frame::new(&headers);
            let packet = Packet { frame: &frame.bytes, ..Packet::default() };
            let mut all: Vec<u64> = (0..ROUNDS / TIMES * 10)
                .map(|_| {
                    let (ran, time) = kernel.fast_path.programs[&Role::Pod]
                        .program()
                        .run_repeatedly(&packet, TIMES)
                        .unwrap();
                    assert_eq!(Verdict::of(ran.verdict), Verdict::Carried);
                    u64::try_from(time.as_nanos()).unwrap()
                })
                .collect();
            all.sort_unstable();
            (all[all.len() / 10], all[all.len() / 2])
        };
        let (new, mut other) = (Kernel::new(), Kernel::new());
        // Beside another object of the same program, such as that of another version.
        if let Ok(path) = std::env::var("RUSSET_OTHER_FAST_POD") {
            let object = Object::read(&std::fs::read(path).unwrap()).unwrap();
            let maps: Vec<&Map> =
                object.maps().iter().map(|it| other.fast_path.maps.get(&it.name).unwrap()).collect();
            let program = Program::load(&object, &maps).unwrap();
            other.fast_path.programs.insert(Role::Pod, Attachable::new(program, Way::probe()).unwrap());
        }
        let mut lines = Vec::new();
        for _ in 0..7 {
            lines.push((time_of(&new), time_of(&other)));
        }
        println!("(10th, median) ns of a carried packet: this one, the other: {lines:?}");
    });
}

#[test]
fn nodes_keep_their_numbers_and_free_ones_are_given_again() {
    let node = |number: u8| Node {
        via_ifindex: 3,
        mtu_bytes: 1450,
        out_ifindex: 2,
        next_hop: IpAddr::from([192, 0, 2, number]),
        vxlan: None,
    };
    let (a, b, c) = (node(1), node(2), node(3));
    let (first, freed) = numbered(&BTreeMap::new(), [&a, &b, &a].into_iter());
    assert_eq!((&first, freed), (&BTreeMap::from([(a, 1), (b, 2)]), vec![]));
    let (second, freed) = numbered(&first, [&b].into_iter());
    assert_eq!((&second, freed), (&BTreeMap::from([(b, 2)]), vec![1]));
    let (third, freed) = numbered(&second, [&b, &c].into_iter());
    assert_eq!((third, freed), (BTreeMap::from([(b, 2), (c, 1)]), vec![]));
}
