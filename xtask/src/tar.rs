//! Writes tar archives in the format ustar, the same bytes for the same entries: owner root, one time for all, no names of this machine.

use crate::error::{Error, Result};

/// One file, directory or symbolic link.
pub struct Entry {
    /// Without a leading slash; a directory ends in one.
    pub path: String,
    pub mode: u32,
    pub content: Vec<u8>,
    /// Where a symbolic link leads.
    pub target: Option<String>,
}

/// Everything in a tar archive is padded to this.
const BLOCK_BYTES: usize = 512;
/// A longer path would need the field `prefix`, and no path here is that long.
const PATH_MAX_BYTES: usize = 99;

/// The archive of the entries, sorted by path, so that a directory comes before its files.
pub fn archive(mut entries: Vec<Entry>, seconds: u64) -> Result<Vec<u8>> {
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let mut archive = Vec::new();
    for entry in &entries {
        archive.extend(header(entry, seconds)?);
        archive.extend(&entry.content);
        archive.resize(archive.len().next_multiple_of(BLOCK_BYTES), 0);
    }
    // Two empty blocks are the end.
    archive.resize(archive.len() + 2 * BLOCK_BYTES, 0);
    Ok(archive)
}

fn header(entry: &Entry, seconds: u64) -> Result<[u8; BLOCK_BYTES]> {
    if entry.path.len() > PATH_MAX_BYTES {
        return Err(Error::Found(format!("{} is too long a path for the archive", entry.path)));
    }
    let target = entry.target.as_deref().unwrap_or_default();
    if target.len() > PATH_MAX_BYTES {
        return Err(Error::Found(format!("{target} is too long a target of a link for the archive")));
    }
    let kind = match entry.path.ends_with('/') {
        _ if entry.target.is_some() => b'2',
        true => b'5',
        false => b'0',
    };
    let mut header = [0; BLOCK_BYTES];
    // name, mode, owner, group, size, time; the checksum counts its own field as spaces.
    put(&mut header, 0, entry.path.as_bytes());
    put(&mut header, 100, format!("{:07o}", entry.mode).as_bytes());
    put(&mut header, 108, b"0000000");
    put(&mut header, 116, b"0000000");
    put(&mut header, 124, format!("{:011o}", entry.content.len()).as_bytes());
    put(&mut header, 136, format!("{seconds:011o}").as_bytes());
    put(&mut header, 148, b"        ");
    header[156] = kind;
    put(&mut header, 157, target.as_bytes());
    put(&mut header, 257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut header, 148, format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

fn put(header: &mut [u8; BLOCK_BYTES], at: usize, bytes: &[u8]) {
    header[at..at + bytes.len()].copy_from_slice(bytes);
}

// === impl Entry ===

impl Entry {
    pub fn directory(path: &str) -> Self {
        Self { path: format!("{path}/"), mode: 0o755, content: Vec::new(), target: None }
    }

    pub fn file(path: &str, mode: u32, content: Vec<u8>) -> Self {
        Self { path: path.to_owned(), mode, content, target: None }
    }

    pub fn link(path: &str, target: String) -> Self {
        Self { path: path.to_owned(), mode: 0o777, content: Vec::new(), target: Some(target) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tar_reads_the_archive_and_its_bytes_do_not_depend_on_the_order_of_entries() {
        let entries = || {
            [
                Entry::file("usr/bin/x", 0o755, vec![7; 513]),
                Entry::directory("usr"),
                Entry::directory("usr/bin"),
                Entry::link("usr/y", "bin/x".to_owned()),
            ]
        };
        let archived = archive(entries().into(), 86_400).unwrap();
        let mut reversed: Vec<Entry> = entries().into();
        reversed.reverse();
        assert_eq!(archived, archive(reversed, 86_400).unwrap());

        let mut tar = Command::new("tar");
        tar.args(["--utc", "--numeric-owner", "-tvf", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut tar = tar.spawn().unwrap();
        tar.stdin.take().unwrap().write_all(&archived).unwrap();
        let listed = tar.wait_with_output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["drwxr-xr-x", "0/0", "0", "1970-01-02", "00:00", "usr/"]);
        assert_eq!(lines[2], ["-rwxr-xr-x", "0/0", "513", "1970-01-02", "00:00", "usr/bin/x"]);
        assert_eq!(lines[3], ["lrwxrwxrwx", "0/0", "0", "1970-01-02", "00:00", "usr/y", "->", "bin/x"]);
    }
}
