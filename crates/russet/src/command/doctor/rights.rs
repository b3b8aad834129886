//! Whether the account with which this node uses the Kubernetes API may do what an agent needs: those rules of the
//! manifests' ClusterRole and Role without which addresses, policies or the sign of life do not work.

use russet_agent::{Annotate, Config, PolicyMode};
use russet_kube::{CALL_DEADLINE, Client, HEARTBEAT_NAMESPACE, Request, Verb};
use serde::Deserialize;
use serde_json::json;

use crate::command::findings::{FindingKind, Findings};
use crate::command::place::Place;

/// What an agent does with resources of one group.
struct Need {
    group: Group,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    purpose: Purpose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Named(&'static str),
    /// That of Calico's resources in this cluster.
    Calico,
}

/// What does not work without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Addresses,
    Policies,
    StagedPolicies,
    Annotations,
    NodeStatus,
    SignOfLife,
}

/// What the settings of the agent want besides addresses.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    policies: bool,
    annotations: bool,
}

/// The answer to a `SelfSubjectRulesReview` (authorization.k8s.io/v1).
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    resource_rules: Vec<Rule>,
    /// An authorizer, such as a webhook, cannot list its rules.
    incomplete: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rule {
    verbs: Vec<String>,
    api_groups: Vec<String>,
    resources: Vec<String>,
    /// If there are any, it is for these objects only.
    resource_names: Vec<String>,
}

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: Status,
}

const READ: &[&str] = &["get", "list", "watch"];
const CORE: Group = Group::Named("");
/// Of the manifests' rules those are left out that a cluster may lack: ClusterNetworkPolicies, EndpointSlices, events, and the
/// objects that the first agent of a cluster makes.
const NEEDS: [Need; 11] = [
    Need::of(CORE, &["nodes", "pods", "namespaces", "serviceaccounts"], READ, Purpose::Addresses),
    Need::of(
        Group::Calico,
        &["ippools", "ipreservations", "ipamconfigs", "clusterinformations", "felixconfigurations"],
        READ,
        Purpose::Addresses,
    ),
    Need::of(Group::Calico, &["ipamblocks", "blockaffinities"], READ, Purpose::Addresses),
    Need::of(Group::Calico, &["ipamhandles"], &["get"], Purpose::Addresses),
    Need::of(
        Group::Calico,
        &["ipamblocks", "blockaffinities", "ipamhandles"],
        &["create", "update", "delete"],
        Purpose::Addresses,
    ),
    Need::of(
        Group::Calico,
        &[
            "tiers",
            "networkpolicies",
            "globalnetworkpolicies",
            "networksets",
            "globalnetworksets",
            "hostendpoints",
        ],
        READ,
        Purpose::Policies,
    ),
    Need::of(Group::Named("networking.k8s.io"), &["networkpolicies"], READ, Purpose::Policies),
    Need::of(
        Group::Calico,
        &["stagednetworkpolicies", "stagedglobalnetworkpolicies", "stagedkubernetesnetworkpolicies"],
        READ,
        Purpose::StagedPolicies,
    ),
    Need::of(CORE, &["pods/status"], &["patch"], Purpose::Annotations),
    Need::of(CORE, &["nodes/status"], &["patch"], Purpose::NodeStatus),
    Need::of(
        Group::Named("coordination.k8s.io"),
        &["leases"],
        &["get", "create", "update"],
        Purpose::SignOfLife,
    ),
];
/// The name of Calico's `ipamconfigs` in the native group.
const NATIVE: (&str, &str) = ("projectcalico.org", "ipamconfigurations");
/// What a finding lists of many.
const SHOWN: usize = 4;
const ANSWER_MAX_BYTES: usize = 4 << 20;
const REMEDY: &str = "apply Russet's manifest again, which has the role and its binding (`kubectl apply -f russet.yaml`), or give the account in the kubeconfig of this store that role: `kubectl create clusterrolebinding NAME --clusterrole=russet-agent --user=ACCOUNT`";

/// Asks the API server. Nothing is asked of another store.
pub async fn look(place: &Place, config: &Config, report: &mut Findings) {
    let Some(client) = place.kubernetes() else { return };
    match place.kubernetes_group().await {
        Ok(group) => look_at(&client, &group.unwrap_or_default(), Wanted::of(config), report).await,
        Err(error) => report.unknown.push(format!("rights: {error}")),
    }
}

async fn look_at(client: &Client, calico: &str, wanted: Wanted, report: &mut Findings) {
    let segments = ["apis", "authorization.k8s.io", "v1", "selfsubjectrulesreviews"];
    // Rules of the namespace of the leases, and with them all that are for the whole cluster.
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": { "namespace": HEARTBEAT_NAMESPACE } });
    let request = Request {
        operation: "ask for the account's rules".to_owned(),
        verb: Verb::Create,
        segments: segments.map(str::to_owned).to_vec(),
        query: Vec::new(),
        body: review.to_string().into_bytes(),
        deadline: CALL_DEADLINE,
        limit_bytes: ANSWER_MAX_BYTES,
    };
    let status = match client.request(&request).await {
        Ok(answer) => serde_json::from_slice(&answer.body).map(|Review { status }| status),
        Err(failure) => return report.unknown.push(format!("rights: {}", failure.error)),
    };
    match status {
        Ok(status) => judge(&status, (calico, wanted), report),
        Err(error) => report.unknown.push(format!("rights: the answer makes no sense: {error}")),
    }
}

