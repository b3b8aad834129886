//! What flannel keeps in its datastore, byte for byte as `flanneld` writes it (flannel.md sections 2 and 3): the network's configuration, the keys of
//! leases and their values. Read and written by `lease`; the daemon and the overlay take the types. All of it is pure.

mod attributes;
mod config;
mod go_json;
mod key;

pub use attributes::{Attributes, Vtep, WireguardData, compact_json, vtep_data, wireguard_data};
pub use config::{Backend, ConfigError, NetworkConfig};
pub use key::{SubnetKey, SubnetKeyError};

#[cfg(test)]
mod tests;
