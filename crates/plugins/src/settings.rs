//! The `russet` plugin's own members of a network configuration.

use russet_addr::{Family, IpNet};
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use serde::Deserialize;

/// As they stand in the file. Unknown members are ignored: runtimes and operators add their own.
#[derive(Debug, Default, Deserialize)]
struct Raw {
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    ipv4_pools: Option<Vec<String>>,
    #[serde(default)]
    ipv6_pools: Option<Vec<String>>,
}

/// What a network asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// MTU of pods; by default what the node computed.
    pub mtu_bytes: Option<u32>,
    /// Pools for IPv4; by default every pool that selects this node.
    pub ipv4_pools: Option<Vec<IpNet>>,
    /// Pools for IPv6.
    pub ipv6_pools: Option<Vec<IpNet>>,
}

/// Below this IPv6 does not work (RFC 8200 section 5), and every pod may have IPv6.
const MTU_MIN_BYTES: u32 = 1280;
/// The kernel's limit of veth.
const MTU_MAX_BYTES: u32 = 65535;

// === impl Settings ===

impl Settings {
    /// Reads and checks the configuration.
    pub fn read(request: &Request) -> Result<Self, CniError> {
        if let Some(kind) = request.config.ipam_kind().filter(|kind| *kind != "russet") {
            let details = "leave `ipam` out: this plugin allocates addresses itself";
            return Err(CniError::unsupported_field(
                format!("ipam.type: {kind:?} is not supported"),
                details,
            ));
        }
        let raw: Raw = request.config.read_settings()?;
        // 0 is how Calico's configurations spell "computed".
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
        })
    }
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
