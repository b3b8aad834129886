//! Pods, and concurrent callers that handle them.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_addr::ContainerId;
use russet_model::HandleId;
use russet_store::BoxFuture;
use tokio::task::JoinSet;

use crate::Result;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Add,
    Del,
}

/// A pod, by its number.
#[derive(Clone, Copy)]
pub struct Pod(u64);

/// An implementation that assigns and releases one address for a pod.
pub trait Caller {
    /// CNI ADD's part of the allocator.
    fn add<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<IpAddr>>;

    /// CNI DEL's part of the allocator.
    fn del<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<()>>;
}

/// Distributes the pods among the callers, who all start at once; returns the time until the last
/// is done, and the addresses.
pub async fn run(callers: &[Rc<dyn Caller>], verb: Verb, pods: &[Pod]) -> Result<(Duration, Vec<IpAddr>)> {
    let count = callers.len();
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for (turn, caller) in callers.iter().enumerate() {
        let caller = Rc::clone(caller);
        let mine: Vec<Pod> = pods.iter().skip(turn).step_by(count).copied().collect();
        tasks.spawn_local(async move {
            let mut addresses = Vec::new();
            for pod in &mine {
                match verb {
                    Verb::Add => addresses.push(caller.add(pod).await?),
                    Verb::Del => caller.del(pod).await?,
                }
            }
            Ok::<_, crate::BoxError>(addresses)
        });
    }
    let mut addresses = Vec::new();
    while let Some(done) = tasks.join_next().await {
        addresses.extend(done??);
    }
    Ok((began.elapsed(), addresses))
}

// === impl Pod ===

impl Pod {
    /// The first of all.
    pub const fn first() -> Self {
        Self(0)
    }

    /// The first of those that stay on a node; no sample reaches their numbers.
    pub fn resident(node: &str) -> Self {
        Self((u64::from(u8::MAX) + node.len() as u64) << 32)
    }

    /// Takes the next `count` pods, and advances past them.
    pub fn take(&mut self, count: usize) -> Vec<Self> {
        let first = self.0;
        self.0 += count as u64;
        (first..self.0).map(Self).collect()
    }

    /// `pod` as blocks have it.
    pub fn name(self) -> String {
        format!("web-7d4b9c6f5d-{:05x}", self.0)
    }

    /// As long as containerd's: 64 hexadecimal digits.
    pub fn container(self) -> Result<ContainerId> {
        // Digits as random ones are: an odd factor takes no two numbers to the same.
        let digits = (0..4).map(|word| self.0.wrapping_add(word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Ok(digits.map(|word| format!("{word:016x}")).collect::<String>().parse()?)
    }

    /// The network's name and the container's ID.
    pub fn handle(self) -> Result<HandleId> {
        Ok(HandleId::new(format!("k8s-pod-network.{}", self.container()?))?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_pods_have_the_same_handle() {
        let mut pods = Pod::first();
        let mut all = pods.take(3000);
        all.extend(["bench-go", "bench-russet"].iter().flat_map(|node| Pod::resident(node).take(16)));
        let handles: BTreeSet<String> = all.iter().map(|pod| pod.handle().unwrap().to_string()).collect();
        assert_eq!(handles.len(), all.len());
        assert!(handles.iter().all(|handle| handle.len() == "k8s-pod-network.".len() + 64));
    }
}
