//! The network configuration as a plugin receives it on stdin.
//!
//! Well-known members become fields; everything else stays unchanged in
//! [`NetworkConfig::settings`], for the plugin to decode with its own type.

use russet_addr::{ContainerId, EndpointId, IfName, NetworkName};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::field::{self, Object};
use crate::{CniError, CniResult, Dns, FieldError, RuntimeConfig, Version};

/// A request's configuration (cni-runtime.md sections 1.2 and 1.6).
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    /// The version of the answer.
    pub cni_version: Version,
    /// The network's name.
    pub name: NetworkName,
    /// `type`: the plugin's name.
    pub kind: String,
    /// `ipam`, with its `type` inside.
    pub ipam: Option<Map<String, Value>>,
    /// `dns`.
    pub dns: Dns,
    /// `args`: values of an orchestrator, by convention.
    pub args: Map<String, Value>,
    /// `runtimeConfig`: the runtime's values for the capabilities.
    pub runtime_config: RuntimeConfig,
    /// `capabilities`, which should not be here, but libcni leaves them in.
    pub capabilities: Map<String, Value>,
    /// Every other member, unchanged.
    pub settings: Map<String, Value>,
    prev_result: Option<Value>,
    attachments: Option<Value>,
}

/// The names under which runtimes send the attachments that GC must keep, the newer first.
pub const ATTACHMENT_KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

// === impl NetworkConfig ===

impl NetworkConfig {
    /// Reads stdin, in skel's order: JSON (code 6), name (7), version (1).
    pub fn parse(bytes: &[u8]) -> Result<Self, CniError> {
        let mut object = object_of(bytes)?;
        let name = name_of(&object)?;
        let cni_version = version_of(&object)?;
        let mut config = Self {
            cni_version,
            name,
            kind: field::text(&object, "type").map_err(malformed)?.to_owned(),
            ipam: field::object(&object, "ipam").map_err(malformed)?.cloned(),
            dns: dns_of(&object).map_err(malformed)?,
            args: member(&object, "args")?,
            runtime_config: RuntimeConfig::new(member(&object, "runtimeConfig")?),
            capabilities: member(&object, "capabilities")?,
            settings: Map::new(),
            prev_result: field::present(&object, "prevResult").cloned(),
            attachments: ATTACHMENT_KEYS.iter().find_map(|key| field::present(&object, key)).cloned(),
        };
        object.retain(|key, _| !TYPED.contains(&key.as_str()) && !ATTACHMENT_KEYS.contains(&key.as_str()));
        config.settings = object;
        Ok(config)
    }

    /// The result of the plugin before (ADD) or of the whole chain (CHECK, DEL), in the configuration's version.
    pub fn prev_result(&self) -> Result<Option<CniResult>, CniError> {
        let Some(value) = &self.prev_result else { return Ok(None) };
        let read = CniResult::from_value(value, self.cni_version).and_then(|it| it.convert(self.cni_version));
        read.map(Some)
            .map_err(|error| CniError::from(error).during("prevResult").in_version(self.cni_version))
    }

    /// The attachments that GC must keep; none if the runtime sent no list, which is not the same
    /// as an empty one.
    ///
    /// One invalid entry invalidates the list: skipping it would delete the attachment that it
    /// names.
    pub fn valid_attachments(&self) -> Result<Option<Vec<EndpointId>>, CniError> {
        let Some(value) = &self.attachments else { return Ok(None) };
        let [key, _] = ATTACHMENT_KEYS;
        let wrapped = Map::from_iter([(key.to_owned(), value.clone())]);
        let read = field::objects(&wrapped, key, |object| valid_attachment(&self.name, object));
        read.map(Some).map_err(|error| invalid(error).in_version(self.cni_version))
    }

    /// [`valid_attachments`](Self::valid_attachments) of a GC, which must have the list (CNI
    /// specification 1.1.0, section 2, GC, "Input"). Without it no attachment is known to be valid,
    /// and success would mean that nothing stale is left.
    pub fn required_attachments(&self) -> Result<Vec<EndpointId>, CniError> {
        let missing = || {
            let [key, _] = ATTACHMENT_KEYS;
            let details = "GC takes the list of valid attachments from it, which may be empty; `russet cni gc --all` sends an empty one";
            CniError::invalid_config(format!("GC without the key {key:?}"), details)
                .in_version(self.cni_version)
        };
        self.valid_attachments()?.ok_or_else(missing)
    }

