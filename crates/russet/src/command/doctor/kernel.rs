//! The kernel: its features, its settings, and its tables that may be full.

use russet_addr::Family;
use russet_agent::FastPathMode;
use russet_linux::bpf::Support;
use russet_linux::{conntrack, probe, sysctl};
use russet_netlink::{NeighbourState, NetlinkError, Socket};

use super::needs::Needs;
use crate::command::findings::{FindingKind, Findings};

/// A table with this part of its limit in use is reported, in percent: bursts need the rest.
const FULL_PERCENT: u64 = 90;
/// Fewer wrong checksums than this are line noise.
const CHECKSUMS_MIN: u64 = 10;
/// The part of packets with wrong checksums that is reported: one of so many.
const CHECKSUMS_ONE_OF: u64 = 100;

/// Examines the kernel.
pub fn look(needs: &Needs, report: &mut Findings) {
    features(needs, report);
    fast_path(needs.fast_path, report);
    for family in &needs.families {
        forwarding(*family, report);
        if let Err(error) = neighbours(*family, report) {
            report.unknown.push(format!("neighbours: {error}"));
        }
    }
    connections(report);
    for (file, text) in
        ["/proc/net/snmp", "/proc/net/snmp6"].map(|file| (file, std::fs::read_to_string(file)))
    {
        if let Some((wrong, received)) = text.ok().as_deref().and_then(udp_checksums) {
            checksums(file, wrong, received, report);
        }
    }
}

fn features(needs: &Needs, report: &mut Findings) {
    for (feature, why) in needs.features() {
        match probe::supports(feature) {
            Ok(true) => {}
            Ok(false) => {
                let name = feature.name();
                report.found(
                    FindingKind::KernelFeature,
                    name,
                    format!("this kernel lacks it, and {why}"),
                    format!("try `modprobe {name}`; where that fails, install the kernel's package of further modules, or another kernel"),
                );
            }
            Err(error) => report.unknown.push(error.to_string()),
        }
    }
}

/// What the fast path lacks. The kernel's path carries all packets then.
fn fast_path(mode: FastPathMode, report: &mut Findings) {
    let follows = match mode {
        FastPathMode::Off => return,
        FastPathMode::Auto => "the kernel's path carries all packets",
        FastPathMode::Require => "the agent is not ready",
    };
    let support = Support::probe();
    if let Some((need, why)) = support.missing().first() {
        report.found(
            FindingKind::KernelFeature,
            "fast path",
            format!("it needs {need}, and {follows}: {why}"),
            "use a kernel with BPF (Linux 6.1 or later), and let the agent run as root or with CAP_BPF and CAP_NET_ADMIN; or set `fast_path = \"off\"`",
        );
    }
}

fn forwarding(family: Family, report: &mut Findings) {
    let (name, protocol) = match family {
        Family::V4 => ("net/ipv4/ip_forward", "IPv4"),
        Family::V6 => ("net/ipv6/conf/all/forwarding", "IPv6"),
    };
    match sysctl::read(name) {
        Ok(value) if value == "0" => report.found_setting(
            FindingKind::Forwarding,
            (name, "1"),
            format!("it is 0: the kernel forwards no {protocol} packet to or from pods"),
        ),
        Ok(_) => {}
        Err(error) if error.is_missing() => report.found(
            FindingKind::Forwarding,
            name,
            format!("the kernel has no {protocol}, and pools have {protocol} addresses"),
            format!("start the kernel with {protocol}, or delete these pools"),
        ),
        Err(error) => report.unknown.push(error.to_string()),
    }
}

/// Connection tracking drops each packet that would begin one more connection than its limit.
fn connections(report: &mut Findings) {
    let Some(table @ (_, limit)) = conntrack::connections() else { return };
    if let Some(problem) = conntrack::nearly_full(table) {
        let remedy =
            format!("raise it: sysctl -w net.netfilter.nf_conntrack_max={}", limit.saturating_mul(2));
        report.found(FindingKind::Connections, conntrack::LIMIT, problem, remedy);
    }
}

