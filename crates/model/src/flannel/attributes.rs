//! The value of a lease: the node's address and its backend's data, in the exact form that flannel
//! writes (flannel.md section 3.2).

use std::net::{Ipv4Addr, Ipv6Addr};

use russet_addr::Mac;
use serde_json::Value;

use super::go_json::{Members, text_of};
use crate::{DecodeError, json};

const WHAT: &str = "lease";

/// What a node publishes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// The address for peers, which also identifies the node. 0.0.0.0 if IPv4 is disabled.
    pub public_ip: Ipv4Addr,
    /// The same in IPv6.
    pub public_ipv6: Option<Ipv6Addr>,
    /// `vxlan`, `host-gw`; empty for backends that publish none (udp, alloc).
    pub backend_type: String,
    /// The backend's data, as compact JSON.
    pub backend_data: Option<String>,
    /// The same for IPv6.
    pub backend_v6_data: Option<String>,
}

/// A vxlan node's end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vtep {
    /// Its network identifier; nodes up to v0.13 do not publish it, and it is not needed.
    pub vni: Option<u32>,
    /// Its address within the tunnel.
    pub mac: Mac,
}

/// The backend data of a vxlan node, in the only form that every release reads (flannel.md section 5.1).
pub fn vtep_data(vni: u32, mac: Mac) -> String {
    format!("{{\"VNI\":{vni},\"VtepMAC\":\"{mac}\"}}")
}

/// A wireguard node's end of the tunnel (flannel.md section 6.5).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WireguardData {
    /// Its public key, as base64; not used here.
    pub public_key: String,
    /// The port where it listens; older nodes do not publish it.
    pub port: Option<u16>,
}

/// The backend data of a wireguard node.
pub fn wireguard_data(public_key: &str, port: u16) -> String {
    let key = json::encode(&Value::String(public_key.to_owned()));
    format!("{{\"PublicKey\":{},\"Port\":{port}}}", String::from_utf8_lossy(&key))
}

/// JSON without blanks between its parts, as Go writes raw JSON. The text must be JSON.
pub fn compact_json(text: &str) -> String {
    let mut compact = String::with_capacity(text.len());
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars() {
        if !quoted && matches!(c, ' ' | '\t' | '\r' | '\n') {
            continue;
        }
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && c == '\\' && !escaped;
        compact.push(c);
    }
    compact
}

// === impl Attributes ===

impl Attributes {
    /// The bytes that flannel would write: members in its order, no blanks, `"PublicIPv6":null` if
    /// there is none.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = format!("{{\"PublicIP\":\"{}\",\"PublicIPv6\":", self.public_ip);
        match self.public_ipv6 {
            Some(address) => text.push_str(&format!("\"{address}\"")),
            None => text.push_str("null"),
        }
        if !self.backend_type.is_empty() {
            let kind = json::encode(&Value::String(self.backend_type.clone()));
            text.push_str(",\"BackendType\":");
            text.push_str(&String::from_utf8_lossy(&kind));
        }
        for (name, data) in [("BackendData", &self.backend_data), ("BackendV6Data", &self.backend_v6_data)] {
            if let Some(data) = data.as_deref().filter(|data| !data.is_empty()) {
                text.push_str(&format!(",\"{name}\":{data}"));
            }
        }
        text.push('}');
        text.into_bytes()
    }

    /// Decodes a value as peers do. Missing members have their zero value: no node up to v0.14
    /// wrote `PublicIPv6`.
    pub fn from_json(bytes: &[u8]) -> Result<Self, DecodeError> {
        let members = Members::parse(WHAT, &text_of(bytes))?;
        let data = |name| members.last(name).filter(|raw| *raw != "null").map(compact_json);
        Ok(Self {
            public_ip: members.text("PublicIP")?.unwrap_or(Ipv4Addr::UNSPECIFIED),
            public_ipv6: members.text("PublicIPv6")?,
            backend_type: members.string("BackendType")?.unwrap_or_default(),
            backend_data: data("BackendData"),
            backend_v6_data: data("BackendV6Data"),
        })
    }
}

// === impl Vtep ===

impl Vtep {
    /// Decodes backend data of a vxlan node: names in any case, a MAC with `:` or `-`. A MAC that
    /// no interface can have is refused.
    pub fn from_json(text: &str) -> Result<Self, DecodeError> {
        let members = Members::parse("vxlan backend data", text)?;
        let spelled = members.string("VtepMAC")?.ok_or_else(|| members.error("VtepMAC", "it is missing"))?;
        let mac: Mac =
            spelled.replace('-', ":").parse().map_err(|e| members.error("VtepMAC", format!("{e}")))?;
        if mac.is_multicast() || mac == Mac([0; 6]) {
            return Err(members.error("VtepMAC", format!("{mac} cannot be an interface's")));
        }
        let vni = members
            .unsigned("VNI")?
            .map(|vni| u32::try_from(vni).map_err(|e| members.error("VNI", e.to_string())));
        Ok(Self { vni: vni.transpose()?, mac })
    }
}

