//! Constants of linux/netfilter/{nf_tables,nfnetlink}.h, with all attribute types as `u16`, for the
//! encoders and decoders.

// Messages: the subsystem is the high byte.
const fn message(number: u16) -> u16 {
    NFNL_SUBSYS_NFTABLES << 8 | number
}
pub(crate) const NFNL_SUBSYS_NFTABLES: u16 = 10;
pub(crate) const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
pub(crate) const NFNL_MSG_BATCH_END: u16 = 0x11;
pub(crate) const NFNL_BATCH_GENID: u16 = 1;
pub(crate) const NFGENMSG_BYTES: usize = 4;
pub(crate) const NFT_MSG_NEWTABLE: u16 = message(0);
pub(crate) const NFT_MSG_GETTABLE: u16 = message(1);
pub(crate) const NFT_MSG_DELTABLE: u16 = message(2);
pub(crate) const NFT_MSG_NEWCHAIN: u16 = message(3);
pub(crate) const NFT_MSG_GETCHAIN: u16 = message(4);
pub(crate) const NFT_MSG_DELCHAIN: u16 = message(5);
pub(crate) const NFT_MSG_NEWRULE: u16 = message(6);
pub(crate) const NFT_MSG_GETRULE: u16 = message(7);
pub(crate) const NFT_MSG_DELRULE: u16 = message(8);
pub(crate) const NFT_MSG_NEWSET: u16 = message(9);
pub(crate) const NFT_MSG_GETSET: u16 = message(10);
pub(crate) const NFT_MSG_DELSET: u16 = message(11);
pub(crate) const NFT_MSG_NEWSETELEM: u16 = message(12);
pub(crate) const NFT_MSG_GETSETELEM: u16 = message(13);
pub(crate) const NFT_MSG_DELSETELEM: u16 = message(14);
pub(crate) const NFT_MSG_NEWGEN: u16 = message(15);
pub(crate) const NFT_MSG_GETGEN: u16 = message(16);
pub(crate) const NFT_MSG_TRACE: u16 = message(17);

// linux/netlink.h
pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;

pub(crate) const NFTA_LIST_ELEM: u16 = 1;

pub(crate) const NFTA_TABLE_NAME: u16 = 1;
pub(crate) const NFTA_TABLE_FLAGS: u16 = 2;
pub(crate) const NFTA_TABLE_HANDLE: u16 = 4;
pub(crate) const NFTA_TABLE_USERDATA: u16 = 6;
pub(crate) const NFTA_TABLE_OWNER: u16 = 7;
pub(crate) const NFT_TABLE_F_DORMANT: u32 = 1;
pub(crate) const NFT_TABLE_F_OWNER: u32 = 2;

pub(crate) const NFTA_CHAIN_TABLE: u16 = 1;
pub(crate) const NFTA_CHAIN_HANDLE: u16 = 2;
pub(crate) const NFTA_CHAIN_NAME: u16 = 3;
pub(crate) const NFTA_CHAIN_HOOK: u16 = 4;
pub(crate) const NFTA_CHAIN_POLICY: u16 = 5;
pub(crate) const NFTA_CHAIN_TYPE: u16 = 7;
pub(crate) const NFTA_CHAIN_USERDATA: u16 = 12;
pub(crate) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(crate) const NFTA_HOOK_PRIORITY: u16 = 2;
pub(crate) const NFTA_HOOK_DEV: u16 = 3;
pub(crate) const NFTA_HOOK_DEVS: u16 = 4;
pub(crate) const NFTA_DEVICE_NAME: u16 = 1;

pub(crate) const NFTA_RULE_TABLE: u16 = 1;
pub(crate) const NFTA_RULE_CHAIN: u16 = 2;
pub(crate) const NFTA_RULE_HANDLE: u16 = 3;
pub(crate) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(crate) const NFTA_RULE_POSITION: u16 = 6;
pub(crate) const NFTA_RULE_USERDATA: u16 = 7;

pub(crate) const NFTA_SET_TABLE: u16 = 1;
pub(crate) const NFTA_SET_NAME: u16 = 2;
pub(crate) const NFTA_SET_FLAGS: u16 = 3;
pub(crate) const NFTA_SET_KEY_TYPE: u16 = 4;
pub(crate) const NFTA_SET_KEY_LEN: u16 = 5;
pub(crate) const NFTA_SET_DATA_TYPE: u16 = 6;
pub(crate) const NFTA_SET_DATA_LEN: u16 = 7;
pub(crate) const NFTA_SET_DESC: u16 = 9;
pub(crate) const NFTA_SET_ID: u16 = 10;
pub(crate) const NFTA_SET_TIMEOUT: u16 = 11;
pub(crate) const NFTA_SET_USERDATA: u16 = 13;
pub(crate) const NFTA_SET_HANDLE: u16 = 16;
pub(crate) const NFTA_SET_EXPR: u16 = 17;
pub(crate) const NFTA_SET_DESC_SIZE: u16 = 1;
pub(crate) const NFTA_SET_DESC_CONCAT: u16 = 2;
pub(crate) const NFTA_SET_FIELD_LEN: u16 = 1;
pub(crate) const NFT_SET_ANONYMOUS: u32 = 0x1;
pub(crate) const NFT_SET_CONSTANT: u32 = 0x2;
pub(crate) const NFT_SET_INTERVAL: u32 = 0x4;
pub(crate) const NFT_SET_MAP: u32 = 0x8;
pub(crate) const NFT_SET_TIMEOUT: u32 = 0x10;
pub(crate) const NFT_SET_EVAL: u32 = 0x20;
pub(crate) const NFT_SET_CONCAT: u32 = 0x80;
/// The data type of a verdict map.
pub(crate) const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

