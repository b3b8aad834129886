//! Random bytes of the kernel's generator: for pauses that keep nodes out of step, and for UIDs. Nothing secret depends on them.

/// `N` random bytes. The generator does not fail once it is seeded, which is long before any network; should it, they are zero.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}
