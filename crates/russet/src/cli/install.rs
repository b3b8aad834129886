//! The command line of `russet install`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::OutputArgs;

const EXAMPLES: &str = "Examples:
  russet install --dry-run                      what would be done, in order
  russet install --start                        also starts or restarts the agent, and waits until pods can start
  russet install --plugins russet,calico,calico-ipam
  russet install --no-conflist                  the cluster's own configuration is used
  russet install --with cri,pod --start         also pods' sandboxes over CRI, and pods of /etc/russet/pods without Kubernetes
  russet install --with flanneld --no-agent --no-conflist --plugins flannel,bridge,host-local,portmap,loopback
                                                a node of a flannel network, which needs no agent
  russet install --no-unit --bin-dir /opt/cni/bin --plugins flannel,bridge,host-local --conflist /etc/kube-flannel/10-flannel.conflist
                                                in a pod of a flannel network, with these directories of the node mounted
  russet install --rollback --start             back to the version before the last installation
  russet install --root /mnt/image --no-conflist
  russet install --root /srv/node-2 --in-place  a second node on this machine, for russet agent --root /srv/node-2

Run the executable that is to be installed, with russet-cni beside it, for example target/dist/russet. It can be repeated at any time:
equal files are not touched, and an installation that was interrupted is completed. Each file is replaced by a rename in its directory,
so that a pod that starts meanwhile sees the old one or the new one. The conflist is written last; an existing one is kept.

Exit codes: 0 everything is installed; 1 a step failed, and the steps before it stay.";

/// Where the command goes, unless another place is given.
pub const BIN_DIR: &str = "/usr/local/bin";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InstallArgs {
    /// Put everything below this directory, as for an image of a node.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// The root is used on this machine, by `russet agent --root DIR`, and is not an image's: the
    /// conflist names its socket and its paths. No units are written.
    #[arg(long)]
    pub in_place: bool,
    /// Where the command goes. A command from a .deb or .rpm stays where it is by default, and plugins are links to what the package has.
    #[arg(long, default_value = BIN_DIR, value_name = "DIR")]
    pub bin_dir: PathBuf,
    /// Where container runtimes look for plugins.
    #[arg(long, default_value = "/opt/cni/bin", value_name = "DIR")]
    pub cni_bin_dir: PathBuf,
    /// Where container runtimes look for networks.
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    pub cni_conf_dir: PathBuf,
    /// Where systemd looks for units.
    #[arg(long, default_value = "/etc/systemd/system", value_name = "DIR")]
    pub unit_dir: PathBuf,
    /// The plugins to install, by name. A foreign file with such a name is kept beside it, and
    /// `russet uninstall` restores it. By default `russet`, and `loopback` and `portmap` where they
    /// are missing.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub plugins: Option<Vec<String>>,
    /// Write no network configuration.
    #[arg(long)]
    pub no_conflist: bool,
    /// Write this network configuration, under its own file name, instead of Russet's; an earlier version of it is replaced.
    #[arg(long, value_name = "FILE", conflicts_with = "no_conflist")]
    pub conflist: Option<PathBuf>,
    /// Write no systemd unit. Without systemd none is written anyway.
    #[arg(long)]
    pub no_unit: bool,
    /// Also the units of these services. Those that an earlier installation wrote are kept up to date without being named.
    #[arg(long = "with", value_name = "SERVICE", value_delimiter = ',', conflicts_with = "no_unit")]
    pub services: Vec<MoreService>,
    /// Not the agent's unit, for a node whose network is that of flannel (`--with flanneld`): its plugins need no agent.
    #[arg(long, conflicts_with = "no_unit", requires = "services")]
    pub no_agent: bool,
    /// Start the services, or restart them, by systemd; the conflist is written when pods can start.
    #[arg(long, conflicts_with_all = ["no_unit", "dry_run"])]
    pub start: bool,
    /// Go back to the version that the last installation replaced, whose files were kept beside the present ones. With --start
    /// the services that run are restarted. To go forward again, install the newer version.
    #[arg(long, conflicts_with_all = ["plugins", "conflist", "no_conflist", "services", "no_agent", "in_place"])]
    pub rollback: bool,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MoreService {
    /// Pods' sandboxes over the container runtime interface (russet-cri.service).
    Cri,
    /// A pod for each manifest in /etc/russet/pods that is enabled (russet-pod@NAME.service).
    Pod,
    /// flannel's node daemon, with its flags in /etc/default/russet-flanneld (russet-flanneld.service).
    Flanneld,
}
