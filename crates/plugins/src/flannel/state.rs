//! The delegate's configurations that ADD saves for DEL, one file for each interface (flannel.md
//! section 8, ADD step 5).
//!
//! The Go plugin names the file after the container alone, so that a second interface overwrites
//! the file of the first. Here that file name is used for `eth0` only, and
//! `<container>:<interface>` for all other interfaces; neither container nor interface names
//! contain a colon. An interface without a file of its own uses the Go plugin's file, which then is
//! not removed, because it may be that of `eth0`.

use std::fs::{DirBuilder, DirEntry};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use russet_addr::EndpointId;
use russet_cni_spec::{CniError, Target};
use russet_linux::file;
use serde_json::Value;

/// The directory of saved configurations.
#[derive(Debug, Clone)]
pub struct ConfigFiles {
    dir: PathBuf,
}

/// The saved configuration of an interface.
#[derive(Debug, PartialEq)]
pub enum SavedConfig {
    /// There is none, so there is nothing to undo.
    Absent,
    /// The file cannot be decoded; the text says why.
    Broken(String),
    /// The delegate's configuration.
    Config {
        /// Unchanged.
        config: Value,
        /// Whether the file belongs to this interface alone.
        own: bool,
    },
}

const PRIMARY: &str = "eth0";
/// The largest file that is read: configurations have a few hundred bytes, and no plugin reads more
/// than this from standard input.
const MAX_BYTES: u64 = 1024 * 1024;

// === impl ConfigFiles ===

impl ConfigFiles {
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Saves a configuration durably, readable by root only.
    pub fn save(&self, target: &Target, config: &[u8]) -> Result<(), CniError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|error| CniError::io(format!("flannel: make {}", self.dir.display()), error))?;
        let written = file::write_atomic(self.path(target), config);
        written
            .map_err(|error| CniError::io("flannel: the delegate's configuration could not be saved", error))
    }

    /// Loads the configuration of an interface.
    pub fn load(&self, target: &Target) -> Result<SavedConfig, CniError> {
        match self.read(&self.path(target), true)? {
            SavedConfig::Absent if target.id.ifname.as_str() != PRIMARY => {
                self.read(&self.shared(target), false)
            }
            found => Ok(found),
        }
    }

    /// Removes the interface's own file.
    pub fn forget(&self, target: &Target) -> Result<(), CniError> {
        remove(&self.path(target))
    }

    /// Removes the files of interfaces of `network` that are not in `valid`. Continues after errors
    /// and reports them together.
    pub fn collect(&self, network: &str, valid: &[EndpointId]) -> Result<(), CniError> {
        let failed = |error| CniError::io(format!("flannel: list {}", self.dir.display()), error);
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let mut errors = Vec::new();
        for entry in entries {
            let collected = entry.map_err(failed).and_then(|entry| self.collect_one(&entry, network, valid));
            errors.extend(collected.err().map(|error| error.to_string()));
        }
        if errors.is_empty() {
            return Ok(());
        }
        let msg = "flannel: some saved configurations that are no longer valid could not be removed";
        Err(CniError::io(msg, errors.join("; ")))
    }

    fn collect_one(&self, entry: &DirEntry, network: &str, valid: &[EndpointId]) -> Result<(), CniError> {
        let Ok(name) = entry.file_name().into_string() else { return Ok(()) };
        let is_valid = |it: &EndpointId| match name.split_once(':') {
            Some((id, ifname)) => it.container.as_str() == id && it.ifname.as_str() == ifname,
            None => it.container.as_str() == name,
        };
        let of_network = |config: &Value| config.get("name").and_then(Value::as_str) == Some(network);
        match self.read(&entry.path(), true)? {
            SavedConfig::Config { config, .. } if of_network(&config) && !valid.iter().any(is_valid) => {
                remove(&entry.path())
            }
            _ => Ok(()),
        }
    }

    fn read(&self, path: &Path, own: bool) -> Result<SavedConfig, CniError> {
        use std::io::Read as _;
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SavedConfig::Absent),
            Err(error) => return Err(CniError::io(format!("flannel: read {}", path.display()), error)),
            Ok(_) => {}
        }
        let broken =
            |why: &dyn std::fmt::Display| Ok(SavedConfig::Broken(format!("{}: {why}", path.display())));
        match serde_json::from_slice(&bytes) {
            Ok(config @ Value::Object(_)) => Ok(SavedConfig::Config { config, own }),
            Ok(_) => broken(&"an object is wanted"),
            Err(error) => broken(&error),
        }
    }

    fn path(&self, target: &Target) -> PathBuf {
        match target.id.ifname.as_str() {
            PRIMARY => self.shared(target),
            ifname => self.dir.join(format!("{}:{ifname}", target.id.container)),
        }
    }

    /// The file that the Go plugin uses for all interfaces of a container.
    fn shared(&self, target: &Target) -> PathBuf {
        self.dir.join(target.id.container.as_str())
    }
}