pub(crate) const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub(crate) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(crate) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(crate) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(crate) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(crate) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(crate) const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
pub(crate) const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub(crate) const NFTA_SET_ELEM_EXPR: u16 = 7;
pub(crate) const NFTA_SET_ELEM_KEY_END: u16 = 10;
pub(crate) const NFT_SET_ELEM_INTERVAL_END: u32 = 1;
pub(crate) const NFT_SET_ELEM_CATCHALL: u32 = 2;

pub(crate) const NFTA_DATA_VALUE: u16 = 1;
pub(crate) const NFTA_DATA_VERDICT: u16 = 2;
pub(crate) const NFTA_VERDICT_CODE: u16 = 1;
pub(crate) const NFTA_VERDICT_CHAIN: u16 = 2;

pub(crate) const NFTA_EXPR_NAME: u16 = 1;
pub(crate) const NFTA_EXPR_DATA: u16 = 2;
/// `NFTA_MATCH_NAME` and `NFTA_TARGET_NAME`
pub(crate) const NFTA_EXTENSION_NAME: u16 = 1;
/// `NFTA_MATCH_INFO` and `NFTA_TARGET_INFO`
pub(crate) const NFTA_EXTENSION_INFO: u16 = 3;
pub(crate) const NFTA_IMMEDIATE_DREG: u16 = 1;
pub(crate) const NFTA_IMMEDIATE_DATA: u16 = 2;
pub(crate) const NFTA_BITWISE_SREG: u16 = 1;
pub(crate) const NFTA_BITWISE_DREG: u16 = 2;
pub(crate) const NFTA_BITWISE_LEN: u16 = 3;
pub(crate) const NFTA_BITWISE_MASK: u16 = 4;
pub(crate) const NFTA_BITWISE_XOR: u16 = 5;
pub(crate) const NFTA_BITWISE_OP: u16 = 6;
pub(crate) const NFTA_CMP_SREG: u16 = 1;
pub(crate) const NFTA_CMP_OP: u16 = 2;
pub(crate) const NFTA_CMP_DATA: u16 = 3;
pub(crate) const NFTA_RANGE_SREG: u16 = 1;
pub(crate) const NFTA_RANGE_OP: u16 = 2;
pub(crate) const NFTA_RANGE_FROM_DATA: u16 = 3;
pub(crate) const NFTA_RANGE_TO_DATA: u16 = 4;
pub(crate) const NFTA_LOOKUP_SET: u16 = 1;
pub(crate) const NFTA_LOOKUP_SREG: u16 = 2;
pub(crate) const NFTA_LOOKUP_DREG: u16 = 3;
pub(crate) const NFTA_LOOKUP_FLAGS: u16 = 5;
pub(crate) const NFTA_PAYLOAD_DREG: u16 = 1;
pub(crate) const NFTA_PAYLOAD_BASE: u16 = 2;
pub(crate) const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub(crate) const NFTA_PAYLOAD_LEN: u16 = 4;
pub(crate) const NFTA_META_DREG: u16 = 1;
pub(crate) const NFTA_META_KEY: u16 = 2;
pub(crate) const NFTA_META_SREG: u16 = 3;
pub(crate) const NFTA_CT_DREG: u16 = 1;
pub(crate) const NFTA_CT_KEY: u16 = 2;
pub(crate) const NFTA_CT_DIRECTION: u16 = 3;
pub(crate) const NFTA_CT_SREG: u16 = 4;
pub(crate) const NFTA_BYTEORDER_SREG: u16 = 1;
pub(crate) const NFTA_BYTEORDER_DREG: u16 = 2;
pub(crate) const NFTA_BYTEORDER_OP: u16 = 3;
pub(crate) const NFTA_BYTEORDER_LEN: u16 = 4;
pub(crate) const NFTA_BYTEORDER_SIZE: u16 = 5;
pub(crate) const NFTA_LIMIT_RATE: u16 = 1;
pub(crate) const NFTA_LIMIT_UNIT: u16 = 2;
pub(crate) const NFTA_LIMIT_BURST: u16 = 3;
pub(crate) const NFTA_LIMIT_TYPE: u16 = 4;
pub(crate) const NFTA_LIMIT_FLAGS: u16 = 5;
pub(crate) const NFTA_COUNTER_BYTES: u16 = 1;
pub(crate) const NFTA_COUNTER_PACKETS: u16 = 2;
pub(crate) const NFTA_LOG_GROUP: u16 = 1;
pub(crate) const NFTA_LOG_PREFIX: u16 = 2;
pub(crate) const NFTA_LOG_SNAPLEN: u16 = 3;
pub(crate) const NFTA_LOG_LEVEL: u16 = 5;
pub(crate) const NFTA_REJECT_TYPE: u16 = 1;
pub(crate) const NFTA_REJECT_ICMP_CODE: u16 = 2;
pub(crate) const NFTA_NAT_TYPE: u16 = 1;
pub(crate) const NFTA_NAT_FAMILY: u16 = 2;
pub(crate) const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
pub(crate) const NFTA_NAT_REG_ADDR_MAX: u16 = 4;
pub(crate) const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
pub(crate) const NFTA_NAT_REG_PROTO_MAX: u16 = 6;
pub(crate) const NFTA_NAT_FLAGS: u16 = 7;
pub(crate) const NFTA_MASQ_FLAGS: u16 = 1;
pub(crate) const NFTA_MASQ_REG_PROTO_MIN: u16 = 2;
pub(crate) const NFTA_MASQ_REG_PROTO_MAX: u16 = 3;
pub(crate) const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
pub(crate) const NFTA_REDIR_REG_PROTO_MAX: u16 = 2;
pub(crate) const NFTA_REDIR_FLAGS: u16 = 3;
pub(crate) const NFTA_FIB_DREG: u16 = 1;
pub(crate) const NFTA_FIB_RESULT: u16 = 2;
pub(crate) const NFTA_FIB_FLAGS: u16 = 3;

