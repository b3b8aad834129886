//! A second look at findings on a store whose kinds of records are listed one after the other, such
//! as Kubernetes: between two lists a running cluster moves a handle and its block. Each finding
//! about two records is compared with both as they are now.

use russet_addr::{BlockCidr, NodeName};
use russet_model::{Affinity, AffinityState, Block, Handle, HandleId, Key};
use russet_store::Store;

use super::Finding;
use crate::IpamError;

/// Whether a finding is still true. Findings about one record, or about endpoints, are.
pub(super) async fn holds(store: &dyn Store, finding: &Finding) -> Result<bool, IpamError> {
    match finding {
        Finding::HandleLeaked { handle, .. } => {
            let Some(stored) = read(store, Key::handle(handle), Handle::decode).await? else {
                return Ok(false);
            };
            for cidr in stored.blocks() {
                if held(store, cidr, handle).await? > 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Finding::HandleCount { handle, block, .. } => {
            let stored = read(store, Key::handle(handle), Handle::decode).await?;
            let Ok(cidr) = block.parse() else { return Ok(stored.is_some()) };
            let counted = stored.map_or(0, |stored| stored.count(cidr));
            Ok(counted != held(store, cidr, handle).await?)
        }
        Finding::HandleMissing { block, sequence_number, address, holder, .. } => {
            let now = read(store, Key::block(*block), Block::decode).await?;
            let ordinal = block.ordinal(*address);
            let is_same = now.zip(ordinal).is_some_and(|(now, ordinal)| {
                now.attribute(ordinal).is_some() && now.sequence_number_of(ordinal) == *sequence_number
            });
            let Some(id) = holder.handle.as_ref().filter(|_| is_same) else { return Ok(is_same) };
            let Ok(id) = HandleId::new(id) else { return Ok(true) };
            let stored = read(store, Key::handle(&id), Handle::decode).await?;
            Ok(stored.is_none_or(|stored| stored.count(*block) == 0))
        }
        Finding::BlockMissing { owner, block } => {
            Ok(is_claimed(store, owner, *block).await? && serves(store, *block).await?.is_none())
        }
        Finding::AffinityForeign { owner, block, .. } => {
            let is_claimed = is_claimed(store, owner, *block).await?;
            Ok(is_claimed && serves(store, *block).await?.is_some_and(|now| now.as_ref() != Some(owner)))
        }
        Finding::AffinityMissing { owner, block } => {
            let is_claimed = is_claimed(store, owner, *block).await?;
            Ok(!is_claimed && serves(store, *block).await? == Some(Some(owner.clone())))
        }
        _ => Ok(true),
    }
}

/// The number of a handle's addresses in a block, in any spelling of its ID: handles whose IDs
/// differ in case only share a record there (kubernetes.md section 1.3).
async fn held(store: &dyn Store, cidr: BlockCidr, id: &HandleId) -> Result<u64, IpamError> {
    let Some(block) = read(store, Key::block(cidr), Block::decode).await? else { return Ok(0) };
    let owners = (0..cidr.size()).filter_map(|ordinal| block.attribute(ordinal)?.handle_id.as_deref());
    Ok(owners.filter(|owner| HandleId::sanitized(owner).eq_ignore_ascii_case(id.as_str())).count() as u64)
}

/// The owner that an existing block serves.
async fn serves(store: &dyn Store, cidr: BlockCidr) -> Result<Option<Option<String>>, IpamError> {
    Ok(read(store, Key::block(cidr), Block::decode).await?.map(|block| block.affinity))
}

/// Whether an owner, `host:<node>`, has a confirmed affinity. Those of others are as they were found.
async fn is_claimed(store: &dyn Store, owner: &str, cidr: BlockCidr) -> Result<bool, IpamError> {
    let Some(node) = owner.strip_prefix("host:").and_then(|node| NodeName::new(node).ok()) else {
        return Ok(true);
    };
    let affinity = read(store, Key::affinity(&node, cidr), Affinity::decode).await?;
    Ok(affinity.is_some_and(|affinity| affinity.state == AffinityState::Confirmed))
}

/// A record; none if it does not exist or cannot be decoded, which is a finding of its own.
async fn read<T>(
    store: &dyn Store,
    key: Key,
    decode: fn(&[u8]) -> Result<T, russet_model::DecodeError>,
) -> Result<Option<T>, IpamError> {
    let record = store.get(&key).await.map_err(|error| IpamError::store(format!("read {key}"), error))?;
    Ok(record.and_then(|record| decode(&record.value).ok()))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use russet_model::{KeyKind, Prefix};
    use russet_store::{BoxFuture, Claims, Record, Snapshot, Step, StoreError, sim::Sim};
    use russet_testkit::forward_store;

    use super::*;
    use crate::allocator::tests::run;
    use crate::audit::audit_store;
    use crate::{Allocator, Request, SystemClock};

    /// A store whose list of handles is older than the rest.
    struct Earlier {
        sim: Sim,
        handles: Vec<Record>,
        atomic: bool,
    }

    impl Store for Earlier {
        forward_store!(self.sim: get commit watch);

        fn claims(&self) -> Claims {
            Claims { atomic: self.atomic, ..self.sim.claims() }
        }

        fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
            Box::pin(async move {
                let mut snapshot = self.sim.list(prefix).await?;
                snapshot.records.retain(|record| !matches!(record.key.kind(), KeyKind::Handle(_)));
                snapshot
                    .records
                    .extend(self.handles.iter().filter(|record| prefix.covers(&record.key)).cloned());
                snapshot.records.sort_by(|one, other| one.key.cmp(&other.key));
                Ok(snapshot)
            })
        }
    }

    fn handles(sim: &Sim) -> Vec<Record> {
        let records = sim.records().into_values();
        records.filter(|record| matches!(record.key.kind(), KeyKind::Handle(_))).collect()
    }

    #[test]
    fn what_lists_of_different_moments_seem_to_show_is_looked_at_again() {
        let sim = Sim::non_atomic(1);
        let pool =
            r#"{"kind":"IPPool","metadata":{"name":"p"},"spec":{"cidr":"10.1.0.0/24","blockSize":29}}"#;
        run(sim.commit(vec![Step::put(Key::pool("p").unwrap(), pool)])).unwrap();
        let ipam = Allocator::new(Rc::new(sim.clone()), Rc::new(SystemClock));
        let id = |name: &str| HandleId::new(name).unwrap();
        let add = |name: &str| {
            let request = Request::pod("node-a".parse().unwrap(), id(name));
            run(ipam.auto_assign(&request)).unwrap();
        };
        add("net.released");
        let earlier = handles(&sim);
        run(ipam.release_by_handle(&id("net.released"), None)).unwrap();
        add("net.new");
        let leaked = Key::handle(&id("net.leaked"));
        let value = r#"{"block":{"10.1.0.0/29":1},"deleted":false}"#;
        let store = |atomic, leaked: Vec<Record>| Earlier {
            sim: sim.clone(),
            handles: earlier.iter().cloned().chain(leaked).collect(),
            atomic,
        };
        let found = |store: &Earlier| {
            let findings = run(audit_store(store)).unwrap().0.findings;
            let about_handles = findings.into_iter().filter(|finding| {
                matches!(finding, Finding::HandleLeaked { .. } | Finding::HandleMissing { .. })
            });
            about_handles.count()
        };
        assert_eq!(found(&store(true, Vec::new())), 2, "the lists contradict each other");
        assert_eq!(found(&store(false, Vec::new())), 0);
        run(sim.commit(vec![Step::create(leaked.clone(), value)])).unwrap();
        let leaked = sim.records().remove(&leaked).unwrap();
        assert_eq!(found(&store(false, vec![leaked])), 1, "what is so now is a finding");
    }
}
