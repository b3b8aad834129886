use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use russet_overlay::openshift::Settings;
use russet_policy::Load;
use russet_testkit::{eventually, in_new_netns};

use super::*;

fn settings() -> Settings {
    Settings {
        cluster: vec!["10.128.0.0/14".parse().unwrap()],
        service: None,
        own: "10.128.2.0/23".parse().unwrap(),
        node_ip: Ipv4Addr::new(192, 0, 2, 11),
        underlay: 1,
        mtu: 1450,
        vxlan_port: 4789,
    }
}

/// Whether a thread sleeps, on a lock as on anything else.
fn sleeps(thread: &Path) -> bool {
    let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('S')
}

/// Regression: the listening thread and the loop waited for the holder of the data path, which
/// waits for other programs' commits.
#[test]
#[ignore = "kernel: network namespaces need root"]
fn the_listening_thread_does_not_wait_for_the_holder_of_openshifts_data_path() {
    in_new_netns(|| {
        let load: Load = Arc::new(|| Ok(Vec::new()));
        let shared =
            Shared::open(Metrics::new().0, AttachedInterfaces::default(), Keeper::new(load)).unwrap();
        let drift = Drift(Arc::new(shared));
        let path = Arc::new(Mutex::new(DataPath::open(settings()).unwrap()));
        let held = lock(&path);
        let (begin, started) = mpsc::channel();
        let keeper = {
            let (drift, path) = (drift.clone(), Arc::clone(&path));
            thread::spawn(move || {
                begin.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                drift.keep_sdn(&path)
            })
        };
        let thread = Path::new("/proc").join(started.recv().unwrap());
        eventually(Duration::from_secs(20), || sleeps(&thread));
        assert!(drift.0.event_filter.try_lock().is_ok(), "the filter's lock is held meanwhile");
        drop(held);
        let reason = keeper.join().unwrap();
        assert_eq!(reason.borrow().as_deref(), Some("not yet"));
    });
}
