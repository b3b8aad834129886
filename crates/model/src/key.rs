//! Datastore keys: paths in etcd's style, exactly as in calico-ipam.md sections 1.1 and 1.2.
//!
//! Names are in keys unescaped; the types that are accepted here cannot contain a `/`.

use std::fmt;

use russet_addr::{BlockCidr, Family, NameError, NodeName};

use crate::{API_VERSION, HandleId};

/// The path of one record.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Key(String);

/// The common prefix of the paths of many records. Those that are built here end in `/`, so that
/// `node1` does not cover `node10`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Prefix(String);

/// What a key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// calico-ipam.md K1: a block.
    Block(BlockCidr),
    /// calico-ipam.md K2: a node's affinity to a block.
    Affinity {
        /// The node that claims the block.
        node: NodeName,
        /// The block.
        block: BlockCidr,
    },
    /// calico-ipam.md K3: an affinity of an owner that is not a node (`load-balancer`).
    VirtualAffinity {
        /// The owner of the affinity.
        owner: String,
        /// The block.
        block: BlockCidr,
    },
    /// calico-ipam.md K4: a handle.
    Handle(HandleId),
    /// calico-ipam.md K5: the allocator's settings.
    IpamConfig,
    /// calico-ipam.md K6: a leaf that no program writes any more.
    IpamHost(NodeName),
    /// calico-ipam.md K7: a pool.
    Pool(String),
    /// calico-ipam.md K8: a reservation.
    Reservation(String),
    /// calico-ipam.md K9: a node.
    Node(NodeName),
    /// calico-ipam.md K10: a workload endpoint.
    WorkloadEndpoint {
        /// The pod's namespace.
        namespace: String,
        /// `<node>-k8s-<pod>-<ifname>`.
        name: String,
    },
    /// Any other v3 resource that we know.
    Resource {
        /// Its kind.
        kind: ResourceKind,
        /// Its namespace, where the kind has one.
        namespace: Option<String>,
        /// Its name.
        name: String,
    },
    /// Another path.
    Other,
}

/// The kinds of v3 resources, each with its kind, its plural and whether it lives in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum ResourceKind {
    BlockAffinity,
    ClusterInformation,
    ClusterNetworkPolicy,
    FelixConfiguration,
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    IpamConfiguration,
    IpPool,
    IpReservation,
    KubernetesNetworkPolicy,
    NetworkPolicy,
    NetworkSet,
    Node,
    Profile,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
    WorkloadEndpoint,
}

const BLOCKS: &str = "/calico/ipam/v2/assignment/";
const HOSTS: &str = "/calico/ipam/v2/host/";
const VIRTUAL: &str = "/calico/ipam/v2/virtual/";
const HANDLES: &str = "/calico/ipam/v2/handle/";
const CONFIG: &str = "/calico/ipam/v2/config";
const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";

/// The limit of a DNS subdomain, which Kubernetes sets for names.
const RESOURCE_NAME_MAX_BYTES: usize = 253;

// === impl Key ===

