use std::fs;

use tempfile::TempDir;

use super::*;
use crate::Runtime;

/// Writes a file, and returns its findings in the form for people: `line:column severity member:
/// text`.
fn found_in(file: &str, text: &str, runtime: Option<&Runtime>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    fs::write(&path, text).unwrap();
    shown(&lint(&path, runtime))
}

fn shown(findings: &[Finding]) -> Vec<String> {
    let line = |it: &Finding| {
        let (line, column) = it.position.unwrap_or_default();
        format!("{line}:{column} {:?} {}: {}", it.severity, it.at, it.text)
    };
    findings.iter().map(line).collect()
}

fn found(text: &str) -> Vec<String> {
    found_in("10-x.conflist", text, None)
}

/// Asserts that exactly these are found, each by its beginning and some words.
#[track_caller]
fn assert_found(found: &[String], expected: &[(&str, &str)]) {
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (line, (begin, words)) in found.iter().zip(expected) {
        assert!(line.starts_with(begin) && line.contains(words), "{line}\nis not {begin} ... {words}");
    }
}

/// A bridge with one range, and more members of the list.
fn with(plugin: &str) -> String {
    format!("{{\"cniVersion\":\"1.0.0\",\"name\":\"n\",\"plugins\":[\n{plugin}\n]}}")
}

#[test]
fn a_default_route_without_masquerade_is_a_warning() {
    let bridge = |more: &str| {
        with(&format!(
            r#"{{"type":"bridge","isGateway":true,{more}"ipam":{{"type":"host-local","subnet":"10.1.0.0/24"}}}}"#
        ))
    };
    let by_route = with(
        r#"{"type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}"#,
    );
    for text in [bridge(r#""isDefaultGateway":true,"#), by_route] {
        assert_found(&found(&text), &[("2:1 Warning plugins[0]", "\"ipMasq\": true")]);
        assert!(no_way_out(&ConfigList::parse(text.as_bytes()).unwrap()).is_some());
    }
    for text in [bridge(""), bridge(r#""isDefaultGateway":true,"ipMasq":true,"#)] {
        assert_found(&found(&text), &[]);
        assert_eq!(no_way_out(&ConfigList::parse(text.as_bytes()).unwrap()), None);
    }
}

#[test]
fn common_configurations_have_no_findings() {
    // cni-runtime.md section 5.2
    let conflists = [
        r#"{"cniVersion":"0.4.0","name":"podman","plugins":[
            {"type":"bridge","bridge":"cni-podman0","isGateway":true,"ipMasq":true,"hairpinMode":true,
             "ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.88.0.0/16","gateway":"10.88.0.1"}]]}},
            {"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall"},{"type":"tuning"}]}"#,
        r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
            {"type":"portmap","capabilities":{"portMappings":true}}]}"#,
        r#"{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"calico","log_level":"info","datastore_type":"kubernetes",
            "nodename":"n1","mtu":0,"ipam":{"type":"calico-ipam"},"policy":{"type":"k8s"},"kubernetes":{"kubeconfig":"/k"}},
            {"type":"portmap","snat":true,"capabilities":{"portMappings":true}},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}"#,
        r#"{"cniVersion":"1.1.0","cniVersions":["0.4.0","1.1.0"],"name":"russet","disableCheck":"True","plugins":[{"type":"russet","capabilities":{"portMappings":true}}]}"#,
        r#"{"cniVersion":"1.0.0","name":"dual","_comment":"a note","plugins":[{"type":"macvlan","master":"eth0","mode":"bridge",
            "ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.19"},
            {"subnet":"10.1.0.0/24","rangeStart":"10.1.0.30"}],[{"subnet":"fd00::/64"}]]}}]}"#,
    ];
    for conflist in conflists {
        assert_eq!(found(conflist), Vec::<String>::new(), "{conflist}");
    }
    let single = r#"{"cniVersion":"0.3.1","name":"lo","type":"loopback"}"#;
    assert_eq!(found_in("99-lo.conf", single, None), Vec::<String>::new());
}

#[test]
fn invalid_json_is_reported_with_its_position_and_the_usual_cause() {
    for (text, begin, words) in [
        ("{\n  \"name\": \"n\",\n}", "3:1 Error", "trailing comma"),
        ("{\n  // the network\n  \"name\": \"n\"}", "2:3 Error", "JSON has no comments"),
        ("{} {}", "1:4 Error", "behind the end of the object"),
        ("", "1:0 Error", "the file is empty"),
        ("\u{feff}{}", "1:1 Error", "byte order mark"),
        ("[]", "0:0 Error", "a JSON object is wanted, this is an array"),
    ] {
        assert_found(&found(text), &[(begin, words)]);
    }
    let deep = format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert_eq!(found(&deep).len(), 1);
}

