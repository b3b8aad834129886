//! Members of a network configuration that only the `russet` plugin reads.

use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac};
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use serde::Deserialize;

use crate::requested;

/// As decoded from JSON. Unknown members are ignored: runtimes and operators add their own.
#[derive(Debug, Default, Deserialize)]
struct Raw {
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    ipv4_pools: Option<Vec<String>>,
    #[serde(default)]
    ipv6_pools: Option<Vec<String>>,
}

/// Settings of one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// MTU of pods, in bytes; by default the one that the node computed.
    pub mtu_bytes: Option<u32>,
    /// Pools for IPv4; by default every pool that selects this node.
    pub ipv4_pools: Option<Vec<IpNet>>,
    /// Pools for IPv6.
    pub ipv6_pools: Option<Vec<IpNet>>,
    /// The addresses that the pod must get, at most one of each family; empty means any.
    pub requested: Vec<IpAddr>,
    /// The MAC that the pod must get; by default one that is derived from its container.
    pub mac: Option<Mac>,
}

/// IPv6 needs at least this MTU (RFC 8200 section 5), and every pod may have IPv6.
const MTU_MIN_BYTES: u32 = 1280;
/// The kernel's limit for veth.
const MTU_MAX_BYTES: u32 = 65535;

// === impl Settings ===

impl Settings {
    /// Reads and validates the configuration.
    pub fn read(request: &Request) -> Result<Self, CniError> {
        if let Some(kind) = request.config.ipam_kind().filter(|kind| *kind != "russet") {
            let details = "leave `ipam` out: this plugin allocates addresses itself";
            return Err(CniError::unsupported_field(
                format!("ipam.type: {kind:?} is not supported"),
                details,
            ));
        }
        let raw: Raw = request.config.read_settings()?;
        // 0 means "computed", as in Calico's configurations.
        let mtu_bytes = raw.mtu.filter(|mtu| *mtu != 0);
        if let Some(mtu) = mtu_bytes.filter(|mtu| !(MTU_MIN_BYTES..=MTU_MAX_BYTES).contains(mtu)) {
            let details =
                format!("{MTU_MIN_BYTES} to {MTU_MAX_BYTES} is possible; 0 or nothing means computed");
            return Err(CniError::invalid_config(format!("mtu: {mtu} cannot be a pod's MTU"), details));
        }
        Ok(Self {
            mtu_bytes,
            ipv4_pools: pools("ipv4_pools", Family::V4, raw.ipv4_pools)?,
            ipv6_pools: pools("ipv6_pools", Family::V6, raw.ipv6_pools)?,
            requested: requested_addresses(request)?,
            mac: requested_mac(request)?,
        })
    }

    /// The pools that the network restricts a family to.
    pub fn pools(&self, family: Family) -> Option<&[IpNet]> {
        match family {
            Family::V4 => self.ipv4_pools.as_deref(),
            Family::V6 => self.ipv6_pools.as_deref(),
        }
    }
}

/// A pod has one address of a family; a second one would be unused.
fn requested_addresses(request: &Request) -> Result<Vec<IpAddr>, CniError> {
    let requested = requested::addresses(request)?;
    for family in Family::BOTH {
        let of_family: Vec<&IpAddr> = requested.iter().filter(|it| Family::of(**it) == family).collect();
        if of_family.len() > 1 {
            let msg = format!("{} {family} addresses are requested for one interface", of_family.len());
            let details = format!("{of_family:?}: request one address of each family at most");
            return Err(CniError::invalid_config(msg, details));
        }
    }
    Ok(requested)
}

/// Both ends of a pod's interface need different MACs.
fn requested_mac(request: &Request) -> Result<Option<Mac>, CniError> {
    let mac = requested::mac(request)?;
    if mac == Some(Mac::GATEWAY) {
        let msg =
            format!("MAC {} cannot be used: it is the node's end of every pod's interface", Mac::GATEWAY);
        return Err(CniError::environment(msg, "request another one, or none"));
    }
    Ok(mac)
}

fn pools(key: &str, family: Family, texts: Option<Vec<String>>) -> Result<Option<Vec<IpNet>>, CniError> {
    let Some(texts) = texts.filter(|texts| !texts.is_empty()) else { return Ok(None) };
    let parse = |text: &String| {
        let net =
            text.parse::<IpNet>().ok().filter(|net| Family::of_net(net) == family && net.trunc() == *net);
        let bad = || {
            let details = format!("an {family} prefix without host bits is wanted");
            CniError::invalid_config(format!("{key}: {text:?} is no pool"), details)
        };
        net.ok_or_else(bad)
    };
    texts.iter().map(parse).collect::<Result<_, _>>().map(Some)
}
