//! A machine with a fresh Debian: a root that debootstrap has made once, under an overlay that goes with the machine, and namespaces of mounts,
//! network and processes. A script is in the place of `systemctl`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use russet_testkit::pages::repository;
use russet_testkit::require_tool;
use tempfile::TempDir;

/// Beside the essential packages: what the tests look with, and what `systemctl` is written in.
const INCLUDED: &str = "iproute2,iputils-ping,python3-minimal";
/// Where packages and their administrators have files.
const PLACES: &str = "/etc /opt /usr /var/lib";

pub struct Machine {
    directory: TempDir,
    /// `unshare`, which ends the machine's processes when it is killed.
    process: Child,
    /// The machine's first process.
    init: u32,
}

impl Machine {
    /// Starts a machine that sees `packages` as `/packages`.
    pub fn start(packages: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut unshare = Command::new(require_tool("unshare"));
        unshare.args(["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-eu"]);
        let tests = repository().join("crates/russet/tests/whole");
        unshare.arg(tests.join("packages/machine.sh")).arg(directory.path()).arg(debian()).arg(packages);
        unshare.arg(tests.join("docs/systemctl.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = unshare.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the machine did not start");
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let init = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Self { directory, process, init }
    }

    /// The machine's root, as the test's own programs see it in the machine's mount namespace.
    pub fn root(&self) -> String {
        self.directory.path().join("root").display().to_string()
    }

    /// Runs a shell command on the machine; gives all that it prints.
    #[track_caller]
    pub fn run(&self, command: &str) -> String {
        self.enter(&["--mount", "--net", "--pid", "--uts", "--ipc", "--root", "--wd"], command)
    }

    /// Runs a program of the test's own system on the machine's files.
    #[track_caller]
    pub fn outside(&self, command: &str) -> String {
        self.enter(&["--mount", "--net", "--pid"], command)
    }

    #[track_caller]
    fn enter(&self, namespaces: &[&str], command: &str) -> String {
        let mut nsenter = Command::new(require_tool("nsenter"));
        nsenter.arg("--target").arg(self.init.to_string()).args(namespaces).env_clear();
        nsenter.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        nsenter.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        let done =
            nsenter.args(["sh", "-euc", &format!("{{ {command}\n}} 2>&1")]).stdin(Stdio::null()).output();
        let done = done.unwrap();
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{command}: {}\n{printed}", done.status);
        printed
    }

    /// Pings the pod in a network namespace from before a command until after it; gives what both print.
    #[track_caller]
    pub fn pings_of_pod(&self, netns: &str, command: &str) -> String {
        self.run(&format!(
            "address=$(ip -n {netns} -4 -o address show eth0 | awk '{{ print $4 }}' | cut -d/ -f1)\n\
             ping -q -i 0.02 \"$address\" > /tmp/pings & pings=$!\n\
             {command}\n\
             kill -INT $pings; wait $pings\ncat /tmp/pings"
        ))
    }

    /// The paths of all files that belong to programs.
    pub fn files(&self) -> BTreeSet<String> {
        let found = self.run(&format!(
            "find {PLACES} -xdev ! -path '/var/lib/dpkg/*' ! -path '/etc/ld.so.cache' ! -name __pycache__ ! -name '*.pyc'"
        ));
        found.lines().map(str::to_owned).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The root of a fresh Debian of this machine's release, made once for each user: debootstrap takes a minute, and 60 MB from Debian's mirror.
fn debian() -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let release = std::fs::read_to_string("/etc/os-release").unwrap();
    let codename =
        release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).expect("a release of Debian");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache"),
        PathBuf::from,
    );
    let parent = cache.join("russet/debian");
    let root = parent.join(format!("{codename}-{}", INCLUDED.replace(',', "-")));
    if !root.is_dir() {
        std::fs::create_dir_all(&parent).unwrap();
        // A directory of its own, so that a killed test leaves no half of a root under the name.
        let fresh = tempfile::tempdir_in(&parent).unwrap();
        let made = fresh.path().join("root");
        let mut debootstrap = Command::new(require_tool("debootstrap"));
        debootstrap.args(["--variant=minbase", &format!("--include={INCLUDED}"), codename]).arg(&made);
        let done = debootstrap.output().unwrap();
        assert!(done.status.success(), "debootstrap: {}", String::from_utf8_lossy(&done.stdout));
        // Another process may have been as fast.
        if let Err(error) = std::fs::rename(&made, &root) {
            assert!(root.is_dir(), "{}: {error}", root.display());
        }
    }
    root
}
