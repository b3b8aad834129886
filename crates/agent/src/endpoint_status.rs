//! Reports in Felix's place that pods' endpoints are set up: one file for each endpoint of a pod on
//! this node (calico-cni.md section 4.9). Calico's plugin waits for it if its configuration has
//! `policy_setup_timeout_seconds`. While Felix runs, it writes the files.
//!
//! An endpoint is set up when its interface is up, the node routes its addresses there, and decisions of policies about
//! them are in force, or there are no policies. An agent that enforces none by its settings does not wait for them. While it
//! is not known what is in force, no file comes, and those of interfaces that are up stay.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use russet_addr::{Family, IpNet, NodeName};
use russet_model::{Key, Prefix, WorkloadEndpoint};
use russet_netlink::{NetlinkError, Route, RouteFilter, Socket};
use russet_plugins::endpoint_status_file;
use russet_store::{Event, Record, Store, StoreError};
use tokio::sync::watch;

use crate::policies::DecidedEnds;
use crate::reconcile::Loop;
use crate::route_daemons::RouteDaemonDetector;

/// Writes the files.
pub struct Files {
    dir: PathBuf,
    node: NodeName,
    store: Rc<dyn Store>,
    route_daemons: Rc<RouteDaemonDetector>,
    /// The ends of which decisions are in force.
    decided: watch::Receiver<DecidedEnds>,
}

/// An endpoint of a pod on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Endpoint {
    /// The name of its file.
    file: String,
    /// The end of its veth on the node.
    host_name: String,
    nets: Vec<IpNet>,
}

/// Routes of the main table with the names of their outgoing interfaces, and these interfaces' indexes, if they are up.
type Reached = BTreeMap<(String, IpNet), u32>;

/// The first pause before an endpoint that is not set up is checked again, doubled up to
/// [`RESYNC_INTERVAL`]. The plugin writes an endpoint when its interface is ready, so most are set
/// up at the first check.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Interval in which interfaces that went down, and files that were removed, are noticed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after an error of the store.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);

