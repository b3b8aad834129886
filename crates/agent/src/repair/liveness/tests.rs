//! The decision for each kind of evidence (calico-ipam.md sections 1.4 and 5.1).

use super::*;

/// 2026-01-02 04:00:00 UTC.
fn now() -> SystemTime {
    time::parse_rfc3339("2026-01-02T04:00:00Z").unwrap()
}

const TAKEN: &str = "2026-01-02 03:04:05.678901234 +0000 UTC";

/// What our plugin writes for eth0 of container c1 on network net.
fn ours() -> Vec<(&'static str, &'static str)> {
    vec![("interface", "eth0"), ("node", "node-a"), ("timestamp", TAKEN)]
}

/// What a Go peer writes.
fn gos() -> Vec<(&'static str, &'static str)> {
    vec![("namespace", "default"), ("node", "node-a"), ("pod", "web-0"), ("timestamp", TAKEN)]
}

fn entry(handle: &str, members: &[(&str, &str)]) -> Held {
    let secondary = members.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Held {
        address: "10.1.0.17".parse().unwrap(),
        block: "10.1.0.16/29".parse().unwrap(),
        attribute: Attribute {
            handle_id: Some(handle.to_owned()),
            secondary: Some(secondary),
            ..Attribute::default()
        },
        sequence_number: 7,
    }
}

#[derive(Default)]
struct World {
    machine: Machine,
    endpoints: Vec<Endpoint>,
    tunnels: BTreeSet<IpAddr>,
    requested: BTreeSet<String>,
}

impl World {
    fn verdict(&self, entry: &Held) -> Option<Alive> {
        let Self { machine, endpoints, tunnels, requested } = self;
        let grace = Duration::from_secs(600);
        check_leaked(entry, &Evidence { machine, endpoints, tunnels, requested, now: now(), grace }).err()
    }
}

fn world(change: impl FnOnce(&mut World)) -> World {
    let mut world = World::default();
    change(&mut world);
    world
}

fn link(network: &str, container: &str, ifname: &str) -> Owner {
    Owner::new(&format!("{network}/{container}/{ifname}").parse().unwrap())
}

fn cached(owner: Option<(&str, &str)>, address: &str) -> Attached {
    let owner = owner.map(|(container, ifname)| format!("net/{container}/{ifname}").parse().unwrap());
    Attached { path: "/cache/x".into(), owner, addresses: vec![address.parse().unwrap()] }
}

#[test]
fn an_entry_without_evidence_is_leaked_whichever_program_allocated_it() {
    let nothing = World::default();
    assert_eq!(nothing.verdict(&entry("net.c1", &ours())), None);
    assert_eq!(nothing.verdict(&entry("net.c1", &gos())), None);
    // Peers before 3.18 write no time, and plugins before v1.11.2 use the pod as the handle.
    assert_eq!(nothing.verdict(&entry("default.web-0", &gos()[..3])), None);
    // A container outside of Kubernetes.
    assert_eq!(nothing.verdict(&entry("net.c1", &[("node", "node-a"), ("timestamp", TAKEN)])), None);
    // calico#3940: the part of a handle after a CR is garbage.
    assert_eq!(nothing.verdict(&entry("net.c1\r\neth0", &gos())), None);
}

#[test]
fn each_kind_of_evidence_keeps_an_entry() {
    let ours = entry("net.c1", &ours());
    let address = ours.address;
    type Change = fn(&mut World);
    let witnesses: [(&str, Change); 12] = [
        ("a link of ours", |w| w.machine.links.push(link("net", "c1", "eth0"))),
        ("a link on another network", |w| w.machine.links.push(link("other", "c1", "eth0"))),
        ("a link with a hashed alias", |w| w.machine.links.push(link("net", "c1", "eth0"))),
        ("a route", |w| _ = w.machine.routes.insert("10.1.0.17".parse().unwrap())),
        ("an interface somewhere", |w| {
            _ = w.machine.interfaces.insert("10.1.0.17".parse().unwrap(), "/run/netns/x".into())
        }),
        ("a cached attachment", |w| w.machine.cached.push(cached(Some(("c1", "eth0")), "10.9.9.9"))),
        ("a cached address", |w| w.machine.cached.push(cached(None, "10.1.0.17"))),
        ("an endpoint with the address", |w| {
            let nets = vec!["10.1.0.17/32".parse().unwrap()];
            w.endpoints.push(Endpoint { key: "/e".into(), container: None, nets });
        }),
        ("an endpoint with a prefix around it", |w| {
            let nets = vec!["10.1.0.16/30".parse().unwrap()];
            w.endpoints.push(Endpoint { key: "/e".into(), container: None, nets });
        }),
        ("an endpoint with the container", |w| {
            w.endpoints.push(Endpoint { key: "/e".into(), container: Some("c1".into()), nets: vec![] });
        }),
        ("a tunnel", |w| _ = w.tunnels.insert("10.1.0.17".parse().unwrap())),
        ("a request meanwhile", |w| _ = w.requested.insert("c1".into())),
    ];
    for (name, change) in witnesses {
        assert!(world(change).verdict(&ours).is_some(), "{name}");
        // The same evidence does not apply to another address of another container.
        let mut other = entry("net.c2", &super::tests::ours());
        other.address = "10.1.0.18".parse().unwrap();
        if name != "an endpoint with a prefix around it" {
            assert_eq!(world(change).verdict(&other), None, "{name}");
        }
    }
    assert_eq!(ours.address, address);
}

