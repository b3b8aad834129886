//! The pages of a range in the order of their keys, with a few requests in progress at a time. Used
//! by `range::pages`.
//!
//! For every page, a member iterates over all keys up to the end of the requested range: with
//! 10,000 blocks and 640,000 handles that would take a minute in total. Therefore a range is cut
//! into parts, each of which should be one page: at marks from a caller that knows where keys are,
//! otherwise where the keys of the previous page suggest. Even if marks and guesses are wrong, the
//! parts follow each other without gaps, and a part with more than one page is cut again.

use std::collections::VecDeque;

use russet_model::Key;

use super::density::Density;
use super::{FIRST_PAGE, directory_end, is_before, key, next_limit};
use crate::failure::Failure;
use crate::proto::mvccpb::KeyValue;
use crate::proto::{RangeRequest, RangeResponse};

/// Parts that are requested at a time: one being processed, one in transfer, one being prepared by
/// the member.
pub(super) const LANES: usize = 3;
/// The factor by which a guess that was too short grows, and its limit: the keys after a dense
/// group may be far away.
const STRETCH: usize = 8;
const MAX_STRETCH: usize = 1 << 40;
/// The target fill of a page, in percent: a guess that is slightly too far costs a second request.
const FILL_PERCENT: usize = 85;

/// The keys that are still to be read, cut into parts.
pub(super) struct Parts<T> {
    /// In the order of their keys, without gaps.
    parts: VecDeque<Part<T>>,
    /// The start of the range after `parts`, for which the caller may have marks.
    rest: Option<Vec<u8>>,
    end: Vec<u8>,
    keys_only: bool,
    /// 0 until the first answer.
    revision: i64,
    /// The limit of records for the next page.
    limit: i64,
    /// Pages do not grow any more.
    settled: bool,
    /// The density of keys in the last page, for guesses.
    density: Option<Density>,
    /// The current factor for guesses, after ones that were too short.
    stretch: usize,
}

/// A half-open range of keys.
struct Part<T> {
    start: Vec<u8>,
    end: Vec<u8>,
    /// Whether the part should be one page; other parts are cut before they are requested.
    cut: bool,
    /// The request for its page, once it was sent.
    asked: Option<T>,
}

// === impl Parts ===

impl<T> Parts<T> {
    pub(super) fn new((start, end): (Vec<u8>, Vec<u8>), keys_only: bool) -> Self {
        let limit = i64::try_from(FIRST_PAGE).unwrap_or(1);
        let (parts, rest) = (VecDeque::new(), Some(start));
        Self { parts, rest, end, keys_only, revision: 0, limit, settled: false, density: None, stretch: 1 }
    }

    /// The revision at which everything is read, after the first page.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Ensures that there is a first part; false when everything was read. Records of earlier parts
    /// must have been processed, because `marks` may depend on them.
    pub(super) fn has_next<M>(&mut self, marks: &mut M) -> bool
    where
        M: FnMut(&Key) -> Vec<Key> + ?Sized,
    {
        if !self.parts.is_empty() {
            return true;
        }
        let Some(mut start) = self.rest.take() else { return false };
        self.begin_anew();
        for mark in key(start.clone()).map(|start| marks(&start)).unwrap_or_default() {
            let mark = mark.as_str().as_bytes().to_vec();
            if mark > start && is_before(&mark, &self.end) {
                let start = std::mem::replace(&mut start, mark.clone());
                self.parts.push_back(Part { start, end: mark, cut: true, asked: None });
            }
        }
        if self.parts.is_empty() {
            self.parts.push_back(Part { start, end: self.end.clone(), cut: false, asked: None });
        } else {
            self.rest = Some(start);
        }
        true
    }

    /// Sends as many requests as are allowed, but only one until the size of pages is known.
    pub(super) fn ask(&mut self, mut send: impl FnMut(RangeRequest) -> T) {
        let lanes = if self.settled && self.revision > 0 { LANES } else { 1 };
        let mut free = lanes.saturating_sub(self.under_way().count());
        for lane in 0..lanes {
            // The first part may be the remainder of a page, with requests for later parts in
            // progress.
            if free == 0 && lane > 0 {
                return;
            }
            self.cut(lane);
            let Some(part) = self.parts.get(lane) else { return };
            if part.asked.is_some() {
                continue;
            }
            free = free.saturating_sub(1);
            let covered = self.density.as_ref().is_some_and(|density| density.covers(&part.start));
            if !covered && !part.cut {
                // Records in another directory may have any size.
                if lane > 0 {
                    return;
                }
                self.begin_anew();
            }
            let request = self.request(lane);
            let asked = request.map(&mut send);
            if let Some(part) = self.parts.get_mut(lane) {
                part.asked = asked;
            }
        }
    }

