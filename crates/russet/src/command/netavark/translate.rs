//! From netavark's requests to CNI's, and from CNI's results to netavark's. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use russet_addr::{Family, IpNet, NameError, NetworkName};
use russet_agent::Paths;
use russet_cni_spec::{CniResult, ConfigError, ConfigList};
use russet_runtime::Attachment;
use serde_json::{Map, Value, json};

use super::wire::{NetAddress, NetInterface, Network, PluginExec, PortMapping, StatusBlock, Subnet};

/// A request for the runtime.
#[derive(Debug)]
pub struct Translated {
    pub list: ConfigList,
    pub attachment: Attachment,
}

/// Why a network or a request is refused. Each text says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("make a network configuration: {0}")]
    Config(#[from] ConfigError),
    #[error(
        "an internal network: Russet's networks have no such mode; leave --internal out, and restrict containers by network policies"
    )]
    Internal,
    #[error("network interface {0:?}: Russet's networks have no bridge; leave --interface-name out")]
    Bridge(String),
    #[error("routes: Russet's containers have one default route; leave --route out")]
    Routes,
    #[error("ipam driver {0:?}: addresses come from Russet's pools; leave --ipam-driver out")]
    IpamDriver(String),
    #[error("network option {0:?} is unknown; known: mtu")]
    Option(String),
    #[error("network option mtu={0:?}: a number of bytes is wanted, 1280 to 65535, or 0 for the node's own")]
    Mtu(String),
    #[error("option {0:?} of the container's network is unknown, and there are no such options")]
    ContainerOption(String),
    #[error("gateway {0}: the gateway of Russet's containers is their node; leave --gateway out")]
    Gateway(IpAddr),
    #[error(
        "an address range within {0}: Russet takes addresses from the whole of a pool; leave --ip-range out, or make a pool of the range"
    )]
    LeaseRange(IpNet),
    #[error("{0} subnets: at most {SUBNETS_MAX} are possible")]
    Subnets(usize),
    #[error("subnet {0} has bits behind its prefix; did you mean {trunc}?", trunc = .0.trunc())]
    HostBits(IpNet),
    #[error("port mapping {0}: {1}")]
    Port(String, &'static str),
    #[error("more than {PORTS_MAX} ports are published, which is the limit for one container")]
    Ports,
    #[error("the plugin's result has no interface {0:?}")]
    NoInterface(String),
}

/// What the name of each CNI network begins with. It keeps netavark's networks apart from those of container runtimes, whose GC detaches everything of a
/// network that the runtime does not know.
pub const PREFIX: &str = "netavark-";
/// The IPAM driver that networks are kept with. podman allocates addresses itself for a network with subnets and an IPAM driver that it knows.
pub const IPAM_DRIVER: &str = "russet";
/// Pools of one network. More than this is no use: the limit bounds messages.
const SUBNETS_MAX: usize = 64;
/// Each is an object of about 80 bytes in the plugin's configuration, which has at most 1 MiB.
const PORTS_MAX: usize = 4096;
/// The limits of the plugin `russet`.
const MTU_BYTES: std::ops::RangeInclusive<u32> = 1280..=65535;

/// Checks what every call reads of a network; returns its MTU.
pub fn check(network: &Network) -> Result<Option<u32>, Refusal> {
    cni_name(network)?;
    if network.internal {
        return Err(Refusal::Internal);
    }
    if let Some(name) = network.network_interface.as_ref().filter(|name| !name.is_empty()) {
        return Err(Refusal::Bridge(name.clone()));
    }
    if network.routes.as_ref().is_some_and(|routes| !routes.is_empty()) {
        return Err(Refusal::Routes);
    }
    let driver = network.ipam_options.as_ref().and_then(|options| options.get("driver"));
    // podman's own default is `host-local`.
    if let Some(other) = driver.filter(|name| !matches!(name.as_str(), "" | "host-local" | IPAM_DRIVER)) {
        return Err(Refusal::IpamDriver(other.clone()));
    }
    let subnets = network.subnets.as_deref().unwrap_or_default();
    if subnets.len() > SUBNETS_MAX {
        return Err(Refusal::Subnets(subnets.len()));
    }
    for Subnet { subnet, lease_range, .. } in subnets {
        if subnet.trunc() != *subnet {
            return Err(Refusal::HostBits(*subnet));
        }
        if lease_range.as_ref().is_some_and(|range| !range.is_null()) {
            return Err(Refusal::LeaseRange(*subnet));
        }
    }
    let mut mtu = None;
    for (key, value) in network.options.iter().flatten() {
        match key.as_str() {
            "mtu" => mtu = Some(read_mtu(value)?),
            _ => return Err(Refusal::Option(key.clone())),
        }
    }
    Ok(mtu.filter(|mtu| *mtu != 0))
}

