//! Parses the backend and its options from a network's configuration (flannel.md sections 2 and 6),
//! and explains why some are refused. Pure; `run` calls it once at the start.

use std::path::PathBuf;

use russet_addr::Mac;
use russet_model::flannel::{Backend as Configured, ConfigError};
use russet_overlay::flannel::{KeyError, Mode, Psk, Vxlan, Wireguard};

use crate::extension::Extension;

/// A backend and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// VXLAN, in the kernel.
    Vxlan(Vxlan),
    /// Plain routes with the other nodes as gateways.
    HostGw,
    /// One IP packet in each datagram, forwarded by this process.
    Udp {
        /// The UDP port of both sides.
        port: u16,
    },
    /// IP in IP.
    Ipip {
        /// Plain routes to nodes on the same link.
        direct_routing: bool,
    },
    Wireguard(Box<Wireguard>),
    /// The operator's commands do the work.
    Extension(Extension),
    /// Only a lease.
    Alloc,
}

/// Why a configured backend cannot be run; the daemon exits with 1.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The type is unknown.
    #[error("unknown backend type {0:?}")]
    Unknown(String),
    /// Flannel has it, Russet does not.
    #[error("backend {kind} is not supported: {reason}")]
    Refused {
        /// Its name.
        kind: &'static str,
        /// The reason, and what to use instead.
        reason: &'static str,
    },
    /// It runs commands from the datastore, and this node's operator did not allow that.
    #[error(
        "backend extension runs commands that the network's configuration in the datastore holds, as the user of this daemon: start it with -allow-extension if everybody who can write there may run commands on this node"
    )]
    NotAllowed,
    /// An option has the wrong JSON type.
    #[error(transparent)]
    Option(#[from] ConfigError),
    /// The preshared key is invalid.
    #[error("backend wireguard: {0}")]
    Psk(#[from] KeyError),
    /// An option has a value that cannot work.
    #[error("backend {kind}: {option} is {value}: it must be {wanted}")]
    Value {
        /// The backend.
        kind: &'static str,
        option: &'static str,
        /// The configured value.
        value: String,
        /// The allowed values.
        wanted: &'static str,
    },
}

/// Port of udp if none is configured.
const UDP_PORT: u16 = 8285;
/// Ports of wireguard if none are configured.
const WIREGUARD_PORTS: [u16; 2] = [51820, 51821];
/// The largest VXLAN network identifier.
const VNI_MAX: u32 = (1 << 24) - 1;
/// The private key of wireguard, unless the environment names another file (flannel.md section
/// 6.5).
const KEY_FILE: &str = "/run/flannel/wgkey";
const CLOUD: &str =
    "routes of a cloud's own router are not programmed here; use vxlan, or host-gw where nodes share a link";

// === impl Backend ===

impl Backend {
    /// Parses the backend part of the configuration.
    pub fn parse(configured: &Configured, shell: bool) -> Result<Self, BackendError> {
        let refused = |kind, reason| Err(BackendError::Refused { kind, reason });
        match configured.kind.as_str() {
            "vxlan" => vxlan(configured).map(Self::Vxlan),
            "host-gw" => Ok(Self::HostGw),
            "udp" => Ok(Self::Udp { port: port(configured, "udp", "Port")?.unwrap_or(UDP_PORT) }),
            "ipip" => Ok(Self::Ipip { direct_routing: configured.bool("DirectRouting")?.unwrap_or(false) }),
            "wireguard" => wireguard(configured).map(|options| Self::Wireguard(Box::new(options))),
            "extension" => extension(configured, shell).map(Self::Extension),
            "alloc" => Ok(Self::Alloc),
            "ipsec" => refused("ipsec", "it needs strongSwan's daemon; use wireguard"),
            "aws-vpc" => refused("aws-vpc", CLOUD),
            "gce" => refused("gce", CLOUD),
            "ali-vpc" => refused("ali-vpc", CLOUD),
            "tencent-vpc" => refused("tencent-vpc", CLOUD),
            unknown => Err(BackendError::Unknown(unknown.to_owned())),
        }
    }

    /// Refuses commands from the datastore unless this node's operator allows them.
    pub fn check_allowed(&self, extension: bool) -> Result<(), BackendError> {
        match self {
            Self::Extension(_) if !extension => Err(BackendError::NotAllowed),
            _ => Ok(()),
        }
    }

    /// Whether flannel's daemon removes the devices when it ends, so that pods' packets stop
    /// (flannel.md section 0 item 9).
    pub const fn ends_with_its_daemon(&self) -> bool {
        matches!(self, Self::Udp { .. } | Self::Wireguard(_))
    }

    /// Sets the MACs that peers know, for devices that must be created.
    pub fn with_macs(mut self, macs: [Option<Mac>; 2]) -> Self {
        if let Self::Vxlan(vxlan) = &mut self {
            vxlan.mac = macs;
        }
        self
    }

    /// Sets the file of wireguard's private key, if the environment names one.
    pub fn with_key_file(mut self, file: Option<PathBuf>) -> Self {
        if let (Self::Wireguard(wireguard), Some(file)) = (&mut self, file) {
            wireguard.key_file = file;
        }
        self
    }

    /// The type in our leases, and in leases of other nodes that we program; empty where leases
    /// have none.
    pub const fn lease_type(&self) -> &'static str {
        match self {
            Self::Vxlan(_) => "vxlan",
            Self::HostGw => "host-gw",
            Self::Ipip { .. } => "ipip",
            Self::Wireguard(_) => "wireguard",
            Self::Extension(_) => "extension",
            Self::Udp { .. } | Self::Alloc => "",
        }
    }

    /// Whether a lease of this type is programmed. udp takes all (flannel.md section 4).
    pub fn takes(&self, lease_type: &str) -> bool {
        matches!(self, Self::Udp { .. }) || lease_type == self.lease_type()
    }

    /// Whether other nodes' leases are needed at all.
    pub const fn watches(&self) -> bool {
        !matches!(self, Self::Alloc)
    }

    /// Whether it carries IPv6.
    pub const fn carries_v6(&self) -> bool {
        !matches!(self, Self::Udp { .. } | Self::Ipip { .. })
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Udp { .. } => "udp",
            Self::Alloc => "alloc",
            other => other.lease_type(),
        }
    }
}

