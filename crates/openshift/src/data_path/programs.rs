//! The eBPF programs of the tunnel device and of pods' host ends. They are assembled here, because
//! nodes have no compiler; they are short and need no map.
//!
//! nf_tables and the programs communicate through the packet's mark: bit 24 says that the low 24
//! bits are a network ID, bit 25 that the packet may be delivered to a pod. Packets without a stamp
//! do not leave the node, and packets without bit 25 do not reach a pod: with an empty ruleset no
//! pod is reachable, instead of every pod by all.

use russet_linux::bpf::{BpfError, Insn, Label, Program, ProgramKind, Reg, Size, Source, assemble};
use russet_netlink::Direction;

use Insn::{And, At, Call, Exit, JumpUnless, JumpUnlessBits, Load, Move, NetworkWord, Or, Store, StoreValue};
use Reg::{R0, R1, R2, R3, R4, R5, R6, R10};
use Size::{Byte, Half, Word};
use Source::Value;

/// The mark's bit that says that the low bits are a network ID.
pub(super) const STAMPED: u32 = 1 << 24;
/// The mark's bit that says that the packet passed its verdict and may be delivered.
pub(super) const PASSED: u32 = 1 << 25;
const NETID_MASK: i32 = (1 << 24) - 1;

// Helpers (`enum bpf_func_id`).
const SKB_STORE_BYTES: i32 = 9;
const SKB_GET_TUNNEL_KEY: i32 = 20;
const SKB_SET_TUNNEL_KEY: i32 = 21;
const SKB_LOAD_BYTES: i32 = 26;
const SKB_CHANGE_TYPE: i32 = 32;

// Offsets in `struct __sk_buff`.
const SKB_MARK: i16 = 8;
const SKB_PROTOCOL: i16 = 16;

/// `ETH_P_IP` in network byte order, as an integer of this machine.
const ETH_P_IP: i32 = 0x0800_u16.to_be() as i32;
const ETH_P_ARP: i32 = 0x0806_u16.to_be() as i32;
const PACKET_HOST: i32 = 0;
const TC_ACT_OK: i32 = 0;
const TC_ACT_SHOT: i32 = 2;

/// Stack offset of the copied Ethernet and IPv4 headers, chosen so that the word behind the first
/// two octets of the destination MAC is aligned.
const HEADERS: i16 = -42;
const HEADERS_BYTES: i32 = 34;
const MAC_WORD: i16 = HEADERS + 2;
const DESTINATION: i16 = HEADERS + 14 + 16;
/// `0a:58`, the prefix of the MACs of pods, and of nodes in our neighbour entries.
const MAC_PREFIX: i32 = u16::from_ne_bytes([0x0a, 0x58]) as i32;

/// `struct bpf_tunnel_key` up to the flow label: the size that kernels since 4.6 accept.
const KEY: i16 = -72;
const KEY_BYTES: i32 = 28;
const KEY_REMOTE: i16 = KEY + 4;
const KEY_TTL: i16 = KEY + 21;
/// The outer TTL, as Open vSwitch has it.
const TTL: i32 = 64;

const DROP: Label = Label(0);
const PASS: Label = Label(1);
const OTHER: Label = Label(2);

/// Runs on packets to other nodes. The node's address in the destination MAC becomes the remote
/// end, the network ID in the mark becomes the VNI, and the inner destination becomes the MAC, as
/// peers with Open vSwitch expect. The mark is cleared, because it would select routes and rules
/// for the outer packet.
fn egress() -> Vec<Insn> {
    let mut program = vec![
        Move(R6, Source::Reg(R1)),
        // Packets other than IPv4 (replies to a peer's ARP request) have their tunnel metadata
        // already; vxlan drops those without.
        Load(Word, R2, R1, SKB_PROTOCOL),
        JumpUnless(R2, ETH_P_IP, PASS),
        Load(Word, R1, R6, SKB_MARK),
        JumpUnlessBits(R1, STAMPED as i32, DROP),
    ];
    program.extend(call(SKB_LOAD_BYTES, [(R2, Value(0)), (R4, Value(HEADERS_BYTES))], Some((R3, HEADERS))));
    program.extend([
        JumpUnless(R0, 0, DROP),
        Load(Half, R1, R10, HEADERS),
        JumpUnless(R1, MAC_PREFIX, DROP),
        Load(Word, R1, R10, MAC_WORD),
        NetworkWord(R1),
        Store(Word, R10, KEY_REMOTE, R1),
        Load(Word, R1, R6, SKB_MARK),
        And(R1, NETID_MASK),
        Store(Word, R10, KEY, R1),
    ]);
    // The rest of the remote address, which only IPv6 uses; type of service, TTL, flags and label.
    program
        .extend((KEY_REMOTE + 4..KEY + KEY_BYTES as i16).step_by(4).map(|at| StoreValue(Word, R10, at, 0)));
    program.push(StoreValue(Byte, R10, KEY_TTL, TTL));
    program.extend(call(SKB_SET_TUNNEL_KEY, [(R3, Value(KEY_BYTES)), (R4, Value(0))], Some((R2, KEY))));
    program.push(JumpUnless(R0, 0, DROP));
    program.extend(call(SKB_STORE_BYTES, [(R2, Value(2)), (R4, Value(4))], Some((R3, DESTINATION))));
    program.extend([JumpUnless(R0, 0, DROP), Move(R1, Value(0)), Store(Word, R6, SKB_MARK, R1)]);
    program.extend(verdicts());
    program
}