fn judge(status: &Status, (calico, wanted): (&str, Wanted), report: &mut Findings) {
    let calico = calico.split_once('/').map_or(calico, |(group, _)| group);
    for purpose in Purpose::ALL.into_iter().filter(|purpose| purpose.is_wanted(wanted)) {
        let needs = NEEDS.iter().filter(|need| need.purpose == purpose);
        let missing: Vec<String> =
            needs.filter_map(|need| need.missing(calico, &status.resource_rules)).collect();
        if missing.is_empty() {
            continue;
        }
        let some = missing.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
        let rest = match missing.len().saturating_sub(SHOWN) {
            0 => String::new(),
            rest => format!("; and {rest} more"),
        };
        if status.incomplete {
            let reason = "the API server does not know all rules of this account";
            report.unknown.push(format!("rights: {reason}; not among those that it knows: {some}{rest}"));
            continue;
        }
        let problem = format!("the account may not {some}{rest}: {}", purpose.consequence());
        report.found(FindingKind::Rights, "rights in the Kubernetes API", problem, REMEDY);
    }
}

// === impl Wanted ===

impl Wanted {
    fn of(config: &Config) -> Self {
        Self { policies: config.policies == PolicyMode::On, annotations: config.annotate != Annotate::Never }
    }
}

// === impl Need ===

impl Need {
    const fn of(
        group: Group,
        resources: &'static [&'static str],
        verbs: &'static [&'static str],
        purpose: Purpose,
    ) -> Self {
        Self { group, resources, verbs, purpose }
    }

    /// `get, list tiers, networkpolicies of crd.projectcalico.org`: what no rule allows.
    fn missing(&self, calico: &str, rules: &[Rule]) -> Option<String> {
        let group = match self.group {
            Group::Named(group) => group,
            Group::Calico => calico,
        };
        let name = |resource: &'static str| match (self.group, resource) {
            (Group::Calico, "ipamconfigs") if calico == NATIVE.0 => NATIVE.1,
            _ => resource,
        };
        let (mut verbs, mut resources) = (Vec::new(), Vec::new());
        for resource in self.resources.iter().map(|resource| name(resource)) {
            for verb in self.verbs {
                if !rules.iter().any(|rule| rule.allows(group, resource, verb)) {
                    verbs.push(*verb);
                    resources.push(resource);
                }
            }
        }
        // Verbs come in the order of the need for each resource.
        let verbs: Vec<&str> = self.verbs.iter().copied().filter(|verb| verbs.contains(verb)).collect();
        resources.dedup();
        let of = if group.is_empty() { String::new() } else { format!(" of {group}") };
        (!verbs.is_empty()).then(|| format!("{} {}{of}", verbs.join(", "), resources.join(", ")))
    }
}

// === impl Purpose ===

impl Purpose {
    const ALL: [Self; 6] = [
        Self::Addresses,
        Self::Policies,
        Self::StagedPolicies,
        Self::Annotations,
        Self::NodeStatus,
        Self::SignOfLife,
    ];

    fn is_wanted(self, wanted: Wanted) -> bool {
        match self {
            Self::Policies | Self::StagedPolicies => wanted.policies,
            Self::Annotations => wanted.annotations,
            Self::Addresses | Self::NodeStatus | Self::SignOfLife => true,
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Self::Addresses => "pods get no addresses, or routes do not follow the cluster",
            Self::Policies => "policies are not enforced as they are written",
            Self::StagedPolicies => "`russet flows` does not say what staged policies would do",
            Self::Annotations => "programs that read pods' annotations do not find their addresses",
            Self::NodeStatus => "the node does not say whether its network is ready",
            Self::SignOfLife => "the controller may free the addresses of this node's pods",
        }
    }
}

// === impl Rule ===

impl Rule {
    /// As RBAC decides (k8s.io/api/rbac/v1 `PolicyRule`).
    fn allows(&self, group: &str, resource: &str, verb: &str) -> bool {
        let has = |all: &[String], wanted: &str| all.iter().any(|it| it == "*" || it == wanted);
        let of_any = resource.split_once('/').map(|(_, part)| format!("*/{part}"));
        self.resource_names.is_empty()
            && has(&self.verbs, verb)
            && has(&self.api_groups, group)
            && (has(&self.resources, resource)
                || of_any.is_some_and(|of_any| self.resources.contains(&of_any)))
    }
}

#[cfg(test)]
mod tests {
    use russet_kube::testing::Server;
    use serde_json::Value;

