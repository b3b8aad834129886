//! The attachments in the caches of a node's runtimes, for a caller that decides whether something
//! is gone. Unlike the runtime's own reading, this skips nothing: an unreadable file might be the
//! record of a live pod.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use russet_addr::{EndpointId, IpNet};
use serde_json::Value;

use super::{KIND, Unusable, read_file};

/// An attachment that a runtime has not deleted, as far as it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Its file.
    pub path: PathBuf,
    /// Its owner; None in files of the oldest form, whose names are ambiguous.
    pub owner: Option<EndpointId>,
    /// The addresses that ADD reported.
    pub addresses: Vec<IpAddr>,
}

/// A cache that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read the cached attachment {}: {reason}", path.display())]
pub struct CacheError {
    /// The file, or the directory.
    pub path: PathBuf,
    /// Why not.
    pub reason: String,
}

/// Every attachment in the cache below `cache_dir`, for which libcni's default is `/var/lib/cni`
/// (cni-runtime.md section 2.4). Empty if the directory does not exist. Files whose names start
/// with a dot are half-written and skipped.
pub fn attached(cache_dir: &Path) -> Result<Vec<Attached>, CacheError> {
    let dir = cache_dir.join("results");
    let failed = |error: std::io::Error| CacheError { path: dir.clone(), reason: error.to_string() };
    let files = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.map_err(failed)?,
    };
    let mut found = Vec::new();
    for file in files {
        let path = file.map_err(failed)?.path();
        if !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            found.extend(read(path)?);
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// None if the file was deleted meanwhile.
fn read(path: PathBuf) -> Result<Option<Attached>, CacheError> {
    let (owner, addresses) = match read_file(&path) {
        Err(Unusable::Absent) => return Ok(None),
        Err(Unusable::Corrupt(reason)) => return Err(CacheError { path, reason }),
        Err(Unusable::Foreign) => (None, None),
        Ok(value) if value.get("kind").is_none() => (None, addresses(&value)),
        Ok(value) => match owner(&value) {
            None => (None, None),
            owner => (owner, value.get("result").map_or(Some(Vec::new()), addresses)),
        },
    };
    match (owner, addresses) {
        (None, None) => Err(CacheError { path, reason: "it is no attachment of libcni".into() }),
        (_, None) => Err(CacheError { path, reason: "its addresses cannot be read".into() }),
        (owner, Some(addresses)) => Ok(Some(Attached { path, owner, addresses })),
    }
}

fn owner(value: &Value) -> Option<EndpointId> {
    if value.get("kind")?.as_str()? != KIND {
        return None;
    }
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    Some(EndpointId {
        network: text("networkName")?.parse().ok()?,
        container: text("containerId")?.parse().ok()?,
        ifname: text("ifName")?.parse().ok()?,
    })
}

/// The addresses of a result of any version: `ips`, or `ip4` and `ip6` before 0.3.0. None if one is
/// invalid.
fn addresses(result: &Value) -> Option<Vec<IpAddr>> {
    if result.is_null() {
        return Some(Vec::new());
    }
    let object = result.as_object()?;
    let ips = match object.get("ips") {
        None | Some(Value::Null) => &[][..],
        Some(ips) => ips.as_array()?,
    };
    let old = ["ip4", "ip6"].into_iter().filter_map(|name| object.get(name)).filter(|ip| !ip.is_null());
    let texts = ips.iter().map(|ip| ip.get("address")).chain(old.map(|ip| ip.get("ip")));
    texts.map(|text| Some(text?.as_str()?.parse::<IpNet>().ok()?.addr())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("results")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join("results").join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_node_without_a_cache_has_no_attachments() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(attached(dir.path()).unwrap(), []);
    }

    #[test]
    fn every_form_of_a_file_names_what_it_holds() {
        // cni-runtime.md section 2.4
        let dir = cache(&[
            (
                "a",
                r#"{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","result":{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.7/26"},{"address":"fd00::7/122"}]}}"#,
            ),
            ("b", r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.8/32"},"ip6":null}"#),
            ("c", r#"{"kind":"cniCacheV1","containerId":"c2","ifName":"lo","networkName":"cni-loopback"}"#),
            (".99.0.tmp", "{"),
        ]);
        let found = attached(dir.path()).unwrap();
        let owner = found[0].owner.clone().unwrap();
        assert_eq!(
            (owner.network.as_str(), owner.container.as_str(), owner.ifname.as_str()),
            ("net", "c1", "eth0")
        );
        let shown: Vec<_> = found.iter().map(|it| (it.owner.is_some(), it.addresses.len())).collect();
        assert_eq!(shown, [(true, 2), (false, 1), (true, 0)]);
        assert_eq!(found[1].addresses, ["10.1.0.8".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_that_names_it() {
        for text in [
            "",
            "{",
            "[]",
            r#"{"kind":"cniCacheV2","containerId":"c1"}"#,
            r#"{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","result":{"ips":[{"address":"x"}]}}"#,
            r#"{"ips":[{}]}"#,
            r#"{"ips":7}"#,
        ] {
            let dir = cache(&[("broken", text)]);
            let error = attached(dir.path()).unwrap_err();
            assert!(error.path.ends_with("results/broken"), "{text}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("results"), "").unwrap();
        assert!(attached(dir.path()).is_err());
    }
}
