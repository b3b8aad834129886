//! Transactions: changes that the kernel applies atomically.

mod describe;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use describe::describe as describe_for_test;

use russet_netlink::wire::{MessageBuilder, Messages};
use russet_netlink::{Batch, BatchError, NetlinkError};

use crate::chain::{Chain, Policy};
use crate::kernel::*;
use crate::rule::Rule;
use crate::set::{Element, Set};
use crate::table::Table;
use crate::userdata::{self, COMMENT_MAX_BYTES};

/// A list of encoded changes; nothing is sent before [`Nft::commit`](crate::Nft::commit).
#[derive(Debug, Clone)]
pub struct Transaction {
    requests: Batch,
    /// The first change that cannot be encoded, and why.
    invalid: Option<(usize, &'static str)>,
    sets: u32,
    generation: Option<u32>,
}

/// The error of a transaction that changed nothing, unless
/// [`outcome_unknown`](Self::outcome_unknown) is true.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CommitError {
    /// The refused change, counted from 0; `None` if the transaction was refused as a whole.
    pub index: Option<usize>,
    /// The error.
    #[source]
    pub error: NetlinkError,
}

/// Attributes have 16-bit lengths, and a list of elements is one attribute.
const ELEMENTS_MAX_BYTES: usize = 48 << 10;
/// The most elements in a message; more would not be faster (dataplane.md section 3.3).
const ELEMENTS_MAX: usize = 400;
/// The kernel's limit for names (`NFT_NAME_MAXLEN` without the NUL).
const NAME_MAX_BYTES: usize = 255;

