//! The journal's file. It grows in chunks, so that a full file system does not stop operations that
//! have begun; never above a limit; replaced by rename. It is never synced: what it describes is
//! lost at reboot, and the writes of a killed process are not lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use russet_linux::file::{PRIVATE, create_exclusive, private_dir};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::entry::Entry;
use super::frame::{self, CHUNK_BYTES, MAGIC, Tail};

/// A file that is open for writing.
#[derive(Debug)]
pub struct Log {
    file: File,
    /// Where the next frame goes.
    end: u64,
    /// The file's size, a multiple of [`CHUNK_BYTES`].
    size: u64,
    /// Number of frames.
    pub records: u64,
}

/// The content of a file.
#[derive(Debug)]
pub struct Contents {
    /// The boot ID.
    pub boot: String,
    /// The entries after the header.
    pub entries: Vec<Entry>,
    /// What followed the entries. Also `Damaged` if the previous file was, and its open operations
    /// are not all decided.
    pub tail: Tail,
    pub size_bytes: u64,
}

/// Limit of the size of a journal: 2,000 attachments, and operations in progress besides.
pub const FILE_MAX_BYTES: u64 = 8 * 1024 * 1024;

// === impl Log ===

impl Log {
    /// Replaces the file, with space for `room_bytes` more.
    pub fn replace(path: &Path, entries: impl Iterator<Item = Entry>, room_bytes: u64) -> io::Result<Self> {
        path.parent().map_or(Ok(()), private_dir)?;
        let new = path.with_extension("new");
        let done = Self::written(&new, entries, room_bytes).and_then(|log| {
            fs::rename(&new, path)?;
            Ok(log)
        });
        if done.is_err() {
            // A partial file would waste space on a file system that may be full.
            let _ = fs::remove_file(&new);
        }
        done
    }

    fn written(path: &Path, entries: impl Iterator<Item = Entry>, room_bytes: u64) -> io::Result<Self> {
        let mut bytes = MAGIC.to_vec();
        let mut records = 0;
        for entry in entries {
            frame::push(&mut bytes, &document(&entry)?);
            records += 1;
        }
        let file = create_exclusive(path, PRIVATE)?;
        let mut log = Self { file, end: 0, size: 0, records };
        log.room(bytes.len() as u64 + room_bytes)?;
        log.file.write_all_at(&bytes, 0)?;
        log.end = bytes.len() as u64;
        Ok(log)
    }

    /// Appends an entry. After an error the file has to be replaced before the next entry.
    pub fn append(&mut self, document: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(frame::HEAD_BYTES + document.len());
        frame::push(&mut bytes, document);
        self.room(bytes.len() as u64)?;
        self.file.write_all_at(&bytes, self.end)?;
        self.end += bytes.len() as u64;
        self.records += 1;
        Ok(())
    }

    /// Makes sure that so many bytes can be appended, even on a full file system.
    pub fn room(&mut self, bytes: u64) -> io::Result<()> {
        let wanted = (self.end + bytes).next_multiple_of(CHUNK_BYTES);
        if wanted <= self.size {
            return Ok(());
        }
        if wanted > FILE_MAX_BYTES {
            return Err(io::Error::other(format!("it would be larger than {FILE_MAX_BYTES} bytes")));
        }
        match fallocate(&self.file, FallocateFlags::empty(), self.size, wanted - self.size) {
            Ok(()) => {}
            // Not every file system can reserve space.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.file.set_len(wanted)?,
            Err(errno) => return Err(errno.into()),
        }
        self.size = wanted;
        Ok(())
    }

    pub fn used_bytes(&self) -> u64 {
        self.end
    }
}

/// The bytes of an entry. An error if it would be too large to be read again.
pub fn document(entry: &Entry) -> io::Result<Vec<u8>> {
    let document = serde_json::to_vec(entry)?;
    if document.len() > frame::DOCUMENT_MAX_BYTES {
        return Err(io::Error::other("the request is larger than a record of the journal may be"));
    }
    Ok(document)
}

/// Reads a journal. None if there is no file, or a foreign one.
pub fn read(path: &Path) -> io::Result<Option<Contents>> {
    let mut bytes = Vec::new();
    let file = match OpenOptions::new().read(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result?,
    };
    file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)?;
    let Some(scan) = frame::scan(&bytes) else { return Ok(None) };
    let size_bytes = bytes.len() as u64;
    let mut tail = if size_bytes > FILE_MAX_BYTES { Tail::Damaged } else { scan.tail };
    let mut entries = Vec::with_capacity(scan.documents.len());
    for document in scan.documents {
        match serde_json::from_slice::<Entry>(document) {
            Ok(entry) => entries.push(entry),
            // A complete frame that cannot be decoded: from another version, or forged with a valid
            // checksum. Later entries may depend on it.
            Err(_) => {
                tail = Tail::Damaged;
                break;
            }
        }
    }
    let mut entries = entries.into_iter();
    let Some(Entry::Header { boot, next, damaged }) = entries.next() else { return Ok(None) };
    if damaged {
        tail = Tail::Damaged;
    }
    let first = Entry::Header { boot: boot.clone(), next, damaged };
    Ok(Some(Contents { boot, entries: [first].into_iter().chain(entries).collect(), tail, size_bytes }))
}
