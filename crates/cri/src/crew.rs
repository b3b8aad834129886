//! Threads for what blocks: so many for each kind of work, so that one kind that hangs leaves the others theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;

/// So many pieces of one kind of work at once.
#[derive(Debug, Clone)]
pub struct Crew {
    places: Arc<Semaphore>,
    closed: Arc<AtomicBool>,
    size: u32,
}

/// One of a crew that is free for a piece of work, until this is dropped.
pub type Place = OwnedSemaphorePermit;

// === impl Crew ===

impl Crew {
    /// A crew of `size`.
    pub fn of(size: u32) -> Self {
        Self { places: Arc::new(Semaphore::new(size as usize)), closed: Arc::default(), size }
    }

    /// Does `work` when it is its turn. Who stops waiting before has asked for nothing; what has begun is brought to its end, whoever waits.
    pub async fn execute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let place = self.place().await?;
        self.execute_at(place, work).await
    }

    /// Waits until one is free, in the order of coming.
    pub async fn place(&self) -> Result<Place, Status> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        place.map_err(|_| stopping())
    }

    /// One that is free now.
    pub fn try_place(&self) -> Option<Place> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Does `work` now.
    pub async fn execute_at<T: Send + 'static>(
        &self,
        place: Place,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        // Also whoever has waited since before.
        if self.closed.load(Ordering::SeqCst) {
            return Err(stopping());
        }
        let worker = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        worker.await.map_err(|error| Status::internal(format!("the work ended half-way: {error}")))
    }

    /// Lets nobody begin any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Waits for those who have begun, of a crew that is closed. False if some are still at it at `deadline`.
    pub async fn rest(&self, deadline: Instant) -> bool {
        tokio::time::timeout_at(deadline, self.places.acquire_many(self.size)).await.is_ok()
    }
}

fn stopping() -> Status {
    Status::unavailable("the server is stopping")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Somebody of the crew has begun, and is at it until told to go.
    async fn busy(crew: &Crew) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), Status>>) {
        let (go, wait) = mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let crew = crew.clone();
        let work = move || {
            begun.send(()).unwrap();
            wait.recv().unwrap();
        };
        let task = tokio::spawn(async move { crew.execute(work).await });
        has_begun.await.unwrap();
        (go, task)
    }

    #[tokio::test]
    async fn who_stops_waiting_before_its_turn_has_asked_for_nothing() {
        let crew = Crew::of(1);
        let (go, first) = busy(&crew).await;
        let (tell, told) = mpsc::channel::<()>();
        let second = crew.execute(move || tell.send(()));
        assert!(tokio::time::timeout(Duration::from_millis(20), second).await.is_err());
        go.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert!(told.recv().is_err(), "it was done for nobody");
    }

    #[tokio::test]
    async fn who_waits_when_the_crew_is_closed_does_not_begin() {
        let crew = Crew::of(1);
        let (go, first) = busy(&crew).await;
        let second = crew.execute(|| panic!("it has begun"));
        tokio::pin!(second);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut second).await.is_err());
        crew.close();
        go.send(()).unwrap();
        assert_eq!(second.await.unwrap_err().code(), tonic::Code::Unavailable);
        first.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_has_begun_is_brought_to_its_end_and_waited_for() {
        let crew = Crew::of(2);
        let (go, wait) = mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (tell, told) = mpsc::channel::<()>();
        let work = crew.execute(move || {
            begun.send(()).unwrap();
            wait.recv().unwrap();
            tell.send(()).unwrap();
        });
        tokio::select! {
            biased;
            _ = work => panic!("it cannot be done"),
            begun = has_begun => begun.unwrap(),
        }
        crew.close();
        assert!(!crew.rest(Instant::now() + Duration::from_millis(20)).await);
        go.send(()).unwrap();
        told.recv().unwrap();
        let refused = crew.execute(|| ()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
    }
}
