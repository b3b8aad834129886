//! The cost of packets and connections from pod to pod, by what judges them on the receiver's node.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use russet_addr::IfName;
use russet_model::Selector;
use russet_policy::{Policies, PolicySettings};
use russet_verdict::engine::Engine;
use russet_verdict::ir::{
    Action, Directions, Entity, HostUse, Order, Policy, PolicyId, PolicyKind, Rule, Tier, TierDefault,
};
use russet_verdict::scale::Scale;
use russet_verdict::world::{Config, Endpoint, EndpointKey, EndpointKind, Update};
use serde_json::{Value, json};

use crate::overlay::cores::{ONE, pin_all};
use crate::overlay::load::{self, Test};
use crate::overlay::node::Node;
use crate::overlay::stage::{self, Stage};
use crate::policy::percentile;
use crate::{BoxError, Result};

/// What judges packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Nothing; connections are not tracked.
    None,
    /// Nothing; connections are tracked, and established ones accepted by a rule.
    Tracked,
    /// One policy, by the table of decisions.
    One,
    /// That one among 10,000, of which 500 select pods of this node.
    Many,
    /// 10,000 rules one after the other that do not match, behind one for established connections.
    Linear,
}

/// Connections of a batch: a packet of each fits into the receiver's queue.
const FLOWS: usize = 250;
const BATCHES: usize = 30;
/// Packets of each connection of a batch after the first one.
const FURTHER: usize = 4;
const RULES: usize = 10_000;
const PORT: u16 = 9000;
const BYTES: usize = 64;

// === impl Way ===

impl FromStr for Way {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "none" => Self::None,
            "tracked" => Self::Tracked,
            "one" => Self::One,
            "many" => Self::Many,
            "linear" => Self::Linear,
            _ => return Err(format!("no way {text:?}").into()),
        })
    }
}

/// The nodes of a way, which are made when they are first asked for.
pub fn stage(stages: &mut BTreeMap<Way, Stage>, way: Way) -> Result<&Stage> {
    Ok(match stages.entry(way) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(set(way)?),
    })
}

/// Makes two nodes with a pod each; what is judged is judged on the second one.
pub fn set(way: Way) -> Result<Stage> {
    let stage = Stage::set(stage::Way::Routed)?;
    let node = &stage.nodes[1];
    match way {
        Way::None => {}
        Way::Tracked => node.run("nft", &["-f", "-"], &rules(0))?,
        Way::Linear => node.run("nft", &["-f", "-"], &rules(RULES))?,
        Way::One | Way::Many => {
            let engine = engine(way, stage.nodes[0].pod_address(), node.pod_address())?;
            node.host.with(|| decide(engine))??;
        }
    }
    Ok(stage)
}

/// A table with so many rules that match nothing.
fn rules(count: usize) -> String {
    let mut text =
        "table inet peer {\n chain postrouting {\n  type filter hook postrouting priority filter;\n  \
                    ct state established accept\n"
            .to_owned();
    for number in 0..count {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  ip daddr 172.{}.{}.1 drop", 16 + number / 256, number % 256);
    }
    text + " }\n}\n"
}

/// Has a node judge connections to its pod: one policy allows those of the client.
pub fn judge(node: &Node, client: Ipv4Addr) -> Result<()> {
    let engine = engine(Way::One, client, node.pod_address())?;
    node.host.with(|| decide(engine))?
}

fn decide(mut engine: Engine) -> Result<()> {
    let mut policies = Policies::open(PolicySettings::default())?;
    policies.apply(&engine.flush(), &BTreeSet::new(), Instant::now())?;
    Ok(())
}

