//! GetContainerEvents.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use russet_testkit::cri::{StatusCode, v1};

use crate::lab::Lab;

/// The limit of watchers, and of connections.
const WATCHERS: usize = 16;
const CONNECTIONS: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(20);
/// RFC 9113 section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[test]
fn events_cover_a_sandboxs_whole_life_with_its_metadata() {
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
fn events_include_sandboxes_from_before_the_watch() {
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
    let cri = russet_testkit::cri::Cri::new(&lab.path("cri.sock")).unwrap();
    let mut events = cri.events().unwrap();
    lab.stop();
    assert_eq!(events.wait().unwrap(), None);
}

#[test]
fn watchers_are_limited_and_a_disconnect_frees_a_slot() {
    let lab = Lab::start();
    let mut watchers: Vec<_> = (0..WATCHERS).map(|_| lab.cri.events().unwrap()).collect();
    let refused = lab.cri.events().map(drop).unwrap_err();
    assert_eq!(refused.code(), Some(StatusCode::ResourceExhausted), "{refused}");
    watchers.pop();
    russet_testkit::eventually(TIMEOUT, || lab.cri.events().is_ok());
    // The remaining ones get their events.
    lab.run("web");
    assert!(watchers.iter_mut().all(|watcher| watcher.wait().unwrap().is_some()));
}

#[test]
fn silent_connections_do_not_block_new_clients() {
    let lab = Lab::start();
    // More than the limit; every second one is a client of HTTP/2 that requests nothing.
    let connect = |number: usize| {
        let mut stream = UnixStream::connect(lab.path("cri.sock")).unwrap();
        if number % 2 == 1 {
            stream.write_all(PREFACE).unwrap();
        }
        stream
    };
    let mut silent: Vec<_> = (0..2 * CONNECTIONS).map(connect).collect();
    let (service, version) = (v1::RUNTIME_SERVICE, v1::VersionRequest::default());
    let cri = russet_testkit::cri::Cri::new(&lab.path("cri.sock")).unwrap();
    cri.ask::<_, v1::VersionResponse>((service, "Version"), version, None).unwrap();
    // The oldest idle connection was closed for the new ones: its stream ends.
    silent[0].set_read_timeout(Some(TIMEOUT)).unwrap();
    let ended = silent[0].read_to_end(&mut Vec::new());
    assert!(
        !ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
        "it is still connected"
    );
}
