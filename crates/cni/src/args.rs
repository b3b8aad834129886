//! `CNI_ARGS`: pairs joined by `;`, without a way to escape.

use crate::CniError;

/// The pairs of `CNI_ARGS` (cni-runtime.md section 1.4).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniArgs {
    pairs: Vec<(String, String)>,
    ignore_unknown: bool,
}

/// The pod that Kubernetes' runtimes name in `CNI_ARGS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodArgs<'a> {
    /// `K8S_POD_NAMESPACE`.
    pub namespace: &'a str,
    /// `K8S_POD_NAME`.
    pub name: &'a str,
    /// `K8S_POD_UID`; only newer runtimes send it.
    pub uid: Option<&'a str>,
    /// `K8S_POD_INFRA_CONTAINER_ID`.
    pub infra_container_id: Option<&'a str>,
}

/// Keys that every plugin accepts whether or not it uses them.
const ALWAYS_KNOWN: [&str; 5] =
    ["IgnoreUnknown", "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID"];

// === impl CniArgs ===

impl CniArgs {
    /// Splits `text`. Each pair must have exactly one `=`, as reference plugins require; the last
    /// of equal keys counts.
    pub fn parse(text: &str) -> Result<Self, CniError> {
        let mut args = Self::default();
        if text.is_empty() {
            return Ok(args);
        }
        // They would appear in logs, records and file names; no runtime has a reason to send them.
        if text.chars().any(char::is_control) {
            let details = "control characters are not allowed";
            return Err(CniError::environment(format!("CNI_ARGS {text:?} cannot be used"), details));
        }
        for pair in text.split(';') {
            let mut parts = pair.split('=');
            let (Some(key), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
                let details =
                    "CNI_ARGS holds pairs KEY=VALUE joined by ';', with no '=' or ';' inside a value";
                return Err(CniError::environment(format!("ARGS: invalid pair {pair:?}"), details));
            };
            args.set(key, value);
        }
        args.ignore_unknown = match args.get("IgnoreUnknown").map(str::to_ascii_lowercase).as_deref() {
            None | Some("0" | "false") => false,
            Some("1" | "true") => true,
            Some(other) => {
                let msg = format!("ARGS: IgnoreUnknown={other:?} is no boolean");
                return Err(CniError::environment(msg, "use 1, true, 0 or false"));
            }
        };
        Ok(args)
    }

    fn set(&mut self, key: &str, value: &str) {
        self.pairs.retain(|(known, _)| known != key);
        self.pairs.push((key.to_owned(), value.to_owned()));
    }

    /// The value of `key`, which is compared exactly.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The pairs, in the order in which they came.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The pod, when both its namespace and its name were given and are not empty.
    pub fn pod(&self) -> Option<PodArgs<'_>> {
        let filled = |key| self.get(key).filter(|value| !value.is_empty());
        Some(PodArgs {
            namespace: filled("K8S_POD_NAMESPACE")?,
            name: filled("K8S_POD_NAME")?,
            uid: filled("K8S_POD_UID"),
            infra_container_id: filled("K8S_POD_INFRA_CONTAINER_ID"),
        })
    }

    /// Refuses keys that are neither Kubernetes' nor in `known`, unless `IgnoreUnknown` was set.
    pub fn check_known(&self, known: &[&str]) -> Result<(), CniError> {
        let strange = |(key, _): &(&str, &str)| !known.contains(key) && !ALWAYS_KNOWN.contains(key);
        let unknown: Vec<String> =
            self.pairs().filter(strange).map(|(key, value)| format!("{key}={value}")).collect();
        if self.ignore_unknown || unknown.is_empty() {
            return Ok(());
        }
        let details = "set IgnoreUnknown=1 to have unknown keys ignored";
        Err(CniError::environment(format!("ARGS: unknown args {unknown:?}"), details))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code;

    #[test]
    fn kubernetes_arguments_name_a_pod() {
        // cni-runtime.md section 1.4
        let text = "K8S_POD_NAME=web;IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_UID=u1;X=";
        let args = CniArgs::parse(text).unwrap();
        let pod = args.pod().unwrap();
        assert_eq!(
            (pod.namespace, pod.name, pod.uid, pod.infra_container_id),
            ("ns1", "web", Some("u1"), None)
        );
        assert_eq!(args.get("X"), Some(""));
        assert_eq!(args.check_known(&[]), Ok(()));
        // podman sends a name and no namespace
        assert_eq!(CniArgs::parse("IgnoreUnknown=1;K8S_POD_NAME=c1").unwrap().pod(), None);
    }

    #[test]
    fn a_pair_has_exactly_one_equals_sign() {
        // cni-runtime.md section 1.4
        for bad in ["A", "A=1=2", "A=1;", ";", "A=1;B", "\0"] {
            assert_eq!(CniArgs::parse(bad).unwrap_err().code, code::ENVIRONMENT, "{bad}");
        }
        assert!(CniArgs::parse("A=b=c").unwrap_err().msg.contains("invalid pair"));
        assert!(CniArgs::parse("").unwrap().is_empty());
    }

    #[test]
    fn an_unknown_key_needs_ignore_unknown() {
        // cni-runtime.md section 6.2 item 38
        let args = CniArgs::parse("FOO=bar;IP=10.0.0.1").unwrap();
        let error = args.check_known(&["IP"]).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (code::ENVIRONMENT, "ARGS: unknown args [\"FOO=bar\"]"));
        for yes in ["1", "true", "TRUE"] {
            let args = CniArgs::parse(&format!("FOO=bar;IgnoreUnknown={yes}")).unwrap();
            assert_eq!(args.check_known(&[]), Ok(()));
        }
        assert!(CniArgs::parse("IgnoreUnknown=yes").is_err());
    }

    #[test]
    fn the_last_of_equal_keys_wins() {
        assert_eq!(CniArgs::parse("A=1;A=2").unwrap().pairs().collect::<Vec<_>>(), [("A", "2")]);
    }
}
