//! A tar archive (ustar) in gzip, whose size has a limit.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::source::{Keep, cut};

/// Grows file by file, in memory.
pub struct Archive {
    gzip: GzEncoder<Vec<u8>>,
    limit_bytes: usize,
    seconds: u64,
}

/// The directory in the archive.
pub const DIRECTORY: &str = "russet-report";
/// What is kept free for the index, which comes last because it says what was cut.
const INDEX_BYTES: usize = 64 * 1024;
/// Everything in a tar archive is padded to this.
const BLOCK_BYTES: usize = 512;
/// Headers, padding and gzip's own frames, at most, of one file.
const FRAME_BYTES: usize = 4 * BLOCK_BYTES;
/// A text that does not fit is tried with half of its size, so many times.
const HALVES_MAX: u32 = 24;

// === impl Archive ===

impl Archive {
    /// An empty one; files have the time `seconds` since 1970.
    pub fn new(limit_bytes: usize, seconds: u64) -> Self {
        Self { gzip: GzEncoder::new(Vec::new(), Compression::default()), limit_bytes, seconds }
    }

    /// Adds a file, of which as much as fits is kept; true if it was cut. `note` is what its last line says then.
    pub fn add(&mut self, path: &str, text: &mut String, keep: Keep, note: &str) -> io::Result<bool> {
        let room = self.limit_bytes.saturating_sub(self.gzip.get_ref().len() + INDEX_BYTES + FRAME_BYTES);
        let mut is_cut = false;
        for _ in 0..HALVES_MAX {
            // What cannot be compressed grows by a thousandth, for which the frames have room in a small text only.
            if text.is_empty() || text.len() <= room / 2 || compressed_bytes(text)? <= room {
                break;
            }
            is_cut = true;
            cut(text, text.len() / 2, keep);
        }
        if is_cut {
            text.push_str(note);
        }
        self.write(path, text.as_bytes())?;
        Ok(is_cut)
    }

    /// Adds the index and ends the archive.
    pub fn finish(mut self, path: &str, index: &str) -> io::Result<Vec<u8>> {
        self.write(path, index.as_bytes())?;
        // Two empty blocks are the end.
        self.gzip.write_all(&[0; 2 * BLOCK_BYTES])?;
        self.gzip.finish()
    }

    fn write(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let padding = content.len().next_multiple_of(BLOCK_BYTES) - content.len();
        self.gzip.write_all(&header(&format!("{DIRECTORY}/{path}"), content.len(), self.seconds)?)?;
        self.gzip.write_all(content)?;
        self.gzip.write_all(&vec![0; padding])?;
        // So that what was written so far is counted.
        self.gzip.flush()
    }
}

fn compressed_bytes(text: &str) -> io::Result<usize> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(text.as_bytes())?;
    Ok(gzip.finish()?.len())
}

/// POSIX.1-2017, pax, "ustar Interchange Format": name, mode, owner, group, size, time, checksum, kind.
fn header(path: &str, size: usize, seconds: u64) -> io::Result<Vec<u8>> {
    const NAME_BYTES: usize = 100;
    let name = path.as_bytes();
    let mut header = name.to_vec();
    if name.len() >= NAME_BYTES {
        return Err(io::Error::other(format!("{path} is too long a path for the archive")));
    }
    header.resize(NAME_BYTES, 0);
    header.extend(b"0000600\x000000000\x000000000\0");
    header.extend(format!("{size:011o}\0{seconds:011o}\0").as_bytes());
    // The checksum counts its own field as blanks.
    let (before, mut after) = (header, vec![b'0']);
    after.resize(NAME_BYTES + 1, 0);
    after.extend(b"ustar\x0000");
    let sum: u32 =
        before.iter().chain(&after).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
    let mut header = before;
    header.extend(format!("{sum:06o}\0 ").as_bytes());
    header.extend(after);
    header.resize(BLOCK_BYTES, 0);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn tar_reads_an_archive() {
        let mut archive = Archive::new(1 << 20, 86_400);
        let mut text = "x\n".repeat(300);
        assert!(!archive.add("a/b.txt", &mut text, Keep::End, "cut").unwrap());
        let bytes = archive.finish("report.json", "{}").unwrap();
        let mut tar = Command::new("tar");
        tar.args(["--utc", "--numeric-owner", "-tvzf", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut tar = tar.spawn().unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        let listed = String::from_utf8(tar.wait_with_output().unwrap().stdout).unwrap();
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["-rw-------", "0/0", "600", "1970-01-02", "00:00", "russet-report/a/b.txt"]);
        assert_eq!(lines[1], ["-rw-------", "0/0", "2", "1970-01-02", "00:00", "russet-report/report.json"]);
        assert_eq!(lines.len(), 2);
        assert!(header(&"x".repeat(100), 1, 1).is_err());
    }

    #[test]
    fn what_does_not_fit_is_cut_and_says_so() {
        // Hexadecimal digits that look random: half of their size, compressed.
        let mut state = 1_u64;
        let mut line = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("{:016x}\n", state)
        };
        let text: String = (0..100_000).map(|_| line()).collect();
        let limit = 300 * 1024;
        let mut archive = Archive::new(limit, 0);
        let (mut first, mut second) = (text.clone(), text.clone());
        assert!(archive.add("first", &mut first, Keep::Beginning, "cut\n").unwrap());
        assert!(archive.add("second", &mut second, Keep::End, "cut\n").unwrap());
        let bytes = archive.finish("report.json", &"y".repeat(60_000)).unwrap();
        assert!(bytes.len() <= limit && first.len() > 100_000, "{} {}", bytes.len(), first.len());
        assert!(text.starts_with(first.strip_suffix("cut\n").unwrap()));
        assert!(text.ends_with(second.strip_suffix("cut\n").unwrap()));
        let mut unpacked = String::new();
        GzDecoder::new(&bytes[..]).read_to_string(&mut unpacked).unwrap();
        assert!(unpacked.contains(&first));
    }
}
