//! Why a node does not answer: what this node's kernel, and the outcomes of other probes, say about it.

use std::net::IpAddr;

use russet_addr::Family;
use russet_linux::echo::PathError;
use russet_netlink::{NetlinkError, RouteKind, Socket};
use serde::{Deserialize, Serialize};

use super::encapsulated::Encapsulated;
use super::prober::{Fits, SendError, State};
use super::targets::{Own, Path, Target, Targets};

/// What this node's kernel says about the path to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The tunnel device, if the target is behind it.
    pub device: Option<(&'static str, Device)>,
    pub route: Route,
    /// What keeps this node from all others: its interface, and foreign rules that drop the tunnel's packets.
    pub closed: Vec<String>,
    /// Packets that the tunnel device has sent and received since an earlier look at it.
    pub traffic: Option<Traffic>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Missing,
    Down,
    Up,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// It leads through the link that it should lead through, or it cannot be seen.
    Right,
    Absent,
    /// Through this link, and not through the other.
    Through {
        link: String,
        instead_of: String,
    },
}

/// Packets that a device counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    pub sent: u64,
    pub received: u64,
}

/// The least MTU that the agent's setting allows.
const MTU_MIN_BYTES: u32 = 1280;

// === impl Facts ===

impl Facts {
    /// Asks the kernel, except for `closed` and `traffic`.
    pub fn look(target: &Target, own: &Own, targets: &Targets) -> Result<Self, NetlinkError> {
        let mut socket = Socket::route()?;
        let mut expected = targets.underlay_index;
        let mut device = None;
        if let (Path::Tunnel, Some(name)) = (target.path, own.device) {
            let link = russet_addr::IfName::new(name).ok().map(|name| socket.link_by_name(&name));
            let state = match link {
                Some(Ok(link)) => {
                    expected = link.index;
                    if link.is_up() { Device::Up } else { Device::Down }
                }
                Some(Err(error)) if !error.is_not_found() => return Err(error),
                _ => Device::Missing,
            };
            device = Some((name, state));
        }
        let route = route(&mut socket, target.address, expected)?;
        Ok(Self { device, route, closed: Vec::new(), traffic: None })
    }
}

fn route(socket: &mut Socket, address: IpAddr, expected: u32) -> Result<Route, NetlinkError> {
    // The kernel answers a lookup without a route, and one that ends in a blackhole, with an error.
    let Ok(found) = socket.route_to(address) else { return Ok(Route::Absent) };
    let Some(index) = found.oif.filter(|_| found.kind == RouteKind::Unicast) else {
        return Ok(Route::Absent);
    };
    if index == expected || expected == 0 {
        return Ok(Route::Right);
    }
    let mut name = |index| match socket.link_by_index(index) {
        Ok(link) => link.name,
        Err(_) => format!("link {index}"),
    };
    Ok(Route::Through { link: name(index), instead_of: name(expected) })
}

/// Why the target does not answer, and what to do, in one sentence for an operator. What is certain comes first.
pub fn unreachable(state: &State, facts: &Facts, port: u16) -> String {
    let Target { path, address, underlay } = state.target;
    let node = underlay.map_or_else(|| "its own address".to_owned(), |own| own.to_string());
    if let Some((name, device @ (Device::Missing | Device::Down))) = &facts.device {
        let fault = if *device == Device::Down { "is down" } else { "does not exist" };
        return format!(
            "this node's tunnel device {name} {fault}: the agent restores it; `russet drift` names what changed it"
        );
    }
    match &facts.route {
        Route::Right => {}
        Route::Absent => {
            return format!(
                "this node has no route to {address}: the agent restores it; `russet drift` names what removed it"
            );
        }
        Route::Through { link, instead_of } => {
            return format!(
                "the route to {address} leads through {link} and not through {instead_of}: see `ip route get {address}`"
            );
        }
    }
    if let Some(line) = facts.closed.first() {
        return line.clone();
    }
    if let Some(SendError::Own(errno)) = state.error {
        let error = std::io::Error::from_raw_os_error(errno);
        return match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                format!("a rule of this node drops what it sends to {address}: see `nft list ruleset`")
            }
            _ => format!(
                "this node cannot send to {address}: {error}; see `ip address` and `ip route get {address}`"
            ),
        };
    }
    if let Some(SendError::Path(PathError::Prohibited)) = state.error {
        return format!("a firewall on the path to {address} refuses the packets, and says so");
    }
    match (path, state.underlay) {
        (Path::Tunnel, Some(true)) => {
            let lost = match &state.encapsulated {
                Some(counted) => lost(counted, (&node, port)),
                None => perhaps_lost(facts.traffic, port),
            };
            format!("the node answers at {node}, its tunnel does not: {lost}")
        }
        (Path::Route, Some(true)) => format!(
            "the node answers at {node}, and not at its pods' address {address}: the network or that node drops packets with pods' addresses"
        ),
        (Path::Underlay, _) => {
            format!(
                "the node does not answer at {address}: it is down, or the network to it is interrupted: see `ping {address}`"
            )
        }
        (_, Some(false)) => format!(
            "the node answers neither at {address} nor at its own address {node}: it is down, or the network to it is interrupted: see \
             `ping {node}`"
        ),
        (_, None) => format!("the node does not answer at {address}"),
    }
}

