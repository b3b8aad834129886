//! `config.json`, which the server writes beside its socket (cni-runtime.md section 4.1), in both
//! forms: with `routableMTU` and `platformType`, and the older one with `serviceNetworkCIDR`.

use std::io::{ErrorKind, Read as _};
use std::net::Ipv4Addr;
use std::path::Path;

use russet_addr::Ipv4Net;
use russet_attach::sdn::METADATA;
use russet_cni_spec::CniError;
use serde_json::{Map, Value};

/// Settings of the server for all interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    /// `mtu` of both ends, in bytes; `None` means the kernel's default.
    pub mtu: Option<u32>,
    /// `routableMTU` of routes, in bytes.
    pub route_mtu: Option<u32>,
    /// `serviceNetworkCIDR`.
    pub service: Option<Ipv4Net>,
    /// The address of the platform's metadata service.
    pub metadata: Ipv4Addr,
}

/// The message of OpenShift's plugin before a server has run since boot.
const ABSENT: &str = "OpenShift SDN network process is not (yet?) available";
/// OpenShift's file has 60 bytes.
const FILE_MAX_BYTES: u64 = 64 * 1024;
/// The minimum of IPv4 (RFC 791) and the maximum of veth.
const MTU_BYTES: std::ops::RangeInclusive<u64> = 68..=65535;
/// Alibaba Cloud's metadata service.
const METADATA_ALIBABA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);

// === impl Conf ===

impl Conf {
    /// Reads the server's file. If it does not exist, the server has not started yet.
    pub fn read(path: &Path) -> Result<Self, CniError> {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            std::fs::File::open(path)?.take(FILE_MAX_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Self::parse(&bytes).map_err(|why: String| {
                CniError::invalid_config(format!("could not parse config file {:?}", path.display()), why)
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(CniError::try_again_later(ABSENT, format!("{}: {error}", path.display())))
            }
            Err(error) => {
                Err(CniError::io(format!("could not read config file {:?}", path.display()), error))
            }
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let object: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let mtu = |key: &str| match object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(0) => Ok(None),
                Some(mtu) if MTU_BYTES.contains(&mtu) => Ok(u32::try_from(mtu).ok()),
                _ => Err(format!("{key}: {value} is no MTU")),
            },
        };
        let text = |key: &str| match object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(value) => Err(format!("{key}: text is wanted, found {value}")),
        };
        let network = |text: &str| {
            text.parse::<Ipv4Net>().map_err(|_| format!("serviceNetworkCIDR: {text:?} is no IPv4 network"))
        };
        let alibaba = text("platformType")? == Some("AlibabaCloud");
        Ok(Self {
            mtu: mtu("mtu")?,
            route_mtu: mtu("routableMTU")?,
            service: text("serviceNetworkCIDR")?.map(network).transpose()?.map(|net| net.trunc()),
            metadata: if alibaba { METADATA_ALIBABA } else { METADATA },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_cni_spec::code;

    #[test]
    fn both_forms_of_the_file_are_read() {
        // cni-runtime.md section 4.1
        let new = Conf::parse(br#"{"mtu":1400,"routableMTU":1350,"platformType":"AlibabaCloud"}"#).unwrap();
        assert_eq!(
            (new.mtu, new.route_mtu, new.service, new.metadata),
            (Some(1400), Some(1350), None, METADATA_ALIBABA)
        );
        let old = Conf::parse(br#"{"mtu":1450,"serviceNetworkCIDR":"172.30.0.0/16"}"#).unwrap();
        assert_eq!((old.mtu, old.route_mtu, old.metadata), (Some(1450), None, METADATA));
        assert_eq!(old.service.unwrap().to_string(), "172.30.0.0/16");
        assert_eq!(Conf::parse(br#"{"mtu":0,"platformType":"","x":[]}"#).unwrap().mtu, None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            "",
            "[]",
            r#"{"mtu":"1400"}"#,
            r#"{"mtu":67}"#,
            r#"{"mtu":-1}"#,
            r#"{"routableMTU":65536}"#,
            r#"{"mtu":1e400}"#,
            r#"{"platformType":7}"#,
            r#"{"serviceNetworkCIDR":"172.30.0.0"}"#,
            r#"{"serviceNetworkCIDR":"172.30.0.0/33"}"#,
            r#"{"serviceNetworkCIDR":"fd00::/64"}"#,
        ] {
            assert!(Conf::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_the_file_there_is_no_server_yet() {
        // cni-runtime.md section 6.2 item 48
        let error = Conf::read(Path::new("/nonexistent/config.json")).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (code::TRY_AGAIN_LATER, ABSENT));
    }
}
