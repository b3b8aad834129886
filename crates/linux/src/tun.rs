//! A TUN device: packets that the kernel routes into it are read here, and packets written here
//! enter the kernel from it.
//!
//! `flanneld::udp` is the only caller. The device exists as long as one of its queues is open. The
//! offloads that the kernel grants are found by requesting them, from the best set down to plain
//! packets.

mod virtio;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use russet_addr::IfName;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

pub use virtio::{Segments, VIRTIO_HEADER_BYTES, VirtioHeader};

/// A new TUN device.
#[derive(Debug)]
pub struct Tun {
    /// The device's name, assigned by the kernel if a pattern was given.
    pub name: IfName,
    /// The offloads that the kernel granted.
    pub offloads: TunOffloads,
    /// The queues; the kernel assigns each flow to one. The device is deleted when the last is
    /// closed.
    pub queues: Vec<Queue>,
}

/// Work that the kernel may leave to the reader of a queue, and the writer to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TunOffloads {
    /// Packets are preceded by a [`VirtioHeader`]. All other offloads require it.
    pub header: bool,
    /// Checksums may be missing.
    pub checksum: bool,
    /// TCP segments over IPv4 may arrive as one packet of up to 64 KiB.
    pub tcp: bool,
    /// UDP datagrams may arrive as one packet of up to 64 KiB (Linux 6.2).
    pub udp: bool,
}

/// One queue of a TUN device.
#[derive(Debug)]
pub struct Queue(OwnedFd);

/// The TUN device could not be created.
#[derive(Debug, thiserror::Error)]
#[error("create TUN device {pattern}: {step}: {source}")]
pub struct TunError {
    /// The requested name.
    pub pattern: String,
    /// The step that failed.
    pub step: &'static str,
    pub source: io::Error,
}

/// `struct ifreq` as far as `TUNSETIFF` uses it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// Sets of offloads, the best first: with UDP since 6.2, with ECN since 2.6.27.
const OFFLOADS: [(libc::c_uint, TunOffloads); 4] = [
    (TCP | ECN | UDP, TunOffloads { header: true, checksum: true, tcp: true, udp: true }),
    (TCP | ECN, TunOffloads { header: true, checksum: true, tcp: true, udp: false }),
    (TCP, TunOffloads { header: true, checksum: true, tcp: true, udp: false }),
    (libc::TUN_F_CSUM, TunOffloads { header: true, checksum: true, tcp: false, udp: false }),
];
/// -1, as preadv2(2) requires for files without positions.
const NO_OFFSET: u64 = u64::MAX;
const TCP: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
const ECN: libc::c_uint = libc::TUN_F_TSO_ECN;
/// The kernel accepts both or none.
const UDP: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

// === impl Tun ===

impl Tun {
    /// Creates a device in the calling thread's network namespace. `pattern` is a name, or one with
    /// `%d` for a number that the kernel assigns. There are `queues` queues, or one if the kernel
    /// does not support more. Without `offload`, only plain packets are used.
    pub fn create(pattern: &str, queues: usize, offload: bool) -> Result<Self, TunError> {
        let failed = |step| move |source| TunError { pattern: pattern.to_owned(), step, source };
        let mut wanted = queues.max(1);
        let (first, name, header) = match Queue::attach_best(pattern, offload, wanted > 1) {
            Err(_) if wanted > 1 => {
                wanted = 1;
                Queue::attach_best(pattern, offload, false)
            }
            other => other,
        }
        .map_err(failed("TUNSETIFF"))?;
        let offloads = if header { first.offload() } else { TunOffloads::default() };
        let mut queues = vec![first];
        while queues.len() < wanted {
            let (queue, _) =
                Queue::attach(&name, header, true).map_err(failed("TUNSETIFF of a further queue"))?;
            queues.push(queue);
        }
        let name = IfName::new(name).map_err(io::Error::other).map_err(failed("its name"))?;
        Ok(Self { name, offloads, queues })
    }
}

// === impl Queue ===

