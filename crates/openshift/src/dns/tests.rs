use std::collections::BTreeSet;

use russet_store::sim::Rng;
use simple_dns::RCODE;
use tokio::net::TcpListener;

use super::*;

const NAME: &str = "www.example.com";

/// A record: owner as a reference to the question, type, time, data.
fn record(kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    owned(&[0xc0, 12], kind, ttl, data)
}

/// A record: owner, type, time, data.
fn owned(owner: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut record = owner.to_vec();
    record.extend([kind.to_be_bytes(), 1_u16.to_be_bytes()].concat());
    record.extend(ttl.to_be_bytes());
    record.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
    record.extend(data);
    record
}

/// The answer to a query with these flags and records.
fn answer(query: &[u8], flags: u16, records: &[Vec<u8>]) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2..4].copy_from_slice(&flags.to_be_bytes());
    message[6..8].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
    message.extend(records.concat());
    message
}

fn good(query: &[u8]) -> Vec<u8> {
    let alias = record(5, 20, &[1, b'a', 0xc0, 16]);
    answer(query, 0x8180, &[alias, record(1, 60, &[192, 0, 2, 1]), record(1, 40, &[192, 0, 2, 2])])
}

fn expected() -> Answer {
    let addresses = BTreeSet::from([[192, 0, 2, 1], [192, 0, 2, 2]].map(Ipv4Addr::from));
    Answer { addresses, ttl: Duration::from_secs(20) }
}

#[test]
fn all_addresses_of_an_answer_count_with_the_shortest_time() {
    let query = query(7, NAME).unwrap();
    assert_eq!(&query[..12], [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&query[12..], b"\x03www\x07example\x03com\0\0\x01\0\x01");
    assert_eq!(message::query(7, "www.example.com."), Some(query.clone()));
    assert_eq!(message::reply(7, &query, &good(&query)), Some(Reply::Answer(expected())));
    let said = |flags, records: &[Vec<u8>]| message::reply(7, &query, &answer(&query, flags, records));
    assert_eq!(said(0x8183, &[]), Some(Reply::Failed(Failure::NoAddress)));
    assert_eq!(said(0x8180, &[]), Some(Reply::Failed(Failure::NoAddress)));
    assert_eq!(said(0x8182, &[]), Some(Reply::Failed(Failure::Server(RCODE::ServerFailure))));
    assert_eq!(said(0x8380, &[record(1, 60, &[192, 0, 2, 1])]), Some(Reply::Truncated));
    assert_eq!(said(0x8180, &[record(1, 60, &[192, 0, 2])]), Some(Reply::Failed(Failure::Malformed)));
    assert_eq!(said(0x0100, &[]), None, "a query");
    assert_eq!(message::reply(8, &query, &good(&query)), None, "another query's");
    let other = message::query(7, "ftp.example.com").unwrap();
    assert_eq!(message::reply(7, &query, &good(&other)), None, "another name's");
}

#[test]
fn only_the_name_that_was_asked_for_and_its_aliases_have_addresses() {
    let query = query(7, NAME).unwrap();
    let said = |records: &[Vec<u8>]| message::reply(7, &query, &answer(&query, 0x8180, records));
    // 0xc010 refers to `example.com` in the question.
    let alias = |owner, time, target: &[u8]| owned(owner, 5, time, &[target, b"\xc0\x10"].concat());
    let address = |owner, time, last| owned(owner, 1, time, &[192, 0, 2, last]);
    let (b, c) = (b"\x01b\xc0\x10", b"\x01c\xc0\x10");
    let foreign = address(b"\x04evil\xc0\x10", 1, 66);
    // In any order, and whatever the case of letters.
    let chain = [address(c, 40, 1), alias(b"\x01B\xc0\x10", 30, b"\x01C"), alias(b"\xc0\x0c", 50, b"\x01b")];
    let addresses = BTreeSet::from([Ipv4Addr::new(192, 0, 2, 1)]);
    let found = Reply::Answer(Answer { addresses, ttl: Duration::from_secs(30) });
    assert_eq!(said(&chain), Some(found.clone()));
    assert_eq!(said(&[&chain[..], std::slice::from_ref(&foreign)].concat()), Some(found));
    let none = Some(Reply::Failed(Failure::NoAddress));
    assert_eq!(said(std::slice::from_ref(&foreign)), none);
    assert_eq!(said(&[alias(b"\xc0\x0c", 50, b"\x01b"), foreign]), none);
    assert_eq!(said(&[alias(b"\xc0\x0c", 50, b"\x01b"), alias(b, 50, b"\x03www")]), none, "a loop");
    let endless = [alias(b"\xc0\x0c", 9, b"\x01b"), alias(b, 9, b"\x01c"), alias(c, 9, b"\x01b")];
    assert_eq!(said(&endless), none);
}

#[test]
fn records_behind_the_answers_and_counts_without_records_change_nothing() {
    let query = query(7, NAME).unwrap();
    let mut message = good(&query);
    // Authority and additional records that no library can read.
    message[8..12].fill(0xff);
    message.extend([0xff; 40]);
    assert_eq!(message::reply(7, &query, &message), Some(Reply::Answer(expected())));
    message[6..8].fill(0xff);
    assert_eq!(message::reply(7, &query, &message), Some(Reply::Failed(Failure::Malformed)));
}

#[test]
fn what_is_no_name_is_not_asked_for() {
    let long = "a.".repeat(127);
    assert!(message::query(1, &long).is_some());
    for name in ["", ".", "a..b", &"a".repeat(64), &format!("{long}b.c"), "\u{e4}.example", "a\\.b", "\\097"]
    {
        assert_eq!(message::query(1, name), None, "{name}");
    }
}

#[test]
fn changed_answers_end_no_process_and_cut_ones_are_no_answer() {
    let query = query(7, NAME).unwrap();
    let good = good(&query);
    for length in 0..good.len() {
        let found = message::reply(7, &query, &good[..length]);
        assert!(!matches!(found, Some(Reply::Answer(_))), "{length}: {found:?}");
    }
    let mut rng = Rng::new(1);
    for _ in 0..20_000 {
        let mut changed = good.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(changed.len() as u64) as usize;
            changed[at] = rng.below(256) as u8;
        }
        let _ = message::reply(7, &query, &changed);
    }
}

