//! Converts sandboxes to messages of CRI.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Config, InterfaceStats, Metadata, Sandbox, State, Stats};
use russet_cri_api as v1;

/// The interface that a pod's default network is on.
const DEFAULT_INTERFACE: &str = "eth0";

pub fn status(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    let config = &sandbox.config;
    v1::PodSandboxStatus {
        id: sandbox.id.to_string(),
        metadata: Some(metadata(&config.metadata)),
        state: state(sandbox.state).into(),
        created_at: nanoseconds(sandbox.created_at),
        network: Some(network(sandbox)),
        linux: Some(v1::LinuxPodSandboxStatus {
            namespaces: Some(v1::Namespace { options: Some(namespaces(config)) }),
        }),
        labels: map(&config.labels),
        annotations: map(&config.annotations),
        runtime_handler: config.runtime_handler.clone(),
    }
}

/// The entry of a sandbox in ListPodSandbox.
pub fn item(sandbox: &Sandbox) -> v1::PodSandbox {
    let config = &sandbox.config;
    v1::PodSandbox {
        id: sandbox.id.to_string(),
        metadata: Some(metadata(&config.metadata)),
        state: state(sandbox.state).into(),
        created_at: nanoseconds(sandbox.created_at),
        labels: map(&config.labels),
        annotations: map(&config.annotations),
        runtime_handler: config.runtime_handler.clone(),
    }
}

/// The resource usage of a sandbox.
pub fn stats(sandbox: &Sandbox, stats: &Stats) -> v1::PodSandboxStats {
    let config = &sandbox.config;
    let attributes = v1::PodSandboxAttributes {
        id: sandbox.id.to_string(),
        metadata: Some(metadata(&config.metadata)),
        labels: map(&config.labels),
        annotations: map(&config.annotations),
    };
    let (default, others): (Vec<_>, Vec<_>) =
        stats.interfaces.iter().map(interface).partition(|interface| interface.name == DEFAULT_INTERFACE);
    let network = v1::NetworkUsage {
        timestamp: nanoseconds(stats.at),
        default_interface: default.into_iter().next(),
        interfaces: others,
    };
    v1::PodSandboxStats {
        attributes: Some(attributes),
        linux: Some(v1::LinuxPodSandboxStats { network: Some(network) }),
    }
}

fn interface(stats: &InterfaceStats) -> v1::NetworkInterfaceUsage {
    let number = |value| Some(v1::UInt64Value { value });
    v1::NetworkInterfaceUsage {
        name: stats.name.clone(),
        rx_bytes: number(stats.rx_bytes),
        rx_errors: number(stats.rx_errors),
        tx_bytes: number(stats.tx_bytes),
        tx_errors: number(stats.tx_errors),
    }
}

/// For kubelet, an empty address means that the pod is in the node's network, or has lost its own.
fn network(sandbox: &Sandbox) -> v1::PodSandboxNetworkStatus {
    let mut addresses = sandbox.addresses.iter().map(ToString::to_string);
    let ip = addresses.next().unwrap_or_default();
    v1::PodSandboxNetworkStatus { ip, additional_ips: addresses.map(|ip| v1::PodIp { ip }).collect() }
}

fn namespaces(config: &Config) -> v1::NamespaceOption {
    use v1::NamespaceMode::{Container, Node, Pod};
    let mode = |host: bool, own: v1::NamespaceMode| if host { Node.into() } else { own.into() };
    v1::NamespaceOption {
        network: mode(config.host_network, Pod),
        // A sandbox has no PID namespace that containers could share.
        pid: mode(config.host_pid, Container),
        ipc: mode(config.host_ipc, Pod),
        ..Default::default()
    }
}

fn metadata(metadata: &Metadata) -> v1::PodSandboxMetadata {
    let Metadata { name, namespace, uid, attempt } = metadata.clone();
    v1::PodSandboxMetadata { name, uid, namespace, attempt }
}

const fn state(state: State) -> v1::PodSandboxState {
    match state {
        State::Ready => v1::PodSandboxState::SandboxReady,
        State::NotReady => v1::PodSandboxState::SandboxNotready,
    }
}

fn map(map: &BTreeMap<String, String>) -> HashMap<String, String> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Nanoseconds since 1970, and never 0, which means unknown: a wrong clock yields the oldest
/// possible sandbox.
pub fn nanoseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    i64::try_from(since).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    fn sandbox() -> Sandbox {
        Sandbox {
            id: "ab".repeat(32).parse().unwrap(),
            config: Config::default(),
            state: State::Ready,
            created_at: UNIX_EPOCH,
            netns: None,
            pid: None,
            addresses: vec![],
            dir: PathBuf::new(),
            trouble: None,
        }
    }

    #[test]
    fn a_creation_time_is_never_0() {
        assert_eq!(status(&sandbox()).created_at, 1);
        assert_eq!(item(&sandbox()).created_at, 1);
        assert_eq!(nanoseconds(UNIX_EPOCH + Duration::from_secs(2)), 2_000_000_000);
    }

    #[test]
    fn the_first_address_is_the_primary_one() {
        let addresses: Vec<IpAddr> =
            ["10.9.9.9", "fd00::9", "10.9.9.10"].map(|text| text.parse().unwrap()).into();
        let network = status(&Sandbox { addresses, ..sandbox() }).network.unwrap();
        assert_eq!(network.ip, "10.9.9.9");
        assert_eq!(
            network.additional_ips.iter().map(|more| more.ip.as_str()).collect::<Vec<_>>(),
            ["fd00::9", "10.9.9.10"]
        );
    }

    #[test]
    fn host_network_has_the_nodes_namespace_and_no_address() {
        let config = Config { host_network: true, ..Config::default() };
        let status = status(&Sandbox { config, ..sandbox() });
        assert_eq!(status.network.unwrap().ip, "");
        let options = status.linux.unwrap().namespaces.unwrap().options.unwrap();
        assert_eq!(options.network(), v1::NamespaceMode::Node);
        assert_eq!(options.ipc(), v1::NamespaceMode::Pod);
    }

    #[test]
    fn eth0_is_the_default_interface_and_not_among_the_others() {
        let interface = |name: &str| InterfaceStats {
            name: name.into(),
            rx_bytes: 1,
            rx_errors: 2,
            tx_bytes: 3,
            tx_errors: 4,
        };
        let numbers = Stats {
            id: sandbox().id,
            at: UNIX_EPOCH,
            interfaces: vec![interface("net1"), interface("eth0")],
        };
        let network = stats(&sandbox(), &numbers).linux.unwrap().network.unwrap();
        assert_eq!(network.default_interface.unwrap().tx_bytes.unwrap().value, 3);
        assert_eq!(network.interfaces.iter().map(|other| other.name.as_str()).collect::<Vec<_>>(), ["net1"]);
        assert!(network.timestamp > 0);
    }
}
