//! The command lines of `russet owned` and `russet uninstall`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::OutputArgs;

const OWNED_EXAMPLES: &str = "Examples:
  russet owned               every link, route, entry, table, socket and file of Russet's on this node
  russet owned -o json
  russet owned --files-only --root /mnt/image

Run it in the node's network namespace. It needs no agent, because every object in the kernel has a mark.";

/// The arguments that name the node.
const NAMED_NODE: &str = "named_node";

const UNINSTALL_EXAMPLES: &str = "Examples:
  russet uninstall --dry-run       what would be removed, in order
  systemctl stop russet-agent && russet uninstall
  russet uninstall --purge         also removes the embedded store with its addresses
  russet uninstall --force --purge --kubernetes=in-cluster --node-name=worker-1
                                   in a pod of packaging/kubernetes/russet-uninstall.yaml, which sets RUSSET_NODE_NAME

It refuses while an agent, `russet cri` or a `russet sandbox` runs, while their sandboxes exist, also those of an earlier boot (`russet sandbox rm --all`,
`crictl rmp --all --force`), and while pods are attached (--force removes their interfaces). A missing object is no error: the next uninstall completes one
that was killed. These stay: the settings in /etc/russet, forwarding sysctls, what a shared datastore says of this node (`russet ipam repair --gone-nodes`), and
everything of flannel's daemon.

Exit codes: 0 everything is removed; 1 refused, or something could not be removed.";

#[derive(Debug, Args)]
#[command(after_help = OWNED_EXAMPLES)]
pub struct OwnedArgs {
    /// The root directory of the node.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Do not look into the kernel: for the image of a node.
    #[arg(long)]
    pub files_only: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = UNINSTALL_EXAMPLES, group = ArgGroup::new(NAMED_NODE).multiple(true))]
pub struct UninstallArgs {
    /// The root directory of the node.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Leave the kernel alone: for the image of a node.
    #[arg(long)]
    pub files_only: bool,
    /// Print what would be removed, and remove nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Uninstall even while pods are attached: they lose their network.
    #[arg(long)]
    pub force: bool,
    /// Also remove the state: the embedded store with its addresses, and the history of their
    /// owners; with --kubernetes also Calico's annotations of the node.
    #[arg(long)]
    pub purge: bool,
    /// Also remove Russet's condition, taint, annotations and lease of this node in the Kubernetes API: a kubeconfig, or `in-cluster` in a pod.
    #[arg(long, value_name = "KUBECONFIG|in-cluster", requires = NAMED_NODE)]
    pub kubernetes: Option<PathBuf>,
    /// The node's name in Kubernetes.
    #[arg(long, env = "RUSSET_NODE_NAME", value_name = "NAME", group = NAMED_NODE)]
    pub node_name: Option<String>,
    /// The same, as manifests of earlier versions set it.
    #[arg(long, hide = true, env = "NODE_NAME", value_name = "NAME", group = NAMED_NODE)]
    pub earlier_node_name: Option<String>,
    /// Remove nothing, and wait for the end: for the container that keeps a pod after another one has uninstalled.
    #[arg(long, conflicts_with_all = ["dry_run", "force", "purge", "kubernetes"])]
    pub only_wait: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
