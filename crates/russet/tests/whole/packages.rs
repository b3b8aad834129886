//! The packages of `cargo xtask dist --packages`, with the executables of this build, on a machine with a fresh Debian.

mod machine;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use russet_testkit::{require_tool, run};
use serde_json::Value;
use tempfile::TempDir;

use machine::Machine;

/// What the packages of the tests are called: those of this build, and the next ones.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const NEXT: &str = "99.0.1";
/// What an installed node has that no program of Russet removes: directories of container runtimes.
const OF_RUNTIMES: [&str; 7] = [
    "/etc/cni",
    "/etc/cni/net.d",
    "/etc/systemd/system/multi-user.target.wants",
    "/opt/cni",
    "/opt/cni/bin",
    "/var/lib/cni",
    "/var/lib/cni/results",
];

/// Makes packages of these kinds.
fn packages(kinds: &[&str], versions: &[&str]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let xtask = Path::new(env!("CARGO_BIN_EXE_russet")).with_file_name("xtask");
    assert!(xtask.is_file(), "{} is not there: `cargo build --workspace` builds it", xtask.display());
    for version in versions {
        let mut args = vec!["dist", "--packages", "--debug-executables", "--version", version, "--output"];
        args.push(directory.path().to_str().unwrap());
        args.extend(kinds.iter().flat_map(|kind| ["--only", *kind]));
        run(xtask.to_str().unwrap(), &args);
    }
    directory
}

/// The files of a directory by their names.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

#[test]
#[ignore = "tool: gzip, sha256sum, strip, tar"]
fn packages_of_equal_executables_are_equal_and_complete() {
    let (one, two) = (packages(&[], &[VERSION]), packages(&[], &[VERSION]));
    let files = contents(one.path());
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    let expected = [
        "SHA256SUMS".to_owned(),
        format!("russet-{VERSION}-1.x86_64.rpm"),
        format!("russet-{VERSION}-image.tar"),
        format!("russet-{VERSION}-x86_64-linux.tar.gz"),
        format!("russet-{VERSION}.cdx.json"),
        format!("russet_{VERSION}-1_amd64.deb"),
    ];
    assert_eq!(names, expected);
    for (name, bytes) in contents(two.path()) {
        assert!(files[&name] == bytes, "{name} differs");
    }
    run("sh", &["-c", &format!("cd {} && sha256sum --strict -c SHA256SUMS", one.path().display())]);

    let image = run("tar", &["-xOf", one.path().join(&expected[2]).to_str().unwrap(), "index.json"]);
    let image: Value = serde_json::from_str(&image).unwrap();
    let name = &image["manifests"][0]["annotations"]["io.containerd.image.name"];
    assert_eq!(name, &format!("localhost/russet:{VERSION}"));
    let archive = one.path().join(&expected[3]);
    let listed = run("tar", &["--numeric-owner", "-tvzf", archive.to_str().unwrap()]);
    let line = |end: &str| {
        listed.lines().find(|line| line.ends_with(end)).unwrap_or_else(|| panic!("{end}: {listed}"))
    };
    assert!(line("-linux/russet").starts_with("-rwxr-xr-x 0/0"), "{listed}");
    for end in
        ["/russet-cni", "/LICENSE", "/systemd/russet-agent.service", "/man/man1/russet.1", "/docs/install.md"]
    {
        line(end);
    }
    check_sbom(&serde_json::from_slice(&files[&expected[4]]).unwrap());
}

fn check_sbom(sbom: &Value) {
    let components = sbom["components"].as_array().unwrap();
    let named = |name: &str| components.iter().filter(|it| it["name"] == name).collect::<Vec<_>>();
    assert!(named("tokio")[0]["hashes"][0]["content"].as_str().is_some_and(|digest| digest.len() == 64));
    assert_eq!(named("russet-agent").len(), 1);
    // Only tests, and build scripts, use these.
    assert!(named("proptest").is_empty() && named("russet-testkit").is_empty() && named("protox").is_empty());
    let refs: BTreeSet<&str> = components.iter().map(|it| it["bom-ref"].as_str().unwrap()).collect();
    assert_eq!(refs.len(), components.len(), "references are unique");
    for dependency in sbom["dependencies"].as_array().unwrap() {
        let on = dependency["dependsOn"].as_array().unwrap();
        assert!(on.iter().all(|it| refs.contains(it.as_str().unwrap())), "{dependency}");
    }
}

