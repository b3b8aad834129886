//! The server with its data path, our plugin and a stock plugin's requests, on a real kernel:
//! cni-runtime.md sections 4 and 6.2, items 49 to 53, 62 to 64.

mod bench;
mod egress;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures_like::join_all;
use russet_cni_spec::{base64, code};
use russet_linux::NetNs;
use russet_testkit as testkit;
use serde_json::{Value, json};

use super::{DataPath, keep};
use crate::tenants::Action;
use bench::{Bench, conf, links, on_a_node, pings, post};
use russet_testkit::inside;

/// Waiting for many things at once.
mod futures_like {
    use tokio::task::JoinSet;

    /// Waits for all futures, in any order.
    pub async fn join_all<T: 'static>(
        work: impl IntoIterator<Item = impl Future<Output = T> + 'static>,
    ) -> Vec<T> {
        let mut all = JoinSet::new();
        for one in work {
            all.spawn_local(one);
        }
        all.join_all().await
    }
}

/// The capture of cni-runtime.md section 4.1, with complete IDs and one more of its 41 variables.
const RECORDED: &str = r#"{"env":{"CNI_ARGS":"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=ce3d8b63","CNI_COMMAND":"ADD","CNI_CONTAINERID":"ce3d8b63","CNI_IFNAME":"eth0","CNI_NETNS":"/var/run/netns/cni-7621","CNI_PATH":"/opt/cni/bin","HOME":"/root","PATH":"/usr/bin"},"config":"eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoib3BlbnNoaWZ0LXNkbiIsInR5cGUiOiJvcGVuc2hpZnQtc2RuIn0=","hostVeth":"veth93c4e628"}"#;
const RECORDED_REPLY: &str = r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.128.0.11/23","gateway":"10.128.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.128.0.1"},{"dst":"172.30.0.0/16","gw":"10.128.0.1"},{"dst":"10.128.0.0/14"},{"dst":"224.0.0.0/4"}],"dns":{}}"#;

/// Allocates nine addresses, so that the recorded one is next.
fn take_nine(bench: &Bench) {
    let dir = bench.path("var/lib/cni/networks/openshift-sdn");
    std::fs::create_dir_all(&dir).unwrap();
    for last in 2..=10 {
        std::fs::write(dir.join(format!("10.128.0.{last}")), format!("other{last}\r\neth0")).unwrap();
    }
}

