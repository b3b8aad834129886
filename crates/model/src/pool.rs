//! Pools of addresses (calico-ipam.md section 1.8, K7).

use russet_addr::{BlockCidr, Family, IpNet};
use serde_json::Value;

use crate::json::{DecodeError, Extra, Object};
use crate::resource::{Resource, Spec, SpecMembers};
use crate::{ResourceKind, Selector, SelectorError};

/// A pool with its envelope.
pub type IpPool = Resource<IpPoolSpec>;

/// The content of a pool's record.
#[derive(Debug, Clone, PartialEq)]
pub struct IpPoolSpec {
    /// Its addresses, without host bits.
    pub cidr: IpNet,
    /// When traffic is encapsulated in VXLAN.
    pub vxlan_mode: EncapMode,
    /// When traffic is encapsulated in IPIP.
    pub ipip_mode: EncapMode,
    /// Whether traffic that leaves the pools is masqueraded.
    pub nat_outgoing: bool,
    /// No new addresses are allocated from it.
    pub disabled: bool,
    /// Its routes are not advertised.
    pub disable_bgp_export: bool,
    /// Prefix length of its blocks; none means /26 or /122.
    pub block_size: Option<u8>,
    /// The nodes that may claim its blocks; none means all.
    pub node_selector: Option<String>,
    /// The namespaces whose pods get its addresses; none means all.
    pub namespace_selector: Option<String>,
    /// `Workload`, `Tunnel`, `LoadBalancer`; empty means the first two.
    pub allowed_uses: Vec<String>,
    /// Whether addresses are allocated without an explicit request.
    pub assignment_mode: AssignmentMode,
    /// Members that we do not know.
    pub extra: Extra,
}

/// When traffic is encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EncapMode {
    /// Never.
    #[default]
    Never,
    /// Always.
    Always,
    /// Between nodes of different subnets only.
    CrossSubnet,
}

/// The use of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressUse {
    /// A pod.
    Workload,
    /// A node's tunnel device.
    Tunnel,
    /// A service.
    LoadBalancer,
}

/// Whether a pool serves requests that do not name it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AssignmentMode {
    /// Not set, which means automatic.
    #[default]
    Unset,
    /// It serves them.
    Automatic,
    /// It serves only requests that name it.
    Manual,
    /// A mode of a later version; not automatic.
    Other(String),
}

// === impl IpPool ===

impl IpPool {
    /// Whether new addresses may be allocated from it: not disabled, not being deleted, not
    /// declared unallocatable.
    pub fn is_enabled(&self) -> bool {
        !self.spec.disabled
            && self.metadata.deletion_timestamp.is_none()
            && !self.has_condition("Allocatable", "False")
    }
}

// === impl IpPoolSpec ===

impl IpPoolSpec {
    /// A pool for all requests, without encapsulation or NAT.
    pub fn new(cidr: IpNet) -> Self {
        Self {
            cidr,
            vxlan_mode: EncapMode::Never,
            ipip_mode: EncapMode::Never,
            nat_outgoing: false,
            disabled: false,
            disable_bgp_export: false,
            block_size: None,
            node_selector: None,
            namespace_selector: None,
            allowed_uses: Vec::new(),
            assignment_mode: AssignmentMode::Unset,
            extra: Extra::new(),
        }
    }

    /// IPv4 or IPv6.
    pub const fn family(&self) -> Family {
        Family::of_net(&self.cidr)
    }

    /// Prefix length of its blocks.
    pub fn block_prefix_len(&self) -> u8 {
        self.block_size.unwrap_or(match self.family() {
            Family::V4 => 26,
            Family::V6 => 122,
        })
    }

    /// How many blocks it has.
    pub fn block_count(&self) -> u64 {
        BlockCidr::count_in(self.cidr, self.block_prefix_len())
    }

    /// Whether it may serve this use.
    pub fn allows(&self, wanted: AddressUse) -> bool {
        match self.allowed_uses.as_slice() {
            [] => matches!(wanted, AddressUse::Workload | AddressUse::Tunnel),
            uses => uses.iter().any(|allowed| allowed == wanted.as_str()),
        }
    }

