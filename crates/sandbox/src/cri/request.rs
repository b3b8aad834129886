//! Parses clients' requests: invalid and unsupported ones are refused here.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::{Config, Dns, Filter, Metadata, PortMapping, Protocol, State};
use ipnet::IpNet;
use russet_cri_api as v1;
use tonic::Status;

/// The requested sandbox.
pub fn config(request: v1::RunPodSandboxRequest) -> Result<Config, Status> {
    let v1::RunPodSandboxRequest { config, runtime_handler } = request;
    let config = config.ok_or_else(|| refused("config", "is missing"))?;
    let metadata = config.metadata.ok_or_else(|| refused("config.metadata", "is missing"))?;
    if !runtime_handler.is_empty() {
        return Err(refused(
            "runtime_handler",
            format!("{runtime_handler:?} is unknown: there is only the default one, without a name"),
        ));
    }
    let linux = config.linux.unwrap_or_default();
    let namespaces = namespaces(linux.security_context.unwrap_or_default())?;
    Ok(Config {
        metadata: Metadata {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            attempt: metadata.attempt,
        },
        hostname: config.hostname,
        log_directory: Some(config.log_directory).filter(|path| !path.is_empty()).map(PathBuf::from),
        dns: config.dns_config.map(dns).transpose()?,
        port_mappings: config.port_mappings.into_iter().map(port).collect::<Result<_, _>>()?,
        labels: sorted(config.labels),
        annotations: sorted(config.annotations),
        host_network: is_host(namespaces.network, "network")?,
        host_ipc: is_host(namespaces.ipc, "ipc")?,
        host_pid: is_host(namespaces.pid, "pid")?,
        sysctls: sorted(linux.sysctls),
        cgroup_parent: linux.cgroup_parent,
        runtime_handler,
        ..Config::default()
    })
}

/// The requested namespaces, if they are supported.
fn namespaces(context: v1::LinuxSandboxSecurityContext) -> Result<v1::NamespaceOption, Status> {
    if context.run_as_group.is_some() && context.run_as_user.is_none() {
        return Err(refused("run_as_group", "is an error without run_as_user"));
    }
    let options = context.namespace_options.unwrap_or_default();
    match &options.userns_options {
        Some(user) if user.mode() != v1::NamespaceMode::Node => {
            Err(refused("userns_options", "sandboxes have no user namespaces of their own"))
        }
        _ => Ok(options),
    }
}

fn is_host(mode: i32, which: &'static str) -> Result<bool, Status> {
    match v1::NamespaceMode::try_from(mode) {
        Ok(v1::NamespaceMode::Node) => Ok(true),
        // Kubernetes has no network and no IPC of a single container; for a sandbox both values
        // mean its own.
        Ok(v1::NamespaceMode::Pod | v1::NamespaceMode::Container) => Ok(false),
        Ok(v1::NamespaceMode::Target) | Err(_) => {
            Err(refused(format!("namespace_options.{which}"), format!("mode {mode} is not one of a sandbox")))
        }
    }
}

fn dns(dns: v1::DnsConfig) -> Result<Dns, Status> {
    let (scoped, plain): (Vec<_>, Vec<_>) = dns.servers.into_iter().partition(|server| server.contains('%'));
    if !scoped.is_empty() {
        // The node's own resolv.conf may have such an address, which kubelet passes on:
        // `fe80::1%eth0`, with an interface that no pod has.
        tracing::warn!(
            servers = scoped.join(", ").escape_debug().to_string(),
            "name servers that are reached through an interface of the node are left out"
        );
    }
    let servers =
        plain.into_iter().map(|server| address(&server, "dns_config.servers")).collect::<Result<_, _>>()?;
    Ok(Dns { servers, searches: dns.searches, options: dns.options })
}

