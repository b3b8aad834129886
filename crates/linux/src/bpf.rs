//! BPF programs and maps. The programs are written in C (`crates/linux/bpf`) and compiled for the
//! repository by `cargo xtask gen bpf`; neither `cargo build` nor a node needs a compiler.
//!
//! [`Object`] reads a compiled file, [`Program`] loads it with its [`Map`]s, and [`Attachable`] attaches it to links: by
//! TCX, which Linux has since 6.6, or else as a filter of `clsact`, and at netkit pairs, which it has since 6.7.
//! [`Support`] says in advance what a kernel lacks.
//!
//! The programs of `openshift::data_path` copy tenants' numbers into and out of VXLAN headers; those of
//! `overlay::fast_path` carry packets of known flows; those of `flanneld::udp` carry the packets of
//! flannel's backend `udp`.

use std::io;

pub use attachment::{
    Attachable, Attachment, Found, LinkFilter, Way, own_filters, remove_filter, remove_filters,
    without_own_clsact,
};
pub use link::{Attached, Point, ProgramLink, attached};
pub use map::{Map, MapDefinition, MapKind};
pub use object::Object;
pub use program::{Packet, Program, ProgramInfo, Ran};
pub use support::{Need, Support};

mod attachment;
mod link;
mod map;
mod object;
mod program;
pub mod programs;
mod support;
mod sys;

/// Why a program, a map or a link cannot be used. A caller that only goes faster with them goes on
/// without.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel refused a program. Its verifier's last lines name the fault.
    #[error("load BPF program {name}: {source}{}{}", hint(source), log_suffix(log))]
    Load {
        /// The program's name.
        name: String,
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// Another command of bpf(2).
    #[error("{operation}: {source}{}", hint(source))]
    Kernel {
        /// What was tried, on what.
        operation: String,
        source: io::Error,
    },
    /// A compiled file that is not as `crates/linux/bpf/russet.h` makes it.
    #[error("read BPF object: {0}")]
    Object(&'static str),
}

/// The verifier's last lines; the first thousands say how it came there.
const LOG_SHOWN_LINES: usize = 8;

// === impl BpfError ===

impl BpfError {
    fn kernel(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Kernel { operation: operation.into(), source }
    }

    /// The kernel's error number, if it was the kernel that refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Load { source, .. } | Self::Kernel { source, .. } => source.raw_os_error(),
            Self::Object(_) => None,
        }
    }
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM) => {
            " (it needs root, or CAP_BPF and CAP_NET_ADMIN, and a kernel that is not locked down)"
        }
        Some(libc::ENOSYS) => " (the kernel is built without CONFIG_BPF_SYSCALL)",
        _ => "",
    }
}

fn log_suffix(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the verifier: {log}") }
}

/// The last lines of a log that the kernel ended with NUL.
fn end_of(log: &[u8]) -> String {
    let len = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..len]);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LOG_SHOWN_LINES)..].join("\n")
}
