//! The command line of `russet netnamespace`. The actions are those of `oc adm pod-network`.

use clap::{Args, Subcommand};
use russet_model::openshift::Namespace;

use super::OutputArgs;
use super::store::StoreChoice;

const EXAMPLES: &str = "Examples:
  russet netnamespace list
  russet netnamespace create blue                 a network ID of its own: only its own pods reach each other
  russet netnamespace join blue red               blue gets the network ID of red: they reach each other
  russet netnamespace global monitoring           reaches all pods, and all pods reach it
  russet netnamespace isolate blue                on its own again
  russet netnamespace show blue -o yaml
  russet netnamespace delete blue

The agent of each node applies the change without a restart of pods, to all pods of a namespace on the node at the same time.
An isolation is complete when the nodes of both pods have applied it. `default` stays global. With a store in the Kubernetes API the change is
requested by an annotation, and the command waits up to a minute until OpenShift's master or `russet controller --openshift` has made it.
docs/openshift-tenants.md says what a network ID does.

Exit codes: 0 the state is as requested; 1 failed, and nothing was changed, or in the Kubernetes API not yet; 2 usage.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct NetNamespaceArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    #[command(subcommand)]
    pub verb: NetNamespaceVerb,
}

#[derive(Debug, Subcommand)]
pub enum NetNamespaceVerb {
    /// Show all namespaces that have a network ID.
    List {
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show one namespace, and the namespaces that share its network ID.
    Show(One),
    /// Give a namespace a network ID of its own; `default` gets 0, which is global.
    Create(One),
    /// Remove a namespace's network ID: all traffic of its pods is dropped from then on.
    Delete(One),
    /// Allow traffic between a namespace and all others.
    Global(One),
    /// Give a namespace the network ID of another.
    Join {
        /// The namespace to change.
        #[arg(value_name = "NAMESPACE")]
        namespace: Namespace,
        /// The namespace whose network ID it gets.
        #[arg(value_name = "OTHER")]
        other: Namespace,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give a namespace a network ID of its own again, unless it has one.
    Isolate(One),
}

#[derive(Debug, Args)]
pub struct One {
    /// The namespace.
    #[arg(value_name = "NAMESPACE")]
    pub namespace: Namespace,
    #[command(flatten)]
    pub output: OutputArgs,
}
