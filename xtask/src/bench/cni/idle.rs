//! What an agent costs that has 200 pods and nothing to do: memory, and processor time over a minute.

use std::time::{Duration, Instant};

use crate::bench::cni::scratch::until;
use crate::bench::cni::{AGENT, AGENT_ETCD, Run};
use crate::error::{Error, Result};

/// Attachments.
const PODS: usize = 200;
/// What came after the last ADD is over, and what was freed is given back.
const SETTLED: Duration = Duration::from_secs(7);
const WINDOW: Duration = Duration::from_secs(60);
const RSS_AT_MOST_MB: f64 = 12.0;
const CPU_AT_MOST_PERCENT: f64 = 0.2;

pub(super) fn measure(run: &mut Run<'_>) -> Result<()> {
    let wanted: Vec<_> = [AGENT, AGENT_ETCD].into_iter().filter(|name| run.options.wants(name)).collect();
    let sides = wanted.into_iter().map(|name| run.side(name)).collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for side in &sides {
        let pods = run.pods(PODS)?;
        side.fill(&pods)?;
        all.extend(pods);
    }
    until(SETTLED, || Ok(false))?;
    let agents = sides.iter().map(|side| {
        let agent = side.subject.agent.as_ref();
        agent.ok_or_else(|| Error::Found(format!("{} is no agent", side.name)))
    });
    let agents = agents.collect::<Result<Vec<_>>>()?;
    let before = agents.iter().map(|agent| agent.cpu()).collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    until(WINDOW, || Ok(false))?;
    let passed = begun.elapsed();
    for ((side, agent), before) in sides.iter().zip(&agents).zip(before) {
        let spent = agent.cpu()?.saturating_sub(before);
        let name = |what: &str| format!("{what}, {} with {PODS} pods", side.name);
        run.report.figure(name("rss"), agent.memory("VmRSS:")?, "MB", Some(RSS_AT_MOST_MB));
        run.report.figure(name("anon"), agent.memory("RssAnon:")?, "MB", None);
        let percent = spent.as_secs_f64() / passed.as_secs_f64() * 100.0;
        run.report.figure(name("idle"), percent, "% of a core", Some(CPU_AT_MOST_PERCENT));
    }
    run.world.remove(&all)
}
