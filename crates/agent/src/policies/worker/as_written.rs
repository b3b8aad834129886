//! Policies that are not enforced as they are written: `/readyz?verbose` says which there are, because the log's lines
//! about them are long past when an operator asks.

use std::collections::BTreeMap;

use russet_verdict::ir::{PolicyId, Problem};

use crate::policies::conditions::shown;

/// Policies with problems, each with the first of them.
#[derive(Debug, Default)]
pub(super) struct PolicyProblems(BTreeMap<PolicyId, String>);

/// The subject of the remark.
pub(super) const SUBJECT: &str = "policies as written";

// === impl PolicyProblems ===

impl PolicyProblems {
    /// Takes the problems of a policy that was read.
    pub fn read<'a>(&mut self, id: &PolicyId, mut problems: impl Iterator<Item = &'a Problem>) {
        match problems.next() {
            Some(problem) => _ = self.0.insert(id.clone(), shown(problem)),
            None => _ = self.0.remove(id),
        }
    }

    /// Takes a problem that was found when decisions were made.
    pub fn found(&mut self, id: &PolicyId, problem: &Problem) {
        self.0.entry(id.clone()).or_insert_with(|| shown(problem));
    }

    /// What `/readyz?verbose` says; none if all is enforced as it is written.
    pub fn remark(&self) -> Option<String> {
        let (id, problem) = self.0.first_key_value()?;
        let others = match self.0.len() {
            1 => String::new(),
            all => format!("{} more. ", all - 1),
        };
        Some(format!("NOT ENFORCED as written: {id}: {problem}{others}`russet policy ls` has the reasons"))
    }
}

#[cfg(test)]
mod tests {
    use russet_verdict::ir::PolicyKind;

    use super::*;

    #[test]
    fn a_policy_is_named_until_it_is_read_without_a_problem() {
        let ids = ["a", "b"].map(|name| PolicyId {
            kind: PolicyKind::NetworkPolicy,
            namespace: Some("default".into()),
            name: name.into(),
        });
        let problem = Problem { path: "spec.ingress[0]".into(), text: "\u{1b}[31mx".into() };
        let mut problems = PolicyProblems::default();
        assert_eq!(problems.remark(), None);
        problems.read(&ids[0], [&problem, &problem].into_iter());
        problems.found(&ids[1], &problem);
        let remark = problems.remark().unwrap();
        assert!(
            remark.ends_with("spec.ingress[0]: [31mx. 1 more. `russet policy ls` has the reasons"),
            "{remark}"
        );
        problems.read(&ids[0], std::iter::empty());
        problems.read(&ids[1], std::iter::empty());
        assert_eq!(problems.remark(), None);
    }
}
