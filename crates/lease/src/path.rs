//! The keys of flannel's records: below a prefix that is cleaned as Go cleans paths (flannel.md
//! section 1.3).

use russet_model::flannel::SubnetKey;
use russet_model::{Key, Prefix};

/// The keys of one network.
#[derive(Debug, Clone)]
pub struct Paths {
    root: String,
}

/// A prefix without empty parts, `.` and `..`, and without a trailing `/`. No leading one is added:
/// `coreos.com/network` and `/coreos.com/network` are different keys.
pub fn clean_prefix(prefix: &str) -> String {
    let rooted = prefix.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in prefix.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    format!("{}{}", if rooted { "/" } else { "" }, parts.join("/"))
}

// === impl Paths ===

impl Paths {
    /// The keys below a prefix.
    pub fn new(prefix: &str) -> Self {
        Self { root: clean_prefix(prefix) }
    }

    fn below(&self, name: &str) -> String {
        match self.root.as_str() {
            "" => name.to_owned(),
            "/" => format!("/{name}"),
            root => format!("{root}/{name}"),
        }
    }

    /// The key of the network's configuration.
    pub fn config(&self) -> Key {
        Key::from_stored(self.below("config"))
    }

    /// The prefix of all leases. Like that of peers it has no trailing `/`, so any key that begins
    /// with it counts.
    pub fn subnets(&self) -> Prefix {
        Prefix::from_stored(self.below("subnets"))
    }

    /// The key of one lease.
    pub fn lease(&self, key: &SubnetKey) -> Key {
        Key::from_stored(format!("{}/{key}", self.below("subnets")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_cleaned_as_go_cleans_paths_and_gets_no_slash() {
        // flannel.md section 1.3, etcd-prefix.
        let config = |prefix: &str| Paths::new(prefix).config().to_string();
        assert_eq!(config("/coreos.com/network"), "/coreos.com/network/config");
        assert_eq!(config("/coreos.com/network/"), "/coreos.com/network/config");
        assert_eq!(config("//coreos.com/./x//../network/"), "/coreos.com/network/config");
        assert_eq!(config("coreos.com/network"), "coreos.com/network/config");
        assert_eq!(
            (config(""), config("/"), config(".")),
            ("config".into(), "/config".into(), "config".into())
        );
        assert_eq!(
            (config("/../a"), config("../a"), config("a/../..")),
            ("/a/config".into(), "../a/config".into(), "../config".into())
        );
        assert_eq!(Paths::new("/a/").subnets().as_str(), "/a/subnets");
        let key = "10.5.29.0-24".parse().unwrap();
        assert_eq!(Paths::new("/a").lease(&key).as_str(), "/a/subnets/10.5.29.0-24");
    }
}
