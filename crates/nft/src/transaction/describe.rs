//! Descriptions of messages, decoded from their bytes only after a failure.

use russet_netlink::wire::Message;

use crate::kernel::*;
use crate::table::{Table, TableFamily};
use crate::userdata;

/// `add rule inet russet postrouting "natOutgoing"`, `delete 3 elements of set inet russet pools4`, ...
pub(crate) fn describe(message: &Message<'_>) -> String {
    let Some(family) = message.payload.first() else { return "apply nf_tables transaction".to_owned() };
    let Some(family) = TableFamily::from_number(*family) else {
        return "apply nf_tables transaction".to_owned();
    };
    let attributes = message.attributes(NFGENMSG_BYTES);
    let text = |kind| attributes.find(kind).map(|attribute| attribute.text()).unwrap_or_default();
    // In all messages the first attribute is the table's name.
    let table = Table::new(family, text(NFTA_TABLE_NAME));
    let object = |name_kind| format!("{table} {}", text(name_kind).escape_debug());
    let members = || {
        let list = attributes.find(NFTA_SET_ELEM_LIST_ELEMENTS);
        list.map(|list| list.nested().count())
    };
    match message.kind {
        NFT_MSG_NEWTABLE => format!("add table {table}"),
        NFT_MSG_DELTABLE => format!("delete table {table}"),
        NFT_MSG_NEWCHAIN => format!("add chain {}", object(NFTA_CHAIN_NAME)),
        NFT_MSG_DELCHAIN => format!("delete chain {}", object(NFTA_CHAIN_NAME)),
        NFT_MSG_NEWSET => format!("add set {}", object(NFTA_SET_NAME)),
        NFT_MSG_DELSET => format!("delete set {}", object(NFTA_SET_NAME)),
        NFT_MSG_NEWSETELEM => {
            format!("add {} keys to set {}", members().unwrap_or(0), object(NFTA_SET_ELEM_LIST_SET))
        }
        NFT_MSG_DELSETELEM => match members() {
            Some(count) => format!("delete {count} keys of set {}", object(NFTA_SET_ELEM_LIST_SET)),
            None => format!("flush set {}", object(NFTA_SET_ELEM_LIST_SET)),
        },
        NFT_MSG_NEWRULE => {
            let verb = if message.flags & NLM_F_REPLACE != 0 { "replace" } else { "add" };
            let userdata = attributes.find(NFTA_RULE_USERDATA);
            let comment = userdata.and_then(|data| userdata::comment_of(data.payload));
            let comment = comment.map(|text| format!(" \"{}\"", text.escape_debug())).unwrap_or_default();
            format!("{verb} rule {}{comment}", object(NFTA_RULE_CHAIN))
        }
        NFT_MSG_DELRULE => match attributes.find(NFTA_RULE_HANDLE).and_then(|handle| handle.be64()) {
            Some(handle) => format!("delete rule {} handle {handle}", object(NFTA_RULE_CHAIN)),
            None if attributes.find(NFTA_RULE_CHAIN).is_some() => {
                format!("flush chain {}", object(NFTA_RULE_CHAIN))
            }
            None => format!("flush table {table}"),
        },
        _ => "apply nf_tables transaction".to_owned(),
    }
}
