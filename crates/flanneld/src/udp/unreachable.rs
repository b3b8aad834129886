//! The answer to a packet for a subnet without a peer: ICMP net unreachable, in the form of
//! flannel's proxy (flannel.md section 6.1).

use std::net::Ipv4Addr;

use super::checksum::Sum;
use super::packet::{ICMP, Ipv4, put, put_u16, set_header_checksum};

/// TTL of the answer: it only returns to a pod of this node.
const TTL: u8 = 8;
/// Bytes of the offender's payload that are quoted.
const QUOTED_BYTES: usize = 8;
const HEADER_BYTES: usize = 20;
const ICMP_BYTES: usize = 8;
/// The largest header that is answered: like the original, this excludes a header with 40 bytes of
/// options.
const OFFENDER_MAX_HEADER_BYTES: usize = 56;

/// The answer to `offender` from `own`, the base address of our lease; none if it must not be
/// answered.
///
/// RFC 1122 forbids answers to ICMP errors, to fragments behind the first and to senders that are
/// not a single host; the original never answers ICMP.
pub(super) fn unreachable(own: Ipv4Addr, offender: &[u8], ip: &Ipv4) -> Option<Vec<u8>> {
    let source = ip.source;
    let no_host = source.is_unspecified() || source.is_multicast() || source.is_broadcast();
    if ip.protocol == ICMP
        || ip.fragment_offset != 0
        || ip.header_bytes > OFFENDER_MAX_HEADER_BYTES
        || no_host
    {
        return None;
    }
    let quoted = offender.get(..ip.total_bytes.min(ip.header_bytes + QUOTED_BYTES))?;
    let total = HEADER_BYTES + ICMP_BYTES + quoted.len();
    let mut header = [0; HEADER_BYTES];
    header[0] = 0x45;
    put_u16(&mut header, 2, u16::try_from(total).ok()?);
    header[8] = TTL;
    header[9] = ICMP;
    put(&mut header, 12, own.octets());
    put(&mut header, 16, source.octets());
    set_header_checksum(&mut header);
    let mut icmp = [0; ICMP_BYTES];
    icmp[0] = 3; // Type 3: destination unreachable; code 0: net.
    let checksum = Sum::default().add(&icmp).add(quoted).checksum();
    put(&mut icmp, 2, checksum);
    Some([&header[..], &icmp, quoted].concat())
}

#[cfg(test)]
mod tests {
    use super::super::checksum::tests::by_the_book;
    use super::super::samples;
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 15, 0);

    fn answer(offender: &[u8]) -> Option<Vec<u8>> {
        unreachable(OWN, offender, &Ipv4::parse(offender).unwrap())
    }

    #[test]
    fn the_answer_has_56_bytes_and_quotes_header_and_eight_bytes() {
        let offender = samples::udp(b"a long enough payload");
        let answer = answer(&offender).unwrap();
        assert_eq!(answer.len(), 56);
        assert_eq!(answer[..10], [0x45, 0, 0, 56, 0, 0, 0, 0, 8, 1]);
        assert_eq!(answer[12..16], OWN.octets());
        assert_eq!(answer[16..20], samples::A.octets());
        assert_eq!(answer[20..22], [3, 0]);
        assert_eq!(answer[24..28], [0; 4]);
        assert_eq!(answer[28..], offender[..28]);
        assert_eq!(by_the_book(&answer[..20]), 0xffff);
        assert_eq!(by_the_book(&answer[20..]), 0xffff);
    }

    #[test]
    fn a_short_offender_is_quoted_whole() {
        assert_eq!(answer(&samples::ip(99, 1, b"abc")).unwrap().len(), 28 + 23);
    }

    #[test]
    fn icmp_fragments_large_headers_and_bad_sources_get_no_answer() {
        assert_eq!(answer(&samples::ip(ICMP, 1, &[8, 0, 0, 0, 0, 0, 0, 0])), None, "echo");
        let mut fragment = samples::udp(b"abc");
        fragment[7] = 1;
        assert_eq!(answer(&fragment), None, "a fragment behind the first");
        let mut full = samples::ip(17, 1, &[0; 60]);
        full[0] = 0x4f;
        assert_eq!(answer(&full), None, "a header of 60 bytes");
        for source in [[0; 4], [224, 0, 0, 1], [255; 4]] {
            let mut bad_source = samples::udp(b"abc");
            bad_source[12..16].copy_from_slice(&source);
            assert_eq!(answer(&bad_source), None, "from {source:?}");
        }
    }
}
