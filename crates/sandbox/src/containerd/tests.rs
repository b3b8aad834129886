//! The engine on a real containerd, with an image from a test registry: what it makes, how it
//! handles conflicts, and what is left after it was killed at any step.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use russet_linux::process::ProcessIdentity;
use russet_testkit::containerd::{Answer, Proxy};
use russet_testkit::registry::{Access, Registry};
use russet_testkit::{Random, eventually, in_new_netns, let_pass};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use super::*;
use crate::fault::DIE_AT;
use crate::testing::{self, config, link, own};

/// A containerd that has the image, and an engine below a directory of its own; in the test's mount
/// and network namespaces.
struct Fixture {
    containerd: russet_testkit::containerd::Containerd,
    engine: Containerd,
    image: String,
    files: TempDir,
    run: TempDir,
}

/// The environment of a child: the directories and the socket of its parent's fixture.
const LAB: &str = "RUSSET_TEST_CONTAINERD";
const NAMESPACE: &str = "russet-test";
const TIMEOUT: Duration = Duration::from_secs(30);
/// Far more than a creation and removal have; ends the loop if the step is never reached by
/// mistake.
const STEPS_MAX: u64 = 100;
const CREATE: &str = "/containerd.services.containers.v1.Containers/Create";

// === impl Fixture ===

