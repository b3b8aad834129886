//! ADD, DEL and CHECK of a chain.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use russet_cni_spec::{ConfigList, Version, code};
use serde_json::json;

use crate::{Lab, attachment, chain, list};

#[test]
fn plugins_see_the_greatest_version_that_we_know() {
    // cni-runtime.md section 6.2 item 12
    let lab = Lab::new();
    lab.adder("a");
    let text = r#"{"cniVersion":"0.4.0","cniVersions":["1.0.0","1.1.0","9.0.0"],"name":"net","plugins":[{"type":"a"}]}"#;
    lab.runtime.add(&ConfigList::parse(text.as_bytes()).unwrap(), &attachment()).unwrap();
    assert_eq!(lab.stdin("a", "ADD")["cniVersion"], "1.1.0");
}

#[test]
fn a_plugin_gets_the_capabilities_that_it_declared() {
    // cni-runtime.md section 6.2 item 13, and section 1.6
    let lab = Lab::new();
    lab.adder("a").adder("b");
    let b = r#"{"type":"b","big":9007199254740993,"capabilities":{"mac":true,"ips":false},"prevResult":{"forged":1}}"#;
    let list = list(Version::V1_0_0, &[r#"{"type":"a"}"#, b]);
    let mut attachment = attachment();
    let args = json!({"mac": "02:11:22:33:44:55", "portMappings": [], "ips": ["10.0.0.2"]});
    attachment.capability_args = args.as_object().unwrap().clone();
    lab.runtime.add(&list, &attachment).unwrap();
    assert_eq!(lab.stdin("a", "ADD").get("runtimeConfig"), None);
    let b = lab.stdin("b", "ADD");
    assert_eq!(b["runtimeConfig"], json!({"mac": "02:11:22:33:44:55"}));
    assert_eq!((b.get("capabilities"), b["big"].as_u64()), (None, Some(9_007_199_254_740_993)));
    let entry = lab.runtime.attachments().remove(0);
    assert_eq!(entry.attachment, attachment, "the cache keeps all");
    assert_eq!(entry.list().unwrap(), list);
}

#[test]
fn each_plugin_gets_the_result_of_the_one_before() {
    // cni-runtime.md section 6.2 item 14
    let lab = Lab::new();
    lab.adder("a").adder("b");
    let result = lab.runtime.add(&chain(Version::V1_1_0, &["a", "b"]), &attachment()).unwrap();
    assert_eq!(result.interfaces[0].name, "b");
    assert_eq!(lab.stdin("a", "ADD"), json!({"cniVersion": "1.1.0", "name": "net", "type": "a"}));
    let previous = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "a"}],
                          "ips": [{"address": "10.0.0.2/24", "interface": 0}]});
    assert_eq!(lab.stdin("b", "ADD")["prevResult"], previous);
    let log = fs::read_to_string(lab.path("log")).unwrap();
    assert_eq!(log.lines().next(), Some("ADD a c1 /run/netns/c1 eth0 IgnoreUnknown=1;K8S_POD_NAME=web"));
}

#[test]
fn a_result_without_a_label_has_the_configurations_version() {
    // cni-runtime.md section 6.2 items 15 and 16
    let lab = Lab::new();
    lab.adder("a").plugin("none", "echo null").plugin("empty", "echo '{}'");
    let result = lab.runtime.add(&chain(Version::V1_1_0, &["a"]), &attachment()).unwrap();
    assert_eq!(result.cni_version, Version::V1_1_0);
    for kind in ["none", "empty"] {
        let result = lab.runtime.add(&chain(Version::V1_0_0, &[kind]), &attachment()).unwrap();
        assert!(result.ips.is_empty());
    }
}