impl Queue {
    /// Reads one packet with its header, if there is one. A packet longer than `buffer` is
    /// truncated.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let here = &mut [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.0, here, NO_OFFSET, ReadWriteFlags::NOWAIT) {
            Ok(bytes) => Ok(Some(bytes)),
            // Before 5.11 a TUN does not support NOWAIT: no further packets are gathered there.
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, but waits for a packet, or until the device is deleted, which is an error.
    pub fn wait(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Whether a write error means that the device was deleted, and not only that it is down.
    pub fn is_gone(error: &io::Error) -> bool {
        error.raw_os_error() == Some(libc::EBADFD)
    }

    /// Writes one packet with its header, in pieces.
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.0, pieces)?;
        Ok(())
    }

    /// With the header, if it is wanted and supported.
    fn attach_best(pattern: &str, header: bool, several: bool) -> io::Result<(Self, String, bool)> {
        if !header {
            return Self::attach(pattern, false, several).map(|(queue, name)| (queue, name, false));
        }
        let with = Self::attach(pattern, true, several).map(|(queue, name)| (queue, name, true));
        with.or_else(|_| Self::attach(pattern, false, several).map(|(queue, name)| (queue, name, false)))
    }

    fn attach(pattern: &str, header: bool, several: bool) -> io::Result<(Self, String)> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let queue = Self(rustix::fs::open("/dev/net/tun", flags, Mode::empty())?);
        let mut wanted = libc::IFF_TUN | libc::IFF_NO_PI;
        wanted |= if header { libc::IFF_VNET_HDR } else { 0 };
        wanted |= if several { libc::IFF_MULTI_QUEUE } else { 0 };
        let mut request = InterfaceRequest::new(pattern, wanted)?;
        let pointer: *mut InterfaceRequest = &mut request;
        // SAFETY: TUNSETIFF reads and writes a struct ifreq, whose layout and size InterfaceRequest
        // has.
        check(unsafe { libc::ioctl(queue.0.as_raw_fd(), libc::TUNSETIFF as _, pointer) })?;
        if header {
            queue.set_header_bytes()?;
        }
        Ok((queue, request.name()))
    }

    fn set_header_bytes(&self) -> io::Result<()> {
        let bytes = VIRTIO_HEADER_BYTES as libc::c_int;
        let pointer: *const libc::c_int = &bytes;
        // SAFETY: TUNSETVNETHDRSZ reads an int.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, pointer) })
    }

    /// Requests the best set of offloads that the kernel grants.
    fn offload(&self) -> TunOffloads {
        let granted = |flags: libc::c_uint| {
            // SAFETY: TUNSETOFFLOAD takes a number and no pointer.
            check(unsafe {
                libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(flags))
            })
            .is_ok()
        };
        let best = OFFLOADS.iter().find(|(flags, _)| granted(*flags));
        best.map_or(TunOffloads { header: true, ..TunOffloads::default() }, |(_, offloads)| *offloads)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

// === impl InterfaceRequest ===

impl InterfaceRequest {
    fn new(pattern: &str, flags: libc::c_int) -> io::Result<Self> {
        let too_long = || io::Error::from_raw_os_error(libc::ENAMETOOLONG);
        let mut name = [0; libc::IFNAMSIZ];
        // The last byte stays 0.
        let room = name[..libc::IFNAMSIZ - 1].get_mut(..pattern.len()).ok_or_else(too_long)?;
        room.copy_from_slice(pattern.as_bytes());
        let flags = libc::c_short::try_from(flags).map_err(io::Error::other)?;
        Ok(Self { name, flags, rest: [0; 22] })
    }

    fn name(&self) -> String {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;

    #[test]
    fn the_request_has_the_size_of_the_kernels() {
        assert_eq!(size_of::<InterfaceRequest>(), size_of::<libc::ifreq>());
        assert!(InterfaceRequest::new("a-name-of-sixteen", libc::IFF_TUN).is_err());
        assert_eq!(InterfaceRequest::new("flannel%d", libc::IFF_TUN).unwrap().name(), "flannel%d");
    }

    #[test]
    #[ignore = "kernel: TUN devices need root"]
    fn a_pattern_gets_the_next_number_and_the_device_goes_with_its_last_queue() {
        NetNs::create_unnamed()
            .unwrap()
            .run_in_thread(|| {
                let first = Tun::create("flannel%d", 1, true).unwrap();
                let second = Tun::create("flannel%d", 3, true).unwrap();
                assert_eq!((first.name.as_str(), second.name.as_str()), ("flannel0", "flannel1"));
                assert_eq!((first.queues.len(), second.queues.len()), (1, 3));
                assert!(first.offloads.header && first.offloads.tcp, "{:?}", first.offloads);
                drop(first);
                assert_eq!(Tun::create("flannel%d", 1, true).unwrap().name.as_str(), "flannel0");
                let error = Tun::create(second.name.as_str(), 1, true).unwrap_err();
                assert!(error.to_string().starts_with("create TUN device flannel1: TUNSETIFF: "), "{error}");
            })
            .unwrap();
    }

    #[test]
    #[ignore = "kernel: TUN devices need root"]
    fn reading_an_empty_queue_does_not_block() {
        NetNs::create_unnamed()
            .unwrap()
            .run_in_thread(|| {
                let tun = Tun::create("tun%d", 1, true).unwrap();
                assert_eq!(tun.queues[0].read(&mut [0; 100]).unwrap(), None);
                let down = tun.queues[0]
                    .write(&[
                        IoSlice::new(&[0; VIRTIO_HEADER_BYTES]),
                        IoSlice::new(&[0x45]),
                        IoSlice::new(&[0; 19]),
                    ])
                    .unwrap_err();
                assert_eq!(down.raw_os_error(), Some(libc::EIO));
            })
            .unwrap();
    }
}
