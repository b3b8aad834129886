//! The life cycle of sandboxes on a node that consists of files only (cni-runtime.md sections 3.1
//! to 3.3).

mod kernel;
mod kill;
mod lab;

use std::fs;
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use super::*;
use crate::Config;
use crate::engine::{EngineError, Made};
use lab::{BOOT, Lab, host_pod, pod};

fn lab() -> (tempfile::TempDir, Lab) {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::new(dir.path());
    (dir, lab)
}

fn opened() -> (tempfile::TempDir, Lab, Sandboxes) {
    let (dir, lab) = lab();
    let sandboxes = lab.open();
    (dir, lab, sandboxes)
}

fn listed(sandboxes: &Sandboxes) -> Vec<(SandboxId, State)> {
    sandboxes.list(&Filter::default()).into_iter().map(|sandbox| (sandbox.id, sandbox.state)).collect()
}

#[test]
fn a_sandbox_is_ready_when_run_returns_and_gone_after_remove() {
    // cni-runtime.md section 3.2, RunPodSandbox
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    let sandbox = sandboxes.status(&id).unwrap();
    assert_eq!((sandbox.state, sandbox.addresses), (State::Ready, vec![[10, 9, 8, 7].into()]));
    assert!(sandbox.created_at.elapsed().unwrap() < Duration::from_secs(3600));
    let text = |name: &str| fs::read_to_string(sandbox.dir.join(name)).unwrap();
    assert_eq!(text("resolv.conf"), "nameserver 10.96.0.10\n");
    assert!(text("hosts").contains("10.9.8.7\tweb\n"));
    sandboxes.remove(&id).unwrap();
    assert_eq!(lab.everything(), Vec::<String>::new());
    assert!(matches!(sandboxes.status(&id), Err(SandboxError::NotFound(_))));
}

