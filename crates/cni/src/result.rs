//! The result of a successful ADD: interfaces, addresses, routes, DNS.
//!
//! In memory there is one form, the newest; [`CniResult::cni_version`] says which of the three wire
//! forms the document had, or will have. `wire` decodes and encodes them, `convert` converts
//! between versions.

mod convert;
mod wire;

use std::net::IpAddr;

use russet_addr::IpNet;

use crate::{CniError, FieldError, UnsupportedVersion, Version};

/// The result of ADD, and the `prevResult` of everything after it (cni-runtime.md section 1.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniResult {
    /// The version whose shape the document has.
    pub cni_version: Version,
    /// Every interface of the chain; none from an IPAM plugin.
    pub interfaces: Vec<Interface>,
    /// Addresses, in the order in which the container should prefer them.
    pub ips: Vec<IpConfig>,
    /// Routes inside the container.
    pub routes: Vec<Route>,
    /// Only reported; Kubernetes' runtimes ignore it.
    pub dns: Dns,
}

/// One interface. Texts are unchanged, because results of other plugins are passed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the namespace where it lives.
    pub name: String,
    /// Its hardware address; empty when unknown (podman then refuses the result).
    pub mac: String,
    /// `CNI_NETNS` unchanged; empty for the host's side.
    pub sandbox: String,
    /// From 1.1.0.
    pub mtu: Option<u32>,
    /// A vhost-user socket; from 1.1.0, mostly empty.
    pub socket_path: String,
    /// A PCI device; from 1.1.0, mostly empty.
    pub pci_id: String,
}

/// One address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// With its host bits: 10.1.2.3/24.
    pub address: IpNet,
    /// The gateway of the address's network.
    pub gateway: Option<IpAddr>,
    /// Index into [`CniResult::interfaces`].
    pub interface: Option<u32>,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; none means on the link, or the gateway of the address, depending on the plugin.
    pub gw: Option<IpAddr>,
    /// From 1.1.0; 0 reads as none.
    pub mtu: Option<u32>,
    /// From 1.1.0; 0 reads as none.
    pub advmss: Option<u32>,
    /// From 1.1.0; 0 reads as none.
    pub priority: Option<u32>,
    /// From 1.1.0; table 0 is not the same as none.
    pub table: Option<u32>,
    /// From 1.1.0: 0 global, 253 link, 254 host.
    pub scope: Option<u32>,
}

/// Resolver settings, as reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Server addresses.
    pub nameservers: Vec<String>,
    /// The local domain; may be empty.
    pub domain: String,
    /// Search list.
    pub search: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// Why a result could not be decoded or converted.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// The bytes are not JSON.
    #[error("failed to unmarshal raw result: {0}")]
    Json(#[from] serde_json::Error),
    /// The document is JSON, but not an object.
    #[error("failed to unmarshal raw result: an object is wanted")]
    NotAnObject,
    /// The document has an unsupported version.
    #[error("unsupported CNI result version {:?}", .0.0)]
    Version(#[from] UnsupportedVersion),
    /// A member is wrong.
    #[error("invalid result: {0}")]
    Field(#[from] FieldError),
    /// 0.1.0 and 0.2.0 cannot express a result without addresses.
    #[error("cannot convert: no valid IP addresses")]
    NoAddress,
}

// === impl CniResult ===

impl CniResult {
    /// An empty result.
    pub fn empty(cni_version: Version) -> Self {
        Self { cni_version, interfaces: Vec::new(), ips: Vec::new(), routes: Vec::new(), dns: Dns::default() }
    }

    /// The interface that an address belongs to.
    pub fn interface_of(&self, ip: &IpConfig) -> Option<&Interface> {
        self.interfaces.get(usize::try_from(ip.interface?).ok()?)
    }

    /// Refuses addresses with an index of an interface that does not exist: such a result crashes
    /// containerd.
    pub fn validate(&self) -> Result<(), ResultError> {
        for (index, ip) in self.ips.iter().enumerate() {
            if let (Some(wanted), None) = (ip.interface, self.interface_of(ip)) {
                let problem =
                    format!("{wanted} is out of range, there are {} interfaces", self.interfaces.len());
                return Err(FieldError::new(format!("ips[{index}].interface"), problem).into());
            }
        }
        Ok(())
    }
}

// === impl IpConfig ===

impl IpConfig {
    /// An address without gateway or interface.
    pub fn new(address: IpNet) -> Self {
        Self { address, gateway: None, interface: None }
    }
}

// === impl Route ===

impl Route {
    /// A route without attributes.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }
}

// === impl Dns ===

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

// === impl ResultError ===

impl From<ResultError> for CniError {
    fn from(error: ResultError) -> CniError {
        match error {
            ResultError::Version(_) => CniError::incompatible_version(error.to_string(), ""),
            ResultError::NoAddress => CniError::internal(error.to_string(), ""),
            ResultError::Json(_) | ResultError::NotAnObject | ResultError::Field(_) => {
                CniError::decoding(error.to_string(), "")
            }
        }
    }
}
