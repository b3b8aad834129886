//! The userspace `udp` backend of flannel: a TUN device whose packets go to the peers, each in one
//! UDP datagram.
//!
//! The wire format is the original's (flannel.md section 6.1), so that flannel's nodes can be peers: the
//! bare inner IPv4 packet, from our address and port to the peer's address and *our* port, its TTL
//! decremented on each side. The cost differs: with offloads, the kernel transfers up to 64 KiB at
//! once on the TUN and on the socket; without them, the proxy works packet by packet (dataplane.md sections 2 and 4).
//! With a [`FastPath`], BPF programs carry most packets past the proxy.
//!
//! The carrier starts a [`Proxy`] once there is a lease, and updates its peers. The modules without
//! sockets - `segment`, `coalesce`, `packet`, `table`, `gso_batch`, `unreachable` - are pure; `send` and
//! `receive` are the loops around them.

mod backoff;
mod checksum;
mod coalesce;
mod device;
mod fast_path;
mod gso_batch;
mod packet;
mod receive;
#[cfg(test)]
mod samples;
mod segment;
mod send;
mod shared;
mod table;
mod unreachable;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use russet_addr::{IfName, Ipv4Net};
use russet_linux::tun::{Tun, TunError, TunOffloads};
use russet_linux::udp::{PortSharing, UdpSocket, UdpSocketError};
use russet_netlink::{NetlinkError, Socket};

pub(crate) use fast_path::remove_leftovers;
pub use fast_path::{Carried, FastPath, Via};
pub use shared::Count;

use coalesce::Kinds;
use device::Device;
use fast_path::End;
use receive::Receiver;
use send::Sender;
use shared::Shared;
use table::{Peers, Reader};

/// The configuration of a proxy.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device's name, or a pattern with `%d`: [`DEVICE`] in flannel.
    pub tun: String,
    /// The device's MTU in bytes: the underlay's without [`OVERHEAD_BYTES`].
    pub mtu: u32,
    /// The base address of our lease: the device's address, and the source of our ICMP messages.
    pub own: Ipv4Addr,
    /// The whole pod network.
    pub network: Ipv4Net,
    /// The address of the underlay to send from and to receive at.
    pub local: Ipv4Addr,
    /// Our port, and the port of all peers.
    pub port: u16,
    /// Threads in each direction. One suffices on a machine with few processors: see
    /// [`Options::queues_for`].
    pub queues: usize,
    /// Whether only peers may send. False where peers send from other addresses than their leases
    /// name.
    pub guard: bool,
    /// Whether to use the kernel's offloads. Without them, every packet is read and sent singly.
    pub offload: bool,
    /// Programs that carry most packets past the threads.
    pub fast_path: Option<Arc<FastPath>>,
}

/// A running backend. Dropping it stops it; like the original's, its device and the device's route
/// vanish with it.
#[derive(Debug)]
pub struct Proxy {
    device: Device,
    offloads: Offloads,
    peers: Arc<Peers>,
    /// Whether only peers may send.
    guards: bool,
    fast_path: Option<Arc<FastPath>>,
    shared: Arc<Shared>,
    /// A socket in the namespace in which the proxy was started.
    netlink: Mutex<Socket>,
    sockets: Vec<Arc<UdpSocket>>,
    threads: Vec<JoinHandle<()>>,
}

/// The offloads that the kernel granted at start; some may have been given up since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offloads {
    /// On the TUN.
    pub tun: TunOffloads,
    /// Whether datagrams leave the socket in one piece (UDP segmentation offload).
    pub segments: bool,
    /// Whether datagrams arrive in one piece (UDP receive offload).
    pub joins: bool,
}

