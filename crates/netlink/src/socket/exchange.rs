//! Single exchanges with the kernel: a chunk of a batch, a transaction, a dump, one object.
//!
//! The implementation of the public calls of [`Socket`].

#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;

use super::fd::Received;
use super::{CHUNK_MAX_REQUESTS, STALE_MAX_DATAGRAMS, Socket};
use crate::batch::Batch;
use crate::error::{BatchError, NetlinkError, Result};
use crate::kernel::*;
use crate::wire::{Attributes, HEADER_BYTES, Message, MessageBuilder, Messages, array, overwrite};

/// The kernel's result of one request, from an `NLMSG_ERROR` or the `NLMSG_DONE` of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The error number, positive; 0 means success.
    pub errno: i32,
    pub text: Option<String>,
    pub offset: Option<u32>,
}

/// Why no more answers arrive.
#[derive(Debug)]
enum Broken {
    Io(io::Error),
    Timeout,
    Overrun,
    Malformed,
}

/// The results of a chunk, by position in the chunk.
type Verdicts = Vec<Option<Verdict>>;

/// The most bytes in a chunk, half of the default send buffer; larger requests are sent alone.
const CHUNK_MAX_BYTES: usize = 64 << 10;
/// The offset of the sequence number in `struct nlmsghdr`.
const SEQUENCE_OFFSET: usize = 8;
/// Less than the default send buffer, which is 208 KiB.
const SEND_BUFFER_DEFAULT_BYTES: usize = 128 << 10;

// === impl Socket ===

impl Socket {
    /// Executes `batch` in chunks and reports each request in order; with `stop`, no chunk is sent
    /// after a failure.
    pub(super) fn run(&mut self, batch: &Batch, stop: bool, each: &mut dyn FnMut(usize, Result<()>)) {
        if let Some((_, reason)) = batch.invalid {
            for index in 0..batch.len() {
                each(index, Err(NetlinkError::Invalid { operation: self.describe(batch, index), reason }));
            }
            return;
        }
        let mut start = 0;
        while start < batch.len() {
            let chunk = start..chunk_end(batch, start);
            start = chunk.end;
            let (verdicts, broken) = self.exchange_chunk(batch, chunk.clone());
            let mut failed = false;
            for (index, verdict) in chunk.zip(verdicts) {
                let result = outcome(verdict, broken.as_ref(), || self.describe(batch, index));
                failed |= result.is_err();
                each(index, result);
            }
            if stop && failed {
                return;
            }
        }
    }

    pub(super) fn exchange_transaction(&mut self, batch: &Batch) -> Result<(), BatchError> {
        let failed = |index: usize, error| Err(BatchError { index, error });
        if let Some((index, reason)) = batch.invalid {
            return failed(index, NetlinkError::Invalid { operation: self.describe(batch, index), reason });
        }
        let whole = 0..batch.len();
        let answered = |index: usize| {
            let header = batch.bytes_of(index..index + 1);
            array(header, 6).is_some_and(|flags| u16::from_ne_bytes(flags) & NLM_F_ACK != 0)
        };
        let expected = whole.clone().filter(|index| answered(*index)).count();
        let broken = self.send_chunk(batch, whole.clone()).err();
        let (mut verdicts, broken) = match broken {
            Some(broken) => (vec![None; batch.len()], Some(broken)),
            None => self.collect(batch.len(), expected, true),
        };
        let refused = verdicts.iter().position(|verdict| verdict.as_ref().is_some_and(|v| v.errno != 0));
        if let Some(index) = refused {
            let verdict = verdicts.get_mut(index).and_then(Option::take);
            return outcome(verdict, None, || self.describe(batch, index))
                .or_else(|error| failed(index, error));
        }
        match broken {
            None => Ok(()),
            Some(broken) => failed(0, broken.error(|| self.describe(batch, 0))),
        }
    }

