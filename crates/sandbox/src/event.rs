//! What happens to sandboxes, for those who watch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::Sandbox;

/// One change of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Which sandbox, as it was then: it may be gone by the time that somebody reads this.
    pub sandbox: Sandbox,
    /// What became of it.
    pub kind: EventKind,
    /// When.
    pub at: SystemTime,
}

/// What became of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// Its engine has made it.
    Created,
    /// It is ready.
    Started,
    /// It is not ready any more.
    Stopped,
    /// Nothing is left of it.
    Deleted,
}

/// Those who watch.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Vec<Watcher>>);

/// One of them, from the side that tells.
#[derive(Debug)]
struct Watcher {
    events: Sender<Event>,
    /// Shared with who watches, and with nobody else: how far behind it is, and by its count whether it is still there.
    behind: Arc<AtomicUsize>,
}

/// What happens, for one who watches.
#[derive(Debug)]
pub struct Events {
    events: Receiver<Event>,
    behind: Arc<AtomicUsize>,
}

/// A watcher that is this far behind is let go: its channel ends, and it has to list.
const BACKLOG_MAX: usize = 4096;

// === impl Watchers ===

impl Watchers {
    pub(crate) fn watch(&self) -> Events {
        let (sender, events) = channel();
        let behind = Arc::new(AtomicUsize::new(0));
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // On a node where nothing happens nobody else would notice that they left.
        watchers.retain(Watcher::is_there);
        watchers.push(Watcher { events: sender, behind: Arc::clone(&behind) });
        Events { events, behind }
    }

    pub(crate) fn tell(&self, sandbox: Sandbox, kind: EventKind) {
        let event = Event { sandbox, kind, at: SystemTime::now() };
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.tell(&event));
    }
}

// === impl Watcher ===

impl Watcher {
    fn is_there(&self) -> bool {
        Arc::strong_count(&self.behind) > 1
    }

    /// False when it is not to be told anything any more.
    fn tell(&self, event: &Event) -> bool {
        if self.behind.load(Ordering::SeqCst) >= BACKLOG_MAX {
            tracing::warn!(backlog = BACKLOG_MAX, "a watcher of events is too slow and is let go");
            return false;
        }
        self.behind.fetch_add(1, Ordering::SeqCst);
        self.events.send(event.clone()).is_ok()
    }
}

// === impl Events ===

impl Events {
    /// The next one. `Disconnected` when this watcher was too slow, after everything that was told until then: it has to list, and to watch anew.
    pub fn wait(&self, patience: Duration) -> Result<Event, RecvTimeoutError> {
        let event = self.events.recv_timeout(patience)?;
        self.behind.fetch_sub(1, Ordering::SeqCst);
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{Config, SandboxId, State};

    fn sandbox() -> Sandbox {
        Sandbox {
            id: SandboxId::random().unwrap(),
            config: Config::default(),
            state: State::Ready,
            created_at: SystemTime::UNIX_EPOCH,
            netns: None,
            pid: None,
            addresses: Vec::new(),
            dir: PathBuf::new(),
            trouble: None,
        }
    }

    #[test]
    fn who_left_is_forgotten_although_nothing_happens() {
        let watchers = Watchers::default();
        for _ in 0..100 {
            drop(watchers.watch());
        }
        let _here = watchers.watch();
        assert_eq!(watchers.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn who_does_not_read_is_let_go_and_hears_of_it_after_what_it_was_told() {
        let watchers = Watchers::default();
        let (slow, fast) = (watchers.watch(), watchers.watch());
        for _ in 0..=BACKLOG_MAX {
            watchers.tell(sandbox(), EventKind::Created);
            fast.wait(Duration::ZERO).unwrap();
        }
        for _ in 0..BACKLOG_MAX {
            slow.wait(Duration::ZERO).unwrap();
        }
        assert_eq!(slow.wait(Duration::ZERO).unwrap_err(), RecvTimeoutError::Disconnected);
        assert_eq!(fast.wait(Duration::ZERO).unwrap_err(), RecvTimeoutError::Timeout);
    }
}
