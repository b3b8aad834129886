//! The resources that the test server can serve: those of the core group that we use, OpenShift's,
//! ClusterNetworkPolicies, and Calico's custom resources in either of their groups (kubernetes.md
//! sections 1.1 and 1.2).

use serde_json::{Value, json};

/// The group of Calico's resource definitions, and the one in which Calico serves its API natively.
const CALICO_V1: (&str, &str) = ("crd.projectcalico.org", "v1");
const CALICO_V3: (&str, &str) = ("projectcalico.org", "v3");

/// Kind, plural, whether objects live in namespaces.
type Names = (&'static str, &'static str, bool);

const CORE: [Names; 6] = [
    ("Event", "events", true),
    ("Node", "nodes", false),
    ("Namespace", "namespaces", false),
    ("Pod", "pods", true),
    ("Service", "services", true),
    ("ServiceAccount", "serviceaccounts", true),
];
const CALICO: [Names; 17] = [
    ("IPAMBlock", "ipamblocks", false),
    ("BlockAffinity", "blockaffinities", false),
    ("IPAMHandle", "ipamhandles", false),
    ("IPPool", "ippools", false),
    ("IPReservation", "ipreservations", false),
    ("ClusterInformation", "clusterinformations", false),
    ("FelixConfiguration", "felixconfigurations", false),
    ("GlobalNetworkPolicy", "globalnetworkpolicies", false),
    ("GlobalNetworkSet", "globalnetworksets", false),
    ("HostEndpoint", "hostendpoints", false),
    ("NetworkPolicy", "networkpolicies", true),
    ("NetworkSet", "networksets", true),
    ("StagedGlobalNetworkPolicy", "stagedglobalnetworkpolicies", false),
    ("StagedKubernetesNetworkPolicy", "stagedkubernetesnetworkpolicies", true),
    ("StagedNetworkPolicy", "stagednetworkpolicies", true),
    ("Tier", "tiers", false),
    ("IPAMConfig", "ipamconfigs", false),
];
/// Groups that every API server has, beside the core group.
const COORDINATION: (&str, &str) = ("coordination.k8s.io", "v1");
const LEASES: [Names; 1] = [("Lease", "leases", true)];
const APPS: (&str, &str) = ("apps", "v1");
const WORKLOADS: [Names; 2] = [("Deployment", "deployments", true), ("DaemonSet", "daemonsets", true)];
const NETWORKING: (&str, &str) = ("networking.k8s.io", "v1");
const SERVICE_RANGES: [Names; 1] = [("ServiceCIDR", "servicecidrs", false)];
const REGISTRATION: (&str, &str) = ("apiregistration.k8s.io", "v1");
const API_SERVICES: [Names; 1] = [("APIService", "apiservices", false)];
const OPENSHIFT: (&str, &str) = ("network.openshift.io", "v1");
const SDN: [Names; 4] = [
    ("ClusterNetwork", "clusternetworks", false),
    ("EgressNetworkPolicy", "egressnetworkpolicies", true),
    ("HostSubnet", "hostsubnets", false),
    ("NetNamespace", "netnamespaces", false),
];
const CLUSTER_POLICY: (&str, &str) = ("policy.networking.k8s.io", "v1alpha2");
const CLUSTER_POLICIES: [Names; 1] = [("ClusterNetworkPolicy", "clusternetworkpolicies", false)];
/// In the native group the allocator's settings have another name.
const CONFIGURATION: Names = ("IPAMConfiguration", "ipamconfigurations", false);

/// One resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Empty for the core group.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespaced: bool,
}

// === impl Kind ===

impl Kind {
    /// The resource with this plural in a group.
    pub(crate) fn of_plural(group: &str, plural: &str) -> Option<Self> {
        Self::all(group).find(|kind| kind.plural == plural)
    }

    /// The resource of an object.
    pub(crate) fn of_object(object: &Value) -> Option<Self> {
        let version = object["apiVersion"].as_str().unwrap_or("v1");
        let group = version.split_once('/').map_or("", |(group, _)| group);
        Self::all(group).find(|kind| object["kind"] == kind.kind)
    }

    /// The resource with this identifier.
    pub(crate) fn of_id(id: &str) -> Option<Self> {
        let group = id.split_once('.').map_or("", |(_, group)| group);
        Self::all(group).find(|kind| kind.id() == id)
    }

    /// All resources of a group.
    pub(crate) fn all(group: &str) -> impl Iterator<Item = Self> {
        let (names, extra, of): (&[Names], _, _) = match group {
            "" => (&CORE, None, ("", "v1")),
            group if group == COORDINATION.0 => (&LEASES, None, COORDINATION),
            group if group == APPS.0 => (&WORKLOADS, None, APPS),
            group if group == NETWORKING.0 => (&SERVICE_RANGES, None, NETWORKING),
            group if group == REGISTRATION.0 => (&API_SERVICES, None, REGISTRATION),
            group if group == OPENSHIFT.0 => (&SDN, None, OPENSHIFT),
            group if group == CLUSTER_POLICY.0 => (&CLUSTER_POLICIES, None, CLUSTER_POLICY),
            group if group == CALICO_V1.0 => (&CALICO, None, CALICO_V1),
            group if group == CALICO_V3.0 => (&CALICO[..CALICO.len() - 1], Some(CONFIGURATION), CALICO_V3),
            _ => (&[], None, ("", "")),
        };
        let (group, version) = of;
        names.iter().copied().chain(extra).map(move |(kind, plural, namespaced)| Self {
            group,
            version,
            kind,
            plural,
            namespaced,
        })
    }

    /// `Pod`, or `IPPool.crd.projectcalico.org`.
    pub(crate) fn id(&self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// `pods`, or `ippools.crd.projectcalico.org`, as messages name it.
    pub(crate) fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Whether every API server has this group.
    pub(crate) fn is_built_in(group: &str) -> bool {
        ["", COORDINATION.0, APPS.0, NETWORKING.0, REGISTRATION.0].contains(&group)
    }

    /// Whether it is a custom resource: these have no strategic merge, and every replacement needs
    /// a resource version.
    pub(crate) fn is_custom(&self) -> bool {
        !self.group.is_empty()
    }

    /// The list of a group's resources, as discovery returns it.
    pub(crate) fn discovery(group: &str, is_defined: impl Fn(&Self) -> bool) -> Value {
        let version = Self::all(group).next().map(|kind| kind.api_version()).unwrap_or_default();
        let resources: Vec<Value> = Self::all(group)
            .filter(is_defined)
            .map(|kind| json!({ "name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced, "singularName": "",
                "verbs": ["get", "list", "watch", "create", "update", "delete"] }))
            .collect();
        json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources })
    }
}
