//! What an installation consists of: files, each with what is to become of it. [`plan`] decides, [`carry_out`](carry_out::carry_out) does.
//! `russet install` is the caller; `russet uninstall` reads the [`Manifest`].

mod carry_out;
mod look;
mod manifest;
mod service;
mod texts;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use carry_out::carry_out;
pub use look::look;
pub use manifest::{Manifest, RECORD, Saved};
pub use service::Service;

/// What is to be installed, and where. Paths are those of the node, with its root in front.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The root of the node.
    pub root: PathBuf,
    /// The root is used on this machine, by `russet agent --root`; otherwise it is that of an image, whose paths begin there.
    pub in_place: bool,
    /// Where the command goes.
    pub bin_dir: PathBuf,
    /// Where plugins go.
    pub cni_bin_dir: PathBuf,
    /// Where the conflist goes; none: there is to be none.
    pub cni_conf_dir: Option<PathBuf>,
    /// Where units go; none: there are to be none.
    pub unit_dir: Option<PathBuf>,
    /// Whose units there are to be.
    pub services: Vec<Service>,
    /// Plugins by name; none: the usual ones.
    pub plugins: Option<Vec<String>>,
    /// The command.
    pub command: PathBuf,
    /// The executable that runtimes start.
    pub plugin: PathBuf,
}

/// A file's place, and what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum There {
    /// Nothing.
    Nothing,
    /// What we would put there.
    Same,
    /// Ours, of another version or with other settings.
    Ours,
    /// Somebody else's.
    Foreign,
}

/// What was found on the node.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Directories that are there.
    pub dirs: Vec<PathBuf>,
    /// Files that may be replaced; those that are not named are not there.
    pub files: Vec<(PathBuf, There)>,
    /// Other network configurations that runtimes would read before ours.
    pub before_ours: Vec<String>,
    /// How many containers have host ports that the reference plugin `portmap` wrote.
    pub reference_ports: usize,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum Step {
    /// Make a directory.
    Directory {
        /// Where.
        path: PathBuf,
    },
    /// Keep what somebody else installed, under another name beside it.
    Save {
        /// What.
        path: PathBuf,
        /// Its other name.
        saved: PathBuf,
    },
    /// Copy an executable.
    Copy {
        /// What.
        from: PathBuf,
        /// Where to.
        path: PathBuf,
    },
    /// Write a text.
    Write {
        /// Where.
        path: PathBuf,
        /// What.
        #[serde(skip)]
        text: String,
        /// The file's permissions.
        #[serde(skip)]
        mode: u32,
    },
    /// Nothing: it is there.
    Leave {
        /// What.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
}

/// Everything to do, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Before pods can use it.
    pub steps: Vec<Step>,
    /// What makes runtimes use it; after everything else.
    pub last: Vec<Step>,
    /// What will not go as users may think.
    pub warnings: Vec<String>,
}

/// What keeps an installation from being planned or done.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A name that is none of our plugins.
    #[error("{name:?} is no plugin of ours; known: {known}")]
    UnknownPlugin {
        /// The name.
        name: String,
        /// Those that we know.
        known: String,
    },
    /// An executable is missing.
    #[error("{} is not there: `cargo xtask install` in Russet's source directory builds what is missing, and then does what `russet install` does, with the same arguments; without the sources, put russet-cni of the same release beside russet", .0.display())]
    NoExecutable(PathBuf),
    /// A file or directory.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file that could not be written.
    #[error(transparent)]
    File(#[from] russet_linux::file::FileError),
    /// The record of an earlier installation.
    #[error("{} is damaged ({source}); move it away, and install again", path.display())]
    Manifest {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The service manager would start what is installed here, and not in the image.
    #[error("--start is for the running system, and --root {} is another: the service starts when the image does", .0.display())]
    StartElsewhere(PathBuf),
    /// A service manager or plugin that was started.
    #[error("{what}: {why}")]
    Command {
        /// What was started.
        what: String,
        /// What it said.
        why: String,
    },
}

/// The plugins that [`Wish::plugins`] stands for where nobody names any: ours, and those that a node cannot do without.
const USUAL: [&str; 3] = ["russet", "loopback", "portmap"];
/// What a saved file is called: no plugin's name, and behind a dot no conflist either.
const SAVED_SUFFIX: &str = ".before-russet";
/// The conflist's name, (ARCHITECTURE.md, "Names and places").
pub const CONFLIST: &str = "10-russet.conflist";
/// The command's name.
pub const COMMAND: &str = "russet";

// === impl Wish ===

impl Wish {
    /// Every executable that this may write: where, and from what.
    pub fn executables(&self) -> Vec<(PathBuf, &Path)> {
        let names: Vec<&str> = match &self.plugins {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => USUAL.to_vec(),
        };
        let plugins = names.into_iter().map(|name| (self.cni_bin_dir.join(name), &*self.plugin));
        std::iter::once((self.bin_dir.join(COMMAND), &*self.command)).chain(plugins).collect()
    }

    /// Where the conflist goes.
    pub fn conflist(&self) -> Option<PathBuf> {
        self.cni_conf_dir.as_ref().map(|dir| dir.join(CONFLIST))
    }

    /// Where units go, and their texts.
    pub fn units(&self) -> Vec<(PathBuf, String)> {
        let command = self.on_node(&self.bin_dir.join(COMMAND));
        let unit = |dir: &PathBuf| {
            let of = |service: &Service| (dir.join(service.unit()), service.text(&command));
            self.services.iter().map(of).collect()
        };
        self.unit_dir.as_ref().map(unit).unwrap_or_default()
    }

    /// A path as the node will see it.
    fn on_node(&self, path: &Path) -> PathBuf {
        if self.in_place {
            return path.to_owned();
        }
        path.strip_prefix(&self.root).map_or_else(|_| path.to_owned(), |path| Path::new("/").join(path))
    }

    fn check(&self) -> Result<(), InstallError> {
        let known = russet_plugins::NAMES;
        match self.plugins.iter().flatten().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(InstallError::UnknownPlugin { name: name.clone(), known: known.join(", ") }),
        }
    }
}

