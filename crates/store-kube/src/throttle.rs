//! Limits the writes of this process: their rate, and how many are in flight. The API server limits
//! all agents of a cluster together, so each has to limit itself (kubernetes.md section 4.1).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::WriteLimit;

/// Writes in flight; more would only wait in the server.
const IN_FLIGHT: usize = 8;

/// The bucket and the places of writes.
#[derive(Debug)]
pub(crate) struct Throttle {
    limit: Option<WriteLimit>,
    bucket: Mutex<Bucket>,
    in_flight: Semaphore,
}

#[derive(Debug)]
struct Bucket {
    /// Below 0: writes that wait.
    tokens: f64,
    filled: Instant,
}

// === impl Throttle ===

impl Throttle {
    pub(crate) fn new(limit: Option<WriteLimit>) -> Self {
        let tokens = limit.map_or(0.0, |limit| f64::from(limit.burst));
        let bucket = Mutex::new(Bucket { tokens, filled: Instant::now() });
        Self { limit, bucket, in_flight: Semaphore::new(IN_FLIGHT) }
    }

    /// Waits until a write may be sent; it is in flight while the permit lives. None: it may not be
    /// sent before `until`.
    pub(crate) async fn permit(&self, until: Instant) -> Option<SemaphorePermit<'_>> {
        let permit = async {
            let permit = self.in_flight.acquire().await;
            tokio::time::sleep(self.take(Instant::now())).await;
            permit
        };
        tokio::time::timeout_at(until, permit).await.ok()?.ok()
    }

    /// Takes a token, and returns the time until it is there.
    fn take(&self, now: Instant) -> Duration {
        let Some(limit) = self.limit else { return Duration::ZERO };
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = f64::from(limit.per_second.max(1));
        let since = now.saturating_duration_since(bucket.filled);
        bucket.filled = now;
        bucket.tokens = (bucket.tokens + since.as_secs_f64() * rate).min(f64::from(limit.burst)) - 1.0;
        Duration::from_secs_f64((-bucket.tokens).max(0.0) / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_waits_for_others_until_its_deadline() {
        let throttle = Throttle::new(None);
        let until = Instant::now() + Duration::from_secs(10);
        let mut in_flight = Vec::new();
        for _ in 0..IN_FLIGHT {
            in_flight.push(throttle.permit(until).await.unwrap());
        }
        assert!(throttle.permit(until).await.is_none());
        assert_eq!(Instant::now(), until);
        in_flight.pop();
        assert!(throttle.permit(until + Duration::from_secs(1)).await.is_some());
    }

    #[tokio::test]
    async fn a_burst_is_free_and_the_rest_waits_at_the_rate() {
        // kubernetes.md section 1.15
        let throttle = Throttle::new(Some(WriteLimit { per_second: 20, burst: 40 }));
        let now = Instant::now();
        let waits: Vec<Duration> = (0..60).map(|_| throttle.take(now)).collect();
        assert!(waits.iter().take(40).all(Duration::is_zero));
        assert_eq!((waits[40].as_millis(), waits[59].as_millis()), (50, 1000));
        // The 20 that wait have used the next second; then the bucket fills again.
        assert_eq!(throttle.take(now + Duration::from_secs(2)), Duration::ZERO);
        assert!(Throttle::new(None).take(now).is_zero());
    }
}
