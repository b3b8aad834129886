//! bpf(2): commands, and for each command the beginning of `union bpf_attr` as it reads it
//! (linux/bpf.h). A kernel accepts more than it knows if the rest is zero.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

pub const MAP_CREATE: libc::c_int = 0;
pub const MAP_LOOKUP_ELEM: libc::c_int = 1;
pub const MAP_UPDATE_ELEM: libc::c_int = 2;
pub const MAP_DELETE_ELEM: libc::c_int = 3;
pub const PROG_LOAD: libc::c_int = 5;
pub const PROG_TEST_RUN: libc::c_int = 10;
pub const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
pub const PROG_QUERY: libc::c_int = 16;
pub const MAP_LOOKUP_BATCH: libc::c_int = 24;
pub const MAP_UPDATE_BATCH: libc::c_int = 26;
pub const LINK_CREATE: libc::c_int = 28;
pub const LINK_DETACH: libc::c_int = 34;

/// `BPF_OBJ_NAME_LEN`
pub const NAME_BYTES: usize = 16;

// Every structure is without gaps between its members, whose bytes nothing would set.

#[repr(C)]
#[derive(Default)]
pub struct Load {
    pub prog_type: u32,
    pub insn_cnt: u32,
    pub insns: u64,
    pub license: u64,
    pub log_level: u32,
    pub log_size: u32,
    pub log_buf: u64,
    pub kern_version: u32,
    pub prog_flags: u32,
    pub prog_name: [u8; NAME_BYTES],
}

#[repr(C)]
#[derive(Default)]
pub struct CreateMap {
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub inner_map_fd: u32,
    pub numa_node: u32,
    pub map_name: [u8; NAME_BYTES],
}

#[repr(C)]
#[derive(Default)]
pub struct Element {
    pub map_fd: u32,
    pub padding: u32,
    pub key: u64,
    pub value: u64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct Elements {
    pub in_batch: u64,
    pub out_batch: u64,
    pub keys: u64,
    pub values: u64,
    pub count: u32,
    pub map_fd: u32,
    pub elem_flags: u64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct Info {
    pub bpf_fd: u32,
    pub info_len: u32,
    pub info: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct TestRun {
    pub prog_fd: u32,
    pub retval: u32,
    pub data_size_in: u32,
    pub data_size_out: u32,
    pub data_in: u64,
    pub data_out: u64,
    pub repeat: u32,
    pub duration: u32,
    pub ctx_size_in: u32,
    pub ctx_size_out: u32,
    pub ctx_in: u64,
    pub ctx_out: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct Query {
    pub target_ifindex: u32,
    pub attach_type: u32,
    pub query_flags: u32,
    pub attach_flags: u32,
    pub prog_ids: u64,
    pub count: u32,
    pub padding: u32,
    pub prog_attach_flags: u64,
    pub link_ids: u64,
    pub link_attach_flags: u64,
    pub revision: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct CreateLink {
    pub prog_fd: u32,
    pub target_ifindex: u32,
    pub attach_type: u32,
    pub flags: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct DetachLink {
    pub link_fd: u32,
}

/// `struct bpf_prog_info`, as far as it is read.
#[repr(C)]
#[derive(Default)]
pub struct ProgramInfo {
    pub kind: u32,
    pub id: u32,
    pub tag: [u8; 8],
    pub unread: [u64; 6],
    pub name: [u8; NAME_BYTES],
}

/// `struct bpf_link_info` of a TCX link.
#[repr(C)]
#[derive(Default)]
pub struct LinkInfo {
    pub kind: u32,
    pub id: u32,
    pub prog_id: u32,
    pub padding: u32,
    pub ifindex: u32,
    pub attach_type: u32,
}

/// # Safety
///
/// Every address in `attributes` is of memory that outlives the call, and the command reads and
/// writes no more there than is allocated.
pub unsafe fn call<A>(command: libc::c_int, attributes: &mut A) -> io::Result<libc::c_int> {
    // SAFETY: the caller's promise; the kernel is given the structure's own size.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<A>() as libc::c_uint)
    };
    match libc::c_int::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A command that returns a file descriptor.
///
/// # Safety
///
/// As for [`call`], and the command is one of those.
pub unsafe fn open<A>(command: libc::c_int, attributes: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { call(command, attributes) }?;
    // SAFETY: the kernel returned this descriptor to this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads what the kernel says about an object.
///
/// # Safety
///
/// `T` is one of the structures for information above: any bytes are a value of it.
pub unsafe fn info<T: Default>(fd: u32) -> io::Result<T> {
    let mut info = T::default();
    let info_len = size_of::<T>() as u32;
    let mut attributes = Info { bpf_fd: fd, info_len, info: std::ptr::from_mut(&mut info) as u64 };
    // SAFETY: the kernel writes at most `info_len` bytes into `info`.
    unsafe { call(OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(info)
}

/// A name as the kernel accepts it. The last byte stays NUL.
pub fn name(text: &str) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    for (to, from) in name[..NAME_BYTES - 1].iter_mut().zip(text.bytes()) {
        *to = if from.is_ascii_alphanumeric() { from } else { b'_' };
    }
    name
}

/// A length that fits into an attribute.
pub fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}
