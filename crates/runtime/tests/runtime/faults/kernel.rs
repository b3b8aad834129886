//! The same steps with Debian's plugins, and faults around a chain: the disk of the cache is full,
//! the configuration has changed, the namespace is gone.

use std::fs;
use std::time::Duration;

use russet_cni_spec::code;
use russet_runtime::{Attachment, Runtime};
use russet_testkit::{eventually, run};
use serde_json::json;

use super::{Machine, STEPS};
use crate::Lab;
use crate::node::{files, held, links, nat_rules, on_a_node, parse, pod};

const KINDS: [&str; 3] = ["bridge", "portmap", "bandwidth"];
const CONFLIST: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[
 {"type":"bridge","bridge":"br0","isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.204.0.0/24"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true}},
 {"type":"bandwidth","capabilities":{"bandwidth":true}}]}"#;

/// A pod for which each of the three plugins makes something.
fn demanding(container_id: &str) -> Attachment {
    let mut attachment = pod(container_id, container_id);
    let mapping = json!([{"hostPort": 18081, "containerPort": 80, "protocol": "tcp"}]);
    let bandwidth = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000});
    attachment.capability_args.insert("portMappings".into(), mapping);
    attachment.capability_args.insert("bandwidth".into(), bandwidth);
    attachment
}

/// Objects of attachments: addresses, interfaces, rules and entries of this cache.
fn left_with(cache: &str) -> Vec<String> {
    let mut left = links();
    left.retain(|name| name != "br0");
    left.extend(held("net"));
    left.extend(nat_rules("CNI-DN-"));
    left.extend(files(&format!("{cache}/results")));
    left
}

fn left() -> Vec<String> {
    left_with("/var/lib/cni")
}

/// How a namespace is removed, and the namespace's path in the DEL afterwards.
type Going = fn(&mut Attachment);

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf, iptables; root; tool: the Go plugins, ip, iptables-save"]
fn one_del_leaves_nothing_after_any_fault_of_a_debian_plugin() {
    // cni-runtime.md section 0 item 12, section 2.2 and appendix A.5; 6.2 items 45 to 47 for the runtime
    on_a_node(&["host-local"], |lab| {
        for kind in KINDS {
            lab.faulty(kind, &lab.debians(kind));
        }
        let usual = Lab { dir: lab.dir.clone(), runtime: lab.usual() };
        let machine = Machine {
            lab: &usual,
            list: parse(CONFLIST),
            kinds: KINDS,
            attachment: demanding("c1"),
            deadlines: [Duration::from_secs(60), Duration::from_secs(4)],
            left: &left,
        };
        assert_eq!(machine.take_all(), STEPS);
    });
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf, iptables, tmpfs; root; tool: the Go plugins, ip, iptables-save"]
fn a_full_disk_undoes_the_add_and_a_freed_one_accepts_the_next() {
    // cni-runtime.md appendix A.5
    on_a_node(&[&KINDS[..], &["host-local"]].concat(), |lab| {
        fs::create_dir("/run/cache").unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=64k", "tmpfs", "/run/cache"]);
        let runtime = Runtime { cache_dir: "/run/cache".into(), ..lab.runtime.clone() };
        let (list, attachment) = (parse(CONFLIST), demanding("c1"));
        // The directory can be made, the file too; its contents do not fit.
        fs::create_dir("/run/cache/results").unwrap();
        let room = fs::write("/run/cache/ballast", vec![1; 1 << 20]);
        assert_eq!(room.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        let error = runtime.add(&list, &attachment).unwrap_err();
        assert_eq!(error.to_cni().code, code::IO, "{error}");
        assert!(
            error.to_string().starts_with("cache the result in /run/cache/results/net-c1-eth0: "),
            "{error}"
        );
        assert_eq!(left_with("/run/cache"), [""; 0]);
        runtime.del(&list, &attachment).unwrap();
        fs::remove_file("/run/cache/ballast").unwrap();
        runtime.add(&list, &attachment).unwrap();
        assert_eq!((files("/run/cache/results"), held("net").len()), (vec!["net-c1-eth0".to_owned()], 1));
        // A full disk does not prevent a DEL.
        fs::write("/run/cache/ballast", vec![1; 1 << 20]).unwrap_err();
        runtime.del(&list, &attachment).unwrap();
        assert_eq!(left_with("/run/cache"), [""; 0]);
    });
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf, iptables; root; tool: the Go plugins, ip, iptables-save"]
fn a_renamed_network_is_detached_by_its_earlier_configuration() {
    // cni-runtime.md section 3.4, what containerd does instead; appendix A.5
    on_a_node(&[&KINDS[..], &["host-local"]].concat(), |lab| {
        let (runtime, attachment) = (lab.usual(), demanding("c1"));
        runtime.add(&parse(CONFLIST), &attachment).unwrap();
        let made = left().len();
        assert_eq!(
            made,
            9,
            "two links, an address, a chain of three rules, the jump to it, an entry: {:?}",
            left()
        );
        // Same name, another chain; then another name.
        let other =
            r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"br9","ipam":{}}]}"#;
        runtime.del(&parse(other), &attachment).unwrap();
        assert_eq!(left(), [""; 0]);
        runtime.add(&parse(CONFLIST), &attachment).unwrap();
        let renamed = parse(&CONFLIST.replace("\"net\"", "\"renamed\""));
        runtime.del(&renamed, &attachment).unwrap();
        assert_eq!(
            left().len(),
            made - 1,
            "a DEL of the new name knows nothing of the old one's: {:?}",
            left()
        );
        assert_eq!(runtime.del_cached(&attachment.container_id).unwrap().entries.len(), 1);
        assert_eq!(left(), [""; 0]);
    });
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf, iptables; root; tool: the Go plugins, ip, umount, iptables-save"]
fn an_unmounted_namespace_is_detached_without_a_trace() {
    // cni-runtime.md section 6.2 item 22; section 7, kubernetes#57465 and cilium#40459
    on_a_node(&[&KINDS[..], &["host-local"]].concat(), |lab| {
        let (runtime, list) = (lab.usual(), parse(CONFLIST));
        let gone: [(&str, Going); 4] = [
            ("unmounted", |it| drop(run("umount", &[it.netns.to_str().unwrap()]))),
            ("removed", |it| drop(run("ip", &["netns", "del", it.container_id.as_str()]))),
            ("named no more", |it| {
                run("ip", &["netns", "del", it.container_id.as_str()]);
                it.netns = "".into();
            }),
            ("unnamed while it lives", |it| it.netns = "".into()),
        ];
        for (index, (what, go)) in gone.into_iter().enumerate() {
            let mut attachment = demanding(&format!("c{index}"));
            runtime.add(&list, &attachment).unwrap();
            go(&mut attachment);
            for _ in 0..2 {
                runtime.del(&list, &attachment).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            if what == "unnamed while it lives" {
                run("ip", &["netns", "del", attachment.container_id.as_str()]);
            }
            // A plugin without the namespace leaves the pod's end to the kernel, which deletes it
            // with the namespace, some time.
            let mut rest = left();
            rest.retain(|it| !it.starts_with("veth"));
            assert_eq!(rest, [""; 0], "{what}");
            eventually(Duration::from_secs(30), || left().is_empty());
        }
    });
}