    /// Whether it serves requests that do not name it.
    pub fn is_automatic(&self) -> bool {
        matches!(self.assignment_mode, AssignmentMode::Unset | AssignmentMode::Automatic)
    }

    /// The nodes that may claim its blocks.
    pub fn nodes(&self) -> Result<Selector, SelectorError> {
        Selector::parse(self.node_selector.as_deref().unwrap_or_default())
    }

    /// The namespaces whose pods get its addresses.
    pub fn namespaces(&self) -> Result<Selector, SelectorError> {
        Selector::parse(self.namespace_selector.as_deref().unwrap_or_default())
    }
}

impl Spec for IpPoolSpec {
    const KIND: ResourceKind = ResourceKind::IpPool;
    const WHAT: &'static str = "pool";

    fn from_members(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        let Some(cidr) = fields.text::<IpNet>("cidr")? else {
            return Err(fields.error("cidr", "it is missing"));
        };
        if cidr.trunc() != cidr {
            return Err(fields.error("cidr", format!("{cidr} has bits set behind the prefix")));
        }
        let mut spec = Self {
            vxlan_mode: fields.text("vxlanMode")?.unwrap_or_default(),
            ipip_mode: fields.text("ipipMode")?.unwrap_or_default(),
            nat_outgoing: fields.boolean("natOutgoing")?.unwrap_or(false),
            disabled: fields.boolean("disabled")?.unwrap_or(false),
            disable_bgp_export: fields.boolean("disableBGPExport")?.unwrap_or(false),
            node_selector: fields.string("nodeSelector")?,
            namespace_selector: fields.string("namespaceSelector")?,
            allowed_uses: fields.strings("allowedUses")?,
            assignment_mode: AssignmentMode::from_stored(fields.string("assignmentMode")?),
            ..Self::new(cidr)
        };
        spec.block_size = match fields.unsigned("blockSize")? {
            None | Some(0) => None,
            Some(len) => Some(block_size(cidr, len).ok_or_else(|| {
                fields.error("blockSize", format!("/{len} is no block of {cidr}: it must lie within the pool and have at most 65536 addresses"))
            })?),
        };
        spec.extra = fields.rest();
        Ok(spec)
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put("cidr", self.cidr.to_string())
            .put("vxlanMode", self.vxlan_mode.as_str())
            .put("ipipMode", self.ipip_mode.as_str())
            .put_true("natOutgoing", self.nat_outgoing)
            .put_true("disabled", self.disabled)
            .put_true("disableBGPExport", self.disable_bgp_export)
            .put_some("blockSize", self.block_size)
            .put_some("nodeSelector", self.node_selector.clone())
            .put_some("namespaceSelector", self.namespace_selector.clone())
            .put_list("allowedUses", &self.allowed_uses)
            .put_some("assignmentMode", self.assignment_mode.as_str())
            .finish(&self.extra)
    }
}

fn block_size(pool: IpNet, len: u64) -> Option<u8> {
    let len = u8::try_from(len).ok()?;
    let fits = len >= pool.prefix_len() && BlockCidr::containing(pool.network(), len).is_ok();
    fits.then_some(len)
}

// === impl EncapMode ===

impl EncapMode {
    /// The mode as it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "Never",
            Self::Always => "Always",
            Self::CrossSubnet => "CrossSubnet",
        }
    }
}

impl std::str::FromStr for EncapMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "Never" => Ok(Self::Never),
            "Always" => Ok(Self::Always),
            "CrossSubnet" => Ok(Self::CrossSubnet),
            _ => Err("Never, Always or CrossSubnet is wanted"),
        }
    }
}

// === impl AddressUse ===

impl AddressUse {
    /// The use as it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Workload => "Workload",
            Self::Tunnel => "Tunnel",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

// === impl AssignmentMode ===

impl AssignmentMode {
    fn from_stored(text: Option<String>) -> Self {
        match text.as_deref() {
            None | Some("") => Self::Unset,
            Some("Automatic") => Self::Automatic,
            Some("Manual") => Self::Manual,
            Some(other) => Self::Other(other.to_owned()),
        }
    }

