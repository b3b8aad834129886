//! CHECK's switches, GC, STATUS and VERSION.

use russet_addr::EndpointId;
use russet_cni_spec::{ConfigList, Version, code};
use russet_runtime::{Attachment, RuntimeError};
use serde_json::json;

use crate::{Lab, attachment, chain};

/// A list whose top level has `more`.
fn switched(version: Version, more: &str) -> ConfigList {
    let text = format!(r#"{{"cniVersion":"{version}","name":"net",{more},"plugins":[{{"type":"a"}}]}}"#);
    ConfigList::parse(text.as_bytes()).unwrap()
}

fn other(container_id: &str) -> Attachment {
    Attachment { container_id: container_id.parse().unwrap(), ..attachment() }
}

#[test]
fn check_needs_0_4_0_and_can_be_disabled() {
    // cni-runtime.md section 6.2 item 30
    let lab = Lab::new();
    lab.adder("a");
    let old = switched(Version::V0_3_1, "\"disableCheck\":true");
    let error = lab.runtime.check(&old, &attachment()).unwrap_err().to_string();
    assert_eq!(error, "configuration version \"0.3.1\" does not support the CHECK command");
    lab.runtime.check(&switched(Version::V0_4_0, "\"disableCheck\":\"True\""), &attachment()).unwrap();
    assert!(lab.calls().is_empty());
    lab.runtime.check(&chain(Version::V0_4_0, &["a"]), &attachment()).unwrap();
    assert_eq!(lab.stdin("a", "CHECK").get("prevResult"), None, "an absent entry is no error");
}

#[test]
fn gc_without_a_list_detaches_everything_of_its_network() {
    // cni-runtime.md section 6.2 item 25
    let lab = Lab::new();
    lab.adder("a").adder("b");
    let list = chain(Version::V1_1_0, &["a", "b"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    let elsewhere =
        ConfigList::parse(br#"{"cniVersion":"1.1.0","name":"net2","plugins":[{"type":"a"}]}"#).unwrap();
    lab.runtime.add(&elsewhere, &other("c9")).unwrap();
    lab.forget_calls();
    lab.runtime.gc(&list, None).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a", "GC a", "GC b"]);
    let log = std::fs::read_to_string(lab.path("log")).unwrap();
    let del = "DEL b c1 /run/netns/c1 eth0 IgnoreUnknown=1;K8S_POD_NAME=web";
    assert_eq!(log.lines().next(), Some(del), "with the cached arguments");
    let stdin = json!({"cniVersion": "1.1.0", "name": "net", "type": "a", "cni.dev/valid-attachments": [], "cni.dev/attachments": []});
    assert_eq!(lab.stdin("a", "GC"), stdin, "plugins need the key to give back what no cache entry names");
    let left: Vec<String> = lab.runtime.attachments().iter().map(|entry| entry.network.to_string()).collect();
    assert_eq!(left, ["net2"]);
}

#[test]
fn gc_keeps_what_is_valid() {
    // cni-runtime.md section 6.2 item 26
    let lab = Lab::new();
    lab.adder("a");
    let list = chain(Version::V1_1_0, &["a"]);
    for id in ["c1", "c2"] {
        lab.runtime.add(&list, &other(id)).unwrap();
    }
    let valid = "net/c2/eth0".parse::<EndpointId>().unwrap();
    lab.runtime.gc(&list, Some(&[valid])).unwrap();
    let left: Vec<String> =
        lab.runtime.attachments().iter().map(|entry| entry.attachment.container_id.to_string()).collect();
    assert_eq!(left, ["c2"]);
    let entries = json!([{"containerID": "c2", "ifname": "eth0"}]);
    let stdin = lab.stdin("a", "GC");
    assert_eq!((&stdin["cni.dev/valid-attachments"], &stdin["cni.dev/attachments"]), (&entries, &entries));
}

#[test]
fn a_disabled_gc_executes_nothing() {
    // cni-runtime.md section 6.2 item 27
    let lab = Lab::new();
    lab.adder("a");
    lab.runtime.add(&chain(Version::V1_1_0, &["a"]), &attachment()).unwrap();
    lab.forget_calls();
    lab.runtime.gc(&switched(Version::V1_1_0, "\"disableGC\":true"), None).unwrap();
    assert!(lab.calls().is_empty());
    assert_eq!(lab.runtime.attachments().len(), 1);
}

#[test]
fn before_1_1_0_gc_only_detaches() {
    // cni-runtime.md section 2.3
    let lab = Lab::new();
    lab.adder("a");
    let list = chain(Version::V1_0_0, &["a"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    lab.runtime.gc(&list, None).unwrap();
    assert_eq!(lab.calls(), ["ADD a", "DEL a"]);
}

#[test]
fn a_gc_calls_every_plugin_and_reports_every_failure() {
    // cni-runtime.md section 6.2 item 29
    let lab = Lab::new();
    for kind in ["a", "b"] {
        lab.plugin(kind, &format!("[ $CNI_COMMAND != ADD ] || {{ echo '{{}}'; exit 0; }}; echo '{{\"code\":100,\"msg\":\"{kind} is ill\"}}'; exit 1"));
    }
    let list = chain(Version::V1_1_0, &["a", "b"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    let error = lab.runtime.gc(&list, None).unwrap_err();
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("failed to delete stale attachment c1 eth0: plugin type=\"b\" failed"),
        "{text}"
    );
    assert!(text.ends_with("failed to GC plugin a: a is ill\nfailed to GC plugin b: b is ill"), "{text}");
    assert!(matches!(error, RuntimeError::Several(errors) if errors.len() == 3));
}

#[test]
fn status_stops_at_the_first_plugin_that_is_not_ready() {
    // cni-runtime.md section 6.2 item 28
    let lab = Lab::new();
    let down = r#"echo '{"code":50,"msg":"agent down","details":"dial unix"}'; exit 1"#;
    lab.plugin("down", down).adder("b");
    let error = lab.runtime.status(&chain(Version::V1_1_0, &["down", "b"])).unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.to_cni().code),
        ("agent down; dial unix", code::NOT_AVAILABLE)
    );
    assert_eq!(lab.calls(), ["STATUS down"]);
    lab.forget_calls();
    lab.runtime.status(&chain(Version::V1_0_0, &["down"])).unwrap();
    assert!(lab.calls().is_empty(), "before 1.1.0 plugins have no STATUS");
}

#[test]
fn a_list_is_valid_when_every_plugin_speaks_its_version() {
    // cni-runtime.md section 2.3
    let lab = Lab::new();
    lab.plugin("new", r#"echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}'"#);
    lab.plugin("old", r#"echo '{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}'; exit 1"#);
    assert_eq!(lab.runtime.versions("new").unwrap(), ["1.0.0", "1.1.0"]);
    assert_eq!(lab.runtime.versions("old").unwrap(), ["0.1.0"]);
    lab.runtime.validate(&chain(Version::V1_0_0, &["new"])).unwrap();
    lab.runtime.validate(&chain(Version::V0_1_0, &["old"])).unwrap();
    let error = lab.runtime.validate(&chain(Version::V1_0_0, &["new", "old"])).unwrap_err().to_string();
    assert_eq!(error, "plugin old does not support config version \"1.0.0\"");
    assert!(lab.runtime.validate(&chain(Version::V1_0_0, &["missing"])).is_err());
    let log = std::fs::read_to_string(lab.path("log")).unwrap();
    assert!(log.starts_with("VERSION new  dummy dummy"), "{log}");
}
