//! The userspace `udp` backend of flannel: a TUN whose packets go to the peers as they are, one in each UDP datagram.
//!
//! The wire format is the original's (flannel.md section 6.1), so that its nodes are peers: the bare inner IPv4 packet, from our address and port to the
//! peer's address and *our* port, its time to live one less on each side. What differs is the price. The kernel hands over and takes up to 64 KiB
//! at once, on the TUN and on the socket; what it refuses of that is done without (dataplane.md sections 2 and 4).
//!
//! `flanneld` starts a [`Proxy`] once it has a lease, and tells it about the peers. The parts that touch no socket - `cut`, `merge`, `packet`,
//! `table`, `train`, `unreachable` - are pure; `send` and `receive` are the loops around them.

mod checksum;
mod cut;
mod device;
mod luck;
mod merge;
mod packet;
mod receive;
#[cfg(test)]
mod samples;
mod send;
mod shared;
mod table;
mod train;
mod unreachable;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use russet_addr::{IfName, Ipv4Net};
use russet_linux::tun::{Tun, TunError, TunOffloads};
use russet_linux::udp::{Port, UdpSocket, UdpSocketError};
use russet_netlink::{NetlinkError, Socket};

pub use shared::Count;

use device::Device;
use merge::Kinds;
use receive::Receiver;
use send::Sender;
use shared::Shared;
use table::{Peers, Reader};

/// What a proxy is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device's name, or a pattern with `%d`: [`DEVICE`] in flannel.
    pub tun: String,
    /// The device's MTU in bytes: the underlay's without [`OVERHEAD_BYTES`].
    pub mtu: u32,
    /// The base address of our lease: the device's, and the source of what we answer.
    pub own: Ipv4Addr,
    /// The whole pod network.
    pub network: Ipv4Net,
    /// The address of the underlay to send from and to receive at.
    pub local: Ipv4Addr,
    /// Our port, and the port of all peers.
    pub port: u16,
    /// Threads in each direction. One does for a machine with few processors: see [`Options::queues_for`].
    pub queues: usize,
    /// Whether only peers may send: not where they send from other addresses than their leases name.
    pub guard: bool,
    /// Whether to use what the kernel offers. Without, every packet is read and sent singly.
    pub offload: bool,
}

/// A running backend. Dropping it stops it; the device goes with it, and its route with the device, as the original's do.
#[derive(Debug)]
pub struct Proxy {
    device: Device,
    offloads: Offloads,
    peers: Arc<Peers>,
    /// Whether only peers may send.
    guards: bool,
    shared: Arc<Shared>,
    /// Of the namespace in which the proxy was started.
    netlink: Mutex<Socket>,
    sockets: Vec<Arc<UdpSocket>>,
    threads: Vec<JoinHandle<()>>,
}

/// What the kernel granted when the proxy was started; some of it may have been given up since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offloads {
    /// On the TUN.
    pub tun: TunOffloads,
    /// Datagrams leave the socket in one piece.
    pub segments: bool,
    /// Datagrams reach us in one piece.
    pub joins: bool,
}

