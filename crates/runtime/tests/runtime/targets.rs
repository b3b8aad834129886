//! Entry points of the parsers of untrusted bytes: configurations, results, cache files and
//! `CNI_ARGS`. No input makes them panic, and a value that was parsed, written and parsed again is
//! the same. Each returns whether the input could be parsed. Called by `corpus.rs` with committed
//! inputs, and by cargo-fuzz (fuzz/).

use russet_cni_spec::{CniArgs, CniError, CniResult, ConfigList, NetworkConfig, Version};
use russet_runtime::CacheEntry;

/// A `.conflist`, a `.conf`, and a plugin's standard input.
pub fn config(bytes: &[u8]) -> bool {
    let mut read = false;
    if let Ok(list) = ConfigList::parse(bytes) {
        read = true;
        chain(&list);
        let mut longer = list.clone();
        if longer.append(br#"{"type":"more","big":9007199254740993}"#).is_ok() {
            assert_eq!(longer.plugins.len(), list.plugins.len() + 1);
            chain(&longer);
        }
    }
    if let Ok(list) = ConfigList::parse_single(bytes) {
        read = true;
        chain(&list);
    }
    if let Ok(config) = NetworkConfig::parse(bytes) {
        read = true;
        let _ = config.valid_attachments();
        let _ = config.ipam_kind();
        if let Ok(Some(previous)) = config.prev_result() {
            every_version(&previous);
        }
    }
    read
}

/// The document that the cache keeps is the chain, and no name in it is a path.
fn chain(list: &ConfigList) {
    let again = ConfigList::parse(&list.bytes).unwrap();
    assert_eq!((&again.plugins, &again.name), (&list.plugins, &list.name));
    assert_eq!(again.cni_version, list.cni_version);
    for plugin in &list.plugins {
        assert!(!plugin.kind.is_empty() && !plugin.kind.contains(['/', '\0']), "{:?}", plugin.kind);
    }
}

/// What a plugin prints: a result in a configuration of any version, or an error.
pub fn result(bytes: &[u8]) -> bool {
    let mut read = false;
    for version in Version::ALL {
        if let Ok(result) = CniResult::decode(bytes, version) {
            read = true;
            every_version(&result);
        }
    }
    if let Ok(error) = CniError::decode(bytes) {
        read = true;
        let _ = error.to_string();
        assert!(CniError::decode(&error.encode()).is_ok(), "{error:?}");
    }
    read
}

/// Where it is valid no index leads out of it; and in each version that it can be converted to it is read as it was written. A route of a family without
/// an address has no place in the oldest versions, and is lost the first time.
fn every_version(result: &CniResult) {
    for ip in &result.ips {
        let _ = result.interface_of(ip);
    }
    if result.validate().is_err() {
        return;
    }
    for version in Version::ALL {
        let Ok(converted) = result.convert(version) else { continue };
        let read = CniResult::decode(&converted.encode(), version).unwrap();
        read.validate().unwrap();
        assert_eq!(CniResult::decode(&read.encode(), version).unwrap(), read);
        if version >= Version::V0_3_0 {
            assert_eq!(read, converted);
        }
    }
}

/// A file of the result cache.
pub fn cache(bytes: &[u8]) -> bool {
    let Ok(entry) = CacheEntry::parse(bytes) else { return false };
    if let Ok(list) = entry.list() {
        chain(&list);
    }
    for version in Version::ALL {
        if let Ok(result) = entry.result(version) {
            result.validate().unwrap();
            every_version(&result);
        }
    }
    true
}

/// `CNI_ARGS`.
pub fn args(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(args) = CniArgs::parse(text) else { return false };
    let pairs: Vec<String> = args.pairs().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(CniArgs::parse(&pairs.join(";")).unwrap(), args);
    let _ = args.pod();
    true
}
