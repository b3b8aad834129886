//! GetContainerEvents.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use russet_cri_client::{StatusCode, v1};

use crate::lab::Lab;

/// As many as may watch, and as may be connected.
const WATCHERS: usize = 16;
const CONNECTIONS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_life_is_told_from_its_beginning_to_its_end_with_whose_it_was() {
    use v1::ContainerEventType::{
        ContainerCreatedEvent, ContainerDeletedEvent, ContainerStartedEvent, ContainerStoppedEvent,
    };
    let lab = Lab::start();
    let mut events = lab.cri.events().unwrap();
    let id = lab.run("web");
    lab.cri.stop(&id).unwrap();
    lab.cri.remove(&id).unwrap();
    for kind in [ContainerCreatedEvent, ContainerStartedEvent, ContainerStoppedEvent, ContainerDeletedEvent] {
        let event = events.wait().unwrap().unwrap();
        assert_eq!((event.container_event_type(), &event.container_id), (kind, &id));
        assert!(event.created_at > 0);
        let metadata = event.pod_sandbox_status.and_then(|status| status.metadata).unwrap();
        assert_eq!(metadata.name, "web", "{kind:?}");
    }
}

#[test]
fn a_sandbox_that_was_there_before_is_known_when_it_goes() {
    let lab = Lab::start();
    let id = lab.run("web");
    lab.cri.stop(&id).unwrap();
    let mut events = lab.cri.events().unwrap();
    lab.cri.remove(&id).unwrap();
    let event = events.wait().unwrap().unwrap();
    assert_eq!(event.container_event_type(), v1::ContainerEventType::ContainerDeletedEvent);
    assert_eq!(event.pod_sandbox_status.unwrap().metadata.unwrap().name, "web");
}

#[test]
fn the_stream_ends_when_the_server_does() {
    let mut lab = Lab::start();
    let cri = russet_cri_client::Cri::new(&lab.path("cri.sock")).unwrap();
    let mut events = cri.events().unwrap();
    lab.stop();
    assert_eq!(events.wait().unwrap(), None);
}

#[test]
fn only_so_many_may_watch_and_who_leaves_makes_room() {
    let lab = Lab::start();
    let mut watchers: Vec<_> = (0..WATCHERS).map(|_| lab.cri.events().unwrap()).collect();
    let refused = lab.cri.events().map(drop).unwrap_err();
    assert_eq!(refused.code(), Some(StatusCode::ResourceExhausted), "{refused}");
    watchers.pop();
    russet_testkit::eventually(PATIENCE, || lab.cri.events().is_ok());
    // Those that stayed are told.
    lab.run("web");
    assert!(watchers.iter_mut().all(|watcher| watcher.wait().unwrap().is_some()));
}

#[test]
fn silent_connections_keep_no_caller_from_service() {
    let lab = Lab::start();
    let connect = || UnixStream::connect(lab.path("cri.sock")).unwrap();
    let mut silent: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
    let (service, version) = (v1::RUNTIME_SERVICE, v1::VersionRequest::default());
    let cri = russet_cri_client::Cri::new(&lab.path("cri.sock")).unwrap();
    cri.ask::<_, v1::VersionResponse>((service, "Version"), version, None).unwrap();
    // The one that waited longest had to go for those that came after it: what the server said to it ends.
    silent[0].set_read_timeout(Some(PATIENCE)).unwrap();
    let ended = silent[0].read_to_end(&mut Vec::new());
    assert!(
        !ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
        "it is still connected"
    );
}
