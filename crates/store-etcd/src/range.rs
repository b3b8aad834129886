//! Reads: one record, or all under a prefix, page by page at one revision, so that no answer is larger than a page.

use russet_model::{Key, Prefix};
use russet_store::{LeaseId, Record, Revision, Snapshot, StoreError, Tenure};
use tonic::Code;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::failure::{Class, Effect, Failure};
use crate::proto::mvccpb::KeyValue;
use crate::proto::{RangeRequest, RangeResponse};

/// What a page should weigh: far above the cost of a round trip, and little enough for a slow link to carry it before the member counts
/// as silent (10 Mbit/s with the default deadline). Not less: for every page a member walks over all keys that are left, slowly before etcd 3.5.
const PAGE_BYTES: usize = 4 << 20;
/// Records in the first page, when nothing is known of their size; at 1.4 MB each it is the largest page there is.
const FIRST_PAGE: usize = 16;
/// Most records in a page. Also what a page grows by, at most, is fourfold: small records may be followed by large ones.
const MAX_PAGE: usize = 40_000;
const MAX_GROWTH: usize = 4;
/// Pages that a range should hold: more than one, or every second request would find nothing.
const PAGES_AHEAD: usize = 2;
/// Turns of the runtime that a request gets to leave before something else has the thread.
const SENDING_STEPS: usize = 4;
/// Listings begun anew because the log was compacted under them. Compactions are minutes apart, pages milliseconds.
const MAX_RESTARTS: usize = 5;

/// Reads one record, as a majority has it.
pub(crate) async fn get(client: &Client, key: &Key) -> Result<Option<Record>, StoreError> {
    let request = RangeRequest { key: key.as_str().into(), ..RangeRequest::default() };
    let answer = page(client, &request).await;
    let answer = answer.map_err(|failure| failure.told(format!("get {key}"), Effect::Read))?;
    Ok(answer.kvs.into_iter().next().and_then(record))
}

/// Reads one record, as a majority has it, and by which lease it lives.
pub(crate) async fn tenure(client: &Client, key: &Key) -> Result<Option<(Record, Tenure)>, StoreError> {
    let request = RangeRequest { key: key.as_str().into(), ..RangeRequest::default() };
    let answer = page(client, &request).await;
    let answer = answer.map_err(|failure| failure.told(format!("get {key}"), Effect::Read))?;
    Ok(answer.kvs.into_iter().next().and_then(|kv| {
        let tenure = match kv.lease {
            0 => Tenure::Forever,
            lease => Tenure::Leased(Some(LeaseId(lease.cast_unsigned()))),
        };
        Some((record(kv)?, tenure))
    }))
}

/// Reads all records under a prefix, as they were at one moment.
pub(crate) async fn list(client: &Client, prefix: &Prefix) -> Result<Snapshot, StoreError> {
    let (records, revision) = collected(client, prefix, false, |record| record).await?;
    Ok(Snapshot { records, revision })
}

/// Reads all keys under a prefix; values stay where they are.
pub(crate) async fn keys(client: &Client, prefix: &Prefix) -> Result<Vec<Key>, StoreError> {
    Ok(collected(client, prefix, true, |record| record.key).await?.0)
}

/// Whether there is a key under a prefix: one key is all that is carried, however many there are.
pub(crate) async fn holds(client: &Client, prefix: &Prefix) -> Result<bool, StoreError> {
    let (key, range_end) = range_of(prefix);
    let request = RangeRequest { key, range_end, limit: 1, keys_only: true, ..RangeRequest::default() };
    let answer = page(client, &request).await;
    let answer = answer.map_err(|failure| failure.told(format!("look under {prefix}"), Effect::Read))?;
    Ok(!answer.kvs.is_empty())
}