    use super::*;

    const V1: &str = "crd.projectcalico.org/v1";
    const ALL: Wanted = Wanted { policies: true, annotations: true };
    const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kubernetes/");

    /// The rules of the agent's account in a manifest.
    fn manifest(file: &str) -> Vec<Value> {
        let text = std::fs::read(format!("{MANIFESTS}{file}")).unwrap();
        let documents = russet_kube::yaml::documents(&text).unwrap();
        let roles = documents.iter().filter(|document| {
            let is = |pointer: &str, wanted: &str| document.value.pointer(pointer) == Some(&json!(wanted));
            is("/metadata/name", "russet-agent") && (is("/kind", "ClusterRole") || is("/kind", "Role"))
        });
        roles.flat_map(|role| role.value["rules"].as_array().unwrap().clone()).collect()
    }

    fn judged(rules: &[Value], calico: &str, wanted: Wanted) -> Vec<String> {
        let status: Status = serde_json::from_value(json!({ "resourceRules": rules })).unwrap();
        let mut report = Findings::default();
        judge(&status, (calico, wanted), &mut report);
        report.findings.into_iter().map(|finding| finding.problem).collect()
    }

    #[test]
    fn the_roles_of_the_manifests_are_enough_and_a_verb_less_is_a_finding() {
        for file in ["russet.yaml", "russet-calico.yaml"] {
            let rules = manifest(file);
            assert!(rules.len() > 5, "{file}");
            for group in [V1, "projectcalico.org/v3"] {
                assert_eq!(judged(&rules, group, ALL), [""; 0], "{file}, {group}");
            }
        }
        let mut rules = manifest("russet.yaml");
        let update =
            rules.iter_mut().find(|rule| rule["verbs"] == json!(["create", "update", "delete"])).unwrap();
        update["verbs"] = json!(["create", "delete"]);
        let wanted = "the account may not update ipamblocks, blockaffinities, ipamhandles of crd.projectcalico.org: pods get no addresses, or routes do not follow the cluster";
        assert_eq!(judged(&rules, V1, ALL), [wanted]);
    }

    #[test]
    fn what_the_settings_do_not_want_is_not_asked() {
        let all = judged(&[], V1, ALL);
        assert_eq!(all.len(), Purpose::ALL.len(), "{all:#?}");
        let some = judged(&[], V1, Wanted { policies: false, annotations: false });
        assert_eq!(some.len(), Purpose::ALL.len() - 3, "{some:#?}");
        assert!(all[0].contains("; and 1 more: "), "{all:#?}");
    }

    #[test]
    fn rules_are_read_as_rbac_reads_them() {
        let rule = |groups: Value, resources: Value, verbs: Value, names: Value| -> Rule {
            let rule = json!({ "apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names });
            serde_json::from_value(rule).unwrap()
        };
        let all = rule(json!(["*"]), json!(["*"]), json!(["*"]), json!([]));
        assert!(all.allows("", "pods/status", "patch"));
        assert!(rule(json!([""]), json!(["*/status"]), json!(["patch"]), json!([])).allows(
            "",
            "pods/status",
            "patch"
        ));
        assert!(!rule(json!([""]), json!(["pods"]), json!(["*"]), json!([])).allows(
            "",
            "pods/status",
            "patch"
        ));
        assert!(!rule(json!([""]), json!(["pods"]), json!(["*"]), json!(["web"])).allows("", "pods", "get"));
        assert!(!rule(json!(["apps"]), json!(["pods"]), json!(["*"]), json!([])).allows("", "pods", "get"));
    }

    #[test]
    fn the_api_server_is_asked_and_one_that_does_not_know_all_rules_makes_no_finding() {
        let server = Server::start();
        let look = || {
            let mut report = Findings::default();
            let client = Client::new(server.source()).unwrap();
            crate::command::runtime().unwrap().block_on(look_at(&client, V1, ALL, &mut report));
            report
        };
        let report = look();
        assert!(report.findings.is_empty() && report.unknown.is_empty(), "{report:?}");
        assert!(server.seen().iter().any(|seen| seen.body.contains(HEARTBEAT_NAMESPACE)));
        let rules: Vec<Value> =
            manifest("russet.yaml").into_iter().filter(|it| it["resources"] != json!(["leases"])).collect();
        server.grant(json!({ "resourceRules": rules, "incomplete": false }));
        let report = look();
        assert!(
            matches!(&report.findings[..], [one] if one.kind == FindingKind::Rights
                && one.problem.starts_with("the account may not get, create, update leases of coordination.k8s.io: ")),
            "{report:?}"
        );
        server.grant(json!({ "resourceRules": rules, "incomplete": true }));
        let report = look();
        assert!(report.findings.is_empty() && report.unknown.len() == 1, "{report:?}");
        server.fail_next(99, 403);
        assert!(look().unknown[0].starts_with("rights: ask for the account's rules: "));
    }
}