/// On which side encapsulated packets are lost, as far as this node's counters say, and what to do.
fn lost(counted: &Encapsulated, (node, port): (&str, u16)) -> String {
    let Encapsulated { sent, received, decapsulated, .. } = *counted;
    let compared = "`russet status --cluster` compares the counters of both";
    let sent = match sent {
        0 => {
            return format!(
                "this node has sent no encapsulated packet to {node}: a rule of this node drops them, or a forwarding entry is missing: see \
                 `nft list ruleset` and `russet drift`"
            );
        }
        sent => format!("this node has sent {sent} encapsulated packets to {node}"),
    };
    match (received, decapsulated) {
        (0, _) => format!(
            "{sent}, and none has arrived from it: something drops UDP port {port} between the two nodes, a firewall of that node (there: \
             `russet drift`) or of the network; {compared}"
        ),
        (received, 0) => format!(
            "{sent}; {received} arrived from it, and none came out of this node's tunnel: this node drops them, by a rule (`nft list ruleset`) \
             or because of another network identifier (`russet drift`)"
        ),
        (received, _) => format!(
            "{sent}; {received} arrived from it and came out of this node's tunnel: what this node sends is lost on the way to that node, or \
             there; see `russet status` there; {compared}"
        ),
    }
}

/// The same, before enough packets were counted.
fn perhaps_lost(traffic: Option<Traffic>, port: u16) -> String {
    let here = match traffic.filter(|traffic| traffic.received == 0 && traffic.sent > 0) {
        Some(_) => "; no packet of any node has arrived by this node's tunnel meanwhile",
        None => "",
    };
    format!(
        "something drops UDP port {port} between the two nodes, a firewall of that node (there: `russet drift`) or of the network{here}"
    )
}

/// Why large packets do not arrive, and what to do; None if they do, or if that is not known yet.
pub fn small(state: &State, own: &Own) -> Option<String> {
    let Fits::UpTo(bytes) = state.fits() else { return None };
    let max = state.max_bytes();
    let device = match (state.target.path, own.device) {
        (Path::Tunnel, Some(device)) => format!(" (encapsulated by {device})"),
        _ => String::new(),
    };
    let family = match Family::of(state.target.address) {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let or = if bytes < MTU_MIN_BYTES {
        String::new()
    } else {
        format!(", or start the agents with --mtu {bytes}")
    };
    Some(format!(
        "{family} packets of more than about {bytes} bytes are lost{device}, and pods send up to {max}: correct the MTU of the network between the \
         nodes{or}"
    ))
}

/// `/proc/net/dev` of the calling thread, whose network namespace may be another than that of the process's first one.
pub fn device_counters() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/thread-self/net/dev")
}

