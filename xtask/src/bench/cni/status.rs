//! STATUS, which runtimes call every few seconds: the whole process, beside it the same process
//! without a request to the agent, and then while clients read the agent's metrics without pause.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::bench::cni::caller::Verb;
use crate::bench::cni::goals::{STATUS, STATUS_SCRAPED, VERSION};
use crate::bench::cni::scratch::{Sandbox, until};
use crate::bench::cni::{AGENT, READY_LIMIT, Run, Side};
use crate::error::{Error, Result};

/// Samples.
const TURNS: usize = 300;
/// Samples between two looks at the machine.
const STRETCH: usize = 100;
/// One less than the connections that the agent serves at once (docs/limits.md).
const CLIENTS: usize = 31;
/// The agent's default for `--health-address`.
const METRICS_ADDRESS: &str = "127.0.0.1:9471";

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
    beside_clients(run, &side, &pods)?;
    run.world.remove(&pods)
}

/// The same while [`CLIENTS`] read the metrics, each on one connection after the other.
fn beside_clients(run: &mut Run<'_>, side: &Side, pods: &[Sandbox]) -> Result<()> {
    let (stop, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let read = || side.node.inside(|| read_metrics(&stop, &answers));
    run.quiet.wait();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(read)).collect();
        let started = until(READY_LIMIT, || Ok(answers.load(Ordering::Relaxed) >= CLIENTS));
        let measured = started.and_then(|started| match started {
            true => {
                (0..TURNS).try_for_each(|_| run.sample(STATUS_SCRAPED, side, Verb::Status, pods).map(drop))
            }
            false => Err(Error::Found(format!("{METRICS_ADDRESS} does not serve {CLIENTS} clients"))),
        });
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| Error::Found("a client panicked".to_owned()))??;
        }
        measured
    })
}

/// Reads `/metrics` until `stop`. The agent may refuse a connection when all of its places are taken.
fn read_metrics(stop: &AtomicBool, answers: &AtomicUsize) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let answer = get_metrics();
        if answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200")) {
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn get_metrics() -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(METRICS_ADDRESS)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}