/// A backend that did not start, or a device that could not be repaired.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// No TUN.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// No socket; EADDRINUSE if somebody else has the port.
    #[error(transparent)]
    Socket(#[from] UdpSocketError),
    /// The device could not be set up.
    #[error("set up {device}: {source}")]
    Device {
        /// The device, or the pattern that it was to be named after.
        device: String,
        /// Why.
        source: NetlinkError,
    },
    /// No thread.
    #[error("start the threads of the udp backend: {0}")]
    Threads(#[source] io::Error),
}

/// The name of flannel's device.
pub const DEVICE: &str = "flannel%d";
/// The port when the network config names none.
pub const PORT: u16 = 8285;
/// Bytes that the outer IPv4 and UDP headers take.
pub const OVERHEAD_BYTES: u32 = 28;

/// More queues than this bring nothing that was measured (dataplane.md section 2.5).
const MAX_QUEUES: usize = 4;

// === impl Options ===

impl Options {
    /// How many queues suit a machine with this many processors: the threads of both directions and the pods share them.
    pub fn queues_for(processors: usize) -> usize {
        (processors / 4).clamp(1, MAX_QUEUES)
    }
}

// === impl Proxy ===

impl Proxy {
    /// Makes device and sockets in the calling thread's network namespace, and starts.
    ///
    /// A port that an earlier proxy of this process had is taken for a moment longer if a child was being started: until its `exec`.
    pub fn start(options: Options) -> Result<Self, UdpError> {
        // First what others can have: a port that is taken leaves no device behind.
        let sockets = bind(&options)?;
        let tun = Tun::create(&options.tun, options.queues, options.offload)?;
        let failed = |source| UdpError::Device { device: tun.name.to_string(), source };
        let mut netlink = Socket::route().map_err(failed)?;
        let device = Device {
            index: netlink.link_by_name(&tun.name).map_err(failed)?.index,
            name: tun.name.clone(),
            mtu_bytes: options.mtu,
            own: options.own,
            network: options.network,
        };
        device.configure(&mut netlink).map_err(failed)?;
        let shared = Shared::new(tun.offloads.header, options.mtu, options.own, options.port);
        let mut proxy = Self {
            offloads: Offloads {
                tun: tun.offloads,
                segments: sockets.iter().all(UdpSocket::segments),
                joins: sockets.iter().all(UdpSocket::joins),
            },
            device,
            peers: Arc::default(),
            guards: options.guard,
            shared: Arc::new(shared),
            netlink: Mutex::new(netlink),
            sockets: Vec::new(),
            threads: Vec::new(),
        };
        for (queue, socket) in tun.queues.into_iter().zip(sockets) {
            proxy.serve(Arc::new(queue), Arc::new(socket)).map_err(UdpError::Threads)?;
        }
        Ok(proxy)
    }

    /// The device's name.
    pub fn device(&self) -> &IfName {
        &self.device.name
    }

    /// What the kernel granted at start.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// A subnet is behind this peer from now on.
    pub fn put(&self, subnet: Ipv4Net, via: Ipv4Addr) {
        self.peers.put(subnet, via);
    }

    /// A subnet is behind nobody.
    pub fn remove(&self, subnet: Ipv4Net) {
        self.peers.remove(subnet);
    }

    /// These are all the subnets. For many at once this is much cheaper than one after the other.
    pub fn reset(&self, all: &[(Ipv4Net, Ipv4Addr)]) {
        self.peers.reset(all);
    }

    /// Sets the device up again: MTU, state, address and route that somebody has changed. Costs a few messages when all is well.
    pub fn repair(&self) -> Result<(), UdpError> {
        let mut netlink = self.netlink.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| UdpError::Device { device: self.device.name.to_string(), source };
        self.device.configure(&mut netlink).map_err(failed)
    }

    /// Why the proxy has stopped, if it has: mostly because somebody deleted its device. It wants to be dropped and started anew.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure()
    }

    /// How often something has happened since the start.
    pub fn count(&self, what: Count) -> u64 {
        self.shared.counters.get(what)
    }

    /// Starts the two threads of a queue.
    fn serve(&mut self, queue: Arc<russet_linux::tun::Queue>, socket: Arc<UdpSocket>) -> io::Result<()> {
        let tun = self.offloads.tun;
        self.sockets.push(Arc::clone(&socket));
        let joins = Kinds::new(tun.tcp, tun.udp);
        let receiver = Receiver {
            queue: Arc::clone(&queue),
            socket: Arc::clone(&socket),
            shared: Arc::clone(&self.shared),
            peers: self.guards.then(|| Reader::new(Arc::clone(&self.peers))),
            joins,
        };
        let peers = Reader::new(Arc::clone(&self.peers));
        let sender = Sender::new(queue, socket, Arc::clone(&self.shared), peers);
        self.spawn("udp-receive", move || receiver.run())?;
        self.spawn("udp-send", move || sender.run())
    }

    fn spawn(
        &mut self,
        name: &'static str,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let body = move || {
            if let Err(error) = run()
                && !shared.is_stopping()
            {
                shared.fail(name, &error);
            }
        };
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(body)?);
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.sockets.iter().for_each(|socket| socket.shut());
        let netlink = self.netlink.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !self.device.delete(netlink) {
            // Whoever took the device, or our right to it, ends the threads by deleting it.
            return;
        }
        for thread in self.threads.drain(..) {
            // One that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// A socket for each queue.
fn bind(options: &Options) -> Result<Vec<UdpSocket>, UdpSocketError> {
    let address = SocketAddrV4::new(options.local, options.port);
    let count = options.queues.max(1);
    let port = |number| match number {
        _ if count == 1 => Port::Alone,
        0 => Port::First,
        _ => Port::Further,
    };
    let mut sockets = Vec::with_capacity(count);
    for number in 0..count {
        let mut socket = UdpSocket::bind(address, port(number))?;
        if !options.offload {
            socket.plain();
        }
        sockets.push(socket);
    }
    Ok(sockets)
}
