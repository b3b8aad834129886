//! Plans lead from any state to the desired one, in a safe order, leave foreign objects alone, and
//! terminate.

use proptest::prelude::*;
use russet_addr::{Family, Mac};
use russet_netlink::{FdbEntry, Neighbour, Route, RouteKind};
use russet_overlay::{
    AffinityState, BATCH_MAX_OPS, Encapsulation, Inputs, Op, ROUTE_PROTOCOL, batches, desired, plan,
};

use crate::model::Kernel;
use crate::scene::{Build, alone, ip, net};

fn encapsulation() -> impl Strategy<Value = Encapsulation> {
    prop_oneof![
        Just(Encapsulation::None),
        Just(Encapsulation::Vxlan),
        Just(Encapsulation::VxlanCrossSubnet),
        Just(Encapsulation::Ipip)
    ]
}

fn state() -> impl Strategy<Value = AffinityState> {
    prop_oneof![
        4 => Just(AffinityState::Confirmed),
        1 => Just(AffinityState::Pending),
        1 => Just(AffinityState::PendingDeletion)
    ]
}

prop_compose! {
    /// Clusters of up to seven nodes that compete for few addresses and blocks, so that conflicts
    /// are common.
    fn inputs()(
        pools in (encapsulation(), encapsulation(), encapsulation()),
        nodes in prop::collection::vec((0..8u8, 0..2u8, prop::option::of(0..24u8), prop::option::of(0..6u8)), 0..7),
        claims in prop::collection::vec((0..8u8, 0..20u8, 26..33u8, state()), 0..20),
        borrowed in prop::collection::vec((0..8u8, any::<u8>()), 0..6),
        mtu in 1400..1600u32,
        probes in (prop::option::of(0..4u8), prop::option::of(0..4u8)),
    ) -> Inputs {
        let mut inputs = alone()
            .pool("10.1.0.0/17", pools.0)
            .pool("10.1.1.0/24", pools.1)
            .pool("fd10::/48", pools.2);
        inputs.underlay.mtu = mtu;
        inputs.probes = [probes.0.map(|last| ip(&format!("10.1.2.{last}"))), probes.1.map(|last| ip(&format!("fd10::9{last}")))];
        let node = |number: u8| if number == 0 { "me".to_owned() } else { format!("node-{number}") };
        for (number, subnet, tunnel, mac) in nodes.into_iter().filter(|node| node.0 > 0) {
            let tunnel4 = tunnel.map_or(String::new(), |tunnel| format!("10.1.{}.{}", tunnel % 4, tunnel));
            let tunnel6 = tunnel.map_or(String::new(), |tunnel| format!("fd10::{tunnel:x}"));
            inputs = inputs
                .v4(&node(number), &format!("192.168.{}.{}/24", 77 + subnet, number + 10), &tunnel4)
                .v6(&node(number), &format!("fd{}::{number:x}f/64", 77 + subnet), &tunnel6);
            if let Some(mac) = mac {
                inputs = inputs.mac(&node(number), &format!("02:00:00:00:00:{mac:02x}"));
            }
        }
        for (number, place, len, state) in claims {
            let block: russet_addr::IpNet = format!("10.1.{}.{}/{len}", place % 5, place * 12).parse().unwrap();
            inputs = inputs.claim_in(&node(number), &block.trunc().to_string(), state);
            let block: russet_addr::IpNet = format!("fd10::{:x}00/{}", place % 5, 96 + len).parse().unwrap();
            inputs = inputs.claim_in(&node(number), &block.trunc().to_string(), state);
        }
        for (number, last) in borrowed {
            inputs = inputs.borrows(&node(number), &format!("10.1.1.{last}"));
        }
        inputs
    }
}

/// Plans and applies once; the model refuses a wrong order.
fn converge(kernel: &mut Kernel, inputs: &Inputs) -> Result<(), TestCaseError> {
    let desired = desired(inputs);
    let steps = plan(&desired, &kernel.observe());
    prop_assert_eq!(batches(&steps.ops).map(<[Op]>::len).sum::<usize>(), steps.ops.len());
    for batch in batches(&steps.ops) {
        prop_assert!(batch.len() <= BATCH_MAX_OPS && !batch.is_empty());
        for op in batch {
            kernel.apply(op).map_err(|error| TestCaseError::fail(format!("{op:?}: {error}")))?;
        }
    }
    prop_assert!(kernel.equals(&desired), "{:#?}\n{:#?}", kernel.observe(), desired);
    let again = plan(&desired, &kernel.observe());
    prop_assert!(again.is_empty(), "a second plan is not empty: {again:?}");
    Ok(())
}

