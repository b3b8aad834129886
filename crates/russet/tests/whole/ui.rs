//! The agent's page: through `russet ui`, and at an address of the agent's own; with a browser.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use russet_testkit::{Process, eventually, eventually_some, require_tool};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode, TestPod};
use crate::peers::FAST;

/// A response.
#[derive(Debug)]
struct Page {
    status: u16,
    head: String,
    body: String,
}

/// `russet ui` for a node, and what it printed.
struct Ui {
    process: Process,
    host: String,
    /// `/TOKEN/`.
    path: String,
}

// === impl Ui ===

impl Ui {
    fn start(node: &TestNode) -> Self {
        let printed = NamedTempFile::new().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["ui", "--root"]).arg(node.root()).stdin(Stdio::null());
        command.stdout(printed.reopen().unwrap());
        let process = Process::start(&mut command);
        let url = eventually_some(TIMEOUT, || {
            let text = fs::read_to_string(printed.path()).unwrap();
            text.strip_suffix('\n').map(str::to_owned)
        });
        let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
        assert!(host.starts_with("127.0.0.1:"), "{url}");
        Self { process, host: host.to_owned(), path: format!("/{path}") }
    }

    fn url(&self) -> String {
        format!("http://{}{}", self.host, self.path)
    }

    fn ask(&self, method: &str, path: &str, host: &str) -> Page {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(request(method, path, host).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        Page::new(&answer)
    }

    fn get(&self, path: &str) -> Page {
        let page = self.ask("GET", &format!("{}{path}", self.path), &self.host);
        assert_eq!(page.status, 200, "{page:?}");
        page
    }

    fn data(&self) -> Value {
        let page = self.get("data.json");
        serde_json::from_str(&page.body).unwrap_or_else(|error| panic!("{error}: {page:?}"))
    }
}

// === impl Page ===

impl Page {
    #[track_caller]
    fn new(answer: &str) -> Self {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }
}

fn request(method: &str, path: &str, host: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
}

/// Two nodes that reach each other, the first with two pods.
pub fn two_nodes(fabric: &mut Fabric) -> ([TestNode; 2], [TestPod; 2], [String; 2]) {
    let mut nodes = ["node-a", "node-b"].map(|name| fabric.node(name, &FAST));
    nodes.iter_mut().for_each(TestNode::start_agent);
    let pods = [nodes[0].pod(), nodes[0].pod()];
    let addresses = pods.each_ref().map(|pod| nodes[0].add(pod).addresses().remove(0));
    (nodes, pods, addresses)
}

pub fn deny_all(node: &TestNode) {
    let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny-all", "namespace": "default" }, "spec": { "podSelector": {} } });
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(["apply", "-f", "-", "--root"]).arg(node.root());
    let answer = node.output(&mut command, policy.to_string());
    assert_eq!(answer.status, 0, "{answer:?}");
}

/// Nothing is answered without the token, with a name of another domain that leads here, or for anything but reading.
fn refuses_others(node: &TestNode, ui: &Ui) {
    // Without the token, with a name of another domain that leads here, and for anything but reading.
    let (port, with_token) = (ui.host.split_once(':').unwrap().1, format!("{}data.json", ui.path));
    for path in ["/", "/ui/", "/00000000000000000000000000000000/", &with_token[..12]] {
        assert_eq!(ui.ask("GET", path, &ui.host).status, 403, "{path}");
    }
    for host in ["evil.example".to_owned(), format!("evil.example:{port}"), String::new()] {
        let page = ui.ask("GET", &with_token, &host);
        assert!([400, 403].contains(&page.status) && !page.body.contains("node-a"), "{host}: {page:?}");
    }
    assert_eq!(ui.ask("GET", &with_token, &format!("localhost:{port}")).status, 200);
    assert_eq!(ui.ask("POST", &with_token, &ui.host).status, 405);
    assert_eq!(
        ui.ask("GET", &format!("{}metrics", ui.path), &ui.host).status,
        404,
        "nothing else of the socket is served"
    );
    // The health address, which every process of the node reaches, has no page.
    assert!(node.get("/ui/").contains(" 404 "), "{}", node.get("/ui/"));
}