#[test]
fn plugins_get_the_pods_identity_and_ports() {
    // cni-runtime.md section 3.1, buildCNIRuntimeConf
    let (_dir, lab, sandboxes) = opened();
    let port = crate::PortMapping {
        protocol: crate::Protocol::Tcp,
        container_port: 80,
        host_port: 8080,
        host_ip: None,
    };
    let id = sandboxes.run(Config { port_mappings: vec![port], ..pod("web") }).unwrap();
    let expected = format!(
        "ADD {id} netns=netns IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID=u1"
    );
    assert_eq!(lab.calls(), [expected]);
    let stdin = fs::read_to_string(lab.0.join("stdin").join(id.as_str())).unwrap();
    assert!(stdin.contains(r#""hostPort":8080"#), "{stdin}");
}

#[test]
fn a_sandbox_in_the_nodes_network_runs_no_plugin() {
    // cni-runtime.md section 6.2 item 43; section 3.1: hostNetwork? return
    let (_dir, lab) = lab();
    fs::remove_file(lab.0.join("net.d/10-pods.conflist")).unwrap();
    let sandboxes = lab.open();
    let id = sandboxes.run(host_pod("proxy")).unwrap();
    let sandbox = sandboxes.status(&id).unwrap();
    assert_eq!((sandbox.state, sandbox.addresses.len(), sandbox.netns), (State::Ready, 0, None));
    sandboxes.stop(&id).unwrap();
    sandboxes.remove(&id).unwrap();
    assert_eq!((lab.calls().len(), lab.everything().len()), (0, 0));
}

#[test]
fn stop_and_remove_can_be_repeated_and_know_no_unknown_sandbox() {
    // cni-runtime.md section 6.2 item 42; section 3.2, StopPodSandbox and RemovePodSandbox
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    for _ in 0..3 {
        sandboxes.stop(&id).unwrap();
        assert_eq!(sandboxes.status(&id).unwrap().state, State::NotReady);
    }
    assert_eq!(lab.verbs(&id), ["ADD", "DEL"]);
    assert!(lab.ids("addresses").is_empty());
    for _ in 0..3 {
        sandboxes.remove(&id).unwrap();
        sandboxes.stop(&id).unwrap();
    }
    assert_eq!(lab.verbs(&id), ["ADD", "DEL"]);
}

#[test]
fn a_failed_add_is_undone_by_a_del() {
    // cni-runtime.md section 1.13: every ADD, even failed, is followed by DEL
    let (_dir, lab, sandboxes) = opened();
    lab.set("fail-add");
    let error = sandboxes.run(pod("web")).unwrap_err();
    let SandboxError::Create { id, left: None, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("no more addresses"), "{error}");
    assert_eq!(lab.verbs(id), ["ADD", "DEL"]);
    assert_eq!((lab.everything().len(), listed(&sandboxes).len()), (0, 0));
    lab.clear("fail-add");
    sandboxes.run(pod("web")).unwrap();
}

#[test]
fn an_interface_without_an_address_is_no_network() {
    // cni-runtime.md section 3.3: no IPs on it, "failed to find network info for sandbox"
    let (_dir, lab, sandboxes) = opened();
    lab.set("no-address");
    let error = sandboxes.run(pod("web")).unwrap_err().to_string();
    assert!(error.ends_with("network \"pods\" gave eth0 no address"), "{error}");
    assert_eq!(lab.everything().len(), 0);
}

#[test]
fn what_cannot_be_undone_is_listed_until_it_can() {
    // cni-runtime.md section 3.2: on error nothing must be left that cannot be found by ListPodSandbox
    let (_dir, lab, sandboxes) = opened();
    lab.set("fail-add");
    lab.set("fail-del");
    let error = sandboxes.run(pod("web")).unwrap_err();
    let SandboxError::Create { id, left: Some(_), .. } = &error else { panic!("{error}") };
    assert_eq!(listed(&sandboxes), [(id.clone(), State::NotReady)]);
    assert!(sandboxes.status(id).unwrap().trouble.unwrap().contains("store is away"));
    assert!(sandboxes.stop(id).is_err());
    drop(sandboxes);
    let sandboxes = lab.open();
    assert_eq!(listed(&sandboxes), [(id.clone(), State::NotReady)]);
    lab.clear("fail-del");
    sandboxes.stop(id).unwrap();
    sandboxes.remove(id).unwrap();
    assert_eq!((lab.everything().len(), listed(&sandboxes).len()), (0, 0));
}

#[test]
fn a_failing_del_does_not_keep_processes_alive() {
    // cni-runtime.md section 6.2 item 42; section 3.1, StopPodSandbox: TearDownPod, then StopContainer, errors aggregated
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    lab.set("fail-del");
    assert!(sandboxes.stop(&id).is_err());
    assert!(!lab.0.join("engine").join(id.as_str()).join("running").exists());
    lab.clear("fail-del");
    sandboxes.remove(&id).unwrap();
    let calls = lab.calls();
    assert!(
        calls.last().unwrap().starts_with(&format!("DEL {id} netns= ")),
        "the namespace is gone: {calls:?}"
    );
    assert_eq!(lab.everything().len(), 0);
}

#[test]
fn a_sandbox_whose_plugin_is_missing_is_listed_until_it_is_back() {
    // cni-runtime.md section 6.2 item 46
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    let (plugin, away) = (lab.0.join("bin/lab"), lab.0.join("away"));
    fs::rename(&plugin, &away).unwrap();
    assert!(sandboxes.stop(&id).unwrap_err().to_string().contains("failed to find plugin \"lab\""));
    let error = sandboxes.run(pod("db")).unwrap_err();
    assert!(matches!(error, SandboxError::Create { left: Some(_), .. }), "{error}");
    let both = listed(&sandboxes);
    assert_eq!((both.len(), both.iter().all(|(_, state)| *state == State::NotReady)), (2, true));
    fs::rename(&away, &plugin).unwrap();
    for (id, _) in both {
        sandboxes.stop(&id).unwrap();
        sandboxes.remove(&id).unwrap();
    }
    assert_eq!(lab.everything(), Vec::<String>::new());
}

#[test]
fn an_add_that_misses_its_deadline_is_followed_by_a_del() {
    // cni-runtime.md section 6.2 item 47
    let (_dir, lab) = lab();
    let mut options = lab.options();
    options.runtime.plugin_deadline = Duration::from_secs(2);
    let sandboxes = lab.try_open(options, BOOT).unwrap();
    lab.set("hang-in-add");
    let error = sandboxes.run(pod("web")).unwrap_err();
    let SandboxError::Create { id, left: None, .. } = &error else { panic!("{error}") };
    assert_eq!(lab.verbs(id), ["ADD", "DEL"]);
    assert_eq!((listed(&sandboxes).len(), lab.everything().len()), (0, 0));
}

#[test]
fn a_failing_engine_leaves_nothing() {
    let (_dir, lab, sandboxes) = opened();
    lab.set("fail-create");
    let error = sandboxes.run(pod("web")).unwrap_err().to_string();
    assert!(error.contains("out of processes"), "{error}");
    assert_eq!((lab.everything().len(), lab.calls().len()), (0, 0));
    lab.clear("fail-create");
    let id = sandboxes.run(pod("web")).unwrap();
    lab.set("fail-remove");
    assert!(sandboxes.remove(&id).is_err());
    assert_eq!(listed(&sandboxes), [(id.clone(), State::NotReady)]);
    lab.clear("fail-remove");
    sandboxes.remove(&id).unwrap();
    assert_eq!(lab.everything().len(), 0);
}

#[test]
fn a_log_directory_that_cannot_be_made_stops_the_start() {
    // cni-runtime.md section 3.1, createPodSandbox: mkdir log dir 0755
    let (_dir, lab, sandboxes) = opened();
    let file = lab.0.join("file");
    fs::write(&file, "").unwrap();
    let error = sandboxes.run(Config { log_directory: Some(file.join("logs")), ..pod("web") }).unwrap_err();
    assert!(error.to_string().starts_with("create log directory "), "{error}");
    assert_eq!((lab.everything().len(), lab.calls().len()), (0, 0));
    let logs = lab.0.join("logs/ns1_web_u1");
    sandboxes.run(Config { log_directory: Some(logs.clone()), ..pod("web") }).unwrap();
    assert!(logs.is_dir());
}

#[test]
fn without_a_network_nothing_is_begun() {
    let (_dir, lab, sandboxes) = opened();
    fs::write(lab.0.join("net.d/10-pods.conflist"), "{").unwrap();
    assert!(matches!(sandboxes.run(pod("web")), Err(SandboxError::NetworkNotReady(_))));
    assert!(sandboxes.network_ready().is_err());
    assert_eq!(lab.everything().len(), 0);
    sandboxes.run(host_pod("web")).unwrap();
}

#[test]
fn the_network_is_ready_when_its_plugins_say_so() {
    let (_dir, lab) = lab();
    lab.set("fail-status");
    let sandboxes = lab.open();
    let error = sandboxes.network_ready().unwrap_err();
    assert!(error.contains("not yet"), "{error}");
    assert_eq!(sandboxes.network_ready(), Err(error));
    drop(sandboxes);
    lab.clear("fail-status");
    assert_eq!(lab.open().network_ready(), Ok(()));
    assert_eq!(lab.calls().len(), 2, "an answer is good for some seconds");
}

#[test]
fn a_name_belongs_to_one_sandbox_and_a_dead_one_is_replaced() {
    // cni-runtime.md section 3.2: retried with the same attempt, same name; "name … is reserved for …"
    let (_dir, _lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    let error = sandboxes.run(pod("web")).unwrap_err().to_string();
    assert_eq!(error, format!("name \"web_ns1_u1_0\" is reserved for {id}"));
    let mut next = pod("web");
    next.metadata.attempt = 1;
    let other = sandboxes.run(next).unwrap();
    sandboxes.stop(&id).unwrap();
    let again = sandboxes.run(pod("web")).unwrap();
    let mut ready = listed(&sandboxes);
    ready.sort_by(|a, b| a.0.cmp(&b.0));
    let mut expected = vec![(other, State::Ready), (again, State::Ready)];
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(ready, expected);
}

#[test]
fn a_dead_one_that_cannot_be_removed_keeps_its_name() {
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    lab.set("fail-del");
    assert!(sandboxes.stop(&id).is_err());
    assert!(sandboxes.run(pod("web")).unwrap_err().to_string().contains("store is away"));
    assert_eq!(listed(&sandboxes), [(id.clone(), State::NotReady)]);
    lab.clear("fail-del");
    let again = sandboxes.run(pod("web")).unwrap();
    assert_eq!(listed(&sandboxes), [(again, State::Ready)]);
}

#[test]
fn names_that_look_alike_are_two() {
    let (_dir, _lab, sandboxes) = opened();
    let named = |name: &str, namespace: &str| {
        let mut config = pod(name);
        config.metadata.namespace = namespace.into();
        config
    };
    sandboxes.run(named("a_b", "c")).unwrap();
    sandboxes.run(named("a", "b_c")).unwrap();
    assert_eq!(listed(&sandboxes).len(), 2);
}

#[test]
fn del_uses_the_network_of_the_add() {
    // cni-runtime.md section 0 item 15 and section 1.13: config changed between ADD and DEL
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    let other = r#"{"cniVersion":"1.0.0","name":"others","plugins":[{"type":"absent"}]}"#;
    fs::write(lab.0.join("net.d/10-pods.conflist"), other).unwrap();
    fs::remove_dir_all(lab.0.join("run/cni")).unwrap();
    sandboxes.remove(&id).unwrap();
    assert_eq!((lab.verbs(&id), lab.everything().len()), (vec!["ADD".into(), "DEL".into()], 0));
}

#[test]
fn a_dead_sandbox_is_not_ready_and_reported() {
    let (_dir, lab, sandboxes) = opened();
    let events = sandboxes.events();
    let id = sandboxes.run(pod("web")).unwrap();
    fs::remove_file(lab.0.join("engine").join(id.as_str()).join("running")).unwrap();
    assert_eq!(listed(&sandboxes), [(id.clone(), State::NotReady)]);
    sandboxes.remove(&id).unwrap();
    let kinds: Vec<EventKind> =
        std::iter::from_fn(|| events.wait(Duration::ZERO).ok()).map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Created, EventKind::Started, EventKind::Stopped, EventKind::Deleted]);
    assert_eq!(lab.everything().len(), 0);
}

#[test]
fn a_death_during_the_creation_is_reported_without_a_request() {
    let (_dir, lab, sandboxes) = opened();
    let events = sandboxes.events();
    lab.set("die-at-once");
    let id = sandboxes.run(pod("web")).unwrap();
    let kinds: Vec<EventKind> =
        std::iter::from_fn(|| events.wait(Duration::ZERO).ok()).map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Created, EventKind::Started, EventKind::Stopped]);
    assert_eq!(listed(&sandboxes), [(id, State::NotReady)]);
}

