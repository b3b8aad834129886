//! Reads: one record, or all under a prefix, in pages at one revision, so that no answer is larger
//! than a page.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use russet_model::{Key, Prefix};
use russet_store::{LeaseId, Record, Revision, Snapshot, StoreError, Tenure};
use tonic::Code;

use crate::client::{Client, backoff};
use crate::failure::{Class, Effect, Failure};
use crate::proto::mvccpb::KeyValue;
use crate::proto::{RangeRequest, RangeResponse};

mod density;
mod parts;

use parts::Parts;

/// The target size of a page: far above the cost of a round trip, and small enough for a slow link
/// to transfer it before the member counts as silent (10 Mbit/s with the default deadline).
const PAGE_BYTES: usize = 4 << 20;
/// Records in the first page, when their size is unknown; at 1.4 MB each it is the largest page.
const FIRST_PAGE: usize = 16;
/// The most records in a page. A page grows at most fourfold, because small records may be followed
/// by large ones.
const MAX_PAGE: usize = 40_000;
const MAX_GROWTH: usize = 4;
/// How often the runtime's other tasks may run so that a request is sent before the thread does
/// other work.
const SENDING_STEPS: usize = 4;
/// How often a listing is restarted because the log was compacted. Compactions are minutes apart,
/// pages milliseconds.
const MAX_RESTARTS: usize = 5;

type Answer = Result<RangeResponse, Failure>;

/// A requested page.
enum Lane<'a> {
    Asked(Pin<Box<dyn Future<Output = Answer> + Send + 'a>>),
    /// It has arrived; taken once.
    Answered(Option<Answer>),
}

/// Reads one record, as agreed by a majority.
pub(crate) async fn get(client: &Client, key: &Key) -> Result<Option<Record>, StoreError> {
    let request = RangeRequest { key: key.as_str().into(), ..RangeRequest::default() };
    let answer = page(client, &request).await;
    let answer = answer.map_err(|failure| failure.into_store_error(format!("get {key}"), Effect::Read))?;
    Ok(answer.kvs.into_iter().next().and_then(record))
}

/// Reads one record, as agreed by a majority, with the lease that it depends on.
pub(crate) async fn tenure(client: &Client, key: &Key) -> Result<Option<(Record, Tenure)>, StoreError> {
    let request = RangeRequest { key: key.as_str().into(), ..RangeRequest::default() };
    let answer = page(client, &request).await;
    let answer = answer.map_err(|failure| failure.into_store_error(format!("get {key}"), Effect::Read))?;
    Ok(answer.kvs.into_iter().next().and_then(|kv| {
        let tenure = match kv.lease {
            0 => Tenure::Forever,
            lease => Tenure::Leased(Some(LeaseId(lease.cast_unsigned()))),
        };
        Some((record(kv)?, tenure))
    }))
}

/// Reads all records under a prefix, at one revision.
pub(crate) async fn list(client: &Client, prefix: &Prefix) -> Result<Snapshot, StoreError> {
    let (records, revision) = collected(client, prefix, false, |record| record).await?;
    Ok(Snapshot { records, revision })
}

/// Reads all keys under a prefix, without their values.
pub(crate) async fn keys(client: &Client, prefix: &Prefix) -> Result<Vec<Key>, StoreError> {
    Ok(collected(client, prefix, true, |record| record.key).await?.0)
}

/// Whether there is a key under a prefix; transfers at most one key.
pub(crate) async fn holds(client: &Client, prefix: &Prefix) -> Result<bool, StoreError> {
    let (key, range_end) = range_of(prefix);
    let request = RangeRequest { key, range_end, limit: 1, keys_only: true, ..RangeRequest::default() };
    let answer = page(client, &request).await;
    let answer =
        answer.map_err(|failure| failure.into_store_error(format!("look under {prefix}"), Effect::Read))?;
    Ok(!answer.kvs.is_empty())
}

