//! Hanging operations, and the requests that they must not delay (cni-runtime.md section 7:
//! cri#1078, containerd#4666).

use std::time::Duration;

use russet_testkit::cri::{StatusCode, v1};

use crate::lab::{Lab, host_pod};

/// More than the server's concurrent creations.
const MANY: usize = 30;
/// The server's concurrent creations.
const POOL_SIZE: usize = 24;
/// The server's concurrent lists.
const LOOKS: usize = 12;

fn fill<'scope>(lab: &'scope Lab, scope: &'scope std::thread::Scope<'scope, '_>) {
    for n in 0..MANY {
        scope.spawn(move || lab.cri.run_config(host_pod(&format!("hang-{n}"))).unwrap());
    }
    lab.engine.wait_for_hanging(POOL_SIZE);
}

#[test]
fn hanging_creations_delay_neither_lists_nor_removals() {
    let lab = Lab::start();
    let id = lab.run("web");
    std::thread::scope(|scope| {
        fill(&lab, scope);
        // Each would wait for ever if it needed a thread of the hanging ones.
        assert!(lab.cri.status().unwrap().status.unwrap().conditions[0].status);
        assert_eq!(lab.ready(), [id.as_str()]);
        lab.cri.stop(&id).unwrap();
        lab.cri.remove(&id).unwrap();
        assert!(lab.cri.sandbox_status(&id).is_err());
        lab.engine.release();
    });
    assert_eq!(lab.ready().len(), MANY);
}

#[test]
fn a_creation_that_waits_for_others_does_not_keep_its_pods_older_sandbox() {
    let mut lab = Lab::start();
    lab.serve_health();
    let id = lab.run("web");
    let mut next = host_pod("web");
    next.metadata.as_mut().unwrap().attempt = 1;
    let next = std::thread::scope(|scope| {
        fill(&lab, scope);
        let next = scope.spawn(|| lab.cri.run_config(next).unwrap());
        // It waits, like all creations.
        lab.wait_for_runs(MANY + 1);
        let end = |method| {
            let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
            let deadline = Some(Duration::from_secs(20));
            lab.cri.ask::<_, v1::StopPodSandboxResponse>((v1::RUNTIME_SERVICE, method), request, deadline)
        };
        let ended = end("StopPodSandbox").and_then(|_| end("RemovePodSandbox"));
        // Before the assertions: a failure would leave the test hanging.
        lab.engine.release();
        ended.unwrap();
        next.join().unwrap()
    });
    assert!(lab.ready().contains(&next) && !lab.ready().contains(&id));
    assert_eq!(lab.ready().len(), MANY + 1);
}

#[test]
fn hanging_lists_do_not_delay_removals() {
    let lab = Lab::start();
    let ids = [lab.run("by-id"), lab.run("by-prefix")];
    lab.engine.hang_lists();
    let ended = std::thread::scope(|scope| {
        let looks = (0..LOOKS).map(|_| scope.spawn(|| lab.cri.list(v1::PodSandboxFilter::default())));
        let looks: Vec<_> = looks.collect();
        lab.engine.wait_for_hanging(LOOKS);
        let end = |method, id: &str| {
            let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
            let deadline = Some(Duration::from_secs(20));
            lab.cri.ask::<_, v1::StopPodSandboxResponse>((v1::RUNTIME_SERVICE, method), request, deadline)
        };
        let mut ended = Vec::new();
        for id in [&ids[0], &ids[1][..16]] {
            ended.extend(["StopPodSandbox", "RemovePodSandbox"].map(|method| end(method, id)));
        }
        // Before the assertions: a failure would leave the test hanging.
        lab.engine.release();
        looks.into_iter().for_each(|look| drop(look.join().unwrap().unwrap()));
        ended
    });
    for ended in ended {
        ended.unwrap();
    }
    assert_eq!(lab.engine.count(), 0);
}