    fn begin_anew(&mut self) {
        self.limit = i64::try_from(FIRST_PAGE).unwrap_or(1);
        (self.settled, self.stretch) = (false, 1);
    }

    fn request(&self, lane: usize) -> Option<RangeRequest> {
        let Part { start, end, .. } = self.parts.get(lane)?;
        let (key, range_end) = (start.clone(), end.clone());
        let Self { limit, revision, keys_only, .. } = *self;
        Some(RangeRequest { key, range_end, limit, revision, keys_only })
    }

    /// Cuts a part that may be more than one page where the last page suggests, at the latest at
    /// the end of its directory.
    fn cut(&mut self, lane: usize) {
        let Some(part) = self.parts.get_mut(lane).filter(|part| !part.cut && part.asked.is_none()) else {
            return;
        };
        let density = self.density.as_ref().filter(|density| density.covers(&part.start));
        let records = usize::try_from(self.limit).unwrap_or(1) * FILL_PERCENT / 100;
        let guess = density.and_then(|density| density.behind(&part.start, records.max(1) * self.stretch));
        part.cut = density.is_some();
        let end = density.map_or_else(|| directory_end(&part.start), Density::end);
        let places = [guess, end].into_iter().flatten();
        if let Some(place) = places.filter(|place| is_before(place, &part.end)).min() {
            let end = std::mem::replace(&mut part.end, place.clone());
            self.parts.insert(lane + 1, Part { start: place, end, cut: false, asked: None });
        }
    }

    /// All requests in progress, in the order of keys.
    pub(super) fn under_way(&mut self) -> impl Iterator<Item = &mut T> {
        self.parts.iter_mut().filter_map(|part| part.asked.as_mut())
    }

    /// The request for the next page.
    pub(super) fn first(&mut self) -> Option<&mut T> {
        self.parts.front_mut().and_then(|part| part.asked.as_mut())
    }

