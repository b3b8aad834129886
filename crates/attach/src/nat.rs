//! The nf_tables rules of pods: masquerade of their addresses, and published ports. All of it is in
//! the table `inet russet-cni`, which only Russet uses. The comment of each element names its
//! owner, so that DEL and GC need no file to remove it.
//!
//! Each change also writes the chains again in the same transaction, so changes of other programs
//! to them are repaired by the next ADD.

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
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: CommitError,
    },
}

/// The elements of one interface in the table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labelled {
    /// The owner ([`Owner::label`]).
    pub label: String,
    /// The pod's addresses that it is about.
    pub addresses: BTreeSet<IpAddr>,
}

/// Attempts of a change, if another process commits in between.
const MAX_TRIES: usize = 5;

/// The table.
pub fn table() -> Table {
    Table::inet("russet-cni")
}

/// All elements with an owner.
pub fn labelled(nft: &mut Nft) -> Result<Vec<Labelled>, NatError> {
    let mut found: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    for (label, address) in ports::addresses(nft)?.into_iter().chain(masquerade::addresses(nft)?) {
        found.entry(label).or_default().extend(address);
    }
    Ok(found.into_iter().map(|(label, addresses)| Labelled { label, addresses }).collect())
}

/// Removes the elements with these labels.
pub fn forget_labelled(nft: &mut Nft, labels: &BTreeSet<String>) -> Result<(), NatError> {
    ports::forget(nft, labels)?;
    masquerade::forget_labelled(nft, labels)
}

/// The elements of a set that `wanted` selects; none if there is no such set.
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

/// Commits what `make` returns after reading the table; again if another process was faster.
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
        let in_progress = changes::begin();
        let done = nft.commit(&transaction);
        drop(in_progress);
        match done {
            Ok(()) => return Ok(()),
            Err(error)
                if tries < MAX_TRIES && (error.is_not_found() || error.is_exists() || error.is_stale()) => {}
            Err(source) => return Err(NatError::Commit { operation, source }),
        }
    }
}

/// The owner of an element, if it has one; more may follow after a blank.
fn label(element: &Element) -> &str {
    element.comment.as_deref().unwrap_or_default().split(' ').next().unwrap_or_default()
}

/// Whether an element belongs to an owner of the network that is not valid.
fn is_stale(element: &Element, network: &str, valid: &[Owner]) -> bool {
    label(element).starts_with(network) && !valid.iter().any(|owner| owner.label() == label(element))
}
