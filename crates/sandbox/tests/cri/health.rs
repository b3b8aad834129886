//! `/readyz` and `/metrics` beside the socket.

use std::net::TcpListener;

use russet_testkit::eventually;

use crate::lab::{Lab, TIMEOUT};

#[test]
fn calls_and_sandboxes_are_counted_and_readiness_is_that_of_status() {
    // cni-runtime.md section 3.1: counts, errors and latency; kubelet's NetworkReady
    let mut lab = Lab::with_network();
    lab.serve_health();
    let id = lab.run("web");
    assert!(lab.cri.sandbox_status("none").is_err());
    let text = lab.get("/metrics");
    for line in [
        "russet_sandbox_sandboxes{state=\"ready\"} 1",
        "russet_sandbox_run_seconds_count 1",
        "russet_cri_requests_total{call=\"RunPodSandbox\",code=\"OK\"} 1",
        "russet_cri_requests_total{call=\"PodSandboxStatus\",code=\"NotFound\"} 1",
        "russet_cri_request_seconds_count{call=\"RunPodSandbox\"} 1",
        "russet_cri_requests_under_way{call=\"RunPodSandbox\"} 0",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
    }
    eventually(TIMEOUT, || lab.get("/readyz").starts_with("HTTP/1.1 200"));
    std::fs::remove_file(lab.path("net.d/10-pods.conflist")).unwrap();
    let unready = lab.get("/readyz?verbose");
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("[-] network: "), "{unready}");
    assert!(lab.get("/healthz").starts_with("HTTP/1.1 200"));
    lab.cri.remove(&id).unwrap();
}

#[test]
fn calls_are_served_while_the_health_address_is_in_use_and_health_once_it_is_free() {
    let mut lab = Lab::with_network();
    lab.stop();
    let squatter = TcpListener::bind("127.0.0.1:0").unwrap();
    lab.health = Some(squatter.local_addr().unwrap());
    lab.serve();
    lab.run("web");
    drop(squatter);
    eventually(TIMEOUT, || lab.get("/readyz?verbose").ends_with("[+] network\n[+] health\n"));
}
