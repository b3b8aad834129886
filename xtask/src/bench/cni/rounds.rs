//! ADD and DEL of one pod, of 30 and of 100 at once, by all subjects in turns.

use crate::bench::cni::goals::{AT_ONCE_30, AT_ONCE_100, SINGLE};
use crate::bench::cni::scratch::Sandbox;
use crate::bench::cni::{Run, SUBJECTS, Side};
use crate::error::Result;

/// Samples of a single ADD and DEL that each implementation gives in a round: with 5 rounds 100, so that there is a 99th percentile.
const TURNS: usize = 20;
/// Pods in bursts.
const BURSTS: [(usize, [&str; 2]); 2] = [(30, AT_ONCE_30), (100, AT_ONCE_100)];

pub(super) fn measure(run: &mut Run<'_>) -> Result<()> {
    let wanted: Vec<_> = SUBJECTS.into_iter().filter(|name| run.options.wants(name)).collect();
    let sides = wanted.into_iter().map(|name| run.side(name)).collect::<Result<Vec<_>>>()?;
    for number in 1..=run.options.rounds {
        round(run, &sides)?;
        eprintln!("cni: round {number} of {} done", run.options.rounds);
    }
    Ok(())
}

fn round(run: &mut Run<'_>, sides: &[Side]) -> Result<()> {
    let mut all: Vec<Vec<Sandbox>> = Vec::new();
    for _ in 0..TURNS {
        all.push(run.pods(sides.len())?);
    }
    run.turns(SINGLE, sides, &all)?;
    for (count, ops) in BURSTS {
        let pods = (0..sides.len()).map(|_| run.pods(count)).collect::<Result<Vec<_>>>()?;
        for which in run.shuffler.order(sides.len()) {
            run.quiet.wait();
            run.burst(ops, &sides[which], &pods[which])?;
        }
        all.extend(pods);
    }
    run.world.remove(&all.concat())?;
    run.world.drain()
}