// === impl Found ===

impl Found {
    fn at(&self, path: &Path) -> There {
        self.files.iter().find(|(found, _)| found == path).map_or(There::Nothing, |(_, there)| there.clone())
    }
}

// === impl Step ===

impl Step {
    /// Whether it changes anything.
    pub fn is_change(&self) -> bool {
        !matches!(self, Self::Leave { .. })
    }
}

/// What has to be done where `found` is there. Executables come before what starts them, and the command before the plugin: an agent serves the plugin
/// before its own version, but not the other way round.
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
        steps.extend(executable(path, from, &there, named));
    }
    for (path, wanted) in wish.units() {
        steps.push(text(&found.at(&path), path, wanted));
    }
    let has_portmap = ours_portmap || found.at(&portmap) != There::Nothing;
    let mut last = Vec::new();
    if let Some(path) = wish.conflist() {
        let command = wish.on_node(&wish.bin_dir.join(COMMAND));
        let wanted = texts::conflist(
            &command,
            has_portmap.then_some(ours_portmap),
            wish.in_place.then_some(&wish.root),
        );
        last.push(match found.at(&path) {
            There::Nothing => text(&There::Nothing, path, wanted),
            _ => Step::Leave { path, why: "a conflist that is there is kept" },
        });
    }
    let before = found.before_ours.iter().filter(|_| wish.cni_conf_dir.is_some());
    let warn = |name: &String| {
        format!(
            "{name} comes before {CONFLIST}: container runtimes use the first configuration in the order of names"
        )
    };
    let mut warnings: Vec<String> = before.map(warn).collect();
    let replaced = steps.iter().any(|step| matches!(step, Step::Copy { path, .. } if *path == portmap));
    warnings.extend(reference_ports(found.reference_ports).filter(|_| replaced));
    Ok(Plan { steps, last, warnings })
}

/// What becomes of host ports that another `portmap` wrote, where there are any.
fn reference_ports(containers: usize) -> Option<String> {
    (containers > 0).then(|| {
        format!(
            "host ports of {containers} container(s) were written by the portmap that is replaced: they stay in force, and go when their containers are deleted"
        )
    })
}

/// `named`: somebody asked for it, and so for its place.
fn executable(path: PathBuf, from: &Path, there: &There, named: bool) -> Vec<Step> {
    let copy = |path| Step::Copy { from: from.to_owned(), path };
    match there {
        There::Same => vec![Step::Leave { path, why: "it is this version" }],
        There::Nothing | There::Ours => vec![copy(path)],
        There::Foreign if named => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let saved = path.with_file_name(format!(".{name}{SAVED_SUFFIX}"));
            vec![Step::Save { path: path.clone(), saved }, copy(path)]
        }
        There::Foreign => vec![Step::Leave { path, why: "another plugin of that name is there" }],
    }
}

fn text(there: &There, path: PathBuf, text: String) -> Step {
    match there {
        There::Same => Step::Leave { path, why: "it is as it should be" },
        _ => Step::Write { path, text, mode: russet_linux::file::READABLE },
    }
}

#[cfg(test)]
mod tests;
