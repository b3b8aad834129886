//! Where a record is in the API: keys to objects, and prefixes to lists (kubernetes.md sections 1.2 and
//! 6.2).

use russet_addr::Family;
use russet_kube::Keep;
use russet_model::openshift::{self, ClusterNetwork, OpenshiftKey, parse_key};
use russet_model::{Key, KeyKind, Prefix, ResourceKind};
use russet_store::StoreError;

use crate::Group;
use crate::names::{self, AFFINITY_TYPE, HOSTNAME_HASH, IP_VERSION, affinity_labels};

/// The objects of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collection {
    Blocks,
    Affinities,
    Handles,
    IpamConfig,
    /// Resources of Calico with the same form in etcd and in Kubernetes.
    Custom(ResourceKind),
    /// OpenShift's networks, which are only read.
    Openshift(Network),
    Nodes,
    /// Workload endpoints.
    Pods,
    /// Profiles `kns.*`.
    Namespaces,
    /// Profiles `ksa.*`.
    ServiceAccounts,
}

/// A kind of OpenShift's networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Cluster,
    Host,
    Namespace,
}

/// The place of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Object(ObjectPlace),
    /// A key whose record Kubernetes does not have, and never needs.
    Nowhere,
}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectPlace {
    pub(crate) collection: Collection,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// The objects of a collection that can have records under a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) collection: Collection,
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
}

/// The root of affinities whose owner is not a node.
const VIRTUAL: &str = "/calico/ipam/v2/virtual/";
/// The prefixes of profiles' names, by what they are made of.
pub(crate) const OF_NAMESPACE: &str = "kns.";
pub(crate) const OF_SERVICE_ACCOUNT: &str = "ksa.";
/// The group of OpenShift's networks.
const OPENSHIFT_GROUP: &str = "network.openshift.io";
/// The only name of the allocator's settings.
const DEFAULT: &str = "default";

/// What records of nodes, and their companions, are made of.
const NODE: Keep = Keep::Members(&[
    (
        "metadata",
        Keep::Members(&[
            ("name", Keep::All),
            ("uid", Keep::All),
            ("resourceVersion", Keep::All),
            ("creationTimestamp", Keep::All),
            ("labels", Keep::All),
            ("annotations", Keep::All),
        ]),
    ),
    ("spec", Keep::Members(&[("podCIDRs", Keep::All)])),
    ("status", Keep::Members(&[("addresses", Keep::All)])),
]);

// === impl Collection ===

impl Collection {
    const ALL: [Self; 21] = [
        Self::Blocks,
        Self::Affinities,
        Self::Handles,
        Self::IpamConfig,
        Self::Custom(ResourceKind::ClusterInformation),
        Self::Custom(ResourceKind::FelixConfiguration),
        Self::Custom(ResourceKind::GlobalNetworkPolicy),
        Self::Custom(ResourceKind::GlobalNetworkSet),
        Self::Custom(ResourceKind::HostEndpoint),
        Self::Custom(ResourceKind::IpPool),
        Self::Custom(ResourceKind::IpReservation),
        Self::Custom(ResourceKind::NetworkPolicy),
        Self::Custom(ResourceKind::NetworkSet),
        Self::Custom(ResourceKind::StagedGlobalNetworkPolicy),
        Self::Custom(ResourceKind::StagedKubernetesNetworkPolicy),
        Self::Custom(ResourceKind::StagedNetworkPolicy),
        Self::Custom(ResourceKind::Tier),
        Self::Nodes,
        Self::Pods,
        Self::Namespaces,
        Self::ServiceAccounts,
    ];

    /// Only clusters of OpenShift have these: they are no part of a list of everything.
    const OPENSHIFT: [Self; 3] = [
        Self::Openshift(Network::Cluster),
        Self::Openshift(Network::Host),
        Self::Openshift(Network::Namespace),
    ];

