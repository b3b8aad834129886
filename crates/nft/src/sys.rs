//! The system calls of a listening netlink socket; all `unsafe` of this crate is here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// One datagram, or why there is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes from the kernel.
    Datagram(usize),
    /// A datagram of this many bytes did not fit and is lost, or the socket's buffer was full.
    Lost(usize),
    /// Nothing is there.
    Nothing,
}

/// `NETLINK_ADD_MEMBERSHIP`
const ADD_MEMBERSHIP: i32 = 1;

/// Opens a netfilter socket that hears `group`, with a receive buffer of `buffer_bytes`.
pub(crate) fn listen(group: u32, buffer_bytes: usize) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns.
    let raw = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_NETFILTER) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: see above.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let bytes = i32::try_from(buffer_bytes).unwrap_or(i32::MAX);
    set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))?;
    // A socket without a port of its own hears nothing that the kernel sends by itself, which is as port 0.
    bind(&fd)?;
    set_option(&fd, libc::SOL_NETLINK, ADD_MEMBERSHIP, group.cast_signed())?;
    Ok(fd)
}

/// Has the kernel give the socket a port.
fn bind(fd: &OwnedFd) -> io::Result<()> {
    let mut any = address();
    any.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let any_at: *const libc::sockaddr_nl = &any;
    let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the address is valid for reads of the length given with it.
    match unsafe { libc::bind(fd.as_raw_fd(), any_at.cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives the next datagram that the kernel sent, without waiting; those of other processes are thrown away.
pub(crate) fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<Received> {
    loop {
        let mut sender = address();
        let mut sender_len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        let sender_at: *mut libc::sockaddr_nl = &mut sender;
        // SAFETY: buffer and sender are valid for writes of the lengths given with them.
        let len = unsafe {
            libc::recvfrom(
                fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_TRUNC | libc::MSG_DONTWAIT,
                sender_at.cast(),
                &mut sender_len,
            )
        };
        match usize::try_from(len) {
            Ok(_) if sender.nl_pid != 0 => {}
            Ok(len) if len > buffer.len() => return Ok(Received::Lost(len)),
            Ok(len) => return Ok(Received::Datagram(len)),
            Err(_) => {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => return Ok(Received::Nothing),
                    Some(libc::ENOBUFS) => return Ok(Received::Lost(0)),
                    _ => return Err(error),
                }
            }
        }
    }
}

/// Waits until something is there to receive, or `timeout` has passed.
pub(crate) fn wait_readable(fd: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // Rounded up, so that a wait for less than a millisecond is one.
    let timeout_ms = timeout.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(i32::MAX);
    // SAFETY: one valid pollfd.
    if unsafe { libc::poll(&mut poll, 1, timeout_ms) } >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

/// The socket's port: what the kernel calls its user in notifications.
pub(crate) fn port(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut own = address();
    let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    let own_at: *mut libc::sockaddr_nl = &mut own;
    // SAFETY: own is valid for writes of the length given with it.
    match unsafe { libc::getsockname(fd.as_raw_fd(), own_at.cast(), &mut len) } {
        0 => Ok(own.nl_pid),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_option(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let at: *const i32 = &value;
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: value is valid for reads of its own size.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, at.cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn address() -> libc::sockaddr_nl {
    // SAFETY: plain integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}
