//! `russet report`: the state of this node in one archive, without secrets, for a reader elsewhere.
//!
//! Two things keep secrets out. Sources are chosen that have none: the journal is read by the verb that leaves networks'
//! configurations out, and of settings only known names are shown. And every text is redacted ([`redact`]) before it is cut
//! or written, the index and its errors too.

mod archive;
mod kernel;
mod own;
mod parts;
mod redact;
mod secrets;
mod source;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant, SystemTime};

use russet_agent::Paths;
use russet_linux::file::write_atomic;
use russet_model::time::rfc3339;
use serde::Serialize;

use super::Failure;
use crate::cli::report::ReportArgs;
use crate::{output, settings};
use archive::Archive;
use parts::Part;
use redact::Redactor;
use source::{Found, Limits, cut, within};

/// The node of a report.
#[derive(Debug, Clone)]
pub struct Node {
    paths: Paths,
    /// The process that listens at the agent's socket.
    agent_pid: Option<u32>,
    /// The agent's log, if it is in a file.
    log: Option<PathBuf>,
    /// The networks' configurations.
    conflists: Vec<PathBuf>,
}

/// What the archive has, in its file `report.json`.
#[derive(Debug, Serialize)]
struct Index {
    schema: u32,
    /// When, in RFC 3339.
    at: String,
    /// Of this command.
    version: &'static str,
    node: String,
    root: PathBuf,
    size_limit_bytes: usize,
    part_limit_bytes: usize,
    time_limit_s: u64,
    /// How many secrets of this node were known, in all their notations, and how many were found in the parts, known or not.
    values_known: usize,
    values_removed: usize,
    parts: Vec<IndexPart>,
}

#[derive(Debug, Serialize)]
struct IndexPart {
    /// None if there is nothing to show.
    file: Option<String>,
    /// The command, the file or the request.
    source: String,
    bytes: usize,
    /// Whether there was more.
    truncated: bool,
    took_ms: u64,
    /// Why it is missing, or may be incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A part as it was found, and how long that took.
struct Collected {
    number: usize,
    found: Found,
    took: Duration,
}

/// The archive's index.
const INDEX: &str = "report.json";
/// Parts that wait for a datastore do not delay the others, and the node is not loaded more than by a few commands.
const WORKERS: usize = 4;
/// More configurations than any node has.
const CONFLISTS_MAX: usize = 50;
/// How long it may take to ask who listens at the agent's socket.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Writes the archive, and prints its index.
pub fn run(args: ReportArgs) -> Result<(), Failure> {
    let paths = Paths::new(&args.root);
    let name = node_name(&paths);
    let now = SystemTime::now();
    let file = args.file.clone().unwrap_or_else(|| default_file(&name, now));
    if !args.force && file.symlink_metadata().is_ok() {
        return Err(exists(&file).into());
    }
    let node = Node::look(paths, &args);
    let known = secrets::of_node(&node.paths, node.agent_pid, &node.conflists);
    let redactor = Redactor::new(known.all_forms());
    let mut index = Index {
        schema: 1,
        at: rfc3339(now),
        version: env!("CARGO_PKG_VERSION"),
        node: name,
        root: args.root.clone(),
        size_limit_bytes: usize::try_from(args.size_limit.0 << 20)?,
        part_limit_bytes: usize::try_from(args.part_limit.0 << 20)?,
        time_limit_s: args.time_limit.0.as_secs(),
        values_known: redactor.known(),
        values_removed: 0,
        parts: Vec::new(),
    };
    let limits = Limits { time: args.time_limit.0, size_bytes: index.part_limit_bytes };
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let mut archive = Archive::new(index.size_limit_bytes, seconds);
    let parts = parts::all(&node);
    for (part, collected) in parts.iter().zip(collect(&node, &parts, limits)) {
        index.add(part, collected, &redactor, &mut archive)?;
    }
    let text = output::json(&index);
    let bytes = archive.finish(INDEX, &redactor.json(&text).unwrap_or_default())?;
    write(&file, &bytes, args.force)?;
    output::print_as(args.output.format, &index, || index.text(&file, bytes.len()));
    Ok(())
}

/// The name in the archive's name; a node whose settings are uncertain has one, too.
fn node_name(paths: &Paths) -> String {
    let of_host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    settings::node_name(paths).map_or_else(|_| of_host(), |name| name.to_string())
}

/// `russet-report-NODE-TIME.tar.gz`, where any file system can have it.
fn default_file(node: &str, now: SystemTime) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let node: String = node.chars().map(plain).take(63).collect();
    let time: String =
        rfc3339(now).chars().filter(char::is_ascii_alphanumeric).take("20261128T100000Z".len()).collect();
    PathBuf::from(format!("russet-report-{node}-{time}.tar.gz"))
}

fn exists(file: &Path) -> String {
    format!("{} exists; give another --file, or replace it with --force", file.display())
}

/// Runs all parts, some at a time, and returns them in their order.
fn collect(node: &Node, parts: &[Part], limits: Limits) -> Vec<Collected> {
    let next = AtomicUsize::new(0);
    let (send, receive) = sync_channel(parts.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                while let Some((number, part)) = take(next, parts) {
                    let begin = Instant::now();
                    let found = part.source.read(node, limits);
                    let collected = Collected { number, found, took: begin.elapsed() };
                    output::progress(&progress(part, &collected));
                    let _ = send.send(collected);
                }
            });
        }
    });
    drop(send);
    let mut all: Vec<Collected> = receive.iter().collect();
    all.sort_by_key(|collected| collected.number);
    all
}

