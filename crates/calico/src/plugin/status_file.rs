//! The file by which Felix says that an endpoint's policy is in place (calico-cni.md section 4.9).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::workload::{K8S, Workload};

/// Interval between two looks for the file.
const PAUSE: Duration = Duration::from_millis(100);

/// The wait for a pod's policy, after the pod is wired and its endpoint is written. It changes
/// nothing, so it runs after the request's locks are released: otherwise a pod whose policy comes
/// late would block its own DEL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the pod is started before its policy is in place"]
pub struct PolicyWait {
    file: PathBuf,
    timeout: Duration,
}

// === impl PolicyWait ===

impl PolicyWait {
    /// `None` if the workload is no pod, or if the timeout is zero.
    pub(super) fn new(dir: &Path, workload: &Workload, timeout: Duration) -> Option<Self> {
        let file = path(dir, workload).filter(|_| !timeout.is_zero())?;
        Some(Self { file, timeout })
    }

    /// Waits until the file exists or the timeout ends. A timeout is no error: Felix denies the
    /// pod's traffic until the policy is in place.
    pub async fn wait(self) {
        let Self { file, timeout } = self;
        let end = tokio::time::Instant::now() + timeout;
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
    Some(dir.join(endpoint_status_file(&pod.namespace, &pod.name, workload.id.ifname.as_str())))
}

/// The name of the file by which Felix reports a pod's endpoint.
pub fn endpoint_status_file(namespace: &str, pod: &str, endpoint: &str) -> String {
    [K8S, &format!("{namespace}/{pod}"), endpoint].map(escaped).join(" ")
}

/// Escapes like Go's `url.PathEscape`.
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
            id: "net/c/eth0".parse().unwrap(),
        };
        assert_eq!(path(Path::new("/s"), &workload).unwrap(), Path::new("/s/k8s shop%2Fweb-0 eth0"));
        assert_eq!(path(Path::new("/s"), &Workload { pod: None, ..workload }), None);
    }
}
