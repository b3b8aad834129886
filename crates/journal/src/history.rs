//! Which pod had which address when: one line for each ADD and DEL on this node. Written by the
//! agent, and by plugins without an agent; read by `russet ipam who`, and by an agent that starts, for the pods of
//! interfaces that plugins attached meanwhile. No address is assigned or released because of it (a leak repair without an agent
//! only skips addresses that it mentions), and a line that cannot be written or read does not fail
//! a request.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use russet_addr::EndpointId;
use russet_cni_spec::{Call, CniResult, Request};
use russet_linux::FileLock;
use russet_linux::file::private_dir;
use russet_model::time;
use serde::{Deserialize, Serialize};

use crate::LOG;

/// The history of one node, in two files: when the newer one is full, it replaces the older one.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    writer: RefCell<Option<Writer>>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    /// When, in RFC 3339.
    at: String,
    verb: Verb,
    /// For an ADD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ips: Vec<IpAddr>,
    container: String,
    ifname: String,
    network: String,
    /// `namespace/name`, if there is a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Verb {
    Add,
    Del,
}

/// A time during which a container had an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tenure {
    /// The ADD, in RFC 3339.
    pub from: String,
    /// The DEL, or the next ADD that got the address. None if it has not ended, as far as is known.
    pub until: Option<String>,
    /// `namespace/name`, if there is a pod.
    pub pod: Option<String>,
    pub container: String,
    /// The name of the interface in the container.
    pub ifname: String,
    pub network: String,
}

/// Limit of each of the two files: about 15,000 ADDs and DELs are kept at least.
const FILE_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// How long a plugin waits for another one that rotates the files.
const ROTATION_TIMEOUT: Duration = Duration::from_secs(1);
/// The interface whose addresses every container has.
const LOOPBACK: &str = "lo";
/// No line that Russet writes is longer; a file with longer lines is foreign.
const LINE_MAX_BYTES: usize = 4096;

// === impl History ===

impl History {
    /// The history at `path`. The file is opened at the first use.
    pub fn at(path: PathBuf) -> Self {
        Self { path, writer: RefCell::default() }
    }

    /// Records a request that succeeded.
    pub fn record(&self, request: &Request, result: Option<&CniResult>) {
        let (verb, target) = match &request.env.call {
            Call::Add(target) => (Verb::Add, target),
            Call::Del(target) => (Verb::Del, target),
            Call::Check(_) | Call::Gc | Call::Status => return,
        };
        if target.id.ifname.as_str() == LOOPBACK {
            return;
        }
        let ips: Vec<IpAddr> =
            result.map(|result| result.ips.iter().map(|ip| ip.address.addr()).collect()).unwrap_or_default();
        if verb == Verb::Add && ips.is_empty() {
            return;
        }
        let line = Line {
            at: time::rfc3339(SystemTime::now()),
            verb,
            ips,
            container: target.id.container.to_string(),
            ifname: target.id.ifname.to_string(),
            network: request.config.name.to_string(),
            pod: request.env.args.pod().map(|pod| format!("{}/{}", pod.namespace, pod.name)),
        };
        if let Err(error) = self.append(&line) {
            // The next request opens the file again: the disk may have space by then.
            self.writer.take();
            tracing::warn!(target: LOG, path = %self.path.display(), %error, "the history of addresses cannot be written");
        }
    }

    fn append(&self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let mut writer = self.writer.borrow_mut();
        let mut current = match writer.take() {
            Some(writer) => writer,
            None => Writer::open(&self.path)?,
        };
        // Also checked right after opening: a plugin without an agent writes one line and exits.
        if current.size_bytes >= FILE_MAX_BYTES {
            current = self.rotate()?;
        }
        let writer = writer.insert(current);
        // One call, so that after a power cut the line is complete or missing. Readers skip a torn
        // line.
        writer.file.write_all(&text)?;
        writer.size_bytes += text.len() as u64;
        Ok(())
    }

    /// Rotates the files if the current one is full. If several plugins try at once, the later ones
    /// find the new file.
    fn rotate(&self) -> io::Result<Writer> {
        let lock = FileLock::exclusive(self.path.with_extension("lock"), Instant::now() + ROTATION_TIMEOUT);
        let _lock = lock.map_err(io::Error::other)?;
        let current = Writer::open(&self.path)?;
        if current.size_bytes < FILE_MAX_BYTES {
            return Ok(current);
        }
        fs::rename(&self.path, older(&self.path))?;
        Writer::open(&self.path)
    }

