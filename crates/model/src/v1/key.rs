//! Keys of the v1 model (calico-cni.md sections 2.2.3 and 2.3; calico-ipam.md section 1.9).

use russet_addr::{Family, IpNet, NameError, NodeName};

use crate::{Key, Prefix};

const ROOT: &str = "/calico/v1/";
const HOST: &str = "/calico/v1/host/";
const BGP_HOST: &str = "/calico/bgp/v1/host/";
const PROFILE: &str = "/calico/v1/policy/profile/";
const POOL: &str = "/calico/v1/ipam/";
const READY: &str = "/calico/v1/Ready";
/// Limit of a part of a key: two DNS names and the dot between them.
const PART_MAX_BYTES: usize = 512;

/// What a key of the v1 model names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum V1Key {
    /// Whether the datastore may be used: the text `true`.
    Ready,
    /// A pool, by its network.
    Pool(IpNet),
    /// One interface of one workload.
    Endpoint(EndpointId),
    /// One of the three parts of a profile.
    Profile {
        /// The profile's name.
        name: String,
        /// The part.
        part: ProfilePart,
    },
    /// The address under which Felix knows a node: plain text.
    HostIp(NodeName),
    /// The existence of a node: `{}`.
    HostMetadata(NodeName),
    /// A node's names with its orchestrators.
    HostOrchestrators(NodeName),
    /// The address of a node's IPIP device: plain text.
    HostTunnel(NodeName),
    /// One value of a node for BGP: plain text.
    Bgp {
        /// The node.
        node: NodeName,
        /// The value.
        member: BgpMember,
    },
}

/// The identity of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointId {
    /// The node, unescaped in the key.
    pub node: NodeName,
    /// `k8s`, `cni`, `libnetwork`, ...
    pub orchestrator: String,
    /// `<namespace>.<pod>` or the container's ID.
    pub workload: String,
    /// The interface's name in the pod.
    pub endpoint: String,
}

/// The three keys of a profile, in the order of writing; a reader of one requests the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProfilePart {
    /// `["net1"]`.
    Tags,
    /// `{}`.
    Labels,
    /// Inbound and outbound rules.
    Rules,
}

/// The values of a node for BGP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BgpMember {
    /// Its address of a family.
    Address(Family),
    /// The network that contains the address.
    Network(Family),
    /// Its AS number.
    AsNumber,
}

// === impl V1Key ===

impl V1Key {
    /// Decodes a key; none for keys that this model does not have, or another form than Russet
    /// would write.
    pub fn parse(key: &Key) -> Option<Self> {
        let path = key.as_str();
        if path == READY {
            return Some(Self::Ready);
        }
        let parsed = if let Some(rest) = path.strip_prefix(HOST) {
            parse_host(rest)
        } else if let Some(rest) = path.strip_prefix(BGP_HOST) {
            let (node, member) = rest.split_once('/')?;
            Some(Self::Bgp { node: NodeName::new(node).ok()?, member: BgpMember::parse(member)? })
        } else if let Some(rest) = path.strip_prefix(PROFILE) {
            let (name, part) = rest.split_once('/')?;
            Some(Self::Profile { name: unescaped(name)?, part: ProfilePart::parse(part)? })
        } else if let Some(rest) = path.strip_prefix(POOL) {
            parse_pool(rest)
        } else {
            None
        };
        // No record may be read under one key and written under another.
        parsed.filter(|parsed| parsed.key() == *key)
    }

    /// The key itself.
    pub fn key(&self) -> Key {
        Key::from_stored(match self {
            Self::Ready => READY.to_owned(),
            Self::Pool(net) => {
                let segment = Family::of_net(net).segment().trim_start_matches("ip");
                format!("{POOL}{segment}/pool/{}", net.to_string().replacen('/', "-", 1))
            }
            Self::Endpoint(id) => id.path(),
            Self::Profile { name, part } => format!("{PROFILE}{}/{}", escaped(name), part.as_str()),
            Self::HostIp(node) => format!("{HOST}{node}/bird_ip"),
            Self::HostMetadata(node) => format!("{HOST}{node}/metadata"),
            Self::HostOrchestrators(node) => format!("{HOST}{node}/orchestrator"),
            Self::HostTunnel(node) => format!("{HOST}{node}/config/IpInIpTunnelAddr"),
            Self::Bgp { node, member } => format!("{BGP_HOST}{node}/{}", member.as_str()),
        })
    }

