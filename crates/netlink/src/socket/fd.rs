//! The system calls of a netlink socket; all `unsafe` of this crate is here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::ports;

/// An open netlink socket.
#[derive(Debug)]
pub(crate) struct Fd {
    fd: OwnedFd,
    /// The protocol, one of `NETLINK_*`.
    protocol: i32,
    /// The port of the socket in notifications; 0 before it is bound.
    port: u32,
}

/// The result of receiving.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A datagram of this size from the kernel.
    Datagram(usize),
    /// A datagram of this size did not fit and is lost.
    Truncated(usize),
    /// The socket's receive buffer was full; messages are lost.
    Overrun,
    /// Nothing arrived within the deadline, or nothing is available.
    Nothing,
}

// `SOL_NETLINK` and its options, linux/netlink.h
const OPTION_ADD_MEMBERSHIP: i32 = 1;
const OPTION_CAP_ACK: i32 = 10;
const OPTION_EXT_ACK: i32 = 11;
const OPTION_STRICT_CHECK: i32 = 12;

// === impl Fd ===

impl Fd {
    pub(crate) fn open(protocol: i32) -> io::Result<Self> {
        // SAFETY: no pointers; a non-negative result is a new descriptor without another owner.
        let raw = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: see above.
        let mut fd = Self { fd: unsafe { OwnedFd::from_raw_fd(raw) }, protocol, port: 0 };
        fd.bind()?;
        fd.port = fd.bound_to()?;
        ports::opened((protocol, fd.port));
        Ok(fd)
    }

    /// Binds the socket to a port that the kernel chooses: without one it receives no events.
    fn bind(&self) -> io::Result<()> {
        let any = kernel_address();
        let address: *const libc::sockaddr_nl = &any;
        let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: address is valid for reads of the length given with it.
        match unsafe { libc::bind(self.fd.as_raw_fd(), address.cast(), len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn bound_to(&self) -> io::Result<u32> {
        let mut own = kernel_address();
        let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        let address: *mut libc::sockaddr_nl = &mut own;
        // SAFETY: address is valid for writes of the length given with it.
        match unsafe { libc::getsockname(self.fd.as_raw_fd(), address.cast(), &mut len) } {
            0 => Ok(own.nl_pid),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The name of the interface with this index in the socket's namespace; `None` if there is
    /// none.
    pub(crate) fn interface_name(&self, index: u32) -> Option<String> {
        // SAFETY: all zero is a valid value of this struct of plain fields.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = i32::try_from(index).ok()?;
        // SAFETY: the kernel reads and writes one `struct ifreq`, which lives as long as the call.
        let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SIOCGIFNAME as _, &mut request) };
        // A `c_char` has a sign on some architectures.
        let name = request.ifr_name.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0);
        let name: Vec<u8> = (answer == 0).then(|| name.collect())?;
        Some(String::from_utf8_lossy(&name).into_owned())
    }

    /// Sets buffers, the receive timeout, and the options for short answers with messages.
    pub(crate) fn configure(&self, buffer_bytes: usize, deadline_s: u64) -> io::Result<()> {
        self.receive_buffer(buffer_bytes)?;
        let deadline = libc::timeval { tv_sec: deadline_s.cast_signed(), tv_usec: 0 };
        self.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &deadline)?;
        self.set_option(libc::SOL_NETLINK, OPTION_EXT_ACK, &1i32)?;
        self.set_option(libc::SOL_NETLINK, OPTION_CAP_ACK, &1i32)?;
        // Kernels before 4.20 lack the option; dumps are filtered here as well.
        let _ = self.set_option(libc::SOL_NETLINK, OPTION_STRICT_CHECK, &1i32);
        Ok(())
    }

    /// Requests a receive buffer, beyond the system's limit if permitted.
    pub(crate) fn receive_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
            .or_else(|_| self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
    }

    /// Requests a send buffer for a single message of `bytes`, beyond the system's limit if
    /// permitted.
    pub(crate) fn send_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }

    pub(crate) fn join(&self, group: u32) -> io::Result<()> {
        self.set_option(libc::SOL_NETLINK, OPTION_ADD_MEMBERSHIP, &group)
    }

    /// Sends to the kernel; a datagram is sent as a whole or not at all.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let kernel = kernel_address();
        let address: *const libc::sockaddr_nl = &kernel;
        loop {
            // SAFETY: both pointers are valid for the lengths given with them, and only read.
            let sent = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    libc::MSG_NOSIGNAL,
                    address.cast(),
                    size_of::<libc::sockaddr_nl>() as libc::socklen_t,
                )
            };
            match usize::try_from(sent) {
                Ok(sent) if sent == bytes.len() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Receives the next datagram from the kernel; those of other processes are discarded.
    pub(crate) fn receive(&self, buffer: &mut [u8], wait: bool) -> io::Result<Received> {
        loop {
            let mut sender = kernel_address();
            let flags = libc::MSG_TRUNC | if wait { 0 } else { libc::MSG_DONTWAIT };
            match self.receive_from(buffer, flags, &mut sender) {
                Ok(_) if sender.nl_pid != 0 => {}
                Ok(len) if len > buffer.len() => return Ok(Received::Truncated(len)),
                Ok(len) => return Ok(Received::Datagram(len)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => return Ok(Received::Nothing),
                    Some(libc::ENOBUFS) => return Ok(Received::Overrun),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Waits until data is available; false after `timeout` or a signal.
    pub(crate) fn wait_readable(&self, timeout: std::time::Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up, so that a wait of less than a millisecond still waits.
        let timeout_ms = timeout.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(i32::MAX);
        // SAFETY: one valid pollfd.
        match unsafe { libc::poll(&mut poll, 1, timeout_ms) } {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
                error => Err(error),
            },
            ready => Ok(ready > 0),
        }
    }

    fn receive_from(
        &self,
        buffer: &mut [u8],
        flags: i32,
        sender: &mut libc::sockaddr_nl,
    ) -> io::Result<usize> {
        let mut sender_len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        let sender: *mut libc::sockaddr_nl = sender;
        // SAFETY: buffer and sender are valid for writes of the lengths given with them.
        let len = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                flags,
                sender.cast(),
                &mut sender_len,
            )
        };
        usize::try_from(len).map_err(|_| io::Error::last_os_error())
    }

    fn set_option<T: Copy>(&self, level: i32, option: i32, value: &T) -> io::Result<()> {
        let value: *const T = value;
        // SAFETY: value is valid for reads of its own size; the kernel checks that the size suits the option.
        let result = unsafe {
            let len = size_of::<T>() as libc::socklen_t;
            libc::setsockopt(self.fd.as_raw_fd(), level, option, value.cast(), len)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.port != 0 {
            ports::closed((self.protocol, self.port));
        }
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn kernel_address() -> libc::sockaddr_nl {
    // SAFETY: plain integers, for which zero is valid; port 0 is the kernel.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address
}
