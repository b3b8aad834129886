//! The eBPF programs of the tunnel device and of pods' host ends: which of them is where, and under
//! which name. `crates/linux/bpf/sdn_*.c` are their sources.
//!
//! nf_tables and the programs communicate through the packet's mark: bit 24 says that the low 24
//! bits are a network ID, bit 25 that the packet may be delivered to a pod. Packets without a stamp
//! do not leave the node, and packets without bit 25 do not reach a pod: with an empty ruleset no
//! pod is reachable, instead of every pod by all.

use russet_linux::bpf::{BpfError, Object, Program, programs};
use russet_netlink::Direction;

/// The mark's bit that says that the low bits are a network ID.
pub(super) const STAMPED: u32 = 1 << 24;
/// The mark's bit that says that the packet passed its verdict and may be delivered.
pub(super) const PASSED: u32 = 1 << 25;

/// The hook to which a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// Packets that the tunnel device receives.
    FromTunnel,
    /// Packets that it sends.
    IntoTunnel,
    /// Packets that a host end sends to its pod.
    ToPod,
}

/// A program with a name that contains a digest of its object, by which an attached program is
/// recognised.
pub(super) struct NamedProgram {
    pub(super) name: String,
    pub(super) direction: Direction,
    object: &'static [u8],
}

pub(super) fn for_hook(hook: Hook) -> NamedProgram {
    let (short, direction, object) = match hook {
        Hook::FromTunnel => ("sdn_ingress", Direction::Ingress, programs::SDN_INGRESS),
        Hook::IntoTunnel => ("sdn_egress", Direction::Egress, programs::SDN_EGRESS),
        Hook::ToPod => ("sdn_delivery", Direction::Egress, programs::SDN_DELIVERY),
    };
    NamedProgram { name: format!("russet-{short}-{:08x}", digest(object)), direction, object }
}

impl NamedProgram {
    /// Loads it into the kernel.
    pub(super) fn load(&self) -> Result<Program, BpfError> {
        Program::load(&Object::read(self.object)?, &[])
    }
}

/// FNV-1a, which tells releases of a program apart; it is not a security measure.
fn digest(object: &[u8]) -> u32 {
    object.iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use russet_linux::bpf::{Packet, Ran};

    use super::*;

    const ALL: [Hook; 3] = [Hook::FromTunnel, Hook::IntoTunnel, Hook::ToPod];
    const OK: i32 = 0;
    const SHOT: i32 = 2;
    const IPV4: u16 = 0x0800;
    const ARP: u16 = 0x0806;
    const IPV6: u16 = 0x86dd;
    /// The MAC of a node's neighbour entry, and the inner destination.
    const NODE: [u8; 6] = [0x0a, 0x58, 192, 168, 77, 2];
    const POD: [u8; 4] = [10, 128, 4, 10];

    /// A frame with an IPv4 header, whatever its type says, and as long as the kernel wants one of IPv6.
    fn frame(mac: [u8; 6], kind: u16) -> Vec<u8> {
        let mut frame = vec![0; 14 + 40];
        frame[..6].copy_from_slice(&mac);
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        frame[14] = 0x45;
        frame[30..34].copy_from_slice(&POD);
        frame
    }

    fn run(program: &Program, frame: &[u8], mark: u32) -> Ran {
        program.run(&Packet { frame, mark, ..Packet::default() }).unwrap()
    }

    #[test]
    fn the_programs_are_readable_objects_under_distinct_names() {
        let all = ALL.map(for_hook);
        for program in &all {
            let object = Object::read(program.object).unwrap();
            assert!(program.name.starts_with(&format!("russet-{}-", object.name())), "{}", program.name);
            assert_eq!(object.maps(), []);
        }
        let names: std::collections::BTreeSet<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names.len(), ALL.len());
        assert_eq!(for_hook(Hook::ToPod).name, all[2].name);
    }

    #[test]
    fn programs_and_rules_have_the_same_bits_of_the_mark() {
        let header = include_str!("../../../linux/bpf/sdn.h");
        for (name, bit) in [("STAMPED", STAMPED), ("PASSED", PASSED)] {
            let line = format!("#define {name} (1u << {})", bit.trailing_zeros());
            assert!(header.lines().any(|found| found == line), "{line}");
        }
    }

    #[test]
    #[ignore = "kernel: bpf(2) needs root"]
    fn a_packet_to_another_node_needs_its_stamp_and_loses_it() {
        let egress = for_hook(Hook::IntoTunnel).load().unwrap();
        let ran = run(&egress, &frame(NODE, IPV4), STAMPED | 4711);
        let mut expected = frame(NODE, IPV4);
        expected[2..6].copy_from_slice(&POD);
        assert_eq!(ran, Ran { verdict: OK, frame: expected, mark: 0 });
        let dropped = [
            (frame(NODE, IPV4), 4711),
            (frame(NODE, IPV4), PASSED),
            (frame([0x0a, 0x59, 1, 1, 1, 1], IPV4), STAMPED | 4711),
        ];
        for (frame, mark) in dropped {
            assert_eq!(run(&egress, &frame, mark), Ran { verdict: SHOT, frame, mark });
        }
        for kind in [ARP, IPV6] {
            let ran = run(&egress, &frame(NODE, kind), 0);
            assert_eq!(ran, Ran { verdict: OK, frame: frame(NODE, kind), mark: 0 });
        }
    }

    #[test]
    #[ignore = "kernel: bpf(2) needs root"]
    fn a_packet_that_came_through_no_tunnel_gets_no_stamp() {
        let ingress = for_hook(Hook::FromTunnel).load().unwrap();
        assert_eq!(run(&ingress, &frame(NODE, IPV4), 7).verdict, SHOT);
        for kind in [ARP, IPV6] {
            assert_eq!(
                run(&ingress, &frame(NODE, kind), 7),
                Ran { verdict: OK, frame: frame(NODE, kind), mark: 7 }
            );
        }
    }

    #[test]
    #[ignore = "kernel: bpf(2) needs root"]
    fn a_pod_receives_arp_and_judged_packets_only() {
        let delivery = for_hook(Hook::ToPod).load().unwrap();
        let verdicts = [
            (IPV4, 0),
            (IPV4, STAMPED),
            (IPV4, PASSED),
            (IPV4, !PASSED),
            (IPV4, !0),
            (ARP, 0),
            (IPV6, PASSED),
        ]
        .map(|(kind, mark)| run(&delivery, &frame(NODE, kind), mark).verdict);
        assert_eq!(verdicts, [SHOT, SHOT, OK, SHOT, OK, OK, SHOT]);
    }
}
