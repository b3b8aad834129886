//! What stands where our devices are to be, for a daemon that takes a running flannel over: it must not make anything anew that packets go through.

use russet_addr::{Family, IfName, Mac};

use super::super::{Backend, FlannelError, vxlan};
use super::Fabric;
use crate::observe::observe_devices;
use crate::plan::matches;
use crate::vxlan::Device;

/// What stands in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The name that our device has or will have.
    pub device: IfName,
    /// The family whose packets it carries.
    pub family: Family,
    /// What is there under that name.
    pub found: Found,
}

/// What is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A device that [`Fabric::prepare`] keeps, and its MAC.
    Ours(Mac),
    /// A device that it would replace by another: kind, VNI, port, local address, interface or a flag differs.
    Other,
    /// Nothing.
    Nothing,
}

// === impl Fabric ===

impl Fabric {
    /// Looks at every device that the backend needs. Changes nothing.
    pub fn survey(&mut self) -> Result<Vec<Standing>, FlannelError> {
        let Backend::Vxlan(options) = &self.rules.backend else { return Ok(Vec::new()) };
        let found = observe_devices(&mut self.socket, &self.owner)?;
        let mut standing = Vec::new();
        for family in self.rules.networks.families() {
            let there = found.get(&family);
            let wanted = vxlan::device(options, &self.rules.underlay, family, there, None)?;
            let found = match there.and_then(|there| Some((there, there.mac?))) {
                None if there.is_none() => Found::Nothing,
                Some((there, mac)) if matches(&Device { mac, ..wanted }, there) => Found::Ours(mac),
                Some(_) | None => Found::Other,
            };
            standing.push(Standing { device: vxlan::device_name(options.vni, family)?, family, found });
        }
        Ok(standing)
    }
}
