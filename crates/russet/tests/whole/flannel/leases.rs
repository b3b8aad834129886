//! Leases as etcd and other nodes see them.

use std::time::Duration;

use russet_testkit::eventually;
use rustix::process::Signal;

use super::lab::{Lab, PREFIX};
use crate::node::TIMEOUT;

/// flannel.md sections 3.1, 3.2 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t01_and_t04_a_first_node_gets_one_key_of_a_day_that_says_what_flannel_says() {
    let mut lab = Lab::new(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"VxLan"}}"#);
    let host = lab.running(&[]);
    assert_eq!(lab.lease_keys(), [host.lease_key()]);
    let third: u8 = host.subnet().split('.').nth(2).unwrap().parse().unwrap();
    assert!((1..=100).contains(&third), "{third}");
    assert!((86_380..=86_400).contains(&lab.ttl(&host)), "{}", lab.ttl(&host));
    let link = host.ip(&["-o", "link", "show", "flannel.1"]);
    let mac = link.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let expected = format!(
        r#"{{"PublicIP":"10.77.0.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
    );
    assert_eq!(lab.value(&host), expected);
    assert_eq!(host.env("FLANNEL_MTU"), "1450");
}

/// flannel.md sections 3.2, 6.1 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t02_without_a_backend_it_is_udp_whose_device_lives_as_long_as_the_daemon() {
    let mut lab = Lab::new(r#"{"Network":"10.5.0.0/16"}"#);
    let mut host = lab.running(&[]);
    assert_eq!(lab.value(&host), r#"{"PublicIP":"10.77.0.11","PublicIPv6":null}"#);
    assert_eq!(host.env("FLANNEL_MTU"), "1472");
    let device = host.ip(&["-o", "address", "show", "flannel0"]);
    assert!(device.contains(&format!("{}/32", host.subnet().split('-').next().unwrap())), "{device}");
    host.routes_to("10.5.0.0-16");
    host.ip(&["link", "del", "flannel0"]);
    host.routes_to("10.5.0.0-16");
    host.stop();
    assert!(!host.ip(&["-o", "link"]).contains("flannel0"));
}

/// flannel.md sections 3.4, 10 and section 12 item 2: Russet renews by keep-alive, so that the lease stays the
/// same, and only its time changes.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd; takes 70 s"]
fn t17_a_margin_of_1439_minutes_renews_every_minute() {
    let mut lab = Lab::vxlan();
    let host = lab.running(&["-subnet-lease-renew-margin=1439"]);
    let before = lab.record(&host);
    eventually(Duration::from_secs(75), || lab.ttl(&host) < 86_345);
    eventually(Duration::from_secs(75), || lab.ttl(&host) > 86_390);
    let after = lab.record(&host);
    assert_eq!((&before["lease"], &before["key"]), (&after["lease"], &after["key"]));
}

/// flannel.md sections 3.6 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t19_and_t20_a_deleted_lease_ends_its_daemon_with_0_and_peers_forget_it() {
    let mut lab = Lab::vxlan();
    let (near, mut far) = (lab.running(&[]), lab.running(&[]));
    near.routes_to(&far.subnet());
    lab.fabric.etcdctl(&["del", &far.lease_key()]);
    assert_eq!(far.ends().code(), Some(0), "{}", far.log());
    let gone = far.subnet().replace('-', "/");
    eventually(TIMEOUT, || !near.ip(&["route"]).contains(&gone) && !near.fdb().contains("10.77.0.12"));
    assert!(far.ip(&["route"]).contains("dev flannel.1"), "its own data path stays");
    // The next daemon takes the subnet again.
    let before = far.subnet();
    far.start();
    assert_eq!(far.subnet(), before);
    near.routes_to(&before);
}

/// flannel.md section 12 item 8.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn a_lost_lease_is_taken_again_when_the_operator_wants_that() {
    let mut lab = Lab::vxlan();
    let mut host = lab.running(&["-lease-lost=reacquire", "-ip-masq"]);
    let before = host.subnet();
    lab.fabric.etcdctl(&["del", &host.lease_key()]);
    eventually(TIMEOUT, || lab.lease_keys() == [host.lease_key()]);
    assert!(host.runs());
    assert_eq!(host.subnet(), before);
    // Another node has it now: the daemon takes another one and reprograms everything. Repeated,
    // for it may happen while the kernel is being programmed.
    for round in 0..5_u8 {
        let before = host.subnet();
        let leases = lab.lease_keys().len();
        host.signal(Signal::STOP);
        lab.put_peer(&before, &format!("10.77.0.9{round}"), &format!("02:00:00:00:00:9{round}"));
        host.signal(Signal::CONT);
        eventually(TIMEOUT, || host.subnet() != before && lab.lease_keys().len() == leases + 1);
        host.routes_to(&before);
        let own = host.subnet().replace('-', "/");
        eventually(TIMEOUT, || host.nft(&["list", "ruleset"]).contains(&own));
        assert!(host.runs());
    }
}

/// flannel.md section 3.3: a node whose public address changed is another node to its peers; its
/// earlier lease expires.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn a_changed_public_address_is_published_after_a_restart() {
    let mut lab = Lab::vxlan();
    let near = lab.running(&[]);
    let mut far = lab.running(&[]);
    near.routes_to(&far.subnet());
    far.stop();
    far.ip(&["address", "del", "10.77.0.12/24", "dev", "eth0"]);
    far.ip(&["address", "add", "10.77.0.52/24", "dev", "eth0"]);
    far.ip(&["route", "replace", "default", "via", "10.77.0.1"]);
    far.start();
    assert!(lab.value(&far).contains(r#""PublicIP":"10.77.0.52""#), "{}", lab.value(&far));
    near.routes_to(&far.subnet());
    eventually(TIMEOUT, || near.fdb().contains("dst 10.77.0.52"));
}

/// flannel.md sections 3.6 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t23_and_t24_garbage_is_skipped_and_bursts_are_programmed() {
    let mut lab = Lab::vxlan();
    let host = lab.running(&[]);
    lab.fabric.put(&format!("{PREFIX}/subnets/nonsense"), "{");
    lab.fabric.put(&format!("{PREFIX}/subnets/10.5.250.0-24"), "not json");
    for number in 151..201 {
        lab.put_peer(
            &format!("10.5.{number}.0-24"),
            &format!("10.77.1.{number}"),
            &format!("02:00:00:00:00:{number:02x}"),
        );
    }
    let routes = || host.ip(&["route"]).lines().filter(|line| line.contains("dev flannel.1")).count();
    eventually(TIMEOUT, || routes() == 50);
    for number in 151..201 {
        lab.fabric.etcdctl(&["del", &format!("{PREFIX}/subnets/10.5.{number}.0-24")]);
    }
    eventually(TIMEOUT, || routes() == 0);
}
