//! One scan of a configuration directory: the default network, the invalid files, and the reasons
//! (cni-runtime.md section 3.4).

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use russet_cni_spec::{ConfigError, ConfigList};

use crate::{ConfigDir, LoadError, PluginError, Runtime, RuntimeError, load_conflist};

/// Why there is no default network. Its text is CRI's message beside `NetworkReady=false` and
/// `NetworkPluginNotReady`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unready {
    /// The directory has no configuration, or does not exist.
    #[error("no network configuration in {}: has the network's installer run?", dir.display())]
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory cannot be read.
    #[error("network configurations cannot be read: {problem}")]
    Unreadable {
        /// The directory.
        dir: PathBuf,
        problem: String,
    },
    /// There are files, and none is valid.
    #[error("no usable network configuration in {}: {}", dir.display(), summary(skipped))]
    NothingValid {
        /// The directory.
        dir: PathBuf,
        /// Each file with its reason.
        skipped: Vec<Skipped>,
    },
}

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct Skipped {
    /// The file.
    pub path: PathBuf,
    pub why: Why,
}

/// The reason why a file is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// A `.conf` or `.json` names no plugin.
    #[error("no 'type'; is this a conflist?")]
    NoType,
    /// A `.conf` or `.json` with a list in it.
    #[error("it has 'plugins': is this a conflist?")]
    IsList,
    /// A list without plugins.
    #[error("no plugins in the list")]
    NoPlugins,
    /// It is not a valid configuration.
    #[error("{0}")]
    Invalid(String),
    /// A plugin is missing, or cannot be used with it.
    #[error("{0}")]
    Plugins(String),
}

/// A network and its file.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) list: Arc<ConfigList>,
}

/// The result of one scan.
pub(super) struct Survey {
    pub(super) found: Result<Found, Unready>,
    pub(super) skipped: Vec<Skipped>,
}

/// Scans; caches the versions of plugins.
pub(super) struct Surveyor {
    dir: ConfigDir,
    runtime: Runtime,
    answers: BTreeMap<PathBuf, (Stamp, Vec<String>)>,
    /// The plugin directories of the scanned files.
    plugin_dirs: BTreeSet<PathBuf>,
}

/// Identifies an unchanged file: device, inode, size and times.
type Stamp = (u64, u64, u64, i64, i64);

/// VERSION reads nothing; a plugin that takes longer is not usable.
const VERSION_DEADLINE: Duration = Duration::from_secs(5);
/// How many reasons a message lists; the others are counted.
const SHOWN_MAX: usize = 3;
/// How many directories with plugins of networks are watched.
const SUBDIRS_MAX: usize = 64;

// === impl Surveyor ===

impl Surveyor {
    pub(super) fn new(dir: ConfigDir, mut runtime: Runtime) -> Self {
        runtime.plugin_deadline = VERSION_DEADLINE.min(runtime.plugin_deadline);
        (runtime.times, runtime.progress) = (None, None);
        let plugin_dirs = runtime.plugin_dirs.iter().cloned().collect();
        Self { dir, runtime, answers: BTreeMap::new(), plugin_dirs }
    }

    /// The directories whose changes may change the result.
    pub(super) fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.dir.path().to_owned()];
        let entries = std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten();
        dirs.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()).take(SUBDIRS_MAX));
        dirs.extend(self.plugin_dirs.iter().cloned());
        dirs
    }

    /// Reads every file; runs plugins until there is a network. The plugins of the network in use
    /// are not run again: while they are being replaced it stays the network.
    pub(super) fn survey(&mut self, current: Option<&Found>) -> Survey {
        let dir = self.dir.path().to_owned();
        let paths = match self.dir.files() {
            Ok(paths) => paths,
            Err(error) => {
                let problem = error.to_string();
                return Survey { found: Err(Unready::Unreadable { dir, problem }), skipped: Vec::new() };
            }
        };
        let (mut found, mut skipped) = (None, Vec::new());
        self.plugin_dirs = self.runtime.plugin_dirs.iter().cloned().collect();
        for path in paths {
            match load_conflist(&path) {
                Err(error) => skipped.push(Skipped { path, why: Why::of(error) }),
                Ok(_) if found.is_some() => {}
                Ok(list) => match self.accept(&path, &list, current) {
                    Ok(()) => found = Some(Found { path, list: Arc::new(list) }),
                    Err(error) => skipped.push(Skipped { path, why: Why::Plugins(error.to_string()) }),
                },
            }
        }
        let found = found.ok_or_else(|| match skipped.is_empty() {
            true => Unready::Empty { dir },
            false => Unready::NothingValid { dir, skipped: skipped.clone() },
        });
        Survey { found, skipped }
    }

    fn accept(
        &mut self,
        path: &Path,
        list: &ConfigList,
        current: Option<&Found>,
    ) -> Result<(), RuntimeError> {
        let Self { runtime, answers, plugin_dirs, .. } = self;
        let dirs = runtime.dirs_of(list);
        plugin_dirs.extend(dirs.iter().cloned());
        if current.is_some_and(|current| current.path == path && *current.list == *list) {
            return Ok(());
        }
        runtime.validate_by(list, |kind| versions(runtime, &dirs, answers, kind)).map(drop)
    }
}

/// The plugin's versions, cached while its file is the same.
fn versions(
    runtime: &Runtime,
    dirs: &[PathBuf],
    answers: &mut BTreeMap<PathBuf, (Stamp, Vec<String>)>,
    kind: &str,
) -> Result<Vec<String>, PluginError> {
    // Without a file it may be a plugin of this program, which costs nothing to call.
    let Ok(path) = Runtime::find(dirs, kind) else { return runtime.versions_in(dirs, kind) };
    let stamp = path
        .metadata()
        .map_or_else(|_| Stamp::default(), |it| (it.dev(), it.ino(), it.size(), it.ctime(), it.ctime_nsec()));
    if let Some((_, known)) = answers.get(&path).filter(|(of, _)| *of == stamp) {
        return Ok(known.clone());
    }
    let answer = runtime.versions_in(dirs, kind)?;
    answers.insert(path, (stamp, answer.clone()));
    Ok(answer)
}

fn summary(skipped: &[Skipped]) -> String {
    let mut parts: Vec<String> = skipped.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
    if let Some(more @ 1..) = skipped.len().checked_sub(SHOWN_MAX) {
        parts.push(format!("and {more} more"));
    }
    parts.join("; ")
}

// === impl Why ===

impl Why {
    fn of(error: LoadError) -> Self {
        match error {
            LoadError::Config { source: ConfigError::NoType, .. } => Self::NoType,
            LoadError::Config { source: ConfigError::IsList, .. } => Self::IsList,
            LoadError::Config { source: ConfigError::NoPlugins, .. } => Self::NoPlugins,
            LoadError::Config { source, .. } => Self::Invalid(source.to_string()),
            LoadError::Read { source, .. } => Self::Unreadable(source.to_string()),
            other => Self::Invalid(other.to_string()),
        }
    }
}
