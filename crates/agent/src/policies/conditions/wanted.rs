//! What the condition of a policy should say: a function of the object and of this program's version alone, so that all agents of a version
//! agree, and none undoes what another has written.

use std::time::SystemTime;

use russet_model::time;
use russet_verdict::ir::Problem;
use russet_verdict::translate::Translator;
use russet_verdict::world::Update;
use serde_json::{Value, json};

use super::Kind;

/// How much of a policy is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Extent {
    Whole,
    /// These parts are closed.
    Parts(Vec<Problem>),
    /// The pods that it selects are closed.
    Denied(Problem),
    /// Whom it selects cannot be read.
    Nothing(Problem),
}

/// The three numbers of a version.
type Version = [u64; 3];

/// The type of the condition.
const TYPE: &str = "russet.dev/Enforced";
/// Limit of the message, most of which is of the policy's author. The API's own limit is 32 KiB, which the watch of each node would receive.
const MESSAGE_MAX_BYTES: usize = 1024;
/// Limit of one problem in it.
const PROBLEM_MAX_BYTES: usize = 300;
/// Room for the number of problems that the message leaves out.
const MORE_MAX_BYTES: usize = 64;
/// What comes before the version at the end of the message.
const SIGNATURE: &str = " (Russet ";

const ENFORCED: &str = "All of this policy is enforced as it is written";
const PARTS: &str = "Denied instead: a rule that accepts allows nothing where it has such a part, and any other rule with one denies everything in its direction. Change or remove what is named here";
const DENIED: &str = "The policy cannot be read: its last form that could be read stays in force, and where there is none, everything is denied to and from the pods that it selects. Correct what is named here";
const NOTHING: &str = "It cannot be read which pods the policy selects: its last form that could be read stays in force, and where there is none, nothing of it is. Correct what is named here";

/// The conditions that the policy should have; none if it has them. A policy that never had a problem gets no condition.
pub fn conditions(policy: &Value, version: &str, now: SystemTime) -> Option<Vec<Value>> {
    let is_deleted = policy.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
    if is_deleted {
        return None;
    }
    let all = policy.pointer("/status/conditions").and_then(Value::as_array);
    let place = all.and_then(|all| all.iter().position(|condition| text(condition, "type") == TYPE));
    let current = all.zip(place).and_then(|(all, place)| all.get(place));
    let generation = policy.pointer("/metadata/generation").and_then(Value::as_u64).unwrap_or_default();
    let extent = Extent::of(policy);
    let has_said = match current {
        None => extent == Extent::Whole,
        Some(current) => {
            extent.is_in(current, version, generation) || is_of_newer(current, version, generation)
        }
    };
    if has_said {
        return None;
    }
    let condition = extent.condition(current, version, generation, now);
    let mut all = all.cloned().unwrap_or_default();
    match place.and_then(|place| all.get_mut(place)) {
        Some(own) => *own = condition,
        None => all.push(condition),
    }
    Some(all)
}

/// Whether a newer version of this program has written it about the same generation. During an upgrade both run, and may differ.
fn is_of_newer(condition: &Value, version: &str, generation: u64) -> bool {
    let signed = text(condition, "message").strip_suffix(')').and_then(|it| it.rsplit_once(SIGNATURE));
    let other = signed.and_then(|(_, version)| numbers(version));
    observed(condition) == Some(generation) && other > numbers(version)
}

/// None is older than all versions.
fn numbers(version: &str) -> Option<Version> {
    let released = version.split(['-', '+']).next()?;
    let numbers: Vec<u64> = released.split('.').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

fn text<'a>(condition: &'a Value, member: &str) -> &'a str {
    condition.get(member).and_then(Value::as_str).unwrap_or_default()
}

fn observed(condition: &Value) -> Option<u64> {
    condition.get("observedGeneration").and_then(Value::as_u64)
}

// === impl Extent ===

impl Extent {
    /// The policy is judged alone: equal priorities, which concern two, are enforced by name.
    fn of(policy: &Value) -> Self {
        let (version, _) = Kind::ClusterNetworkPolicies.resource();
        let document = json!({ "apiVersion": version, "kind": Kind::ClusterNetworkPolicies.name(),
            "metadata": { "name": name(policy) }, "spec": policy.get("spec") });
        let translated = Translator::default().put(&document);
        let read = translated.updates.iter().find_map(|update| match update {
            Update::Policy(_, policy) => policy.as_deref(),
            _ => None,
        });
        match (translated.problems.into_iter().next(), read) {
            (Some(problem), Some(_)) => Self::Denied(problem),
            (Some(problem), None) => Self::Nothing(problem),
            (None, Some(policy)) if !policy.problems.is_empty() => Self::Parts(policy.problems.clone()),
            (None, _) => Self::Whole,
        }
    }

