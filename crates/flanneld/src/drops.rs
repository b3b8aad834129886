//! What the guards of this node have dropped, for metrics: read from the kernel's counters now and then. No scrape reads anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use russet_nft::{NetlinkError, Nft, Table, TableFamily};
use russet_overlay::flannel::POD_SOURCE_DROP;
use russet_overlay::{FOREIGN_TUNNEL_DROP, POD_ENCAPSULATION_DROP, POD_TUNNEL_DROP};
use russet_policy::Guard;

use crate::health::Status;

/// How old the numbers get.
const INTERVAL: Duration = Duration::from_secs(15);
/// What the names of our tables begin with.
const TABLES: &str = "russet-flannel-";
/// All guards whose drops are counted; a guard that is missing on this node stays at 0.
pub const KINDS: [&str; 7] =
    ["source", "mac", "router", "dhcp", "pod_encapsulation", "pod_tunnel", "foreign_tunnel"];

/// Packets by guard.
pub type Counts = BTreeMap<&'static str, u64>;

/// Reads the counters until the daemon ends. What cannot be read is left as it was.
pub async fn run(status: Arc<Status>) {
    let mut before = Counts::new();
    loop {
        let read = tokio::task::spawn_blocking(read).await;
        match read.map_err(|error| error.to_string()).and_then(|now| now.map_err(|error| error.to_string())) {
            Ok(now) => {
                status.add_drops(&before, &now);
                before = now;
            }
            Err(error) => tracing::debug!(%error, "the counters of the guards cannot be read"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn read() -> Result<Counts, NetlinkError> {
    let mut nft = Nft::open()?;
    let ports = Table::new(TableFamily::Bridge, "russet-policy");
    let ours = |table: &Table| {
        *table == ports || (table.family == TableFamily::Inet && table.name.starts_with(TABLES))
    };
    let tables: Vec<Table> = nft.tables()?.into_iter().map(|info| info.table).filter(ours).collect();
    let mut counts = Counts::new();
    for table in tables {
        for rule in nft.rules(&table)? {
            if let (Some(kind), Some(packets)) = (rule.comment.as_deref().and_then(kind), rule.packets) {
                *counts.entry(kind).or_default() += packets;
            }
        }
    }
    Ok(counts)
}

/// Which guard a rule belongs to: its comment says it.
fn kind(comment: &str) -> Option<&'static str> {
    match comment {
        POD_SOURCE_DROP => Some("source"),
        POD_ENCAPSULATION_DROP => Some("pod_encapsulation"),
        POD_TUNNEL_DROP => Some("pod_tunnel"),
        FOREIGN_TUNNEL_DROP => Some("foreign_tunnel"),
        _ => Guard::ALL.into_iter().find(|guard| guard.comment() == comment).map(Guard::label),
    }
}

/// What came since `before`. A table that was made anew counts from 0.
pub fn since(before: &Counts, now: &Counts) -> Counts {
    let new = |(kind, packets): (&&'static str, &u64)| {
        let known = before.get(kind).copied().unwrap_or(0);
        (*kind, packets.checked_sub(known).unwrap_or(*packets))
    };
    now.iter().map(new).collect()
}

#[cfg(test)]
mod tests {
    use russet_nft::{Chain, Rule, Transaction};
    use russet_testkit::in_new_netns;

    use super::*;

    #[test]
    fn a_table_that_was_made_anew_counts_from_zero() {
        let of = |packets| Counts::from([("source", packets)]);
        for (before, now, new) in
            [(of(0), of(7), 7), (of(7), of(9), 2), (of(9), of(2), 2), (Counts::new(), of(1), 1)]
        {
            assert_eq!(since(&before, &now), of(new));
        }
    }

    #[test]
    #[ignore = "kernel: nf_tables, root"]
    fn every_guard_is_counted_under_its_name() {
        in_new_netns(|| {
            let tables = [
                (Table::inet("russet-flannel-7"), [POD_TUNNEL_DROP, FOREIGN_TUNNEL_DROP]),
                (Table::inet("russet-flannel-pods"), [POD_SOURCE_DROP, POD_ENCAPSULATION_DROP]),
                (
                    Table::new(TableFamily::Bridge, "russet-policy"),
                    [Guard::Mac.comment(), Guard::Source.comment()],
                ),
                (Table::inet("another"), [POD_TUNNEL_DROP, Guard::Router.comment()]),
            ];
            let mut transaction = Transaction::new();
            for (table, comments) in &tables {
                let chain = Chain::new(table, "guard");
                transaction.add_table(table).add_chain(&chain);
                for comment in comments {
                    transaction.add_rule(&Rule::new(&chain).counter().drop().comment(*comment));
                }
            }
            Nft::open().unwrap().commit(&transaction).unwrap();
            let counts = read().unwrap();
            let kinds: Vec<&str> = counts.keys().copied().collect();
            assert_eq!(kinds, ["foreign_tunnel", "mac", "pod_encapsulation", "pod_tunnel", "source"]);
            assert!(kinds.iter().all(|kind| KINDS.contains(kind)));
        });
    }
}