    /// Everything of the v1 model except what is under v3's IPAM paths and below `/calico/bgp`.
    pub fn everything() -> Prefix {
        Prefix::from_stored(ROOT)
    }

    /// The values of all nodes for BGP.
    pub fn bgp_of_nodes() -> Prefix {
        Prefix::from_stored(BGP_HOST)
    }

    /// All pools of a family.
    pub fn pools(family: Family) -> Prefix {
        Prefix::from_stored(format!("{POOL}{}/pool/", family.segment().trim_start_matches("ip")))
    }
}

fn parse_host(rest: &str) -> Option<V1Key> {
    let (node, rest) = rest.split_once('/')?;
    let node = NodeName::new(node).ok()?;
    match rest {
        "bird_ip" => Some(V1Key::HostIp(node)),
        "metadata" => Some(V1Key::HostMetadata(node)),
        "orchestrator" => Some(V1Key::HostOrchestrators(node)),
        "config/IpInIpTunnelAddr" => Some(V1Key::HostTunnel(node)),
        _ => {
            let mut parts = rest.strip_prefix("workload/")?.split('/');
            let orchestrator = unescaped(parts.next()?)?;
            let workload = unescaped(parts.next()?)?;
            let literal = parts.next()? == "endpoint";
            let endpoint = unescaped(parts.next()?)?;
            let whole = literal && parts.next().is_none();
            whole.then_some(V1Key::Endpoint(EndpointId { node, orchestrator, workload, endpoint }))
        }
    }
}

fn parse_pool(rest: &str) -> Option<V1Key> {
    let (_, text) = rest.split_once("/pool/")?;
    let (address, len) = text.rsplit_once('-')?;
    let net: IpNet = format!("{address}/{len}").parse().ok()?;
    (net.trunc() == net).then_some(V1Key::Pool(net))
}

/// A part in the form of a key: `%` and `/` escaped, in this order.
fn escaped(part: &str) -> String {
    part.replace('%', "%25").replace('/', "%2f")
}

/// The part for a key's text; none if it is too long or has a character that no name of Calico may
/// have.
fn unescaped(text: &str) -> Option<String> {
    let part = text.replace("%2f", "/").replace("%25", "%");
    is_part(&part).then_some(part)
}

fn is_part(part: &str) -> bool {
    !part.is_empty() && part.len() <= PART_MAX_BYTES && !part.chars().any(char::is_control)
}

// === impl EndpointId ===

impl EndpointId {
    /// Checks the parts.
    pub fn new(
        node: NodeName,
        orchestrator: &str,
        workload: &str,
        endpoint: &str,
    ) -> Result<Self, NameError> {
        for part in [orchestrator, workload, endpoint] {
            if !is_part(part) {
                let rule = "1 to 512 bytes without control characters";
                return Err(NameError { kind: "endpoint's part", name: part.to_owned(), rule });
            }
        }
        let [orchestrator, workload, endpoint] = [orchestrator, workload, endpoint].map(str::to_owned);
        Ok(Self { node, orchestrator, workload, endpoint })
    }

    /// The prefix of all endpoints of the same workload.
    pub fn workload_prefix(&self) -> Prefix {
        Prefix::from_stored(format!("{}/endpoint/", self.workload_path()))
    }

    /// The directories that contain only this workload's endpoints, innermost first: peers remove
    /// them when they are empty.
    pub fn own_directories(&self) -> [Key; 2] {
        let workload = self.workload_path();
        [Key::from_stored(format!("{workload}/endpoint")), Key::from_stored(workload)]
    }

    fn workload_path(&self) -> String {
        let (orchestrator, workload) = (escaped(&self.orchestrator), escaped(&self.workload));
        format!("{HOST}{}/workload/{orchestrator}/{workload}", self.node)
    }

