//! Why a request would, or would not, get an address: each pool, the node's own blocks, and a trial
//! that writes nothing. For `russet ipam why`.

use std::net::IpAddr;
use std::rc::Rc;

use russet_addr::{Family, IpNet};
use russet_model::{AffinityState, IpPool};
use russet_store::Store;
use serde::Serialize;

use crate::pools::{self, Asker};
use crate::trial_store::TrialStore;
use crate::{Allocator, Clock, IpamError, Request};

/// The explanation of one family of a request.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Every pool of the family, and why it can or cannot serve.
    pub pools: Vec<PoolPart>,
    /// The node's blocks of the family.
    pub blocks: Vec<BlockPart>,
    /// Limit of the node's blocks of the family.
    pub block_limit: u64,
    /// Whether addresses of other nodes' blocks are excluded.
    pub strict_affinity: bool,
    /// The result of the trial.
    pub outcome: Outcome,
}

/// One pool.
#[derive(Debug, Clone, Serialize)]
pub struct PoolPart {
    /// Its name.
    pub name: String,
    /// Its prefix.
    pub cidr: String,
    /// Whether it can serve the request.
    pub serves: bool,
    /// Why not, or how.
    pub why: String,
}

/// One block of the node.
#[derive(Debug, Clone, Serialize)]
pub struct BlockPart {
    /// The block.
    pub cidr: String,
    /// The state of the node's affinity.
    pub state: &'static str,
    /// Addresses that can still be assigned; none if the block cannot be decoded.
    pub free: Option<usize>,
    /// Why it cannot be used now, if so.
    pub problem: Option<String>,
}

/// What a request would get now.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It would get an address like this one.
    Address {
        /// The one that was free in the trial.
        ip: IpAddr,
        /// Where it would come from.
        from: Source,
    },
    /// None would be requested, and the pod would start without an address of this family.
    NotAsked { reason: String },
    /// It would fail.
    Refused {
        /// The request's error.
        error: String,
    },
}

/// Where an address would come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A block of the node.
    OwnBlock,
    /// A block that it would claim.
    NewBlock,
    /// Another node's block.
    Borrowed,
}

// === impl Explanation ===

impl Explanation {
    /// The explanations of each family that has pools or requested pools, as ADD decides: a family
    /// whose pools are all disabled is not requested while the other one has an enabled pool.
    pub async fn of_families(
        store: Rc<dyn Store>,
        clock: Rc<dyn Clock>,
        request: &Request,
    ) -> Result<Vec<Self>, IpamError> {
        let families = Allocator::new(store.clone(), clock.clone()).pool_families().await?;
        let named = Family::BOTH.into_iter().any(|family| request.pools(family).is_some());
        let mut explanations = Vec::new();
        for family in Family::BOTH {
            let is_off = !families.enabled.is_empty() && families.switched_off.contains(&family);
            let has_pools = families.enabled.contains(&family) || families.switched_off.contains(&family);
            if !(request.pools(family).is_some() || (!named && has_pools)) {
                continue;
            }
            let mut explanation = Self::of(store.clone(), clock.clone(), request, family).await?;
            if !named && is_off {
                let reason = format!("every {family} pool is disabled");
                explanation.outcome = Outcome::NotAsked { reason };
            }
            explanations.push(explanation);
        }
        Ok(explanations)
    }

    /// Checks everything that decides a request for one address of `family`, and tries it. Writes
    /// nothing.
    pub async fn of(
        store: Rc<dyn Store>,
        clock: Rc<dyn Clock>,
        request: &Request,
        family: Family,
    ) -> Result<Self, IpamError> {
        let (v4, v6) = if family == Family::V4 { (1, 0) } else { (0, 1) };
        let request = Request { v4, v6, ..request.clone() };
        let real = Allocator::new(store.clone(), clock.clone());
        let config = real.config().await?;
        let pools = real.pools().await?;
        let labels = real.node(&request.node).await?.map(|node| node.metadata.labels);
        let requester = Asker {
            node: &request.node,
            node_labels: labels.as_ref(),
            namespace_labels: &request.namespace_labels,
            use_: request.use_,
        };
        let of_family = pools.iter().filter(|pool| pool.spec.family() == family);
        let blocks = real.block_parts(&request, family).await?;
        let trial = Allocator::new(Rc::new(TrialStore::of(store)), clock);
        Ok(Self {
            family: family.to_string(),
            pools: of_family.map(|pool| PoolPart::of(pool, request.pools(family), &requester)).collect(),
            outcome: outcome(&trial, &request, family, &blocks).await,
            blocks,
            block_limit: config.block_limit(request.max_blocks),
            strict_affinity: config.strict_affinity,
        })
    }
}

