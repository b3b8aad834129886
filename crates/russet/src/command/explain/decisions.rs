//! What the kernel's table of decisions says of a flow: the lookups that its rules make, in their
//! order. Pure.

use std::net::IpAddr;

use russet_addr::host_net;
use russet_policy::Decisions;
use russet_verdict::explain::protocol_name;
use russet_verdict::flow::Flow;
use russet_verdict::ir::Direction;
use russet_verdict::table::{Identity, Key, Part, Verdict, Word};

/// What the table says of a flow at one local end, and which element decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub allowed: bool,
    pub why: String,
}

/// Judges a flow at an address of this node. `from_own_node` says that its source is an address of
/// the node itself.
pub fn judge(decisions: &Decisions, direction: Direction, flow: &Flow, from_own_node: bool) -> Found {
    let (local, peer) = match direction {
        Direction::Ingress => (flow.destination, flow.source),
        Direction::Egress => (flow.source, flow.destination),
    };
    let found = |allowed, why: &str| Found { allowed, why: why.to_owned() };
    if direction == Direction::Ingress && from_own_node {
        return found(true, "the node itself reaches its pods");
    }
    if decisions.held.contains(&local) {
        return found(false, "the address is held until decisions about it are made");
    }
    let default = decisions.defaults.get(&(direction, local));
    let identity = identity(decisions, peer);
    let (protocol, port) = (flow.protocol, flow.destination_port);
    let key = |part| Key { direction, local, peer: identity, part };
    let has = |part| Some((*decisions.decisions.get(&key(part))?, part));
    let range = || {
        decisions.decisions.iter().find_map(|(it, word)| match it.part {
            Part::Range(of, first, last)
                if *it == key(it.part) && of == protocol && (first..=last).contains(&port) =>
            {
                Some((*word, it.part))
            }
            _ => None,
        })
    };
    let decided = has(Part::Port(protocol, port))
        .or_else(range)
        .or_else(|| has(Part::Protocol(protocol)))
        .or_else(|| has(Part::All));
    match (decided, default) {
        (Some((Word { verdict: Verdict::Wide, .. }, part)), _) => {
            let ranges = decisions.wide.get(&key(part)).into_iter().flatten();
            let mut counts = ranges.filter(|it| (it.first..=it.last).contains(&flow.source_port));
            let allowed = counts.next().is_some_and(|it| it.word.verdict == Verdict::Allow);
            let why = format!(
                "{} of identity {}, source port {}",
                shown(part),
                identity.number(),
                flow.source_port
            );
            found(allowed, &why)
        }
        (Some((word, part)), _) => {
            let why = format!("{} of identity {}", shown(part), identity.number());
            found(word.verdict == Verdict::Allow, &why)
        }
        (None, Some(word)) => found(word.verdict == Verdict::Allow, "the default of the address"),
        (None, None) => found(true, "the table has nothing of the address"),
    }
}

/// A single address wins over the prefix around it.
fn identity(decisions: &Decisions, address: IpAddr) -> Identity {
    let single = decisions.identities.get(&host_net(address)).copied();
    let around = || {
        let mut nets = decisions.identities.iter();
        nets.find(|(net, _)| net.contains(&address)).map(|(_, identity)| *identity)
    };
    single.or_else(around).unwrap_or(Identity::WORLD)
}

fn shown(part: Part) -> String {
    match part {
        Part::Port(protocol, port) => format!("{}/{port}", protocol_name(protocol)),
        Part::Range(protocol, first, last) => format!("{}/{first}-{last}", protocol_name(protocol)),
        Part::Protocol(protocol) => protocol_name(protocol),
        Part::All => "everything".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use russet_verdict::ir::Protocol;
    use russet_verdict::table::SourceRange;

    use super::*;

    const LOCAL: &str = "10.1.0.2";

    fn flow(source: &str, port: u16) -> Flow {
        let [source, destination] = [source, LOCAL].map(|text| text.parse().unwrap());
        Flow { source, destination, protocol: Protocol::TCP, source_port: 40_000, destination_port: port }
    }

    fn decisions(elements: &[(u32, Part, Word)]) -> Decisions {
        let local = LOCAL.parse().unwrap();
        let mut all = Decisions::default();
        all.defaults.insert((Direction::Ingress, local), Word::DENY);
        all.identities.insert("10.2.0.0/16".parse().unwrap(), Identity::new(16).unwrap());
        all.identities.insert("10.2.0.9/32".parse().unwrap(), Identity::new(17).unwrap());
        for (peer, part, word) in elements {
            let peer = Identity::new(*peer).unwrap();
            all.decisions.insert(Key { direction: Direction::Ingress, local, peer, part: *part }, *word);
        }
        all
    }

    fn allowed(decisions: &Decisions, source: &str, port: u16) -> bool {
        judge(decisions, Direction::Ingress, &flow(source, port), false).allowed
    }

    #[test]
    fn the_narrowest_element_decides_and_then_the_default() {
        let tcp = Protocol::TCP;
        let all = decisions(&[
            (16, Part::Port(tcp, 80), Word::ALLOW),
            (16, Part::Range(tcp, 79, 90), Word::DENY),
            (16, Part::Protocol(tcp), Word::ALLOW),
            (16, Part::All, Word::DENY),
            (17, Part::All, Word::ALLOW),
        ]);
        let answers = [79, 80, 90, 91].map(|port| allowed(&all, "10.2.3.4", port));
        assert_eq!(answers, [false, true, false, true]);
        assert!(allowed(&all, "10.2.0.9", 79), "its own identity");
        assert!(!allowed(&all, "192.0.2.1", 80), "the default");
    }

    #[test]
    fn the_port_of_the_source_decides_where_an_element_says_so() {
        let mut wide = decisions(&[(16, Part::All, Word::WIDE)]);
        assert!(!allowed(&wide, "10.2.3.4", 80), "without ranges nothing is allowed");
        let key = *wide.decisions.keys().next().unwrap();
        let ranges = [(0, 39_999, Word::DENY), (40_000, u16::MAX, Word::ALLOW)];
        let ranges = ranges.map(|(first, last, word)| SourceRange { first, last, word }).to_vec();
        wide.wide.insert(key, ranges);
        assert!(allowed(&wide, "10.2.3.4", 80), "the flow's is 40000");
        let other = Flow { source_port: 39_999, ..flow("10.2.3.4", 80) };
        assert!(!judge(&wide, Direction::Ingress, &other, false).allowed);
    }

    #[test]
    fn only_the_node_reaches_a_held_address() {
        let mut all = decisions(&[(17, Part::All, Word::ALLOW)]);
        all.held.insert(LOCAL.parse().unwrap());
        assert!(!allowed(&all, "10.2.0.9", 80));
        assert!(judge(&all, Direction::Ingress, &flow("10.0.0.1", 80), true).allowed);
        assert!(allowed(&Decisions::default(), "10.2.0.9", 80), "no policy");
    }
}
