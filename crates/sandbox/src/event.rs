//! Events of sandboxes, for watchers.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use crate::Sandbox;

/// One change of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The sandbox at that time: it may be gone when the event is read.
    pub sandbox: Sandbox,
    pub kind: EventKind,
    pub at: SystemTime,
}

/// The kind of a change.
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

#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Vec<Watcher>>);

/// The sending side of one watcher.
#[derive(Debug)]
struct Watcher {
    events: SyncSender<Arc<Event>>,
    /// Whether the receiving side still exists.
    receiver: Weak<()>,
}

/// The events for one watcher.
#[derive(Debug)]
pub struct Events {
    events: Receiver<Arc<Event>>,
    /// Dropped with the events.
    _receiver: Arc<()>,
}

/// A watcher with a longer backlog is dropped: its channel ends, and it has to list.
const BACKLOG_MAX: usize = 4096;

// === impl Watchers ===

impl Watchers {
    pub(crate) fn watch(&self) -> Events {
        let (sender, events) = sync_channel(BACKLOG_MAX);
        let receiver = Arc::new(());
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without events nothing else would detect dropped watchers.
        watchers.retain(Watcher::is_there);
        watchers.push(Watcher { events: sender, receiver: Arc::downgrade(&receiver) });
        Events { events, _receiver: receiver }
    }

    pub(crate) fn send(&self, sandbox: Sandbox, kind: EventKind) {
        let event = Arc::new(Event { sandbox, kind, at: SystemTime::now() });
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.send(&event));
    }
}

// === impl Watcher ===

impl Watcher {
    fn is_there(&self) -> bool {
        self.receiver.strong_count() > 0
    }

    /// Returns false if the watcher gets no further events.
    fn send(&self, event: &Arc<Event>) -> bool {
        let sent = self.events.try_send(Arc::clone(event));
        if let Err(TrySendError::Full(_)) = sent {
            tracing::warn!(backlog = BACKLOG_MAX, "a watcher of events is too slow and is let go");
        }
        sent.is_ok()
    }
}

// === impl Events ===

impl Events {
    /// The next event. `Disconnected` if this watcher was too slow, after everything that was sent
    /// until then: it has to list, and to watch again.
    pub fn wait(&self, timeout: Duration) -> Result<Event, RecvTimeoutError> {
        self.events.recv_timeout(timeout).map(Arc::unwrap_or_clone)
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
    fn a_dropped_watcher_is_removed_without_events() {
        let watchers = Watchers::default();
        for _ in 0..100 {
            drop(watchers.watch());
        }
        let _here = watchers.watch();
        assert_eq!(watchers.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_slow_watcher_is_disconnected_after_its_backlog() {
        let watchers = Watchers::default();
        let (slow, fast) = (watchers.watch(), watchers.watch());
        for _ in 0..=BACKLOG_MAX {
            watchers.send(sandbox(), EventKind::Created);
            fast.wait(Duration::ZERO).unwrap();
        }
        for _ in 0..BACKLOG_MAX {
            slow.wait(Duration::ZERO).unwrap();
        }
        assert_eq!(slow.wait(Duration::ZERO).unwrap_err(), RecvTimeoutError::Disconnected);
        assert_eq!(fast.wait(Duration::ZERO).unwrap_err(), RecvTimeoutError::Timeout);
    }
}
