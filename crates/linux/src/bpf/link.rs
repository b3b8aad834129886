//! Programs at the links of network namespaces by TCX, which Linux has since 6.6, and at netkit pairs, since 6.7. An
//! older kernel has `clsact` only ([`super::Attachable`]).
//!
//! A TCX program that returns `TC_ACT_OK` ends the evaluation: filters of `clsact`, such as a pod's
//! bandwidth limit, do not see the packet. One that has nothing to say returns -1.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use russet_netlink::Direction;

use super::{BpfError, Program, sys};

/// Where at a link a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// What the link receives or sends.
    Tcx(Direction),
    /// What the other end of a netkit pair sends, in the context of its sender. The link is the primary end, which the
    /// packet then seems to have come in by.
    NetkitPeer,
}

/// A program at a link. Dropping it detaches the program.
#[derive(Debug)]
pub struct ProgramLink(OwnedFd);

/// A program that any process has attached to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// As [`super::ProgramInfo::id`].
    pub program: u32,
    /// The number of its [`ProgramLink`]; 0 if it was attached without one.
    pub link: u32,
}

const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const BPF_NETKIT_PEER: u32 = 55;
/// The kernel's limit of programs at a hook (`BPF_MPROG_MAX`).
const PROGRAMS_MAX: usize = 64;

// === impl ProgramLink ===

impl ProgramLink {
    /// Attaches a program behind those that are there.
    pub fn attach(program: &Program, ifindex: u32, point: impl Into<Point>) -> Result<Self, BpfError> {
        let mut attributes = sys::CreateLink {
            prog_fd: program.as_fd().as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: point.into().attach_type(),
            flags: 0,
        };
        // SAFETY: the attributes have no address.
        let link = unsafe { sys::open(sys::LINK_CREATE, &mut attributes) };
        link.map(Self).map_err(BpfError::kernel(format!("attach BPF program to link {ifindex}")))
    }

    /// What it has attached, and the index of the link, of a netkit pair that of the other end; 0 if that is gone.
    pub fn info(&self) -> Result<(Attached, u32), BpfError> {
        // SAFETY: the structure consists of numbers.
        let info = unsafe { sys::info::<sys::LinkInfo>(self.0.as_raw_fd() as u32) };
        let info = info.map_err(BpfError::kernel("read the link of a BPF program"))?;
        Ok((Attached { program: info.prog_id, link: info.id }, info.ifindex))
    }

    fn detach(&self) -> io::Result<libc::c_int> {
        let mut attributes = sys::DetachLink { link_fd: self.0.as_raw_fd() as u32 };
        // SAFETY: the attributes have no address.
        unsafe { sys::call(sys::LINK_DETACH, &mut attributes) }
    }
}

impl Drop for ProgramLink {
    fn drop(&mut self) {
        // Closing it would leave the program there for as long as another process has it open, as one does
        // between `fork` and `exec`. After a failure the kernel detaches the program with the last of them.
        let _ = self.detach();
    }
}

impl AsFd for ProgramLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The programs of a link, in the order of their evaluation.
pub fn attached(ifindex: u32, point: impl Into<Point>) -> Result<Vec<Attached>, BpfError> {
    query(ifindex, point.into()).map_err(BpfError::kernel(format!("list the BPF programs of link {ifindex}")))
}

fn query(ifindex: u32, point: Point) -> io::Result<Vec<Attached>> {
    let (mut programs, mut links) = ([0_u32; PROGRAMS_MAX], [0_u32; PROGRAMS_MAX]);
    let mut attributes = sys::Query {
        target_ifindex: ifindex,
        attach_type: point.attach_type(),
        prog_ids: programs.as_mut_ptr() as u64,
        link_ids: links.as_mut_ptr() as u64,
        count: PROGRAMS_MAX as u32,
        ..sys::Query::default()
    };
    // SAFETY: both arrays have room for `count` numbers.
    unsafe { sys::call(sys::PROG_QUERY, &mut attributes) }?;
    let pairs = programs.into_iter().zip(links).take(attributes.count as usize);
    Ok(pairs.map(|(program, link)| Attached { program, link }).collect())
}

// === impl Point ===

impl Point {
    const fn attach_type(self) -> u32 {
        match self {
            Self::Tcx(Direction::Ingress) => BPF_TCX_INGRESS,
            Self::Tcx(Direction::Egress) => BPF_TCX_EGRESS,
            Self::NetkitPeer => BPF_NETKIT_PEER,
        }
    }
}

impl From<Direction> for Point {
    fn from(direction: Direction) -> Self {
        Self::Tcx(direction)
    }
}
