//! Installations below a temporary root, with marked text files in place of executables.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use russet_cni_spec::relay;

use super::manifest::Saved;
use super::*;

struct TestNode {
    root: tempfile::TempDir,
    wish: Wish,
}

impl TestNode {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let wish = Wish {
            root: at("node"),
            in_place: false,
            bin_dir: at("node/usr/local/bin"),
            cni_bin_dir: at("node/opt/cni/bin"),
            cni_conf_dir: Some(at("node/etc/cni/net.d")),
            own_conflist: None,
            unit_dir: Some(at("node/etc/systemd/system")),
            services: vec![Service::Agent],
            plugins: None,
            command: at("dist/russet"),
            plugin: at("dist/russet-cni"),
            is_packaged: false,
        };
        fs::create_dir_all(at("dist")).unwrap();
        let node = Self { root, wish };
        node.version("1");
        node
    }

    fn version(&self, version: &str) {
        for path in [&self.wish.command, &self.wish.plugin] {
            fs::write(path, format!("{version} {}", relay::MARK)).unwrap();
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join("node").join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    fn put(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn plan(&self) -> Plan {
        plan(&self.wish, &look(&self.wish).unwrap()).unwrap()
    }

    fn install(&self) -> Plan {
        let plan = self.plan();
        let mut manifest = Manifest::read(&self.wish.root).unwrap();
        if manifest.add(&plan) {
            manifest.write(&self.wish.root).unwrap();
        }
        carry_out(&plan.keep, &mut |_| ()).unwrap();
        manifest.add_kept(&plan);
        manifest.write(&self.wish.root).unwrap();
        carry_out(&plan.steps, &mut |_| ()).unwrap();
        carry_out(&plan.last, &mut |_| ()).unwrap();
        manifest.unfinished = false;
        manifest.write(&self.wish.root).unwrap();
        plan
    }
}

#[test]
fn a_fresh_node_gets_everything_and_its_conflist_last() {
    let node = TestNode::new();
    let plan = node.install();
    assert!(
        matches!(&plan.last[..], [Step::Write { path, .. }] if *path == node.at("etc/cni/net.d/10-russet.conflist"))
    );
    for path in ["usr/local/bin/russet", "opt/cni/bin/russet", "opt/cni/bin/loopback", "opt/cni/bin/portmap"]
    {
        assert_eq!(node.text(path), format!("1 {}", relay::MARK), "{path}");
        assert_eq!(fs::metadata(node.at(path)).unwrap().permissions().mode() & 0o777, 0o755, "{path}");
    }
    assert!(
        node.text("etc/systemd/system/russet-agent.service")
            .contains("ExecStart=/usr/local/bin/russet agent\n")
    );
    let list: serde_json::Value =
        serde_json::from_str(&node.text("etc/cni/net.d/10-russet.conflist")).unwrap();
    assert_eq!(list["plugins"][0]["russet_path"], "/usr/local/bin/russet");
    assert_eq!(list["plugins"][1]["type"], "portmap");
    assert_eq!(list["cniVersions"][1], "1.1.0");
    assert!(
        russet_cni_spec::ConfigList::parse(node.text("etc/cni/net.d/10-russet.conflist").as_bytes()).is_ok()
    );
}

#[test]
fn an_install_warns_about_host_ports_of_another_portmap() {
    let node = TestNode::new();
    let mut found = look(&node.wish).unwrap();
    assert_eq!(plan(&node.wish, &found).unwrap().warnings, Vec::<String>::new());
    found.reference_ports = 2;
    let warnings = plan(&node.wish, &found).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("host ports of 2 container(s)"), "{warnings:?}");
    // A foreign portmap that stays deletes them itself.
    node.put("opt/cni/bin/portmap", "#!/bin/sh\n");
    let found = Found { reference_ports: 2, ..look(&node.wish).unwrap() };
    assert_eq!(plan(&node.wish, &found).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn an_install_without_the_small_executable_names_the_command_that_builds_it() {
    let node = TestNode::new();
    fs::remove_file(&node.wish.plugin).unwrap();
    let error = look(&node.wish).unwrap_err().to_string();
    assert!(error.contains("russet-cni is not there") && error.contains("`cargo xtask install`"), "{error}");
}

#[test]
fn a_root_that_is_used_in_place_has_a_conflist_with_its_own_socket() {
    let mut node = TestNode::new();
    node.wish.in_place = true;
    node.wish.unit_dir = None;
    node.install();
    let list: serde_json::Value =
        serde_json::from_str(&node.text("etc/cni/net.d/10-russet.conflist")).unwrap();
    let plugins = list["plugins"].as_array().unwrap();
    assert_eq!(plugins.iter().map(|plugin| &plugin["type"]).collect::<Vec<_>>(), ["russet", "portmap"]);
    for plugin in plugins {
        let is_at = |key: &str, path: &str| plugin[key] == node.at(path).to_str().unwrap();
        assert!(is_at("agent_socket", "run/russet/cni.sock"), "{list}");
        assert!(is_at("russet_path", "usr/local/bin/russet"), "{list}");
        assert_eq!(plugin["root"], node.wish.root.to_str().unwrap());
    }
    // An image's paths begin at its root.
    let image = TestNode::new();
    image.install();
    assert!(!image.text("etc/cni/net.d/10-russet.conflist").contains("agent_socket"));
}

#[test]
fn requested_units_are_written_and_found_with_their_enablement_links() {
    let mut node = TestNode::new();
    node.wish.services = Service::ALL.to_vec();
    node.wish.bin_dir = node.at("opt/russet");
    node.install();
    let dir = |name: &str| node.at("etc/systemd/system").join(name);
    let units =
        ["russet-agent.service", "russet-cri.service", "russet-pod@.service", "russet-flanneld.service"]
            .map(dir);
    for (unit, verb) in units.iter().zip(["agent", "cri", "sandbox run --replace", "flanneld"]) {
        let text = fs::read_to_string(unit).unwrap();
        assert!(text.contains(&format!("ExecStart=/opt/russet/russet {verb}")), "{text}");
    }
    let wants = dir("multi-user.target.wants");
    fs::create_dir(&wants).unwrap();
    for (link, to) in [("russet-cri.service", 1), ("russet-pod@web.service", 2), ("russet-pod@db.service", 2)]
    {
        std::os::unix::fs::symlink(&units[to], wants.join(link)).unwrap();
    }
    std::os::unix::fs::symlink("/x", wants.join("nginx.service")).unwrap();
    let found = crate::owned::look(&node.wish.root, false).unwrap().files.units;
    let links =
        ["russet-cri.service", "russet-pod@db.service", "russet-pod@web.service"].map(|it| wants.join(it));
    let wanted = [&units[0], &links[0], &units[1], &links[1], &links[2], &units[2], &units[3]];
    assert_eq!(found.iter().collect::<Vec<_>>(), wanted);
}

#[test]
fn a_copied_unit_is_ours_and_an_operators_own_is_not() {
    let node = TestNode::new();
    node.put("etc/systemd/system/russet-cri.service", &Service::Cri.text(Path::new("/usr/bin/russet")));
    node.put("etc/systemd/system/russet-pod@.service", "[Service]\nExecStart=/bin/true\n");
    let found = crate::owned::look(&node.wish.root, false).unwrap().files.units;
    assert_eq!(found, [node.at("etc/systemd/system/russet-cri.service")]);
}

#[test]
fn a_second_time_nothing_changes() {
    let node = TestNode::new();
    node.install();
    let plan = node.install();
    assert!(plan.steps.iter().chain(&plan.last).all(|step| !step.is_change()), "{plan:?}");
}

#[test]
fn an_update_replaces_executables_and_keeps_the_users_conflist() {
    let node = TestNode::new();
    node.install();
    node.put("etc/cni/net.d/10-russet.conflist", "the user's");
    node.version("2");
    node.install();
    assert_eq!(node.text("opt/cni/bin/russet"), format!("2 {}", relay::MARK));
    assert_eq!(node.text("opt/cni/bin/portmap"), format!("2 {}", relay::MARK));
    assert_eq!(node.text("etc/cni/net.d/10-russet.conflist"), "the user's");
}

#[test]
fn a_conflist_of_the_clusters_own_is_written_last_and_kept_up_to_date() {
    let mut node = TestNode::new();
    node.put("etc/cni/net.d/10-flannel.conflist", "of an earlier version");
    node.wish.own_conflist = Some(("10-flannel.conflist".to_owned(), "cbr0".to_owned()));
    let plan = node.install();
    let path = node.at("etc/cni/net.d/10-flannel.conflist");
    assert!(matches!(&plan.last[..], [Step::Write { path: written, .. }] if *written == path));
    assert_eq!(node.text("etc/cni/net.d/10-flannel.conflist"), "cbr0");
    assert!(!node.at("etc/cni/net.d/10-russet.conflist").exists());
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    assert!(matches!(&node.install().last[..], [Step::Leave { .. }]));
}

#[test]
fn a_foreign_plugin_is_replaced_only_if_its_name_is_requested() {
    let mut node = TestNode::new();
    node.put("opt/cni/bin/portmap", "go");
    node.put("opt/cni/bin/bridge", "go");
    node.install();
    assert_eq!(node.text("opt/cni/bin/portmap"), "go");
    // The foreign plugin may not support CNI 1.1.0.
    let list: serde_json::Value =
        serde_json::from_str(&node.text("etc/cni/net.d/10-russet.conflist")).unwrap();
    assert_eq!((list["plugins"][1]["type"].as_str(), list.get("cniVersions")), (Some("portmap"), None));
    node.wish.plugins = Some(vec!["russet".to_owned(), "bridge".to_owned()]);
    node.install();
    assert_eq!(node.text("opt/cni/bin/bridge"), format!("1 {}", relay::MARK));
    assert_eq!(node.text("opt/cni/bin/.bridge.before-russet"), "go");
    let saved =
        Saved { path: node.at("opt/cni/bin/bridge"), saved: node.at("opt/cni/bin/.bridge.before-russet") };
    assert_eq!(Manifest::read(&node.wish.root).unwrap().saved, [saved]);
}

#[test]
fn an_interrupted_installation_is_completed_by_the_next() {
    // kubernetes.md K90
    let steps = {
        let plan = TestNode::new().plan();
        plan.steps.len() + plan.last.len()
    };
    for done in 0..steps {
        let node = TestNode::new();
        node.put("opt/cni/bin/bridge", "go");
        let plan = node.plan();
        let all: Vec<Step> = plan.steps.into_iter().chain(plan.last).take(done).collect();
        carry_out(&all, &mut |_| ()).unwrap();
        node.install();
        let again = node.plan();
        assert!(again.steps.iter().chain(&again.last).all(|step| !step.is_change()), "{done}: {again:?}");
        assert_eq!(node.text("opt/cni/bin/bridge"), "go");
    }
}

#[test]
fn warnings_name_what_prevents_pods_from_using_it() {
    let mut node = TestNode::new();
    node.put("etc/cni/net.d/05-other.conf", "{}");
    node.put("etc/cni/net.d/99-later.conflist", "{}");
    assert_eq!(node.plan().warnings.len(), 1);
    assert!(node.plan().warnings[0].starts_with("05-other.conf comes before"), "{:?}", node.plan().warnings);
    node.wish.plugins = Some(vec!["../evil".to_owned()]);
    let error = plan(&node.wish, &Found::default()).unwrap_err();
    assert!(
        error.to_string().starts_with("\"../evil\" is not a plugin of Russet; known: russet, "),
        "{error}"
    );
    fs::remove_file(&node.wish.plugin).unwrap();
    assert!(matches!(look(&node.wish), Err(InstallError::NoExecutable(_))));
}

#[test]
fn a_plugin_that_a_package_replaced_is_foreign() {
    let mut node = TestNode::new();
    node.wish.plugins = Some(vec!["bridge".to_owned(), "loopback".to_owned()]);
    node.put("opt/cni/bin/bridge", "version 1 of a package's");
    node.install();
    let ours = [node.at("opt/cni/bin/bridge"), node.at("opt/cni/bin/loopback")];
    let files = crate::owned::look(&node.wish.root, false).unwrap().files;
    assert!(ours.iter().all(|path| files.programs.contains(path)) && files.saved.len() == 1, "{files:?}");
    node.put("opt/cni/bin/bridge", "version 2 of a package's");
    fs::remove_file(&ours[1]).unwrap();
    node.put("opt/cni/bin/loopback", "version 2 of a package's");
    let files = crate::owned::look(&node.wish.root, false).unwrap().files;
    assert!(!ours.iter().any(|path| files.programs.contains(path)), "{files:?}");
    // Version 1 must not replace version 2.
    assert!(files.saved.is_empty() && files.programs.contains(&node.at("opt/cni/bin/.bridge.before-russet")));
}

#[test]
fn a_packages_command_stays_and_its_plugins_are_links_that_follow_an_upgrade() {
    let mut node = TestNode::new();
    node.put("usr/bin/russet", relay::MARK);
    node.put("usr/libexec/russet/russet-cni", relay::MARK);
    // As an installation before the package has left it.
    node.put("opt/cni/bin/portmap", relay::MARK);
    node.wish.command = node.at("usr/bin/russet");
    node.wish.plugin = node.at("usr/libexec/russet/russet-cni");
    (node.wish.bin_dir, node.wish.unit_dir, node.wish.is_packaged) = (node.at("usr/bin"), None, true);
    let plan = node.install();
    assert!(
        matches!(&plan.steps[1], Step::Leave { path, .. } if *path == node.at("usr/bin/russet")),
        "{plan:?}"
    );
    for plugin in ["russet", "loopback", "portmap"] {
        let link = fs::read_link(node.at("opt/cni/bin").join(plugin)).unwrap();
        assert_eq!(link, node.wish.plugin, "{plugin}");
    }
    let list: serde_json::Value =
        serde_json::from_str(&node.text("etc/cni/net.d/10-russet.conflist")).unwrap();
    assert_eq!(list["plugins"][0]["russet_path"], "/usr/bin/russet");

    node.put("usr/libexec/russet/russet-cni", &format!("2 {}", relay::MARK));
    assert_eq!(node.text("opt/cni/bin/russet"), format!("2 {}", relay::MARK));
    assert!(node.plan().steps.iter().all(|step| !step.is_change()), "{:?}", node.plan());
    // What the package has is removed by its package manager.
    let files = Manifest::read(&node.wish.root).unwrap().files;
    assert!(!files.contains(&node.wish.command) && !files.contains(&node.wish.plugin), "{files:?}");
    assert!(files.contains(&node.at("opt/cni/bin/russet")), "{files:?}");
}

const INSTALLED: [&str; 4] =
    ["usr/local/bin/russet", "opt/cni/bin/russet", "opt/cni/bin/loopback", "opt/cni/bin/portmap"];

impl TestNode {
    /// The versions of the files in place.
    fn versions(&self) -> String {
        INSTALLED.iter().map(|path| self.text(path).chars().next().unwrap()).collect()
    }

    /// As `russet install --rollback` does it.
    fn roll_back(&self) -> Result<(), InstallError> {
        let mut manifest = Manifest::read(&self.wish.root)?;
        carry_out(&rollback::roll_back(&manifest)?, &mut |_| ())?;
        (manifest.previous, manifest.unfinished) = (Vec::new(), false);
        manifest.write(&self.wish.root)
    }
}

#[test]
fn a_rollback_restores_the_version_before_the_last_and_nothing_older() {
    let node = TestNode::new();
    node.install();
    assert!(matches!(node.roll_back(), Err(InstallError::NothingToRestore(_))));
    node.put("etc/systemd/system/russet-agent.service", "the unit of version 1");
    for version in ["2", "3"] {
        node.version(version);
        node.install();
        // A repeated installation replaces nothing, and what was kept stays.
        node.install();
    }
    assert_eq!(node.versions(), "3333");
    node.roll_back().unwrap();
    assert_eq!(node.versions(), "2222");
    // Version 3 had the unit of version 2; the one of version 1 is not mixed with executables of version 2.
    let unit = node.text("etc/systemd/system/russet-agent.service");
    assert!(unit != "the unit of version 1", "{unit}");
    assert!(matches!(node.roll_back(), Err(InstallError::NothingToRestore(_))));
    let files = crate::owned::look(&node.wish.root, false).unwrap().files;
    assert!(!files.programs.iter().any(|path| is_previous(path)), "{files:?}");
}

#[test]
fn what_a_rollback_needs_is_removed_with_the_installation() {
    let node = TestNode::new();
    node.install();
    node.put("etc/systemd/system/russet-agent.service", "the unit of version 1");
    node.version("2");
    node.install();
    let kept: Vec<PathBuf> = INSTALLED
        .iter()
        .chain(&["etc/systemd/system/russet-agent.service"])
        .map(|path| beside(&node.at(path), PREVIOUS_SUFFIX))
        .collect();
    let programs = crate::owned::look(&node.wish.root, false).unwrap().files.programs;
    assert!(kept.iter().all(|path| path.is_file() && programs.contains(path)), "{programs:?}");
}

/// Carries out the first `done` steps of an installation, as if the machine had stopped then.
fn interrupted(node: &TestNode, done: usize) -> bool {
    let plan = node.plan();
    let mut manifest = Manifest::read(&node.wish.root).unwrap();
    manifest.add(&plan);
    manifest.write(&node.wish.root).unwrap();
    let kept = plan.keep.len();
    carry_out(&plan.keep[..kept.min(done)], &mut |_| ()).unwrap();
    if done > kept {
        manifest.add_kept(&plan);
        manifest.write(&node.wish.root).unwrap();
        let steps: Vec<Step> = plan.steps.iter().chain(&plan.last).take(done - kept).cloned().collect();
        carry_out(&steps, &mut |_| ()).unwrap();
    }
    done < plan.all().count()
}

#[test]
fn a_rollback_after_an_interrupted_installation_never_mixes_versions() {
    for done in 0.. {
        let node = TestNode::new();
        node.install();
        node.version("2");
        node.install();
        node.version("3");
        let is_interrupted = interrupted(&node, done);
        match node.roll_back() {
            Ok(()) | Err(InstallError::NothingToRestore(_)) => assert_eq!(node.versions(), "2222", "{done}"),
            Err(error) => panic!("{done}: {error}"),
        }
        if !is_interrupted {
            return;
        }
    }
}

#[test]
fn another_version_after_an_interrupted_installation_keeps_the_whole_one_before_both() {
    for done in 0.. {
        let node = TestNode::new();
        node.install();
        node.version("2");
        let is_interrupted = interrupted(&node, done);
        node.version("3");
        node.install();
        assert_eq!(node.versions(), "3333", "{done}");
        if !is_interrupted {
            return;
        }
        node.roll_back().unwrap();
        assert_eq!(node.versions(), "1111", "{done}");
    }
}

#[test]
fn an_installation_after_an_interrupted_rollback_keeps_the_whole_older_version() {
    for done in 0..INSTALLED.len() {
        let node = TestNode::new();
        node.install();
        node.version("2");
        node.install();
        let mut manifest = Manifest::read(&node.wish.root).unwrap();
        manifest.unfinished = true;
        manifest.write(&node.wish.root).unwrap();
        let steps = rollback::roll_back(&manifest).unwrap();
        carry_out(&steps[..done], &mut |_| ()).unwrap();
        node.install();
        assert_eq!(node.versions(), "2222", "{done}");
        node.roll_back().unwrap();
        assert_eq!(node.versions(), "1111", "{done}");
    }
}
