//! What ADD leaves for DEL: the delegate's configuration, a file for each interface (flannel.md section 8, ADD step 5).
//!
//! The Go plugin names the file after the container alone, so a second interface overwrites the first one's. Ours has the file of that name for
//! `eth0`, and `<container>:<interface>` for every other; no container's or interface's name has a colon in it. An interface without a file of its own is
//! looked for in the Go plugin's, which then stays: it may be `eth0`'s.

use std::fs::{DirBuilder, DirEntry};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use russet_cni_spec::{CniError, Target, ValidAttachment};
use russet_linux::file;
use serde_json::Value;

/// The directory.
#[derive(Debug, Clone)]
pub struct State {
    dir: PathBuf,
}

/// What was found for an interface.
#[derive(Debug, PartialEq)]
pub enum Saved {
    /// Nothing: there is nothing to do.
    Absent,
    /// Nothing that can be read as a configuration, and why.
    Broken(String),
    /// The delegate's configuration.
    Config {
        /// As it was written.
        config: Value,
        /// Whether the file is this interface's alone.
        own: bool,
    },
}

const PRIMARY: &str = "eth0";
/// The largest file that is read: configurations take a few hundred bytes, and no plugin reads more than this of standard input.
const MAX_BYTES: u64 = 1024 * 1024;

// === impl State ===

impl State {
    /// The files in `dir`.
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Saves a configuration, durably and for root only.
    pub fn save(&self, target: &Target, config: &[u8]) -> Result<(), CniError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|error| CniError::io(format!("flannel: make {}", self.dir.display()), error))?;
        let written = file::write_atomic(self.path(target), config);
        written
            .map_err(|error| CniError::io("flannel: the delegate's configuration could not be saved", error))
    }

    /// What is saved for an interface.
    pub fn load(&self, target: &Target) -> Result<Saved, CniError> {
        match self.read(&self.path(target), true)? {
            Saved::Absent if target.ifname.as_str() != PRIMARY => self.read(&self.shared(target), false),
            found => Ok(found),
        }
    }

    /// Forgets an interface's own configuration.
    pub fn forget(&self, target: &Target) -> Result<(), CniError> {
        remove(&self.path(target))
    }

    /// Forgets what is saved for interfaces of `network` that nobody in the list has. Goes on past errors and tells them together.
    pub fn collect(&self, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
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
        let msg = "flannel: some of what is no longer valid is still saved";
        Err(CniError::io(msg, errors.join("; ")))
    }

    fn collect_one(
        &self,
        entry: &DirEntry,
        network: &str,
        valid: &[ValidAttachment],
    ) -> Result<(), CniError> {
        let Ok(name) = entry.file_name().into_string() else { return Ok(()) };
        let is_valid = |it: &ValidAttachment| match name.split_once(':') {
            Some((id, ifname)) => it.container_id.as_str() == id && it.ifname.as_str() == ifname,
            None => it.container_id.as_str() == name,
        };
        let of_network = |config: &Value| config.get("name").and_then(Value::as_str) == Some(network);
        match self.read(&entry.path(), true)? {
            Saved::Config { config, .. } if of_network(&config) && !valid.iter().any(is_valid) => {
                remove(&entry.path())
            }
            _ => Ok(()),
        }
    }

    fn read(&self, path: &Path, own: bool) -> Result<Saved, CniError> {
        use std::io::Read as _;
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Saved::Absent),
            Err(error) => return Err(CniError::io(format!("flannel: read {}", path.display()), error)),
            Ok(_) => {}
        }
        let broken = |why: &dyn std::fmt::Display| Ok(Saved::Broken(format!("{}: {why}", path.display())));
        match serde_json::from_slice(&bytes) {
            Ok(config @ Value::Object(_)) => Ok(Saved::Config { config, own }),
            Ok(_) => broken(&"an object is wanted"),
            Err(error) => broken(&error),
        }
    }

    fn path(&self, target: &Target) -> PathBuf {
        match target.ifname.as_str() {
            PRIMARY => self.shared(target),
            ifname => self.dir.join(format!("{}:{ifname}", target.container_id)),
        }
    }

    /// The file that the Go plugin has for all interfaces of a container.
    fn shared(&self, target: &Target) -> PathBuf {
        self.dir.join(target.container_id.as_str())
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
        let (container_id, ifname) = ("abc".parse().unwrap(), ifname.parse().unwrap());
        Target { container_id, ifname, netns: String::new() }
    }

    fn saved(name: &str, own: bool) -> Saved {
        Saved::Config { config: json!({ "name": name }), own }
    }

    #[test]
    fn t54_the_file_is_named_after_the_container_and_roots_alone() {
        // flannel.md section 8, ADD step 5
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("flannel"));
        state.save(&target("eth0"), b"{\"name\":\"n\"}").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = dir.path().join("flannel/abc");
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(state.load(&target("eth0")).unwrap(), saved("n", true));
    }

    #[test]
    fn a_second_interface_has_a_file_of_its_own_and_finds_the_go_plugins() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().to_owned());
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
    fn t55_what_cannot_be_read_is_told_apart_from_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("none"));
        assert_eq!(state.load(&target("eth0")).unwrap(), Saved::Absent);
        let state = State::at(dir.path().to_owned());
        for text in ["", "{", "[]", "\0"] {
            std::fs::write(dir.path().join("abc"), text).unwrap();
            assert!(matches!(state.load(&target("eth0")).unwrap(), Saved::Broken(_)), "{text:?}");
        }
    }

    #[test]
    fn gc_forgets_what_nobody_in_the_networks_list_has_and_goes_on_past_errors() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().to_owned());
        for (name, network) in
            [("abc", "n"), ("abc:net1", "n"), ("gone", "n"), ("gone:net1", "n"), ("other", "m")]
        {
            std::fs::write(dir.path().join(name), json!({ "name": network }).to_string()).unwrap();
        }
        std::fs::write(dir.path().join("broken"), "").unwrap();
        // These cannot be read, wherever in the order they come.
        for name in ["a-directory", "h-directory", "z-directory"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let valid = ValidAttachment { container_id: "abc".parse().unwrap(), ifname: "eth0".parse().unwrap() };
        let error = state.collect("n", &[valid]).unwrap_err();
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
