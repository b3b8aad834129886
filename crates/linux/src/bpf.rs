//! Assembles and loads BPF programs. They are written as instructions, because a node has no
//! compiler and ours are short.
//!
//! [`Program::load`] passes them to the kernel's verifier and keeps its log if it refuses them.
//! `openshift::data_path` is the only caller: its two programs copy tenants' numbers into and out of
//! VXLAN headers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

pub use asm::{Insn, Label, Reg, Size, Source, assemble};

mod asm;

/// A program in the kernel; the kernel frees it when it is attached nowhere and this is dropped.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// The type of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramKind {
    /// `BPF_PROG_TYPE_SCHED_CLS`: packets at a link's `clsact`.
    SchedCls,
}

/// The kernel refused a program.
#[derive(Debug, thiserror::Error)]
#[error("load BPF program {name}: {source}{}", log_suffix(log))]
pub struct BpfError {
    /// The program's name.
    pub name: &'static str,
    /// The kernel's reason.
    pub source: io::Error,
    /// The end of the verifier's log.
    pub log: String,
}

/// The beginning of `union bpf_attr` as `BPF_PROG_LOAD` reads it (linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME_BYTES],
}

/// `BPF_OBJ_NAME_LEN`
const NAME_BYTES: usize = 16;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
/// Ours call no helper that the kernel reserves for programs under the GPL.
const LICENSE: &std::ffi::CStr = c"Apache-2.0";
/// The verifier's log has about 60 bytes per instruction.
const LOG_BYTES: usize = 256 << 10;
/// How much of the log an error repeats; the end of the log names the fault.
const LOG_SHOWN_BYTES: usize = 2048;

// === impl Program ===

impl Program {
    /// Loads a program of encoded instructions. The first attempt is without a log, which costs
    /// more than the verification.
    pub fn load(kind: ProgramKind, name: &'static str, instructions: &[u64]) -> Result<Self, BpfError> {
        match load(kind, name, instructions, &mut []) {
            Ok(program) => Ok(Self(program)),
            Err(first) => {
                let mut log = vec![0; LOG_BYTES];
                match load(kind, name, instructions, &mut log) {
                    Ok(program) => Ok(Self(program)),
                    Err(_) => Err(BpfError { name, source: first, log: end_of(&log) }),
                }
            }
        }
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn load(kind: ProgramKind, name: &str, instructions: &[u64], log: &mut [u8]) -> io::Result<OwnedFd> {
    let ProgramKind::SchedCls = kind;
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut attributes = LoadAttributes {
        prog_type: BPF_PROG_TYPE_SCHED_CLS,
        insn_cnt: u32::try_from(instructions.len()).map_err(too_long)?,
        insns: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        ..LoadAttributes::default()
    };
    if !log.is_empty() {
        attributes.log_level = 1;
        attributes.log_size = u32::try_from(log.len()).map_err(too_long)?;
        attributes.log_buf = log.as_mut_ptr() as u64;
    }
    // The last byte stays NUL.
    for (to, from) in attributes.prog_name[..NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() { from } else { b'_' };
    }
    // SAFETY: the structure and everything that it points to outlive the call and have the given
    // lengths; the kernel writes to `log` only.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_LOAD,
            std::ptr::from_ref(&attributes),
            size_of::<LoadAttributes>() as libc::c_uint,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel returned this descriptor to this call alone.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn end_of(log: &[u8]) -> String {
    let len = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[len.saturating_sub(LOG_SHOWN_BYTES)..len]);
    text.trim().to_owned()
}

fn log_suffix(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the verifier: {log}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "kernel: bpf(2) needs root"]
    fn a_program_that_only_returns_is_loaded() {
        let program = assemble(&[Insn::Move(Reg::R0, Source::Value(0)), Insn::Exit]).unwrap();
        Program::load(ProgramKind::SchedCls, "nothing", &program).unwrap();
    }

    #[test]
    #[ignore = "kernel: bpf(2) needs root"]
    fn a_refused_program_says_what_the_verifier_saw() {
        // R0 was never written.
        let error =
            Program::load(ProgramKind::SchedCls, "bad", &assemble(&[Insn::Exit]).unwrap()).unwrap_err();
        assert!(error.to_string().contains("R0 !read_ok"), "{error}");
    }
}