impl Key {
    /// A key from a datastore. Russet's own keys are built by the other constructors.
    pub fn from_stored(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// calico-ipam.md K1: the block `block`.
    pub fn block(block: BlockCidr) -> Self {
        Self(format!("{BLOCKS}{}/block/{}", block.family().segment(), block.key_text()))
    }

    /// calico-ipam.md K2: the affinity of `node` to `block`.
    pub fn affinity(node: &NodeName, block: BlockCidr) -> Self {
        Self(format!("{HOSTS}{node}/{}/block/{}", block.family().segment(), block.key_text()))
    }

    /// calico-ipam.md K4: the handle `id`.
    pub fn handle(id: &HandleId) -> Self {
        Self(format!("{HANDLES}{id}"))
    }

    /// calico-ipam.md K5: the allocator's settings.
    pub fn ipam_config() -> Self {
        Self(CONFIG.into())
    }

    /// calico-ipam.md K6: the leaf of `node`, which peers delete with the node.
    pub fn ipam_host(node: &NodeName) -> Self {
        Self(format!("{HOSTS}{node}"))
    }

    /// calico-ipam.md K7: the pool `name`.
    pub fn pool(name: &str) -> Result<Self, NameError> {
        Self::resource(ResourceKind::IpPool, None, name)
    }

    /// calico-ipam.md K8: the reservation `name`.
    pub fn reservation(name: &str) -> Result<Self, NameError> {
        Self::resource(ResourceKind::IpReservation, None, name)
    }

    /// calico-ipam.md K9: the node `node`.
    pub fn node(node: &NodeName) -> Self {
        Self(format!("{RESOURCES}{}/{node}", ResourceKind::Node.plural()))
    }

    /// calico-ipam.md K10: the workload endpoint `name` in `namespace`.
    pub fn workload_endpoint(namespace: &str, name: &str) -> Result<Self, NameError> {
        Self::resource(ResourceKind::WorkloadEndpoint, Some(namespace), name)
    }

    /// The profile `name`.
    pub fn profile(name: &str) -> Result<Self, NameError> {
        Self::resource(ResourceKind::Profile, None, name)
    }

    /// The cluster's information.
    pub fn cluster_information() -> Self {
        let (plural, name) = (ResourceKind::ClusterInformation.plural(), crate::ClusterInformationSpec::NAME);
        Self(format!("{RESOURCES}{plural}/{name}"))
    }

    /// Any v3 resource. A kind with a namespace needs one, another must have none.
    pub fn resource(kind: ResourceKind, namespace: Option<&str>, name: &str) -> Result<Self, NameError> {
        let name = resource_name("resource name", name)?;
        match (kind.namespaced(), namespace) {
            (true, Some(namespace)) => {
                let namespace = resource_name("namespace", namespace)?;
                Ok(Self(format!("{RESOURCES}{}/{namespace}/{name}", kind.plural())))
            }
            (false, None) => Ok(Self(format!("{RESOURCES}{}/{name}", kind.plural()))),
            (true, None) => Err(refused("namespace", "", "this kind of resource needs a namespace")),
            (false, Some(ns)) => Err(refused("namespace", ns, "this kind of resource has no namespace")),
        }
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The handle in the key, if there is one, without a copy: there are 640,000 of them in a large
    /// cluster.
    pub fn handle_name(&self) -> Option<&str> {
        self.0.strip_prefix(HANDLES).filter(|name| HandleId::is_valid(name))
    }

    /// What the key names.
    pub fn kind(&self) -> KeyKind {
        Self::parse(&self.0).unwrap_or(KeyKind::Other)
    }

    /// What `path` names; none if it is not a path. A form that Russet would not write, such as a
    /// block that is not canonical, is [`KeyKind::Other`]: no record may be read under one key and
    /// written under another.
    pub fn parse(path: &str) -> Option<KeyKind> {
        if !path.starts_with('/') {
            return None;
        }
        let kind = if let Some(rest) = path.strip_prefix(BLOCKS) {
            block_at(rest).map(KeyKind::Block)
        } else if let Some(rest) = path.strip_prefix(HOSTS) {
            parse_host(rest)
        } else if let Some(rest) = path.strip_prefix(VIRTUAL) {
            parse_virtual(rest)
        } else if let Some(rest) = path.strip_prefix(HANDLES) {
            HandleId::new(rest).ok().map(KeyKind::Handle)
        } else if let Some(rest) = path.strip_prefix(RESOURCES) {
            parse_resource(rest)
        } else if path == CONFIG {
            Some(KeyKind::IpamConfig)
        } else {
            None
        };
        Some(kind.unwrap_or(KeyKind::Other))
    }
}

/// Reads `ipv4/block/10.1.0.0-26`.
fn block_at(rest: &str) -> Option<BlockCidr> {
    let (segment, text) = rest.split_once("/block/")?;
    let block = BlockCidr::from_key_text(text).ok()?;
    (block.family().segment() == segment).then_some(block)
}

/// Decodes what follows `/virtual/`.
fn parse_virtual(rest: &str) -> Option<KeyKind> {
    let (owner, rest) = rest.split_once('/')?;
    Some(KeyKind::VirtualAffinity { owner: owner.into(), block: block_at(rest)? })
}

/// Decodes what follows `/host/`: a node or one of its affinities.
fn parse_host(rest: &str) -> Option<KeyKind> {
    match rest.split_once('/') {
        None => Some(KeyKind::IpamHost(NodeName::new(rest).ok()?)),
        Some((node, rest)) => {
            Some(KeyKind::Affinity { node: NodeName::new(node).ok()?, block: block_at(rest)? })
        }
    }
}

/// Decodes what follows `projectcalico.org/`.
fn parse_resource(rest: &str) -> Option<KeyKind> {
    let (plural, rest) = rest.split_once('/')?;
    let kind = ResourceKind::from_plural(plural)?;
    let (namespace, name) = match (kind.namespaced(), rest.split_once('/')) {
        (true, Some((namespace, name))) => (Some(namespace), name),
        (false, None) => (None, rest),
        _ => return None,
    };
    let name = resource_name("resource name", name).ok()?.to_owned();
    let namespace = match namespace {
        Some(namespace) => Some(resource_name("namespace", namespace).ok()?.to_owned()),
        None => None,
    };
    Some(match (kind, namespace) {
        (ResourceKind::IpPool, _) => KeyKind::Pool(name),
        (ResourceKind::IpReservation, _) => KeyKind::Reservation(name),
        (ResourceKind::Node, _) => KeyKind::Node(NodeName::new(name).ok()?),
        (ResourceKind::WorkloadEndpoint, Some(namespace)) => KeyKind::WorkloadEndpoint { namespace, name },
        (kind, namespace) => KeyKind::Resource { kind, namespace, name },
    })
}

/// A name that is allowed in a resource's key.
fn resource_name<'a>(kind: &'static str, name: &'a str) -> Result<&'a str, NameError> {
    match name {
        "" => Err(refused(kind, name, "it is empty")),
        _ if name.len() > RESOURCE_NAME_MAX_BYTES => Err(refused(kind, name, "it is longer than 253 bytes")),
        _ if name.chars().any(|c| c == '/' || c.is_whitespace() || c.is_control()) => {
            Err(refused(kind, name, "it must not hold '/', white space or control characters"))
        }
        _ => Ok(name),
    }
}

fn refused(kind: &'static str, name: &str, rule: &'static str) -> NameError {
    NameError { kind, name: name.to_owned(), rule }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// === impl Prefix ===

impl Prefix {
    /// A prefix from a flag or a request. Russet's own prefixes are built by the other
    /// constructors.
    pub fn from_stored(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// The prefix of every key.
    pub fn everything() -> Self {
        Self("/".into())
    }

    /// All blocks, or those of one family.
    pub fn blocks(family: Option<Family>) -> Self {
        match family {
            None => Self(BLOCKS.into()),
            Some(family) => Self(format!("{BLOCKS}{}/", family.segment())),
        }
    }

    /// One node's affinities in one family.
    pub fn affinities_of(node: &NodeName, family: Family) -> Self {
        Self(format!("{HOSTS}{node}/{}/block/", family.segment()))
    }

    /// The affinities of all nodes, without those below `/virtual/`.
    pub fn all_affinities() -> Self {
        Self(HOSTS.into())
    }

    /// All handles.
    pub fn handles() -> Self {
        Self(HANDLES.into())
    }

    /// All pools.
    pub fn pools() -> Self {
        Self::resources(ResourceKind::IpPool)
    }

    /// All reservations.
    pub fn reservations() -> Self {
        Self::resources(ResourceKind::IpReservation)
    }

    /// All nodes.
    pub fn nodes() -> Self {
        Self::resources(ResourceKind::Node)
    }

    /// All workload endpoints, of every namespace.
    pub fn workload_endpoints() -> Self {
        Self::resources(ResourceKind::WorkloadEndpoint)
    }

    /// The workload endpoints of a namespace whose names begin with `start`.
    pub fn workload_endpoints_named(namespace: &str, start: &str) -> Result<Self, NameError> {
        Key::workload_endpoint(namespace, start).map(|Key(path)| Self(path))
    }

    /// All resources of one kind.
    pub fn resources(kind: ResourceKind) -> Self {
        Self(format!("{RESOURCES}{}/", kind.plural()))
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `key` lies under the prefix.
    pub fn covers(&self, key: &Key) -> bool {
        key.0.starts_with(&self.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// === impl ResourceKind ===

impl ResourceKind {
    /// Every kind.
    pub const ALL: [ResourceKind; 20] = [
        Self::BlockAffinity,
        Self::ClusterInformation,
        Self::ClusterNetworkPolicy,
        Self::FelixConfiguration,
        Self::GlobalNetworkPolicy,
        Self::GlobalNetworkSet,
        Self::HostEndpoint,
        Self::IpamConfiguration,
        Self::IpPool,
        Self::IpReservation,
        Self::KubernetesNetworkPolicy,
        Self::NetworkPolicy,
        Self::NetworkSet,
        Self::Node,
        Self::Profile,
        Self::StagedGlobalNetworkPolicy,
        Self::StagedKubernetesNetworkPolicy,
        Self::StagedNetworkPolicy,
        Self::Tier,
        Self::WorkloadEndpoint,
    ];

    /// The name of the kind: `IPPool`. Documents have [`Self::document`].
    pub const fn kind(self) -> &'static str {
        self.names().0
    }

    /// The key's segment: `ippools`.
    pub const fn plural(self) -> &'static str {
        self.names().1
    }

    /// Whether resources of this kind live in a namespace.
    pub const fn namespaced(self) -> bool {
        matches!(
            self,
            Self::KubernetesNetworkPolicy
                | Self::NetworkPolicy
                | Self::NetworkSet
                | Self::StagedKubernetesNetworkPolicy
                | Self::StagedNetworkPolicy
                | Self::WorkloadEndpoint
        )
    }

    /// The members `apiVersion` and `kind` of its documents.
    pub const fn document(self) -> (&'static str, &'static str) {
        match self {
            // Calico has no records of these in etcd; the names of the keys are those of its own kinds.
            Self::ClusterNetworkPolicy => ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"),
            Self::KubernetesNetworkPolicy => ("networking.k8s.io/v1", "NetworkPolicy"),
            kind => (API_VERSION, kind.kind()),
        }
    }

    /// The kind with this plural.
    pub fn from_plural(plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.plural() == plural)
    }

    /// The kind with this name.
    pub fn from_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.kind() == kind)
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::BlockAffinity => ("BlockAffinity", "blockaffinities"),
            Self::ClusterInformation => ("ClusterInformation", "clusterinformations"),
            Self::ClusterNetworkPolicy => ("ClusterNetworkPolicy", "kubernetesclusternetworkpolicies"),
            Self::FelixConfiguration => ("FelixConfiguration", "felixconfigurations"),
            Self::GlobalNetworkPolicy => ("GlobalNetworkPolicy", "globalnetworkpolicies"),
            Self::GlobalNetworkSet => ("GlobalNetworkSet", "globalnetworksets"),
            Self::HostEndpoint => ("HostEndpoint", "hostendpoints"),
            Self::IpamConfiguration => ("IPAMConfiguration", "ipamconfigurations"),
            Self::IpPool => ("IPPool", "ippools"),
            Self::IpReservation => ("IPReservation", "ipreservations"),
            Self::KubernetesNetworkPolicy => ("KubernetesNetworkPolicy", "kubernetesnetworkpolicies"),
            Self::NetworkPolicy => ("NetworkPolicy", "networkpolicies"),
            Self::NetworkSet => ("NetworkSet", "networksets"),
            Self::Node => ("Node", "nodes"),
            Self::Profile => ("Profile", "profiles"),
            Self::StagedGlobalNetworkPolicy => ("StagedGlobalNetworkPolicy", "stagedglobalnetworkpolicies"),
            Self::StagedKubernetesNetworkPolicy => {
                ("StagedKubernetesNetworkPolicy", "stagedkubernetesnetworkpolicies")
            }
            Self::StagedNetworkPolicy => ("StagedNetworkPolicy", "stagednetworkpolicies"),
            Self::Tier => ("Tier", "tiers"),
            Self::WorkloadEndpoint => ("WorkloadEndpoint", "workloadendpoints"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeName {
        NodeName::new("node-a").unwrap()
    }

    #[test]
    fn keys_are_calicos_and_read_back() {
        // calico-ipam.md section 1.1, K1 to K10
        let v4: BlockCidr = "10.1.0.0/26".parse().unwrap();
        let v6: BlockCidr = "fd80:24e2:f998:72d6::/122".parse().unwrap();
        let handle = HandleId::new("k8s-pod-network.aaaa").unwrap();
        let resources = "/calico/resources/v3/projectcalico.org";
        let cases = [
            (
                Key::block(v4),
                "/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-26".to_owned(),
                KeyKind::Block(v4),
            ),
            (
                Key::block(v6),
                "/calico/ipam/v2/assignment/ipv6/block/fd80:24e2:f998:72d6::-122".to_owned(),
                KeyKind::Block(v6),
            ),
            (
                Key::affinity(&node(), v4),
                "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.0-26".to_owned(),
                KeyKind::Affinity { node: node(), block: v4 },
            ),
            (
                Key::handle(&handle),
                "/calico/ipam/v2/handle/k8s-pod-network.aaaa".to_owned(),
                KeyKind::Handle(handle.clone()),
            ),
            (Key::ipam_config(), "/calico/ipam/v2/config".to_owned(), KeyKind::IpamConfig),
            (Key::ipam_host(&node()), "/calico/ipam/v2/host/node-a".to_owned(), KeyKind::IpamHost(node())),
            (Key::pool("p").unwrap(), format!("{resources}/ippools/p"), KeyKind::Pool("p".into())),
            (
                Key::reservation("r").unwrap(),
                format!("{resources}/ipreservations/r"),
                KeyKind::Reservation("r".into()),
            ),
            (Key::node(&node()), format!("{resources}/nodes/node-a"), KeyKind::Node(node())),
            (
                Key::workload_endpoint("shop", "node--a-k8s-web--0-eth0").unwrap(),
                format!("{resources}/workloadendpoints/shop/node--a-k8s-web--0-eth0"),
                KeyKind::WorkloadEndpoint {
                    namespace: "shop".into(),
                    name: "node--a-k8s-web--0-eth0".into(),
                },
            ),
        ];
        for (key, path, kind) in cases {
            assert_eq!(key.as_str(), path);
            assert_eq!(key.kind(), kind, "{path}");
        }
    }

    #[test]
    fn a_path_that_we_would_not_write_is_other() {
        for path in [
            "/calico/ipam/v2/assignment/ipv6/block/fd80:24e2:f998:72d6:0::-122",
            "/calico/ipam/v2/assignment/ipv6/block/10.1.0.0-26",
            "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.1-26",
            "/calico/ipam/v2/handle/a/b",
            "/calico/resources/v3/projectcalico.org/workloadendpoints/no-namespace",
            "/calico/resources/v3/projectcalico.org/ippools/a/b",
            "/calico/ipam/v2/virtual/load-balancer",
            "/elsewhere",
        ] {
            assert_eq!(Key::parse(path), Some(KeyKind::Other), "{path}");
        }
        assert_eq!(Key::parse("no path"), None);
    }

    #[test]
    fn a_name_with_a_slash_never_becomes_a_key() {
        // calico-ipam.md section 9, MUST 3
        assert!(Key::pool("../nodes/node-a").is_err());
        assert!(Key::workload_endpoint("a/b", "c").is_err());
        assert!(Key::resource(ResourceKind::IpPool, Some("ns"), "p").is_err());
        assert!(Key::resource(ResourceKind::NetworkPolicy, None, "p").is_err());
    }

    #[test]
    fn the_prefix_of_node1_does_not_cover_node10() {
        // calico-ipam.md section 1.2
        let block: BlockCidr = "10.1.0.0/26".parse().unwrap();
        let prefix = Prefix::affinities_of(&NodeName::new("node1").unwrap(), Family::V4);
        assert!(prefix.covers(&Key::affinity(&NodeName::new("node1").unwrap(), block)));
        assert!(!prefix.covers(&Key::affinity(&NodeName::new("node10").unwrap(), block)));
        assert!(Prefix::blocks(None).covers(&Key::block(block)));
        assert!(!Prefix::blocks(Some(Family::V6)).covers(&Key::block(block)));
    }
}