proptest! {
    #[test]
    fn any_state_leads_to_any_other(first in inputs(), second in inputs(), third in inputs()) {
        let mut kernel = Kernel::default();
        let pod = Route { protocol: ROUTE_PROTOCOL, ..Route::dev(net("10.1.0.200/32"), 9) };
        let foreign = Route { protocol: 12, ..Route::via(net("10.1.66.0/26"), ip("192.168.77.99")) };
        for route in [&pod, &foreign] {
            kernel.all.routes.insert(route.dst, vec![route.clone()]);
        }
        for inputs in [&first, &second, &third] {
            converge(&mut kernel, inputs)?;
            prop_assert_eq!(&kernel.all.routes[&pod.dst], &vec![pod.clone()]);
            prop_assert_eq!(&kernel.all.routes[&foreign.dst], &vec![foreign.clone()]);
        }
    }

    #[test]
    fn the_order_of_the_stores_answer_makes_no_difference(inputs in inputs(), seed in any::<u64>()) {
        let mut shuffled = inputs.clone();
        let turn = |len: usize| if len == 0 { 0 } else { usize::try_from(seed % len as u64).unwrap() };
        let by = turn(shuffled.affinities.len());
        shuffled.affinities.rotate_left(by);
        shuffled.borrowed.reverse();
        prop_assert_eq!(desired(&inputs), desired(&shuffled));
    }
}

/// Two nodes behind a tunnel, programmed.
fn programmed() -> (Inputs, Kernel) {
    let inputs = alone()
        .pool("10.1.0.0/16", Encapsulation::Vxlan)
        .v4("near", "192.168.77.2/24", "10.1.1.1")
        .claim("me", "10.1.0.0/26")
        .claim("near", "10.1.1.0/26");
    let mut kernel = Kernel::default();
    converge(&mut kernel, &inputs).unwrap();
    (inputs, kernel)
}

fn ops(inputs: &Inputs, kernel: &Kernel) -> Vec<Op> {
    plan(&desired(inputs), &kernel.observe()).ops
}

#[test]
fn addresses_for_probes_are_on_the_loopback_interface_and_others_stay_there() {
    let (mut inputs, mut kernel) = programmed();
    let (foreign, probe) = (ip("10.1.0.9"), ip("10.1.0.8"));
    kernel.all.loopback.insert(foreign, false);
    inputs.probes = [Some(probe), None];
    assert_eq!(ops(&inputs, &kernel), [Op::AddProbeAddress(probe)]);
    converge(&mut kernel, &inputs).unwrap();
    // Another one takes its place, and the old one is not there any more when that is.
    inputs.probes = [Some(ip("10.1.0.10")), None];
    assert_eq!(ops(&inputs, &kernel), [Op::DeleteProbeAddress(probe), Op::AddProbeAddress(ip("10.1.0.10"))]);
    converge(&mut kernel, &inputs).unwrap();
    inputs.probes = [None, None];
    converge(&mut kernel, &inputs).unwrap();
    assert_eq!(kernel.all.loopback, [(foreign, false)].into());
    // Whatever a store says: not what must stay reachable, and nothing outside of the pools.
    for hostile in ["192.168.77.1", "192.168.77.2", "127.0.0.1", "10.9.0.1"] {
        inputs.probes = [Some(ip(hostile)), None];
        assert_eq!(desired(&inputs).probes, [].into(), "{hostile}");
        assert!(!desired(&inputs).refusals.is_empty(), "{hostile}");
    }
}

#[test]
fn stale_entries_go_after_the_routes_that_used_them() {
    let (mut inputs, kernel) = programmed();
    inputs.nodes.remove(&crate::scene::name("near"));
    let ops = ops(&inputs, &kernel);
    assert!(matches!(ops[..], [Op::DeleteRoute(_), Op::DeleteNeighbour(_), Op::DeleteFdb(_)]), "{ops:?}");
}

