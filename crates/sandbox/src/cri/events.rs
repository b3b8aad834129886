//! Sandbox events as a stream for one client. Each stream has a thread of its own, so that a slow
//! reader delays no other.

use std::pin::Pin;
use std::sync::mpsc::RecvTimeoutError;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::{Event, EventKind, Sandboxes};
use russet_cri_api as v1;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_stream::Stream;
use tonic::Status;

use crate::cri::answer;

type Item = Result<v1::ContainerEventResponse, Status>;

/// The events for one client, until it leaves or the server stops.
pub struct Events {
    items: mpsc::Receiver<Item>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Buffered events per client; more wait in the sandboxes' own channel.
const BUFFERED: usize = 64;
/// How often a thread without events checks whether its client is still connected.
const LOOK_EVERY: Duration = Duration::from_secs(1);

// === impl Events ===

impl Events {
    /// Starts the stream. `permit` is released when the client has left.
    pub fn start(
        sandboxes: &Sandboxes,
        mut stopped: watch::Receiver<bool>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, Status> {
        let (sender, items) = mpsc::channel(BUFFERED);
        // Before the answer starts: the effects of the client's next calls are among the events.
        let events = sandboxes.events();
        let forward_all = move || {
            let _place = permit;
            forward(&events, &sender);
        };
        let thread = std::thread::Builder::new().name("cri-events".into()).spawn(forward_all);
        thread.map_err(|error| Status::unavailable(format!("start a thread for events: {error}")))?;
        let stopped = Box::pin(async move {
            // An error means that the server has ended already.
            let _ = stopped.wait_for(|stop| *stop).await;
        });
        Ok(Self { items, stopped })
    }
}

impl Stream for Events {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        match self.stopped.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => self.items.poll_recv(context),
        }
    }
}

/// Forwards events to one client.
fn forward(events: &crate::Events, caller: &mpsc::Sender<Item>) {
    while !caller.is_closed() {
        let item = match events.wait(LOOK_EVERY) {
            Ok(event) => Ok(response(&event)),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => Err(Status::data_loss(
                "events were lost because they were not read in time; list, and ask again",
            )),
        };
        let last = item.is_err();
        if caller.blocking_send(item).is_err() || last {
            return;
        }
    }
}

fn response(event: &Event) -> v1::ContainerEventResponse {
    use v1::ContainerEventType as Type;
    let kind = match event.kind {
        EventKind::Created => Type::ContainerCreatedEvent,
        EventKind::Started => Type::ContainerStartedEvent,
        EventKind::Stopped => Type::ContainerStoppedEvent,
        EventKind::Deleted => Type::ContainerDeletedEvent,
    };
    v1::ContainerEventResponse {
        container_id: event.sandbox.id.to_string(),
        container_event_type: kind.into(),
        created_at: answer::nanoseconds(event.at),
        pod_sandbox_status: Some(answer::status(&event.sandbox)),
    }
}
