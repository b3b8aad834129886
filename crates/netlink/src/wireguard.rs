//! WireGuard devices: keys, ports and peers (linux/wireguard.h). The link itself is created like
//! any other, with kind `wireguard`. Used by `overlay`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use russet_addr::Family;

use crate::batch::{Batch, Names};
use crate::error::Result;
use crate::generic::header;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Attribute, Attributes, Message, MessageBuilder, array, with_ip};

/// The name of the netlink family.
pub const FAMILY: &str = "wireguard";
/// Peers per request: 64 KiB of attributes hold so many with [`ALLOWED_MAX`] networks each.
pub const PEERS_MAX: usize = 16;
/// The most networks of one peer.
pub const ALLOWED_MAX: usize = 64;

/// A Curve25519 key, private or public, or a preshared key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 32]);

/// A device as read from the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Derived from the private key; `None` without one.
    pub public_key: Option<Key>,
    /// The UDP port.
    pub listen_port: u16,
    /// Its peers.
    pub peers: Vec<Peer>,
}

/// A peer, as written and as read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its public key, which identifies it.
    pub key: Key,
    /// The optional preshared key.
    pub preshared: Option<Key>,
    /// Its address; the kernel updates it when the peer roams.
    pub endpoint: Option<SocketAddr>,
    /// The keepalive interval in seconds; 0 disables keepalives.
    pub keepalive_s: u16,
    /// The networks that it may send from and that are routed to it.
    pub allowed: BTreeSet<IpNet>,
}

/// A change to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Adds or replaces the peer.
    Put(Peer),
    /// Removes it.
    Remove(Key),
}

// === impl Key ===

/// Does not print the key, which may be secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

// === impl Device ===

impl Device {
    /// Decodes one message of a dump, which may have several.
    fn decode(message: &Message<'_>) -> Self {
        let mut device = Self::default();
        for attribute in message.attributes(GENLMSGHDR_BYTES) {
            match attribute.kind {
                WGDEVICE_A_PUBLIC_KEY => device.public_key = key(&attribute),
                WGDEVICE_A_LISTEN_PORT => device.listen_port = attribute.u16().unwrap_or(0),
                WGDEVICE_A_PEERS => {
                    device.peers.extend(attribute.nested().filter_map(|peer| Peer::decode(&peer.nested())));
                }
                _ => {}
            }
        }
        device
    }

    /// Adds the next message of the dump, which may continue the last peer.
    fn merge(&mut self, next: Self) {
        self.public_key = self.public_key.or(next.public_key);
        self.listen_port = if self.listen_port == 0 { next.listen_port } else { self.listen_port };
        for peer in next.peers {
            match self.peers.last_mut().filter(|last| last.key == peer.key) {
                Some(last) => last.allowed.extend(peer.allowed),
                None => self.peers.push(peer),
            }
        }
    }
}

// === impl Peer ===

impl Peer {
    fn decode(attributes: &Attributes<'_>) -> Option<Self> {
        let mut peer = Self {
            key: key(&attributes.find(WGPEER_A_PUBLIC_KEY)?)?,
            preshared: None,
            endpoint: None,
            keepalive_s: 0,
            allowed: BTreeSet::new(),
        };
        for attribute in attributes.clone() {
            match attribute.kind {
                WGPEER_A_PRESHARED_KEY => peer.preshared = key(&attribute).filter(|key| key.0 != [0; 32]),
                WGPEER_A_ENDPOINT => peer.endpoint = endpoint(attribute.payload),
                WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL => {
                    peer.keepalive_s = attribute.u16().unwrap_or(0);
                }
                WGPEER_A_ALLOWEDIPS => peer.allowed.extend(attribute.nested().filter_map(|ip| allowed(&ip))),
                _ => {}
            }
        }
        Some(peer)
    }
}

// === impl Change ===

impl Change {
    fn encode(&self, message: &mut MessageBuilder<'_>) {
        match self {
            Change::Remove(key) => {
                message.attr(WGPEER_A_PUBLIC_KEY, &key.0).attr_u32(WGPEER_A_FLAGS, WGPEER_F_REMOVE_ME);
            }
            Change::Put(peer) => {
                message
                    .attr(WGPEER_A_PUBLIC_KEY, &peer.key.0)
                    .attr_u32(WGPEER_A_FLAGS, WGPEER_F_REPLACE_ALLOWEDIPS)
                    // All zeroes removes the preshared key.
                    .attr(WGPEER_A_PRESHARED_KEY, &peer.preshared.map_or([0; 32], |key| key.0))
                    .attr_u16(WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, peer.keepalive_s);
                if let Some(endpoint) = peer.endpoint {
                    message.attr(WGPEER_A_ENDPOINT, &sockaddr(endpoint));
                }
                message.nested(WGPEER_A_ALLOWEDIPS, |list| {
                    for net in &peer.allowed {
                        list.nested(0, |entry| {
                            entry.attr_u16(WGALLOWEDIP_A_FAMILY, u16::from(af(Family::of_net(net))));
                            entry.attr_ip(WGALLOWEDIP_A_IPADDR, net.network());
                            entry.attr_u8(WGALLOWEDIP_A_CIDR_MASK, net.prefix_len());
                        });
                    }
                });
            }
        }
    }
}

