//! The command line of `russet cni`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use russet_addr::{ContainerId, IfName};
use serde_json::{Map, Value};

use super::OutputArgs;

/// What `--help` ends with.
pub const EXAMPLES: &str = "Examples:
  ip netns add blue
  russet cni add russet /run/netns/blue           attach it to the network `russet`; prints the result
  russet cni add russet /run/netns/blue --timing  also the time of each stage, on standard error
  russet cni check russet /run/netns/blue
  russet cni del russet /run/netns/blue -o json --timing
  russet cni status russet
  russet cni validate russet                      is every plugin there, and does it support the network's version?
  russet cni lint /etc/cni/net.d/*                what is wrong with these files
  NETCONFPATH=/tmp/net.d CNI_PATH=/opt/cni/bin CNI_IFNAME=net1 russet cni add mynet /run/netns/blue

Arguments, variables, container IDs and the cache are those of cnitool, so that each finds what the other attached.
GC differs: cnitool's removes every attachment of the network, this one only with --all.

Standard error has a line for each plugin; standard output has only the result. With -o json there is one document, and no such lines.

Exit codes: 0 success; 1 refused or failed; 2 usage; 3 lint found something. With -o json the error is an object with CNI's code.";

#[derive(Debug, Args)]
pub struct CniArgs {
    #[command(subcommand)]
    pub verb: CniVerb,
}

#[derive(Debug, Subcommand)]
pub enum CniVerb {
    /// Attach a network namespace to a network: every plugin of its chain in order.
    Add(AttachmentArgs),
    /// Compare an attachment with what it should be.
    Check(AttachmentArgs),
    /// Detach a network namespace: every plugin backward, going on past those that fail.
    Del(AttachmentArgs),
    /// Delete every attachment of a network that this machine's cache lists, and what its plugins
    /// hold for other containers.
    Gc(GcArgs),
    /// Ask every plugin of a network whether it could attach something now.
    Status(StatusArgs),
    /// Ask every plugin of a network which versions of CNI it speaks.
    Version(NetworkArgs),
    /// Ask whether every plugin of a network is there and speaks the network's version; prints the capabilities that they declare.
    Validate(NetworkArgs),
    /// Explain what is wrong with configuration files.
    Lint(LintArgs),
}

/// A network, where it is configured, and how to print the result.
#[derive(Debug, Args)]
pub struct NetworkArgs {
    /// The network's name, as its configuration has it.
    #[arg(value_name = "NETWORK")]
    pub network: String,
    /// Where network configurations are [default: /etc/cni/net.d].
    #[arg(long, alias = "conf-dir", env = "NETCONFPATH", value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    #[command(flatten)]
    pub plugins: PluginArgs,
    /// Run Russet's own plugins in this process instead of starting a process for each. Executables
    /// of others are started as usual.
    #[arg(long)]
    pub in_process: bool,
    /// Where results of ADD are kept [default: /var/lib/cni].
    #[arg(long, alias = "cache-dir", value_name = "DIR")]
    pub cni_cache_dir: Option<PathBuf>,
    /// Print how long each plugin took, and for Russet's plugins the time of each step inside the
    /// agent.
    #[arg(long)]
    pub timing: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct PluginArgs {
    /// Look for networks, plugins and results below this directory, unless an option names their
    /// directory. The network's configuration decides which agent is used.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Where plugins are looked for; may be given several times, or with colons [default: /opt/cni/bin].
    #[arg(long, alias = "plugin-path", env = "CNI_PATH", value_name = "DIR", value_delimiter = ':')]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Look for the plugins of a network first in PREFIX/opt/<type of its first plugin>/bin, for
    /// loopback also in PREFIX/opt/loopback/bin, as the first kubelets did. PREFIX is usually /.
    #[arg(long, value_name = "PREFIX")]
    pub vendor_prefix: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct AttachmentArgs {
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Path of the network namespace.
    #[arg(value_name = "NETNS")]
    pub netns: PathBuf,
    /// The container; by default cnitool's ID for the namespace.
    #[arg(long, env = "CNI_CONTAINERID", value_name = "ID")]
    pub container_id: Option<ContainerId>,
    /// The interface inside the namespace.
    #[arg(long, env = "CNI_IFNAME", default_value = "eth0", value_name = "NAME")]
    pub ifname: IfName,
    /// Arguments for plugins: KEY=VALUE, separated by semicolons.
    #[arg(long, env = "CNI_ARGS", default_value = "", value_name = "ARGS")]
    pub args: String,
    /// Values for capabilities, as a JSON object.
    #[arg(long, env = "CAP_ARGS", default_value = "{}", value_name = "JSON", value_parser = object)]
    pub capabilities: Map<String, Value>,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Ignored; accepted for cnitool's syntax.
    #[arg(value_name = "NETNS", hide = true)]
    pub netns: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct GcArgs {
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Ignored; accepted for cnitool's syntax.
    #[arg(value_name = "NETNS", hide = true)]
    pub netns: Option<PathBuf>,
    /// Delete everything, also what container runtimes attached: the plugins receive an empty list
    /// of valid attachments.
    #[arg(long, required = true)]
    pub all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = LINT_EXAMPLES)]
pub struct LintArgs {
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub plugins: PluginArgs,
    /// Neither look for plugins nor run them for their versions: for files that are meant for
    /// another machine.
    #[arg(long)]
    pub no_plugins: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

const LINT_EXAMPLES: &str = "\
Looks for: text that is not JSON, with its line and column; a missing name, type or plugin; \
a .conf that is a list and a .conflist that is a single plugin; \
keys that are unknown, misplaced, duplicate, of the wrong type, or that only a runtime may write; versions that are unknown or that a plugin does not support; \
missing plugins; subnets that cannot be read, or overlap within the file; plugins that cannot be the first of a chain, \
or do nothing because a capability is missing. Plugins in the directory of the network are checked with its file.

Examples:
  russet cni lint 10-mynet.conflist --no-plugins
  CNI_PATH=/usr/lib/cni russet cni lint /etc/cni/net.d/*.conflist
  russet cni lint 10-mynet.conflist -o json | jq -r '.findings[].text'

Exit codes: 0 nothing found; 2 usage; 3 something found.";

// === impl NetworkArgs ===

impl NetworkArgs {
    pub fn conf_dir(&self) -> PathBuf {
        self.cni_conf_dir.clone().unwrap_or_else(|| self.plugins.root.join("etc/cni/net.d"))
    }

    /// Where results of ADD are kept.
    pub fn cache_dir(&self) -> PathBuf {
        self.cni_cache_dir.clone().unwrap_or_else(|| self.plugins.root.join("var/lib/cni"))
    }
}

// === impl PluginArgs ===

impl PluginArgs {
    /// Where plugins are looked for, in this order.
    pub fn bin_dirs(&self) -> Vec<PathBuf> {
        // An empty CNI_PATH is one empty directory to clap.
        let named: Vec<PathBuf> =
            self.cni_bin_dir.iter().filter(|dir| !dir.as_os_str().is_empty()).cloned().collect();
        if named.is_empty() { vec![self.root.join("opt/cni/bin")] } else { named }
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("a JSON object is wanted: {error}"))
}
