//! Whether ADD and DEL cost more where 500 pods are already: a node with none and one with 500, in turns, one implementation after the other.

use crate::bench::cni::goals::{EMPTY, FILLED};
use crate::bench::cni::{AGENT, AGENT_ETCD, FLOOR, GO_BRIDGE, GO_PTP, Run};
use crate::error::Result;

/// Pods that are there already.
const PODS: usize = 500;
/// Samples of a single ADD and DEL on each node.
const TURNS: usize = 40;
/// How often so many pods at once.
const BURSTS: [(usize, usize); 2] = [(30, 4), (100, 3)];

pub(super) fn measure(run: &mut Run<'_>) -> Result<()> {
    for name in [AGENT, AGENT_ETCD, GO_BRIDGE, GO_PTP, FLOOR] {
        if run.options.wants(name) {
            compare(run, name)?;
            eprintln!("cni: {name} with {PODS} pods done");
        }
    }
    Ok(())
}

fn compare(run: &mut Run<'_>, name: &'static str) -> Result<()> {
    let (empty, full) = (run.side(name)?, run.side(name)?);
    let there = run.pods(PODS)?;
    full.fill(&there)?;
    let mut all = (0..TURNS).map(|_| run.pods(2)).collect::<Result<Vec<_>>>()?;
    run.named_turns(&[(EMPTY[0], &empty), (FILLED[0], &full)], &all)?;
    for (kind, (count, times)) in BURSTS.into_iter().enumerate() {
        run.quiet.wait();
        for _ in 0..times {
            let sides = [(EMPTY[kind + 1], &empty), (FILLED[kind + 1], &full)];
            for which in run.shuffler.order(sides.len()) {
                let pods = run.pods(count)?;
                let (ops, side) = sides[which];
                run.burst(ops, side, &pods)?;
                all.push(pods);
            }
        }
    }
    all.push(there);
    run.world.remove(&all.concat())?;
    run.world.drain()
}