// === impl Transaction ===

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        Self { requests: Batch::describing(describe::describe), invalid: None, sets: 0, generation: None }
    }

    /// Makes the commit fail unless the ruleset still has this generation.
    pub fn only_at(&mut self, generation: u32) -> &mut Self {
        self.generation = Some(generation);
        self
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Creates a table if it does not exist.
    pub fn add_table(&mut self, table: &Table) -> &mut Self {
        self.new_table(table, 0, None)
    }

    /// [`add_table`](Self::add_table) with a comment of at most 127 bytes.
    pub fn add_table_with_comment(&mut self, table: &Table, comment: &str) -> &mut Self {
        self.new_table(table, 0, Some(comment))
    }

    /// Creates a table that belongs to the socket which commits this: other processes cannot change
    /// it, and it is deleted with the socket.
    pub fn add_owned_table(&mut self, table: &Table) -> &mut Self {
        self.new_table(table, NFT_TABLE_F_OWNER, None)
    }

    /// Deletes a table with its contents; fails if it does not exist.
    pub fn delete_table(&mut self, table: &Table) -> &mut Self {
        self.push(table, NFT_MSG_DELTABLE, 0, |message| {
            message.attr_str(NFTA_TABLE_NAME, &table.name);
        })
    }

    /// Deletes a table with its contents, if it exists. (The kernel's own operation for that came
    /// with 6.3; creating the table first works on all kernels.)
    pub fn destroy_table(&mut self, table: &Table) -> &mut Self {
        self.add_table(table).delete_table(table)
    }

    /// Deletes all rules of a table; sets and chains stay.
    pub fn flush_table(&mut self, table: &Table) -> &mut Self {
        self.push(table, NFT_MSG_DELRULE, 0, |message| {
            message.attr_str(NFTA_RULE_TABLE, &table.name);
        })
    }

    /// Creates a chain if it does not exist; sets the policy of a base chain.
    pub fn add_chain(&mut self, chain: &Chain) -> &mut Self {
        self.check_name(&chain.name);
        self.check_comment(chain.comment.as_deref());
        let hook = chain.base.as_ref().map(|base| base.hook.number(chain.table.family));
        if hook == Some(None) {
            self.refuse("the family has no such hook");
        }
        self.push(&chain.table, NFT_MSG_NEWCHAIN, NLM_F_CREATE, |message| {
            message.attr_str(NFTA_CHAIN_TABLE, &chain.table.name).attr_str(NFTA_CHAIN_NAME, &chain.name);
            if let (Some(base), Some(Some(hook))) = (&chain.base, hook) {
                encode_hook(message, base, hook);
            }
            if let Some(text) = &chain.comment {
                message.attr(NFTA_CHAIN_USERDATA, &userdata::comment(text));
            }
        })
    }

    /// Deletes a chain and its rules; no rule may jump to it.
    pub fn delete_chain(&mut self, table: &Table, chain: &str) -> &mut Self {
        self.flush_chain(table, chain).push(table, NFT_MSG_DELCHAIN, 0, |message| {
            message.attr_str(NFTA_CHAIN_TABLE, &table.name).attr_str(NFTA_CHAIN_NAME, chain);
        })
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) -> &mut Self {
        self.push(table, NFT_MSG_DELRULE, 0, |message| {
            message.attr_str(NFTA_RULE_TABLE, &table.name).attr_str(NFTA_RULE_CHAIN, chain);
        })
    }

    /// Creates a set or map if it does not exist; fails if one with another type exists.
    pub fn add_set(&mut self, set: &Set) -> &mut Self {
        self.check_name(&set.name);
        self.check_comment(set.comment.as_deref());
        if let Some(reason) = set.fault() {
            self.refuse(reason);
        }
        let id = self.next_set_id();
        self.push(&set.table, NFT_MSG_NEWSET, NLM_F_CREATE, |message| set.encode(message, id))
    }

    /// Deletes a set; no rule may refer to it.
    pub fn delete_set(&mut self, table: &Table, set: &str) -> &mut Self {
        self.push(table, NFT_MSG_DELSET, 0, |message| {
            message.attr_str(NFTA_SET_TABLE, &table.name).attr_str(NFTA_SET_NAME, set);
        })
    }

    /// Deletes all elements of a set.
    pub fn flush_set(&mut self, table: &Table, set: &str) -> &mut Self {
        self.push(table, NFT_MSG_DELSETELEM, 0, |message| {
            message.attr_str(NFTA_SET_ELEM_LIST_TABLE, &table.name).attr_str(NFTA_SET_ELEM_LIST_SET, set);
        })
    }

    /// Adds elements; existing equal elements stay, and different ones make the transaction fail.
    pub fn add_elements(&mut self, set: &Set, elements: &[Element]) -> &mut Self {
        self.elements(set, elements, NFT_MSG_NEWSETELEM, NLM_F_CREATE)
    }

    /// Deletes elements; fails if one does not exist.
    pub fn delete_elements(&mut self, set: &Set, elements: &[Element]) -> &mut Self {
        self.elements(set, elements, NFT_MSG_DELSETELEM, 0)
    }

    /// Adds a rule at the end of its chain.
    pub fn add_rule(&mut self, rule: &Rule) -> &mut Self {
        self.rule(rule, NLM_F_CREATE | NLM_F_APPEND, None)
    }

    /// Adds a rule at the beginning of its chain.
    pub fn insert_rule(&mut self, rule: &Rule) -> &mut Self {
        self.rule(rule, NLM_F_CREATE, None)
    }

    /// Adds a rule before the one with this handle.
    pub fn insert_rule_before(&mut self, handle: u64, rule: &Rule) -> &mut Self {
        self.rule(rule, NLM_F_CREATE, Some((NFTA_RULE_POSITION, handle)))
    }

    /// Adds a rule after the one with this handle.
    pub fn add_rule_after(&mut self, handle: u64, rule: &Rule) -> &mut Self {
        self.rule(rule, NLM_F_CREATE | NLM_F_APPEND, Some((NFTA_RULE_POSITION, handle)))
    }

    /// Replaces the rule with this handle.
    pub fn replace_rule(&mut self, handle: u64, rule: &Rule) -> &mut Self {
        self.rule(rule, NLM_F_REPLACE, Some((NFTA_RULE_HANDLE, handle)))
    }

    /// Deletes the rule with this handle.
    pub fn delete_rule(&mut self, table: &Table, chain: &str, handle: u64) -> &mut Self {
        self.push(table, NFT_MSG_DELRULE, 0, |message| {
            message
                .attr_str(NFTA_RULE_TABLE, &table.name)
                .attr_str(NFTA_RULE_CHAIN, chain)
                .attr_be64(NFTA_RULE_HANDLE, handle);
        })
    }

    /// Whether all changes can be encoded; does not ask the kernel. `commit` checks this as well.
    pub fn check(&self) -> Result<(), CommitError> {
        let Some((index, reason)) = self.invalid else { return Ok(()) };
        let operation = self.requests.description(index);
        Err(CommitError { index: Some(index), error: NetlinkError::Invalid { operation, reason } })
    }

    /// The transaction as a netlink batch. Only the last change requests an answer: failures are
    /// always reported, and thousands of answers would overflow the receive buffer. (The end
    /// message can request an answer only since 6.9.)
    pub(crate) fn batch(&self) -> Result<Batch, CommitError> {
        if let Some((index, reason)) = self.invalid {
            let operation = self.requests.description(index);
            return Err(CommitError {
                index: Some(index),
                error: NetlinkError::Invalid { operation, reason },
            });
        }
        let mut batch = Batch::describing(describe::describe);
        batch.push_exactly(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, |begin| {
            begin.raw(&nfgenmsg(0, NFNL_SUBSYS_NFTABLES));
            if let Some(generation) = self.generation {
                begin.attr_be32(NFNL_BATCH_GENID, generation);
            }
        });
        for (index, request) in Messages::new(self.requests.as_bytes()).flatten().enumerate() {
            let answer = if index + 1 == self.requests.len() { NLM_F_ACK } else { 0 };
            batch.push_exactly(request.kind, request.flags | answer, |message| {
                message.raw(request.payload);
            });
        }
        batch.push_exactly(NFNL_MSG_BATCH_END, NLM_F_REQUEST, |end| {
            end.raw(&nfgenmsg(0, NFNL_SUBSYS_NFTABLES));
        });
        Ok(batch)
    }

    /// A set id that is unique within this transaction.
    pub(crate) fn next_set_id(&mut self) -> u32 {
        self.sets += 1;
        self.sets
    }

    fn new_table(&mut self, table: &Table, flags: u32, comment: Option<&str>) -> &mut Self {
        self.check_comment(comment);
        self.push(table, NFT_MSG_NEWTABLE, NLM_F_CREATE, |message| {
            message.attr_str(NFTA_TABLE_NAME, &table.name).attr_be32(NFTA_TABLE_FLAGS, flags);
            if let Some(text) = comment {
                message.attr(NFTA_TABLE_USERDATA, &userdata::comment(text));
            }
        })
    }

    fn rule(&mut self, rule: &Rule, flags: u16, place: Option<(u16, u64)>) -> &mut Self {
        self.check_name(&rule.chain);
        self.check_comment(rule.comment.as_deref());
        self.push(&rule.table, NFT_MSG_NEWRULE, flags, |message| {
            rule.encode(message);
            if let Some((kind, handle)) = place {
                message.attr_be64(kind, handle);
            }
        })
    }

    fn elements(&mut self, set: &Set, elements: &[Element], kind: u16, flags: u16) -> &mut Self {
        for element in elements {
            self.check_comment(element.comment.as_deref());
            if let Some(reason) = element.fault(set) {
                self.refuse(reason);
            }
        }
        let mut rest = elements;
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(chunk_len(rest));
            rest = behind;
            self.push(&set.table, kind, flags, |message| {
                message
                    .attr_str(NFTA_SET_ELEM_LIST_TABLE, &set.table.name)
                    .attr_str(NFTA_SET_ELEM_LIST_SET, &set.name)
                    .nested(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
                        chunk.iter().for_each(|element| element.encode(set, list));
                    });
            });
        }
        self
    }

    pub(crate) fn push(
        &mut self,
        table: &Table,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut MessageBuilder<'_>),
    ) -> &mut Self {
        self.check_name(&table.name);
        let mut oversized = false;
        self.requests.push_exactly(kind, flags | NLM_F_REQUEST, |message| {
            message.raw(&nfgenmsg(table.family.number(), 0));
            fill(message);
            oversized = message.len() > usize::from(u16::MAX);
        });
        if oversized {
            self.invalid.get_or_insert((self.requests.len() - 1, "the message is longer than 64 KiB"));
        }
        self
    }

    /// Names appear in errors and rules, and the kernel would truncate them at a NUL.
    fn check_name(&mut self, name: &str) {
        if name.is_empty() || name.len() > NAME_MAX_BYTES || name.chars().any(char::is_control) {
            self.refuse("a name has 1 to 255 bytes and no control characters");
        }
    }

    fn check_comment(&mut self, text: Option<&str>) {
        if text.is_some_and(|text| text.len() > COMMENT_MAX_BYTES || text.contains('\0')) {
            self.refuse("a comment has at most 127 bytes and no NUL");
        }
    }

    /// Marks the change that is being written as one that must not be sent.
    fn refuse(&mut self, reason: &'static str) {
        self.invalid.get_or_insert((self.requests.len(), reason));
    }
}

