//! The thin plugin's request (cni-runtime.md section 4.1): the stock format, checked in the stock
//! order with the stock error texts, and then further, so that its values are safe to use. Any
//! process of root may have sent it.

use std::path::Path;

use russet_addr::{ContainerId, IfName};
use russet_cni_spec::{NetworkConfig, Version, base64};
use russet_model::openshift::Namespace;
use serde_json::{Map, Value};

/// A valid request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub command: Command,
    pub pod: Pod,
    /// The version of the plugin's configuration.
    pub version: Version,
    /// The pod's annotations, if the runtime sends them with the configuration.
    pub annotations: Vec<(String, String)>,
}

/// The verb, with what only it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Attach the host end of a veth that the plugin has created.
    Add {
        host_veth: IfName,
        /// The namespace whose network ID the port gets.
        namespace: Namespace,
    },
    /// Detach the pod.
    Del,
    /// Read again which network ID the pod's namespace has; only the stock server itself ever sends
    /// this.
    Update {
        /// The namespace.
        namespace: Namespace,
    },
}

/// The pod of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The runtime's ID of the sandbox.
    pub sandbox: ContainerId,
    /// The path of its network namespace; empty if it no longer exists.
    pub netns: String,
    /// The pod's namespace as it was sent, for messages and for the Kubernetes API.
    pub namespace: String,
    /// The pod's name as it was sent.
    pub name: String,
}

/// The version of configurations of old plugins.
const DEFAULT_VERSION: Version = Version::V0_3_1;
/// Kubernetes' limit of names.
const NAME_MAX_BYTES: usize = 253;

// === impl Request ===

impl Request {
    /// Decodes a body. The error is the message for the plugin.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let unreadable = |error: &dyn std::fmt::Display| format!("JSON unmarshal error: {error}");
        let object: Map<String, Value> = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
        let env = env(&object).map_err(|error| unreadable(&error))?;
        let config = config(&object).map_err(|error| unreadable(&error))?;
        let veth = text(&object, "hostVeth").map_err(|error| unreadable(&error))?.unwrap_or_default();
        let var = |key: &str| env.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        let missing = |key: &str| format!("missing {key}");
        let command = var("CNI_COMMAND").ok_or("unexpected or missing CNI_COMMAND")?;
        let sandbox = var("CNI_CONTAINERID").ok_or_else(|| missing("CNI_CONTAINERID"))?;
        let netns = var("CNI_NETNS").ok_or_else(|| missing("CNI_NETNS"))?;
        if veth.is_empty() && command == "ADD" {
            return Err(missing("HostVeth"));
        }
        let args = args(var("CNI_ARGS").ok_or_else(|| missing("CNI_ARGS"))?)?;
        let arg = |key: &str| args.iter().rev().find(|(known, _)| *known == key).map(|(_, value)| *value);
        let namespace = arg("K8S_POD_NAMESPACE").ok_or_else(|| missing("K8S_POD_NAMESPACE"))?;
        let name = arg("K8S_POD_NAME").ok_or_else(|| missing("K8S_POD_NAME"))?;
        Self::checked(command, veth, pod(sandbox, netns, namespace, name)?, &config)
    }

    fn checked(command: &str, veth: &str, pod: Pod, config: &[u8]) -> Result<Self, String> {
        let namespace = || Namespace::new(pod.namespace.as_str()).map_err(|error| error.to_string());
        let command = match command {
            "ADD" => {
                let host_veth = IfName::new(veth).map_err(|error| format!("invalid HostVeth: {error}"))?;
                Command::Add { host_veth, namespace: namespace()? }
            }
            "DEL" => Command::Del,
            "UPDATE" => Command::Update { namespace: namespace()? },
            other => return Err(format!("unhandled CNI request {}", shown(other))),
        };
        // The stock server never reads it, and an invalid configuration must not prevent a DEL.
        let config = NetworkConfig::parse(config).ok();
        let version = config.as_ref().map_or(DEFAULT_VERSION, |config| config.cni_version);
        let annotations = config.and_then(|config| config.runtime_config.pod_annotations().ok());
        Ok(Self { command, pod, version, annotations: annotations.unwrap_or_default() })
    }
}

