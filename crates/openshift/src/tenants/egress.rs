//! EgressNetworkPolicies (kubernetes.md section 6.4, policy.md section 1.10): from objects to what each network ID
//! may not reach outside of the cluster. Pure.
//!
//! What cannot be read, and what this node cannot enforce, never opens anything.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use russet_addr::{IpNet, Ipv4Net};
use russet_model::openshift::{Namespace, NetId};
use russet_verdict::ir::Problem;
use russet_verdict::translate::{RULES_PER_POLICY_MAX, document};
use russet_verdict::world::{EgressPeer, Update};
use serde_json::{Map, Value, json};

use super::names::Names;
use crate::data_path::{Denied, Egress, open_to_global};

/// An EgressNetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressPolicy {
    /// One without rules has no effect, and does not count as a second one.
    has_rules: bool,
    /// What the rules deny, if they name nothing.
    denied: Arc<Denied>,
    /// The rules, if they name anything.
    named: Option<Arc<Rules>>,
}

/// Limit of the names of one policy that are resolved. Others have no address.
const NAMES_MAX: usize = 100;

/// Limit of the rules of one policy. One with more denies everything.
pub const RULES_MAX: usize = RULES_PER_POLICY_MAX;

/// The EgressNetworkPolicies of a cluster, by namespace and name.
pub type EgressPolicies = BTreeMap<Namespace, BTreeMap<String, EgressPolicy>>;

/// Why the rules of policies do not count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Override {
    /// Namespaces share the network ID, and one of them has a policy: everything is denied.
    Shared(NetId, Namespace),
    /// The namespace has several policies: everything is denied.
    Several(Namespace),
    /// The network ID is the global one, which is not restricted.
    Global(Namespace),
}

// === impl EgressPolicy ===

impl EgressPolicy {
    /// Reads the record of a policy. Problems name what is not enforced as it is written.
    pub fn read(namespace: &Namespace, name: &str, value: &[u8]) -> (Self, Vec<Problem>) {
        match serde_json::from_slice(value) {
            Ok(members) => Self::from_members(namespace, name, members),
            Err(error) => (Self::closed(), vec![problem("", format!("it is no document: {error}"))]),
        }
    }

    /// Reads the object of a policy.
    pub fn from_members(
        namespace: &Namespace,
        name: &str,
        members: Map<String, Value>,
    ) -> (Self, Vec<Problem>) {
        match rules(namespace, name, members) {
            Ok((rules, mut problems)) => {
                let denied = Arc::new(Denied::by_rules(&resolved(&rules, &Names::new())));
                let (count, has_rules) = (names_in(&rules).count(), !rules.is_empty());
                if count > NAMES_MAX {
                    let text = format!("{count} names: those behind the first {NAMES_MAX} are not resolved");
                    problems.push(Problem { path: "spec.egress".into(), text: text.into() });
                }
                (Self { has_rules, denied, named: (count > 0).then(|| Arc::new(rules)) }, problems)
            }
            Err(problem) => (Self::closed(), vec![problem]),
        }
    }

    /// A policy that denies everything.
    fn closed() -> Self {
        Self { has_rules: true, denied: Arc::new(Denied::everything()), named: None }
    }

    /// The names in its rules that are to be resolved.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        names_in(self.named.iter().flat_map(|rules| rules.iter())).take(NAMES_MAX)
    }

    /// What it denies while names have these addresses.
    fn denied(&self, names: &Names) -> Arc<Denied> {
        match &self.named {
            Some(rules) => Arc::new(Denied::by_rules(&resolved(rules, names))),
            None => Arc::clone(&self.denied),
        }
    }
}

type Rules = Vec<(bool, EgressPeer)>;

fn names_in<'a>(
    rules: impl IntoIterator<Item = &'a (bool, EgressPeer)>,
) -> impl Iterator<Item = &'a Arc<str>> {
    rules.into_iter().filter_map(|(_, peer)| match peer {
        EgressPeer::Name(name, _) => Some(name),
        EgressPeer::Net(_) => None,
    })
}

/// Why everything is denied.
fn problem(path: &str, text: String) -> Problem {
    Problem { path: path.into(), text: format!("{text}; everything is denied").into() }
}

fn rules(
    namespace: &Namespace,
    name: &str,
    mut members: Map<String, Value>,
) -> Result<(Rules, Vec<Problem>), Problem> {
    if members.get("spec").is_some_and(|spec| !spec.is_object()) {
        return Err(problem("spec", "an object is wanted".to_owned()));
    }
    // Its key names it, whatever its metadata say.
    members.insert("metadata".to_owned(), json!({ "namespace": namespace.as_str(), "name": name }));
    members.insert("apiVersion".to_owned(), "network.openshift.io/v1".into());
    members.insert("kind".to_owned(), "EgressNetworkPolicy".into());
    let translated = document(&Value::Object(members))
        .map_err(|refused| problem(&refused.problem.path, refused.problem.text.to_string()))?;
    let firewall = translated.updates.into_iter().find_map(|update| match update {
        Update::EgressFirewall(_, _, firewall) => firewall,
        _ => None,
    });
    let rules = firewall.map(|firewall| firewall.rules.clone()).unwrap_or_default();
    match rules.len() {
        0..=RULES_MAX => Ok((rules, translated.problems)),
        _ => Err(problem("spec.egress", format!("more than {RULES_MAX} rules"))),
    }
}

