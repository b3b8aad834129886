//! Many flows at once: none breaks when the programs leave, and a flood of new ones takes nothing from
//! those that live.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use russet_testkit::{bound, eventually};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Exchange, Pod, Setup, carried, is_carried};
use crate::node::TIMEOUT;

/// Connections that are open at once.
const CONNECTIONS: usize = 1_000;
/// One byte goes there and back on each so often while an agent is away.
const ROUNDS: usize = 4;
/// An answer may need several retransmissions while an agent starts.
const ANSWER: Duration = Duration::from_secs(20);
/// Ports on each side of a flood: their product is the number of flows. `RUSSET_FLOW_PORTS` sets another.
const FLOOD_PORTS: u16 = 400;
/// The first port of either side.
const FIRST: u16 = 30_000;
/// A datagram that takes longer is lost. Each loss costs the flood this time, so that it ends once one flow of
/// a hundred has no answer.
const DATAGRAM: Duration = Duration::from_millis(200);

/// Lets this process have as many sockets as its limit may be raised to: both ends of the connections are its own.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// One byte goes there and back on each connection.
#[track_caller]
fn exchange(streams: &mut [TcpStream], byte: u8) {
    streams.iter_mut().for_each(|stream| stream.write_all(&[byte]).unwrap());
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut answer = [0];
        let read = stream.read_exact(&mut answer);
        assert!(read.is_ok() && answer == [byte], "connection {number}: {read:?}");
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, ping"]
fn a_thousand_connections_go_on_when_the_programs_leave_and_come_back() {
    // policy.md P139
    raise_descriptor_limit();
    let mut setup = Setup::new("vxlan");
    let at = SocketAddr::new(setup.server.v4.parse().unwrap(), 0);
    let listener = setup.server.within(move || TcpListener::bind(at).unwrap());
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| listener.accept().unwrap().0).collect();
        let mut byte = [0];
        // The client writes to all before it reads, in the same order.
        while streams
            .iter_mut()
            .all(|stream| stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok())
        {}
    });
    let mut streams: Vec<TcpStream> =
        setup.client.within(move || (0..CONNECTIONS).map(|_| TcpStream::connect(at).unwrap()).collect());
    for stream in &streams {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(ANSWER)).unwrap();
    }
    // The counters of both nodes begin with their agents.
    let are_carried = |streams: &mut [TcpStream], setup: &Setup| {
        eventually(TIMEOUT, || {
            exchange(streams, 1);
            [&setup.one, &setup.two].into_iter().all(|node| carried(node) > CONNECTIONS as u64)
        });
    };
    are_carried(&mut streams, &setup);
    streams.iter_mut().for_each(|stream| stream.write_all(&[2]).unwrap());
    setup.two.kill_agent();
    for stream in &mut streams {
        stream.read_exact(&mut [0]).unwrap();
    }
    (0..ROUNDS).for_each(|_| exchange(&mut streams, 3));
    streams.iter_mut().for_each(|stream| stream.write_all(&[4]).unwrap());
    setup.two.start_agent();
    for stream in &mut streams {
        stream.read_exact(&mut [0]).unwrap();
    }
    are_carried(&mut streams, &setup);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, ping"]
fn a_flood_of_flows_and_of_connection_attempts_takes_nothing_from_a_flow_that_lives() {
    // dataplane.md section 5: more flows than the map has room for fall back to the kernel's path
    raise_descriptor_limit();
    let setup = Setup::new("vxlan");
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    let ports = std::env::var("RUSSET_FLOW_PORTS").map_or(FLOOD_PORTS, |text| text.parse().unwrap());
    let (answered, failed) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&setup, ports));
        let mut failed = 0;
        while !flood.is_finished() {
            far.goes_on();
            // Nothing listens there: each attempt is a SYN and a reset.
            let to = SocketAddr::new(setup.server.v4.parse().unwrap(), 9);
            failed += setup.client.within(move || {
                (0..200)
                    .filter(|_| TcpStream::connect_timeout(&to, Duration::from_millis(50)).is_err())
                    .count()
            });
        }
        (flood.join().unwrap(), failed)
    });
    println!("{answered} flows of datagrams had an answer beside {failed} connection attempts that failed");
    let flows = u64::from(ports) * u64::from(ports);
    assert!(answered >= flows - flows / 100, "{answered} of {flows} flows had an answer");
    assert!(failed > 0);
    is_carried(&far, &[&setup.one, &setup.two]);
}

/// Sends a datagram from each of `ports` ports to each of `ports` others, and back again. Returns how many
/// came back.
fn flood(setup: &Setup, ports: u16) -> u64 {
    let sockets = |pod: &Pod| {
        let address = pod.v4.parse().unwrap();
        pod.within(move || -> Vec<UdpSocket> {
            let at = (FIRST..FIRST + ports).map(|port| SocketAddrV4::new(address, port));
            at.map(|at| bound(|| UdpSocket::bind(at))).collect()
        })
    };
    let (clients, servers) = (sockets(&setup.client), sockets(&setup.server));
    for socket in clients.iter().chain(&servers) {
        socket.set_read_timeout(Some(DATAGRAM)).unwrap();
    }
    let mut byte = [1];
    let (mut sent, mut answered) = (0, 0);
    let lost_max = u64::from(ports) * u64::from(ports) / 100;
    for server in &servers {
        let to = server.local_addr().unwrap();
        for some in clients.chunks(100) {
            if sent - answered > lost_max {
                return answered;
            }
            sent += some.len() as u64;
            for client in some {
                client.send_to(&byte, to).unwrap();
            }
            let arrived: Vec<SocketAddr> =
                some.iter().filter_map(|_| server.recv_from(&mut byte).ok()).map(|(_, from)| from).collect();
            for from in &arrived {
                server.send_to(&byte, from).unwrap();
            }
            for from in arrived {
                let client = &clients[usize::from(from.port() - FIRST)];
                answered += u64::from(client.recv(&mut byte).is_ok());
            }
        }
    }
    answered
}
