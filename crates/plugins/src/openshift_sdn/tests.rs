//! Tests of the plugin against a scripted server on a real kernel: cni-runtime.md sections 4.2 and
//! 6.2.

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_cni_spec::{CniError, CniResult, Request, base64, code};
use russet_linux::NetNs;
use russet_testkit as testkit;
use russet_wiring::failure;
use serde_json::{Value, json};

use super::{sdn, server};
use crate::lab::{Lab, Pod, after, inside, links, on_a_node, pod};

/// cni-runtime.md section 4.1, as captured from OpenShift's server.
const REPLY: &str = r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.128.0.11/23","gateway":"10.128.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.128.0.1"},{"dst":"172.30.0.0/16","gw":"10.128.0.1"},{"dst":"10.128.0.0/14"},{"dst":"224.0.0.0/4"}],"dns":{}}"#;
const CONFIG_JSON: &str = r#"{"mtu":1400,"routableMTU":1350,"platformType":"AWS"}"#;
const ARGS: &str =
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=ce3d8b63";

const TIMEOUT: Duration = Duration::from_secs(10);

/// A server that handles one request after the other; a stopped one refuses connections.
struct Fake {
    socket: PathBuf,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// `answer` returns status and body for path and request.
    fn start(
        lab: &Lab,
        config: &str,
        answer: impl Fn(&str, &Value) -> (u16, String) + Send + 'static,
    ) -> Self {
        let dir = lab.path("var/run/openshift-sdn/cniserver");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("config.json"), config).unwrap();
        let socket = dir.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let seen: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let seen_by_server = Arc::clone(&seen);
        let serve = move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some((path, body)) = request_of(&mut stream) else { return };
                seen_by_server.lock().unwrap().push((path.clone(), body.clone()));
                let (status, text) = answer(&path, &body);
                let reply = format!(
                    "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                    text.len()
                );
                stream.write_all(reply.as_bytes()).unwrap();
            }
        };
        Self { socket, seen, thread: Some(std::thread::spawn(serve)) }
    }

    /// OpenShift's server: its reply for ADD, nothing for DEL, and no other path.
    fn stock(lab: &Lab) -> Self {
        Self::start(lab, CONFIG_JSON, |path, body| match (path, body["env"]["CNI_COMMAND"].as_str()) {
            ("/", Some("ADD")) => (200, REPLY.to_owned()),
            ("/", Some("DEL")) => (200, String::new()),
            ("/", _) => (400, "unhandled CNI request\n".to_owned()),
            _ => (404, "404 page not found\n".to_owned()),
        })
    }

    /// The verbs that were requested under OpenShift's path.
    fn verbs(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let stock = seen.iter().filter(|(path, _)| path == "/");
        stock.map(|(_, body)| body["env"]["CNI_COMMAND"].as_str().unwrap().to_owned()).collect()
    }

    /// Closes the socket and leaves its file, like a killed server.
    fn kill(&mut self) {
        drop(UnixStream::connect(&self.socket).unwrap());
        self.thread.take().unwrap().join().unwrap();
        // A child that another test has just forked has the listener, too, until it executes its program.
        testkit::eventually(TIMEOUT, || UnixStream::connect(&self.socket).is_err());
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.kill();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Path and body; `None` if the client sends nothing.
fn request_of(stream: &mut impl std::io::Read) -> Option<(String, Value)> {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&received).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            assert!(
                head.contains("\r\nHost: dummy\r\n")
                    && head.contains("\r\nContent-Type: application/json\r\n")
            );
            if body.len() == length.parse::<usize>().unwrap() {
                let path = head.split(' ').nth(1).unwrap().to_owned();
                return Some((path, serde_json::from_str(body).unwrap()));
            }
        }
        match stream.read(&mut chunk).unwrap() {
            0 => return None,
            count => received.extend_from_slice(&chunk[..count]),
        }
    }
}

fn conf(version: &str) -> Value {
    json!({"cniVersion": version, "name": "openshift-sdn", "type": "openshift-sdn"})
}

