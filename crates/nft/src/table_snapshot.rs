//! Snapshots of tables that can be restored, for tables whose contents are recorded nowhere else.
//! The agent takes a snapshot of `inet russet-cni` after each change of its own, and restores the
//! table after a change by another program.
//!
//! A snapshot contains the kernel's messages without the attributes that only the kernel sets
//! (handles, use counts). It supports what Russet puts into tables: no timeouts, no intervals of
//! single fields, no anonymous sets, no stateful objects.

use std::collections::{BTreeMap, BTreeSet};

use russet_netlink::NetlinkError;
use russet_netlink::wire::{Message, MessageBuilder};

use crate::kernel::*;
use crate::nft::Nft;
use crate::table::Table;
use crate::transaction::Transaction;

/// A table at one moment.
#[derive(Debug, Clone)]
pub struct TableSnapshot {
    table: Table,
    /// Table, sets, chains, elements, rules, in an order in which they can be created.
    parts: Vec<Part>,
    /// The same contents in a form that is independent of the order of the kernel's lists.
    facts: BTreeSet<Vec<u8>>,
}

/// One message of a list.
#[derive(Debug, Clone)]
struct Part {
    kind: u16,
    /// Kind and payload of each attribute.
    attributes: Vec<(u16, Vec<u8>)>,
}

/// The lists that are read, and which attributes of their messages are kept.
const LISTS: [(&str, u16, u16, &[u16]); 3] = [
    (
        "list tables",
        NFT_MSG_GETTABLE,
        NFT_MSG_NEWTABLE,
        &[NFTA_TABLE_NAME, NFTA_TABLE_FLAGS, NFTA_TABLE_USERDATA],
    ),
    (
        "list sets",
        NFT_MSG_GETSET,
        NFT_MSG_NEWSET,
        &[
            NFTA_SET_TABLE,
            NFTA_SET_NAME,
            NFTA_SET_FLAGS,
            NFTA_SET_KEY_TYPE,
            NFTA_SET_KEY_LEN,
            NFTA_SET_DATA_TYPE,
            NFTA_SET_DATA_LEN,
            NFTA_SET_DESC,
            NFTA_SET_USERDATA,
        ],
    ),
    (
        "list chains",
        NFT_MSG_GETCHAIN,
        NFT_MSG_NEWCHAIN,
        &[
            NFTA_CHAIN_TABLE,
            NFTA_CHAIN_NAME,
            NFTA_CHAIN_HOOK,
            NFTA_CHAIN_POLICY,
            NFTA_CHAIN_TYPE,
            NFTA_CHAIN_USERDATA,
        ],
    ),
];
const OF_ELEMENTS: &[u16] = &[NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_ELEMENTS];
const OF_RULES: &[u16] = &[NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_USERDATA];
/// In all messages the first attribute is the table's name.
const TABLE_NAME: u16 = NFTA_TABLE_NAME;
/// The attribute with the name of the set, the chain, or the rule's chain.
const SET_NAME: u16 = NFTA_SET_NAME;
/// Attempts at a snapshot that concurrent commits invalidate.
const MAX_TRIES: usize = 8;

// === impl Nft ===

impl Nft {
    /// A snapshot of a table; `None` if it does not exist.
    pub fn snapshot(&mut self, table: &Table) -> Result<Option<TableSnapshot>, NetlinkError> {
        let mut tries = 0;
        loop {
            let before = self.generation()?;
            let taken = self.take(table);
            tries += 1;
            if tries == MAX_TRIES || self.generation()? == before {
                return taken.map(|parts| parts.map(|parts| TableSnapshot::new(table, parts)));
            }
        }
    }

    fn take(&mut self, table: &Table) -> Result<Option<Vec<Part>>, NetlinkError> {
        let mut parts = Vec::new();
        for (operation, get, new, kept) in LISTS {
            parts.extend(self.parts(operation, get, new, kept, table, None)?);
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let sets = parts.iter().filter(|part| part.kind == NFT_MSG_NEWSET);
        let names: Vec<String> = sets.filter_map(|part| part.text(SET_NAME)).collect();
        for set in names {
            let (get, new) = (NFT_MSG_GETSETELEM, NFT_MSG_NEWSETELEM);
            parts.extend(self.parts("list elements", get, new, OF_ELEMENTS, table, Some(&set))?);
        }
        let (get, new) = (NFT_MSG_GETRULE, NFT_MSG_NEWRULE);
        parts.extend(self.parts("list rules", get, new, OF_RULES, table, None)?);
        Ok(Some(parts))
    }

    fn parts(
        &mut self,
        operation: &str,
        get: u16,
        new: u16,
        kept: &[u16],
        table: &Table,
        set: Option<&str>,
    ) -> Result<Vec<Part>, NetlinkError> {
        let family = table.family.number();
        let filter: Vec<(u16, &str)> = match (get, set) {
            // The kernel lists these for a whole family.
            (NFT_MSG_GETTABLE | NFT_MSG_GETCHAIN, _) => Vec::new(),
            (_, Some(set)) => vec![(TABLE_NAME, &table.name), (NFTA_SET_ELEM_LIST_SET, set)],
            (_, None) => vec![(TABLE_NAME, &table.name)],
        };
        let of_table = |message: &Message<'_>| {
            let ours = message.kind == new && message.payload.first() == Some(&family);
            Part::decode(message, kept)
                .filter(|part| ours && part.text(TABLE_NAME) == Some(table.name.clone()))
        };
        match self.list(operation, get, family, &filter, of_table) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            parts => parts,
        }
    }
}