    fn status(&self) -> &'static str {
        if *self == Self::Whole { "True" } else { "False" }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Whole => "Enforced",
            Self::Parts(_) => "PartlyDenied",
            Self::Denied(_) => "Denied",
            Self::Nothing(_) => "NotEnforced",
        }
    }

    fn message(&self, version: &str) -> String {
        let (problems, instead) = match self {
            Self::Whole => (&[][..], ENFORCED),
            Self::Parts(problems) => (problems.as_slice(), PARTS),
            Self::Denied(problem) => (std::slice::from_ref(problem), DENIED),
            Self::Nothing(problem) => (std::slice::from_ref(problem), NOTHING),
        };
        let instead = format!("{instead}{SIGNATURE}{version})");
        let room = MESSAGE_MAX_BYTES.saturating_sub(instead.len() + MORE_MAX_BYTES);
        let mut message = String::new();
        for (index, problem) in problems.iter().enumerate() {
            let shown = shown(problem);
            if index > 0 && message.len() + shown.len() > room {
                let left = problems.len() - index;
                message.push_str(&format!("{left} more, see russet policy show. "));
                break;
            }
            message.push_str(&shown);
        }
        message + &instead
    }

    fn is_in(&self, condition: &Value, version: &str, generation: u64) -> bool {
        text(condition, "status") == self.status()
            && text(condition, "reason") == self.reason()
            && text(condition, "message") == self.message(version)
            && observed(condition) == Some(generation)
    }

    /// The condition in the place of `current`. Its time is that of the last change of its status.
    fn condition(&self, current: Option<&Value>, version: &str, generation: u64, now: SystemTime) -> Value {
        let status = self.status();
        let since = current
            .filter(|current| text(current, "status") == status)
            .map(|current| text(current, "lastTransitionTime"))
            .filter(|since| time::parse_rfc3339(since).is_some());
        json!({ "type": TYPE, "status": status, "observedGeneration": generation,
            "lastTransitionTime": since.map_or_else(|| time::rfc3339(now), str::to_owned),
            "reason": self.reason(), "message": self.message(version) })
    }
}