fn request(lab: &Lab, verb: &str, pod: Pod, config: &Value) -> Request {
    let mut request = lab.request(verb, pod, config).unwrap();
    request.env.vars.push(("CNI_ARGS".to_owned(), ARGS.to_owned()));
    request
}

fn ask(lab: &Lab, verb: &str, pod: Pod, config: &Value) -> Result<Option<CniResult>, CniError> {
    lab.wait(super::run(&lab.node().root, &request(lab, verb, pod, config)))
}

#[track_caller]
fn add(lab: &Lab, pod: Pod, config: &Value) -> Value {
    ask(lab, "ADD", pod, config).unwrap_or_else(|error| panic!("{error}")).unwrap().to_value()
}

/// The output of `ip` for the pod, decoded from JSON.
fn ip(netns: &str, what: &[&str]) -> Value {
    let text = inside(netns, &[&["ip", "-json", "-details"][..], what].concat());
    serde_json::from_str(&text).unwrap()
}

/// Asserts that an ADD left nothing: no link on the node, only a loopback that is down in the pod,
/// no table.
#[track_caller]
fn untouched(netns: &str) {
    assert_eq!(links(), ["lo"]);
    let all = ip(netns, &["link"]);
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    assert_eq!(all[0]["operstate"], "DOWN", "lo");
    assert_eq!(inside(netns, &["nft", "list", "tables"]), "");
}