    /// Kind and plural.
    pub(crate) fn names(self, group: Group) -> (&'static str, &'static str) {
        match self {
            Self::Blocks => ("IPAMBlock", "ipamblocks"),
            Self::Affinities => ("BlockAffinity", "blockaffinities"),
            Self::Handles => ("IPAMHandle", "ipamhandles"),
            Self::IpamConfig => match group {
                Group::V1 => ("IPAMConfig", "ipamconfigs"),
                Group::V3 => ("IPAMConfiguration", "ipamconfigurations"),
            },
            Self::Custom(kind) => (kind.kind(), kind.plural()),
            Self::Openshift(Network::Cluster) => ("ClusterNetwork", "clusternetworks"),
            Self::Openshift(Network::Host) => ("HostSubnet", "hostsubnets"),
            Self::Openshift(Network::Namespace) => ("NetNamespace", "netnamespaces"),
            Self::Nodes => ("Node", "nodes"),
            Self::Pods => ("Pod", "pods"),
            Self::Namespaces => ("Namespace", "namespaces"),
            Self::ServiceAccounts => ("ServiceAccount", "serviceaccounts"),
        }
    }

    /// Whether its objects belong to Kubernetes itself.
    pub(crate) fn is_core(self) -> bool {
        matches!(self, Self::Nodes | Self::Pods | Self::Namespaces | Self::ServiceAccounts)
    }

    /// Whether its objects are Calico's, whose group has to be found.
    pub(crate) fn is_calicos(self) -> bool {
        !self.is_core() && !matches!(self, Self::Openshift(_))
    }

    /// Whether it holds the allocator's own objects, which peers delete in two steps.
    pub(crate) fn is_ipam(self) -> bool {
        matches!(self, Self::Blocks | Self::Affinities | Self::Handles)
    }

    /// Whether Russet works in a cluster without its definition.
    pub(crate) fn is_optional(self) -> bool {
        let needed = [ResourceKind::IpPool, ResourceKind::ClusterInformation];
        matches!(self, Self::Custom(kind) if !needed.contains(&kind))
    }

    /// What a watch reads of its objects. Of a node that is a tenth: the images that kubelets list, the
    /// conditions and the managed fields are of no use.
    pub(crate) const fn read_members(self) -> Keep {
        match self {
            Self::Nodes => NODE,
            _ => Keep::All,
        }
    }

    /// The segments of its path.
    pub(crate) fn path(self, group: Group, namespace: Option<&str>) -> Vec<String> {
        let (name, version) = group.parts();
        let mut path = match self {
            Self::Openshift(_) => vec!["apis", OPENSHIFT_GROUP, "v1"],
            _ if self.is_core() => vec!["api", "v1"],
            _ => vec!["apis", name, version],
        };
        if let Some(namespace) = namespace {
            path.extend(["namespaces", namespace]);
        }
        path.push(self.names(group).1);
        path.into_iter().map(str::to_owned).collect()
    }

    /// The beginnings of its keys.
    fn roots(self) -> Vec<String> {
        let profiles = || Prefix::resources(ResourceKind::Profile).as_str().to_owned();
        match self {
            Self::Blocks => vec![Prefix::blocks(None).as_str().to_owned()],
            Self::Affinities => vec![Prefix::all_affinities().as_str().to_owned(), VIRTUAL.to_owned()],
            Self::Handles => vec![Prefix::handles().as_str().to_owned()],
            Self::IpamConfig => vec![Key::ipam_config().as_str().to_owned()],
            Self::Custom(kind) => vec![Prefix::resources(kind).as_str().to_owned()],
            Self::Openshift(Network::Cluster) => vec![cluster_networks()],
            Self::Openshift(Network::Host) => vec![openshift::hostsubnets().as_str().to_owned()],
            Self::Openshift(Network::Namespace) => vec![openshift::netnamespaces().as_str().to_owned()],
            Self::Nodes => vec![Prefix::nodes().as_str().to_owned()],
            Self::Pods => vec![Prefix::workload_endpoints().as_str().to_owned()],
            Self::Namespaces => vec![profiles() + OF_NAMESPACE],
            Self::ServiceAccounts => vec![profiles() + OF_SERVICE_ACCOUNT],
        }
    }
}

// === impl Place ===

