//! `bridge`'s configuration (cni-runtime.md section 5, docs/plugins.md).

use russet_addr::{IfName, IpNet, Mac};
use russet_attach::SourceCheck;
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use serde::Deserialize;
use serde_json::Value;

use crate::requested;

/// The validated configuration of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    pub bridge: IfName,
    /// Whether the bridge gets the gateways' addresses.
    pub is_gateway: bool,
    /// Whether pods get a default route through the bridge.
    pub is_default_gateway: bool,
    /// Whether conflicting addresses of the bridge are removed.
    pub force_address: bool,
    /// Whether packets from pods to other networks get the node's address.
    pub ip_masq: bool,
    /// In bytes.
    pub mtu: Option<u32>,
    /// Whether a frame may leave through the port by which it came.
    pub hairpin: bool,
    /// Whether the bridge receives frames for all addresses.
    pub promiscuous: bool,
    /// Whether frames between pods are dropped.
    pub isolated: bool,
    /// The requested MAC of the pod.
    pub mac: Option<Mac>,
    /// What of the pod's frames is checked.
    pub source_check: SourceCheck,
    /// The configuration asks for that check: without it there is no pod.
    pub check_required: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Settings {
    bridge: Option<String>,
    is_gateway: Option<bool>,
    is_default_gateway: Option<bool>,
    force_address: Option<bool>,
    ip_masq: Option<bool>,
    mtu: Option<u32>,
    hairpin_mode: Option<bool>,
    promisc_mode: Option<bool>,
    port_isolation: Option<bool>,
    vlan: Option<i64>,
    vlan_trunk: Option<Vec<Value>>,
    macspoofchk: Option<bool>,
    enabledad: Option<bool>,
    disable_container_interface: Option<bool>,
    source_guard: Option<bool>,
    guard_by_default: Option<bool>,
    allowed_source_prefixes: Option<Vec<IpNet>>,
}

/// Set by a caller in this process whose pods are guarded unless `sourceGuard` says otherwise.
pub const GUARD_BY_DEFAULT: &str = "guardByDefault";

const DEFAULT_BRIDGE: &str = "cni0";
const VLAN_MAX: i64 = 4094;

// === impl Conf ===

impl Conf {
    /// Reads the configuration of `request`, and refuses options that this plugin does not support.
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let settings: Settings = request.config.read_settings()?;
        settings.refuse()?;
        let on = |value: Option<bool>| value.unwrap_or(false);
        let name =
            settings.bridge.filter(|name| !name.is_empty()).unwrap_or_else(|| DEFAULT_BRIDGE.to_owned());
        let bridge = IfName::new(name.as_str());
        let (source_check, check_required) = source_check(
            settings.source_guard,
            on(settings.guard_by_default),
            on(settings.macspoofchk),
            settings.allowed_source_prefixes.unwrap_or_default(),
        )?;
        let conf = Self {
            bridge: bridge
                .map_err(|error| CniError::invalid_config(format!("bridge: {name:?} cannot be"), error))?,
            is_gateway: on(settings.is_gateway) || on(settings.is_default_gateway),
            is_default_gateway: on(settings.is_default_gateway),
            force_address: on(settings.force_address),
            ip_masq: on(settings.ip_masq),
            mtu: settings.mtu.filter(|mtu| *mtu != 0),
            hairpin: on(settings.hairpin_mode),
            promiscuous: on(settings.promisc_mode),
            isolated: on(settings.port_isolation),
            mac: requested::mac(request)?,
            source_check,
            check_required,
        };
        if conf.hairpin && conf.promiscuous {
            let msg = "cannot set hairpin mode and promiscuous mode at the same time";
            return Err(CniError::invalid_config(msg, "leave out hairpinMode or promiscMode"));
        }
        Ok(conf)
    }

    /// The bridge's name alone: DEL must not fail on a configuration that ADD would refuse.
    pub fn bridge_of(request: &Request) -> Option<IfName> {
        let name =
            request.config.settings.get("bridge").and_then(Value::as_str).filter(|name| !name.is_empty());
        IfName::new(name.unwrap_or(DEFAULT_BRIDGE)).ok()
    }
}

/// What is checked, and whether the configuration asked for it.
fn source_check(
    guard: Option<bool>,
    by_default: bool,
    mac: bool,
    allowed: Vec<IpNet>,
) -> Result<(SourceCheck, bool), CniError> {
    if guard.unwrap_or(by_default) {
        return Ok((SourceCheck::Addresses { allowed }, guard.is_some() || mac));
    }
    if !allowed.is_empty() {
        let details = "without sourceGuard a pod may send from any address; leave one of the two out";
        return Err(CniError::invalid_config(
            "bridge: allowedSourcePrefixes needs sourceGuard: true",
            details,
        ));
    }
    Ok((if mac { SourceCheck::Mac } else { SourceCheck::Off }, mac))
}

// === impl Settings ===

impl Settings {
    fn refuse(&self) -> Result<(), CniError> {
        let vlan = self.vlan.unwrap_or(0);
        if !(0..=VLAN_MAX).contains(&vlan) {
            let msg = format!("invalid VLAN ID {vlan} (must be between 0 and {VLAN_MAX})");
            return Err(CniError::invalid_config(msg, ""));
        }
        let trunk = self.vlan_trunk.as_ref().is_some_and(|trunk| !trunk.is_empty());
        let kernel = "a bridge that filters VLANs is not supported; this needs a kernel with CONFIG_BRIDGE_VLAN_FILTERING, too";
        let refused = [
            (vlan != 0, format!("vlan: {vlan}"), kernel),
            (trunk, "vlanTrunk".to_owned(), kernel),
            (self.enabledad == Some(true), "enabledad: true".to_owned(), "addresses are used at once"),
            (
                self.disable_container_interface == Some(true),
                "disableContainerInterface: true".to_owned(),
                "an interface that is down needs no network",
            ),
        ];
        match refused.into_iter().find(|(asked, ..)| *asked) {
            Some((_, key, details)) => Err(CniError::unsupported_field(format!("bridge: {key}"), details)),
            None => Ok(()),
        }
    }
}
