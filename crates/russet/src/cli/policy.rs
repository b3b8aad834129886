//! The command lines of `russet explain` and `russet policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use russet_verdict::explain::{Peer, Probe, ProbeError};
use russet_verdict::ir::Protocol;

use super::OutputArgs;
use super::span::Span;
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
  russet policy recommend -n shop --flows flows.json         policies that allow what was seen

Exit codes: 0 good; 3 a policy is not enforced as it is written, an expectation does not hold, a pair would change, or a recommendation would deny what was seen, as far as that can be judged; 1 failed; 2 usage.
docs/policy.md has the format of the tables.";

pub const RECOMMEND_EXAMPLES: &str = "Examples:
  russet flows -f --last 0 -o json >> flows.json             collect on each node, for a day or more
  russet policy recommend -n shop --flows flows.json         NetworkPolicies for the pods of a namespace, as YAML
  russet policy recommend -n shop --flows flows.json | kubectl apply --dry-run=server -f -
  russet policy recommend -A --direction ingress --flows -   of all namespaces, from standard input
  russet policy recommend -n shop --flows flows.json --window 7d
  russet policy recommend -n shop                            from what this node's agent has in memory

Nothing is applied. Exit codes: 0 the policies deny nothing that was seen; 3 they would, or a flow cannot be judged because a pod is gone, and they are not printed without --despite-denied; 1 failed, nothing was seen, or no pod gets a policy; 2 usage. docs/policy.md.";

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
    /// Write NetworkPolicies that allow the flows that were seen, and nothing else.
    #[command(after_help = RECOMMEND_EXAMPLES)]
    Recommend(RecommendArgs),
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
pub struct RecommendArgs {
    /// The namespace whose pods get policies.
    #[arg(short, long, alias = "ns", value_name = "NAMESPACE", required_unless_present = "all")]
    pub namespace: Option<String>,
    /// The pods of all namespaces get policies.
    #[arg(short = 'A', long = "all-namespaces", conflicts_with = "namespace")]
    pub all: bool,
    /// What the policies isolate.
    #[arg(long, value_name = "DIRECTION", default_value = "both")]
    pub direction: IsolatedArg,
    /// Flows that `russet flows -f -o json` has printed, on all nodes; - is standard input. Without it
    /// those that the agent of this node has in memory.
    #[arg(long, value_name = "FILE")]
    pub flows: Option<PathBuf>,
    /// Only flows that were seen in this time before now, such as 48h or 7d; all by default.
    #[arg(long, value_name = "TIME")]
    pub window: Option<Span>,
    /// Pods, namespaces and policies of this file, or of the files of this directory, and not those
    /// of the cluster of this node; - is standard input, if --flows is not.
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Judge as if the policy KIND/NAME or KIND/NAMESPACE/NAME was deleted, such as one that was there
    /// to have the pods observed; may be repeated.
    #[arg(long, value_name = "POLICY")]
    pub delete: Vec<String>,
    /// Print the policies although they would deny flows that were seen, or some cannot be judged.
    #[arg(long = "despite-denied")]
    pub despite: bool,
    #[command(flatten)]
    pub place: StoreChoice,
    /// Print documents to apply, or a report for programs.
    #[arg(short = 'o', long = "output", default_value = "yaml", value_name = "FORMAT")]
    pub format: RecommendFormat,
}

/// What recommended policies isolate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsolatedArg {
    /// What reaches the pods.
    Ingress,
    /// What the pods begin.
    Egress,
    Both,
}

/// The form of a recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecommendFormat {
    /// Documents with comments.
    Yaml,
    /// The documents, the comments, and what would be denied.
    Json,
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