async fn collected<T>(
    client: &Client,
    prefix: &Prefix,
    keys_only: bool,
    keep: fn(Record) -> T,
) -> Result<(Vec<T>, Revision), StoreError> {
    let mut backoff = backoff();
    let mut restarts = 0;
    loop {
        let mut kept = Vec::new();
        match pages(client, prefix, keys_only, &mut unmarked, &mut |record| kept.push(keep(record))).await {
            Ok(revision) => return Ok((kept, revision)),
            Err(failure) if failure.class == Class::Compacted && restarts < MAX_RESTARTS => restarts += 1,
            Err(failure) => return Err(failure.into_store_error(format!("list {prefix}"), Effect::Read)),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Passes all records under a prefix, at one revision, to `take`, with only a few pages in memory.
/// Fails if the log is compacted meanwhile.
pub(crate) async fn scan(
    client: &Client,
    prefix: &Prefix,
    take: &mut dyn FnMut(Record),
) -> Result<Revision, StoreError> {
    scan_marked(client, prefix, &mut unmarked, take).await
}

/// The same for a caller that knows where keys are.
pub(crate) async fn scan_marked(
    client: &Client,
    prefix: &Prefix,
    marks: &mut dyn FnMut(&Key) -> Vec<Key>,
    take: &mut dyn FnMut(Record),
) -> Result<Revision, StoreError> {
    let scanned = pages(client, prefix, false, marks, take).await;
    scanned.map_err(|failure| failure.into_store_error(format!("scan {prefix}"), Effect::Read))
}

async fn pages<M, F>(
    client: &Client,
    prefix: &Prefix,
    keys_only: bool,
    marks: &mut M,
    take: &mut F,
) -> Result<Revision, Failure>
where
    M: FnMut(&Key) -> Vec<Key> + ?Sized,
    F: FnMut(Record) + ?Sized,
{
    let mut parts = Parts::new(range_of(prefix), keys_only);
    let send = |request| Lane::Asked(Box::pin(async move { page(client, &request).await }));
    while parts.has_next(marks) {
        parts.ask(send);
        let answer = poll_fn(|context| first_answer(&mut parts, context)).await?;
        parts.answered(&answer)?;
        // The member prepares the next page while this one is processed.
        parts.ask(send);
        sent(&mut parts).await;
        answer.kvs.into_iter().filter_map(record).for_each(&mut *take);
    }
    Ok(revision(parts.revision()))
}

/// Advances all requested pages; ready when the first of them has arrived.
fn first_answer(parts: &mut Parts<Lane<'_>>, context: &mut Context<'_>) -> Poll<Answer> {
    parts.under_way().for_each(|lane| lane.poll(context));
    match parts.first() {
        Some(Lane::Answered(answer)) => answer.take().map_or(Poll::Pending, Poll::Ready),
        _ => Poll::Pending,
    }
}

/// Lets the two tasks of the connection process the requests. If more turns are needed, the
/// requests are sent later, which only costs time.
async fn sent(parts: &mut Parts<Lane<'_>>) {
    for _ in 0..SENDING_STEPS {
        poll_fn(|context| {
            parts.under_way().for_each(|lane| lane.poll(context));
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
    }
}

// === impl Lane ===

impl Lane<'_> {
    fn poll(&mut self, context: &mut Context<'_>) {
        if let Self::Asked(asked) = self
            && let Poll::Ready(answer) = asked.as_mut().poll(context)
        {
            *self = Self::Answered(Some(answer));
        }
    }
}

/// Provides no marks.
fn unmarked(_: &Key) -> Vec<Key> {
    Vec::new()
}

/// The first key after all keys that share everything up to the last `/` with this one.
fn directory_end(key: &[u8]) -> Option<Vec<u8>> {
    let slash = key.iter().rposition(|byte| *byte == b'/')?;
    let mut end = key.get(..slash)?.to_vec();
    end.push(b'/' + 1);
    Some(end)
}

/// Whether `own` is before `end`; an `end` of a single 0 byte means unlimited.
fn is_before(own: &[u8], end: &[u8]) -> bool {
    end == [0] || own < end
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

/// The number of records for the next page, based on the size of those in the last one; and whether
/// it may contain as many as fit.
fn next_limit(limit: i64, kvs: &[KeyValue]) -> (i64, bool) {
    let bytes: usize = kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let fitting = (PAGE_BYTES * kvs.len()).checked_div(bytes).unwrap_or(FIRST_PAGE).min(MAX_PAGE);
    let most = usize::try_from(limit).unwrap_or(1).saturating_mul(MAX_GROWTH);
    (i64::try_from(fitting.clamp(1, most.max(1))).unwrap_or(1), fitting <= most)
}

/// The range of all keys with the prefix: from the prefix to the same with its last byte
/// incremented.
pub(crate) fn range_of(prefix: &Prefix) -> (Vec<u8>, Vec<u8>) {
    let start = prefix.as_str().as_bytes().to_vec();
    if start.is_empty() {
        return (vec![0], vec![0]);
    }
    let mut end = start.clone();
    // Prefixes are UTF-8, so no byte is 255 and the increment cannot overflow.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (start, end)
}

/// A record. Keys that are not text belong to none of the programs that share data with us, and are
/// skipped.
pub(crate) fn record(kv: KeyValue) -> Option<Record> {
    let key = key(kv.key)?;
    Some(Record { key, value: kv.value, revision: revision(kv.mod_revision) })
}

pub(crate) fn key(bytes: Vec<u8>) -> Option<Key> {
    String::from_utf8(bytes).ok().map(Key::from_stored)
}

/// etcd's revisions are signed and begin at 1.
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
    fn page_limits_follow_the_size_of_records() {
        let kvs = |count: usize, bytes: usize| {
            let kv = KeyValue { key: Vec::new(), mod_revision: 1, value: vec![0; bytes], lease: 0 };
            vec![kv; count]
        };
        assert_eq!(next_limit(64, &kvs(64, 20_000)), (209, true));
        assert_eq!(next_limit(64, &kvs(64, 100)), (256, false));
        assert_eq!(next_limit(9_000, &kvs(9_000, 10)), (36_000, false));
        assert_eq!(next_limit(64, &kvs(3, 500_000)), (8, true));
        assert_eq!(next_limit(64, &kvs(1, 8 << 20)), (1, true));
        assert_eq!(next_limit(64, &[]), (16, true));
    }

    #[test]
    fn a_key_that_is_not_text_is_skipped() {
        assert_eq!(record(KeyValue { key: vec![0xff], mod_revision: 1, value: Vec::new(), lease: 0 }), None);
    }
}