#[test]
fn the_request_has_the_stock_shape_byte_for_byte() {
    // cni-runtime.md section 4.1, the capture: keys sorted as Go sorts them, hostVeth for ADD
    // alone; but only CNI_* is sent.
    let lab = Lab::with_path("/opt/cni/bin");
    let config = conf("0.3.1");
    let stdin = br#"{"cniVersion":"0.3.1","name":"openshift-sdn","type":"openshift-sdn"}"#;
    let one = Pod { container: "ce3d8b63", ifname: "eth0", netns: "cni-7621" };
    let request = request(&lab, "ADD", one, &config);
    assert_eq!(request.stdin, stdin);
    let env = |verb: &str| {
        format!(
            r#""env":{{"CNI_ARGS":"{ARGS}","CNI_COMMAND":"{verb}","CNI_CONTAINERID":"ce3d8b63","CNI_IFNAME":"eth0","CNI_NETNS":"/run/netns/cni-7621","CNI_PATH":"/opt/cni/bin"}}"#
        )
    };
    let encoded =
        "eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoib3BlbnNoaWZ0LXNkbiIsInR5cGUiOiJvcGVuc2hpZnQtc2RuIn0=";
    assert_eq!(base64::encode(stdin), encoded);
    let name = "veth93c4e628".parse().unwrap();
    let sent = String::from_utf8(server::body(&request, russet_cni_spec::Verb::Add, Some(&name))).unwrap();
    assert_eq!(sent, format!(r#"{{{},"config":"{encoded}","hostVeth":"veth93c4e628"}}"#, env("ADD")));
    let sent = String::from_utf8(server::body(&request, russet_cni_spec::Verb::Del, None)).unwrap();
    assert_eq!(sent, format!(r#"{{{},"config":"{encoded}"}}"#, env("DEL")));
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn a_pod_is_wired_like_the_stock_plugin_and_the_result_is_complete() {
    // cni-runtime.md section 4.2, effect; section 6.2 items 48 and 56
    on_a_node(|lab| {
        let server = Fake::stock(lab);
        let one = pod("one");
        let result = add(lab, one, &conf("0.3.1"));
        assert_eq!(
            result["interfaces"],
            json!([{"name": "eth0", "mac": "0a:58:0a:80:00:0b", "sandbox": "/run/netns/one"}])
        );
        assert_eq!(
            result["ips"],
            json!([{"version": "4", "address": "10.128.0.11/23", "gateway": "10.128.0.1", "interface": 0}])
        );
        let reply: Value = serde_json::from_str(REPLY).unwrap();
        assert_eq!(result["routes"], reply["routes"]);
        let link = &ip("one", &["link", "show", "eth0"])[0];
        assert_eq!((&link["address"], &link["mtu"]), (&json!("0a:58:0a:80:00:0b"), &json!(1400)));
        let host = server.seen.lock().unwrap()[0].1["hostVeth"].as_str().unwrap().to_owned();
        assert_eq!(links(), ["lo", &host], "the server got the host end's name");
        assert!(host.len() == 12 && host.starts_with("veth"), "{host}");
        assert_eq!(testkit::ip_json(&["link", "show", &host])[0]["operstate"], "UP");
        assert_eq!(ip("one", &["link", "show", "lo"])[0]["flags"].as_array().unwrap()[1], "UP");
        let routes = inside("one", &["ip", "route"]);
        for wanted in [
            "default via 10.128.0.1 dev eth0 proto 114 mtu 1350",
            "10.128.0.0/14 dev eth0 proto 114 mtu 1350",
            "10.128.0.0/23 dev eth0 proto kernel scope link src 10.128.0.11",
            "172.30.0.0/16 via 10.128.0.1 dev eth0 proto 114 mtu 1350",
            "224.0.0.0/4 dev eth0 proto 114 mtu 1350",
        ] {
            assert!(routes.lines().any(|line| line.trim() == wanted), "{wanted} in {routes}");
        }
        let rules = inside("one", &["nft", "list", "table", "ip", "openshift-block-output"]);
        for wanted in [
            "tcp dport 22623-22624 tcp flags syn / fin,syn,rst,ack reject",
            "ip daddr 169.254.169.254 udp dport != 53 reject",
            "ip daddr 169.254.169.254 tcp dport != 53 reject",
            "hook output priority filter",
            "hook forward priority filter",
            "goto block",
        ] {
            assert!(rules.contains(wanted), "{wanted} in {rules}");
        }
        for netns in ["one", ""] {
            ask(lab, "DEL", Pod { netns, ..one }, &conf("0.3.1")).unwrap();
        }
        assert_eq!(links(), ["lo"]);
        assert_eq!(inside("one", &["nft", "list", "tables"]), "");
        assert_eq!(server.verbs(), ["ADD", "DEL", "DEL"]);
    });
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn the_result_is_in_the_version_of_the_configuration() {
    // cni-runtime.md sections 4.2 and 1.8: all seven
    on_a_node(|lab| {
        let _server = Fake::stock(lab);
        let one = pod("one");
        for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let result = add(lab, one, &conf(version));
            assert_eq!(result["cniVersion"], version);
            match version {
                "0.1.0" | "0.2.0" => {
                    assert_eq!(result["ip4"]["ip"], "10.128.0.11/23");
                    assert_eq!(result["ip4"]["gateway"], "10.128.0.1");
                }
                "1.1.0" => {
                    assert_eq!(result["interfaces"][0]["mtu"], 1400);
                    assert_eq!(result["routes"][0]["mtu"], 1350);
                }
                _ => assert_eq!(result["interfaces"][0]["mac"], "0a:58:0a:80:00:0b"),
            }
            ask(lab, "DEL", one, &conf(version)).unwrap();
        }
    });
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn three_kinds_of_failure_have_three_messages_and_leave_nothing() {
    // cni-runtime.md section 6.2 item 48: config.json missing, server down, server says 400
    on_a_node(|lab| {
        let one = pod("one");
        let config = conf("1.0.0");
        let error = ask(lab, "ADD", one, &config).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (code::TRY_AGAIN_LATER, "OpenShift SDN network process is not (yet?) available")
        );
        untouched("one");
        let mut server = Fake::start(lab, CONFIG_JSON, |_, _| (400, "pods \"web\" not found\n".to_owned()));
        let error = ask(lab, "ADD", one, &config).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (failure::SERVER, "CNI request failed with status 400: 'pods \"web\" not found\n'")
        );
        untouched("one");
        assert_eq!(server.verbs(), ["ADD"], "it has nothing that a DEL would take back");
        server.kill();
        let error = ask(lab, "ADD", one, &config).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (code::TRY_AGAIN_LATER, "failed to send CNI request"));
        untouched("one");
    });
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn a_reply_without_exactly_one_ipv4_address_leaves_nothing_on_node_and_server() {
    // The Go plugin crashes on such replies.
    for reply in [
        r#"{"cniVersion":"0.3.1","ips":[]}"#,
        r#"{"cniVersion":"0.3.1","ips":[{"version":"6","address":"fd00::2/64"}]}"#,
        r#"{"cniVersion":"0.2.0","ips":[{"version":"4","address":"10.128.0.11/23"}]}"#,
        r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.128.0.11/23"},{"version":"4","address":"10.128.0.12/23"}]}"#,
        // The JSON is valid, but the kernel refuses the route after the address is set.
        r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.128.0.11/23"}],"routes":[{"dst":"10.9.0.0/16","gw":"192.0.2.1"}]}"#,
        "no JSON",
        "",
    ] {
        on_a_node(|lab| {
            let server =
                Fake::start(lab, CONFIG_JSON, move |_, body| match body["env"]["CNI_COMMAND"].as_str() {
                    Some("ADD") => (200, reply.to_owned()),
                    _ => (200, String::new()),
                });
            let one = pod("one");
            let error = ask(lab, "ADD", one, &conf("0.3.1")).unwrap_err();
            assert!(matches!(error.code, failure::SERVER | failure::WIRING), "{reply}: {error}");
            assert_eq!(server.verbs(), ["ADD", "DEL"], "{reply}: the server was asked to take it back");
            untouched("one");
        });
    }
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn a_second_add_is_refused_and_the_first_interface_stays() {
    // cni-runtime.md section 6.2 item 23
    on_a_node(|lab| {
        let server = Fake::stock(lab);
        let one = pod("one");
        let result = add(lab, one, &conf("1.0.0"));
        let error = ask(lab, "ADD", one, &conf("1.0.0")).unwrap_err();
        assert!(error.msg.contains("container veth name (eth0) already exists"), "{error}");
        assert_eq!(server.verbs(), ["ADD"], "the server was not asked");
        ask(lab, "CHECK", one, &after(&conf("1.0.0"), &result)).unwrap();
    });
}

#[test]
#[ignore = "kernel: macvlan, nf_tables; root"]
fn a_pod_with_a_macvlan0_reaches_its_parent_and_the_services_through_the_gateway() {
    // cni-runtime.md section 4.2 steps 7 and 8, and its older version.
    on_a_node(|lab| {
        testkit::run("ip", &["link", "add", "nic0", "type", "veth", "peer", "name", "wire0"]);
        for address in ["192.0.2.7/24", "198.51.100.7/24"] {
            testkit::run("ip", &["address", "add", address, "dev", "nic0"]);
        }
        testkit::run("ip", &["link", "set", "nic0", "up"]);
        let root = lab.path("var/run/openshift-sdn/cniserver/config.json");
        let _server = Fake::start(lab, r#"{"mtu":1450,"serviceNetworkCIDR":"172.30.0.0/16"}"#, |_, body| {
            if body["env"]["CNI_COMMAND"] != "ADD" {
                return (200, String::new());
            }
            let netns = NetNs::open(body["env"]["CNI_NETNS"].as_str().unwrap()).unwrap();
            sdn::add_macvlan(&netns, Some("nic0")).unwrap();
            (200, r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.128.0.11/23","gateway":"10.128.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.128.0.1"}]}}"#.to_owned())
        });
        let one = pod("one");
        let result = add(lab, one, &conf("0.3.1"));
        assert_eq!(ip("one", &["link", "show", "macvlan0"])[0]["linkinfo"]["info_data"]["mode"], "private");
        assert!(
            ip("one", &["link", "show", "macvlan0"])[0]["flags"].as_array().unwrap().contains(&json!("UP"))
        );
        let routes = inside("one", &["ip", "route"]);
        for dst in ["192.0.2.7", "198.51.100.7", "172.30.0.0/16"] {
            let wanted = format!("{dst} via 10.128.0.1 dev eth0 proto 114");
            assert!(routes.lines().any(|line| line.trim() == wanted), "{wanted} in {routes}");
        }
        let destinations: Vec<&str> =
            result["routes"].as_array().unwrap().iter().map(|route| route["dst"].as_str().unwrap()).collect();
        assert_eq!(destinations, ["0.0.0.0/0", "192.0.2.7/32", "198.51.100.7/32", "172.30.0.0/16"]);
        ask(lab, "CHECK", one, &after(&conf("1.0.0"), &result)).unwrap();

        std::fs::write(root, r#"{"mtu":1450,"serviceNetworkCIDR":"172.30.0.0"}"#).unwrap();
        let two = pod("two");
        let error = ask(lab, "ADD", two, &conf("0.3.1")).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert!(error.details.contains("serviceNetworkCIDR: \"172.30.0.0\" is no IPv4 network"), "{error}");
        assert_eq!(ip("two", &["link"]).as_array().unwrap().len(), 1);
    });
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn check_names_every_difference() {
    // cni-runtime.md section 4.2: OpenShift's plugin has no CHECK.
    on_a_node(|lab| {
        let _server = Fake::stock(lab);
        let one = pod("one");
        let config = after(&conf("1.0.0"), &add(lab, one, &conf("1.0.0")));
        ask(lab, "CHECK", one, &config).unwrap();
        for (damage, reported) in [
            (&["ip", "link", "set", "eth0", "mtu", "1300"][..], "MTU 1300, not 1400"),
            (
                &["ip", "route", "del", "172.30.0.0/16"][..],
                "the route to 172.30.0.0/16 via 10.128.0.1 is gone",
            ),
            (
                &["nft", "delete", "chain", "ip", "openshift-block-output", "forward"][..],
                "openshift-block-output is not complete",
            ),
            (
                &["ip", "link", "set", "eth0", "address", "0a:58:0a:80:00:0c"][..],
                "MAC 0a:58:0a:80:00:0c, not 0a:58:0a:80:00:0b",
            ),
            (
                &["ip", "address", "del", "10.128.0.11/23", "dev", "eth0"][..],
                "has not the address 10.128.0.11/23",
            ),
            (&["ip", "link", "set", "eth0", "down"][..], "eth0 is down"),
            (&["ip", "link", "del", "eth0"][..], "eth0 is gone"),
        ] {
            if damage[0] == "nft" {
                inside("one", &["nft", "flush", "chain", "ip", "openshift-block-output", "forward"]);
            }
            inside("one", damage);
            let error = ask(lab, "CHECK", one, &config).unwrap_err();
            assert!(error.code == failure::WIRING && error.details.contains(reported), "{reported}: {error}");
        }
    });
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn a_pod_is_deleted_without_a_server_which_gets_the_del_later() {
    // cni-runtime.md section 4.2, last paragraph; section 7: "agent down -> pods cannot be deleted"
    on_a_node(|lab| {
        let mut server = Fake::stock(lab);
        let (one, two) = (pod("one"), pod("two"));
        add(lab, one, &conf("0.3.1"));
        server.kill();
        ask(lab, "DEL", one, &conf("0.3.1")).unwrap();
        assert_eq!(links(), ["lo"], "the pod is gone all the same");
        NetNs::delete_named("one").unwrap();
        for netns in ["one", ""] {
            ask(lab, "DEL", Pod { netns, ..one }, &conf("0.3.1")).unwrap();
        }
        let saved = lab.path("run/russet/openshift-sdn");
        assert_eq!(std::fs::read_dir(&saved).unwrap().count(), 1, "once");
        drop(server);
        let server = Fake::stock(lab);
        add(lab, two, &conf("0.3.1"));
        assert_eq!(server.verbs(), ["ADD", "DEL"]);
        let seen_by_server = server.seen.lock().unwrap()[1].1.clone();
        assert_eq!(seen_by_server["env"]["CNI_CONTAINERID"], "one");
        let left =
            std::fs::read_dir(&saved).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
        assert_eq!(left.collect::<Vec<_>>(), [".lock"]);
    });
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn a_refused_saved_del_does_not_block_the_others() {
    on_a_node(|lab| {
        let mut server = Fake::stock(lab);
        let pods = ["one", "two", "three"].map(pod);
        server.kill();
        for pod in pods {
            ask(lab, "DEL", pod, &conf("0.3.1")).unwrap();
        }
        drop(server);
        let server = Fake::start(lab, CONFIG_JSON, |_, body| match body["env"]["CNI_COMMAND"].as_str() {
            Some("ADD") => (200, REPLY.to_owned()),
            _ if body["env"]["CNI_CONTAINERID"] == "two" => (400, "never heard of it\n".to_owned()),
            _ => (200, String::new()),
        });
        add(lab, pod("four"), &conf("0.3.1"));
        assert_eq!(server.verbs(), ["ADD", "DEL", "DEL", "DEL"]);
        let saved = std::fs::read_dir(lab.path("run/russet/openshift-sdn")).unwrap();
        assert_eq!(saved.count(), 2, "the lock, and the one that was refused");
    });
}

#[test]
#[ignore = "kernel: veth, nf_tables; root"]
fn a_saved_del_is_sent_before_the_same_names_are_used_again() {
    on_a_node(|lab| {
        let mut server = Fake::stock(lab);
        let one = pod("one");
        add(lab, one, &conf("0.3.1"));
        server.kill();
        ask(lab, "DEL", one, &conf("0.3.1")).unwrap();
        drop(server);
        let server = Fake::stock(lab);
        add(lab, one, &conf("0.3.1"));
        assert_eq!(server.verbs(), ["DEL", "ADD"]);
    });
}

#[test]
fn status_without_a_server_has_code_50() {
    // cni-runtime.md section 6.2 item 62, its first case; OpenShift's server has no STATUS and
    // counts as ready.
    let lab = Lab::with_path("/opt/cni/bin");
    let none = Pod { container: "c", ifname: "eth0", netns: "" };
    let error = ask(&lab, "STATUS", none, &conf("1.1.0")).unwrap_err();
    assert_eq!(error.code, code::NOT_AVAILABLE, "no config.json: {error}");
    let mut server = Fake::stock(&lab);
    ask(&lab, "STATUS", none, &conf("1.1.0")).unwrap();
    ask(&lab, "GC", none, &conf("1.1.0")).unwrap();
    server.kill();
    let error = ask(&lab, "STATUS", none, &conf("1.1.0")).unwrap_err();
    assert_eq!(error.code, code::NOT_AVAILABLE, "no listener: {error}");
    drop(server);
    let ours = Fake::start(&lab, CONFIG_JSON, |path, _| {
        let error = CniError::new(code::LIMITED_CONNECTIVITY, "the data path is lost", "");
        (if path == "/v1/cni" { 503 } else { 400 }, String::from_utf8(error.encode()).unwrap())
    });
    let error = ask(&lab, "STATUS", none, &conf("1.1.0")).unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (code::LIMITED_CONNECTIVITY, "the data path is lost"));
    assert_eq!(ours.verbs(), Vec::<String>::new(), "nothing was asked at the stock path");
}

#[test]
fn saved_dels_are_limited_and_named_by_interface() {
    let lab = Lab::with_path("/opt/cni/bin");
    for ifname in ["eth0", "net1"] {
        let target = Pod { container: "c.1", ifname, netns: "" };
        ask(&lab, "DEL", target, &conf("0.3.1")).unwrap();
    }
    let dir = lab.path("run/russet/openshift-sdn");
    assert!(dir.join("c.1+eth0").exists() && dir.join("c.1+net1").exists());
    for index in 0..4100 {
        std::fs::write(dir.join(format!("x{index}+eth0")), "").unwrap();
    }
    let error = ask(&lab, "DEL", Pod { container: "more", ifname: "eth0", netns: "" }, &conf("0.3.1"));
    assert_eq!(error.unwrap_err().code, code::TRY_AGAIN_LATER);
}
