//! The peers that our devices should have.

use super::*;
use crate::flannel::{Backend, Networks};

fn options(mode: Mode) -> Wireguard {
    Wireguard {
        port: 51820,
        port_v6: 51821,
        mtu: None,
        psk: None,
        keepalive_s: 25,
        mode,
        key_file: PathBuf::new(),
    }
}

fn rules(options: &Wireguard, v4: &str, v6: &str) -> Rules {
    Rules {
        backend: Backend::Wireguard(Box::new(options.clone())),
        underlay: Underlay {
            ifindex: 2,
            name: "eth0".parse().unwrap(),
            mtu: 1500,
            v4: v4.parse().ok(),
            v6: v6.parse().ok(),
        },
        networks: Networks { v4: "10.5.0.0/16".parse().ok(), v6: "fd10:5::/48".parse().ok() },
        own: ["10.5.1.0/24", "fd10:5:0:1::/64"].map(|net| net.parse().ok()),
        mac: [None, None],
        tunnel: None,
    }
}

/// Node `number` with the key of all `number`s.
fn peer(number: u8, v4: &str, v6: &str) -> Peer {
    let end = |port| {
        let public_key = key::text(&Key([number; 32]));
        Some(WireguardEnd { public_key, port })
    };
    Peer {
        subnet: format!("10.5.{number}.0/24").parse().ok(),
        subnet_v6: format!("fd10:5:0:{number:x}::/64").parse().ok(),
        public_ip: v4.parse().unwrap(),
        public_ipv6: v6.parse().ok(),
        mac: [None, None],
        wireguard: [end(None), end(Some(700))],
    }
}

/// Device, endpoint and networks of each peer.
fn shown(mode: Mode, own: [&str; 2], peers: &[Peer]) -> Vec<String> {
    let options = options(mode);
    let (wanted, refused) =
        wanted(&options, [Some(Key([1; 32])); 2], &rules(&options, own[0], own[1]), peers.iter());
    let refused = refused.iter().map(|refusal| format!("{} {}", refusal.subject, refusal.reason.label()));
    let line = |number: usize, peer: &wire::Peer| {
        let nets: Vec<String> = peer.allowed.iter().map(ToString::to_string).collect();
        format!("{number} {} {}", peer.endpoint.unwrap(), nets.join(" "))
    };
    let peers = wanted
        .iter()
        .enumerate()
        .flat_map(|(number, device)| device.values().map(move |peer| line(number, peer)).collect::<Vec<_>>());
    peers.chain(refused).collect()
}

#[test]
fn each_family_has_a_device_or_both_share_one_over_the_more_reachable_address() {
    // flannel.md section 6.5
    let dual = [peer(2, "192.0.2.2", "2001:db8::2")];
    let (private, public) = (["10.0.0.1", "fd00::1"], ["10.0.0.1", "2001:db8::1"]);
    let separate = ["0 192.0.2.2:51820 10.5.2.0/24", "1 [2001:db8::2]:700 fd10:5:0:2::/64"];
    assert_eq!(shown(Mode::Separate, private, &dual), separate);
    let both = |endpoint: &str| vec![format!("0 {endpoint} 10.5.2.0/24 fd10:5:0:2::/64")];
    // The last family's port counts, as does its key.
    assert_eq!(shown(Mode::V4, private, &dual), both("192.0.2.2:700"));
    assert_eq!(shown(Mode::V6, private, &dual), both("[2001:db8::2]:700"));
    assert_eq!(shown(Mode::Auto, private, &dual), both("192.0.2.2:700"));
    let inside = [peer(2, "10.0.0.2", "2001:db8::2")];
    assert_eq!(shown(Mode::Auto, public, &inside), both("[2001:db8::2]:700"));
    assert_eq!(shown(Mode::Auto, private, &inside), both("10.0.0.2:700"));
    let v6_only = [peer(2, "0.0.0.0", "fd00::2")];
    assert_eq!(shown(Mode::Auto, private, &v6_only), both("[fd00::2]:700"));
}

#[test]
fn a_subnet_belongs_to_its_newest_lease_and_a_node_may_have_several() {
    let old = peer(2, "192.0.2.2", "");
    let anew = Peer { wireguard: peer(9, "192.0.2.2", "").wireguard, ..old.clone() };
    let moved = Peer { subnet: "10.5.7.0/24".parse().ok(), ..anew.clone() };
    let v4 = |peers: &[Peer]| {
        let peers: Vec<Peer> = peers.iter().map(|peer| Peer { subnet_v6: None, ..peer.clone() }).collect();
        shown(Mode::Separate, ["10.0.0.1", ""], &peers)
    };
    assert_eq!(v4(&[old.clone(), anew.clone()]), ["0 192.0.2.2:51820 10.5.2.0/24"]);
    assert_eq!(v4(&[anew, moved]), ["0 192.0.2.2:51820 10.5.2.0/24 10.5.7.0/24"]);
}

