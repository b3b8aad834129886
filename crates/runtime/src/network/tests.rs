use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use russet_testkit::eventually;
use tempfile::TempDir;

use super::*;

/// Far longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Nothing is found by polling.
const WITHOUT_POLL: ScanTiming = ScanTiming {
    poll: Duration::from_secs(3600),
    settle: Duration::from_millis(1),
    settle_limit: Duration::from_millis(100),
};

/// A node whose plugins are shell scripts that print their versions.
struct Lab {
    root: TempDir,
}

impl Lab {
    fn new() -> Self {
        let lab = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(lab.path("bin")).unwrap();
        lab.plugin("a", "1.0.0");
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Written beside its path and moved in: an executable that is open for writing cannot be
    /// executed.
    fn plugin(&self, kind: &str, version: &str) {
        let text = format!(
            "#!/bin/sh\necho runs >> {}\necho '{{\"cniVersion\":\"{version}\",\"supportedVersions\":[\"{version}\"]}}'\n",
            self.path("runs").display()
        );
        fs::write(self.path("new"), text).unwrap();
        fs::set_permissions(self.path("new"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(self.path("new"), self.path("bin").join(kind)).unwrap();
    }

    /// How many times plugins were run.
    fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).unwrap_or_default().lines().count()
    }

    fn config(&self, file: &str, text: &str) {
        let path = self.path("etc/net.d").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn list(&self, file: &str, name: &str, kind: &str) {
        self.config(
            file,
            &format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"{kind}"}}]}}"#),
        );
    }

    fn networks(&self, pace: ScanTiming) -> Networks {
        let runtime = Runtime::new(vec![self.path("bin")], self.path("cache"));
        Networks::watch_at(ConfigDir::new(self.path("etc/net.d")), runtime, pace).unwrap()
    }
}

fn name(networks: &Networks) -> String {
    networks.current().map_or_else(|unready| unready.to_string(), |list| list.name.to_string())
}

fn whys(networks: &Networks) -> Vec<Why> {
    networks.skipped().into_iter().map(|skipped| skipped.why).collect()
}

