//! Errors: the kernel refused a request, or the communication with it failed.
//!
//! Errors name the operation and its subject, and are built only after a failure: a successful
//! batch formats nothing.

use std::io;

/// Why a request, a dump or a socket failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused the request, which had no effect.
    #[error("{operation}: {}{}", errno_name(*.errno), refusal(*.errno, .text.as_deref(), *.offset))]
    Refused {
        /// The request with its subject: `add route 10.1.0.0/26 via 10.0.0.7`.
        operation: String,
        /// The error number, positive.
        errno: i32,
        /// The kernel's message (extended ACK), if any.
        text: Option<String>,
        /// The offset of the offending attribute in the request, if the kernel reported it.
        offset: Option<u32>,
    },
    /// A socket call failed; whether the request took effect is unknown.
    #[error("{operation}: {source}")]
    Io {
        /// The operation.
        operation: String,
        /// The system's error.
        source: io::Error,
    },
    /// No answer within the deadline; whether the request took effect is unknown.
    #[error("{operation}: no answer from the kernel within {} s", crate::socket::REPLY_DEADLINE_S)]
    Timeout {
        /// The operation.
        operation: String,
    },
    /// Answers were lost because the receive buffer was full; whether the request took effect is unknown.
    #[error("{operation}: the receive buffer overflowed and answers were lost")]
    Overrun {
        /// The operation.
        operation: String,
    },
    /// The tables changed during every attempt at a dump.
    #[error("{operation}: the tables kept changing during {tries} tries at reading them")]
    Unsettled {
        /// The operation.
        operation: String,
        /// The number of attempts.
        tries: u32,
    },
    /// The kernel's answer does not follow the protocol.
    #[error("{operation}: malformed answer from the kernel")]
    Malformed {
        /// The operation.
        operation: String,
    },
    /// The request cannot be encoded and was not sent.
    #[error("{operation}: {reason}")]
    Invalid {
        /// The request with its subject.
        operation: String,
        /// The reason.
        reason: &'static str,
    },
}

/// The first request of a batch that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct BatchError {
    /// Which request, counted from 0 in the order of the batch.
    pub index: usize,
    /// Its error.
    #[source]
    pub error: NetlinkError,
}

/// The result type of this crate.
pub type Result<T, E = NetlinkError> = std::result::Result<T, E>;

/// The symbol of an error number, such as `EINVAL`; `errno` if it has no well-known one.
pub fn errno_name(errno: i32) -> &'static str {
    NAMES.iter().find(|(number, _)| *number == errno).map_or("errno", |(_, name)| name)
}

macro_rules! names {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// Errors of rtnetlink and nf_tables.
const NAMES: &[(i32, &str)] = names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV
    ENOTDIR EISDIR EINVAL ENFILE EMFILE EFBIG ENOSPC ERANGE ENAMETOOLONG ELOOP ENODATA EPROTO EOVERFLOW
    EMSGSIZE EPROTONOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN
    ENETUNREACH ENOBUFS EISCONN ENOTCONN ETIMEDOUT EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE
};

fn refusal(errno: i32, text: Option<&str>, offset: Option<u32>) -> String {
    match (text, offset) {
        (Some(text), Some(offset)) => format!(": {text} (at byte {offset} of the request)"),
        (Some(text), None) => format!(": {text}"),
        (None, _) => {
            let system = io::Error::from_raw_os_error(errno).to_string();
            format!(": {}", system.split(" (os error").next().unwrap_or_default())
        }
    }
}

// === impl NetlinkError ===

impl NetlinkError {
    /// The error number of the kernel or the system, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            NetlinkError::Refused { errno, .. } => Some(*errno),
            NetlinkError::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// The operation with its subject.
    pub fn operation(&self) -> &str {
        match self {
            NetlinkError::Refused { operation, .. }
            | NetlinkError::Io { operation, .. }
            | NetlinkError::Timeout { operation }
            | NetlinkError::Overrun { operation }
            | NetlinkError::Unsettled { operation, .. }
            | NetlinkError::Malformed { operation }
            | NetlinkError::Invalid { operation, .. } => operation,
        }
    }

    /// Whether the object exists already (EEXIST).
    pub fn is_exists(&self) -> bool {
        self.refused_with(&[libc::EEXIST])
    }

    /// Whether the object does not exist: ENODEV, ESRCH, ENOENT or EADDRNOTAVAIL.
    pub fn is_not_found(&self) -> bool {
        self.refused_with(&[libc::ENODEV, libc::ESRCH, libc::ENOENT, libc::EADDRNOTAVAIL])
    }

    /// Whether the object is in use (EBUSY).
    pub fn is_busy(&self) -> bool {
        self.refused_with(&[libc::EBUSY])
    }

    /// Whether the kernel lacks the feature (EOPNOTSUPP, EAFNOSUPPORT or EPROTONOSUPPORT).
    pub fn is_unsupported(&self) -> bool {
        self.refused_with(&[libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT])
    }

    fn refused_with(&self, numbers: &[i32]) -> bool {
        matches!(self, NetlinkError::Refused { errno, .. } if numbers.contains(errno))
    }
}

// === impl BatchError ===

impl BatchError {
    /// The error number of the kernel or the system, if there is one.
    pub fn errno(&self) -> Option<i32> {
        self.error.errno()
    }

    /// See [`NetlinkError::is_exists`].
    pub fn is_exists(&self) -> bool {
        self.error.is_exists()
    }

    /// See [`NetlinkError::is_not_found`].
    pub fn is_not_found(&self) -> bool {
        self.error.is_not_found()
    }

    /// See [`NetlinkError::is_busy`].
    pub fn is_busy(&self) -> bool {
        self.error.is_busy()
    }
}

impl From<BatchError> for NetlinkError {
    fn from(error: BatchError) -> Self {
        error.error
    }
}