#[test]
fn servers_are_those_of_the_file_and_at_most_three() {
    let text = "# comment\nsearch example.com\nnameserver 192.0.2.1\nnameserver x\nnameserver\n nameserver ::1 \nnameserver 192.0.2.2\nnameserver 192.0.2.3\n";
    let servers = Resolver::parse(text).servers;
    assert_eq!(servers, ["192.0.2.1:53", "[::1]:53", "192.0.2.2:53"].map(|it| it.parse().unwrap()));
}

#[tokio::test]
async fn forged_answers_are_ignored_and_a_truncated_one_is_asked_for_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(server).await.unwrap();
    let refusing = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let failing = refusing.local_addr().unwrap();
    let fails = async {
        let mut buffer = [0; 512];
        for _ in 0..8 {
            let (length, from) = refusing.recv_from(&mut buffer).await.unwrap();
            refusing.send_to(&answer(&buffer[..length], 0x8182, &[]), from).await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    let serves = async {
        let mut buffer = [0; 512];
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        let query = &buffer[..length];
        let mut forged = good(query);
        forged[0] ^= 1;
        for message in [forged, b"x".to_vec(), answer(query, 0x8380, &[])] {
            socket.send_to(&message, from).await.unwrap();
        }
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut asked).await.unwrap();
        let reply = good(&asked);
        stream.write_u16(u16::try_from(reply.len()).unwrap()).await.unwrap();
        stream.write_all(&reply).await.unwrap();
        std::future::pending::<()>().await;
    };
    let resolver = Resolver { servers: vec![failing, server] };
    let resolved = tokio::select! {
        resolved = resolver.resolve(NAME) => resolved,
        () = serves => unreachable!(),
        () = fails => unreachable!(),
    };
    assert_eq!(resolved.unwrap(), expected());
    let error = Resolver { servers: Vec::new() }.resolve(NAME).await.unwrap_err();
    assert!(matches!(error, ResolveError::NoServer), "{error}");
    let error = resolver.resolve("a..b").await.unwrap_err();
    assert!(matches!(error, ResolveError::Name), "{error}");
}