/// The backend could not be started, or its device could not be repaired.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The TUN device could not be created.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The socket could not be opened; EADDRINUSE if another program has the port.
    #[error(transparent)]
    Socket(#[from] UdpSocketError),
    /// The device could not be set up.
    #[error("set up {device}: {source}")]
    Device {
        /// The device's name, or its name pattern.
        device: String,
        source: NetlinkError,
    },
    /// The threads could not be started.
    #[error("start the threads of the udp backend: {0}")]
    Threads(#[source] io::Error),
}

/// The name of flannel's device.
pub const DEVICE: &str = "flannel%d";
/// The port when the network config names none.
pub const PORT: u16 = 8285;
/// Bytes that the outer IPv4 and UDP headers take.
pub const OVERHEAD_BYTES: u32 = 28;

/// Limit of queues; more had no measured effect (dataplane.md section 2.5).
const MAX_QUEUES: usize = 4;

// === impl Options ===

impl Options {
    /// The number of queues for a machine with this many processors, which the threads of both
    /// directions and the pods share.
    pub fn queues_for(processors: usize) -> usize {
        (processors / 4).clamp(1, MAX_QUEUES)
    }
}

// === impl Proxy ===

impl Proxy {
    /// Creates device and sockets in the calling thread's network namespace, and starts.
    ///
    /// A port of an earlier proxy of this process stays in use a moment longer if a child process
    /// was being started: until its `exec`.
    pub fn start(options: Options) -> Result<Self, UdpError> {
        // Sockets first: if the port is taken, no device is left behind.
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
                joins: sockets.iter().all(UdpSocket::coalesces),
            },
            device,
            peers: Arc::default(),
            guards: options.guard,
            fast_path: options.fast_path,
            shared: Arc::new(shared),
            netlink: Mutex::new(netlink),
            sockets: Vec::new(),
            threads: Vec::new(),
        };
        for (queue, socket) in tun.queues.into_iter().zip(sockets) {
            proxy.serve(Arc::new(queue), Arc::new(socket)).map_err(UdpError::Threads)?;
        }
        if let Some(fast_path) = &proxy.fast_path {
            fast_path.start(End {
                local: options.local,
                device: proxy.device.index,
                mtu_bytes: options.mtu,
                port: options.port,
            });
            proxy.suit_sockets(fast_path);
        }
        Ok(proxy)
    }

    pub fn device(&self) -> &IfName {
        &self.device.name
    }

    /// The offloads that the kernel granted at start.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Routes a subnet to this peer.
    pub fn put(&self, subnet: Ipv4Net, via: Via) {
        self.peers.put(subnet, via.address);
        self.change_fast_path(|subnets| _ = subnets.insert(subnet.trunc(), via));
    }

    /// Removes the route of a subnet.
    pub fn remove(&self, subnet: Ipv4Net) {
        self.change_fast_path(|subnets| _ = subnets.remove(&subnet.trunc()));
        self.peers.remove(subnet);
    }

    /// Replaces all subnets. For many at once this is much cheaper than single changes.
    pub fn reset(&self, all: &[(Ipv4Net, Via)]) {
        let peers: Vec<_> = all.iter().map(|(subnet, via)| (*subnet, via.address)).collect();
        self.peers.reset(&peers);
        let wanted = all.iter().map(|(subnet, via)| (subnet.trunc(), *via)).collect();
        self.change_fast_path(|subnets| *subnets = wanted);
    }

    fn change_fast_path(&self, change: impl FnOnce(&mut BTreeMap<Ipv4Net, Via>)) {
        if let Some(fast_path) = &self.fast_path {
            fast_path.change(change);
        }
    }

    /// Joined by the kernel, packets could not be carried singly past the threads.
    fn suit_sockets(&self, fast_path: &FastPath) {
        let carries = fast_path.carries();
        self.sockets.iter().for_each(|socket| socket.coalesce(!carries));
    }

    /// Restores the device after changes by other programs: MTU, state, address and route. Costs a
    /// few messages if there is nothing to repair.
    pub fn repair(&self) -> Result<(), UdpError> {
        let mut netlink = self.netlink.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| UdpError::Device { device: self.device.name.to_string(), source };
        self.device.configure(&mut netlink).map_err(failed)
    }

    /// Has the fast path carry packets again, after another program has detached it, or gives way to one. Returns whether that
    /// changed anything. To be called in the network namespace in which the proxy was started.
    pub fn repair_fast_path(&self) -> bool {
        let Some(fast_path) = &self.fast_path else { return false };
        let changed = fast_path.repair();
        self.suit_sockets(fast_path);
        changed
    }

    /// Whether [`repair_fast_path`](Self::repair_fast_path) should be called.
    pub fn is_fast_path_disturbed(&self) -> bool {
        self.fast_path.as_ref().is_some_and(|fast_path| fast_path.is_disturbed())
    }

    /// The reason if the proxy has stopped, usually because its device was deleted. The caller
    /// drops it and starts a new one.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure()
    }

    /// Number of occurrences since the start.
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
        if let Some(fast_path) = &self.fast_path {
            fast_path.stop();
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.sockets.iter().for_each(|socket| socket.shut());
        let netlink = self.netlink.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !self.device.delete(netlink) {
            // Ends the threads also if we may no longer write to the device: deleting it wakes
            // them.
            return;
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// A socket for each queue.
fn bind(options: &Options) -> Result<Vec<UdpSocket>, UdpSocketError> {
    let address = SocketAddrV4::new(options.local, options.port);
    let count = options.queues.max(1);
    let port = |number| match number {
        _ if count == 1 => PortSharing::Alone,
        0 => PortSharing::First,
        _ => PortSharing::Further,
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
