//! The v1 workload endpoint (calico-cni.md section 2.2.3).

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac};
use serde_json::Value;

use crate::json::{self, DecodeError, Extra, Fields, Object};

/// One interface of one workload. Node, orchestrator, workload and interface are in the key.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// `active`; Felix ignores any other.
    pub state: String,
    /// The interface's name on the node.
    pub name: String,
    /// The container that has it now: a DEL of an older one does not remove it.
    pub active_instance_id: String,
    /// The interface's MAC in the pod.
    pub mac: Option<Mac>,
    /// Profiles whose rules and labels it has.
    pub profile_ids: Vec<String>,
    /// Its addresses as /32.
    pub ipv4_nets: Vec<IpNet>,
    /// Its addresses as /128.
    pub ipv6_nets: Vec<IpNet>,
    /// External addresses that are translated to it.
    pub ipv4_nat: Vec<Nat>,
    /// The same.
    pub ipv6_nat: Vec<Nat>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `ipv4_gateway`, `ipv6_gateway`, `ports` and unknown members.
    pub extra: Extra,
}

/// An external address that is translated to one of the endpoint's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nat {
    /// The endpoint's address.
    pub internal: IpAddr,
    /// The external address.
    pub external: IpAddr,
}

// === impl Endpoint ===

impl Endpoint {
    /// The `state` of an endpoint in use.
    pub const ACTIVE: &'static str = "active";
    /// The label with a pod's namespace.
    pub const NAMESPACE_LABEL: &'static str = "calico/k8s_ns";

    /// All its addresses, IPv4 first.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.ipv4_nets.iter().chain(&self.ipv6_nets).copied()
    }

    /// Replaces its addresses; each becomes a /32 or /128.
    pub fn set_addresses(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        let (v4, v6): (Vec<IpNet>, Vec<IpNet>) = addresses
            .into_iter()
            .map(russet_addr::host_net)
            .partition(|net| Family::of_net(net) == Family::V4);
        (self.ipv4_nets, self.ipv6_nets) = (v4, v6);
    }

    /// Reads an endpoint.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::parse("v1 endpoint", bytes)?;
        Ok(Self {
            state: fields.string("state")?.unwrap_or_default(),
            name: fields.string("name")?.unwrap_or_default(),
            active_instance_id: fields.string("active_instance_id")?.unwrap_or_default(),
            mac: fields.text("mac")?,
            profile_ids: fields.strings("profile_ids")?,
            ipv4_nets: nets(&mut fields, "ipv4_nets", Family::V4)?,
            ipv6_nets: nets(&mut fields, "ipv6_nets", Family::V6)?,
            ipv4_nat: nats(&mut fields, "ipv4_nat")?,
            ipv6_nat: nats(&mut fields, "ipv6_nat")?,
            labels: fields.string_map("labels")?.unwrap_or_default(),
            extra: fields.rest(),
        })
    }

    /// Writes the endpoint.
    pub fn encode(&self) -> Vec<u8> {
        let texts = |nets: &[IpNet]| nets.iter().map(|net| Value::from(net.to_string())).collect::<Vec<_>>();
        let profiles: Vec<Value> = self.profile_ids.iter().map(|id| Value::from(id.as_str())).collect();
        let nats =
            |nats: &[Nat]| (!nats.is_empty()).then(|| nats.iter().map(Nat::to_value).collect::<Vec<_>>());
        let value = Object::default()
            .put("state", self.state.as_str())
            .put("name", self.name.as_str())
            .put("active_instance_id", self.active_instance_id.as_str())
            .put("mac", self.mac.map(|mac| mac.to_string()))
            .put("profile_ids", profiles)
            .put("ipv4_nets", texts(&self.ipv4_nets))
            .put("ipv6_nets", texts(&self.ipv6_nets))
            .put_some("ipv4_nat", nats(&self.ipv4_nat))
            .put_some("ipv6_nat", nats(&self.ipv6_nat))
            .put_map("labels", &self.labels)
            .finish(&self.extra);
        json::encode(&value)
    }
}

