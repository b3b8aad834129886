//! The datastore of the demo's nodes: an embedded store that they share, an etcd that the demo
//! starts, or an existing etcd.
//!
//! A spawned etcd runs outside of the nodes' network, at the outside host's address, as a cluster's
//! would. An existing one is reached through a forwarder at that address, because nodes are in
//! network namespaces and the URL is valid on the host. It must contain no Calico data when the
//! demo begins, and contains none when the demo ends.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use russet_agent::StoreLocation;
use russet_linux::{NetNs, process};
use russet_model::{Key, Prefix};
use russet_store::{Snapshot as Records, Step, Store, StoreError};
use russet_verdict::snapshot::Snapshot;

use super::lab::{self, DIR, GATEWAYS, OUTSIDE};
use super::{DemoError, kubernetes, rootless};
use crate::cli::DemoEtcd;
use crate::cli::store::{LocationArgs, StoreChoice};
use crate::command::place::Place;
use crate::command::policy::datastore::Datastore as Cluster;
use crate::command::{Failure, runtime};

/// The port at which the demo's nodes reach etcd.
const ETCD_PORT: u16 = 2379;
/// The prefixes of everything that the demo's nodes write: agents, and flannel's daemons.
const DATA: [&str; 3] = ["/calico/", "/coreos.com/network/", "/russet/health/"];
/// The key that identifies the demo to which an etcd's data belongs; its value is also in the
/// demo's directory.
const MARK: &str = "/russet/demo";
/// Most records that one commit deletes; etcd allows 128 operations.
const DELETES_MAX: usize = 100;

/// The demo's datastore.
#[derive(Debug, Clone)]
pub enum Datastore {
    /// An embedded store, served at its socket.
    Embedded,
    /// An etcd in the outside host's namespace.
    Spawned,
    /// An etcd of the host, by host and port, reached through a forwarder.
    Host(String),
    /// The Kubernetes API, whose etcd is this program.
    Kubernetes(PathBuf),
}

/// Records that an etcd of the host is in use, so that a later run can clean it.
struct Borrowed {
    at: String,
    mark: String,
}

// === impl Datastore ===

