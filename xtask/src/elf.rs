//! Reads just enough of a 64-bit little-endian ELF file to tell whether it needs a dynamic linker.

/// `PT_INTERP` of elf.h: the segment that names the dynamic linker.
const PT_INTERP: u32 = 3;

/// The dynamic linker that the kernel would start for this file; `None` for a static one.
pub fn interpreter(file: &[u8]) -> Result<Option<String>, &'static str> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit little-endian ELF file");
    }
    let table = number(file, 32, 8)?;
    let entry_bytes = number(file, 54, 2)?;
    let entries = number(file, 56, 2)?;
    for index in 0..entries {
        let at = table.saturating_add(index * entry_bytes);
        if number(file, at, 4)? == u64::from(PT_INTERP) {
            let (from, length) = (number(file, at + 8, 8)?, number(file, at + 32, 8)?);
            return slice(file, from, length).map(|name| Some(text(name)));
        }
    }
    Ok(None)
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
    }

    #[test]
    fn a_file_cut_short_is_an_error_and_not_a_static_binary() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        assert!(interpreter(&file[..100]).is_err());
        assert!(interpreter(b"#!/bin/sh").is_err());
    }
}
