//! The translation of a stream of objects, and what of it needs more than one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::kubernetes::{self, Slices};
use super::openshift::{self, Firewalls};
use super::read::{At, Metadata, Problems, policy_id};
use super::records::Profiles;
use super::{ADMIN_TIER, BASELINE_TIER, Refused, Translated, calico, cluster, labels};
use crate::ir::{Order, Policy, PolicyId, PolicyKind, Problem};
use crate::world::{EndpointKey, Update};

/// Before the names of the copies of NetworkPolicies that `calico-kube-controllers` writes to etcd.
const COPY_PREFIX: &str = "knp.default.";
/// The largest number of lists in lists.
const LISTS_DEPTH_MAX: usize = 4;

/// Translates objects as they come and go. It keeps what is needed of other objects: slices of one
/// Service, namespaces of one NetID, and NetworkPolicies of which there is a copy.
#[derive(Debug, Clone, Default)]
pub struct Translator {
    slices: Slices,
    firewalls: Firewalls,
    pub(super) profiles: Profiles,
    /// The policies that have a good form in force.
    good: BTreeSet<PolicyId>,
    /// Tier and priority of the policies in the tiers of the cluster.
    priorities: BTreeMap<PolicyId, (Arc<str>, Order)>,
    /// Copies of NetworkPolicies, by the original's ID; they count only without the original.
    copies: BTreeMap<PolicyId, Arc<Policy>>,
}

/// The kinds of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Policy(PolicyKind),
    Tier,
    Profile,
    Namespace,
    ServiceAccount,
    Pod,
    WorkloadEndpoint,
    HostEndpoint,
    NetworkSet,
    GlobalNetworkSet,
    FelixConfiguration,
    Node,
    EndpointSlice,
    EgressNetworkPolicy,
    NetNamespace,
}

// === impl Kind ===

impl Kind {
    pub(super) fn find(api: &str, kind: &str) -> Option<Self> {
        Some(match (api, kind) {
            ("projectcalico.org/v3" | "crd.projectcalico.org/v1", kind) => return Self::of_calico(kind),
            ("networking.k8s.io/v1", "NetworkPolicy") => Self::Policy(PolicyKind::KubernetesNetworkPolicy),
            ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy") => {
                Self::Policy(PolicyKind::ClusterNetworkPolicy)
            }
            ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy") => {
                Self::Policy(PolicyKind::AdminNetworkPolicy)
            }
            ("policy.networking.k8s.io/v1alpha1", "BaselineAdminNetworkPolicy") => {
                Self::Policy(PolicyKind::BaselineAdminNetworkPolicy)
            }
            ("v1", "Namespace") => Self::Namespace,
            ("v1", "ServiceAccount") => Self::ServiceAccount,
            ("v1", "Pod") => Self::Pod,
            ("v1", "Node") => Self::Node,
            ("discovery.k8s.io/v1", "EndpointSlice") => Self::EndpointSlice,
            ("network.openshift.io/v1", "EgressNetworkPolicy") => Self::EgressNetworkPolicy,
            ("network.openshift.io/v1", "NetNamespace") => Self::NetNamespace,
            _ => return None,
        })
    }

    fn of_calico(kind: &str) -> Option<Self> {
        Some(match kind {
            "NetworkPolicy" => Self::Policy(PolicyKind::NetworkPolicy),
            "GlobalNetworkPolicy" => Self::Policy(PolicyKind::GlobalNetworkPolicy),
            "StagedNetworkPolicy" => Self::Policy(PolicyKind::StagedNetworkPolicy),
            "StagedGlobalNetworkPolicy" => Self::Policy(PolicyKind::StagedGlobalNetworkPolicy),
            "StagedKubernetesNetworkPolicy" => Self::Policy(PolicyKind::StagedKubernetesNetworkPolicy),
            "Tier" => Self::Tier,
            "Profile" => Self::Profile,
            "NetworkSet" => Self::NetworkSet,
            "GlobalNetworkSet" => Self::GlobalNetworkSet,
            "HostEndpoint" => Self::HostEndpoint,
            "FelixConfiguration" => Self::FelixConfiguration,
            "WorkloadEndpoint" => Self::WorkloadEndpoint,
            _ => return None,
        })
    }
}

// === impl Translator ===

impl Translator {
    /// An object was added or changed. If it cannot be read, its last good form stays; if there is
    /// none, its subject is denied everything, if that can be read.
    pub fn put(&mut self, value: &Value) -> Translated {
        let read = self.try_put(value);
        self.or_instead(read)
    }

    /// An object was deleted. Only its kind and names count.
    pub fn remove(&mut self, value: &Value) -> Translated {
        let document = At::root(value);
        let removed = document
            .kind(None)
            .and_then(|(api, kind)| self.remove_one(find(&document, api, kind)?, &document));
        match removed {
            Ok(updates) => Translated { updates, problems: Vec::new() },
            Err(problem) => Translated { updates: Vec::new(), problems: vec![problem] },
        }
    }

