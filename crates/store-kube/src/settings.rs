//! What an engine is given: the API server, the group of Calico's resources, and the limits by which
//! it spares the server (kubernetes.md sections 1.15 and 4.2).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use russet_kube::{SILENCE, Source};

use crate::Group;

/// The prefix of locations of this engine: `kubernetes:/root/.kube/config`.
pub const LOCATION_SCHEME: &str = "kubernetes:";
/// The location of a process in a pod of the cluster.
const IN_CLUSTER: &str = "in-cluster";

/// Where an API server and our credentials for it are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A kubeconfig file, by its absolute path.
    Kubeconfig(PathBuf),
    /// The service account of this process's pod.
    InCluster,
}

/// The settings of one engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The API server and our credentials.
    pub source: Source,
    /// The group of Calico's resources; none: the one that the cluster serves.
    pub group: Option<Group>,
    /// The prefix of pods' interfaces on their nodes, as Felix's `InterfacePrefix`.
    pub interface_prefix: String,
    /// None: as fast as the server answers.
    pub writes: Option<WriteLimit>,
    /// The pauses of watches.
    pub pauses: Pauses,
}

/// The rate of writes of one process.
#[derive(Debug, Clone, Copy)]
pub struct WriteLimit {
    /// The rate in the long run.
    pub per_second: u32,
    /// How many may be sent at once after a silence.
    pub burst: u32,
}

/// The pauses of a watch. Thousands of nodes lose the same server at the same moment, so the first
/// three are upper bounds of random times.
#[derive(Debug, Clone, Copy)]
pub struct Pauses {
    /// Before a watch that ended is continued.
    pub resume: Duration,
    /// Before a list after the server has forgotten our revision.
    pub relist: Duration,
    /// Between the continuation of a watch and the look whether the server has our revision at all.
    pub compare: Duration,
    /// After a failure.
    pub failure_min: Duration,
    /// After many failures.
    pub failure_max: Duration,
    /// After how long without an event or a bookmark a watch is dead.
    pub silence: Duration,
}

// === impl Settings ===

impl Settings {
    /// The settings of an agent.
    pub fn new(source: Source) -> Self {
        let writes = Some(WriteLimit { per_second: 20, burst: 40 });
        Self { source, group: None, interface_prefix: "cali".to_owned(), writes, pauses: Pauses::default() }
    }
}

// === impl Location ===

impl Location {
    /// The same for the client.
    pub fn source(&self) -> Source {
        match self {
            Self::Kubeconfig(path) => Source::kubeconfig(path),
            Self::InCluster => Source::in_cluster(),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(path) => write!(f, "{LOCATION_SCHEME}{}", path.display()),
            Self::InCluster => write!(f, "{LOCATION_SCHEME}{IN_CLUSTER}"),
        }
    }
}

impl FromStr for Location {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(LOCATION_SCHEME) {
            Some(IN_CLUSTER) => Ok(Self::InCluster),
            Some(path) if path.starts_with('/') => Ok(Self::Kubeconfig(path.into())),
            _ => Err("`kubernetes:` and the absolute path of a kubeconfig, or `kubernetes:in-cluster`"),
        }
    }
}

// === impl Pauses ===

impl Pauses {
    /// Over how long the lists of all agents are spread after a restart of the API server: 500 agents
    /// then list 28 times a second (kubernetes.md K76).
    pub const RELIST: Duration = Duration::from_secs(18);
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            resume: Duration::from_secs(1),
            relist: Self::RELIST,
            compare: Duration::from_secs(10),
            failure_min: Duration::from_millis(500),
            failure_max: Duration::from_secs(30),
            silence: SILENCE,
        }
    }
}
