//! The parts of an installation: files, each with a step. [`plan`] decides,
//! [`carry_out`](carry_out::carry_out) executes. `russet install` is the caller; `russet uninstall`
//! reads the [`Manifest`].

mod carry_out;
mod look;
mod manifest;
mod rollback;
mod service;
mod texts;

use std::path::{Path, PathBuf};

use russet_cni_spec::table;
use serde::Serialize;

pub use carry_out::carry_out;
pub use look::look;
pub use manifest::{Manifest, RECORD, Saved};
pub use rollback::roll_back;
pub use service::Service;

/// What to install, and where. Paths are those of the node, with its root in front.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The root of the node.
    pub root: PathBuf,
    /// The root is used on this machine, by `russet agent --root`; otherwise it is that of an
    /// image, whose paths begin there.
    pub in_place: bool,
    /// The directory of the command.
    pub bin_dir: PathBuf,
    /// The directory of plugins.
    pub cni_bin_dir: PathBuf,
    /// The directory of the conflist; None: write none.
    pub cni_conf_dir: Option<PathBuf>,
    /// The cluster's own network configuration instead of Russet's: its file's name and text.
    pub own_conflist: Option<(String, String)>,
    /// The directory of units; None: write none.
    pub unit_dir: Option<PathBuf>,
    /// The services that get units.
    pub services: Vec<Service>,
    /// Plugins by name; None: the default ones.
    pub plugins: Option<Vec<String>>,
    /// The source file of the command.
    pub command: PathBuf,
    /// The source file of the plugin executable.
    pub plugin: PathBuf,
    /// The executables are a package's, and stay where it has put them: plugins are links, which an upgrade of the package changes, too.
    pub is_packaged: bool,
}

/// What exists at the path of a file to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum There {
    Nothing,
    /// The same content.
    Same,
    /// Russet's file, of another version or with other settings.
    Ours,
    /// A file of another program.
    Foreign,
}

/// What was found on the node.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Existing directories.
    pub dirs: Vec<PathBuf>,
    /// Existing files that may be replaced.
    pub files: Vec<(PathBuf, There)>,
    /// Other network configurations that runtimes would read before Russet's.
    pub before_ours: Vec<String>,
    /// How many containers have host ports that the reference plugin `portmap` wrote.
    pub reference_ports: usize,
    /// The files of the version before that exist under their second names.
    pub previous: Vec<Saved>,
    /// They are of a version that was to be replaced by an installation that has not come to its end.
    pub unfinished: bool,
}

/// One step of the installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum Step {
    Directory {
        path: PathBuf,
    },
    /// Keep a foreign file under another name beside it.
    Save {
        path: PathBuf,
        saved: PathBuf,
    },
    /// Remove a file of the version before the last.
    Discard {
        path: PathBuf,
    },
    /// Give a file of Russet's, which will be replaced, a second name beside it.
    Keep {
        path: PathBuf,
        kept: PathBuf,
    },
    /// Put a file of the version before in the place of the present one.
    Restore {
        from: PathBuf,
        path: PathBuf,
    },
    /// Copy an executable.
    Copy {
        from: PathBuf,
        path: PathBuf,
    },
    /// Make a symbolic link.
    Link {
        to: PathBuf,
        path: PathBuf,
    },
    /// Write a text file.
    Write {
        path: PathBuf,
        #[serde(skip)]
        text: String,
        /// The file's permissions.
        #[serde(skip)]
        mode: u32,
    },
    /// Leave a file as it is.
    Leave {
        path: PathBuf,
        why: &'static str,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The version in place gets second names before any of its files is replaced.
    pub keep: Vec<Step>,
    /// Before pods can use it.
    pub steps: Vec<Step>,
    /// The steps after which runtimes use it.
    pub last: Vec<Step>,
    /// Consequences that the user may not expect.
    pub warnings: Vec<String>,
}

