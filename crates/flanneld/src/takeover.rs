//! `takeover`: this daemon replaces a running flannel without losing a packet
//! (docs/flannel-migration.md). First it checks everything and changes nothing: an object that
//! would have to be recreated, or a change of this node's identity for its peers, is an objection,
//! and a single objection leaves the node as it is. Then the running daemon is asked to end, which
//! leaves its devices, routes, rules and lease in place; an ordinary start follows, which adopts
//! them. Called by `run` before there is a backend.

mod predecessor;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use russet_lease::{Event, Lease, LeaseError, SubnetManager};
use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_overlay::firewall::{self, FirewallError, Mode};
use russet_overlay::flannel::{DeviceState, ExistingDevice, FlannelError};

use crate::backend::Backend;
use crate::interface::External;
use crate::subnet_env::SubnetEnv;
pub use predecessor::Predecessor;

/// The state of a node with a running flannel.
#[derive(Debug)]
pub struct Survey {
    pub own: SubnetKey,
    /// The backend of its rules; none if none were recognised.
    pub rules: Option<Mode>,
    predecessors: Vec<Predecessor>,
}

/// The state with which the node is compared.
pub struct Expected<'a> {
    /// The network's configuration.
    pub config: &'a NetworkConfig,
    pub backend: &'a Backend,
    /// The interface.
    pub external: &'a External,
    /// The running daemon's `subnet.env`.
    pub env: &'a SubnetEnv,
    /// Whether this daemon would masquerade; none if no flag says.
    pub masquerade: Option<bool>,
    /// The address where a flannel daemon answers health probes, if it is the one that this daemon
    /// is to use.
    pub answers: Option<SocketAddr>,
}

