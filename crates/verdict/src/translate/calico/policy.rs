//! NetworkPolicy, GlobalNetworkPolicy, and their staged forms.

use russet_model::Selector;

use super::rule::{Scope, rules, selector};
use super::shown_name;
use crate::ir::{Direction, Directions, HostUse, Order, Policy, PolicyId, PolicyKind, Problem, StagedAction};
use crate::translate::read::{At, Problems, policy_id};
use crate::translate::{DEFAULT_TIER, Refused, denying, labels, limited};

/// Members of every spec. `performanceHints` say how Felix should work, not what it does.
const MEMBERS: [&str; 9] = [
    "tier",
    "order",
    "selector",
    "types",
    "ingress",
    "egress",
    "serviceAccountSelector",
    "performanceHints",
    "stagedAction",
];
/// Members of policies of no namespace. They have no meaning in others.
const GLOBAL_MEMBERS: [&str; 4] = ["namespaceSelector", "doNotTrack", "preDNAT", "applyOnForward"];

/// Reads a policy of a kind other than those of Kubernetes. `kind` is enforced or staged.
pub(in crate::translate) fn policy(document: &At<'_>, kind: PolicyKind) -> Result<Policy, Refused> {
    let id = policy_id(kind, &document.metadata()?)?;
    let namespace = id.namespace.clone();
    read(document, id, namespace.as_deref())
}

/// Reads a policy whose selectors are confined to a namespace. Those of a converted policy are not:
/// they say so themselves.
pub(in crate::translate) fn read(
    document: &At<'_>,
    id: PolicyId,
    namespace: Option<&str>,
) -> Result<Policy, Refused> {
    let metadata = document.metadata()?;
    let kind = id.kind;
    let spec = document.member("spec").ok_or_else(|| document.problem_of("spec", "it is missing"))?;
    spec.object()?;
    let mut problems = Problems::default();
    let tier = spec.opt_text("tier")?.unwrap_or(DEFAULT_TIER);
    let staged = (kind != kind.enforced()).then(|| staged_action(&spec, &mut problems));
    let (ingress, egress) = directions(&spec, &mut problems);
    let mut policy = Policy {
        id,
        name: shown_name(&metadata, tier),
        tier: tier.into(),
        order: Order::LAST,
        subject: Selector::all(),
        directions: Directions { ingress, egress },
        staged,
        host_use: HostUse::Normal,
        ingress: Vec::new(),
        egress: Vec::new(),
        problems: Vec::new(),
    };
    policy.subject = subject(&spec, namespace).or_else(|problem| unreadable_subject(&policy, problem))?;
    let is_global = policy.id.namespace.is_none();
    let host_use = || if is_global { host_use(&spec) } else { Ok(HostUse::Normal) };
    match order(&spec).and_then(|order| Ok((order, host_use()?))) {
        Ok((order, host_use)) => (policy.order, policy.host_use) = (order, host_use),
        Err(problem) => return Err(Refused::instead(problem, denying(policy))),
    }
    let known = |name: &str| MEMBERS.contains(&name) || is_global && GLOBAL_MEMBERS.contains(&name);
    if let Some((_, member)) = spec.members()?.iter().find(|(name, _)| !known(name)) {
        problems.push(member.problem("this member is not known, and ignored"));
    }
    fill(&mut policy, &spec, namespace, &mut problems);
    policy.problems = problems.finish();
    Ok(limited(policy))
}

fn fill(policy: &mut Policy, spec: &At<'_>, namespace: Option<&str>, problems: &mut Problems) {
    if policy.host_use == HostUse::PreDnat && policy.directions.egress {
        problems.push(spec.problem_of("egress", "a policy before translation has no egress; it is ignored"));
        policy.directions.egress = false;
    }
    let mut read = |direction, counts: bool| match counts {
        true => rules(spec, &Scope { direction, namespace }, problems),
        false => Vec::new(),
    };
    policy.ingress = read(Direction::Ingress, policy.directions.ingress);
    policy.egress = read(Direction::Egress, policy.directions.egress);
}

