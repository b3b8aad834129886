//! The state of the node's OpenShift network, for STATUS and for the log: why pods cannot be
//! attached, if so.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use russet_cni_spec::CniError;

/// Takes the reason why pods cannot be attached; None once they can.
pub type Publish = Rc<dyn Fn(Option<&str>)>;

/// A part of the node's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// Device, table and routes.
    DataPath,
    /// The tenants and peers in the store.
    Followed,
}

/// The state of all parts.
pub struct NetworkState {
    /// Everything was in force once.
    was_ready: Cell<bool>,
    /// The parts that are not in force, and why.
    problems: RefCell<BTreeMap<Component, String>>,
    publish: Publish,
}

// === impl Component ===

impl Component {
    /// For logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DataPath => "device, table and routes",
            Self::Followed => "tenants and peers",
        }
    }
}

// === impl NetworkState ===

impl NetworkState {
    /// No part is in force yet.
    pub fn pending(publish: Publish) -> Self {
        let pending = [Component::DataPath, Component::Followed].map(|part| (part, "not yet".to_owned()));
        let state = Self { was_ready: Cell::new(false), problems: RefCell::new(pending.into()), publish };
        state.publish();
        state
    }

    /// Records that a part is in force; true if it was not before.
    pub fn good(&self, part: Component) -> bool {
        let news = self.problems.borrow_mut().remove(&part).is_some();
        if self.is_good() {
            self.was_ready.set(true);
        }
        self.publish();
        news
    }

    /// Records that a part is not in force; true if that, or the reason, is new.
    pub fn bad(&self, part: Component, problem: String) -> bool {
        let before = self.problems.borrow_mut().insert(part, problem.clone());
        self.publish();
        before != Some(problem)
    }

    fn publish(&self) {
        (self.publish)(self.problems.borrow().values().next().map(String::as_str));
    }

    pub fn is_good(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// Error 50 if pods cannot be attached; 51 if attached pods are affected, too.
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
    fn affected_pods_change_error_50_to_51() {
        // cni-runtime.md section 6.2 item 62
        let published = Rc::new(Cell::new(None));
        let publish = Rc::clone(&published);
        let state =
            NetworkState::pending(Rc::new(move |problem: Option<&str>| publish.set(Some(problem.is_none()))));
        assert_eq!(published.get(), Some(false));
        let code = |attached| state.status(attached).map_err(|error| error.code);
        assert_eq!(code(3), Err(code::NOT_AVAILABLE), "it was never in force in this life");
        assert!(state.good(Component::Followed) && !state.good(Component::Followed));
        assert_eq!(code(0), Err(code::NOT_AVAILABLE));
        state.good(Component::DataPath);
        assert!(state.is_good() && code(0) == Ok(()));
        assert_eq!(published.get(), Some(true));
        let gone = || state.bad(Component::DataPath, "vxlan-sdn is gone".to_owned());
        assert!(gone() && !gone());
        assert_eq!(published.get(), Some(false));
        assert_eq!(code(0), Err(code::NOT_AVAILABLE));
        assert_eq!(code(1), Err(code::LIMITED_CONNECTIVITY));
        state.good(Component::DataPath);
        assert_eq!(code(1), Ok(()));
    }
}