async fn collected<T>(
    client: &Client,
    prefix: &Prefix,
    keys_only: bool,
    keep: fn(Record) -> T,
) -> Result<(Vec<T>, Revision), StoreError> {
    let mut backoff = Backoff::new();
    let mut restarts = 0;
    loop {
        let mut kept = Vec::new();
        match pages(client, prefix, keys_only, &mut |record| kept.push(keep(record))).await {
            Ok(revision) => return Ok((kept, revision)),
            Err(failure) if failure.class == Class::Compacted && restarts < MAX_RESTARTS => restarts += 1,
            Err(failure) => return Err(failure.told(format!("list {prefix}"), Effect::Read)),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Hands out all records under a prefix, as they were at one moment, holding two pages at a time. A log that is compacted meanwhile fails it.
pub(crate) async fn scan(
    client: &Client,
    prefix: &Prefix,
    take: &mut dyn FnMut(Record),
) -> Result<Revision, StoreError> {
    let scanned = pages(client, prefix, false, take).await;
    scanned.map_err(|failure| failure.told(format!("scan {prefix}"), Effect::Read))
}

async fn pages<F: FnMut(Record) + ?Sized>(
    client: &Client,
    prefix: &Prefix,
    keys_only: bool,
    take: &mut F,
) -> Result<Revision, Failure> {
    let (key, end) = range_of(prefix);
    let limit = i64::try_from(FIRST_PAGE).unwrap_or(1);
    let range_end = end.clone();
    let mut request = RangeRequest { key, range_end, limit, keys_only, ..RangeRequest::default() };
    let mut answer = page(client, &request).await?;
    request.revision = answer.header.as_ref().map_or(0, |header| header.revision);
    while turn(&mut request, &answer, &end)? {
        // The member works on the next page while this one is taken.
        let mut next = std::pin::pin!(page(client, &request));
        let early = tokio::select! {
            biased;
            next = &mut next => Some(next?),
            () = until_sent() => None,
        };
        answer.kvs.into_iter().filter_map(record).for_each(&mut *take);
        answer = match early {
            Some(answer) => answer,
            None => next.await?,
        };
    }
    answer.kvs.into_iter().filter_map(record).for_each(take);
    Ok(revision(request.revision))
}

/// Makes of a request the one for the page after `answer`; false when there is none before `end`.
///
/// For every page a member walks over all keys up to the range's end: 10,000 blocks and 640,000 handles would take a minute so. Hence a range ends
/// where the next pages are guessed to, going by the keys of the last, and at the latest where the directory does; only then has the rest its turn.
/// However wrong the guess is, ranges follow each other without a gap.
fn turn(request: &mut RangeRequest, answer: &RangeResponse, end: &[u8]) -> Result<bool, Failure> {
    let nearest = |guess: Option<Vec<u8>>, directory: Option<Vec<u8>>| {
        let before = [guess, directory].into_iter().flatten().filter(|own| is_before(own, end));
        before.min().unwrap_or_else(|| end.to_vec())
    };
    if let (true, [first, ..]) = (answer.more, &answer.kvs[..]) {
        let last = answer.kvs.last().unwrap_or(first).key.clone();
        request.limit = next_limit(request.limit, &answer.kvs);
        let pages = usize::try_from(request.limit).unwrap_or(1).div_ceil(answer.kvs.len());
        let guess = ahead(&answer.kvs, u128::try_from(PAGES_AHEAD * pages).unwrap_or(1));
        request.range_end = nearest(guess, directory_end(&last));
        request.key = last;
        // The smallest key above the last one.
        request.key.push(0);
        return Ok(true);
    }
    if answer.more {
        return Err(Failure::nonsense("etcd", "an empty page with more to follow"));
    }
    if request.range_end == end {
        return Ok(false);
    }
    let directory = directory_end(&request.key);
    if directory.as_ref() == Some(&request.range_end) {
        request.key = std::mem::replace(&mut request.range_end, end.to_vec());
        request.limit = i64::try_from(FIRST_PAGE).unwrap_or(1);
        return Ok(true);
    }
    // The guess fell short.
    request.key = std::mem::replace(&mut request.range_end, nearest(None, directory));
    Ok(true)
}

/// A key that should have `times` as many keys before it as there are in `page`, counted from the page's end. Keys are taken for numbers whose digits are
/// the bytes that occur in the page: names are made of few, and with all 256 for digits most numbers would be no name. None where that leads nowhere.
fn ahead(page: &[KeyValue], times: u128) -> Option<Vec<u8>> {
    /// Digits of a number; more would not fit.
    const DIGITS: usize = 18;
    /// Bytes before the first difference that the number may carry into.
    const CARRY: usize = 4;
    let (first, last) = (&page.first()?.key, &page.last()?.key);
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let mut occurs = [false; 256];
    page.iter().flat_map(|kv| kv.key.iter().skip(common)).for_each(|byte| occurs[usize::from(*byte)] = true);
    let alphabet: Vec<u8> = (0..=u8::MAX).filter(|byte| occurs[usize::from(*byte)]).collect();
    // One record says nothing about how far apart they are.
    let base = u128::try_from(alphabet.len()).ok().filter(|base| *base > 1)?;
    let carried =
        last[..common].iter().rev().take_while(|byte| occurs[usize::from(**byte)]).take(CARRY).count();
    let from = common - carried;
    let rank = |byte: &u8| u128::try_from(alphabet.partition_point(|known| known < byte)).unwrap_or(0);
    let number = |key: &[u8]| -> Option<u128> {
        let digits = key[from..].iter().map(rank).chain(std::iter::repeat(0)).take(DIGITS);
        digits.into_iter().try_fold(0_u128, |sum, digit| sum.checked_mul(base)?.checked_add(digit))
    };
    let way = number(last)?.checked_sub(number(first)?)?.checked_mul(times)?;
    let mut rest = number(last)?.checked_add(way)?;
    let mut digits = [0; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = alphabet[usize::try_from(rest % base).ok()?];
        rest /= base;
    }
    let guess = [&last[..from], &digits].concat();
    (rest == 0 && guess > *last).then_some(guess)
}

/// The first key behind all that share everything up to the last `/` with this one.
fn directory_end(key: &[u8]) -> Option<Vec<u8>> {
    let slash = key.iter().rposition(|byte| *byte == b'/')?;
    let mut end = key[..=slash].to_vec();
    end[slash] += 1;
    Some(end)
}

/// Whether a range that ends at `own` ends before `end`, where a single 0 means: never.
fn is_before(own: &[u8], end: &[u8]) -> bool {
    end == [0] || own < end
}

/// Lets the tasks of the connection, two in a row, take up a request. Should more be needed, the request leaves later: a loss of time only.
async fn until_sent() {
    for _ in 0..SENDING_STEPS {
        tokio::task::yield_now().await;
    }
}

async fn page(client: &Client, request: &RangeRequest) -> Result<RangeResponse, Failure> {
    let ask = |line: crate::client::Line| {
        let request = line.request(request.clone());
        async move { Ok(line.kv().range(request).await?.into_inner()) }
    };
    let answer = client.call(Effect::Read, ask).await?;
    match &answer.header {
        Some(header) if header.revision > 0 => Ok(answer),
        _ => {
            let status = tonic::Status::new(Code::DataLoss, "an answer without a revision");
            Err(Failure::of("etcd", &status))
        }
    }
}

/// How many records the next page should ask for, going by those of the last.
fn next_limit(limit: i64, kvs: &[KeyValue]) -> i64 {
    let bytes: usize = kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let fitting = (PAGE_BYTES * kvs.len()).checked_div(bytes).unwrap_or(FIRST_PAGE);
    let most = usize::try_from(limit).unwrap_or(1).saturating_mul(MAX_GROWTH).min(MAX_PAGE);
    i64::try_from(fitting.clamp(1, most.max(1))).unwrap_or(1)
}

/// The range of all keys that begin with the prefix: from the prefix to the same with its last byte one higher.
pub(crate) fn range_of(prefix: &Prefix) -> (Vec<u8>, Vec<u8>) {
    let start = prefix.as_str().as_bytes().to_vec();
    if start.is_empty() {
        return (vec![0], vec![0]);
    }
    let mut end = start.clone();
    // Prefixes are UTF-8, so that no byte is 255 and adding one cannot overflow.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (start, end)
}

/// A record of ours. Keys that are no text cannot be anybody's whose data we share, and are passed over.
pub(crate) fn record(kv: KeyValue) -> Option<Record> {
    let key = key(kv.key)?;
    Some(Record { key, value: kv.value, revision: revision(kv.mod_revision) })
}

pub(crate) fn key(bytes: Vec<u8>) -> Option<Key> {
    String::from_utf8(bytes).ok().map(Key::from_stored)
}

/// etcd counts with a sign and begins at 1.
pub(crate) fn revision(of_etcd: i64) -> Revision {
    Revision(u64::try_from(of_etcd).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range_of_keys() {
        let (start, end) = range_of(&Prefix::from_stored("/calico/ipam/v2/host/node1/"));
        assert_eq!(
            (&start[..], &end[..]),
            (&b"/calico/ipam/v2/host/node1/"[..], &b"/calico/ipam/v2/host/node10"[..])
        );
        assert_eq!(range_of(&Prefix::from_stored("")), (vec![0], vec![0]));
    }

    #[test]
    fn pages_follow_the_size_of_what_they_hold() {
        let kvs = |count: usize, bytes: usize| {
            let kv = KeyValue { key: Vec::new(), mod_revision: 1, value: vec![0; bytes], lease: 0 };
            vec![kv; count]
        };
        assert_eq!(next_limit(64, &kvs(64, 20_000)), 209);
        assert_eq!(next_limit(64, &kvs(64, 100)), 256);
        assert_eq!(next_limit(9_000, &kvs(9_000, 10)), 36_000);
        assert_eq!(next_limit(64, &kvs(3, 500_000)), 8);
        assert_eq!(next_limit(64, &kvs(1, 8 << 20)), 1);
        assert_eq!(next_limit(64, &[]), 16);
    }

    #[test]
    fn a_page_ends_with_its_directory_and_the_rest_comes_after() {
        let answer = |last: &str, more: bool| {
            let kv = KeyValue { key: last.into(), mod_revision: 1, value: Vec::new(), lease: 0 };
            RangeResponse { kvs: vec![kv], more, ..RangeResponse::default() }
        };
        let (key, end) = range_of(&Prefix::from_stored("/i/"));
        let mut request = RangeRequest { key, range_end: end.clone(), limit: 16, ..RangeRequest::default() };
        assert!(turn(&mut request, &answer("/i/block/a", true), &end).unwrap());
        assert_eq!((&request.key[..], &request.range_end[..]), (&b"/i/block/a\0"[..], &b"/i/block0"[..]));
        assert!(turn(&mut request, &answer("/i/block/z", false), &end).unwrap());
        assert_eq!((&request.key[..], &request.range_end[..]), (&b"/i/block0"[..], &b"/i0"[..]));
        assert!(!turn(&mut request, &answer("/i/c", false), &end).unwrap());
        // A prefix that ends within a name, and one of everything.
        assert!(turn(&mut request, &answer("/i/block/a", true), b"/i/block/b").unwrap());
        assert_eq!(request.range_end, b"/i/block/b");
        assert!(turn(&mut request, &answer("/i/block/a", true), &[0]).unwrap());
        assert_eq!(request.range_end, b"/i/block0");
        assert!(turn(&mut request, &RangeResponse { more: true, ..RangeResponse::default() }, &[0]).is_err());
    }

    /// Answers like a member that holds `keys`, in order; and over how many keys it walked.
    fn serve(keys: &[String], request: &RangeRequest) -> (RangeResponse, usize) {
        let within = |key: &&String| {
            key.as_bytes() >= &request.key[..]
                && (request.range_end == [0] || key.as_bytes() < &request.range_end[..])
        };
        let found: Vec<&String> = keys.iter().filter(within).collect();
        let limit = usize::try_from(request.limit).unwrap();
        let kv = |key: &&String| KeyValue {
            key: key.as_bytes().into(),
            mod_revision: 1,
            value: vec![0; PAGE_BYTES / 400],
            lease: 0,
        };
        let kvs = found.iter().take(limit).map(kv).collect();
        (RangeResponse { kvs, more: found.len() > limit, ..RangeResponse::default() }, found.len())
    }

    #[test]
    fn every_key_is_read_once_whatever_the_names_and_few_are_walked_over_twice() {
        let hexadecimal = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut keys: Vec<String> =
            (0..20_000).map(|n| format!("/i/handle/net.{}", hexadecimal(n))).collect();
        keys.extend((0..500).map(|n| format!("/i/block/10.{}.{}.0-26", n / 256, n % 256)));
        keys.extend(
            (0..100).map(|n| format!("/i/handle/{}{n:03}", "a-common-and-rather-long-beginning-".repeat(3))),
        );
        keys.extend(["/i/config", "/i/handle/zzz", "/i/handle/\u{10ffff}", "/i/zz/a/b"].map(str::to_owned));
        keys.sort();
        for prefix in ["/i/", "/i/handle/", "/i/handle/net.", ""] {
            let (key, end) = range_of(&Prefix::from_stored(prefix));
            let mut request =
                RangeRequest { key, range_end: end.clone(), limit: 16, ..RangeRequest::default() };
            let (mut read, mut walked, mut requests) = (Vec::new(), 0, 0);
            loop {
                let (answer, found) = serve(&keys, &request);
                (walked, requests) = (walked + found, requests + 1);
                read.extend(answer.kvs.iter().map(|kv| String::from_utf8(kv.key.clone()).unwrap()));
                if !turn(&mut request, &answer, &end).unwrap() {
                    break;
                }
            }
            let wanted: Vec<&String> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
            assert!(read.iter().eq(wanted.iter().copied()), "{prefix:?}");
            // One walk over everything per page would be 50 times as much.
            // Walks to the end for each of the 52 pages would be 26 times as much.
            assert!(walked < 7 * wanted.len(), "{prefix:?}: {walked} of {}", wanted.len());
            assert!(requests < 80, "{prefix:?}: {requests}");
        }
    }

    #[test]
    fn a_key_that_is_no_text_is_passed_over() {
        assert_eq!(record(KeyValue { key: vec![0xff], mod_revision: 1, value: Vec::new(), lease: 0 }), None);
    }
}