/// A policy of a namespace isolates that whole namespace if its subject cannot be read. The subject
/// of another one could be the whole cluster, which is not isolated by mistake.
fn unreadable_subject(policy: &Policy, problem: Problem) -> Result<Selector, Refused> {
    let Some(subject) = policy.id.namespace.as_deref() else { return Err(problem.into()) };
    let Ok(subject) = labels::in_namespace(subject) else { return Err(problem.into()) };
    Err(Refused::instead(problem, Policy { subject, ..policy.clone() }))
}

/// The endpoints that the policy selects. In a policy of no namespace `all()` is what is in a namespace, or has a
/// service account, if it also has a selector for those: Felix puts the texts together and replaces it in all of them.
fn subject(spec: &At<'_>, namespace: Option<&str>) -> Result<Selector, Problem> {
    let refused = |error: russet_model::SelectorError| spec.problem(error.problem);
    let read = |name| selector(spec.member(name).as_ref());
    let (own, accounts) = (read("selector")?, read("serviceAccountSelector")?);
    let Some(namespace) = namespace else {
        let namespaces = read("namespaceSelector")?;
        let marker = match (&namespaces, &accounts) {
            (Some(_), _) => Some(labels::NAMESPACE),
            (None, Some(_)) => Some(labels::SERVICE_ACCOUNT),
            (None, None) => None,
        };
        let own = own.map(|selector| selector.prefixed("", marker));
        let namespaces = namespaces.map(|selector| labels::of_namespaces(&selector));
        let accounts = accounts.map(|selector| labels::of_service_accounts(&selector, true));
        return Ok(Selector::and(own.into_iter().chain(namespaces).chain(accounts)));
    };
    let of_namespace = labels::in_namespace(namespace).map_err(refused)?;
    let accounts = accounts.map(|selector| labels::of_service_accounts(&selector, false));
    Ok(Selector::and(own.into_iter().chain([of_namespace]).chain(accounts)))
}

/// A place. `calicoctl` refuses text.
fn order(spec: &At<'_>) -> Result<Order, Problem> {
    match spec.member("order") {
        None => Ok(Order::LAST),
        Some(at) => {
            at.number().map(|order| Order::new(Some(order))).ok_or_else(|| at.problem("a number is wanted"))
        }
    }
}

fn host_use(spec: &At<'_>) -> Result<HostUse, Problem> {
    match (spec.opt_flag("doNotTrack")?, spec.opt_flag("preDNAT")?, spec.opt_flag("applyOnForward")?) {
        (true, true, _) => Err(spec.problem_of("preDNAT", "it excludes doNotTrack")),
        (true, false, _) => Ok(HostUse::Untracked),
        (false, true, _) => Ok(HostUse::PreDnat),
        (false, false, true) => Ok(HostUse::Forward),
        (false, false, false) => Ok(HostUse::Normal),
    }
}

/// Ingress and egress. Missing or empty types follow from the rules that are there; types that
/// cannot be read are both.
fn directions(spec: &At<'_>, problems: &mut Problems) -> (bool, bool) {
    let Some(types) = problems.keep(spec.list("types")) else { return (true, true) };
    if types.is_empty() {
        // What is not a list counts as one with rules.
        let has = |name| spec.list(name).map_or(true, |rules| !rules.is_empty());
        return (has("ingress") || !has("egress"), has("egress"));
    }
    let (mut ingress, mut egress) = (false, false);
    for at in types {
        match at.text() {
            Ok("Ingress") => ingress = true,
            Ok("Egress") => egress = true,
            _ => {
                problems.push(at.problem("Ingress or Egress is wanted; both are meant"));
                (ingress, egress) = (true, true);
            }
        }
    }
    (ingress, egress)
}

/// What a staged policy proposes; missing is Set.
pub(in crate::translate) fn staged_action(spec: &At<'_>, problems: &mut Problems) -> StagedAction {
    match spec.opt_text("stagedAction") {
        Ok(None | Some("Set")) => StagedAction::Set,
        Ok(Some("Delete")) => StagedAction::Delete,
        Ok(Some("Learn")) => StagedAction::Learn,
        Ok(Some("Ignore")) => StagedAction::Ignore,
        _ => {
            problems.push(
                spec.problem_of("stagedAction", "Set, Delete, Learn or Ignore is wanted; it is ignored"),
            );
            StagedAction::Ignore
        }
    }
}