    /// An object was added or changed; an error means that it cannot be read. Of a list, all items
    /// that can be read.
    pub(super) fn try_put(&mut self, value: &Value) -> Result<Translated, Refused> {
        self.put_each(&At::root(value), None, 0)
    }

    pub(super) fn or_instead(&mut self, read: Result<Translated, Refused>) -> Translated {
        read.unwrap_or_else(|Refused { problem, instead }| {
            let is_good = |id: &PolicyId| self.good.contains(id);
            let new =
                instead.filter(|it| !is_good(&it.id) && !original(&it.id).is_some_and(|id| is_good(&id)));
            let updates = new.map(|policy| Update::Policy(policy.id.clone(), Some(policy)));
            Translated { updates: updates.into_iter().collect(), problems: vec![problem] }
        })
    }

    /// Items of a list have their kind from the list if they have none: `PodList` has such items.
    fn put_each(
        &mut self,
        document: &At<'_>,
        list: Option<(&str, &str)>,
        depth: usize,
    ) -> Result<Translated, Refused> {
        let (api, name) = document.kind(list)?;
        let Some(item) = name.strip_suffix("List").filter(|_| document.member("items").is_some()) else {
            return self.put_one(find(document, api, name)?, document);
        };
        if depth >= LISTS_DEPTH_MAX {
            return Err(document.problem("lists are nested too deep").into());
        }
        let mut all = Translated::default();
        for at in document.list("items")? {
            let one = self.put_each(&at, Some((api, item)), depth + 1);
            let one = self.or_instead(one);
            all.updates.extend(one.updates);
            all.problems.extend(one.problems);
        }
        Ok(all)
    }

    fn put_one(&mut self, kind: Kind, document: &At<'_>) -> Result<Translated, Refused> {
        let metadata = document.metadata()?;
        let mut problems = Problems::default();
        let updates = match kind {
            Kind::Policy(kind) => {
                let mut policy = policy(kind, document)?;
                if matches!(&*policy.tier, ADMIN_TIER | BASELINE_TIER) {
                    self.warn_of_equal_priority(&mut policy);
                }
                self.set_policy(policy)
            }
            Kind::EndpointSlice => {
                let content = kubernetes::slice(document)?;
                self.slices.set(metadata.wanted_namespace()?, metadata.name, content)
            }
            Kind::EgressNetworkPolicy => {
                let firewall = openshift::firewall(document, &mut problems)?;
                self.firewalls.set(metadata.wanted_namespace()?, metadata.name, Some(firewall))
            }
            Kind::NetNamespace => {
                let (namespace, id) = openshift::net_namespace(document)?;
                self.firewalls.set_net_id(namespace, Some(id))
            }
            other => vec![object(other, document, &metadata, &mut problems)?],
        };
        Ok(Translated { updates, problems: problems.finish() })
    }

    fn remove_one(&mut self, kind: Kind, document: &At<'_>) -> Result<Vec<Update>, Problem> {
        let metadata = document.metadata()?;
        Ok(match kind {
            Kind::Policy(kind) => self.remove_policy(policy_id(kind, &metadata)?),
            Kind::EndpointSlice => self.slices.set(metadata.wanted_namespace()?, metadata.name, None),
            Kind::EgressNetworkPolicy => {
                self.firewalls.set(metadata.wanted_namespace()?, metadata.name, None)
            }
            Kind::NetNamespace => self.firewalls.set_net_id(metadata.name, None),
            Kind::Tier => vec![Update::Tier(metadata.name.into(), None)],
            Kind::Profile | Kind::Namespace | Kind::ServiceAccount => {
                vec![Update::Profile(profile_name(kind, &metadata)?, None)]
            }
            Kind::Pod | Kind::WorkloadEndpoint | Kind::HostEndpoint => {
                vec![Update::Endpoint(endpoint_key(kind, &metadata)?, None)]
            }
            Kind::NetworkSet | Kind::GlobalNetworkSet => {
                vec![Update::NetworkSet(calico::set_id(&metadata, kind == Kind::GlobalNetworkSet)?, None)]
            }
            Kind::FelixConfiguration => vec![Update::Felix(metadata.name.into(), None)],
            Kind::Node => vec![Update::Node(metadata.node_name()?, None)],
        })
    }

    /// Two policies of one priority in a tier of the cluster are a mistake: the API leaves open which
    /// comes first. Here it is the one whose name sorts first.
    fn warn_of_equal_priority(&mut self, policy: &mut Policy) {
        let place = (Arc::clone(&policy.tier), policy.order);
        let same = self.priorities.iter().find(|(id, other)| **id != policy.id && **other == place);
        policy.problems.extend(same.map(|(id, _)| Problem {
            path: "spec.priority".into(),
            text: format!("{id} has the same priority; the names decide which comes first").into(),
        }));
        self.priorities.insert(policy.id.clone(), place);
    }

