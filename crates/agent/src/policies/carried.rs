//! Counts what the fast path has carried for the policies that let it pass. The programs count by flow, and know no
//! policy; what decided about a flow is said as of one that the kernel logs.

use std::collections::BTreeSet;
use std::time::Duration;

use russet_nft::Conntrack;
use russet_nft::conntrack;
use russet_overlay::fast_path::Tuple;

use super::Policies;
use crate::fast_path::{Accounts, Origin, Share, View};

/// How often the flows are read.
const EVERY: Duration = Duration::from_secs(15);
/// The most connections that connection tracking is asked about in one reading, some microseconds each.
const ORIGINS_MAX: usize = 4096;

/// What is known between two readings.
#[derive(Default)]
struct Counting {
    accounts: Accounts,
    /// Connection tracking could not be opened the last time.
    has_failed: bool,
}

/// Counts until the agent ends; at once done where there is no fast path.
pub(super) async fn run(policies: Policies, view: View) {
    let mut counting = Counting::default();
    while view.observer().is_some() {
        tokio::time::sleep(EVERY).await;
        let reader = view.clone();
        let read = tokio::task::spawn_blocking(move || {
            let shares = counting.read(&reader);
            (counting, shares)
        });
        let Ok((back, shares)) = read.await else { return };
        counting = back;
        policies.count_carried(shares);
    }
}

// === impl Counting ===

impl Counting {
    fn read(&mut self, view: &View) -> Vec<Share> {
        let Some(observer) = view.observer() else { return Vec::new() };
        let counted = match observer.count() {
            Ok(counted) => counted,
            Err(error) => {
                tracing::debug!(%error, "what the fast path has carried is not counted for policies for a moment");
                return Vec::new();
            }
        };
        let pods: BTreeSet<u32> = view.pods();
        let mut tracked = self.open_tracking();
        let mut left = ORIGINS_MAX;
        let began = |tuple: &Tuple| {
            left = left.checked_sub(1)?;
            origin(tracked.as_mut()?, tuple)
        };
        let shares = self.accounts.add(&counted, |ifindex| pods.contains(&ifindex), began);
        for flow in counted.flows.iter().filter(|flow| flow.has_ended()) {
            if observer.forget(flow).is_ok() {
                self.accounts.forget(&flow.tuple);
            }
        }
        shares
    }

    /// A failure is logged when it begins.
    fn open_tracking(&mut self) -> Option<Conntrack> {
        match Conntrack::open() {
            Ok(tracked) => {
                self.has_failed = false;
                Some(tracked)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::warn!(
                        %error,
                        "connection tracking could not be asked: what the fast path carries is counted as of no known policy"
                    );
                }
                None
            }
        }
    }
}

/// Which direction a connection began with.
fn origin(tracked: &mut Conntrack, tuple: &Tuple) -> Option<Origin> {
    let Tuple { from, to, from_port, to_port, protocol } = *tuple;
    let asked = conntrack::Tuple {
        source: from,
        destination: to,
        protocol,
        source_port: from_port,
        destination_port: to_port,
    };
    let first = tracked.origin(&asked).ok()??;
    Some(if first == asked { Origin::This } else { Origin::Reverse })
}