#[test]
fn a_device_is_fixed_in_place_where_that_is_possible() {
    // calico-cni.md section 4.4, row "re-created when"
    let (inputs, mut kernel) = programmed();
    let device = kernel.all.devices.get_mut(&Family::V4).unwrap();
    (device.mtu, device.up, device.marked) = (1400, false, false);
    device.addresses = [net("10.1.0.77/32")].into();
    let ops = ops(&inputs, &kernel);
    let own = net("10.1.0.1/32");
    assert_eq!(
        ops,
        [
            Op::MarkDevice(Family::V4),
            Op::SetMtu(Family::V4, 1450),
            Op::RaiseDevice(Family::V4),
            Op::AddAddress(Family::V4, own),
            Op::DeleteAddress(Family::V4, net("10.1.0.77/32")),
        ]
    );
}

#[test]
fn a_device_is_recreated_where_it_must_be() {
    type Spoil = fn(&mut russet_overlay::FoundDevice);
    let spoils: [(Spoil, &str); 5] = [
        (|device| device.mac = Some(Mac([2, 0, 0, 0, 0, 1])), "MAC 02:00:00:00:00:01, not "),
        (|device| device.vxlan.as_mut().unwrap().vni = 1, "VNI 1, not 4096"),
        (|device| device.vxlan.as_mut().unwrap().port = 8472, "port 8472, not 4789"),
        (|device| device.vxlan.as_mut().unwrap().local = None, "local address none, not "),
        (|device| device.vxlan.as_mut().unwrap().parent = Some(77), "another underlay interface"),
    ];
    for (spoil, why) in spoils {
        let (inputs, mut kernel) = programmed();
        spoil(kernel.all.devices.get_mut(&Family::V4).unwrap());
        let ops = ops(&inputs, &kernel);
        assert!(matches!(ops[..2], [Op::DeleteDevice(..), Op::CreateDevice(..)]), "{ops:?}");
        let replaced = plan(&desired(&inputs), &kernel.observe()).replaced;
        let said = format!("vxlan.calico: {why}");
        assert!(replaced.len() == 1 && replaced[0].starts_with(&said), "{replaced:?}");
        converge(&mut kernel, &inputs).unwrap();
        assert_eq!(plan(&desired(&inputs), &kernel.observe()).replaced, Vec::<String>::new());
    }
}

#[test]
fn a_link_of_another_kind_with_our_name_is_left_alone() {
    let (inputs, mut kernel) = programmed();
    kernel.all = Default::default();
    let (inputs_before, programmed) = (inputs, programmed().1);
    let mut taken = programmed.all.devices[&Family::V4].clone();
    (taken.vxlan, taken.marked) = (None, true);
    kernel.all.devices.insert(Family::V4, taken);
    let plan = plan(&desired(&inputs_before), &kernel.observe());
    let ops = &plan.ops;
    assert!(matches!(ops[..], [Op::AddRoute(_, russet_overlay::Hop::Blackhole, None)]), "{ops:?}");
    assert_eq!(plan.refusals[0].reason, russet_overlay::Reason::NameTaken);
}

#[test]
fn a_device_without_our_mark_is_not_removed() {
    let (mut inputs, mut kernel) = programmed();
    inputs.pools[0].encapsulation = Encapsulation::None;
    kernel.all.devices.get_mut(&Family::V4).unwrap().marked = false;
    let ops = ops(&inputs, &kernel);
    assert!(!ops.iter().any(|op| matches!(op, Op::DeleteDevice(..))), "{ops:?}");
}

#[test]
fn foreign_entries_on_our_device_and_surplus_routes_are_removed() {
    let (inputs, mut kernel) = programmed();
    let index = kernel.all.devices[&Family::V4].ifindex;
    let foreign = Mac([2, 0, 0, 0, 0, 9]);
    kernel.all.neighbours.insert(ip("10.1.7.7"), Neighbour::permanent(index, ip("10.1.7.7"), foreign));
    let entries = vec![
        FdbEntry::remote(index, foreign, ip("192.168.77.8")),
        FdbEntry::remote(index, foreign, ip("192.168.77.9")),
    ];
    kernel.all.fdb.insert((Family::V4, foreign), entries);
    let spare = Route {
        metric: Some(50),
        kind: RouteKind::Unreachable,
        ..kernel.route(net("10.1.1.0/26"), russet_overlay::Hop::Blackhole)
    };
    kernel.all.routes.get_mut(&spare.dst).unwrap().push(spare.clone());
    converge(&mut kernel, &inputs).unwrap();
}
