//! A model of flannel's original proxy: one thread, a `poll`, then one packet per system call until
//! nothing is left (flannel.md section 6.1).
//!
//! It forwards to one peer only and so needs no table; otherwise its costs are those of the
//! original.

use std::io::IoSlice;
use std::net::{SocketAddrV4, UdpSocket};

use russet_flanneld::udp::PORT;
use russet_linux::tun::{Queue, Tun};
use russet_netlink::{Batch, LinkSet, Route};
use rustix::event::{PollFd, PollFlags, poll};

use crate::Result;
use crate::overlay::node::{Node, up};

/// One node's proxy. Its thread ends with the process.
pub struct Naive {
    queue: Queue,
    socket: UdpSocket,
    peer: SocketAddrV4,
    packet: Vec<u8>,
}

// === impl Naive ===

impl Naive {
    /// Starts it on `node`, towards `other`.
    pub fn start(node: &mut Node, other: &Node, mtu_bytes: u32) -> Result<()> {
        let tun = node.host.with(|| Tun::create("flannel%d", 1, false))??;
        let index = node.netlink.link_by_name(&tun.name)?.index;
        let mut mtu = LinkSet::index(index);
        mtu.mtu_bytes = Some(mtu_bytes);
        node.netlink.execute(Batch::new().set_link(&mtu))?;
        let base = format!("{}/32", node.base()).parse()?;
        up(&mut node.netlink, index, Some(base))?;
        let network = Route::dev("10.244.0.0/16".parse()?, index);
        node.netlink.execute(Batch::new().add_route(&network))?;
        let socket = node.host.with(|| UdpSocket::bind((node.address(), PORT)))??;
        socket.set_nonblocking(true)?;
        let queue = tun.queues.into_iter().next().ok_or("a TUN without queues")?;
        let peer = SocketAddrV4::new(other.address(), PORT);
        let naive = Self { queue, socket, peer, packet: vec![0; mtu_bytes as usize] };
        std::thread::Builder::new().name("udp-naive".to_owned()).spawn(|| naive.run())?;
        Ok(())
    }

    fn run(mut self) {
        loop {
            let mut both =
                [PollFd::new(&self.queue, PollFlags::IN), PollFd::new(&self.socket, PollFlags::IN)];
            if poll(&mut both, None).is_err() {
                return;
            }
            while self.out() | self.back() {}
        }
    }

    /// From the TUN to the peer. False when there is nothing.
    fn out(&mut self) -> bool {
        let Ok(Some(bytes)) = self.queue.read(&mut self.packet) else { return false };
        if self.age(bytes) {
            let _ = self.socket.send_to(&self.packet[..bytes], self.peer);
        }
        true
    }

    /// From the peer to the TUN. False when there is nothing.
    fn back(&mut self) -> bool {
        let Ok((bytes, _)) = self.socket.recv_from(&mut self.packet) else { return false };
        if self.age(bytes) {
            let _ = self.queue.write(&[IoSlice::new(&self.packet[..bytes])]);
        }
        true
    }

    /// One off the time to live, the checksum adapted. False for what is no packet or too old.
    fn age(&mut self, bytes: usize) -> bool {
        let packet = &mut self.packet[..bytes];
        if bytes < 20 || packet[0] >> 4 != 4 || packet[8] <= 1 {
            return false;
        }
        packet[8] -= 1;
        let (sum, carry) = u16::from_be_bytes([packet[10], packet[11]]).overflowing_add(0x0100);
        packet[10..12].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
        true
    }
}