impl Default for Transaction {
    fn default() -> Self {
        Self::new()
    }
}

// === impl CommitError ===

impl CommitError {
    pub(crate) fn new(error: BatchError) -> Self {
        // Request 0 is the begin of the batch; the kernel reports errors there that belong to no
        // single change.
        Self { index: error.index.checked_sub(1), error: error.error }
    }

    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        self.error.errno()
    }

    /// Whether the ruleset has changed since the generation in [`only_at`](Transaction::only_at).
    pub fn is_stale(&self) -> bool {
        self.errno() == Some(libc::ERESTART)
    }

    /// Whether an object did not exist.
    pub fn is_not_found(&self) -> bool {
        self.error.is_not_found()
    }

    /// Whether the kernel does not support the request, for example the family of a table.
    pub fn is_unsupported(&self) -> bool {
        self.error.is_unsupported()
    }

    /// Whether an object existed already.
    pub fn is_exists(&self) -> bool {
        self.error.is_exists()
    }

    /// Whether the transaction may have been applied: the caller has to read again.
    pub fn outcome_unknown(&self) -> bool {
        !matches!(self.error, NetlinkError::Refused { .. } | NetlinkError::Invalid { .. })
    }
}

/// `struct nfgenmsg`: family, version, and a number in network order.
pub(crate) fn nfgenmsg(family: u8, resource: u16) -> [u8; NFGENMSG_BYTES] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

