//! What the node's own interfaces may carry, and what its pods may send to it: table `inet russet-hosts`.
//!
//! The table exists only where a host endpoint names the node, or where pods may not reach it, apart
//! from that of decisions about pods: nothing about these changes with it. Its rules never change with
//! policies. A change is one transaction that turns interfaces to other states, with one before it that
//! adds these states and one behind it that removes those that are not reached any more. It is three where
//! interfaces come under policies, or do not any more ([`content::Steps`]). The failsafe ports are in the
//! first transaction, so that the node is never cut off.
//!
//! The caller computes the table ([`russet_verdict`]).

mod content;
mod skeleton;

use std::collections::BTreeSet;

use russet_nft::{CommitError, Nft, Transaction};
use russet_verdict::hosts::HostTable;

use crate::error::PolicyError;
use crate::packets::wait_until_judged;
use crate::ruleset;
use crate::table_spec::{Fault, elements, replace};
use crate::verdicts::next_generation;
use content::{Changes, Elements, Steps};
use skeleton::{HOSTS_TABLE, Place, Shape};

pub use skeleton::table as hosts_table;
pub(crate) use skeleton::{DENYING, logged};

/// The table of host endpoints of one network namespace, in the kernel.
#[derive(Debug)]
pub struct Hosts {
    nft: Nft,
    priority_by_tos: bool,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostReport {
    /// A missing or different part of table, chains, sets or rules; none if there was none.
    pub structure: Option<String>,
    /// The elements that were added and removed.
    pub elements: usize,
}

/// Attempts at a change that other programs' commits overtake.
const MAX_TRIES: usize = 5;

type Result<T, E = PolicyError> = std::result::Result<T, E>;

// === impl Hosts ===

impl Hosts {
    /// Opens nf_tables in the calling thread's network namespace; changes nothing.
    pub fn open() -> Result<Self> {
        Ok(Self { nft: Nft::open()?, priority_by_tos: crate::priority::is_by_tos() })
    }

    /// Makes the kernel hold exactly `wanted`; writes nothing if it does. `tunnels` are the UDP ports of the
    /// node's tunnels, which pass whatever policies say. After a failure the kernel holds what it held
    /// before, besides states to which nothing leads.
    pub fn apply(&mut self, wanted: &HostTable, tunnels: &BTreeSet<u16>) -> Result<HostReport> {
        let shape = Shape {
            priority_by_tos: self.priority_by_tos,
            tunnels: tunnels.iter().copied().collect(),
            endpoint_to_host: wanted.endpoint_to_host,
            failsafe: wanted.failsafe.clone(),
        };
        let wanted = content::elements(wanted);
        let (mut tries, mut in_steps) = (0, true);
        loop {
            tries += 1;
            match self.try_apply(&wanted, &shape, in_steps) {
                Err(PolicyError::Commit { source, .. }) if tries < MAX_TRIES && source.is_stale() => {}
                // Ranges of a number that meant something else overlap the new ones: they go first.
                Err(PolicyError::Commit { source, .. }) if in_steps && source.is_exists() => in_steps = false,
                other => return other.map_err(|error| self.explained(error)),
            }
        }
    }

    /// Removes the table; nothing is guarded then. Returns whether there was one.
    pub fn withdraw(&mut self) -> Result<bool> {
        let table = hosts_table();
        if !self.nft.tables()?.iter().any(|info| info.table == table) {
            return Ok(false);
        }
        let done = self.nft.commit(Transaction::new().destroy_table(&table));
        done.map(|()| true).map_err(|source| failed("delete", source))
    }

    fn try_apply(&mut self, wanted: &Elements, shape: &Shape, in_steps: bool) -> Result<HostReport> {
        let mut generation = self.nft.generation()?;
        let mut structure = Transaction::new();
        let fault = skeleton::spec(shape).repair(&mut self.nft, &mut structure)?;
        let is_anew = matches!(fault, Some(Fault::Wrong(_)));
        for (set, wanted) in skeleton::constants(shape) {
            let found = if is_anew { None } else { elements(&mut self.nft, &set)? };
            replace(&mut structure, &set, &found.unwrap_or_default(), &wanted);
        }
        let mut found = Elements::new();
        for place in Place::each().into_iter().filter(|_| !is_anew) {
            found.insert(place, elements(&mut self.nft, &place.set())?.unwrap_or_default());
        }
        let steps = Steps::between(&found, wanted);
        let transactions = if fault.is_some() || !in_steps {
            steps.write(&mut structure);
            vec![(structure, false)]
        } else {
            steps.new.write(&mut structure);
            let [first, others, last] = &steps.turn;
            let transaction = |changes: &Changes, waits| {
                let mut transaction = Transaction::new();
                changes.write(&mut transaction);
                (transaction, waits)
            };
            // Nothing leads to new states before the first turn.
            let turn = transaction(first, false);
            let behind = [others, last, &steps.old].map(|changes| transaction(changes, true));
            [(structure, false), turn].into_iter().chain(behind).collect()
        };
        for (mut transaction, waits) in transactions.into_iter().filter(|(it, _)| !it.is_empty()) {
            if waits {
                wait_until_judged();
            }
            let done = self.nft.commit(transaction.only_at(generation));
            done.map_err(|source| failed("change", source))?;
            generation = next_generation(generation);
        }
        let structure = fault.map(|(Fault::Partial(text) | Fault::Wrong(text))| text);
        Ok(HostReport { structure, elements: steps.len() })
    }

    /// The reason of a failure that the kernel's error does not tell.
    fn explained(&mut self, error: PolicyError) -> PolicyError {
        match &error {
            PolicyError::Commit { source, .. }
                if source.is_not_found() && ruleset::lacks_fib(&mut self.nft) =>
            {
                PolicyError::Unsupported("host endpoints need CONFIG_NFT_FIB_INET, which this kernel lacks")
            }
            _ => error,
        }
    }
}

fn failed(verb: &str, source: CommitError) -> PolicyError {
    PolicyError::Commit { operation: format!("{verb} table {HOSTS_TABLE}"), source }
}
