//! A sandbox's network: the source of the default one, `lo`, and the kernel's addresses of `eth0`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russet_addr::{ContainerId, IfName};
use russet_cni_spec::ConfigList;
use russet_linux::NetNs;
use russet_netlink::{Batch, LinkRef, LinkSet, Scope, Socket};
use russet_runtime::{Attachment, ConfigDir, Networks, Runtime, RuntimeError};

use crate::checkpoint::Network;
use crate::error::SandboxError;
use crate::{Config, SandboxId, capabilities};

/// The source of the default network.
pub trait NetworkSource: Send + Sync {
    /// The network for new pods, or why there is none, as the message of CRI's NetworkReady
    /// condition.
    fn current(&self) -> Result<Arc<ConfigList>, String>;
}

/// Operations inside a sandbox's namespace.
pub(crate) trait NamespaceOps: Send + Sync {
    /// Raises `lo`, as the loopback plugin would, without starting it.
    fn raise_loopback(&self, netns: &Path) -> Result<(), SandboxError>;
    /// Writes values to paths below `/proc/sys` of the namespace.
    fn set_sysctls(&self, netns: &Path, sysctls: &[(String, String)]) -> Result<(), SandboxError>;
    /// The global addresses of `eth0`, IPv4 first, otherwise in the kernel's order; none if the
    /// namespace or `eth0` is gone. An error if that cannot be determined: a pod without an address
    /// is replaced.
    fn addresses(&self, netns: &Path) -> Result<Vec<IpAddr>, SandboxError>;
    /// Whether the path still leads to a namespace. If that cannot be determined, it does.
    fn exists(&self, netns: &Path) -> bool;
}

pub(crate) struct Kernel;

/// The default network's interface inside a pod.
pub(crate) const IFNAME: &str = "eth0";

// === impl NetworkSource ===

impl NetworkSource for ConfigDir {
    /// Reads the directory each time.
    fn current(&self) -> Result<Arc<ConfigList>, String> {
        let first = self.first();
        first.map(|(list, _)| Arc::new(list)).map_err(|error| error.to_string())
    }
}

impl NetworkSource for Networks {
    fn current(&self) -> Result<Arc<ConfigList>, String> {
        Networks::current(self).map_err(|unready| unready.to_string())
    }
}

// === impl Network ===

impl Network {
    /// The attachment for `config`.
    pub(crate) fn of(config: &Config, list: &ConfigList) -> Result<Self, SandboxError> {
        let capability_args = capabilities::capability_args(config)
            .map_err(|rule| crate::ConfigError { field: "annotations", rule })?;
        let list = String::from_utf8(list.bytes.clone())
            .map_err(|error| SandboxError::step("keep network", &list.name, error))?;
        Ok(Self { list, capability_args })
    }

    pub(crate) fn attach(
        &self,
        runtime: &Runtime,
        id: &SandboxId,
        config: &Config,
        netns: &Path,
    ) -> Result<String, SandboxError> {
        let list = self.parsed()?;
        let attachment = self.attachment(id, config, netns)?;
        let added = runtime.add(&list, &attachment);
        added.map_err(|source| failed("attach eth0 to", &list, source))?;
        Ok(list.name.to_string())
    }

    /// With an empty `netns` if it is gone.
    pub(crate) fn detach(
        &self,
        runtime: &Runtime,
        id: &SandboxId,
        config: &Config,
        netns: &Path,
    ) -> Result<(), SandboxError> {
        let list = self.parsed()?;
        let attachment = self.attachment(id, config, netns)?;
        runtime.del(&list, &attachment).map_err(|source| failed("detach eth0 from", &list, source))
    }

    fn parsed(&self) -> Result<ConfigList, SandboxError> {
        self.list().map_err(|error| SandboxError::step("read the network of the checkpoint", "", error))
    }

    fn attachment(&self, id: &SandboxId, config: &Config, netns: &Path) -> Result<Attachment, SandboxError> {
        let mut attachment = attachment(id, netns)?;
        attachment.args = capabilities::args(config, id);
        attachment.capability_args = self.capability_args.clone();
        Ok(attachment)
    }
}

