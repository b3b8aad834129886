//! The packets that rules log to a group of `nfnetlink_log` (subsystem 4).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use russet_netlink::NetlinkError;
use russet_netlink::wire::{Message, MessageBuilder, Messages};

use crate::kernel::*;
use crate::sys::{self, Received};
use crate::transaction::nfgenmsg;

/// Reads a group in the network namespace in which it was opened. Only one process can.
#[derive(Debug)]
pub struct PacketLog {
    fd: OwnedFd,
    inbox: Vec<u8>,
    heard: Heard,
}

/// Packets that were received and not yet returned.
#[derive(Debug, Default)]
struct Heard {
    waiting: VecDeque<LoggedPacket>,
    /// The number that the kernel gives to the next packet.
    next: Option<u32>,
    lost: u64,
}

/// A packet as a rule saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoggedPacket {
    /// The text of the rule.
    pub prefix: String,
    /// Its first bytes, from the network header on.
    pub bytes: Vec<u8>,
    /// The number of the hook whose rule logged it (`enum nf_inet_hooks`).
    pub hook: Option<u8>,
    /// The index of the interface by which it came in, if that is known at the hook.
    pub in_index: Option<u32>,
    /// The index of the interface by which it goes out, if that is known at the hook.
    pub out_index: Option<u32>,
}

/// Enough for the packets of some seconds at the limits that rules have.
const RECEIVE_BUFFER_BYTES: usize = 2 << 20;
/// The kernel sends at most 128 KiB at once, and by default a page.
const INBOX_BYTES: usize = 128 << 10;
/// How long the kernel collects packets, in hundredths of a second, and how many at most.
const COLLECT_CS: u32 = 10;
const COLLECT_MAX: u32 = 32;
/// The most bytes of a packet; a rule may ask for fewer.
const COPIED_MAX_BYTES: u32 = 256;
/// The kernel answers before the request is sent.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Where the hook's number is in `struct nfulnl_msg_packet_hdr`, behind the protocol.
const HOOK_AT: usize = 2;
/// `NLMSG_ERROR`, which is also the acknowledgement.
const ERROR: u16 = 2;

// === impl PacketLog ===

impl PacketLog {
    /// Reads the packets that rules of the calling thread's network namespace log to `group` from
    /// now on.
    pub fn open(group: u16) -> Result<Self, NetlinkError> {
        let fd = sys::open(RECEIVE_BUFFER_BYTES).map_err(failed("open a socket for logged packets"))?;
        let mut log = Self { fd, inbox: vec![0; INBOX_BYTES], heard: Heard::default() };
        let mut mode = COPIED_MAX_BYTES.to_be_bytes().to_vec();
        mode.extend([NFULNL_COPY_PACKET, 0]);
        log.configure(group, |message| {
            message.attr_u8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND).attr(NFULA_CFG_MODE, &mode);
            message.attr_be32(NFULA_CFG_TIMEOUT, COLLECT_CS).attr_be32(NFULA_CFG_QTHRESH, COLLECT_MAX);
            message.attr_be16(NFULA_CFG_FLAGS, NFULNL_CFG_F_SEQ);
        })?;
        Ok(log)
    }

    /// The next packet; `None` after `timeout`.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<LoggedPacket>, NetlinkError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(packet) = self.heard.waiting.pop_front() {
                return Ok(Some(packet));
            }
            if !self.receive(deadline)? {
                return Ok(None);
            }
        }
    }

    /// How many packets the kernel logged that did not arrive here, because the socket was full.
    pub const fn lost(&self) -> u64 {
        self.heard.lost
    }

    fn configure(
        &mut self,
        group: u16,
        fill: impl FnOnce(&mut MessageBuilder<'_>),
    ) -> Result<(), NetlinkError> {
        let mut request = Vec::new();
        let mut message = MessageBuilder::new(&mut request, NFULNL_MSG_CONFIG, NLM_F_REQUEST | NLM_F_ACK);
        message.raw(&nfgenmsg(0, group));
        fill(&mut message);
        message.finish();
        let operation = "read logged packets";
        sys::send(&self.fd, &request).map_err(failed(operation))?;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        loop {
            match sys::receive(&self.fd, &mut self.inbox).map_err(failed(operation))? {
                Received::Datagram(len) => {
                    let datagram = self.inbox.get(..len).unwrap_or_default();
                    if let Some(answer) = self.heard.take(datagram) {
                        return answer.map_err(failed(operation));
                    }
                }
                Received::Lost(_) => {}
                Received::Nothing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(failed(operation)(std::io::ErrorKind::TimedOut.into()));
                    }
                    sys::wait_readable(&self.fd, left).map_err(failed(operation))?;
                }
            }
        }
    }

    /// Takes a datagram; false if there is none until the deadline.
    fn receive(&mut self, deadline: Instant) -> Result<bool, NetlinkError> {
        match sys::receive(&self.fd, &mut self.inbox).map_err(failed("read logged packets"))? {
            Received::Datagram(len) => _ = self.heard.take(self.inbox.get(..len).unwrap_or_default()),
            // The numbers of later packets say how many were lost.
            Received::Lost(_) => {}
            Received::Nothing => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(false);
                }
                sys::wait_readable(&self.fd, left).map_err(failed("wait for logged packets"))?;
            }
        }
        Ok(true)
    }
}

