//! Finds and reads network configurations in a directory (cni-runtime.md section 2.1).

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use russet_cni_spec::{ConfigError, ConfigList};

/// A directory of network configurations, such as `/etc/cni/net.d`.
#[derive(Debug, Clone)]
pub struct ConfigDir(PathBuf);

/// A configuration was not found, or is unreadable.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Reading failed.
    #[error("read {}: {source}", path.display())]
    Read {
        /// File or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The contents are not a configuration.
    #[error("{}: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        source: ConfigError,
    },
    /// There are configurations, but none of that name.
    #[error("no net configuration with name {name:?} in {}", dir.display())]
    NoSuchName {
        name: String,
        /// The directory.
        dir: PathBuf,
    },
    /// There are no configurations.
    #[error("no net configurations found in {}", .0.display())]
    Empty(PathBuf),
}

/// People write configurations; plugins refuse larger ones.
const FILE_MAX_BYTES: u64 = russet_cni_spec::plugin::STDIN_MAX_BYTES as u64;

/// Reads one file: a list from a `.conflist`, with the plugins in the directory named after the network; anything else
/// is a single plugin's configuration.
pub fn load_conflist(path: &Path) -> Result<ConfigList, LoadError> {
    let bytes = read(path)?;
    let config = |source| LoadError::Config { path: path.to_owned(), source };
    if !has_extension(path, &["conflist"]) {
        return ConfigList::parse_single(&bytes).map_err(config);
    }
    let mut list = ConfigList::parse(&bytes).map_err(config)?;
    if !list.load_only_inlined_plugins {
        let dir = path.with_file_name(list.name.as_str());
        for path in files(&dir, &["conf"])? {
            let appended = list.append(&read(&path)?);
            appended.map_err(|source| LoadError::Config { path, source })?;
        }
    }
    list.require_plugins().map_err(config)
}

// === impl ConfigDir ===

impl ConfigDir {
    /// Reads nothing yet; the directory may appear later.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// All configuration files, sorted by name as Kubernetes' runtimes sort them. A missing directory has none.
    pub fn files(&self) -> Result<Vec<PathBuf>, LoadError> {
        files(&self.0, &["conf", "conflist", "json"])
    }

    /// The network called `name`, as libcni finds it: lists first, then single configurations, and
    /// an unreadable file stops the search.
    pub fn network(&self, name: &str) -> Result<ConfigList, LoadError> {
        let mut paths = files(&self.0, &["conflist"])?;
        paths.extend(files(&self.0, &["conf", "json"])?);
        for path in &paths {
            let list = load_conflist(path)?;
            if list.name.as_str() == name {
                return Ok(list);
            }
        }
        Err(match paths.is_empty() {
            true => LoadError::Empty(self.0.clone()),
            false => LoadError::NoSuchName { name: name.to_owned(), dir: self.0.clone() },
        })
    }

    /// The default network: the first valid file; also returns the errors of the skipped ones.
    pub fn first(&self) -> Result<(ConfigList, Vec<LoadError>), LoadError> {
        let mut skipped = Vec::new();
        for path in self.files()? {
            match load_conflist(&path) {
                Ok(list) => return Ok((list, skipped)),
                Err(error) => skipped.push(error),
            }
        }
        Err(skipped.into_iter().next().unwrap_or_else(|| LoadError::Empty(self.0.clone())))
    }
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().and_then(|extension| extension.to_str()).is_some_and(|it| extensions.contains(&it))
}

/// Hidden files count, subdirectories do not.
pub(crate) fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(failed)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if has_extension(&path, extensions) && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(failed(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("more than {FILE_MAX_BYTES} bytes"),
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn kinds(list: &ConfigList) -> Vec<&str> {
        list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect()
    }

    const GOOD: &str = r#"{"cniVersion":"1.0.0","name":"good","plugins":[{"type":"a"}]}"#;

    #[test]
    fn a_bad_file_sorted_first_stops_the_search_for_any_name() {
        // cni-runtime.md section 6.2 item 32
        let dir = dir(&[("00-bad.conflist", "{"), ("10-good.conflist", GOOD)]);
        let configs = ConfigDir::new(dir.path());
        assert!(matches!(configs.network("good"), Err(LoadError::Config { .. })));
        let (list, skipped) = configs.first().unwrap();
        assert_eq!((list.name.as_str(), skipped.len()), ("good", 1));
    }

    #[test]
    fn only_the_last_extension_counts_and_hidden_files_do() {
        // cni-runtime.md section 2.1
        let single = r#"{"name":"s","type":"b"}"#;
        let dir = dir(&[
            (".00.conflist", GOOD),
            ("x.conflist.bak", "{"),
            ("y.conf", single),
            ("d.json/z.conf", "{"),
        ]);
        let configs = ConfigDir::new(dir.path());
        assert_eq!(configs.files().unwrap().len(), 2);
        assert_eq!(kinds(&configs.network("s").unwrap()), ["b"]);
        let error = configs.network("t").unwrap_err().to_string();
        assert!(error.starts_with("no net configuration with name \"t\" in "), "{error}");
        let error = ConfigDir::new("/absent").network("t").unwrap_err().to_string();
        assert_eq!(error, "no net configurations found in /absent");
    }

    #[test]
    fn plugins_in_the_networks_directory_are_appended_in_order() {
        // cni-runtime.md section 6.2 item 31
        let plugin = |kind: &str| format!(r#"{{"type":"{kind}"}}"#);
        let (a, b, n1) = (plugin("a"), plugin("b"), plugin("n1"));
        let list = |more: &str| format!(r#"{{"name":"n","plugins":[{n1}]{more}}}"#);
        let inline = list("");
        let dir =
            dir(&[("n.conflist", &inline), ("n/10-a.conf", &a), ("n/05-b.conf", &b), ("n/z.conflist", "{")]);
        let path = dir.path().join("n.conflist");
        assert_eq!(kinds(&load_conflist(&path).unwrap()), ["n1", "b", "a"]);
        fs::write(&path, list(r#","loadOnlyInlinedPlugins":true"#)).unwrap();
        assert_eq!(kinds(&load_conflist(&path).unwrap()), ["n1"]);
        fs::write(&path, r#"{"name":"n"}"#).unwrap();
        assert_eq!(kinds(&load_conflist(&path).unwrap()), ["b", "a"]);
        fs::write(&path, r#"{"name":"other"}"#).unwrap();
        assert!(load_conflist(&path).unwrap_err().to_string().ends_with("no plugin configs found"));
    }
}
