//! Events: one for each change, and one that reports lost events.

use std::time::Duration;

use russet_netlink::{
    Address, Batch, Change, Event, FdbEntry, LinkAdd, LinkDel, LinkKind, LinkSet, Monitor, Neighbour, Route,
    Rule, Socket, Topic, Vxlan,
};

use super::{in_new_netns, name, run, wire};

/// Long enough for a loaded machine.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads events until one matches.
fn wait_for(monitor: &mut Monitor, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = monitor.next(EVENT_TIMEOUT).unwrap().unwrap_or_else(|| panic!("no event: {what}"));
        if wanted(&event) {
            return event;
        }
    }
}

#[test]
#[ignore = "kernel: events in a network namespace"]
fn every_change_is_an_event() {
    in_new_netns(|| {
        let all =
            [Topic::Links, Topic::Addresses, Topic::Routes, Topic::Neighbours, Topic::Rules, Topic::Qdiscs];
        let mut monitor = Monitor::open(&all).unwrap();
        let mut socket = Socket::route().unwrap();
        let w0 = super::wire(&mut socket, "w0");
        let vx = LinkAdd { up: true, ..LinkAdd::new(name("vx"), LinkKind::Vxlan(Vxlan::new(1, 4789))) };
        run(&mut socket, |batch| batch.add_link(&vx)).unwrap();
        let vx = socket.link_by_name(&name("vx")).unwrap().index;
        wait_for(
            &mut monitor,
            "w0",
            |event| matches!(event, Event::Set(Change::Link(link)) if link.name == "w0" && link.is_up()),
        );

        let address = Address::new(w0, "10.77.0.7/24".parse().unwrap());
        let route = Route { metric: Some(9), ..Route::dev("fd00:1::/64".parse().unwrap(), w0) };
        let neighbour = Neighbour::permanent(w0, "10.0.0.9".parse().unwrap(), russet_addr::Mac::GATEWAY);
        let entry = FdbEntry::remote(vx, russet_addr::Mac([2; 6]), "10.0.0.8".parse().unwrap());
        let rule = Rule::new(russet_addr::Family::V6, 77, 254);
        run(&mut socket, |batch| {
            batch.add_address(&address).add_route(&route).add_neighbour(&neighbour).add_fdb(&entry);
            batch.add_rule(&rule).add_ingress(w0).delete_ingress(w0);
            batch.delete_rule(&rule).delete_fdb(&entry).delete_neighbour(&neighbour);
            batch.delete_route(&route).delete_address(&address)
        })
        .unwrap();
        let mut missing = vec!["address", "route", "neighbour", "forwarding entry", "rule", "qdisc"];
        let mut staying = missing.clone();
        while !(missing.is_empty() && staying.is_empty()) {
            let event = wait_for(&mut monitor, &format!("{missing:?} {staying:?}"), |_| true);
            let (Event::Set(change) | Event::Gone(change)) = &event else { panic!("{event:?}") };
            let what = match change {
                Change::Address(changed) if changed.net == address.net => "address",
                Change::Route(changed) if *changed == route => "route",
                Change::Neighbour(changed) if changed.address == neighbour.address => "neighbour",
                Change::Fdb(changed) if *changed == entry => "forwarding entry",
                Change::Rule(changed) if *changed == rule => "rule",
                Change::Qdisc(changed) if changed.ifindex == w0 && changed.kind == "ingress" => "qdisc",
                _ => continue,
            };
            let list = if matches!(event, Event::Set(_)) { &mut missing } else { &mut staying };
            list.retain(|left| *left != what);
        }
        run(&mut socket, |batch| batch.delete_link(&LinkDel::Index(w0))).unwrap();
        wait_for(
            &mut monitor,
            "link",
            |event| matches!(event, Event::Gone(Change::Link(link)) if link.index == w0),
        );
    });
}

#[test]
#[ignore = "kernel: events in a network namespace"]
fn waiting_for_an_event_ends_with_the_timeout() {
    in_new_netns(|| {
        let mut monitor = Monitor::open(&[Topic::Links]).unwrap();
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), None);
        assert_eq!(monitor.next(Duration::from_millis(20)).unwrap(), None);
        // Events of other topics are not delivered.
        run(&mut Socket::route().unwrap(), |batch| {
            batch.add_rule(&Rule::new(russet_addr::Family::V4, 9, 254))
        })
        .unwrap();
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), None);
    });
}

#[test]
#[ignore = "kernel: more events than a socket holds"]
fn lost_events_are_reported_and_the_monitor_continues() {
    in_new_netns(|| {
        let mut monitor = Monitor::open(&[Topic::Routes]).unwrap();
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        let mut batch = Batch::new();
        for n in 0..5000u32 {
            let dst = std::net::Ipv4Addr::from(0x0a00_0000 + n);
            batch.add_route(&Route::dev(russet_addr::host_net(dst.into()), w0));
        }
        socket.execute(&batch).unwrap();
        wait_for(&mut monitor, "overrun", |event| *event == Event::Overrun);
        while monitor.next(Duration::ZERO).unwrap().is_some() {}
        let last = Route::dev("10.200.0.0/24".parse().unwrap(), w0);
        run(&mut socket, |batch| batch.add_route(&last)).unwrap();
        let event = monitor.next(EVENT_TIMEOUT).unwrap();
        assert_eq!(event, Some(Event::Set(Change::Route(last))));
        run(&mut socket, |batch| batch.set_link(&LinkSet { up: Some(false), ..LinkSet::index(w0) })).unwrap();
    });
}