fn pod(sandbox: &str, netns: &str, namespace: &str, name: &str) -> Result<Pod, String> {
    let sandbox = ContainerId::new(sandbox).map_err(|error| format!("invalid CNI_CONTAINERID: {error}"))?;
    if !netns.is_empty() && (!Path::new(netns).is_absolute() || netns.contains('\0')) {
        return Err(format!("invalid CNI_NETNS {}: it is no absolute path", shown(netns)));
    }
    // They become parts of a URL and of records.
    for (key, value) in [("K8S_POD_NAMESPACE", namespace), ("K8S_POD_NAME", name)] {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if value.is_empty()
            || value.len() > NAME_MAX_BYTES
            || !value.bytes().all(good)
            || value.starts_with('.')
        {
            return Err(format!("invalid {key} {}", shown(value)));
        }
    }
    Ok(Pod { sandbox, netns: netns.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() })
}

fn env(object: &Map<String, Value>) -> Result<Vec<(String, String)>, String> {
    let env = match object.get("env") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(env)) => env,
        Some(_) => return Err("env is no object".to_owned()),
    };
    let pair = |(key, value): (&String, &Value)| match value {
        Value::String(value) => Ok((key.clone(), value.clone())),
        _ => Err(format!("env.{} is no text", shown(key))),
    };
    env.iter().map(pair).collect()
}

fn config(object: &Map<String, Value>) -> Result<Vec<u8>, String> {
    let encoded = text(object, "config")?.unwrap_or_default();
    base64::decode(encoded).map_err(|error| format!("config: {error}"))
}

fn text<'o>(object: &'o Map<String, Value>, key: &str) -> Result<Option<&'o str>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{key} is no text")),
    }
}

/// Pairs with exactly one `=` each, without surrounding blanks, as the stock server reads them.
fn args(text: &str) -> Result<Vec<(&str, &str)>, String> {
    text.split(';').map(arg).collect()
}

fn arg(pair: &str) -> Result<(&str, &str), String> {
    match pair.split_once('=') {
        Some((name, value)) if !value.contains('=') => Ok((name.trim(), value.trim())),
        _ => Err(format!("invalid CNI_ARG '{}'", shown(pair))),
    }
}

