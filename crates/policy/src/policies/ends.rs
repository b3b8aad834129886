//! The host ends of Calico's plugins. Such a plugin may wire a pod without asking this node's agent, so none of them
//! carries anything but the node's own packets before its pod is decided.

use std::collections::BTreeSet;
use std::time::Instant;

use russet_nft::{Element, Set, Transaction};

use super::{Policies, Result, is_drift, skeleton, words};
use crate::table_spec::elements;

// === impl Policies ===

impl Policies {
    /// The indexes of the host ends of Calico's plugins (`cali*`) that carry packets, as far as decisions let them;
    /// none while all do.
    pub const fn ends(&self) -> Option<&BTreeSet<u32>> {
        self.ends.as_ref()
    }

    /// From now on the host ends of Calico's plugins with other indexes carry nothing but what is between their pods
    /// and the node itself. Without a table nothing changes: that is for what has decided something.
    pub fn open_ends(&mut self, wanted: &BTreeSet<u32>, now: Instant) -> Result<()> {
        if self.ends.as_ref() == Some(wanted) || self.epoch.is_none() {
            return Ok(());
        }
        // Packets of a connection that is known may pass by what observes this, and not by the table.
        let observer = self.observer.take();
        observer.iter().for_each(super::EpochObserver::call);
        let done = self.try_open_ends(wanted, now);
        observer.iter().for_each(super::EpochObserver::call);
        self.observer = observer;
        done
    }

    fn try_open_ends(&mut self, wanted: &BTreeSet<u32>, now: Instant) -> Result<()> {
        let (set, none) = (skeleton::ends_set(), BTreeSet::new());
        let found = self.ends.as_ref().unwrap_or(&none);
        let elements = |from: &BTreeSet<u32>, without: &BTreeSet<u32>| -> Vec<Element> {
            from.difference(without).map(|index| skeleton::end_element(*index)).collect()
        };
        let mut transaction = Transaction::new();
        transaction
            .delete_elements(&set, &elements(found, wanted))
            .add_elements(&set, &elements(wanted, found));
        if self.ends.is_none() {
            skeleton::ends_rules().iter().for_each(|rule| _ = transaction.add_rule(rule));
        }
        match self.commit(transaction) {
            Ok(()) => self.ends = Some(wanted.clone()),
            Err(error) if is_drift(&error) => {
                self.ends = Some(wanted.clone());
                let content = std::mem::take(&mut self.content);
                self.restore(content, now)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Those that the kernel holds.
    pub(super) fn found_ends(&mut self) -> Result<Option<BTreeSet<u32>>> {
        if self.nft.rules_of(&skeleton::table(), skeleton::ENDS_CHAINS[0])?.is_empty() {
            return Ok(None);
        }
        let found = elements(&mut self.nft, &skeleton::ends_set())?.unwrap_or_default();
        Ok(Some(found.iter().filter_map(|element| words::class_id(element.key.first()?)).collect()))
    }

    /// The sets that do not depend on decisions, with their elements.
    pub(super) fn constants(&self, shape: skeleton::Shape) -> Vec<(Set, Vec<Element>)> {
        let ends = self.ends.iter().flatten().map(|index| skeleton::end_element(*index)).collect();
        let mut all = skeleton::constants(shape);
        all.push((skeleton::ends_set(), ends));
        all
    }
}