fn shows_a_flow_and_a_repair(node: &TestNode, ui: &Ui, pod: &TestPod, addresses: &[String; 2]) {
    // A flow that is denied, and a repair.
    deny_all(node);
    eventually(TIMEOUT, || {
        pod.pings(&["-W", "1", &addresses[1]]);
        let section = ui.get("sections.json").body;
        section.contains("KubernetesNetworkPolicy default/deny-all") && section.contains("denied")
    });
    node.ip(&["route", "del", &format!("{}/32", addresses[0])]);
    eventually(TIMEOUT, || {
        ui.data()["repairs"].to_string().contains(&format!("put route {}/32", addresses[0]))
    });
    assert!(ui.get("").body.contains(&format!("put route {}/32", addresses[0])));
}

#[test]
#[ignore = "root: two nodes on an etcd, a policy, a route that is deleted; kernel: vxlan, nfnetlink_log; tool: etcd, ip, ping"]
fn the_page_shows_a_node_to_those_who_have_its_address_and_to_no_other_page() {
    let mut fabric = Fabric::new();
    let (nodes, pods, addresses) = two_nodes(&mut fabric);
    let [a, _b] = &nodes;
    let ui = Ui::start(a);
    eventually(TIMEOUT, || {
        let data = ui.data();
        let node = |name: &str| {
            data["map"]["nodes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|it| it["name"] == name && it["state"] == "ready")
        };
        data["peers"][0]["state"] == "reachable"
            && node("node-a")
            && node("node-b")
            && data["map"]["nodes"][0]["blocks"][0]["in_use"] == 3
    });
    let data = ui.data();
    let cidr = data["map"]["nodes"][0]["blocks"][0]["cidr"].as_str().unwrap().to_owned();
    let page = ui.get("");
    for text in [
        &pods[0].container,
        &addresses[0],
        &cidr,
        "node-b",
        "3 of 64",
        "No problems.",
        "aria-label=\"2 nodes, 2 ready; 1 link, 0 unreachable\"",
    ] {
        assert!(page.body.contains(text), "{text}: {}", page.body);
    }
    assert!(
        data["operations"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["verb"] == "ADD" && it["outcome"] == "done"),
        "{data:#}"
    );
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'; "),
        "{}",
        page.head
    );
    assert!(
        !page.head.contains("access-control") && page.head.contains("cache-control: no-store"),
        "{}",
        page.head
    );
    let total: usize = ["", "style.css", "script.js", "icon.svg", "sections.json"]
        .iter()
        .map(|path| ui.get(path).body.len())
        .sum();
    assert!(total < 200_000, "{total}");
    let head = ui.ask("HEAD", &ui.path, &ui.host);
    assert_eq!((head.status, head.body.as_str()), (200, ""));

    refuses_others(a, &ui);
    shows_a_flow_and_a_repair(a, &ui, &pods[0], &addresses);
    assert!(ui.process.end(Signal::TERM).success());
}

