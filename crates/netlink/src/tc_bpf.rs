//! BPF programs in traffic control: `clsact`, which covers packets that a link receives and sends,
//! and the programs that are attached there.
//!
//! Used by `openshift::data_path` for its tunnel device and for the host interfaces of pods, and by `linux::bpf` on
//! kernels without TCX.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::batch::Batch;
use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::tc::{INGRESS_HANDLE, all_protocols, tcmsg};
use crate::wire::{Message, MessageBuilder, array};

/// The direction of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Packets that the link receives.
    Ingress,
    /// Packets that the link sends.
    Egress,
}

/// An attached BPF program as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfFilter {
    /// The name that it was attached with.
    pub name: String,
    /// The priority; the lowest is evaluated first.
    pub priority: u16,
    /// Its number within the priority.
    pub handle: u32,
    /// Whether its return value is the verdict.
    pub direct: bool,
}

/// What a link has its packets decided by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// A BPF program.
    Bpf(BpfFilter),
    /// Of another kind.
    Other(String),
}

/// Our program is evaluated first and is the only one of its priority.
const PRIORITY: u16 = 1;
const HANDLE: u32 = 1;

// === impl Batch ===

/// BPF programs.
impl Batch {
    /// Enables programs for packets that a link receives and sends; EEXIST if they are enabled.
    pub fn add_clsact(&mut self, ifindex: u32) -> &mut Self {
        self.push(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, |message| {
            tcmsg(message, ifindex, INGRESS_HANDLE, TC_H_INGRESS, 0);
            message.attr_str(TCA_KIND, "clsact");
        })
    }

    /// Attaches a program whose return value is the verdict, atomically replacing the one that was
    /// attached by this call before.
    pub fn replace_bpf(
        &mut self,
        ifindex: u32,
        direction: Direction,
        program: BorrowedFd<'_>,
        name: &str,
    ) -> &mut Self {
        self.push(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, |message| {
            bpf_filter(message, (ifindex, direction, PRIORITY), program, name);
        })
    }

    /// Attaches a program whose return value is the verdict; EEXIST if there is one of this priority.
    pub fn add_bpf(
        &mut self,
        ifindex: u32,
        direction: Direction,
        program: BorrowedFd<'_>,
        name: &str,
        priority: u16,
    ) -> &mut Self {
        self.push(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, |message| {
            bpf_filter(message, (ifindex, direction, priority), program, name);
        })
    }

    /// Detaches a program.
    pub fn delete_bpf(&mut self, ifindex: u32, direction: Direction, filter: &BpfFilter) -> &mut Self {
        self.push(RTM_DELTFILTER, 0, |message| {
            tcmsg(message, ifindex, filter.handle, direction.parent(), all_protocols(filter.priority));
            message.attr_str(TCA_KIND, "bpf");
        })
    }

    /// Reverses [`add_clsact`](Self::add_clsact), filters included.
    pub fn delete_clsact(&mut self, ifindex: u32) -> &mut Self {
        self.delete_ingress(ifindex)
    }
}

// === impl Socket ===

impl Socket {
    /// The BPF programs of a link; empty if it has no `clsact`.
    pub fn bpf_filters(&mut self, ifindex: u32, direction: Direction) -> Result<Vec<BpfFilter>> {
        let bpf = |filter| match filter {
            Filter::Bpf(filter) => Some(filter),
            Filter::Other(_) => None,
        };
        Ok(self.filters(ifindex, direction)?.into_iter().filter_map(bpf).collect())
    }

    /// The filters of a link; empty if it has no `clsact`.
    pub fn filters(&mut self, ifindex: u32, direction: Direction) -> Result<Vec<Filter>> {
        let fill = |message: &mut MessageBuilder<'_>| tcmsg(message, ifindex, 0, direction.parent(), 0);
        let decode = |message: &Message<'_>| {
            let of_link = array(message.payload, 4).map(u32::from_ne_bytes) == Some(ifindex);
            Filter::decode(message).filter(|_| of_link)
        };
        match self.dump("list filters", RTM_GETTFILTER, fill, decode) {
            // There is no such discipline.
            Err(error) if error.errno() == Some(libc::EINVAL) => Ok(Vec::new()),
            result => result,
        }
    }
}

/// The message of a filter at its position: link, direction and priority.
fn bpf_filter(
    message: &mut MessageBuilder<'_>,
    (ifindex, direction, priority): (u32, Direction, u16),
    program: BorrowedFd<'_>,
    name: &str,
) {
    tcmsg(message, ifindex, HANDLE, direction.parent(), all_protocols(priority));
    message.attr_str(TCA_KIND, "bpf").nested(TCA_OPTIONS, |options| {
        options
            .attr(TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes())
            .attr_str(TCA_BPF_NAME, name)
            .attr_u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
    });
}

// === impl Filter ===

impl Filter {
    fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWTFILTER {
            return None;
        }
        let kind = message.attributes(TCMSG_BYTES).find(TCA_KIND)?.text();
        if kind == "bpf" { BpfFilter::decode(message).map(Self::Bpf) } else { Some(Self::Other(kind)) }
    }
}

// === impl BpfFilter ===

impl BpfFilter {
    fn decode(message: &Message<'_>) -> Option<Self> {
        let attributes = message.attributes(TCMSG_BYTES);
        // The kernel also lists every priority without options.
        let options = attributes.find(TCA_OPTIONS)?.nested();
        let flags = options.find(TCA_BPF_FLAGS).and_then(|flags| flags.u32()).unwrap_or(0);
        Some(Self {
            name: options.find(TCA_BPF_NAME)?.text(),
            priority: (array(message.payload, 16).map(u32::from_ne_bytes)? >> 16) as u16,
            handle: array(message.payload, 8).map(u32::from_ne_bytes)?,
            direct: flags & TCA_BPF_FLAG_ACT_DIRECT != 0,
        })
    }

    /// Whether it is at the position of [`Batch::replace_bpf`], under this name.
    pub fn is_ours(&self, name: &str) -> bool {
        (self.priority, self.handle, self.direct, self.name.as_str()) == (PRIORITY, HANDLE, true, name)
    }
}

// === impl Direction ===

impl Direction {
    const fn parent(self) -> u32 {
        match self {
            Self::Ingress => TC_H_CLSACT_INGRESS,
            Self::Egress => TC_H_CLSACT_EGRESS,
        }
    }
}