    fn path(&self) -> String {
        format!("{}/endpoint/{}", self.workload_path(), escaped(&self.endpoint))
    }
}

// === impl ProfilePart ===

impl ProfilePart {
    /// All three, in the order of writing.
    pub const ALL: [Self; 3] = [Self::Tags, Self::Labels, Self::Rules];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Tags => "tags",
            Self::Labels => "labels",
            Self::Rules => "rules",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.as_str() == text)
    }
}

// === impl BgpMember ===

impl BgpMember {
    const ALL: [Self; 5] = [
        Self::Address(Family::V4),
        Self::Address(Family::V6),
        Self::Network(Family::V4),
        Self::Network(Family::V6),
        Self::AsNumber,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Address(Family::V4) => "ip_addr_v4",
            Self::Address(Family::V6) => "ip_addr_v6",
            Self::Network(Family::V4) => "network_v4",
            Self::Network(Family::V6) => "network_v6",
            Self::AsNumber => "as_num",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|member| member.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    #[test]
    fn keys_are_calicos_and_read_back() {
        // calico-cni.md sections 2.2.3, 2.3; calico-ipam.md section 1.9
        let endpoint = |orchestrator: &str, workload: &str| {
            V1Key::Endpoint(EndpointId::new(node("n1"), orchestrator, workload, "eth0").unwrap())
        };
        for (key, path) in [
            (endpoint("k8s", "shop.web-0"), "/calico/v1/host/n1/workload/k8s/shop.web-0/endpoint/eth0"),
            (endpoint("cni", "a/b%c"), "/calico/v1/host/n1/workload/cni/a%2fb%25c/endpoint/eth0"),
            (V1Key::Pool("10.1.0.0/24".parse().unwrap()), "/calico/v1/ipam/v4/pool/10.1.0.0-24"),
            (V1Key::Pool("fd80::/64".parse().unwrap()), "/calico/v1/ipam/v6/pool/fd80::-64"),
            (
                V1Key::Profile { name: "k8s_ns.shop".into(), part: ProfilePart::Rules },
                "/calico/v1/policy/profile/k8s_ns.shop/rules",
            ),
            (V1Key::HostIp(node("n1")), "/calico/v1/host/n1/bird_ip"),
            (
                V1Key::Bgp { node: node("n1"), member: BgpMember::Network(Family::V4) },
                "/calico/bgp/v1/host/n1/network_v4",
            ),
            (V1Key::Ready, "/calico/v1/Ready"),
        ] {
            assert_eq!(key.key().as_str(), path);
            assert_eq!(V1Key::parse(&Key::from_stored(path)), Some(key));
        }
    }

    #[test]
    fn a_path_that_we_would_not_write_is_not_ours() {
        for path in [
            "/calico/v1/host/n1/workload/k8s/a/endpoint/b/c",
            "/calico/v1/host/n1/workload/k8s/a%2Fb/endpoint",
            "/calico/v1/host/n1/workload/k8s/a%zz/endpoint/eth0",
            "/calico/v1/ipam/v4/pool/10.1.0.1-24",
            "/calico/v1/ipam/v6/pool/10.1.0.0-24",
            "/calico/v1/policy/profile/a/other",
            "/calico/v1/config/LogSeverity",
            "",
        ] {
            assert_eq!(V1Key::parse(&Key::from_stored(path)), None, "{path}");
        }
    }

    #[test]
    fn the_endpoints_of_a_workload_are_its_own() {
        let id = EndpointId::new(node("n1"), "k8s", "shop.web", "eth0").unwrap();
        let other = EndpointId::new(node("n1"), "k8s", "shop.web-1", "eth0").unwrap();
        let prefix = id.workload_prefix();
        assert!(prefix.covers(&V1Key::Endpoint(id.clone()).key()));
        assert!(!prefix.covers(&V1Key::Endpoint(other).key()));
        assert_eq!(id.own_directories()[1].as_str(), "/calico/v1/host/n1/workload/k8s/shop.web");
        assert!(EndpointId::new(node("n1"), "", "x", "eth0").is_err());
    }
}