// === impl WireguardData ===

impl WireguardData {
    /// Reads backend data of a wireguard node; port 0 counts as none.
    pub fn from_json(text: &str) -> Result<Self, DecodeError> {
        let members = Members::parse("wireguard backend data", text)?;
        let public_key =
            members.string("PublicKey")?.ok_or_else(|| members.error("PublicKey", "it is missing"))?;
        let port = members.unsigned("Port")?.filter(|port| *port != 0);
        let port = port.map(|port| u16::try_from(port).map_err(|e| members.error("Port", e.to_string())));
        Ok(Self { public_key, port: port.transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: [&str; 4] = [
        r#"{"PublicIP":"10.200.0.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:70:0b:90:fc:11"}}"#,
        r#"{"PublicIP":"10.200.0.11","PublicIPv6":null,"BackendType":"host-gw"}"#,
        r#"{"PublicIP":"10.200.0.11","PublicIPv6":null}"#,
        r#"{"PublicIP":"10.200.0.11","PublicIPv6":"fd00:200::11","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"66:40:9b:77:47:40"},"BackendV6Data":{"VNI":1,"VtepMAC":"fa:06:a9:a0:78:1b"}}"#,
    ];

    #[test]
    fn values_seen_from_a_real_daemon_are_written_back_byte_for_byte() {
        // flannel.md section 3.2, [EXP].
        for text in SEEN {
            let attributes = Attributes::from_json(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(attributes.to_json()).unwrap(), text);
        }
        let dual = Attributes::from_json(SEEN[3].as_bytes()).unwrap();
        assert_eq!(dual.public_ipv6, "fd00:200::11".parse().ok());
        let vtep = Vtep::from_json(dual.backend_v6_data.as_deref().unwrap()).unwrap();
        assert_eq!(dual.backend_v6_data.unwrap(), vtep_data(vtep.vni.unwrap(), vtep.mac));
    }

    #[test]
    fn wireguards_data_is_read_back_and_old_nodes_do_without_a_port() {
        // flannel.md section 6.5.
        let text = wireguard_data("q83vEjRWeJA=", 51820);
        assert_eq!(text, r#"{"PublicKey":"q83vEjRWeJA=","Port":51820}"#);
        let read = |text: &str| WireguardData::from_json(text).map(|data| (data.public_key, data.port));
        assert_eq!(read(&text).unwrap(), ("q83vEjRWeJA=".to_owned(), Some(51820)));
        assert_eq!(read(r#"{"PublicKey":"k"}"#).unwrap(), ("k".to_owned(), None));
        assert_eq!(read(r#"{"PublicKey":"k","Port":0}"#).unwrap().1, None);
        for bad in ["", "{}", r#"{"PublicKey":1}"#, r#"{"PublicKey":"k","Port":65536}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_form_of_v0_10_without_public_ipv6_is_read() {
        // flannel.md section 3.2.
        let text = r#"{"PublicIP":"10.37.7.195","BackendType":"vxlan","BackendData":{"VtepMAC":"82:4b:b6:2f:54:4e"}}"#;
        let attributes = Attributes::from_json(text.as_bytes()).unwrap();
        assert_eq!((attributes.public_ipv6, attributes.backend_type.as_str()), (None, "vxlan"));
        let vtep = Vtep::from_json(attributes.backend_data.as_deref().unwrap()).unwrap();
        assert_eq!((vtep.vni, vtep.mac.to_string().as_str()), (None, "82:4b:b6:2f:54:4e"));
    }

    #[test]
    fn blanks_and_nulls_do_not_survive_and_text_within_quotes_does() {
        let text = "{ \"publicip\" : \"10.1.1.1\",\n\"BackendData\": {\"a b\" : \"c \\\" d\", \"n\": [1, 2]}, \"BackendV6Data\": null }";
        let attributes = Attributes::from_json(text.as_bytes()).unwrap();
        assert_eq!(attributes.backend_data.as_deref(), Some(r#"{"a b":"c \" d","n":[1,2]}"#));
        assert_eq!(attributes.backend_v6_data, None);
    }

    #[test]
    fn garbage_is_an_error_and_never_a_panic() {
        for text in
            ["", "x", "[]", "{", r#"{"PublicIP":5}"#, r#"{"PublicIP":"a"}"#, r#"{"BackendType":1}"#, "\"x\""]
        {
            assert!(Attributes::from_json(text.as_bytes()).is_err(), "{text}");
        }
        for text in [
            "null",
            "{}",
            "x",
            r#"{"VtepMAC":"x"}"#,
            r#"{"VtepMAC":"01:00:5e:00:00:01"}"#,
            r#"{"VtepMAC":1}"#,
        ] {
            assert!(Vtep::from_json(text).is_err(), "{text}");
        }
    }
}
