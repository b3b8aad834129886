//! Buffers for received datagrams, several per call.

use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use super::{CONTROL_BYTES, Control, UdpSocket};

/// Buffers for the arrivals of one call.
pub struct Inbox {
    /// [`SLOT_BYTES`] for each slot.
    memory: Vec<u8>,
    filled: Vec<Filled>,
    slots: usize,
}

/// The contents of one buffer: one datagram, or several of one sender and one size that the kernel
/// coalesced.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// The sender.
    pub from: Ipv4Addr,
    /// The bytes of all datagrams.
    pub bytes: &'a mut [u8],
    /// Size of each datagram but the last.
    pub datagram_bytes: u16,
}

#[derive(Debug, Clone, Copy)]
struct Filled {
    from: Ipv4Addr,
    bytes: usize,
    datagram_bytes: u16,
}

/// The largest UDP payload, rounded up so that slots are aligned.
const SLOT_BYTES: usize = 64 << 10;
/// More per call are not faster, and exceed the cache.
const MAX_SLOTS: usize = 8;

/// Size of a sender's address.
const SENDER_BYTES: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;
const NO_SENDER: libc::sockaddr_in =
    libc::sockaddr_in { sin_family: 0, sin_port: 0, sin_addr: libc::in_addr { s_addr: 0 }, sin_zero: [0; 8] };

// === impl Inbox ===

impl Inbox {
    /// Room for `slots` arrivals, at most 8.
    pub fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, MAX_SLOTS);
        Self { memory: vec![0; slots * SLOT_BYTES], filled: Vec::with_capacity(slots), slots }
    }

    /// Whether the last call returned more than a single datagram.
    pub fn is_busy(&self) -> bool {
        self.filled.len() > 1
            || self.filled.iter().any(|first| first.bytes > usize::from(first.datagram_bytes))
    }

    /// The arrivals of the last [`UdpSocket::receive`], in order.
    pub fn arrivals(&mut self) -> impl Iterator<Item = Arrival<'_>> {
        self.memory.chunks_exact_mut(SLOT_BYTES).zip(&self.filled).map(|(slot, filled)| Arrival {
            from: filled.from,
            bytes: &mut slot[..filled.bytes],
            datagram_bytes: filled.datagram_bytes,
        })
    }
}

// === impl UdpSocket ===

impl UdpSocket {
    /// Receives what is available, which may be nothing.
    pub fn receive(&self, inbox: &mut Inbox) -> io::Result<()> {
        self.receive_with(inbox, MAX_SLOTS, libc::MSG_DONTWAIT)
    }

    /// Waits until something arrives, or until the socket is [shut](Self::shut), when there may be
    /// nothing. Receives at most `slots` arrivals: with 1, the kernel does not look for a second
    /// one, which would cost as much as a call.
    pub fn wait(&self, inbox: &mut Inbox, slots: usize) -> io::Result<()> {
        self.receive_with(inbox, slots, libc::MSG_WAITFORONE)
    }

    /// Ends all [waits](Self::wait), current and future ones. Sending still works.
    pub fn shut(&self) {
        // The kernel wakes the waiting threads, and then returns an error, because an unconnected
        // socket cannot be shut down.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read);
    }

    fn receive_with(&self, inbox: &mut Inbox, slots: usize, flags: libc::c_int) -> io::Result<()> {
        inbox.filled.clear();
        if slots == 1 && flags & libc::MSG_DONTWAIT == 0 {
            return self.receive_one(inbox);
        }
        let mut controls = [Control::EMPTY; MAX_SLOTS];
        let mut senders = [NO_SENDER; MAX_SLOTS];
        let mut pieces: [MaybeUninit<libc::iovec>; MAX_SLOTS] = [const { MaybeUninit::uninit() }; MAX_SLOTS];
        // SAFETY: every field of struct mmsghdr may be zero.
        let mut messages: [libc::mmsghdr; MAX_SLOTS] = unsafe { std::mem::zeroed() };
        let slots = slots.clamp(1, inbox.slots);
        let buffers = inbox.memory.chunks_exact_mut(SLOT_BYTES).take(slots);
        for ((((slot, piece), control), sender), message) in
            buffers.zip(&mut pieces).zip(&mut controls).zip(&mut senders).zip(&mut messages)
        {
            let iovec = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT_BYTES };
            let header = &mut message.msg_hdr;
            header.msg_name = std::ptr::from_mut(sender).cast();
            header.msg_namelen = SENDER_BYTES;
            header.msg_iov = piece.write(iovec);
            header.msg_iovlen = 1;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        let fd = self.fd.as_raw_fd();
        let (first, count) = (messages.as_mut_ptr(), slots as libc::c_uint);
        // SAFETY: the first `slots` messages have been set up with buffers that live until the call
        // returns.
        let received = unsafe { libc::recvmmsg(fd, first, count, flags as _, std::ptr::null_mut()) };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            let nothing = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if nothing { Ok(()) } else { Err(error) };
        };
        let messages = messages.iter().zip(&controls).zip(&senders).take(received);
        inbox.filled.extend(messages.map(|((m, c), s)| filled(&m.msg_hdr, c, s, m.msg_len as usize)));
        Ok(())
    }

    /// Waits for a single arrival; `recvmsg` is slightly faster for that.
    fn receive_one(&self, inbox: &mut Inbox) -> io::Result<()> {
        let (mut control, mut sender) = (Control::EMPTY, NO_SENDER);
        let mut piece = libc::iovec { iov_base: inbox.memory.as_mut_ptr().cast(), iov_len: SLOT_BYTES };
        // SAFETY: every field of struct msghdr may be zero.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = std::ptr::from_mut(&mut sender).cast();
        message.msg_namelen = SENDER_BYTES;
        message.msg_iov = &mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: message points to an address, to a buffer of at least SLOT_BYTES and to control bytes that live until the call returns.
        let received = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, 0) };
        match usize::try_from(received) {
            Ok(bytes) => inbox.filled.push(filled(&message, &control, &sender, bytes)),
            Err(_) => {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
            }
        }
        Ok(())
    }
}

/// The metadata of a message. A truncated one counts as empty: a UDP payload always fits.
fn filled(message: &libc::msghdr, control: &Control, sender: &libc::sockaddr_in, bytes: usize) -> Filled {
    let cut = message.msg_flags & libc::MSG_TRUNC != 0;
    let bytes = if cut { 0 } else { bytes.min(SLOT_BYTES) };
    let whole = u16::try_from(bytes).unwrap_or(u16::MAX);
    let joined = control.joined().filter(|each| *each != 0);
    // The bytes are in network order.
    let from = Ipv4Addr::from(sender.sin_addr.s_addr.to_ne_bytes());
    Filled { from, bytes, datagram_bytes: joined.unwrap_or(whole) }
}