fn deb(version: &str) -> String {
    format!("/packages/russet_{version}-1_amd64.deb")
}

#[test]
#[ignore = "root: makes a machine; tool: debootstrap, gzip, strip, unshare, nsenter"]
fn a_debian_package_that_is_purged_leaves_nothing() {
    let packages = packages(&["deb"], &[VERSION]);
    let machine = Machine::start(packages.path());
    let before = machine.files();
    let printed = machine.run(&format!("dpkg -i {}", deb(VERSION)));
    assert!(printed.contains("nothing of it was started"), "{printed}");
    assert_eq!(machine.run("dpkg --verify russet"), "");
    for (path, expected) in [
        ("/usr/bin/russet", "755 root root"),
        ("/usr/libexec/russet/russet-cni", "755 root root"),
        ("/etc/russet/russet.toml", "644 root root"),
        ("/usr/lib/systemd/system/russet-agent.service", "644 root root"),
        ("/usr/share/bash-completion/completions/russet", "644 root root"),
        ("/usr/share/man/man1/russet-ipam-show.1.gz", "644 root root"),
        ("/usr/share/doc/russet/copyright", "644 root root"),
    ] {
        assert_eq!(machine.run(&format!("stat -c '%a %U %G' {path}")).trim(), expected, "{path}");
    }
    assert_eq!(machine.run("readlink -e /usr/libexec/netavark/russet").trim(), "/usr/bin/russet");
    assert!(machine.run("/usr/libexec/netavark/russet info").contains("\"api_version\""));
    let units = machine.run("grep -h ^ExecStart /usr/lib/systemd/system/russet-*.service");
    assert!(
        units.lines().count() == 4 && units.lines().all(|line| line.contains("=/usr/bin/russet ")),
        "{units}"
    );
    assert_eq!(machine.run("russet --version"), run(env!("CARGO_BIN_EXE_russet"), &["--version"]));
    // Its settings are the defaults: each line that is a setting is commented out.
    assert_eq!(machine.run("grep -v '^#' /etc/russet/russet.toml | tr -d '\\n'"), "");
    machine.run("dpkg --purge russet");
    assert_eq!(machine.files().symmetric_difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
#[ignore = "root: makes a machine; kernel: veth, vxlan, nf_tables; tool: debootstrap, gzip, strip, unshare, nsenter"]
fn pods_keep_their_network_through_upgrade_removal_and_purge_of_the_debian_package() {
    let packages = packages(&["deb"], &[VERSION, NEXT]);
    let machine = Machine::start(packages.path());
    let before = machine.files();
    machine.run(&format!("dpkg -i {}", deb(VERSION)));
    machine.run("russet install --start");
    assert_eq!(machine.run("readlink /opt/cni/bin/russet").trim(), "/usr/libexec/russet/russet-cni");
    let agent = || machine.run("cat /run/units/russet-agent.service.pid");
    let first = agent();
    machine.run("ip netns add blue && russet cni add russet /run/netns/blue");
    machine.run("echo 'log_level = \"debug\"' >> /etc/russet/russet.toml");

    let pings = machine.pings_of_pod("blue", &format!("dpkg -i {}", deb(NEXT)));
    assert!(pings.contains(" 0% packet loss"), "{pings}");
    assert_ne!(agent(), first, "the agent is of the new package");
    machine
        .run("kill -0 $(cat /run/units/russet-agent.service.pid) && russet cni check russet /run/netns/blue");
    assert!(machine.run("tail -1 /etc/russet/russet.toml").contains("debug"), "changed settings stay");

    let pings = machine.pings_of_pod("blue", "dpkg --remove russet");
    assert!(pings.contains(" 0% packet loss"), "{pings}");
    assert!(pings.contains("what pods use stays"), "{pings}");
    machine.run("test ! -e /usr/bin/russet && test ! -e /run/units/russet-agent.service.pid");
    machine.run("test -e /etc/russet/russet.toml && test -e /var/lib/russet/store.redb");
    let pings = machine.pings_of_pod("blue", "dpkg --purge russet");
    assert!(pings.contains(" 0% packet loss") && pings.contains("/var/lib/russet stay"), "{pings}");
    machine.run("test ! -e /etc/russet && test -e /var/lib/russet/store.redb");

    machine.run(&format!("dpkg -i {}", deb(NEXT)));
    machine.run("russet cni del russet /run/netns/blue && ip netns delete blue");
    let removed = machine.run("dpkg --remove russet");
    assert!(removed.contains("10-russet.conflist"), "{removed}");
    machine.run("test -e /etc/russet/russet.toml && test -e /var/lib/russet/store.redb");
    machine.run("dpkg --purge russet");
    let after = machine.files();
    let left: Vec<&String> =
        after.difference(&before).filter(|path| !OF_RUNTIMES.contains(&path.as_str())).collect();
    assert_eq!(left, Vec::<&String>::new());
    assert!(!machine.run("ip link && ip netns").contains("russet"));
}

#[test]
#[ignore = "root: makes a machine; tool: debootstrap, rpm, gzip, strip, unshare, nsenter"]
fn rpm_reads_verifies_upgrades_and_erases_its_package() {
    let packages = packages(&["rpm"], &[VERSION, NEXT]);
    let file =
        |version: &str| packages.path().join(format!("russet-{version}-1.x86_64.rpm")).display().to_string();
    let query = |arguments: &[&str]| run("rpm", &[&["-qp"], arguments, &[&file(VERSION)]].concat());
    let checked = run("rpm", &["-Kv", &file(VERSION)]);
    assert!(checked.contains("SHA256 digest: OK") && !checked.contains("BAD"), "{checked}");
    let listed = query(&["--list"]);
    for path in [
        "/usr/bin/russet",
        "/usr/libexec/netavark/russet",
        "/usr/share/man/man1/russet-agent.1.gz",
        "/usr/share/licenses/russet/LICENSE",
    ] {
        assert!(listed.lines().any(|line| line == path), "{path}: {listed}");
    }
    assert_eq!(query(&["--configfiles"]).trim(), "/etc/russet/russet.toml");
    let required = query(&["--requires"]);
    assert!(required.contains("glibc >= 2.") && required.contains("libgcc_s.so.1()(64bit)"), "{required}");
    assert!(query(&["--scripts"]).contains("try-restart"));
    let archive = Command::new(require_tool("rpm2cpio")).arg(file(VERSION)).output().unwrap();
    assert!(archive.status.success() && archive.stdout.starts_with(b"070701"), "{:?}", archive.status);

    let machine = Machine::start(packages.path());
    let before = machine.files();
    // The database of the machine, which is no rpm system, has no glibc.
    let rpm = |arguments: &str| machine.outside(&format!("rpm --root {} {arguments}", machine.root()));
    let printed = rpm(&format!("--nodeps -i {}", file(VERSION)));
    assert!(printed.contains("nothing of it was started"), "{printed}");
    assert_eq!(rpm("-V --nodeps russet"), "", "files are as the package says");
    assert_eq!(machine.run("stat -c '%a %U %G' /usr/libexec/russet/russet-cni").trim(), "755 root root");
    assert_eq!(machine.run("readlink -e /usr/libexec/netavark/russet").trim(), "/usr/bin/russet");
    machine.run("russet --version && echo 'log_level = \"debug\"' >> /etc/russet/russet.toml");
    rpm(&format!("--nodeps -U {}", file(NEXT)));
    assert_eq!(rpm("-q russet").trim(), format!("russet-{NEXT}-1.x86_64"));
    assert!(machine.run("tail -1 /etc/russet/russet.toml").contains("debug"), "changed settings stay");
    rpm("--nodeps -e russet");
    let after = machine.files();
    let left: Vec<&str> =
        after.difference(&before).map(String::as_str).filter(|path| !path.contains("/rpm")).collect();
    // On a system of rpm's, the last one belongs to the package `filesystem`.
    assert_eq!(left, ["/etc/russet", "/etc/russet/russet.toml.rpmsave", "/usr/share/licenses"]);
}