fn vxlan(configured: &Configured) -> Result<Vxlan, BackendError> {
    let vni = configured.u32("VNI")?.unwrap_or(1);
    if vni > VNI_MAX {
        let value = vni.to_string();
        return Err(BackendError::Value {
            kind: "vxlan",
            option: "VNI",
            value,
            wanted: "a number of 24 bits",
        });
    }
    Ok(Vxlan {
        vni,
        port: port(configured, "vxlan", "Port")?.unwrap_or(0),
        gbp: configured.bool("GBP")?.unwrap_or(false),
        direct_routing: configured.bool("DirectRouting")?.unwrap_or(false),
        learning: configured.bool("Learning")?.unwrap_or(false),
        mtu: configured.u32("MTU")?.filter(|mtu| *mtu != 0),
        mac: [None, None],
    })
}

fn wireguard(configured: &Configured) -> Result<Wireguard, BackendError> {
    let kind = "wireguard";
    let mode = match configured.str("Mode")?.unwrap_or("separate") {
        "separate" | "" => Mode::Separate,
        "auto" => Mode::Auto,
        "ipv4" => Mode::V4,
        "ipv6" => Mode::V6,
        other => {
            let (value, wanted) = (other.to_owned(), "separate, auto, ipv4 or ipv6");
            return Err(BackendError::Value { kind, option: "Mode", value, wanted });
        }
    };
    let option = "PersistentKeepaliveInterval";
    let keepalive = configured.u32(option)?.unwrap_or(0);
    let keepalive_s = u16::try_from(keepalive).map_err(|_| BackendError::Value {
        kind,
        option,
        value: keepalive.to_string(),
        wanted: "between 0 and 65535 seconds",
    })?;
    Ok(Wireguard {
        port: port(configured, kind, "ListenPort")?.unwrap_or(WIREGUARD_PORTS[0]),
        port_v6: port(configured, kind, "ListenPortV6")?.unwrap_or(WIREGUARD_PORTS[1]),
        mtu: configured.u32("MTU")?.filter(|mtu| *mtu != 0),
        psk: configured.str("PSK")?.filter(|psk| !psk.is_empty()).map(str::parse::<Psk>).transpose()?,
        keepalive_s,
        mode,
        key_file: KEY_FILE.into(),
    })
}

/// A port; 0 counts as not configured.
fn port(
    configured: &Configured,
    kind: &'static str,
    option: &'static str,
) -> Result<Option<u16>, BackendError> {
    let Some(number) = configured.u32(option)?.filter(|number| *number != 0) else { return Ok(None) };
    let wrong =
        || BackendError::Value { kind, option, value: number.to_string(), wanted: "between 1 and 65535" };
    u16::try_from(number).map(Some).map_err(|_| wrong())
}

fn extension(configured: &Configured, shell: bool) -> Result<Extension, BackendError> {
    let command = |name| Ok::<_, ConfigError>(configured.str(name)?.unwrap_or_default().to_owned());
    Ok(Extension {
        pre_startup: command("PreStartupCommand")?,
        post_startup: command("PostStartupCommand")?,
        subnet_add: command("SubnetAddCommand")?,
        subnet_remove: command("SubnetRemoveCommand")?,
        shell,
    })
}

#[cfg(test)]
mod tests {
    use russet_model::flannel::NetworkConfig;

    use super::*;

