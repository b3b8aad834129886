//! Packets that the guards against forged packets dropped, for metrics, read from the kernel's
//! counters at an interval. A scrape reads nothing from the kernel.

use std::collections::BTreeMap;
use std::time::Duration;

use russet_nft::{NetlinkError, Nft, RuleInfo, Table, TableFamily};
use russet_overlay::{FOREIGN_TUNNEL_DROP, POD_ENCAPSULATION_DROP, POD_TUNNEL_DROP};
use russet_policy::Guard;

use crate::metrics::{Kind, Metrics};

/// Interval of reading the counters.
const EVERY: Duration = Duration::from_secs(15);

/// Packets by guard, as the kernel counts them.
type Counts = BTreeMap<&'static str, u64>;

/// Updates the metrics and never returns. Errors are not logged, because drift detection reports
/// problems of the tables.
pub async fn run(metrics: Metrics) {
    let mut before = Counts::new();
    loop {
        match tokio::task::spawn_blocking(look).await {
            Ok(Ok(now)) => {
                count(&metrics, &before, &now);
                before = now;
            }
            Ok(Err(error)) => tracing::debug!(%error, "the counters of the guards cannot be read"),
            Err(error) => tracing::debug!(%error, "the counters of the guards cannot be read"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn look() -> Result<Counts, NetlinkError> {
    let mut nft = Nft::open()?;
    let mut counts = Counts::new();
    let ports = Table::new(TableFamily::Bridge, "russet-policy");
    for table in [Table::inet("russet-policy"), Table::inet("russet"), ports] {
        for rule in nft.rules(&table)? {
            if let (Some(kind), Some(packets)) = (kind(&rule), rule.packets) {
                *counts.entry(kind).or_default() += packets;
            }
        }
    }
    Ok(counts)
}

/// Which guard a rule belongs to, by the rule's comment.
fn kind(rule: &RuleInfo) -> Option<&'static str> {
    let comment = rule.comment.as_deref()?;
    match comment {
        POD_TUNNEL_DROP => Some("pod_tunnel"),
        FOREIGN_TUNNEL_DROP => Some("foreign_tunnel"),
        POD_ENCAPSULATION_DROP => Some("pod_encapsulation"),
        _ => Guard::ALL.into_iter().find(|guard| guard.comment() == comment).map(Guard::label),
    }
}

/// Adds the difference. A table that was created again counts from 0.
fn count(metrics: &Metrics, before: &Counts, now: &Counts) {
    for (kind, packets) in now {
        let known = before.get(kind).copied().unwrap_or(0);
        let new = packets.checked_sub(known).unwrap_or(*packets);
        metrics.guard_drops.get_or_create(&Kind { kind: (*kind).to_owned() }).inc_by(new);
    }
}

#[cfg(test)]
mod tests {
    use russet_policy::Verdicts;
    use russet_testkit::{in_netns_with_loopback, run};

    use super::*;

    #[test]
    fn a_table_that_was_created_again_counts_from_zero() {
        let metrics = Metrics::new().0;
        let of = |packets| Counts::from([("source", packets)]);
        let total = || metrics.guard_drops.get_or_create(&Kind { kind: "source".to_owned() }).get();
        for (before, now, sum) in
            [(of(0), of(7), 7), (of(7), of(9), 9), (of(9), of(2), 11), (Counts::new(), of(1), 12)]
        {
            count(&metrics, &before, &now);
            assert_eq!(total(), sum);
        }
    }

    #[test]
    #[ignore = "kernel: nf_tables, root; tools: ip, ping"]
    fn dropped_packets_are_counted_by_guard() {
        in_netns_with_loopback(|| {
            Verdicts::open().unwrap().reconcile(&[]).unwrap();
            let sh = |command: &str| run("ip", &command.split(' ').collect::<Vec<_>>());
            sh("netns add pod");
            sh("link add russ1 type veth peer name eth0 netns pod");
            sh("addr add 10.9.1.1/32 dev russ1");
            sh("link set russ1 up");
            sh("-n pod addr add 10.9.1.2/24 dev eth0");
            sh("-n pod link set eth0 up");
            sh("-n pod neigh add 10.9.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0");
            sh("link set russ1 address ee:ee:ee:ee:ee:ee");
            assert_eq!(look().unwrap()["source"], 0);
            // No route leads back to it. One packet without an answer.
            let _ = std::process::Command::new("ip")
                .args("netns exec pod ping -c 1 -W 1 10.9.1.1".split(' '))
                .output()
                .unwrap();
            assert_eq!(look().unwrap()["source"], 1);
        });
    }
}
