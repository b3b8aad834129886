//! Waits until a descriptor is readable, without reading: the loop waits here, and the descriptor's
//! owner reads.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A duplicate descriptor of the same socket, registered with the runtime.
pub struct ReadableFd(AsyncFd<OwnedFd>);

// === impl ReadableFd ===

impl ReadableFd {
    /// Registers `socket`; must be called inside a runtime.
    #[expect(
        deprecated,
        reason = "it is unsafe under its new name, for types that lie about their descriptor; an OwnedFd does not"
    )]
    pub fn new(socket: &impl AsFd) -> io::Result<Self> {
        let own = socket.as_fd().try_clone_to_owned()?;
        AsyncFd::with_interest(own, Interest::READABLE).map(Self)
    }

    /// Resolves when there is something to read, or was since the last call. The caller must then
    /// read everything: this does not resolve again for the rest.
    pub async fn readable(&self) -> io::Result<()> {
        // Cleared before the owner reads, so that events that arrive meanwhile are not missed.
        self.0.readable().await.map(|mut ready| ready.clear_ready())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn data_that_arrives_while_the_owner_reads_makes_it_readable_again() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let readable_fd = ReadableFd::new(&near).unwrap();
        let mut inbox = [0; 8];
        for letter in [b"a", b"b"] {
            far.write_all(letter).unwrap();
            readable_fd.readable().await.unwrap();
            assert_eq!(near.read(&mut inbox).unwrap(), 1);
        }
        let silent = tokio::time::timeout(std::time::Duration::from_millis(20), readable_fd.readable()).await;
        assert!(silent.is_err(), "nothing was written");
    }
}
