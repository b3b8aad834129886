//! Tests of `portmap` behind `bridge`, compared with real packets, `nft` and the plugin order of
//! the Go conflists.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use russet_testkit as testkit;
use serde_json::{Value, json};

use crate::lab::{Lab, Pod, after, inside, on_a_node, pod};

/// A program that is killed when this is dropped.
pub(super) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bridge with hairpin mode: where bridged packets pass through nf_tables, a pod's packet to its
/// own published port leaves by the port by which it came.
fn bridge(lab: &Lab, subnets: &[&str]) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "isDefaultGateway": true,
        "hairpinMode": true, "ipam": lab.ipam(subnets)})
}

/// The plugin's configuration after `result`.
pub(super) fn portmap(result: &Value, mappings: Value) -> Value {
    after(
        &json!({"cniVersion": "1.1.0", "name": "net", "type": "portmap",
        "runtimeConfig": {"portMappings": mappings}}),
        result,
    )
}

/// A pod that answers TCP connections to port 80 and datagrams to it with its name and the client's
/// address.
pub(super) fn serving(lab: &Lab, container: &'static str, subnets: &[&str]) -> (Pod, Value, Server) {
    let pod = pod(container);
    let result = lab.add("bridge", pod, &bridge(lab, subnets));
    let script = format!(
        r"
import socket, selectors
s = selectors.DefaultSelector()
t = socket.create_server(('::', 80), family=socket.AF_INET6, dualstack_ipv6=True)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('', 80))
for x in (t, u): s.register(x, selectors.EVENT_READ)
print('up', flush=True)
while True:
    for key, _ in s.select():
        if key.fileobj is t:
            c, who = t.accept(); c.sendall(b'{container} ' + who[0].encode()); c.close()
        else:
            _, who = u.recvfrom(99); u.sendto(b'{container} ' + who[0].encode(), who)
"
    );
    let mut command = Command::new(testkit::require_tool("ip"));
    command
        .args(["netns", "exec", container, "python3", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    assert_eq!(line, "up\n");
    (pod, result, Server(child))
}

/// The answer that a client in `netns` (empty: on the node) gets from an address and port; empty
/// without an answer.
pub(super) fn ask(netns: &str, kind: &str, to: &str, port: u16) -> String {
    let script = format!(
        r"
import socket, sys
f = socket.AF_INET6 if ':' in '{to}' else socket.AF_INET
s = socket.socket(f, socket.SOCK_{kind}); s.settimeout(1)
try:
    s.connect(('{to}', {port}))
    if '{kind}' == 'DGRAM': s.send(b'x')
    print(s.recv(99).decode())
except OSError:
    pass
"
    );
    if netns.is_empty() {
        testkit::run("python3", &["-c", &script])
    } else {
        inside(netns, &["python3", "-c", &script])
    }
    .trim()
    .to_owned()
}

/// Repeats a question until it is answered: on a loaded machine an answer may take longer than one
/// attempt waits.
pub(super) fn answer(netns: &str, kind: &str, to: &str, port: u16) -> String {
    testkit::eventually_some(Duration::from_secs(20), || {
        Some(ask(netns, kind, to, port)).filter(|said| !said.is_empty())
    })
}

/// A neighbour of the node: it has 192.0.2.9, and the node 192.0.2.1.
pub(super) fn neighbour() {
    testkit::run("ip", &["netns", "add", "world"]);
    testkit::run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "w0", "netns", "world"]);
    testkit::run("ip", &["addr", "add", "192.0.2.1/24", "dev", "up0"]);
    testkit::run("ip", &["addr", "add", "2001:db8::1/64", "dev", "up0", "nodad"]);
    testkit::run("ip", &["link", "set", "up0", "up"]);
    inside("world", &["ip", "addr", "add", "192.0.2.9/24", "dev", "w0"]);
    inside("world", &["ip", "addr", "add", "2001:db8::9/64", "dev", "w0", "nodad"]);
    inside("world", &["ip", "link", "set", "w0", "up"]);
}