    /// `ipam.type`, if there is one.
    pub fn ipam_kind(&self) -> Option<&str> {
        self.ipam.as_ref()?.get("type")?.as_str().filter(|kind| !kind.is_empty())
    }

    /// The plugin's own members, decoded into its own type.
    pub fn read_settings<T: DeserializeOwned>(&self) -> Result<T, CniError> {
        let value = Value::Object(self.settings.clone());
        serde_json::from_value(value).map_err(|error| {
            let error = CniError::invalid_config(format!("invalid configuration of {:?}", self.kind), error);
            error.in_version(self.cni_version)
        })
    }
}

/// Members with their own fields.
const TYPED: [&str; 9] =
    ["cniVersion", "name", "type", "ipam", "dns", "args", "runtimeConfig", "capabilities", "prevResult"];

fn object_of(bytes: &[u8]) -> Result<Object, CniError> {
    let error = |details: String| CniError::decoding("failed to decode the network configuration", details);
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(error("a JSON object is wanted".into())),
        Err(problem) => Err(error(problem.to_string())),
    }
}

fn name_of(object: &Object) -> Result<NetworkName, CniError> {
    match field::text(object, "name").map_err(malformed)? {
        "" => Err(CniError::invalid_config("missing network name", "the key \"name\" is required")),
        name => NetworkName::new(name)
            .map_err(|error| CniError::invalid_config("invalid characters found in network name", error)),
    }
}

fn version_of(object: &Object) -> Result<Version, CniError> {
    let text = field::text(object, "cniVersion").map_err(malformed)?;
    Version::of_config(text).map_err(|error| {
        let details = format!("config is {:?}, plugin supports [{}]", error.0, Version::list());
        CniError::incompatible_version("incompatible CNI versions", details)
    })
}

fn dns_of(object: &Object) -> Result<Dns, FieldError> {
    let read = |dns| Dns::read(dns).map_err(|error| error.within("dns"));
    Ok(field::object(object, "dns")?.map(read).transpose()?.unwrap_or_default())
}

fn member(object: &Object, key: &str) -> Result<Object, CniError> {
    Ok(field::object(object, key).map_err(malformed)?.cloned().unwrap_or_default())
}

fn malformed(error: FieldError) -> CniError {
    CniError::decoding("failed to decode the network configuration", error)
}

fn invalid(error: FieldError) -> CniError {
    CniError::invalid_config("invalid network configuration", error)
}