fn read_mtu(text: &str) -> Result<u32, Refusal> {
    let mtu = text.parse().ok().filter(|mtu| *mtu == 0 || MTU_BYTES.contains(mtu));
    mtu.ok_or_else(|| Refusal::Mtu(text.to_owned()))
}

/// [`check`] for a network that is being created. Later podman adds a gateway to its subnets by itself.
pub fn check_new(network: &Network) -> Result<(), Refusal> {
    check(network)?;
    let gateway = network.subnets.iter().flatten().find_map(|subnet| subnet.gateway);
    gateway.map_or(Ok(()), |gateway| Err(Refusal::Gateway(gateway)))
}

/// The document of a new network as podman is to keep it: as it came, with Russet's IPAM driver.
pub fn created(mut document: Map<String, Value>) -> Value {
    let options = document.entry("ipam_options").or_insert(Value::Null);
    match options.as_object_mut() {
        Some(options) => drop(options.insert("driver".to_owned(), IPAM_DRIVER.into())),
        None => *options = json!({ "driver": IPAM_DRIVER }),
    }
    Value::Object(document)
}

/// The name of the CNI network that stands for this one.
fn cni_name(network: &Network) -> Result<NetworkName, NameError> {
    // The name itself must be valid, too: `netavark-` and anything would begin well.
    network.name.parse::<NetworkName>()?;
    format!("{PREFIX}{}", network.name).parse()
}

/// The ADD for a `setup`. Ports are left out unless `publish` is set.
pub fn setup(request: &PluginExec, netns: &Path, root: &Path, publish: bool) -> Result<Translated, Refusal> {
    let mtu = check(&request.network)?;
    let options = &request.network_options;
    if let Some(key) = options.options.iter().flatten().map(|(key, _)| key).next() {
        return Err(Refusal::ContainerOption(key.clone()));
    }
    let ports = if publish { port_mappings(request)? } else { Vec::new() };
    let mut translated = translate(request, netns, root, mtu, !ports.is_empty())?;
    let capabilities = &mut translated.attachment.capability_args;
    if let Some(addresses) = options.static_ips.as_ref().filter(|addresses| !addresses.is_empty()) {
        capabilities.insert("ips".to_owned(), json!(addresses));
    }
    if let Some(mac) = options.static_mac.as_ref().filter(|mac| !mac.is_empty()) {
        capabilities.insert("mac".to_owned(), mac.as_str().into());
    }
    if !ports.is_empty() {
        capabilities.insert("portMappings".to_owned(), ports.into());
    }
    Ok(translated)
}

/// The DEL for a `teardown`. Nothing of it is refused that is only wrong for a `setup`: what was attached must go. The runtime takes the configuration
/// of the ADD where it has that.
pub fn teardown(request: &PluginExec, netns: &Path, root: &Path) -> Result<Translated, Refusal> {
    let publishes = request.port_mappings.as_ref().is_some_and(|mappings| !mappings.is_empty());
    translate(request, netns, root, None, publishes)
}

fn translate(
    request: &PluginExec,
    netns: &Path,
    root: &Path,
    mtu: Option<u32>,
    publishes: bool,
) -> Result<Translated, Refusal> {
    let attachment = Attachment::new(
        request.container_id.parse()?,
        netns,
        request.network_options.interface_name.parse()?,
    );
    let mut russet = plugin("russet", root, &["ips", "mac"]);
    russet.extend(mtu.map(|mtu| ("mtu".to_owned(), mtu.into())));
    for (key, family) in [("ipv4_pools", Family::V4), ("ipv6_pools", Family::V6)] {
        let subnets = request.network.subnets.iter().flatten().map(|subnet| subnet.subnet);
        let pools: Vec<IpNet> = subnets.filter(|subnet| Family::of_net(subnet) == family).collect();
        if !pools.is_empty() {
            russet.insert(key.to_owned(), json!(pools));
        }
    }
    let portmap = publishes.then(|| plugin("portmap", root, &["portMappings"]));
    let plugins: Vec<Map<String, Value>> = [Some(russet), portmap].into_iter().flatten().collect();
    let name = cni_name(&request.network)?;
    let list = json!({ "cniVersion": "1.1.0", "name": name.as_str(), "plugins": plugins });
    Ok(Translated { list: ConfigList::parse(list.to_string().as_bytes())?, attachment })
}