#[test]
#[ignore = "root: a node whose agent serves its page on loopback; tool: curl"]
fn the_agent_serves_its_page_on_loopback_only_if_that_is_switched_on_and_with_a_token() {
    let mut node = TestNode::start(&[]);
    let answer = node.russet(&["ui", "--agent-url"]);
    assert!(answer.status == 1 && answer.stderr.contains("ui_address = \"127.0.0.1:9474\""), "{answer:?}");
    node.stop_agent();
    let answer = node.russet(&["ui"]);
    assert!(answer.status == 1 && answer.stderr.contains("systemctl start russet-agent"), "{answer:?}");
    let refused = node.russet(&["agent", "--ui-address", "0.0.0.0:9474"]);
    assert!(refused.status == 2 && refused.stderr.contains("other hosts reach it"), "{refused:?}");
    node.agent_args = vec!["--ui-address".to_owned(), "127.0.0.1:9474".to_owned()];
    node.start_agent();
    let answer = node.russet(&["ui", "--agent-url"]);
    let url = answer.stdout.trim_end().to_owned();
    assert!(answer.status == 0 && url.starts_with("http://127.0.0.1:9474/"), "{answer:?}");
    let curl = |args: &[&str]| {
        node.inside("curl", &[&["-s", "-o", "/dev/null", "-w", "%{http_code}"], args].concat())
    };
    assert_eq!(curl(&[&url]), "200");
    assert_eq!(curl(&["http://127.0.0.1:9474/"]), "403");
    assert_eq!(curl(&["http://127.0.0.1:9474/ui/"]), "403");
    assert_eq!(curl(&["-H", "Host: evil.example", &url]), "403");
    // As `kubectl port-forward` does with another port of the operator's machine.
    assert_eq!(curl(&["-H", "Host: localhost:8080", &url]), "200");
    assert_eq!(curl(&["-X", "POST", &url]), "405");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(node.path("run/russet/ui-url")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o7777, 0o600);
    let body = node.inside("curl", &["-s", &url]);
    assert!(body.contains("<h1>node-a</h1>") && body.contains("id=\"peers\""), "{body}");
    // The next agent has another token, and one without the setting none.
    node.stop_agent();
    node.start_agent();
    assert_ne!(node.russet(&["ui", "--agent-url"]).stdout.trim_end(), url);
    node.stop_agent();
    node.agent_args.clear();
    node.start_agent();
    assert_eq!(node.russet(&["ui", "--agent-url"]).status, 1);
}

/// Where the pictures stay.
pub fn screenshots() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_russet")).parent().and_then(Path::parent).unwrap();
    let dir = target.join("ui-screenshots");
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// The output of a headless browser.
fn chromium(args: &[&str]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new(require_tool("chromium"));
    command.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]);
    command.arg(format!("--user-data-dir={}", profile.path().display())).args(args).stdin(Stdio::null());
    let output = command.output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {out}\n{error}");
    // What the policy of the page forbids, or the script does wrong, is a line of the console.
    assert!(!error.contains("Content Security Policy") && !error.contains("Uncaught"), "{error}");
    out.into_owned()
}

#[test]
#[ignore = "root: two nodes on an etcd, and a browser; kernel: vxlan; tool: etcd, ip, chromium"]
fn a_browser_shows_the_page_in_light_and_dark_and_narrow_and_keeps_it_up_to_date() {
    let mut fabric = Fabric::new();
    let (nodes, pods, _) = two_nodes(&mut fabric);
    let [a, b] = &nodes;
    b.inside(
        "nft",
        &["table inet foreign { chain guard { type filter hook input priority 0; udp dport 4789 drop; }; }"],
    );
    let ui = Ui::start(a);
    eventually(TIMEOUT, || {
        ui.data()["map"]["links"][0]["state"] == "unreachable"
            && ui.data()["map"]["nodes"][1]["blocks"] != json!([])
    });
    let url = ui.url();
    // The script has asked, and nothing that it replaced was broken by that.
    let dom = chromium(&["--virtual-time-budget=9000", "--enable-logging=stderr", "--dump-dom", &url]);
    assert!(dom.contains("updated every 2 seconds") && dom.contains(&pods[0].container), "{dom}");
    assert!(
        dom.contains("\u{2715} unreachable") && dom.contains("<caption id=\"pods-table-caption\">"),
        "{dom}"
    );
    let dir = screenshots();
    let mut pictures = Vec::new();
    for (name, size, scheme) in
        [("light", "1280,1700", "1"), ("dark", "1280,1700", "0"), ("narrow", "420,2200", "1")]
    {
        let file = dir.join(format!("{name}.png"));
        let _ = fs::remove_file(&file);
        let (shot, window) = (format!("--screenshot={}", file.display()), format!("--window-size={size}"));
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        chromium(&[&shot, &window, &scheme, "--hide-scrollbars", &url]);
        pictures.push(fs::read(&file).unwrap());
        println!("{}", file.display());
    }
    assert!(pictures.iter().all(|png| png.starts_with(b"\x89PNG") && png.len() > 20_000));
    assert_ne!(pictures[0], pictures[1]);
}