fn remove(path: &Path) -> Result<(), CniError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(CniError::io(format!("flannel: remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    fn target(ifname: &str) -> Target {
        Target { id: format!("n/abc/{ifname}").parse().unwrap(), netns: String::new() }
    }

    fn saved(name: &str, own: bool) -> SavedConfig {
        SavedConfig::Config { config: json!({ "name": name }), own }
    }

    #[test]
    fn t54_the_file_is_named_after_the_container_and_roots_alone() {
        // flannel.md section 8, ADD step 5
        let dir = tempfile::tempdir().unwrap();
        let state = ConfigFiles::at(dir.path().join("flannel"));
        state.save(&target("eth0"), b"{\"name\":\"n\"}").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = dir.path().join("flannel/abc");
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(state.load(&target("eth0")).unwrap(), saved("n", true));
    }

    #[test]
    fn a_second_interface_has_a_file_of_its_own_and_finds_the_go_plugins() {
        let dir = tempfile::tempdir().unwrap();
        let state = ConfigFiles::at(dir.path().to_owned());
        std::fs::write(dir.path().join("abc"), "{\"name\":\"go\"}").unwrap();
        assert_eq!(state.load(&target("net1")).unwrap(), saved("go", false));
        state.save(&target("net1"), b"{\"name\":\"two\"}").unwrap();
        assert_eq!(state.load(&target("net1")).unwrap(), saved("two", true));
        assert_eq!(state.load(&target("eth0")).unwrap(), saved("go", true));
        state.forget(&target("net1")).unwrap();
        state.forget(&target("net1")).unwrap();
        assert_eq!(state.load(&target("eth0")).unwrap(), saved("go", true));
    }

    #[test]
    fn t55_an_unreadable_file_is_distinguished_from_a_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        let state = ConfigFiles::at(dir.path().join("none"));
        assert_eq!(state.load(&target("eth0")).unwrap(), SavedConfig::Absent);
        let state = ConfigFiles::at(dir.path().to_owned());
        for text in ["", "{", "[]", "\0"] {
            std::fs::write(dir.path().join("abc"), text).unwrap();
            assert!(matches!(state.load(&target("eth0")).unwrap(), SavedConfig::Broken(_)), "{text:?}");
        }
    }

    #[test]
    fn gc_removes_files_of_invalid_attachments_and_continues_after_errors() {
        let dir = tempfile::tempdir().unwrap();
        let state = ConfigFiles::at(dir.path().to_owned());
        for (name, network) in
            [("abc", "n"), ("abc:net1", "n"), ("gone", "n"), ("gone:net1", "n"), ("other", "m")]
        {
            std::fs::write(dir.path().join(name), json!({ "name": network }).to_string()).unwrap();
        }
        std::fs::write(dir.path().join("broken"), "").unwrap();
        // Directories cannot be read as files; they are met in different positions of the listing.
        for name in ["a-directory", "h-directory", "z-directory"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let error = state.collect("n", &["n/abc/eth0".parse().unwrap()]).unwrap_err();
        assert_eq!(error.details.matches("-directory").count(), 3, "{error}");
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with("-directory"))
            .collect();
        left.sort();
        assert_eq!(left, ["abc", "broken", "other"]);
    }
}
