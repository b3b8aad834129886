//! The command lines of `russet explain` and `russet policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use russet_verdict::explain::{Peer, Probe, ProbeError};
use russet_verdict::ir::Protocol;

use super::OutputArgs;
use super::store::StoreChoice;

pub const EXPLAIN_EXAMPLES: &str = "Examples:
  russet explain shop/web shop/db 5432                       the cluster of this node, and what this node's kernel holds
  russet explain shop/web 203.0.113.9 53 --proto udp
  russet explain shop/web shop/db icmp --store etcd:http://10.0.0.1:2379
  russet explain shop/web shop/db 5432 --node-name n2        what is known of node n2, from this machine
  russet explain shop/web shop/db 5432 -f cluster/           files of pods, namespaces, nodes and policies instead
  kubectl get pods,ns,nodes,netpol -A -o yaml | russet explain shop/web world icmp -f -
  russet explain shop/web service:shop/db -f all.yaml        each endpoint, on each of its named ports

Exit codes: 0 everything asked is allowed; 3 something is denied, or a problem was found; 1 failed, or an end is not known; 2 usage. docs/policy.md says what is judged, and how.";

pub const POLICY_EXAMPLES: &str = "Examples:
  russet policy ls                         the cluster's policies, and whether they are enforced
  russet policy show shop/db-in
  russet policy what-if new.yaml           which pairs of pods would change
  russet policy test manifests/ tests.yaml documents of a cluster, and tables of who may reach whom

Exit codes: 0 good; 3 a policy is not enforced as it is written, an expectation does not hold, or a pair would change; 1 failed; 2 usage.
docs/policy.md has the format of the tables.";

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Who begins: NAMESPACE/POD, an address, node:NAME, service:NAMESPACE/NAME or `world`.
    #[arg(value_name = "FROM")]
    pub from: Peer,
    /// To whom, in the same forms.
    #[arg(value_name = "TO")]
    pub to: Peer,
    /// The destination port: PORT (of TCP), PORT/PROTOCOL, or `icmp`; by default each port to which the
    /// destination gives a name.
    #[arg(value_name = "PORT[/PROTOCOL]")]
    pub port: Option<Probe>,
    /// Judge the documents of this file, or of the files of this directory, in YAML or JSON, and
    /// not the cluster of this node; - is standard input.
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The protocol of PORT: tcp, udp, sctp or a number.
    #[arg(long, value_name = "PROTOCOL", value_parser = protocol)]
    pub proto: Option<Protocol>,
    /// Ask for addresses of this family only.
    #[arg(long, value_name = "4|6")]
    pub family: Option<FamilyArg>,
    /// Say what this node knows, and not the node of this machine. Of another node that is what the
    /// datastore says: its kernel is not compared.
    #[arg(long = "node-name", alias = "node", value_name = "NAME", conflicts_with = "files")]
    pub node: Option<String>,
    #[command(flatten)]
    pub place: StoreChoice,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FamilyArg {
    /// IPv4.
    #[value(name = "4")]
    V4,
    /// IPv6.
    #[value(name = "6")]
    V6,
}

#[derive(Debug, Args)]
#[command(after_help = POLICY_EXAMPLES)]
pub struct PolicyArgs {
    #[command(subcommand)]
    pub verb: PolicyVerb,
}

#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Judge tables of expected reachabilities by the policies of files.
    #[command(after_help = POLICY_EXAMPLES)]
    Test(TestArgs),
    /// List the policies of the cluster: order, selected pods, and whether they are enforced.
    #[command(visible_alias = "list", after_help = POLICY_EXAMPLES)]
    Ls(LsArgs),
    /// Show a policy: its rules in order, the pods that it selects, and what is not enforced.
    #[command(after_help = POLICY_EXAMPLES)]
    Show(ShowArgs),
    /// Say which pairs of pods would change if the policies of files were applied.
    #[command(name = "what-if", after_help = POLICY_EXAMPLES)]
    WhatIf(WhatIfArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// NAME, or NAMESPACE/NAME. All policies of this name are shown.
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub place: StoreChoice,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct WhatIfArgs {
    /// Files, or directories of files, of YAML or JSON documents; - is standard input. An object
    /// replaces the cluster's of the same name.
    #[arg(value_name = "FILE", required_unless_present = "delete")]
    pub files: Vec<PathBuf>,
    /// The policy KIND/NAME or KIND/NAMESPACE/NAME is deleted; may be repeated.
    #[arg(long, value_name = "POLICY")]
    pub delete: Vec<String>,
    /// The destination port: PORT (of TCP), PORT/PROTOCOL, or `icmp`; may be repeated. By default the
    /// ports to which the destination gives a name, and icmp.
    #[arg(long = "port", value_name = "PORT[/PROTOCOL]")]
    pub ports: Vec<Probe>,
    #[command(flatten)]
    pub place: StoreChoice,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct TestArgs {
    /// Files, or directories of files, of YAML or JSON documents; - is standard input.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

// === impl ExplainArgs ===

impl ExplainArgs {
    /// What is asked of the ends.
    pub fn probe(&self) -> Option<Probe> {
        let of_proto = |protocol: Protocol| Probe { protocol, port: self.port.map_or(0, |probe| probe.port) };
        self.proto.map(of_proto).or(self.port)
    }
}

/// A protocol by its name or number.
fn protocol(text: &str) -> Result<Protocol, ProbeError> {
    let probe: Result<Probe, _> = format!("{text}/1").parse();
    probe.or_else(|_| text.parse()).map(|probe| probe.protocol)
}