fn key(attribute: &Attribute<'_>) -> Option<Key> {
    attribute.payload.try_into().ok().map(Key)
}

fn allowed(entry: &Attribute<'_>) -> Option<IpNet> {
    let entry = entry.nested();
    let address = entry.find(WGALLOWEDIP_A_IPADDR)?.ip()?;
    IpNet::new(address, entry.find(WGALLOWEDIP_A_CIDR_MASK)?.u8()?).ok()
}

/// `struct sockaddr_in` or `struct sockaddr_in6`.
fn sockaddr(endpoint: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend(u16::from(af(Family::of(endpoint.ip()))).to_ne_bytes());
    bytes.extend(endpoint.port().to_be_bytes());
    if let SocketAddr::V6(v6) = endpoint {
        bytes.extend(v6.flowinfo().to_be_bytes());
    }
    with_ip(endpoint.ip(), |address| bytes.extend_from_slice(address));
    match endpoint {
        SocketAddr::V4(_) => bytes.extend([0; 8]),
        SocketAddr::V6(v6) => bytes.extend(v6.scope_id().to_ne_bytes()),
    }
    bytes
}

fn endpoint(bytes: &[u8]) -> Option<SocketAddr> {
    let number = u16::from_ne_bytes(array(bytes, 0)?);
    let port = u16::from_be_bytes(array(bytes, 2)?);
    let address: IpAddr = match family(u8::try_from(number).ok()?)? {
        Family::V4 => Ipv4Addr::from(array::<4>(bytes, 4)?).into(),
        Family::V6 => Ipv6Addr::from(array::<16>(bytes, 8)?).into(),
    };
    Some(SocketAddr::new(address, port))
}

/// Describes a request, without keys.
fn describe(message: &Message<'_>, names: Names<'_>) -> String {
    let attributes = message.attributes(GENLMSGHDR_BYTES);
    let index = attributes.find(WGDEVICE_A_IFINDEX).and_then(|index| index.u32()).unwrap_or(0);
    let peers = attributes.find(WGDEVICE_A_PEERS).map_or(0, |peers| peers.nested().count());
    format!("change {peers} peers of WireGuard device {}", names(index))
}

// === impl Batch ===

/// WireGuard.
impl Batch {
    /// An empty batch of requests to the WireGuard family.
    pub fn wireguard() -> Self {
        Self::naming(describe)
    }

    /// Sets a device's private key and port.
    pub fn set_wireguard(&mut self, family: u16, ifindex: u32, private: &Key, port: u16) -> &mut Self {
        self.push(family, 0, |message| {
            header(message, WG_CMD_SET_DEVICE, WG_GENL_VERSION);
            message.attr_u32(WGDEVICE_A_IFINDEX, ifindex);
            message.attr(WGDEVICE_A_PRIVATE_KEY, &private.0);
            message.attr_u16(WGDEVICE_A_LISTEN_PORT, port);
        })
    }

    /// Changes peers of a device, [`PEERS_MAX`] in each request.
    pub fn change_wireguard_peers(&mut self, family: u16, ifindex: u32, changes: &[Change]) -> &mut Self {
        for piece in changes.chunks(PEERS_MAX) {
            self.push(family, 0, |message| {
                header(message, WG_CMD_SET_DEVICE, WG_GENL_VERSION);
                message.attr_u32(WGDEVICE_A_IFINDEX, ifindex);
                message.nested(WGDEVICE_A_PEERS, |list| {
                    piece.iter().for_each(|change| _ = list.nested(0, |peer| change.encode(peer)));
                });
            });
        }
        self
    }
}

// === impl Socket ===

/// WireGuard, on a [generic](Socket::generic) socket.
impl Socket {
    /// A device and its peers; `family` is the number of [`FAMILY`].
    pub fn wireguard(&mut self, family: u16, ifindex: u32) -> Result<Device> {
        let fill = |message: &mut MessageBuilder<'_>| {
            header(message, WG_CMD_GET_DEVICE, WG_GENL_VERSION);
            message.attr_u32(WGDEVICE_A_IFINDEX, ifindex);
        };
        let decode = |message: &Message<'_>| (message.kind == family).then(|| Device::decode(message));
        let pieces = self.dump(&format!("read WireGuard device {ifindex}"), family, fill, decode)?;
        let mut device = Device::default();
        pieces.into_iter().for_each(|piece| device.merge(piece));
        Ok(device)
    }
}

#[cfg(test)]
mod tests;
