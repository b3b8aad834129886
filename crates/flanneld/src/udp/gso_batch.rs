//! Datagrams for one peer, gathered until they go out in one call.
//!
//! All have one size except the last, which may be shorter: the kernel can segment only such a
//! batch.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;

use russet_linux::udp::{DatagramBatch, GSO_MAX_BYTES, GSO_MAX_DATAGRAMS, UdpSocket};

/// Datagrams to be sent. Their bodies are ranges of the memory that [`GsoBatch::send`] gets.
#[derive(Debug)]
pub(super) struct GsoBatch {
    to: Ipv4Addr,
    /// The first bytes of every datagram.
    heads: Vec<u8>,
    datagrams: Vec<Datagram>,
    bytes: usize,
}

#[derive(Debug)]
struct Datagram {
    head: Range<usize>,
    body: Range<usize>,
    /// Whether the head also precedes the body in memory.
    is_whole: bool,
}

const PIECES_EACH: usize = 2;

// === impl GsoBatch ===

impl GsoBatch {
    pub(super) fn new() -> Self {
        let datagrams = Vec::with_capacity(GSO_MAX_DATAGRAMS);
        Self { to: Ipv4Addr::UNSPECIFIED, heads: Vec::new(), datagrams, bytes: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Whether a datagram of `bytes` for `to` can be sent in the same call.
    pub(super) fn takes(&self, to: Ipv4Addr, bytes: usize) -> bool {
        let (Some(first), Some(last)) = (self.datagrams.first(), self.datagrams.last()) else { return true };
        to == self.to
            && last.bytes() == first.bytes()
            && bytes <= first.bytes()
            && self.datagrams.len() < GSO_MAX_DATAGRAMS
            && self.bytes + bytes <= GSO_MAX_BYTES
    }

    /// Adds a datagram that [fits](Self::takes): `head` appends its first bytes and returns the
    /// range of the others.
    pub(super) fn push(&mut self, to: Ipv4Addr, head: impl FnOnce(&mut Vec<u8>) -> Range<usize>) {
        let at = self.heads.len();
        let body = head(&mut self.heads);
        self.add(to, Datagram { head: at..self.heads.len(), body, is_whole: false });
    }

    /// Adds a datagram that fits and is in one piece at this range of `memory`. Its first
    /// `head_bytes` are copied, so that it has two pieces like all others.
    pub(super) fn push_whole(&mut self, to: Ipv4Addr, memory: &[u8], place: Range<usize>, head_bytes: usize) {
        let (at, body) = (self.heads.len(), place.start + head_bytes..place.end);
        self.heads.extend_from_slice(part(memory, place.start..body.start));
        self.add(to, Datagram { head: at..self.heads.len(), body, is_whole: true });
    }

    fn add(&mut self, to: Ipv4Addr, datagram: Datagram) {
        self.to = to;
        self.bytes += datagram.bytes();
        self.datagrams.push(datagram);
    }

    /// Sends all datagrams to the peer's `port`; the batch is empty afterwards, also after an
    /// error.
    pub(super) fn send(&mut self, memory: &[u8], port: u16, socket: &UdpSocket) -> io::Result<()> {
        let Some(first) = self.datagrams.first() else { return Ok(()) };
        if let [single] = self.datagrams.as_slice() {
            let whole = single.body.start.saturating_sub(single.head.len())..single.body.end;
            let pieces: &[IoSlice<'_>] = match single.is_whole {
                true => &[IoSlice::new(part(memory, whole))],
                false => &single.pieces(&self.heads, memory),
            };
            let gso_batch = DatagramBatch { pieces, pieces_each: pieces.len(), datagram_bytes: 0 };
            let sent = socket.send(SocketAddrV4::new(self.to, port), gso_batch);
            self.clear();
            return sent;
        }
        let mut pieces = [IoSlice::new(&[]); PIECES_EACH * GSO_MAX_DATAGRAMS];
        for (pair, datagram) in pieces.as_chunks_mut::<PIECES_EACH>().0.iter_mut().zip(&self.datagrams) {
            *pair = datagram.pieces(&self.heads, memory);
        }
        let gso_batch = DatagramBatch {
            pieces: pieces.get(..PIECES_EACH * self.datagrams.len()).unwrap_or_default(),
            pieces_each: PIECES_EACH,
            datagram_bytes: u16::try_from(first.bytes()).unwrap_or(u16::MAX),
        };
        let sent = socket.send(SocketAddrV4::new(self.to, port), gso_batch);
        self.clear();
        sent
    }

    fn clear(&mut self) {
        self.heads.clear();
        self.datagrams.clear();
        self.bytes = 0;
    }
}

// === impl Datagram ===

impl Datagram {
    fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    fn pieces<'a>(&self, heads: &'a [u8], memory: &'a [u8]) -> [IoSlice<'a>; PIECES_EACH] {
        [IoSlice::new(part(heads, self.head.clone())), IoSlice::new(part(memory, self.body.clone()))]
    }
}

/// The bytes of a range that the sender gave together with this memory; a packet without them is
/// better than the end of all packets.
fn part(memory: &[u8], range: Range<usize>) -> &[u8] {
    memory.get(range).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    /// The number of datagrams of these sizes that go out together.
    fn taken(sizes: impl IntoIterator<Item = usize>) -> usize {
        let mut batch = GsoBatch::new();
        for bytes in sizes {
            if !batch.takes(TO, bytes) {
                break;
            }
            batch.push(TO, |head| {
                head.extend([0; 20]);
                0..bytes - 20
            });
        }
        batch.len()
    }

    #[test]
    fn datagrams_of_one_size_go_together_and_a_shorter_one_is_the_last() {
        assert_eq!(taken([100, 100, 100, 60, 60]), 4);
        assert_eq!(taken([100, 100, 101]), 2);
        assert_eq!(taken(vec![30; 100]), GSO_MAX_DATAGRAMS);
        assert_eq!(taken(vec![1472; 100]), 44);
    }

    #[test]
    fn a_datagram_to_another_peer_goes_into_the_next_batch() {
        let mut batch = GsoBatch::new();
        batch.push(TO, |_| 0..100);
        assert!(batch.takes(TO, 100));
        assert!(!batch.takes(Ipv4Addr::LOCALHOST, 100));
    }
}
