//! The daemons under the restrictions of their systemd units, which the foreign plugins and programs that they start inherit. systemd itself does not run
//! here: `hardened/under_unit.py` applies what the units say about capabilities, privileges, system calls, address families and namespaces.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use russet_linux::{NetNs, process};
use russet_testkit::cri::{Cri, Pod, Sandbox};
use russet_testkit::{Process, bound, copy_program, eventually, require_tool, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::flannel::Lab;
use crate::node::{TIMEOUT, TestNode};
use crate::reference_plugins::call;
use crate::sandboxes::pings;

const GO_PLUGINS: &str = "/usr/lib/cni";

/// A command for `program` under the restrictions of a unit in packaging/.
fn under_unit(unit: &str, program: &str) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(require_tool("python3"));
    command.arg(here.join("tests/whole/hardened/under_unit.py"));
    command.arg(here.join("../../packaging/systemd").join(unit)).arg(program);
    command
}

/// A line of `/proc/PID/status`.
fn status(pid: u32, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
    line.unwrap().trim().to_owned()
}

fn is_restricted(pid: u32) -> bool {
    let capabilities = u64::from_str_radix(&status(pid, "CapBnd"), 16).unwrap();
    status(pid, "NoNewPrivs") == "1" && status(pid, "Seccomp") == "2" && capabilities.count_ones() < 10
}

/// `russet cri` under its unit, with plugins of others.
struct Server {
    cri: Cri,
    server: Child,
    node: TestNode,
}

impl Server {
    /// `iptables`: the variant that plugins find under that name. `subnet`: the first three bytes of pods' addresses.
    fn start(iptables: &str, subnet: &str, plugins: &Value) -> Self {
        let node = TestNode::without_agent(&[]);
        for directory in ["net.d", "path"] {
            std::fs::create_dir(node.path(directory)).unwrap();
        }
        for name in ["iptables", "ip6tables"] {
            let variant = format!("/usr/sbin/{}", iptables.replace("iptables", name));
            symlink(variant, node.path("path").join(name)).unwrap();
        }
        let mut list = json!({"cniVersion": "1.0.0", "name": "foreign", "plugins": plugins});
        list["plugins"][0]["ipam"] = json!({"type": "host-local", "dataDir": node.path("addresses"),
            "ranges": [[{"subnet": format!("{subnet}.0/24")}]], "routes": [{"dst": "0.0.0.0/0"}]});
        std::fs::write(node.path("net.d/10-foreign.conflist"), list.to_string()).unwrap();
        let inside = |args: &[&str]| run("ip", &[&["-n", node.netns_name()], args].concat());
        inside(&["link", "add", "parent0", "type", "veth", "peer", "name", "parent1"]);
        ["parent0", "parent1"].iter().for_each(|name| drop(inside(&["link", "set", name, "up"])));
        let mut command = under_unit("russet-cri.service", env!("CARGO_BIN_EXE_russet"));
        command.arg("cri").arg("--root").arg(node.root()).arg("--cni-conf-dir").arg(node.path("net.d"));
        command.args(["--cni-bin-dir", GO_PLUGINS]).env_remove("NOTIFY_SOCKET");
        command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", node.path("path").display()));
        let log = std::fs::File::create(node.path("cri.log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        process::in_netns(&mut command, node.netns()).unwrap();
        let cri = Cri::new(&node.path("run/russet/cri.sock")).unwrap();
        let server = Self { cri, server: command.spawn().unwrap(), node };
        eventually(TIMEOUT, || server.cri.is_ready());
        assert!(is_restricted(server.server.id()));
        server
    }

    fn pod(&self, name: &str, host_ports: &[(u16, u16)]) -> (String, Sandbox) {
        let pod = Pod { host_ports: host_ports.to_vec(), ..Pod::named(name) };
        let id = self.cri.run(&pod).unwrap_or_else(|error| panic!("{name}: {error}"));
        let sandbox = self.cri.sandbox(&id).unwrap();
        (id, sandbox)
    }
}

/// Two pods of the chain reach each other, and nothing is left of them.
fn carries(iptables: &str, subnet: &str, plugins: &Value, check: impl FnOnce(&TestNode, &Sandbox)) {
    let server = Server::start(iptables, subnet, plugins);
    let ((first, a), (second, b)) = (server.pod("a", &[(8080, 80)]), server.pod("b", &[]));
    assert!(pings(&a, &b.addresses[0]) && pings(&b, &a.addresses[0]), "{plugins}: {a:?} {b:?}");
    check(&server.node, &a);
    for id in [first, second] {
        server.cri.stop(&id).unwrap();
        server.cri.remove(&id).unwrap();
    }
    let held = std::fs::read_dir(server.node.path("addresses/foreign")).unwrap();
    let held = held.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    assert_eq!(held.filter(|name| name.starts_with(subnet)).count(), 0, "{plugins}");
}

/// A client on the node gets through the host port to the pod.
fn host_port_leads_to(node: &TestNode, gateway: &str, pod: &Sandbox) {
    let listener =
        NetNs::open(&pod.netns).unwrap().with(|| bound(|| TcpListener::bind("0.0.0.0:80"))).unwrap();
    let accepted = std::thread::spawn(move || listener.accept().unwrap().1);
    let address = format!("{gateway}:8080").parse().unwrap();
    node.netns().with(|| TcpStream::connect_timeout(&address, TIMEOUT).unwrap()).unwrap();
    accepted.join().unwrap();
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.node.path("cri.log")).unwrap_or_default();
            eprintln!("--- log of russet cri\n{log}");
        }
        for id in self.cri.sandboxes().unwrap_or_default() {
            let _ = self.cri.remove(&id);
        }
        let _ = kill_process(Pid::from_child(&self.server), Signal::TERM);
        let _ = self.server.wait();
        let netns = self.node.path("run/russet/cri/netns");
        let _ = Command::new("umount").arg(netns).stderr(Stdio::null()).status();
    }
}