impl Place {
    /// The place of a key; `Unsupported` for keys that have none, such as Russet's own.
    pub(crate) fn of(key: &Key, operation: &str) -> Result<Self, StoreError> {
        let at = |collection, name: String| ObjectPlace { collection, namespace: None, name };
        let place = match key.kind() {
            KeyKind::Block(block) => at(Collection::Blocks, names::block_name(block)),
            KeyKind::Affinity { node, block } => {
                at(Collection::Affinities, names::affinity_name(node.as_str(), block))
            }
            KeyKind::VirtualAffinity { owner, block } => {
                at(Collection::Affinities, names::affinity_name(&owner, block))
            }
            KeyKind::Handle(id) => {
                match names::handle_name(id.as_str()) {
                    Ok(name) => at(Collection::Handles, name),
                    // No object can have this name: a DEL after the ADD that was refused must succeed.
                    Err(_) if matches!(operation, "get" | "delete") => return Ok(Self::Nowhere),
                    Err(reason) => {
                        return Err(StoreError::Invalid { operation: operation.to_owned(), reason });
                    }
                }
            }
            KeyKind::IpamConfig => at(Collection::IpamConfig, DEFAULT.to_owned()),
            KeyKind::IpamHost(_) => return Ok(Self::Nowhere),
            KeyKind::Pool(name) => at(Collection::Custom(ResourceKind::IpPool), name),
            KeyKind::Reservation(name) => at(Collection::Custom(ResourceKind::IpReservation), name),
            KeyKind::Node(name) => at(Collection::Nodes, name.as_str().to_owned()),
            KeyKind::WorkloadEndpoint { namespace, name } => {
                return endpoint(namespace, &name, key, operation);
            }
            KeyKind::Resource { kind: ResourceKind::Profile, name, .. } => {
                return profile(&name, key, operation);
            }
            KeyKind::Resource {
                kind:
                    ResourceKind::BlockAffinity
                    | ResourceKind::ClusterNetworkPolicy
                    | ResourceKind::IpamConfiguration
                    | ResourceKind::KubernetesNetworkPolicy,
                ..
            } => return Err(unsupported(key, operation)),
            KeyKind::Other => return network(key, operation),
            KeyKind::Resource { kind, namespace, name } => {
                ObjectPlace { collection: Collection::Custom(kind), namespace, name }
            }
        };
        Ok(Self::Object(place))
    }
}

/// The pod of an endpoint. Only `eth0` of pods has one.
fn endpoint(namespace: String, name: &str, key: &Key, operation: &str) -> Result<Place, StoreError> {
    match endpoint_parts(name).as_slice() {
        [_, orchestrator, pod, interface] if orchestrator == "k8s" => Ok(match interface.as_str() {
            "eth0" => Place::Object(ObjectPlace {
                collection: Collection::Pods,
                namespace: Some(namespace),
                name: pod.clone(),
            }),
            _ => Place::Nowhere,
        }),
        _ => Err(unsupported(key, operation)),
    }
}

/// The parts of an endpoint's name, or of its beginning: they are joined by `-`, and each `-` inside
/// is doubled (calico-cni.md section 2.2.1).
pub(crate) fn endpoint_parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        let is_joint = c == '-' && rest.next_if_eq(&'-').is_none();
        match parts.last_mut() {
            Some(last) if !is_joint => last.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts
}

/// The object of OpenShift's networks that has a record.
fn network(key: &Key, operation: &str) -> Result<Place, StoreError> {
    let (kind, name) = match parse_key(key) {
        Some(OpenshiftKey::NetNamespace(namespace)) => (Network::Namespace, namespace.to_string()),
        Some(OpenshiftKey::HostSubnet(host)) => (Network::Host, host.to_string()),
        Some(OpenshiftKey::ClusterNetwork(name)) => (Network::Cluster, name),
        // Nodes follow the objects of egress policies themselves, with namespaces.
        Some(OpenshiftKey::NetId(_) | OpenshiftKey::EgressNetworkPolicy(..)) | None => {
            return Err(unsupported(key, operation));
        }
    };
    Ok(Place::Object(ObjectPlace { collection: Collection::Openshift(kind), namespace: None, name }))
}