#[test]
fn missing_names_plugins_and_types_are_reported() {
    assert_found(
        &found(r#"{"cniVersion":"1.0.0","plugins":[{}]}"#),
        &[("0:0 Error : ", "no name"), ("1:34 Error plugins[0].type: ", "no 'type': which plugin is it?")],
    );
    assert_found(
        &found(r#"{"cniVersion":"1.0.0","name":"a/b","plugins":[]}"#),
        &[("1:23 Error name", "a/b"), ("1:36 Error plugins", "no plugins in the list")],
    );
    assert_found(&found(r#"{"cniVersion":"1.0.0","name":"n"}"#), &[("0:0 Error", "no plugin configs found")]);
    assert_found(
        &found(r#"{"cniVersion":"1.0.0","name":"n","plugins":{"type":"bridge"}}"#),
        &[("1:34 Error plugins", "an array is wanted, this is an object")],
    );
    assert_found(
        &found(&with(r#"{"type":"../x"}, 7"#)),
        &[
            ("2:2 Error plugins[0].type", "without a directory"),
            ("2:18 Error plugins[1]", "an object is wanted, this is a number"),
        ],
    );
}

#[test]
fn a_list_in_a_conf_and_a_plugin_in_a_conflist_are_told_apart() {
    // cni-runtime.md section 2.1
    let list = with(r#"{"type":"loopback"}"#);
    assert_found(&found_in("x.conf", &list, None), &[("1:34 Error plugins", "is this a conflist?")]);
    let single = r#"{"cniVersion":"1.0.0","name":"n","type":"loopback"}"#;
    assert_found(&found(single), &[("1:34 Error type", "belongs into a .conf")]);
    assert_found(
        &found_in("x.json", r#"{"cniVersion":"1.0.0","name":"n"}"#, None),
        &[("0:0 Error", "no 'type'")],
    );
    assert_found(
        &found_in("x.conflist.bak", &list, None),
        &[("0:0 Warning", "runtimes pass over this file")],
    );
}

#[test]
fn keys_in_the_wrong_place_unknown_ones_and_generated_ones_are_named() {
    let text = r#"{"cniVersion":"1.0.0","name":"n","capabilities":{"mac":true},"disablecheck":true,"plugins":[
{"type":"bridge","isGatway":true,"subnet":"10.0.0.0/8","disableCheck":true,"colour":"red",
"prevResult":{},"ipam":{"type":"host-local","subnet":"10.0.0.0/24","capabilities":{"ips":true},"range":[]}},
{"type":"elses","capabilites":{"mac":true},"colour":"red"},
{"type":"portmap","name":"p","capabilities":{"portMapings":true,"mac":1}}]}"#;
    assert_found(
        &found(text),
        &[
            ("1:34 Warning capabilities", "wrong place: it belongs to a plugin"),
            ("1:62 Warning disablecheck", "is 'disableCheck' meant?"),
            ("2:18 Warning plugins[0].isGatway", "is 'isGateway' meant?"),
            ("2:34 Warning plugins[0].subnet", "it belongs into 'ipam'"),
            ("2:56 Warning plugins[0].disableCheck", "it belongs to the list"),
            ("2:76 Warning plugins[0].colour", "no plugin reads it"),
            ("3:1 Warning plugins[0].prevResult", "what a runtime writes"),
            ("3:68 Warning plugins[0].ipam.capabilities", "beside 'ipam', not inside"),
            ("3:96 Warning plugins[0].ipam.range", "is 'ranges' meant?"),
            ("4:17 Warning plugins[1].capabilites", "is 'capabilities' meant?"),
            ("5:19 Warning plugins[2].name", "thrown away"),
            ("5:46 Warning plugins[2].capabilities.portMapings", "is 'portMappings' meant?"),
            ("5:65 Error plugins[2].capabilities.mac", "true or false is wanted, this is a number: 1"),
            ("5:1 Warning plugins[2]", "without \"capabilities\": {\"portMappings\": true}"),
        ],
    );
}

#[test]
fn well_known_keys_of_the_wrong_type_are_errors() {
    let text = with(
        r#"{"type":"bridge","mtu":"1500","isGateway":"true","dns":{"nameservers":"10.0.0.1"},"ipam":[],"args":null,"vlan":-1}"#,
    );
    assert_found(
        &found(&text),
        &[
            ("2:18 Error plugins[0].mtu", "a whole number is wanted, this is text: \"1500\""),
            ("2:31 Error plugins[0].isGateway", "without quotation marks, is wanted, this is text"),
            ("2:83 Error plugins[0].ipam", "an object is wanted"),
            ("2:105 Error plugins[0].vlan", "a whole number is wanted"),
            ("2:57 Error plugins[0].dns.nameservers", "an array of texts is wanted"),
        ],
    );
    let text =
        r#"{"cniVersion":1,"name":7,"disableCheck":"yes","plugins":[{"type":"a"},{"type":"a","type":"b"}]}"#;
    let lines = found(text);
    for (at, words) in [
        ("Error cniVersion", "text is wanted"),
        ("Error name", "text is wanted"),
        ("Error disableCheck", "true or false"),
        ("Warning plugins[1].type", "there twice"),
    ] {
        assert!(lines.iter().any(|line| line.contains(at) && line.contains(words)), "{at}: {lines:#?}");
    }
}

#[test]
fn unknown_versions_and_those_without_chains_are_reported() {
    let text =
        |version: &str| format!(r#"{{{version}"name":"n","plugins":[{{"type":"a"}},{{"type":"b"}}]}}"#);
    assert_found(
        &found(&text("")),
        &[("0:0 Warning", "0.1.0 is assumed"), ("1:38 Error plugins[1].type", "0.1.0 knows no chains")],
    );
    assert_found(&found(&text(r#""cniVersion":"9.9.9","#)), &[("1:2 Error cniVersion", "9.9.9")]);
    assert_found(&found(&text(r#""cniVersion":"1.x","#)), &[("1:2 Error cniVersion", "1.x")]);
    assert_found(&found(&text(r#""cniVersions":["1.0.0","9.9.9"],"#)), &[]);
}

#[test]
fn invalid_and_overlapping_subnets_are_found() {
    // cni-runtime.md section 6.2 item 36
    let ipam = |ipam: &str| with(&format!(r#"{{"type":"bridge","ipam":{{"type":"host-local",{ipam}}}}}"#));
    for (text, begin, words) in [
        (r#""subnet":"10.1.0.0""#, "2:46 Error plugins[0].ipam.subnet", "is no subnet"),
        (r#""subnet":"10.1.0.5/24""#, "2:46 Error", "is 10.1.0.0/24 meant?"),
        (r#""subnet":"10.1.0.0/31""#, "2:46 Error", "too small to allocate from"),
        (
            r#""subnet":"10.1.0.0/24","gateway":"10.2.0.1""#,
            "2:69 Error plugins[0].ipam.gateway",
            "not in 10.1.0.0/24",
        ),
        (
            r#""subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.3""#,
            "2:69 Error",
            "behind rangeEnd",
        ),
        (
            r#""subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0"}]"#,
            "2:80 Error plugins[0].ipam.routes[0].dst",
            "no subnet",
        ),
        (r#""ranges":[{"subnet":"10.1.0.0/24"}]"#, "2:56 Error plugins[0].ipam.ranges[0]", "list of lists"),
        (r#""ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]]"#, "2:82 Error", "IPv4 and IPv6"),
        (r#""dataDir":"/x""#, "2:18 Warning plugins[0].ipam", "no 'ranges' and no 'subnet'"),
        (
            r#""subnet":"10.1.0.0/16","ranges":[[{"subnet":"10.1.7.0/24"}]]"#,
            "2:81 Error plugins[0].ipam.ranges[0][0].subnet",
            "10.1.7.0/24 overlaps 10.1.0.0/16 of plugins[0].ipam.subnet",
        ),
    ] {
        assert_found(&found(&ipam(text)), &[(begin, words)]);
    }
    let two = with(
        r#"{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}},{"type":"macvlan","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}"#,
    );
    assert_found(&found(&two), &[("2:117 Error plugins[1].ipam.subnet", "overlaps")]);
    let fixed = with(r#"{"type":"macvlan","ipam":{"type":"static","addresses":[{"address":"10.1.0.5"}]}}"#);
    assert_found(&found(&fixed), &[("2:57 Error plugins[0].ipam.addresses[0].address", "with a prefix")]);
}

#[test]
fn a_chained_plugin_cannot_be_the_first() {
    let text = with(r#"{"type":"portmap","capabilities":{"portMappings":true}}"#);
    assert_found(&found(&text), &[("2:2 Error plugins[0].type", "there is none before it")]);
}

/// A directory with plugins that support up to 0.4.0.
fn plugins() -> (TempDir, Runtime) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\necho '{\"cniVersion\":\"0.4.0\",\"supportedVersions\":[\"0.3.1\",\"0.4.0\"]}'\n";
    for (name, text) in [("old", script), ("mute", "#!/bin/sh\nexit 3\n")] {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let runtime = Runtime::new(vec!["/absent".into(), dir.path().to_owned()], dir.path().join("cache"));
    (dir, runtime)
}

#[test]
fn executables_are_searched_and_their_versions_checked() {
    let (dir, runtime) = plugins();
    let text = with(r#"{"type":"old"},{"type":"missing"},{"type":"mute","ipam":{"type":"lost"}}"#);
    let missing = format!("in /absent or {}", dir.path().display());
    assert_found(
        &found_in("x.conflist", &text, Some(&runtime)),
        &[
            ("2:2 Error plugins[0].type", "old does not speak version 1.0.0; it speaks 0.3.1, 0.4.0"),
            ("2:17 Error plugins[1].type", &format!("there is no executable 'missing' {missing}")),
            ("2:36 Error plugins[2].type", "mute does not say which versions it speaks"),
            ("2:58 Error plugins[2].ipam.type", &format!("there is no executable 'lost' {missing}")),
        ],
    );
    let good = with(r#"{"type":"old"}"#).replace("1.0.0", "0.4.0");
    assert_found(&found_in("x.conflist", &good, Some(&runtime)), &[]);
}

#[test]
fn plugins_in_the_networks_own_directory_are_looked_at_in_their_files() {
    // cni-runtime.md section 2.1
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("n")).unwrap();
    let own = dir.path().join("n/10-more.conf");
    let range = r#"{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}"#;
    fs::write(&own, range.replace("bridge", "macvlan")).unwrap();
    fs::write(dir.path().join("n/20-bad.conf"), "{").unwrap();
    let path = dir.path().join("x.conflist");
    fs::write(&path, with(range)).unwrap();
    let findings = lint(&path, None);
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert_eq!(findings[0].file, own);
    assert!(
        findings[0].text.contains(&format!("of plugins[0].ipam.subnet of {}", path.display())),
        "{findings:#?}"
    );
    assert!(findings[1].file.ends_with("20-bad.conf"));
    fs::write(&path, with(range).replacen('{', "{\"loadOnlyInlinedPlugins\":\"TRUE\",", 1)).unwrap();
    assert_eq!(lint(&path, None), []);
}

#[test]
fn plugins_in_the_networks_own_directory_have_those_of_the_list_before_them() {
    // cni-runtime.md section 2.1
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("n")).unwrap();
    let portmap = r#"{"type":"portmap","capabilities":{"portMappings":true}}"#;
    fs::write(dir.path().join("n/20-portmap.conf"), portmap).unwrap();
    let path = dir.path().join("x.conflist");
    fs::write(&path, with(r#"{"type":"bridge"}"#)).unwrap();
    assert_eq!(lint(&path, None), []);
    let alone = r#"{"cniVersion":"1.0.0","name":"n"}"#;
    fs::write(&path, alone).unwrap();
    assert!(lint(&path, None)[0].text.contains("there is none before it"));
    fs::write(dir.path().join("n/10-bridge.conf"), r#"{"type":"bridge"}"#).unwrap();
    assert_eq!(lint(&path, None), []);
    fs::write(&path, alone.replace("1.0.0", "0.1.0")).unwrap();
    assert!(lint(&path, None)[0].text.contains("knows no chains"));
}

#[test]
fn the_first_plugin_of_the_networks_own_directory_names_the_vendor_when_the_list_has_none() {
    // cni-runtime.md section 2.1
    let (dir, mut runtime) = plugins();
    let bin = dir.path().join("prefix/opt/vendor/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::rename(dir.path().join("old"), bin.join("vendor")).unwrap();
    runtime.vendor_prefix = Some(dir.path().join("prefix"));
    fs::create_dir(dir.path().join("n")).unwrap();
    fs::write(dir.path().join("n/10.conf"), r#"{"type":"vendor"}"#).unwrap();
    let path = dir.path().join("x.conflist");
    fs::write(&path, r#"{"cniVersion":"0.4.0","name":"n"}"#).unwrap();
    assert_eq!(lint(&path, Some(&runtime)), []);
}

#[test]
fn what_our_own_plugins_read_belongs_to_plugins_and_not_to_the_list() {
    // docs/plugins.md
    let ours = r#""agent_socket":"/run/a.sock","root":"/n1","russet_path":"/r""#;
    for kind in ["russet", "bridge", "loopback", "flannel"] {
        assert_found(&found(&with(&format!(r#"{{"type":"{kind}",{ours}}}"#))), &[]);
    }
    let text = with(r#"{"type":"bridge"}"#).replacen('{', &format!("{{{ours},"), 1);
    assert_found(
        &found(&text),
        &[
            ("1:2 Warning agent_socket", "wrong place"),
            ("1:31 Warning root", "wrong place"),
            ("1:44 Warning russet_path", "wrong place"),
        ],
    );
}
