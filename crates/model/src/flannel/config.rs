//! The network's configuration: `<prefix>/config`, or the file of `net-config-path` (flannel.md section 2). Decoding is Go's; validation is that of the
//! etcd manager, which Kubernetes' manager leaves out.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde_json::{Map, Value};

use super::go_json::{Members, same_name, text_of};
use crate::DecodeError;

const WHAT: &str = "network config";
/// The backend if none is named.
const DEFAULT_BACKEND: &str = "udp";

/// The configuration. As decoded, missing values are 0; [`NetworkConfig::validated`] fills in the
/// defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    /// Whether nodes get IPv4 subnets.
    pub enable_ipv4: bool,
    /// Whether nodes get IPv6 subnets.
    pub enable_ipv6: bool,
    /// Whether flannel would use nftables.
    pub enable_nftables: bool,
    /// The network from which IPv4 subnets are allocated.
    pub network: Option<Ipv4Net>,
    /// Their length.
    pub subnet_len: u8,
    /// The first subnet.
    pub subnet_min: Ipv4Addr,
    /// The last subnet.
    pub subnet_max: Ipv4Addr,
    /// The network from which IPv6 subnets are allocated.
    pub ipv6_network: Option<Ipv6Net>,
    /// Their length.
    pub ipv6_subnet_len: u8,
    /// The first subnet.
    pub ipv6_subnet_min: Ipv6Addr,
    /// The last subnet.
    pub ipv6_subnet_max: Ipv6Addr,
    /// The backend.
    pub backend: Backend,
}

/// The backend's part.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// In lower case; `udp` if there is no such part, empty if it names none, which no daemon
    /// accepts.
    pub kind: String,
    /// All its members, `Type` included.
    pub options: Map<String, Value>,
}

/// The configuration cannot be used. A daemon waits for a better one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It can be decoded, but it cannot work.
    #[error("{WHAT} at {at}: {problem}")]
    Invalid {
        /// The member.
        at: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// One family's addresses as numbers, so that one set of rules serves both.
struct Range {
    names: [&'static str; 4],
    bits: u8,
    base: u128,
    prefix_len: u8,
    /// Longest network that still has room for four subnets of two addresses.
    network_len_max: u8,
    /// Longest subnet.
    len_max: u8,
    /// Up to this length of network nodes get subnets of `usual_len`; longer ones are cut into four.
    roomy_len: u8,
    usual_len: u8,
}

// === impl NetworkConfig ===

impl NetworkConfig {
    /// Decodes. Host bits of the networks are masked off.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let members = Members::parse(WHAT, &text_of(bytes))?;
        let length = |name| -> Result<u8, DecodeError> {
            // Any value above the address length is as wrong as 255.
            Ok(u8::try_from(members.unsigned(name)?.unwrap_or(0)).unwrap_or(u8::MAX))
        };
        let v4 = |name| Ok::<_, DecodeError>(members.text(name)?.unwrap_or(Ipv4Addr::UNSPECIFIED));
        let v6 = |name| Ok::<_, DecodeError>(members.text(name)?.unwrap_or(Ipv6Addr::UNSPECIFIED));
        Ok(Self {
            enable_ipv4: members.bool("EnableIPv4")?.unwrap_or(true),
            enable_ipv6: members.bool("EnableIPv6")?.unwrap_or(false),
            enable_nftables: members.bool("EnableNFTables")?.unwrap_or(false),
            network: members.text::<Ipv4Net>("Network")?.map(|net| net.trunc()),
            subnet_len: length("SubnetLen")?,
            subnet_min: v4("SubnetMin")?,
            subnet_max: v4("SubnetMax")?,
            ipv6_network: members.text::<Ipv6Net>("IPv6Network")?.map(|net| net.trunc()),
            ipv6_subnet_len: length("IPv6SubnetLen")?,
            ipv6_subnet_min: v6("IPv6SubnetMin")?,
            ipv6_subnet_max: v6("IPv6SubnetMax")?,
            backend: Backend::parse(members.last("Backend"))?,
        })
    }

    /// Fills in the defaults and checks each enabled family. The daemon itself refuses a
    /// configuration without a family or with an unknown backend, because it ends then instead of
    /// waiting.
    pub fn validated(mut self) -> Result<Self, ConfigError> {
        if self.enable_ipv4 {
            let network =
                self.network.filter(|net| net.prefix_len() > 0 || net.addr() != Ipv4Addr::UNSPECIFIED);
            let network = network.ok_or_else(|| invalid("Network", "it is missing or everything"))?;
            let (min, max) = (u128::from(self.subnet_min.to_bits()), u128::from(self.subnet_max.to_bits()));
            let (len, min, max) = Range::v4(network).checked(self.subnet_len, min, max)?;
            let address = |number: u128| Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX));
            (self.subnet_len, self.subnet_min, self.subnet_max) = (len, address(min), address(max));
        }
        if self.enable_ipv6 {
            let network =
                self.ipv6_network.filter(|net| net.prefix_len() > 0 || !net.addr().is_unspecified());
            let network = network.ok_or_else(|| invalid("IPv6Network", "it is missing or everything"))?;
            let (min, max) = (self.ipv6_subnet_min.to_bits(), self.ipv6_subnet_max.to_bits());
            let (len, min, max) = Range::v6(network).checked(self.ipv6_subnet_len, min, max)?;
            self.ipv6_subnet_len = len;
            (self.ipv6_subnet_min, self.ipv6_subnet_max) =
                (Ipv6Addr::from_bits(min), Ipv6Addr::from_bits(max));
        }
        Ok(self)
    }

    /// The IPv4 network, where IPv4 is on.
    pub fn v4(&self) -> Option<Ipv4Net> {
        self.network.filter(|_| self.enable_ipv4)
    }

    /// The IPv6 network, where IPv6 is on.
    pub fn v6(&self) -> Option<Ipv6Net> {
        self.ipv6_network.filter(|_| self.enable_ipv6)
    }
}

