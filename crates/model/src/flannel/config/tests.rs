//! The tables of flannel.md section 2 and rows T04 to T08 of section 10, as far as they are about the configuration.

use super::*;

fn config(text: &str) -> Result<NetworkConfig, String> {
    NetworkConfig::parse(text.as_bytes())
        .and_then(NetworkConfig::validated)
        .map_err(|error| error.to_string())
}

fn v4(text: &str) -> (u8, String, String) {
    let config = config(text).unwrap();
    (config.subnet_len, config.subnet_min.to_string(), config.subnet_max.to_string())
}

fn is(len: u8, min: &str, max: &str) -> (u8, String, String) {
    (len, min.to_owned(), max.to_owned())
}

#[test]
fn t05_and_t06_a_network_gives_its_default_subnets() {
    // flannel.md section 2, the table of defaults; T05: a /25 gives /27, T06: a /28 gives /30 and a /29 is too small.
    assert_eq!(v4(r#"{"Network":"10.5.0.0/16"}"#), is(24, "10.5.1.0", "10.5.255.0"));
    assert_eq!(v4(r#"{"Network":"10.5.0.0/20"}"#), is(24, "10.5.1.0", "10.5.15.0"));
    assert_eq!(v4(r#"{"Network":"10.5.0.0/22"}"#), is(24, "10.5.1.0", "10.5.3.0"));
    assert_eq!(v4(r#"{"Network":"10.5.0.0/23"}"#), is(25, "10.5.0.128", "10.5.1.128"));
    assert_eq!(v4(r#"{"Network":"10.5.6.0/24"}"#), is(26, "10.5.6.64", "10.5.6.192"));
    assert_eq!(v4(r#"{"Network":"10.5.6.0/25"}"#), is(27, "10.5.6.32", "10.5.6.96"));
    assert_eq!(v4(r#"{"Network":"10.5.6.0/26"}"#), is(28, "10.5.6.16", "10.5.6.48"));
    assert_eq!(v4(r#"{"Network":"10.5.6.0/28"}"#), is(30, "10.5.6.4", "10.5.6.12"));
    assert!(config(r#"{"Network":"10.5.6.0/29"}"#).unwrap_err().contains("too small"));
    assert_eq!(v4(r#"{"Network":"255.0.0.0/8"}"#), is(24, "255.0.1.0", "255.255.255.0"));
}

#[test]
fn t07_a_subnet_length_leaves_room_for_four_subnets_of_two_addresses() {
    let with = |len: u32| format!(r#"{{"Network":"10.5.0.0/16","SubnetLen":{len}}}"#);
    for len in [31, 17, 32, 99, 256, 4_000_000] {
        assert!(config(&with(len)).is_err(), "{len}");
    }
    assert_eq!(v4(&with(18)), is(18, "10.5.64.0", "10.5.192.0"));
    assert_eq!(v4(&with(30)), is(30, "10.5.0.4", "10.5.255.252"));
    assert!(config(r#"{"Network":"10.5.0.0/16","SubnetLen":-1}"#).is_err());
}

#[test]
fn t08_the_first_and_last_subnet_are_aligned_and_within_the_network() {
    let with = |name: &str, address: &str| format!(r#"{{"Network":"10.6.0.0/16","{name}":"{address}"}}"#);
    assert!(config(&with("SubnetMin", "10.6.3.1")).unwrap_err().contains("boundary"));
    assert!(config(&with("SubnetMax", "10.6.3.128")).unwrap_err().contains("boundary"));
    assert!(config(&with("SubnetMin", "10.7.3.0")).unwrap_err().contains("not within"));
    assert!(config(&with("SubnetMax", "10.5.3.0")).unwrap_err().contains("not within"));
    assert!(config(&with("SubnetMin", "10.6.3")).is_err());
    // The order of the two is not checked: no subnet is found then.
    let text = r#"{"Network":"10.6.0.0/16","SubnetMin":"10.6.9.0","SubnetMax":"10.6.3.0"}"#;
    assert_eq!(v4(text), is(24, "10.6.9.0", "10.6.3.0"));
}

#[test]
fn decoding_is_gos() {
    // flannel.md section 2, [EXP]: names in any case, unknown ones ignored, null leaves the default, host bits are masked off.
    let text = r#"{"NETWORK":"10.6.5.7/16","subnetlen":25,"SubnetMin":null,"EnableIPv4":null,"Nonsense":{"a":1},
        "Networks":["10.1.0.0/16"],"EnableNFTables":true,"backend":{"type":"VxLan","PORT":4789,"vni":null,"DirectRouting":true}}"#;
    let config = config(text).unwrap();
    assert_eq!((config.network.unwrap().to_string().as_str(), config.subnet_len), ("10.6.0.0/16", 25));
    assert!(config.enable_ipv4 && !config.enable_ipv6 && config.enable_nftables);
    let backend = &config.backend;
    assert_eq!((backend.u32("Port").unwrap(), backend.u32("VNI").unwrap()), (Some(4789), None));
    assert_eq!(
        (backend.bool("DirectRouting").unwrap(), backend.str("Type").unwrap()),
        (Some(true), Some("VxLan"))
    );
    assert!(backend.u32("Type").is_err() && backend.bool("Port").is_err() && backend.str("Port").is_err());
}

#[test]
fn values_of_another_type_are_errors() {
    for text in [
        r#"{"Network":"10.5.0.0/16","SubnetLen":"24"}"#,
        r#"{"Network":5}"#,
        r#"{"Network":"10.5.0.0"}"#,
        r#"{"Network":"fd00::/48"}"#,
        r#"{"Network":"10.5.0.0/16","EnableIPv6":1}"#,
        r#"{"Network":"10.5.0.0/16","Backend":"vxlan"}"#,
        r#"{"Network":"10.5.0.0/16","Backend":{"Type":1}}"#,
        r#"{"Network":"10.5.0.0/33"}"#,
        "",
        "x",
        "[]",
    ] {
        assert!(NetworkConfig::parse(text.as_bytes()).is_err(), "{text}");
    }
    for text in ["{}", "null", r#"{"Network":""}"#, r#"{"Network":"0.0.0.0/0"}"#] {
        assert!(config(text).unwrap_err().contains("Network"), "{text}");
    }
}

#[test]
fn t04_the_backends_name_is_taken_in_any_case_and_is_udp_when_there_is_none() {
    let kind =
        |backend: &str| config(&format!(r#"{{"Network":"10.5.0.0/16"{backend}}}"#)).unwrap().backend.kind;
    assert_eq!(kind(""), "udp");
    assert_eq!(kind(r#","Backend":{"Type":"VxLan"}"#), "vxlan");
    // No daemon knows a backend without a name: exit 1 (flannel.md T03).
    assert_eq!((kind(r#","Backend":{}"#), kind(r#","Backend":null"#)), (String::new(), String::new()));
}

#[test]
fn ipv6_has_the_same_rules_with_its_own_numbers() {
    let v6 = |rest: &str| {
        let text = format!(r#"{{"EnableIPv4":false,"EnableIPv6":true,{rest}}}"#);
        config(&text)
            .map(|c| (c.ipv6_subnet_len, c.ipv6_subnet_min.to_string(), c.ipv6_subnet_max.to_string()))
    };
    assert_eq!(v6(r#""IPv6Network":"fd6a:60::/48""#).unwrap(), is(64, "fd6a:60:0:1::", "fd6a:60:0:ffff::"));
    assert_eq!(
        v6(r#""IPv6Network":"fd6a:60::/63""#).unwrap(),
        is(65, "fd6a:60:0:0:8000::", "fd6a:60:0:1:8000::")
    );
    assert_eq!(v6(r#""IPv6Network":"fd6a::/124""#).unwrap(), is(126, "fd6a::4", "fd6a::c"));
    assert!(v6(r#""IPv6Network":"fd6a::/125""#).is_err());
    assert!(v6(r#""IPv6Network":"fd6a::/64","IPv6SubnetLen":127"#).is_err());
    assert!(v6(r#""IPv6Network":"fd6a::/64","IPv6SubnetLen":65"#).is_err());
    assert!(v6(r#""IPv6Network":"fd6a::/64","IPv6SubnetLen":126"#).is_ok());
    assert!(v6(r#""IPv6Network":"::/0""#).is_err() && v6(r#""Network":"10.5.0.0/16""#).is_err());
    assert!(
        v6(r#""IPv6Network":"fd6a::/48","IPv6SubnetMin":"fd6a:0:0:1::1""#).unwrap_err().contains("boundary")
    );
    assert!(v6(r#""IPv6Network":"fd6a::/48","IPv6SubnetMax":"fd6b::""#).unwrap_err().contains("not within"));
}

#[test]
fn the_example_with_everything_is_read() {
    let text = r#"{"EnableIPv4":true,"EnableIPv6":true,"EnableNFTables":false,"Network":"10.60.0.0/15","SubnetLen":25,"SubnetMin":"10.60.4.0","SubnetMax":"10.61.255.128",
        "IPv6Network":"fd6a:60::/48","IPv6SubnetLen":64,"Backend":{"Type":"vxlan","VNI":42,"Port":4789,"DirectRouting":true,"MTU":1400}}"#;
    assert_eq!(v4(text), is(25, "10.60.4.0", "10.61.255.128"));
    let config = config(text).unwrap();
    assert_eq!(
        (config.v4().unwrap().to_string(), config.v6().unwrap().to_string()),
        ("10.60.0.0/15".into(), "fd6a:60::/48".into())
    );
    assert_eq!(config.backend.u32("mtu").unwrap(), Some(1400));
}
