//! The command line of `russet netnamespace`. The actions are those of `oc adm pod-network`.

use clap::{Args, Subcommand};
use russet_model::openshift::Namespace;

use super::OutputArgs;
use super::store::StoreChoice;

const EXAMPLES: &str = "Examples:
  russet netnamespace list
  russet netnamespace create blue                 a network ID of its own: nobody else reaches its pods
  russet netnamespace join blue red               blue gets the network ID of red: they reach each other
  russet netnamespace global monitoring           reaches everybody, and everybody reaches it
  russet netnamespace isolate blue                on its own again
  russet netnamespace show blue -o yaml
  russet netnamespace delete blue

Every node's agent follows the store: pods that run get the new network ID without a restart, all pods of a namespace on a node at one moment.
An isolation holds once the nodes of both pods have followed. `default` is global and stays so. docs/openshift-tenants.md says what a network ID does.

Exit codes: 0 it is so; 1 it failed, and nothing was changed; 2 usage.";

/// `russet netnamespace`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct NetNamespaceArgs {
    /// The store.
    #[command(flatten)]
    pub place: StoreChoice,
    /// What to do.
    #[command(subcommand)]
    pub verb: NetNamespaceVerb,
}

/// The verbs of `russet netnamespace`.
#[derive(Debug, Subcommand)]
pub enum NetNamespaceVerb {
    /// Show all namespaces that have a network ID.
    List {
        /// Output.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show one, and who shares its network ID.
    Show(One),
    /// Give a namespace a network ID of its own; `default` gets 0, which is global.
    Create(One),
    /// Take a namespace's network ID back: nothing of its pods passes any more.
    Delete(One),
    /// Let a namespace talk to all, and all to it.
    Global(One),
    /// Give a namespace the network ID of another.
    Join {
        /// Which.
        #[arg(value_name = "NAMESPACE")]
        namespace: Namespace,
        /// Whose network ID it gets.
        #[arg(value_name = "OTHER")]
        other: Namespace,
        /// Output.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give a namespace a network ID of its own again, unless it has one.
    Isolate(One),
}

/// One namespace.
#[derive(Debug, Args)]
pub struct One {
    /// Which.
    #[arg(value_name = "NAMESPACE")]
    pub namespace: Namespace,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}
