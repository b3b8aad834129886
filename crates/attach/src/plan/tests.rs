//! The plan's text for the shapes that matter.

use super::*;
use crate::attachment::{Pod, PodRoutes};

fn attachment(dialect: Dialect, ifname: &str, addresses: &[&str]) -> Attachment {
    let pod = Pod { namespace: "shop".into(), name: "web-0".into() };
    Attachment {
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        ..Attachment::new(dialect, format!("net1/abc123/{ifname}").parse().unwrap(), Some(pod))
    }
}

#[test]
fn a_dual_stack_pod_is_wired_in_seven_steps() {
    let text = plan(&attachment(Dialect::Native, "eth0", &["10.1.0.5", "fd00::5"])).unwrap().to_string();
    let wanted = "\
russet:net1/abc123/eth0, routes of protocol 114
create veth
  node: russa4fc3c48bd8 mac ee:ee:ee:ee:ee:ee mtu 1500 alias russet:net1/abc123/eth0
  pod: eth0 mac ee:a7:b5:0b:be:94 mtu 1500
sysctls of the node
  net/ipv6/conf/russa4fc3c48bd8/accept_ra = 0 if present
  net/ipv4/neigh/russa4fc3c48bd8/proxy_delay = 0
  net/ipv4/conf/russa4fc3c48bd8/proxy_arp = 1
  net/ipv4/conf/russa4fc3c48bd8/forwarding = 1
  net/ipv4/conf/russa4fc3c48bd8/rp_filter = 1
  net/ipv6/conf/russa4fc3c48bd8/disable_ipv6 = 0
  net/ipv6/conf/russa4fc3c48bd8/accept_dad = 0
  net/ipv6/conf/russa4fc3c48bd8/proxy_ndp = 1
  net/ipv6/conf/russa4fc3c48bd8/forwarding = 1
sysctls of the pod
  net/ipv6/conf/all/disable_ipv6 = 0
  net/ipv6/conf/default/disable_ipv6 = 0
  net/ipv6/conf/lo/disable_ipv6 = 0
  net/ipv6/conf/eth0/disable_ipv6 = 0
  net/ipv6/conf/eth0/accept_dad = 0
  net/ipv6/conf/all/forwarding = 0
  net/ipv4/ip_forward = 0
batch of the pod
  link up
  address 10.1.0.5/32
  address fd00::5/128
  neighbour 169.254.1.1 at ee:ee:ee:ee:ee:ee, permanent
  neighbour fe80::ecee:eeff:feee:eeee at ee:ee:ee:ee:ee:ee, permanent
  route 169.254.1.1/32 on the link
  route 0.0.0.0/0 via 169.254.1.1
  route ::/0 via fe80::ecee:eeff:feee:eeee
gate
batch of the node
  neighbour 10.1.0.5 at ee:a7:b5:0b:be:94, permanent
  neighbour fd00::5 at ee:a7:b5:0b:be:94, permanent
  link up
  route 10.1.0.5/32 on the link
  route fd00::5/128 on the link
settle
";
    assert_eq!(text, wanted);
}

#[test]
fn calicos_dialect_differs_in_prefix_protocol_and_one_sysctl() {
    // calico-cni.md sections 3.1, 3.4 and 3.5
    let native = plan(&attachment(Dialect::Native, "eth0", &["10.1.0.5"])).unwrap();
    let calico = plan(&attachment(Dialect::Calico, "eth0", &["10.1.0.5"])).unwrap();
    assert_eq!((native.protocol, calico.protocol), (114, 3));
    assert_eq!((calico.host_name.as_str(), calico.ifname.as_str()), ("calia4fc3c48bd8", "eth0"));
    let text = calico.to_string().replace("cali", "russ").replace("protocol 3", "protocol 114");
    assert_eq!(text.replace("route_localnet", "rp_filter"), native.to_string());
}

#[test]
fn an_ipv4_pod_needs_no_ipv6() {
    let text = plan(&attachment(Dialect::Native, "eth0", &["10.1.0.5"])).unwrap().to_string();
    let v6: Vec<_> = text.lines().filter(|line| line.contains("ipv6") || line.contains("::")).collect();
    assert_eq!(v6, ["  net/ipv6/conf/russa4fc3c48bd8/accept_ra = 0 if present"]);
}

#[test]
fn custom_routes_replace_the_default() {
    // calico-cni.md section 5.1, oracle 32
    let routes = PodRoutes::Only(vec!["10.96.0.0/12".parse().unwrap()]);
    let text = plan(&Attachment { routes, ..attachment(Dialect::Native, "eth0", &["10.1.0.5"]) });
    let text = text.unwrap().to_string();
    let routes: Vec<_> = text.lines().filter(|line| line.starts_with("  route")).collect();
    let wanted = [
        "  route 169.254.1.1/32 on the link",
        "  route 10.96.0.0/12 via 169.254.1.1",
        "  route 10.1.0.5/32 on the link",
    ];
    assert_eq!(routes, wanted);
}

#[test]
fn routes_of_a_second_interface_stand_behind_those_of_the_first() {
    let text = plan(&attachment(Dialect::Native, "net1", &["10.1.0.6"])).unwrap().to_string();
    assert!(text.contains("  route 0.0.0.0/0 via 169.254.1.1 metric 2048\n"), "{text}");
    assert!(text.contains("  route 169.254.1.1/32 on the link metric 2048\n"), "{text}");
    assert!(text.contains("  route 10.1.0.6/32 on the link\n"), "{text}");
    // Its own address answers through it.
    let table = rules::table(&"net1".parse().unwrap());
    assert!((727_300_000..727_365_536).contains(&table));
    assert!(text.contains(&format!("  route 0.0.0.0/0 via 169.254.1.1 table {table}\n")), "{text}");
    assert!(text.contains(&format!("  rule from 10.1.0.6 to table {table}\n")), "{text}");
}

#[test]
fn the_gate_is_before_the_link_that_opens_the_path() {
    // ARCHITECTURE.md, invariant 4
    for addresses in [&["10.1.0.5"][..], &["fd00::5"], &["10.1.0.5", "fd00::5"], &[]] {
        let plan = plan(&attachment(Dialect::Native, "eth0", addresses)).unwrap();
        let gate = plan.steps.iter().position(|step| *step == Step::Gate).unwrap();
        let opens = plan.steps.iter().position(
            |step| matches!(step, Step::Batch { side: Side::Host, ops } if ops.contains(&Op::LinkUp)),
        );
        assert_eq!(opens, Some(gate + 1));
    }
}