    /// Processes the metadata of the next page.
    pub(super) fn answered(&mut self, answer: &RangeResponse) -> Result<(), Failure> {
        if self.revision == 0 {
            self.revision = answer.header.as_ref().map_or(0, |header| header.revision);
        }
        let Some(mut part) = self.parts.pop_front() else { return Ok(()) };
        if answer.more {
            let Some(KeyValue { key: last, .. }) = answer.kvs.last() else {
                return Err(Failure::nonsense("etcd", "an empty page with more to follow"));
            };
            // The smallest key after the last one.
            part.start = [last, &[0][..]].concat();
            (part.cut, part.asked) = (false, None);
            self.parts.push_front(part);
        }
        let short = answer.kvs.len() < usize::try_from(self.limit).unwrap_or(1) / STRETCH;
        self.stretch = if short && !answer.more { (self.stretch * STRETCH).min(MAX_STRETCH) } else { 1 };
        self.density = Density::of(&answer.kvs).or(self.density.take());
        (self.limit, self.settled) = next_limit(self.limit, &answer.kvs);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use russet_model::Prefix;

    use super::super::{PAGE_BYTES, range_of};
    use super::*;

    /// Reads all keys under a prefix, and records the work of its member.
    #[derive(Default)]
    struct Reader {
        read: Vec<String>,
        walked: usize,
        requests: usize,
        at_once: usize,
    }

    impl Reader {
        fn run(keys: &[String], prefix: &str, mut marks: impl FnMut(&str, &[String]) -> Vec<String>) -> Self {
            let mut reader = Self::default();
            let mut parts = Parts::new(range_of(&Prefix::from_stored(prefix)), false);
            loop {
                let read = &reader.read;
                let mut marks =
                    |key: &Key| marks(key.as_str(), read).into_iter().map(Key::from_stored).collect();
                if !parts.has_next(&mut marks) {
                    return reader;
                }
                parts.ask(|request| request);
                reader.at_once = reader.at_once.max(parts.under_way().count());
                let answer = reader.serve(keys, parts.first().unwrap());
                parts.answered(&answer).unwrap();
                reader.read.extend(answer.kvs.into_iter().map(|kv| String::from_utf8(kv.key).unwrap()));
            }
        }

        /// Answers like a member that stores `keys`, which are sorted.
        fn serve(&mut self, keys: &[String], request: &RangeRequest) -> RangeResponse {
            let from = keys.partition_point(|key| key.as_bytes() < &request.key[..]);
            let within = |key: &&String| request.range_end == [0] || key.as_bytes() < &request.range_end[..];
            let found: Vec<&String> = keys[from..].iter().take_while(within).collect();
            let limit = usize::try_from(request.limit).unwrap();
            let value = vec![0; PAGE_BYTES / 400];
            let kv = |key: &&String| KeyValue {
                key: key.as_bytes().into(),
                mod_revision: 1,
                value: value.clone(),
                lease: 0,
            };
            let kvs = found.iter().take(limit).map(kv).collect();
            (self.walked, self.requests) = (self.walked + found.len(), self.requests + 1);
            let header = Some(crate::proto::ResponseHeader { revision: 7 });
            RangeResponse { header, kvs, more: found.len() > limit }
        }
    }

    fn store() -> Vec<String> {
        let hexadecimal = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut keys: Vec<String> =
            (0..20_000).map(|n| format!("/i/handle/net.{}", hexadecimal(n))).collect();
        keys.extend(
            (0..2_000).map(|n| format!("/i/block/10.{}.{}.{}-26", n >> 10, (n >> 2) % 256, n % 4 * 64)),
        );
        keys.extend(
            (0..100).map(|n| format!("/i/handle/{}{n:03}", "a-common-and-rather-long-beginning-".repeat(3))),
        );
        keys.extend(["/i/config", "/i/handle/zzz", "/i/handle/\u{10ffff}", "/i/zz/a/b"].map(str::to_owned));
        keys.sort();
        keys
    }

    #[test]
    fn every_key_is_read_once_in_order_and_few_are_iterated_twice() {
        let keys = store();
        for prefix in
            ["/i/", "/i/handle/", "/i/host/", "/i/handle/net.", "/i/block/", "/i/block/10.1", "/nothing/", ""]
        {
            let reader = Reader::run(&keys, prefix, |_, _| Vec::new());
            let wanted: Vec<&String> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
            assert!(reader.read.iter().eq(wanted.iter().copied()), "{prefix:?}");
            // The first page of the range and that of each directory iterate to the end; without
            // cuts, each of 60 pages would.
            let Reader { walked, requests, at_once, .. } = reader;
            assert!(walked <= 5 * wanted.len(), "{prefix:?}: {walked} of {}", wanted.len());
            assert!(requests < 110, "{prefix:?}: {requests}");
            assert!(wanted.len() < 1_000 || at_once == LANES, "{prefix:?}: {at_once}");
        }
    }

    #[test]
    fn marks_avoid_guesses_and_may_be_wrong() {
        let keys = store();
        let known: Vec<String> =
            keys.iter().filter(|key| key.contains("/net.")).step_by(300).cloned().collect();
        let marks = |at: &str, read: &[String]| match at {
            "/i/" => vec!["/i/handle/".to_owned()],
            "/i/handle/" => {
                assert_eq!(read.last().unwrap(), "/i/config", "what is before was handed out");
                known.clone()
            }
            _ => Vec::new(),
        };
        let reader = Reader::run(&keys, "/i/", marks);
        assert!(reader.read == keys);
        assert!(reader.walked < 2 * keys.len(), "{}", reader.walked);
        // Unsorted, before the range, after it, and empty.
        let wrong = ["/i/handle/q", "/a", "/i/block/10.0.9", "/z", "/i/handle/q", "/i/handle/net.8", ""];
        for from in 0..wrong.len() {
            let marks = |_: &str, _: &[String]| wrong[from..].iter().map(|mark| (*mark).to_owned()).collect();
            assert!(Reader::run(&keys, "/i/", marks).read == keys, "{from}");
        }
    }

    #[test]
    fn an_empty_page_with_more_to_follow_is_refused() {
        let mut parts = Parts::new((b"/i/".to_vec(), b"/i0".to_vec()), false);
        assert!(parts.has_next(&mut |_: &Key| Vec::new()));
        parts.ask(|request| request);
        assert!(parts.answered(&RangeResponse { more: true, ..RangeResponse::default() }).is_err());
    }
}
