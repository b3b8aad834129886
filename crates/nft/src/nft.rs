//! The connection to nf_tables: commits transactions and lists objects.

use std::os::fd::AsFd as _;

use russet_addr::IfName;
use russet_netlink::wire::{Attribute, Message, MessageBuilder};
use russet_netlink::{NetlinkError, Socket};

use crate::chain::{Base, Chain, ChainInfo, ChainKind, Hook, Policy};
use crate::kernel::*;
use crate::rule::RuleInfo;
use crate::set::{Element, Set, SetInfo, decode_counted, decode_elements, decode_set};
use crate::table::{Table, TableFamily, TableInfo};
use crate::transaction::{CommitError, Transaction, nfgenmsg};
use crate::userdata;

/// nf_tables of the network namespace in which this was opened.
#[derive(Debug)]
pub struct Nft {
    socket: Socket,
}

/// The result type for reading.
type Result<T, E = NetlinkError> = std::result::Result<T, E>;

// === impl Nft ===

impl Nft {
    /// Opens nf_tables in the calling thread's network namespace.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::netfilter()? })
    }

    /// Applies the transaction atomically. An empty one does nothing.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        let batch = transaction.batch()?;
        if transaction.is_empty() {
            return Ok(());
        }
        self.socket.transact(&batch).map_err(CommitError::new)
    }

    /// The netlink port of this connection, by which a [`Monitor`](crate::Monitor) identifies its
    /// commits.
    pub fn port(&self) -> std::io::Result<u32> {
        crate::sys::port(self.socket.as_fd())
    }

    /// The generation of the ruleset: a number that changes with every commit of any program.
    pub fn generation(&mut self) -> Result<u32> {
        let operation = || "read the generation of the ruleset".to_owned();
        self.socket.get(
            operation,
            NFT_MSG_GETGEN,
            |message| {
                message.raw(&nfgenmsg(0, 0));
            },
            |message| message.attributes(NFGENMSG_BYTES).find(NFTA_GEN_ID)?.be32(),
        )
    }

    /// All tables.
    pub fn tables(&mut self) -> Result<Vec<TableInfo>> {
        self.list("list tables", NFT_MSG_GETTABLE, 0, &[], TableInfo::decode)
    }

    /// The chains of all tables.
    pub fn all_chains(&mut self) -> Result<Vec<ChainInfo>> {
        self.list("list chains", NFT_MSG_GETCHAIN, 0, &[], ChainInfo::decode)
    }

    /// The chains of a table; empty if there is no such table.
    pub fn chains(&mut self, table: &Table) -> Result<Vec<ChainInfo>> {
        let family = table.family.number();
        // The kernel filters by family only.
        let mut chains = self.list("list chains", NFT_MSG_GETCHAIN, family, &[], ChainInfo::decode)?;
        chains.retain(|info| info.chain.table == *table);
        Ok(chains)
    }

    /// Reads one chain without the others; `None` if it does not exist.
    pub fn chain(&mut self, table: &Table, name: &str) -> Result<Option<ChainInfo>> {
        let operation = || format!("read chain {table} {}", name.escape_debug());
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&nfgenmsg(table.family.number(), 0));
            message.attr_str(NFTA_CHAIN_TABLE, &table.name).attr_str(NFTA_CHAIN_NAME, name);
        };
        found(self.socket.get(operation, NFT_MSG_GETCHAIN, fill, ChainInfo::decode))
    }

    /// The sets and maps of a table; empty if there is no such table.
    pub fn sets(&mut self, table: &Table) -> Result<Vec<SetInfo>> {
        let filter = [(NFTA_SET_TABLE, table.name.as_str())];
        let family = table.family.number();
        gone_is_empty(self.list("list sets", NFT_MSG_GETSET, family, &filter, decode_set))
    }

    /// The elements of a set, with ranges joined; the set must have the type in `set`.
    pub fn elements(&mut self, set: &Set) -> Result<Vec<Element>> {
        let lists = self.members(set)?;
        Ok(decode_elements(set, lists.iter().map(Vec::as_slice)))
    }

    /// The elements of a set that has counters, and how many packets each has counted. Not for interval sets.
    pub fn counted(&mut self, set: &Set) -> Result<Vec<(Element, u64)>> {
        let lists = self.members(set)?;
        Ok(decode_counted(set, lists.iter().map(Vec::as_slice)))
    }

    /// The lists of members in the messages of a dump.
    fn members(&mut self, set: &Set) -> Result<Vec<Vec<u8>>> {
        let operation = format!("list elements of set {} {}", set.table, set.name.escape_debug());
        let filter = [
            (NFTA_SET_ELEM_LIST_TABLE, set.table.name.as_str()),
            (NFTA_SET_ELEM_LIST_SET, set.name.as_str()),
        ];
        self.list(&operation, NFT_MSG_GETSETELEM, set.table.family.number(), &filter, |message| {
            let list = message.attributes(NFGENMSG_BYTES).find(NFTA_SET_ELEM_LIST_ELEMENTS)?;
            Some(list.payload.to_vec())
        })
    }

    /// Reads the element with the key of `like` without the others; `None` if it does not exist.
    /// Not for interval sets.
    pub fn element(&mut self, set: &Set, like: &Element) -> Result<Option<Element>> {
        let operation = || format!("read an element of set {} {}", set.table, set.name.escape_debug());
        let key = Element { value: None, timeout: None, comment: None, ..like.clone() };
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&nfgenmsg(set.table.family.number(), 0));
            message
                .attr_str(NFTA_SET_ELEM_LIST_TABLE, &set.table.name)
                .attr_str(NFTA_SET_ELEM_LIST_SET, &set.name)
                .nested(NFTA_SET_ELEM_LIST_ELEMENTS, |list| key.encode(set, list));
        };
        let decode = |message: &Message<'_>| {
            let list = message.attributes(NFGENMSG_BYTES).find(NFTA_SET_ELEM_LIST_ELEMENTS)?;
            decode_elements(set, [list.payload]).pop()
        };
        found(self.socket.get(operation, NFT_MSG_GETSETELEM, fill, decode))
    }

    /// The rules of a table by chain, in order; empty if there is no such table.
    pub fn rules(&mut self, table: &Table) -> Result<Vec<RuleInfo>> {
        let filter = [(NFTA_RULE_TABLE, table.name.as_str())];
        let family = table.family.number();
        gone_is_empty(self.list("list rules", NFT_MSG_GETRULE, family, &filter, RuleInfo::decode))
    }

    /// The rules of a chain, in order; empty if there is no such chain.
    pub fn rules_of(&mut self, table: &Table, chain: &str) -> Result<Vec<RuleInfo>> {
        let filter = [(NFTA_RULE_TABLE, table.name.as_str()), (NFTA_RULE_CHAIN, chain)];
        let family = table.family.number();
        gone_is_empty(self.list("list rules", NFT_MSG_GETRULE, family, &filter, RuleInfo::decode))
    }

    /// The rules of a chain, decoded by `decode`; empty if there is no such chain.
    pub(crate) fn decoded_rules<T>(
        &mut self,
        table: &Table,
        chain: &str,
        decode: impl FnMut(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let filter = [(NFTA_RULE_TABLE, table.name.as_str()), (NFTA_RULE_CHAIN, chain)];
        gone_is_empty(self.list("list rules", NFT_MSG_GETRULE, table.family.number(), &filter, decode))
    }

    pub(crate) fn list<T>(
        &mut self,
        operation: &str,
        kind: u16,
        family: u8,
        filter: &[(u16, &str)],
        decode: impl FnMut(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.socket.dump(
            operation,
            kind,
            |message| {
                message.raw(&nfgenmsg(family, 0));
                for (kind, text) in filter {
                    message.attr_str(*kind, text);
                }
            },
            decode,
        )
    }
}

// === impl TableInfo ===

impl TableInfo {
    /// Decodes `NFT_MSG_NEWTABLE`.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let family = TableFamily::from_number(*message.payload.first()?)?;
        let attributes = message.attributes(NFGENMSG_BYTES);
        let find = |kind| attributes.find(kind);
        let flags = find(NFTA_TABLE_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
        Some(Self {
            table: Table::new(family, find(NFTA_TABLE_NAME)?.text()),
            handle: find(NFTA_TABLE_HANDLE).and_then(|handle| handle.be64()).unwrap_or(0),
            comment: find(NFTA_TABLE_USERDATA).and_then(|data| userdata::comment_of(data.payload)),
            owner: find(NFTA_TABLE_OWNER).and_then(|owner| owner.be32()),
            dormant: flags & NFT_TABLE_F_DORMANT != 0,
        })
    }
}

// === impl ChainInfo ===

impl ChainInfo {
    /// Decodes `NFT_MSG_NEWCHAIN`.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let family = TableFamily::from_number(*message.payload.first()?)?;
        let attributes = message.attributes(NFGENMSG_BYTES);
        let find = |kind| attributes.find(kind);
        let policy = find(NFTA_CHAIN_POLICY).and_then(|policy| policy.be32());
        let base = find(NFTA_CHAIN_HOOK).and_then(|hook| {
            let nest = hook.nested();
            let device = |device: Attribute<'_>| IfName::new(device.text()).ok();
            let devices = nest.find(NFTA_HOOK_DEVS).map(|list| list.nested().filter_map(device).collect());
            Some(Base {
                kind: ChainKind::from_name(&find(NFTA_CHAIN_TYPE)?.text())?,
                hook: Hook::from_number(nest.find(NFTA_HOOK_HOOKNUM)?.be32()?, family)?,
                priority: nest.find(NFTA_HOOK_PRIORITY)?.be32()?.cast_signed(),
                policy: if policy == Some(0) { Policy::Drop } else { Policy::Accept },
                devices: devices
                    .unwrap_or_else(|| nest.find(NFTA_HOOK_DEV).and_then(device).into_iter().collect()),
            })
        });
        let userdata = find(NFTA_CHAIN_USERDATA);
        let chain = Chain {
            table: Table::new(family, find(NFTA_CHAIN_TABLE)?.text()),
            name: find(NFTA_CHAIN_NAME)?.text(),
            base,
            comment: userdata.and_then(|data| userdata::comment_of(data.payload)),
        };
        Some(Self { chain, handle: find(NFTA_CHAIN_HANDLE).and_then(|handle| handle.be64()).unwrap_or(0) })
    }
}

fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn gone_is_empty<T>(result: Result<Vec<T>>) -> Result<Vec<T>> {
    match result {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(Vec::new()),
        other => other,
    }
}
