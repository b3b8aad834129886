//! Batches: which request failed and why, and message sizes at which buffers matter.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use russet_addr::{Family, IpNet};
use russet_netlink::{
    Address, Batch, Change, Event, LinkAdd, LinkDel, LinkKind, LinkSet, Monitor, NetlinkError, Peer, Route,
    RouteFilter, Socket, Topic,
};

use super::{in_new_netns, name, new_netns, raw, run, tool, wire, within};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The `n`-th address `10.x.y.z/32`.
fn host(n: u32) -> IpNet {
    IpNet::new(std::net::Ipv4Addr::from(0x0a00_0000 + n).into(), 32).unwrap()
}

#[test]
#[ignore = "kernel: a refused route"]
fn the_error_contains_the_kernels_message() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        let gateway = "10.0.0.7".parse().unwrap();
        let route = Route { oif: Some(w0), ..Route::via(net("10.1.0.0/26"), gateway) };
        let error = run(&mut socket, |batch| batch.add_route(&route)).unwrap_err();
        let expected = "add route 10.1.0.0/26 via 10.0.0.7 dev w0: ENETUNREACH: Nexthop has invalid gateway";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.errno(), Some(libc::ENETUNREACH));
        assert!(!error.is_exists() && !error.is_not_found() && !error.is_busy());
    });
}

#[test]
#[ignore = "kernel: a refused attribute"]
fn the_error_contains_the_offset_of_a_bad_attribute() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let mut batch = Batch::new();
        // RTM_NEWLINK with an IFLA_MTU of one byte
        batch.push(16, 0x400, |message| {
            message.raw(&[0; 16]).attr_str(3, "x0").attr_u8(4, 1);
        });
        let error = socket.execute(&batch).unwrap_err();
        let NetlinkError::Refused { offset, errno, text, .. } = &error.error else { panic!("{error}") };
        assert_eq!((*errno, *offset), (libc::ERANGE, Some(40)), "{text:?}");
        assert!(error.to_string().ends_with("(at byte 40 of the request)"), "{error}");
    });
}

#[test]
#[ignore = "kernel: a batch with a request that fails"]
fn the_error_names_a_failed_request_within_a_batch() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        let mut batch = Batch::new();
        for n in 0..200 {
            batch.add_route(&Route::dev(host(if n == 100 { 7 } else { n }), w0));
        }
        let error = socket.execute(&batch).unwrap_err();
        assert_eq!((error.index, error.is_exists()), (100, true));
        assert_eq!(error.to_string(), "add route 10.0.0.7/32 dev w0: EEXIST: File exists");
        assert_eq!(tool("ip -j route show").len(), 127, "its chunk ran to the end, the next was not sent");

        let results = socket.execute_all(&batch);
        assert_eq!(results.len(), 200);
        let good = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(good, 200 - 128, "those that were not there yet");
        assert!(results.iter().flat_map(|result| result.as_ref().err()).all(NetlinkError::is_exists));
        assert_eq!(tool("ip -j route show").len(), 199);
    });
}

#[test]
#[ignore = "kernel: 5,000 routes"]
fn five_thousand_routes_go_in_one_batch() {
    // dataplane.md section 3.3
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        let (mut add, mut delete) = (Batch::new(), Batch::new());
        let routes: Vec<_> = (0..5000).map(|n| Route { protocol: 114, ..Route::dev(host(n), w0) }).collect();
        for route in &routes {
            add.add_route(route);
            delete.delete_route(route);
        }
        socket.execute(&add).unwrap();
        let ours = RouteFilter { protocol: Some(114), ..RouteFilter::default() };
        assert_eq!(socket.routes_where(Family::V4, ours).unwrap(), routes);
        let shown = tool("ip -j route show");
        assert_eq!(shown.len(), 5000);
        for (n, shown) in shown.iter().enumerate() {
            assert_eq!(shown["dst"], host(n as u32).addr().to_string());
        }
        socket.execute(&delete).unwrap();
        assert_eq!(tool("ip -j route show").len(), 0);
    });
}

