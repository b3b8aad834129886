//! A client of the container runtime interface (CRI v1), for tests: kubelet's calls about
//! sandboxes, and no more.
//!
//! The whole-program tests drive Debian's containerd with it; any CRI server can be driven the same
//! way.

#![allow(missing_docs, reason = "names say most of it")]

mod burst;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Runtime;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use v1::runtime_service_client::RuntimeServiceClient;

pub use burst::burst;
pub use russet_cri_api as v1;
pub use tonic::Code as StatusCode;

/// A connection to a runtime. Its methods block for the answer, and may be called from several
/// threads concurrently.
#[derive(Debug)]
pub struct Cri {
    runtime: Runtime,
    channel: Channel,
    socket: PathBuf,
}

/// The stream of a runtime's sandbox events.
pub struct Events<'a> {
    cri: &'a Cri,
    stream: Streaming<v1::ContainerEventResponse>,
}

/// A pod as kubelet describes it to a runtime.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    /// Its namespace in the cluster.
    pub namespace: String,
    pub name: String,
    /// The number of earlier sandboxes of the pod.
    pub attempt: u32,
    /// Ports of the host that are forwarded to it over TCP: (host's, pod's).
    pub host_ports: Vec<(u16, u16)>,
}

/// The state of a sandbox by the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Whether it runs.
    pub ready: bool,
    /// Its addresses, the primary one first.
    pub addresses: Vec<String>,
    /// The path of its network namespace.
    pub netns: PathBuf,
}

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No tokio runtime could be made.
    #[error("start the client of {socket}")]
    Start { socket: PathBuf, source: std::io::Error },
    /// The path is not valid for a socket.
    #[error("the address of {socket}")]
    Address { socket: PathBuf, source: tonic::transport::Error },
    /// The runtime answered with an error, or not at all.
    #[error("{method} {subject:?} on {socket}: {}: {}", source.code(), source.message())]
    Call {
        /// The method, under CRI's name.
        method: &'static str,
        /// The sandbox or pod in question.
        subject: String,
        socket: PathBuf,
        source: Box<tonic::Status>,
    },
    /// The runtime's answer is invalid.
    #[error("{method} {subject:?} on {socket}: the answer lacks {missing}")]
    Answer {
        /// The method, under CRI's name.
        method: &'static str,
        /// The sandbox in question.
        subject: String,
        socket: PathBuf,
        /// The missing member.
        missing: &'static str,
    },
}

pub type Result<T> = std::result::Result<T, Error>;

/// kubelet's timeout for `RunPodSandbox`: twice its two minutes (cni-runtime.md section 3.1).
const REQUEST_LIMIT: Duration = Duration::from_secs(240);

/// How long to wait for an event that the caller has caused.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

// === impl Cri ===

impl Cri {
    /// A client of the runtime behind a unix socket. Connects with the first call, and again after
    /// a restart of the runtime.
    pub fn new(socket: &Path) -> Result<Self> {
        let start = |source| Error::Start { socket: socket.to_owned(), source };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(start)?;
        let address = |source| Error::Address { socket: socket.to_owned(), source };
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(address)?;
        let entered = runtime.enter();
        let channel = endpoint.timeout(REQUEST_LIMIT).connect_lazy();
        drop(entered);
        Ok(Self { runtime, channel, socket: socket.to_owned() })
    }

