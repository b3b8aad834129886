//! Nodes as the agent makes them: its own controller and table of verdicts, with all guards or
//! without some.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::NodeName;
use russet_overlay::{
    Addresses, Affinity, AffinityState, Dialect, Encapsulation, Inputs, Pool, Reconciler, TunnelSenders,
    Underlay,
};
use russet_policy::{Entry, Verdicts};

use crate::overlay::node::{HOST_END, NEIGHBOUR_END, Node, WIRE_MTU, name};
use crate::{BoxError, Result};

/// What is in force besides routes and address translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guards {
    None,
    /// Verdicts alone, which no node has: what of the cost is theirs.
    Verdicts,
    /// Table `inet russet-policy`: verdicts, and what pods may send.
    Policy,
    /// Who may send tunnel packets.
    Tunnel,
    All,
}

const POOL: &str = "10.244.0.0/16";

/// What leaves of table `inet russet-policy` the verdicts alone.
const VERDICTS_ONLY: &str = "
flush chain inet russet-policy from-pod
add rule inet russet-policy from-pod iifname vmap @from-pods
add rule inet russet-policy from-pod counter drop
";

/// Routes, tunnel, tables; the pod is there.
pub fn start(node: &Node, guards: Guards) -> Result<()> {
    let inputs = inputs(node)?;
    let apply = || {
        let mut reconciler = Reconciler::new()?;
        let report = reconciler.reconcile(&inputs);
        if !report.errors.is_empty() {
            return Err(format!("{:?}", report.errors).into());
        }
        if !matches!(guards, Guards::Tunnel | Guards::All) && !reconciler.withdraw_guard()? {
            return Err("the tunnel had no guard".into());
        }
        if matches!(guards, Guards::Verdicts | Guards::Policy | Guards::All) {
            let neighbour = node.neighbour.as_ref().map(|_| name(NEIGHBOUR_END)).transpose()?;
            let ends: Vec<Entry> = [name(HOST_END)?].into_iter().chain(neighbour).map(Entry::allow).collect();
            Verdicts::open()?.reconcile(&ends)?;
        }
        Ok::<_, BoxError>(())
    };
    node.host.run_in_thread(apply)??;
    match guards {
        Guards::Verdicts => node.run("nft", &["-f", "-"], VERDICTS_ONLY),
        _ => Ok(()),
    }
}

fn inputs(node: &Node) -> Result<Inputs> {
    let node_name = |number: u8| NodeName::new(format!("node-{number}"));
    let mut nodes = BTreeMap::new();
    let mut affinities = Vec::new();
    for number in [1, 2] {
        let v4 = Addresses {
            underlay: Some(format!("192.168.77.{number}/24").parse()?),
            tunnel: Some(format!("10.244.{number}.1").parse()?),
            mac: None,
            probe: None,
        };
        nodes.insert(node_name(number)?, russet_overlay::Node { v4, ..Default::default() });
        affinities.push(Affinity {
            block: format!("10.244.{number}.0/26").parse()?,
            node: node_name(number)?,
            state: AffinityState::Confirmed,
        });
    }
    Ok(Inputs {
        node: node_name(node.number)?,
        dialect: Dialect::Native,
        tunnel: Default::default(),
        senders: TunnelSenders::default(),
        underlay: Underlay {
            ifindex: node.wire,
            mtu: WIRE_MTU,
            addresses: vec![format!("{}/24", node.address()).parse()?],
        },
        nodes,
        pools: vec![Pool { cidr: POOL.parse()?, encapsulation: Encapsulation::Vxlan, nat_outgoing: true }],
        affinities,
        borrowed: Vec::new(),
        own_pods: BTreeSet::new(),
        protected: BTreeSet::new(),
        probes: [None, None],
    })
}