#[test]
#[ignore = "kernel: a transaction of one datagram"]
fn a_transaction_is_one_datagram_and_names_its_failure() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        let (mut batch, mut mixed) = (Batch::new(), Batch::new());
        for n in 0..100 {
            batch.add_route(&Route::dev(host(n), w0));
        }
        socket.transact(&batch).unwrap();
        assert_eq!(tool("ip -j route show").len(), 100);
        mixed.add_route(&Route::dev(host(1000), w0)).add_route(&Route::dev(host(5), w0));
        let error = socket.transact(&mixed).unwrap_err();
        assert_eq!((error.index, error.is_exists()), (1, true), "{error}");
        assert!(socket.transact(&Batch::new()).is_ok());
        assert_eq!(socket.links().unwrap().len(), 3, "the socket is as good as new");
    });
}

#[test]
#[ignore = "kernel: sockets in network namespaces"]
fn a_socket_stays_in_the_namespace_where_it_was_opened() {
    let pod = new_netns();
    in_new_netns(|| {
        let mut inside = within(&pod, || Socket::route().unwrap());
        let peer = Peer { netns: raw(&pod), ..Peer::new(name("eth0")) };
        run(&mut Socket::route().unwrap(), |batch| batch.add_link(&LinkAdd::veth(name("h0"), peer))).unwrap();
        assert!(inside.link_by_name(&name("eth0")).is_ok());
        assert!(inside.link_by_name(&name("h0")).is_err());
    });
}

#[test]
#[ignore = "kernel: a batch with attributes that are too long"]
fn requests_that_netlink_cannot_encode_are_never_sent() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let mut batch = Batch::new();
        let set = LinkSet { alias: Some("a".repeat(70_000)), ..LinkSet::named(name("lo")) };
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::named(name("lo")) }).set_link(&set);
        let error = socket.execute(&batch).unwrap_err();
        assert!(error.to_string().contains("longer than 64 KiB"), "{error}");
        assert!(!socket.link_by_name(&name("lo")).unwrap().is_up());
        batch.clear();
        assert!(batch.is_empty() && socket.execute(&batch).is_ok());
    });
}

#[test]
#[ignore = "kernel: EPERM needs another user"]
fn requests_without_privilege_are_refused_with_the_reason() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        // SAFETY: plain integers; affects this thread only, which ends with the test.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let error = run(&mut socket, |batch| batch.add_route(&Route::dev(host(1), w0))).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EPERM), "{error}");
    });
}

/// The requests of an ADD, which take 0.54 to 0.575 ms (dataplane.md section 3.1).
fn wire_a_pod(host: &mut Socket, pod_socket: &mut Socket, pod: &std::fs::File, n: u32) {
    let peer = Peer { netns: raw(pod), mtu_bytes: Some(1450), ..Peer::new(name("eth0")) };
    let veth = LinkAdd { up: true, mtu_bytes: Some(1450), ..LinkAdd::veth(name(&format!("h{n}")), peer) };
    run(host, |batch| batch.add_link(&veth)).unwrap();
    let eth0 = pod_socket.link_by_name(&name("eth0")).unwrap().index;
    let gateway = "169.254.1.1".parse().unwrap();
    run(pod_socket, |batch| {
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(eth0) });
        batch.add_address(&Address::new(eth0, host_net(n)));
        batch.add_route(&Route::dev(net("169.254.1.1/32"), eth0));
        batch.add_route(&Route { oif: Some(eth0), ..Route::via(net("0.0.0.0/0"), gateway) })
    })
    .unwrap();
}

fn host_net(n: u32) -> IpNet {
    host(n + 256)
}

