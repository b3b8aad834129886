//! Whether bulk work on the kernel holds up an ADD: 15,000 routes that are programmed again, and the links of 200 pods that are deleted.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::bench::cni::agent::{self, Running, Store};
use crate::bench::cni::caller::Verb;
use crate::bench::cni::crowd::{self, BLOCKS};
use crate::bench::cni::goals::{CALM, GROUP, ROUTES};
use crate::bench::cni::scratch::{Sandbox, until};
use crate::bench::cni::subject::{Binaries, Subject};
use crate::bench::cni::{AGENT_ETCD, Run, Side};
use crate::bench::proc;
use crate::error::{Error, Result};
use crate::process;

/// ADDs while nothing else happens.
const CALM_ADDS: usize = 60;
/// How often all routes are removed.
const FLUSHES: usize = 4;
/// How often the links of so many pods are deleted.
const GROUPS: usize = 4;
const GROUP_PODS: usize = 200;
/// ADDs while one piece of bulk work lasts; it ends earlier.
const BUSY_ADDS: usize = 120;
/// The agent looks again after its start.
const SETTLED: Duration = Duration::from_secs(2);
/// Programming takes a fraction of a second.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn measure(run: &mut Run<'_>) -> Result<()> {
    if !run.options.wants(AGENT_ETCD) {
        return Ok(());
    }
    let side = run.side_of(AGENT_ETCD, subject)?;
    side.node.inside(|| programmed(BLOCKS))?;
    // Those that came late.
    until(SETTLED, || Ok(false))?;
    let mut all = run.pods(CALM_ADDS)?;
    run.quiet.wait();
    for pod in &all {
        run.sample(CALM, &side, Verb::Add, std::slice::from_ref(pod))?;
    }
    for turn in 0..FLUSHES {
        all.extend(flush(run, &side, turn)?);
    }
    for _ in 0..GROUPS {
        all.extend(group(run, &side)?);
    }
    run.world.remove(&all)?;
    run.world.drain()
}

fn subject(name: &'static str, binaries: &Binaries, directory: &Path) -> Result<Subject> {
    agent::start(name, binaries, directory, Store::CrowdedEtcd)
}

/// Removes the routes, and adds pods until the agent has put all of them back.
fn flush(run: &mut Run<'_>, side: &Side, turn: usize) -> Result<Vec<Sandbox>> {
    let pods = run.pods(BUSY_ADDS)?;
    run.quiet.wait();
    let count = BLOCKS + turn;
    let others = side.node.inside(|| Ok(routes()?.saturating_sub(count)))?;
    side.node.inside(|| {
        process::run(Command::new("ip").args(["route", "flush", "via", crowd::PEER]))?;
        let url = side.subject.etcd.as_ref().map(|etcd| etcd.url.as_str());
        // An event makes the agent compare.
        crowd::claim_one(url.ok_or_else(|| Error::Found("no etcd".to_owned()))?, count)
    })?;
    let mut used = 0;
    for pod in &pods {
        // Each pod has a route, too.
        if side.node.inside(|| Ok(routes()? > others + count + used))? {
            break;
        }
        run.sample(ROUTES, side, Verb::Add, std::slice::from_ref(pod))?;
        used += 1;
    }
    eprintln!("cni: {used} pods while {count} routes were programmed");
    side.node.inside(|| programmed(others + count + used + 1))?;
    Ok(pods)
}

/// Deletes many pods, and adds others until the links of the former are gone.
fn group(run: &mut Run<'_>, side: &Side) -> Result<Vec<Sandbox>> {
    let (mut pods, doomed) = (run.pods(BUSY_ADDS)?, run.pods(GROUP_PODS)?);
    side.fill(&doomed)?;
    run.quiet.wait();
    side.call(Verb::Del, &doomed)?;
    let mut used = 0;
    for pod in &pods {
        run.sample(GROUP, side, Verb::Add, std::slice::from_ref(pod))?;
        used += 1;
        // They are listed until their deletion begins, which the last of these ADDs meets.
        if !side.node.inside(Running::has_doomed)? {
            break;
        }
    }
    eprintln!("cni: {used} pods while the links of {GROUP_PODS} were deleted");
    side.settle()?;
    pods.extend(doomed);
    Ok(pods)
}

/// Waits until the calling thread's namespace has so many routes.
fn programmed(count: usize) -> Result<()> {
    match until(LIMIT, || Ok(routes()? >= count))? {
        true => Ok(()),
        false => Err(Error::Found(format!("only {} of {count} routes are programmed", routes()?))),
    }
}

/// All of the main table's.
fn routes() -> Result<usize> {
    proc::prefixes("thread-self")
}
