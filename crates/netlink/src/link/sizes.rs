//! How large packets may be inside the kernel: above 64 KiB this is BIG TCP (IPv6 since Linux 5.19, IPv4 since 6.3).

use super::attr_option;
use crate::kernel::*;
use crate::wire::{Attribute, MessageBuilder};

/// The largest packets of a link, in bytes, before its driver segments them (GSO) and after received
/// ones are joined (GRO). Those of IPv4 count for IPv4, the others for everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct PacketSizes {
    /// `gso_max_size`.
    pub gso: u32,
    /// `gro_max_size`.
    pub gro: u32,
    /// `gso_ipv4_max_size`.
    pub gso_ipv4: u32,
    /// `gro_ipv4_max_size`.
    pub gro_ipv4: u32,
}

// === impl PacketSizes ===

impl PacketSizes {
    /// Those of every link at first.
    pub const LEGACY: Self = Self::all(LEGACY_BYTES);

    /// The same size for everything.
    pub const fn all(bytes: u32) -> Self {
        Self { gso: bytes, gro: bytes, gso_ipv4: bytes, gro_ipv4: bytes }
    }

    /// Whether some packets may be larger than 64 KiB.
    pub fn is_big(&self) -> bool {
        let Self { gso, gro, gso_ipv4, gro_ipv4 } = *self;
        [gso, gro, gso_ipv4, gro_ipv4].iter().any(|bytes| *bytes > LEGACY_BYTES)
    }

    /// The sizes with each one changed.
    pub fn map(self, change: impl Fn(u32) -> u32) -> Self {
        let Self { gso, gro, gso_ipv4, gro_ipv4 } = self;
        Self { gso: change(gso), gro: change(gro), gso_ipv4: change(gso_ipv4), gro_ipv4: change(gro_ipv4) }
    }

    /// Each size of both, as `choose` takes it.
    pub fn zip(self, other: Self, choose: impl Fn(u32, u32) -> u32) -> Self {
        Self {
            gso: choose(self.gso, other.gso),
            gro: choose(self.gro, other.gro),
            gso_ipv4: choose(self.gso_ipv4, other.gso_ipv4),
            gro_ipv4: choose(self.gro_ipv4, other.gro_ipv4),
        }
    }

    /// The kernel takes the attributes in the order of this function: a size of up to 64 KiB for everything
    /// is one for IPv4, too, until IPv4 has its own.
    pub(super) fn encode(sizes: Option<Self>, message: &mut MessageBuilder<'_>) {
        attr_option(message, IFLA_GSO_MAX_SIZE, sizes.map(|it| it.gso));
        attr_option(message, IFLA_GRO_MAX_SIZE, sizes.map(|it| it.gro));
        attr_option(message, IFLA_GSO_IPV4_MAX_SIZE, sizes.map(|it| it.gso_ipv4));
        attr_option(message, IFLA_GRO_IPV4_MAX_SIZE, sizes.map(|it| it.gro_ipv4));
    }

    /// Takes an attribute of a link, if it is one of these.
    pub(super) fn take(&mut self, attribute: &Attribute<'_>) {
        let field = match attribute.kind {
            IFLA_GSO_MAX_SIZE => &mut self.gso,
            IFLA_GRO_MAX_SIZE => &mut self.gro,
            IFLA_GSO_IPV4_MAX_SIZE => &mut self.gso_ipv4,
            IFLA_GRO_IPV4_MAX_SIZE => &mut self.gro_ipv4,
            _ => return,
        };
        *field = attribute.u32().unwrap_or(0);
    }
}

/// `GSO_LEGACY_MAX_SIZE` of the kernel.
const LEGACY_BYTES: u32 = 65_536;
