//! Tests of `bandwidth` behind `bridge`, compared with `tc`, a real transfer and the Go plugin.

use std::process::{Command, Stdio};

use russet_testkit as testkit;
use serde_json::{Value, json};

use super::*;
use crate::lab::{Lab, Pod, after, inside, links, on_a_node, pings, pod};

/// 8 Mbit/s and a burst of 100,000 bytes to the pod, a quarter of that from it.
fn limited() -> Value {
    json!({"IngressRate": 8_000_000, "IngressBurst": 800_000, "EgressRate": 2_000_000, "EgressBurst": 800_000})
}

fn wired(lab: &Lab, container: &'static str) -> (Pod, Value) {
    let pod = pod(container);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isDefaultGateway": true,
        "ipam": lab.ipam(&["10.203.1.0/24"])});
    (pod, lab.add("bridge", pod, &config))
}

fn config(result: &Value, bandwidth: Value) -> Value {
    after(
        &json!({"cniVersion": "1.0.0", "name": "net", "type": "bandwidth",
        "runtimeConfig": {"bandwidth": bandwidth}}),
        result,
    )
}

fn qdiscs(link: &str) -> Vec<String> {
    let text = testkit::run("tc", &["qdisc", "show", "dev", link]);
    text.lines().map(|line| line.split(" lat ").next().unwrap().trim().to_owned()).collect()
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf; tool: tc; root"]
fn both_directions_are_limited_by_what_the_go_plugin_would_set() {
    // cni-runtime.md sections 5, 6.2 item 57 and A.1
    on_a_node(|lab| {
        let (one, result) = wired(lab, "one");
        let after = config(&result, limited());
        let shaped = lab.add("bandwidth", one, &after);
        let host = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
        let ifb = shaped["interfaces"][3]["name"].as_str().unwrap().to_owned();
        let ours = (qdiscs(&host), qdiscs(&ifb));
        assert_eq!(ours.1, ["qdisc tbf 1: root refcnt 2 rate 2Mbit burst 100000b"]);
        assert!(pings("one", "10.203.1.1"));
        lab.call("bandwidth", "CHECK", one, &after);
        lab.go("bandwidth", "CHECK", one, &after);
        lab.call("bandwidth", "DEL", one, &after);
        lab.call("bandwidth", "DEL", one, &after);
        assert!(!links().contains(&ifb));
        // The same, made by the Go plugin.
        lab.call(
            "bridge",
            "DEL",
            one,
            &json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0",
            "ipam": lab.ipam(&["10.203.1.0/24"])}),
        );
        let (two, result) = wired(lab, "two");
        let after = config(&result, limited());
        let shaped = lab.go("bandwidth", "ADD", two, &after);
        let host = result["interfaces"][1]["name"].as_str().unwrap();
        let theirs = shaped["interfaces"][3]["name"].as_str().unwrap();
        assert_eq!((qdiscs(host), qdiscs(theirs)), ours);
        lab.call("bandwidth", "CHECK", two, &after);
        lab.call("bandwidth", "DEL", two, &after);
        assert!(!links().contains(&theirs.to_owned()), "the same name");
    });
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf; tool: python3; root"]
fn a_transfer_is_as_slow_as_its_limit() {
    on_a_node(|lab| {
        let (one, result) = wired(lab, "one");
        lab.add("bandwidth", one, &config(&result, limited()));
        let server = "import socket\ns = socket.create_server(('', 99))\nprint('up', flush=True)\nc, _ = s.accept()\nwhile c.recv(65536): pass\n";
        // 500 kB at 250 kB/s with a burst of 100 kB take 1.6 s; without a limit, a few
        // milliseconds.
        let client = "import socket, time\ns = socket.create_connection(('10.203.1.1', 99))\nt = time.time()\ns.sendall(bytes(500000)); s.shutdown(1); s.recv(1)\nprint(time.time() - t)\n";
        let mut listening =
            Command::new("python3").args(["-c", server]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = listening.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let seconds: f64 = inside("one", &["python3", "-c", client]).trim().parse().unwrap();
        listening.wait().unwrap();
        assert!(seconds > 1.0, "{seconds}");
    });
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf; tool: tc; root"]
fn check_names_a_missing_limit_and_gc_removes_limits_of_invalid_containers() {
    on_a_node(|lab| {
        let (one, result) = wired(lab, "one");
        let after = config(&result, limited());
        let shaped = lab.add("bandwidth", one, &after);
        let (host, ifb) = (&shaped["interfaces"][1]["name"], &shaped["interfaces"][3]["name"]);
        testkit::run("tc", &["qdisc", "del", "dev", host.as_str().unwrap(), "root"]);
        assert!(lab.error("bandwidth", "CHECK", one, &after).details.contains("qdisc tbf"));
        lab.add(
            "bandwidth",
            Pod { netns: "one", ..one },
            &json!({"cniVersion": "1.0.0", "name": "net", "type": "bandwidth",
            "prevResult": result}),
        );
        let no_pod = Pod { container: "", ifname: "", netns: "" };
        let mut gc = json!({"cniVersion": "1.1.0", "name": "net", "type": "bandwidth"});
        gc["cni.dev/valid-attachments"] = json!([{"containerID": "one", "ifname": "eth0"}]);
        lab.call("bandwidth", "GC", no_pod, &gc);
        assert!(links().contains(&ifb.as_str().unwrap().to_owned()));
        gc["cni.dev/valid-attachments"] = json!([]);
        lab.call("bandwidth", "GC", no_pod, &gc);
        assert!(!links().contains(&ifb.as_str().unwrap().to_owned()));
    });
}

#[test]
fn rate_and_burst_come_together() {
    // cni-runtime.md section 5
    assert_eq!(limit("ingress", 0, 0).unwrap(), None);
    let good = limit("ingress", 10_000_000, 4_294_967_295).unwrap().unwrap();
    assert_eq!((good.rate_bytes, good.burst_bytes), (1_250_000, 536_870_911), "as containerd sends it");
    for (rate, burst) in
        [(1000, 0), (0, 1000), (1000, 8 * u64::from(u32::MAX)), (1000, u64::MAX), (7, 1000), (1000, 7)]
    {
        assert_eq!(limit("ingress", rate, burst).unwrap_err().code, 7, "{rate} {burst}");
    }
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf; tool: tc; root"]
fn an_add_that_is_repeated_sets_the_limits_again() {
    on_a_node(|lab| {
        let (one, result) = wired(lab, "one");
        let after = config(&result, limited());
        let first = lab.add("bandwidth", one, &after);
        let host = first["interfaces"][1]["name"].as_str().unwrap();
        let ifb = first["interfaces"][3]["name"].as_str().unwrap();
        let state = || {
            let filters = testkit::run("tc", &["filter", "show", "dev", host, "ingress"]);
            (qdiscs(host), qdiscs(ifb), filters.matches("mirred").count())
        };
        let before = state();
        let mut other = limited();
        other["EgressRate"] = 4_000_000.into();
        for limits in [limited(), other, limited()] {
            let again = lab.add("bandwidth", one, &config(&result, limits.clone()));
            assert_eq!(again["interfaces"][3]["name"], ifb);
            lab.call("bandwidth", "CHECK", one, &config(&result, limits));
            assert!(pings("one", "10.203.1.1"));
        }
        assert_eq!(state(), before, "one filter, which leads to the device that is there");
        assert_eq!(before.2, 1);
        lab.call("bandwidth", "DEL", one, &after);
        assert!(!links().contains(&ifb.to_owned()));
    });
}