    /// The containers that had an address, oldest first, as far as this node remembers.
    pub fn tenures(path: &Path, address: IpAddr) -> io::Result<Vec<Tenure>> {
        let mut found: Vec<Tenure> = Vec::new();
        let wanted = format!("\"{address}\"");
        for path in [older(path), path.to_owned()] {
            let bytes = match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result?,
            };
            let text = String::from_utf8_lossy(&bytes);
            for line in text.lines().filter(|line| line.len() <= LINE_MAX_BYTES) {
                // Parsing takes time, and most lines are about other addresses.
                let open = found.last().filter(|tenure| tenure.until.is_none());
                if !line.contains(&wanted) && !open.is_some_and(|open| line.contains(&open.container)) {
                    continue;
                }
                if let Ok(line) = serde_json::from_str::<Line>(line) {
                    follow(&mut found, line, address);
                }
            }
        }
        Ok(found)
    }

    /// The pods, as `namespace/name`, of those of these interfaces whose last ADD this node remembers, in the same order.
    pub fn pods(path: &Path, wanted: &[&EndpointId]) -> io::Result<Vec<Option<String>>> {
        let numbers = wanted.iter().enumerate();
        let numbers: BTreeMap<_, usize> = numbers.map(|(number, id)| (parts(id), number)).collect();
        let mut found = vec![None; wanted.len()];
        for path in [older(path), path.to_owned()] {
            let bytes = match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result?,
            };
            let text = String::from_utf8_lossy(&bytes);
            let lines = text.lines().filter(|line| line.len() <= LINE_MAX_BYTES);
            for line in lines.filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
                let parts = [&line.network, &line.container, &line.ifname].map(String::as_str);
                if let Some(pod) = numbers.get(&parts).and_then(|number| found.get_mut(*number)) {
                    *pod = line.pod;
                }
            }
        }
        Ok(found)
    }
}

/// What a line has of an interface.
fn parts(id: &EndpointId) -> [&str; 3] {
    [id.network.as_str(), id.container.as_str(), id.ifname.as_str()]
}

fn follow(found: &mut Vec<Tenure>, line: Line, address: IpAddr) {
    let open = found.last_mut().filter(|tenure| tenure.until.is_none());
    let same = open.as_ref().is_some_and(|open| {
        (&open.container, &open.ifname, &open.network) == (&line.container, &line.ifname, &line.network)
    });
    match line.verb {
        Verb::Add if line.ips.contains(&address) && !same => {
            if let Some(open) = open {
                open.until = Some(line.at.clone());
            }
            let Line { at, container, ifname, network, pod, .. } = line;
            found.push(Tenure { from: at, until: None, pod, container, ifname, network });
        }
        Verb::Del if same => {
            if let Some(open) = open {
                open.until = Some(line.at);
            }
        }
        Verb::Add | Verb::Del => {}
    }
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("1")
}

// === impl Writer ===