#[test]
fn a_node_has_as_many_subnets_as_fit_into_a_request() {
    let subnets = (0..=wire::ALLOWED_MAX).map(|number| format!("10.5.{}.0/24", 100 + number).parse().ok());
    let mut peers: Vec<Peer> =
        subnets.map(|subnet| Peer { subnet, subnet_v6: None, ..peer(2, "192.0.2.2", "") }).collect();
    let again = peers[0].clone();
    peers.push(again);
    let options = options(Mode::Separate);
    let (wanted, refused) = wanted(&options, [None, None], &rules(&options, "10.0.0.1", ""), peers.iter());
    assert_eq!(wanted[0][&Key([2; 32])].allowed.len(), wire::ALLOWED_MAX);
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(refused, ["block 10.5.164.0/24 is not programmed: the node has 64 others, which is the most"]);
}

#[test]
fn changes_that_the_kernel_refused_are_sent_again() {
    let options = options(Mode::Separate);
    let of = |peers: &[Peer]| {
        wanted(&options, [None, None], &rules(&options, "10.0.0.1", ""), peers.iter()).0[0].clone()
    };
    let (one, two) =
        (of(&[peer(2, "192.0.2.2", "")]), of(&[peer(3, "192.0.2.3", ""), peer(4, "192.0.2.4", "")]));
    let changes = difference(&two, &one);
    let mut accepted = one;
    // The second half was refused.
    record_accepted(&mut accepted, &changes[..2]);
    assert_eq!(difference(&two, &accepted), changes[2..]);
    record_accepted(&mut accepted, &changes[2..]);
    assert_eq!(accepted, two);
}

#[test]
fn forged_leases_are_refused() {
    let own = ["10.0.0.1", ""];
    let good = Peer { subnet_v6: None, ..peer(2, "192.0.2.2", "") };
    let end = |text: &str| [Some(WireguardEnd { public_key: text.to_owned(), port: None }), None];
    for (lie, reason) in [
        (Peer { subnet: "0.0.0.0/0".parse().ok(), ..good.clone() }, "outside_network"),
        (Peer { subnet: "10.5.0.0/16".parse().ok(), ..good.clone() }, "ours"),
        (Peer { public_ip: [10, 5, 2, 9].into(), ..good.clone() }, "covers"),
        (Peer { public_ip: [10, 0, 0, 1].into(), ..good.clone() }, "ours"),
        (Peer { wireguard: [None, None], ..good.clone() }, "no_tunnel_endpoint"),
        (Peer { wireguard: end("AAAA"), ..good.clone() }, "no_tunnel_endpoint"),
        (Peer { wireguard: peer(1, "192.0.2.2", "").wireguard, ..good.clone() }, "ours"),
    ] {
        let shown = shown(Mode::Separate, own, &[lie]);
        assert!(shown.len() == 1 && shown[0].ends_with(&format!(" {reason}")), "{shown:?}");
    }
}

#[test]
fn only_differences_are_sent_and_a_peer_that_moved_is_left_alone() {
    let options = options(Mode::Separate);
    let of = |peers: &[Peer]| {
        let rules = rules(&options, "10.0.0.1", "");
        wanted(&options, [None, None], &rules, peers.iter()).0[0].clone()
    };
    let accepted = of(&[peer(2, "192.0.2.2", ""), peer(3, "192.0.2.3", "")]);
    assert_eq!(difference(&accepted, &accepted), []);
    let now = of(&[peer(3, "192.0.2.30", ""), peer(4, "192.0.2.4", "")]);
    let changes = difference(&now, &accepted);
    let [Change::Remove(gone), Change::Put(moved), Change::Put(new)] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((gone.0[0], moved.key.0[0], new.key.0[0]), (2, 3, 4));

    let mut found: Vec<wire::Peer> = accepted.values().cloned().collect();
    found[0].endpoint = "198.51.100.1:1".parse().ok();
    assert_eq!(difference(&accepted, &settled(found.clone(), &accepted)), []);
    found[1].allowed.clear();
    found.push(wire::Peer { key: Key([8; 32]), ..found[0].clone() });
    let changes = difference(&accepted, &settled(found, &accepted));
    assert!(matches!(&changes[..], [Change::Remove(Key([8, ..])), Change::Put(_)]), "{changes:?}");
}
