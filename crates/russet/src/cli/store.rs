//! The choice of the datastore: the arguments of every verb with a store, and the command line of
//! `russet store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use russet_agent::StoreLocation;

use super::given::Variables;

/// The heading of etcd's options in the help.
const ETCD: &str = "Options for --store etcd:URL";

/// The store of a node.
#[derive(Debug, Default, Args)]
pub struct StoreChoice {
    /// The root directory of the node whose store it is.
    #[arg(long, global = true, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Print on standard error which store is used, and where that is set.
    #[arg(short = 'v', long, global = true)]
    pub verbose: bool,
    #[command(flatten)]
    pub location: LocationArgs,
}

/// The address of a datastore, and the credentials for it.
#[derive(Debug, Default, Args)]
pub struct LocationArgs {
    /// Which of these arguments, and of those around them, came from variables.
    #[command(flatten)]
    pub variables: Variables,
    /// The datastore: `embedded`, `unix:PATH` for a store that another process of this machine owns, `etcd:URL,URL` for an etcd v3 cluster, or
    /// `kubernetes:FILE` with a kubeconfig (`kubernetes:in-cluster` in a pod) for Calico's data in the Kubernetes API [default: embedded].
    #[arg(long, global = true, env = "RUSSET_STORE", value_name = "STORE")]
    pub store: Option<StoreLocation>,
    /// The CA certificates that verify etcd's certificates, in PEM; https needs it.
    #[arg(long, help_heading = ETCD, global = true, env = "RUSSET_ETCD_CA_FILE", value_name = "FILE")]
    pub etcd_ca_file: Option<PathBuf>,
    /// Russet's client certificate for etcd, in PEM.
    #[arg(long, help_heading = ETCD, global = true, env = "RUSSET_ETCD_CERT_FILE", value_name = "FILE")]
    pub etcd_cert_file: Option<PathBuf>,
    /// Its private key, in PEM.
    #[arg(long, help_heading = ETCD, global = true, env = "RUSSET_ETCD_KEY_FILE", value_name = "FILE")]
    pub etcd_key_file: Option<PathBuf>,
    /// The name in etcd's certificates, if it is not the URL's host.
    #[arg(long, help_heading = ETCD, global = true, env = "RUSSET_ETCD_SERVER_NAME", value_name = "NAME")]
    pub etcd_server_name: Option<String>,
    /// The user name for etcd.
    #[arg(long, help_heading = ETCD, global = true, env = "RUSSET_ETCD_USERNAME", value_name = "NAME")]
    pub etcd_username: Option<String>,
    /// The file with the user's password; one line.
    #[arg(long, help_heading = ETCD, global = true, env = "RUSSET_ETCD_PASSWORD_FILE", value_name = "FILE")]
    pub etcd_password_file: Option<PathBuf>,
    /// Send user and password to etcd on other machines even over plain http.
    #[arg(long, help_heading = ETCD, global = true, env = "RUSSET_ALLOW_PLAINTEXT_CREDENTIALS")]
    pub allow_plaintext_credentials: bool,
}

#[derive(Debug, Args)]
pub struct StoreArgs {
    #[command(subcommand)]
    pub verb: StoreVerb,
}

#[derive(Debug, Subcommand)]
pub enum StoreVerb {
    /// Open the embedded store and serve it at its socket until stopped.
    Serve {
        /// The root directory of the node whose store it is.
        #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
        root: PathBuf,
    },
    /// Print records as JSON.
    Dump {
        #[command(flatten)]
        place: StoreChoice,
        /// Only records whose keys have this prefix.
        #[arg(long, default_value = "/", value_name = "PREFIX")]
        prefix: String,
    },
    /// Write a record, whether it exists or not. Nothing checks the value.
    Put {
        #[command(flatten)]
        place: StoreChoice,
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
}
