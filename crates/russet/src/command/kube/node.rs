//! What other networks left in the files of this node.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use russet_agent::conflists::Conflists;
use serde::Deserialize;

use super::super::findings::{FindingKind, Findings};

/// Where the plugin `host-local` keeps its addresses, a directory for each network.
pub const HOST_LOCAL: &str = "/var/lib/cni/networks";
/// The kubeconfig of Calico's plugins, in the runtime's directory of configurations.
const CALICO_KUBECONFIG: &str = "calico-kubeconfig";
const OURS: &str = "russet";

#[derive(Deserialize)]
struct Claims {
    /// When the token ends, in seconds since 1970.
    exp: u64,
}

/// Looks at a directory of configurations, which it returns, and at one of `host-local`.
pub fn look(configurations: &Path, host_local: &Path, report: &mut Findings) -> Conflists {
    let read = Conflists::read(configurations);
    match &read {
        Ok(conflists) => {
            hidden_network(configurations, conflists, report);
            let uses = |network: &str| conflists.all().first().is_some_and(|list| list.network == network);
            leftover_addresses(host_local, uses, report);
        }
        Err(error) => report.unknown.push(format!("{}: {error}", configurations.display())),
    }
    expired_token(&configurations.join(CALICO_KUBECONFIG), SystemTime::now(), report);
    read.unwrap_or_default()
}

/// Another network's configuration that the runtime takes in the place of ours.
fn hidden_network(configurations: &Path, conflists: &Conflists, report: &mut Findings) {
    if let Some((first, ours)) = conflists.hidden(OURS) {
        let problem = format!(
            "it comes before {}, and the runtime uses the first one: pods get the network {:?}",
            ours.file, first.network
        );
        let subject = configurations.join(&first.file).display().to_string();
        let remedy = "remove it once its pods may restart; programs that write it again have to be removed before (see the cluster's findings)";
        report.found(FindingKind::ConflistOrder, subject, problem, remedy);
    }
}

/// Addresses of networks that pods do not get any more. `calico-ipam -upgrade` moves a node to Calico's
/// addresses as long as there are any, and locks the whole cluster meanwhile.
fn leftover_addresses(directory: &Path, is_used: impl Fn(&str) -> bool, report: &mut Findings) {
    let networks = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for network in networks {
        let name = network.file_name().to_string_lossy().into_owned();
        let files = std::fs::read_dir(network.path()).into_iter().flatten().flatten();
        let is_address = |file: &std::fs::DirEntry| {
            file.file_name().to_str().is_some_and(|name| name.parse::<IpAddr>().is_ok())
        };
        let count = files.filter(is_address).count();
        if count > 0 && !is_used(&name) {
            let problem = format!("{count} addresses of host-local for a network that new pods do not get");
            let subject = network.path().display().to_string();
            let remedy = "remove the directory once no pod of that network runs: a later migration takes it for work to do";
            report.found(FindingKind::HostLocal, subject, problem, remedy);
        }
    }
}

fn expired_token(kubeconfig: &Path, now: SystemTime, report: &mut Findings) {
    let Ok(text) = std::fs::read_to_string(kubeconfig) else { return };
    let Some(end) = token_end(&text).filter(|end| *end <= now) else { return };
    let hours = now.duration_since(end).unwrap_or_default().as_secs() / 3600;
    let problem = format!("its token ended {hours} h ago: every ADD and DEL of Calico's plugin is refused");
    let remedy =
        "restart calico-node on this node, which renews it, or let `russet agent --calico-kubeconfig` do it";
    report.found(FindingKind::ExpiredToken, kubeconfig.display().to_string(), problem, remedy);
}

/// When the token in a kubeconfig ends; none for one that does not say.
fn token_end(kubeconfig: &str) -> Option<SystemTime> {
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token:"))?;
    let claims = token.trim().trim_matches('"').split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_networks_are_found() {
        // kubernetes.md K98
        let root = tempfile::tempdir().unwrap();
        let (net, leases) = (root.path().join("net.d"), root.path().join("networks"));
        std::fs::create_dir_all(leases.join("cbr0")).unwrap();
        std::fs::create_dir_all(&net).unwrap();
        let kinds = || {
            let mut report = Findings::default();
            look(&net, &leases, &mut report);
            assert!(report.unknown.is_empty(), "{report:?}");
            report.findings.into_iter().map(|finding| finding.kind).collect::<Vec<_>>()
        };
        let conflist = |name: &str, network: &str, plugin: &str| {
            let text = format!(r#"{{"name":"{network}","plugins":[{{"type":"{plugin}"}}]}}"#);
            std::fs::write(net.join(name), text).unwrap();
        };
        conflist("10-russet.conflist", "russet", "russet");
        std::fs::write(leases.join("cbr0/last_reserved_ip.0"), "10.244.0.2").unwrap();
        assert_eq!(kinds(), []);
        std::fs::write(leases.join("cbr0/10.244.0.2"), "id\neth0").unwrap();
        assert_eq!(kinds(), [FindingKind::HostLocal]);
        conflist("10-calico.conflist", "k8s-pod-network", "calico");
        assert_eq!(kinds(), [FindingKind::ConflistOrder, FindingKind::HostLocal]);
        conflist("10-calico.conflist", "cbr0", "flannel");
        assert_eq!(kinds(), [FindingKind::ConflistOrder], "pods get these addresses");
    }

    #[test]
    fn a_token_that_has_ended_is_found() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(CALICO_KUBECONFIG);
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(r#"{"exp":1000}"#));
        std::fs::write(&path, format!("users:\n- user:\n    token: {token}\n")).unwrap();
        for (seconds, is_found) in [(999, false), (1000, true)] {
            let mut report = Findings::default();
            expired_token(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), &mut report);
            assert_eq!(report.findings.len() == 1, is_found, "{seconds}");
        }
        assert_eq!(token_end("token: opaque"), None);
    }
}
