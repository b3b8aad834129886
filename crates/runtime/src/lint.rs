//! Finds faults in a network configuration: for `russet cni lint`, and to explain why a runtime
//! skips a file.
//!
//! Loading stops at the first error. This continues, reports positions, and also finds faults of
//! files that load and then do not work: a misplaced key, a missing plugin, overlapping subnets.

mod json;
mod keys;
mod names;
mod plugin;
mod ranges;

use std::path::{Path, PathBuf};

use russet_cni_spec::{ConfigList, Version};
use serde_json::{Map, Value};

use crate::{Runtime, load, load_conflist};
use keys::Keys;
use ranges::Ranges;

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub file: PathBuf,
    /// Line and column, both counted from 1, if the file is JSON enough to have them.
    pub position: Option<(usize, usize)>,
    /// The member, for example `plugins[1].ipam.subnet`; empty for the whole file.
    pub at: String,
    /// How bad it is.
    pub severity: Severity,
    /// The fault and its remedy.
    pub text: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The file is not used, or an ADD fails.
    Error,
    /// It is usable, but probably does not do what was intended.
    Warning,
}

/// A file that is being checked.
struct Document {
    file: PathBuf,
    positions: json::Positions,
    findings: Vec<Finding>,
}

/// The common properties of a chain's plugins, and the values that are compared between them.
struct Chain<'a> {
    runtime: Option<&'a Runtime>,
    dirs: Vec<PathBuf>,
    /// The version for the plugins; None if it is invalid.
    version: Option<Version>,
    ranges: Ranges,
    /// The number of earlier plugins.
    before: usize,
}

/// The suffixes of files that runtimes read.
const SUFFIXES: [&str; 3] = ["conflist", "conf", "json"];

/// Checks a file, and the plugins in the directory of its network. With a runtime, plugins are
/// searched and run for their versions.
pub fn lint(path: &Path, runtime: Option<&Runtime>) -> Vec<Finding> {
    let mut document = Document::new(path);
    let Some((bytes, object)) = document.read() else { return document.findings };
    let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
    if !SUFFIXES.contains(&suffix) {
        document.warn("", "runtimes pass over this file: its name must end in .conflist, .conf or .json");
    }
    let version = document.version(&object);
    let mut own = if suffix == "conflist" { own_directory(path, &object) } else { Vec::new() };
    let objects = std::iter::once(&object).chain(own.iter().filter_map(|(_, object)| object.as_ref()));
    let dirs = runtime.map(|runtime| runtime.dirs_for(objects.flat_map(kinds))).unwrap_or_default();
    let mut chain = Chain { runtime, dirs, version, ranges: Ranges::default(), before: 0 };
    document.name(&object);
    if is_list(&object) || suffix == "conflist" {
        document.list(&object, suffix, &mut chain);
    } else {
        document.single(&object, &mut chain);
    }
    let mut findings = std::mem::take(&mut document.findings);
    for (document, object) in &mut own {
        document.appended(object.as_ref(), &mut chain);
        findings.append(&mut document.findings);
    }
    // Loading also finds errors that the rules above do not cover.
    if findings.iter().all(|finding| finding.severity == Severity::Warning) {
        document.errors_of_loading(&bytes, suffix);
        findings.append(&mut document.findings);
    }
    findings
}

/// Why pods of a network do not reach other hosts, if its configuration shows that.
pub fn no_way_out(list: &ConfigList) -> Option<&'static str> {
    let first = list.plugins.first()?;
    plugin::sends_unanswered(&first.kind, &first.object).then_some(plugin::UNANSWERED)
}

fn is_list(object: &Map<String, Value>) -> bool {
    object.contains_key("plugins")
}

/// The types of the plugins, as far as they are valid.
fn kinds(object: &Map<String, Value>) -> Vec<&str> {
    let listed = object.get("plugins").and_then(Value::as_array).into_iter().flatten();
    let kinds = listed.map(|plugin| plugin.get("type")).chain([object.get("type")]);
    kinds
        .filter_map(|kind| kind?.as_str())
        .filter(|kind| !kind.is_empty() && !kind.contains(['/', '\0']))
        .collect()
}

/// The plugins in the directory that is named after the network (cni-runtime.md section 2.1): each
/// file with its object.
fn own_directory(path: &Path, object: &Map<String, Value>) -> Vec<(Document, Option<Map<String, Value>>)> {
    let inlined_only = object.get("loadOnlyInlinedPlugins").is_some_and(keys::is_true);
    let name =
        object.get("name").and_then(Value::as_str).filter(|name| !name.is_empty() && !name.contains('/'));
    let Some(name) = name.filter(|_| !inlined_only) else { return Vec::new() };
    let files = load::files(&path.with_file_name(name), &["conf"]).unwrap_or_default();
    let read = |file: &PathBuf| {
        let mut document = Document::new(file);
        let object = document.read().map(|(_, object)| object);
        (document, object)
    };
    files.iter().map(read).collect()
}

// === impl Document ===

