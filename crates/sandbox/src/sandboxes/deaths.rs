//! Detects the ends of the processes that hold sandboxes: one file descriptor becomes readable for
//! all of them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Sandboxes;
use crate::SandboxId;
use crate::error::SandboxError;

/// The watched processes.
pub(super) struct DeathWatcher {
    /// Readable when one has ended.
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    by_key: BTreeMap<u64, (SandboxId, OwnedFd)>,
}

/// Ends per epoll_wait; it is repeated until there are no more.
const AT_ONCE: usize = 32;

// === impl DeathWatcher ===

impl DeathWatcher {
    pub(super) fn new() -> Result<Self, SandboxError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC);
        let epoll =
            epoll.map_err(|errno| SandboxError::step("watch", "processes", io::Error::from(errno)))?;
        Ok(Self { epoll, watched: Mutex::default() })
    }

    /// Watches the process of a ready sandbox. If that fails, the death is detected when a client
    /// inspects the sandbox. Returns true if it has ended already and no event would follow: then
    /// the caller checks it.
    #[must_use]
    pub(super) fn watch(&self, id: &SandboxId, pid: Option<u32>) -> bool {
        let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) else { return false };
        let watched = || -> io::Result<()> {
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            let mut watched = self.watched();
            let key = watched.next;
            watched.next += 1;
            epoll::add(&self.epoll, &pidfd, EventData::new_u64(key), EventFlags::IN)?;
            watched.by_key.insert(key, (id.clone(), pidfd));
            Ok(())
        };
        let watched = watched();
        let has_ended =
            watched.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::SRCH.raw_os_error()));
        if let Err(error) = watched
            && !has_ended
        {
            tracing::warn!(sandbox = %id, %error, "the process of a sandbox cannot be watched");
        }
        has_ended
    }

    /// Stops watching: the end of a sandbox that is being removed is expected.
    pub(super) fn forget(&self, id: &SandboxId) {
        let is_anothers = |_: &u64, (watched, pidfd): &mut (SandboxId, OwnedFd)| {
            if watched == id {
                let _ = epoll::delete(&self.epoll, &*pidfd);
            }
            watched != id
        };
        self.watched().by_key.retain(is_anothers);
    }

    /// The sandboxes whose processes have ended since the last call: all of them, since only the
    /// next end makes the descriptor readable.
    fn take(&self) -> Vec<SandboxId> {
        let mut ended = Vec::new();
        loop {
            let mut events = Vec::with_capacity(AT_ONCE);
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spare = rustix::buffer::spare_capacity(&mut events);
            if let Err(errno) = epoll::wait(&self.epoll, spare, Some(&now)) {
                tracing::warn!(%errno, "the ends of processes cannot be waited for");
            }
            let mut watched = self.watched();
            for (id, pidfd) in events.iter().filter_map(|event| watched.by_key.remove(&event.data.u64())) {
                // By descriptor number: a child that is being started has a copy of the handle,
                // which would cause further events.
                let _ = epoll::delete(&self.epoll, &pidfd);
                ended.push(id);
            }
            if events.len() < AT_ONCE {
                return ended;
            }
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Sandboxes ===

impl Sandboxes {
    /// Readable when the process of a sandbox has ended; then call [`Self::notice_deaths`].
    pub fn deaths(&self) -> io::Result<OwnedFd> {
        self.deaths.epoll.as_fd().try_clone_to_owned()
    }

    /// Marks sandboxes whose process has ended as not ready, and notifies watchers. Blocks no
    /// longer than a state check.
    pub fn notice_deaths(&self) {
        self.deaths.take().iter().for_each(|id| self.look(id));
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;

    /// A pid that no process has: the kernel's PID_MAX_LIMIT is 2^22, and exclusive.
    const UNUSED_PID: u32 = 1 << 22;

    fn has_some(deaths: &DeathWatcher) -> bool {
        russet_linux::process::has_ended(&deaths.epoll, Duration::ZERO).unwrap()
    }

    #[test]
    fn concurrent_ends_are_each_reported_once() {
        let deaths = DeathWatcher::new().unwrap();
        let start = || Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut children: Vec<(SandboxId, Child)> =
            (0..=2 * AT_ONCE).map(|_| (SandboxId::random().unwrap(), start())).collect();
        for (id, child) in &children {
            assert!(!deaths.watch(id, Some(child.id())));
        }
        assert_eq!((deaths.take(), has_some(&deaths)), (vec![], false));
        let (forgotten, _) = &children[0];
        deaths.forget(forgotten);
        for (_, child) in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(has_some(&deaths));
        let mut expected: Vec<SandboxId> = children.into_iter().skip(1).map(|(id, _)| id).collect();
        let mut announced = deaths.take();
        expected.sort();
        announced.sort();
        assert_eq!((announced, has_some(&deaths)), (expected, false));
        assert_eq!(deaths.watched().by_key.len(), 0);
    }

    #[test]
    fn a_process_that_has_ended_before_it_is_watched_is_known_at_once() {
        let deaths = DeathWatcher::new().unwrap();
        assert!(deaths.watch(&SandboxId::random().unwrap(), Some(UNUSED_PID)));
        assert!(!deaths.watch(&SandboxId::random().unwrap(), None));
        assert_eq!(deaths.watched().by_key.len(), 0);
    }
}
