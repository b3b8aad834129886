//! The conditions for attaching pods, as reported by `/readyz`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use russet_http::health::Ready;
use russet_linux::conntrack;
use russet_plugins::NotReady;

/// A condition for attaching pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The datastore answered.
    Store,
    /// This node is registered with its addresses.
    Node,
    /// Routes and tunnels were programmed completely at least once.
    Programmed,
    /// Every pod's interface has a verdict, and interfaces without one carry no packets.
    Verdicts,
    /// The interface to the other nodes is up and has an address, and foreign rules accept the
    /// tunnels' packets.
    Underlay,
    /// OpenShift's data path is in force. Only where the agent serves OpenShift's plugin.
    Openshift,
    /// The kernel judges what bridges carry for pods that policies are about. Only where it did not at some time. Pods can be
    /// attached without this.
    Policies,
    /// At least one of the other nodes that are probed answers through the data path. Only where the settings make that a
    /// condition. Pods can be attached without this.
    Peers,
    /// Packets of known flows take the fast path. Only where the settings require it.
    FastPath,
    /// Health and metrics are served as configured. Pods can be attached without this.
    Health,
}

/// The state of every condition. Clones share it.
#[derive(Debug, Clone)]
pub struct Readiness {
    reasons: Arc<Mutex<BTreeMap<Condition, Option<String>>>>,
    notes: Arc<Mutex<Vec<String>>>,
    /// Remarks that change, by subject.
    remarks: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

// === impl Condition ===

impl Condition {
    pub(crate) const ALL: [Condition; 5] =
        [Condition::Store, Condition::Node, Condition::Programmed, Condition::Verdicts, Condition::Underlay];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Node => "node",
            Self::Programmed => "programmed",
            Self::Verdicts => "verdicts",
            Self::Underlay => "underlay",
            Self::Openshift => "openshift",
            Self::Policies => "policies",
            Self::Peers => "peers",
            Self::FastPath => "fast_path",
            Self::Health => "health",
        }
    }

    /// Whether plugin `russet` cannot attach pods without it. The OpenShift server answers STATUS
    /// of its own plugin.
    fn is_needed_by_pods(self) -> bool {
        !matches!(self, Self::Openshift | Self::Policies | Self::Peers | Self::Health)
    }
}

// === impl Readiness ===

impl Readiness {
    /// The state at start. No condition is met except `Health`, whose problems are known at once.
    pub fn pending() -> Self {
        let pending = |condition| (condition, Some(PENDING.to_owned()));
        let mut reasons = BTreeMap::from(Condition::ALL.map(pending));
        reasons.insert(Condition::Health, None);
        Self { reasons: Arc::new(Mutex::new(reasons)), notes: Arc::default(), remarks: Arc::default() }
    }

    /// Every condition and whether it is met.
    pub fn conditions(&self) -> Vec<(&'static str, bool)> {
        self.reasons().into_iter().map(|(name, reason)| (name, reason.is_none())).collect()
    }

    /// Every condition with the reason why it is not met.
    pub fn reasons(&self) -> Vec<(&'static str, Option<String>)> {
        self.lock().iter().map(|(condition, reason)| (condition.name(), reason.clone())).collect()
    }

