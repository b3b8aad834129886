//! The v1 pool (calico-ipam.md section 1.9): `/calico/v1/ipam/v4/pool/10.1.0.0-24`.

use russet_addr::{Family, IpNet};

use crate::json::{self, DecodeError, Extra, Fields, Object};
use crate::{EncapMode, IpPool, IpPoolSpec};

/// The device of IPIP, whose name in `ipip` means that IPIP is used.
const TUNNEL: &str = "tunl0";
/// The `ipip_mode` of a tunnel that is used between subnets only; empty is always.
const CROSS_SUBNET: &str = "cross-subnet";

/// A pool. Its blocks are /26 or /122; every node and every pod may have its addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Its addresses.
    pub cidr: IpNet,
    /// The IPIP device, `tunl0`, or empty for none.
    pub ipip: String,
    /// `cross-subnet`, or empty or `always` for always; matters only if there is a device.
    pub ipip_mode: String,
    /// Whether traffic that leaves the pools is masqueraded.
    pub masquerade: bool,
    /// Whether the allocator may use it.
    pub ipam: bool,
    /// Whether it exists only to make its addresses known.
    pub disabled: bool,
    /// Members that we do not know.
    pub extra: Extra,
}

// === impl Pool ===

impl Pool {
    /// A pool that the allocator uses, without tunnel or masquerade.
    pub fn new(cidr: IpNet) -> Self {
        Self {
            cidr,
            ipip: String::new(),
            ipip_mode: String::new(),
            masquerade: false,
            ipam: true,
            disabled: false,
            extra: Extra::new(),
        }
    }

    /// Decodes a pool. Older releases omitted false values; `ipam` is true by default.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::parse("v1 pool", bytes)?;
        let Some(cidr) = fields.text::<IpNet>("cidr")? else {
            return Err(fields.error("cidr", "it is missing"));
        };
        if cidr.trunc() != cidr {
            return Err(fields.error("cidr", format!("{cidr} has bits set behind the prefix")));
        }
        Ok(Self {
            cidr,
            ipip: fields.string("ipip")?.unwrap_or_default(),
            ipip_mode: fields.string("ipip_mode")?.unwrap_or_default(),
            masquerade: fields.boolean("masquerade")?.unwrap_or(false),
            ipam: fields.boolean("ipam")?.unwrap_or(true),
            disabled: fields.boolean("disabled")?.unwrap_or(false),
            extra: fields.rest(),
        })
    }

    /// Writes the pool.
    pub fn encode(&self) -> Vec<u8> {
        let value = Object::default()
            .put("cidr", self.cidr.to_string())
            .put("ipip", self.ipip.as_str())
            .put("ipip_mode", self.ipip_mode.as_str())
            .put("masquerade", self.masquerade)
            .put("ipam", self.ipam)
            .put("disabled", self.disabled)
            .finish(&self.extra);
        json::encode(&value)
    }

    /// The name of the pool in v3, where a network is not a valid name: `10-1-0-0-24`, `fd80---64`.
    pub fn name_in_v3(&self) -> String {
        self.cidr.to_string().replace(['.', ':', '/'], "-")
    }

    /// The same pool in v3, with the fixed properties of v1 made explicit: the size of blocks, and
    /// that every node may have them.
    pub fn to_v3(&self) -> IpPool {
        let spec = IpPoolSpec {
            ipip_mode: match (self.ipip.as_str(), self.ipip_mode.as_str()) {
                (TUNNEL, CROSS_SUBNET) => EncapMode::CrossSubnet,
                (TUNNEL, _) => EncapMode::Always,
                _ => EncapMode::Never,
            },
            nat_outgoing: self.masquerade,
            disabled: self.disabled || !self.ipam,
            block_size: Some(match Family::of_net(&self.cidr) {
                Family::V4 => 26,
                Family::V6 => 122,
            }),
            node_selector: Some("all()".to_owned()),
            ..IpPoolSpec::new(self.cidr)
        };
        IpPool::new(self.name_in_v3(), spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"cidr":"10.1.0.0/24","ipip":"tunl0","ipip_mode":"cross-subnet","masquerade":true,"ipam":true,"disabled":false}"#;

    #[test]
    fn a_pool_survives_a_round_trip_byte_for_byte() {
        assert_eq!(String::from_utf8(Pool::decode(TEXT.as_bytes()).unwrap().encode()).unwrap(), TEXT);
    }

    #[test]
    fn in_v3_it_says_what_v1_took_for_granted() {
        let pool = Pool::decode(TEXT.as_bytes()).unwrap().to_v3();
        assert_eq!(pool.metadata.name, "10-1-0-0-24");
        assert_eq!((pool.spec.ipip_mode, pool.spec.nat_outgoing), (EncapMode::CrossSubnet, true));
        assert_eq!((pool.spec.block_prefix_len(), pool.is_enabled()), (26, true));
        // What is written must be readable in its meaning.
        assert_eq!(IpPool::decode(&pool.encode()).unwrap(), pool);
        let v6 = Pool::new("fd80:24e2::/64".parse().unwrap()).to_v3();
        assert_eq!((v6.metadata.name.as_str(), v6.spec.block_prefix_len()), ("fd80-24e2---64", 122));
    }

    #[test]
    fn a_pool_that_the_allocator_must_not_use_is_disabled() {
        for (from, to) in
            [(r#""ipam":true"#, r#""ipam":false"#), (r#""disabled":false"#, r#""disabled":true"#)]
        {
            let pool = Pool::decode(TEXT.replace(from, to).as_bytes()).unwrap();
            assert!(!pool.to_v3().is_enabled(), "{to}");
        }
        let old = Pool::decode(br#"{"cidr":"10.1.0.0/24"}"#).unwrap();
        assert!(old.to_v3().is_enabled());
        assert_eq!(old.to_v3().spec.ipip_mode, EncapMode::Never);
    }
}