    fn service(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone())
    }

    fn wait<T>(
        &self,
        method: &'static str,
        subject: &str,
        request: impl Future<Output = std::result::Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T> {
        let failed = |source| Error::Call {
            method,
            subject: subject.to_owned(),
            socket: self.socket.clone(),
            source: Box::new(source),
        };
        self.runtime.block_on(request).map(tonic::Response::into_inner).map_err(failed)
    }

    /// Whether the runtime serves and has a usable network configuration.
    pub fn is_ready(&self) -> bool {
        let call = self.wait("Status", "", self.service().status(v1::StatusRequest::default()));
        let conditions = call.ok().and_then(|answer| answer.status).unwrap_or_default().conditions;
        !conditions.is_empty() && conditions.iter().all(|condition| condition.status)
    }

    /// Starts a sandbox and returns its ID.
    pub fn run(&self, pod: &Pod) -> Result<String> {
        self.run_config(pod.config())
    }

    /// Starts a sandbox from CRI's own message, and returns its ID.
    pub fn run_config(&self, config: v1::PodSandboxConfig) -> Result<String> {
        let name = config.metadata.as_ref().map_or_else(String::new, |metadata| metadata.name.clone());
        let request = v1::RunPodSandboxRequest { config: Some(config), ..Default::default() };
        let call = self.wait("RunPodSandbox", &name, self.service().run_pod_sandbox(request));
        call.map(|answer| answer.pod_sandbox_id)
    }

    /// Ends a sandbox's processes and detaches its network.
    pub fn stop(&self, id: &str) -> Result<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.wait("StopPodSandbox", id, self.service().stop_pod_sandbox(request)).map(drop)
    }

    /// Removes a sandbox.
    pub fn remove(&self, id: &str) -> Result<()> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.wait("RemovePodSandbox", id, self.service().remove_pod_sandbox(request)).map(drop)
    }

    /// The state of a sandbox.
    pub fn sandbox(&self, id: &str) -> Result<Sandbox> {
        let answer = self.sandbox_status(id)?;
        let missing = |missing| Error::Answer {
            method: "PodSandboxStatus",
            subject: id.to_owned(),
            socket: self.socket.clone(),
            missing,
        };
        let info = answer.info.get("info").map_or("", String::as_str);
        let netns = netns_of(info).ok_or_else(|| missing("the network namespace in runtimeSpec"))?;
        let status = answer.status.ok_or_else(|| missing("the status"))?;
        let network = status.network.clone().unwrap_or_default();
        let more = network.additional_ips.into_iter().map(|more| more.ip);
        let addresses = std::iter::once(network.ip).chain(more).filter(|ip| !ip.is_empty()).collect();
        Ok(Sandbox { ready: status.state() == v1::PodSandboxState::SandboxReady, addresses, netns })
    }

    /// Any call, by the names of its service and method; `deadline` is sent to the runtime and
    /// enforced here.
    pub fn ask<M, R>(
        &self,
        (service, method): (&'static str, &'static str),
        request: M,
        deadline: Option<Duration>,
    ) -> Result<R>
    where
        M: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let mut request = Request::new(request);
        if let Some(deadline) = deadline {
            request.set_timeout(deadline);
        }
        let path = PathAndQuery::try_from(format!("/{service}/{method}"));
        let call = async {
            let path = path.map_err(|error| Status::invalid_argument(error.to_string()))?;
            let mut client = tonic::client::Grpc::new(self.channel.clone());
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            client.unary(request, path, ProstCodec::<M, R>::default()).await
        };
        self.wait(method, service, call)
    }

    /// The runtime's verbose status.
    pub fn status(&self) -> Result<v1::StatusResponse> {
        self.wait("Status", "", self.service().status(v1::StatusRequest { verbose: true }))
    }

    /// The verbose status of a sandbox.
    pub fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatusResponse> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        self.wait("PodSandboxStatus", id, self.service().pod_sandbox_status(request))
    }

    /// The sandboxes that match `filter`.
    pub fn list(&self, filter: v1::PodSandboxFilter) -> Result<Vec<v1::PodSandbox>> {
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        self.wait("ListPodSandbox", "", self.service().list_pod_sandbox(request)).map(|answer| answer.items)
    }

    /// Events from now on.
    pub fn events(&self) -> Result<Events<'_>> {
        let mut service = self.service();
        let call = service.get_container_events(v1::GetEventsRequest {});
        Ok(Events { cri: self, stream: self.wait("GetContainerEvents", "", call)? })
    }

    /// The IDs of all sandboxes.
    pub fn sandboxes(&self) -> Result<Vec<String>> {
        let request = v1::ListPodSandboxRequest::default();
        let call = self.wait("ListPodSandbox", "", self.service().list_pod_sandbox(request))?;
        Ok(call.items.into_iter().map(|item| item.id).collect())
    }
}

