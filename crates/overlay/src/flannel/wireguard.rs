//! The wireguard backend: one device for each family, or one for both; its peers are the nodes and
//! their allowed networks are the routes (flannel.md section 6.5). Called by `fabric`.
//!
//! The wanted peers are computed from all leases each time, because only the requests to the kernel
//! are expensive, and the kernel gets only the differences. Unlike flannel's, our devices stay when
//! the daemon ends, and packets continue to flow.

mod key;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use russet_addr::{Family, IfName, IpNet, host_net};
use russet_netlink::wireguard::{self as wire, Change, Key};
use russet_netlink::{
    Address, Batch, Link, LinkAdd, LinkDel, LinkKind, LinkSet, NetlinkError, Scope, Socket,
};

pub use key::{KeyError, Psk};

use super::rules::Rules;
use super::{FlannelError, Peer, Underlay};
use crate::apply::ignore_router_advertisements;
use crate::owner::{Owner, of, of_mut};
use crate::refusal::{Reason, Refusal, Subject};
use crate::report::{Kind, ReconcileReport};

/// Bytes of the outer headers, the larger of both families.
const OVERHEAD: u32 = 80;
/// The feature's name in errors where the kernel lacks it.
const FEATURE: &str = "WireGuard (CONFIG_WIREGUARD, module wireguard)";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wireguard {
    /// The UDP port of the IPv4 device, or of the only one.
    pub port: u16,
    /// The UDP port of the IPv6 device.
    pub port_v6: u16,
    /// The MTU of the underlay in bytes, instead of the interface's own.
    pub mtu: Option<u32>,
    /// A preshared key of all nodes.
    pub psk: Option<Psk>,
    /// Interval of keepalive packets in seconds; 0 disables them.
    pub keepalive_s: u16,
    pub mode: Mode,
    /// Path of the private key: `/run/flannel/wgkey` unless `WIREGUARD_KEY_FILE` names another.
    pub key_file: PathBuf,
}

/// Which of a peer's addresses carry its tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each family has a tunnel of its own.
    Separate,
    /// One tunnel, over the family that more likely reaches the peer.
    Auto,
    /// One tunnel, over IPv4.
    V4,
    /// One tunnel, over IPv6.
    V6,
}

/// One end of a tunnel, as leases publish it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireguardEnd {
    /// The public key, as base64.
    pub public_key: String,
    /// The UDP port. Where it is missing or 0, as with older nodes, our own port is used.
    pub port: Option<u16>,
}

/// Our devices.
#[derive(Debug)]
pub(crate) struct Tunnels {
    options: Wireguard,
    private: Key,
    generic: Socket,
    family: Option<u16>,
    /// Index and public key of each device.
    devices: [Option<(u32, Key)>; 2],
    /// The peers that each device accepted from us.
    accepted: [BTreeMap<Key, wire::Peer>; 2],
}

/// The peers that each device should have.
pub(crate) type Wanted = [BTreeMap<Key, wire::Peer>; 2];

// === impl Wireguard ===

impl Wireguard {
    /// The name of the device that carries a family.
    pub(crate) fn device(&self, family: Family) -> &'static str {
        match self.carrier(family) {
            Family::V4 => "flannel-wg",
            Family::V6 => "flannel-wg-v6",
        }
    }

    /// The family whose device carries a family: its own, or IPv4's where there is only one.
    fn carrier(&self, family: Family) -> Family {
        if self.mode == Mode::Separate { family } else { Family::V4 }
    }

    fn port(&self, carrier: Family) -> u16 {
        *of(&[self.port, self.port_v6], carrier)
    }

    /// The family of the address at which `peer` is reached for traffic of `family`. Mode auto uses
    /// IPv4 if the peer's address there is public and we have one, else IPv6 if both sides'
    /// addresses there are public, else IPv4.
    fn outer(&self, peer: &Peer, family: Family, underlay: &Underlay) -> Family {
        match self.mode {
            Mode::Separate => family,
            Mode::V4 => Family::V4,
            Mode::V6 => Family::V6,
            Mode::Auto => match (peer.public(Family::V4), peer.public(Family::V6)) {
                (None, Some(_)) => Family::V6,
                (Some(v4), Some(v6)) => {
                    let over_v4 = is_public(v4) && underlay.v4.is_some();
                    let over_v6 = is_public(v6) && underlay.v6.is_some_and(|own| is_public(own.into()));
                    if !over_v4 && over_v6 { Family::V6 } else { Family::V4 }
                }
                _ => Family::V4,
            },
        }
    }
}