/// A plugin of the chain. Below another root than `/` it names the node, as those of `russet install --in-place` do.
fn plugin(kind: &str, root: &Path, capabilities: &[&str]) -> Map<String, Value> {
    let declared: Map<String, Value> =
        capabilities.iter().map(|key| ((*key).to_owned(), true.into())).collect();
    let mut plugin = Map::new();
    plugin.insert("type".to_owned(), kind.into());
    plugin.insert("capabilities".to_owned(), declared.into());
    if root != Path::new("/") {
        plugin.insert("root".to_owned(), json!(root));
        plugin.insert("agent_socket".to_owned(), json!(Paths::new(root).cni_socket()));
    }
    plugin
}

/// CNI has one object for each port and protocol.
fn port_mappings(request: &PluginExec) -> Result<Vec<Value>, Refusal> {
    let mut all = Vec::new();
    for mapping in request.port_mappings.iter().flatten() {
        let count = mapping.range.max(1);
        let protocols = protocols(mapping)?;
        let host_ip = match mapping.host_ip.as_str() {
            "" => None,
            text => Some(text.parse::<IpAddr>().map_err(|_| wrong(mapping, "host_ip is no address"))?),
        };
        if all.len() + usize::from(count) * protocols.len() > PORTS_MAX {
            return Err(Refusal::Ports);
        }
        for offset in 0..count {
            let ports = mapping.host_port.checked_add(offset).zip(mapping.container_port.checked_add(offset));
            let (host, container) =
                ports.ok_or_else(|| wrong(mapping, "the range ends behind port 65535"))?;
            for protocol in &protocols {
                let mut one = json!({ "hostPort": host, "containerPort": container, "protocol": protocol });
                if let (Some(ip), Some(object)) = (host_ip, one.as_object_mut()) {
                    object.insert("hostIP".to_owned(), json!(ip));
                }
                all.push(one);
            }
        }
    }
    Ok(all)
}

fn protocols(mapping: &PortMapping) -> Result<Vec<String>, Refusal> {
    if mapping.protocol.is_empty() {
        return Ok(vec!["tcp".to_owned()]);
    }
    let mut all: Vec<String> =
        mapping.protocol.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
    if all.iter().any(|word| !matches!(word.as_str(), "tcp" | "udp" | "sctp")) {
        return Err(wrong(mapping, "tcp, udp or sctp is wanted, or several of them with commas"));
    }
    all.sort();
    all.dedup();
    Ok(all)
}

fn wrong(mapping: &PortMapping, why: &'static str) -> Refusal {
    let PortMapping { host_ip, host_port, container_port, protocol, range } = mapping;
    Refusal::Port(format!("{host_ip}:{host_port}:{container_port}/{protocol}, range {range}"), why)
}

/// The answer to a `setup`. Addresses have no gateway: the next hop of a container is link-local, and podman would write an address of that kind into files.
pub fn status(result: &CniResult, ifname: &str, dns: Option<IpAddr>) -> Result<StatusBlock, Refusal> {
    let ours = result.interfaces.iter().find(|it| it.name == ifname && !it.sandbox.is_empty());
    let ours = ours.ok_or_else(|| Refusal::NoInterface(ifname.to_owned()))?;
    let inside = |ip: &&russet_cni_spec::IpConfig| result.interface_of(ip).is_none_or(|it| it == ours);
    let address = |ip: &russet_cni_spec::IpConfig| NetAddress { ipnet: ip.address, gateway: ip.gateway };
    let subnets = result.ips.iter().filter(inside).map(address).collect();
    let interface = NetInterface { mac_address: ours.mac.clone(), subnets };
    Ok(StatusBlock {
        // netavark's own networks have this domain, too.
        dns_search_domains: dns.iter().map(|_| "dns.podman".to_owned()).collect(),
        dns_server_ips: dns.into_iter().collect(),
        interfaces: BTreeMap::from([(ifname.to_owned(), interface)]),
    })
}

#[cfg(test)]
mod tests;