    /// A policy that could be read. A copy is put aside while its original is there.
    pub(super) fn set_policy(&mut self, policy: Policy) -> Vec<Update> {
        let policy = Arc::new(policy);
        let id = policy.id.clone();
        self.good.insert(id.clone());
        if let Some(original) = original(&id) {
            self.copies.insert(original.clone(), Arc::clone(&policy));
            if self.good.contains(&original) {
                return Vec::new();
            }
        }
        let copy = self.copies.get(&id).map(|copy| Update::Policy(copy.id.clone(), None));
        [Update::Policy(id, Some(policy))].into_iter().chain(copy).collect()
    }

    pub(super) fn remove_policy(&mut self, id: PolicyId) -> Vec<Update> {
        self.good.remove(&id);
        self.priorities.remove(&id);
        if let Some(original) = original(&id) {
            self.copies.remove(&original);
        }
        let copy = self.copies.get(&id).map(|copy| Update::Policy(copy.id.clone(), Some(Arc::clone(copy))));
        // The copy comes first: between the two updates both are in force, not none.
        copy.into_iter().chain([Update::Policy(id, None)]).collect()
    }
}

fn find(document: &At<'_>, api: &str, kind: &str) -> Result<Kind, Problem> {
    Kind::find(api, kind)
        .ok_or_else(|| document.problem_of("kind", format!("{kind:.60?} of {api:.60?} is not known")))
}

fn policy(kind: PolicyKind, document: &At<'_>) -> Result<Policy, Refused> {
    match kind {
        PolicyKind::KubernetesNetworkPolicy | PolicyKind::StagedKubernetesNetworkPolicy => {
            Ok(kubernetes::network_policy(document, kind)?)
        }
        PolicyKind::ClusterNetworkPolicy
        | PolicyKind::AdminNetworkPolicy
        | PolicyKind::BaselineAdminNetworkPolicy => cluster::policy(document, kind),
        kind => calico::policy(document, kind),
    }
}

/// What is one update by itself.
fn object(
    kind: Kind,
    document: &At<'_>,
    metadata: &Metadata<'_>,
    problems: &mut Problems,
) -> Result<Update, Problem> {
    Ok(match kind {
        Kind::Tier => Update::Tier(metadata.name.into(), Some(calico::tier(document, problems)?)),
        Kind::Namespace | Kind::ServiceAccount | Kind::Profile => {
            let profile = match kind {
                Kind::Namespace => kubernetes::namespace(document)?,
                Kind::ServiceAccount => kubernetes::service_account(document)?,
                _ => calico::profile(document, problems)?,
            };
            Update::Profile(profile_name(kind, metadata)?, Some(Arc::new(profile)))
        }
        Kind::NetworkSet | Kind::GlobalNetworkSet => {
            let global = kind == Kind::GlobalNetworkSet;
            let set = calico::network_set(document, global, problems)?;
            Update::NetworkSet(calico::set_id(metadata, global)?, Some(Arc::new(set)))
        }
        Kind::FelixConfiguration => {
            let settings = calico::felix_settings(document, problems);
            Update::Felix(metadata.name.into(), Some(Arc::new(settings)))
        }
        Kind::Node => Update::Node(metadata.node_name()?, Some(Arc::new(kubernetes::node(document)?))),
        _ => {
            let endpoint = match kind {
                Kind::HostEndpoint => Some(calico::host_endpoint(document, problems)?),
                Kind::WorkloadEndpoint => Some(calico::workload_endpoint(document, problems)?),
                _ => kubernetes::pod(document, problems)?,
            };
            Update::Endpoint(endpoint_key(kind, metadata)?, endpoint.map(Arc::new))
        }
    })
}

fn endpoint_key(kind: Kind, metadata: &Metadata<'_>) -> Result<EndpointKey, Problem> {
    let name = metadata.name;
    Ok(EndpointKey(Arc::from(match kind {
        Kind::HostEndpoint => format!("host/{name}"),
        Kind::WorkloadEndpoint => format!("workload/{}/{name}", metadata.wanted_namespace()?),
        _ => format!("pod/{}/{name}", metadata.wanted_namespace()?),
    })))
}

fn profile_name(kind: Kind, metadata: &Metadata<'_>) -> Result<Arc<str>, Problem> {
    Ok(match kind {
        Kind::Namespace => labels::namespace_profile(metadata.name),
        Kind::ServiceAccount => labels::account_profile(metadata.wanted_namespace()?, metadata.name),
        _ => metadata.name.into(),
    })
}

/// The NetworkPolicy that the policy is a copy of.
fn original(id: &PolicyId) -> Option<PolicyId> {
    let name = id.name.strip_prefix(COPY_PREFIX).filter(|_| id.kind == PolicyKind::NetworkPolicy)?;
    Some(PolicyId {
        kind: PolicyKind::KubernetesNetworkPolicy,
        name: name.into(),
        namespace: id.namespace.clone(),
    })
}

#[cfg(test)]
mod tests;