/// Why a takeover was refused or failed. The node's network is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The node does not match these flags.
    #[error("there is no flannel to take over as these flags say, and nothing was changed: {}", .0.join("; "))]
    Objections(Vec<String>),
    /// The leases cannot be read.
    #[error("read the leases: {0}")]
    Leases(#[from] LeaseError),
    /// The devices cannot be read.
    #[error("read the devices: {0}")]
    Devices(#[from] FlannelError),
    /// The rules cannot be read.
    #[error("read the rules: {0}")]
    Rules(#[from] FirewallError),
    /// The running daemon cannot be found, or not be ended.
    #[error("{what}: {source}")]
    Processes {
        /// The failed operation.
        what: &'static str,
        source: std::io::Error,
    },
    /// The running daemon does not end.
    #[error("flanneld (process {0}) does not end")]
    Stays(u32),
    /// A supervisor starts it again.
    #[error("flanneld was started again (process {0}): stop the service or pod that keeps it running first")]
    Back(u32),
    /// The thread that works on the kernel panicked.
    #[error("the thread that reads the kernel ended early")]
    Broken,
}

/// A supervisor restarts a daemon after a moment: systemd after 0.1 s, a container runtime after a
/// second or two.
const SUPERVISED: Duration = Duration::from_secs(3);

/// Compares the node. `standing` are its devices, as the backend sees them.
pub async fn survey(
    expected: &Expected<'_>,
    leases: &dyn SubnetManager,
    standing: &[ExistingDevice],
) -> Result<Survey, TakeoverError> {
    // Without a subnet of our own, the watch also lists our own lease.
    let mut watch = leases.watch(&SubnetKey { v4: None, v6: None }).await?;
    let listed = match watch.next().await {
        Event::Snapshot(leases) => leases,
        Event::Put(lease) => vec![lease],
        Event::Gone(_) => Vec::new(),
    };
    let objections = expected.objections(&listed, standing);
    if !objections.is_empty() {
        return Err(TakeoverError::Objections(objections));
    }
    let look = || Ok::<_, TakeoverError>((firewall::survey()?, Predecessor::all()?));
    let last_resync = tokio::task::spawn_blocking(look).await;
    let (modes, predecessors) = last_resync.map_err(|_panic| TakeoverError::Broken)??;
    if let (Some(address), true) = (expected.answers, predecessors.is_empty()) {
        return Err(TakeoverError::Objections(vec![format!(
            "a flannel daemon answers at {address}, and its process cannot be seen from here: stop it, or run this daemon in the host's process namespace (hostPID: true)"
        )]));
    }
    // Chains of iptables count first, because a running flannel in that mode uses them, whatever an
    // earlier one left.
    let rules = modes.into_iter().max_by_key(|mode| *mode == Mode::Iptables);
    Ok(Survey { own: expected.env.key(), rules, predecessors })
}

// === impl Survey ===

impl Survey {
    /// Ends the running daemon, if there is one, and checks that it is not started again. If pods'
    /// packets stop with it (`carries`), there is no wait: a restarted daemon will find its
    /// addresses in use.
    pub async fn retire(&mut self, carries: bool) -> Result<(), TakeoverError> {
        let predecessors = std::mem::take(&mut self.predecessors);
        if predecessors.is_empty() {
            return Ok(());
        }
        let end = move || {
            predecessors.iter().try_for_each(|one| {
                tracing::info!(pid = one.pid, "the running flanneld is asked to end");
                one.end()
            })
        };
        tokio::task::spawn_blocking(end).await.map_err(|_panic| TakeoverError::Broken)??;
        if carries {
            return Ok(());
        }
        tokio::time::sleep(SUPERVISED).await;
        let again = tokio::task::spawn_blocking(Predecessor::all).await;
        match again.map_err(|_panic| TakeoverError::Broken)??.first() {
            Some(again) => Err(TakeoverError::Back(again.pid)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = match self.rules {
            Some(Mode::Iptables) => "in chains of iptables",
            Some(Mode::Nft) => "in tables of nf_tables",
            None => "not recognised",
        };
        write!(f, "subnet {}, rules {rules}, ", self.own)?;
        match self.predecessors.as_slice() {
            [] => f.write_str("no flanneld runs"),
            running => {
                let pids: Vec<String> =
                    running.iter().map(|one| format!("{} ({})", one.pid, one.name)).collect();
                write!(f, "flanneld runs as process {}", pids.join(", "))
            }
        }
    }
}

// === impl Expected ===

impl Expected<'_> {
    /// All differences, for the operator to resolve.
    fn objections(&self, leases: &[Lease], standing: &[ExistingDevice]) -> Vec<String> {
        let mut objections = Vec::new();
        let (own, env) = (self.env.key(), self.env);
        if own.subnets().next().is_none() {
            objections.push(
                "the subnet file names no subnet; is it the running daemon's (-subnet-file)?".to_owned(),
            );
        }
        if (env.network, env.ipv6_network) != (self.config.v4(), self.config.v6()) {
            objections
                .push("the subnet file is of another network than the datastore's configuration".to_owned());
        }
        if env.ipmasq && self.masquerade.is_none() {
            objections.push(
                "the running flannel masquerades (FLANNEL_IPMASQ=true in the subnet file) and these flags would not, so that new connections from pods to the outside would fail: add -ip-masq, or -ip-masq=false if that is meant"
                    .to_owned(),
            );
        }
        let mine: Vec<&Lease> = leases.iter().filter(|lease| self.is_own(lease)).collect();
        match mine.as_slice() {
            [] => {
                let public: Vec<String> = self.external.public().map(|address| address.to_string()).collect();
                objections.push(format!(
                    "no lease is of {} (-iface and -public-ip must be the running daemon's)",
                    public.join(" and ")
                ));
            }
            [lease] => self.compare(lease, &own, &mut objections),
            more => objections.push(format!("{} leases are of this node's address", more.len())),
        }
        for ExistingDevice { device, found, .. } in standing {
            match found {
                DeviceState::Ours(_) => {}
                DeviceState::Other => objections.push(format!(
                    "device {device} would be recreated: VNI, port, address or interface differ"
                )),
                DeviceState::Nothing => objections.push(format!("there is no device {device}")),
            }
        }
        objections
    }

    fn is_own(&self, lease: &Lease) -> bool {
        match self.external.public_v4 {
            Some(public) => lease.attributes.public_ip == public,
            None => {
                self.external.public_v6.is_some() && lease.attributes.public_ipv6 == self.external.public_v6
            }
        }
    }

    fn compare(&self, lease: &Lease, own: &SubnetKey, objections: &mut Vec<String>) {
        if lease.key != *own {
            objections.push(format!("this node's lease is {}, the subnet file says {own}", lease.key));
        }
        let (has, wanted) = (&lease.attributes.backend_type, self.backend.lease_type());
        if has != wanted {
            objections
                .push(format!("this node's lease is of backend {has:?}, the configuration of {wanted:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{external, lease};
    use russet_addr::{Family, Mac};

    const CONFIG: &[u8] = br#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

    fn objections(env: &str, leases: &[Lease], found: DeviceState) -> Vec<String> {
        objections_with(env, leases, found, None)
    }

    fn objections_with(
        env: &str,
        leases: &[Lease],
        found: DeviceState,
        masquerade: Option<bool>,
    ) -> Vec<String> {
        let config = NetworkConfig::parse(CONFIG).and_then(NetworkConfig::validated).unwrap();
        let backend = Backend::parse(&config.backend, false).unwrap();
        let external = external();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), env).unwrap();
        let env = SubnetEnv::read(file.path()).unwrap();
        let device = ExistingDevice { device: "flannel.1".parse().unwrap(), family: Family::V4, found };
        let (config, backend, external) = (&config, &backend, &external);
        let expected = Expected { config, backend, external, env: &env, masquerade, answers: None };
        expected.objections(leases, &[device])
    }

    const ENV: &str = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_MTU=1450\n";
    const OURS: DeviceState = DeviceState::Ours(Mac([2, 0, 0, 0, 0, 1]));

    #[test]
    fn a_node_as_flannel_left_it_is_taken_over() {
        let own = lease("10.5.29.0-24", "10.200.0.11", "vxlan");
        let other = lease("10.5.30.0-24", "10.200.0.12", "vxlan");
        assert_eq!(objections(ENV, &[other, own], OURS), Vec::<String>::new());
    }

    #[test]
    fn a_masquerading_flannel_is_taken_over_only_if_the_flags_decide_about_masquerading() {
        let own = [lease("10.5.29.0-24", "10.200.0.11", "vxlan")];
        let env = format!("{ENV}FLANNEL_IPMASQ=true\n");
        let said = objections_with(&env, &own, OURS, None);
        assert!(said.len() == 1 && said[0].contains("add -ip-masq"), "{said:?}");
        for masquerade in [Some(true), Some(false)] {
            assert_eq!(objections_with(&env, &own, OURS, masquerade), Vec::<String>::new());
        }
        assert_eq!(objections_with(ENV, &own, OURS, None), Vec::<String>::new());
    }

    #[test]
    fn every_change_of_the_nodes_identity_is_an_objection() {
        let own = || lease("10.5.29.0-24", "10.200.0.11", "vxlan");
        for (env, leases, found, words) in [
            ("", vec![own()], OURS, "names no subnet"),
            (
                "FLANNEL_NETWORK=10.6.0.0/16\nFLANNEL_SUBNET=10.6.29.1/24\n",
                vec![own()],
                OURS,
                "another network",
            ),
            (ENV, vec![], OURS, "no lease is of 10.200.0.11"),
            (
                ENV,
                vec![lease("10.5.30.0-24", "10.200.0.11", "vxlan")],
                OURS,
                "is 10.5.30.0-24, the subnet file says 10.5.29.0-24",
            ),
            (ENV, vec![lease("10.5.29.0-24", "10.200.0.11", "host-gw")], OURS, "\"host-gw\""),
            (ENV, vec![own(), lease("10.5.30.0-24", "10.200.0.11", "vxlan")], OURS, "2 leases"),
            (ENV, vec![own()], DeviceState::Other, "would be recreated"),
            (ENV, vec![own()], DeviceState::Nothing, "there is no device flannel.1"),
        ] {
            let found_objections = objections(env, &leases, found);
            assert!(
                found_objections.iter().any(|objection| objection.contains(words)),
                "{words}: {found_objections:?}"
            );
        }
    }
}