#[test]
#[ignore = "kernel: prints how long an ADD's requests take"]
fn the_requests_of_an_add_take_half_a_millisecond() {
    in_new_netns(|| {
        let mut host = Socket::route().unwrap();
        let mut times_us: Vec<u128> = (0..60)
            .map(|n| {
                let pod = new_netns();
                let mut inside = within(&pod, || Socket::route().unwrap());
                let start = Instant::now();
                wire_a_pod(&mut host, &mut inside, &pod, n);
                start.elapsed().as_micros()
            })
            .collect();
        times_us.sort_unstable();
        println!(
            "veth in place + getlink + [up, address, 2 routes]: min {} us, p50 {} us, p90 {} us",
            times_us[0], times_us[30], times_us[54]
        );
        // The minimum of all runs against a limit far above the goal: other work shares the machine
        // and the kernel's lock, and this only has to detect a move between namespaces, which costs
        // every run 16 ms and more.
        assert!(times_us[0] < 5_000, "{times_us:?}");
    });
}

/// An nf_tables transaction that creates the tables; only its end is acknowledged.
fn transaction(tables: &[&str]) -> Batch {
    const SUBSYSTEM: u16 = 10 << 8;
    let mut batch = Batch::describing(|message| format!("nf_tables message {:#x}", message.kind));
    // NFNL_MSG_BATCH_BEGIN and _END name the subsystem in `struct nfgenmsg`
    batch.push_exactly(16, 0x1, |message| {
        message.raw(&[0, 0, 0, 10]);
    });
    for table in tables {
        // NFT_MSG_NEWTABLE, NLM_F_EXCL | NLM_F_CREATE, family inet, NFTA_TABLE_NAME
        batch.push(SUBSYSTEM, 0x600, |message| {
            message.raw(&[1, 0, 0, 0]).attr_str(1, table);
        });
    }
    batch.push_exactly(17, 0x1, |message| {
        message.raw(&[0, 0, 0, 10]);
    });
    batch
}

#[test]
#[ignore = "kernel: nf_tables in a network namespace"]
fn an_nf_tables_transaction_is_atomic() {
    in_new_netns(|| {
        let mut socket = Socket::netfilter().unwrap();
        socket.transact(&transaction(&["one", "two"])).unwrap();
        let error = socket.transact(&transaction(&["three", "two"])).unwrap_err();
        assert_eq!((error.index, error.is_exists()), (2, true), "{error}");
        assert_eq!(error.to_string(), "nf_tables message 0xa00: EEXIST: File exists");
        // NFT_MSG_GETTABLE
        let fill = |message: &mut russet_netlink::wire::MessageBuilder<'_>| {
            message.raw(&[1, 0, 0, 0]);
        };
        let decode =
            |message: &russet_netlink::wire::Message<'_>| Some(message.attributes(4).find(1)?.text());
        assert_eq!(socket.dump("list tables", 0xa01, fill, decode).unwrap(), ["one", "two"]);
    });
}

#[test]
#[ignore = "kernel: EPERM needs another user"]
fn a_transaction_that_is_refused_at_its_beginning_fails_at_once() {
    in_new_netns(|| {
        let mut socket = Socket::netfilter().unwrap();
        // SAFETY: plain integers; affects this thread only, which ends with the test.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let start = Instant::now();
        let error = socket.transact(&transaction(&["one"])).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EPERM), "{error}");
        assert!(start.elapsed().as_secs() < 5);
    });
}

/// The port id of a socket in its namespace.
fn port_of(socket: &impl AsFd) -> u32 {
    // SAFETY: plain integers, for which zero is valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    let pointer: *mut libc::sockaddr_nl = &mut address;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the address is valid for writes of the length given with it.
    assert_eq!(unsafe { libc::getsockname(fd, pointer.cast(), &mut len) }, 0);
    address.nl_pid
}

/// Sends bytes to a netlink socket of this namespace as another process would.
fn forge(port: u32, bytes: &[u8]) {
    // SAFETY: plain integers, for which zero is valid.
    let mut to: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    to.nl_family = libc::AF_NETLINK as u16;
    to.nl_pid = port;
    let sender = Socket::route().unwrap();
    let pointer: *const libc::sockaddr_nl = &to;
    let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    let fd = sender.as_fd().as_raw_fd();
    // SAFETY: both pointers are valid for reads of the lengths given with them.
    let sent = unsafe { libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), 0, pointer.cast(), len) };
    assert_eq!(sent, bytes.len() as isize);
}