fn invalid(at: &'static str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { at, problem: problem.into() }
}

// === impl Range ===

impl Range {
    fn v4(network: Ipv4Net) -> Self {
        Self {
            names: ["Network", "SubnetLen", "SubnetMin", "SubnetMax"],
            bits: 32,
            base: u128::from(network.network().to_bits()),
            prefix_len: network.prefix_len(),
            network_len_max: 28,
            len_max: 30,
            roomy_len: 22,
            usual_len: 24,
        }
    }

    fn v6(network: Ipv6Net) -> Self {
        Self {
            names: ["IPv6Network", "IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax"],
            bits: 128,
            base: network.network().to_bits(),
            prefix_len: network.prefix_len(),
            network_len_max: 124,
            len_max: 126,
            roomy_len: 62,
            usual_len: 64,
        }
    }

    /// Length, first and last subnet; 0 stands for a missing value.
    fn checked(&self, len: u8, min: u128, max: u128) -> Result<(u8, u128, u128), ConfigError> {
        let len = self.length(len)?;
        let size = 1u128 << (self.bits - len);
        // The first subnet is left out: its base is the network's own address.
        let min = if min == 0 { self.base + size } else { min };
        let last = self.base | (self.host_bits() & !(size - 1));
        let max = if max == 0 { last } else { max };
        for (name, address) in [(self.names[2], min), (self.names[3], max)] {
            if address & !self.host_bits() != self.base {
                return Err(invalid(name, format!("it is not within {}", self.names[0])));
            }
            if address & (size - 1) != 0 {
                return Err(invalid(name, format!("it is not on a boundary of /{len}")));
            }
        }
        Ok((len, min, max))
    }

    fn length(&self, len: u8) -> Result<u8, ConfigError> {
        let [network, subnet_len, ..] = self.names;
        match len {
            0 if self.prefix_len > self.network_len_max => {
                let problem = format!("/{} is too small: at most /{}", self.prefix_len, self.network_len_max);
                Err(invalid(network, problem))
            }
            0 if self.prefix_len <= self.roomy_len => Ok(self.usual_len),
            0 => Ok(self.prefix_len + 2),
            _ if len > self.len_max => Err(invalid(subnet_len, format!("{len} is above {}", self.len_max))),
            _ if len < self.prefix_len + 2 => {
                let problem = format!("/{} has no room for four subnets of /{len}", self.prefix_len);
                Err(invalid(subnet_len, problem))
            }
            _ => Ok(len),
        }
    }

    fn host_bits(&self) -> u128 {
        // Not one shift: a /0 network would shift by all the bits.
        let all = u128::MAX >> (128 - u32::from(self.bits));
        all.checked_shr(u32::from(self.prefix_len)).unwrap_or(0)
    }
}

// === impl Backend ===

impl Backend {
    fn parse(raw: Option<&str>) -> Result<Self, DecodeError> {
        let Some(raw) = raw else { return Ok(Self { kind: DEFAULT_BACKEND.into(), options: Map::new() }) };
        let members = Members::parse("network config's Backend", raw)?;
        let kind = members.string("Type")?.unwrap_or_default().to_lowercase();
        Ok(Self { kind, options: members.values()? })
    }

    /// The option of that name in any case; none when it is absent or null.
    pub fn option(&self, name: &str) -> Option<&Value> {
        let named = self.options.iter().rev().filter(|(known, _)| same_name(known, name));
        named.map(|(_, value)| value).find(|value| !value.is_null())
    }

    /// A whole number that is not negative.
    pub fn u32(&self, name: &str) -> Result<Option<u32>, ConfigError> {
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        self.typed(name, "a whole number from 0 to 4294967295", number)
    }

    /// True or false.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// Text.
    pub fn str(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        self.typed(name, "a string", Value::as_str)
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.option(name) else { return Ok(None) };
        let error = || DecodeError {
            what: "network config's Backend",
            at: name.to_owned(),
            problem: format!(
                "{wanted} is wanted, not {}",
                value.to_string().chars().take(60).collect::<String>()
            ),
        };
        read(value).map(Some).ok_or_else(|| error().into())
    }
}

#[cfg(test)]
mod tests;
