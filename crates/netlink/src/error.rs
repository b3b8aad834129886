//! What can go wrong: the kernel refuses, or the conversation with it breaks.
//!
//! Errors name the operation and its subject, and are made only when something failed: a batch that succeeds
//! formats nothing.

use std::io;

/// Why a request, a dump or a socket failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused the request; nothing of it took effect.
    #[error("{operation}: {}{}", errno_name(*.errno), refusal(*.errno, .text.as_deref(), *.offset))]
    Refused {
        /// What was asked, with its subject: `add route 10.1.0.0/26 via 10.0.0.7`.
        operation: String,
        /// The error number, positive.
        errno: i32,
        /// The kernel's own words (extended ACK), when it had any.
        text: Option<String>,
        /// Where in the request the offending attribute lies, when the kernel said so.
        offset: Option<u32>,
    },
    /// A socket call failed; whether the request took effect is unknown.
    #[error("{operation}: {source}")]
    Io {
        /// What was being done.
        operation: String,
        /// The system's error.
        source: io::Error,
    },
    /// No answer within the deadline; whether the request took effect is unknown.
    #[error("{operation}: no answer from the kernel within {} s", crate::socket::REPLY_DEADLINE_S)]
    Timeout {
        /// What was being done.
        operation: String,
    },
    /// Answers were lost because the receive buffer was full; whether the request took effect is unknown.
    #[error("{operation}: the receive buffer overflowed and answers were lost")]
    Overrun {
        /// What was being done.
        operation: String,
    },
    /// Each try at a dump was overtaken by a change.
    #[error("{operation}: the tables kept changing during {tries} tries at reading them")]
    Unsettled {
        /// What was being read.
        operation: String,
        /// How often it was tried.
        tries: u32,
    },
    /// The kernel's answer does not follow the protocol.
    #[error("{operation}: malformed answer from the kernel")]
    Malformed {
        /// What was being done.
        operation: String,
    },
    /// The request cannot be expressed in netlink and was never sent.
    #[error("{operation}: {reason}")]
    Invalid {
        /// What was asked.
        operation: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// The first request of a batch that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct BatchError {
    /// Which request, counted from 0 in the order of the batch.
    pub index: usize,
    /// Why.
    #[source]
    pub error: NetlinkError,
}

/// A shorthand for this crate's results.
pub type Result<T, E = NetlinkError> = std::result::Result<T, E>;

/// The symbol of an error number: `EINVAL`; `errno` for one without a well-known name.
pub fn errno_name(errno: i32) -> &'static str {
    NAMES.iter().find(|(number, _)| *number == errno).map_or("errno", |(_, name)| name)
}

macro_rules! names {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// What rtnetlink and nf_tables answer with.
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
    /// The kernel's or the system's error number, when there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            NetlinkError::Refused { errno, .. } => Some(*errno),
            NetlinkError::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// What was asked, with its subject.
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

    /// Whether the object was there already (EEXIST).
    pub fn is_exists(&self) -> bool {
        self.refused_with(&[libc::EEXIST])
    }

    /// Whether the object was not there: ENODEV, ESRCH, ENOENT or EADDRNOTAVAIL.
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
    /// The kernel's or the system's error number, when there is one.
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