#[test]
#[ignore = "kernel: forged messages in a network namespace"]
fn messages_of_other_processes_are_ignored() {
    in_new_netns(|| {
        let mut monitor = Monitor::open(&[Topic::Links]).unwrap();
        let mut socket = Socket::route().unwrap();
        // For the monitor an RTM_NEWLINK about link 1; for the socket a refusal of each following
        // request.
        let link =
            [&32u32.to_ne_bytes()[..], &16u16.to_ne_bytes(), &[0; 10], &[0; 4], &[1, 0, 0, 0], &[0; 8]]
                .concat();
        forge(port_of(&monitor), &link);
        for sequence in 1..20u32 {
            let head =
                [&36u32.to_ne_bytes()[..], &2u16.to_ne_bytes(), &[0; 2], &sequence.to_ne_bytes(), &[0; 4]];
            let refusal = [head.concat(), (-libc::EPERM).to_ne_bytes().to_vec(), vec![0; 16]].concat();
            forge(port_of(&socket), &refusal);
        }
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), None);
        assert_eq!(socket.links().unwrap().len(), 1);
        run(&mut socket, |batch| batch.set_link(&LinkSet { up: Some(true), ..LinkSet::named(name("lo")) }))
            .unwrap();
        assert!(matches!(monitor.next(Duration::ZERO).unwrap(), Some(Event::Set(Change::Link(_)))));
    });
}

#[test]
#[ignore = "kernel: lists that change while they are read"]
fn a_list_that_changes_while_it_is_read_is_complete() {
    in_new_netns(|| {
        let netns = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let mut socket = Socket::route().unwrap();
        let fixed: Vec<_> = (0..300).map(|n| name(&format!("f{n}"))).collect();
        run(&mut socket, |batch| {
            fixed.iter().fold(batch, |batch, name| batch.add_link(&LinkAdd::new(name.clone(), ifb())))
        })
        .unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let churn = scope.spawn(|| within(&netns, || churn(&stop)));
            // Even if listing fails, the scope waits for the other thread.
            let stopped = Stop(&stop);
            for _ in 0..40 {
                let links = socket.links().unwrap();
                let mut seen: Vec<_> =
                    links.iter().filter(|l| l.name.starts_with('f')).map(|l| l.index).collect();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), fixed.len());
            }
            drop(stopped);
            assert!(churn.join().unwrap() > 0);
        });
    });
}

/// Stops the other thread's work when dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn ifb() -> LinkKind {
    LinkKind::Other { kind: "ifb", data: Vec::new() }
}

/// Adds and deletes links until stopped; returns how many.
fn churn(stop: &AtomicBool) -> usize {
    let mut socket = Socket::route().unwrap();
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        run(&mut socket, |batch| {
            batch.add_link(&LinkAdd::new(name("x0"), ifb())).delete_link(&LinkDel::Name(name("x0")))
        })
        .unwrap();
        rounds += 1;
    }
    rounds
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_refused_request_names_its_interface() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let mut batch = Batch::new();
        // Loopback is down, so no address is reachable through it.
        batch.add_route(&Route::via("10.9.0.0/24".parse().unwrap(), "10.8.0.1".parse().unwrap()));
        batch.delete_route(&Route::dev("10.9.0.0/24".parse().unwrap(), 1));
        batch.delete_route(&Route::dev("10.9.0.0/24".parse().unwrap(), 4242));
        let results = socket.execute_all(&batch);
        let error = |index: usize| results[index].as_ref().unwrap_err().to_string();
        assert!(error(0).starts_with("add route 10.9.0.0/24 via 10.8.0.1: "), "{}", error(0));
        assert!(error(1).starts_with("delete route 10.9.0.0/24 dev lo: "), "{}", error(1));
        assert!(error(2).starts_with("delete route 10.9.0.0/24 dev 4242 (gone): "), "{}", error(2));
    });
}
