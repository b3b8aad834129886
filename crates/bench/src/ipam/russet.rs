//! Russet's allocator, made as the agent makes it: one for all callers, with a cache, pausing
//! between attempts.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::{IfName, NodeName};
use russet_ipam::{Allocator, Backoff, Request, SystemClock, delay};
use russet_store::BoxFuture;

use crate::Result;
use crate::ipam::burst::{Caller, Pod};
use crate::ipam::counted::{Counted, Counts};
use crate::ipam::stage::{Place, RUSSET_NODE};

/// The agent's allocator.
pub struct Russet {
    allocator: Allocator,
    node: NodeName,
    ifname: IfName,
    /// The cache is cleared before each ADD: the cost of a process's first one.
    forgets: bool,
}

/// The agent's pause between two attempts; the random number need not be a good one.
struct Pause;

/// As in `russet_agent`.
const CACHE_MAX_AGE: Duration = Duration::from_secs(30);

// === impl Russet ===

impl Russet {
    /// The allocator of one node's agent.
    pub fn new(place: &Place, counts: &Rc<Counts>, forgets: bool) -> Result<Self> {
        let store = Rc::new(Counted::new(place.store(), counts));
        let allocator = Allocator::new(store, Rc::new(SystemClock));
        let allocator = allocator.with_backoff(Rc::new(Pause)).with_cache(CACHE_MAX_AGE);
        Ok(Self { allocator, node: RUSSET_NODE.parse()?, ifname: "eth0".parse()?, forgets })
    }

    /// Whose blocks it takes from.
    pub fn node(&self) -> NodeName {
        self.node.clone()
    }
}

impl Caller for Russet {
    fn add<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<IpAddr>> {
        Box::pin(async move {
            if self.forgets {
                self.allocator.forget();
            }
            let request = Request::pod(self.node.clone(), pod.handle()?);
            let request = Request { borrow: false, ..request }
                .with("interface", self.ifname.to_string())
                .with("namespace", "default")
                .with("pod", pod.name());
            let assigned = self.allocator.auto_assign(&request).await?;
            Ok(assigned.addresses.first().ok_or("no address")?.addr())
        })
    }

    fn del<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.allocator.release_by_handle(&pod.handle()?, Some(&self.ifname)).await?;
            Ok(())
        })
    }
}

// === impl Pause ===

impl Backoff for Pause {
    fn wait(&self, attempt: u32) -> BoxFuture<'_, ()> {
        let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| u64::from(since.subsec_nanos()));
        Box::pin(tokio::time::sleep(delay(attempt, nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20)))
    }
}