/// Errors while an installation is planned or executed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A name that is not a plugin of Russet.
    #[error("{name:?} is not a plugin of Russet; known: {known}")]
    UnknownPlugin {
        name: String,
        /// The known names.
        known: String,
    },
    /// An executable is missing.
    #[error("{} is not there: `cargo xtask install` in Russet's source directory builds what is missing, and then does what `russet install` does, with the same arguments; without the sources, put russet-cni of the same release beside russet", .0.display())]
    NoExecutable(PathBuf),
    /// An operation on a file or directory failed.
    #[error("{operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    File(#[from] russet_linux::file::FileError),
    /// Runtimes would not read it.
    #[error("{} cannot be the network configuration: it has to be a list of plugins, in a file whose name ends in .conflist", .0.display())]
    NotAConflist(PathBuf),
    /// The record of an earlier installation is damaged.
    #[error("{} is damaged ({source}); move it away, and install again", path.display())]
    Manifest { path: PathBuf, source: serde_json::Error },
    #[error("there is no earlier version to go back to: {0}")]
    NothingToRestore(String),
    /// The service manager would start the host's files, and not the image's.
    #[error("--start is for the running system, and --root {} is another: the service starts when the image does", .0.display())]
    StartElsewhere(PathBuf),
    /// systemctl or a plugin failed.
    #[error("{what}: {why}")]
    Command {
        /// The command line.
        what: String,
        /// Its error output.
        why: String,
    },
}

/// The default of [`Wish::plugins`]: Russet's plugin, and those that every node needs.
const DEFAULT_PLUGINS: [&str; 3] = ["russet", "loopback", "portmap"];
/// The suffix of saved files: not the name of a plugin or of a conflist.
const SAVED_SUFFIX: &str = ".before-russet";
/// The suffix of the files of the version before: runtimes and systemd read no such names.
const PREVIOUS_SUFFIX: &str = ".previous";
/// The conflist's name, (ARCHITECTURE.md, "Names and places").
pub const CONFLIST: &str = "10-russet.conflist";
pub const COMMAND: &str = "russet";

// === impl Wish ===

impl Wish {
    /// The path and the source of every executable that this may write.
    pub fn executables(&self) -> Vec<(PathBuf, &Path)> {
        let names: Vec<&str> = match &self.plugins {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => DEFAULT_PLUGINS.to_vec(),
        };
        let plugins = names.into_iter().map(|name| (self.cni_bin_dir.join(name), &*self.plugin));
        std::iter::once((self.bin_dir.join(COMMAND), &*self.command)).chain(plugins).collect()
    }

    pub fn conflist(&self) -> Option<PathBuf> {
        self.cni_conf_dir.as_ref().map(|dir| dir.join(self.conflist_name()))
    }

    /// The file's name, by which runtimes order configurations.
    pub fn conflist_name(&self) -> &str {
        self.own_conflist.as_ref().map_or(CONFLIST, |(name, _)| name)
    }

    /// The units' paths and texts.
    pub fn units(&self) -> Vec<(PathBuf, String)> {
        let command = self.on_node(&self.bin_dir.join(COMMAND));
        let unit = |dir: &PathBuf| {
            let of = |service: &Service| (dir.join(service.unit()), service.text(&command));
            self.services.iter().map(of).collect()
        };
        self.unit_dir.as_ref().map(unit).unwrap_or_default()
    }

    /// Converts a path to how the node will see it.
    fn on_node(&self, path: &Path) -> PathBuf {
        if self.in_place {
            return path.to_owned();
        }
        path.strip_prefix(&self.root).map_or_else(|_| path.to_owned(), |path| Path::new("/").join(path))
    }

    fn check(&self) -> Result<(), InstallError> {
        match self.plugins.iter().flatten().find(|name| table::find(name).is_none()) {
            None => Ok(()),
            Some(name) => Err(InstallError::UnknownPlugin { name: name.clone(), known: table::names() }),
        }
    }
}

// === impl Found ===

impl Found {
    fn at(&self, path: &Path) -> There {
        self.files.iter().find(|(found, _)| found == path).map_or(There::Nothing, |(_, there)| there.clone())
    }
}

// === impl Plan ===

impl Plan {
    /// All steps, in order.
    pub fn all(&self) -> impl Iterator<Item = &Step> {
        self.keep.iter().chain(&self.steps).chain(&self.last)
    }

    /// Whether a whole version gets second names.
    fn keeps_finished_version(&self) -> bool {
        self.keep.iter().any(|step| matches!(step, Step::Keep { .. }))
    }
}

// === impl Step ===

impl Step {
    /// Whether it changes anything.
    pub fn is_change(&self) -> bool {
        !matches!(self, Self::Leave { .. })
    }
}

