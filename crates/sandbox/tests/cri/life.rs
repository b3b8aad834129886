//! Sandboxes made, listed and removed: the rows of cni-runtime.md section 3.2.

use russet_testkit::cri::{Pod, StatusCode, v1};

use crate::lab::{Lab, host_pod};

fn unknown_id() -> String {
    "0f".repeat(32)
}

#[test]
fn a_sandbox_is_ready_when_run_returns_and_has_its_configuration() {
    let lab = Lab::start();
    let mut config = host_pod("web");
    config.labels.insert("app".into(), "web".into());
    config.annotations.insert("team".into(), "a".into());
    let id = lab.cri.run_config(config.clone()).unwrap();
    let answer = lab.cri.sandbox_status(&id).unwrap();
    let status = answer.status.unwrap();
    assert_eq!(status.state(), v1::PodSandboxState::SandboxReady);
    assert_eq!((&status.id, &status.metadata), (&id, &config.metadata));
    assert_eq!((&status.labels, &status.annotations), (&config.labels, &config.annotations));
    assert!(status.created_at > 1 && answer.timestamp >= status.created_at);
    // hostNetwork: no address, and the mode that kubelet compares.
    assert_eq!(status.network.unwrap().ip, "");
    let options = status.linux.unwrap().namespaces.unwrap().options.unwrap();
    assert_eq!(options.network(), v1::NamespaceMode::Node);
    let info: serde_json::Value = serde_json::from_str(&answer.info["info"]).unwrap();
    assert_eq!(info["config"]["metadata"]["name"], "web");
}

#[test]
fn stop_and_remove_are_idempotent_also_for_unknown_sandboxes() {
    let lab = Lab::start();
    let id = lab.run("web");
    for _ in 0..2 {
        lab.cri.stop(&id).unwrap();
        assert_eq!(lab.ready(), Vec::<String>::new());
        assert_eq!(lab.cri.sandboxes().unwrap(), [id.as_str()]);
    }
    for id in [&id, &id, &unknown_id(), &"not-an-id".to_owned(), &"../../etc".to_owned()] {
        lab.cri.remove(id).unwrap();
        lab.cri.stop(id).unwrap();
    }
    assert_eq!((lab.cri.sandboxes().unwrap(), lab.engine.count()), (vec![], 0));
}

#[test]
fn remove_stops_first() {
    let lab = Lab::start();
    let id = lab.run("web");
    lab.cri.remove(&id).unwrap();
    assert_eq!(lab.engine.count(), 0);
}

#[test]
fn status_and_stats_of_unknown_sandboxes_are_not_found() {
    let lab = Lab::start();
    for id in [unknown_id(), "abc".to_owned()] {
        assert_eq!(lab.cri.sandbox_status(&id).unwrap_err().code(), Some(StatusCode::NotFound));
        let request = v1::PodSandboxStatsRequest { pod_sandbox_id: id };
        let call = (russet_testkit::cri::v1::RUNTIME_SERVICE, "PodSandboxStats");
        let stats = lab.cri.ask::<_, v1::PodSandboxStatsResponse>(call, request, None);
        assert_eq!(stats.unwrap_err().code(), Some(StatusCode::NotFound));
    }
}

#[test]
fn the_same_attempt_is_the_same_name_and_another_one_is_not() {
    let lab = Lab::start();
    let id = lab.run("web");
    let again = lab.cri.run_config(host_pod("web")).unwrap_err();
    assert_eq!(again.code(), Some(StatusCode::AlreadyExists));
    assert!(again.to_string().contains(&format!("is reserved for {id}")), "{again}");
    let mut next = host_pod("web");
    next.metadata.as_mut().unwrap().attempt = 1;
    lab.cri.run_config(next).unwrap();
    assert_eq!(lab.ready().len(), 2);
}