#[test]
fn a_filter_shows_what_fits_all_of_it() {
    // cni-runtime.md section 3.2, ListPodSandbox: by id, state, labels
    let (_dir, _lab, sandboxes) = opened();
    let labelled = |name: &str| {
        let mut config = pod(name);
        config.labels.insert("app".into(), name.into());
        config
    };
    let (web, db) = (sandboxes.run(labelled("web")).unwrap(), sandboxes.run(labelled("db")).unwrap());
    sandboxes.stop(&db).unwrap();
    let shown =
        |filter: Filter| -> Vec<SandboxId> { sandboxes.list(&filter).into_iter().map(|it| it.id).collect() };
    assert_eq!(shown(Filter::default()), [db.clone(), web.clone()]);
    assert_eq!(shown(Filter { id: Some(web.as_str()[..12].into()), ..Filter::default() }), vec![web.clone()]);
    assert_eq!(shown(Filter { state: Some(State::NotReady), ..Filter::default() }), vec![db.clone()]);
    let labels = [("app".to_owned(), "web".to_owned())].into();
    assert_eq!(shown(Filter { labels, ..Filter::default() }), [web]);
    let labels = [("app".to_owned(), "web".to_owned())].into();
    assert!(shown(Filter { labels, state: Some(State::NotReady), ..Filter::default() }).is_empty());
}

