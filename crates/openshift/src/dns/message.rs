//! The messages of DNS that ask for addresses of IPv4, and their answers (RFC 1035 section 4). Answers are untrusted.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

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
    #[error("the server failed with code {0}")]
    Server(u8),
    #[error("the answer is malformed")]
    Malformed,
}

const HEADER_BYTES: usize = 12;
const LABEL_MAX_BYTES: usize = 63;
const NAME_MAX_BYTES: usize = 255;
/// The type of records with an address of IPv4, and the class of the internet.
const A: u16 = 1;
const IN: u16 = 1;
/// Recursion is desired.
const FLAGS: u16 = 0x0100;
const IS_REPLY: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const IS_TRUNCATED: u16 = 0x0200;
const NO_SUCH_NAME: u16 = 3;
/// The two bits that mark a reference to a name elsewhere in the message.
const REFERENCE: u8 = 0xc0;

/// A query; none if the name is not one of DNS.
pub fn query(id: u16, name: &str) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(HEADER_BYTES + NAME_MAX_BYTES + 4);
    for word in [id, FLAGS, 1, 0, 0, 0] {
        message.extend(word.to_be_bytes());
    }
    for label in name.strip_suffix('.').unwrap_or(name).split('.') {
        let is_label = !label.is_empty() && label.len() <= LABEL_MAX_BYTES && label.is_ascii();
        message.push(u8::try_from(label.len()).ok().filter(|_| is_label)?);
        message.extend(label.bytes());
    }
    message.push(0);
    (message.len() - HEADER_BYTES <= NAME_MAX_BYTES).then_some(())?;
    message.extend([A.to_be_bytes(), IN.to_be_bytes()].concat());
    Some(message)
}

/// What a message says; none if it does not answer the query.
pub fn reply(id: u16, query: &[u8], message: &[u8]) -> Option<Reply> {
    let word = |index: usize| word_at(message, index * 2);
    let flags = word(1)?;
    let answers = word(0)? == id && flags & IS_REPLY != 0 && flags & OPCODE == 0 && word(2)? == 1;
    let question = query.get(HEADER_BYTES..)?;
    let asked = message.get(HEADER_BYTES..HEADER_BYTES + question.len())?;
    if !answers || !asked.eq_ignore_ascii_case(question) {
        return None;
    }
    Some(match flags & 0xf {
        _ if flags & IS_TRUNCATED != 0 => Reply::Truncated,
        0 => match records(message, HEADER_BYTES + question.len(), word(3)?) {
            Some(answer) if answer.addresses.is_empty() => Reply::Failed(Failure::NoAddress),
            Some(answer) => Reply::Answer(answer),
            None => Reply::Failed(Failure::Malformed),
        },
        NO_SUCH_NAME => Reply::Failed(Failure::NoAddress),
        code => Reply::Failed(Failure::Server(u8::try_from(code).unwrap_or(u8::MAX))),
    })
}

/// The addresses of so many records. Others lead to them: aliases.
fn records(message: &[u8], mut at: usize, count: u16) -> Option<Answer> {
    let mut addresses = BTreeSet::new();
    let mut ttl = u32::MAX;
    for _ in 0..count {
        at = behind_name(message, at)?;
        let (kind, class) = (word_at(message, at)?, word_at(message, at + 2)?);
        let time = message.get(at + 4..at + 8)?;
        let length = usize::from(word_at(message, at + 8)?);
        let data = message.get(at + 10..at + 10 + length)?;
        at += 10 + length;
        if class != IN {
            continue;
        }
        ttl = ttl.min(u32::from_be_bytes(time.try_into().ok()?));
        if kind == A {
            addresses.insert(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?));
        }
    }
    Some(Answer { addresses, ttl: Duration::from_secs(ttl.into()) })
}

/// The position behind a name, which ends with an empty label or with a reference.
fn behind_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let length = *message.get(at)?;
        match length & REFERENCE {
            0 if length == 0 => return Some(at + 1),
            0 => at += 1 + usize::from(length),
            REFERENCE => return Some(at + 2),
            _ => return None,
        }
    }
}

fn word_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?))
}
