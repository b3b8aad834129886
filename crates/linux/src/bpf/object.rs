//! Reads compiled programs: relocatable ELF files with one program each, as clang makes them of the
//! files in `crates/linux/bpf`. A relocation that is not of a map is refused: functions that are not
//! inlined and data besides maps would be missing in the kernel.

use std::ffi::{CStr, CString};

use super::{BpfError, MapDefinition, MapKind};

/// A compiled program with the maps that it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    name: String,
    license: CString,
    code: Vec<u64>,
    maps: Vec<MapDefinition>,
    /// Instructions that refer to a map: their positions, and the map's.
    uses: Vec<(usize, usize)>,
}

type Result<T> = std::result::Result<T, &'static str>;

struct Section<'a> {
    name: &'a [u8],
    kind: u32,
    /// What relocations apply to.
    info: usize,
    bytes: &'a [u8],
}

struct Symbol<'a> {
    name: &'a [u8],
    kind: u8,
    section: usize,
    value: u64,
    bytes: u64,
}

// elf.h
const IDENTIFICATION: &[u8] = b"\x7fELF\x02\x01\x01";
const EM_BPF: u64 = 247;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const RELOCATION_BYTES: usize = 16;
const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_REL: u32 = 9;
const STT_FUNC: u8 = 2;
/// The number of a map's descriptor goes into the instruction.
const R_BPF_64_64: u64 = 1;

/// `struct map` of russet.h.
const DEFINITION_BYTES: usize = 20;
/// `BPF_LD | BPF_DW | BPF_IMM`, which takes two slots.
const LOAD_WIDE: u64 = 0x18;
/// `BPF_PSEUDO_MAP_FD` as the source register.
const FROM_MAP: u64 = 1 << 12;
/// A program longer than this is none of ours; the kernel's own limit is a million.
const INSTRUCTIONS_MAX: usize = 1 << 14;

// === impl Object ===

impl Object {
    /// Reads a file.
    pub fn read(file: &[u8]) -> std::result::Result<Self, BpfError> {
        read(file).map_err(BpfError::Object)
    }

    /// The name of the function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The maps that the file declares, in the order of their names.
    pub fn maps(&self) -> &[MapDefinition] {
        &self.maps
    }

    pub(super) fn license(&self) -> &CStr {
        &self.license
    }

    /// The instructions with the descriptors of [`Self::maps`].
    pub(super) fn code_with(&self, maps: &[i32]) -> std::result::Result<Vec<u64>, BpfError> {
        let mut code = self.code.clone();
        if maps.len() != self.maps.len() {
            return Err(BpfError::Object("the program has another number of maps"));
        }
        for (at, map) in &self.uses {
            if let (Some(instruction), Some(fd)) = (code.get_mut(*at), maps.get(*map)) {
                *instruction |= FROM_MAP | u64::from(fd.cast_unsigned()) << 32;
            }
        }
        Ok(code)
    }
}

fn read(file: &[u8]) -> Result<Object> {
    if cfg!(target_endian = "big") {
        return Err("the programs are compiled for little-endian machines");
    }
    if !file.starts_with(IDENTIFICATION) || number(file, 18, 2)? != EM_BPF {
        return Err("not an ELF file for BPF");
    }
    let sections = sections(file)?;
    let find = |name: &[u8]| sections.iter().position(|section| section.name == name);
    let at = find(b"tc").ok_or("no section tc")?;
    let text = code(section(&sections, at)?.bytes)?;
    let license = find(b"license").ok_or("no section license")?;
    let license = CStr::from_bytes_until_nul(section(&sections, license)?.bytes);
    let license = license.map_err(|_| "the license has no end")?.to_owned();
    let maps_at = find(b"maps");
    let symbols = symbols(&sections)?;
    let (maps, addresses) = maps(&sections, maps_at, &symbols)?;
    let uses = uses(&sections, at, maps_at, &symbols, &addresses)?;
    if uses.iter().any(|(at, _)| text.get(*at).is_none_or(|word| word & 0xff != LOAD_WIDE)) {
        return Err("a map is used by an instruction that loads no address");
    }
    Ok(Object { name: function(&symbols, at, text.len())?, license, code: text, maps, uses })
}