#[test]
fn after_a_restart_running_sandboxes_go_on_without_a_call() {
    // cni-runtime.md section 6.2 item 44; section 3.3: running pods stay READY with their IP; no CNI call
    let (_dir, lab, sandboxes) = opened();
    let (web, stopped) = (sandboxes.run(pod("web")).unwrap(), sandboxes.run(pod("db")).unwrap());
    let host = sandboxes.run(host_pod("proxy")).unwrap();
    sandboxes.stop(&stopped).unwrap();
    let (before, calls) = (sandboxes.list(&Filter::default()), lab.calls());
    drop(sandboxes);
    let sandboxes = lab.open();
    assert_eq!((sandboxes.list(&Filter::default()), lab.calls()), (before, calls));
    for id in [web, stopped, host] {
        sandboxes.remove(&id).unwrap();
    }
    assert_eq!(lab.everything().len(), 0);
}

#[test]
fn after_a_reboot_addresses_are_released_and_sandboxes_are_not_ready() {
    // cni-runtime.md section A.5: boot-id differs, all records stale, release at once
    let (_dir, lab, sandboxes) = opened();
    let web = sandboxes.run(pod("web")).unwrap();
    let host = sandboxes.run(host_pod("proxy")).unwrap();
    drop(sandboxes);
    let sandboxes = lab.reboot();
    assert!(lab.ids("addresses").is_empty());
    assert!(lab.calls().last().unwrap().starts_with(&format!("DEL {web} netns= ")), "{:?}", lab.calls());
    assert!(listed(&sandboxes).iter().all(|(_, state)| *state == State::NotReady));
    assert_eq!(listed(&sandboxes).len(), 2);
    drop(sandboxes);
    let sandboxes = lab.try_open(lab.options(), lab::NEXT_BOOT).unwrap();
    assert_eq!(listed(&sandboxes).len(), 2);
    sandboxes.run(pod("web")).unwrap();
    sandboxes.remove(&host).unwrap();
    assert_eq!(lab.verbs(&web), ["ADD", "DEL"]);
}