#[test]
fn a_link_of_another_interface_keeps_entries_without_an_interface() {
    let eth1 = world(|w| w.machine.links.push(link("net", "c1", "eth1")));
    assert_eq!(eth1.verdict(&entry("net.c1", &ours())), None);
    assert!(matches!(eth1.verdict(&entry("net.c1", &gos())), Some(Alive::Link(_))));
    let cache = world(|w| w.machine.cached.push(cached(Some(("c1", "eth1")), "10.9.9.9")));
    assert_eq!(cache.verdict(&entry("net.c1", &ours())), None);
    assert!(matches!(cache.verdict(&entry("net.c1", &gos())), Some(Alive::Cached(_))));
}

#[test]
fn a_link_with_a_hashed_alias_keeps_entries_that_may_match() {
    let network = "n".repeat(200);
    let container = "c".repeat(100);
    let hashed = world(|w| w.machine.links.push(link(&network, &container, "eth0")));
    assert!(hashed.machine.links[0].container().is_none(), "the alias has no room for the names");
    let handle = format!("{network}.{container}");
    assert!(hashed.verdict(&entry(&handle, &ours())).is_some());
    // Without an interface the hash cannot be compared.
    assert!(hashed.verdict(&entry(&handle, &gos())).is_some());
    assert_eq!(hashed.verdict(&entry(&format!("{network}.other"), &ours())), None);
    assert_eq!(hashed.verdict(&entry("net.c1", &gos())), None);
}

#[test]
fn a_container_id_that_is_the_suffix_of_another_does_not_match() {
    let world = world(|w| {
        w.machine.links.push(link("net", "1", "eth0"));
        w.requested.insert("1".into());
    });
    assert_eq!(world.verdict(&entry("net.c1", &ours())), None);
    assert!(world.verdict(&entry("net.c.1", &ours())).is_some(), "the dot may belong to either name");
}

#[test]
fn entries_younger_than_the_grace_period_or_of_unknown_age_are_kept() {
    let nothing = World::default();
    let aged = |taken: &str| {
        let members = [("interface", "eth0"), ("node", "node-a"), ("timestamp", taken)];
        nothing.verdict(&entry("net.c1", &members))
    };
    assert_eq!(aged("2026-01-02 03:50:00 +0000 UTC"), None, "ten minutes to the second");
    for young in [
        "2026-01-02 03:50:00.000000001 +0000 UTC",
        "2026-01-02 04:30:00 +0000 UTC",
        "2026-01-02 03:00:00 +0100 CET",
        "2026-01-02T03:00:00Z",
        "yesterday",
        "",
    ] {
        assert_eq!(aged(young), Some(Alive::Young(young.to_owned())), "{young:?}");
    }
}

#[test]
fn entries_that_belong_to_no_pod_are_never_leaked() {
    let nothing = World::default();
    let with = |name: &'static str, value: &'static str| {
        let mut members = gos();
        members.push((name, value));
        members
    };
    let not_a_pods = [
        entry("vxlan-tunnel-addr-node-a.example.com", &[("node", "node-a"), ("type", "vxlanTunnelAddress")]),
        entry("ipip-tunnel-addr-node-a.example.com", &[("node", "node-a"), ("timestamp", TAKEN)]),
        entry("lb-abc.d", &with("type", "serviceLoadBalancer")),
        entry("net.vmi.default.vm-1", &gos()),
        entry("net.c1", &with("vmi-name", "vm-1")),
        entry("windows-reserved-ipam-handle", &[("note", "windows host rsvd")]),
        entry("net.c1", &[("node", "node-a")]),
        entry("reserved by hand", &gos()),
    ];
    for entry in not_a_pods {
        let verdict = nothing.verdict(&entry);
        assert!(matches!(verdict, Some(Alive::NotAPods(_))), "{:?}: {verdict:?}", entry.attribute);
    }
    let mut cooling = entry("net.c1", &gos());
    cooling.attribute.released_at = Some("2026-01-02T03:00:00Z".into());
    assert!(nothing.verdict(&cooling).is_some());
    let mut migrating = entry("net.c1", &gos());
    migrating.attribute.alternate_owner.insert("pod".into(), "b".into());
    assert!(nothing.verdict(&migrating).is_some());
    let mut nobodys = entry("net.c1", &gos());
    nobodys.attribute.handle_id = None;
    assert!(nothing.verdict(&nobodys).is_some());
}