    fn as_str(&self) -> Option<&str> {
        match self {
            Self::Unset => None,
            Self::Automatic => Some("Automatic"),
            Self::Manual => Some("Manual"),
            Self::Other(text) => Some(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str = r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"default-ipv4-ippool","uid":"6c1b7f0e-2c7e-4d36-9f0a-0f5a1f5b7f10","creationTimestamp":"2026-01-02T02:59:00Z"},"spec":{"cidr":"10.1.0.0/24","vxlanMode":"Never","ipipMode":"Never","natOutgoing":true,"blockSize":29,"nodeSelector":"all()","allowedUses":["Workload","Tunnel"],"assignmentMode":"Automatic"}}"#;

    #[test]
    fn the_pool_of_the_spec_survives_a_round_trip_byte_for_byte() {
        // calico-ipam.md section 1.8
        let pool = IpPool::decode(POOL.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(pool.encode()).unwrap(), POOL);
        assert_eq!((pool.spec.block_prefix_len(), pool.spec.block_count()), (29, 32));
        assert!(pool.is_enabled() && pool.spec.is_automatic() && pool.spec.allows(AddressUse::Tunnel));
    }

    #[test]
    fn unknown_members_survive_at_every_level() {
        // calico-ipam.md section 1.10
        let text = POOL.replace(r#""creationTimestamp""#, r#""creationTimestamp":"x","z":1,"q""#).replace(
            r#""assignmentMode":"Automatic"}"#,
            r#""assignmentMode":"Automatic","future":{"b":1,"a":2}},"status":{"conditions":[]},"more":7"#,
        );
        assert_eq!(String::from_utf8(IpPool::decode(text.as_bytes()).unwrap().encode()).unwrap(), text);
    }

    #[test]
    fn what_is_not_said_has_calicos_default() {
        let text =
            r#"{"kind":"IPPool","metadata":{"name":"p","resourceVersion":"7"},"spec":{"cidr":"fd80::/64"}}"#;
        let pool = IpPool::decode(text.as_bytes()).unwrap();
        assert_eq!(pool.spec.block_prefix_len(), 122);
        assert!(pool.spec.allows(AddressUse::Workload) && !pool.spec.allows(AddressUse::LoadBalancer));
        assert!(pool.spec.nodes().unwrap().matches(&Default::default()));
        assert!(!String::from_utf8(pool.encode()).unwrap().contains("resourceVersion"));
    }

    #[test]
    fn a_pool_on_its_way_out_gives_no_addresses() {
        // calico-ipam.md section 3.4 step 4
        for (from, to) in [
            (r#""natOutgoing":true"#, r#""disabled":true"#),
            (r#""uid""#, r#""deletionTimestamp":"2026-01-02T03:00:00Z","uid""#),
            (r#""kind""#, r#""status":{"conditions":[{"type":"Allocatable","status":"False"}]},"kind""#),
        ] {
            assert!(!IpPool::decode(POOL.replacen(from, to, 1).as_bytes()).unwrap().is_enabled(), "{to}");
        }
    }

    #[test]
    fn a_pool_that_cannot_be_is_refused() {
        let cases = [
            ("10.1.0.0/24", "10.1.0.1/24", "pool at spec.cidr"),
            ("\"blockSize\":29", "\"blockSize\":23", "pool at spec.blockSize"),
            ("\"blockSize\":29", "\"blockSize\":33", "pool at spec.blockSize"),
            ("\"blockSize\":29", "\"blockSize\":29.0", "pool at spec.blockSize"),
            ("\"vxlanMode\":\"Never\"", "\"vxlanMode\":\"Perhaps\"", "pool at spec.vxlanMode"),
            ("\"name\":\"default-ipv4-ippool\"", "\"name\":\"a/b\"", "pool at metadata.name"),
            ("IPPool", "Node", "pool at kind"),
        ];
        for (from, to, message) in cases {
            let error = IpPool::decode(POOL.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
