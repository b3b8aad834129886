//! The records of a sandbox on disk.
//!
//! The *checkpoint* is written once, durably, before anything exists that must be undone, and
//! removed when nothing is left. It survives a reboot, like the addresses that a plugin assigns.
//! The *live state* changes with each step and is lost at a reboot, like everything that it
//! describes; it needs no fsync, since only the death of this process can come between.

use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use russet_cni_spec::{ConfigError, ConfigList};
use russet_linux::file::{private_dir, write_atomic};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::SandboxError;
use crate::{Config, SandboxId};

/// The part that must survive a reboot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) id: SandboxId,
    /// In another boot, nothing of it is left in the kernel.
    pub(crate) boot_id: String,
    pub(crate) created_at_ns: u64,
    pub(crate) config: Config,
    /// None with host network.
    pub(crate) network: Option<Network>,
}

/// The network to which the sandbox is attached, and from which it must be detached, whatever the
/// configuration is by then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Network {
    /// The configuration list, byte for byte.
    pub(crate) list: String,
    pub(crate) capability_args: Map<String, Value>,
}

/// The part that a reboot invalidates. Older and newer versions read it, too: a member that one of
/// them does not write has its default, which means unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Live {
    pub(crate) phase: Phase,
    /// An ADD was started, and no DEL has succeeded since.
    pub(crate) attached: bool,
    pub(crate) netns: Option<PathBuf>,
    pub(crate) pid: Option<u32>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The progress of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// It was not reported to any client yet.
    #[default]
    Creating,
    Ready,
    Stopped,
    /// It is being removed.
    Removing,
}

/// The ID in a checkpoint's file name, and its contents or the reason why its bytes are invalid.
pub(crate) type Read = (SandboxId, Result<Checkpoint, String>);

/// Why a checkpoint cannot be read.
#[derive(Debug)]
enum Unreadable {
    /// Its bytes are not those that were written.
    Damaged(String),
    /// Its bytes may be valid: another version of this program can read them, or reading fails at
    /// the moment.
    NotNow(String),
}

/// The directories of checkpoints and of live states.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    /// Live states of another boot are ignored, should their directory survive.
    pub(crate) boot_id: String,
    pub(crate) checkpoints: PathBuf,
    pub(crate) live: PathBuf,
    pub(crate) corrupt: PathBuf,
}

/// The format of the file.
#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    version: u32,
    /// FNV-1a, 64 bits, of the bytes of `data`, in hexadecimal.
    checksum: String,
    #[serde(borrow)]
    data: &'a RawValue,
}

/// The members that every version of the file has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

const VERSION: u32 = 1;
/// The directory of checkpoints, below the state directory.
const CHECKPOINTS: &str = "checkpoints";
/// A configuration of 1 MiB, escaped, and a network's.
const FILE_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// How many damaged files are kept for diagnosis.
const CORRUPT_MAX: usize = 64;

// === impl Network ===

impl Network {
    pub(crate) fn list(&self) -> Result<ConfigList, ConfigError> {
        ConfigList::parse(self.list.as_bytes())?.require_plugins()
    }
}

// === impl Records ===

impl Records {
    pub(crate) fn open(state_dir: &Path, run_dir: &Path, boot_id: &str) -> Result<Self, SandboxError> {
        let records = Self {
            boot_id: boot_id.to_owned(),
            checkpoints: state_dir.join(CHECKPOINTS),
            live: run_dir.join("live"),
            corrupt: state_dir.join("corrupt"),
        };
        for dir in [&records.checkpoints, &records.live, &records.corrupt] {
            private_dir(dir).map_err(|error| SandboxError::step("create directory", dir.display(), error))?;
        }
        Ok(records)
    }