    fn parsed(backend: &str) -> Result<Backend, String> {
        let config = format!("{{\"Network\":\"10.5.0.0/16\",\"Backend\":{backend}}}");
        let config = NetworkConfig::parse(config.as_bytes()).unwrap();
        Backend::parse(&config.backend, false).map_err(|error| error.to_string())
    }

    /// flannel.md sections 2 and 10.
    #[test]
    fn t04_the_type_may_be_in_any_case_and_leases_have_it_in_lower_case() {
        let Backend::Vxlan(vxlan) = parsed(r#"{"Type":"VxLan"}"#).unwrap() else { panic!() };
        assert_eq!((vxlan.vni, vxlan.port, vxlan.mtu, vxlan.learning), (1, 0, None, false));
        assert_eq!(Backend::Vxlan(vxlan).lease_type(), "vxlan");
        let all = r#"{"Type":"vxlan","vni":42,"PORT":4789,"GBP":true,"DirectRouting":true,"Learning":true,"MTU":1400}"#;
        let Backend::Vxlan(vxlan) = parsed(all).unwrap() else { panic!() };
        let expected = Vxlan {
            vni: 42,
            port: 4789,
            gbp: true,
            direct_routing: true,
            learning: true,
            mtu: Some(1400),
            mac: [None, None],
        };
        assert_eq!(vxlan, expected);
    }

    /// flannel.md sections 2, 6.1 and 10.
    #[test]
    fn t02_no_backend_is_udp_with_its_port_and_leases_without_a_type() {
        let config = NetworkConfig::parse(b"{\"Network\":\"10.5.0.0/16\"}").unwrap();
        let backend = Backend::parse(&config.backend, false).unwrap();
        assert_eq!(
            (&backend, backend.lease_type(), backend.name()),
            (&Backend::Udp { port: 8285 }, "", "udp")
        );
        assert!(backend.takes("vxlan") && backend.takes(""));
        assert_eq!(parsed(r#"{"Type":"udp","Port":7890}"#).unwrap(), Backend::Udp { port: 7890 });
    }

    /// flannel.md sections 1.5, 6.6, 6.9 and 10.
    #[test]
    fn t03_a_backend_without_a_type_or_of_an_unknown_one_is_refused() {
        for (backend, reason) in [
            ("{}", "unknown backend type \"\""),
            (r#"{"Type":"teleport"}"#, "unknown backend type \"teleport\""),
            (r#"{"Type":"ipsec","PSK":"x"}"#, "backend ipsec is not supported: "),
            (r#"{"Type":"AWS-VPC"}"#, "backend aws-vpc is not supported: "),
            (r#"{"Type":"gce"}"#, "backend gce is not supported: "),
            (r#"{"Type":"ali-vpc"}"#, "backend ali-vpc is not supported: "),
            (r#"{"Type":"tencent-vpc"}"#, "backend tencent-vpc is not supported: "),
            (r#"{"Type":"vxlan","VNI":"1"}"#, "a whole number"),
            (r#"{"Type":"vxlan","VNI":16777216}"#, "24 bits"),
            (r#"{"Type":"udp","Port":65536}"#, "between 1 and 65535"),
            (
                r#"{"Type":"wireguard","PSK":"too short"}"#,
                "backend wireguard: PSK is not the base64 text of 32 bytes",
            ),
            (r#"{"Type":"wireguard","Mode":"both"}"#, "separate, auto, ipv4 or ipv6"),
        ] {
            let error = parsed(backend).unwrap_err();
            assert!(error.contains(reason), "{backend}: {error}");
        }
    }

    #[test]
    fn commands_of_the_datastore_need_the_operators_consent() {
        let commands = parsed(r#"{"Type":"extension","PreStartupCommand":"id"}"#).unwrap();
        let error = commands.check_allowed(false).unwrap_err().to_string();
        assert!(error.contains("-allow-extension"), "{error}");
        commands.check_allowed(true).unwrap();
        parsed(r#"{"Type":"vxlan"}"#).unwrap().check_allowed(false).unwrap();
    }

    /// flannel.md section 4.
    #[test]
    fn t22_leases_of_another_type_are_not_programmed() {
        let vxlan = parsed(r#"{"Type":"vxlan"}"#).unwrap();
        assert!(vxlan.takes("vxlan"));
        for other in ["host-gw", "VXLAN", "", "udp"] {
            assert!(!vxlan.takes(other), "{other}");
        }
        let alloc = parsed(r#"{"Type":"alloc"}"#).unwrap();
        assert!(!alloc.watches() && alloc.lease_type().is_empty());
        let Backend::Extension(commands) =
            parsed(r#"{"Type":"extension","SubnetAddCommand":"a $SUBNET"}"#).unwrap()
        else {
            panic!()
        };
        assert_eq!((commands.subnet_add.as_str(), commands.shell), ("a $SUBNET", false));
    }
}
