//! Maps in the kernel. Keys and values are bytes; the structures are those of the C files.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use super::{BpfError, sys};

/// The kinds of maps that programs of Russet have (`enum bpf_map_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    /// All its keys exist from the beginning: 0 to `entries` - 1.
    Array = 2,
    /// Programs that another one may call; a value is the descriptor of a program. The kernel empties it when no process
    /// has it open any more, though programs use it.
    Programs = 3,
    /// A value has a part for each CPU.
    PerCpuArray = 6,
    /// Forgets the least recently used entries when it is full.
    LruHash = 9,
    /// Finds the longest prefix: a key begins with its number of bits.
    LpmTrie = 11,
}

/// A map as a C file declares it (`struct map` of `crates/linux/bpf/russet.h`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapDefinition {
    pub name: String,
    pub kind: MapKind,
    pub key_bytes: u32,
    pub value_bytes: u32,
    /// How many it holds at most.
    pub entries: u32,
    /// `BPF_F_*` of linux/bpf.h.
    pub flags: u32,
}

/// A map in the kernel; the kernel frees it when no program uses it and this is dropped.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    definition: MapDefinition,
    /// The length of a value as the kernel copies it.
    value_bytes: usize,
}

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// So many entries are written or read by one call.
const BATCH_ENTRIES: usize = 1024;
/// No map of a definition holds more; it bounds what a full read allocates.
const ENTRIES_MAX: u32 = 1 << 22;
/// The kernel's limits of keys and values are larger; no structure of ours comes near.
const BYTES_MAX: u32 = 4096;

// === impl MapKind ===

impl MapKind {
    pub const ALL: [Self; 6] =
        [Self::Hash, Self::Array, Self::Programs, Self::PerCpuArray, Self::LruHash, Self::LpmTrie];

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Array => "array",
            Self::Programs => "program array",
            Self::PerCpuArray => "per-CPU array",
            Self::LruHash => "LRU hash",
            Self::LpmTrie => "LPM trie",
        }
    }
}

// === impl Map ===

impl Map {
    /// Creates an empty map.
    pub fn create(definition: &MapDefinition) -> Result<Self, BpfError> {
        let failed = || BpfError::kernel(format!("create BPF map {}", definition.name));
        let value_bytes = value_bytes(definition).map_err(failed())?;
        let mut attributes = sys::CreateMap {
            map_type: definition.kind as u32,
            key_size: definition.key_bytes,
            value_size: definition.value_bytes,
            max_entries: definition.entries,
            map_flags: definition.flags,
            map_name: sys::name(&definition.name),
            ..sys::CreateMap::default()
        };
        // SAFETY: the attributes have no address.
        let fd = unsafe { sys::open(sys::MAP_CREATE, &mut attributes) }.map_err(failed())?;
        Ok(Self { fd, definition: definition.clone(), value_bytes })
    }

    /// Another descriptor of the same map.
    pub fn try_clone(&self) -> Result<Self, BpfError> {
        let fd = self.fd.try_clone().map_err(self.failed("open again"))?;
        Ok(Self { fd, definition: self.definition.clone(), value_bytes: self.value_bytes })
    }

    pub fn definition(&self) -> &MapDefinition {
        &self.definition
    }