#[test]
fn a_run_directory_of_another_boot_is_ignored() {
    let (_dir, lab, sandboxes) = opened();
    let web = sandboxes.run(pod("web")).unwrap();
    drop(sandboxes);
    let sandboxes = lab.try_open(lab.options(), lab::NEXT_BOOT).unwrap();
    assert_eq!(listed(&sandboxes), [(web.clone(), State::NotReady)]);
    assert!(lab.ids("addresses").is_empty());
    sandboxes.remove(&web).unwrap();
    assert_eq!(lab.everything(), Vec::<String>::new());
}

#[test]
fn a_damaged_checkpoint_is_set_aside_and_its_sandbox_taken_down() {
    // cni-runtime.md section 3.1: corrupt, delete it and go on
    for with_cache in [true, false] {
        let (_dir, lab) = lab();
        let sandboxes = lab.open();
        let (bad, good) = (sandboxes.run(pod("web")).unwrap(), sandboxes.run(pod("db")).unwrap());
        drop(sandboxes);
        fs::write(lab.0.join("state/checkpoints").join(bad.as_str()), "{\"version\":1").unwrap();
        if !with_cache {
            fs::remove_dir_all(lab.0.join("run/cni")).unwrap();
        }
        let sandboxes = lab.open();
        assert_eq!(listed(&sandboxes), [(good.clone(), State::Ready)]);
        assert_eq!(lab.verbs(&bad), ["ADD", "DEL"]);
        assert!(lab.0.join("state/corrupt").join(bad.as_str()).exists());
        sandboxes.remove(&good).unwrap();
        assert_eq!(lab.everything(), Vec::<String>::new());
    }
}

#[test]
fn a_damaged_one_that_cannot_be_taken_down_is_listed_and_tried_again() {
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    drop(sandboxes);
    fs::write(lab.0.join("state/checkpoints").join(id.as_str()), "").unwrap();
    lab.set("fail-del");
    for _ in 0..2 {
        let sandboxes = lab.open();
        assert_eq!(listed(&sandboxes), [(id.clone(), State::NotReady)]);
        let sandbox = sandboxes.status(&id).unwrap();
        assert_ne!(sandbox.created_at, SystemTime::UNIX_EPOCH);
    }
    lab.clear("fail-del");
    let sandboxes = lab.open();
    assert_eq!((listed(&sandboxes).len(), lab.everything().len()), (0, 0));
}

#[test]
fn an_unreadable_record_is_an_error_and_kills_no_pod() {
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    drop(sandboxes);
    let (checkpoint, live) = (lab.0.join("state/checkpoints"), lab.0.join("run/live"));
    let (checkpoint, live) = (checkpoint.join(id.as_str()), live.join(id.as_str()));
    // Another program's file, and a failing file system: reading a directory is an error.
    let newer = fs::read_to_string(&checkpoint).unwrap().replace("\"version\":1", "\"version\":2");
    let frozen = fs::read_to_string(&live).unwrap().replace("\"Ready\"", "\"Frozen\"");
    for (path, text) in
        [(&checkpoint, Some(newer)), (&live, Some(frozen)), (&checkpoint, None), (&live, None)]
    {
        let away = lab.0.join("away");
        fs::rename(path, &away).unwrap();
        text.map_or_else(|| fs::create_dir(path), |text| fs::write(path, text)).unwrap();
        let error = lab.try_open(lab.options(), BOOT).err().unwrap().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        let _ = fs::remove_dir(path);
        fs::rename(&away, path).unwrap();
        let sandboxes = lab.open();
        assert_eq!(
            (listed(&sandboxes), lab.verbs(&id)),
            (vec![(id.clone(), State::Ready)], vec!["ADD".into()])
        );
    }
}

