//! The command lines of `russet owned` and `russet uninstall`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

const OWNED_EXAMPLES: &str = "Examples:
  russet owned               every link, route, entry, table, socket and file of Russet's on this node
  russet owned -o json
  russet owned --files-only --root /mnt/image

Run it in the node's network namespace. It needs no agent: what is in the kernel is known by its mark.";

const UNINSTALL_EXAMPLES: &str = "Examples:
  russet uninstall --dry-run       what would be removed, in order
  systemctl stop russet-cri russet-agent && russet uninstall
  russet uninstall --purge         the embedded store with its addresses goes, too

It refuses while an agent, `russet cri` or a `russet sandbox` runs, while there are sandboxes of theirs, also those that an earlier boot left to be given
back (`russet sandbox rm --all`, `crictl rmp --all --force`), and while pods are attached (--force takes their interfaces away). What is gone already is no
error: an uninstall that was killed is finished by the next. It stays: the settings in /etc/russet, forwarding sysctls, what a shared datastore says of this node
(`russet ipam repair --gone-nodes`), and everything of flannel's daemon.

Exit codes: 0 all of it is gone; 1 refused, or something could not be removed.";

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
#[command(after_help = UNINSTALL_EXAMPLES)]
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
    /// owners.
    #[arg(long)]
    pub purge: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