    /// Runs a dump; false if it must be repeated.
    pub(super) fn exchange_dump(
        &mut self,
        operation: &str,
        kind: u16,
        fill: impl FnOnce(&mut MessageBuilder<'_>),
        each: &mut dyn FnMut(&Message<'_>),
    ) -> Result<bool> {
        let name = || operation.to_owned();
        let sequence = self.ask(kind, NLM_F_DUMP, fill).map_err(|broken| broken.error(name))?;
        let mut settled = true;
        loop {
            let received = self.fd.receive(&mut self.inbox, true);
            let len = match received {
                Ok(Received::Datagram(len)) => len,
                Ok(Received::Truncated(len)) => {
                    self.inbox.resize(len.next_power_of_two(), 0);
                    self.dirty = true;
                    return Ok(false);
                }
                Ok(Received::Overrun) => {
                    self.dirty = true;
                    return Ok(false);
                }
                other => return Err(self.broken(other).error(name)),
            };
            let Some(datagram) = self.inbox.get(..len) else { return Err(self.malformed().error(name)) };
            for message in Messages::new(datagram) {
                let Ok(message) = message else { return Err(self.malformed().error(name)) };
                if message.sequence != sequence {
                    continue;
                }
                settled &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => {
                        let verdict = Verdict::read(&message).filter(|verdict| verdict.errno != 0);
                        return verdict
                            .map_or(Ok(settled), |verdict| Err(verdict.error(operation.to_owned())));
                    }
                    NLMSG_NOOP | NLMSG_OVERRUN => {}
                    _ => each(&message),
                }
            }
        }
    }

    pub(super) fn exchange_get<T>(
        &mut self,
        operation: &dyn Fn() -> String,
        kind: u16,
        fill: impl FnOnce(&mut MessageBuilder<'_>),
        decode: impl FnOnce(&Message<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let sequence = self.ask(kind, 0, fill).map_err(|broken| broken.error(operation))?;
        loop {
            let received = self.fd.receive(&mut self.inbox, true);
            let len = match received {
                Ok(Received::Datagram(len)) => len,
                other => return Err(self.broken(other).error(operation)),
            };
            let Some(datagram) = self.inbox.get(..len) else { return Err(self.malformed().error(operation)) };
            for message in Messages::new(datagram) {
                let Ok(message) = message else { return Err(self.malformed().error(operation)) };
                if message.sequence != sequence {
                    continue;
                }
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => {
                        let verdict = Verdict::read(&message).filter(|verdict| verdict.errno != 0);
                        return verdict.map_or(Ok(None), |verdict| Err(verdict.error(operation())));
                    }
                    NLMSG_NOOP | NLMSG_OVERRUN => {}
                    _ => return Ok(decode(&message)),
                }
            }
        }
    }

    fn exchange_chunk(&mut self, batch: &Batch, chunk: Range<usize>) -> (Verdicts, Option<Broken>) {
        match self.send_chunk(batch, chunk.clone()) {
            Ok(()) => self.collect(chunk.len(), chunk.len(), false),
            Err(broken) => (vec![None; chunk.len()], Some(broken)),
        }
    }

    /// Sends requests of a batch under new sequence numbers, the last of which is `self.sequence`
    /// afterwards.
    fn send_chunk(&mut self, batch: &Batch, chunk: Range<usize>) -> Result<(), Broken> {
        self.settle()?;
        self.outbox.clear();
        self.reserve_sequences(chunk.len());
        for index in chunk {
            self.sequence += 1;
            let at = self.outbox.len() + SEQUENCE_OFFSET;
            self.outbox.extend_from_slice(batch.bytes_of(index..index + 1));
            overwrite(&mut self.outbox, at, &self.sequence.to_ne_bytes());
        }
        if self.outbox.len() > SEND_BUFFER_DEFAULT_BYTES {
            self.fd.send_buffer(self.outbox.len() * 2).map_err(Broken::Io)?;
        }
        self.fd.send(&self.outbox).map_err(Broken::Io)
    }

    /// Collects `expected` answers to the last `requests` sequence numbers. A failed transaction
    /// may cause fewer answers than requested; then the answers that are available after the first
    /// failure are all. The same holds after answers were lost, because the kernel answers before
    /// `sendmsg` returns.
    fn collect(&mut self, requests: usize, expected: usize, transaction: bool) -> (Verdicts, Option<Broken>) {
        let mut verdicts = vec![None; requests];
        let (mut missing, mut failed, mut lost) = (expected, false, false);
        while missing > 0 || transaction {
            let wait = missing > 0 && !(failed && transaction) && !lost;
            let received = self.fd.receive(&mut self.inbox, wait);
            let len = match received {
                Ok(Received::Datagram(len)) => len,
                Ok(Received::Nothing) if !wait => break,
                Ok(Received::Overrun) => {
                    lost = true;
                    continue;
                }
                other => return (verdicts, Some(self.broken(other))),
            };
            let Some(datagram) = self.inbox.get(..len) else { return (verdicts, Some(self.malformed())) };
            for message in Messages::new(datagram) {
                let Ok(message) = message else { return (verdicts, Some(self.malformed())) };
                if message.kind != NLMSG_ERROR {
                    continue;
                }
                let Some(index) = position(self.sequence, requests, message.sequence) else { continue };
                let verdict = Verdict::read(&message);
                failed |= verdict.as_ref().is_some_and(|verdict| verdict.errno != 0);
                if let Some(slot) = verdicts.get_mut(index).filter(|slot| slot.is_none()) {
                    *slot = verdict;
                    missing = missing.saturating_sub(1);
                }
            }
        }
        (verdicts, (lost && missing > 0).then_some(Broken::Overrun))
    }

    /// Sends a single request; returns its sequence number.
    fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut MessageBuilder<'_>),
    ) -> Result<u32, Broken> {
        self.settle()?;
        self.reserve_sequences(1);
        self.sequence += 1;
        self.outbox.clear();
        let mut message = MessageBuilder::new(&mut self.outbox, kind, flags | NLM_F_REQUEST);
        fill(&mut message);
        message.finish();
        overwrite(&mut self.outbox, SEQUENCE_OFFSET, &self.sequence.to_ne_bytes());
        self.fd.send(&self.outbox).map_err(Broken::Io)?;
        Ok(self.sequence)
    }

    /// Restarts at 1 instead of wrapping within an exchange; 0 is for the kernel's own messages.
    fn reserve_sequences(&mut self, requests: usize) {
        if (u32::MAX - self.sequence) as usize <= requests {
            self.sequence = 0;
        }
    }

    /// Discards the remains of an interrupted exchange; a dump that is still running is read to its
    /// end.
    fn settle(&mut self) -> Result<(), Broken> {
        for _ in 0..STALE_MAX_DATAGRAMS {
            if !self.dirty {
                return Ok(());
            }
            let received = self.fd.receive(&mut self.inbox, false).map_err(Broken::Io)?;
            self.dirty = received != Received::Nothing;
        }
        Ok(())
    }

    fn broken(&mut self, received: io::Result<Received>) -> Broken {
        self.dirty = true;
        match received {
            Err(error) => Broken::Io(error),
            Ok(Received::Nothing) => Broken::Timeout,
            Ok(Received::Overrun) => Broken::Overrun,
            Ok(Received::Truncated(len)) => {
                self.inbox.resize(len.next_power_of_two(), 0);
                Broken::Overrun
            }
            Ok(Received::Datagram(_)) => Broken::Malformed,
        }
    }

    fn malformed(&mut self) -> Broken {
        self.dirty = true;
        Broken::Malformed
    }
}

/// The position of `sequence` among the `requests` numbers that end with `newest`.
fn position(newest: u32, requests: usize, sequence: u32) -> Option<usize> {
    let back = newest.checked_sub(sequence)?;
    requests.checked_sub(usize::try_from(back).ok()? + 1)
}

fn chunk_end(batch: &Batch, start: usize) -> usize {
    let limit = batch.len().min(start + CHUNK_MAX_REQUESTS);
    let fits = |end: &usize| batch.bytes_of(start..*end).len() <= CHUNK_MAX_BYTES;
    if fits(&limit) { limit } else { (start + 2..limit).take_while(fits).last().unwrap_or(start + 1) }
}

fn outcome(
    verdict: Option<Verdict>,
    broken: Option<&Broken>,
    operation: impl FnOnce() -> String,
) -> Result<()> {
    match (verdict, broken) {
        (Some(verdict), _) if verdict.errno == 0 => Ok(()),
        (Some(verdict), _) => Err(verdict.error(operation())),
        (None, Some(broken)) => Err(broken.error(operation)),
        (None, None) => Err(NetlinkError::Malformed { operation: operation() }),
    }
}

// === impl Verdict ===

impl Verdict {
    /// Decodes `NLMSG_ERROR` (an error number, the request's header, possibly the rest of the
    /// request, then attributes) and `NLMSG_DONE` (an error number, then attributes).
    pub(crate) fn read(message: &Message<'_>) -> Option<Self> {
        let code = array(message.payload, 0).map_or(0, i32::from_ne_bytes);
        let attributes = match message.kind {
            NLMSG_DONE => 4,
            NLMSG_ERROR if message.flags & NLM_F_CAPPED != 0 => 4 + HEADER_BYTES,
            NLMSG_ERROR => 4 + array(message.payload, 4).map_or(0, u32::from_ne_bytes) as usize,
            _ => return None,
        };
        let mut verdict = Self { errno: code.checked_neg().unwrap_or(i32::MAX), text: None, offset: None };
        if message.flags & NLM_F_ACK_TLVS != 0 {
            let bytes = message.payload.get((attributes + 3) & !3..).unwrap_or_default();
            for attribute in Attributes::new(bytes) {
                match attribute.kind {
                    NLMSGERR_ATTR_MSG => verdict.text = Some(attribute.text()),
                    NLMSGERR_ATTR_OFFS => verdict.offset = attribute.u32(),
                    _ => {}
                }
            }
        }
        Some(verdict)
    }

    pub(crate) fn error(self, operation: String) -> NetlinkError {
        NetlinkError::Refused { operation, errno: self.errno, text: self.text, offset: self.offset }
    }
}

// === impl Broken ===

impl Broken {
    fn error(&self, operation: impl FnOnce() -> String) -> NetlinkError {
        let operation = operation();
        match self {
            Broken::Io(source) => {
                let copy = source.raw_os_error().map_or(source.kind().into(), io::Error::from_raw_os_error);
                NetlinkError::Io { operation, source: copy }
            }
            Broken::Timeout => NetlinkError::Timeout { operation },
            Broken::Overrun => NetlinkError::Overrun { operation },
            Broken::Malformed => NetlinkError::Malformed { operation },
        }
    }
}