/// The kernel refuses a neighbour beyond its limit, and with it packets to nodes and pods.
fn neighbours(family: Family, report: &mut Findings) -> Result<(), NetlinkError> {
    let ip = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    let name = format!("net/{ip}/neigh/default/gc_thresh3");
    // The limit is shared by all network namespaces, and shown in the first one only.
    let Some(limit) = sysctl::read(&name).ok().and_then(|value| value.parse().ok()) else { return Ok(()) };
    let counts = |state| !matches!(state, NeighbourState::Permanent | NeighbourState::NoArp);
    let all = Socket::route()?.neighbours(family)?;
    let used = all.iter().filter(|it| counts(it.state)).count() as u64;
    if is_full(used, limit) {
        let problem = format!(
            "{used} neighbours are known, and at most {limit} can be: packets to further ones are dropped"
        );
        let remedy =
            format!("raise it: sysctl -w net.{ip}.neigh.default.gc_thresh3={}", limit.saturating_mul(4));
        report.found(FindingKind::Neighbours, name, problem, remedy);
    }
    Ok(())
}

fn is_full(used: u64, limit: u64) -> bool {
    limit > 0 && used.saturating_mul(100) >= limit.saturating_mul(FULL_PERCENT)
}

/// Outer headers with wrong checksums come from network cards that compute them wrongly for tunnels.
fn checksums(file: &str, wrong: u64, received: u64, report: &mut Findings) {
    let all = wrong.saturating_add(received);
    if wrong >= CHECKSUMS_MIN && wrong.saturating_mul(CHECKSUMS_ONE_OF) >= all {
        report.found(
            FindingKind::Checksums,
            file,
            format!("{wrong} of {all} UDP packets since the boot had wrong checksums and were dropped; a tunnel's packets are UDP"),
            "on the nodes that send them, try `ethtool -K INTERFACE tx-checksum-ip-generic off`; it is an error of the network card or its driver",
        );
    }
}

/// UDP packets with wrong checksums, and those that were received.
fn udp_checksums(text: &str) -> Option<(u64, u64)> {
    // Of IPv6: a counter in each line.
    let counter = |name: &str| {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
        values.find_map(|rest| rest.strip_prefix(char::is_whitespace)?.trim().parse().ok())
    };
    if let (Some(wrong), Some(received)) = (counter("Udp6InCsumErrors"), counter("Udp6InDatagrams")) {
        return Some((wrong, received));
    }
    // Of IPv4: a line of names, and a line of values.
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |name: &str| {
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        pairs.find(|(found, _)| *found == name)?.1.parse().ok()
    };
    Some((value("InCsumErrors")?, value("InDatagrams")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_checksums_are_found_in_both_files_of_the_kernel() {
        let four = "Tcp: InErrs InCsumErrors\nTcp: 1 2\nUdp: InDatagrams NoPorts InCsumErrors\nUdp: 900 3 100\nUdpLite: InDatagrams InCsumErrors\nUdpLite: 7 8\n";
        assert_eq!(udp_checksums(four), Some((100, 900)));
        let six = "Udp6InDatagrams                 \t40\nUdp6InCsumErrors                \t5\nUdpLite6InDatagrams 9\n";
        assert_eq!(udp_checksums(six), Some((5, 40)));
        assert_eq!(udp_checksums("Udp: InDatagrams\nUdp: 1\n"), None);
        assert_eq!(udp_checksums(""), None);
        let count = |wrong, received| {
            let mut report = Findings::default();
            checksums("f", wrong, received, &mut report);
            report.findings.len()
        };
        assert_eq!([count(9, 0), count(10, 0), count(10, 990), count(10, 991)], [0, 1, 1, 0]);
    }

    #[test]
    #[ignore = "kernel: bpf(2) needs root"]
    fn what_the_fast_path_lacks_is_found_while_it_is_wanted() {
        let found = |mode| {
            let mut report = Findings::default();
            fast_path(mode, &mut report);
            report.findings.into_iter().map(|it| it.problem).collect::<Vec<_>>()
        };
        assert_eq!(found(FastPathMode::Require), [""; 0]);
        russet_testkit::without_capabilities(|| {
            assert_eq!(found(FastPathMode::Off), [""; 0]);
            let [auto, required] =
                [FastPathMode::Auto, FastPathMode::Require].map(|mode| found(mode).concat());
            assert!(
                auto.starts_with("it needs BPF programs, and the kernel's path carries all packets: "),
                "{auto}"
            );
            assert!(
                required.contains("the agent is not ready: ") && required.contains("CAP_BPF"),
                "{required}"
            );
        });
    }

    #[test]
    fn a_table_is_full_before_its_limit() {
        assert_eq!([is_full(89, 100), is_full(90, 100), is_full(5, 0)], [false, true, false]);
    }
}
