//! The rules of flannel's current version (flannel.md section 7.1), independent of nf_tables and
//! iptables. Pure.

use russet_addr::{Family, IpNet};

use super::Wanted;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Only packets that kube-proxy marked.
    pub(crate) marked: bool,
    pub(crate) source: Side,
    pub(crate) destination: Side,
    pub(crate) action: Action,
}

/// A condition on an address of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Any,
    In(IpNet),
    NotIn(IpNet),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Accept,
    Return,
    Masquerade,
}

/// kube-proxy's mark of packets that it masquerades itself; masquerading twice lost packets on some
/// kernels.
pub(crate) const KUBE_PROXY_MARK: u32 = 0x4000;

/// The rules of the postrouting chain, in order; empty where nothing is masqueraded.
pub(crate) fn masquerade(wanted: &Wanted, family: Family) -> Vec<Line> {
    let networks = of_family(&wanted.networks, family);
    if !wanted.masquerade || networks.is_empty() {
        return Vec::new();
    }
    let own = of_family(&wanted.own, family);
    let mut lines = vec![Line { marked: true, ..Line::new(Side::Any, Side::Any, Action::Return) }];
    for subnet in &own {
        for network in &networks {
            lines.push(Line::new(Side::In(*subnet), Side::In(*network), Action::Return));
            lines.push(Line::new(Side::In(*network), Side::In(*subnet), Action::Return));
        }
    }
    // A pod of this node sees the real source of traffic from outside.
    lines.extend(own.iter().map(|subnet| {
        let home = networks.iter().find(|network| network.contains(subnet));
        Line::new(home.map_or(Side::Any, |home| Side::NotIn(*home)), Side::In(*subnet), Action::Return)
    }));
    let leaving = Side::NotIn(multicast(family));
    lines.extend(networks.iter().map(|net| Line::new(Side::In(*net), leaving, Action::Masquerade)));
    // Replies to the node's own traffic to other nodes' pods would bypass the tunnel.
    lines.extend(networks.iter().map(|net| Line::new(Side::NotIn(*net), Side::In(*net), Action::Masquerade)));
    lines.retain(|line| !line.source.is_never() && !line.destination.is_never());
    lines
}

/// The rules that accept pods' packets, in order; empty if `forward` is off.
pub(crate) fn forward(wanted: &Wanted, family: Family) -> Vec<Line> {
    let networks = if wanted.forward { of_family(&wanted.networks, family) } else { Vec::new() };
    let both = |net: IpNet| {
        [
            Line::new(Side::In(net), Side::Any, Action::Accept),
            Line::new(Side::Any, Side::In(net), Action::Accept),
        ]
    };
    networks.into_iter().flat_map(both).collect()
}

/// Multicast keeps its source.
fn multicast(family: Family) -> IpNet {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match family {
        Family::V4 => IpNet::new_assert(Ipv4Addr::new(224, 0, 0, 0).into(), 4),
        Family::V6 => IpNet::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
    }
}

fn of_family(nets: &[IpNet], family: Family) -> Vec<IpNet> {
    let mut nets: Vec<IpNet> =
        nets.iter().filter(|net| Family::of_net(net) == family).map(IpNet::trunc).collect();
    nets.sort();
    nets.dedup();
    nets
}

// === impl Line ===

impl Line {
    fn new(source: Side, destination: Side, action: Action) -> Self {
        Self { marked: false, source, destination, action }
    }
}

// === impl Side ===

impl Side {
    /// Whether no address can match: nothing lies outside of a network of all addresses.
    fn is_never(self) -> bool {
        matches!(self, Self::NotIn(net) if net.prefix_len() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(networks: &[&str], own: &[&str]) -> Wanted {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Wanted {
            networks: nets(networks),
            own: nets(own),
            masquerade: true,
            random_fully: true,
            forward: true,
        }
    }

    fn text(lines: &[Line]) -> Vec<String> {
        let side = |name: &str, side: &Side| match side {
            Side::Any => String::new(),
            Side::In(net) => format!("{name} {net} "),
            Side::NotIn(net) => format!("! {name} {net} "),
        };
        let line = |line: &Line| {
            let mark = if line.marked { "mark " } else { "" };
            format!("{mark}{}{}{:?}", side("-s", &line.source), side("-d", &line.destination), line.action)
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn the_masquerade_rules_are_those_of_flannel_in_its_order() {
        // flannel.md section 7.1, row "current"
        let wanted = wanted(&["10.5.0.0/16", "fd00:10:5::/48"], &["10.5.29.0/24", "fd00:10:5:30::/64"]);
        let expected = [
            "mark Return",
            "-s 10.5.29.0/24 -d 10.5.0.0/16 Return",
            "-s 10.5.0.0/16 -d 10.5.29.0/24 Return",
            "! -s 10.5.0.0/16 -d 10.5.29.0/24 Return",
            "-s 10.5.0.0/16 ! -d 224.0.0.0/4 Masquerade",
            "! -s 10.5.0.0/16 -d 10.5.0.0/16 Masquerade",
        ];
        assert_eq!(text(&masquerade(&wanted, Family::V4)), expected);
        let six = text(&masquerade(&wanted, Family::V6));
        assert_eq!(six[4], "-s fd00:10:5::/48 ! -d ff00::/8 Masquerade");
        assert_eq!(six.len(), 6);
    }

    #[test]
    fn every_network_is_accepted_in_both_directions() {
        // flannel.md section 7.1
        let wanted = wanted(&["10.6.0.0/16", "10.5.0.0/16", "10.5.0.0/16"], &[]);
        let expected = [
            "-s 10.5.0.0/16 Accept",
            "-d 10.5.0.0/16 Accept",
            "-s 10.6.0.0/16 Accept",
            "-d 10.6.0.0/16 Accept",
        ];
        assert_eq!(text(&forward(&wanted, Family::V4)), expected);
        assert!(forward(&wanted, Family::V6).is_empty());
        assert!(forward(&Wanted { forward: false, ..wanted }, Family::V4).is_empty());
    }

    #[test]
    fn pods_of_several_networks_see_each_others_own_addresses() {
        let wanted = wanted(&["10.5.0.0/16", "10.6.0.0/16"], &["10.6.1.0/24"]);
        let lines = text(&masquerade(&wanted, Family::V4));
        assert_eq!(lines[1], "-s 10.6.1.0/24 -d 10.5.0.0/16 Return");
        assert_eq!(lines[5], "! -s 10.6.0.0/16 -d 10.6.1.0/24 Return");
        assert_eq!(lines.len(), 1 + 4 + 1 + 2 + 2);
    }

    #[test]
    fn a_network_of_all_addresses_needs_no_rule_for_what_is_outside() {
        // flannel.md section 9, #1913: iptables forgets `! -s ::/0`, and the rule seemed to be missing for ever
        let wanted = wanted(&["::/0"], &["fd00::/64"]);
        let expected = [
            "mark Return",
            "-s fd00::/64 -d ::/0 Return",
            "-s ::/0 -d fd00::/64 Return",
            "-s ::/0 ! -d ff00::/8 Masquerade",
        ];
        assert_eq!(text(&masquerade(&wanted, Family::V6)), expected);
    }

    #[test]
    fn without_masquerading_there_is_no_rule() {
        // flannel.md T37
        let wanted = Wanted { masquerade: false, ..wanted(&["10.5.0.0/16"], &["10.5.1.0/24"]) };
        assert!(masquerade(&wanted, Family::V4).is_empty());
        assert!(masquerade(&Wanted { masquerade: true, ..Wanted::default() }, Family::V4).is_empty());
    }
}