fn profile(name: &str, key: &Key, operation: &str) -> Result<Place, StoreError> {
    let object = |collection, namespace: Option<&str>, name: &str| {
        let namespace = namespace.map(str::to_owned);
        Ok(Place::Object(ObjectPlace { collection, namespace, name: name.to_owned() }))
    };
    if let Some(namespace) = name.strip_prefix(OF_NAMESPACE) {
        return object(Collection::Namespaces, None, namespace);
    }
    match name.strip_prefix(OF_SERVICE_ACCOUNT).and_then(|rest| rest.split_once('.')) {
        Some((namespace, account)) => object(Collection::ServiceAccounts, Some(namespace), account),
        None => Err(unsupported(key, operation)),
    }
}

fn unsupported(key: &Key, operation: &str) -> StoreError {
    StoreError::Unsupported { operation: format!("{operation}: Kubernetes has no object for {key}") }
}

// === impl Scope ===

impl Scope {
    /// The lists that together have every record under a prefix.
    pub(crate) fn of(prefix: &Prefix) -> Result<Vec<Self>, StoreError> {
        let text = prefix.as_str();
        let meets = |root: &String| root.starts_with(text) || text.starts_with(root.as_str());
        let is_openshifts = text.starts_with(openshift::everything().as_str());
        let collections = if is_openshifts { &Collection::OPENSHIFT[..] } else { &Collection::ALL[..] };
        let all = collections.iter().copied().filter(|collection| collection.roots().iter().any(meets));
        let scopes: Vec<Self> = all.map(|collection| Self::narrowed(collection, text)).collect();
        if scopes.is_empty() {
            return Err(StoreError::Unsupported {
                operation: format!("list {prefix}: Kubernetes has no objects for these keys"),
            });
        }
        Ok(scopes)
    }

    fn narrowed(collection: Collection, prefix: &str) -> Self {
        let mut scope = Self { collection, namespace: None, labels: None, fields: None };
        let rest = |root: &str| prefix.strip_prefix(root).unwrap_or_default().to_owned();
        match collection {
            Collection::Affinities => {
                let rest = rest(Prefix::all_affinities().as_str());
                if let [node, family, _, ..] = rest.split('/').collect::<Vec<_>>()[..] {
                    scope.labels = node_selector(node, family);
                }
            }
            Collection::Pods => {
                let rest = rest(Prefix::workload_endpoints().as_str());
                if let Some((namespace, name)) = rest.split_once('/') {
                    scope.namespace = Some(namespace.to_owned());
                    let parts = endpoint_parts(name);
                    let node = parts.first().filter(|_| parts.len() > 1);
                    scope.fields = node.map(|node| format!("spec.nodeName={node}"));
                }
            }
            _ => {}
        }
        scope
    }

    /// The query of its lists and watches.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let labels = self.labels.iter().map(|labels| ("labelSelector", labels.clone()));
        labels.chain(self.fields.iter().map(|fields| ("fieldSelector", fields.clone()))).collect()
    }
}

/// The beginning of the keys of cluster networks.
fn cluster_networks() -> String {
    let key = openshift::clusternetwork_key();
    key.as_str().strip_suffix(ClusterNetwork::DEFAULT).unwrap_or(key.as_str()).to_owned()
}