fn port(mapping: v1::PortMapping) -> Result<PortMapping, Status> {
    let number = |port: i32, which: &str| {
        u16::try_from(port)
            .map_err(|_| refused(format!("port_mappings.{which}"), format!("{port} is no port")))
    };
    let protocol = match v1::Protocol::try_from(mapping.protocol) {
        Ok(v1::Protocol::Tcp) => Protocol::Tcp,
        Ok(v1::Protocol::Udp) => Protocol::Udp,
        Ok(v1::Protocol::Sctp) => Protocol::Sctp,
        Err(_) => return Err(refused("port_mappings.protocol", format!("{} is unknown", mapping.protocol))),
    };
    let host_ip = Some(mapping.host_ip).filter(|ip| !ip.is_empty());
    Ok(PortMapping {
        protocol,
        container_port: number(mapping.container_port, "container_port")?,
        host_port: number(mapping.host_port, "host_port")?,
        host_ip: host_ip.map(|ip| address(&ip, "port_mappings.host_ip")).transpose()?,
    })
}

fn address(text: &str, which: &'static str) -> Result<IpAddr, Status> {
    text.parse().map_err(|_| refused(which, format!("{text:?} is no address")))
}

/// The filter of a list.
pub fn filter(filter: Option<v1::PodSandboxFilter>) -> Result<Filter, Status> {
    let v1::PodSandboxFilter { id, state, label_selector } = filter.unwrap_or_default();
    let state = match state.map(|value| v1::PodSandboxState::try_from(value.state)) {
        None => None,
        Some(Ok(v1::PodSandboxState::SandboxReady)) => Some(State::Ready),
        Some(Ok(v1::PodSandboxState::SandboxNotready)) => Some(State::NotReady),
        Some(Err(error)) => return Err(refused("filter.state", error.to_string())),
    };
    Ok(Filter { id: Some(id).filter(|id| !id.is_empty()), state, labels: sorted(label_selector) })
}

/// The filter of a list of stats.
pub fn stats_filter(filter: Option<v1::PodSandboxStatsFilter>) -> Filter {
    let v1::PodSandboxStatsFilter { id, label_selector } = filter.unwrap_or_default();
    Filter { id: Some(id).filter(|id| !id.is_empty()), state: None, labels: sorted(label_selector) }
}

/// The pods' network in kubelet's settings: at most one prefix of each family, joined by a comma;
/// None if it is empty.
pub fn pod_cidr(request: v1::UpdateRuntimeConfigRequest) -> Result<Vec<IpNet>, Status> {
    let network = request.runtime_config.and_then(|config| config.network_config).unwrap_or_default();
    let parts = network.pod_cidr.split(',').map(str::trim).filter(|part| !part.is_empty());
    let cidr =
        |part: &str| part.parse().map_err(|_| refused("pod_cidr", format!("{part:?} is no address prefix")));
    parts.map(cidr).collect()
}

fn sorted(map: std::collections::HashMap<String, String>) -> BTreeMap<String, String> {
    map.into_iter().collect()
}

