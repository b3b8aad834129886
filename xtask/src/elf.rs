//! Reads just enough of a 64-bit little-endian ELF file to tell whether it needs a dynamic linker.

/// `PT_INTERP` of elf.h: the segment that names the dynamic linker.
const PT_INTERP: u32 = 3;
/// A segment that is loaded, and the one with what the dynamic linker reads.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// Where the names in the dynamic segment are, in memory, and how long they are.
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
/// Of an entry of the dynamic segment.
const DYNAMIC_BYTES: u64 = 16;

/// A segment: its type, and its place in the file and in memory.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// The dynamic linker that the kernel would start for this file; `None` for a static one.
pub fn interpreter(file: &[u8]) -> Result<Option<String>, &'static str> {
    let segments = segments(file)?;
    let found = segments.iter().find(|segment| segment.kind == PT_INTERP);
    found.map(|segment| slice(file, segment.offset, segment.bytes).map(text)).transpose()
}

/// The names of which the dynamic linker reads: libraries, symbols and their versions.
pub fn dynamic_strings(file: &[u8]) -> Result<Vec<String>, &'static str> {
    let segments = segments(file)?;
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC).ok_or("no dynamic segment")?;
    let (mut address, mut bytes) = (None, None);
    for at in (dynamic.offset..dynamic.offset.saturating_add(dynamic.bytes)).step_by(DYNAMIC_BYTES as usize) {
        match number(file, at, 8)? {
            DT_STRTAB => address = Some(number(file, at + 8, 8)?),
            DT_STRSZ => bytes = Some(number(file, at + 8, 8)?),
            _ => {}
        }
    }
    let (address, bytes) = address.zip(bytes).ok_or("no names in the dynamic segment")?;
    let contains = |segment: &&Segment| {
        segment.kind == PT_LOAD && address.checked_sub(segment.address).is_some_and(|at| at < segment.bytes)
    };
    let loaded = segments.iter().find(contains).ok_or("the dynamic segment's names are nowhere")?;
    let names = slice(file, address - loaded.address + loaded.offset, bytes)?;
    Ok(names.split(|byte| *byte == 0).map(text).collect())
}

fn segments(file: &[u8]) -> Result<Vec<Segment>, &'static str> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit little-endian ELF file");
    }
    let table = number(file, 32, 8)?;
    let entry_bytes = number(file, 54, 2)?;
    let segment = |index| {
        let at = table.saturating_add(index * entry_bytes);
        let kind = u32::try_from(number(file, at, 4)?).unwrap_or_default();
        let (offset, address, bytes) =
            (number(file, at + 8, 8)?, number(file, at + 16, 8)?, number(file, at + 32, 8)?);
        Ok(Segment { kind, offset, address, bytes })
    };
    (0..number(file, 56, 2)?).map(segment).collect()
}

/// The architecture for which the file is, as OCI calls it (`e_machine` of elf.h).
pub fn architecture(file: &[u8]) -> Result<&'static str, &'static str> {
    match number(file, 18, 2)? {
        62 => Ok("amd64"),
        183 => Ok("arm64"),
        _ => Err("an executable for an architecture that has no image"),
    }
}

fn number(file: &[u8], at: u64, bytes: u64) -> Result<u64, &'static str> {
    let raw = slice(file, at, bytes)?;
    Ok(raw.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn slice(file: &[u8], at: u64, bytes: u64) -> Result<&[u8], &'static str> {
    let from = usize::try_from(at).unwrap_or(usize::MAX);
    let to = from.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
    file.get(from..to).ok_or("the ELF file is cut short")
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_dynamic_test_binary_names_its_linker() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let found = interpreter(&file).unwrap();
        assert!(found.as_deref().is_some_and(|path| path.starts_with("/lib")), "{found:?}");
        let names = dynamic_strings(&file).unwrap();
        assert!(names.iter().any(|name| name == "libc.so.6"), "{names:?}");
    }

    #[test]
    fn a_file_cut_short_is_an_error_and_not_a_static_binary() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        assert!(interpreter(&file[..100]).is_err());
        assert!(interpreter(b"#!/bin/sh").is_err());
    }
}