#[test]
fn repeated_removals_of_a_hanging_pod_use_one_thread() {
    let lab = Lab::start();
    let (stuck, id) = (lab.run("stuck"), lab.run("web"));
    let end = |method, id: &str, deadline| {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        lab.cri.ask::<_, v1::StopPodSandboxResponse>((v1::RUNTIME_SERVICE, method), request, deadline)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| end("StopPodSandbox", &stuck, None));
        lab.engine.wait_for_hanging(1);
        // kubelet retries again and again, each time until its deadline; so do the next attempts of
        // the pod.
        for n in 0..MANY {
            let method = ["StopPodSandbox", "RemovePodSandbox"][n % 2];
            assert!(end(method, &stuck, Some(Duration::from_millis(5))).is_err());
            let mut next = host_pod("stuck");
            next.metadata.as_mut().unwrap().attempt = 1;
            let request = v1::RunPodSandboxRequest { config: Some(next), ..Default::default() };
            let call = (v1::RUNTIME_SERVICE, "RunPodSandbox");
            let made =
                lab.cri.ask::<_, v1::RunPodSandboxResponse>(call, request, Some(Duration::from_millis(5)));
            assert!(made.is_err());
        }
        end("StopPodSandbox", &id, None).unwrap();
        end("RemovePodSandbox", &id, None).unwrap();
        lab.run("another");
        lab.engine.release();
        first.join().unwrap().unwrap();
    });
    lab.cri.remove(&stuck).unwrap();
    assert_eq!(lab.cri.sandboxes().unwrap().len(), 1, "the other one");
}

#[test]
fn a_call_cancelled_before_its_start_is_not_started() {
    let mut lab = Lab::start();
    lab.serve_health();
    std::thread::scope(|scope| {
        fill(&lab, scope);
        lab.wait_for_runs(MANY);
        let late = scope.spawn(|| {
            let request = v1::RunPodSandboxRequest { config: Some(host_pod("late")), ..Default::default() };
            let call = (v1::RUNTIME_SERVICE, "RunPodSandbox");
            lab.cri.ask::<_, v1::RunPodSandboxResponse>(call, request, Some(Duration::from_secs(2)))
        });
        // It has arrived, and waits like the others.
        lab.wait_for_runs(MANY + 1);
        // The server counts the deadline from the arrival of the call, and detects that the client
        // is gone.
        let late = late.join().unwrap();
        lab.wait_for_runs(MANY);
        lab.engine.release();
        let code = late.unwrap_err().code();
        assert!(matches!(code, Some(StatusCode::DeadlineExceeded | StatusCode::Cancelled)), "{code:?}");
    });
    let names = lab.cri.list(v1::PodSandboxFilter::default()).unwrap();
    assert_eq!(names.iter().filter(|item| item.metadata.as_ref().unwrap().name == "late").count(), 0);
    assert_eq!(names.len(), MANY);
}

#[test]
fn a_creation_whose_client_left_is_completed_and_listed() {
    let lab = Lab::start();
    let request = v1::RunPodSandboxRequest { config: Some(host_pod("hang")), ..Default::default() };
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let call = (v1::RUNTIME_SERVICE, "RunPodSandbox");
            lab.cri.ask::<_, v1::RunPodSandboxResponse>(call, request, Some(Duration::from_secs(2)))
        });
        lab.engine.wait_for_hanging(1);
        assert!(caller.join().unwrap().is_err());
        lab.engine.release();
    });
    russet_testkit::eventually(Duration::from_secs(20), || lab.ready().len() == 1);
}

#[test]
fn a_stopping_server_answers_requests_in_progress() {
    let mut lab = Lab::start();
    let server = std::thread::scope(|scope| {
        let (cri, engine) =
            (russet_testkit::cri::Cri::new(&lab.path("cri.sock")).unwrap(), lab.engine.clone());
        let caller = scope.spawn(move || cri.run_config(host_pod("hang")));
        engine.wait_for_hanging(1);
        let server = lab.request_stop();
        engine.release();
        caller.join().unwrap().unwrap();
        server
    });
    server.join().unwrap().unwrap();
    lab.serve();
    assert_eq!(lab.ready().len(), 1);
}

#[test]
fn status_does_not_wait_for_plugins_that_hang() {
    let lab = Lab::with_network();
    std::fs::write(lab.path("gate"), "").unwrap();
    let condition = lab.network_condition();
    assert_eq!((condition.status, condition.reason.as_str()), (false, "NetworkPluginNotReady"));
    assert_eq!(condition.message, "the network's plugins have not answered yet");
    assert!(lab.cri.sandboxes().unwrap().is_empty());
    // The plugin continues, and its answer is the next one.
    std::fs::remove_file(lab.path("gate")).unwrap();
    russet_testkit::eventually(Duration::from_secs(20), || lab.network_condition().status);
}
