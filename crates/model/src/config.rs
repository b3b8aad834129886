//! The allocator's settings (calico-ipam.md section 1.7).

use crate::json::{self, DecodeError, Extra, Fields, Object};

/// The settings of the whole cluster. `default()` applies if none are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamConfig {
    /// Nodes take addresses from their own blocks only.
    pub strict_affinity: bool,
    /// Nodes may claim new blocks. **Missing in a stored record means no**; only a missing record means yes.
    pub auto_allocate_blocks: bool,
    /// Limit of blocks of a family on one node; 0 is "not set".
    pub max_blocks_per_host: u64,
    /// KubeVirt's setting, kept for peers.
    pub kube_virt_persistence: Option<String>,
    /// Cooldown of released addresses in seconds (3.33). Kept for peers; see calico-ipam.md section 9,
    /// MUST NOT.
    pub ip_cooldown_seconds: u64,
    /// Members that we do not know.
    pub extra: Extra,
}

/// The limit if none is set: peers have used it since 3.19.
const BLOCKS_PER_HOST: u64 = 20;

// === impl IpamConfig ===

impl Default for IpamConfig {
    fn default() -> Self {
        Self {
            strict_affinity: false,
            auto_allocate_blocks: true,
            max_blocks_per_host: 0,
            kube_virt_persistence: None,
            ip_cooldown_seconds: 0,
            extra: Extra::new(),
        }
    }
}

impl IpamConfig {
    /// Reads stored settings.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::parse("IPAM config", bytes)?;
        Ok(Self {
            strict_affinity: fields.boolean("strict_affinity")?.unwrap_or(false),
            auto_allocate_blocks: fields.boolean("auto_allocate_blocks")?.unwrap_or(false),
            max_blocks_per_host: fields.unsigned("maxBlocksPerHost")?.unwrap_or(0),
            kube_virt_persistence: fields.string("kubeVirtVMAddressPersistence")?,
            ip_cooldown_seconds: fields.unsigned("ipCooldownSeconds")?.unwrap_or(0),
            extra: fields.rest(),
        })
    }

    /// Encodes the settings as Go does: false and 0 are omitted.
    pub fn encode(&self) -> Vec<u8> {
        let value = Object::default()
            .put_true("strict_affinity", self.strict_affinity)
            .put_true("auto_allocate_blocks", self.auto_allocate_blocks)
            .put_nonzero("maxBlocksPerHost", self.max_blocks_per_host)
            .put_some("kubeVirtVMAddressPersistence", self.kube_virt_persistence.clone())
            .put_nonzero("ipCooldownSeconds", self.ip_cooldown_seconds)
            .finish(&self.extra);
        json::encode(&value)
    }

    /// Limit of blocks of one family on one node if the request sets its own limit (0: it does
    /// not): the smaller one applies, and 20 if none is set.
    pub fn block_limit(&self, requested: u64) -> u64 {
        match (requested, self.max_blocks_per_host) {
            (0, 0) => BLOCKS_PER_HOST,
            (0, limit) | (limit, 0) => limit,
            (a, b) => a.min(b),
        }
    }

    /// Why these settings must not be stored, if so: the rules of SetIPAMConfig.
    pub fn refused(&self) -> Option<&'static str> {
        if !self.strict_affinity && !self.auto_allocate_blocks {
            return Some("strict_affinity and auto_allocate_blocks must not both be false");
        }
        if self.max_blocks_per_host > 0 && !self.strict_affinity {
            return Some("maxBlocksPerHost needs strict_affinity");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_means_auto_allocate_off() {
        // calico-ipam.md section 1.7, TV24
        assert!(IpamConfig::default().auto_allocate_blocks);
        let config = IpamConfig::decode(b"{}").unwrap();
        assert!(!config.auto_allocate_blocks && !config.strict_affinity);
        assert_eq!(config.encode(), b"{}");
    }

    #[test]
    fn settings_survive_a_round_trip_byte_for_byte() {
        for text in [
            r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":2}"#,
            r#"{"auto_allocate_blocks":true,"kubeVirtVMAddressPersistence":"Enabled"}"#,
            r#"{"auto_allocate_blocks":true,"ipCooldownSeconds":60,"new":{"b":1,"a":18446744073709551615}}"#,
        ] {
            assert_eq!(
                String::from_utf8(IpamConfig::decode(text.as_bytes()).unwrap().encode()).unwrap(),
                text
            );
        }
    }

    #[test]
    fn the_smaller_limit_holds_and_20_where_there_is_none() {
        // calico-ipam.md section 3.4 step 6
        let limit = |global, requested| {
            IpamConfig { max_blocks_per_host: global, ..IpamConfig::default() }.block_limit(requested)
        };
        assert_eq!([limit(0, 0), limit(5, 0), limit(0, 3), limit(5, 3), limit(2, 3)], [20, 5, 3, 3, 2]);
    }
}