// linux/netfilter/nfnetlink_log.h
pub(crate) const NFULNL_MSG_PACKET: u16 = NFNL_SUBSYS_ULOG << 8;
pub(crate) const NFULNL_MSG_CONFIG: u16 = NFNL_SUBSYS_ULOG << 8 | 1;
pub(crate) const NFNL_SUBSYS_ULOG: u16 = 4;
pub(crate) const NFULA_PACKET_HDR: u16 = 1;
pub(crate) const NFULA_IFINDEX_INDEV: u16 = 4;
pub(crate) const NFULA_IFINDEX_OUTDEV: u16 = 5;
pub(crate) const NFULA_PAYLOAD: u16 = 9;
pub(crate) const NFULA_PREFIX: u16 = 10;
pub(crate) const NFULA_SEQ: u16 = 12;
pub(crate) const NFULA_CFG_CMD: u16 = 1;
pub(crate) const NFULA_CFG_MODE: u16 = 2;
pub(crate) const NFULA_CFG_TIMEOUT: u16 = 4;
pub(crate) const NFULA_CFG_QTHRESH: u16 = 5;
pub(crate) const NFULA_CFG_FLAGS: u16 = 6;
pub(crate) const NFULNL_CFG_CMD_BIND: u8 = 1;
pub(crate) const NFULNL_COPY_PACKET: u8 = 2;
pub(crate) const NFULNL_CFG_F_SEQ: u16 = 1;

// NF_NAT_RANGE_* of linux/netfilter/nf_nat.h
pub(crate) const RANGE_MAP_IPS: u32 = 1;
pub(crate) const RANGE_PROTO_SPECIFIED: u32 = 2;
pub(crate) const RANGE_PROTO_RANDOM_FULLY: u32 = 16;

pub(crate) const NFTA_GEN_ID: u16 = 1;
pub(crate) const NFTA_GEN_PROC_PID: u16 = 2;
pub(crate) const NFTA_GEN_PROC_NAME: u16 = 3;

pub(crate) const NFTA_TRACE_TABLE: u16 = 1;
pub(crate) const NFTA_TRACE_CHAIN: u16 = 2;
pub(crate) const NFTA_TRACE_RULE_HANDLE: u16 = 3;
pub(crate) const NFTA_TRACE_TYPE: u16 = 4;
pub(crate) const NFTA_TRACE_VERDICT: u16 = 5;
pub(crate) const NFTA_TRACE_ID: u16 = 6;
pub(crate) const NFTA_TRACE_NETWORK_HEADER: u16 = 8;
pub(crate) const NFTA_TRACE_TRANSPORT_HEADER: u16 = 9;
pub(crate) const NFTA_TRACE_IIF: u16 = 10;
pub(crate) const NFTA_TRACE_OIF: u16 = 12;
pub(crate) const NFTA_TRACE_MARK: u16 = 14;
pub(crate) const NFTA_TRACE_POLICY: u16 = 16;
pub(crate) const NFT_TRACETYPE_POLICY: u32 = 1;
pub(crate) const NFT_TRACETYPE_RETURN: u32 = 2;
pub(crate) const NFT_TRACETYPE_RULE: u32 = 3;

// Types of the user data that `nft` writes; all hold text with a NUL, or a number in host order.
pub(crate) const UDATA_COMMENT: u8 = 0;
pub(crate) const UDATA_SET_KEY_BYTE_ORDER: u8 = 0;
pub(crate) const UDATA_SET_DATA_BYTE_ORDER: u8 = 1;
pub(crate) const UDATA_SET_COMMENT: u8 = 7;
