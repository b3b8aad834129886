//! Pins: names of maps and links on a bpffs, which keep them in the kernel while no agent runs.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{BpfError, Map, MapDefinition, TcxLink, sys};
use crate::file;

/// A directory of pins. The name of a map's pin ends in the version of its layout, so that an agent
/// uses a map of another release only if it reads it as that release wrote it.
#[derive(Debug, Clone)]
pub struct Pins(PathBuf);

/// `BPF_FS_MAGIC`
const BPFFS: u64 = 0xcafe_4a11;

// === impl Pins ===

impl Pins {
    /// Opens a directory on a bpffs and creates it if it is missing.
    pub fn open(directory: &Path) -> Result<Self, BpfError> {
        let failed = || BpfError::kernel(format!("open the directory of pins {}", directory.display()));
        let parent = directory.parent().unwrap_or(directory);
        if ![directory, parent].into_iter().any(is_bpffs) {
            return Err(BpfError::NoBpffs(directory.display().to_string()));
        }
        file::private_dir(directory).map_err(failed())?;
        Ok(Self(directory.to_owned()))
    }

    /// The map that is pinned with this layout, or a new one, which is pinned. A pinned map of
    /// other lengths, whose layout was changed without a new version, is replaced.
    pub fn map(&self, definition: &MapDefinition) -> Result<Map, BpfError> {
        let path = self.path_of(definition);
        let failed = || BpfError::kernel(format!("open pinned BPF map {}", path.display()));
        if let Some(fd) = get(&path).map_err(failed())? {
            match Map::of(fd, definition).map_err(failed())? {
                Some(map) => return Ok(map),
                None => remove(&path)?,
            }
        }
        let map = Map::create(definition)?;
        pin(&map, &path)?;
        Ok(map)
    }

    /// Removes the pins of these maps with other layouts; returns how many there were. Programs that
    /// are attached keep using theirs, so call it after these were replaced.
    pub fn forget_other_layouts(&self, definitions: &[MapDefinition]) -> Result<usize, BpfError> {
        let kept: BTreeSet<PathBuf> = definitions.iter().map(|it| self.path_of(it)).collect();
        let is_other = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let of = name.rsplit_once('-').filter(|(_, layout)| layout.parse::<u32>().is_ok());
            of.is_some_and(|(name, _)| definitions.iter().any(|it| it.name == name)) && !kept.contains(path)
        };
        let listed = std::fs::read_dir(&self.0);
        let listed = listed.map_err(BpfError::kernel(format!("list {}", self.0.display())))?;
        let others: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(is_other).collect();
        others.iter().try_for_each(|path| remove(path))?;
        Ok(others.len())
    }

    /// Keeps a program attached when its [`TcxLink`] is dropped. A pin of that name is replaced.
    pub fn keep(&self, link: &TcxLink, name: &str) -> Result<(), BpfError> {
        let path = self.0.join(name);
        remove(&path)?;
        pin(link, &path)
    }

    /// The link that was kept under a name.
    pub fn link(&self, name: &str) -> Result<Option<TcxLink>, BpfError> {
        let path = self.0.join(name);
        let fd = get(&path).map_err(BpfError::kernel(format!("open pinned BPF link {}", path.display())))?;
        Ok(fd.map(TcxLink::of))
    }

    /// Removes the pin of a link; the program is detached when the last [`TcxLink`] is dropped.
    pub fn forget(&self, name: &str) -> Result<(), BpfError> {
        remove(&self.0.join(name))
    }

    /// A dot is not allowed in names of a bpffs.
    fn path_of(&self, definition: &MapDefinition) -> PathBuf {
        self.0.join(format!("{}-{}", definition.name, definition.layout))
    }
}

fn is_bpffs(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|found| found.f_type as u64 == BPFFS)
}

fn pin(object: &impl AsFd, path: &Path) -> Result<(), BpfError> {
    let pinned = c_string(path).and_then(|name| {
        let bpf_fd = object.as_fd().as_raw_fd() as u32;
        let mut attributes = sys::Pin { pathname: name.as_ptr() as u64, bpf_fd, ..sys::Pin::default() };
        // SAFETY: the name outlives the call and ends with NUL.
        unsafe { sys::call(sys::OBJ_PIN, &mut attributes) }
    });
    pinned.map(drop).map_err(BpfError::kernel(format!("pin {}", path.display())))
}

fn get(path: &Path) -> io::Result<Option<OwnedFd>> {
    let name = c_string(path)?;
    let mut attributes = sys::Pin { pathname: name.as_ptr() as u64, ..sys::Pin::default() };
    // SAFETY: the name outlives the call and ends with NUL.
    match unsafe { sys::open(sys::OBJ_GET, &mut attributes) } {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove(path: &Path) -> Result<(), BpfError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(BpfError::kernel(format!("remove pin {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}