#[test]
fn a_result_that_is_none_fails_the_add() {
    // cni-runtime.md section 6.2 items 17 and 55, and section 2.2
    let lab = Lab::new();
    lab.plugin("future", r#"echo '{"cniVersion":"9.9.9"}'"#).plugin("mute", "").plugin("two", "echo '{}{}'");
    lab.plugin(
        "beyond",
        r#"echo '{"interfaces":[{"name":"x"}],"ips":[{"address":"10.0.0.2/24","interface":1}]}'"#,
    );
    let message = |kind| lab.message(&chain(Version::V1_0_0, &[kind]));
    assert_eq!(
        message("future"),
        "plugin type=\"future\" failed (add): unsupported CNI result version \"9.9.9\""
    );
    assert!(message("mute").contains("failed to unmarshal raw result: EOF"));
    assert!(message("two").contains("failed to unmarshal raw result: trailing characters"));
    assert!(message("beyond").contains("ips[0].interface: 1 is out of range"));
    assert!(lab.runtime.attachments().is_empty());
}

#[test]
fn the_first_failure_stops_an_add_and_nothing_is_undone() {
    // cni-runtime.md section 2.3
    let lab = Lab::new();
    lab.adder("a").adder("c");
    let single = ConfigList::parse_single(br#"{"cniVersion":"1.0.0","name":"net","type":"b"}"#).unwrap();
    let message = lab.message(&single);
    assert!(
        message.starts_with("plugin type=\"b\" name=\"net\" failed (add): failed to find plugin \"b\""),
        "{message}"
    );
    lab.message(&chain(Version::V1_0_0, &["a", "b", "c"]));
    assert_eq!(lab.calls(), ["ADD a"]);
}

#[test]
fn a_list_of_an_unknown_version_is_refused_before_any_plugin_runs() {
    let lab = Lab::new();
    lab.adder("a");
    let text = r#"{"cniVersion":"2.0.0","name":"net","plugins":[{"type":"a"}]}"#;
    let error = lab.runtime.add(&ConfigList::parse(text.as_bytes()).unwrap(), &attachment()).unwrap_err();
    assert_eq!(error.to_cni().code, code::INCOMPATIBLE_VERSION);
    assert!(lab.calls().is_empty());
}

#[test]
fn del_goes_backward_with_the_final_result() {
    // cni-runtime.md section 6.2 items 19 and 21
    let lab = Lab::new();
    lab.adder("a").adder("b");
    let list = chain(Version::V0_4_0, &["a", "b"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    lab.forget_calls();
    lab.runtime.del(&list, &attachment()).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    for kind in ["a", "b"] {
        assert_eq!(lab.stdin(kind, "DEL")["prevResult"]["interfaces"][0]["name"], "b");
    }
    assert!(!lab.cache_file().exists());
    lab.runtime.del(&list, &attachment()).unwrap();
    assert_eq!(lab.stdin("a", "DEL").get("prevResult"), None, "the second time there is none");
}

#[test]
fn before_0_4_0_del_gets_no_result() {
    // cni-runtime.md section 6.2 item 19
    let lab = Lab::new();
    lab.adder("a");
    let list = chain(Version::V0_3_1, &["a"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    lab.runtime.del(&list, &attachment()).unwrap();
    assert_eq!(lab.stdin("a", "DEL").get("prevResult"), None);
    assert!(!lab.cache_file().exists());
}

#[test]
fn del_goes_on_past_failures_and_reports_all() {
    // cni-runtime.md section 0 item 12
    let lab = Lab::new();
    lab.adder("a").plugin("b", "echo '{\"code\":11,\"msg\":\"busy\"}'; exit 1").adder("d");
    let list = chain(Version::V1_0_0, &["a", "b", "missing", "d"]);
    let error = lab.runtime.del(&list, &attachment()).unwrap_err();
    assert_eq!(lab.calls(), ["DEL d", "DEL b", "DEL a"]);
    let text = error.to_string();
    assert!(text.contains("plugin type=\"missing\" failed (delete): failed to find plugin"), "{text}");
    assert!(text.ends_with("plugin type=\"b\" failed (delete): busy"), "{text}");
}

#[test]
fn the_cache_entry_stays_until_del_succeeds() {
    // cni-runtime.md section 2.3
    let lab = Lab::new();
    lab.adder("a");
    let list = chain(Version::V1_0_0, &["a"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    lab.plugin("a", "exit 1");
    lab.runtime.del(&list, &attachment()).unwrap_err();
    assert!(lab.cache_file().exists());
}

#[test]
fn an_empty_cache_file_stops_check_and_not_del() {
    // cni-runtime.md section 6.2 item 20
    let lab = Lab::new();
    lab.adder("a");
    let list = chain(Version::V1_0_0, &["a"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    for bad in ["", "{\"kind\":", "[]", "{\"kind\":\"cniCacheV1\"}", "{\"kind\":\"other\"}"] {
        fs::write(lab.cache_file(), bad).unwrap();
        let error = lab.runtime.check(&list, &attachment()).unwrap_err().to_string();
        assert!(error.starts_with("failed to get network \"net\" cached result"), "{error}");
    }
    lab.runtime.del(&list, &attachment()).unwrap();
    assert_eq!(lab.stdin("a", "DEL").get("prevResult"), None);
    assert!(!lab.cache_file().exists());
}

#[test]
fn the_cache_is_gos_and_private() {
    // cni-runtime.md section 2.4
    let lab = Lab::new();
    lab.adder("a");
    let list = chain(Version::V1_0_0, &["a"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(lab.cache_file()), mode(lab.path("cache/results"))), (0o600, 0o700));
    let document: serde_json::Value = serde_json::from_slice(&fs::read(lab.cache_file()).unwrap()).unwrap();
    assert_eq!(document["cniArgs"], json!([["IgnoreUnknown", "1"], ["K8S_POD_NAME", "web"]]));
    assert_eq!((&document["kind"], &document["netns"]), (&json!("cniCacheV1"), &json!("/run/netns/c1")));
    // The oldest form is the bare result, possibly in another version.
    fs::write(lab.cache_file(), r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.9/24"}}"#).unwrap();
    lab.runtime.check(&list, &attachment()).unwrap();
    let previous = &lab.stdin("a", "CHECK")["prevResult"];
    assert_eq!(*previous, json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.9/24"}]}));
}

#[test]
fn a_file_name_shared_with_another_attachment_is_no_entry_of_ours() {
    // cni-runtime.md section 2.4: all three parts may hold '-'
    let lab = Lab::new();
    lab.adder("a");
    let list = chain(Version::V1_0_0, &["a"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    let text = fs::read_to_string(lab.cache_file()).unwrap().replace("\"c1\"", "\"c2\"");
    fs::write(lab.cache_file(), text).unwrap();
    lab.runtime.del(&list, &attachment()).unwrap();
    assert_eq!(lab.stdin("a", "DEL").get("prevResult"), None);
    assert!(lab.cache_file().exists());
}

#[test]
fn an_attachment_that_cannot_be_cached_is_undone() {
    // cni-runtime.md appendix A.5
    let lab = Lab::new();
    lab.adder("a").adder("b");
    fs::write(lab.path("cache"), "not a directory").unwrap();
    let error = lab.runtime.add(&chain(Version::V1_0_0, &["a", "b"]), &attachment()).unwrap_err();
    assert_eq!(error.to_cni().code, code::IO);
    assert_eq!(lab.calls(), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(lab.stdin("a", "DEL")["prevResult"]["interfaces"][0]["name"], "b");
}