#[test]
fn a_sandbox_with_a_lost_state_is_removed() {
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    drop(sandboxes);
    fs::write(lab.0.join("run/live").join(id.as_str()), "{").unwrap();
    assert!(listed(&lab.open()).is_empty());
    assert_eq!((lab.verbs(&id), lab.everything().len()), (vec!["ADD".into(), "DEL".into()], 0));
}

#[test]
fn a_half_written_state_is_swept_away_and_means_nothing() {
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    drop(sandboxes);
    let half = |id: &SandboxId| fs::write(lab.0.join("run/live").join(format!(".{id}")), "[\"boot").unwrap();
    half(&id);
    half(&SandboxId::random().unwrap());
    let sandboxes = lab.open();
    assert_eq!(listed(&sandboxes), [(id.clone(), State::Ready)]);
    sandboxes.remove(&id).unwrap();
    assert_eq!((lab.everything(), lab.calls().len()), (Vec::<String>::new(), 2));
}

#[test]
fn gc_removes_unknown_and_superseded_sandboxes() {
    let (_dir, lab, sandboxes) = opened();
    let (old, kept) = (sandboxes.run(pod("web")).unwrap(), sandboxes.run(pod("db")).unwrap());
    sandboxes.stop(&old).unwrap();
    let mut next = pod("web");
    next.metadata.attempt = 1;
    let new = sandboxes.run(next).unwrap();
    lab.set("fail-add");
    lab.set("fail-del");
    assert!(sandboxes.run(pod("late")).is_err());
    lab.clear("fail-del");
    let stray = SandboxId::random().unwrap();
    fs::create_dir(lab.0.join("engine").join(stray.as_str())).unwrap();
    let collected = sandboxes.gc(Collect::default());
    assert_eq!((collected.removed.len(), collected.errors.len()), (2, 0));
    assert!(collected.removed.contains(&stray));
    assert_eq!(sandboxes.gc(Collect { superseded: true, networks: false }).removed, [old]);
    let left: Vec<SandboxId> = listed(&sandboxes).into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, [new, kept]);
}

/// An engine in whose list operation a sandbox is removed.
struct Removes {
    engine: lab::Directories,
    removed: Arc<OnceLock<(Weak<Sandboxes>, SandboxId)>>,
}

impl Engine for Removes {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn create(&self, id: &SandboxId, config: &Config, dir: &Path) -> Result<Made, EngineError> {
        self.engine.create(id, config, dir)
    }

    fn stop(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.engine.stop(id)
    }

    fn remove(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.engine.remove(id)
    }

    fn state(&self, id: &SandboxId) -> Result<EngineState, EngineError> {
        self.engine.state(id)
    }

    fn list(&self) -> Result<Vec<SandboxId>, EngineError> {
        let listed = self.engine.list();
        if let Some((sandboxes, id)) = self.removed.get() {
            sandboxes.upgrade().unwrap().remove(id).unwrap();
        }
        listed
    }
}

#[test]
fn a_sandbox_removed_during_gc_is_no_stray() {
    let (_dir, lab) = lab();
    let removed = Arc::new(OnceLock::new());
    let engine = Removes { engine: lab::Directories(lab.clone()), removed: Arc::clone(&removed) };
    let options = Options { engine: Box::new(engine), ..lab.options() };
    let sandboxes = Arc::new(lab.try_open(options, BOOT).unwrap());
    let id = sandboxes.run(pod("web")).unwrap();
    removed.set((Arc::downgrade(&sandboxes), id.clone())).unwrap();
    let collected = sandboxes.gc(Collect::default());
    assert_eq!((collected.removed, collected.errors.len()), (Vec::new(), 0));
    assert_eq!((lab.verbs(&id), lab.everything()), (vec!["ADD".into(), "DEL".into()], Vec::new()));
}

