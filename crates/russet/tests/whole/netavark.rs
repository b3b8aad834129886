//! The driver of podman's networks, called as netavark calls its plugins: by its path in a plugin directory, with JSON on standard input. With a netavark
//! from 1.6 in `RUSSET_NETAVARK` that is what calls it (docs/testing.md).

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::{bound, eventually, write_program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::node::{Answer, PATH, TIMEOUT, TestNode, TestPod};

/// A node with the driver `russet` in its plugin directory.
struct Host {
    node: TestNode,
}

/// What a container wants.
#[derive(Clone)]
struct Wish {
    pod: TestPod,
    name: &'static str,
    network: Value,
    options: Value,
    ports: Value,
}

/// An interface, as podman gets it.
#[derive(Debug, PartialEq)]
struct Shown {
    address: IpAddr,
    mac: String,
    dns: Option<Ipv4Addr>,
}

/// A real netavark to call instead of the driver.
fn real() -> Option<PathBuf> {
    std::env::var_os("RUSSET_NETAVARK").map(PathBuf::from)
}

fn network(name: &str, more: Value) -> Value {
    let mut network = json!({ "name": name, "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9", "driver": "russet",
        "internal": false, "ipv6_enabled": false, "dns_enabled": false, "ipam_options": { "driver": "russet" } });
    network.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    network
}

// === impl Host ===

impl Host {
    fn new(node: TestNode) -> Self {
        std::fs::create_dir(node.path("netavark")).unwrap();
        symlink(env!("CARGO_BIN_EXE_russet"), node.path("netavark/russet")).unwrap();
        Self { node }
    }

    fn wish(&mut self, name: &'static str) -> Wish {
        let options =
            json!({ "interface_name": "eth0", "aliases": [], "static_ips": null, "static_mac": null });
        Wish { pod: self.node.pod(), name, network: network("blue", json!({})), options, ports: Value::Null }
    }

    fn call(&self, program: &Path, args: &[&str], stdin: &[u8]) -> Answer {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("RUSSET_ROOT", self.node.root())
            .env("PATH", PATH)
            .env("NETAVARK_FW", "none")
            .args(args);
        self.node.output(&mut command, stdin)
    }

    fn driver(&self, args: &[&str], stdin: &[u8]) -> Answer {
        self.call(&self.node.path("netavark/russet"), args, stdin)
    }

    /// `setup` or `teardown`: the answer, or the text of the error.
    fn ask(&self, verb: &str, wish: &Wish, netns: &str) -> Result<Value, String> {
        let name = wish.network["name"].as_str().unwrap();
        let answer = match real() {
            None => {
                let request = json!({ "container_id": wish.pod.container, "container_name": wish.name, "port_mappings": wish.ports,
                    "network": wish.network, "network_options": wish.options });
                self.driver(&[verb, netns], request.to_string().as_bytes())
            }
            Some(netavark) => {
                let request = json!({ "container_id": wish.pod.container, "container_name": wish.name, "port_mappings": wish.ports,
                    "network_info": { name: wish.network }, "networks": { name: wish.options } });
                let (plugins, config) =
                    (self.node.path("netavark"), self.node.path("run/containers/networks"));
                let args = [
                    "--plugin-directory",
                    plugins.to_str().unwrap(),
                    "--config",
                    config.to_str().unwrap(),
                    verb,
                    netns,
                ];
                self.call(&netavark, &args, request.to_string().as_bytes())
            }
        };
        let document = serde_json::from_str(&answer.stdout).unwrap_or(Value::Null);
        match answer.status {
            0 if real().is_some() && verb == "setup" => Ok(document[name].clone()),
            0 => Ok(document),
            _ => Err(refusal(&answer)),
        }
    }

    fn setup(&self, wish: &Wish) -> Result<Shown, String> {
        let status = self.ask("setup", wish, wish.pod.path().to_str().unwrap())?;
        let interface = &status["interfaces"][wish.options["interface_name"].as_str().unwrap()];
        let address = interface["subnets"][0]["ipnet"].as_str().unwrap_or_else(|| panic!("{status}"));
        let (address, length) = address.split_once('/').unwrap();
        assert_eq!(length, "32", "{status}");
        let dns = status["dns_server_ips"][0].as_str().map(|address| address.parse().unwrap());
        let mac = interface["mac_address"].as_str().unwrap().to_owned();
        Ok(Shown { address: address.parse().unwrap(), mac, dns })
    }

    #[track_caller]
    fn teardown(&self, wish: &Wish) {
        let done = self.ask("teardown", wish, wish.pod.path().to_str().unwrap());
        assert_eq!(done, Ok(Value::Null), "it prints nothing");
    }

    /// The addresses of containers of podman's networks.
    fn allocated(&self) -> usize {
        if self.node.status().status == 0 {
            eventually(TIMEOUT, || self.node.unfinished() == 0);
        }
        let records: Value =
            serde_json::from_str(&self.node.store_get("/calico/ipam/v2/assignment/")).unwrap();
        let ours = |attribute: &&Value| {
            attribute["handle_id"].as_str().is_some_and(|id| id.starts_with("netavark-"))
        };
        let of_block = |record: &Value| {
            record["value"]["attributes"].as_array().map_or(0, |all| all.iter().filter(ours).count())
        };
        records["records"].as_array().unwrap().iter().map(of_block).sum()
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        eventually(TIMEOUT, || self.node.links().is_empty());
        assert_eq!(self.allocated(), 0);
        assert_eq!(
            std::fs::read_dir(self.node.path("run/russet/netavark/results")).into_iter().flatten().count(),
            0
        );
    }
}

/// The text of the error object that a call has to end with.
#[track_caller]
fn refusal(answer: &Answer) -> String {
    let document: Value =
        serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    assert_eq!(answer.status, 1, "{answer:?}");
    document["error"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// What is in a container's namespace of its `eth0`.
fn eth0(pod: &TestPod) -> String {
    russet_testkit::run("ip", &["-n", &pod.netns_name, "addr", "show", "eth0"])
}

fn within<T: Send>(pod: &TestPod, body: impl FnOnce() -> T + Send) -> T {
    NetNs::open(pod.path()).unwrap().with(body).unwrap()
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, ping"]
fn containers_reach_each_other_and_give_their_addresses_back_with_an_agent_and_without() {
    let mut host = Host::new(TestNode::start(&[]));
    for agent in [true, false] {
        let (first, second) = (host.wish("first"), host.wish("second"));
        let shown = host.setup(&first).unwrap();
        let other = host.setup(&second).unwrap();
        let inside = eth0(&first.pod);
        assert!(
            inside.contains(&format!("inet {}/32", shown.address)) && inside.contains(&shown.mac),
            "{inside}"
        );
        assert!(first.pod.pings(&[&other.address.to_string()]), "agent: {agent}");
        assert!(second.pod.pings(&[&shown.address.to_string()]));
        assert_eq!(host.setup(&first).unwrap(), shown, "a second setup");
        assert_eq!(host.allocated(), 4, "of both families");
        host.teardown(&first);
        host.teardown(&first);
        // podman passes the path of a namespace that is gone.
        NetNs::delete_named(&second.pod.netns_name).unwrap();
        if real().is_none() {
            assert_eq!(host.ask("teardown", &second, "/proc/does-not-exist/ns/net"), Ok(Value::Null));
        } else {
            host.teardown(&second);
        }
        host.assert_nothing_left();
        if agent {
            host.node.stop_agent();
        }
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip"]
fn a_requested_address_and_mac_are_given_or_refused() {
    const MAC: &str = "02:11:22:33:44:55";
    let mut host = Host::new(TestNode::start(&[]));
    let first = host.wish("first");
    let IpAddr::V4(taken) = host.setup(&first).unwrap().address else { panic!() };
    // Another address of the node's block.
    let free = Ipv4Addr::from(u32::from(taken) ^ 32);
    let mut asks = host.wish("asks");
    asks.options["static_ips"] = json!([free]);
    asks.options["static_mac"] = MAC.into();
    asks.network["options"] = json!({ "mtu": "1300" });
    let shown = host.setup(&asks).unwrap();
    assert_eq!((shown.address, shown.mac.as_str()), (free.into(), MAC));
    let inside = eth0(&asks.pod);
    assert!(inside.contains(MAC) && inside.contains("mtu 1300"), "{inside}");

    for (addresses, why) in [(json!([taken]), "already assigned"), (json!(["192.0.2.1"]), "192.0.2.1")] {
        let mut refused = host.wish("refused");
        refused.options["static_ips"] = addresses;
        let said = host.setup(&refused).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
    let mut refused = host.wish("refused");
    refused.network["options"] = json!({ "vlan": "7" });
    let said = host.setup(&refused).unwrap_err();
    assert!(said.contains("\"vlan\" is unknown"), "{said}");
    assert_eq!(host.allocated(), 3, "a requested address is the only one, and refused setups leave none");
    for wish in [&first, &asks] {
        host.teardown(wish);
    }
    host.assert_nothing_left();
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip"]
fn a_published_port_answers_until_teardown_and_cannot_be_published_twice() {
    let mut host = Host::new(TestNode::start(&[]));
    host.node.ip(&["addr", "add", "192.0.2.10/32", "dev", "lo"]);
    let mut second = host.wish("second");
    second.ports =
        json!([{ "host_ip": "", "host_port": 18081, "container_port": 80, "protocol": "tcp", "range": 1 }]);
    let mut web = host.wish("web");
    web.ports =
        json!([{ "host_ip": "", "host_port": 18080, "container_port": 80, "protocol": "tcp", "range": 2 }]);
    host.setup(&web).unwrap();
    let answers = |port: u16| {
        let listener = within(&web.pod, || bound(|| TcpListener::bind("0.0.0.0:80")));
        let client = host.node.netns().with(|| {
            TcpStream::connect_timeout(&SocketAddr::from(([192, 0, 2, 10], port)), Duration::from_secs(5))
        });
        let Ok(mut client) = client.unwrap() else { return false };
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"hello").unwrap();
        drop(server);
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        said == "hello"
    };
    assert!(answers(18080));

    // The same container in a second network: netavark passes the ports again.
    let mut also = Wish { network: network("red", json!({})), ..web.clone() };
    also.options["interface_name"] = "eth1".into();
    host.setup(&also).unwrap();
    assert!(answers(18080));
    host.teardown(&also);
    assert!(answers(18080));

    let said = host.setup(&second).unwrap_err();
    assert!(said.contains("18081") && said.contains("taken"), "{said}");
    assert_eq!(host.allocated(), 2, "the refused setup has left nothing");
    host.teardown(&web);
    assert!(!answers(18080));
    host.setup(&second).unwrap();
    host.teardown(&second);
    host.assert_nothing_left();
}

/// Ends the name server of a test that failed.
struct Server(PathBuf);

impl Server {
    fn pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.0.join("aardvark.pid")).ok()?;
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists().then_some(pid)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The first IPv4 address of an answer for `name`, asked from inside a container.
fn resolved(pod: &TestPod, server: Ipv4Addr, name: &str) -> Option<IpAddr> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, u8::try_from(name.len()).unwrap()];
    query.extend(name.as_bytes());
    query.extend([0, 0, 1, 0, 1]);
    let answer = within(pod, move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket.send_to(&query, (server, 53)).ok()?;
        let mut buffer = [0; 512];
        let count = socket.recv(&mut buffer).ok()?;
        Some(buffer[..count].to_vec())
    })?;
    let answers = u16::from_be_bytes([answer[6], answer[7]]);
    let last: [u8; 4] = answer[answer.len() - 4..].try_into().unwrap();
    (answers == 1 && answer[3] & 15 == 0).then(|| Ipv4Addr::from(last).into())
}

#[test]
#[ignore = "root: makes network namespaces; tool: aardvark-dns of Debian, ip"]
fn names_are_those_of_the_containers_network_and_go_with_it() {
    const DEBIANS: &str = "/usr/lib/podman/aardvark-dns";
    let mut host = Host::new(TestNode::start(&[]));
    assert!(
        Path::new(DEBIANS).is_file(),
        "the Debian package aardvark-dns is not installed and this test needs it"
    );
    std::fs::create_dir_all(host.node.path("usr/lib/podman")).unwrap();
    symlink(DEBIANS, host.node.path("usr/lib/podman/aardvark-dns")).unwrap();
    let files = host.node.path("run/containers/networks/aardvark-dns");
    if real().is_some() {
        std::fs::create_dir_all(files.parent().unwrap()).unwrap();
    }
    let server = Server(files.clone());
    let with_dns = |mut wish: Wish, network_name: &str| {
        wish.network = network(network_name, json!({ "dns_enabled": true }));
        wish.options["aliases"] = json!([wish.pod.container, "www"]);
        wish
    };
    let (web, db, alone) = (host.wish("web"), host.wish("db"), host.wish("alone"));
    let (web, db, alone) = (with_dns(web, "blue"), with_dns(db, "blue"), with_dns(alone, "red"));
    let of_web = host.setup(&web).unwrap();
    let of_db = host.setup(&db).unwrap();
    let of_alone = host.setup(&alone).unwrap();
    let (blue, red) = (of_web.dns.unwrap(), of_alone.dns.unwrap());
    assert_eq!(of_db.dns, Some(blue));
    assert_ne!(blue, red, "each network has a server of its own");

    // It reads its files again after a signal.
    eventually(TIMEOUT, || resolved(&web.pod, blue, "db") == Some(of_db.address));
    assert_eq!(resolved(&db.pod, blue, "web"), Some(of_web.address));
    eventually(TIMEOUT, || resolved(&alone.pod, red, "alone") == Some(of_alone.address));
    assert_eq!(resolved(&alone.pod, red, "db"), None, "of another network");
    assert!(host.node.ip(&["route", "show", "table", "local"]).contains(&format!("local {blue} dev lo")));
    let owned = host.node.russet_inside(&["owned"]);
    assert!(owned.stdout.contains(&blue.to_string()), "{owned:?}");
    assert_eq!(host.setup(&db).unwrap(), of_db, "a second setup");
    let text = std::fs::read_to_string(files.join("blue")).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");

    // What the agent compares with the desired state has no part of it.
    host.node.stop_agent();
    host.node.start_agent();
    assert_eq!(resolved(&web.pod, blue, "db"), Some(of_db.address));

    host.teardown(&db);
    eventually(TIMEOUT, || resolved(&web.pod, blue, "db").is_none());
    assert_eq!(resolved(&web.pod, blue, "web"), Some(of_web.address));
    for wish in [&db, &web, &alone] {
        host.teardown(wish);
    }
    eventually(TIMEOUT, || server.pid().is_none());
    assert!(!files.join("blue").exists() && !files.join("red").exists());
    assert!(!host.node.ip(&["route", "show", "table", "local"]).contains("169.254."));
    host.assert_nothing_left();
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip"]
fn a_setup_whose_name_server_cannot_start_leaves_nothing() {
    let mut host = Host::new(TestNode::start(&[]));
    std::fs::create_dir_all(host.node.path("usr/lib/podman")).unwrap();
    let program = host.node.path("usr/lib/podman/aardvark-dns");
    write_program(&program, "#!/bin/sh\necho 'port 53 is in use' >&2\nexit 1\n");
    let mut web = host.wish("web");
    web.network["dns_enabled"] = true.into();
    let said = host.setup(&web).unwrap_err();
    assert!(said.contains("aardvark-dns ended with") && said.contains("port 53 is in use"), "{said}");
    host.assert_nothing_left();
    assert!(!host.node.path("run/containers/networks/aardvark-dns/blue").exists());
    assert!(!host.node.ip(&["route", "show", "table", "local"]).contains("169.254."));

    // Without the program there are no names, and nothing fails.
    std::fs::remove_file(program).unwrap();
    assert_eq!(host.setup(&web).unwrap().dns, None);
    host.teardown(&web);
    host.assert_nothing_left();
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_network_is_created_on_a_pool_or_refused() {
    let host = Host::new(TestNode::start(&[]));
    let create = |network: &Value| host.driver(&["create"], network.to_string().as_bytes());
    let mut new =
        network("blue", json!({ "ipam_options": { "driver": "host-local" }, "labels": { "a": "b" } }));
    for subnets in [json!([]), json!([{ "subnet": "10.244.0.0/16" }])] {
        new["subnets"] = subnets;
        let mut expected = new.clone();
        expected["ipam_options"]["driver"] = "russet".into();
        let made = create(&new);
        assert_eq!((made.status, made.result()), (0, expected));
    }
    for (subnet, why) in [("10.99.0.0/16", "10.244.0.0/16"), ("10.244.0.0/24", "no enabled pool")] {
        new["subnets"] = json!([{ "subnet": subnet }]);
        let said = refusal(&create(&new));
        assert!(said.contains(subnet) && said.contains(why), "{said}");
    }
}

#[test]
fn hostile_requests_are_answered_with_an_error_object() {
    let dir = tempfile::tempdir().unwrap();
    let driver = dir.path().join("russet");
    symlink(env!("CARGO_BIN_EXE_russet"), &driver).unwrap();
    let call = |args: &[&str], stdin: &[u8]| -> Answer {
        let mut command = Command::new(&driver);
        command.env_clear().env("RUSSET_ROOT", dir.path()).args(args);
        russet_testkit::spawn_with_input(&mut command, stdin).wait_with_output().unwrap().into()
    };
    let info = call(&["info"], b"");
    assert_eq!((info.status, &info.result()["api_version"]), (0, &json!("1.0.0")), "{info:?}");
    let whole =
        r#"{"container_id":"../x","network":{"name":"n"},"network_options":{"interface_name":"eth0"}}"#;
    let long = vec![b' '; 1024 * 1024 + 1];
    for (stdin, why) in [
        (&b""[..], "EOF"),
        (b"{}", "missing field `container_id`"),
        (b"\xff\xfe", "decode the request"),
        (whole.as_bytes(), "container ID"),
        (&long, "more than 1048576 bytes"),
    ] {
        for verb in ["setup", "teardown"] {
            let said = refusal(&call(&[verb, "/proc/does-not-exist"], stdin));
            assert!(said.contains(why), "{verb}: {said}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was written");
}
