//! `russet cri` on a node: the built-in engine, Russet's plugin and agent, called over CRI as
//! kubelet does (cni-runtime.md sections 3.2 and 3.3).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use russet_linux::process;
use russet_testkit::cri::{Cri, Pod, StatusCode, v1};
use russet_testkit::{eventually, write_program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::node::{TIMEOUT, TestNode};
use crate::sandboxes::pings;

/// A node and the server on it; dropping it removes everything.
pub struct Server {
    pub cri: Cri,
    server: Option<Child>,
    pub node: TestNode,
    /// The server's arguments besides its directories.
    arguments: Vec<OsString>,
}

/// How many sandboxes the load test makes.
const SANDBOXES: usize = 200;
const AT_ONCE: usize = 20;
/// Russet's plugin in a script that records each call.
const RECORDER: &str = "#!/bin/sh\necho \"$CNI_COMMAND $CNI_CONTAINERID\" >> LOG\nexec PLUGIN\n";

// === impl Server ===

impl Server {
    /// Its plugin is a foreign executable that records its calls and starts Russet's.
    fn start() -> Self {
        Self::with(|node, plugin| {
            let text = |path: PathBuf| path.to_str().unwrap().to_owned();
            let script = RECORDER.replace("LOG", &text(node.path("calls")));
            let recorder = node.path("bin/recorder");
            write_program(&recorder, &script.replace("PLUGIN", env!("CARGO_BIN_EXE_russet")));
            plugin["type"] = "recorder".into();
            Vec::new()
        })
    }

    /// Its plugin is Russet's, without any executable.
    fn without_executables() -> Self {
        Self::with(|_, _| Vec::new())
    }

    /// `prepare` gets the node and the plugin's configuration, and returns the server's arguments
    /// besides its directories.
    pub fn with(prepare: impl FnOnce(&TestNode, &mut serde_json::Value) -> Vec<OsString>) -> Self {
        let node = TestNode::start(&[]);
        for directory in ["net.d", "bin"] {
            std::fs::create_dir(node.path(directory)).unwrap();
        }
        let mut plugin = node.config(json!({}));
        let arguments = prepare(&node, &mut plugin);
        let conflist = json!({"cniVersion": "1.1.0", "name": "testnet", "plugins": [plugin]});
        std::fs::write(node.path("net.d/10-pods.conflist"), conflist.to_string()).unwrap();
        let cri = Cri::new(&node.path("run/russet/cri.sock")).unwrap();
        let mut server = Self { cri, server: None, node, arguments };
        server.serve();
        server
    }

    pub fn serve(&mut self) {
        self.server = Some(self.command().spawn().unwrap());
        eventually(TIMEOUT, || self.cri.is_ready());
    }

    fn command(&self) -> Command {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.node.path("cri.log"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.arg("cri").arg("--root").arg(self.node.root());
        command.arg("--cni-conf-dir").arg(self.node.path("net.d"));
        command.arg("--cni-bin-dir").arg(self.node.path("bin"));
        // The directory of credentials for a registry, if it needs any.
        command.args(&self.arguments).env("DOCKER_CONFIG", self.node.path("docker"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
        // A test's server announces its readiness only if the test asks for it.
        command.env_remove("NOTIFY_SOCKET");
        process::in_netns(&mut command, self.node.netns()).unwrap();
        command
    }

    /// Ends the server with `signal`, and waits until it is gone.
    pub fn end(&mut self, signal: Signal) {
        let mut server = self.server.take().unwrap();
        kill_process(Pid::from_child(&server), signal).unwrap();
        let status = server.wait().unwrap();
        assert!(signal == Signal::KILL || status.success(), "{status}:\n{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.node.path("cri.log")).unwrap_or_default()
    }

    /// Verbs that attach and detach, in their order.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.node.path("calls")).unwrap_or_default();
        text.lines()
            .filter(|call| call.starts_with("ADD") || call.starts_with("DEL"))
            .map(str::to_owned)
            .collect()
    }

    pub fn ready(&self) -> BTreeSet<String> {
        let state = Some(v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() });
        let ready = self.cri.list(v1::PodSandboxFilter { state, ..Default::default() }).unwrap();
        ready.into_iter().map(|item| item.id).collect()
    }

    pub fn remove_all(&self) {
        for id in self.cri.sandboxes().unwrap() {
            self.cri.stop(&id).unwrap();
            self.cri.remove(&id).unwrap();
        }
    }

    /// Leftovers of sandboxes: files, namespaces, processes, links, results, addresses.
    pub fn left(&mut self) -> Vec<String> {
        assert_eq!(self.cri.sandboxes().unwrap(), Vec::<String>::new());
        eventually(TIMEOUT, || self.node.links().is_empty());
        let mut left = Vec::new();
        for place in [
            "run/russet/cri/netns",
            "run/russet/cri/engine",
            "run/russet/cri/sandboxes",
            "var/lib/cni/results",
        ] {
            let entries = std::fs::read_dir(self.node.path(place)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = self.node.root().to_str().unwrap();
        // The directory of namespaces stays a mount of its own, as that of `ip netns` does.
        let stays = format!("{root}/run/russet/cri/netns ");
        let ours = mounts.lines().filter(|line| line.contains(root) && !line.contains(&stays));
        left.extend(ours.map(str::to_owned));
        left.extend((self.node.allocated() > 0).then(|| format!("{} addresses", self.node.allocated())));
        left
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of russet cri\n{}", self.log());
        }
        for id in self.cri.sandboxes().unwrap_or_default() {
            let _ = self.cri.remove(&id);
        }
        if let Some(server) = &mut self.server {
            let _ = kill_process(Pid::from_child(server), Signal::TERM);
            let _ = server.wait();
        }
        let _ =
            Command::new("umount").arg(self.node.path("run/russet/cri/netns")).stderr(Stdio::null()).status();
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping"]
fn a_sandbox_is_made_found_stopped_and_removed() {
    let mut server = Server::start();
    let pods: Vec<Pod> = ["web", "db"].map(Pod::named).into();
    let ids: Vec<String> = pods.iter().map(|pod| server.cri.run(pod).unwrap()).collect();
    assert_eq!(server.ready(), ids.iter().cloned().collect());
    let sandboxes: Vec<_> = ids.iter().map(|id| server.cri.sandbox(id).unwrap()).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        assert!(sandboxes[from].ready && sandboxes[from].addresses.len() == 2, "{sandboxes:?}");
        for address in &sandboxes[to].addresses {
            assert!(pings(&sandboxes[from], address), "{address} is not reached");
        }
    }
    let again = server.cri.run(&pods[0]).unwrap_err();
    assert_eq!(again.code(), Some(StatusCode::AlreadyExists));

    let request = v1::PodSandboxStatsRequest { pod_sandbox_id: ids[0].clone() };
    let stats: v1::PodSandboxStatsResponse =
        server.cri.ask((v1::RUNTIME_SERVICE, "PodSandboxStats"), request, None).unwrap();
    let eth0 = stats.stats.unwrap().linux.unwrap().network.unwrap().default_interface.unwrap();
    assert!(eth0.name == "eth0" && eth0.rx_bytes.unwrap().value > 0);

    server.cri.stop(&ids[0]).unwrap();
    let stopped = server.cri.sandbox_status(&ids[0]).unwrap().status.unwrap();
    assert_eq!(
        (stopped.state(), stopped.network.unwrap().ip.as_str()),
        (v1::PodSandboxState::SandboxNotready, "")
    );
    assert_eq!(server.node.allocated(), 2, "the other one keeps its addresses");
    server.remove_all();
    assert_eq!(server.left(), Vec::<String>::new());
    server.end(Signal::TERM);
    assert!(!server.node.path("run/russet/cri.sock").exists());
}

#[test]
#[ignore = "root: makes network namespaces"]
fn russets_plugins_need_no_executable() {
    // Plugins of Russet run in process.
    let mut server = Server::without_executables();
    let id = server.cri.run(&Pod::named("web")).unwrap();
    assert_eq!(server.node.allocated(), 2);
    server.cri.stop(&id).unwrap();
    assert_eq!(server.node.allocated(), 0);
    server.remove_all();
    assert_eq!(server.left(), Vec::<String>::new());
}

#[test]
#[ignore = "root: makes network namespaces"]
fn plugins_are_found_in_the_vendors_directory_of_their_type_with_the_option_only() {
    let mut server = Server::with(|node, plugin| {
        let own = node.path("vendors/opt/recorder/bin");
        std::fs::create_dir_all(&own).unwrap();
        let script = format!("#!/bin/sh\nexec {}\n", env!("CARGO_BIN_EXE_russet"));
        write_program(&own.join("recorder"), &script);
        plugin["type"] = "recorder".into();
        vec!["--vendor-prefix".into(), node.path("vendors").into()]
    });
    server.cri.run(&Pod::named("web")).unwrap();
    assert_eq!(server.node.allocated(), 2);
    server.remove_all();
    assert_eq!(server.left(), Vec::<String>::new());
    server.end(Signal::TERM);
    server.arguments.clear();
    server.server = Some(server.command().spawn().unwrap());
    eventually(TIMEOUT, || server.cri.status().is_ok());
    let conditions = server.cri.status().unwrap().status.unwrap().conditions;
    let missing = conditions.iter().find(|condition| !condition.status).unwrap();
    assert!(missing.message.contains("recorder"), "{conditions:?}");
    server.cri.run(&Pod::named("web")).unwrap_err();
    assert_eq!(server.left(), Vec::<String>::new());
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping"]
fn sandboxes_do_not_notice_that_the_server_is_stopped_or_killed() {
    let mut server = Server::start();
    let ids: Vec<String> = ["web", "db"].map(|name| server.cri.run(&Pod::named(name)).unwrap()).into();
    let status = |server: &Server| -> Vec<_> {
        ids.iter().map(|id| server.cri.sandbox_status(id).unwrap().status.unwrap()).collect()
    };
    let (before, calls) = (status(&server), server.calls());
    assert_eq!(calls.len(), 2, "{calls:?}");
    for signal in [Signal::TERM, Signal::KILL] {
        server.end(signal);
        server.serve();
        assert_eq!(status(&server), before);
        assert!(pings(&server.cri.sandbox(&ids[0]).unwrap(), &before[1].network.as_ref().unwrap().ip));
        assert_eq!(server.calls(), calls, "a plugin was called");
    }
    server.remove_all();
    assert_eq!(server.left(), Vec::<String>::new());
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_second_server_names_the_holder_and_notifies_systemd_when_it_serves() {
    let mut server = Server::start();
    let notify_socket = server.node.path("notify");
    let systemd = UnixDatagram::bind(&notify_socket).unwrap();
    systemd.set_nonblocking(true).unwrap();
    let first = server.server.as_ref().unwrap().id();
    let next = server.command().env("NOTIFY_SOCKET", &notify_socket).spawn().unwrap();
    eventually(TIMEOUT, || server.log().contains(&format!("holder=process {first} (russet)")));
    let mut inbox = [0; 64];
    assert_eq!(systemd.recv(&mut inbox).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    server.end(Signal::TERM);
    server.server = Some(next);
    systemd.set_nonblocking(false).unwrap();
    systemd.set_read_timeout(Some(TIMEOUT)).unwrap();
    let length = systemd.recv(&mut inbox).unwrap();
    assert_eq!(&inbox[..length], b"READY=1");
    server.cri.status().unwrap();
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_sandbox_that_lost_its_namespace_has_no_address_and_can_be_removed() {
    let mut server = Server::start();
    let id = server.cri.run(&Pod::named("web")).unwrap();
    let netns = server.cri.sandbox(&id).unwrap().netns;
    russet_testkit::run("umount", &[netns.to_str().unwrap()]);
    let status = server.cri.sandbox_status(&id).unwrap().status.unwrap();
    assert_eq!(status.network.unwrap().ip, "", "kubelet starts the pod again when the address is gone");
    server.remove_all();
    assert_eq!(server.left(), Vec::<String>::new());
}

#[test]
#[ignore = "root: makes network namespaces"]
fn sandboxes_of_a_server_killed_while_making_them_are_all_found() {
    let mut server = Server::start();
    for round in 0..5 {
        let before = server.calls().len();
        std::thread::scope(|scope| {
            for n in 0..AT_ONCE {
                let cri = &server.cri;
                // Interrupted requests fail, as intended.
                scope.spawn(move || drop(cri.run(&Pod::named(&format!("web-{round}-{n}")))));
            }
            eventually(TIMEOUT, || server.calls().len() > before + round * 3);
            let child = server.server.as_ref().unwrap();
            kill_process(Pid::from_child(child), Signal::KILL).unwrap();
        });
        server.server.take().unwrap().wait().unwrap();
        server.serve();
        let ready = server.ready();
        for id in &ready {
            assert!(
                !server.cri.sandbox(id).unwrap().addresses.is_empty(),
                "{id} is ready and has no address"
            );
        }
        server.remove_all();
        assert_eq!(server.left(), Vec::<String>::new(), "round {round}");
    }
}

#[test]
#[ignore = "root: makes network namespaces"]
fn two_hundred_sandboxes_twenty_at_a_time_leave_nothing() {
    let mut server = Server::without_executables();
    let (ids, made) = each(SANDBOXES, |n| server.cri.run(&Pod::named(&format!("web-{n}"))).unwrap());
    println!("RunPodSandbox: {made}");
    assert_eq!(server.ready(), ids.iter().cloned().collect());
    assert_eq!(server.node.allocated(), 2 * SANDBOXES);
    let (_, ended) = each(SANDBOXES, |n| {
        server.cri.stop(&ids[n]).unwrap();
        server.cri.remove(&ids[n]).unwrap();
    });
    println!("StopPodSandbox and RemovePodSandbox: {ended}");
    assert_eq!(server.left(), Vec::<String>::new());
}

/// Runs `work` for 0 to `count`, [`AT_ONCE`] concurrently, and returns the rate.
fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> (Vec<T>, String) {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    let one = || {
        while let Some(n) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count) {
            let began = Instant::now();
            let result = work(n);
            done.lock().unwrap().push((n, result, began.elapsed()));
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(one))));
    let took = began.elapsed();
    let mut done = done.into_inner().unwrap();
    let mut times: Vec<Duration> = done.iter().map(|(_, _, took)| *took).collect();
    times.sort();
    let at = |percent: usize| times[(count * percent / 100).min(count - 1)].as_millis();
    let rate = count as f64 / took.as_secs_f64();
    done.sort_by_key(|(n, _, _)| *n);
    let summary = format!("{count} in {took:.1?}, {rate:.0} a second; p50 {} ms, p99 {} ms", at(50), at(99));
    (done.into_iter().map(|(_, result, _)| result).collect(), summary)
}
