use super::*;

fn parse(text: &str) -> Result<ConfigList, ConfigError> {
    ConfigList::parse(text.as_bytes())
}

#[test]
fn the_version_is_the_greatest_supported_one() {
    // cni-runtime.md section 6.2 item 12
    let text = r#"{"cniVersion":"0.4.0","cniVersions":["1.0.0","1.1.0","9.0.0"],"name":"n","plugins":[{"type":"a"}]}"#;
    let list = parse(text).unwrap();
    assert_eq!(list.version(), Ok(Version::V1_1_0));
    assert_eq!(list.bytes, text.as_bytes());
    let list = parse(r#"{"cniVersion":"2.0.0","name":"n","plugins":[{"type":"a"}]}"#).unwrap();
    assert_eq!(list.cni_version, "2.0.0");
    assert!(list.version().is_err());
    let list = parse(r#"{"name":"n","plugins":[{"type":"a"}]}"#).unwrap();
    assert_eq!(list.version(), Ok(Version::V0_1_0));
    assert!(parse(r#"{"cniVersions":["1.0.0",7],"name":"n","plugins":[{"type":"a"}]}"#).is_err());
}

#[test]
fn switches_are_booleans_or_their_names() {
    // cni-runtime.md section 6.2 item 30
    let with = |value: &str| {
        let text = format!(r#"{{"name":"n","disableCheck":{value},"plugins":[{{"type":"a"}}]}}"#);
        parse(&text).map(|list| list.disable_check)
    };
    assert!(with("\"True\"").unwrap() && with("true").unwrap());
    assert!(!with("\"FALSE\"").unwrap() && !with("null").unwrap());
    assert!(with("\"yes\"").is_err() && with("1").is_err());
}

#[test]
fn an_empty_chain_is_refused_when_nothing_can_fill_it() {
    // cni-runtime.md sections 1.2 and 6.2 item 31
    assert!(parse(r#"{"name":"n","plugins":[]}"#).is_err());
    assert!(parse(r#"{"name":"n","plugins":{}}"#).is_err());
    assert!(parse(r#"{"name":"n","loadOnlyInlinedPlugins":true}"#).is_err());
    let mut list = parse(r#"{"name":"n"}"#).unwrap();
    assert!(matches!(list.clone().require_plugins(), Err(ConfigError::NoPlugins)));
    list.append(br#"{"type":"a"}"#).unwrap();
    assert_eq!(list.require_plugins().unwrap().plugins[0].kind, "a");
}

#[test]
fn the_document_has_the_whole_chain_whatever_the_source_of_its_plugins() {
    // cni-runtime.md sections 2.1 and 2.4: DEL reads it from the cache, when the directory may be another
    for inlined in [r#"{"name":"n","big":9007199254740993,"plugins":[{"type":"a"}]}"#, r#"{"name":"n"}"#] {
        let mut list = parse(inlined).unwrap();
        list.append(br#"{"type":"b","big":9007199254740993}"#).unwrap();
        list.append(br#"{"type":"c"}"#).unwrap();
        let again = ConfigList::parse(&list.bytes).unwrap();
        assert!(again.load_only_inlined_plugins, "what is in the directory would come twice");
        assert_eq!(again, list);
    }
}

#[test]
fn a_single_configuration_becomes_a_list_of_one() {
    // cni-runtime.md section 2.1
    let text = r#"{"cniVersion":"0.3.1","name":"n","type":"a","big":9007199254740993}"#;
    let list = ConfigList::parse_single(text.as_bytes()).unwrap();
    assert_eq!((list.cni_version.as_str(), list.name.as_str()), ("0.3.1", "n"));
    assert_eq!(list.plugins[0].object["name"], "n", "the object keeps its own name");
    let again = ConfigList::parse(&list.bytes).unwrap();
    assert_eq!(again.plugins, list.plugins);
    assert!(ConfigList::parse_single(br#"{"name":"n","plugins":[{"type":"a"}]}"#).is_err());
    assert!(ConfigList::parse_single(br#"{"name":"n"}"#).is_err(), "no type");
}

#[test]
fn a_type_is_never_a_path() {
    // CVE-2021-20206
    for bad in ["../x", "a/b", "", ".", "..", "a\\\\b", "a\\u0000"] {
        assert!(parse(&format!(r#"{{"name":"n","plugins":[{{"type":"{bad}"}}]}}"#)).is_err(), "{bad}");
    }
}

#[test]
fn only_capabilities_that_are_true_count() {
    // cni-runtime.md section 1.6
    let text = r#"{"name":"n","plugins":[{"type":"a","capabilities":{"mac":true,"ips":false}}]}"#;
    assert_eq!(parse(text).unwrap().plugins[0].capabilities, ["mac"]);
    assert!(parse(r#"{"name":"n","plugins":[{"type":"a","capabilities":{"mac":1}}]}"#).is_err());
}

#[test]
fn hostile_documents_are_refused() {
    let deep = format!("{{\"name\":\"n\",\"plugins\":{}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    for bad in [
        "",
        "null",
        "{",
        "[]",
        r#"{"name":"a/b","plugins":[{"type":"a"}]}"#,
        r#"{"plugins":[{"type":"a"}]}"#,
        &deep,
    ] {
        assert!(parse(bad).is_err());
    }
}
