//! The command line of `russet ipam`. Verbs and flags are calicoctl's, since runbooks use them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::SystemTime;

use clap::{ArgAction, ArgGroup, Args, Subcommand, ValueEnum};
use ipnet::IpNet;
use russet_addr::NodeName;

use super::repair::RepairArgs;
use super::store::StoreChoice;
use super::{Format, OutputArgs};

const EXAMPLES: &str = "Examples:
  russet ipam show --show-blocks
  russet ipam show --ip 10.244.1.7
  russet ipam why --node-name worker-1
  russet ipam who 10.244.1.7 --at 2026-11-21T15:04:05Z
  russet ipam check -o report.json
  russet ipam release --from-report report.json
  russet ipam split 4 --name default-ipv4
  russet ipam repair --dry-run
  russet ipam configure --strict-affinity true --max-blocks-per-host 4

A report of `check` lists addresses as leaked that no record of a handle, endpoint or node names. Pods of the plugin `russet` have no
endpoint records, so read the report before you release. With two reports only what both list is released. On a node use `repair`,
which also compares the records with the machine, twice.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct IpamArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    #[command(subcommand)]
    pub verb: IpamVerb,
}

#[derive(Debug, Subcommand)]
pub enum IpamVerb {
    /// Show pools and how much of them is in use, or the owner of an address.
    Show(ShowArgs),
    /// Show the owner of an address, and its earlier owners on this node; exits with 3 when nothing
    /// is known.
    Who(WhoArgs),
    /// Show what a request for an address would get now, and why: pools, limits, the node's blocks.
    /// Writes nothing; exits with 3 if it would get none.
    Why(WhyArgs),
    /// Look for faults in blocks, handles and affinities. Writes nothing; exits with 3 when there
    /// are any.
    Check(CheckArgs),
    /// Release addresses whose owners are gone.
    Release(ReleaseArgs),
    /// Replace a pool by equal parts under new names; pods keep their addresses.
    Split(SplitArgs),
    /// Release addresses that have no owner on this node any more, after two checks of all records
    /// that could prove an owner.
    Repair(RepairArgs),
    /// Change the settings of the cluster.
    Configure(ConfigureArgs),
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Print as table, wide, json or yaml; or, as calicoctl does, the name of a file for the report that `release --from-report` reads (with a
    /// `.` or a `/` in it), beside the table.
    #[arg(short = 'o', long = "output", default_value = "table", value_name = "FORMAT|FILE")]
    pub output: CheckOutput,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckOutput {
    /// To standard output.
    Format(Format),
    /// Into a file.
    File(PathBuf),
}

impl FromStr for CheckOutput {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match Format::from_str(text, false) {
            Ok(format) => Ok(Self::Format(format)),
            // A misspelled format should not become a file.
            Err(_) if text.contains(['.', '/']) => Ok(Self::File(text.into())),
            Err(_) => Err(
                "table, wide, json or yaml is wanted, or the name of a file with a . or / in it, as ./report",
            ),
        }
    }
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Show the owner of this address.
    #[arg(long, value_name = "IP", conflicts_with_all = ["show_blocks", "show_borrowed", "show_configuration"])]
    pub ip: Option<IpAddr>,
    /// Also show the blocks of each pool.
    #[arg(long, conflicts_with_all = ["show_borrowed", "show_configuration"])]
    pub show_blocks: bool,
    /// Show addresses of one node's blocks that are used on another.
    #[arg(long, conflicts_with = "show_configuration")]
    pub show_borrowed: bool,
    /// Show the effective settings.
    #[arg(long)]
    pub show_configuration: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct WhoArgs {
    /// The address.
    pub ip: IpAddr,
    /// Show the owner at this time, from this node's history: a time such as 2026-11-21T15:04:05Z.
    #[arg(long, value_name = "TIME")]
    pub at: Option<Moment>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A moment, in RFC 3339.
#[derive(Debug, Clone, Copy)]
pub struct Moment(pub SystemTime);

impl FromStr for Moment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = russet_model::time::parse_rfc3339(text);
        parsed.map(Self).ok_or("a time such as 2026-11-21T15:04:05Z, or with +01:00 for Z, is wanted")
    }
}

#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The requesting node; by default this one.
    #[arg(long = "node-name", alias = "node", value_name = "NAME")]
    pub node: Option<NodeName>,
    /// A requested pool, by its name or its prefix; may be given several times.
    #[arg(long, value_name = "NAME|CIDR")]
    pub pool: Vec<PoolName>,
    /// A label of the pod's namespace; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub namespace_label: Vec<Label>,
    /// Ask for a tunnel's address instead of a pod's.
    #[arg(long)]
    pub tunnel: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A pool, as annotations name it: by its name or its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolName {
    Name(String),
    Cidr(IpNet),
}

impl FromStr for PoolName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(net) => Ok(Self::Cidr(net)),
            Err(_) if text.is_empty() || text.contains('/') => {
                Err("the name of a pool, or a prefix such as 10.1.0.0/16, is wanted")
            }
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }
}

/// A label and its value.
#[derive(Debug, Clone)]
pub struct Label(pub (String, String));

impl FromStr for Label {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').ok_or("a label such as team=blue is wanted")?;
        Ok(Self((name.to_owned(), value.to_owned())))
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub struct ReleaseArgs {
    /// Release this address.
    #[arg(long, value_name = "IP", group = "what")]
    pub ip: Option<IpAddr>,
    /// Release what a report of `check` lists as leaked and what has not changed since; given several times, what all of them list.
    #[arg(long, value_name = "FILE", group = "what")]
    pub from_report: Vec<PathBuf>,
    /// Release the address even if an endpoint or an interface of this machine has it. The next ADD
    /// may get it while the pod still lives.
    #[arg(long, conflicts_with = "from_report")]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct SplitArgs {
    /// How many parts: a power of two.
    pub parts: u32,
    /// The pool's name.
    #[arg(long, value_name = "NAME", required_unless_present = "cidr", conflicts_with = "cidr")]
    pub name: Option<String>,
    /// The pool's prefix.
    #[arg(long, value_name = "CIDR")]
    pub cidr: Option<IpNet>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct ConfigureArgs {
    /// Nodes take addresses from their own blocks only.
    #[arg(long, visible_alias = "strictaffinity", value_name = "true|false", action = ArgAction::Set)]
    pub strict_affinity: Option<bool>,
    /// How many blocks of a family a node may have; 0 means the built-in limit of 20. Needs strict
    /// affinity.
    #[arg(long, value_name = "N")]
    pub max_blocks_per_host: Option<u32>,
}