impl Document {
    fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), positions: json::Positions::default(), findings: Vec::new() }
    }

    fn add(&mut self, severity: Severity, at: &str, text: impl Into<String>) {
        let position = self.positions.position_of(at);
        self.findings.push(Finding {
            file: self.file.clone(),
            position,
            at: at.to_owned(),
            severity,
            text: text.into(),
        });
    }

    fn fail(&mut self, at: &str, text: impl Into<String>) {
        self.add(Severity::Error, at, text);
    }

    fn warn(&mut self, at: &str, text: impl Into<String>) {
        self.add(Severity::Warning, at, text);
    }

    /// Reads the file and its object; an error is a finding.
    fn read(&mut self) -> Option<(Vec<u8>, Map<String, Value>)> {
        let bytes = match load::read(&self.file) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.fail("", error.to_string());
                return None;
            }
        };
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(object)) => {
                self.positions = json::Positions::new(&bytes);
                for at in self.positions.repeated() {
                    self.warn(&at, "this key is there twice; the last one counts");
                }
                Some((bytes, object))
            }
            Ok(other) => {
                self.fail("", format!("a JSON object is wanted, this is {}", keys::kind_of(&other)));
                None
            }
            Err(error) => {
                let position = Some((error.line(), error.column())).filter(|(line, _)| *line > 0);
                self.fail("", json::explain(&error, &bytes));
                self.findings.iter_mut().for_each(|finding| finding.position = position);
                None
            }
        }
    }

    /// Checks the versions; returns the chosen one if it is supported.
    fn version(&mut self, object: &Map<String, Value>) -> Option<Version> {
        let texts: Vec<&str> = object
            .get("cniVersions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let single = object.get("cniVersion").and_then(Value::as_str).unwrap_or_default();
        if single.is_empty() && texts.is_empty() {
            self.warn(
                "",
                "no cniVersion: 0.1.0 is assumed, which knows no chains, no CHECK, no GC and no STATUS",
            );
        }
        let at = if single.is_empty() { "cniVersions" } else { "cniVersion" };
        match russet_cni_spec::select(single, &texts) {
            Err(error) => self.fail(at, error.to_string()),
            Ok(chosen) => match Version::of_config(&chosen) {
                Ok(version) => return Some(version),
                Err(error) => self.fail(at, format!("{error}; known are {}", Version::list())),
            },
        }
        None
    }

    fn name(&mut self, object: &Map<String, Value>) {
        match object.get("name") {
            None | Some(Value::Null) => self.fail("", "no name: a network needs a 'name'"),
            Some(Value::String(name)) if name.is_empty() => self.fail("name", "the name is empty"),
            Some(Value::String(name)) => {
                if let Err(error) = russet_addr::NetworkName::new(name) {
                    self.fail("name", format!("{error}"));
                }
            }
            // The table of keys reports a value that is not text.
            Some(_) => {}
        }
    }

    fn list(&mut self, object: &Map<String, Value>, suffix: &str, chain: &mut Chain<'_>) {
        if suffix == "conf" || suffix == "json" {
            self.fail("plugins", format!("'plugins' makes this a list; in a .{suffix} runtimes look for one plugin: is this a conflist?"));
        }
        if object.contains_key("type") && !is_list(object) {
            self.fail("type", "a 'type' and no 'plugins': this is a single plugin's configuration, which belongs into a .conf, or into 'plugins'");
            return;
        }
        self.keys("", object, &Keys::of_list());
        match object.get("plugins") {
            Some(Value::Array(plugins)) if plugins.is_empty() => {
                self.fail("plugins", "no plugins in the list")
            }
            Some(Value::Array(plugins)) => {
                for (index, plugin) in plugins.iter().enumerate() {
                    let at = format!("plugins[{index}]");
                    match plugin {
                        Value::Object(plugin) => self.plugin(&at, plugin, true, chain),
                        other => {
                            self.fail(&at, format!("an object is wanted, this is {}", keys::kind_of(other)))
                        }
                    }
                    chain.before += 1;
                }
            }
            // A missing list may be in the network's directory, and loading reports it if not. For
            // another type, see the table of keys.
            _ => {}
        }
    }

    /// Adds a plugin of the network's own directory, after those of the list. An invalid file keeps
    /// its position.
    fn appended(&mut self, object: Option<&Map<String, Value>>, chain: &mut Chain<'_>) {
        if let Some(object) = object {
            self.plugin("", object, true, chain);
        }
        chain.before += 1;
    }

    fn single(&mut self, object: &Map<String, Value>, chain: &mut Chain<'_>) {
        match object.contains_key("type") {
            true => self.plugin("", object, false, chain),
            false => self.fail("", "no 'type': a .conf configures one plugin; is this a conflist?"),
        }
    }

    fn errors_of_loading(&mut self, bytes: &[u8], suffix: &str) {
        let error = match suffix {
            "conflist" => load_conflist(&self.file).err().map(|error| error.to_string()),
            _ if SUFFIXES.contains(&suffix) => {
                ConfigList::parse_single(bytes).err().map(|error| error.to_string())
            }
            _ => None,
        };
        if let Some(error) = error {
            self.fail("", error);
        }
    }
}

#[cfg(test)]
mod tests;
