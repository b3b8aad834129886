//! The packet filter of a pod, in its own nf_tables, as in the stock plugin: no new connections to
//! the machine configuration server, and nothing of the cloud's metadata address except DNS
//! (cni-runtime.md section 4.2, step 9).

use std::net::Ipv4Addr;

use russet_addr::host_net;
use russet_nft::{
    Chain, ChainKind, CmpOp, Expr, Hook, L4, Nft, PayloadBase, Register, Reject, Rule, Table, TableFamily,
    Transaction, priority,
};

use super::{SdnError, doing};

/// The machine configuration server's ports.
const MACHINE_CONFIG_PORTS: std::ops::RangeInclusive<u16> = 22623..=22624;
const DNS_PORT: u16 = 53;
/// Offsets in the transport header: the destination port, and TCP's flags.
const DPORT_OFFSET: u32 = 2;
const TCP_FLAGS_OFFSET: u32 = 13;
/// FIN, SYN, RST and ACK; a packet that opens a connection has only SYN.
const TCP_FLAGS: u8 = 0x17;
const TCP_SYN: u8 = 0x02;

/// The table of the thread's namespace.
fn table() -> Table {
    Table::new(TableFamily::Ip, "openshift-block-output")
}

/// Installs the table in the thread's namespace, or replaces it; returns whether there was none.
pub(super) fn install(metadata: Ipv4Addr) -> Result<bool, SdnError> {
    let mut nft = Nft::open().map_err(doing("open nf_tables"))?;
    let fresh = !is_there(&mut nft)?;
    let table = table();
    let block = Chain::new(&table, "block");
    let mut transaction = Transaction::new();
    if !fresh {
        transaction.delete_table(&table);
    }
    transaction.add_table(&table).add_chain(&block);
    for rule in rules(&block, metadata) {
        transaction.add_rule(&rule);
    }
    for (name, hook) in [("output", Hook::Output), ("forward", Hook::Forward)] {
        let chain = Chain::base(&table, name, ChainKind::Filter, hook, priority::FILTER);
        transaction.add_chain(&chain).add_rule(&Rule::new(&chain).goto("block"));
    }
    nft.commit(&transaction)?;
    Ok(fresh)
}

/// Removes it, if it exists.
pub(super) fn remove() -> Result<(), SdnError> {
    // A kernel without nf_tables has no table of ours.
    let Ok(mut nft) = Nft::open() else { return Ok(()) };
    if !matches!(is_there(&mut nft), Ok(true)) {
        return Ok(());
    }
    let mut transaction = Transaction::new();
    transaction.delete_table(&table());
    match nft.commit(&transaction) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// What is missing of it in the thread's namespace.
pub(super) fn missing(metadata: Ipv4Addr) -> Result<Option<String>, SdnError> {
    let mut nft = Nft::open().map_err(doing("open nf_tables"))?;
    let found = match nft.rules(&table()) {
        Ok(found) => found,
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(doing("read the pod's packet filter")(error)),
    };
    let block = Chain::new(&table(), "block");
    let wanted = rules(&block, metadata);
    let there = |rule: &Rule| found.iter().any(|it| it.chain == "block" && it.digest == rule.digest());
    let hooked = |chain: &str| found.iter().any(|it| it.chain == chain);
    let complete = wanted.iter().all(there) && hooked("output") && hooked("forward");
    Ok((!complete).then(|| format!("the table {} is not complete", table())))
}

fn is_there(nft: &mut Nft) -> Result<bool, SdnError> {
    let tables = nft.tables().map_err(doing("list the pod's tables"))?;
    Ok(tables.iter().any(|info| info.table == table()))
}

fn rules(block: &Chain, metadata: Ipv4Addr) -> [Rule; 3] {
    let new = [
        Expr::Payload { base: PayloadBase::Transport, offset: TCP_FLAGS_OFFSET, len: 1, to: Register::FIRST },
        Expr::Bitwise { from: Register::FIRST, to: Register::FIRST, mask: vec![TCP_FLAGS], xor: vec![0] },
        Expr::Cmp { op: CmpOp::Eq, register: Register::FIRST, value: vec![TCP_SYN] },
    ];
    let servers = Rule::new(block).protocol(L4::Tcp).dports(MACHINE_CONFIG_PORTS);
    let servers = new.into_iter().fold(servers, Rule::expr).reject(Reject::PortUnreachable);
    let but_dns = |protocol| {
        let other = [
            Expr::Payload { base: PayloadBase::Transport, offset: DPORT_OFFSET, len: 2, to: Register::FIRST },
            Expr::Cmp { op: CmpOp::Neq, register: Register::FIRST, value: DNS_PORT.to_be_bytes().to_vec() },
        ];
        let rule = Rule::new(block).daddr(host_net(metadata.into())).protocol(protocol);
        other.into_iter().fold(rule, Rule::expr).reject(Reject::PortUnreachable)
    };
    [servers, but_dns(L4::Udp), but_dns(L4::Tcp)]
}
