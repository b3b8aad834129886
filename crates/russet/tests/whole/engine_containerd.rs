//! `russet cri` whose sandboxes are containers of containerd, with an image from a registry that
//! requires a password, and Russet's plugin and agent (cni-runtime.md section 3.1).

use std::path::Path;

use russet_linux::NetNs;
use russet_testkit::containerd::Containerd;
use russet_testkit::cri::{Pod, Sandbox};
use russet_testkit::eventually;
use russet_testkit::registry::{Access, Registry};
use rustix::process::Signal;

use crate::cri::Server;
use crate::node::TIMEOUT;
use crate::sandbox_command::{Host, WEB, address};
use crate::sandboxes::pings;

/// The server, and its containerd and registry. Dropped in this order.
struct Fixture {
    server: Server,
    containerd: Containerd,
    registry: NodesRegistry,
}

/// A registry on a node's loopback.
struct NodesRegistry {
    registry: Option<Registry>,
    netns: NetNs,
}

const NAMESPACE: &str = "russet-test";

// === impl Fixture ===

impl Fixture {
    fn new() -> Self {
        let containerd = Containerd::start();
        let mut registry = None;
        let server = Server::with(|node, _| {
            let (started, image) = NodesRegistry::start(node.netns(), Access::Basic("kubelet", "right"));
            registry = Some(started);
            arguments(&containerd, &image).map(Into::into).into()
        });
        Self { server, containerd, registry: registry.unwrap() }
    }

    /// The registry's configuration and credentials in the node's files.
    fn write_credentials(&self, password: &str) {
        let directory = self.server.node.path("docker");
        std::fs::create_dir_all(&directory).unwrap();
        let auths = format!(
            r#"{{"auths": {{"{}": {{"username": "kubelet", "password": "{password}"}}}}}}"#,
            self.registry.get().address()
        );
        std::fs::write(directory.join("config.json"), auths).unwrap();
    }

    fn assert_nothing_left(&mut self) {
        assert_eq!(self.server.left(), Vec::<String>::new());
        assert_no_containers(&self.containerd);
    }
}

// === impl NodesRegistry ===

impl NodesRegistry {
    /// One with an image, and the image's name.
    fn start(netns: &NetNs, access: Access) -> (Self, String) {
        let registry = netns.with(|| Registry::start(access)).unwrap();
        let image = registry.push("private/pause", "1", "busybox", &["sleep", "1000000"]);
        (Self { registry: Some(registry), netns: netns.try_clone().unwrap() }, image)
    }

    fn get(&self) -> &Registry {
        self.registry.as_ref().unwrap()
    }
}

impl Drop for NodesRegistry {
    fn drop(&mut self) {
        // Its thread ends on the next connection.
        let registry = self.registry.take();
        self.netns.with(|| drop(registry)).unwrap();
    }
}

/// The arguments that make either command use a containerd and an image.
fn arguments(containerd: &Containerd, image: &str) -> [String; 8] {
    let socket = containerd.socket().to_str().unwrap().to_owned();
    let [engine, namespace, image] = ["containerd", NAMESPACE, image].map(str::to_owned);
    let flags = ["--engine", "--containerd-namespace", "--containerd-address", "--sandbox-image"];
    let [a, b, c, d] = flags.map(str::to_owned);
    [a, engine, b, namespace, c, socket, d, image]
}

fn names(containerd: &Containerd, of: &str) -> Vec<String> {
    let names = containerd.ctr(NAMESPACE, &[of, "ls", "-q"]);
    let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[track_caller]
fn assert_no_containers(containerd: &Containerd) {
    assert_eq!((names(containerd, "containers"), names(containerd, "tasks")), (Vec::new(), Vec::new()));
    eventually(TIMEOUT, || containerd.shims().is_empty());
}

#[test]
#[ignore = "root: makes network namespaces; tool: containerd, runc, ctr, busybox, tar, gzip, ping"]
fn pods_of_the_server_are_containers_of_containerd_from_an_image_that_is_pulled_once() {
    // cni-runtime.md section 3.1: the image, with the credentials of the usual files; the container; its network
    let mut fixture = Fixture::new();
    let refused = fixture.server.cri.run(&Pod::named("web")).unwrap_err().to_string();
    assert!(refused.contains("anonymous") && refused.contains("401"), "{refused}");
    fixture.write_credentials("wrong");
    let refused = fixture.server.cri.run(&Pod::named("web")).unwrap_err().to_string();
    assert!(refused.contains("kubelet"), "{refused}");
    fixture.assert_nothing_left();

    fixture.write_credentials("right");
    let mut ids = vec![fixture.server.cri.run(&Pod::named("web")).unwrap()];
    assert!(!fixture.registry.get().asked().is_empty());
    ids.push(fixture.server.cri.run(&Pod::named("db")).unwrap());
    assert_eq!(fixture.registry.get().asked(), [], "it is there");
    let pods: Vec<Sandbox> = ids.iter().map(|id| fixture.server.cri.sandbox(id).unwrap()).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        assert!(pods[from].ready && pods[from].addresses.len() == 2, "{pods:?}");
        for address in &pods[to].addresses {
            assert!(pings(&pods[from], address), "{address} is not reached");
        }
    }
    let mut sorted = ids.clone();
    sorted.sort();
    assert_eq!(names(&fixture.containerd, "tasks"), sorted);

    // The sandboxes survive restarts of both processes.
    for signal in [Signal::TERM, Signal::KILL] {
        fixture.server.end(signal);
        fixture.containerd.kill();
        fixture.server.serve();
        fixture.containerd.run();
        assert_eq!(fixture.server.ready(), ids.iter().cloned().collect());
        assert!(pings(&pods[0], &pods[1].addresses[0]));
    }
    assert!(ids.iter().all(|id| Path::new(&fixture.server.cri.sandbox(id).unwrap().netns).exists()));
    fixture.server.remove_all();
    fixture.assert_nothing_left();
}

#[test]
#[ignore = "root: makes network namespaces; tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_pod_of_the_command_is_a_container_of_containerd_that_programs_enter() {
    let (host, containerd) = (Host::new(), Containerd::start());
    let (_registry, image) = NodesRegistry::start(host.node.netns(), Access::Open);
    let engine = arguments(&containerd, &image);
    let engine: Vec<&str> = engine.iter().map(String::as_str).collect();
    let web = host.run(&host.manifest("web.yaml", WEB), &engine);
    assert_eq!(names(&containerd, "tasks"), [web["id"].as_str().unwrap()]);
    let inside =
        |program: &[&str]| host.sandbox(&[&["exec"], engine.as_slice(), &["web", "--"], program].concat());
    assert_eq!(inside(&["uname", "-n"]).stdout, "web-0\n");
    let addresses = inside(&["ip", "-j", "address", "show", "eth0"]).stdout;
    assert!(addresses.contains(&format!("\"local\":\"{}\"", address(&web))), "{addresses}");
    let removed = host.sandbox(&[&["rm", "web"], engine.as_slice()].concat());
    assert_eq!(removed.status, 0, "{removed:?}");
    assert_no_containers(&containerd);
    assert_eq!(host.left(), [""; 0]);
    assert_eq!(host.node.allocated(), 0);
}
