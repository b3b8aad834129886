//! The system calls of a netlink socket for events, and socket options of legacy iptables; all
//! `unsafe` code of this crate is here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The result of receiving.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A datagram of this size from the kernel.
    Datagram(usize),
    /// A datagram of this size did not fit and is lost, or the socket's buffer was full.
    Lost(usize),
    /// Nothing is available.
    Nothing,
}

/// `NETLINK_ADD_MEMBERSHIP`
const ADD_MEMBERSHIP: i32 = 1;

/// Opens a netfilter socket that receives `group`, with a receive buffer of `buffer_bytes`.
pub(crate) fn listen(group: u32, buffer_bytes: usize) -> io::Result<OwnedFd> {
    let fd = open(buffer_bytes)?;
    set_option(&fd, libc::SOL_NETLINK, ADD_MEMBERSHIP, group.cast_signed())?;
    Ok(fd)
}

/// Opens a netfilter socket with a port, and with a receive buffer of `buffer_bytes`.
pub(crate) fn open(buffer_bytes: usize) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; a non-negative result is a new descriptor without another owner.
    let raw = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_NETFILTER) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: see above.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let bytes = i32::try_from(buffer_bytes).unwrap_or(i32::MAX);
    set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))?;
    // A socket that is not bound to a port receives no notifications.
    bind(&fd)?;
    Ok(fd)
}

/// Sends a request to the kernel.
pub(crate) fn send(fd: &OwnedFd, request: &[u8]) -> io::Result<()> {
    // SAFETY: the request is valid for reads of its length.
    let sent = unsafe { libc::send(fd.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    match usize::try_from(sent) {
        Ok(len) if len == request.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Binds the socket to a port that the kernel chooses.
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

/// Receives the next datagram from the kernel, without waiting; those of other processes are
/// discarded.
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

/// Waits until data is available, or until `timeout`.
pub(crate) fn wait_readable(fd: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // Rounded up, so that a wait of less than a millisecond still waits.
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

/// The socket's port, which identifies it in notifications.
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

/// Has the kernel drop messages to the socket that requests from these ports caused, before they wake a reader.
pub(crate) fn ignore_ports(fd: &OwnedFd, ports: &[u32]) -> io::Result<()> {
    /// The offset of the port in `struct nlmsghdr`.
    const PORT_OFFSET: u32 = 12;
    let statement = |code: u32, jump: usize, k| libc::sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt: u8::try_from(jump).unwrap_or_default(),
        jf: 0,
        k,
    };
    let load = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, PORT_OFFSET);
    // The filter loads in network order what the header has in the machine's. The last statement is two behind that of
    // the last port, which jumps over one.
    let compare = |(number, port): (usize, &u32)| {
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        statement(equal, ports.len() - number, u32::from_be_bytes(port.to_ne_bytes()))
    };
    let answer = |bytes| statement(libc::BPF_RET | libc::BPF_K, 0, bytes);
    let compares = ports.iter().enumerate().map(compare);
    let mut program: Vec<libc::sock_filter> =
        std::iter::once(load).chain(compares).chain([answer(u32::MAX), answer(0)]).collect();
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_mut_ptr(),
    };
    let at: *const libc::sock_fprog = &program;
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the kernel copies the statements that the structure points to, whose number it has.
    match unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at.cast(), len)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket without an address, for [`get_option`].
pub(crate) fn datagram_socket(domain: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a non-negative result is a new descriptor without another owner.
    let raw = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: see above.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Reads an option whose value has the size of `value`. Some options also read what is in it.
pub(crate) fn get_option(fd: &OwnedFd, level: i32, option: i32, value: &mut [u8]) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: value is valid for reads and writes of the length given with it.
    match unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &mut len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn address() -> libc::sockaddr_nl {
    // SAFETY: plain integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}