#[test]
#[ignore = "root, kernel: network namespaces, seccomp, bridge, tbf; tool: python3, systemd-analyze, libseccomp, iptables of both variants, ping, Debian's Go plugins"]
fn foreign_bridges_with_host_ports_and_bandwidth_work_under_the_unit_of_russet_cri() {
    let plugins = json!([
        {"type": "bridge", "bridge": "foreign0", "isGateway": true, "ipMasq": true, "hairpinMode": true},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "ingressRate": 100_000_000, "ingressBurst": 100_000_000, "egressRate": 100_000_000,
            "egressBurst": 100_000_000},
        {"type": "firewall", "backend": "iptables"},
        {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
    ]);
    for iptables in ["iptables-nft", "iptables-legacy"] {
        carries(iptables, "10.91.1", &plugins, |node, pod| {
            host_port_leads_to(node, "10.91.1.1", pod);
            let rates = run("tc", &["-n", node.netns_name(), "qdisc"]);
            assert!(rates.contains("qdisc tbf"), "{rates}");
        });
    }
}

#[test]
#[ignore = "root, kernel: network namespaces, seccomp, macvlan; tool: python3, systemd-analyze, libseccomp, ping, Debian's Go plugins"]
fn other_foreign_main_plugins_work_under_the_unit_of_russet_cri() {
    let macvlan = json!([{"type": "macvlan", "master": "parent0", "mode": "bridge"}]);
    carries("iptables-nft", "10.91.2", &macvlan, |_, _| ());
    let ptp = json!([{"type": "ptp", "ipMasq": true}]);
    carries("iptables-nft", "10.91.3", &ptp, |_, _| ());
}

#[test]
#[ignore = "root, kernel: network namespaces, seccomp, nf_tables; tool: python3, systemd-analyze, libseccomp, ping, the Go plugin host-local"]
fn an_agent_under_its_unit_attaches_pods_and_runs_a_foreign_ipam_plugin() {
    let mut node = TestNode::without_agent(&[]);
    node.start_agent_by(under_unit("russet-agent.service", env!("CARGO_BIN_EXE_russet")));
    assert!(is_restricted(node.agent_pid()));
    let pods = [node.pod(), node.pod()];
    let addresses = pods.each_ref().map(|pod| node.add(pod).addresses());
    let target = addresses[1][0].split('/').next().unwrap();
    let ping = ["netns", "exec", &pods[0].netns_name, "ping", "-c", "1", "-W", "5", target];
    run("ip", &ping);
    pods.iter().for_each(|pod| assert_eq!(node.del(pod).status, 0));
    // A name that is none of ours, so that the agent starts the executable.
    let bin = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_russet"), bin.path().join("bridge")).unwrap();
    copy_program(&Path::new(GO_PLUGINS).join("host-local"), &bin.path().join("their-addresses"));
    let config = node.config(json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": "foreign0", "isGateway": true,
        "ipam": {"type": "their-addresses", "dataDir": node.path("addresses"), "ranges": [[{"subnet": "10.91.6.0/24"}]]}}));
    let pod = node.pod();
    let added = call(&node, bin.path(), "bridge", "ADD", &pod, &config);
    assert_eq!(added.result()["ips"][0]["address"], "10.91.6.2/24", "{}", node.log());
    assert!(node.path("addresses/testnet/10.91.6.2").exists());
    assert_eq!(call(&node, bin.path(), "bridge", "DEL", &pod, &config).status, 0);
    assert!(!node.path("addresses/testnet/10.91.6.2").exists());
    assert!(!node.log().contains("Operation not permitted"), "{}", node.log());
}

#[test]
#[ignore = "root, kernel: network namespaces, seccomp, vxlan, nf_tables; tool: python3, systemd-analyze, libseccomp, etcd, iptables"]
fn flanneld_under_its_unit_writes_its_subnet_with_either_firewall_and_shows_life() {
    const WATCHDOG_US: &str = "3000000";
    for firewall in ["-firewall=nft", "-firewall=iptables"] {
        let mut lab = Lab::vxlan();
        let mut host = lab.host(&["-iface=eth0", "-ip-masq", firewall]);
        let inbox = host.node.path("notify");
        let systemd = UnixDatagram::bind(&inbox).unwrap();
        systemd.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut command =
            host.command_by(under_unit("russet-flanneld.service", env!("CARGO_BIN_EXE_russet")));
        command.env("NOTIFY_SOCKET", &inbox).env("WATCHDOG_USEC", WATCHDOG_US);
        host.adopt(Process::start(&mut command));
        eventually(TIMEOUT, || {
            assert!(host.runs(), "{}", host.log());
            host.env_path().exists()
        });
        let pid = host.pid().as_raw_nonzero().get().unsigned_abs();
        assert!(is_restricted(pid));
        let hear = || {
            let mut state = [0; 32];
            let length = systemd.recv(&mut state).unwrap();
            String::from_utf8(state[..length].to_vec()).unwrap()
        };
        // Signs of life begin before the lease, and go on after it.
        while hear() != "READY=1" {}
        assert_eq!(hear(), "WATCHDOG=1", "{}", host.log());
        // Its part of the kernel, too, and not only the file.
        assert!(host.ip(&["-d", "link", "show", "flannel.1"]).contains("vxlan id 1"));
        assert!(!host.log().contains("not permitted"), "{}", host.log());
        host.signal(Signal::TERM);
        while hear() != "STOPPING=1" {}
        assert!(host.ends().success(), "{}", host.log());
    }
}
