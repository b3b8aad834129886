//! Makes and removes many sandboxes concurrently, and measures each.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Cri, v1};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The number of sandboxes, and the time of each.
struct Phase<T> {
    answers: Vec<T>,
    each: Vec<Duration>,
    all: Duration,
}

/// Makes `count` sandboxes, `at_once` concurrently, and removes them; returns the time of each and
/// of all, in microseconds. After a failure it removes its sandboxes. Fails if the server has
/// sandboxes already, since leftovers could not be detected then.
pub fn burst(
    cri: &Cri,
    count: usize,
    at_once: usize,
    pod: impl Fn(usize) -> v1::PodSandboxConfig + Sync,
) -> Result<Value> {
    let before = cri.sandboxes()?.len();
    if before != 0 {
        return Err(format!("the server has {before} sandboxes already; nothing was started").into());
    }
    let made = Mutex::new(Vec::new());
    let report = make_and_end(cri, count, at_once, |n| {
        let id = cri.run_config(pod(n))?;
        made.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        Ok(id)
    });
    if report.is_err() {
        // The first error is the cause; sandboxes that cannot be removed are in the server's list.
        for id in made.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let _ = cri.remove(&id);
        }
    }
    report
}

fn make_and_end(
    cri: &Cri,
    count: usize,
    at_once: usize,
    make: impl Fn(usize) -> super::Result<String> + Sync,
) -> Result<Value> {
    let made = phase(count, at_once, make)?;
    let ended = phase(count, at_once, |n| {
        let id = made.answers.get(n).map_or("", String::as_str);
        cri.stop(id).and_then(|()| cri.remove(id))
    })?;
    let left = cri.sandboxes()?.len();
    if left != 0 {
        return Err(format!("{left} sandboxes are left").into());
    }
    Ok(json!({ "run": made.json(), "end": ended.json() }))
}

/// Runs `work` for 0 to `count`, `at_once` concurrently. The first failure stops it.
fn phase<T: Send>(
    count: usize,
    at_once: usize,
    work: impl Fn(usize) -> super::Result<T> + Sync,
) -> Result<Phase<T>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
    let began = Instant::now();
    let worker = || -> super::Result<()> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return Ok(());
            }
            let began = Instant::now();
            let answer = work(n).inspect_err(|_| next.store(count, Ordering::Relaxed))?;
            let took = began.elapsed();
            done.lock().unwrap_or_else(PoisonError::into_inner).push((n, answer, took));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        let ends = workers.into_iter().map(|it| it.join().map_err(|_| "a worker panicked"));
        ends.collect::<Vec<_>>().into_iter().try_for_each(|end| -> Result<()> { Ok(end??) })
    })?;
    let all = began.elapsed();
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(n, _, _)| *n);
    let (answers, each) = done.into_iter().map(|(_, answer, took)| (answer, took)).unzip();
    Ok(Phase { answers, each, all })
}

// === impl Phase ===

impl<T> Phase<T> {
    fn json(&self) -> Value {
        let each: Vec<u128> = self.each.iter().map(Duration::as_micros).collect();
        json!({ "each_us": each, "all_us": self.all.as_micros() })
    }
}