/// Why a link with the device's name cannot become it; `kind` is the kernel's word, which physical links have not.
fn misfit(kind: Option<&str>) -> String {
    format!("it is no wireguard device, but {}", kind.unwrap_or("a physical link"))
}

/// Whether an address is not one of a private network (RFC 1918, RFC 4193).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_private(),
        IpAddr::V6(v6) => !v6.is_unique_local(),
    }
}

// === impl Tunnels ===

impl Tunnels {
    /// Reads or creates the key; creates no device yet.
    pub(crate) fn open(options: &Wireguard) -> Result<Self, FlannelError> {
        Ok(Self {
            private: key::load(&options.key_file)?,
            generic: Socket::generic()?,
            family: None,
            devices: [None, None],
            accepted: [BTreeMap::new(), BTreeMap::new()],
            options: options.clone(),
        })
    }

    /// The ends that our leases publish.
    pub(crate) fn ends(&self) -> [Option<WireguardEnd>; 2] {
        Family::BOTH.map(|family| {
            let carrier = self.options.carrier(family);
            let (_, public) = (*of(&self.devices, carrier))?;
            let port = Some(self.options.port(carrier));
            Some(WireguardEnd { public_key: key::text(&public), port })
        })
    }

    /// Creates or adopts the devices, with our key and port, and gives them their addresses.
    pub(crate) fn ensure(
        &mut self,
        socket: &mut Socket,
        owner: &Owner,
        underlay: &Underlay,
        own: [Option<IpNet>; 2],
        report: &mut ReconcileReport,
    ) -> Result<(), FlannelError> {
        for carrier in Family::BOTH {
            let carries = |family: &Family| self.options.carrier(*family) == carrier;
            let families: Vec<Family> = Family::BOTH.into_iter().filter(carries).collect();
            let Some(name) = families.iter().find_map(|family| owner.name(*family)) else { continue };
            let link = self.link(socket, name, underlay, report)?;
            let (index, public) = self.configure(carrier, link.index)?;
            *of_mut(&mut self.devices, carrier) = Some((index, public));
            ignore_router_advertisements(name, report);
            let addresses = families.iter().filter_map(|family| *of(&own, *family));
            adjust(socket, owner, &link, addresses.collect(), report)?;
        }
        Ok(())
    }

    /// Returns the link with this name; replaces a link of another kind.
    fn link(
        &self,
        socket: &mut Socket,
        name: &IfName,
        underlay: &Underlay,
        report: &mut ReconcileReport,
    ) -> Result<Link, FlannelError> {
        let mtu = self.options.mtu.unwrap_or(underlay.mtu).saturating_sub(OVERHEAD);
        let found = match socket.link_by_name(name) {
            Err(error) if error.is_not_found() => None,
            result => Some(result?),
        };
        let mut batch = Batch::new();
        match found {
            Some(link) if link.kind.as_deref() == Some("wireguard") && link.mtu_bytes == mtu => {
                return Ok(link);
            }
            Some(link) if link.kind.as_deref() == Some("wireguard") => {
                batch.set_link(&LinkSet { mtu_bytes: Some(mtu), ..LinkSet::index(link.index) });
            }
            found => {
                if let Some(link) = found {
                    report.replaced.push(format!("{name}: {}", misfit(link.kind.as_deref())));
                    batch.delete_link(&LinkDel::Index(link.index));
                }
                let kind = LinkKind::Other { kind: "wireguard", data: Vec::new() };
                batch.add_link(&LinkAdd { mtu_bytes: Some(mtu), ..LinkAdd::new(name.clone(), kind) });
            }
        }
        socket.execute(&batch).map_err(|error| unsupported(error.into()))?;
        report.count(Kind::Device);
        Ok(socket.link_by_name(name)?)
    }