async fn outcome(trial: &Allocator, request: &Request, family: Family, blocks: &[BlockPart]) -> Outcome {
    let assigned = match trial.auto_assign(request).await {
        Ok(assigned) => assigned,
        Err(error) => return Outcome::Refused { error: error.to_string() },
    };
    let Some(net) = assigned.addresses.first().copied() else {
        return Outcome::Refused { error: "no address was requested".to_owned() };
    };
    let block = net.trunc().to_string();
    let claimed = trial.affinities(&request.node, family).await.unwrap_or_default();
    let from = if blocks.iter().any(|part| part.cidr == block) {
        Source::OwnBlock
    } else if claimed.iter().any(|(cidr, _)| cidr.to_string() == block) {
        Source::NewBlock
    } else {
        Source::Borrowed
    };
    Outcome::Address { ip: net.addr(), from }
}

// === impl Allocator ===

impl Allocator {
    async fn block_parts(&self, request: &Request, family: Family) -> Result<Vec<BlockPart>, IpamError> {
        let reserved = self.reserved().await?;
        let mut parts = Vec::new();
        for (cidr, affinity) in self.affinities(&request.node, family).await? {
            let (free, problem) = match self.block(cidr).await {
                Ok(Some(block)) if block.value.serves(&request.node) => {
                    let usable = |ordinal: &&usize| {
                        let address = cidr.address(**ordinal).map(IpNet::from);
                        address.is_some_and(|address| !reserved.iter().any(|net| net.contains(&address)))
                    };
                    (Some(block.value.unallocated.iter().filter(usable).count()), None)
                }
                Ok(Some(block)) => {
                    let owner = block.value.affinity.as_deref().unwrap_or("no node");
                    (None, Some(format!("the block serves {owner}")))
                }
                Ok(None) => (None, Some("there is no such block yet".to_owned())),
                Err(error @ IpamError::Corrupt { .. }) => (None, Some(error.to_string())),
                Err(error) => return Err(error),
            };
            parts.push(BlockPart {
                cidr: cidr.to_string(),
                state: state(affinity.value.state),
                free,
                problem,
            });
        }
        Ok(parts)
    }
}

const fn state(state: AffinityState) -> &'static str {
    match state {
        AffinityState::Pending => "pending",
        AffinityState::Confirmed => "confirmed",
        AffinityState::PendingDeletion => "being given back",
    }
}

// === impl PoolPart ===

impl PoolPart {
    fn of(pool: &IpPool, requested: Option<&[IpNet]>, requester: &Asker<'_>) -> Self {
        let checked = check_pool(pool, requested, requester);
        let (serves, why) = match checked {
            Ok(how) => (true, how.to_owned()),
            Err(why) => (false, why),
        };
        Self { name: pool.metadata.name.clone(), cidr: pool.spec.cidr.to_string(), serves, why }
    }
}

