//! STATUS, which runtimes call every few seconds: the whole process, and beside it the same process
//! without a request to the agent.

use crate::bench::cni::caller::Verb;
use crate::bench::cni::goals::{STATUS, VERSION};
use crate::bench::cni::scratch::until;
use crate::bench::cni::{AGENT, READY_LIMIT, Run};
use crate::error::{Error, Result};

/// Samples.
const TURNS: usize = 300;
/// Samples between two looks at the machine.
const STRETCH: usize = 100;

pub(super) fn measure(run: &mut Run<'_>) -> Result<()> {
    if !run.options.wants(AGENT) {
        return Ok(());
    }
    let side = run.side(AGENT)?;
    let pods = run.pods(1)?;
    if !until(READY_LIMIT, || Ok(side.call(Verb::Status, &pods).is_ok()))? {
        return side
            .call(Verb::Status, &pods)
            .map(drop)
            .and(Err(Error::Found("STATUS came late".to_owned())));
    }
    for turn in 0..TURNS {
        if turn % STRETCH == 0 {
            run.quiet.wait();
        }
        run.sample(STATUS, &side, Verb::Status, &pods)?;
        run.sample(VERSION, &side, Verb::Version, &pods)?;
    }
    run.world.remove(&pods)
}
