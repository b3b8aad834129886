//! Random bytes from the kernel's generator: [`random`] never fails and is for jitter and UIDs;
//! [`secret`] is for keys and may fail.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// `N` random bytes for purposes without secrets. The generator does not fail once it is seeded,
/// which happens long before any network exists; if it does, the bytes are zero.
pub fn random<const N: usize>() -> [u8; N] {
    secret().unwrap_or([0; N])
}

/// `N` random bytes for a key.
pub fn secret<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes, |rest| getrandom(rest, GetRandomFlags::empty()))?;
    Ok(bytes)
}

/// Fills all of `bytes` by calling `give`, which may return fewer bytes or be interrupted by a
/// signal.
fn fill(mut bytes: &mut [u8], mut give: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> io::Result<()> {
    while !bytes.is_empty() {
        match give(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(given) => bytes = bytes.get_mut(given..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        assert_ne!(secret::<32>().unwrap(), secret::<32>().unwrap());
        assert_ne!(random::<32>(), [0; 32]);
    }

    #[test]
    fn fill_continues_after_pieces_and_signals_and_stops_at_failures() {
        let mut answers = [Err(Errno::INTR), Ok(2), Err(Errno::INTR), Ok(1)].into_iter();
        let mut bytes = [0; 3];
        let give = |rest: &mut [u8]| {
            let answer = answers.next().unwrap();
            rest[..answer.unwrap_or(0)].fill(7);
            answer
        };
        fill(&mut bytes, give).unwrap();
        assert_eq!(bytes, [7; 3]);
        let error = fill(&mut bytes, |_| Err(Errno::NOSYS)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
    }
}