fn check_pool(
    pool: &IpPool,
    requested: Option<&[IpNet]>,
    requester: &Asker<'_>,
) -> Result<&'static str, String> {
    if !pool.is_enabled() {
        return Err(if pool.spec.disabled {
            "it is disabled"
        } else {
            "it is going away, or marked as not allocatable"
        }
        .to_owned());
    }
    if !pool.spec.allows(requester.use_) {
        return Err(format!("{} is not among its allowedUses", requester.use_.as_str()));
    }
    if let Some(requested) = requested.filter(|nets| !nets.is_empty()) {
        return if requested.contains(&pool.spec.cidr) {
            Ok("it was asked for")
        } else {
            Err("other pools were requested".to_owned())
        };
    }
    if !pool.spec.is_automatic() {
        return Err("its assignmentMode is Manual: it must be requested".to_owned());
    }
    let namespaces = pool.spec.namespaces().map_err(|error| format!("its namespaceSelector: {error}"))?;
    if !namespaces.matches(requester.namespace_labels) {
        return Err(format!("its namespaceSelector {namespaces} does not pick the namespace"));
    }
    match pools::selects_node(pool, requester.node, requester.node_labels) {
        Ok(true) => Ok("it selects the node"),
        Ok(false) => Err(format!(
            "its nodeSelector {} does not pick the node",
            pool.spec.node_selector.as_deref().unwrap_or("all()")
        )),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemClock;
    use crate::allocator::tests::run;
    use russet_model::{Block, HandleId, IpPoolSpec, IpamConfig, Key, Prefix};
    use russet_store::{Sim, Step};

    fn request(name: &str) -> Request {
        Request::pod("node-a".parse().unwrap(), HandleId::new(name).unwrap())
    }

    async fn put_pool(store: &dyn Store, name: &str, cidr: &str, change: impl FnOnce(&mut IpPoolSpec)) {
        let mut spec = IpPoolSpec::new(cidr.parse().unwrap());
        change(&mut spec);
        let step = Step::put(Key::pool(name).unwrap(), IpPool::new(name, spec).encode());
        store.commit(vec![step]).await.unwrap();
    }

    async fn explain(store: &Rc<dyn Store>) -> Explanation {
        let clock = Rc::new(SystemClock);
        Explanation::of(store.clone(), clock, &request("why.trial"), Family::V4).await.unwrap()
    }

    #[test]
    fn every_pool_is_explained_and_nothing_is_written() {
        run(async {
            let store: Rc<dyn Store> = Rc::new(Sim::atomic(1));
            put_pool(&*store, "a", "10.1.0.0/24", |pool| pool.disabled = true).await;
            put_pool(&*store, "b", "10.2.0.0/24", |pool| pool.allowed_uses = vec!["Tunnel".into()]).await;
            put_pool(&*store, "c", "10.3.0.0/24", |pool| pool.namespace_selector = Some("x == 'y'".into()))
                .await;
            put_pool(&*store, "d", "10.4.0.0/24", |pool| pool.node_selector = Some("zone == 'z'".into()))
                .await;
            let before = store.list(&Prefix::everything()).await.unwrap().records;
            let explanation = explain(&store).await;
            let whys: Vec<(bool, &str)> =
                explanation.pools.iter().map(|pool| (pool.serves, pool.why.as_str())).collect();
            assert_eq!(whys[0], (false, "it is disabled"));
            assert_eq!(whys[1], (false, "Workload is not among its allowedUses"));
            assert!(whys[2].1.starts_with("its namespaceSelector") && !whys[2].0, "{whys:?}");
            assert!(whys[3].1.contains("node-a has no record"), "{whys:?}");
            let Outcome::Refused { error } = &explanation.outcome else { panic!("{explanation:?}") };
            assert!(error.contains("node-a"), "{error}");

            put_pool(&*store, "e", "10.5.0.0/24", |_| ()).await;
            let explanation = explain(&store).await;
            assert!(
                matches!(explanation.outcome, Outcome::Address { from: Source::NewBlock, .. }),
                "{explanation:?}"
            );
            let after = store.list(&Prefix::everything()).await.unwrap().records;
            assert_eq!(before.len() + 1, after.len(), "only the pool came");
        });
    }

    #[test]
    fn a_family_with_only_disabled_pools_is_not_requested_while_the_other_has_one() {
        run(async {
            let store: Rc<dyn Store> = Rc::new(Sim::atomic(1));
            let outcomes = |request: Request| {
                let store = store.clone();
                async move {
                    let explained = Explanation::of_families(store, Rc::new(SystemClock), &request).await;
                    explained.unwrap().into_iter().map(|it| (it.family, it.outcome)).collect::<Vec<_>>()
                }
            };
            put_pool(&*store, "four", "10.1.0.0/24", |_| ()).await;
            put_pool(&*store, "six", "fd00:1::/112", |pool| pool.disabled = true).await;
            let found = outcomes(request("why.trial")).await;
            let [(_, Outcome::Address { .. }), (six, Outcome::NotAsked { reason })] = &found[..] else {
                panic!("{found:?}")
            };
            assert_eq!((six.as_str(), reason.as_str()), ("IPv6", "every IPv6 pool is disabled"));
            // A pool that is requested by name must serve.
            let named =
                Request { pools6: Some(vec!["fd00:1::/112".parse().unwrap()]), ..request("why.trial") };
            let found = outcomes(named).await;
            assert!(matches!(&found[..], [(_, Outcome::Refused { .. })]), "{found:?}");
            // Without any enabled pool ADD fails.
            put_pool(&*store, "four", "10.1.0.0/24", |pool| pool.disabled = true).await;
            let found = outcomes(request("why.trial")).await;
            let refused = |(_, outcome): &(String, Outcome)| matches!(outcome, Outcome::Refused { .. });
            assert!(found.len() == 2 && found.iter().all(refused), "{found:?}");
        });
    }

    #[test]
    fn a_reached_limit_is_reported_and_own_blocks_are_counted() {
        run(async {
            let store: Rc<dyn Store> = Rc::new(Sim::atomic(1));
            put_pool(&*store, "a", "10.1.0.0/24", |pool| pool.block_size = Some(30)).await;
            let config =
                IpamConfig { strict_affinity: true, max_blocks_per_host: 1, ..IpamConfig::default() };
            store.commit(vec![Step::put(Key::ipam_config(), config.encode())]).await.unwrap();
            let real = Allocator::new(store.clone(), Rc::new(SystemClock));
            for pod in 0..3 {
                real.auto_assign(&request(&format!("net.{pod}"))).await.unwrap();
            }
            let explanation = explain(&store).await;
            assert_eq!(
                (explanation.blocks.len(), explanation.blocks[0].free, explanation.block_limit),
                (1, Some(1), 1)
            );
            assert!(
                matches!(explanation.outcome, Outcome::Address { from: Source::OwnBlock, .. }),
                "{explanation:?}"
            );
            real.auto_assign(&request("net.3")).await.unwrap();
            let explanation = explain(&store).await;
            assert_eq!(explanation.blocks[0].free, Some(0));
            let Outcome::Refused { error } = &explanation.outcome else { panic!("{explanation:?}") };
            assert!(error.contains("per host block limit"), "{error}");
            let taken = store.list(&Prefix::blocks(None)).await.unwrap().records;
            assert_eq!(
                taken.iter().map(|r| Block::decode(&r.value).unwrap().unallocated.len()).sum::<usize>(),
                0
            );
        });
    }
}
