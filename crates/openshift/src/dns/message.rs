//! The messages of DNS that ask for addresses of IPv4, and their answers (RFC 1035 section 4). Answers are untrusted.
//!
//! `simple-dns` writes and reads them: one package, without `unsafe`. `hickory-proto` 0.26 would bring 42 others, most of
//! them Unicode's tables for names that are not ASCII, which nothing here asks for.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{
    CLASS, Name, OPCODE, Packet, PacketFlag, Question, RCODE, ResourceRecord, TYPE, header_buffer,
};

/// Addresses, and how long they hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub addresses: BTreeSet<Ipv4Addr>,
    /// The shortest time of all records.
    pub ttl: Duration,
}

/// What a message says that answers a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Answer(Answer),
    /// The whole answer is available over TCP.
    Truncated,
    Failed(Failure),
}

/// Why an answer has no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the name has no address of IPv4")]
    NoAddress,
    #[error("the server answered {0:?}")]
    Server(RCODE),
    #[error("the answer is malformed")]
    Malformed,
}

const HEADER_BYTES: usize = 12;
/// The counts of the records behind the answers, in the header.
const COUNTS_BEHIND_ANSWERS: std::ops::Range<usize> = 8..HEADER_BYTES;
/// The shortest record: the name of the root, type, class, time and length.
const RECORD_MIN_BYTES: usize = 11;
/// Limit of the aliases that are followed from the name that was asked for.
const ALIASES_MAX: usize = 16;

/// A query; none if the name is not one of DNS.
pub fn query(id: u16, name: &str) -> Option<Vec<u8>> {
    let text = name.strip_suffix('.').unwrap_or(name);
    // The library skips empty labels, takes bytes that are not ASCII, and reads a backslash as an escape.
    let is_plain = text.is_ascii() && !text.contains('\\') && text.split('.').all(|label| !label.is_empty());
    let name = is_plain.then(|| Name::new(text).ok()).flatten()?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(name, TYPE::A.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().ok()
}

/// What a message says; none if it does not answer the query. A truncated message may end anywhere behind its question.
pub fn reply(id: u16, query: &[u8], message: &[u8]) -> Option<Reply> {
    let has = |flags| header_buffer::has_flags(message, flags).ok();
    let answers = header_buffer::id(message).ok()? == id
        && has(PacketFlag::RESPONSE)?
        && header_buffer::opcode(message).ok()? == OPCODE::StandardQuery
        && header_buffer::questions(message).ok()? == 1;
    let question = query.get(HEADER_BYTES..)?;
    let asked = message.get(HEADER_BYTES..HEADER_BYTES + question.len())?;
    if !answers || !asked.eq_ignore_ascii_case(question) {
        return None;
    }
    Some(match header_buffer::rcode(message).ok()? {
        _ if has(PacketFlag::TRUNCATION)? => Reply::Truncated,
        RCODE::NoError => match answer(message) {
            Some(answer) if answer.addresses.is_empty() => Reply::Failed(Failure::NoAddress),
            Some(answer) => Reply::Answer(answer),
            None => Reply::Failed(Failure::Malformed),
        },
        RCODE::NameError => Reply::Failed(Failure::NoAddress),
        code => Reply::Failed(Failure::Server(code)),
    })
}

/// The addresses in a message; none if it is malformed.
fn answer(message: &[u8]) -> Option<Answer> {
    // The library allocates for as many records as the header says.
    let count = usize::from(header_buffer::answers(message).ok()?);
    (count * RECORD_MIN_BYTES <= message.len()).then_some(())?;
    // A record that it cannot read among those behind the answers says nothing about these.
    let mut message = message.to_vec();
    message.get_mut(COUNTS_BEHIND_ANSWERS)?.fill(0);
    let packet = Packet::parse(&message).ok()?;
    // With this bit, the class is another one outside of multicast DNS.
    let is_internet = |record: &&ResourceRecord<'_>| record.class == CLASS::IN && !record.cache_flush;
    let records: Vec<_> = packet.answers.iter().filter(is_internet).collect();
    addresses(&packet.questions.first()?.qname, &records)
}

/// The addresses of a name and of those to which aliases lead from it. Other names' records do not count: nothing asked
/// for them.
fn addresses(asked: &Name<'_>, records: &[&ResourceRecord<'_>]) -> Option<Answer> {
    let mut answer = Answer { addresses: BTreeSet::new(), ttl: Duration::MAX };
    let mut next = Some(asked);
    for _ in 0..=ALIASES_MAX {
        let Some(name) = next.take() else { break };
        for record in records.iter().filter(|record| record.name == *name) {
            match &record.rdata {
                RData::A(address) => _ = answer.addresses.insert(Ipv4Addr::from_bits(address.address)),
                RData::CNAME(target) => next = Some(&target.0),
                RData::Empty(TYPE::A) => return None,
                _ => continue,
            }
            answer.ttl = answer.ttl.min(Duration::from_secs(record.ttl.into()));
        }
    }
    Some(answer)
}
