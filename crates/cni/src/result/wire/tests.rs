use super::*;

fn decode(text: &str, version: Version) -> Result<CniResult, ResultError> {
    CniResult::decode(text.as_bytes(), version)
}

/// Reads and writes a document that must come out byte for byte.
fn round_trip(text: &str) {
    let result = decode(text, Version::V0_1_0).unwrap();
    assert_eq!(String::from_utf8(result.encode()).unwrap(), text);
}

#[test]
fn each_shape_survives_a_round_trip() {
    // cni-runtime.md section 1.7
    round_trip(
        r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.2/24","gateway":"10.9.0.1","routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::2/64"},"dns":{}}"#,
    );
    round_trip(
        r#"{"cniVersion":"0.3.1","interfaces":[{"name":"eth0","mac":"62:4d:8b:7d:de:7e","sandbox":"/run/netns/c1"}],"ips":[{"version":"4","interface":0,"address":"10.1.2.3/24"},{"version":"6","address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1","mtu":1400,"table":7}],"dns":{}}"#,
    );
    round_trip(
        r#"{"cniVersion":"1.1.0","interfaces":[{"name":"cni0"},{"name":"eth0","mac":"62:4d:8b:7d:de:7e","mtu":1450,"sandbox":"/run/netns/c1","socketPath":"/s","pciID":"0000:00:1f.6"}],"ips":[{"interface":1,"address":"10.202.0.2/24","gateway":"10.202.0.1"}],"routes":[{"dst":"172.30.0.0/16","gw":"10.202.0.1","mtu":1400,"advmss":1360,"priority":50,"table":0,"scope":0}],"dns":{"nameservers":["10.96.0.10"],"domain":"a.b","search":["c"],"options":["ndots:5"]}}"#,
    );
    round_trip(r#"{"cniVersion":"1.0.0"}"#);
    round_trip(r#"{"cniVersion":"0.4.0","dns":{}}"#);
}

#[test]
fn a_missing_label_means_the_configurations_version() {
    // cni-runtime.md section 6.2 item 15
    for text in [r#"{"ips":[]}"#, r#"{"cniVersion":"","ips":null}"#, r#"{"cniVersion":null}"#, "{}", "null"] {
        let result = decode(text, Version::V1_1_0).unwrap();
        assert_eq!(result, CniResult::empty(Version::V1_1_0), "{text}");
    }
}

#[test]
fn empty_and_null_results_are_accepted() {
    // cni-runtime.md section 6.2 item 16
    for version in Version::ALL {
        assert_eq!(decode("{}", version).unwrap(), CniResult::empty(version));
        assert_eq!(decode("null", version).unwrap(), CniResult::empty(version));
    }
    let error = decode("", Version::V1_0_0).unwrap_err().to_string();
    assert!(error.starts_with("failed to unmarshal raw result: EOF"), "{error}");
}

#[test]
fn an_unknown_label_is_refused() {
    // cni-runtime.md section 6.2 item 17
    let error = decode(r#"{"cniVersion":"9.9.9"}"#, Version::V1_0_0).unwrap_err();
    assert_eq!(error.to_string(), "unsupported CNI result version \"9.9.9\"");
}

#[test]
fn a_new_body_under_an_old_label_is_read() {
    // cni-runtime.md section 0 items 2 and 3: the reference loopback leaves `version` out
    let text = r#"{"cniVersion":"0.3.1","interfaces":[{"name":"lo","mac":"00:00:00:00:00:00"}],"ips":[{"interface":0,"address":"127.0.0.1/8"}]}"#;
    let result = decode(text, Version::V0_3_1).unwrap();
    assert_eq!(result.ips[0].address.to_string(), "127.0.0.1/8", "host bits are kept");
    assert!(String::from_utf8(result.encode()).unwrap().contains(r#""version":"4""#));
}

#[test]
fn every_version_has_its_own_form_of_two_families() {
    // cni-runtime.md section 6.2 item 34
    let text = r#"{"ips":[{"address":"10.0.0.2/24"},{"address":"fd00::2/64"}],"routes":[{"dst":"::/0"},{"dst":"0.0.0.0/0"}]}"#;
    let result = decode(text, Version::V1_1_0).unwrap();
    let old = result.convert(Version::V0_2_0).unwrap().to_value();
    assert_eq!(old["ip4"]["routes"][0]["dst"], "0.0.0.0/0");
    assert_eq!(old["ip6"]["routes"][0]["dst"], "::/0");
    let middle = result.convert(Version::V0_3_1).unwrap().to_value();
    assert_eq!(
        (middle["ips"][0]["version"].as_str(), middle["ips"][1]["version"].as_str()),
        (Some("4"), Some("6"))
    );
    assert!(middle.get("dns").is_some() && result.to_value().get("dns").is_none());
    assert!(result.to_value()["ips"][0].get("version").is_none());
}

#[test]
fn an_index_out_of_range_is_reported_and_never_printed() {
    // cni-runtime.md section 6.2 item 55
    let text = |index: i64| {
        format!(
            r#"{{"interfaces":[{{"name":"eth0"}}],"ips":[{{"address":"10.0.0.2/24","interface":{index}}}]}}"#
        )
    };
    let unset = decode(&text(-1), Version::V1_0_0).unwrap();
    assert_eq!(unset.ips[0].interface, None);
    unset.validate().unwrap();
    for bad in [1, 7, i64::from(u32::MAX)] {
        let result = decode(&text(bad), Version::V1_0_0).unwrap();
        let error = result.validate().unwrap_err().to_string();
        assert!(error.contains("ips[0].interface") && error.contains("1 interfaces"), "{error}");
        assert!(result.to_value()["ips"][0].get("interface").is_none());
    }
    assert!(decode(&text(i64::MAX), Version::V1_0_0).is_err());
    assert!(decode(&text(-2), Version::V1_0_0).is_err());
}

#[test]
fn errors_say_where() {
    let wrong = |text| decode(text, Version::V1_0_0).unwrap_err().to_string();
    assert!(
        wrong(r#"{"ips":[{"address":"10.0.0.2/24"},{"address":"10.0.0.2"}]}"#).contains("ips[1].address")
    );
    assert!(wrong(r#"{"ips":[{}]}"#).contains("ips[0].address: it is missing"));
    assert!(wrong(r#"{"routes":[{"dst":"0.0.0.0/0","gw":"x"}]}"#).contains("routes[0].gw"));
    assert!(wrong(r#"{"dns":{"search":[7]}}"#).contains("dns.search[0]"));
    assert!(wrong(r#"{"cniVersion":"0.2.0","ip4":{"ip":"x"}}"#).contains("ip4.ip"));
    for text in ["[]", "7", "\"x\"", "{\"ips\":{}}", "{\"ips\":[[]]}", "{\"interfaces\":[7]}"] {
        wrong(text);
    }
    wrong(&"[".repeat(1_000_000));
}