/// An engine that knows both pods and a policy that allows the client everything at the server: what it
/// says is found by the fourth lookup of six.
fn engine(way: Way, client: Ipv4Addr, server: Ipv4Addr) -> Result<Engine> {
    let mut engine = Engine::default();
    let tier = Tier { order: Order::new(Some(1e6)), default_action: TierDefault::Deny };
    engine.apply(Update::Tier("default".into(), Some(tier)));
    let config = Config { node: "here".into(), allow_without_profile: true, ..Config::default() };
    engine.apply(Update::Config(config));
    if way == Way::Many {
        Scale::LARGE.updates().into_iter().for_each(|update| engine.apply(update));
    }
    for (name, address, local) in [("client", client, None), ("server", server, Some(IfName::new("russ0")?))]
    {
        let endpoint = Endpoint {
            kind: EndpointKind::Workload,
            namespace: None,
            name: name.into(),
            node: if local.is_some() { "here" } else { "there" }.into(),
            addresses: [address.into()].into(),
            labels: [("name".into(), name.into())].into(),
            profiles: Vec::new(),
            ports: Vec::new(),
            local,
            age: 0,
        };
        engine.apply(Update::Endpoint(EndpointKey(name.into()), Some(Arc::new(endpoint))));
    }
    let selector = |name: &str| Selector::parse(&format!("name == '{name}'"));
    let id = PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: None, name: "allow".into() };
    let source = Entity { selector: Some(selector("client")?), ..Entity::default() };
    let policy = Policy {
        name: "allow".into(),
        tier: "default".into(),
        order: Order::new(None),
        subject: selector("server")?,
        directions: Directions { ingress: true, egress: false },
        staged: None,
        host_use: HostUse::Normal,
        ingress: vec![Rule { source, ..Rule::any(Action::Allow, "rule") }],
        egress: Vec::new(),
        problems: Vec::new(),
        id: id.clone(),
    };
    engine.apply(Update::Policy(id, Some(Arc::new(policy))));
    Ok(engine)
}

/// The time of a packet from its sender's call until it is in the receiver's queue, all on one core: the
/// first packet of connections, and further ones of connections that were answered.
pub fn cost(stage: &Stage) -> Result<Value> {
    pin_all(&[ONE])?;
    let (from, to, address) = stage.ends();
    let sink = to.with(|| UdpSocket::bind((address, PORT)))??;
    sink.set_nonblocking(true)?;
    let _inside = from.enter()?;
    let (mut first, mut further, mut arrived) = (Vec::new(), Vec::new(), 0);
    for _ in 0..BATCHES {
        let mut sockets = Vec::with_capacity(FLOWS);
        for _ in 0..FLOWS {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(SocketAddrV4::new(address, PORT))?;
            sockets.push(socket);
        }
        first.push(pass(&sockets)?);
        arrived += answer(&sink)?;
        for _ in 0..FURTHER {
            further.push(pass(&sockets)?);
            arrived += answer(&sink)?;
        }
    }
    // What is dropped on the way is cheap. On a busy machine some packets may be late.
    if arrived < BATCHES * FLOWS {
        return Err(format!("only {arrived} packets arrived").into());
    }
    Ok(json!({ "first_ns": percentile(&mut first, 50), "further_ns": percentile(&mut further, 50) }))
}

/// A packet on each connection: the time of one in nanoseconds.
fn pass(sockets: &[UdpSocket]) -> Result<f64> {
    let packet = [0x55; BYTES];
    let begun = Instant::now();
    for socket in sockets {
        socket.send(&packet)?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / sockets.len() as f64)
}

/// Answers the packets that have arrived, so that their connections are established; how many there were.
fn answer(sink: &UdpSocket) -> Result<usize> {
    let (mut buffer, mut count) = ([0; BYTES], 0);
    while let Ok((_, from)) = sink.recv_from(&mut buffer) {
        sink.send_to(&buffer, from)?;
        count += 1;
    }
    Ok(count)
}

/// The time of a connection: connect, one byte there and back, reset.
pub fn connect(stage: &Stage) -> Result<Value> {
    let sample = load::sample(stage, Test::Connect)?;
    Ok(json!({ "us": sample.value }))
}
