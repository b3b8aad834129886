//! A netlink socket: batches out, acknowledgements and dumps in.
//!
//! A socket belongs to the network namespace in which its thread was when it was opened, for ever. All calls
//! take `&mut self`: the kernel allows one dump per socket at a time (a second one gets EBUSY), and an
//! exchange ends before the next one begins.

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
    /// The newest sequence number that was given out.
    sequence: u32,
    /// What arrives; grows when a datagram did not fit.
    inbox: Vec<u8>,
    /// What is being sent: a chunk of a batch with its sequence numbers.
    outbox: Vec<u8>,
    /// The last exchange broke off, so that answers of its may still come.
    dirty: bool,
}

/// Seconds that a single answer may take. The kernel answers before `sendmsg` returns; only a dump that waits
/// for the RTNL lock takes noticeable time, and a namespace's teardown can hold that for some hundred ms.
pub const REPLY_DEADLINE_S: u64 = 10;
/// Requests per `sendmsg`: their answers (about 1 KiB each as the kernel counts) always fit the receive buffer,
/// and more of them at once gain nothing (dataplane.md section 3.3).
pub(crate) const CHUNK_MAX_REQUESTS: usize = 64;
/// Receive buffer: room for the answers of a chunk ten times over, and for a burst of events.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// The kernel builds dumps in pieces of at most 32 KiB; single larger messages make the inbox grow.
pub(crate) const INBOX_BYTES: usize = 64 << 10;
/// Tries at a dump that is overtaken by changes or whose pieces do not fit, and how long it is tried at least. On a loaded machine
/// most tries at 300 links are overtaken by one who adds and deletes without a pause.
pub(crate) const DUMP_MIN_TRIES: u32 = 16;
pub(crate) const DUMP_PATIENCE: Duration = Duration::from_secs(1);
/// Left-over datagrams that are thrown away before an exchange: more than any interrupted dump has.
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

    /// Sends the batch and waits for its answers; the error is about the first request that failed.
    ///
    /// Requests go out in chunks of 64, and the kernel runs a whole chunk even when a request in it fails: those
    /// behind the failed one in its chunk have run as well, later chunks have not been sent. Use
    /// [`execute_all`](Self::execute_all) where that matters.
    pub fn execute(&mut self, batch: &Batch) -> Result<(), BatchError> {
        let mut first = None;
        self.run(batch, true, &mut |index, result| {
            if let Err(error) = result {
                first.get_or_insert(BatchError { index, error });
            }
        });
        first.map_or(Ok(()), Err)
    }

    /// What request `index` of a batch asks for, with the names of interfaces as they are now. One that is gone is shown by its number.
    pub fn describe(&self, batch: &Batch, index: usize) -> String {
        let name =
            |interface| self.fd.interface_name(interface).unwrap_or_else(|| format!("{interface} (gone)"));
        batch.description_with(index, &name)
    }

    /// Sends the whole batch whatever happens, and says of each request how it went.
    pub fn execute_all(&mut self, batch: &Batch) -> Vec<Result<()>> {
        let mut results = Vec::with_capacity(batch.len());
        self.run(batch, false, &mut |_, result| results.push(result));
        results
    }

    /// Sends the batch in a single `sendmsg`, as nf_tables wants its transactions, and waits for the answers of
    /// those requests that have `NLM_F_ACK`. The error is about the first request that the kernel named.
    pub fn transact(&mut self, batch: &Batch) -> Result<(), BatchError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.exchange_transaction(batch)
    }

    /// Asks for a list: `fill` writes the family header and filters behind a message of type `kind`, `decode`
    /// picks what is wanted out of each answer. A list that changed while it was read is read again.
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

    /// Asks for one object; the kernel answers with it or refuses.
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
