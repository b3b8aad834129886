//! Conversion of a result from any version to any other (cni-runtime.md section 1.8).

use russet_addr::Family;

use super::{CniResult, Interface, IpConfig, ResultError, Route};
use crate::Version;
use crate::version::Shape;

// === impl CniResult ===

impl CniResult {
    /// The same result in the form of `to`, without what that form cannot express.
    ///
    /// Fails only towards 0.1.0 and 0.2.0 from a later version, if there is no address at all.
    pub fn convert(&self, to: Version) -> Result<CniResult, ResultError> {
        let mut result = self.clone();
        result.cni_version = to;
        match (self.cni_version.shape(), to.shape()) {
            (Shape::A, Shape::A) => {}
            (Shape::B | Shape::C, Shape::A) => result.reduce_to_families()?,
            (_, Shape::B) => result.interfaces.iter_mut().for_each(Interface::forget_1_1),
            (_, Shape::C) => {}
        }
        Ok(result)
    }

    /// Keeps the first address of each family, and of routes whose family has one, destination and gateway.
    fn reduce_to_families(&mut self) -> Result<(), ResultError> {
        let first = |family| self.ips.iter().find(|ip| Family::of_net(&ip.address) == family);
        let ips: Vec<IpConfig> = Family::BOTH
            .into_iter()
            .filter_map(first)
            .map(|ip| IpConfig { interface: None, ..ip.clone() })
            .collect();
        if ips.is_empty() {
            return Err(ResultError::NoAddress);
        }
        let of = |family| self.routes.iter().filter(move |route| Family::of_net(&route.dst) == family);
        let families = ips.iter().map(|ip| Family::of_net(&ip.address));
        self.routes = families.flat_map(of).map(|route| Route::new(route.dst, route.gw)).collect();
        self.ips = ips;
        self.interfaces.clear();
        Ok(())
    }
}

// === impl Interface ===

impl Interface {
    fn forget_1_1(&mut self) {
        self.mtu = None;
        self.socket_path.clear();
        self.pci_id.clear();
    }
}

#[cfg(test)]
mod tests;
