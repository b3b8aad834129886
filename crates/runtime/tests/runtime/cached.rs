//! DEL by the configuration in the cache, whatever happened to the file (cni-runtime.md section 0
//! items 12 and 15, and appendix A.5).

use std::fs;

use russet_cni_spec::{ConfigList, Version};
use russet_runtime::{ConfigDir, RuntimeError};

use crate::{Lab, attachment, chain};

#[test]
fn del_calls_the_plugins_of_the_add_when_the_configuration_has_changed() {
    let lab = Lab::new();
    lab.adder("a").adder("b").adder("c");
    lab.runtime.add(&chain(Version::V1_0_0, &["a", "b"]), &attachment()).unwrap();
    lab.forget_calls();
    let changed = chain(Version::V1_1_0, &["c"]);
    lab.runtime.del(&changed, &attachment()).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    assert_eq!(lab.stdin("a", "DEL")["cniVersion"], "1.0.0");
    assert!(!lab.cache_file().exists());
    lab.forget_calls();
    lab.runtime.del(&changed, &attachment()).unwrap();
    assert_eq!(lab.calls(), ["DEL c"], "nothing is known any more: today's configuration is the best guess");
}

#[test]
fn a_container_is_detached_from_networks_that_have_another_name_by_now() {
    // cni-runtime.md section 3.4: containerd's DEL goes by the new name, and address and cache entry stay
    let lab = Lab::new();
    lab.adder("a").adder("b");
    let mut attachment = attachment();
    attachment.capability_args.insert("mac".into(), "02:11:22:33:44:55".into());
    let old = r#"{"cniVersion":"1.0.0","name":"old-c1-","plugins":[{"type":"a"},{"type":"b","capabilities":{"mac":true}}]}"#;
    let old = ConfigList::parse(old.as_bytes()).unwrap();
    lab.runtime.add(&old, &attachment).unwrap();
    let mut other = attachment.clone();
    other.container_id = "c1-eth0".parse().unwrap();
    lab.runtime.add(&chain(Version::V1_0_0, &["a"]), &other).unwrap();
    lab.forget_calls();
    let detached = lab.runtime.del_cached(&attachment.container_id).unwrap();
    assert_eq!(detached.entries.iter().map(|entry| entry.network.as_str()).collect::<Vec<_>>(), ["old-c1-"]);
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    let stdin = lab.stdin("b", "DEL");
    assert_eq!(
        (&stdin["name"], &stdin["runtimeConfig"]["mac"]),
        (&"old-c1-".into(), &"02:11:22:33:44:55".into())
    );
    let log = fs::read_to_string(lab.path("log")).unwrap();
    assert_eq!(
        log.lines().next(),
        Some("DEL b c1  eth0 IgnoreUnknown=1;K8S_POD_NAME=web"),
        "its namespace is gone"
    );
    let again = lab.runtime.del_cached(&attachment.container_id).unwrap();
    assert!(again.entries.is_empty() && again.unreadable.is_empty());
    let left: Vec<String> =
        lab.runtime.attachments().iter().map(|entry| entry.attachment.container_id.to_string()).collect();
    assert_eq!(left, ["c1-eth0"], "the name of its file has the other's ID in it");
}

#[test]
fn an_unreadable_entry_is_an_error() {
    let lab = Lab::new();
    lab.adder("a");
    lab.runtime.add(&chain(Version::V1_0_0, &["a"]), &attachment()).unwrap();
    fs::write(lab.cache_file(), "{ half of i").unwrap();
    let detached = lab.runtime.del_cached(&attachment().container_id).unwrap();
    assert!(detached.entries.is_empty());
    assert_eq!(detached.unreadable, [lab.cache_file()]);
    let unknown = lab.runtime.del_cached(&"c2".parse().unwrap()).unwrap();
    assert!(unknown.entries.is_empty() && unknown.unreadable.is_empty());
}

#[test]
fn plugins_of_the_networks_directory_are_called_when_the_directory_is_gone() {
    // cni-runtime.md section 2.1
    let lab = Lab::new();
    lab.adder("a").adder("b");
    let conf = lab.path("net.d");
    fs::create_dir_all(conf.join("net")).unwrap();
    fs::write(conf.join("net.conflist"), r#"{"cniVersion":"1.0.0","name":"net"}"#).unwrap();
    fs::write(conf.join("net/10-a.conf"), r#"{"type":"a"}"#).unwrap();
    fs::write(conf.join("net/20-b.conf"), r#"{"type":"b"}"#).unwrap();
    lab.runtime.add(&ConfigDir::new(&conf).network("net").unwrap(), &attachment()).unwrap();
    fs::remove_dir_all(&conf).unwrap();
    lab.forget_calls();
    lab.runtime.del_cached(&attachment().container_id).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
}

#[test]
fn a_plugin_that_was_uninstalled_keeps_the_entry_and_not_the_address() {
    // cni-runtime.md appendix A.5
    let lab = Lab::new();
    lab.adder("a").adder("b");
    lab.runtime.add(&chain(Version::V1_0_0, &["a", "b"]), &attachment()).unwrap();
    fs::remove_file(lab.path("bin/b")).unwrap();
    lab.forget_calls();
    let error = lab.runtime.del_cached(&attachment().container_id).unwrap_err();
    assert!(
        matches!(error, RuntimeError::Plugin { .. })
            && error.to_string().contains("failed to find plugin \"b\""),
        "{error}"
    );
    assert_eq!(lab.calls(), ["DEL a"]);
    assert!(lab.cache_file().exists());
}
