use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use russet_openshift::data_path::Settings;
use russet_policy::Load;
use russet_testkit::{eventually, in_netns_with_loopback, in_new_netns, run};

use super::*;
use crate::fast_path::Signal;

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

/// Regression: the repair thread and the loop waited for the holder of the data path, which
/// waits for other programs' commits.
#[test]
#[ignore = "kernel: network namespaces need root"]
fn the_repair_thread_does_not_wait_for_the_holder_of_openshifts_data_path() {
    in_new_netns(|| {
        let load: Load = Arc::new(|| Ok(Vec::new()));
        let shared = Shared::open(Metrics::new().0, EndpointTable::default(), Keeper::new(load)).unwrap();
        let controllers = Controllers(Arc::new(shared));
        let path = Arc::new(Mutex::new(Sdn::open(settings()).unwrap()));
        let held = lock(&path);
        let (begin, started) = mpsc::channel();
        let keeper = {
            let (controllers, path) = (controllers.clone(), Arc::clone(&path));
            thread::spawn(move || {
                begin.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                controllers.keep(&path)
            })
        };
        let thread = Path::new("/proc").join(started.recv().unwrap());
        eventually(Duration::from_secs(20), || sleeps(&thread));
        assert!(!controllers.0.drift.filters_events(), "the filter's lock is held meanwhile");
        drop(held);
        let reason = keeper.join().unwrap();
        assert_eq!(reason.borrow().as_deref(), Some("not yet"));
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn forwarding_of_openshifts_packets_is_enabled_and_kept_enabled() {
    in_netns_with_loopback(|| {
        let read = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        let disable = || run("sysctl", &["-w", "net.ipv4.ip_forward=0"]);
        for command in
            ["link add nic0 index 77 type veth peer name wire0", "address add 192.0.2.11/24 dev nic0"]
        {
            run("ip", &command.split(' ').collect::<Vec<_>>());
        }
        let load: Load = Arc::new(|| Ok(Vec::new()));
        let controllers = Controllers::start(
            Metrics::new().0,
            EndpointTable::default(),
            Keeper::new(load),
            Signal::default(),
        )
        .unwrap();
        let path = Arc::new(Mutex::new(Sdn::open(Settings { underlay: 77, ..settings() }).unwrap()));
        disable();
        let problem = controllers.keep(&path);
        controllers.reconcile();
        assert_eq!((read().trim(), problem.borrow().as_deref()), ("1", None));
        disable();
        eventually(Duration::from_secs(60), || read().trim() == "1");
    });
}
