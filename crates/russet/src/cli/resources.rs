//! The command lines of `russet get`, `apply` and `delete`. Verbs and flags are calicoctl's, since
//! runbooks use them.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::store::StoreChoice;
use crate::resources::Kind;

pub const GET_EXAMPLES: &str = "Examples:
  russet get ippools -o wide
  russet get node worker-1 -o yaml > worker-1.yaml
  russet get pods -A                       pods of the whole cluster with node and addresses, as the blocks of addresses name them
  russet get wep --all-namespaces
  russet get pools -o yaml --export > pools.yaml
  russet get nodes -o name

Kinds: ippools, ipreservations, nodes, profiles, workloadendpoints; of network policy: globalnetworkpolicies,
networkpolicies, kubernetesnetworkpolicies (netpol), clusternetworkpolicies (cnp), tiers, globalnetworksets,
networksets, hostendpoints, felixconfigurations, stagedglobalnetworkpolicies, stagednetworkpolicies,
stagedkubernetesnetworkpolicies.";

pub const APPLY_EXAMPLES: &str = "Examples:
  russet apply -f pool.yaml
  russet apply -f pools.yaml -f nodes.json
  kustomize build | russet apply -f -
  russet apply -f pool.yaml --dry-run
  calicoctl get ippools -o yaml | russet apply -f - --skip-unknown-kinds

A file may hold several documents and lists. All of it is checked before anything is written.
With metadata.resourceVersion, a resource is changed only if it is still at that version.";

pub const DELETE_EXAMPLES: &str = "Examples:
  russet delete ippool old-pool
  russet delete -f reservations.yaml
  russet delete node worker-7 --release-addresses
  russet delete node worker-7 --dry-run

A pool's blocks are released first; addresses in use stay with their pods.";

#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    /// The kind: ippool, ipreservation, node, profile, workloadendpoint, or one of network policy; or pods.
    #[arg(value_name = "KIND")]
    pub kind: Listed,
    /// The names; without any, all resources of the kind.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// In all namespaces.
    #[arg(short = 'A', long, visible_alias = "allnamespaces", conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Leave out what belongs to this cluster only: versions, UIDs, times, status. For files that
    /// are applied elsewhere.
    #[arg(long)]
    pub export: bool,
    #[arg(short = 'o', long = "output", default_value = "table", value_name = "FORMAT")]
    pub format: ResourceFormat,
}

#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    /// A file of resources, YAML or JSON; `-` is standard input.
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The namespace of resources that name none.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Check everything, print what would happen, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Leave out resources of kinds that Russet does not have, with a line on standard error for each, instead of refusing the files.
    #[arg(long)]
    pub skip_unknown_kinds: bool,
    #[arg(short = 'o', long = "output", default_value = "text", value_name = "FORMAT")]
    pub format: DoneFormat,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    /// The kind: ippool, ipreservation, node, profile, workloadendpoint, or one of network policy.
    #[arg(value_name = "KIND", required_unless_present = "files")]
    pub kind: Option<Kind>,
    /// The names.
    #[arg(value_name = "NAME", required_unless_present = "files")]
    pub names: Vec<String>,
    /// Delete the resources of this file; `-` is standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE", conflicts_with_all = ["kind", "names"])]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Treat a missing resource as deleted.
    #[arg(short = 's', long, visible_alias = "ignore-not-found")]
    pub skip_not_exists: bool,
    /// The node is gone for good: release the addresses of its pods, and delete their endpoints. If
    /// one of its pods still lives, another pod may get the same address.
    #[arg(long)]
    pub release_addresses: bool,
    /// Print what would be deleted or refused, and delete nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[arg(short = 'o', long = "output", default_value = "text", value_name = "FORMAT")]
    pub format: DoneFormat,
}

/// What `get` lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    Kind(Kind),
    /// Pods with addresses from pools, on all nodes. They have no resource.
    Pods,
}

/// The namespace of namespaced kinds.
#[derive(Debug, Args)]
pub struct NamespaceArgs {
    /// The namespace of kinds that have one [default: default].
    #[arg(short = 'n', long, value_name = "NAME")]
    pub namespace: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResourceFormat {
    /// A table for people.
    #[value(alias = "ps")]
    Table,
    /// The same with more columns.
    Wide,
    /// What `apply` reads.
    Yaml,
    /// The same as JSON.
    Json,
    /// The kind and the name alone, one resource a line: `ippool/blue`.
    Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoneFormat {
    /// A sentence for each resource: `IPPool/blue created`.
    Text,
    /// The kind and the name alone, one resource a line: `ippool/blue`.
    Name,
}

// === impl Listed ===

impl FromStr for Listed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_lowercase().as_str() {
            "pod" | "pods" | "po" => Ok(Self::Pods),
            _ => text.parse().map(Self::Kind),
        }
    }
}

// === impl NamespaceArgs ===

impl NamespaceArgs {
    /// The namespace that was named, or Calico's default.
    pub fn or_default(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}