    /// Sets the device's key and port if they differ; returns its index and public key.
    fn configure(&mut self, carrier: Family, ifindex: u32) -> Result<(u32, Key), FlannelError> {
        let family = match self.family {
            Some(family) => family,
            None => self.generic.family_id(wire::FAMILY).map_err(unsupported)?,
        };
        self.family = Some(family);
        let port = self.options.port(carrier);
        let known = of(&self.devices, carrier).filter(|(index, _)| *index == ifindex);
        let known = known.map(|(_, public)| public);
        let mut device = self.generic.wireguard(family, ifindex)?;
        if known.is_none() || known != device.public_key || device.listen_port != port {
            let mut batch = Batch::wireguard();
            batch.set_wireguard(family, ifindex, &self.private, port);
            self.generic.execute(&batch).map_err(NetlinkError::from)?;
            device = self.generic.wireguard(family, ifindex)?;
        }
        let missing = || NetlinkError::Malformed { operation: format!("read WireGuard device {ifindex}") };
        Ok((ifindex, device.public_key.ok_or_else(missing)?))
    }

    /// The peers that each device should have for these leases, oldest first, and the leases that
    /// were refused.
    pub(crate) fn wanted<'a>(
        &self,
        rules: &Rules,
        peers: impl Iterator<Item = &'a Peer>,
    ) -> (Wanted, Vec<Refusal>) {
        let own = self.devices.map(|device| device.map(|(_, public)| public));
        wanted(&self.options, own, rules, peers)
    }

    /// Sends the devices what differs: from their dumps if `afresh`, else from what they accepted
    /// so far.
    pub(crate) fn sync(
        &mut self,
        wanted: &Wanted,
        afresh: bool,
        report: &mut ReconcileReport,
    ) -> Result<(), FlannelError> {
        let Some(family) = self.family else { return Ok(()) };
        let devices = self.devices.iter().zip(&mut self.accepted).zip(wanted);
        for ((device, accepted), wanted) in devices {
            let Some((ifindex, _)) = *device else { continue };
            if afresh {
                let device = self.generic.wireguard(family, ifindex)?;
                *accepted = settled(device.peers, accepted);
            }
            let changes = difference(wanted, accepted);
            let mut batch = Batch::wireguard();
            batch.change_wireguard_peers(family, ifindex, &changes);
            for (result, piece) in
                self.generic.execute_all(&batch).into_iter().zip(changes.chunks(wire::PEERS_MAX))
            {
                match result {
                    Ok(()) => {
                        record_accepted(accepted, piece);
                        piece.iter().for_each(|_| report.count(Kind::Peer));
                    }
                    Err(error) => report.fail(error),
                }
            }
        }
        Ok(())
    }
}

/// Sets the addresses of the device and raises it.
fn adjust(
    socket: &mut Socket,
    owner: &Owner,
    link: &Link,
    own: Vec<IpNet>,
    report: &mut ReconcileReport,
) -> Result<(), NetlinkError> {
    let wanted: Vec<IpNet> = own.iter().map(|net| host_net(net.addr())).collect();
    let mut batch = Batch::new();
    if !wanted.is_empty() {
        let found = socket.addresses_of(link.index)?;
        let ours = |a: &&Address| a.scope == Scope::Universe && owner.owns_address(&a.net);
        let found: Vec<&Address> = found.iter().filter(ours).collect();
        for net in wanted.iter().filter(|net| found.iter().all(|a| a.net != **net)) {
            batch.replace_address(&Address::new(link.index, *net));
            report.count(Kind::Address);
        }
        for address in found.iter().filter(|a| !wanted.contains(&a.net)) {
            batch.delete_address(address);
            report.count(Kind::Address);
        }
    }
    if !link.is_up() {
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(link.index) });
        report.count(Kind::Device);
    }
    socket.execute(&batch).map_err(NetlinkError::from)
}

