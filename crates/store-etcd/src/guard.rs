//! One commit as one transaction: its guards become comparisons, its steps operations, and its
//! failure branch a read of every guarded key, which identifies the step that failed
//! (calico-ipam.md section 2.1).

use russet_model::Key;
use russet_store::{CommitError, LeaseId, Revision, Step, StoreError};

use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::request_op::Request;
use crate::proto::response_op::Response;
use crate::proto::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};

/// A transaction, with the data that is needed to explain its failure.
pub(crate) struct Transaction {
    pub(crate) request: TxnRequest,
    guards: Vec<Guard>,
    /// Each lease that a step names, with the first step that names it.
    pub(crate) leases: Vec<(usize, LeaseId)>,
}

struct Guard {
    step: usize,
    key: Key,
    demand: Demand,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    Absent,
    Present,
    At(Revision),
}

// === impl Transaction ===

impl Transaction {
    /// Translates steps that have passed [`russet_store::check_steps`].
    pub(crate) fn new(steps: Vec<Step>) -> Self {
        let mut request = TxnRequest::default();
        let mut guards = Vec::new();
        let mut leases: Vec<(usize, LeaseId)> = Vec::new();
        for (index, step) in steps.into_iter().enumerate() {
            if let Some(lease) = step.lease()
                && !leases.iter().any(|(_, known)| *known == lease)
            {
                leases.push((index, lease));
            }
            let demand = match &step {
                Step::Create { .. } => Some(Demand::Absent),
                Step::Update { revision, .. } => Some(Demand::At(*revision)),
                Step::Delete { revision, .. } => Some(revision.map_or(Demand::Present, Demand::At)),
                Step::Put { .. } => None,
            };
            if let Some(demand) = demand {
                let key = step.key().clone();
                request.compare.push(demand.compare(&key));
                request.failure.push(look(&key));
                guards.push(Guard { step: index, key, demand });
            }
            request.success.push(operation(step));
        }
        Self { request, guards, leases }
    }

    /// The step whose guard failed, determined from the state of the keys at that moment.
    pub(crate) fn verdict(&self, answer: &TxnResponse) -> CommitError {
        let seen = answer.responses.iter().map(|response| match &response.response {
            Some(Response::ResponseRange(range)) => {
                range.kvs.first().map(|kv| crate::range::revision(kv.mod_revision))
            }
            _ => None,
        });
        for (guard, current) in self.guards.iter().zip(seen) {
            if let Err(error) = guard.check(current) {
                return CommitError { done: 0, failed: guard.step, error };
            }
        }
        CommitError::from(StoreError::Unknown {
            operation: format!("commit of {} steps", self.request.success.len()),
            source: russet_store::Cause::text("etcd refused it, and every guard holds"),
        })
    }
}

// === impl Guard ===

impl Guard {
    fn check(&self, current: Option<Revision>) -> Result<(), StoreError> {
        let key = || self.key.clone();
        match (self.demand, current) {
            (Demand::Absent, None) | (Demand::Present, Some(_)) => Ok(()),
            (Demand::Absent, Some(_)) => Err(StoreError::AlreadyExists { key: key() }),
            (Demand::Present | Demand::At(_), None) => Err(StoreError::NotFound { key: key() }),
            (Demand::At(revision), Some(current)) if revision == current => Ok(()),
            (Demand::At(_), Some(_)) => Err(StoreError::Conflict { key: key() }),
        }
    }
}

// === impl Demand ===

impl Demand {
    fn compare(self, key: &Key) -> Compare {
        let (target, result, target_union) = match self {
            Self::Absent => (CompareTarget::Version, CompareResult::Equal, TargetUnion::Version(0)),
            Self::Present => (CompareTarget::Version, CompareResult::Greater, TargetUnion::Version(0)),
            Self::At(revision) => {
                // etcd treats a missing key as revision 0, which no read ever returned: -1 is never
                // equal.
                let of_etcd = i64::try_from(revision.0).ok().filter(|revision| *revision > 0).unwrap_or(-1);
                (CompareTarget::Mod, CompareResult::Equal, TargetUnion::ModRevision(of_etcd))
            }
        };
        Compare {
            result: result.into(),
            target: target.into(),
            key: key.as_str().into(),
            target_union: Some(target_union),
        }
    }
}

/// Reads a key's revision without its value.
fn look(key: &Key) -> RequestOp {
    let range = RangeRequest { key: key.as_str().into(), keys_only: true, ..RangeRequest::default() };
    RequestOp { request: Some(Request::RequestRange(range)) }
}

fn operation(step: Step) -> RequestOp {
    let request = match step {
        Step::Create { key, value, lease }
        | Step::Update { key, value, lease, .. }
        | Step::Put { key, value, lease } => {
            let lease = lease.map_or(0, crate::lease::number);
            Request::RequestPut(PutRequest { key: key.as_str().into(), value, lease })
        }
        Step::Delete { key, .. } => {
            Request::RequestDeleteRange(DeleteRangeRequest { key: key.as_str().into() })
        }
    };
    RequestOp { request: Some(request) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::mvccpb::KeyValue;
    use crate::proto::{RangeResponse, ResponseOp};

    fn key(name: &str) -> Key {
        Key::from_stored(format!("/calico/ipam/v2/handle/{name}"))
    }

    fn seen(revision: Option<i64>) -> ResponseOp {
        let kvs = revision.map(|mod_revision| KeyValue { mod_revision, ..KeyValue::default() });
        let range = RangeResponse { kvs: kvs.into_iter().collect(), ..RangeResponse::default() };
        ResponseOp { response: Some(Response::ResponseRange(range)) }
    }

    #[test]
    fn guarded_steps_are_compared_and_read_and_puts_are_not() {
        let steps = vec![
            Step::put(key("a"), "1"),
            Step::create(key("b"), "2"),
            Step::update(key("c"), "3", Revision(7)),
            Step::delete(key("d"), None),
        ];
        let transaction = Transaction::new(steps);
        let request = &transaction.request;
        assert_eq!((request.compare.len(), request.failure.len(), request.success.len()), (3, 3, 4));
        assert_eq!(request.compare[1].target_union, Some(TargetUnion::ModRevision(7)));
    }

    #[test]
    fn the_first_failed_guard_names_the_step() {
        let steps = || {
            vec![
                Step::put(key("a"), "1"),
                Step::create(key("b"), "2"),
                Step::update(key("c"), "3", Revision(7)),
            ]
        };
        for (b, c, step, text) in [
            (Some(3), Some(7), 1, "exists already"),
            (None, Some(8), 2, "was changed"),
            (None, None, 2, "does not exist"),
        ] {
            let answer = TxnResponse { responses: vec![seen(b), seen(c)], ..TxnResponse::default() };
            let error = Transaction::new(steps()).verdict(&answer);
            assert_eq!((error.done, error.failed), (0, step));
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn an_update_from_revision_0_cannot_create() {
        for revision in [Revision(0), Revision(u64::MAX)] {
            let transaction = Transaction::new(vec![Step::update(key("a"), "1", revision)]);
            assert_eq!(transaction.request.compare[0].target_union, Some(TargetUnion::ModRevision(-1)));
        }
    }
}
