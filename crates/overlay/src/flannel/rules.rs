//! Decides the path to a peer, or why there is none. Pure, except that the caller answers whether
//! an address is on our link. Called by `fabric` for every peer that is added or changes.

use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac};

use super::{Backend, Networks, Peer, Underlay, host_gw, ipip, vxlan};
use crate::owner::of;
use crate::refusal::{Reason, Refusal, Subject};

/// The inputs that are the same for all peers.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) backend: Backend,
    pub(crate) underlay: Underlay,
    pub(crate) networks: Networks,
    /// Our own subnets, as far as leased.
    pub(crate) own: [Option<IpNet>; 2],
    /// The MACs of our own devices.
    pub(crate) mac: [Option<Mac>; 2],
    /// The index of a tunnel device without MACs.
    pub(crate) tunnel: Option<u32>,
}

/// One family's subnet of a peer and the path to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) subnet: IpNet,
    pub(crate) path: PeerPath,
}

/// How packets reach a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerPath {
    /// Through our vxlan device, to the device with this MAC behind this address.
    Tunnel { mac: Mac, outer: IpAddr },
    /// To an address on this link.
    Direct { ifindex: u32, gateway: IpAddr },
}

/// Returns the link through which an address is reached without a router in between, if any.
pub(crate) type Near<'a> = &'a mut dyn FnMut(IpAddr) -> Option<u32>;

// === impl Rules ===

impl Rules {
    /// Whether paths depend on what is on our link.
    pub(crate) fn depends_on_links(&self) -> bool {
        match &self.backend {
            Backend::Vxlan(options) => options.direct_routing,
            Backend::Ipip { direct_routing } => *direct_routing,
            Backend::HostGw => true,
            Backend::Wireguard(_) | Backend::Udp | Backend::Alloc => false,
        }
    }

    /// The path to a peer in one family; none where the peer or this node has nothing in that
    /// family.
    pub(crate) fn claim(
        &self,
        peer: &Peer,
        family: Family,
        near: Near<'_>,
    ) -> Option<Result<Claim, Box<Refusal>>> {
        if matches!(self.backend, Backend::Wireguard(_) | Backend::Udp | Backend::Alloc) {
            return None;
        }
        let subnet = peer.subnet(family)?;
        self.networks.of_family(family)?;
        let checked = self.check_subnet(subnet).and_then(|()| self.check_public(peer, family, subnet));
        let path = checked.and_then(|public| match &self.backend {
            Backend::Vxlan(options) => {
                let (theirs, own) = (*of(&peer.mac, family), *of(&self.mac, family));
                vxlan::path(options, theirs, own, public, near)
            }
            Backend::HostGw => host_gw::path(self.underlay.ifindex, public, near),
            Backend::Ipip { direct_routing } => ipip::path(*direct_routing, self.tunnel, public, near),
            Backend::Wireguard(_) | Backend::Udp | Backend::Alloc => Err(Reason::Unsupported),
        });
        let refuse = |reason| Box::new(Refusal::new(Subject::Block(subnet), None, reason));
        Some(path.map(|path| Claim { subnet, path }).map_err(refuse))
    }

    /// Every client that can write to the store chooses the content of leases, so a lease must not claim our
    /// own subnet or cut us off from the peers.
    pub(crate) fn check_subnet(&self, subnet: IpNet) -> Result<(), Reason> {
        let family = Family::of_net(&subnet);
        let network = self.networks.of_family(family).ok_or(Reason::WrongFamily)?;
        if subnet.prefix_len() < network.prefix_len() || !network.contains(&subnet.addr()) {
            return Err(Reason::OutsideNetwork(network));
        }
        let own = *of(&self.own, family);
        if own.is_some_and(|own| own.contains(&subnet) || subnet.contains(&own)) {
            return Err(Reason::Ours);
        }
        match self.underlay.address(family).filter(|local| subnet.contains(local)) {
            Some(local) => Err(Reason::Covers(local)),
            None => Ok(()),
        }
    }

    /// The address at which a peer is reached in a family. It must not be missing, our own, or
    /// behind the tunnel itself.
    pub(crate) fn check_public(&self, peer: &Peer, family: Family, subnet: IpNet) -> Result<IpAddr, Reason> {
        let public = peer.public(family).ok_or(Reason::NodeUnreachable)?;
        if self.underlay.address(family) == Some(public) {
            return Err(Reason::Ours);
        }
        if public.is_multicast() || public.is_loopback() || public == IpAddr::from([255; 4]) {
            return Err(Reason::NotUnicast);
        }
        if subnet.contains(&public) { Err(Reason::Covers(public)) } else { Ok(public) }
    }
}