impl Datastore {
    /// The datastore that the arguments request.
    pub fn new(etcd: Option<&DemoEtcd>) -> Result<Self, DemoError> {
        match etcd {
            None => Ok(Self::Embedded),
            Some(DemoEtcd::Spawn) => Ok(Self::Spawned),
            Some(DemoEtcd::At(_)) if rootless::is_inside() => Err(DemoError::Refused(
                "an ordinary user's demo has a network of its own and cannot reach an etcd of the host; run it as root, or with --etcd spawn"
                    .to_owned(),
            )),
            Some(DemoEtcd::At(at)) => Ok(Self::Host(at.clone())),
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        match self {
            Self::Embedded => "the store's owner".to_owned(),
            Self::Spawned => "an etcd".to_owned(),
            Self::Host(at) => format!("etcd at {at}"),
            Self::Kubernetes(_) => "the Kubernetes API".to_owned(),
        }
    }

    /// The value of the agents' `--store`.
    pub fn location(&self) -> String {
        match self {
            Self::Embedded => format!("unix:{}", lab::store_paths().store_socket().display()),
            Self::Spawned | Self::Host(_) => format!("etcd:{}", etcd_url()),
            Self::Kubernetes(_) => format!("kubernetes:{}", kubernetes::kubeconfig().display()),
        }
    }

    fn address() -> SocketAddr {
        SocketAddr::new(GATEWAYS[0], ETCD_PORT)
    }

    /// The process to start, in the right namespace. `russet` is this program.
    pub fn command(&self, mut russet: Command) -> Result<Command, DemoError> {
        match self {
            Self::Embedded => {
                russet.args(["store", "serve", "--root"]).arg(lab::store_paths().root());
                Ok(russet)
            }
            Self::Spawned => spawned_etcd(Path::new("etcd")),
            Self::Kubernetes(program) => spawned_etcd(program),
            Self::Host(at) => {
                borrow(at)?;
                let listen = Self::address().to_string();
                let path = lab::namespace_path(OUTSIDE);
                russet.args(["demo-forward", "--to", at, "--listen", &listen, "--netns"]).arg(path);
                Ok(russet)
            }
        }
    }

    /// Whether the nodes can reach it.
    pub fn is_up(&self) -> bool {
        match self {
            Self::Embedded => lab::store_paths().store_socket().exists(),
            Self::Spawned | Self::Host(_) | Self::Kubernetes(_) => {
                self.with(async |store| store.get(&Key::from_stored(MARK)).await).is_ok()
            }
        }
    }

    /// Everything below a prefix.
    pub fn list(&self, prefix: &Prefix) -> Result<Records, DemoError> {
        self.with(async |store| store.list(prefix).await)
    }

    /// Writes one record.
    pub fn put(&self, key: &str, value: &str) -> Result<(), DemoError> {
        let step = Step::put(Key::from_stored(key), value);
        self.with(async |store| store.commit(vec![step]).await.map(drop).map_err(|error| error.error))
    }

    /// Makes a command reach the datastore at [`location`](Self::location).
    pub fn reach(&self, command: &mut Command) -> Result<(), DemoError> {
        match self {
            Self::Embedded => Ok(()),
            Self::Spawned | Self::Host(_) | Self::Kubernetes(_) => {
                let done = process::in_netns(command, &outside()?).map(drop);
                done.map_err(|e| DemoError::step(format!("enter namespace {OUTSIDE}"), e))
            }
        }
    }

    /// What policies depend on, as `russet explain` reads it.
    pub fn policies(&self) -> Result<Snapshot, DemoError> {
        let read = || {
            let location = self.location().parse().map_err(|e| DemoError::step("name the datastore", e))?;
            let choice = StoreChoice {
                root: lab::store_paths().root().to_owned(),
                location: LocationArgs { store: Some(location), ..LocationArgs::default() },
                ..StoreChoice::default()
            };
            let runtime = runtime().map_err(|source| DemoError::io("start a runtime", source))?;
            let read = async { Cluster::read(&Place::open_cluster(choice).await?).await };
            let read: Result<Cluster, Failure> = tokio::task::LocalSet::new().block_on(&runtime, read);
            let failed = |error: Failure| DemoError::Refused(format!("read the policies: {error}"));
            Ok(read.map_err(failed)?.cluster.snapshot)
        };
        self.inside(read)?
    }

    /// Runs `work` on the store, from the nodes' namespace.
    fn with<T>(&self, work: impl AsyncFnOnce(&dyn Store) -> Result<T, StoreError>) -> Result<T, DemoError> {
        self.inside(|| work_on(&self.location(), work))?
    }

    /// Runs `work` where the datastore can be reached at its location.
    fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T, DemoError> {
        match self {
            Self::Embedded => Ok(work()),
            Self::Spawned | Self::Host(_) | Self::Kubernetes(_) => {
                outside()?.with(work).map_err(DemoError::namespace)
            }
        }
    }
}

/// The outside host's namespace.
fn outside() -> Result<NetNs, DemoError> {
    let outside = NetNs::open(lab::namespace_path(OUTSIDE));
    outside.map_err(|e| DemoError::step(format!("open namespace {OUTSIDE}"), e))
}

/// Where the nodes reach the demo's etcd.
pub fn etcd_url() -> String {
    format!("http://{}", Datastore::address())
}

/// An etcd with its data in the demo's directory.
pub fn spawned_etcd(program: &Path) -> Result<Command, DemoError> {
    let outside = outside()?;
    let url = etcd_url();
    let mut etcd = Command::new(program);
    etcd.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    // Debian's etcd does not start on some architectures without it; elsewhere it has no effect.
    etcd.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("aarch64", "arm64"));
    etcd.arg("--data-dir").arg(Path::new(DIR).join("etcd"));
    etcd.args(["--name", "demo", "--log-level", "warn"]);
    etcd.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    // One member needs no peers; port 0 takes any free port.
    etcd.args(["--listen-peer-urls", "http://127.0.0.1:0"]);
    process::in_netns(&mut etcd, &outside).map_err(|e| DemoError::step("start etcd in its namespace", e))?;
    Ok(etcd)
}

