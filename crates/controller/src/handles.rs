//! Handles whose counts differ from the blocks: found by two looks, between which the handle was not
//! written (kubernetes.md section 3.2, G8; K87). The blocks are read before the handles, so an ADD in
//! between looks like a wrong handle in one look only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use russet_addr::BlockCidr;
use russet_model::{Handle, HandleId};
use russet_store::Revision;

use crate::verdict::Allocation;

/// A handle with wrong counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    pub revision: Revision,
    /// The blocks that hold its addresses; none if it is an orphan.
    pub held: BTreeSet<BlockCidr>,
}

/// How many addresses of each block each handle has. Names are compared without case: such handles
/// share one object.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<String, BTreeMap<BlockCidr, u64>>);

/// The sweeps of one leader.
#[derive(Debug)]
pub struct Sweeps {
    /// The time between two looks that must agree.
    pub grace: Duration,
    /// Between sweeps that found nothing.
    pub interval: Duration,
    next: Duration,
    last: Option<(Duration, BTreeMap<HandleId, Wrong>)>,
}

// === impl Held ===

impl Held {
    pub fn of(allocations: &[Allocation]) -> Self {
        let mut held = Self::default();
        for Allocation { handle, block, .. } in allocations {
            if let Some(handle) = handle {
                let counts = held.0.entry(handle.as_str().to_ascii_lowercase()).or_default();
                *counts.entry(*block).or_default() += 1;
            }
        }
        held
    }

    /// What is wrong with a handle; none if its counts are right, or a block that it names cannot be
    /// read.
    pub fn check(
        &self,
        id: &HandleId,
        handle: &Handle,
        revision: Revision,
        unread: &BTreeSet<BlockCidr>,
    ) -> Option<Wrong> {
        let none = BTreeMap::new();
        let held = self.0.get(&id.as_str().to_ascii_lowercase()).unwrap_or(&none);
        let counted: BTreeMap<BlockCidr, u64> =
            handle.blocks().map(|cidr| (cidr, handle.count(cidr))).collect();
        if counted == *held && !held.is_empty() || counted.keys().any(|cidr| unread.contains(cidr)) {
            return None;
        }
        Some(Wrong { revision, held: held.keys().copied().collect() })
    }
}

// === impl Sweeps ===

impl Sweeps {
    pub fn new(grace: Duration, interval: Duration) -> Self {
        Self { grace, interval, next: Duration::ZERO, last: None }
    }

    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// Takes a sweep's result; returns the handles that the last one found just so. The others wait.
    pub fn compare(&mut self, wrong: BTreeMap<HandleId, Wrong>, now: Duration) -> BTreeMap<HandleId, Wrong> {
        let before = match &self.last {
            Some((at, before)) if now.saturating_sub(*at) >= self.grace => before,
            _ => &BTreeMap::new(),
        };
        let agreed: BTreeMap<HandleId, Wrong> = wrong
            .iter()
            .filter(|(id, wrong)| before.get(*id) == Some(*wrong))
            .map(|(id, wrong)| (id.clone(), wrong.clone()))
            .collect();
        self.next = now + if wrong.is_empty() { self.interval } else { self.grace };
        self.last = Some((now, wrong));
        agreed
    }

    /// The handles that wait for another sweep.
    pub fn waiting(&self) -> impl Iterator<Item = (&HandleId, &Wrong)> {
        self.last.iter().flat_map(|(_, wrong)| wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> HandleId {
        HandleId::new(name).unwrap()
    }

    fn block(text: &str) -> BlockCidr {
        text.parse().unwrap()
    }

    fn held(counts: &[(&str, &str, u64)]) -> Held {
        let mut held = Held::default();
        for (handle, cidr, count) in counts {
            held.0.entry((*handle).to_owned()).or_default().insert(block(cidr), *count);
        }
        held
    }

    fn handle(counts: &[(&str, u64)]) -> Handle {
        let mut handle = Handle::default();
        counts.iter().for_each(|(cidr, count)| handle.set(block(cidr), *count));
        handle
    }

    #[test]
    fn a_handle_is_wrong_if_its_counts_are_not_those_of_the_blocks() {
        let held = held(&[("net.a", "10.0.0.0/29", 2), ("net.b", "10.0.0.0/29", 1)]);
        let none = BTreeSet::new();
        let check =
            |name: &str, counts: &[(&str, u64)]| held.check(&id(name), &handle(counts), Revision(1), &none);
        assert_eq!(check("net.a", &[("10.0.0.0/29", 2)]), None);
        assert_eq!(check("net.A", &[("10.0.0.0/29", 2)]), None, "names of objects have no case");
        assert!(check("net.a", &[("10.0.0.0/29", 1)]).is_some_and(|wrong| wrong.held.len() == 1));
        assert!(check("net.b", &[("10.0.0.0/29", 1), ("10.0.0.8/29", 1)]).is_some());
        assert!(check("net.c", &[("10.0.0.0/29", 1)]).is_some_and(|wrong| wrong.held.is_empty()));
        assert!(check("net.c", &[]).is_some(), "an ADD ended between handle and block");
        let unread = BTreeSet::from([block("10.0.0.8/29")]);
        let counts = handle(&[("10.0.0.8/29", 1)]);
        assert_eq!(held.check(&id("net.c"), &counts, Revision(1), &unread), None);
    }

    #[test]
    fn two_sweeps_must_agree_on_the_same_revision() {
        // kubernetes.md K87
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let wrong = |revision| Wrong { revision: Revision(revision), held: BTreeSet::new() };
        let found = |revision| BTreeMap::from([(id("net.a"), wrong(revision))]);
        let mut sweeps = Sweeps::new(minutes(10), minutes(60));
        assert!(sweeps.is_due(minutes(0)) && sweeps.compare(found(1), minutes(0)).is_empty());
        assert!(!sweeps.is_due(minutes(9)) && sweeps.is_due(minutes(10)));
        assert!(sweeps.compare(found(2), minutes(10)).is_empty(), "it was written in between");
        assert_eq!(sweeps.compare(found(2), minutes(20)), found(2));
        assert!(sweeps.compare(found(3), minutes(30)).is_empty());
        assert!(sweeps.compare(found(3), minutes(31)).is_empty(), "too soon");
        sweeps.compare(BTreeMap::new(), minutes(50));
        assert!(!sweeps.is_due(minutes(109)) && sweeps.is_due(minutes(110)));
    }
}
