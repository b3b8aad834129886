//! Other nodes' leases, written into etcd as their daemons would.

use crate::bench::gateway::Gateway;
use crate::error::Result;

/// The network in etcd.
pub struct Leases {
    etcd: Gateway,
}

const PREFIX: &str = "/coreos.com/network";
const CONFIG: &str = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#;

// === impl Leases ===

impl Leases {
    /// On the etcd at `url`.
    pub fn new(url: &str) -> Result<Self> {
        Ok(Self { etcd: Gateway::new(url)? })
    }

    /// Writes the network's configuration.
    pub fn configure(&self) -> Result<()> {
        self.etcd.put(&format!("{PREFIX}/config"), CONFIG)
    }

    /// Makes it exactly the leases 1 to `count`.
    pub fn fill(&self, count: usize) -> Result<()> {
        self.etcd.delete_range(&format!("{PREFIX}/subnets/"), &format!("{PREFIX}/subnets0"))?;
        self.etcd.put_all(&(1..=count).map(lease).collect::<Vec<_>>())
    }

    /// Puts one more.
    pub fn put(&self, number: usize) -> Result<()> {
        let (key, value) = lease(number);
        self.etcd.put(&key, &value)
    }
}

/// Lease `number`: its subnet from 10.64.0.0 on, its node's address from 172.16.0.0 on, and a MAC of its own.
fn lease(number: usize) -> (String, String) {
    let (high, low) = (number >> 8, number & 0xff);
    let key = format!("{PREFIX}/subnets/10.{}.{low}.0-24", 64 + high);
    let mac = format!("02:00:00:00:{high:02x}:{low:02x}");
    let value = format!(
        r#"{{"PublicIP":"172.16.{high}.{low}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
    );
    (key, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_have_subnets_and_macs_of_their_own() {
        let one = lease(257);
        assert_eq!(one.0, "/coreos.com/network/subnets/10.65.1.0-24");
        assert_ne!(one.1, lease(1).1);
    }
}
