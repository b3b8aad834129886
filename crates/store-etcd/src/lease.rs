//! Leases, granted under an id of our own choice, so that a request whose answer was lost can be
//! repeated.

use std::time::Duration;

use russet_store::{LeaseId, StoreError};
use russet_sync::random;

use crate::client::{Client, Line};
use crate::failure::{Class, Effect};
use crate::proto::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest};

/// How many ids may be in use already before that is an error: with 63 random bits, one is
/// unlikely.
const MAX_IDS: usize = 3;

/// Opens a lease of at least `ttl`; etcd counts whole seconds.
pub(crate) async fn grant(client: &Client, ttl: Duration) -> Result<LeaseId, StoreError> {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX).max(1);
    let mut ids = 0;
    loop {
        ids += 1;
        let id = i64::try_from(random() >> 1).unwrap_or(1).max(1);
        let ask = |line: Line| {
            let request = line.request(LeaseGrantRequest { ttl: seconds, id });
            async move { Ok(line.lease().lease_grant(request).await?.into_inner()) }
        };
        match client.call(Effect::Idempotent, ask).await {
            Ok(granted) => return Ok(lease(granted.id)),
            // The previous attempt was executed, and its answer was lost.
            Err(failure) if failure.class == Class::LeaseExists && failure.after_unknown => {
                return Ok(lease(id));
            }
            Err(failure) if failure.class == Class::LeaseExists && ids < MAX_IDS => {}
            Err(failure) => {
                return Err(failure.into_store_error("grant lease".to_owned(), Effect::Idempotent));
            }
        }
    }
}

/// Renews a lease to its full time.
pub(crate) async fn keep_alive(client: &Client, id: LeaseId) -> Result<Duration, StoreError> {
    let ask = |line: Line| {
        let message = LeaseKeepAliveRequest { id: number(id) };
        let request = line.request(tokio_stream::once(message));
        async move {
            let mut answers = line.lease().lease_keep_alive(request).await?.into_inner();
            let answer = answers.message().await?;
            answer
                .ok_or_else(|| tonic::Status::unavailable("the member ended the exchange without an answer"))
        }
    };
    let answer = client.call(Effect::Read, ask).await;
    let operation = || format!("keep lease {} alive", id.0);
    let answer = answer.map_err(|failure| failure.told_of_lease(id, operation(), Effect::Read))?;
    match u64::try_from(answer.ttl) {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(StoreError::NoLease { lease: id }),
    }
}

/// Ends a lease now.
pub(crate) async fn revoke(client: &Client, id: LeaseId) -> Result<(), StoreError> {
    let ask = |line: Line| {
        let request = line.request(LeaseRevokeRequest { id: number(id) });
        async move { Ok(line.lease().lease_revoke(request).await?.into_inner()) }
    };
    match client.call(Effect::Idempotent, ask).await {
        Ok(_) => Ok(()),
        // The previous attempt was executed and its answer was lost, or the lease has expired
        // meanwhile; both are success.
        Err(failure) if failure.class == Class::NoLease && failure.after_unknown => Ok(()),
        Err(failure) => Err(failure.told_of_lease(id, format!("revoke lease {}", id.0), Effect::Idempotent)),
    }
}

/// Which of the leases that a refused commit named does not exist, with the step that named it.
/// etcd does not report that.
pub(crate) async fn missing(client: &Client, leases: &[(usize, LeaseId)]) -> Option<(usize, LeaseId)> {
    if let [only] = leases {
        return Some(*only);
    }
    for (step, id) in leases {
        let ask = |line: Line| {
            let request = line.request(LeaseTimeToLiveRequest { id: number(*id) });
            async move { Ok(line.lease().lease_time_to_live(request).await?.into_inner()) }
        };
        if client.call(Effect::Read, ask).await.is_ok_and(|answer| answer.ttl < 0) {
            return Some((*step, *id));
        }
    }
    leases.first().copied()
}

/// etcd's lease ids are signed, but never negative.
pub(crate) fn number(id: LeaseId) -> i64 {
    id.0.cast_signed()
}

fn lease(number: i64) -> LeaseId {
    LeaseId(number.cast_unsigned())
}