fn take<'a>(next: &AtomicUsize, parts: &'a [Part]) -> Option<(usize, &'a Part)> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    parts.get(number).map(|part| (number, part))
}

/// Without anything that is not redacted yet.
fn progress(part: &Part, Collected { found, took, .. }: &Collected) -> String {
    let how = match &found.error {
        None => format!("{} bytes", found.text.len()),
        Some(_) if found.text.is_empty() => "missing".to_owned(),
        Some(_) => format!("{} bytes, not complete", found.text.len()),
    };
    format!("{}: {how} in {} ms", part.file, took.as_millis())
}

/// Writes the file with mode 0600.
fn write(file: &Path, bytes: &[u8], force: bool) -> Result<(), Failure> {
    if force {
        return Ok(write_atomic(file, bytes)?);
    }
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(file),
        _ => format!("write {}: {error}", file.display()),
    };
    let mut created =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(failed)?;
    if let Err(error) = created.write_all(bytes).and_then(|()| created.sync_all()) {
        // A part of an archive is of no use; only the first error matters.
        let _ = fs::remove_file(file);
        return Err(failed(error).into());
    }
    Ok(())
}

// === impl Node ===

impl Node {
    fn look(paths: Paths, args: &ReportArgs) -> Self {
        let socket = paths.cni_socket();
        let agent_pid = within(CONNECT_LIMIT, move || listener(&socket)).ok().flatten();
        let directory = args.cni_conf_dir.strip_prefix("/").unwrap_or(&args.cni_conf_dir);
        let conflists = conflists(&paths.root().join(directory));
        Self { paths, agent_pid, log: args.log.clone(), conflists }
    }
}

/// The process that listens at a socket.
fn listener(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    let credentials = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
}

fn conflists(directory: &Path) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let end = path.extension().and_then(|end| end.to_str());
        matches!(end, Some("conflist" | "conf" | "json")) && path.is_file()
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_one).collect();
    paths.sort();
    paths.truncate(CONFLISTS_MAX);
    paths
}

// === impl Index ===

impl Index {
    /// Redacts a part, cuts it, and adds it to the archive.
    fn add(
        &mut self,
        part: &Part,
        Collected { mut found, took, .. }: Collected,
        redactor: &Redactor,
        archive: &mut Archive,
    ) -> io::Result<()> {
        let keep = part.source.keep();
        let is_json = !found.is_cut && !part.file.ends_with(".txt");
        let json = is_json.then(|| redactor.json(&found.text)).flatten();
        let mut text = json.unwrap_or_else(|| redactor.text(&found.text));
        // Counted before the rest is cut off.
        self.values_removed += text.matches(redact::REMOVED).count();
        if text.is_empty() && found.error.is_none() {
            found.error = Some("it is empty".to_owned());
        }
        let error = found.error.as_ref().map(|error| source::in_short(&redactor.text(error)));
        found.is_cut |= cut(&mut text, self.part_limit_bytes, keep);
        let which = match keep {
            source::Keep::Beginning => "beginning",
            source::Keep::End => "end",
        };
        let note = format!("[russet report: cut here; this is the {which} of {}]\n", part.source.shown());
        if found.is_cut {
            text.push_str(&note);
        }
        let is_there = !text.is_empty();
        if is_there && archive.add(&part.file, &mut text, keep, &note)? {
            found.is_cut = true;
        }
        self.parts.push(IndexPart {
            file: is_there.then(|| part.file.clone()),
            source: redactor.text(&part.source.shown()),
            bytes: text.len(),
            truncated: found.is_cut,
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            error,
        });
        Ok(())
    }

    fn text(&self, file: &Path, bytes: usize) -> String {
        let mut lines = Vec::new();
        for IndexPart { file, source, truncated, error, .. } in &self.parts {
            match (error, file) {
                (Some(error), None) => lines.push(format!("missing: {source}: {error}")),
                (Some(error), Some(_)) => lines.push(format!("may be incomplete: {source}: {error}")),
                (None, _) if *truncated => lines.push(format!("cut: {source}")),
                (None, _) => {}
            }
        }
        let there = self.parts.iter().filter(|part| part.file.is_some()).count();
        let mut text: String = lines.iter().map(|line| output::visible(line) + "\n").collect();
        text += &format!(
            "{}: {there} of {} parts in {bytes} bytes; {} secret values were removed\n\
             Names of nodes and pods and addresses are in it: look into it before you publish it.\n",
            file.display(),
            self.parts.len(),
            self.values_removed
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_names_the_node_and_the_time() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_860_000);
        let file = default_file("node/7\u{1b}", at);
        assert_eq!(file, Path::new("russet-report-node_7_-20261128T100000Z.tar.gz"));
    }

    #[test]
    fn the_archive_is_private_and_replaces_nothing_by_itself() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("report.tar.gz");
        write(&file, b"one", false).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let error = write(&file, b"two", false).unwrap_err().to_string();
        assert!(error.ends_with("exists; give another --file, or replace it with --force"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), b"one");
        write(&file, b"two", true).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write(&directory.path().join("no/report"), b"", false).is_err());
    }
}