/// Creates the veth that a stock plugin creates before its request.
fn stock_veth() {
    NetNs::create_named("cni-7621").unwrap();
    for command in
        ["link add veth93c4e628 mtu 1400 type veth peer name eth0 netns cni-7621", "link set veth93c4e628 up"]
    {
        testkit::run("ip", &command.split(' ').collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn a_recorded_stock_request_is_answered_byte_for_byte() {
    // cni-runtime.md section 4.1
    on_a_node(async |bench| {
        take_nine(&bench);
        let life = bench.serve().await;
        stock_veth();
        let (head, body) = bench.post(RECORDED).await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}\n{body}");
        assert!(head.to_lowercase().contains("content-type: application/json"), "{head}");
        assert_eq!(body, RECORDED_REPLY);
        let old = RECORDED.replace(
            "eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoib3BlbnNoaWZ0LXNkbiIsInR5cGUiOiJvcGVuc2hpZnQtc2RuIn0=",
            &base64::encode(br#"{"cniVersion":"0.2.0","name":"openshift-sdn","type":"openshift-sdn"}"#),
        );
        let del = old
            .replace(r#""CNI_COMMAND":"ADD""#, r#""CNI_COMMAND":"DEL""#)
            .replace(r#","hostVeth":"veth93c4e628""#, "");
        for _ in 0..2 {
            let (head, body) = bench.post(&del).await;
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.is_empty(), "{head}\n{body}");
        }
        assert_eq!(bench.addresses().len(), 9);
        NetNs::delete_named("cni-7621").unwrap();
        stock_veth();
        let (_, body) = bench.post(&old).await;
        let reply: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(reply["cniVersion"], "0.3.1", "the stock plugin reads nothing else: {body}");
        assert_eq!(reply["ips"][0]["address"], "10.128.0.12/23");
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn an_invalid_request_is_answered_with_400_and_a_text() {
    // cni-runtime.md section 6.2 item 49; section 4.1: transport
    on_a_node(async |bench| {
        let life = bench.serve().await;
        let mode = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(bench.socket()), 0o600);
        assert_eq!(mode(bench.socket().parent().unwrap().to_owned()), 0o700);
        let config = bench.socket().with_file_name("config.json");
        assert_eq!(
            std::fs::read_to_string(&config).unwrap(),
            r#"{"mtu":1400,"routableMTU":1350,"platformType":"AWS","serviceNetworkCIDR":"172.30.0.0/16"}"#
        );
        assert_eq!(
            (mode(config), mode(bench.path("etc/cni/net.d/80-openshift-network.conf"))),
            (0o444, 0o600)
        );
        for (key, expected) in [
            ("CNI_ARGS", "missing CNI_ARGS\n"),
            ("CNI_NETNS", "missing CNI_NETNS\n"),
            ("CNI_COMMAND", "unexpected or missing CNI_COMMAND\n"),
            ("hostVeth", "missing HostVeth\n"),
        ] {
            let mut request: Value = serde_json::from_str(RECORDED).unwrap();
            request.as_object_mut().unwrap().remove(key);
            request["env"].as_object_mut().unwrap().remove(key);
            let (head, body) = bench.post(&request.to_string()).await;
            assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
            assert!(head.to_lowercase().contains("content-type: text/plain"), "{head}");
            assert_eq!(body, expected);
        }
        let other =
            |line: &str| format!("{line} HTTP/1.1\r\nHost: dummy\r\nContent-Length: 0\r\n\r\n").into_bytes();
        assert!(bench.exchange(other("GET /")).await.0.starts_with("HTTP/1.1 405 "));
        assert!(bench.exchange(other("POST /x")).await.0.starts_with("HTTP/1.1 404 "));
        let (head, _) = bench.post(&" ".repeat(4 << 20)).await;
        assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
        // The veth does not exist: nothing is left, the address neither.
        NetNs::create_named("cni-7621").unwrap();
        let (head, body) = bench.post(RECORDED).await;
        assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("veth93c4e628"), "{head}\n{body}");
        // A namespace without an ID.
        let (head, body) = bench.post(&RECORDED.replace("=ns1;", "=nobody;")).await;
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        assert_eq!(body, "failed to find netid for namespace: nobody in vnid map\n");
        assert_eq!(bench.addresses(), Vec::<String>::new());
        assert_eq!(std::fs::read_dir(bench.path("run/russet/openshift-pods")).unwrap().count(), 0);
        let metrics = life.metrics();
        for line in [
            "openshift_sdn_vnid_not_found_errors 1",
            "openshift_sdn_pod_operations_errors{operation_type=\"setup\"} 2",
            "openshift_sdn_pod_ips 0",
        ] {
            assert!(metrics.lines().any(|it| it == line), "{line} in {metrics}");
        }
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn pods_of_a_tenant_reach_each_other_and_the_node_and_no_other_tenant() {
    // cni-runtime.md section 6.2 item 51 on one node; between nodes: overlay's tests
    on_a_node(async |bench| {
        let life = bench.serve().await;
        bench.add("ns1", "a").await;
        let b = bench.add("ns1", "b").await;
        let c = bench.add("ns2", "c").await;
        for to in [b.as_str(), "10.128.0.1", "192.0.2.11"] {
            assert!(pings("a", to).await, "{to}");
        }
        assert!(!pings("a", &c).await);
        bench.act("ns2", &Action::Join("ns1".parse().unwrap())).await;
        let joined = async { while !pings("a", &c).await {} };
        tokio::time::timeout(Duration::from_secs(30), joined)
            .await
            .expect("the pods that run are opened to each other");
        bench.act("ns2", &Action::Isolate).await;
        let isolated = async { while pings("a", &c).await {} };
        tokio::time::timeout(Duration::from_secs(30), isolated).await.expect("and closed again");
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn thirty_concurrent_adds_get_thirty_addresses_and_are_counted() {
    // cni-runtime.md section 6.2 item 50
    on_a_node(async |bench| {
        let life = bench.serve().await;
        let one = |index: usize| {
            let bench = Rc::clone(&bench);
            async move { bench.add("ns1", &format!("pod{index}")).await }
        };
        let addresses: BTreeSet<String> = join_all((0..30).map(one)).await.into_iter().collect();
        assert_eq!((addresses.len(), bench.addresses().len()), (30, 30));
        let metrics = life.metrics();
        for line in [
            "openshift_sdn_pod_ips 30",
            "openshift_sdn_pod_operations_latency_count{operation_type=\"setup\"} 30",
        ] {
            assert!(metrics.lines().any(|it| it == line), "{line} in {metrics}");
        }
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn a_restart_does_not_affect_pods_and_releases_addresses_of_removed_ones() {
    // cni-runtime.md section 6.2 item 52, and appendix A.5; another program than the agent asks the
    // runtime to stop a sandbox.
    on_a_node(async |bench| {
        let life = bench.serve().await;
        let a = bench.add("ns1", "a").await;
        let b = bench.add("ns1", "b").await;
        bench.add("ns1", "c").await;
        life.stop().await;
        assert!(pings("a", &b).await, "without a server");
        inside("c", &["ip", "link", "del", "eth0"]);
        let before = links();
        let life = bench.serve().await;
        assert_eq!((links(), bench.addresses().len()), (before, 2), "c's address is free again");
        assert!(pings("a", &b).await && pings("b", &a).await);
        let result = bench.plugin("ADD", ("ns1", "a"), &conf()).await.unwrap_err();
        assert!(result.msg.contains("already exists"), "{result}");
        // The runtime deletes what is gone, and what runs.
        for pod in ["c", "a", "a"] {
            bench.plugin("DEL", ("ns1", pod), &conf()).await.unwrap();
        }
        assert_eq!(bench.addresses(), [b]);
        life.stop().await;
        // The machine was restarted: no pod has an address any more, whatever the files say.
        std::fs::write(bench.path("var/lib/russet/openshift-boot"), "another").unwrap();
        testkit::run("ip", &["netns", "del", "b"]);
        testkit::eventually(Duration::from_secs(10), || links().is_empty());
        std::fs::remove_dir_all(bench.path("run/russet/openshift-pods")).unwrap();
        let life = bench.serve().await;
        assert_eq!(bench.addresses(), Vec::<String>::new());
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn a_hundred_adds_converge_after_a_kill_when_they_are_retried() {
    // cni-runtime.md section 6.2 item 64
    on_a_node(async |bench| {
        let life = bench.serve().await;
        let shared = Rc::clone(&bench);
        let one = move |index: usize| {
            let bench = Rc::clone(&shared);
            async move {
                let name = format!("pod{index}");
                NetNs::create_named(&name).unwrap();
                (index, bench.plugin("ADD", ("ns1", &name), &conf()).await)
            }
        };
        let all = tokio::task::spawn_local(join_all((0..100).map(one)));
        while bench.addresses().len() < 20 {
            tokio::task::yield_now().await;
        }
        life.kill().await;
        let done = all.await.unwrap();
        let failed: Vec<usize> =
            done.iter().filter(|(_, result)| result.is_err()).map(|(index, _)| *index).collect();
        assert!(!failed.is_empty());
        for (index, result) in &done {
            if let Err(error) = result {
                assert_eq!(error.code, code::TRY_AGAIN_LATER, "pod{index}: {error}");
            }
        }
        let life = bench.serve().await;
        for index in failed {
            let name = format!("pod{index}");
            bench.plugin("DEL", ("ns1", &name), &conf()).await.unwrap();
            bench
                .plugin("ADD", ("ns1", &name), &conf())
                .await
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let addresses: BTreeSet<String> = (0..100)
            .map(|index| inside(&format!("pod{index}"), &["ip", "-4", "-o", "address", "show", "eth0"]))
            .map(|text| text.split_whitespace().nth(3).unwrap().to_owned())
            .collect();
        assert_eq!((addresses.len(), bench.addresses().len(), links().len()), (100, 100, 100));
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn gc_removes_what_is_not_valid_and_a_second_gc_nothing() {
    // cni-runtime.md section 6.2 item 63; CHECK beside it
    on_a_node(async |bench| {
        let life = bench.serve().await;
        bench.add("ns1", "a").await;
        let b = bench.add("ns1", "b").await;
        let mut config = conf();
        let result =
            json!({"cniVersion": "1.1.0", "ips": [{"address": format!("{b}/23"), "gateway": "10.128.0.1"}]});
        config["prevResult"] = result;
        bench.plugin("CHECK", ("ns1", "b"), &config).await.unwrap();
        let mut valid = conf();
        valid["cni.dev/valid-attachments"] = json!([{"containerID": "b", "ifname": "eth0"}]);
        for _ in 0..2 {
            bench.plugin("GC", ("ns1", "b"), &valid).await.unwrap();
            assert_eq!((bench.addresses(), links().len()), (vec![b.clone()], 1));
        }
        bench.plugin("CHECK", ("ns1", "b"), &config).await.unwrap();
        bench.plugin("STATUS", ("ns1", "b"), &conf()).await.unwrap();
        std::fs::remove_file(bench.path(&format!("var/lib/cni/networks/openshift-sdn/{b}"))).unwrap();
        let error = bench.plugin("CHECK", ("ns1", "b"), &config).await.unwrap_err();
        assert!(error.msg.contains("failed to find address"), "{error}");
        life.stop().await;
        let error = bench.plugin("STATUS", ("ns1", "b"), &conf()).await.unwrap_err();
        assert_eq!(error.code, code::NOT_AVAILABLE, "cni-runtime.md section 6.2 item 62: no listener");
    });
}

#[test]
#[ignore = "kernel: macvlan, veth, vxlan, nf_tables, bpf; root"]
fn a_privileged_pod_gets_a_macvlan0_and_reaches_its_node_beside_it() {
    // cni-runtime.md section 4.3: assign-macvlan
    on_a_node(async |bench| {
        let api = russet_kube::testing::Server::start();
        let kubeconfig = bench.path("kubeconfig");
        api.write_kubeconfig(&kubeconfig);
        bench.settings.borrow_mut().kubeconfig = Some(kubeconfig);
        for (name, privileged, value) in [
            ("router", true, "true"),
            ("named", true, "nic0"),
            ("plain", true, "false"),
            ("poor", false, "true"),
            ("lost", true, "nic9"),
        ] {
            api.put(json!({"kind": "Pod", "metadata": {"name": name, "namespace": "ns1", "annotations": {"pod.network.openshift.io/assign-macvlan": value}},
                "spec": {"containers": [{"name": "c", "securityContext": {"privileged": privileged}}]}}));
        }
        testkit::run("ip", &["address", "add", "198.51.100.7/24", "dev", "nic0"]);
        let life = bench.serve().await;
        for name in ["router", "named"] {
            bench.add("ns1", name).await;
            let link = inside(name, &["ip", "-d", "link", "show", "macvlan0"]);
            assert!(link.contains("UP") && link.contains("macvlan mode private"), "{link}");
            let routes = inside(name, &["ip", "route"]);
            for dst in ["192.0.2.11", "198.51.100.7"] {
                let wanted = format!("{dst} via 10.128.0.1 dev eth0 proto 114 mtu 1350");
                assert!(routes.lines().any(|line| line.trim() == wanted), "{wanted} in {routes}");
            }
            assert!(routes.contains("172.30.0.0/16 via 10.128.0.1"), "{routes}");
            assert!(pings(name, "192.0.2.11").await, "the node, beside its macvlan");
        }
        bench.add("ns1", "plain").await;
        assert!(!inside("plain", &["ip", "link"]).contains("macvlan0"));
        for (name, expected) in [
            ("poor", "pod has \"pod.network.openshift.io/assign-macvlan\" annotation but is not privileged"),
            ("lost", "\"nic9\" is neither 'true' nor the name of a local network interface"),
            ("gone", "pods \"gone\" not found"),
        ] {
            NetNs::create_named(name).unwrap();
            let error = bench.plugin("ADD", ("ns1", name), &conf()).await.unwrap_err();
            assert!(error.msg.contains(expected), "{name}: {error}");
            assert_eq!(inside(name, &["ip", "-o", "link"]).lines().count(), 1, "{name}");
        }
        assert_eq!((bench.addresses().len(), links().len()), (3, 3), "nothing of them is left");
        bench.plugin("DEL", ("ns1", "router"), &conf()).await.unwrap();
        assert_eq!(inside("router", &["ip", "-o", "link"]).lines().count(), 1, "neither eth0 nor macvlan0");
        life.stop().await;
    });
}

/// Regression: the agent's only thread waited for the holder of the data path.
#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn the_agents_thread_does_not_wait_for_a_locked_data_path() {
    on_a_node(async |bench| {
        let settings = crate::data_path::Settings {
            cluster: vec!["10.128.0.0/14".parse().unwrap()],
            service: None,
            own: "10.128.0.0/23".parse().unwrap(),
            node_ip: "192.0.2.11".parse().unwrap(),
            underlay: 2,
            mtu: 1400,
            vxlan_port: 4789,
        };
        let path = Arc::new(Mutex::new(DataPath::open(settings).unwrap()));
        let (held, holding) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let busy = Arc::clone(&path);
        let worker = std::thread::spawn(move || {
            let _at_work = busy.lock().unwrap();
            held.send(()).unwrap();
            released.recv_timeout(Duration::from_secs(20)).is_ok()
        });
        holding.recv().unwrap();
        let others = async {
            for _ in 0..10 {
                tokio::task::spawn_blocking(|| ()).await.unwrap();
            }
            release.send(())
        };
        let (problem, sent) = tokio::join!(keep(&path, &bench.repair), others);
        assert!(worker.join().unwrap() && sent.is_ok(), "the thread had other things to do");
        assert_eq!(problem.borrow().as_deref(), Some("not yet"));
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn forwarding_is_enabled_before_the_server_serves() {
    // That it stays enabled: the agent's tests of controllers.
    on_a_node(async |bench| {
        let read = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        testkit::run("sysctl", &["-w", "net.ipv4.ip_forward=0"]);
        assert_eq!(*bench.published.borrow(), None, "there is no server yet");
        let life = bench.begin();
        assert_eq!(*bench.published.borrow(), Some(Some("not yet".to_owned())));
        life.stop().await;
        let life = bench.serve().await;
        assert_eq!((read().trim(), &*bench.published.borrow()), ("1", &Some(None)));
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn the_request_of_a_plugin_that_disconnects_while_it_waits_is_not_started() {
    // cni-runtime.md appendix A.6: a client that disconnects cancels a waiting request
    on_a_node(async |bench| {
        use std::io::{Read as _, Write as _};
        use std::net::Shutdown;
        let life = bench.serve().await;
        // The first request waits 8 s for its namespace's ID; the second one, for the same sandbox,
        // waits behind it.
        NetNs::create_named("cni-7621").unwrap();
        let first = RECORDED.replace("=ns1;", "=late;");
        let waiting = bench.post(&first);
        let second = async {
            while bench.addresses().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let mut stream = std::os::unix::net::UnixStream::connect(bench.socket()).unwrap();
            stream.write_all(&post(RECORDED)).unwrap();
            // Requests are read in order: when this one is answered, the second one waits for its
            // lock.
            let (head, _) = bench.exchange(b"GET / HTTP/1.1\r\nHost: dummy\r\n\r\n".to_vec()).await;
            assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
            // The client closes its side, and the server closes the connection: then it has
            // noticed.
            stream.shutdown(Shutdown::Write).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let read = move || stream.read_to_end(&mut Vec::new());
            assert_eq!(tokio::task::spawn_blocking(read).await.unwrap().unwrap(), 0);
            testkit::run("ip", &SECOND_VETH.split(' ').collect::<Vec<_>>());
            testkit::run("ip", &["link", "set", "veth93c4e628", "up"]);
            bench.act("late", &Action::Create).await;
        };
        let ((head, body), ()) = tokio::join!(waiting, second);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}\n{body}");
        assert_eq!(bench.addresses().len(), 1);
        let metrics = life.metrics();
        let line = "openshift_sdn_pod_operations_latency_count{operation_type=\"setup\"} 1";
        assert!(metrics.lines().any(|it| it == line), "{line} in {metrics}");
        life.stop().await;
    });
}

const SECOND_VETH: &str = "link add veth93c4e628 type veth peer name eth0 netns cni-7621";
