//! What pods need of the node's nf_tables: their addresses masqueraded, their ports published. All of it is in one table, `inet russet-cni`, which is
//! nobody else's; every element says in its comment whose it is, so no file is needed to take it back, and GC can.
//!
//! Each change writes the chains anew in the same transaction: whatever somebody did to them is repaired by the next ADD.

mod changes;
mod masquerade;
mod ports;
mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_nft::{CommitError, Element, NetlinkError, Nft, Set, Table, Transaction};

pub use changes::changes;
pub use masquerade::{collect as collect_masquerade, masquerade, masqueraded, unmasquerade};

pub use ports::{
    Condition, PortRule, Publication, PublishError, collect_ports, publish, unpublish, unpublished,
};
pub use reference::{
    REFERENCE_DNAT, REFERENCE_SNAT, ReferencePorts, count_reference_ports, reference_comment,
    reference_comments, reference_containers, remove_reference_ports,
};

use crate::owner::Owner;

/// Why the table could not be changed or read.
#[derive(Debug, thiserror::Error)]
pub enum NatError {
    /// It cannot be read.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The kernel refused.
    #[error("{operation}: {source}")]
    Commit {
        /// What was to be done.
        operation: &'static str,
        /// The kernel's reason.
        source: CommitError,
    },
}

/// What one interface has in the table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labelled {
    /// Whose it is ([`Owner::label`]).
    pub label: String,
    /// The pod's addresses that it is about.
    pub addresses: BTreeSet<IpAddr>,
}

/// Tries at a change that somebody else made another one before.
const MAX_TRIES: usize = 5;

/// Our table.
pub fn table() -> Table {
    Table::inet("russet-cni")
}

/// Everything in the table that says whose it is.
pub fn labelled(nft: &mut Nft) -> Result<Vec<Labelled>, NatError> {
    let mut found: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    for (label, address) in ports::addresses(nft)?.into_iter().chain(masquerade::addresses(nft)?) {
        found.entry(label).or_default().extend(address);
    }
    Ok(found.into_iter().map(|(label, addresses)| Labelled { label, addresses }).collect())
}

/// Takes away what is labelled so.
pub fn forget_labelled(nft: &mut Nft, labels: &BTreeSet<String>) -> Result<(), NatError> {
    ports::forget(nft, labels)?;
    masquerade::forget_labelled(nft, labels)
}

/// The elements of a set that `wanted` holds for; none where there is no such set.
fn elements(nft: &mut Nft, set: &Set, wanted: &dyn Fn(&Element) -> bool) -> Result<Vec<Element>, NatError> {
    match nft.elements(set) {
        Ok(mut elements) => {
            elements.retain(|element| wanted(element));
            Ok(elements)
        }
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Commits what `make` gives after a look at what is there; once more if somebody else was faster.
fn change(
    nft: &mut Nft,
    operation: &'static str,
    make: &mut dyn FnMut(&mut Nft) -> Result<Transaction, NatError>,
) -> Result<(), NatError> {
    let mut tries = 0;
    loop {
        let transaction = make(nft)?;
        if transaction.is_empty() {
            return Ok(());
        }
        tries += 1;
        let under_way = changes::begin();
        let done = nft.commit(&transaction);
        drop(under_way);
        match done {
            Ok(()) => return Ok(()),
            Err(error)
                if tries < MAX_TRIES && (error.is_not_found() || error.is_exists() || error.is_stale()) => {}
            Err(source) => return Err(NatError::Commit { operation, source }),
        }
    }
}

/// Whose an element is, if it is said; behind a blank there may be more.
fn label(element: &Element) -> &str {
    element.comment.as_deref().unwrap_or_default().split(' ').next().unwrap_or_default()
}

/// Whether an element is one of the owner's network, and not of what is valid.
fn is_stale(element: &Element, network: &str, valid: &[Owner]) -> bool {
    label(element).starts_with(network) && !valid.iter().any(|owner| owner.label() == label(element))
}