/// How many elements and containers' chains our table has.
fn left() -> (usize, usize) {
    let list = testkit::nft_json(&["list", "ruleset"]);
    let all = list["nftables"].as_array().unwrap();
    let named = |kind: &'static str| all.iter().filter_map(move |it| it.get(kind));
    let elements =
        named("set").chain(named("map")).filter(|it| it["name"].as_str().unwrap().starts_with("ports-"));
    let elements = elements.filter_map(|it| it.get("elem")?.as_array()).map(Vec::len).sum();
    let chains = named("chain").filter(|it| it["name"].as_str().unwrap().starts_with("ports-of-")).count();
    (elements, chains)
}

pub(super) const V4: &[&str] = &["10.202.1.0/24"];

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; tool: python3; root"]
fn a_published_port_is_reached_from_everywhere() {
    // cni-runtime.md sections 5, 6.2 item 54 and A.4
    on_a_node(|lab| {
        neighbour();
        let (web, result, _server) = serving(lab, "web", &["10.202.1.0/24", "fd00:202:1::/64"]);
        pod("other");
        lab.add("bridge", Pod { container: "other", ifname: "eth0", netns: "other" }, &bridge(lab, V4));
        let config = portmap(
            &result,
            json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"HostPort": 8053, "ContainerPort": 80, "Protocol": "UDP"}]),
        );
        assert_eq!(lab.add("portmap", web, &config), result, "passed through");
        assert_eq!(
            answer("world", "STREAM", "192.0.2.1", 8080),
            "web ::ffff:192.0.2.9",
            "the client's own address"
        );
        assert_eq!(answer("world", "DGRAM", "192.0.2.1", 8053), "web 192.0.2.9");
        inside("world", &["ip", "route", "add", "fd00:202:1::/64", "via", "2001:db8::1"]);
        assert_eq!(answer("world", "STREAM", "2001:db8::1", 8080), "web 2001:db8::9");
        for from in ["", "web", "other"] {
            assert!(answer(from, "STREAM", "192.0.2.1", 8080).starts_with("web"), "from {from:?}");
        }
        assert!(answer("", "STREAM", "127.0.0.1", 8080).starts_with("web"));
        let guard = testkit::run("nft", &["list", "chain", "inet", "russet-cni", "ports-guard"]);
        assert!(guard.contains(r#"ip daddr 127.0.0.0/8 iifname != "lo" drop"#), "{guard}");
        lab.call("portmap", "CHECK", web, &config);
        testkit::run("nft", &["flush", "map", "inet", "russet-cni", "ports-any4"]);
        let error = lab.error("portmap", "CHECK", web, &config);
        assert!(error.details.contains("Tcp port 8080"), "{error}");
        lab.add("portmap", web, &config);
        lab.call("portmap", "CHECK", web, &config);
        for _ in 0..2 {
            lab.call("portmap", "DEL", Pod { netns: "", ..web }, &config);
        }
        assert_eq!(left(), (0, 0));
        assert_eq!(ask("world", "STREAM", "192.0.2.1", 8080), "");
    });
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; tool: python3; root"]
fn a_port_that_is_taken_is_an_error_and_an_address_comes_before_all() {
    // cni-runtime.md section A.4: with the Go plugin the older one wins
    on_a_node(|lab| {
        neighbour();
        testkit::run("ip", &["addr", "add", "192.0.2.2/24", "dev", "up0"]);
        let (one, first, _one) = serving(lab, "one", V4);
        let (two, second, _two) = serving(lab, "two", V4);
        let all = json!([{"hostPort": 8080, "containerPort": 80}]);
        lab.add("portmap", one, &portmap(&first, all.clone()));
        let error = lab.error("portmap", "ADD", two, &portmap(&second, all.clone()));
        assert!(
            error.code == 105 && error.details.contains("Tcp port 8080 is published by russet:net/one/eth0"),
            "{error}"
        );
        assert_eq!(left(), (3, 1));
        lab.add(
            "portmap",
            two,
            &portmap(&second, json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.2"}])),
        );
        assert!(answer("world", "STREAM", "192.0.2.2", 8080).starts_with("two"));
        assert!(answer("world", "STREAM", "192.0.2.1", 8080).starts_with("one"));
        lab.call("portmap", "DEL", one, &portmap(&first, all.clone()));
        lab.add("portmap", two, &portmap(&second, all));
        assert!(answer("world", "STREAM", "192.0.2.1", 8080).starts_with("two"));
    });
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; tool: python3; root"]
fn leftover_rules_are_removed_with_their_address_or_by_gc() {
    // plugins#683: stale rules after an unclean exit
    on_a_node(|lab| {
        let (one, first, _one) = serving(lab, "one", V4);
        let all = json!([{"hostPort": 8080, "containerPort": 80}, {"hostPort": 8081, "containerPort": 80}]);
        lab.add("portmap", one, &portmap(&first, all.clone()));
        let two = pod("two");
        let mut same = first.clone();
        same["interfaces"][2]["sandbox"] = "/run/netns/two".into();
        lab.add("portmap", two, &portmap(&same, json!([{"hostPort": 8080, "containerPort": 80}])));
        assert_eq!(left(), (3, 1), "one port, two return rules; the older container's port 8081 is gone");
        let no_pod = Pod { container: "", ifname: "", netns: "" };
        let mut gc = portmap(&first, json!([]));
        gc["cni.dev/valid-attachments"] = json!([{"containerID": "two", "ifname": "eth0"}]);
        lab.call("portmap", "GC", no_pod, &gc);
        assert_eq!(left(), (3, 1));
        gc["cni.dev/valid-attachments"] = json!([]);
        gc["name"] = "other".into();
        lab.call("portmap", "GC", no_pod, &gc);
        assert_eq!(left(), (3, 1), "another network's");
        gc["name"] = "net".into();
        lab.call("portmap", "GC", no_pod, &gc);
        assert_eq!(left(), (0, 0));
        lab.call("portmap", "STATUS", no_pod, &gc);
    });
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables, conntrack; tool: python3; root"]
fn a_udp_client_that_keeps_sending_finds_the_new_container() {
    on_a_node(|lab| {
        neighbour();
        let (one, first, _one) = serving(lab, "one", V4);
        let (two, second, _two) = serving(lab, "two", V4);
        let all = json!([{"hostPort": 8053, "containerPort": 80, "protocol": "udp"}]);
        lab.add("portmap", one, &portmap(&first, all.clone()));
        let script = r"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 5353)); s.settimeout(2)
for line in sys.stdin:
    s.sendto(b'x', ('192.0.2.1', 8053))
    try: print(s.recv(99).decode(), flush=True)
    except OSError: print('nothing', flush=True)
";
        let mut command = Command::new(testkit::require_tool("ip"));
        command.args(["netns", "exec", "world", "python3", "-c", script]);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut answers = std::io::BufReader::new(client.stdout.take().unwrap());
        let mut asks = client.stdin.take().unwrap();
        let _client = Server(client);
        let mut say = || {
            use std::io::{BufRead as _, Write as _};
            asks.write_all(b"\n").unwrap();
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            line
        };
        // A datagram may be lost on a loaded machine, and the first one before the neighbour is
        // resolved.
        let mut say = || {
            testkit::eventually_some(Duration::from_secs(20), || {
                Some(say()).filter(|line| line != "nothing\n")
            })
        };
        assert!(say().starts_with("one"));
        lab.call("portmap", "DEL", one, &portmap(&first, all.clone()));
        lab.add("portmap", two, &portmap(&second, all));
        assert!(say().starts_with("two"), "the flow through the old container is forgotten");
    });
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; tool: python3; root"]
fn conditions_and_snat_limit_the_clients() {
    on_a_node(|lab| {
        neighbour();
        let (web, result, _server) = serving(lab, "web", V4);
        let mut config = portmap(&result, json!([{"hostPort": 8080, "containerPort": 80}]));
        config["conditionsV4"] = json!(["!", "-s", "192.0.2.9/32"]);
        config["snat"] = false.into();
        lab.add("portmap", web, &config);
        assert_eq!(ask("world", "STREAM", "192.0.2.1", 8080), "");
        assert!(answer("", "STREAM", "192.0.2.1", 8080).starts_with("web"));
        assert_eq!(ask("web", "STREAM", "192.0.2.1", 8080), "", "without snat there is no route back");
        config["conditionsV4"] = json!(["-i", "eth0"]);
        assert_eq!(lab.error("portmap", "ADD", web, &config).code, 2);
    });
}

#[test]
#[ignore = "kernel: nf_tables; root"]
fn it_is_chained_and_without_ports_it_touches_nothing() {
    // cni-runtime.md section 6.2 item 39
    on_a_node(|lab| {
        let one = pod("one");
        let alone = json!({"cniVersion": "1.0.0", "name": "n", "type": "portmap"});
        let mut mapped = alone.clone();
        mapped["runtimeConfig"] = json!({"portMappings": [{"hostPort": 80, "containerPort": 80}]});
        for config in [&alone, &mapped] {
            let error = lab.error("portmap", "ADD", one, config);
            assert!(error.code == 999 && error.msg.contains("must be called as chained plugin"), "{error}");
        }
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]});
        assert_eq!(lab.add("portmap", one, &after(&alone, &result)), result);
        lab.call("portmap", "DEL", one, &alone);
        let list = testkit::nft_json(&["list", "tables"]);
        assert!(!list.to_string().contains("russet-cni"), "{list}");
        // There is no route to the address, so what was published is removed again.
        let mut lost = after(&alone, &result);
        lost["runtimeConfig"] = json!({"portMappings": [{"hostPort": 80, "containerPort": 80}]});
        assert!(lab.error("portmap", "ADD", one, &lost).msg.contains("cannot be routed to 10.1.2.3"));
        assert_eq!(left(), (0, 0));
        let mut bad = after(&alone, &result);
        for (mapping, word) in [
            (json!({"hostPort": 0, "containerPort": 80}), "host port"),
            (json!({"hostPort": 80}), "container port"),
            (json!({"hostPort": 80, "containerPort": 80, "protocol": "icmp"}), "protocol"),
        ] {
            bad["runtimeConfig"] = json!({"portMappings": [mapping]});
            assert!(lab.error("portmap", "ADD", one, &bad).msg.contains(word));
        }
    });
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; tool: python3; root"]
fn a_published_port_is_taken_only_from_the_nodes_own_addresses() {
    // CVE-2025-67499: a packet that the node forwards to the same port of another machine must not
    // be translated.
    on_a_node(|lab| {
        neighbour();
        inside("world", &["ip", "route", "add", "10.202.1.0/24", "via", "192.0.2.1"]);
        let (web, result, _web) = serving(lab, "web", V4);
        let (_, other, _other) = serving(lab, "other", V4);
        lab.add(
            "portmap",
            web,
            &portmap(
                &result,
                json!([{"hostPort": 80, "containerPort": 80},
            {"hostPort": 80, "containerPort": 80, "protocol": "udp"}]),
            ),
        );
        let to = other["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
        for kind in ["STREAM", "DGRAM"] {
            assert!(answer("world", kind, "192.0.2.1", 80).starts_with("web"), "{kind}");
            for from in ["world", "", "web"] {
                assert!(answer(from, kind, to, 80).starts_with("other"), "{kind} from {from:?}");
            }
        }
    });
}
