//! The environment variables by which a runtime configures Calico's plugins in addition to their
//! network configuration.
//!
//! A plugin without an agent reads them itself; with an agent they are sent with the request, so
//! that both give the same answer.

use std::fmt;

/// Variables of the runtime's environment that Calico's plugins read (calico-ipam.md section 4.1). They may hold
/// passwords, so they print without their values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Overrides(Vec<(String, String)>);

/// A variable with this prefix before its name overrides even the network configuration.
const PREFIX: &str = "CALICO_";

/// The names, with [`PREFIX`] and without.
const NAMES: [&str; 21] = [
    "DATASTORE_TYPE",
    "ETCD_ENDPOINTS",
    "ETCD_DISCOVERY_SRV",
    "ETCD_AUTHORITY",
    "ETCD_SCHEME",
    "ETCD_USERNAME",
    "ETCD_PASSWORD",
    "ETCD_PASSWORD_FILE",
    "ETCD_KEY_FILE",
    "ETCD_CERT_FILE",
    "ETCD_CA_CERT_FILE",
    "KUBECONFIG",
    "K8S_API_ENDPOINT",
    "K8S_API_TOKEN",
    "K8S_KEY_FILE",
    "K8S_CERT_FILE",
    "K8S_CA_FILE",
    "K8S_CLIENT_QPS",
    "K8S_CLIENT_BURST",
    "CALICO_API_GROUP",
    "FELIX_INTERFACEPREFIX",
];

// === impl Overrides ===

impl Overrides {
    /// Keeps the variables of `vars` that have a known name and a value.
    pub fn of(vars: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(vars.into_iter().filter(|(key, value)| Self::knows(key) && !value.is_empty()).collect())
    }

    /// Whether a variable has one of these names.
    pub fn knows(key: &str) -> bool {
        NAMES.contains(&key) || key.strip_prefix(PREFIX).is_some_and(|bare| NAMES.contains(&bare))
    }

    /// `CALICO_` and the name: overrides the network configuration.
    pub fn prefixed(&self, name: &str) -> Option<&str> {
        self.find(|key| key.strip_prefix(PREFIX) == Some(name))
    }

    /// The name alone: counts if the network configuration has no value.
    pub fn bare(&self, name: &str) -> Option<&str> {
        self.find(|key| key == name)
    }

    /// All of them, to be passed on.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The last one counts, as in an environment that is built by appending.
    fn find(&self, is_it: impl Fn(&str) -> bool) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| is_it(key)).map(|(_, value)| value.as_str())
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(key, _)| key)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_variables_are_kept_and_their_values_are_not_printed() {
        // calico-ipam.md section 4.1
        let vars = [
            ("ETCD_ENDPOINTS", "http://a:1"),
            ("CALICO_ETCD_ENDPOINTS", "http://b:2"),
            ("ETCD_PASSWORD", "opensesame"),
            ("CALICO_API_GROUP", "crd.projectcalico.org/v1"),
            ("KUBECONFIG", ""),
            ("LD_PRELOAD", "/x"),
            ("CALICO_LD_PRELOAD", "/x"),
        ];
        let kept = Overrides::of(vars.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(kept.iter().count(), 4);
        assert_eq!(kept.bare("ETCD_ENDPOINTS"), Some("http://a:1"));
        assert_eq!(kept.prefixed("ETCD_ENDPOINTS"), Some("http://b:2"));
        assert_eq!(kept.bare("CALICO_API_GROUP"), Some("crd.projectcalico.org/v1"));
        assert_eq!(kept.bare("KUBECONFIG"), None, "an empty value counts as unset");
        assert!(!format!("{kept:?}").contains("opensesame"));
    }
}
