//! Every write of an ADD and of a DEL fails once with each fault: no address is allocated twice,
//! and DEL always succeeds in the end.

use russet_store::sim::{Fault, Faults};

use super::*;

/// More writes than any ADD or DEL has.
const WRITES_MAX: usize = 40;

const KINDS: [Fault; 4] = [Fault::Unavailable, Fault::LostRequest, Fault::LostReply, Fault::Conflict];

/// Injects `kind` into write number `nth`, counted from now, and into no other.
fn fail_write(stage: &Stage, kind: Fault, nth: usize) {
    stage.sim.script(std::iter::repeat_n(Fault::None, nth).chain([kind]));
}

/// Repeats DEL like a runtime until it succeeds, which takes at most one attempt more than there
/// are faults.
async fn del_until_done(stage: &Stage, ask: &Ask, tries: u32) {
    for _ in 1..tries {
        if stage.del(ask).await.is_ok() {
            return;
        }
    }
    stage.del(ask).await.unwrap();
}

/// Both kinds of store, each for a container and for a pod.
fn sims() -> [(Sim, usize); 4] {
    [(Sim::atomic(7), 0), (Sim::non_atomic(7), 0), (Sim::atomic(7), 1), (Sim::non_atomic(7), 1)]
}

fn asks(stage: &Stage) -> [Ask; 2] {
    stage.pod("mypod", json!({}));
    [Ask::container("abc123"), Ask::pod("abc123", "mypod")]
}

#[test]
fn an_add_that_fails_at_any_write_leaves_nothing_behind() {
    run(async {
        for kind in KINDS {
            for nth in 0..WRITES_MAX {
                for (sim, which) in sims() {
                    let stage = Stage::new(sim).await;
                    let ask = asks(&stage)[which].clone();
                    fail_write(&stage, kind, nth);
                    let added = stage.add(&ask).await;
                    match added {
                        Ok(result) => {
                            let held = stage.held("net1", "abc123").await;
                            assert_eq!(held, [result.ips[0].address.addr()], "{kind:?} {nth}");
                            assert_eq!(stage.endpoint().ip_networks, [result.ips[0].address]);
                        }
                        Err(error) if error.details.contains("held until DEL") => {}
                        Err(_) => stage.assert_bare(&["abc123"]).await,
                    }
                    // The fault may not have been reached yet.
                    del_until_done(&stage, &ask, 2).await;
                    stage.assert_bare(&["abc123"]).await;
                }
            }
        }
    });
}

#[test]
fn a_del_that_fails_at_any_write_succeeds_when_it_is_asked_again() {
    run(async {
        for kind in KINDS {
            for nth in 0..WRITES_MAX / 2 {
                for (sim, which) in sims() {
                    let stage = Stage::new(sim).await;
                    let ask = asks(&stage)[which].clone();
                    stage.add(&ask).await.unwrap();
                    fail_write(&stage, kind, nth);
                    del_until_done(&stage, &ask, 2).await;
                    stage.assert_bare(&["abc123"]).await;
                    stage.del(&ask).await.unwrap();
                }
            }
        }
    });
}

#[test]
fn oracle_21_a_second_add_that_fails_at_any_write_leaves_the_first_ones_address() {
    run(async {
        for kind in [Fault::Unavailable, Fault::LostRequest, Fault::Conflict] {
            for nth in 0..WRITES_MAX / 2 {
                for (sim, which) in sims() {
                    let stage = Stage::new(sim).await;
                    let ask = asks(&stage)[which].clone();
                    let first = stage.add(&ask).await.unwrap();
                    fail_write(&stage, kind, nth);
                    let _ = stage.add(&ask).await;
                    assert_eq!(stage.held("net1", "abc123").await, [first.ips[0].address.addr()]);
                    assert_eq!(stage.endpoint().ip_networks, [first.ips[0].address]);
                    assert_eq!(stage.wire.links.borrow().len(), 1, "the pod is still wired");
                }
            }
        }
    });
}

