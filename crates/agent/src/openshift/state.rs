//! How the node is, for STATUS and for the log: what keeps pods from being attached, if anything does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use russet_cni_spec::CniError;

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
}

// === impl State ===

impl State {
    /// Nothing is in force yet.
    pub fn pending() -> Self {
        let pending = [Part::DataPath, Part::Followed].map(|part| (part, "not yet".to_owned()));
        Self { was_ready: Cell::new(false), problems: RefCell::new(pending.into()) }
    }

    /// A part is in force; true if it was not before.
    pub fn good(&self, part: Part) -> bool {
        let mut problems = self.problems.borrow_mut();
        let news = problems.remove(&part).is_some();
        if problems.is_empty() {
            self.was_ready.set(true);
        }
        news
    }

    /// A part is not in force; true if that, or the reason, is news.
    pub fn bad(&self, part: Part, problem: String) -> bool {
        let mut problems = self.problems.borrow_mut();
        problems.insert(part, problem.clone()) != Some(problem)
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
        let state = State::pending();
        let code = |attached| state.status(attached).map_err(|error| error.code);
        assert_eq!(code(3), Err(code::NOT_AVAILABLE), "it was never in force in this life");
        assert!(state.good(Part::Followed) && !state.good(Part::Followed));
        assert_eq!(code(0), Err(code::NOT_AVAILABLE));
        state.good(Part::DataPath);
        assert!(state.is_good() && code(0) == Ok(()));
        let gone = || state.bad(Part::DataPath, "vxlan-sdn is gone".to_owned());
        assert!(gone() && !gone());
        assert_eq!(code(0), Err(code::NOT_AVAILABLE));
        assert_eq!(code(1), Err(code::LIMITED_CONNECTIVITY));
        state.good(Part::DataPath);
        assert_eq!(code(1), Ok(()));
    }
}