    /// The remarks that do not affect readiness.
    pub fn remarks(&self) -> Vec<String> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = remarks.iter().map(|(subject, remark)| format!("{subject}: {remark}"));
        notes.into_iter().chain(shown).collect()
    }

    /// Marks a condition as met. True if it was not met before.
    pub fn met(&self, condition: Condition) -> bool {
        self.lock().insert(condition, None).flatten().is_some()
    }

    /// Marks a condition as not met. True if the condition or its reason changed.
    pub fn unmet(&self, condition: Condition, reason: impl ToString) -> bool {
        let reason = Some(reason.to_string());
        self.lock().insert(condition, reason.clone()).flatten() != reason
    }

    pub fn is_unmet(&self, condition: Condition) -> bool {
        self.lock().get(&condition).is_some_and(Option::is_some)
    }

    /// Why a condition is not met. None also before it was checked.
    pub fn failure(&self, condition: Condition) -> Option<String> {
        self.lock().get(&condition).cloned().flatten().filter(|reason| reason != PENDING)
    }

    /// Adds a remark for `/readyz?verbose` that does not affect readiness.
    pub fn note(&self, text: impl Into<String>) {
        let (text, mut notes) = (text.into(), self.notes.lock().unwrap_or_else(PoisonError::into_inner));
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Sets the remark about `subject`, or removes it. True if that is a change.
    pub fn remark(&self, subject: &'static str, text: Option<String>) -> bool {
        let mut remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        match text {
            Some(text) => remarks.insert(subject, text.clone()) != Some(text),
            None => remarks.remove(subject).is_some(),
        }
    }

    /// The first condition that is not met, with its reason. None if all are met.
    pub fn reason(&self) -> Option<String> {
        self.first_unmet(|_| true)
    }

    fn first_unmet(&self, counts: impl Fn(Condition) -> bool) -> Option<String> {
        let unmet = |(condition, reason): (&Condition, &Option<String>)| {
            reason.as_ref().map(|reason| format!("{}: {reason}", condition.name()))
        };
        self.lock().iter().filter(|(condition, _)| counts(**condition)).find_map(unmet)
    }

    /// The same for STATUS of plugins. Existing pods are affected by a condition that failed, but
    /// not by one that is merely pending: the data path that an earlier agent left still works.
    pub fn not_ready(&self, pods: bool) -> Option<NotReady> {
        let reason = self.first_unmet(Condition::is_needed_by_pods)?;
        let needed = |(condition, reason): (&Condition, &Option<String>)| {
            reason.clone().filter(|_| condition.is_needed_by_pods())
        };
        let failed = self.lock().iter().filter_map(needed).any(|reason| reason != PENDING);
        Some(NotReady { reason, pods_suffer: pods && failed })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Condition, Option<String>>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verbose(&self) -> String {
        let mut text = String::new();
        for (name, reason) in self.reasons() {
            let line = match reason {
                None => format!("[+] {name}\n"),
                Some(reason) => format!("[-] {name}: {reason}\n"),
            };
            text.push_str(&line);
        }
        for remark in self.remarks() {
            text.push_str(&format!("[!] {remark}\n"));
        }
        if let Some(remark) = conntrack::connections().and_then(conntrack::nearly_full) {
            text.push_str(&format!("[!] conntrack: {remark}: raise net.netfilter.nf_conntrack_max\n"));
        }
        text
    }
}

impl Ready for Readiness {
    async fn reason(&self) -> Option<String> {
        Self::reason(self)
    }

    async fn verbose(&self) -> String {
        Self::verbose(self)
    }

    fn served(&self, problem: Option<&str>) {
        match problem {
            None => self.met(Condition::Health),
            Some(problem) => self.unmet(Condition::Health, problem),
        };
    }
}

/// The reason of a condition that was not checked yet.
const PENDING: &str = "not yet";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_condition_is_met() {
        let readiness = Readiness::pending();
        assert_eq!(readiness.reason().unwrap(), "store: not yet");
        assert!(!readiness.not_ready(true).unwrap().pods_suffer);
        for condition in Condition::ALL {
            assert!(readiness.met(condition));
        }
        assert_eq!(readiness.reason(), None);
        assert_eq!(readiness.not_ready(true), None);
        assert!(readiness.unmet(Condition::Store, "no answer"));
        assert!(!readiness.unmet(Condition::Store, "no answer"));
        assert!(
            readiness.not_ready(true).unwrap().pods_suffer
                && !readiness.not_ready(false).unwrap().pods_suffer
        );
        assert_eq!(
            readiness.verbose(),
            "[-] store: no answer\n[+] node\n[+] programmed\n[+] verdicts\n[+] underlay\n[+] health\n"
        );
        readiness.note("by the way");
        readiness.note("by the way");
        assert!(readiness.verbose().ends_with("[+] health\n[!] by the way\n"));
        assert!(readiness.remark("policy", Some("one".to_owned())));
        assert!(!readiness.remark("policy", Some("one".to_owned())));
        assert!(readiness.remark("policy", Some("two".to_owned())));
        assert!(readiness.verbose().ends_with("[!] by the way\n[!] policy: two\n"));
        assert!(readiness.remark("policy", None) && !readiness.remark("policy", None));
        assert!(readiness.verbose().ends_with("[!] by the way\n"));
    }

    #[test]
    fn a_taken_health_address_is_reported_and_pods_can_still_be_attached() {
        let readiness = Readiness::pending();
        Condition::ALL.into_iter().for_each(|condition| _ = readiness.met(condition));
        readiness.unmet(Condition::Health, "127.0.0.1:9471 is taken");
        assert_eq!(readiness.reason().unwrap(), "health: 127.0.0.1:9471 is taken");
        assert_eq!(readiness.not_ready(true), None);
        readiness.unmet(Condition::Openshift, "not yet");
        assert_eq!(readiness.not_ready(true), None);
        readiness.unmet(Condition::Store, "no answer");
        assert_eq!(readiness.not_ready(true).unwrap().reason, "store: no answer");
    }
}