/// The labels of a node's affinities in a family: the only filter that the server has for them.
fn node_selector(node: &str, family: &str) -> Option<String> {
    let family = [Family::V4, Family::V6].into_iter().find(|known| known.segment() == family)?;
    let labels = affinity_labels("host", node, family);
    let wanted = [HOSTNAME_HASH, AFFINITY_TYPE, IP_VERSION];
    let parts: Vec<String> =
        wanted.iter().filter_map(|name| Some(format!("{name}={}", labels.get(name)?))).collect();
    Some(parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_addr::NodeName;
    use russet_model::HandleId;

    fn place(key: &Key) -> (Collection, Option<String>, String) {
        match Place::of(key, "get").unwrap() {
            Place::Object(ObjectPlace { collection, namespace, name }) => (collection, namespace, name),
            Place::Nowhere => panic!("{key} is nowhere"),
        }
    }

    #[test]
    fn keys_are_the_objects_of_the_table() {
        // kubernetes.md section 1.2
        let node = NodeName::new("node-a").unwrap();
        let block = "10.1.0.16/29".parse().unwrap();
        let name = |key: &Key| place(key).2;
        assert_eq!(name(&Key::block(block)), "10-1-0-16-29");
        assert_eq!(name(&Key::affinity(&node, block)), "node-a-10-1-0-16-29");
        assert_eq!(name(&Key::handle(&HandleId::new("k8s-pod-network.ABC").unwrap())), "k8s-pod-network.abc");
        assert_eq!(place(&Key::ipam_config()), (Collection::IpamConfig, None, "default".to_owned()));
        assert_eq!(place(&Key::node(&node)), (Collection::Nodes, None, "node-a".to_owned()));
        let virtual_affinity =
            Key::from_stored("/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.1.0.16-29");
        assert_eq!(name(&virtual_affinity), "load-balancer-10-1-0-16-29");
        let endpoint = Key::workload_endpoint("shop", "node--a-k8s-web--0-eth0").unwrap();
        assert_eq!(place(&endpoint), (Collection::Pods, Some("shop".to_owned()), "web-0".to_owned()));
        let account = (Collection::ServiceAccounts, Some("shop".to_owned()), "web.sa".to_owned());
        assert_eq!(place(&Key::profile("ksa.shop.web.sa").unwrap()), account);
        assert_eq!(
            place(&Key::profile("kns.shop").unwrap()),
            (Collection::Namespaces, None, "shop".to_owned())
        );
        assert_eq!(Place::of(&Key::ipam_host(&node), "delete").unwrap(), Place::Nowhere);
    }

    #[test]
    fn a_key_without_an_object_is_named() {
        for key in ["/russet/v1/x", "/calico/ipam/v2/handle/a/b", "/coreos.com/network/config"] {
            let error = Place::of(&Key::from_stored(key), "get").unwrap_err();
            assert!(
                matches!(error, StoreError::Unsupported { .. }) && error.to_string().contains(key),
                "{error}"
            );
        }
        // kubernetes.md K28
        let handle = Key::handle(&HandleId::new("my_net.aaaa").unwrap());
        assert!(matches!(Place::of(&handle, "create"), Err(StoreError::Invalid { .. })));
    }

    #[test]
    fn a_prefix_is_the_lists_that_it_needs() {
        let of = |prefix: &Prefix| -> Vec<Collection> {
            Scope::of(prefix).unwrap().into_iter().map(|scope| scope.collection).collect()
        };
        assert_eq!(of(&Prefix::handles()), [Collection::Handles]);
        assert_eq!(of(&Prefix::all_affinities()), [Collection::Affinities]);
        let ipam = [Collection::Blocks, Collection::Affinities, Collection::Handles, Collection::IpamConfig];
        assert_eq!(of(&Prefix::from_stored("/calico/ipam/v2/")), ipam);
        assert_eq!(of(&Prefix::everything()), Collection::ALL);
        assert!(Scope::of(&Prefix::from_stored("/russet/")).is_err());
    }

    #[test]
    fn the_server_filters_affinities_by_labels_and_pods_by_node() {
        // kubernetes.md section 1.5 (labels) and section 4.4 (own pods)
        let node = NodeName::new("node-a").unwrap();
        let scope = Scope::of(&Prefix::affinities_of(&node, Family::V4)).unwrap().remove(0);
        assert_eq!(
            scope.labels.as_deref(),
            Some(
                "projectcalico.org/hostname-hash=PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA,\
                 projectcalico.org/affinity-type=host,projectcalico.org/ip-version=4"
            )
        );
        let prefix = Prefix::workload_endpoints_named("shop", "node--a-k8s-web--0-").unwrap();
        let scope = Scope::of(&prefix).unwrap().remove(0);
        assert_eq!(scope.namespace.as_deref(), Some("shop"));
        assert_eq!(scope.fields.as_deref(), Some("spec.nodeName=node-a"));
    }
}
