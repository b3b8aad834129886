//! A small assembler: instructions by name, jumps to labels, encoded in the kernel's 8 bytes each
//! (linux/bpf.h, linux/bpf_common.h).

use std::collections::BTreeMap;

/// A register. R0 has the result of a call, R1 to R5 are its arguments and are clobbered by it, R6
/// to R9 are preserved, R10 is the frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the type says it")]
pub enum Reg {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    R6 = 6,
    R10 = 10,
}

/// The width of a memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// One byte.
    Byte,
    /// Two.
    Half,
    /// Four.
    Word,
}

/// The right side of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A register.
    Reg(Reg),
    /// A number, sign-extended to 64 bits.
    Value(i32),
}

/// A position in a program that jumps refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label(pub u8);

/// One instruction; memory is a register and an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insn {
    /// `to = from`
    Move(Reg, Source),
    /// `to += value`
    Add(Reg, i32),
    /// `to &= value`, of 64 bits
    And(Reg, i32),
    /// `to |= value`, of 64 bits
    Or(Reg, i32),
    /// Converts the low four bytes of a register between network and machine byte order.
    NetworkWord(Reg),
    /// `to = memory`
    Load(Size, Reg, Reg, i16),
    /// `memory = register`
    Store(Size, Reg, i16, Reg),
    /// `memory = number`
    StoreValue(Size, Reg, i16, i32),
    /// Jumps to the label if the register is not equal to the number.
    JumpUnless(Reg, i32, Label),
    /// Jumps to the label if register and number have no bit in common.
    JumpUnlessBits(Reg, i32, Label),
    /// Calls one of the kernel's helpers.
    Call(i32),
    /// Returns R0.
    Exit,
    /// The position of a label; no instruction.
    At(Label),
}

// Classes, modes and operations.
const LDX_MEM: u8 = 0x61;
const ST_MEM: u8 = 0x62;
const STX_MEM: u8 = 0x63;
const MOV64: u8 = 0xb7;
const ADD64_K: u8 = 0x07;
const AND64_K: u8 = 0x57;
const OR64_K: u8 = 0x47;
const FROM_SOURCE_REGISTER: u8 = 0x08;
/// `BPF_ALU | BPF_END | BPF_TO_BE`
const TO_BIG_ENDIAN: u8 = 0xdc;
const JNE_K: u8 = 0x55;
const JSET_K: u8 = 0x45;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The encoded program; `None` if a jump has no label, or one that is too far away.
pub fn assemble(program: &[Insn]) -> Option<Vec<u64>> {
    let mut labels = BTreeMap::new();
    let mut position = 0_i32;
    for insn in program {
        if let Insn::At(label) = insn {
            labels.insert(*label, position);
        }
        position += insn.slots();
    }
    let mut code = Vec::new();
    for insn in program {
        let here = i32::try_from(code.len()).ok()?;
        let to = |label: &Label, behind: i32| i16::try_from(labels.get(label)? - here - behind).ok();
        match insn {
            Insn::At(_) => {}
            Insn::JumpUnless(register, value, label) => {
                code.push(encode(JNE_K, *register as u8, 0, to(label, 1)?, *value));
            }
            Insn::JumpUnlessBits(register, value, label) => {
                // There is no such instruction: jump over the next one if a bit is set.
                code.push(encode(JSET_K, *register as u8, 0, 1, *value));
                code.push(encode(JUMP, 0, 0, to(label, 2)?, 0));
            }
            insn => code.push(insn.encode()),
        }
    }
    Some(code)
}

/// `struct bpf_insn`: operation, both registers, offset, number.
fn encode(operation: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    let (offset, value) = (offset.to_ne_bytes(), value.to_ne_bytes());
    u64::from_ne_bytes([operation, registers, offset[0], offset[1], value[0], value[1], value[2], value[3]])
}

// === impl Insn ===

impl Insn {
    const fn slots(&self) -> i32 {
        match self {
            Self::At(_) => 0,
            Self::JumpUnlessBits(..) => 2,
            _ => 1,
        }
    }

    /// Encodes instructions that need no label.
    fn encode(&self) -> u64 {
        match *self {
            Self::Move(to, Source::Value(value)) => encode(MOV64, to as u8, 0, 0, value),
            Self::Move(to, Source::Reg(from)) => {
                encode(MOV64 | FROM_SOURCE_REGISTER, to as u8, from as u8, 0, 0)
            }
            Self::Add(to, value) => encode(ADD64_K, to as u8, 0, 0, value),
            Self::And(to, value) => encode(AND64_K, to as u8, 0, 0, value),
            Self::Or(to, value) => encode(OR64_K, to as u8, 0, 0, value),
            Self::NetworkWord(register) => encode(TO_BIG_ENDIAN, register as u8, 0, 0, 32),
            Self::Load(size, to, base, offset) => {
                encode(LDX_MEM | size.bits(), to as u8, base as u8, offset, 0)
            }
            Self::Store(size, base, offset, from) => {
                encode(STX_MEM | size.bits(), base as u8, from as u8, offset, 0)
            }
            Self::StoreValue(size, base, offset, value) => {
                encode(ST_MEM | size.bits(), base as u8, 0, offset, value)
            }
            Self::Call(helper) => encode(CALL, 0, 0, 0, helper),
            Self::Exit | Self::At(_) | Self::JumpUnless(..) | Self::JumpUnlessBits(..) => {
                encode(EXIT, 0, 0, 0, 0)
            }
        }
    }
}

// === impl Size ===

impl Size {
    const fn bits(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Half => 0x08,
            Self::Byte => 0x10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_the_kernels_bytes() {
        // As printed by `llvm-mc -triple=bpf -show-encoding` on a little-endian machine.
        let bytes = |insn: Insn| assemble(&[insn]).unwrap()[0].to_le_bytes();
        if cfg!(target_endian = "little") {
            assert_eq!(bytes(Insn::Move(Reg::R0, Source::Value(2))), [0xb7, 0, 0, 0, 2, 0, 0, 0]);
            assert_eq!(bytes(Insn::Move(Reg::R6, Source::Reg(Reg::R1))), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
            assert_eq!(bytes(Insn::Load(Size::Word, Reg::R2, Reg::R1, 8)), [0x61, 0x12, 8, 0, 0, 0, 0, 0]);
            assert_eq!(
                bytes(Insn::Store(Size::Word, Reg::R10, -8, Reg::R1)),
                [0x63, 0x1a, 0xf8, 0xff, 0, 0, 0, 0]
            );
            assert_eq!(
                bytes(Insn::Load(Size::Half, Reg::R1, Reg::R10, -2)),
                [0x69, 0xa1, 0xfe, 0xff, 0, 0, 0, 0]
            );
            assert_eq!(bytes(Insn::NetworkWord(Reg::R1)), [0xdc, 1, 0, 0, 32, 0, 0, 0]);
            assert_eq!(bytes(Insn::Exit), [0x95, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn a_jump_goes_to_its_label_and_a_missing_one_is_no_program() {
        let out = Label(0);
        let jump = Insn::JumpUnlessBits(Reg::R1, 1, out);
        let code = assemble(&[jump, Insn::Exit, Insn::At(out), Insn::Exit]).unwrap();
        assert_eq!(
            code,
            [
                encode(JSET_K, 1, 0, 1, 1),
                encode(JUMP, 0, 0, 1, 0),
                encode(EXIT, 0, 0, 0, 0),
                encode(EXIT, 0, 0, 0, 0)
            ]
        );
        assert_eq!(assemble(&[jump, Insn::Exit]), None);
    }
}
