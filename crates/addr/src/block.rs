//! Address blocks: a prefix, its host addresses by ordinal, and the blocks of a pool.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A masked prefix of at most 2^16 addresses: Calico's unit of allocation (calico-ipam.md section 1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockCidr(IpNet);

/// A prefix that cannot be a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The text is no prefix.
    #[error("invalid block {0:?}: not an address prefix")]
    Syntax(String),
    /// Host bits are set.
    #[error("invalid block {0}: bits are set behind the prefix")]
    HostBits(IpNet),
    /// More addresses than a block may have.
    #[error("invalid block {0}: more than 65536 addresses")]
    TooLarge(IpNet),
}

/// Limit of the bits behind a block's prefix; peers stop at 12.
const MAX_HOST_BITS: u8 = 16;

/// The prefix that holds `address` alone: /32 or /128.
pub fn host_net(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

// === impl Family ===

impl Family {
    /// Both, IPv4 first.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub const fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// The family of a prefix.
    pub const fn of_net(net: &IpNet) -> Family {
        match net {
            IpNet::V4(_) => Family::V4,
            IpNet::V6(_) => Family::V6,
        }
    }

    /// Bits in an address: 32 or 128.
    pub const fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// The prefix of all addresses: `0.0.0.0/0` or `::/0`.
    pub fn default_net(self) -> IpNet {
        match self {
            Family::V4 => Ipv4Net::default().into(),
            Family::V6 => Ipv6Net::default().into(),
        }
    }

    /// The segment that Calico's keys use: `ipv4` or `ipv6`.
    pub const fn segment(self) -> &'static str {
        match self {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

// === impl BlockCidr ===

impl BlockCidr {
    /// Accepts a prefix without host bits.
    pub fn new(net: IpNet) -> Result<Self, BlockError> {
        if net.trunc() != net {
            return Err(BlockError::HostBits(net));
        }
        if net.max_prefix_len() - net.prefix_len() > MAX_HOST_BITS {
            return Err(BlockError::TooLarge(net));
        }
        Ok(Self(net))
    }

    /// The block of length `prefix_len` that holds `address`.
    pub fn containing(address: IpAddr, prefix_len: u8) -> Result<Self, BlockError> {
        let syntax = |_| BlockError::Syntax(format!("{address}/{prefix_len}"));
        Self::new(IpNet::new(address, prefix_len).map_err(syntax)?.trunc())
    }

    /// The prefix.
    pub const fn net(self) -> IpNet {
        self.0
    }

    /// IPv4 or IPv6.
    pub const fn family(self) -> Family {
        Family::of_net(&self.0)
    }

    /// How many addresses the block has.
    pub fn size(self) -> usize {
        1 << (self.0.max_prefix_len() - self.0.prefix_len())
    }

    /// The address at `ordinal`, counted from the block's base; none beyond its end.
    pub fn address(self, ordinal: usize) -> Option<IpAddr> {
        if ordinal >= self.size() {
            return None;
        }
        Some(match self.0 {
            IpNet::V4(net) => {
                IpAddr::V4(Ipv4Addr::from(u32::from(net.network()) + u32::try_from(ordinal).ok()?))
            }
            IpNet::V6(net) => IpAddr::V6(Ipv6Addr::from(u128::from(net.network()) + ordinal as u128)),
        })
    }

    /// The position of `address` in the block.
    pub fn ordinal(self, address: IpAddr) -> Option<usize> {
        match (self.0, address) {
            (IpNet::V4(net), IpAddr::V4(ip)) if net.contains(&ip) => {
                usize::try_from(u32::from(ip) - u32::from(net.network())).ok()
            }
            (IpNet::V6(net), IpAddr::V6(ip)) if net.contains(&ip) => {
                usize::try_from(u128::from(ip) - u128::from(net.network())).ok()
            }
            _ => None,
        }
    }

    /// Whether the block and `other` share an address.
    pub fn overlaps(self, other: IpNet) -> bool {
        self.0.contains(&other) || other.contains(&self.0)
    }

    /// The text of datastore keys: the canonical prefix with `/` replaced by `-` (calico-ipam.md section 1.2).
    pub fn key_text(self) -> String {
        self.0.to_string().replace('/', "-")
    }

    /// Decodes [`key_text`](Self::key_text); a text that is not canonical is refused.
    pub fn from_key_text(text: &str) -> Result<Self, BlockError> {
        let syntax = || BlockError::Syntax(text.chars().take(64).collect());
        let (address, len) = text.rsplit_once('-').ok_or_else(syntax)?;
        let block: Self = format!("{address}/{len}").parse()?;
        if block.key_text() == text { Ok(block) } else { Err(syntax()) }
    }

    /// How many blocks of `prefix_len` fit into `pool`; `u64::MAX` when more than that.
    pub fn count_in(pool: IpNet, prefix_len: u8) -> u64 {
        match prefix_len.checked_sub(pool.prefix_len()) {
            Some(bits) if bits < 64 => 1 << bits,
            Some(_) => u64::MAX,
            None => 0,
        }
    }

    /// The `index`-th block of `prefix_len` in `pool`.
    pub fn nth_in(pool: IpNet, prefix_len: u8, index: u64) -> Option<Self> {
        if index >= Self::count_in(pool, prefix_len) {
            return None;
        }
        let net = match pool {
            IpNet::V4(net) => {
                let base = u64::from(u32::from(net.network())) + (index << (32 - u32::from(prefix_len)));
                IpNet::V4(Ipv4Net::new(Ipv4Addr::from(u32::try_from(base).ok()?), prefix_len).ok()?)
            }
            IpNet::V6(net) => {
                let offset = u128::from(index).checked_shl(128 - u32::from(prefix_len)).unwrap_or(0);
                let base = u128::from(net.network()).checked_add(offset)?;
                IpNet::V6(Ipv6Net::new(Ipv6Addr::from(base), prefix_len).ok()?)
            }
        };
        Self::new(net).ok()
    }
}

impl fmt::Display for BlockCidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for BlockCidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for BlockCidr {
    type Err = BlockError;

    fn from_str(text: &str) -> Result<Self, BlockError> {
        let net = text.parse().map_err(|_| BlockError::Syntax(text.chars().take(64).collect()))?;
        Self::new(net)
    }
}

impl serde::Serialize for BlockCidr {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for BlockCidr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> BlockCidr {
        text.parse().unwrap()
    }

    #[test]
    fn ordinals_and_addresses_are_inverse() {
        for text in ["10.1.0.16/29", "fd80:24e2:f998:72d6::/122", "10.9.0.0/32", "255.255.255.192/26"] {
            let block = block(text);
            for ordinal in 0..block.size() {
                assert_eq!(block.ordinal(block.address(ordinal).unwrap()), Some(ordinal), "{text}");
            }
            assert_eq!(block.address(block.size()), None);
        }
        assert_eq!(block("10.1.0.16/29").ordinal("10.1.0.24".parse().unwrap()), None);
    }

    #[test]
    fn the_default_net_of_a_family_holds_all_of_its_addresses() {
        let nets = Family::BOTH.map(|family| family.default_net().to_string());
        assert_eq!(nets, ["0.0.0.0/0", "::/0"]);
    }

    #[test]
    fn keys_are_canonical() {
        // calico-ipam.md section 1.1, K1
        assert_eq!(block("fd80:24e2:f998:72d6:0:0:0:0/122").key_text(), "fd80:24e2:f998:72d6::-122");
        assert!(BlockCidr::from_key_text("fd80:24e2:f998:72d6:0::-122").is_err());
        assert_eq!(BlockCidr::from_key_text("10.1.0.0-26").unwrap(), block("10.1.0.0/26"));
    }

    #[test]
    fn host_bits_and_giants_are_refused() {
        assert!("10.1.0.17/29".parse::<BlockCidr>().is_err());
        assert!("10.0.0.0/8".parse::<BlockCidr>().is_err());
        assert!("10.1.0.0/33".parse::<BlockCidr>().is_err());
    }

    #[test]
    fn the_blocks_of_a_pool_follow_each_other() {
        let pool = "10.1.0.0/24".parse().unwrap();
        assert_eq!(BlockCidr::count_in(pool, 29), 32);
        assert_eq!(BlockCidr::nth_in(pool, 29, 31), Some(block("10.1.0.248/29")));
        assert_eq!(BlockCidr::nth_in(pool, 29, 32), None);
        let pool = "fd72:7573:7365::/48".parse().unwrap();
        assert_eq!(BlockCidr::nth_in(pool, 122, 1), Some(block("fd72:7573:7365::40/122")));
        assert_eq!(BlockCidr::count_in("::/0".parse().unwrap(), 122), u64::MAX);
    }
}
