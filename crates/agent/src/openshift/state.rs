//! How the node is, for STATUS and for the log: what keeps pods from being attached, if anything does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use russet_cni_spec::CniError;

use crate::health::{Condition, Readiness};

/// What can be out of force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Device, table and ways.
    DataPath,
    /// What the store says of tenants and peers.
    Followed,
}

/// What is known.
#[derive(Debug)]
pub struct State {
    /// Everything was in force once.
    was_ready: Cell<bool>,
    /// What is not in force now, and why.
    problems: RefCell<BTreeMap<Part, String>>,
    /// Where `/readyz` reads it.
    readiness: Readiness,
}

// === impl State ===

impl State {
    /// Nothing is in force yet.
    pub fn pending(readiness: Readiness) -> Self {
        let pending = [Part::DataPath, Part::Followed].map(|part| (part, "not yet".to_owned()));
        let state = Self { was_ready: Cell::new(false), problems: RefCell::new(pending.into()), readiness };
        state.publish();
        state
    }

    /// A part is in force; true if it was not before.
    pub fn good(&self, part: Part) -> bool {
        let news = self.problems.borrow_mut().remove(&part).is_some();
        if self.is_good() {
            self.was_ready.set(true);
        }
        self.publish();
        news
    }

    /// A part is not in force; true if that, or the reason, is news.
    pub fn bad(&self, part: Part, problem: String) -> bool {
        let before = self.problems.borrow_mut().insert(part, problem.clone());
        self.publish();
        before != Some(problem)
    }

    fn publish(&self) {
        match self.problems.borrow().values().next() {
            None => self.readiness.met(Condition::Openshift),
            Some(problem) => self.readiness.unmet(Condition::Openshift, problem),
        };
    }

    /// Whether everything is in force.
    pub fn is_good(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// 50 where pods cannot be attached; 51 where besides those that are suffer.
    pub fn status(&self, attached: usize) -> Result<(), CniError> {
        let Some(problem) = self.problems.borrow().values().next().cloned() else { return Ok(()) };
        let msg = "OpenShift's data path is not in force";
        if self.was_ready.get() && attached > 0 {
            return Err(CniError::new(russet_cni_spec::code::LIMITED_CONNECTIVITY, msg, problem));
        }
        Err(CniError::not_available(msg, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_cni_spec::code;

    #[test]
    fn pods_that_suffer_make_50_to_51() {
        // cni-runtime.md section 6.2 item 62
        let readiness = Readiness::pending();
        let state = State::pending(readiness.clone());
        let shown = || readiness.conditions().into_iter().find(|(name, _)| *name == "openshift");
        assert_eq!(shown(), Some(("openshift", false)));
        let code = |attached| state.status(attached).map_err(|error| error.code);
        assert_eq!(code(3), Err(code::NOT_AVAILABLE), "it was never in force in this life");
        assert!(state.good(Part::Followed) && !state.good(Part::Followed));
        assert_eq!(code(0), Err(code::NOT_AVAILABLE));
        state.good(Part::DataPath);
        assert!(state.is_good() && code(0) == Ok(()));
        assert_eq!(shown(), Some(("openshift", true)));
        let gone = || state.bad(Part::DataPath, "vxlan-sdn is gone".to_owned());
        assert!(gone() && !gone());
        assert_eq!(code(0), Err(code::NOT_AVAILABLE));
        assert_eq!(code(1), Err(code::LIMITED_CONNECTIVITY));
        state.good(Part::DataPath);
        assert_eq!(code(1), Ok(()));
    }
}