/// The name of a policy.
pub fn name(policy: &Value) -> &str {
    policy.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// A problem as a sentence without what moves the cursors of terminals or turns the direction of text.
pub fn shown(problem: &Problem) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = format!("{}: {}", problem.path, problem.text);
    shown.retain(|c| !c.is_control() && !turns(c));
    let ends = shown.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| *end <= PROBLEM_MAX_BYTES).last().unwrap_or_default();
    shown.truncate(end);
    shown + ". "
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    const VERSION: &str = "1.2.3";

    fn now(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn policy(generation: u64, egress: Value) -> Value {
        json!({ "metadata": { "name": "p", "generation": generation },
            "spec": { "tier": "Admin", "priority": 10, "subject": { "namespaces": {} }, "egress": egress } })
    }

    /// One whose rule allows what Russet does not enforce.
    fn by_names(generation: u64) -> Value {
        policy(generation, json!([{ "action": "Accept", "to": [{ "domainNames": ["example.com"] }] }]))
    }

    fn enforced(generation: u64) -> Value {
        policy(generation, json!([{ "action": "Accept", "to": [{ "networks": ["192.0.2.0/24"] }] }]))
    }

    fn with(mut policy: Value, conditions: &[Value]) -> Value {
        policy["status"] = json!({ "conditions": conditions });
        policy
    }

    /// The condition in the place of these.
    fn own(policy: &Value, version: &str, seconds: u64) -> Option<Value> {
        conditions(policy, version, now(seconds))
            .map(|all| all.into_iter().find(|it| it["type"] == TYPE).unwrap())
    }

    #[test]
    fn a_policy_without_a_problem_has_no_condition_and_one_with_a_problem_says_what_happens_instead() {
        assert_eq!(conditions(&enforced(1), VERSION, now(0)), None);
        let other = json!({ "type": "example.com/Ready", "status": "True" });
        let after = json!({ "type": "Z", "status": "True" });
        let wanted =
            conditions(&with(by_names(3), &[other.clone(), after.clone()]), VERSION, now(0)).unwrap();
        assert_eq!(wanted[..2], [other, after], "conditions of others stay");
        let own = &wanted[2];
        let message = "spec.egress[0].to[0].domainNames: domainNames are not enforced. Denied instead: ";
        assert!(own["message"].as_str().unwrap().starts_with(message), "{own}");
        assert!(own["message"].as_str().unwrap().ends_with(" (Russet 1.2.3)"), "{own}");
        let expected = json!({ "type": "russet.dev/Enforced", "status": "False", "reason": "PartlyDenied",
            "observedGeneration": 3, "lastTransitionTime": "1970-01-01T00:00:00Z", "message": own["message"] });
        assert_eq!(*own, expected);
        assert_eq!(
            conditions(&with(by_names(3), &wanted), VERSION, now(9)),
            None,
            "nothing is to be written"
        );
        let mut deleted = by_names(3);
        deleted["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
        assert_eq!(conditions(&deleted, VERSION, now(9)), None);
    }

    #[test]
    fn the_time_of_the_last_transition_changes_with_the_status_only() {
        let first = own(&by_names(1), VERSION, 1).unwrap();
        let changed = own(&with(by_names(2), std::slice::from_ref(&first)), VERSION, 2).unwrap();
        assert_eq!(changed["lastTransitionTime"], first["lastTransitionTime"]);
        assert_eq!(changed["observedGeneration"], 2);
        let repaired = own(&with(enforced(3), &[changed]), VERSION, 3).unwrap();
        assert_eq!((&repaired["status"], &repaired["reason"]), (&json!("True"), &json!("Enforced")));
        assert_eq!(repaired["lastTransitionTime"], "1970-01-01T00:00:03Z");
        assert_eq!(own(&with(enforced(3), std::slice::from_ref(&repaired)), VERSION, 4), None);
        let later = own(&with(enforced(4), std::slice::from_ref(&repaired)), VERSION, 4).unwrap();
        assert_eq!(later["lastTransitionTime"], repaired["lastTransitionTime"]);
        let again = own(&with(by_names(5), &[later]), VERSION, 5).unwrap();
        assert_eq!(again["lastTransitionTime"], "1970-01-01T00:00:05Z");
        let mut odd = again;
        (odd["lastTransitionTime"], odd["message"]) = ("yesterday".into(), "".into());
        assert_eq!(
            own(&with(by_names(5), &[odd]), VERSION, 6).unwrap()["lastTransitionTime"],
            "1970-01-01T00:00:06Z"
        );
    }

    #[test]
    fn during_an_upgrade_the_newer_version_speaks_until_the_policy_changes() {
        let mut of_newer = own(&by_names(1), "1.10.0", 0).unwrap();
        of_newer["status"] = "True".into();
        assert_eq!(own(&with(by_names(1), &[of_newer.clone()]), "1.9.7", 1), None);
        assert!(own(&with(by_names(2), &[of_newer.clone()]), "1.9.7", 1).is_some(), "another generation");
        for version in ["1.10.0", "1.10.1", "2.0.0-rc.1"] {
            let written = own(&with(by_names(1), &[of_newer.clone()]), version, 1).unwrap();
            assert_eq!(written["status"], "False", "{version}");
        }
        of_newer["message"] = "edited by hand".into();
        assert!(own(&with(by_names(1), &[of_newer]), "0.0.1", 1).is_some(), "no version is older");
    }

    #[test]
    fn a_policy_that_is_denied_whole_or_ignored_says_so() {
        let condition = |change: &dyn Fn(&mut Value)| {
            let mut policy = enforced(1);
            change(&mut policy["spec"]);
            let condition = own(&policy, VERSION, 0).unwrap();
            (
                condition["reason"].as_str().unwrap().to_owned(),
                condition["message"].as_str().unwrap().to_owned(),
            )
        };
        let (reason, message) = condition(&|spec| spec["stages"] = json!(1));
        assert_eq!(reason, "Denied");
        assert!(
            message.starts_with("spec.stages: this member is not known. The policy cannot be read: "),
            "{message}"
        );
        let (reason, message) = condition(&|spec| spec["subject"] = json!({}));
        assert_eq!(reason, "NotEnforced");
        assert!(message.starts_with("spec.subject: ") && message.contains("nothing of it is"), "{message}");
        assert_eq!(condition(&|spec| *spec = Value::Null).0, "NotEnforced");
    }

    #[test]
    fn the_message_is_short_and_plain_whatever_the_policy_says() {
        let hostile = "\u{1b}[2J\n\u{202e}\u{e9}".repeat(500);
        let rule = json!({ "action": "Deny", "to": [{ hostile.as_str(): 1 }] });
        let value = json!({ "action": hostile, "to": [] });
        let rules: Vec<Value> =
            (0..500).map(|at| if at % 2 == 0 { rule.clone() } else { value.clone() }).collect();
        for count in [1, 2, 3, 500] {
            let condition = own(&policy(1, json!(rules[..count])), VERSION, 0).unwrap();
            let message = condition["message"].as_str().unwrap();
            assert!(message.len() <= MESSAGE_MAX_BYTES, "{}", message.len());
            assert!(!message.chars().any(|c| c.is_control() || c == '\u{202e}'), "{message:?}");
            assert!(
                message.contains("Denied instead: ") && message.ends_with(" (Russet 1.2.3)"),
                "{message}"
            );
            assert_eq!(message.contains(" more, see russet policy show. "), count == 500, "{message}");
        }
    }
}
