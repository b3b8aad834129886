use std::net::Ipv4Addr;

use super::*;
use crate::random::random;

const ID: EchoId = EchoId { identifier: 0x1234, sequence: 7, token: [0xa5; TOKEN_BYTES] };

/// An IP header of `family` for ICMP, of the least length.
fn header(family: Family) -> Vec<u8> {
    let mut header = vec![0; ip_header_bytes(family)];
    match family {
        Family::V4 => (header[0], header[9]) = (0x45, IPPROTO_ICMP),
        Family::V6 => (header[0], header[6]) = (0x60, IPPROTO_ICMPV6),
    }
    header
}

/// A message as the socket passes it on.
fn passed(family: Family, message: &[u8]) -> Vec<u8> {
    match family {
        Family::V4 => [&header(family), message].concat(),
        Family::V6 => message.to_vec(),
    }
}

fn reply(family: Family) -> Vec<u8> {
    let mut message = request(family, &ID, 0);
    message[0] = if family == Family::V4 { ICMP_ECHO_REPLY } else { ICMP6_ECHO_REPLY };
    passed(family, &message)
}

fn error(family: Family, kind: u8, code: u8, word: u32) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(word.to_be_bytes());
    message.extend(header(family));
    message.extend(request(family, &ID, 0));
    passed(family, &message)
}

fn read(family: Family, bytes: &[u8]) -> Option<(EchoId, Answer)> {
    answer(family, bytes, bytes.len())
}

#[test]
fn an_answer_and_each_error_are_recognised() {
    for family in Family::BOTH {
        let size = Answer::Echo { packet_bytes: packet_min_bytes(family) };
        assert_eq!(read(family, &reply(family)), Some((ID, size)));
    }
    for (family, kind, code, word, expected) in [
        (Family::V4, ICMP_UNREACHABLE, 4, 1400, PathError::TooBig { mtu_bytes: 1400 }),
        (Family::V4, ICMP_UNREACHABLE, 13, 0, PathError::Prohibited),
        (Family::V4, ICMP_UNREACHABLE, 1, 0, PathError::Unreachable),
        (Family::V6, ICMP6_TOO_BIG, 0, 1280, PathError::TooBig { mtu_bytes: 1280 }),
        (Family::V6, ICMP6_UNREACHABLE, 1, 0, PathError::Prohibited),
        (Family::V6, ICMP6_UNREACHABLE, 0, 0, PathError::Unreachable),
    ] {
        let found = read(family, &error(family, kind, code, word));
        assert_eq!(found, Some((ID, Answer::Error(expected))), "{family:?} {kind} {code}");
    }
}

#[test]
fn no_part_of_a_message_is_an_answer() {
    for family in Family::BOTH {
        let unreachable = if family == Family::V4 { ICMP_UNREACHABLE } else { ICMP6_UNREACHABLE };
        for whole in [reply(family), error(family, unreachable, 1, 0)] {
            for len in 0..whole.len() {
                assert_eq!(read(family, &whole[..len]), None, "{len} bytes of {whole:?}");
            }
        }
    }
}

#[test]
fn random_bytes_and_changed_messages_give_no_identity_that_was_not_in_them() {
    for _ in 0..20_000 {
        let noise: [u8; 96] = random();
        for family in Family::BOTH {
            // The token is compared by the caller; nothing may make one up.
            if let Some((id, _)) = read(family, &noise) {
                assert!(noise.windows(TOKEN_BYTES).any(|window| window == id.token));
            }
            let mut message = reply(family);
            let [at, value, ..] = noise;
            let at = usize::from(at) % message.len();
            message[at] = value;
            if let Some((id, Answer::Echo { .. })) = read(family, &message)
                && id == ID
            {
                // Code, checksum and parts of the IP header do not matter: the token is the proof.
                let start = message.len() - ECHO_BYTES;
                assert!(value == reply(family)[at] || at < start + 4 && at != start, "{at}");
            }
        }
    }
}

#[test]
fn an_error_about_another_kind_of_packet_is_no_answer() {
    let mut about_a_reply = error(Family::V4, ICMP_UNREACHABLE, 1, 0);
    about_a_reply[20 + HEADER_BYTES + 20] = ICMP_ECHO_REPLY;
    assert_eq!(read(Family::V4, &about_a_reply), None);
    let mut about_udp = error(Family::V4, ICMP_UNREACHABLE, 1, 0);
    about_udp[20 + HEADER_BYTES + 9] = 17;
    assert_eq!(read(Family::V4, &about_udp), None);
}

#[test]
fn the_checksum_of_a_message_with_its_checksum_is_zero() {
    // RFC 1071, section 3.
    assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    for len in [0, 45, 1500] {
        assert_eq!(checksum(&request(Family::V4, &ID, len)), 0);
    }
}

#[test]
#[ignore = "root: a raw socket on the loopback"]
fn the_kernel_answers_in_both_families_with_the_size_that_was_sent() {
    for (local, size) in [("127.0.0.1", 44), ("127.0.0.1", 1450), ("::1", 64), ("::1", 9000)] {
        let local: IpAddr = local.parse().unwrap();
        let (socket, other) =
            (EchoSocket::bind(local, 0x1234).unwrap(), EchoSocket::bind(local, 0x1235).unwrap());
        let id = EchoId { sequence: size, token: random(), ..ID };
        socket.send(local, &id, usize::from(size)).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let arrival = loop {
            match socket.receive().unwrap() {
                Some(arrival) if arrival.answer.is_some_and(|(found, _)| found == id) => break arrival,
                _ => assert!(std::time::Instant::now() < end, "{local} {size}"),
            }
        };
        assert_eq!(arrival.from, local);
        assert_eq!(other.receive().unwrap(), None, "it is for another socket");
        assert_eq!(arrival.answer, Some((id, Answer::Echo { packet_bytes: usize::from(size) })));
    }
    let error = EchoSocket::bind(Ipv4Addr::new(192, 0, 2, 1).into(), 1).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
}