// === impl Part ===

impl Part {
    fn decode(message: &Message<'_>, kept: &[u16]) -> Option<Self> {
        let all = message.attributes(NFGENMSG_BYTES);
        let attributes = all.filter(|it| kept.contains(&it.kind)).map(|it| (it.kind, it.payload.to_vec()));
        let attributes: Vec<_> = attributes.collect();
        (!attributes.is_empty()).then_some(Self { kind: message.kind, attributes })
    }

    fn payload(&self, kind: u16) -> Option<&[u8]> {
        self.attributes.iter().find(|(it, _)| *it == kind).map(|(_, payload)| payload.as_slice())
    }

    fn text(&self, kind: u16) -> Option<String> {
        let bytes = self.payload(kind)?;
        let text = bytes.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// Which attributes contain nested attributes.
    fn is_nest(&self, kind: u16) -> bool {
        match self.kind {
            NFT_MSG_NEWCHAIN => kind == NFTA_CHAIN_HOOK,
            NFT_MSG_NEWSET => kind == NFTA_SET_DESC,
            NFT_MSG_NEWSETELEM => kind == NFTA_SET_ELEM_LIST_ELEMENTS,
            NFT_MSG_NEWRULE => kind == NFTA_RULE_EXPRESSIONS,
            _ => false,
        }
    }

    fn encode(&self, message: &mut MessageBuilder<'_>) {
        for (kind, payload) in &self.attributes {
            if self.is_nest(*kind) {
                message.nested(*kind, |inside| _ = inside.raw(payload));
            } else {
                message.attr(*kind, payload);
            }
        }
    }

    fn fact(&self, without: Option<u16>, behind: &[u8]) -> Vec<u8> {
        let mut fact = self.kind.to_be_bytes().to_vec();
        for (kind, payload) in self.attributes.iter().filter(|(kind, _)| Some(*kind) != without) {
            fact.extend_from_slice(&kind.to_be_bytes());
            fact.extend_from_slice(&(payload.len() as u64).to_be_bytes());
            fact.extend_from_slice(payload);
        }
        fact.extend_from_slice(behind);
        fact
    }
}

// === impl TableSnapshot ===

impl TableSnapshot {
    fn new(table: &Table, parts: Vec<Part>) -> Self {
        let mut facts = BTreeSet::new();
        // Rules are ordered within their chain, elements are not.
        let mut places: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for part in &parts {
            match part.kind {
                NFT_MSG_NEWSETELEM => {
                    let list = part.payload(NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
                    let elements = russet_netlink::wire::Attributes::new(list);
                    facts.extend(elements.map(|it| part.fact(Some(NFTA_SET_ELEM_LIST_ELEMENTS), it.payload)));
                }
                NFT_MSG_NEWRULE => {
                    let chain = part.payload(NFTA_RULE_CHAIN).unwrap_or_default().to_vec();
                    let place = places.entry(chain).or_default();
                    facts.insert(part.fact(None, &place.to_be_bytes()));
                    *place += 1;
                }
                _ => _ = facts.insert(part.fact(None, &[])),
            }
        }
        Self { table: table.clone(), parts, facts }
    }

    /// The table of the snapshot.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The number of chains, sets, elements and rules that are in only one of the two.
    pub fn differs_from(&self, other: Option<&Self>) -> usize {
        match other {
            Some(other) => self.facts.symmetric_difference(&other.facts).count(),
            None => self.facts.len(),
        }
    }
}

// === impl Transaction ===

impl Transaction {
    /// Restores a table from a snapshot, replacing an existing one.
    pub fn restore(&mut self, snapshot: &TableSnapshot) -> &mut Self {
        self.destroy_table(&snapshot.table);
        for part in &snapshot.parts {
            let id = self.next_set_id();
            self.push(&snapshot.table, part.kind, NLM_F_CREATE | append(part.kind), |message| {
                part.encode(message);
                if part.kind == NFT_MSG_NEWSET {
                    message.attr_be32(NFTA_SET_ID, id);
                }
            });
        }
        self
    }
}

/// Rules are appended in order.
const fn append(kind: u16) -> u16 {
    if kind == NFT_MSG_NEWRULE { NLM_F_APPEND } else { 0 }
}