fn nets(fields: &mut Fields, name: &'static str, family: Family) -> Result<Vec<IpNet>, DecodeError> {
    let texts = fields.strings(name)?;
    let parse =
        |(index, text): (usize, String)| match text.parse::<IpNet>() {
            Ok(net) if Family::of_net(&net) == family => Ok(net),
            _ => Err(fields
                .error(&format!("{name}[{index}]"), format!("{text:.60?} is no network of this family"))),
        };
    texts.into_iter().enumerate().map(parse).collect()
}

fn nats(fields: &mut Fields, name: &'static str) -> Result<Vec<Nat>, DecodeError> {
    fields.objects(name)?.unwrap_or_default().into_iter().map(Nat::read).collect()
}

// === impl Nat ===

impl Nat {
    fn read(mut fields: Fields) -> Result<Self, DecodeError> {
        let missing = |fields: &Fields, name| fields.error(name, "it is missing");
        let internal = fields.text("int_ip")?.ok_or_else(|| missing(&fields, "int_ip"))?;
        let external = fields.text("ext_ip")?.ok_or_else(|| missing(&fields, "ext_ip"))?;
        Ok(Self { internal, external })
    }

    fn to_value(&self) -> Value {
        let object = Object::default();
        let object = object.put("int_ip", self.internal.to_string()).put("ext_ip", self.external.to_string());
        object.finish(&Extra::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// calico-cni.md section 2.2.3, compact.
    const TEXT: &str = r#"{"state":"active","name":"calia4fc3c48bd8","active_instance_id":"4be1","mac":"8e:01:7c:aa:10:f3","profile_ids":["k8s_ns.shop"],"ipv4_nets":["10.65.7.13/32"],"ipv6_nets":[],"labels":{"app":"web","calico/k8s_ns":"shop"}}"#;

    #[test]
    fn the_endpoint_of_the_spec_survives_a_round_trip_byte_for_byte() {
        let endpoint = Endpoint::decode(TEXT.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(endpoint.encode()).unwrap(), TEXT);
        assert_eq!(endpoint.nets().collect::<Vec<_>>(), ["10.65.7.13/32".parse().unwrap()]);
    }

    #[test]
    fn gateways_ports_nats_and_a_missing_mac_survive() {
        let text = TEXT.replace(r#""8e:01:7c:aa:10:f3""#, "null").replace(
            r#""ipv6_nets":[]"#,
            r#""ipv6_nets":["fd00:65::7:d/128"],"ipv4_nat":[{"int_ip":"10.65.7.13","ext_ip":"203.0.113.9"}]"#,
        );
        let text = text.replace(
            "}}",
            r#"},"ipv4_gateway":"169.254.1.1","ports":[{"name":"http","protocol":"tcp","port":80}]}"#,
        );
        let endpoint = Endpoint::decode(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(endpoint.encode()).unwrap(), text);
    }

    #[test]
    fn go_writes_null_for_lists_that_it_never_made() {
        let endpoint =
            Endpoint::decode(br#"{"state":"active","profile_ids":null,"ipv4_nets":null}"#).unwrap();
        assert!(endpoint.profile_ids.is_empty() && endpoint.nets().next().is_none());
        assert!(String::from_utf8(endpoint.encode()).unwrap().contains(r#""ipv4_nets":[],"ipv6_nets":[]"#));
    }

    #[test]
    fn rubbish_is_named() {
        for (text, at) in [
            (r#"{"ipv4_nets":["fd00::1/128"]}"#, "ipv4_nets[0]"),
            (r#"{"mac":"x"}"#, "mac"),
            (r#"{"ipv4_nat":[{}]}"#, "int_ip"),
            ("[]", "object"),
        ] {
            let error = Endpoint::decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("v1 endpoint") && error.contains(at), "{error}");
        }
    }
}
