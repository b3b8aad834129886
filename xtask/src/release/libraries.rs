//! What an executable needs of the system's libraries, as packages say it.

use crate::elf;
use crate::error::{Error, Result};

/// The needs of an executable that starts a dynamic linker.
#[derive(Debug, PartialEq, Eq)]
pub struct Needs {
    /// The oldest glibc that has every symbol.
    pub glibc: (u32, u32),
    pub libgcc: bool,
}

/// Those of both executables, of which `russet-cni` usually has none.
pub fn of(executables: [&[u8]; 2]) -> Result<Option<Needs>> {
    let mut all: Option<Needs> = None;
    for executable in executables {
        let needs = of_one(executable).map_err(|why| Error::Found(format!("an executable: {why}")))?;
        all = match (all, needs) {
            (Some(a), Some(b)) => Some(Needs { glibc: a.glibc.max(b.glibc), libgcc: a.libgcc || b.libgcc }),
            (a, b) => a.or(b),
        };
    }
    Ok(all)
}

fn of_one(executable: &[u8]) -> std::result::Result<Option<Needs>, String> {
    if elf::interpreter(executable)?.is_none() {
        return Ok(None);
    }
    let strings = elf::dynamic_strings(executable)?;
    let libraries = strings.iter().filter(|text| text.contains(".so"));
    let mut libgcc = false;
    for library in libraries {
        match library.as_str() {
            "libgcc_s.so.1" => libgcc = true,
            "libc.so.6" | "libm.so.6" => {}
            linker if linker.starts_with("ld-linux") => {}
            other => return Err(format!("it needs {other}, and no package name is known for that")),
        }
    }
    let versions = strings.iter().filter_map(|text| text.strip_prefix("GLIBC_")).filter_map(|version| {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    let glibc = versions.max().ok_or("it names no version of glibc")?;
    Ok(Some(Needs { glibc, libgcc }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needs_of_this_test_are_found() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let needs = of([&own, &own]).unwrap().unwrap();
        assert!(needs.glibc >= (2, 17) && needs.glibc < (3, 0), "{needs:?}");
        assert!(needs.libgcc);
        assert!(of([b"#!/bin/sh".as_slice(), b""]).is_err());
    }
}