#[test]
fn gc_releases_what_a_stop_could_not_and_keeps_the_sandbox() {
    // cni-runtime.md section 3.2, StopPodSandbox; section A.5
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    lab.set("fail-del");
    assert!(sandboxes.stop(&id).is_err());
    assert_eq!(sandboxes.gc(Collect::default()).errors.len(), 1);
    lab.clear("fail-del");
    let collected = sandboxes.gc(Collect::default());
    assert_eq!((collected.removed.len(), collected.errors.len()), (0, 0));
    let sandbox = sandboxes.status(&id).unwrap();
    assert_eq!((sandbox.state, sandbox.trouble), (State::NotReady, None));
    assert!(lab.ids("addresses").is_empty());
}

#[test]
fn removals_beyond_the_start_timeout_are_left_to_gc() {
    let (_dir, lab, sandboxes) = opened();
    let (web, unknown) = (sandboxes.run(pod("web")).unwrap(), SandboxId::random().unwrap());
    fs::create_dir(lab.0.join("engine").join(unknown.as_str())).unwrap();
    drop(sandboxes);
    let sandboxes = lab.open_within(lab.options(), lab::NEXT_BOOT, Duration::ZERO).unwrap();
    assert_eq!(lab.calls().len(), 1, "only the ADD");
    let all = sandboxes.list(&Filter::default());
    let put_off = |it: &Sandbox| {
        it.state == State::NotReady && it.trouble.as_deref() == Some("it is not taken down yet")
    };
    assert!(all.len() == 2 && all.iter().all(put_off), "{all:?}");
    let collected = sandboxes.gc(Collect::default());
    assert_eq!((collected.removed, collected.errors.len()), (vec![unknown], 0));
    assert!(lab.ids("addresses").is_empty());
    assert_eq!(listed(&sandboxes), [(web, State::NotReady)]);
}

#[test]
fn an_unavailable_engine_at_the_start_is_tolerated_and_costs_no_address() {
    // cni-runtime.md section 3.3: what runs stays READY; only what is known is decided about
    let (_dir, lab, sandboxes) = opened();
    let (web, started, unknown) = (pod("web"), pod("started"), pod("unknown"));
    let [web, started, unknown] = [web, started, unknown].map(|pod| sandboxes.run(pod).unwrap());
    drop(sandboxes);
    // One is known from the run directory, and one only from the engine.
    fs::remove_file(lab.0.join("state/checkpoints").join(started.as_str())).unwrap();
    for place in ["state/checkpoints", "run/live"] {
        fs::remove_file(lab.0.join(place).join(unknown.as_str())).unwrap();
    }
    fs::remove_dir_all(lab.0.join("run/sandboxes").join(unknown.as_str())).unwrap();
    lab.set("fail-list");
    let sandboxes = lab.open();
    assert_eq!(listed(&sandboxes), [(web.clone(), State::Ready)]);
    let left = [web.clone(), unknown.clone()].into();
    assert_eq!((lab.ids("addresses"), lab.ids("engine")), (left, [web.clone(), unknown.clone()].into()));
    let collected = sandboxes.gc(Collect { superseded: true, networks: true });
    let errors: Vec<String> = collected.errors.iter().map(ToString::to_string).collect();
    assert!(errors.len() == 1 && errors[0].contains("connection refused"), "{errors:?}");
    assert_eq!((collected.removed.len(), lab.ids("addresses").len(), lab.verbs(&unknown).len()), (0, 2, 1));
    let other = sandboxes.run(pod("db")).unwrap();
    // The engine is back.
    lab.clear("fail-list");
    let collected = sandboxes.gc(Collect::default());
    assert_eq!((collected.removed, collected.errors.len()), (vec![unknown], 0));
    [web, other].iter().for_each(|id| sandboxes.remove(id).unwrap());
    assert_eq!(lab.everything(), Vec::<String>::new());
}

#[test]
fn unreadable_addresses_are_an_error() {
    // cni-runtime.md section 3.2: READY with ip "" has kubelet replace the pod
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    lab.set("fail-addresses");
    let error = sandboxes.status(&id).unwrap_err().to_string();
    assert!(error.contains("no file descriptors"), "{error}");
    lab.clear("fail-addresses");
    assert_eq!(sandboxes.status(&id).unwrap().addresses.len(), 1);
    lab.set("no-address");
    let sandbox = sandboxes.status(&id).unwrap();
    assert_eq!((sandbox.state, sandbox.addresses.len()), (State::Ready, 0));
}