/// Detaches all attachments in the runtime's cache for a sandbox without other records; if the
/// cache has no readable entry, the default network's plugins get a DEL, since an ADD may have been
/// killed before there was an entry.
pub(crate) fn detach_unknown(
    runtime: &Runtime,
    networks: &dyn NetworkSource,
    id: &SandboxId,
) -> Result<(), SandboxError> {
    let detached = runtime.del_cached(&container(id)?).map_err(|source| SandboxError::Network {
        operation: "detach from the networks of the cache".to_owned(),
        source: Box::new(source),
    })?;
    for path in &detached.unreadable {
        tracing::warn!(sandbox = %id, path = %path.display(), "a cached attachment cannot be read");
    }
    if detached.entries.is_empty() {
        // Without a network it is unknown whether anything is left: this is retried.
        let list = networks.current().map_err(SandboxError::NetworkNotReady)?;
        let done = runtime.del(&list, &attachment(id, Path::new(""))?);
        done.map_err(|source| failed("detach eth0 from", &list, source))?;
    }
    Ok(())
}

/// The path, or an empty one if it leads to no namespace any more, which is how plugins learn it.
pub(crate) fn still_there(inside: &dyn NamespaceOps, netns: Option<&PathBuf>) -> PathBuf {
    netns.filter(|path| inside.exists(path)).cloned().unwrap_or_default()
}

fn attachment(id: &SandboxId, netns: &Path) -> Result<Attachment, SandboxError> {
    Ok(Attachment::new(container(id)?, netns, eth0()?))
}

fn container(id: &SandboxId) -> Result<ContainerId, SandboxError> {
    id.container_id().map_err(|error| SandboxError::step("name the container of", id, error))
}

fn eth0() -> Result<IfName, SandboxError> {
    IfName::new(IFNAME).map_err(|error| SandboxError::step("name the interface", IFNAME, error))
}

fn failed(operation: &str, list: &ConfigList, source: RuntimeError) -> SandboxError {
    SandboxError::Network {
        operation: format!("{operation} network {:?}", list.name.as_str()),
        source: Box::new(source),
    }
}

// === impl Kernel ===

impl NamespaceOps for Kernel {
    fn raise_loopback(&self, netns: &Path) -> Result<(), SandboxError> {
        let failed = |error: String| SandboxError::step("raise lo in", netns.display(), error);
        let netns = NetNs::open(netns).map_err(|error| failed(error.to_string()))?;
        let mut socket = socket_of(&netns).map_err(failed)?;
        let mut batch = Batch::new();
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::new(LinkRef::Name(IfName::loopback())) });
        socket.execute(&batch).map_err(|error| failed(error.to_string()))
    }

    fn set_sysctls(&self, netns: &Path, sysctls: &[(String, String)]) -> Result<(), SandboxError> {
        if sysctls.is_empty() {
            return Ok(());
        }
        let failed = |error: String| SandboxError::step("set sysctls in", netns.display(), error);
        let set = || sysctls.iter().try_for_each(|(name, value)| russet_linux::sysctl::write(name, value));
        let done = NetNs::open(netns).and_then(|netns| netns.with(set));
        done.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
    }

    fn addresses(&self, netns: &Path) -> Result<Vec<IpAddr>, SandboxError> {
        let failed =
            |error: String| SandboxError::step("read the addresses of eth0 in", netns.display(), error);
        let namespace = match NetNs::open(netns) {
            Err(error) if error.is_gone() => return Ok(Vec::new()),
            opened => opened.map_err(|error| failed(error.to_string()))?,
        };
        let mut socket = socket_of(&namespace).map_err(failed)?;
        let link = match socket.link_by_name(&eth0()?) {
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            found => found.map_err(|error| failed(error.to_string()))?,
        };
        let found = socket.addresses_of(link.index).map_err(|error| failed(error.to_string()))?;
        let global = found.into_iter().filter(|address| address.scope == Scope::Universe);
        let mut addresses: Vec<IpAddr> = global.map(|address| address.net.addr()).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        Ok(addresses)
    }

    fn exists(&self, netns: &Path) -> bool {
        !matches!(NetNs::open(netns), Err(error) if error.is_gone())
    }
}

fn socket_of(netns: &NetNs) -> Result<Socket, String> {
    let socket = netns.with(Socket::route).map_err(|error| error.to_string())?;
    socket.map_err(|error| error.to_string())
}
