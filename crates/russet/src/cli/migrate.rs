//! The command line of `russet migrate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use russet_addr::{NetworkName, NodeName};
use russet_agent::StoreLocation;

use super::OutputArgs;
use super::store::StoreChoice;

const EXAMPLES: &str = "Examples:
  russet migrate calico-v1 --from http://10.0.0.1:2379 --to etcd:http://10.0.0.1:2379 --dry-run
  russet migrate calico-v1 --from http://10.0.0.1:2379 --to etcd:http://10.0.0.1:2379

The v2 data are only read. Existing records of the new store are compared, and not overwritten without --force.
Close the v1 data (/calico/v1/Ready: false) and stop Calico's v1 programs on all nodes first: docs/migrate-calico-v1.md.
Exit codes: 0 done and verified; 1 failed; 3 there are obstacles, which are listed, and nothing was written.";

const FLANNEL_EXAMPLES: &str = "Examples:
  russet migrate flannel-v2 --from http://10.0.0.1:2379 --to etcd:http://10.0.0.1:2379 --dry-run
  russet migrate flannel-v2 --from http://10.0.0.1:2379 --to etcd:http://10.0.0.1:2379

The v2 data are only read. Leases keep their remaining time, reservations have none. An existing lease of the new store is never overwritten. Run it before the first daemon of v0.18 or later, or Russet's, starts, and again while old ones run: docs/migrate-flannel-v2.md.
Exit codes: 0 done and verified; 1 failed; 3 there are obstacles, which are listed, and nothing was written.";

const HOST_LOCAL_EXAMPLES: &str = "Examples:
  russet migrate host-local --store kubernetes:/root/.kube/config --node-name node1
  russet migrate host-local --store kubernetes:/root/.kube/config --node-name node1 --network cbr0 --remove-files

Run it on each node while no pod is scheduled there, before and after its network configuration changes from host-local to calico-ipam:
docs/kubernetes.md. Pods keep their addresses. Nothing of other nodes is written, and the datastore is not locked. A repeated run changes nothing.
Exit codes: 0 every address is allocated; 1 failed; 3 addresses were left, each with the reason.";

#[derive(Debug, Args)]
pub struct MigrateArgs {
    #[command(subcommand)]
    pub verb: MigrateVerb,
}

#[derive(Debug, Subcommand)]
pub enum MigrateVerb {
    /// Migrate the data of Calico up to v1.11, behind etcd's v2 API, to v3 resources.
    #[command(name = "calico-v1", after_help = EXAMPLES)]
    CalicoV1(CalicoV1Args),
    /// Migrate the network config and the leases of flannel up to v0.17, behind etcd's v2 API, to
    /// the keys of later releases.
    #[command(name = "flannel-v2", after_help = FLANNEL_EXAMPLES)]
    FlannelV2(FlannelV2Args),
    /// Allocate this node's addresses of the plugin host-local in the cluster's pools, for a change to
    /// calico-ipam while pods run.
    #[command(name = "host-local", after_help = HOST_LOCAL_EXAMPLES)]
    HostLocal(HostLocalArgs),
}

#[derive(Debug, Args)]
pub struct CalicoV1Args {
    #[command(flatten)]
    pub source: V2Source,
    /// The store to write to; by default the one in the node's settings.
    #[arg(long, value_name = "STORE", conflicts_with = "store")]
    pub to: Option<StoreLocation>,
    #[command(flatten)]
    pub place: StoreChoice,
    /// Print what would be done, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Migrate although /calico/v1/Ready is not "false". An address that v1 assigns or releases
    /// meanwhile is assigned twice later: use it only if every program of Calico v1 on every node
    /// is stopped, and stays stopped.
    #[arg(long)]
    pub v1_open: bool,
    /// Overwrite resources of the new store that differ. Refused once the new store has pools: an
    /// address that was assigned there in the meantime would be assigned twice.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// An etcd that serves the v2 API.
#[derive(Debug, Args)]
pub struct V2Source {
    /// The members of the etcd with the v2 data, separated by commas.
    #[arg(long, value_name = "URL,URL")]
    pub from: String,
    /// The CA certificates that verify its certificates, in PEM; https needs it.
    #[arg(long, value_name = "FILE")]
    pub from_ca_file: Option<PathBuf>,
    /// Russet's client certificate for it, in PEM.
    #[arg(long, value_name = "FILE")]
    pub from_cert_file: Option<PathBuf>,
    /// Its private key, in PEM.
    #[arg(long, value_name = "FILE")]
    pub from_key_file: Option<PathBuf>,
    /// The user name for it.
    #[arg(long, value_name = "NAME")]
    pub from_username: Option<String>,
    /// The file with the user's password; one line.
    #[arg(long, value_name = "FILE")]
    pub from_password_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct FlannelV2Args {
    #[command(flatten)]
    pub source: V2Source,
    /// The store to write to; by default the one in the node's settings.
    #[arg(long, value_name = "STORE", conflicts_with = "store")]
    pub to: Option<StoreLocation>,
    #[command(flatten)]
    pub place: StoreChoice,
    /// The prefix of flannel's keys, as in its -etcd-prefix.
    #[arg(long, value_name = "PREFIX", default_value = "/coreos.com/network")]
    pub prefix: String,
    /// Print what would be done, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Overwrite a network config of the new store that differs, and leave out leases that it has
    /// given to other nodes.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct HostLocalArgs {
    /// The cluster: `kubernetes:FILE` with a kubeconfig, or `kubernetes:in-cluster` in a pod.
    #[arg(long, env = "RUSSET_STORE", value_name = "STORE")]
    pub store: StoreLocation,
    /// This node's name in Kubernetes.
    #[arg(long, env = "RUSSET_NODE_NAME", value_name = "NAME")]
    pub node_name: NodeName,
    /// The network, as its configuration names it before and after the change.
    #[arg(long, value_name = "NAME", default_value = "k8s-pod-network")]
    pub network: NetworkName,
    /// Where host-local keeps its addresses, below the root.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni/networks")]
    pub directory: PathBuf,
    /// The directory below which the node's files are.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Remove the files of addresses that are allocated. Only once no network configuration of this
    /// node has host-local for the network: it would give these addresses away again.
    #[arg(long)]
    pub remove_files: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