impl Writer {
    fn open(path: &Path) -> io::Result<Self> {
        // If the store is elsewhere, no other code creates this directory.
        path.parent().map_or(Ok(()), private_dir)?;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let size_bytes = file.metadata()?.len();
        Ok(Self { file, size_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: &str, verb: Verb, ips: &[&str], container: &str) -> Line {
        Line {
            at: at.to_owned(),
            verb,
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
            network: "russet".to_owned(),
            pod: Some(format!("shop/{container}")),
        }
    }

    fn history() -> (tempfile::TempDir, History) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/history");
        (dir, History::at(path))
    }

    #[test]
    fn the_pod_of_an_interface_is_that_of_its_last_add_also_in_the_older_file() {
        let (dir, history) = history();
        let id = |container: &str| EndpointId {
            network: "russet".parse().unwrap(),
            container: container.parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let pods = |names: &[&str]| {
            let ids: Vec<EndpointId> = names.iter().map(|name| id(name)).collect();
            History::pods(&dir.path().join("state/history"), &ids.iter().collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(pods(&["a"]), [None], "there is no file");
        history.append(&line("t1", Verb::Add, &["10.0.0.1"], "a")).unwrap();
        fs::rename(dir.path().join("state/history"), dir.path().join("state/history.1")).unwrap();
        history.writer.take();
        history.append(&line("t2", Verb::Add, &["10.0.0.2"], "b")).unwrap();
        history.append(&Line { pod: None, ..line("t3", Verb::Add, &["10.0.0.3"], "c") }).unwrap();
        let moved = Line { pod: Some("shop/moved".to_owned()), ..line("t4", Verb::Add, &["10.0.0.4"], "b") };
        history.append(&moved).unwrap();
        history
            .append(&Line { network: "other".to_owned(), ..line("t5", Verb::Add, &["10.0.0.5"], "d") })
            .unwrap();
        let mut file = OpenOptions::new().append(true).open(dir.path().join("state/history")).unwrap();
        file.write_all(b"no JSON\n").unwrap();
        let [a, b] = ["shop/a", "shop/moved"].map(|name| Some(name.to_owned()));
        assert_eq!(pods(&["b", "a", "c", "d", "e"]), [b, a, None, None, None]);
    }

    fn tenures_of(history: &History, address: &str) -> Vec<(String, String, Option<String>)> {
        let tenures = History::tenures(&history.path, address.parse().unwrap()).unwrap();
        tenures.into_iter().map(|tenure| (tenure.container, tenure.from, tenure.until)).collect()
    }

    fn tenure(container: &str, from: &str, until: Option<&str>) -> (String, String, Option<String>) {
        (container.to_owned(), from.to_owned(), until.map(str::to_owned))
    }

    #[test]
    fn the_holders_of_an_address_are_listed_in_order() {
        let (_dir, history) = history();
        assert_eq!(tenures_of(&history, "10.1.0.7"), []);
        for line in [
            line("1", Verb::Add, &["10.1.0.7", "fd00::7"], "a"),
            line("2", Verb::Add, &["10.1.0.70"], "b"),
            line("3", Verb::Add, &["10.1.0.7"], "a"),
            line("4", Verb::Del, &[], "b"),
            line("5", Verb::Del, &[], "a"),
            line("6", Verb::Add, &["10.1.0.7"], "c"),
            line("7", Verb::Add, &["10.1.0.7"], "d"),
        ] {
            history.append(&line).unwrap();
        }
        let told_of_7 = tenures_of(&history, "10.1.0.7");
        assert_eq!(
            told_of_7,
            [tenure("a", "1", Some("5")), tenure("c", "6", Some("7")), tenure("d", "7", None)]
        );
        assert_eq!(tenures_of(&history, "fd00::7"), [tenure("a", "1", Some("5"))]);
        assert_eq!(tenures_of(&history, "10.1.0.70"), [tenure("b", "2", Some("4"))]);
    }

    #[test]
    fn invalid_and_torn_lines_are_skipped() {
        let (_dir, history) = history();
        history.append(&line("1", Verb::Add, &["10.1.0.7"], "a")).unwrap();
        let mut text = fs::read(&history.path).unwrap();
        text.extend_from_slice(
            b"{\"at\":\"2\",\"verb\":\"ADD\",\"ips\":[\"10.1.0.7\"],\"conta\n\xff\xfe10.1.0.7\n",
        );
        fs::write(&history.path, text).unwrap();
        history.append(&line("3", Verb::Del, &[], "a")).unwrap();
        assert_eq!(tenures_of(&history, "10.1.0.7"), [tenure("a", "1", Some("3"))]);
    }

    #[test]
    fn a_full_file_is_rotated_also_by_a_process_that_writes_one_line() {
        let (_dir, history) = history();
        history.append(&line("first", Verb::Add, &["10.1.0.1"], "a")).unwrap();
        let full = "\n".repeat(usize::try_from(FILE_MAX_BYTES).unwrap());
        let mut file = OpenOptions::new().append(true).open(&history.path).unwrap();
        file.write_all(full.as_bytes()).unwrap();
        let next = History::at(history.path.clone());
        next.append(&line("second", Verb::Add, &["10.1.0.2"], "b")).unwrap();
        assert!(fs::metadata(&history.path).unwrap().len() < 4096);
        assert_eq!(
            tenures_of(&next, "10.1.0.1").len() + tenures_of(&next, "10.1.0.2").len(),
            2,
            "both are known"
        );
    }

    #[test]
    fn the_oldest_lines_are_dropped_when_both_files_are_full() {
        let (_dir, history) = history();
        history.append(&line("first", Verb::Add, &["10.1.0.1"], "a")).unwrap();
        let filler = line("then", Verb::Add, &["10.1.0.2"], &"x".repeat(2000));
        let lines = 2 * FILE_MAX_BYTES / serde_json::to_vec(&filler).unwrap().len() as u64;
        for _ in 0..lines {
            history.append(&filler).unwrap();
        }
        assert_eq!(tenures_of(&history, "10.1.0.1").len(), 1, "two files hold it yet");
        for _ in 0..lines {
            history.append(&filler).unwrap();
        }
        assert_eq!(tenures_of(&history, "10.1.0.1"), []);
        let sizes =
            [older(&history.path), history.path.clone()].map(|path| fs::metadata(path).unwrap().len());
        assert!(sizes.iter().all(|size| *size < FILE_MAX_BYTES + 4096), "{sizes:?}");
    }
}