/// Runs on packets from other nodes. The VNI becomes the mark, and the packet is marked as
/// addressed to this host, whatever destination MAC the sender chose.
fn ingress() -> Vec<Insn> {
    let mut program =
        vec![Move(R6, Source::Reg(R1)), Load(Word, R2, R1, SKB_PROTOCOL), JumpUnless(R2, ETH_P_IP, PASS)];
    program.extend((KEY..KEY + KEY_BYTES as i16).step_by(4).map(|at| StoreValue(Word, R10, at, 0)));
    program.extend(call(SKB_GET_TUNNEL_KEY, [(R3, Value(KEY_BYTES)), (R4, Value(0))], Some((R2, KEY))));
    program.extend([
        JumpUnless(R0, 0, DROP),
        Load(Word, R1, R10, KEY),
        And(R1, NETID_MASK),
        Or(R1, STAMPED as i32),
        Store(Word, R6, SKB_MARK, R1),
    ]);
    program.extend(call(SKB_CHANGE_TYPE, [(R2, Value(PACKET_HOST)), (R3, Value(0))], None));
    program.extend(verdicts());
    program
}

/// Runs on packets to a pod. It passes packets with a verdict, and ARP. So pods stay unreachable
/// while the rules are missing, incomplete or being replaced: hooks do not change all at once, and
/// a packet in transit may miss one.
fn delivery() -> Vec<Insn> {
    let mut program = vec![
        Load(Word, R2, R1, SKB_PROTOCOL),
        // Ordered by frequency.
        JumpUnless(R2, ETH_P_IP, OTHER),
        Load(Word, R2, R1, SKB_MARK),
        JumpUnlessBits(R2, PASSED as i32, DROP),
        Move(R0, Value(TC_ACT_OK)),
        Exit,
        At(OTHER),
        JumpUnless(R2, ETH_P_ARP, DROP),
    ];
    program.extend(verdicts());
    program
}

/// Loads a helper's arguments and calls it; `stack` is the argument that points to the stack.
fn call(helper: i32, arguments: [(Reg, Source); 2], stack: Option<(Reg, i16)>) -> Vec<Insn> {
    let mut program = vec![Move(R1, Source::Reg(R6))];
    if let Some((register, offset)) = stack {
        program.extend([Move(register, Source::Reg(R10)), Insn::Add(register, offset.into())]);
    }
    program.extend(arguments.map(|(register, source)| Move(register, source)));
    // The fifth argument, flags, of the helpers that have one.
    program.extend([Move(R5, Value(0)), Call(helper)]);
    program
}

fn verdicts() -> [Insn; 6] {
    [At(PASS), Move(R0, Value(TC_ACT_OK)), Exit, At(DROP), Move(R0, Value(TC_ACT_SHOT)), Exit]
}

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

/// A program with a name that contains a digest of its code, by which an attached program is
/// recognised.
pub(super) struct NamedProgram {
    pub(super) name: String,
    pub(super) direction: Direction,
    short: &'static str,
    code: Vec<u64>,
}

pub(super) fn for_hook(hook: Hook) -> NamedProgram {
    let (short, direction, program) = match hook {
        Hook::FromTunnel => ("sdn_ingress", Direction::Ingress, ingress()),
        Hook::IntoTunnel => ("sdn_egress", Direction::Egress, egress()),
        Hook::ToPod => ("sdn_delivery", Direction::Egress, delivery()),
    };
    // A test checks that every jump has its label; the verifier refuses an empty program.
    let code = assemble(&program).unwrap_or_default();
    NamedProgram { name: format!("russet-{short}-{:08x}", digest(&code)), direction, short, code }
}

impl NamedProgram {
    /// Loads it into the kernel.
    pub(super) fn load(&self) -> Result<Program, BpfError> {
        Program::load(ProgramKind::SchedCls, self.short, &self.code)
    }
}

/// FNV-1a, which tells releases of a program apart; it is not a security measure.
fn digest(code: &[u64]) -> u32 {
    let bytes = code.iter().flat_map(|word| word.to_ne_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Hook; 3] = [Hook::FromTunnel, Hook::IntoTunnel, Hook::ToPod];

    #[test]
    fn the_programs_assemble_under_distinct_names() {
        let all = ALL.map(for_hook);
        assert_eq!(all.each_ref().map(|it| it.code.len() > 8), [true; 3]);
        let names: std::collections::BTreeSet<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names.len(), ALL.len());
        assert_eq!(for_hook(Hook::ToPod).name, all[2].name);
    }

    #[test]
    #[ignore = "kernel: bpf(2) needs root"]
    fn the_verifier_accepts_every_program() {
        for hook in ALL {
            for_hook(hook).load().unwrap();
        }
    }
}