#[test]
fn each_missing_part_has_its_own_reason() {
    // cni-runtime.md section 3.4
    let lab = Lab::new();
    let networks = lab.networks(WITHOUT_POLL);
    assert!(matches!(networks.current(), Err(Unready::Empty { .. })));
    assert!(name(&networks).starts_with("no network configuration in /"), "{}", name(&networks));
    lab.config("10-a.conf", r#"{"cniVersion":"1.0.0","name":"n"}"#);
    lab.config("11-b.conf", r#"{"name":"n","plugins":[{"type":"a"}]}"#);
    lab.config("12-c.conflist", r#"{"name":"n","plugins":[]}"#);
    lab.config("13-d.conflist", r#"{"name":"n"}"#);
    lab.config("14-e.conflist", "{");
    lab.list("15-f.conflist", "n", "absent");
    lab.config("16-g.conflist", r#"{"cniVersion":"0.3.1","name":"n","plugins":[{"type":"a"}]}"#);
    fs::create_dir(lab.path("etc/net.d/17-h.conflist")).unwrap();
    let networks = lab.networks(WITHOUT_POLL);
    let whys = whys(&networks);
    assert_eq!(whys[..4], [Why::NoType, Why::IsList, Why::NoPlugins, Why::NoPlugins]);
    assert!(
        matches!(&whys[4..], [Why::Invalid(_), Why::Plugins(missing), Why::Plugins(version)]
        if missing.contains("failed to find plugin \"absent\"") && version.contains("does not support config version \"0.3.1\"")),
        "{whys:?}"
    );
    let message = name(&networks);
    assert!(matches!(networks.current(), Err(Unready::NothingValid { .. })), "{message}");
    assert!(message.contains("10-a.conf: no 'type'; is this a conflist?"), "{message}");
    assert!(message.ends_with("; and 4 more"), "{message}");
    assert_eq!(networks.changed(), 0);
}

#[test]
fn bad_files_are_skipped_and_the_first_good_one_is_the_network() {
    // cni-runtime.md sections 2.1 and 3.4
    let lab = Lab::new();
    lab.config("00-bad.conflist", "{");
    lab.config("20-b.json", r#"{"cniVersion":"1.0.0","name":"b","type":"a"}"#);
    lab.list("30-c.conflist", "c", "a");
    lab.config("40-d.conflist.bak", "{");
    lab.config("50-e.conf", "7");
    let networks = lab.networks(WITHOUT_POLL);
    assert_eq!((name(&networks).as_str(), networks.skipped().len(), networks.changed()), ("b", 2, 1));
    assert_eq!(networks.file(), Some(lab.path("etc/net.d/20-b.json")));
}

#[test]
fn a_network_stays_in_use_while_its_file_and_directory_are_missing() {
    // The last valid network is kept; the watch is armed again.
    let lab = Lab::new();
    let networks = lab.networks(WITHOUT_POLL);
    lab.list("10-a.conflist", "first", "a");
    eventually(TIMEOUT, || name(&networks) == "first");
    lab.config("10-a.conflist", "{ half a fi");
    eventually(TIMEOUT, || networks.problem().is_some_and(|it| matches!(it, Unready::NothingValid { .. })));
    assert_eq!(name(&networks), "first");
    fs::remove_dir_all(lab.path("etc")).unwrap();
    eventually(TIMEOUT, || networks.problem().is_some_and(|it| matches!(it, Unready::Empty { .. })));
    assert_eq!((name(&networks).as_str(), networks.changed()), ("first", 1));
    lab.list("10-a.conflist", "second", "a");
    eventually(TIMEOUT, || name(&networks) == "second");
    assert_eq!((networks.problem(), networks.changed()), (None, 2));
}

#[test]
fn a_link_a_file_moved_in_and_a_plugin_of_the_networks_own_are_noticed() {
    // cni-runtime.md section 0 item 7, section 6.2 items 31 and 41
    let lab = Lab::new();
    fs::create_dir_all(lab.path("etc/net.d")).unwrap();
    let networks = lab.networks(WITHOUT_POLL);
    lab.list("../outside", "linked", "a");
    symlink(lab.path("etc/outside"), lab.path("etc/net.d/50-link.conflist")).unwrap();
    eventually(TIMEOUT, || name(&networks) == "linked");
    lab.list("../moved", "moved", "a");
    fs::rename(lab.path("etc/moved"), lab.path("etc/net.d/40-moved.conflist")).unwrap();
    eventually(TIMEOUT, || name(&networks) == "moved");
    let before = networks.changed();
    lab.config("moved/10-more.conf", r#"{"type":"a"}"#);
    eventually(TIMEOUT, || networks.current().unwrap().plugins.len() == 2);
    assert!(networks.changed() > before);
}

#[test]
fn a_missing_plugin_makes_its_network_wait_until_it_is_there() {
    // cni-runtime.md section 3.4, CRI-O
    let lab = Lab::new();
    lab.list("10-a.conflist", "wanted", "later");
    lab.list("20-b.conflist", "meanwhile", "a");
    let networks = lab.networks(WITHOUT_POLL);
    assert_eq!(name(&networks), "meanwhile");
    lab.plugin("later", "1.0.0");
    eventually(TIMEOUT, || name(&networks) == "wanted");
    // Its plugin is being replaced: that is no reason to attach the next pod to another network.
    fs::remove_file(lab.path("bin/later")).unwrap();
    lab.config("30-c.conflist", "{");
    eventually(TIMEOUT, || networks.skipped().len() == 1);
    assert_eq!(name(&networks), "wanted");
}

#[test]
fn a_plugins_versions_are_cached_while_its_file_is_the_same() {
    let lab = Lab::new();
    lab.config("10-a.conflist", r#"{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"a"}]}"#);
    let runtime = Runtime::new(vec![lab.path("bin")], lab.path("cache"));
    let mut surveyor = Surveyor::new(ConfigDir::new(lab.path("etc/net.d")), runtime);
    for _ in 0..3 {
        assert_eq!(surveyor.survey(None).skipped.len(), 1);
    }
    assert_eq!(lab.runs(), 1);
    lab.plugin("a", "0.4.0");
    assert!(surveyor.survey(None).found.is_ok());
    assert_eq!(lab.runs(), 2);
}

#[test]
fn the_first_scan_completes_before_watch_returns() {
    let lab = Lab::new();
    // It prints no version, and is run again at each scan.
    lab.plugin("a", "");
    let mute = fs::read_to_string(lab.path("bin/a")).unwrap().replace("echo '{", "exit 3 '");
    fs::write(lab.path("bin/a"), mute).unwrap();
    lab.list("10-a.conflist", "n", "a");
    let networks = lab.networks(WITHOUT_POLL);
    let shared = Arc::downgrade(&networks.shared);
    assert!(networks.current().is_err());
    drop(networks);
    eventually(TIMEOUT, || shared.strong_count() == 0);
    assert_eq!(lab.runs(), 1);
}

#[test]
fn a_broken_watch_falls_back_to_polling() {
    let broken = || Err(io::Error::from(io::ErrorKind::OutOfMemory));
    let never = || -> io::Result<bool> { panic!("the watch has an answer") };
    assert!(is_called(Some(Ok(Woken::Called)), never, Duration::ZERO));
    assert!(!is_called(Some(Ok(Woken::Changed)), never, Duration::ZERO));
    assert!(!is_called(Some(broken()), || Ok(false), Duration::ZERO));
    assert!(is_called(Some(broken()), || Ok(true), Duration::ZERO));
    assert!(is_called(None, || Ok(true), Duration::ZERO));
    assert!(!is_called(None, || Err(io::ErrorKind::OutOfMemory.into()), Duration::ZERO));
}

#[test]
fn changes_without_inotify_events_are_found_by_the_poll() {
    let lab = Lab::new();
    lab.list("../outside", "before", "a");
    fs::create_dir_all(lab.path("etc/net.d")).unwrap();
    symlink(lab.path("etc/outside"), lab.path("etc/net.d/10-link.conflist")).unwrap();
    let networks = lab.networks(ScanTiming { poll: Duration::from_millis(20), ..WITHOUT_POLL });
    assert_eq!(name(&networks), "before");
    // The link's target is in a directory that is not watched.
    lab.list("../outside", "after", "a");
    eventually(TIMEOUT, || name(&networks) == "after");
}

#[test]
fn the_thread_ends_with_the_last_clone() {
    let lab = Lab::new();
    let networks = lab.networks(WITHOUT_POLL);
    let shared = Arc::downgrade(&networks.shared);
    let clone = networks.clone();
    drop(networks);
    lab.list("10-a.conflist", "n", "a");
    eventually(TIMEOUT, || name(&clone) == "n");
    drop(clone);
    eventually(TIMEOUT, || shared.strong_count() == 0);
}