// === impl Heard ===

impl Heard {
    /// Takes the packets of a datagram. Returns the answer to a request, if it has one.
    fn take(&mut self, datagram: &[u8]) -> Option<std::io::Result<()>> {
        let mut answer = None;
        for message in Messages::new(datagram).flatten() {
            match message.kind {
                NFULNL_MSG_PACKET => self.packet(&message),
                ERROR => answer = Some(outcome(&message)),
                _ => {}
            }
        }
        answer
    }

    fn packet(&mut self, message: &Message<'_>) {
        let attributes = message.attributes(NFGENMSG_BYTES);
        if let Some(number) = attributes.find(NFULA_SEQ).and_then(|number| number.be32()) {
            let expected = self.next.unwrap_or(0);
            // A number that goes back is none of this kernel's.
            let gap = number.wrapping_sub(expected);
            self.lost += if gap <= u32::MAX / 2 { u64::from(gap) } else { 0 };
            self.next = Some(number.wrapping_add(1));
        }
        self.waiting.extend(LoggedPacket::decode(message));
    }
}

// === impl LoggedPacket ===

impl LoggedPacket {
    fn decode(message: &Message<'_>) -> Option<Self> {
        let attributes = message.attributes(NFGENMSG_BYTES);
        let number = |attribute| attributes.find(attribute).and_then(|number| number.be32());
        Some(Self {
            hook: attributes.find(NFULA_PACKET_HDR).and_then(|header| header.payload.get(HOOK_AT).copied()),
            in_index: number(NFULA_IFINDEX_INDEV),
            out_index: number(NFULA_IFINDEX_OUTDEV),
            prefix: attributes.find(NFULA_PREFIX).map(|prefix| prefix.text()).unwrap_or_default(),
            bytes: attributes.find(NFULA_PAYLOAD)?.payload.to_vec(),
        })
    }
}

/// What an acknowledgement says.
fn outcome(message: &Message<'_>) -> std::io::Result<()> {
    match message.payload.first_chunk().map(|errno| i32::from_ne_bytes(*errno)) {
        Some(0) => Ok(()),
        Some(errno) => Err(std::io::Error::from_raw_os_error(errno.wrapping_neg())),
        None => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

fn failed(operation: &'static str) -> impl FnOnce(std::io::Error) -> NetlinkError {
    move |source| NetlinkError::Io { operation: operation.to_owned(), source }
}

/// Runs the decoder, for tests with arbitrary input.
#[cfg(test)]
pub(crate) fn hear_for_test(datagram: &[u8]) -> (Vec<LoggedPacket>, u64) {
    let mut heard = Heard::default();
    let _ = heard.take(datagram);
    let _ = heard.take(datagram);
    (heard.waiting.into(), heard.lost)
}