fn refused(field: impl std::fmt::Display, why: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("{field}: {why}"))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn request() -> v1::RunPodSandboxRequest {
        let metadata = v1::PodSandboxMetadata {
            name: "web".into(),
            uid: "u1".into(),
            namespace: "ns1".into(),
            attempt: 2,
        };
        let config =
            v1::PodSandboxConfig { metadata: Some(metadata), hostname: "web".into(), ..Default::default() };
        v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() }
    }

    fn with(change: impl FnOnce(&mut v1::PodSandboxConfig)) -> Result<Config, Status> {
        let mut request = request();
        change(request.config.as_mut().unwrap());
        config(request)
    }

    fn with_namespaces(options: v1::NamespaceOption) -> Result<Config, Status> {
        with(|config| {
            let context =
                v1::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
            config.linux =
                Some(v1::LinuxPodSandboxConfig { security_context: Some(context), ..Default::default() });
        })
    }

    fn code(result: Result<Config, Status>) -> Code {
        result.unwrap_err().code()
    }

    #[test]
    fn kubelets_request_is_converted() {
        let made = with(|config| {
            config.log_directory = "/var/log/pods/x".into();
            config.dns_config = Some(v1::DnsConfig {
                servers: vec!["10.96.0.10".into(), "fe80::1%eth0".into()],
                searches: vec!["svc.cluster.local".into()],
                options: vec!["ndots:5".into()],
            });
            let udp = v1::PortMapping {
                protocol: 1,
                container_port: 53,
                host_port: 0,
                host_ip: "192.0.2.1".into(),
            };
            config.port_mappings = vec![udp];
            config.labels.insert("app".into(), "web".into());
            let linux = v1::LinuxPodSandboxConfig { cgroup_parent: "/kubepods".into(), ..Default::default() };
            config.linux = Some(linux);
        });
        let made = made.unwrap();
        assert_eq!(made.metadata.reserved_name(), "web_ns1_u1_2");
        assert_eq!(made.log_directory, Some(PathBuf::from("/var/log/pods/x")));
        assert_eq!(made.dns.unwrap().servers, ["10.96.0.10".parse::<IpAddr>().unwrap()]);
        assert_eq!(
            (made.port_mappings[0].protocol, made.port_mappings[0].container_port),
            (Protocol::Udp, 53)
        );
        assert_eq!(made.labels["app"], "web");
        assert_eq!((made.host_network, made.cgroup_parent.as_str()), (false, "/kubepods"));
    }

    #[test]
    fn namespaces_are_the_pods_or_the_nodes() {
        let mode = |mode: v1::NamespaceMode| i32::from(mode);
        let node = v1::NamespaceOption { network: mode(v1::NamespaceMode::Node), ..Default::default() };
        assert!(with_namespaces(node).unwrap().host_network);
        let kubelets = v1::NamespaceOption { pid: mode(v1::NamespaceMode::Container), ..Default::default() };
        let made = with_namespaces(kubelets).unwrap();
        assert!(!made.host_network && !made.host_pid && !made.host_ipc);
        let target = v1::NamespaceOption { pid: mode(v1::NamespaceMode::Target), ..Default::default() };
        assert_eq!(code(with_namespaces(target)), Code::InvalidArgument);
        let unheard = v1::NamespaceOption { network: 17, ..Default::default() };
        assert_eq!(code(with_namespaces(unheard)), Code::InvalidArgument);
    }

    #[test]
    fn unsupported_requests_are_refused() {
        let user = v1::UserNamespace { mode: v1::NamespaceMode::Pod.into() };
        let options = v1::NamespaceOption { userns_options: Some(user), ..Default::default() };
        assert_eq!(code(with_namespaces(options)), Code::InvalidArgument);
        let handler = v1::RunPodSandboxRequest { runtime_handler: "kata".into(), ..request() };
        assert_eq!(code(config(handler)), Code::InvalidArgument);
        assert_eq!(code(config(v1::RunPodSandboxRequest::default())), Code::InvalidArgument);
        assert_eq!(code(with(|config| config.metadata = None)), Code::InvalidArgument);
        let group = with(|config| {
            let context = v1::LinuxSandboxSecurityContext {
                run_as_group: Some(v1::Int64Value { value: 1 }),
                ..Default::default()
            };
            config.linux =
                Some(v1::LinuxPodSandboxConfig { security_context: Some(context), ..Default::default() });
        });
        assert_eq!(code(group), Code::InvalidArgument);
        for port in [
            v1::PortMapping { container_port: 65_536, ..Default::default() },
            v1::PortMapping { container_port: 80, host_port: -1, ..Default::default() },
            v1::PortMapping { container_port: 80, protocol: 9, ..Default::default() },
            v1::PortMapping { container_port: 80, host_ip: "here".into(), ..Default::default() },
        ] {
            assert_eq!(code(with(|config| config.port_mappings = vec![port])), Code::InvalidArgument);
        }
    }

    #[test]
    fn a_pod_cidr_is_one_or_two_prefixes_or_nothing() {
        let cidr_of = |cidr: &str| {
            let network_config = Some(v1::NetworkConfig { pod_cidr: cidr.into() });
            pod_cidr(v1::UpdateRuntimeConfigRequest {
                runtime_config: Some(v1::RuntimeConfig { network_config }),
            })
        };
        assert_eq!(cidr_of("10.1.0.0/24, fd00::/64").unwrap().len(), 2);
        assert!(cidr_of("").unwrap().is_empty());
        assert!(pod_cidr(v1::UpdateRuntimeConfigRequest::default()).unwrap().is_empty());
        assert_eq!(cidr_of("10.1.0.0/33").unwrap_err().code(), Code::InvalidArgument);
    }
}
