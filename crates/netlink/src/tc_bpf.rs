//! BPF programs in traffic control: `clsact`, which covers packets that a link receives and sends,
//! and the programs that are attached there.
//!
//! Used by `openshift::data_path` for its tunnel device and for the host interfaces of pods.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::batch::Batch;
use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::tc::{INGRESS_HANDLE, tcmsg};
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
            let info = u32::from(PRIORITY) << 16 | u32::from(ETH_P_ALL.to_be());
            tcmsg(message, ifindex, HANDLE, direction.parent(), info);
            message.attr_str(TCA_KIND, "bpf").nested(TCA_OPTIONS, |options| {
                options
                    .attr(TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes())
                    .attr_str(TCA_BPF_NAME, name)
                    .attr_u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
            });
        })
    }
}

// === impl Socket ===

impl Socket {
    /// The BPF programs of a link; empty if it has no `clsact`.
    pub fn bpf_filters(&mut self, ifindex: u32, direction: Direction) -> Result<Vec<BpfFilter>> {
        let fill = |message: &mut MessageBuilder<'_>| tcmsg(message, ifindex, 0, direction.parent(), 0);
        let decode = |message: &Message<'_>| {
            let of_link = array(message.payload, 4).map(u32::from_ne_bytes) == Some(ifindex);
            BpfFilter::decode(message).filter(|_| of_link)
        };
        match self.dump("list filters", RTM_GETTFILTER, fill, decode) {
            // There is no such discipline.
            Err(error) if error.errno() == Some(libc::EINVAL) => Ok(Vec::new()),
            result => result,
        }
    }
}

// === impl BpfFilter ===

impl BpfFilter {
    fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWTFILTER {
            return None;
        }
        let attributes = message.attributes(TCMSG_BYTES);
        attributes.find(TCA_KIND).filter(|kind| kind.text() == "bpf")?;
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