    /// How many bytes a value has as it is read and written.
    pub const fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// The value of a key. That of a per-CPU array has the values of all CPUs, each padded to 8
    /// bytes.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BpfError> {
        let mut value = vec![0; self.value_bytes];
        let got = self.element(key, value.as_mut_ptr() as u64).and_then(|mut element| {
            // SAFETY: the kernel reads a key and writes a value of the lengths of this map, which
            // the buffers have.
            unsafe { sys::call(sys::MAP_LOOKUP_ELEM, &mut element) }
        });
        match got {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(self.failed("read an entry of")(error)),
        }
    }

    /// Adds or replaces an entry.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BpfError> {
        let put = self.element(key, value.as_ptr() as u64).and_then(|mut element| {
            self.check(value.len(), self.value_bytes)?;
            // SAFETY: the kernel reads a key and a value of the lengths of this map, which the
            // slices have.
            unsafe { sys::call(sys::MAP_UPDATE_ELEM, &mut element) }
        });
        put.map(drop).map_err(self.failed("write an entry of"))
    }

    /// Removes an entry; returns whether it was there.
    pub fn delete(&self, key: &[u8]) -> Result<bool, BpfError> {
        let deleted = self.element(key, 0).and_then(|mut element| {
            // SAFETY: the kernel reads a key of the length of this map, which the slice has.
            unsafe { sys::call(sys::MAP_DELETE_ELEM, &mut element) }
        });
        match deleted {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(self.failed("delete an entry of")(error)),
        }
    }

    /// Adds or replaces many entries, in few calls. After an error, some of them may be written.
    pub fn put_all(&self, entries: &[Entry]) -> Result<(), BpfError> {
        for part in entries.chunks(BATCH_ENTRIES) {
            self.put_batch(part).map_err(self.failed("write entries of"))?;
        }
        Ok(())
    }

    fn put_batch(&self, entries: &[Entry]) -> io::Result<()> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (key, value) in entries {
            self.check(key.len(), self.key_bytes())?;
            self.check(value.len(), self.value_bytes)?;
            keys.extend_from_slice(key);
            values.extend_from_slice(value);
        }
        let mut elements = sys::Elements {
            keys: keys.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count: sys::length(entries.len())?,
            map_fd: self.fd.as_raw_fd() as u32,
            ..sys::Elements::default()
        };
        // SAFETY: the kernel reads `count` keys and values, which the buffers have.
        unsafe { sys::call(sys::MAP_UPDATE_BATCH, &mut elements) }.map(drop)
    }

    /// All entries. What changes meanwhile may be missing or there twice.
    pub fn entries(&self) -> Result<Vec<Entry>, BpfError> {
        self.read_batches().map_err(self.failed("read entries of"))
    }

    fn read_batches(&self) -> io::Result<Vec<Entry>> {
        let mut all = Vec::new();
        // A position is a key, or the number of a bucket.
        let mut position = vec![0; self.key_bytes().max(size_of::<u32>())];
        let mut next = position.clone();
        let (mut is_first, mut room) = (true, BATCH_ENTRIES);
        loop {
            let mut keys = vec![0; room * self.key_bytes()];
            let mut values = vec![0; room * self.value_bytes];
            let mut elements = sys::Elements {
                in_batch: if is_first { 0 } else { position.as_mut_ptr() as u64 },
                out_batch: next.as_mut_ptr() as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: sys::length(room)?,
                map_fd: self.fd.as_raw_fd() as u32,
                ..sys::Elements::default()
            };
            // SAFETY: the buffers have room for `count` keys and values, and for positions, which
            // are as long as a key or 4 bytes.
            let read = unsafe { sys::call(sys::MAP_LOOKUP_BATCH, &mut elements) };
            let is_last = match read {
                Ok(_) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                // A bucket has more entries than there is room for.
                Err(error)
                    if error.raw_os_error() == Some(libc::ENOSPC)
                        && room < self.definition.entries as usize =>
                {
                    room *= 2;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let pairs = keys.chunks(self.key_bytes()).zip(values.chunks(self.value_bytes));
            let read = pairs.take(elements.count as usize);
            all.extend(read.map(|(key, value)| (key.to_vec(), value.to_vec())));
            if is_last {
                return Ok(all);
            }
            std::mem::swap(&mut position, &mut next);
            is_first = false;
        }
    }

    fn key_bytes(&self) -> usize {
        self.definition.key_bytes as usize
    }

    /// A command about one entry; an error if the key has another length than those of the map.
    fn element(&self, key: &[u8], value: u64) -> io::Result<sys::Element> {
        self.check(key.len(), self.key_bytes())?;
        let (map_fd, key) = (self.fd.as_raw_fd() as u32, key.as_ptr() as u64);
        Ok(sys::Element { map_fd, key, value, ..sys::Element::default() })
    }

    fn check(&self, found: usize, wanted: usize) -> io::Result<()> {
        let wrong = || io::Error::other(format!("{found} bytes instead of {wanted}"));
        if found == wanted { Ok(()) } else { Err(wrong()) }
    }

    fn failed(&self, what: &str) -> impl FnOnce(io::Error) -> BpfError + use<> {
        BpfError::kernel(format!("{what} BPF map {}", self.definition.name))
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How many bytes the kernel copies for a value. Refuses lengths that no definition has, so that
/// no buffer of a map is unreasonable.
fn value_bytes(definition: &MapDefinition) -> io::Result<usize> {
    let MapDefinition { key_bytes, value_bytes, entries, .. } = *definition;
    let is_length = |bytes| (1..=BYTES_MAX).contains(&bytes);
    if !is_length(key_bytes) || !is_length(value_bytes) || !(1..=ENTRIES_MAX).contains(&entries) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok(match definition.kind {
        MapKind::PerCpuArray => (value_bytes as usize).next_multiple_of(8) * possible_cpus()?,
        _ => value_bytes as usize,
    })
}

/// The number of CPUs that the kernel has a part of each value for, also of those that are off.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_cpus(text.trim()).ok_or_else(|| io::Error::other(format!("no list of CPUs: {text:?}")))
}

/// How many numbers a list such as `0-3,8` has.
fn count_cpus(list: &str) -> Option<usize> {
    list.split(',').try_fold(0, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some(count + last.checked_sub(first)? + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_counted() {
        assert_eq!(["0", "0-3", "0-3,8", "0,2-3"].map(count_cpus), [1, 4, 5, 3].map(Some));
        assert_eq!(["", "3-0", "a"].map(count_cpus), [None; 3]);
    }
}