/// The one function of the program's section.
fn function(symbols: &[Symbol<'_>], section: usize, instructions: usize) -> Result<String> {
    let mut functions = symbols.iter().filter(|it| it.kind == STT_FUNC && it.section == section);
    let (Some(function), None) = (functions.next(), functions.next()) else {
        return Err("not one function");
    };
    if function.value != 0 || usize::try_from(function.bytes).ok() != instructions.checked_mul(8) {
        return Err("the function is not the whole program");
    }
    text(function.name)
}

fn code(bytes: &[u8]) -> Result<Vec<u64>> {
    let (words, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || words.is_empty() || words.len() > INSTRUCTIONS_MAX {
        return Err("no program, or one that is too long");
    }
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// The definitions, and where each of them is in its section.
fn maps(
    sections: &[Section<'_>],
    at: Option<usize>,
    symbols: &[Symbol<'_>],
) -> Result<(Vec<MapDefinition>, Vec<u64>)> {
    let Some(at) = at else { return Ok((Vec::new(), Vec::new())) };
    let bytes = section(sections, at)?.bytes;
    let mut symbols: Vec<&Symbol<'_>> =
        symbols.iter().filter(|it| it.section == at && !it.name.is_empty()).collect();
    symbols.sort_by_key(|symbol| symbol.name);
    if symbols.len() * DEFINITION_BYTES != bytes.len() {
        return Err("the section maps has something else than maps");
    }
    let mut maps = Vec::new();
    for symbol in &symbols {
        let start = usize::try_from(symbol.value).unwrap_or(usize::MAX);
        let field = |index: usize| {
            let value = number(bytes, start.saturating_add(index * 4), 4)?;
            u32::try_from(value).map_err(|_| "a map's number is too large")
        };
        maps.push(MapDefinition {
            name: text(symbol.name)?,
            kind: MapKind::from_number(field(0)?).ok_or("a map of an unknown kind")?,
            key_bytes: field(1)?,
            value_bytes: field(2)?,
            entries: field(3)?,
            flags: field(4)?,
        });
    }
    Ok((maps, symbols.iter().map(|symbol| symbol.value).collect()))
}

fn uses(
    sections: &[Section<'_>],
    program: usize,
    maps_at: Option<usize>,
    symbols: &[Symbol<'_>],
    addresses: &[u64],
) -> Result<Vec<(usize, usize)>> {
    let mut uses = Vec::new();
    for section in sections.iter().filter(|section| [SHT_REL, SHT_RELA].contains(&section.kind)) {
        if section.kind == SHT_RELA || section.info != program {
            return Err("relocations of another section or kind");
        }
        for at in (0..section.bytes.len()).step_by(RELOCATION_BYTES) {
            let (offset, info) = (number(section.bytes, at, 8)?, number(section.bytes, at + 8, 8)?);
            let symbol = usize::try_from(info >> 32).ok().and_then(|index| symbols.get(index));
            let symbol = symbol.filter(|it| Some(it.section) == maps_at && info & 0xffff_ffff == R_BPF_64_64);
            let map = symbol.and_then(|symbol| addresses.iter().position(|at| *at == symbol.value));
            let instruction = usize::try_from(offset / 8).unwrap_or(usize::MAX);
            uses.push((instruction, map.ok_or("a relocation that is not of a map")?));
        }
    }
    Ok(uses)
}

fn sections(file: &[u8]) -> Result<Vec<Section<'_>>> {
    let (table, count, names) = (number(file, 40, 8)?, number(file, 60, 2)?, number(file, 62, 2)?);
    let table = usize::try_from(table).unwrap_or(usize::MAX);
    if number(file, 58, 2)? != SECTION_BYTES as u64 {
        return Err("headers of sections of another length");
    }
    let header = |index: usize| table.saturating_add(index * SECTION_BYTES);
    let content = |index: usize| {
        let at = header(index);
        let (offset, bytes) =
            (number(file, at.saturating_add(24), 8)?, number(file, at.saturating_add(32), 8)?);
        slice(file, offset, bytes)
    };
    let names = content(usize::try_from(names).unwrap_or(usize::MAX))?;
    let section = |index: usize| {
        let at = header(index);
        slice(file, at as u64, SECTION_BYTES as u64)?;
        let kind = number(file, at.saturating_add(4), 4)? as u32;
        let info = number(file, at.saturating_add(44), 4)? as usize;
        Ok(Section { name: name(names, number(file, at, 4)?)?, kind, info, bytes: content(index)? })
    };
    (0..usize::try_from(count).unwrap_or_default()).map(section).collect()
}

fn symbols<'a>(sections: &[Section<'a>]) -> Result<Vec<Symbol<'a>>> {
    let table = sections.iter().find(|section| section.kind == SHT_SYMTAB).ok_or("no symbols")?;
    let names = sections.iter().find(|section| section.name == b".strtab").ok_or("no names of symbols")?;
    let symbol = |at: usize| {
        let bytes = table.bytes;
        Ok(Symbol {
            name: name(names.bytes, number(bytes, at, 4)?)?,
            kind: number(bytes, at + 4, 1)? as u8 & 0xf,
            section: number(bytes, at + 6, 2)? as usize,
            value: number(bytes, at + 8, 8)?,
            bytes: number(bytes, at + 16, 8)?,
        })
    };
    (0..table.bytes.len()).step_by(SYMBOL_BYTES).map(symbol).collect()
}

fn section<'s, 'a>(sections: &'s [Section<'a>], at: usize) -> Result<&'s Section<'a>> {
    sections.get(at).ok_or("a section is missing")
}

/// The name that begins at an offset of a table of names.
fn name(names: &[u8], at: u64) -> Result<&[u8]> {
    let from =
        usize::try_from(at).ok().and_then(|at| names.get(at..)).ok_or("a name is outside of its table")?;
    from.split(|byte| *byte == 0).next().ok_or("a name is outside of its table")
}

fn text(name: &[u8]) -> Result<String> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_empty() && name.iter().all(is_word) => Ok(text.to_owned()),
        _ => Err("a name that is no identifier"),
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> Result<u64> {
    let raw = at.checked_add(len).and_then(|end| bytes.get(at..end)).ok_or("the file is cut short")?;
    Ok(raw.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn slice(file: &[u8], at: u64, bytes: u64) -> Result<&[u8]> {
    let from = usize::try_from(at).unwrap_or(usize::MAX);
    let to = from.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
    file.get(from..to).ok_or("the file is cut short")
}

#[cfg(test)]
mod tests {
    use super::super::programs::{ALL, TEST_COUNT};
    use super::*;

    #[test]
    fn the_committed_programs_are_read() {
        for (name, file) in ALL {
            let object = Object::read(file).unwrap();
            assert_eq!((object.name(), object.license()), (*name, c"Dual MIT/GPL"));
            assert_eq!(object.maps().is_empty(), name.starts_with("sdn_"), "{name}");
        }
    }

    #[test]
    fn maps_are_read_in_the_order_of_their_names_and_their_descriptors_get_into_the_code() {
        let object = Object::read(TEST_COUNT).unwrap();
        let names: Vec<&str> = object.maps().iter().map(|map| map.name.as_str()).collect();
        assert_eq!(names, ["denied", "epoch", "flows", "networks", "packets"]);
        let flows = MapDefinition {
            name: "flows".to_owned(),
            kind: MapKind::LruHash,
            key_bytes: 4,
            value_bytes: 16,
            entries: 64,
            flags: 0,
        };
        assert_eq!(object.maps()[2], flows);
        let code = object.code_with(&[10, 11, 12, 13, 14]).unwrap();
        let loads =
            |fd: u64| code.iter().filter(|word| **word >> 32 == fd && **word & 0xf0ff == 0x1018).count();
        assert_eq!([10, 11, 12, 13, 14].map(loads), [1, 1, 2, 1, 1]);
        assert!(object.code_with(&[10]).is_err(), "maps are missing");
    }

    #[test]
    fn a_file_that_is_cut_short_is_an_error_and_a_changed_one_no_panic() {
        for len in 0..TEST_COUNT.len() {
            assert!(Object::read(&TEST_COUNT[..len]).is_err(), "{len}");
        }
        for at in 0..TEST_COUNT.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut file = TEST_COUNT.to_vec();
                file[at] ^= bits;
                let _ = Object::read(&file);
            }
        }
    }

    #[test]
    fn a_relocation_that_is_not_of_a_map_is_refused() {
        // The number of the symbol in the first relocation; symbol 2 is the function.
        let at = TEST_COUNT
            .windows(16)
            .position(|bytes| bytes == [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0]);
        let mut file = TEST_COUNT.to_vec();
        file[at.unwrap() + 12] = 2;
        let error = Object::read(&file).unwrap_err().to_string();
        assert_eq!(error, "read BPF object: a relocation that is not of a map");
    }
}
