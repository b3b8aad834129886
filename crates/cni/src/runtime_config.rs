//! `runtimeConfig`: the runtime's values for a plugin's capabilities.
//!
//! containerd writes the keys inside with capitals (`HostPort`), all other runtimes without, so
//! keys are compared without regard to case.

use std::net::IpAddr;

use russet_addr::{IpNet, Mac};
use serde_json::{Map, Value};

use crate::field::{self, Object};
use crate::{CniError, Dns, FieldError};

/// The capability values, by capability (cni-runtime.md section 1.12). Each is checked when it is
/// used, so that an invalid value that is not needed cannot fail a DEL.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeConfig {
    values: Map<String, Value>,
}

/// One published port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// On the node; 0 means none.
    pub host_port: u16,
    /// In the container.
    pub container_port: u16,
    /// In lower case; `tcp` when not given.
    pub protocol: String,
    /// The node's address to publish on; none means all.
    pub host_ip: Option<IpAddr>,
}

/// Limits on a container's traffic; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bits a second towards the container.
    pub ingress_rate: u64,
    /// Bits.
    pub ingress_burst: u64,
    /// Bits a second from the container.
    pub egress_rate: u64,
    /// Bits.
    pub egress_burst: u64,
}

// === impl RuntimeConfig ===

impl RuntimeConfig {
    /// Keeps the values unchanged.
    pub fn new(values: Map<String, Value>) -> Self {
        Self { values }
    }

    /// A capability's value, the key compared without regard to case.
    pub fn get(&self, capability: &str) -> Option<&Value> {
        let mut values = self.values.iter();
        values.find(|(key, _)| key.eq_ignore_ascii_case(capability)).map(|(_, value)| value)
    }

    /// `portMappings`.
    pub fn port_mappings(&self) -> Result<Vec<PortMapping>, CniError> {
        field::objects(&self.single("portMappings"), "portMappings", PortMapping::read).map_err(invalid)
    }

    /// `bandwidth`.
    pub fn bandwidth(&self) -> Result<Option<Bandwidth>, CniError> {
        self.member("bandwidth", Bandwidth::read)
    }

    /// `dns`: containerd and CRI-O send `servers`, `searches` and `options`.
    pub fn dns(&self) -> Result<Option<Dns>, CniError> {
        self.member("dns", |object| {
            Ok(Dns {
                nameservers: field::texts(object, "servers")?,
                domain: String::new(),
                search: field::texts(object, "searches")?,
                options: field::texts(object, "options")?,
            })
        })
    }

    /// `mac`.
    pub fn mac(&self) -> Result<Option<Mac>, CniError> {
        field::parsed(&self.single("mac"), "mac", "a MAC address").map_err(invalid)
    }

    /// `ips`: addresses with or without a prefix length; without one it is /32 or /128.
    pub fn ips(&self) -> Result<Vec<IpNet>, CniError> {
        let texts = field::texts(&self.single("ips"), "ips").map_err(invalid)?;
        let read = |(index, text): (usize, &String)| {
            let address = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            let wrong = |_| FieldError::new(format!("ips[{index}]"), format!("{text:?} is no IP address"));
            address.map_err(wrong).map_err(invalid)
        };
        texts.iter().enumerate().map(read).collect()
    }

    /// `io.kubernetes.cri.pod-annotations`, which containerd and CRI-O send to plugins that declare it.
    pub fn pod_annotations(&self) -> Result<Vec<(String, String)>, CniError> {
        const KEY: &str = "io.kubernetes.cri.pod-annotations";
        let single = self.single(KEY);
        let Some(object) = field::object(&single, KEY).map_err(invalid)? else { return Ok(Vec::new()) };
        let read = |key: &String| Ok((key.clone(), field::text(object, key)?.to_owned()));
        object.keys().map(read).collect::<Result<_, FieldError>>().map_err(|error| invalid(error.within(KEY)))
    }

    /// An object that has only the capability, with the name that errors show.
    fn single(&self, capability: &str) -> Object {
        let value = self.get(capability).cloned();
        value.into_iter().map(|value| (capability.to_owned(), value)).collect()
    }