/// Why the files could not be updated.
#[derive(Debug, thiserror::Error)]
enum FilesError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("read interfaces and routes: {0}")]
    Netlink(#[from] NetlinkError),
    #[error("a kernel task was interrupted: {0}")]
    Task(#[from] tokio::task::JoinError),
}

// === impl Files ===

impl Files {
    /// Writes files for the node of `keep`, which knows whether Felix runs. Without `decided` no policies are enforced.
    pub fn new(keep: &Loop, decided: Option<watch::Receiver<DecidedEnds>>) -> Self {
        Self {
            decided: decided.unwrap_or_else(|| watch::Sender::new(DecidedEnds::Everything).subscribe()),
            dir: keep.config.paths.calico_endpoint_status_dir(),
            node: keep.node.name.clone(),
            store: Rc::clone(&keep.node.store),
            route_daemons: Rc::clone(&keep.route_daemons),
        }
    }

    /// Never returns.
    pub async fn run(self) {
        loop {
            let Err(error) = self.follow().await;
            tracing::debug!(%error, "endpoints are not watched");
            tokio::time::sleep(RECONNECT_DELAY).await;
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, StoreError> {
        let mut endpoints = BTreeMap::new();
        let prefix = Prefix::workload_endpoints();
        let mut watch = self.store.follow(&prefix, &mut |record| self.put(&mut endpoints, &record)).await?;
        let (mut pause, mut logged, mut decided) = (RETRY_FIRST, None, self.decided.clone());
        loop {
            let is_decided = decided.borrow_and_update().clone();
            let settled = self.sync(&endpoints, is_decided, &mut logged).await;
            pause = if settled { RESYNC_INTERVAL } else { (pause * 2).min(RESYNC_INTERVAL) };
            tokio::select! {
                event = watch.next() => {
                    self.apply(&mut endpoints, event?);
                    pause = RETRY_FIRST;
                }
                Ok(()) = decided.changed() => pause = RETRY_FIRST,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn apply(&self, endpoints: &mut BTreeMap<Key, Endpoint>, event: Event) {
        match event {
            Event::Snapshot(snapshot) => {
                endpoints.clear();
                snapshot.records.iter().for_each(|record| self.put(endpoints, record));
            }
            Event::Put(record) => self.put(endpoints, &record),
            Event::Deleted { key, .. } => drop(endpoints.remove(&key)),
        }
    }

    fn put(&self, endpoints: &mut BTreeMap<Key, Endpoint>, record: &Record) {
        match Endpoint::from_record(record, &self.node) {
            Some(endpoint) => drop(endpoints.insert(record.key.clone(), endpoint)),
            None => drop(endpoints.remove(&record.key)),
        }
    }

    /// Writes and removes files. True when every endpoint is set up, so that the next check can
    /// wait.
    async fn sync(
        &self,
        endpoints: &BTreeMap<Key, Endpoint>,
        decided: DecidedEnds,
        logged: &mut Option<String>,
    ) -> bool {
        if !self.route_daemons.is_without_felix() {
            return false;
        }
        let (dir, endpoints) = (self.dir.clone(), endpoints.values().cloned().collect::<Vec<_>>());
        let synced = match tokio::task::spawn_blocking(move || sync(&dir, &endpoints, &decided)).await {
            Ok(synced) => synced,
            Err(error) => Err(error.into()),
        };
        match synced {
            Ok(settled) => {
                *logged = None;
                settled
            }
            Err(error) => {
                let error = error.to_string();
                if logged.as_ref() != Some(&error) {
                    tracing::warn!(dir = %self.dir.display(), error, "the files of endpoints that are set up cannot be updated");
                }
                *logged = Some(error);
                false
            }
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// The endpoint of a pod on this node. None for all others, and for a record that cannot be
    /// decoded.
    fn from_record(record: &Record, node: &NodeName) -> Option<Self> {
        let endpoint = WorkloadEndpoint::decode(&record.value).ok()?;
        let spec = endpoint.spec;
        if spec.node != node.as_str() || spec.orchestrator != "k8s" || spec.pod.is_empty() {
            return None;
        }
        Some(Self {
            file: endpoint_status_file(endpoint.metadata.namespace.as_deref()?, &spec.pod, &spec.endpoint),
            host_name: spec.interface_name?.to_string(),
            nets: spec.ip_networks,
        })
    }

    /// Whether its interface is up, and has its addresses and, as far as that is known, decisions about them.
    fn is_set_up(&self, reached: &Reached, decided: &DecidedEnds) -> bool {
        let is_set_up = |net: &IpNet| {
            let index = reached.get(&(self.host_name.clone(), *net));
            index.is_some_and(|index| match decided {
                DecidedEnds::Nothing | DecidedEnds::Everything => true,
                DecidedEnds::These(ends) => ends.contains(&(*index, net.addr())),
            })
        };
        !self.nets.is_empty() && self.nets.iter().all(is_set_up)
    }
}

fn sync(dir: &Path, endpoints: &[Endpoint], decided: &DecidedEnds) -> Result<bool, FilesError> {
    let reached = if endpoints.is_empty() { Reached::new() } else { reached()? };
    let set_up: BTreeSet<&str> = endpoints
        .iter()
        .filter(|endpoint| endpoint.is_set_up(&reached, decided))
        .map(|endpoint| endpoint.file.as_str())
        .collect();
    let there = files(dir)?;
    for stale in there.iter().filter(|file| !set_up.contains(file.as_str())) {
        match std::fs::remove_file(dir.join(stale)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    if *decided == DecidedEnds::Nothing {
        return Ok(false);
    }
    for file in set_up.iter().filter(|file| !there.contains(**file)) {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join(file), b"")?;
    }
    Ok(endpoints.iter().all(|endpoint| set_up.contains(endpoint.file.as_str())))
}

/// The files of endpoints. Other files in this directory have names of another form.
fn files(dir: &Path) -> io::Result<BTreeSet<String>> {
    let listed = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        listed => listed?,
    };
    let names = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.split(' ').count() == 3).collect())
}

fn reached() -> Result<Reached, NetlinkError> {
    let mut socket = Socket::route()?;
    let links = socket.links()?;
    let up: BTreeMap<u32, String> =
        links.into_iter().filter(|link| link.is_up()).map(|link| (link.index, link.name)).collect();
    let mut reached = Reached::new();
    for family in Family::BOTH {
        let filter = RouteFilter { table: Some(Route::MAIN), ..RouteFilter::default() };
        let routes = match socket.routes_where(family, filter) {
            Err(error) if error.is_unsupported() => Vec::new(),
            routes => routes?,
        };
        let to_links = routes.into_iter().filter(|route| route.gateway.is_none());
        let with_link = |route: Route| Some(((up.get(&route.oif?)?.clone(), route.dst), route.oif?));
        reached.extend(to_links.filter_map(with_link));
    }
    Ok(reached)
}

#[cfg(test)]
mod tests {
    use russet_store::Revision;
    use russet_testkit::{in_new_netns, run};

    use super::*;

    fn record(node: &str, change: &str) -> Record {
        let value = format!(
            r#"{{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{{"name":"n1-k8s-web--0-eth0","namespace":"shop"}},"spec":{{"orchestrator":"k8s","node":"{node}","containerID":"c","pod":"web-0","endpoint":"eth0","interfaceName":"calia4fc3c48bd8"{change}}}}}"#
        );
        let key = Key::workload_endpoint("shop", "n1-k8s-web--0-eth0").unwrap();
        Record { key, value: value.into_bytes(), revision: Revision(1) }
    }

    const NETS: &str = r#","ipNetworks":["10.65.0.3/32","fd00::3/128"]"#;

    #[test]
    fn only_pods_of_this_node_have_a_file_with_the_name_that_felix_uses() {
        let node = "n1".parse().unwrap();
        let endpoint = Endpoint::from_record(&record("n1", NETS), &node).unwrap();
        assert_eq!(endpoint.file, "k8s shop%2Fweb-0 eth0");
        assert_eq!(Endpoint::from_record(&record("n2", NETS), &node), None);
    }

    #[test]
    fn an_endpoint_is_set_up_once_all_its_addresses_lead_to_its_interface() {
        let endpoint = Endpoint::from_record(&record("n1", NETS), &"n1".parse().unwrap()).unwrap();
        let route = |link: &str, net: &str| ((link.to_owned(), net.parse::<IpNet>().unwrap()), 7);
        let mut reached =
            Reached::from([route("calia4fc3c48bd8", "10.65.0.3/32"), route("other", "fd00::3/128")]);
        let everything = DecidedEnds::Everything;
        assert!(!endpoint.is_set_up(&reached, &everything));
        reached.extend([route("calia4fc3c48bd8", "fd00::3/128")]);
        assert!(endpoint.is_set_up(&reached, &everything));
        let bare = Endpoint::from_record(&record("n1", ""), &"n1".parse().unwrap()).unwrap();
        assert!(!bare.is_set_up(&reached, &everything));

        // Decisions about both addresses, at this interface.
        let these = |pairs: &[(u32, &str)]| {
            DecidedEnds::These(pairs.iter().map(|(index, ip)| (*index, ip.parse().unwrap())).collect())
        };
        assert!(!endpoint.is_set_up(&reached, &these(&[(7, "10.65.0.3")])));
        assert!(!endpoint.is_set_up(&reached, &these(&[(7, "10.65.0.3"), (6, "fd00::3")])));
        assert!(endpoint.is_set_up(&reached, &these(&[(7, "10.65.0.3"), (7, "fd00::3")])));
    }

    #[test]
    fn stale_files_are_removed_and_foreign_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let everything = DecidedEnds::Everything;
        assert!(
            sync(&dir.path().join("none"), &[], &everything).unwrap(),
            "no directory is as good as an empty one"
        );
        for name in ["k8s shop%2Fgone eth0", "README"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        assert!(sync(dir.path(), &[], &everything).unwrap());
        assert_eq!(files(dir.path()).unwrap(), BTreeSet::new());
        assert!(dir.path().join("README").exists());
    }

    #[test]
    #[ignore = "kernel: network namespaces need root"]
    fn a_file_is_there_while_the_interface_is_up_and_has_the_route() {
        // calico-cni.md section 4.9
        in_new_netns(|| {
            let node = "n1".parse().unwrap();
            let endpoint = Endpoint::from_record(&record("n1", r#","ipNetworks":["10.65.0.3/32"]"#), &node);
            let (endpoints, dir) = ([endpoint.unwrap()], tempfile::tempdir().unwrap());
            let status = dir.path().join("endpoint-status");
            let ip = |words: &str| run("ip", &words.split(' ').collect::<Vec<_>>());
            let synced_with = |decided: DecidedEnds| {
                let settled = sync(&status, &endpoints, &decided).unwrap();
                (settled, status.join("k8s shop%2Fweb-0 eth0").exists())
            };
            let synced = || synced_with(DecidedEnds::Everything);
            ip("link add calia4fc3c48bd8 type veth peer name eth0");
            ip("link set eth0 up");
            assert_eq!(synced(), (false, false));
            ip("link set calia4fc3c48bd8 up");
            assert_eq!(synced(), (false, false));
            ip("route add 10.65.0.3 dev calia4fc3c48bd8");
            assert_eq!(synced_with(DecidedEnds::Nothing), (false, false), "what is in force is not known");
            assert_eq!(synced_with(DecidedEnds::These(BTreeSet::new())), (false, false));
            assert_eq!(synced(), (true, true));
            assert_eq!(synced_with(DecidedEnds::Nothing), (false, true), "it was set up");
            ip("link set calia4fc3c48bd8 down");
            assert_eq!(synced(), (false, false));
        });
    }
}
