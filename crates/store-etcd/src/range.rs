//! Reads: one record, or all under a prefix, page by page at one revision, so that no answer is larger than a page.

use russet_model::{Key, Prefix};
use russet_store::{Record, Revision, Snapshot, StoreError};
use tonic::Code;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::failure::{Class, Effect, Failure};
use crate::proto::mvccpb::KeyValue;
use crate::proto::{RangeRequest, RangeResponse};

/// What a page should weigh: far above the cost of a round trip, and little enough for a slow link to carry it before the member counts
/// as silent (2.5 Mbit/s with the default deadline).
const PAGE_BYTES: usize = 1 << 20;
/// Records in the first page, when nothing is known of their size; at 1.4 MB each it is the largest page there is.
const FIRST_PAGE: usize = 16;
/// Most records in a page. Also what a page grows by, at most, is fourfold: small records may be followed by large ones.
const MAX_PAGE: usize = 10_000;
const MAX_GROWTH: usize = 4;
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

/// Reads all records under a prefix, as they were at one moment.
pub(crate) async fn list(client: &Client, prefix: &Prefix) -> Result<Snapshot, StoreError> {
    let (records, revision) = collected(client, prefix, false, |record| record).await?;
    Ok(Snapshot { records, revision })
}

/// Reads all keys under a prefix; values stay where they are.
pub(crate) async fn keys(client: &Client, prefix: &Prefix) -> Result<Vec<Key>, StoreError> {
    Ok(collected(client, prefix, true, |record| record.key).await?.0)
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
    let (key, range_end) = range_of(prefix);
    let limit = i64::try_from(FIRST_PAGE).unwrap_or(1);
    let mut request = RangeRequest { key, range_end, limit, keys_only, ..RangeRequest::default() };
    let mut answer = page(client, &request).await?;
    request.revision = answer.header.as_ref().map_or(0, |header| header.revision);
    while answer.more {
        let last = answer.kvs.last().map(|kv| kv.key.clone());
        request.limit = next_limit(request.limit, &answer.kvs);
        // The smallest key above the last one.
        request.key = last.ok_or_else(|| Failure::nonsense("etcd", "an empty page with more to follow"))?;
        request.key.push(0);
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
            let kv = KeyValue { key: Vec::new(), mod_revision: 1, value: vec![0; bytes] };
            vec![kv; count]
        };
        assert_eq!(next_limit(64, &kvs(64, 20_000)), 52);
        assert_eq!(next_limit(64, &kvs(64, 100)), 256);
        assert_eq!(next_limit(9_000, &kvs(9_000, 10)), 10_000);
        assert_eq!(next_limit(64, &kvs(3, 500_000)), 2);
        assert_eq!(next_limit(64, &kvs(1, 8 << 20)), 1);
        assert_eq!(next_limit(64, &[]), 16);
    }

    #[test]
    fn a_key_that_is_no_text_is_passed_over() {
        assert_eq!(record(KeyValue { key: vec![0xff], mod_revision: 1, value: Vec::new() }), None);
    }
}
