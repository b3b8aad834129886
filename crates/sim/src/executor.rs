//! Polls futures in an order that a seed decides, one step at a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use russet_store::sim::Rng;

/// A future that makes no progress by itself.
pub(crate) struct Task {
    /// The node that it dies with, and its lane there; none for the watcher.
    lane: Option<(usize, usize)>,
    future: Pin<Box<dyn Future<Output = ()>>>,
    awake: Arc<Awake>,
}

/// All tasks.
pub(crate) struct Executor {
    tasks: Vec<Task>,
    chance: Rng,
}

struct Awake(AtomicBool);

impl Wake for Awake {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// === impl Executor ===

impl Executor {
    pub(crate) fn new(seed: u64) -> Self {
        Self { tasks: Vec::new(), chance: Rng::new(seed) }
    }

    pub(crate) fn spawn(&mut self, lane: Option<(usize, usize)>, future: impl Future<Output = ()> + 'static) {
        let awake = Arc::new(Awake(AtomicBool::new(true)));
        self.tasks.push(Task { lane, future: Box::pin(future), awake });
    }

    /// Cancels all tasks of a node.
    pub(crate) fn kill(&mut self, node: usize) {
        self.tasks.retain(|task| task.lane.is_none_or(|(of, _)| of != node));
    }

    /// Cancels one lane of a node; returns false if it is done.
    pub(crate) fn hang_up(&mut self, lane: (usize, usize)) -> bool {
        let before = self.tasks.len();
        self.tasks.retain(|task| task.lane != Some(lane));
        self.tasks.len() < before
    }

    /// Whether any node has something to do.
    pub(crate) fn is_busy(&self) -> bool {
        self.tasks.iter().any(|task| task.lane.is_some())
    }

    /// Polls some task that can make progress; returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let awake: Vec<usize> = (0..self.tasks.len())
            .filter(|index| self.tasks[*index].awake.0.load(Ordering::Relaxed))
            .collect();
        if awake.is_empty() {
            return false;
        }
        let index = awake[self.chance.below(awake.len() as u64) as usize];
        let task = &mut self.tasks[index];
        task.awake.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(task.awake.clone());
        if let Poll::Ready(()) = task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            // The order of the others only affects random choices; it is kept all the same.
            drop(self.tasks.remove(index));
        }
        true
    }
}

/// Runs one future to its end, alone; None if it waits for another task.
pub(crate) fn alone<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let awake = Arc::new(Awake(AtomicBool::new(true)));
    let waker = Waker::from(awake.clone());
    while awake.0.swap(false, Ordering::Relaxed) {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
    }
    None
}
