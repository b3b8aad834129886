//! Starting: flags, interfaces, exit codes, health, readiness.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use russet_testkit::{eventually, run};

use super::lab::{Lab, PREFIX};
use crate::node::{SOON, TIMEOUT, logged_after};

fn usage(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_russet")).arg("flanneld").args(arguments).output().unwrap();
    assert!(output.stdout.is_empty(), "flannel says everything on standard error");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// flannel.md section 1.1.
#[test]
fn help_version_and_mistakes_are_told_on_standard_error_with_exit_code_0() {
    for (arguments, expected) in [
        (&["-h"][..], "Usage: flanneld"),
        (&["--help"], "Usage: flanneld"),
        (&["-version"], "(Russet)"),
        (&["-nonsense"], "flag provided but not defined: -nonsense"),
        (&["-subnet-lease-renew-margin=abc"], "invalid value \"abc\""),
    ] {
        let (code, text) = usage(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

/// flannel.md sections 1.3 and 10.
#[test]
fn t18_a_margin_out_of_range_ends_the_daemon_with_1() {
    for margin in ["0", "1440", "-5"] {
        let (code, text) = usage(&[&format!("-subnet-lease-renew-margin={margin}")]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("between 1 and 1439"), "{text}");
    }
}

/// Called by its own name it is flannel's daemon, too.
#[test]
fn the_executable_called_flanneld_is_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("flanneld");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_russet"), &name).unwrap();
    let output = Command::new(name).arg("-h").output().unwrap();
    assert!(output.status.success() && output.stderr.starts_with(b"Usage: flanneld"), "{output:?}");
}

/// flannel.md sections 1.5, 2 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t03_a_backend_that_is_unknown_or_refused_ends_the_daemon_and_leaves_no_key() {
    let mut lab = Lab::new("");
    let mut host = lab.host(&[]);
    for (backend, reason) in [
        ("{}", "unknown backend type"),
        (r#"{"Type":"teleport"}"#, "unknown backend type"),
        (r#"{"Type":"ipsec"}"#, "backend ipsec is not supported: "),
        (r#"{"Type":"gce"}"#, "backend gce is not supported: "),
        (
            r#"{"Type":"extension","PreStartupCommand":"touch /run/by-etcd"}"#,
            "start it with -allow-extension",
        ),
    ] {
        let config = format!(r#"{{"Network":"10.5.0.0/16","Backend":{backend}}}"#);
        lab.fabric.put(&format!("{PREFIX}/config"), &config);
        assert_eq!(host.run_to_end().code(), Some(1), "{backend}");
        assert!(host.log().contains(reason), "{backend}: {}", host.log());
    }
    lab.fabric.put(&format!("{PREFIX}/config"), r#"{"EnableIPv4":false}"#);
    assert_eq!(host.run_to_end().code(), Some(1));
    assert!(lab.lease_keys().is_empty());
    assert!(!host.env_path().exists());
}

/// flannel.md sections 1.4 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t34_to_t36_the_interface_is_chosen_as_flannel_chooses_it() {
    let mut lab = Lab::vxlan();
    let mut without = lab.host(&["-public-ip=203.0.113.7"]);
    assert_eq!(without.run_to_end().code(), Some(1), "the address is on no interface");
    let natted = lab.running(&["-iface=nowhere", "-iface=eth0", "-public-ip=203.0.113.7"]);
    assert!(lab.value(&natted).contains(r#""PublicIP":"203.0.113.7""#));
    let device = natted.ip(&["-d", "link", "show", "flannel.1"]);
    assert!(device.contains("local 10.77.0.12"), "{device}");
    let mut alone = lab.host(&[]);
    alone.ip(&["route", "del", "default"]);
    assert_eq!(alone.run_to_end().code(), Some(1), "no default route, no -iface");
    assert!(alone.log().contains("-iface"), "{}", alone.log());
    assert_eq!(lab.lease_keys(), [natted.lease_key()]);
    lab.fabric.put(&format!("{PREFIX}/config"), r#"{"Network":"10.6.0.0/16","Backend":{"Type":"host-gw"}}"#);
    let mut far = lab.host(&["-iface=eth0", "-public-ip=203.0.113.8"]);
    assert_eq!(far.run_to_end().code(), Some(1), "peers could not route to it");
}

/// flannel.md sections 1.2, 1.5, 7.4 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t53_health_is_told_from_the_start_and_readiness_once_the_subnet_is_written() {
    let mut lab = Lab::new("");
    let mut host = lab.host(&["-healthz-ip=127.0.0.1", "-healthz-port=8081"]);
    let notify_socket = host.node.path("notify");
    let service_manager = UnixDatagram::bind(&notify_socket).unwrap();
    let mut daemon = host.command().env("NOTIFY_SOCKET", &notify_socket).spawn().unwrap();
    let netns = host.node.netns().try_clone().unwrap();
    let ask = |path: &str| {
        let mut stream = netns.with(|| TcpStream::connect("127.0.0.1:8081")).unwrap().ok()?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        Some(text)
    };
    eventually(TIMEOUT, || ask("/healthz").is_some_and(|answer| answer.ends_with("flanneld is running")));
    assert!(ask("/readyz").unwrap().starts_with("HTTP/1.1 503 "));
    assert!(lab.lease_keys().is_empty());
    eventually(TIMEOUT, || host.log().contains("no network config"));
    lab.fabric.put(&format!("{PREFIX}/config"), r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#);
    let mut inbox = [0; 64];
    service_manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let length = service_manager.recv(&mut inbox).unwrap();
    assert_eq!(&inbox[..length], b"READY=1");
    assert!(host.env_path().exists(), "readiness is announced when pods can be attached");
    assert!(ask("/readyz").unwrap().ends_with("flanneld is ready"));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    host.spawn();
    eventually(TIMEOUT, || ask("/healthz").is_some());
    assert_eq!(host.run_second(), Some(1), "the place of the health server is taken");
}

/// flannel.md section 1.5.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn waiting_for_the_configuration_is_logged_and_a_signal_ends_it() {
    let mut lab = Lab::new("");
    let mut host = lab.host(&[]);
    host.spawn();
    eventually(TIMEOUT, || host.log().contains("no network config"));
    host.stop();
    lab.fabric.kill_etcd();
    let before = host.log();
    host.spawn();
    // An etcd that refuses connections is an error at once; a silent one has not answered yet when
    // the line is written.
    eventually(TIMEOUT, || host.log().contains("refused"));
    host.stop();
    let log = host.log();
    let log = log.strip_prefix(&before).unwrap_or(&log);
    assert!(logged_after(log, "refused") < SOON, "{log}");
    let first = log.lines().find(|line| line.contains("refused")).unwrap().to_owned();
    assert!(first.contains("http://10.77.0.1:2379"), "{first}");
    let root = run("ip", &["-n", host.node.netns_name(), "-o", "link"]);
    assert_eq!(root.lines().count(), 2, "nothing was made: {root}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd with the v2 API"]
fn data_of_old_daemons_behind_the_v2_api_are_named_with_both_ways_out() {
    let mut lab = Lab::new("");
    let config = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
    lab.fabric.etcdctl_v2(&["set", &format!("{PREFIX}/config"), config]);
    let mut host = lab.host(&[]);
    host.spawn();
    eventually(TIMEOUT, || host.log().contains("left one at /coreos.com/network/config behind the v2 API"));
    host.stop();
    let (log, url) = (host.log(), "http://10.77.0.1:2379");
    assert!(log.contains("-etcd-api=v2"), "{log}");
    assert!(log.contains(&format!("russet migrate flannel-v2 --from {url} --to etcd:{url}")), "{log}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn a_device_that_stands_in_the_way_is_replaced_and_the_log_says_why() {
    let mut lab = Lab::vxlan();
    let mut host = lab.host(&["-iface=eth0"]);
    host.ip(&["link", "add", "flannel.1", "type", "bridge"]);
    host.start();
    assert!(host.log().contains("flannel.1: it is no vxlan device"), "{}", host.log());
    host.stop();
    host.ip(&["link", "del", "flannel.1"]);
    let other = ["type", "vxlan", "id", "1", "dev", "eth0", "local", "10.77.0.11", "dstport", "4789"];
    host.ip(&[&["link", "add", "flannel.1"][..], &other].concat());
    host.start();
    assert!(host.log().contains("flannel.1: port 4789, not 8472"), "{}", host.log());
    let lines = host.log().lines().filter(|line| line.contains("a device was replaced")).count();
    assert_eq!(lines, 2, "{}", host.log());
    // No Rust debug output, and no number in place of a name.
    assert!(!host.log().contains("Some(") && !host.log().contains(" dev 1"), "{}", host.log());
}
