//! Compares the existing devices with those that the backend needs, for a daemon that takes over
//! from a running flannel: it must not recreate a device that carries traffic.

use russet_addr::{Family, IfName, Mac};

use super::super::{Backend, FlannelError, vxlan};
use super::Fabric;
use crate::observe::observe_devices;
use crate::plan::matches;
use crate::vxlan::Device;

/// An existing or missing device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingDevice {
    /// The name that our device has or will have.
    pub device: IfName,
    /// The family whose packets it carries.
    pub family: Family,
    /// What exists under that name.
    pub found: DeviceState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceState {
    /// A device that [`Fabric::prepare`] keeps, and its MAC.
    Ours(Mac),
    /// A device that it would replace by another: kind, VNI, port, local address, interface or a flag differs.
    Other,
    Nothing,
}

// === impl Fabric ===

impl Fabric {
    /// Looks at every device that the backend needs. Changes nothing.
    pub fn survey(&mut self) -> Result<Vec<ExistingDevice>, FlannelError> {
        let Backend::Vxlan(options) = &self.rules.backend else { return Ok(Vec::new()) };
        let found = observe_devices(&mut self.socket, &self.owner)?;
        let mut standing = Vec::new();
        for family in self.rules.networks.families() {
            let there = found.get(&family);
            let wanted = vxlan::device(options, &self.rules.underlay, family, there, None)?;
            let found = match there.and_then(|there| Some((there, there.mac?))) {
                None if there.is_none() => DeviceState::Nothing,
                Some((there, mac)) if matches(&Device { mac, ..wanted }, there) => DeviceState::Ours(mac),
                Some(_) | None => DeviceState::Other,
            };
            standing.push(ExistingDevice { device: vxlan::device_name(options.vni, family)?, family, found });
        }
        Ok(standing)
    }
}