/// The counters of a device in the text of `/proc/net/dev`.
pub fn traffic(text: &str, device: &str) -> Option<Traffic> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let mut fields = line.split_whitespace();
    let received = fields.nth(1)?.parse().ok()?;
    // The second field of those about sending, of which the first is the ninth of all.
    let sent = fields.nth(7)?.parse().ok()?;
    Some(Traffic { sent, received })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(path: Path, underlay: Option<bool>, error: Option<SendError>) -> State {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let target = Target { path, address: address("10.244.7.1"), underlay: Some(address("10.77.0.12")) };
        let mut state = State::new(target, 1450);
        (state.underlay, state.error) = (underlay, error);
        state
    }

    fn facts() -> Facts {
        let device = Some(("vxlan.calico", Device::Up));
        Facts { device, route: Route::Right, closed: Vec::new(), traffic: None }
    }

    #[test]
    fn what_is_certain_is_named_before_what_is_likely() {
        let fails =
            state(Path::Tunnel, Some(true), Some(SendError::Own(rustix::io::Errno::PERM.raw_os_error())));
        let mut facts = Facts {
            device: Some(("vxlan.calico", Device::Down)),
            route: Route::Absent,
            closed: vec!["chain x drops it".to_owned()],
            traffic: None,
        };
        assert!(unreachable(&fails, &facts, 4789).contains("vxlan.calico is down"));
        facts.device = Some(("vxlan.calico", Device::Up));
        assert!(unreachable(&fails, &facts, 4789).contains("no route to 10.244.7.1"));
        facts.route = Route::Through { link: "eth1".to_owned(), instead_of: "vxlan.calico".to_owned() };
        assert!(unreachable(&fails, &facts, 4789).contains("through eth1 and not through vxlan.calico"));
        facts.route = Route::Right;
        assert_eq!(unreachable(&fails, &facts, 4789), "chain x drops it");
        facts.closed.clear();
        assert!(unreachable(&fails, &facts, 4789).contains("a rule of this node drops"));
        let error = Some(SendError::Path(PathError::Prohibited));
        let text = unreachable(&state(Path::Tunnel, None, error), &facts, 4789);
        assert!(text.contains("refuses the packets"), "{text}");
    }

    #[test]
    fn a_closed_tunnel_differs_from_a_node_that_is_gone() {
        let closed = unreachable(&state(Path::Tunnel, Some(true), None), &facts(), 4789);
        assert!(
            closed.contains("answers at 10.77.0.12") && closed.contains("drops UDP port 4789"),
            "{closed}"
        );
        let gone = unreachable(&state(Path::Tunnel, Some(false), None), &facts(), 4789);
        assert!(gone.contains("`ping 10.77.0.12`") && !gone.contains("4789"), "{gone}");
        let traffic = Some(Traffic { sent: 5, received: 0 });
        let silent = unreachable(&state(Path::Tunnel, Some(true), None), &Facts { traffic, ..facts() }, 4789);
        assert!(silent.contains("no packet of any node"), "{silent}");
        let plain = unreachable(&state(Path::Underlay, None, None), &facts(), 4789);
        assert!(plain.contains("`ping 10.244.7.1`"), "{plain}");
    }

    #[test]
    fn counters_of_encapsulated_packets_say_on_which_side_they_are_lost() {
        let said = |sent, received, decapsulated| {
            let counted = Encapsulated { sent, received, decapsulated, for_s: 20 };
            let mut closed = state(Path::Tunnel, Some(true), None);
            closed.encapsulated = Some(counted);
            let text = unreachable(&closed, &facts(), 4789);
            let rest = text.strip_prefix("the node answers at 10.77.0.12, its tunnel does not: ");
            rest.unwrap_or_else(|| panic!("{text}")).to_owned()
        };
        let none = said(0, 7, 7);
        assert!(
            none.starts_with("this node has sent no encapsulated packet to 10.77.0.12: a rule of this node"),
            "{none}"
        );
        let away = said(12, 0, 0);
        let begin = "this node has sent 12 encapsulated packets to 10.77.0.12, and none has arrived from it: something drops UDP port 4789";
        assert!(away.starts_with(begin) && away.contains("status --cluster"), "{away}");
        let here = said(12, 5, 0);
        assert!(
            here.contains(
                "; 5 arrived from it, and none came out of this node's tunnel: this node drops them"
            ),
            "{here}"
        );
        let there = said(12, 5, 4);
        assert!(
            there.contains(
                "; 5 arrived from it and came out of this node's tunnel: what this node sends is lost"
            ),
            "{there}"
        );
        // What is certain comes first, and a node that is gone has no tunnel.
        let counted = Some(Encapsulated { sent: 12, ..Encapsulated::default() });
        let [mut gone, mut closed] = [false, true].map(|answers| state(Path::Tunnel, Some(answers), None));
        (gone.encapsulated, closed.encapsulated) = (counted, counted);
        assert!(!unreachable(&gone, &facts(), 4789).contains("encapsulated"));
        let known = Facts { closed: vec!["chain x drops it".to_owned()], ..facts() };
        assert_eq!(unreachable(&closed, &known, 4789), "chain x drops it");
    }

    #[test]
    fn counters_are_read_by_the_name_of_the_device() {
        let text = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0\nvxlan.calico:  84 11 0 0 0 0 0 0  168 22 0 3 0 0 0 0\n";
        assert_eq!(traffic(text, "vxlan.calico"), Some(Traffic { sent: 22, received: 11 }));
        assert_eq!(traffic(text, "vxlan"), None);
        assert_eq!(traffic("vxlan.calico: 1 x", "vxlan.calico"), None);
    }
}
