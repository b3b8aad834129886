//! The engine on a real kernel: what it makes, and what is left after it was killed at any step.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use russet_linux::process::ProcessIdentity;
use russet_testkit::{eventually, in_new_netns};
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

use super::*;
use crate::testing::{self, config, link, own};

/// An engine below a directory of its own, in the test's mount and network namespaces.
struct Fixture {
    engine: Builtin,
    files: TempDir,
    run: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let (run, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Self { engine: Builtin::new(run.path()), files, run }
    }

    fn create(&self, config: &Config) -> Result<(SandboxId, Made), EngineError> {
        let id = SandboxId::random().unwrap();
        Ok((id.clone(), self.engine.create(&id, config, self.files.path())?))
    }

    fn inside(&self, id: &SandboxId, config: &Config, script: &str) -> String {
        testing::inside(&self.engine, self.files.path(), (id, config), script)
    }

    /// No mount, file or process of any sandbox is left.
    #[track_caller]
    fn assert_nothing_left(&self) {
        assert_eq!(self.engine.list().unwrap(), []);
        let run = self.run.path().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let of_ours: Vec<&str> = mounts.lines().filter(|line| line.contains(run)).collect();
        assert!(of_ours.iter().all(|line| line.contains(&format!("{run}/netns "))), "{of_ours:?}");
        assert_eq!(process::names_in(&self.run.path().join("engine")).unwrap(), [""; 0]);
        assert_eq!(process::names_in(&self.run.path().join("netns")).unwrap(), [""; 0]);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for id in self.engine.list().unwrap_or_default() {
            let _ = self.engine.remove(&id);
        }
        let _ = unmount(self.run.path().join("netns"), UnmountFlags::DETACH);
    }
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn a_sandbox_is_a_process_in_new_namespaces_that_can_be_stopped_and_removed_twice() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let (id, made) = fixture.create(&config("web-0")).unwrap();
        let pid = made.pid.unwrap();
        for kind in ["net", "ipc", "uts"] {
            assert_ne!(link(pid, kind), own(kind), "{kind}");
        }
        for kind in ["user", "pid"] {
            assert_eq!(link(pid, kind), own(kind), "{kind}");
        }
        let netns = NetNs::open(made.netns.as_ref().unwrap()).unwrap();
        assert!(netns.same_as(&NetNs::of_process(pid).unwrap()));
        assert_eq!(fixture.engine.state(&id).unwrap(), EngineState::Running { pid: Some(pid) });
        assert_eq!(fixture.engine.list().unwrap(), std::slice::from_ref(&id));
        for _ in 0..2 {
            fixture.engine.stop(&id).unwrap();
            assert_eq!(fixture.engine.state(&id).unwrap(), EngineState::Stopped);
            assert!(!made.netns.as_ref().unwrap().exists());
        }
        assert_eq!(ProcessIdentity::of(pid).unwrap(), None);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "no zombie");
        for _ in 0..2 {
            fixture.engine.remove(&id).unwrap();
            assert_eq!(fixture.engine.state(&id).unwrap(), EngineState::Gone);
        }
        fixture.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn host_network_keeps_the_nodes_network_and_name_and_host_ipc_its_shared_memory() {
    // cni-runtime.md section 3.2: network NODE
    in_new_netns(|| {
        let fixture = Fixture::new();
        let (id, made) = fixture.create(&Config { host_network: true, ..config("ignored") }).unwrap();
        let pid = made.pid.unwrap();
        assert_eq!((made.netns, link(pid, "net"), link(pid, "uts")), (None, own("net"), own("uts")));
        assert_ne!(link(pid, "ipc"), own("ipc"));
        fixture.engine.remove(&id).unwrap();

        let shared = Config { host_ipc: true, ..config("own") };
        let (id, made) = fixture.create(&shared).unwrap();
        let pid = made.pid.unwrap();
        assert_eq!(link(pid, "ipc"), own("ipc"));
        assert_ne!(link(pid, "net"), own("net"));
        assert!(!fixture.engine.dir(&id).join("shm").exists());
        fixture.engine.remove(&id).unwrap();

        let (id, made) = fixture.create(&Config { host_network: true, ..shared }).unwrap();
        assert_eq!(link(made.pid.unwrap(), "net"), own("net"));
        fixture.engine.remove(&id).unwrap();
        fixture.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn a_program_inside_sees_the_pods_name_files_network_and_shared_memory() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        std::fs::write(fixture.files.path().join("resolv.conf"), "nameserver 10.96.0.10\n").unwrap();
        std::fs::write(fixture.files.path().join("hostname"), "web-0\n").unwrap();
        let config = config("web-0");
        let (id, made) = fixture.create(&config).unwrap();
        let before = std::fs::read_to_string("/etc/resolv.conf").unwrap();
        rustix::mount::mount("test", "/sys/fs/bpf", "tmpfs", MountFlags::empty(), None::<&std::ffi::CStr>)
            .unwrap();
        std::fs::write("/sys/fs/bpf/pinned", "").unwrap();
        let script = "uname -n; cat /etc/resolv.conf /etc/hostname; ls /sys/class/net; ls /sys/fs/bpf; stat -Lc %i /proc/self/ns/net
            df -k /dev/shm | tail -1 | awk '{print $2}'; stat -c %a /dev/shm; echo x > /dev/shm/mine; ls /dev/shm";
        let netns = NetNs::open(made.netns.unwrap()).unwrap().id().inode;
        assert_eq!(
            fixture.inside(&id, &config, script),
            format!("web-0\nnameserver 10.96.0.10\nweb-0\nlo\npinned\n{netns}\n65536\n1777\nmine\n")
        );
        assert_eq!(std::fs::read_to_string("/etc/resolv.conf").unwrap(), before);
        assert!(!Path::new("/dev/shm/mine").exists());
        fixture.engine.stop(&id).unwrap();
        let error = fixture.engine.enter(&id, &config, fixture.files.path()).unwrap_err();
        assert_eq!(error.to_string(), format!("sandbox {id} is not running"));
        fixture.engine.remove(&id).unwrap();
        fixture.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn sysctls_are_the_pods_and_a_bad_one_leaves_nothing() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let sysctls =
            [("net.ipv4.ip_default_ttl", "77"), ("kernel.msgmax", "9000"), ("kernel.shm_rmid_forced", "1")];
        let sysctls = sysctls.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let before = std::fs::read_to_string("/proc/sys/kernel/msgmax").unwrap();
        let good = Config { sysctls: sysctls.into(), ..config("web-0") };
        let (id, _) = fixture.create(&good).unwrap();
        let script = "cd /proc/sys; cat net/ipv4/ip_default_ttl kernel/msgmax kernel/shm_rmid_forced";
        assert_eq!(fixture.inside(&id, &good, script), "77\n9000\n1\n");
        assert_eq!(std::fs::read_to_string("/proc/sys/kernel/msgmax").unwrap(), before);
        fixture.engine.remove(&id).unwrap();

        for (name, value, says) in [
            ("kernel.panic", "1", "belongs to the whole node"),
            ("net.ipv4.no_such_thing", "1", "the kernel has no such sysctl"),
            ("net.ipv4.ip_default_ttl", "many", "write many to sysctl"),
        ] {
            let sysctls = [(name.to_owned(), value.to_owned())].into();
            let error = fixture.create(&Config { sysctls, ..config("web-0") }).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            fixture.assert_nothing_left();
        }
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn what_a_killed_engine_left_at_any_step_is_listed_and_removed_by_another() {
    // cni-runtime.md appendix A.5: the sandbox daemon dies at each step of a creation
    in_new_netns(|| {
        let fixture = Fixture::new();
        let other = Builtin::new(fixture.run.path());
        let steps: [&dyn Fn(&SandboxId); 5] = [
            &|_| {},
            &|id| shm::mount(&fixture.engine.dir(id)).unwrap(),
            &|id| ipc::mount(&fixture.engine.dir(id), "thread-self").unwrap(),
            &|id| drop(NetNs::create_named_in(&fixture.engine.netns_dir(), id.as_str()).unwrap()),
            &|id| {
                let paused = pause::start(&CString::new(id.as_str()).unwrap()).unwrap();
                fixture.engine.settle(id, paused, NamespaceKinds::default()).unwrap();
            },
        ];
        for killed_after in 1..=steps.len() {
            let id = SandboxId::random().unwrap();
            std::fs::create_dir_all(fixture.engine.dirs()).unwrap();
            process::create_private(&fixture.engine.dir(&id)).unwrap();
            steps[..killed_after].iter().for_each(|step| step(&id));
            assert_eq!(other.list().unwrap(), std::slice::from_ref(&id));
            assert_ne!(other.state(&id).unwrap(), EngineState::Gone);
            other.remove(&id).unwrap();
            fixture.assert_nothing_left();
        }
        // And in the middle of a removal.
        let id = SandboxId::random().unwrap();
        drop(NetNs::create_named_in(&fixture.engine.netns_dir(), id.as_str()).unwrap());
        assert_eq!(other.list().unwrap(), std::slice::from_ref(&id));
        other.remove(&id).unwrap();
        fixture.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn a_sandbox_lives_on_without_its_engine_and_ends_when_its_process_is_killed() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let (id, made) = fixture.create(&config("web-0")).unwrap();
        let pid = made.pid.unwrap();
        let other = Builtin::new(fixture.run.path());
        assert_eq!(other.state(&id).unwrap(), EngineState::Running { pid: Some(pid) });
        // The last one is closed when the process continues.
        let files = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        eventually(Duration::from_secs(20), || files() == 0);
        ProcessIdentity::of(pid).unwrap().unwrap().end(Duration::from_secs(20)).unwrap();
        assert_eq!(other.state(&id).unwrap(), EngineState::Stopped);
        other.remove(&id).unwrap();
        fixture.assert_nothing_left();
    });
}

/// A program that has entered; it ends with its stdin.
fn program(fixture: &Fixture, id: &SandboxId, config: &Config, script: &str) -> Child {
    std::thread::scope(|scope| {
        let run = || {
            fixture.engine.enter(id, config, fixture.files.path()).unwrap();
            Command::new("sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        scope.spawn(run).join().unwrap()
    })
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn programs_inside_end_with_the_sandbox_even_after_its_process() {
    in_new_netns(|| {
        let in_host_network = Config { host_network: true, ..config("web-0") };
        for (config, killed_before) in [
            (config("web-0"), false),
            (config("web-0"), true),
            (in_host_network.clone(), false),
            (in_host_network, true),
        ] {
            let fixture = Fixture::new();
            let (id, made) = fixture.create(&config).unwrap();
            let mut child = program(&fixture, &id, &config, "read never");
            if killed_before {
                let pid = made.pid.unwrap();
                ProcessIdentity::of(pid).unwrap().unwrap().end(Duration::from_secs(20)).unwrap();
            }
            assert!(child.try_wait().unwrap().is_none());
            fixture.engine.remove(&id).unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
            fixture.assert_nothing_left();
        }
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn a_removal_from_inside_another_namespace_leaves_the_nodes_processes_alone() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let shared = Config { host_network: true, host_ipc: true, ..config("web-0") };
        let (id, _) = fixture.create(&shared).unwrap();
        let mut bystander =
            Command::new("sh").args(["-c", "read never"]).stdin(Stdio::piped()).spawn().unwrap();
        super::members::note(&fixture.engine.dir(&id)).unwrap();
        // A namespace that the remover shares is not the pod's own.
        let kinds = NamespaceKinds { network: true, ipc: true, uts: true };
        namespaces::in_new(kinds, || fixture.engine.remove(&id).map_err(std::io::Error::other)).unwrap();
        assert!(bystander.try_wait().unwrap().is_none());
        drop(bystander.stdin.take());
        bystander.wait().unwrap();
        fixture.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn a_process_that_died_by_itself_is_no_zombie_after_the_removal() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let (id, made) = fixture.create(&config("web-0")).unwrap();
        let pid = made.pid.unwrap();
        let signalled = Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
        assert!(signalled.success());
        eventually(Duration::from_secs(20), || ProcessIdentity::of(pid).unwrap().is_none());
        assert!(Path::new(&format!("/proc/{pid}")).exists(), "it is a zombie of ours");
        fixture.engine.remove(&id).unwrap();
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn a_program_that_enters_during_the_removal_ends_with_it() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let config = config("web-0");
        let (id, _) = fixture.create(&config).unwrap();
        let dir = fixture.engine.dir(&id);
        let record = Record::read(&dir).unwrap().unwrap();
        let holder = record.identity().unwrap().unwrap();
        let members = Members::find(&dir, &fixture.engine.netns(&id), Some(holder), &record.own());
        let mut child = program(&fixture, &id, &config, "read never");
        holder.end(Duration::from_secs(20)).unwrap();
        members.end(&dir).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        fixture.engine.remove(&id).unwrap();
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn programs_that_ignore_sigterm_are_killed_concurrently() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let config = config("web-0");
        let (id, _) = fixture.create(&config).unwrap();
        let stubborn = "trap '' TERM; echo ready; read never; read never";
        let mut children: Vec<Child> = (0..3).map(|_| program(&fixture, &id, &config, stubborn)).collect();
        for child in &mut children {
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        }
        fixture.engine.remove(&id).unwrap();
        for mut child in children {
            assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        }
        fixture.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces and mounts need root"]
fn a_hundred_sandboxes_come_and_go_two_at_a_time() {
    in_new_netns(|| {
        let fixture = Fixture::new();
        let began = std::time::Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let (id, _) = fixture.create(&config("web-0")).unwrap();
                        fixture.engine.remove(&id).unwrap();
                    }
                });
            }
        });
        let each = began.elapsed() / 100;
        println!("{} us for each sandbox, made and removed", each.as_micros());
        fixture.assert_nothing_left();
    });
}