impl Fixture {
    fn new() -> Self {
        // The test kit's mount shows the test's interfaces, and hides control groups.
        unmount("/sys", UnmountFlags::DETACH).unwrap();
        let containerd = russet_testkit::containerd::Containerd::start();
        let (run, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["resolv.conf", "hosts", "hostname"] {
            std::fs::write(files.path().join(name), format!("this is {name}\n")).unwrap();
        }
        russet_testkit::run("ip", &["link", "set", "lo", "up"]);
        let registry = Registry::start(Access::Open);
        let image = registry.push("pause", "1", "busybox", &["sleep", "1000000"]);
        let engine = Containerd::new(run.path(), options(&containerd.socket(), &image));
        let fixture = Self { containerd, engine, image, files, run };
        fixture.engine.image().unwrap();
        // From here on the image must be present.
        drop(registry);
        fixture
    }

    fn other(&self) -> Containerd {
        Containerd::new(self.run.path(), options(&self.containerd.socket(), &self.image))
    }

    fn create(&self, config: &Config) -> Result<(SandboxId, Made), EngineError> {
        let id = SandboxId::random().unwrap();
        Ok((id.clone(), self.engine.create(&id, config, self.files.path())?))
    }

    fn inside(&self, id: &SandboxId, config: &Config, script: &str) -> String {
        testing::inside(&self.engine.builtin, self.files.path(), (id, config), script)
    }

    fn ctr(&self, args: &[&str]) -> String {
        self.containerd.ctr(NAMESPACE, args)
    }

    /// A foreign container with the image's file system, running or not.
    fn foreign(&self, name: &str, runs: bool) {
        let verb: &[&str] = if runs { &["run", "-d"] } else { &["containers", "create"] };
        let args = [&self.image, name, "/busybox", "sleep", "1000000"];
        self.ctr(&[verb, if runs { &["--null-io"] } else { &[] }, &args].concat());
    }

    /// No container, mount, file or process of any sandbox is left.
    #[track_caller]
    fn assert_nothing_left(&self, place: &str) {
        assert_eq!(self.engine.list().unwrap(), [], "{place}");
        assert_eq!(self.ctr(&["containers", "ls", "-q"]), "", "{place}");
        assert_eq!(self.ctr(&["tasks", "ls", "-q"]), "", "{place}");
        // The first line is a heading; only the image's own file system is left.
        assert_eq!(self.ctr(&["snapshots", "ls"]).lines().count(), 2, "{place}");
        eventually(TIMEOUT, || self.containerd.shims().is_empty());
        let run = self.run.path().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let left = |line: &&str| line.contains(run) && !line.contains(&format!("{run}/netns "));
        assert_eq!(mounts.lines().find(left), None, "{place}");
        assert_eq!(self.groups(), Vec::<PathBuf>::new(), "{place}");
    }

    /// The control group of this fixture's pods: a path in each hierarchy.
    fn parent(&self) -> String {
        parent(self.run.path())
    }

    /// Its children, in every hierarchy: version 1 has several.
    fn groups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for root in hierarchies() {
            let children = std::fs::read_dir(root.join(&self.parent()[1..])).into_iter().flatten().flatten();
            found.extend(children.map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
        found
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for id in self.engine.list().unwrap_or_default() {
            let _ = self.engine.remove(&id);
        }
        let _ = unmount(self.run.path().join("netns"), UnmountFlags::DETACH);
        for root in hierarchies() {
            let _ = std::fs::remove_dir(root.join(&self.parent()[1..]));
        }
    }
}

/// A unique name.
fn parent(run: &Path) -> String {
    format!("/russet-test-pods{}", run.file_name().unwrap().to_str().unwrap())
}

/// The mount points of control groups.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let of_groups = mounts.lines().filter(|line| line.contains(" - cgroup"));
    of_groups.map(|line| PathBuf::from(line.split(' ').nth(4).unwrap())).collect()
}

fn options(socket: &Path, image: &str) -> ContainerdOptions {
    ContainerdOptions {
        socket: socket.to_owned(),
        namespace: NAMESPACE.to_owned(),
        snapshotter: "overlayfs".to_owned(),
        image: image.parse().unwrap(),
        credentials: Vec::new(),
    }
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_sandbox_is_a_container_in_the_namespace_that_was_made_for_it() {
    // cni-runtime.md section 3.3: the namespace is there before the container is
    in_new_netns(|| {
        let fixture = Fixture::new();
        let config = config("web-0");
        let (id, made) = fixture.create(&config).unwrap();
        let (pid, netns) = (made.pid.unwrap(), made.netns.unwrap());
        for kind in ["net", "ipc", "uts", "mnt", "pid"] {
            assert_ne!(link(pid, kind), own(kind), "{kind}");
        }
        assert!(NetNs::open(&netns).unwrap().same_as(&NetNs::of_process(pid).unwrap()));
        assert_eq!(fixture.ctr(&["tasks", "ls", "-q"]).trim(), id.as_str());
        let label = fixture.ctr(&["containers", "info", id.as_str()]);
        assert!(label.contains("\"io.kubernetes.pod.name\": \"web\""), "{label}");
        let root = format!("/proc/{pid}/root");
        let seen = ["resolv.conf", "hosts", "hostname"]
            .map(|name| std::fs::read_to_string(format!("{root}/etc/{name}")).unwrap());
        assert_eq!(seen, ["this is resolv.conf\n", "this is hosts\n", "this is hostname\n"]);
        let script = "uname -n; ls /sys/class/net; df -k /dev/shm | tail -1 | awk '{print $2}'; echo x > /dev/shm/mine";
        assert_eq!(fixture.inside(&id, &config, script), "web-0\nlo\n65536\n");
        assert!(Path::new(&format!("{root}/dev/shm/mine")).exists());
        assert_eq!(fixture.engine.state(&id).unwrap(), EngineState::Running { pid: Some(pid) });
        assert_eq!(fixture.other().list().unwrap(), std::slice::from_ref(&id));
        for _ in 0..2 {
            fixture.other().stop(&id).unwrap();
            assert_eq!(fixture.engine.state(&id).unwrap(), EngineState::Stopped);
            assert!(!netns.exists() && !Path::new(&format!("/proc/{pid}")).exists());
        }
        for _ in 0..2 {
            fixture.engine.remove(&id).unwrap();
            assert_eq!(fixture.engine.state(&id).unwrap(), EngineState::Gone);
        }
        fixture.assert_nothing_left("removed");
    });
}

#[test]
#[ignore = "root, kernel: seccomp; tool: containerd, runc, ctr, busybox, tar, gzip"]
fn the_containers_process_has_no_capability_no_way_to_one_and_a_filter_of_system_calls() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let (id, made) = fixture.create(&config("web-0")).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", made.pid.unwrap())).unwrap();
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
            line.unwrap_or_else(|| panic!("{key}: {status}")).trim()
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(value(set), "0000000000000000", "{set}");
        }
        // 2: a filter.
        assert_eq!((value("NoNewPrivs"), value("Seccomp")), ("1", "2"));
        fixture.engine.remove(&id).unwrap();
        fixture.assert_nothing_left("removed");
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn what_a_sandbox_shares_with_the_node_its_container_shares() {
    // cni-runtime.md section 3.2: network NODE
    in_new_netns(|| {
        let fixture = Fixture::new();
        let (id, made) = fixture.create(&Config { host_network: true, ..config("ignored") }).unwrap();
        let pid = made.pid.unwrap();
        assert_eq!((made.netns, link(pid, "net"), link(pid, "uts")), (None, own("net"), own("uts")));
        assert_ne!(link(pid, "ipc"), own("ipc"));
        fixture.engine.remove(&id).unwrap();
        let (id, made) = fixture.create(&Config { host_ipc: true, host_pid: true, ..config("own") }).unwrap();
        let pid = made.pid.unwrap();
        assert_eq!((link(pid, "ipc"), link(pid, "pid")), (own("ipc"), own("pid")));
        assert_ne!(link(pid, "net"), own("net"));
        fixture.engine.remove(&id).unwrap();
        fixture.assert_nothing_left("removed");
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_sandbox_is_in_a_control_group_below_the_pods_which_goes_with_it_and_the_pods_stays() {
    // cni-runtime.md section 3.1: cgroup parent
    in_new_netns(|| {
        let fixture = Fixture::new();
        // A path of kubelet's, with a trailing slash or without.
        for slash in ["", "/"] {
            let cgroup_parent = format!("{}{slash}", fixture.parent());
            let (id, made) = fixture.create(&Config { cgroup_parent, ..config("web-0") }).unwrap();
            let expected = format!("{}/{id}", fixture.parent());
            let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", made.pid.unwrap())).unwrap();
            // Version 2 has one line, and version 1 one for each controller.
            let hierarchies = hierarchies().len();
            let inside = groups.lines().filter(|line| line.rsplit(':').next() == Some(&expected)).count();
            assert!(inside == hierarchies && hierarchies > 0, "{hierarchies}: {groups}");
            assert!(fixture.groups().iter().all(|group| group.ends_with(id.as_str())));
            fixture.engine.stop(&id).unwrap();
            assert_eq!(fixture.groups(), Vec::<PathBuf>::new(), "stopped");
            fixture.engine.remove(&id).unwrap();
            let stays = |root: &PathBuf| root.join(&fixture.parent()[1..]).is_dir();
            assert!(self::hierarchies().iter().all(stays), "the pod's is kubelet's");
            fixture.assert_nothing_left("removed");
        }
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_slice_is_requested_from_systemd_and_without_it_nothing_is_left() {
    // cni-runtime.md section 3.1: cgroup parent, of kubelet's systemd driver
    in_new_netns(|| {
        let fixture = Fixture::new();
        let cgroup_parent = "russettest.slice".to_owned();
        let made = fixture.create(&Config { cgroup_parent, ..config("web-0") });
        if Path::new("/run/systemd/system").is_dir() {
            let (id, made) = made.unwrap();
            let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", made.pid.unwrap())).unwrap();
            assert!(groups.contains(&format!("/russettest.slice/russet-{id}.scope\n")), "{groups}");
            fixture.engine.remove(&id).unwrap();
        } else {
            // runc's message shows that systemd was requested.
            let error = made.unwrap_err().to_string();
            assert!(error.contains("systemd not running on this host"), "{error}");
        }
        fixture.assert_nothing_left("removed");
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn sysctls_are_the_pods_and_a_bad_one_leaves_nothing() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let sysctls = |all: &[(&str, &str)]| {
            let all = all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Config { sysctls: all.collect(), ..config("web-0") }
        };
        let good = sysctls(&[("net.ipv4.ip_default_ttl", "77"), ("kernel.msgmax", "9000")]);
        let (id, _) = fixture.create(&good).unwrap();
        let script = "cd /proc/sys; cat net/ipv4/ip_default_ttl kernel/msgmax";
        assert_eq!(fixture.inside(&id, &good, script), "77\n9000\n");
        fixture.engine.remove(&id).unwrap();
        for (name, value, says) in [
            ("kernel.panic", "1", "belongs to the whole node"),
            ("net.ipv4.ip_default_ttl", "many", "write many to sysctl"),
            ("kernel.msgmax", "many", "containerd, create the task of"),
        ] {
            let error = fixture.create(&sysctls(&[(name, value)])).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            fixture.assert_nothing_left(name);
        }
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_stale_container_of_the_name_is_removed_and_one_that_runs_is_not() {
    // cni-runtime.md section 3.1: remove the conflicting container
    in_new_netns(|| {
        let fixture = Fixture::new();
        let id = SandboxId::random().unwrap();
        fixture.foreign(id.as_str(), false);
        let made = fixture.engine.create(&id, &config("web-0"), fixture.files.path()).unwrap();
        assert_eq!(fixture.ctr(&["tasks", "ls", "-q"]).trim(), id.as_str());
        assert_eq!(fixture.engine.state(&id).unwrap(), EngineState::Running { pid: made.pid });
        fixture.engine.remove(&id).unwrap();
        fixture.assert_nothing_left("stale");

        let id = SandboxId::random().unwrap();
        fixture.foreign(id.as_str(), true);
        let error =
            fixture.engine.create(&id, &config("web-0"), fixture.files.path()).unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("the name {id} is that of another container, which runs")),
            "{error}"
        );
        assert!(fixture.ctr(&["tasks", "ls"]).contains("RUNNING"), "it is not ours to end");
        fixture.ctr(&["tasks", "kill", "-s", "9", id.as_str()]);
        eventually(TIMEOUT, || fixture.ctr(&["tasks", "ls"]).contains("STOPPED"));
        // One that has ended is stale.
        fixture.engine.create(&id, &config("web-0"), fixture.files.path()).unwrap();
        fixture.engine.remove(&id).unwrap();
        fixture.assert_nothing_left("ended");
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_reserved_name_without_container_gets_a_random_suffix() {
    // cni-runtime.md section 3.1: if it is "not found", retry with a random suffix
    in_new_netns(|| {
        let fixture = Fixture::new();
        let proxy = Proxy::start(&fixture.containerd.socket());
        let engine = Containerd::new(fixture.run.path(), options(&proxy.socket(), &fixture.image));
        proxy.answer(&[Answer { call: CREATE, code: 6, message: "it exists" }]);
        let id = SandboxId::random().unwrap();
        engine.create(&id, &config("web-0"), fixture.files.path()).unwrap();
        let name = fixture.ctr(&["tasks", "ls", "-q"]).trim().to_owned();
        assert!(name.starts_with(&format!("{id}-")) && name.len() == id.as_str().len() + 9, "{name}");
        // It is found by its ID all the same.
        assert_eq!(fixture.other().list().unwrap(), std::slice::from_ref(&id));
        fixture.other().remove(&id).unwrap();
        fixture.assert_nothing_left("suffix");
        proxy.answer(&vec![Answer { call: CREATE, code: 6, message: "it exists" }; NAMES]);
        let error = engine.create(&id, &config("web-0"), fixture.files.path()).unwrap_err().to_string();
        assert!(error.contains("all names that were tried are taken"), "{error}");
        assert_eq!(proxy.unasked(), 0);
        fixture.assert_nothing_left("all taken");
    });
}

/// How many names are tried.
const NAMES: usize = 4;

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_failed_pull_leaves_nothing_and_a_later_one_succeeds() {
    // cni-runtime.md section 3.1, ensureSandboxImageExists, as the first step
    in_new_netns(|| {
        let fixture = Fixture::new();
        let registry = Registry::start(Access::Basic("kubelet", "right"));
        let image = registry.push("private/pause", "2", "busybox", &["sleep", "1000001"]);
        let auths = |password: &str| {
            format!(
                r#"{{"auths": {{"{}": {{"username": "kubelet", "password": "{password}"}}}}}}"#,
                registry.address()
            )
        };
        let files = ["a/config.json", "b/config.json"].map(|name| fixture.files.path().join(name));
        files.iter().for_each(|file| std::fs::create_dir(file.parent().unwrap()).unwrap());
        let credentials = files.to_vec();
        let of_image = options(&fixture.containerd.socket(), &image);
        let engine = Containerd::new(fixture.run.path(), ContainerdOptions { credentials, ..of_image });
        let id = SandboxId::random().unwrap();
        let create = || engine.create(&id, &config("web-0"), fixture.files.path());
        assert!(create().unwrap_err().to_string().contains(": anonymous: "));
        std::fs::write(&files[0], auths("wrong")).unwrap();
        let error = create().unwrap_err().to_string();
        assert!(
            error.starts_with("get the image of sandboxes: pull image ") && error.contains("as \"kubelet\""),
            "{error}"
        );
        fixture.assert_nothing_left("no image");
        std::fs::write(&files[1], auths("right")).unwrap();
        let pid = create().unwrap().pid.unwrap();
        // runc reports the start before the program is executed.
        let words = || std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        eventually(TIMEOUT, || words() == b"/busybox\0sleep\x001000001\0");
        engine.remove(&id).unwrap();
        registry.asked();
        create().unwrap();
        assert_eq!(registry.asked(), [], "it is there");
        engine.remove(&id).unwrap();
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_hanging_registry_does_not_block_an_existing_image() {
    // cni-runtime.md section 3.1, ensureSandboxImageExists: present, no pull
    in_new_netns(|| {
        let fixture = Fixture::new();
        let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        hangs.set_nonblocking(true).unwrap();
        let image = format!("{}/pause:1", hangs.local_addr().unwrap());
        let engine = Containerd::new(fixture.run.path(), options(&fixture.containerd.socket(), &image));
        std::thread::scope(|scope| {
            let pulls = scope.spawn(|| engine.image());
            // A request that is never answered.
            let mut request = None;
            eventually(TIMEOUT, || {
                request = hangs.accept().ok();
                request.is_some() || pulls.is_finished()
            });
            assert!(request.is_some(), "{:?}", pulls.join());
            let waits = scope.spawn(|| engine.image());
            fixture.ctr(&["images", "tag", &fixture.image, &image]);
            let finds = scope.spawn(|| engine.image());
            eventually(TIMEOUT, || waits.is_finished() && finds.is_finished());
            assert!(!pulls.is_finished());
            drop((request, hangs));
            for found in [waits, finds] {
                assert_eq!(found.join().unwrap().unwrap().name, image);
            }
            assert!(pulls.join().unwrap().is_err());
        });
        fixture.ctr(&["images", "rm", &image]);
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn sandboxes_outlive_containerd_and_end_without_it() {
    in_new_netns(|| {
        let mut fixture = Fixture::new();
        let (stays, made) = fixture.create(&config("stays")).unwrap();
        let (goes, gone) = fixture.create(&config("goes")).unwrap();
        fixture.containerd.kill();
        assert_eq!(fixture.engine.state(&stays).unwrap(), EngineState::Running { pid: made.pid });
        let error = fixture.create(&config("new")).unwrap_err().to_string();
        assert!(error.contains("connect to containerd at "), "{error}");
        assert!(fixture.engine.stop(&goes).unwrap_err().to_string().contains("connect to containerd at "));
        assert_eq!(
            ProcessIdentity::of(gone.pid.unwrap()).unwrap(),
            None,
            "its process has ended all the same"
        );
        assert!(!gone.netns.unwrap().exists());
        fixture.containerd.run();
        assert_eq!(fixture.engine.state(&stays).unwrap(), EngineState::Running { pid: made.pid });
        for id in [goes, stays] {
            fixture.engine.remove(&id).unwrap();
        }
        fixture.assert_nothing_left("restarted");
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_shim_lost_during_a_removal_is_ended_by_the_next_one() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let (id, _) = fixture.create(&config("web-0")).unwrap();
        // A shim in the state in which containerd loses it.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("containerd-shim-runc-v2");
        assert!(Command::new("cp").args([Path::new("/bin/sh"), &program]).status().unwrap().success());
        let mut shim = Command::new(&program);
        shim.arg0("sh").args(["-c", "while :; do sleep 1; done", "-id", id.as_str()]);
        let mut shim = shim.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        fixture.engine.remove(&id).unwrap();
        assert_eq!(shim.wait().unwrap().signal(), Some(15));
        fixture.assert_nothing_left("removed");
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn what_is_left_in_containerd_after_a_reboot_is_listed_and_removed() {
    // cni-runtime.md appendix A.5: another boot. Of this one nothing is left but what containerd has on disk
    in_new_netns(|| {
        let fixture = Fixture::new();
        let (id, made) = fixture.create(&config("web-0")).unwrap();
        fixture.ctr(&["tasks", "rm", "-f", id.as_str()]);
        let _ = unmount(made.netns.unwrap(), UnmountFlags::DETACH);
        shm::unmount(&fixture.engine.builtin.dir(&id)).unwrap();
        for name in ["engine", "netns"] {
            let dir = fixture.run.path().join(name);
            std::fs::read_dir(&dir)
                .unwrap()
                .flatten()
                .for_each(|entry| drop(std::fs::remove_dir_all(entry.path())));
            std::fs::read_dir(&dir)
                .unwrap()
                .flatten()
                .for_each(|entry| drop(std::fs::remove_file(entry.path())));
        }
        assert_eq!(fixture.engine.builtin.list().unwrap(), []);
        assert_eq!(fixture.engine.list().unwrap(), std::slice::from_ref(&id));
        // Another server's are not ours.
        let elsewhere = tempfile::tempdir().unwrap();
        let other_server =
            Containerd::new(elsewhere.path(), options(&fixture.containerd.socket(), &fixture.image));
        assert_eq!(other_server.list().unwrap(), []);
        other_server.remove(&id).unwrap();
        assert_eq!(fixture.engine.list().unwrap(), std::slice::from_ref(&id));
        fixture.engine.remove(&id).unwrap();
        fixture.assert_nothing_left("rebooted");
    });
}

/// Runs in a child until it is killed.
#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_sandbox_comes_and_goes() {
    let live = |engine: &Containerd, files: &Path| {
        let id = SandboxId::random().unwrap();
        let cgroup_parent = parent(&engine.run);
        engine.create(&id, &Config { cgroup_parent, ..config("web-0") }, files).unwrap();
        engine.stop(&id).unwrap();
        engine.remove(&id).unwrap();
    };
    match std::env::var(LAB) {
        Err(_) => in_new_netns(|| {
            let fixture = Fixture::new();
            live(&fixture.engine, fixture.files.path());
            fixture.assert_nothing_left("a life");
        }),
        Ok(lab) => {
            let [socket, image, run, files] = lab.split(' ').collect::<Vec<_>>()[..] else { panic!("{lab}") };
            live(&Containerd::new(run, options(Path::new(socket), image)), Path::new(files));
        }
    }
}

impl Fixture {
    fn child(&self, die_at: u64) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "containerd::tests::a_sandbox_comes_and_goes";
        command.args(["--exact", test, "--include-ignored", "--test-threads=1"]);
        let (socket, run) = (self.containerd.socket(), self.run.path().display());
        let lab = format!("{} {} {run} {}", socket.display(), self.image, self.files.path().display());
        command.env(LAB, lab).env(DIE_AT, die_at.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn recover(&self, place: &str) {
        // A container's record may appear after its maker's death: the next check finds it.
        eventually(TIMEOUT, || {
            for id in self.engine.list().unwrap() {
                self.engine.remove(&id).unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            // containerd has one writer at a time: after this write, earlier ones are complete.
            self.ctr(&["namespaces", "label", NAMESPACE, "looked=again"]);
            self.engine.list().unwrap().is_empty()
        });
        self.assert_nothing_left(place);
    }
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn what_a_killed_engine_left_at_any_step_is_listed_and_removed_by_another() {
    // cni-runtime.md section 6.2 item 44, appendix A.5: the daemon dies at each step
    in_new_netns(|| {
        let fixture = Fixture::new();
        let mut steps = 0;
        for at in 1..=STEPS_MAX {
            let status = fixture.child(at).status().unwrap();
            fixture.recover(&format!("killed at step {at}"));
            if status.signal() != Some(9) {
                assert!(status.success(), "step {at}: {status}");
                break;
            }
            steps = at;
        }
        println!("killed at each of {steps} steps, nothing left");
        assert!((15..STEPS_MAX).contains(&steps), "{steps}");
    });
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn what_a_killed_engine_left_at_any_moment_is_listed_and_removed_by_another() {
    // In the middle of a call, too: containerd completes some of them.
    in_new_netns(|| {
        let fixture = Fixture::new();
        let seed = std::env::var("RUSSET_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
        println!("RUSSET_SEED={seed}");
        let mut random = Random::new(seed);
        for trial in 0..8 {
            let mut child = fixture.child(0).spawn().unwrap();
            let_pass(Duration::from_millis(random.below(400) as u64));
            child.kill().unwrap();
            child.wait().unwrap();
            fixture.recover(&format!("trial {trial}"));
        }
    });
}