/// A short form without control characters.
fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ARGS: &str =
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=ce3d8b63";

    /// cni-runtime.md section 4.1, with 41 variables in the original.
    fn stock() -> Value {
        json!({"env": {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "ce3d8b63", "CNI_NETNS": "/var/run/netns/cni-7621", "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin", "CNI_ARGS": ARGS, "PATH": "/usr/bin"},
            "config": "eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoib3BlbnNoaWZ0LXNkbiIsInR5cGUiOiJvcGVuc2hpZnQtc2RuIn0=", "hostVeth": "veth93c4e628"})
    }

    fn parse(value: &Value) -> Result<Request, String> {
        Request::parse(value.to_string().as_bytes())
    }

    #[test]
    fn the_captured_request_is_decoded() {
        let request = parse(&stock()).unwrap();
        let Command::Add { host_veth, namespace } = request.command else { panic!() };
        assert_eq!((host_veth.as_str(), namespace.as_str()), ("veth93c4e628", "ns1"));
        assert_eq!((request.pod.sandbox.as_str(), request.pod.name.as_str()), ("ce3d8b63", "web"));
        assert_eq!(request.version, Version::V0_3_1);
    }

    #[test]
    fn missing_keys_are_reported_in_the_stock_order_and_words() {
        // cni-runtime.md section 6.2 item 49; section 4.1: JSON, COMMAND, CONTAINERID, NETNS, hostVeth, ARGS, namespace, name
        let mut request = stock();
        let order = [
            ("CNI_ARGS", "missing CNI_ARGS"),
            ("hostVeth", "missing HostVeth"),
            ("CNI_NETNS", "missing CNI_NETNS"),
            ("CNI_CONTAINERID", "missing CNI_CONTAINERID"),
            ("CNI_COMMAND", "unexpected or missing CNI_COMMAND"),
        ];
        for (key, expected) in order {
            // Each request also lacks all earlier keys: the first missing one is reported.
            request.as_object_mut().unwrap().remove(key);
            request["env"].as_object_mut().unwrap().remove(key);
            assert_eq!(parse(&request).unwrap_err(), expected);
        }
        assert!(Request::parse(b"{bad").unwrap_err().starts_with("JSON unmarshal error: "));
        let with = |args: &str| {
            let mut request = stock();
            request["env"]["CNI_ARGS"] = args.into();
            parse(&request)
        };
        assert_eq!(with("").unwrap_err(), "invalid CNI_ARG ''");
        assert_eq!(with("A=1=2").unwrap_err(), "invalid CNI_ARG 'A=1=2'");
        assert_eq!(with("K8S_POD_NAME=web").unwrap_err(), "missing K8S_POD_NAMESPACE");
        assert_eq!(with("K8S_POD_NAMESPACE=ns1").unwrap_err(), "missing K8S_POD_NAME");
        assert_eq!(with("K8S_POD_NAMESPACE= ns1 ;K8S_POD_NAME=web").unwrap().pod.namespace, "ns1");
    }

    #[test]
    fn an_empty_namespace_path_counts_as_present() {
        // cni-runtime.md section 4.1: the key has to be there, and may be ""
        let mut request = stock();
        request["env"]["CNI_NETNS"] = "".into();
        request["env"]["CNI_COMMAND"] = "DEL".into();
        request.as_object_mut().unwrap().remove("hostVeth");
        assert_eq!(parse(&request).unwrap().command, Command::Del);
        request["env"]["CNI_COMMAND"] = "FOO".into();
        assert_eq!(parse(&request).unwrap_err(), "unhandled CNI request FOO");
    }

    #[test]
    fn hostile_values_are_refused() {
        for (pointer, value) in [
            ("/env/CNI_CONTAINERID", "../../etc"),
            ("/env/CNI_CONTAINERID", ""),
            ("/env/CNI_NETNS", "netns"),
            ("/env/CNI_NETNS", "/a\0b"),
            ("/env/CNI_ARGS", "K8S_POD_NAMESPACE=../x;K8S_POD_NAME=web"),
            ("/env/CNI_ARGS", "K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=a/b"),
            ("/env/CNI_ARGS", "K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=.."),
            ("/env/CNI_ARGS", "K8S_POD_NAMESPACE=NS;K8S_POD_NAME=web"),
            ("/hostVeth", "a/b"),
            ("/hostVeth", "veth0123456789ab"),
            ("/config", "*"),
        ] {
            let mut request = stock();
            *request.pointer_mut(pointer).unwrap() = value.into();
            assert!(parse(&request).is_err(), "{pointer} {value:?}");
        }
        for bad in [json!([]), json!({"env": []}), json!({"env": {"CNI_COMMAND": 1}}), json!({"hostVeth": 1})]
        {
            assert!(parse(&bad).unwrap_err().contains("JSON unmarshal error"), "{bad}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(Request::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn the_configurations_version_is_read() {
        for (config, version) in [
            (r#"{"cniVersion":"0.2.0","name":"openshift-sdn"}"#, Version::V0_2_0),
            (r#"{"cniVersion":"1.1.0","name":"openshift-sdn"}"#, Version::V1_1_0),
            (r#"{"cniVersion":"9.9.9","name":"openshift-sdn"}"#, DEFAULT_VERSION),
            ("{bad", DEFAULT_VERSION),
            ("", DEFAULT_VERSION),
        ] {
            let mut request = stock();
            request["config"] = base64::encode(config.as_bytes()).into();
            assert_eq!(parse(&request).unwrap().version, version, "{config}");
        }
    }
}
