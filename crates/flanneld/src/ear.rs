//! Hears that a descriptor has something to say, without taking it: the loop waits here, and who owns the descriptor reads.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A second descriptor of the same socket, known to the runtime.
pub struct Ear(AsyncFd<OwnedFd>);

// === impl Ear ===

impl Ear {
    /// Listens to `socket`, inside a runtime.
    #[expect(
        deprecated,
        reason = "it is unsafe under its new name, for types that lie about their descriptor; an OwnedFd does not"
    )]
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let own = socket.as_fd().try_clone_to_owned()?;
        AsyncFd::with_interest(own, Interest::READABLE).map(Self)
    }

    /// Resolves when there is, or was since the last call, something to read. Everything has to be read then: what stays is not told of again.
    pub async fn hears(&self) -> io::Result<()> {
        // Cleared before the reading, so that nothing that comes meanwhile is missed.
        self.0.readable().await.map(|mut ready| ready.clear_ready())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn what_comes_while_it_is_read_is_heard_again() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let ear = Ear::of(&near).unwrap();
        let mut inbox = [0; 8];
        for letter in [b"a", b"b"] {
            far.write_all(letter).unwrap();
            ear.hears().await.unwrap();
            assert_eq!(near.read(&mut inbox).unwrap(), 1);
        }
        let silent = tokio::time::timeout(std::time::Duration::from_millis(20), ear.hears()).await;
        assert!(silent.is_err(), "nothing was said");
    }
}
