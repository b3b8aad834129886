//! The agent where each sync takes 5 ms more, as on edge flash.

use std::path::Path;

use crate::bench::cni::agent::{self, Store};
use crate::bench::cni::goals::SLOW;
use crate::bench::cni::subject::{Binaries, Subject};
use crate::bench::cni::{AGENT, AGENT_ETCD, Run, Side};
use crate::error::Result;

/// Samples of a single ADD and DEL.
const TURNS: usize = 40;
/// Pods at once, and how often.
const BURST: (usize, usize) = (30, 4);

pub(super) fn measure(run: &mut Run<'_>) -> Result<()> {
    let wanted: Vec<_> = [AGENT, AGENT_ETCD].into_iter().filter(|name| run.options.wants(name)).collect();
    let slow = |name| move |run: &mut Run<'_>| run.side_of(name, subject);
    let sides = wanted.into_iter().map(|name| slow(name)(run)).collect::<Result<Vec<Side>>>()?;
    let mut all = (0..TURNS).map(|_| run.pods(sides.len())).collect::<Result<Vec<_>>>()?;
    run.turns(SLOW[0], &sides, &all)?;
    for side in &sides {
        run.quiet.wait();
        for _ in 0..BURST.1 {
            let pods = run.pods(BURST.0)?;
            run.burst(SLOW[1], side, &pods)?;
            all.push(pods);
        }
    }
    run.world.remove(&all.concat())
}

fn subject(name: &'static str, binaries: &Binaries, directory: &Path) -> Result<Subject> {
    let store = if name == AGENT { Store::SlowEmbedded } else { Store::SlowEtcd };
    agent::start(name, binaries, directory, store)
}
