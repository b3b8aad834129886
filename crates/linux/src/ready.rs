//! Waiting for a descriptor to become readable, until somebody says stop.
//!
//! The threads of the userspace udp backend (`overlay::udp`) wait here when there is nothing to do.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// A flag that wakes every [wait](Stop::wait), and stays up.
#[derive(Debug)]
pub struct Stop(OwnedFd);

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The descriptor is readable, or has an error that reading it will tell.
    Ready,
    /// The flag is up.
    Stopped,
}

// === impl Stop ===

impl Stop {
    /// A flag that is down.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Raises the flag. It can only fail when it is up already.
    pub fn raise(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until `fd` is readable or the flag is up; the flag comes first.
    pub fn wait(&self, fd: &impl AsFd) -> io::Result<Woken> {
        let mut both = [PollFd::new(fd, PollFlags::IN), PollFd::new(&self.0, PollFlags::IN)];
        loop {
            match poll(&mut both, None) {
                Ok(_) if !both[1].revents().is_empty() => return Ok(Woken::Stopped),
                Ok(_) if !both[0].revents().is_empty() => return Ok(Woken::Ready),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_wait_ends_with_data_and_with_the_flag_which_comes_first() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let stop = Stop::new().unwrap();
        near.write_all(b"x").unwrap();
        assert_eq!(stop.wait(&far).unwrap(), Woken::Ready);
        stop.raise();
        stop.raise();
        assert_eq!(stop.wait(&far).unwrap(), Woken::Stopped);
    }

    #[test]
    fn the_flag_ends_a_wait_that_is_under_way() {
        let (_near, far) = UnixStream::pair().unwrap();
        let stop = Stop::new().unwrap();
        let woken = std::thread::scope(|scope| {
            let waits = scope.spawn(|| stop.wait(&far).unwrap());
            stop.raise();
            waits.join().unwrap()
        });
        assert_eq!(woken, Woken::Stopped);
    }
}