// === impl Events ===

impl Events<'_> {
    /// The next event; None when the runtime ends the stream. An error if there is none for a
    /// minute.
    pub fn wait(&mut self) -> Result<Option<v1::ContainerEventResponse>> {
        let Self { cri, stream } = self;
        let next = async {
            let silent = |_elapsed| Status::deadline_exceeded("nothing happened");
            let next = tokio::time::timeout(EVENT_TIMEOUT, stream.message()).await.map_err(silent)??;
            Ok(tonic::Response::new(next))
        };
        cri.wait("GetContainerEvents", "", next)
    }
}

// === impl Error ===

impl Error {
    /// The gRPC code; None if no call was made, or its answer was invalid.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call { source, .. } => Some(source.code()),
            Self::Start { .. } | Self::Address { .. } | Self::Answer { .. } => None,
        }
    }
}

/// The path of the network namespace in containerd's verbose status: that of the OCI configuration.
fn netns_of(info: &str) -> Option<PathBuf> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array()?;
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
    network["path"].as_str().map(PathBuf::from)
}

// === impl Pod ===

impl Pod {
    /// A pod of the namespace `default`.
    pub fn named(name: &str) -> Self {
        Self { namespace: "default".to_owned(), name: name.to_owned(), ..Self::default() }
    }

    /// The pod as CRI's message.
    pub fn config(&self) -> v1::PodSandboxConfig {
        let metadata = v1::PodSandboxMetadata {
            name: self.name.clone(),
            uid: format!("uid-{}-{}", self.namespace, self.name),
            namespace: self.namespace.clone(),
            attempt: self.attempt,
        };
        let mapping = |(host, pod): &(u16, u16)| v1::PortMapping {
            protocol: v1::Protocol::Tcp.into(),
            container_port: i32::from(*pod),
            host_port: i32::from(*host),
            host_ip: String::new(),
        };
        // kubelet's default for pods: a network and an IPC namespace of the pod, a PID namespace of each container.
        let namespaces = v1::NamespaceOption {
            network: v1::NamespaceMode::Pod.into(),
            pid: v1::NamespaceMode::Container.into(),
            ipc: v1::NamespaceMode::Pod.into(),
            ..Default::default()
        };
        let security_context =
            v1::LinuxSandboxSecurityContext { namespace_options: Some(namespaces), ..Default::default() };
        v1::PodSandboxConfig {
            metadata: Some(metadata),
            hostname: self.name.clone(),
            port_mappings: self.host_ports.iter().map(mapping).collect(),
            linux: Some(v1::LinuxPodSandboxConfig {
                security_context: Some(security_context),
                ..Default::default()
            }),
            ..v1::PodSandboxConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_not_there_is_an_error_that_names_it() {
        let cri = Cri::new(Path::new("/nonexistent/cri.sock")).unwrap();
        assert!(!cri.is_ready());
        let error = cri.remove("abc").unwrap_err().to_string();
        assert!(error.starts_with("RemovePodSandbox \"abc\" on /nonexistent/cri.sock: "), "{error}");
    }

    #[test]
    fn the_namespace_is_where_the_oci_configuration_says() {
        let info = r#"{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/cni-1"}]}}}"#;
        assert_eq!(netns_of(info), Some(PathBuf::from("/run/netns/cni-1")));
        assert_eq!(netns_of("{}"), None);
    }

    #[test]
    fn a_pod_is_described_as_kubelet_does() {
        let pod = Pod { host_ports: vec![(18_080, 80)], attempt: 1, ..Pod::named("web") };
        let config = pod.config();
        let metadata = config.metadata.unwrap();
        assert_eq!((metadata.namespace.as_str(), metadata.attempt), ("default", 1));
        assert_eq!((config.port_mappings[0].host_port, config.port_mappings[0].container_port), (18_080, 80));
    }
}