    /// Durable when this returns.
    pub(crate) fn write_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), SandboxError> {
        let path = self.checkpoints.join(checkpoint.id.as_str());
        let failed = |error: &dyn std::fmt::Display| {
            SandboxError::step("write checkpoint", path.display(), error.to_string())
        };
        let bytes = seal(checkpoint).map_err(|error| failed(&error))?;
        write_atomic(&path, &bytes).map_err(|error| failed(&error))
    }

    pub(crate) fn write_live(&self, id: &SandboxId, live: &Live) -> Result<(), SandboxError> {
        let path = self.live.join(id.as_str());
        let temporary = self.live.join(format!(".{id}"));
        let written = serde_json::to_vec(&(&self.boot_id, live))
            .map_err(io::Error::from)
            .and_then(|bytes| russet_linux::file::replace_unsynced(&path, &temporary, &bytes));
        written.map_err(|error| SandboxError::step("write state", path.display(), error))
    }

    /// None if there is none of this boot, or if its bytes are invalid: the caller then has to
    /// determine the state. An error if it exists and cannot be read, or was written by a newer
    /// version.
    pub(crate) fn read_live(&self, id: &SandboxId) -> Result<Option<Live>, SandboxError> {
        let path = self.live.join(id.as_str());
        let failed = |error: io::Error| SandboxError::step("read state", path.display(), error);
        let bytes = match read_bounded(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed)?,
        };
        let read = serde_json::from_slice::<(String, &RawValue)>(&bytes)
            .map(|(boot_id, live)| (boot_id == self.boot_id).then_some(live))
            .inspect_err(
                |error| tracing::error!(path = %path.display(), %error, "the state of a sandbox is damaged"),
            );
        let Ok(Some(live)) = read else { return Ok(None) };
        serde_json::from_str(live.get()).map(Some).map_err(|error| failed(error.into()))
    }

    /// Removes live states that were half-written when their writer died; only for the process that
    /// holds these sandboxes, before it writes any.
    pub(crate) fn sweep(&self) {
        let files = fs::read_dir(&self.live).into_iter().flatten().flatten();
        let half = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"."));
        for file in half {
            let _ = fs::remove_file(file.path());
        }
    }

    /// All checkpoints; for an invalid one, the reason. A checkpoint that cannot be read now, or
    /// not by this version, is an error: its sandbox may run, and this version could not remove it.
    pub(crate) fn read_checkpoints(&self) -> Result<Vec<Read>, SandboxError> {
        let failed = |error| SandboxError::step("list checkpoints", self.checkpoints.display(), error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.checkpoints).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            match name.to_str().and_then(|name| name.parse::<SandboxId>().ok()) {
                Some(id) => {
                    let read = match read_checkpoint(&entry.path(), &id) {
                        Ok(checkpoint) => Ok(checkpoint),
                        Err(Unreadable::Damaged(problem)) => Err(problem),
                        Err(Unreadable::NotNow(problem)) => {
                            return Err(SandboxError::step(
                                "read checkpoint",
                                entry.path().display(),
                                problem,
                            ));
                        }
                    };
                    found.push((id, read));
                }
                None => self.pass_over(&entry.path()),
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    /// Removes a half-written file; logs a foreign one and leaves it.
    fn pass_over(&self, path: &Path) {
        let half = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if half {
            let _ = fs::remove_file(path);
        } else {
            tracing::warn!(path = %path.display(), "this is no checkpoint of a sandbox; it is left alone");
        }
    }

    /// Moves the damaged file away, and keeps it for diagnosis.
    pub(crate) fn set_aside(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let (from, to) = (self.checkpoints.join(id.as_str()), self.corrupt.join(id.as_str()));
        let kept = fs::read_dir(&self.corrupt).into_iter().flatten().count();
        let moved = if kept < CORRUPT_MAX { fs::rename(&from, &to) } else { fs::remove_file(&from) };
        match moved {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(SandboxError::step("set aside checkpoint", from.display(), error))
            }
            _ => Ok(()),
        }
    }

    /// The last step: afterwards the sandbox is unknown. The checkpoint is removed last.
    pub(crate) fn remove(&self, id: &SandboxId) -> Result<(), SandboxError> {
        for path in [self.live.join(id.as_str()), self.checkpoints.join(id.as_str())] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(SandboxError::step("remove", path.display(), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// IDs of live states; some may belong to no known sandbox.
    pub(crate) fn live_ids(&self) -> Vec<SandboxId> {
        let names = fs::read_dir(&self.live).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter_map(|name| name.to_str()?.parse().ok()).collect()
    }
}

/// Sandboxes of a state directory that have not been removed, of any boot: for callers that only
/// need to know whether there are any. Damaged checkpoints count.
pub fn kept(state_dir: &Path) -> io::Result<Vec<SandboxId>> {
    let entries = match fs::read_dir(state_dir.join(CHECKPOINTS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()));
    }
    Ok(found)
}

fn seal(checkpoint: &Checkpoint) -> Result<Vec<u8>, serde_json::Error> {
    let data = serde_json::value::to_raw_value(checkpoint)?;
    let checksum = format!("{:016x}", fnv1a(data.get().as_bytes()));
    serde_json::to_vec(&Sealed { version: VERSION, checksum, data: &data })
}

fn read_checkpoint(path: &Path, id: &SandboxId) -> Result<Checkpoint, Unreadable> {
    let damaged = |error: serde_json::Error| Unreadable::Damaged(error.to_string());
    let bytes = read_bounded(path).map_err(|error| Unreadable::NotNow(error.to_string()))?;
    let Versioned { version } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version != VERSION {
        let problem = format!("its version is {version}, and ours is {VERSION}");
        return Err(Unreadable::NotNow(problem));
    }
    let sealed: Sealed<'_> = serde_json::from_slice(&bytes).map_err(damaged)?;
    if sealed.checksum != format!("{:016x}", fnv1a(sealed.data.get().as_bytes())) {
        return Err(Unreadable::Damaged("its checksum is not that of its data".into()));
    }
    // The bytes are those that were written. A newer version may have written more members, or
    // other values.
    let checkpoint: Checkpoint =
        serde_json::from_str(sealed.data.get()).map_err(|error| Unreadable::NotNow(error.to_string()))?;
    if checkpoint.id == *id {
        return Ok(checkpoint);
    }
    Err(Unreadable::Damaged(format!("it is that of {}", checkpoint.id)))
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Detects damage, not malice: only root can write these files.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> (tempfile::TempDir, Records) {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path(), &dir.path().join("run"), "boot").unwrap();
        (dir, records)
    }

    fn checkpoint() -> Checkpoint {
        let network = Network {
            list: "{\"name\":\"n\",\"plugins\":[{\"type\":\"a\"}]}".into(),
            capability_args: Map::new(),
        };
        let mut config = Config::default();
        config.metadata.name = "web".into();
        let id = SandboxId::random().unwrap();
        Checkpoint { id, boot_id: "boot".into(), created_at_ns: 1, config, network: Some(network) }
    }

    #[test]
    fn the_checksum_is_fnv_1a() {
        // Landon Curt Noll's vectors
        assert_eq!((fnv1a(b""), fnv1a(b"a")), (0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c));
    }

    #[test]
    fn a_checkpoint_comes_back_as_it_was_and_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let (dir, records) = records();
        let written = checkpoint();
        records.write_checkpoint(&written).unwrap();
        let (id, read) = records.read_checkpoints().unwrap().remove(0);
        let read = read.unwrap();
        assert_eq!(
            (id, &read.config, &read.network),
            (written.id.clone(), &written.config, &written.network)
        );
        let file = records.checkpoints.join(written.id.as_str());
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(kept(dir.path()).unwrap(), std::slice::from_ref(&written.id));
        records.remove(&written.id).unwrap();
        records.remove(&written.id).unwrap();
        assert!(kept(dir.path()).unwrap().is_empty());
        assert!(kept(&dir.path().join("nothing")).unwrap().is_empty());
        assert!(records.read_checkpoints().unwrap().is_empty());
    }

    #[test]
    fn every_flipped_bit_is_detected_or_harmless() {
        let (_dir, records) = records();
        let written = checkpoint();
        let path = records.checkpoints.join(written.id.as_str());
        let good = seal(&written).unwrap();
        let mut noticed = 0;
        for position in 0..good.len() {
            let mut bad = good.clone();
            bad[position] ^= 0x10;
            fs::write(&path, &bad).unwrap();
            match read_checkpoint(&path, &written.id) {
                Err(Unreadable::Damaged(_)) => noticed += 1,
                Err(Unreadable::NotNow(problem)) => panic!("byte {position}: {problem}"),
                Ok(read) => assert_eq!(read.config, written.config, "byte {position}"),
            }
        }
        assert_eq!(noticed, good.len());
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(read_checkpoint(&path, &written.id).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_checkpoint_under_anothers_name_is_refused() {
        let (_dir, records) = records();
        let (one, two) = (checkpoint(), checkpoint());
        fs::write(records.checkpoints.join(two.id.as_str()), seal(&one).unwrap()).unwrap();
        let (_, read) = records.read_checkpoints().unwrap().remove(0);
        assert!(read.unwrap_err().starts_with("it is that of "));
    }

    #[test]
    fn another_versions_checkpoint_is_not_damaged() {
        let (_dir, records) = records();
        let written = checkpoint();
        let path = records.checkpoints.join(written.id.as_str());
        let mut data = serde_json::to_value(&written).unwrap();
        data["config"]["seccomp"] = "strict".into();
        let data = serde_json::value::to_raw_value(&data).unwrap();
        let checksum = format!("{:016x}", fnv1a(data.get().as_bytes()));
        for (version, expected) in [(VERSION, "seccomp"), (VERSION + 1, "its version is 2, and ours is 1")] {
            let sealed = Sealed { version, checksum: checksum.clone(), data: &data };
            fs::write(&path, serde_json::to_vec(&sealed).unwrap()).unwrap();
            let error = records.read_checkpoints().unwrap_err().to_string();
            assert!(error.starts_with("read checkpoint /") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_state_with_other_members_is_read_and_one_with_other_phases_is_not_guessed() {
        let (_dir, records) = records();
        let id = SandboxId::random().unwrap();
        let read = |text: &str| {
            fs::write(records.live.join(id.as_str()), text).unwrap();
            records.read_live(&id)
        };
        let ready = Some(Live { phase: Phase::Ready, ..Live::default() });
        assert_eq!(read(r#"["boot",{"phase":"Ready","frozen":true}]"#).unwrap(), ready);
        read(r#"["boot",{"phase":"Frozen"}]"#).unwrap_err();
        for none in [r#"["other",{"phase":"Frozen"}]"#, r#"["boot",{"pha"#, ""] {
            assert_eq!(read(none).unwrap(), None, "{none}");
        }
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_a_half_written_one_is_removed() {
        let (_dir, records) = records();
        let id = SandboxId::random().unwrap();
        fs::write(records.checkpoints.join(id.as_str()), "").unwrap();
        let half = records.checkpoints.join(format!(".{id}.1-0.tmp"));
        fs::write(&half, "{").unwrap();
        assert!(records.read_checkpoints().unwrap()[0].1.is_err());
        assert!(!half.exists());
        records.set_aside(&id).unwrap();
        records.set_aside(&id).unwrap();
        assert!(records.corrupt.join(id.as_str()).exists());
        assert!(records.read_checkpoints().unwrap().is_empty());
    }
}