#[test]
fn lists_are_filtered_by_id_state_and_labels_together() {
    let lab = Lab::start();
    let mut labelled = host_pod("web");
    labelled.labels.insert("app".into(), "web".into());
    let (web, db) = (lab.cri.run_config(labelled).unwrap(), lab.run("db"));
    lab.cri.stop(&db).unwrap();
    let list = |filter: v1::PodSandboxFilter| -> Vec<String> {
        lab.cri.list(filter).unwrap().into_iter().map(|item| item.id).collect()
    };
    let state = |state: v1::PodSandboxState| Some(v1::PodSandboxStateValue { state: state.into() });
    let app = |name: &str| [("app".to_owned(), name.to_owned())].into();
    use v1::PodSandboxState::{SandboxNotready, SandboxReady};
    let filter = v1::PodSandboxFilter::default;
    assert_eq!(list(filter()).len(), 2);
    assert_eq!(list(v1::PodSandboxFilter { id: db.clone(), ..filter() }), [db.as_str()]);
    assert_eq!(list(v1::PodSandboxFilter { id: web[..12].into(), ..filter() }), [web.as_str()]);
    assert_eq!(list(v1::PodSandboxFilter { state: state(SandboxNotready), ..filter() }), [db.as_str()]);
    assert_eq!(list(v1::PodSandboxFilter { label_selector: app("web"), ..filter() }), [web.as_str()]);
    let both = v1::PodSandboxFilter { label_selector: app("web"), state: state(SandboxNotready), ..filter() };
    assert!(list(both).is_empty());
    let fitting =
        v1::PodSandboxFilter { label_selector: app("web"), state: state(SandboxReady), id: web.clone() };
    assert_eq!(list(fitting), [web]);
    let unheard = v1::PodSandboxFilter { state: Some(v1::PodSandboxStateValue { state: 9 }), ..filter() };
    assert_eq!(lab.cri.list(unheard).unwrap_err().code(), Some(StatusCode::InvalidArgument));
}

#[test]
fn a_unique_prefix_of_an_id_is_accepted() {
    let lab = Lab::start();
    // 17 IDs: two begin with the same digit.
    let ids: Vec<String> = (0..17).map(|n| lab.run(&format!("web-{n}"))).collect();
    let twice = ids
        .iter()
        .map(|id| &id[..1])
        .find(|digit| ids.iter().filter(|id| id.starts_with(*digit)).count() > 1);
    let refused = lab.cri.remove(twice.unwrap()).unwrap_err();
    assert_eq!(refused.code(), Some(StatusCode::InvalidArgument));
    assert_eq!(lab.ready().len(), 17);
    assert_eq!(lab.cri.sandbox_status(&ids[3][..20]).unwrap().status.unwrap().id, ids[3]);
    lab.cri.remove(&ids[3][..20]).unwrap();
    assert_eq!(lab.engine.count(), 16);
    assert_eq!(lab.cri.stop("").unwrap_err().code(), Some(StatusCode::InvalidArgument));
}

#[test]
fn a_failed_creation_leaves_nothing() {
    let lab = Lab::with_network();
    // The engine of these tests has no namespace to which a network could be attached.
    let failed = lab.cri.run(&Pod::named("web")).unwrap_err();
    assert_eq!(failed.code(), Some(StatusCode::Internal), "{failed}");
    assert_eq!((lab.cri.sandboxes().unwrap(), lab.engine.count()), (vec![], 0));
}

#[test]
fn without_a_network_only_pods_in_the_nodes_network_are_made() {
    let lab = Lab::start();
    let refused = lab.cri.run(&Pod::named("web")).unwrap_err();
    assert_eq!(refused.code(), Some(StatusCode::Unavailable), "{refused}");
    lab.run("host");
    assert_eq!(lab.ready().len(), 1);
}

#[test]
fn a_configuration_that_could_break_a_file_is_refused() {
    let lab = Lab::start();
    let mut config = host_pod("web");
    config.metadata.as_mut().unwrap().namespace = "a;IgnoreUnknown=0".into();
    let refused = lab.cri.run_config(config).unwrap_err();
    assert_eq!(refused.code(), Some(StatusCode::InvalidArgument), "{refused}");
    assert_eq!(lab.engine.count(), 0);
}

#[test]
fn a_sandbox_whose_process_died_is_not_ready() {
    let lab = Lab::start();
    let id = lab.run("web");
    lab.engine.kill(&id);
    let status = lab.cri.sandbox_status(&id).unwrap().status.unwrap();
    assert_eq!(status.state(), v1::PodSandboxState::SandboxNotready);
    assert!(lab.ready().is_empty());
}

#[test]
fn sandboxes_stay_ready_when_the_server_is_started_again() {
    let mut lab = Lab::start();
    let id = lab.run("web");
    let before = lab.cri.sandbox_status(&id).unwrap().status.unwrap();
    lab.stop();
    assert!(!lab.path("cri.sock").exists());
    assert_eq!(lab.cri.sandboxes().unwrap_err().code(), Some(StatusCode::Unavailable));
    lab.serve();
    assert_eq!(lab.cri.sandbox_status(&id).unwrap().status.unwrap(), before);
    lab.cri.remove(&id).unwrap();
    assert_eq!(lab.engine.count(), 0);
}