#[test]
fn addresses_stay_held_while_the_endpoint_or_interface_may_exist() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let ask = asks(&stage)[1].clone();
        stage.wire.refuse_detach.set(true);
        // The write of the endpoint is the last one of an ADD.
        let mut nth = 0;
        let error = loop {
            fail_write(&stage, Fault::Unavailable, nth);
            let added = stage.add(&ask).await;
            match added {
                Err(error) if error.msg.contains("endpoint") => break error,
                _ => nth += 1,
            }
            assert!(nth < WRITES_MAX);
            del_until_done(&stage, &ask, 3).await;
        };
        assert!(error.details.contains("the kernel holds it"), "{error}");
        assert_eq!(stage.held("net1", "abc123").await.len(), 1);
    });
}

#[test]
fn random_faults_leave_no_leaked_and_no_shared_address() {
    run(async {
        for seed in 0..60 {
            for sim in [Sim::atomic(seed), Sim::non_atomic(seed)] {
                let stage = Stage::new(sim).await;
                let asks: Vec<Ask> = ["a", "b", "c"]
                    .iter()
                    .flat_map(|pod| {
                        stage.pod(pod, json!({}));
                        [Ask::pod(&format!("{pod}1"), pod), Ask::pod(&format!("{pod}2"), pod)]
                    })
                    .collect();
                let rare = Faults {
                    conflict: 60,
                    lost_reply: 60,
                    lost_request: 60,
                    unavailable: 60,
                    ..Faults::default()
                };
                stage.sim.set_faults(rare);
                for ask in &asks {
                    let _ = stage.add(ask).await;
                    let _ = stage.add(ask).await;
                }
                stage.sim.set_faults(Faults::default());
                assert_no_address_twice(&stage, seed).await;
                for ask in &asks {
                    stage.del(ask).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                }
                let containers: Vec<&str> = asks.iter().map(|ask| ask.container.as_str()).collect();
                stage.assert_bare(&containers).await;
            }
        }
    });
}

/// Asserts that each endpoint's address is held by its own container.
async fn assert_no_address_twice(stage: &Stage, seed: u64) {
    for (name, endpoint) in stage.endpoints() {
        let held = stage.held("net1", &endpoint.spec.container_id).await;
        for net in &endpoint.spec.ip_networks {
            assert!(held.contains(&net.addr()), "seed {seed}: {name} has {net}, its container {held:?}");
        }
    }
}

/// An IPAM plugin that prints `result` and logs its calls.
fn scripted(result: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fake");
    let script =
        format!("#!/bin/sh\necho $CNI_COMMAND >>\"$0.verbs\"\n[ $CNI_COMMAND = DEL ] || echo '{result}'\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn a_failed_add_runs_del_of_the_other_ipam_plugin() {
    // calico-cni.md section 2.3, steps 4, 7, 8 and 9
    run(async {
        let good = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.5/24","gateway":"10.9.0.1"}]}"#;
        let none = r#"{"cniVersion":"1.0.0","ips":[]}"#;
        for (result, refuse, writes) in
            [(good, true, None), (good, false, Some(0)), (good, false, Some(1)), (none, false, None)]
        {
            let stage = Stage::new(Sim::atomic(1)).await;
            let plugins = scripted(result);
            let path = plugins.path().to_str().unwrap().to_owned();
            let config = json!({"ipam": {"type": "fake"}});
            let ask = Ask { path, ..Ask::container("abc123").with(config) };
            stage.wire.refuse.set(refuse);
            if let Some(nth) = writes {
                fail_write(&stage, Fault::Unavailable, nth);
            }
            stage.add(&ask).await.unwrap_err();
            let verbs = || std::fs::read_to_string(plugins.path().join("fake.verbs")).unwrap();
            assert_eq!(verbs(), "ADD\nDEL\n", "{result} {refuse} {writes:?}");
            stage.assert_bare(&["abc123"]).await;
            stage.del(&ask).await.unwrap();
            assert_eq!(verbs(), "ADD\nDEL\nDEL\n");
        }
    });
}
