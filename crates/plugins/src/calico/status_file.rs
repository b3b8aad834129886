//! Felix's word that an endpoint's policy is in place: a file for each endpoint (calico-cni.md section 4.9).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::workload::{K8S, Workload};

/// Between two looks for the file.
const PAUSE: Duration = Duration::from_millis(100);

/// What is left to do once a pod is wired and written: its policy is waited for, and nothing is changed any more. So this comes after the request's locks are
/// given back, lest a pod whose policy comes late keeps its own DEL waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the pod is started before its policy is in place"]
pub struct PolicyWait {
    file: PathBuf,
    patience: Duration,
}

// === impl PolicyWait ===

impl PolicyWait {
    /// None for what is no pod, or where nobody is to wait.
    pub(super) fn of(dir: &Path, workload: &Workload, patience: Duration) -> Option<Self> {
        let file = path(dir, workload).filter(|_| !patience.is_zero())?;
        Some(Self { file, patience })
    }

    /// Waits until the file is there. It is only waited for: a pod without policy is denied, and comes to its own later.
    pub async fn wait(self) {
        let Self { file, patience } = self;
        let end = tokio::time::Instant::now() + patience;
        while !file.exists() {
            if tokio::time::Instant::now() >= end {
                tracing::warn!(file = %file.display(), "the pod's policy is not known to be in place yet");
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn path(dir: &Path, workload: &Workload) -> Option<PathBuf> {
    let pod = workload.pod.as_ref()?;
    Some(dir.join(endpoint_status_file(&pod.namespace, &pod.name, workload.ifname.as_str())))
}

/// The name of the file that says that a pod's endpoint is set up.
pub fn endpoint_status_file(namespace: &str, pod: &str, endpoint: &str) -> String {
    [K8S, &format!("{namespace}/{pod}"), endpoint].map(escaped).join(" ")
}

/// As Go's `url.PathEscape` does.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+=:@".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use russet_attach::Pod;

    use super::*;

    #[test]
    fn oracle_75_an_endpoints_file_is_named_as_felix_does() {
        let workload = Workload {
            node: "n1".parse().unwrap(),
            namespace: "shop".into(),
            pod: Some(Pod { namespace: "shop".into(), name: "web-0".into() }),
            container: "c".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        assert_eq!(path(Path::new("/s"), &workload).unwrap(), Path::new("/s/k8s shop%2Fweb-0 eth0"));
        assert_eq!(path(Path::new("/s"), &Workload { pod: None, ..workload }), None);
    }
}
