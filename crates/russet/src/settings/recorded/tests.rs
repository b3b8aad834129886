use super::*;
use crate::settings::direct;

fn effective(store: &str, node: &str) -> Effective {
    let mut effective = Effective::default();
    effective.set("store", store, &Origin::Flag("store"));
    effective.set("node_name", node, &Origin::Variable("node_name"));
    effective.set("calico", false, &Origin::Default);
    effective.set("openshift", false, &Origin::Default);
    effective.set("ipv4_pool", "10.9.0.0/16", &Origin::Default);
    effective.set("ipv6_pool", "none", &Origin::Default);
    effective.set("encapsulation", "none", &Origin::Default);
    effective.set("mtu", 1400, &Origin::Default);
    effective
}

fn node() -> (tempfile::TempDir, Paths) {
    let root = tempfile::tempdir().unwrap();
    let paths = Paths::new(root.path());
    (root, paths)
}

fn args(paths: &Paths) -> NodeArgs {
    NodeArgs { root: paths.root().to_owned(), ..NodeArgs::without_flags().unwrap() }
}

fn settings_file(paths: &Paths, text: &str) {
    std::fs::create_dir_all(paths.settings_file().parent().unwrap()).unwrap();
    std::fs::write(paths.settings_file(), text).unwrap();
}

fn refusal(paths: &Paths) -> String {
    direct(args(paths), true).err().unwrap().to_string()
}

#[test]
fn a_plugin_without_an_agent_uses_the_recorded_settings() {
    let (_root, paths) = node();
    keep(&paths, &effective("etcd:http://a:1,http://b:1", "n7")).unwrap();
    let config = direct(args(&paths), true).unwrap();
    assert_eq!(config.store.to_string(), "etcd:http://a:1,http://b:1");
    assert_eq!((config.node_name.as_str(), config.mtu_bytes), ("n7", Some(1400)));
    assert_eq!((config.pools.ipv4, config.pools.ipv6), ("10.9.0.0/16".parse().ok(), None));
    assert!(!paths.has_embedded_store());
    for record in [paths.settings_record(), paths.settings_record_copy()] {
        let mode = std::fs::metadata(&record).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o600, "{}", record.display());
    }
}

#[test]
fn the_copy_is_used_after_a_boot() {
    let (_root, paths) = node();
    keep(&paths, &effective("unix:/s", "n7")).unwrap();
    std::fs::remove_dir_all(paths.run_dir()).unwrap();
    assert_eq!(direct(args(&paths), true).unwrap().store, StoreLocation::Unix("/s".into()));
}

#[test]
fn an_add_is_refused_if_the_settings_file_differs_and_a_del_is_not() {
    let (_root, paths) = node();
    keep(&paths, &effective("etcd:http://a:1,http://b:1", "n7")).unwrap();
    for (text, wanted) in [
        ("store = 'embedded'", "says embedded"),
        ("store = 'etcd:http://a:1'", "says etcd:http://a:1"),
        ("node_name = 'n8'", "says n8"),
        ("calico = true", "says true"),
        ("openshift = true", "says true"),
        ("stroe = 'embedded'", "unknown key"),
    ] {
        settings_file(&paths, text);
        let refused = refusal(&paths);
        assert!(refused.contains(wanted) && refused.contains("start the agent"), "{text}: {refused}");
        let config = direct(args(&paths), false).unwrap();
        assert_eq!(
            (config.store.to_string().as_str(), config.node_name.as_str()),
            ("etcd:http://a:1,http://b:1", "n7")
        );
    }
    // The order of etcd's members does not matter, nor do unset settings.
    settings_file(
        &paths,
        "store = 'etcd:http://b:1,http://a:1'\nnode_name = 'n7'\ncalico = false\nlog_level = 'debug'",
    );
    assert!(direct(args(&paths), true).is_ok());
}

