//! Names and addresses, checked once when they are parsed.
//!
//! All other crates use these types instead of strings, so that no path, rule or link name is built
//! from unchecked bytes.

// It decodes bytes of other programs: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod block;
mod endpoint;
mod mac;
mod name;

pub use block::{BlockCidr, BlockError, Family, host_net};
pub use endpoint::EndpointId;
pub use ipnet::{IpNet, Ipv4Net, Ipv6Net};
pub use mac::{Mac, MacError};
pub use name::{ContainerId, IfName, NameError, NetworkName, NodeName};