#[test]
fn an_unknown_sandbox_is_listed_until_there_is_a_network_to_ask() {
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    drop(sandboxes);
    fs::write(lab.0.join("state/checkpoints").join(id.as_str()), "").unwrap();
    fs::remove_dir_all(lab.0.join("run/cni")).unwrap();
    let (conflist, away) = (lab.0.join("net.d/10-pods.conflist"), lab.0.join("away"));
    fs::rename(&conflist, &away).unwrap();
    let sandboxes = lab.open();
    assert_eq!(listed(&sandboxes), [(id.clone(), State::NotReady)]);
    assert_eq!(lab.ids("addresses"), [id.clone()].into());
    fs::rename(&away, &conflist).unwrap();
    assert_eq!(sandboxes.gc(Collect::default()).removed, [id]);
    assert_eq!(lab.everything(), Vec::<String>::new());
}

#[test]
fn a_failed_creation_reports_only_events_of_what_was_made() {
    let (_dir, lab, sandboxes) = opened();
    for (failure, announced) in
        [("fail-create", &[][..]), ("fail-add", &[EventKind::Created, EventKind::Deleted])]
    {
        let events = sandboxes.events();
        lab.set(failure);
        assert!(sandboxes.run(pod("web")).is_err());
        lab.clear(failure);
        let told_now = std::iter::from_fn(|| events.wait(Duration::ZERO).ok());
        let kinds: Vec<EventKind> = told_now.map(|event| event.kind).collect();
        assert_eq!(kinds, announced, "{failure}");
    }
}

#[test]
fn gc_of_the_networks_spares_the_sandboxes() {
    // cni-runtime.md section 2.3, GC list
    let (_dir, lab, sandboxes) = opened();
    let (web, leaked) = (sandboxes.run(pod("web")).unwrap(), SandboxId::random().unwrap());
    let runtime = lab.options().runtime;
    let list = lab.options().networks.current().unwrap();
    let attachment =
        russet_runtime::Attachment::new(leaked.container_id().unwrap(), "", "eth0".parse().unwrap());
    runtime.add(&list, &attachment).unwrap();
    assert_eq!(lab.ids("addresses").len(), 2);
    let collected = sandboxes.gc(Collect { superseded: false, networks: true });
    assert_eq!(collected.errors.len(), 0, "{:?}", collected.errors);
    assert_eq!(lab.ids("addresses"), [web].into());
    assert!(lab.calls().iter().any(|call| call.starts_with("GC ")));
}

#[test]
fn two_processes_never_hold_the_same_sandboxes() {
    let (_dir, lab) = lab();
    let _sandboxes = lab.open();
    let options = Options { lock_timeout: Duration::ZERO, ..lab.options() };
    let refused = lab.try_open(options, BOOT).err().unwrap().to_string();
    assert!(refused.starts_with(&format!("process {} (", std::process::id())), "{refused}");
}

#[test]
fn many_at_a_time_leave_nothing() {
    let (_dir, lab, sandboxes) = opened();
    std::thread::scope(|scope| {
        for worker in 0..10 {
            let sandboxes = &sandboxes;
            scope.spawn(move || {
                for round in 0..3 {
                    let id = sandboxes.run(pod(&format!("pod-{worker}-{round}"))).unwrap();
                    sandboxes.status(&id).unwrap();
                    sandboxes.stop(&id).unwrap();
                    sandboxes.remove(&id).unwrap();
                }
            });
        }
    });
    assert_eq!((listed(&sandboxes).len(), lab.everything().len()), (0, 0));
    assert!(sandboxes.table().is_empty());
}

#[test]
fn operations_are_counted() {
    // cni-runtime.md section 3.1: set_up_pod, tear_down_pod, get_pod_network_status
    let (_dir, lab, sandboxes) = opened();
    let id = sandboxes.run(pod("web")).unwrap();
    sandboxes.status(&id).unwrap();
    sandboxes.remove(&id).unwrap();
    lab.set("fail-add");
    assert!(sandboxes.run(pod("web")).is_err());
    let metrics = sandboxes.metrics();
    let count = |operation| {
        (metrics.operations.get_or_create(operation).get(), metrics.errors.get_or_create(operation).get())
    };
    assert_eq!(count(&crate::metrics::SET_UP), (2, 1));
    assert_eq!(count(&crate::metrics::TEAR_DOWN), (2, 0));
    assert_eq!(count(&crate::metrics::STATUS), (1, 0));
    assert_eq!(metrics.run_errors.get(), 1);
}