/// The rules about addresses of IPv4. Without addresses of its name a rule that allows is none, and one that denies
/// denies everything.
fn resolved(rules: &Rules, names: &Names) -> Vec<(bool, Ipv4Net)> {
    let mut all = Vec::with_capacity(rules.len());
    for (allow, peer) in rules {
        match peer {
            EgressPeer::Net(IpNet::V4(net)) => all.push((*allow, *net)),
            EgressPeer::Net(IpNet::V6(_)) => {}
            EgressPeer::Name(name, _) => match names.get(name) {
                Some(addresses) => {
                    all.extend(addresses.iter().map(|address| (*allow, Ipv4Net::from(*address))))
                }
                None if *allow => {}
                None => all.push((false, Ipv4Net::default())),
            },
        }
    }
    all
}

/// What is denied to each network ID while names have these addresses, and which policies do not count as they are
/// written. `netids` are those of all namespaces.
pub fn egress<'a>(
    netids: impl IntoIterator<Item = (&'a Namespace, NetId)>,
    policies: &EgressPolicies,
    names: &Names,
) -> (Egress, Vec<Override>) {
    let mut users: BTreeMap<NetId, Vec<&Namespace>> = BTreeMap::new();
    for (namespace, netid) in netids {
        users.entry(netid).or_default().push(namespace);
    }
    let (open, closed) = (Arc::default(), Arc::new(Denied::everything()));
    let (mut egress, mut overrides) = (open_to_global(), Vec::new());
    for (netid, namespaces) in users {
        let of = |namespace: &&Namespace| policies.get(*namespace).into_iter().flat_map(BTreeMap::values);
        let with_rules: Vec<(&Namespace, &EgressPolicy)> = namespaces
            .iter()
            .flat_map(|namespace| {
                of(namespace).filter(|it| it.has_rules).map(move |policy| (*namespace, policy))
            })
            .collect();
        let denied = match with_rules.as_slice() {
            [] => Arc::clone(&open),
            all if netid.is_global() => {
                overrides.extend(all.iter().map(|(namespace, _)| Override::Global((*namespace).clone())));
                continue;
            }
            [(namespace, _), ..] if namespaces.len() > 1 => {
                overrides.push(Override::Shared(netid, (*namespace).clone()));
                Arc::clone(&closed)
            }
            [(_, policy)] => policy.denied(names),
            [(namespace, _), ..] => {
                overrides.push(Override::Several((*namespace).clone()));
                Arc::clone(&closed)
            }
        };
        egress.insert(netid, denied);
    }
    (egress, overrides)
}

// === impl Override ===

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(netid, namespace) => write!(
                f,
                "several namespaces have network ID {netid}, and {namespace}, one of them, has an EgressNetworkPolicy: everything outside of the cluster is denied to all of them"
            ),
            Self::Several(namespace) => write!(
                f,
                "namespace {namespace} has several EgressNetworkPolicies: everything outside of the cluster is denied to it"
            ),
            Self::Global(namespace) => write!(
                f,
                "the network ID of namespace {namespace} is global: its EgressNetworkPolicies are not enforced"
            ),
        }
    }
}

impl Override {
    /// Whether it concerns the pods of a namespace that has this network ID.
    pub fn concerns(&self, namespace: &Namespace, netid: Option<NetId>) -> bool {
        match self {
            Self::Shared(shared, _) => netid == Some(*shared),
            Self::Several(of) | Self::Global(of) => of == namespace,
        }
    }

    /// Logs it, once for a while.
    pub fn report(&self) {
        const DENIED: &str = "everything outside of the cluster is denied to a namespace";
        match self {
            Self::Shared(netid, namespace) => {
                let why = format!(
                    "another namespace has its network ID {netid}, and it has an EgressNetworkPolicy"
                );
                russet_store::refused(DENIED, namespace, why);
            }
            Self::Several(namespace) => {
                russet_store::refused(DENIED, namespace, "it has several EgressNetworkPolicies");
            }
            Self::Global(namespace) => {
                let what = "the EgressNetworkPolicies of a namespace are not enforced";
                russet_store::refused(what, namespace, "its network ID is global");
            }
        }
    }
}

#[cfg(test)]
mod tests;
