//! Whether another node answers: a datagram to a port on which nothing listens. A machine that is
//! there refuses it, unless its firewall drops it.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use russet_addr::Family;
use russet_netlink::{NeighbourState, Socket};

/// What became of the datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The machine refused it, or its MAC is known for sure.
    Present,
    /// It cannot be delivered.
    Away(String),
    /// Nothing came back.
    Silent,
}

/// The port of the protocol discard (RFC 863), which hardly any machine serves.
const DISCARD: u16 = 9;
/// The kernel gives up an address after three requests for its MAC, a second apart.
const AWAY_AFTER: Duration = Duration::from_millis(3500);
/// How long to wait for each answer, before the neighbour table is looked at.
const WAIT: Duration = Duration::from_millis(250);
/// How long to wait for the answer of a machine whose MAC is known.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Asks whether the machine with an address is there.
pub fn ask(socket: &mut Socket, remote: IpAddr) -> Answer {
    match probe(socket, remote) {
        Ok(answer) => answer,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Answer::Present,
        Err(error) if is_away(error.kind()) => Answer::Away(error.to_string()),
        Err(_) => Answer::Silent,
    }
}

fn is_away(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown)
}

fn probe(socket: &mut Socket, remote: IpAddr) -> std::io::Result<Answer> {
    let local: IpAddr = match Family::of(remote) {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind(SocketAddr::new(local, 0))?;
    probe.connect(SocketAddr::new(remote, DISCARD))?;
    probe.set_read_timeout(Some(WAIT))?;
    let began = Instant::now();
    probe.send(b"russet explain")?;
    loop {
        match probe.recv(&mut [0; 64]) {
            Ok(_) => return Ok(Answer::Present),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
        match neighbour(socket, remote) {
            Some(NeighbourState::Reachable) => return Ok(Answer::Present),
            Some(NeighbourState::Failed) => return Ok(Answer::Away("no answer to ARP".to_owned())),
            Some(NeighbourState::Incomplete) if began.elapsed() < AWAY_AFTER => {}
            Some(NeighbourState::Incomplete) => return Ok(Answer::Away("no answer to ARP".to_owned())),
            _ if began.elapsed() >= SILENT_AFTER => return Ok(Answer::Silent),
            _ => {}
        }
    }
}

/// The state of the machine in the neighbour table; none if it is behind a router.
fn neighbour(socket: &mut Socket, remote: IpAddr) -> Option<NeighbourState> {
    let found = socket.neighbours(Family::of(remote)).ok()?;
    found.into_iter().find(|it| it.address == remote).map(|it| it.state)
}