fn valid_attachment(network: &NetworkName, object: &Object) -> Result<EndpointId, FieldError> {
    let wrong = |key: &'static str| move |error| FieldError::new(key, format!("{error}"));
    let container = ContainerId::new(field::text(object, "containerID")?);
    let ifname = IfName::new(field::text(object, "ifname")?);
    Ok(EndpointId {
        network: network.clone(),
        container: container.map_err(wrong("containerID"))?,
        ifname: ifname.map_err(wrong("ifname"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code;

    fn parse(text: &str) -> Result<NetworkConfig, CniError> {
        NetworkConfig::parse(text.as_bytes())
    }

    #[test]
    fn unknown_members_are_kept_with_all_their_digits() {
        // cni-runtime.md sections 1.2 and 2.2
        let config = parse(
            r#"{"cniVersion":"1.0.0","name":"n","type":"russet","capabilities":{"mac":true},"ipam":{"type":"host-local"},
                "sequence":9007199254740993,"max":18446744073709551615,"mtu":1400,"dns":{"domain":"a.b"},"x":null}"#,
        )
        .unwrap();
        assert_eq!(config.settings["sequence"].to_string(), "9007199254740993");
        assert_eq!(config.settings["max"].to_string(), "18446744073709551615");
        assert_eq!(config.settings.keys().collect::<Vec<_>>(), ["sequence", "max", "mtu", "x"]);
        assert_eq!((config.ipam_kind(), config.dns.domain.as_str()), (Some("host-local"), "a.b"));
        #[derive(serde::Deserialize)]
        struct Own {
            mtu: u32,
        }
        assert_eq!(config.read_settings::<Own>().unwrap().mtu, 1400);
        assert_eq!(config.read_settings::<Vec<u8>>().unwrap_err().code, code::INVALID_CONFIG);
    }

    #[test]
    fn what_is_no_object_has_code_6() {
        // cni-runtime.md section 6.2 item 4
        for bad in [
            "{bad",
            "",
            "null",
            "[]",
            "7",
            "{\"name\":7}",
            "{\"name\":\"n\",\"dns\":[]}",
            "{\"name\":\"\u{1}\"}",
        ] {
            assert_eq!(parse(bad).unwrap_err().code, code::DECODING, "{bad}");
        }
        let deep = format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        assert_eq!(parse(&deep).unwrap_err().code, code::DECODING);
        assert_eq!(NetworkConfig::parse(b"{\"name\":\"\xff\"}").unwrap_err().code, code::DECODING);
    }

    #[test]
    fn a_missing_or_bad_name_has_code_7() {
        // cni-runtime.md section 6.2 items 5 and 11
        assert_eq!(parse("{}").unwrap_err().code, code::INVALID_CONFIG);
        let error = parse(r#"{"name":"a/b"}"#).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert_eq!(error.msg, "invalid characters found in network name");
        assert!(error.details.contains("a/b"));
    }

    #[test]
    fn an_unknown_version_has_code_1_and_the_supported_ones() {
        // cni-runtime.md section 6.2 item 7
        let error = parse(r#"{"name":"n","cniVersion":"9.9.9"}"#).unwrap_err();
        assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
        assert!(error.details.contains("9.9.9") && error.details.contains("1.1.0"), "{error}");
        assert_eq!(parse(r#"{"name":"n"}"#).unwrap().cni_version, Version::V0_1_0, "absent is 0.1.0");
    }

    #[test]
    fn a_previous_result_takes_the_configurations_version() {
        // cni-runtime.md section 1.8
        let config = r#"{"name":"n","cniVersion":"1.0.0","prevResult":{"ips":[{"address":"10.1.2.3/24"}]}}"#;
        let result = parse(config).unwrap().prev_result().unwrap().unwrap();
        assert_eq!((result.cni_version, result.ips.len()), (Version::V1_0_0, 1));
        let config = parse(r#"{"name":"n","cniVersion":"1.0.0","prevResult":{"ips":7}}"#).unwrap();
        let error = config.prev_result().unwrap_err();
        assert_eq!((error.code, error.cni_version.as_str()), (code::DECODING, "1.0.0"));
        assert_eq!(parse(r#"{"name":"n","prevResult":null}"#).unwrap().prev_result(), Ok(None));
    }

    #[test]
    fn an_absent_list_of_valid_attachments_is_not_an_empty_one() {
        // cni-runtime.md sections 1.5 and 1.6
        assert_eq!(parse(r#"{"name":"n"}"#).unwrap().valid_attachments(), Ok(None));
        let missing = parse(r#"{"name":"n"}"#).unwrap().required_attachments().unwrap_err();
        assert_eq!(missing.code, code::INVALID_CONFIG);
        assert!(missing.msg.contains("cni.dev/valid-attachments"), "{missing}");
        let empty = parse(r#"{"name":"n","cni.dev/valid-attachments":[]}"#).unwrap();
        assert_eq!(empty.required_attachments(), Ok(Vec::new()));
        for key in ATTACHMENT_KEYS {
            let config = format!(r#"{{"name":"n","{key}":[{{"containerID":"c1","ifname":"eth0"}}]}}"#);
            let config = parse(&config).unwrap();
            assert_eq!(config.valid_attachments().unwrap().unwrap()[0].container.as_str(), "c1");
            assert!(config.settings.is_empty());
        }
        let config =
            parse(r#"{"name":"n","cni.dev/attachments":[{"containerID":"../c","ifname":"eth0"}]}"#).unwrap();
        let error = config.valid_attachments().unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert!(error.details.contains("[0].containerID"), "{error}");
    }
}