/// See [`Tunnels::wanted`]. The newest lease of a subnet wins, and a node may have several subnets.
fn wanted<'a>(
    options: &Wireguard,
    own: [Option<Key>; 2],
    rules: &Rules,
    peers: impl Iterator<Item = &'a Peer>,
) -> (Wanted, Vec<Refusal>) {
    let mut wanted: Wanted = [BTreeMap::new(), BTreeMap::new()];
    let mut holders: BTreeMap<IpNet, Key> = BTreeMap::new();
    let mut refused = Vec::new();
    for peer in peers {
        for family in rules.networks.families() {
            let Some(subnet) = peer.subnet(family) else { continue };
            let carrier = options.carrier(family);
            let wanted = of_mut(&mut wanted, carrier);
            let room = |end: (Key, SocketAddr)| match wanted.get(&end.0) {
                Some(known) if !has_room(known, &subnet) => Err(Reason::TooMany(wire::ALLOWED_MAX)),
                _ => Ok(end),
            };
            match end(options, *of(&own, carrier), rules, peer, family, subnet).and_then(room) {
                Ok((key, endpoint)) => {
                    if let Some(holder) = holders.insert(subnet, key).filter(|holder| *holder != key) {
                        drop_subnet(wanted, holder, subnet);
                    }
                    let fresh = || wire::Peer {
                        key,
                        preshared: options.psk.map(|psk| psk.0),
                        endpoint: None,
                        keepalive_s: options.keepalive_s,
                        allowed: [].into(),
                    };
                    let entry = wanted.entry(key).or_insert_with(fresh);
                    entry.endpoint = Some(endpoint);
                    entry.allowed.insert(subnet);
                }
                Err(reason) => refused.push(Refusal::new(Subject::Block(subnet), None, reason)),
            }
        }
    }
    (wanted, refused)
}

/// Whether a peer may have one more network: one request to the kernel is limited in size.
fn has_room(peer: &wire::Peer, subnet: &IpNet) -> bool {
    peer.allowed.contains(subnet) || peer.allowed.len() < wire::ALLOWED_MAX
}

fn drop_subnet(peers: &mut BTreeMap<Key, wire::Peer>, holder: Key, subnet: IpNet) {
    if let Some(peer) = peers.get_mut(&holder) {
        peer.allowed.remove(&subnet);
        if peer.allowed.is_empty() {
            peers.remove(&holder);
        }
    }
}

/// The remote end of the tunnel to `subnet`.
fn end(
    options: &Wireguard,
    own: Option<Key>,
    rules: &Rules,
    peer: &Peer,
    family: Family,
    subnet: IpNet,
) -> Result<(Key, SocketAddr), Reason> {
    rules.check_subnet(subnet)?;
    let public = rules.check_public(peer, options.outer(peer, family, &rules.underlay), subnet)?;
    let mut end = of(&peer.wireguard, family).as_ref();
    if options.mode != Mode::Separate {
        // One tunnel has one key, which both families' leases publish.
        end = end.or(peer.wireguard.iter().flatten().next());
    }
    let end = end.ok_or(Reason::NoTunnelEndpoint)?;
    let key = key::parse("public key", &end.public_key).map_err(|_| Reason::NoTunnelEndpoint)?;
    if own == Some(key) {
        return Err(Reason::Ours);
    }
    let ours = options.port(options.carrier(family));
    Ok((key, SocketAddr::new(public, end.port.filter(|port| *port != 0).unwrap_or(ours))))
}

/// The kernel's peers with the endpoints that we configured: the kernel's own endpoints follow a
/// node that moves, and that is not a difference.
fn settled(found: Vec<wire::Peer>, accepted: &BTreeMap<Key, wire::Peer>) -> BTreeMap<Key, wire::Peer> {
    let peers = found.into_iter().map(|mut peer| {
        if let Some(known) = accepted.get(&peer.key) {
            peer.endpoint = known.endpoint;
        }
        (peer.key, peer)
    });
    peers.collect()
}

/// Removals come first: a subnet that moves has one holder at a time.
fn difference(wanted: &BTreeMap<Key, wire::Peer>, found: &BTreeMap<Key, wire::Peer>) -> Vec<Change> {
    let gone = found.keys().filter(|key| !wanted.contains_key(*key)).map(|key| Change::Remove(*key));
    let put = wanted.values().filter(|peer| found.get(&peer.key) != Some(*peer));
    gone.chain(put.cloned().map(Change::Put)).collect()
}

/// Records what the kernel accepted.
fn record_accepted(accepted: &mut BTreeMap<Key, wire::Peer>, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(peer) => drop(accepted.insert(peer.key, peer.clone())),
            Change::Remove(key) => drop(accepted.remove(key)),
        }
    }
}

/// The kernel answers EOPNOTSUPP for link kinds that it does not know, and ENOENT for such generic
/// netlink families.
fn unsupported(source: NetlinkError) -> FlannelError {
    if source.is_unsupported() || source.is_not_found() {
        return FlannelError::Unsupported { backend: "wireguard", feature: FEATURE, source };
    }
    source.into()
}

#[cfg(test)]
mod tests;