#[test]
fn the_refusal_names_both_sources() {
    let (_root, paths) = node();
    keep(&paths, &effective("etcd:http://a:1", "n7")).unwrap();
    settings_file(&paths, "store = 'embedded'");
    let refused = refusal(&paths);
    let [record, file] =
        [paths.settings_record(), paths.settings_file()].map(|path| path.display().to_string());
    for part in ["store etcd:http://a:1", "flag --store", &record, &file] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}

#[test]
fn a_damaged_record_never_leads_to_another_store() {
    for damage in [
        "",
        "schema = 2\nstore = 'embedded'\nnode_name = 'n7'",
        "store = 'embedded'",
        "schema = 1\nstore = 'em",
    ] {
        let (_root, paths) = node();
        keep(&paths, &effective("unix:/s", "n7")).unwrap();
        std::fs::write(paths.settings_record(), damage).unwrap();
        assert!(refusal(&paths).contains("cannot be used"), "{damage}");
        let config = direct(args(&paths), false).unwrap();
        assert_eq!(config.store, StoreLocation::Unix("/s".into()), "the copy is whole: {damage}");
        std::fs::write(paths.settings_record_copy(), damage).unwrap();
        for is_add in [true, false] {
            assert!(matches!(direct(args(&paths), is_add), Err(SettingsError::Doubt(_))), "{damage}");
        }
        // A starting agent writes both again.
        keep(&paths, &effective("unix:/t", "n7")).unwrap();
        assert_eq!(direct(args(&paths), true).unwrap().store, StoreLocation::Unix("/t".into()));
    }
}

#[test]
fn a_record_that_others_may_write_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_root, paths) = node();
    keep(&paths, &effective("unix:/s", "n7")).unwrap();
    std::fs::set_permissions(paths.settings_record(), std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(refusal(&paths).contains("others than root can write it"));
}

#[test]
fn an_add_is_refused_if_the_records_differ() {
    let (_root, paths) = node();
    keep(&paths, &effective("unix:/s", "n7")).unwrap();
    std::fs::write(paths.settings_record_copy(), effective("unix:/t", "n7").to_toml()).unwrap();
    assert!(refusal(&paths).contains("record different settings"));
    assert_eq!(direct(args(&paths), false).unwrap().store, StoreLocation::Unix("/s".into()));
}

#[test]
fn a_journal_without_a_record_makes_the_settings_uncertain() {
    let (_root, paths) = node();
    assert_eq!(direct(args(&paths), true).unwrap().store, StoreLocation::Embedded, "there never was one");
    std::fs::create_dir_all(paths.run_dir()).unwrap();
    std::fs::write(paths.journal_file(), "").unwrap();
    assert!(refusal(&paths).contains("has not recorded its settings"));
    assert!(direct(args(&paths), false).is_ok());
}

#[test]
fn only_the_paths_of_passwords_are_recorded() {
    let (root, paths) = node();
    let password = root.path().join("password");
    std::fs::write(&password, "opensesame\n").unwrap();
    let mut effective = effective("etcd:http://a:1", "n7");
    effective.set("etcd_username", "russet", &Origin::Flag("etcd_username"));
    effective.set("etcd_password_file", password.display().to_string(), &Origin::Flag("etcd_password_file"));
    keep(&paths, &effective).unwrap();
    assert!(!std::fs::read_to_string(paths.settings_record()).unwrap().contains("opensesame"));
    let StoreLocation::Etcd(settings) = direct(args(&paths), true).unwrap().store else { panic!() };
    assert_eq!(settings.password, Some(russet_agent::Secret::new("opensesame")));
}

#[test]
fn a_restarted_agent_does_not_rewrite_its_record() {
    let (_root, paths) = node();
    keep(&paths, &effective("unix:/s", "n7")).unwrap();
    let inode = || {
        [paths.settings_record(), paths.settings_record_copy()]
            .map(|path| std::fs::metadata(path).unwrap().ino())
    };
    let before = inode();
    keep(&paths, &effective("unix:/s", "n7")).unwrap();
    assert_eq!(inode(), before);
    keep(&paths, &effective("unix:/s", "n8")).unwrap();
    assert_ne!(inode(), before);
}
