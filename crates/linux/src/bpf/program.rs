//! Programs in the kernel.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::{BpfError, Map, Object, end_of, sys};

/// A program in the kernel, for packets at a link's `clsact` or TCX; the kernel frees it when it is
/// attached nowhere and this is dropped.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
}

/// What the kernel says about a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Its number until the kernel is booted again.
    pub id: u32,
    /// The kernel's digest of its instructions.
    pub tag: [u8; 8],
    /// The first 15 bytes of its name.
    pub name: String,
}

/// A packet for [`Program::run`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Packet<'a> {
    /// From the Ethernet header on.
    pub frame: &'a [u8],
    pub mark: u32,
    /// The link that it is at; 0 for loopback.
    pub ifindex: u32,
    /// The link through which it came, if it is leaving.
    pub ingress_ifindex: u32,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// `TC_ACT_*` of linux/pkt_cls.h.
    pub verdict: i32,
    pub frame: Vec<u8>,
    pub mark: u32,
}

const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
/// The license of programs that are no objects: they call no helper that is reserved for the GPL.
const UNRESERVED: &CStr = c"Apache-2.0";
/// The verifier's log has about 60 bytes per instruction that it follows; a longer one ends where
/// the fault is.
const LOG_BYTES: usize = 1 << 20;
/// The kernel gives up if a signal arrives while it verifies.
const ATTEMPTS: usize = 5;
/// How much a program of ours adds to a packet at most, with room to spare.
const ADDED_BYTES: usize = 256;

/// `struct __sk_buff`: its length in Linux 4.20, room for a longer one, which the kernel writes as a
/// whole, and the members that a test run may set.
const CONTEXT_BYTES: usize = 176;
const CONTEXT_BYTES_MAX: usize = 1024;
const CONTEXT_MARK: usize = 8;
const CONTEXT_INGRESS_IFINDEX: usize = 36;
const CONTEXT_IFINDEX: usize = 40;

// === impl Program ===

impl Program {
    /// Loads the program of an object, with its maps in the order of [`Object::maps`].
    pub fn load(object: &Object, maps: &[&Map]) -> Result<Self, BpfError> {
        let fds: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
        Self::load_code(object.name(), object.license(), &object.code_with(&fds)?)
    }

    /// Loads instructions that use no maps: for probes and tests.
    pub fn from_instructions(name: &str, instructions: &[u64]) -> Result<Self, BpfError> {
        Self::load_code(name, UNRESERVED, instructions)
    }

    /// The first attempt is without a log, which costs more than the verification.
    fn load_code(name: &str, license: &CStr, code: &[u64]) -> Result<Self, BpfError> {
        let fd = load(name, license, code, &mut []).or_else(|source| {
            let mut log = vec![0; LOG_BYTES];
            load(name, license, code, &mut log).map_err(|_| BpfError::Load {
                name: name.to_owned(),
                source,
                log: end_of(&log),
            })
        })?;
        Ok(Self { fd, name: name.to_owned() })
    }

    /// The name of its function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the kernel says about it.
    pub fn info(&self) -> Result<ProgramInfo, BpfError> {
        // SAFETY: the structure consists of numbers.
        let info = unsafe { sys::info::<sys::ProgramInfo>(self.fd.as_raw_fd() as u32) };
        let info = info.map_err(BpfError::kernel(format!("read BPF program {}", self.name)))?;
        let len = info.name.iter().position(|byte| *byte == 0).unwrap_or(info.name.len());
        let name = String::from_utf8_lossy(&info.name[..len]).into_owned();
        Ok(ProgramInfo { id: info.id, tag: info.tag, name })
    }

    /// Runs it once on a packet that is at no link, `BPF_PROG_TEST_RUN`. For tests.
    pub fn run(&self, packet: &Packet<'_>) -> Result<Ran, BpfError> {
        self.run_repeatedly(packet, 1).map(|(ran, _)| ran)
    }

    /// Runs it so many times, each on what the run before made of the packet. The time is that of one run.
    pub fn run_repeatedly(&self, packet: &Packet<'_>, times: u32) -> Result<(Ran, Duration), BpfError> {
        self.try_run(packet, times).map_err(BpfError::kernel(format!("run BPF program {}", self.name)))
    }

    fn try_run(&self, packet: &Packet<'_>, times: u32) -> io::Result<(Ran, Duration)> {
        let mut frame = vec![0; packet.frame.len() + ADDED_BYTES];
        let mut context = [0; CONTEXT_BYTES];
        context[CONTEXT_MARK..CONTEXT_MARK + 4].copy_from_slice(&packet.mark.to_ne_bytes());
        let links = [(CONTEXT_INGRESS_IFINDEX, packet.ingress_ifindex), (CONTEXT_IFINDEX, packet.ifindex)];
        for (at, ifindex) in links {
            context[at..at + 4].copy_from_slice(&ifindex.to_ne_bytes());
        }
        let mut after = [0; CONTEXT_BYTES_MAX];
        let mut run = sys::TestRun {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_size_in: sys::length(packet.frame.len())?,
            data_size_out: sys::length(frame.len())?,
            data_in: packet.frame.as_ptr() as u64,
            data_out: frame.as_mut_ptr() as u64,
            repeat: times,
            ctx_size_in: sys::length(context.len())?,
            ctx_size_out: sys::length(after.len())?,
            ctx_in: context.as_ptr() as u64,
            ctx_out: after.as_mut_ptr() as u64,
            ..sys::TestRun::default()
        };
        // SAFETY: all four buffers outlive the call and have the given lengths.
        unsafe { sys::call(sys::PROG_TEST_RUN, &mut run) }?;
        frame.truncate(run.data_size_out as usize);
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| after[CONTEXT_MARK + at]);
        let ran = Ran { verdict: run.retval.cast_signed(), frame, mark: u32::from_ne_bytes([a, b, c, d]) };
        Ok((ran, Duration::from_nanos(run.duration.into())))
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn load(name: &str, license: &CStr, code: &[u64], log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attributes = sys::Load {
        prog_type: BPF_PROG_TYPE_SCHED_CLS,
        insn_cnt: sys::length(code.len())?,
        insns: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        prog_name: sys::name(name),
        ..sys::Load::default()
    };
    if !log.is_empty() {
        attributes.log_level = 1;
        attributes.log_size = sys::length(log.len())?;
        attributes.log_buf = log.as_mut_ptr() as u64;
    }
    let mut attempt = 1;
    loop {
        // SAFETY: code, license and log outlive the call and have the given lengths; the kernel
        // writes to `log` only.
        match unsafe { sys::open(sys::PROG_LOAD, &mut attributes) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && attempt < ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}