fn encode_hook(message: &mut MessageBuilder<'_>, base: &crate::chain::Base, hook: u32) {
    message.nested(NFTA_CHAIN_HOOK, |nest| {
        nest.attr_be32(NFTA_HOOK_HOOKNUM, hook).attr_be32(NFTA_HOOK_PRIORITY, base.priority.cast_unsigned());
        match base.devices.as_slice() {
            [] => {}
            [device] => {
                nest.attr_str(NFTA_HOOK_DEV, device.as_str());
            }
            devices => {
                nest.nested(NFTA_HOOK_DEVS, |list| {
                    for device in devices {
                        list.attr_str(NFTA_DEVICE_NAME, device.as_str());
                    }
                });
            }
        }
    });
    let policy = match base.policy {
        Policy::Drop => 0,
        Policy::Accept => 1,
    };
    message.attr_be32(NFTA_CHAIN_POLICY, policy).attr_str(NFTA_CHAIN_TYPE, base.kind.name());
}

/// How many of the elements fit into one message.
fn chunk_len(elements: &[Element]) -> usize {
    let mut bytes = 0;
    let fits = |element: &&Element| {
        bytes += element.encoded_len_max();
        bytes <= ELEMENTS_MAX_BYTES
    };
    elements.iter().take(ELEMENTS_MAX).take_while(fits).count().max(1)
}