fn work_on<T>(
    location: &str,
    work: impl AsyncFnOnce(&dyn Store) -> Result<T, StoreError>,
) -> Result<T, DemoError> {
    let failed = |error: StoreError| DemoError::step(format!("work on {location}"), error);
    let parsed: StoreLocation = location.parse().map_err(|e| DemoError::step("name the datastore", e))?;
    let runtime = runtime().map_err(|source| DemoError::io("start a runtime", source))?;
    let done = async {
        let opened = russet_agent::open_store(&lab::store_paths(), &parsed).await?;
        work(&*opened.store).await
    };
    tokio::task::LocalSet::new().block_on(&runtime, done).map_err(failed)
}

// === impl Borrowed ===

impl Borrowed {
    fn file() -> PathBuf {
        Path::new(DIR).join("etcd-borrowed")
    }

    fn read() -> Option<Self> {
        let text = fs::read_to_string(Self::file()).ok()?;
        let (at, mark) = text.split_once('\n')?;
        Some(Self { at: at.to_owned(), mark: mark.to_owned() })
    }

    fn write(&self) -> Result<(), DemoError> {
        let file = Self::file();
        fs::write(&file, format!("{}\n{}", self.at, self.mark))
            .map_err(|source| DemoError::io(format!("write {}", file.display()), source))
    }
}

/// Marks an etcd of the host as the demo's, if it is empty.
fn borrow(at: &str) -> Result<(), DemoError> {
    let location = format!("etcd:http://{at}");
    let there = work_on(&location, async |store| everything(store).await)?;
    if let Some(first) = there.first() {
        return Err(DemoError::Refused(format!(
            "etcd at {at} holds {} records of a cluster already, such as {}; the demo wants one without any below {}",
            there.len(),
            first,
            DATA.join(" and ")
        )));
    }
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mark = format!("{}-{}", std::process::id(), started.as_nanos());
    // Recorded first: a later run can only clean what is recorded.
    Borrowed { at: at.to_owned(), mark: mark.clone() }.write()?;
    let step = Step::put(Key::from_stored(MARK), mark);
    work_on(&location, async |store| store.commit(vec![step]).await.map_err(|error| error.error))?;
    Ok(())
}

/// All keys below the demo's prefixes.
async fn everything(store: &dyn Store) -> Result<Vec<Key>, StoreError> {
    let mut keys = Vec::new();
    for prefix in DATA {
        keys.append(&mut store.keys(&Prefix::from_stored(prefix)).await?);
    }
    Ok(keys)
}

/// Removes the demo's data from an etcd of the host, if it still has this demo's mark.
pub fn release_borrowed() -> Result<(), DemoError> {
    let Some(borrowed) = Borrowed::read() else { return Ok(()) };
    work_on(&format!("etcd:http://{}", borrowed.at), async |store| {
        let mark = Key::from_stored(MARK);
        if store.get(&mark).await?.is_none_or(|record| record.value != borrowed.mark.as_bytes()) {
            return Ok(());
        }
        let mut keys = everything(store).await?;
        // The mark comes last: as long as any data is left, a later run finds it.
        keys.push(mark);
        for keys in keys.chunks(DELETES_MAX) {
            let steps = keys.iter().map(|key| Step::delete(key.clone(), None)).collect();
            store.commit(steps).await.map_err(|error| error.error)?;
        }
        Ok(())
    })
}
