//! A netlink socket: sends batches and receives acknowledgements and dumps.
//!
//! A socket belongs permanently to the network namespace in which its thread was when it was
//! opened. All calls take `&mut self`: the kernel allows one dump per socket at a time (a second
//! one gets EBUSY), and an exchange ends before the next one begins.

mod exchange;
mod fd;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::error::{BatchError, NetlinkError, Result};
use crate::wire::Message;

pub(crate) use fd::{Fd, Received};

/// A connection to one of the kernel's netlink families.
#[derive(Debug)]
pub struct Socket {
    fd: Fd,
    /// The last used sequence number.
    sequence: u32,
    /// The receive buffer; grows when a datagram did not fit.
    inbox: Vec<u8>,
    /// The chunk of a batch that is being sent, with its sequence numbers.
    outbox: Vec<u8>,
    /// Whether the last exchange was interrupted, so that answers to it may still arrive.
    dirty: bool,
}

/// The time limit of a single answer, in seconds. The kernel answers before `sendmsg` returns; only
/// a dump that waits for the RTNL lock takes noticeable time, and the teardown of a namespace can
/// hold that lock for several hundred ms.
pub const REPLY_DEADLINE_S: u64 = 10;
/// Requests per `sendmsg`: their answers (about 1 KiB each as the kernel counts) always fit into
/// the receive buffer, and more at once would not be faster (dataplane.md section 3.3).
pub(crate) const CHUNK_MAX_REQUESTS: usize = 64;
/// Size of the receive buffer: ten times the answers to a chunk, and enough for a burst of events.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// The kernel builds dumps in pieces of at most 32 KiB; single larger messages make the inbox grow.
pub(crate) const INBOX_BYTES: usize = 64 << 10;
/// Attempts at a dump that is interrupted by changes or whose parts do not fit, and for how long it
/// is attempted at least. On a loaded machine most attempts at 300 links are interrupted by a
/// process that adds and deletes links without a pause.
pub(crate) const DUMP_MIN_TRIES: u32 = 16;
pub(crate) const DUMP_PATIENCE: Duration = Duration::from_secs(1);
/// How many leftover datagrams are discarded before an exchange: more than any interrupted dump
/// has.
pub(crate) const STALE_MAX_DATAGRAMS: usize = 1 << 16;

// === impl Socket ===

impl Socket {
    /// Opens a `NETLINK_ROUTE` socket in the calling thread's network namespace.
    pub fn route() -> Result<Self> {
        Self::open(libc::NETLINK_ROUTE, "open a NETLINK_ROUTE socket")
    }

    /// Opens a `NETLINK_NETFILTER` socket in the calling thread's network namespace.
    pub fn netfilter() -> Result<Self> {
        Self::open(libc::NETLINK_NETFILTER, "open a NETLINK_NETFILTER socket")
    }

    /// Opens a `NETLINK_GENERIC` socket in the calling thread's network namespace.
    pub fn generic() -> Result<Self> {
        Self::open(libc::NETLINK_GENERIC, "open a NETLINK_GENERIC socket")
    }

    /// Sends the batch and waits for its answers. The error is that of the first failed request.
    ///
    /// Requests are sent in chunks of 64, and the kernel executes a whole chunk even if a request
    /// in it fails: requests after the failed one in its chunk were executed as well, later chunks
    /// were not sent. Use [`execute_all`](Self::execute_all) if that matters.
    pub fn execute(&mut self, batch: &Batch) -> Result<(), BatchError> {
        let mut first = None;
        self.run(batch, true, &mut |index, result| {
            if let Err(error) = result {
                first.get_or_insert(BatchError { index, error });
            }
        });
        first.map_or(Ok(()), Err)
    }

    /// Describes request `index` of a batch, with the current names of interfaces. An interface
    /// that no longer exists is shown by its number.
    pub fn describe(&self, batch: &Batch, index: usize) -> String {
        batch.description_with(index, &|interface| self.interface_name(interface))
    }

    /// The current name of an interface for messages, in the socket's network namespace; its number
    /// if it no longer exists.
    pub fn interface_name(&self, interface: u32) -> String {
        self.fd.interface_name(interface).unwrap_or_else(|| format!("{interface} (gone)"))
    }

    /// Sends the whole batch even after failures; returns the result of each request.
    pub fn execute_all(&mut self, batch: &Batch) -> Vec<Result<()>> {
        let mut results = Vec::with_capacity(batch.len());
        self.run(batch, false, &mut |_, result| results.push(result));
        results
    }

    /// Sends the batch in a single `sendmsg`, as nf_tables transactions require, and waits for the
    /// answers to requests with `NLM_F_ACK`. The error is that of the first request that the kernel
    /// reports.
    pub fn transact(&mut self, batch: &Batch) -> Result<(), BatchError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.exchange_transaction(batch)
    }

    /// Requests a list: `fill` writes the family header and filters after a message header of type
    /// `kind`, and `decode` selects the objects from the answers. A list that changed while it was
    /// read is read again.
    pub fn dump<T>(
        &mut self,
        operation: &str,
        kind: u16,
        fill: impl Fn(&mut crate::wire::MessageBuilder<'_>),
        mut decode: impl FnMut(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        let began = Instant::now();
        let mut tries = 0;
        while tries < DUMP_MIN_TRIES || began.elapsed() < DUMP_PATIENCE {
            tries += 1;
            found.clear();
            let mut each = |message: &Message<'_>| found.extend(decode(message));
            if self.exchange_dump(operation, kind, &fill, &mut each)? {
                return Ok(found);
            }
        }
        Err(NetlinkError::Unsettled { operation: operation.to_owned(), tries })
    }

    /// Requests one object.
    pub fn get<T>(
        &mut self,
        operation: impl Fn() -> String,
        kind: u16,
        fill: impl FnOnce(&mut crate::wire::MessageBuilder<'_>),
        decode: impl FnOnce(&Message<'_>) -> Option<T>,
    ) -> Result<T> {
        let decoded = self.exchange_get(&operation, kind, fill, decode)?;
        decoded.ok_or_else(|| NetlinkError::Malformed { operation: operation() })
    }

    fn open(protocol: i32, operation: &str) -> Result<Self> {
        let opened = Fd::open(protocol).and_then(|fd| {
            fd.configure(RECEIVE_BUFFER_BYTES, REPLY_DEADLINE_S)?;
            Ok(fd)
        });
        let fd = opened.map_err(|source| NetlinkError::Io { operation: operation.to_owned(), source })?;
        Ok(Self { fd, sequence: 0, inbox: vec![0; INBOX_BYTES], outbox: Vec::new(), dirty: false })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
