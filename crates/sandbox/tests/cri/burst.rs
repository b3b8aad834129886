//! The benchmark's client against a server.

use std::sync::OnceLock;

use russet_testkit::cri::{Pod, burst, v1};

use crate::lab::{Lab, host_pod};

fn nth(n: usize) -> v1::PodSandboxConfig {
    host_pod(&format!("burst-{n}"))
}

#[test]
fn a_burst_makes_and_removes_its_sandboxes() {
    let lab = Lab::start();
    let report = burst(&lab.cri, 6, 3, nth).unwrap();
    for phase in ["run", "end"] {
        assert_eq!(report[phase]["each_us"].as_array().unwrap().len(), 6, "{report}");
    }
    assert_eq!((lab.cri.sandboxes().unwrap().len(), lab.engine.count()), (0, 0));
}

#[test]
fn a_burst_refuses_a_server_that_has_sandboxes() {
    let lab = Lab::start();
    let id = lab.run("web");
    let error = burst(&lab.cri, 2, 1, nth).unwrap_err().to_string();
    assert_eq!(error, "the server has 1 sandboxes already; nothing was started");
    assert_eq!(lab.ready(), [id]);
}

#[test]
fn a_failed_burst_removes_only_its_own_sandboxes() {
    let lab = Lab::start();
    let anothers = OnceLock::new();
    let pod = |n| match n {
        0 | 1 => nth(n),
        _ => {
            anothers.set(lab.run("web")).unwrap();
            // There is no network for it.
            Pod::named("fails").config()
        }
    };
    assert!(burst(&lab.cri, 9, 1, pod).is_err());
    assert_eq!(lab.ready(), [anothers.into_inner().unwrap()]);
    assert_eq!(lab.engine.count(), 1);
}