    fn member<T>(
        &self,
        key: &str,
        read: impl Fn(&Object) -> Result<T, FieldError>,
    ) -> Result<Option<T>, CniError> {
        let single = self.single(key);
        let object = field::object(&single, key).map_err(invalid)?.map(lower_keys);
        object.map(|object| read(&object).map_err(|error| invalid(error.within(key)))).transpose()
    }
}

// === impl PortMapping ===

impl PortMapping {
    fn read(object: &Object) -> Result<Self, FieldError> {
        let object = lower_keys(object);
        let port = |key| {
            let number = field::number(&object, key)?.unwrap_or_default();
            u16::try_from(number).map_err(|_| FieldError::new(key, format!("{number} is no port")))
        };
        let protocol = field::text(&object, "protocol")?.to_ascii_lowercase();
        Ok(Self {
            host_port: port("hostport")?,
            container_port: port("containerport")?,
            protocol: if protocol.is_empty() { "tcp".into() } else { protocol },
            host_ip: field::parsed(&object, "hostip", "an IP address")?,
        })
    }
}

// === impl Bandwidth ===

impl Bandwidth {
    fn read(object: &Object) -> Result<Self, FieldError> {
        let number = |key: &str| match field::present(object, key) {
            None => Ok(0),
            Some(value) => value.as_u64().ok_or_else(|| FieldError::new(key, "a whole number is wanted")),
        };
        Ok(Self {
            ingress_rate: number("ingressrate")?,
            ingress_burst: number("ingressburst")?,
            egress_rate: number("egressrate")?,
            egress_burst: number("egressburst")?,
        })
    }
}

fn lower_keys(object: &Object) -> Object {
    object.iter().map(|(key, value)| (key.to_ascii_lowercase(), value.clone())).collect()
}

fn invalid(error: FieldError) -> CniError {
    CniError::invalid_config("invalid runtime configuration", error.within("runtimeConfig"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime_config(text: &str) -> RuntimeConfig {
        RuntimeConfig::new(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn capitals_do_not_matter() {
        // cni-runtime.md section 6.2 item 54, and the capture of A.2
        let ours = r#"{"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp","hostIP":""}]}"#;
        let containerds =
            r#"{"PortMappings":[{"HostPort":80,"ContainerPort":8080,"Protocol":"TCP","HostIP":""}]}"#;
        let mappings = runtime_config(ours).port_mappings().unwrap();
        assert_eq!(mappings, runtime_config(containerds).port_mappings().unwrap());
        assert_eq!((mappings[0].host_port, mappings[0].host_ip), (80, None));
        let text = r#"{"bandwidth":{"IngressRate":10000000,"IngressBurst":4294967295},"dns":{"Servers":["10.96.0.10"]}}"#;
        let config = runtime_config(text);
        assert_eq!(config.bandwidth().unwrap().unwrap().ingress_burst, 4_294_967_295);
        assert_eq!(config.dns().unwrap().unwrap().nameservers, ["10.96.0.10"]);
    }

    #[test]
    fn annotations_keep_their_case() {
        let config = runtime_config(r#"{"io.kubernetes.cri.pod-annotations":{"Team/A":"b"}}"#);
        assert_eq!(config.pod_annotations().unwrap(), [("Team/A".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn addresses_come_with_and_without_a_length() {
        let config = runtime_config(r#"{"ips":["10.1.2.3/24","fd00::9"],"mac":"02:11:22:33:44:55"}"#);
        let ips: Vec<String> = config.ips().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.1.2.3/24", "fd00::9/128"]);
        assert!(config.mac().unwrap().is_some());
    }

    #[test]
    fn a_wrong_value_is_named() {
        let config =
            runtime_config(r#"{"portMappings":[{"hostPort":65536}],"mac":"x","ips":["10.0.0"],"dns":[]}"#);
        let error = config.port_mappings().unwrap_err();
        assert!(error.details.starts_with("runtimeConfig.portMappings[0].hostport"), "{error}");
        assert!(config.mac().is_err() && config.ips().is_err() && config.dns().is_err());
        assert_eq!(config.bandwidth().unwrap(), None);
    }
}