/// The steps for a node in the state `found`. Executables come before what starts them, and the
/// command before the plugin: a new agent serves an old plugin, but not the other way round.
pub fn plan(wish: &Wish, found: &Found) -> Result<Plan, InstallError> {
    wish.check()?;
    let mut steps = Vec::new();
    let dirs =
        [Some(&wish.bin_dir), Some(&wish.cni_bin_dir), wish.unit_dir.as_ref(), wish.cni_conf_dir.as_ref()];
    for dir in dirs.into_iter().flatten().filter(|dir| !found.dirs.contains(dir)) {
        steps.push(Step::Directory { path: dir.clone() });
    }
    let portmap = wish.cni_bin_dir.join("portmap");
    let mut ours_portmap = found.at(&portmap) == There::Ours;
    for (path, from) in wish.executables() {
        let there = found.at(&path);
        let named = wish.plugins.is_some() || path.ends_with(COMMAND);
        if path == portmap {
            ours_portmap = ours_portmap || named || there != There::Foreign;
        }
        steps.extend(executable(path, from, &there, named, wish.is_packaged));
    }
    for (path, wanted) in wish.units() {
        steps.push(text(&found.at(&path), path, wanted));
    }
    let has_portmap = ours_portmap || found.at(&portmap) != There::Nothing;
    let mut last = Vec::new();
    if let Some(path) = wish.conflist() {
        let there = found.at(&path);
        last.push(match &wish.own_conflist {
            Some((_, wanted)) => text(&there, path, wanted.clone()),
            None if there != There::Nothing => Step::Leave { path, why: "an existing conflist is kept" },
            None => {
                let command = wish.on_node(&wish.bin_dir.join(COMMAND));
                let root = wish.in_place.then_some(&*wish.root);
                text(&there, path, texts::conflist(&command, has_portmap.then_some(ours_portmap), root))
            }
        });
    }
    let before = found.before_ours.iter().filter(|_| wish.cni_conf_dir.is_some());
    let warn = |name: &String| {
        format!(
            "{name} comes before {}: container runtimes use the first configuration in the order of names",
            wish.conflist_name()
        )
    };
    let mut warnings: Vec<String> = before.map(warn).collect();
    let is_new =
        |step: &Step| matches!(step, Step::Copy { path, .. } | Step::Link { path, .. } if *path == portmap);
    let replaced = steps.iter().any(is_new);
    warnings.extend(reference_ports(found.reference_ports).filter(|_| replaced));
    Ok(Plan { keep: keep(found, &steps), steps, last, warnings })
}

/// What comes before `steps` so that `--rollback` can go back to the version that they replace.
fn keep(found: &Found, steps: &[Step]) -> Vec<Step> {
    let is_kept = |kept: &Path| found.unfinished && found.previous.iter().any(|it| it.saved == kept);
    let replaced = steps.iter().filter_map(|step| match step {
        Step::Copy { path, .. } | Step::Write { path, .. } if found.at(path) == There::Ours => Some(path),
        _ => None,
    });
    let of = |path: &PathBuf| Step::Keep { path: path.clone(), kept: beside(path, PREVIOUS_SUFFIX) };
    let kept: Vec<Step> =
        replaced.map(of).filter(|step| !matches!(step, Step::Keep { kept, .. } if is_kept(kept))).collect();
    if kept.is_empty() || found.unfinished {
        return kept;
    }
    let discard = |it: &Saved| Step::Discard { path: it.saved.clone() };
    found.previous.iter().map(discard).chain(kept).collect()
}

/// Whether a file has the name of one of the version before.
pub fn is_previous(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(PREVIOUS_SUFFIX))
}

/// A hidden name in the same directory.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{suffix}"))
}

/// The warning about host ports that another `portmap` wrote, if there are any.
fn reference_ports(containers: usize) -> Option<String> {
    (containers > 0).then(|| {
        format!(
            "host ports of {containers} container(s) were written by the portmap that is replaced: they stay in force, and go when their containers are deleted"
        )
    })
}

/// `named`: the user named the plugin, and so a foreign file is replaced.
fn executable(path: PathBuf, from: &Path, there: &There, named: bool, as_link: bool) -> Vec<Step> {
    let copy = |path| match as_link {
        true => Step::Link { to: from.to_owned(), path },
        false => Step::Copy { from: from.to_owned(), path },
    };
    match there {
        There::Same => vec![Step::Leave { path, why: "it is this version" }],
        There::Nothing | There::Ours => vec![copy(path)],
        There::Foreign if named => {
            vec![Step::Save { path: path.clone(), saved: beside(&path, SAVED_SUFFIX) }, copy(path)]
        }
        There::Foreign => vec![Step::Leave { path, why: "another plugin of that name is there" }],
    }
}

fn text(there: &There, path: PathBuf, text: String) -> Step {
    match there {
        There::Same => Step::Leave { path, why: "it is up to date" },
        _ => Step::Write { path, text, mode: russet_linux::file::READABLE },
    }
}

#[cfg(test)]
mod tests;
