//! Renders the delegate's configuration as the flannel plugin does (flannel.md section 8, ADD steps
//! 2 to 4). Pure.

use russet_cni_spec::{CniError, CniResult, NetworkConfig, Version};
use serde_json::{Map, Value, json};

use super::subnet_env::SubnetEnv;

/// The delegate's type if none is given.
const DEFAULT_DELEGATE: &str = "bridge";
/// The type of the IPAM plugin if none is given.
const DEFAULT_IPAM: &str = "host-local";

/// Renders the delegate's configuration. `given` is the decoded `stdin`, from which values are
/// copied unchanged.
pub fn render(
    config: &NetworkConfig,
    given: &Map<String, Value>,
    env: &SubnetEnv,
) -> Result<Value, CniError> {
    let mut delegate = match config.settings.get("delegate") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(delegate)) => delegate.clone(),
        Some(other) => {
            return Err(invalid(
                "'delegate' dictionary, if specified in the configuration, must be an object",
                other,
            ));
        }
    };
    for key in ["name", "ipam"] {
        if let Some(value) = delegate.get(key) {
            let msg = format!("'delegate' dictionary must not have '{key}' field, it'll be set by flannel");
            return Err(invalid(&msg, value));
        }
    }
    match delegate.get("type") {
        None | Some(Value::String(_)) => {}
        Some(other) => {
            return Err(invalid("'delegate' dictionary, if present, must have (string) 'type' field", other));
        }
    }
    let mut default = |key: &str, value: Value| {
        delegate.entry(key).or_insert(value);
    };
    default("type", DEFAULT_DELEGATE.into());
    default("ipMasq", (!env.ip_masq).into());
    default("mtu", env.mtu.into());
    if delegate.get("type").and_then(Value::as_str) == Some(DEFAULT_DELEGATE) {
        delegate.entry("isGateway").or_insert(true.into());
    }
    delegate.insert("name".into(), config.name.as_str().into());
    for key in ["cniVersion", "runtimeConfig"] {
        if let Some(value) = given.get(key).filter(|value| !value.is_null() && *value != "") {
            delegate.insert(key.into(), value.clone());
        }
    }
    delegate.insert("ipam".into(), ipam(config, env)?);
    Ok(sorted(Value::Object(delegate)))
}

/// The plugin type of a rendered configuration.
pub fn kind(rendered: &Value) -> Option<&str> {
    rendered.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty())
}

fn ipam(config: &NetworkConfig, env: &SubnetEnv) -> Result<Value, CniError> {
    let mut ipam = config.ipam.clone().unwrap_or_default();
    ipam.entry("type").or_insert(DEFAULT_IPAM.into());
    let subnets = [env.subnet.map(|net| net.to_string()), env.subnet_v6.map(|net| net.to_string())];
    let ranges = subnets.into_iter().flatten().map(|subnet| json!([{ "subnet": subnet }]));
    ipam.insert("ranges".into(), ranges.collect());
    let mut routes = match ipam.get("routes") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(routes)) => routes.clone(),
        Some(other) => return Err(invalid("ipam.routes is no list", other)),
    };
    // Invalid routes are refused here: an error from the delegate would not point to flannel's
    // configuration.
    CniResult::from_value(&json!({ "routes": routes }), Version::LATEST)
        .map_err(|error| invalid("ipam.routes cannot be", error))?;
    let networks = env.networks.iter().map(ToString::to_string);
    let networks = networks.chain(env.networks_v6.iter().map(ToString::to_string));
    routes.extend(networks.map(|network| json!({ "dst": network })));
    ipam.insert("routes".into(), routes.into());
    Ok(Value::Object(ipam))
}

/// Sorts the keys of all objects, as Go encodes maps.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut members: Vec<(String, Value)> = object.into_iter().collect();
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            Value::Object(members.into_iter().map(|(key, value)| (key, sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

fn invalid(msg: &str, details: impl ToString) -> CniError {
    CniError::invalid_config(format!("flannel: {msg}"), details)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENV: &str =
        "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    const DUAL: &str = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:5::/48\nFLANNEL_IPV6_SUBNET=fd00:10:5:30::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

    fn rendered(given: Value, env: &str) -> Result<String, CniError> {
        let config = NetworkConfig::parse(given.to_string().as_bytes()).unwrap();
        let env = SubnetEnv::parse(env).unwrap();
        render(&config, given.as_object().unwrap(), &env).map(|value| value.to_string())
    }

    #[test]
    fn t54_the_shipped_conflist_becomes_the_configuration_of_section_8() {
        // flannel.md section 8 and row T54 of section 10
        let given = json!({"name": "cbr0", "cniVersion": "0.3.1", "type": "flannel",
            "delegate": {"hairpinMode": true, "isDefaultGateway": true}});
        let expected = r#"{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.5.29.0/24"}]],"routes":[{"dst":"10.5.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#;
        assert_eq!(rendered(given, ENV).unwrap(), expected);
    }

    #[test]
    fn both_families_have_a_range_and_routes_and_ipv4_comes_first() {
        let given = json!({"name": "n", "type": "flannel", "ipam": {"ranges": [[{"subnet": "192.0.2.0/24"}]],
            "dataDir": "/d", "routes": [{"gw": "10.5.29.9", "dst": "0.0.0.0/0"}]}});
        let expected = r#"{"ipMasq":true,"ipam":{"dataDir":"/d","ranges":[[{"subnet":"10.5.29.0/24"}],[{"subnet":"fd00:10:5:30::/64"}]],"routes":[{"dst":"0.0.0.0/0","gw":"10.5.29.9"},{"dst":"10.5.0.0/16"},{"dst":"fd00:10:5::/48"}],"type":"host-local"},"isGateway":true,"mtu":1450,"name":"n","type":"bridge"}"#;
        assert_eq!(rendered(given, DUAL).unwrap(), expected);
    }

    #[test]
    fn the_delegates_own_settings_are_kept() {
        let given = json!({"name": "n", "type": "flannel", "runtimeConfig": {"mac": "02:00:00:00:00:01"},
            "delegate": {"type": "macvlan", "ipMasq": true, "mtu": 1300, "master": "eth7"}});
        let value: Value = serde_json::from_str(&rendered(given, ENV).unwrap()).unwrap();
        assert_eq!(
            (&value["type"], &value["ipMasq"], &value["mtu"]),
            (&"macvlan".into(), &true.into(), &1300.into())
        );
        assert!(value.get("isGateway").is_none() && value.get("cniVersion").is_none());
        assert_eq!(value["runtimeConfig"]["mac"], "02:00:00:00:00:01");
    }

    #[test]
    fn members_that_flannel_sets_are_refused() {
        // flannel.md section 8, ADD step 2
        for (delegate, word) in [
            (json!({"name": "x"}), "'name'"),
            (json!({"ipam": {}}), "'ipam'"),
            (json!({"type": 7}), "'type'"),
            (json!([]), "'delegate'"),
        ] {
            let error =
                rendered(json!({"name": "n", "type": "flannel", "delegate": delegate}), ENV).unwrap_err();
            assert!(error.code == 7 && error.msg.contains(word), "{error}");
        }
        let error =
            rendered(json!({"name": "n", "type": "flannel", "ipam": {"routes": [{}]}}), ENV).unwrap_err();
        assert!(error.msg.contains("ipam.routes"), "{error}");
    }
}
