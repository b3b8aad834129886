//! The command line: every verb, flag and help text.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use russet_addr::{IfName, NodeName};
use russet_agent::{
    Annotate, BigTcpMode, Encapsulation, FastPathMode, HealthAddress, IpamMode, PolicyMode, StoreLocation,
};

pub mod capture;
pub mod cni;
pub mod controller;
pub mod cri;
pub mod doctor;
pub mod drift;
pub mod flows;
pub mod generated;
pub mod given;
pub mod install;
pub mod ipam;
pub mod journal;
pub mod kube;
pub mod map;
pub mod migrate;
pub mod netavark;
pub mod netnamespace;
pub mod openshift;
pub mod owned;
#[cfg(test)]
mod pages;
pub mod peers;
pub mod pods;
pub mod policy;
pub mod repair;
pub mod report;
pub mod resources;
pub mod sandbox;
pub mod span;
pub mod status;
pub mod store;
pub mod top;
pub mod trace;
pub mod ui;
pub mod unknown;

/// Container networking for Linux.
///
/// Gives pods addresses from Calico-format blocks, wires them to their node and carries their traffic between nodes.
#[derive(Debug, Parser)]
#[command(name = "russet", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

const EXAMPLES: &str = "Examples:
  russet demo                       three nodes, six pods, a matrix of pings; leaves nothing behind
  russet demo --nodes 8 --pods 4 --mode routed
  russet agent --node-name worker-1 --interface eth0
  russet ipam show --show-blocks
  russet get ippools -o yaml
  russet version -o json

Exit codes: 0 success; 1 failed; 2 usage; 3 success, and problems were found. CNI error codes: docs/errors.md.";

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the node daemon: serves CNI, keeps routes and tunnels as the datastore wants them.
    #[command(after_help = AGENT_EXAMPLES)]
    Agent(Box<AgentArgs>),
    /// Run the controller of a Kubernetes cluster: frees what deleted nodes held, and removes the taint of nodes that are ready.
    #[command(after_help = controller::EXAMPLES)]
    Controller(Box<controller::ControllerArgs>),
    /// Resume the collection of garbage after `russet controller` has stopped it.
    #[command(after_help = controller::GC_EXAMPLES)]
    Gc(controller::GcArgs),
    /// Run flannel's node daemon: its flags, its data, its files (`russet flanneld -h`); also when called as `flanneld`.
    #[command(disable_help_flag = true)]
    Flanneld(FlanneldArgs),
    /// Show pods on several nodes of this machine reaching each other.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Forward connections between the network of the demo's nodes and the host's network.
    #[command(name = "demo-forward", hide = true)]
    DemoForward(ForwardArgs),
    /// Own the embedded store and serve it to other processes of this machine.
    Store(store::StoreArgs),
    /// Show, check and repair addresses: pools, blocks, handles, affinities.
    Ipam(ipam::IpamArgs),
    /// Show and change OpenShift's tenants: which namespaces' pods reach each other.
    #[command(name = "netnamespace")]
    NetNamespace(netnamespace::NetNamespaceArgs),
    /// Show what the node's agent has attached, and which operations it started and did not finish.
    Journal(journal::JournalArgs),
    /// Look at a Kubernetes cluster, and at this node of it: `check`.
    Kube(kube::KubeArgs),
    /// Migrate the data of other programs: Calico v1, flannel with etcd v2.
    Migrate(migrate::MigrateArgs),
    /// Install this version of Russet on the node: executables, systemd units, network configuration.
    Install(install::InstallArgs),
    /// Show resources: pools, reservations, nodes, profiles, workload endpoints.
    #[command(after_help = resources::GET_EXAMPLES)]
    Get(resources::GetArgs),
    /// Create or change the resources that files describe.
    #[command(after_help = resources::APPLY_EXAMPLES)]
    Apply(resources::ApplyArgs),
    /// Delete resources.
    #[command(after_help = resources::DELETE_EXAMPLES)]
    Delete(resources::DeleteArgs),
    /// Say why a pod or address reaches another or does not: policies, and this node's kernel.
    #[command(after_help = policy::EXPLAIN_EXAMPLES)]
    Explain(Box<policy::ExplainArgs>),
    /// Show network policies, what a change of them would do, and test them against tables.
    Policy(policy::PolicyArgs),
    /// Show which flows policies denied on this node, and the policy that decided.
    #[command(after_help = flows::EXAMPLES)]
    Flows(flows::FlowsArgs),
    /// Show what is wrong on this node: kernel, settings, networks, datastore, agent, and what to do about it.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(Box<doctor::DoctorArgs>),
    /// Show the state of this node: problems first, then its datastore, routes, and which other nodes answer.
    #[command(after_help = status::EXAMPLES)]
    Status(status::StatusArgs),
    /// Write the state of this node into one archive, without secrets, for a reader elsewhere.
    #[command(after_help = report::EXAMPLES)]
    Report(report::ReportArgs),
    /// Write packets of a pod, of the tunnel to a node, or of an interface into a file for Wireshark.
    #[command(after_help = capture::EXAMPLES)]
    Capture(capture::CaptureArgs),
    /// Show which chains of nf_tables packets between two pods or addresses pass on this node, and where they are dropped.
    #[command(after_help = trace::EXAMPLES)]
    Trace(Box<trace::TraceArgs>),
    /// Show the cluster: nodes, their address blocks, and which of them reach each other; as a table, a picture or a graph.
    #[command(after_help = map::EXAMPLES)]
    Map(map::MapArgs),
    /// Show this node's agent in a browser: topology, address blocks, other nodes, flows, operations, drift.
    #[command(after_help = ui::EXAMPLES)]
    Ui(ui::UiArgs),
    /// Show this node live in the terminal: problems, other nodes, address blocks, flows, pods, operations, drift.
    #[command(after_help = top::EXAMPLES)]
    Top(top::TopArgs),
    /// Show what differs on this node from the desired state, and what Russet repaired after
    /// another program had changed it.
    #[command(after_help = drift::EXAMPLES)]
    Drift(drift::DriftArgs),
    /// List every kernel object and every file of Russet on this node.
    Owned(owned::OwnedArgs),
    /// Remove everything of Russet from this node.
    Uninstall(owned::UninstallArgs),
    /// Run a network's whole chain of plugins, as a container runtime does: `add`, `check`, `del`, `gc`, `status`, `version`.
    #[command(after_help = cni::EXAMPLES)]
    Cni(cni::CniArgs),
    /// Be the driver `russet` of podman's networks, by netavark's plugin API: `create`, `setup`, `teardown`, `info`.
    #[command(after_help = netavark::EXAMPLES)]
    Netavark(netavark::NetavarkArgs),
    /// Serve kubelet and crictl: pods' sandboxes over the container runtime interface (CRI v1).
    #[command(after_help = cri::EXAMPLES)]
    Cri(cri::CriArgs),
    /// Run pods on this host without Kubernetes, from Kubernetes' manifests: `run`, `exec`, `ls`, `inspect`, `stop`, `rm`.
    #[command(after_help = sandbox::EXAMPLES)]
    Sandbox(sandbox::SandboxArgs),
    /// Execute one CNI request without an agent. The plugin calls this by itself when no agent
    /// runs.
    #[command(name = "cni-direct")]
    CniDirect(NodeArgs),
    /// Print the script with which a shell completes verbs and options: `bash`, `zsh` or `fish`.
    #[command(after_help = generated::COMPLETIONS_EXAMPLES)]
    Completions(generated::CompletionsArgs),
    /// Write the manual pages of all verbs into a directory. Packages contain them.
    #[command(hide = true)]
    Man(generated::ManArgs),
    /// Print the version, the versions of CNI and the stores that it supports, and the running agent's version.
    Version(VersionArgs),
}

const AGENT_EXAMPLES: &str = "Examples:
  russet agent                                         one machine, everything by default
  russet agent --interface eth1 --encapsulation none   plain routes over eth1
  russet agent --store etcd:http://10.0.0.1:2379,http://10.0.0.2:2379
  RUSSET_LOG_LEVEL=debug russet agent

Settings come from flags, then RUSSET_* variables, then /etc/russet/russet.toml, then defaults. The agent records them in
/run/russet/settings.toml, for plugins without an agent and for other verbs on this node.
Health: GET /healthz, /readyz?verbose and /metrics on --health-address.";

const DEMO_EXAMPLES: &str = "Examples:
  russet demo                        as root, or as a user where user namespaces are allowed
  russet demo --mode routed --nodes 5 --pods 3
  russet demo --fabric flannel --backend udp
  russet demo --etcd spawn           data in an etcd of its own (needs the program `etcd`)
  russet demo --etcd http://127.0.0.1:2379
  russet demo --kubernetes           the manifest and a Deployment in a Kubernetes cluster (needs its server programs)
  russet demo --policy               who reaches whom before and after network policies
  russet demo --break                nine faults on a node under pings: what is noticed, by whom it was done, what is lost
  russet demo --keep                 leaves the nodes running and prints how to enter a pod
  russet demo --clean                removes what --keep or a killed demo left

Exit codes: 0 good; 3 packets do not pass as the policies say; 1 failed; 2 usage.";

/// The directory of a node's files, its name, and its network settings.
#[derive(Debug, Args)]
pub struct NodeArgs {
    #[command(flatten)]
    pub variables: given::Variables,
    /// Put every file and socket below this directory.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// This node's name; by default the host name in lower case.
    #[arg(long, env = "RUSSET_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<NodeName>,
    #[command(flatten)]
    pub location: store::LocationArgs,
    /// The interface whose addresses other nodes use; by default the one with the default route.
    #[arg(long, env = "RUSSET_INTERFACE", value_name = "NAME")]
    pub interface: Option<IfName>,
    /// IPv4 pool of a fresh store, or `none` [default: 10.244.0.0/16].
    #[arg(long, env = "RUSSET_IPV4_POOL", value_name = "CIDR|none", value_parser = pool)]
    pub ipv4_pool: Option<PoolArg>,
    /// IPv6 pool of a fresh store, or `none` [default: fd72:7573:7365::/48].
    #[arg(long, env = "RUSSET_IPV6_POOL", value_name = "CIDR|none", value_parser = pool)]
    pub ipv6_pool: Option<PoolArg>,
    /// How a fresh store's pools encapsulate traffic between nodes: `vxlan`, `cross-subnet` or
    /// `none` [default: vxlan].
    #[arg(long, env = "RUSSET_ENCAPSULATION", value_name = "HOW")]
    pub encapsulation: Option<Encapsulation>,
    /// Run in place of Calico on this node: pools and settings are the cluster's, routes are marked
    /// as Felix marks its own, and a running Felix or BIRD is left alone. Network policies are not
    /// enforced yet.
    #[arg(long, env = "RUSSET_CALICO")]
    pub calico: bool,
    /// Where pods' addresses come from: `pools` (blocks of pools in the store) or, with a store in the
    /// Kubernetes API, `node` (the Node's own podCIDRs; no resource definitions are needed, and
    /// --ipv4-pool and --ipv6-pool name the cluster's ranges) [default: pools].
    #[arg(long, env = "RUSSET_IPAM", value_name = "FROM")]
    pub ipam: Option<IpamMode>,
    /// With a store in the Kubernetes API: whether pods' addresses are written into their annotations,
    /// where programs of Calico read them: `auto` (while the cluster has such programs), `always` or
    /// `never` [default: auto].
    #[arg(long, env = "RUSSET_ANNOTATE", value_name = "WHEN")]
    pub annotate: Option<Annotate>,
    /// Whether the cluster's network policies are enforced on this node's pods, `on` or `off`. Not
    /// while Felix enforces them [default: on].
    #[arg(long, env = "RUSSET_POLICIES", value_name = "WHETHER")]
    pub policies: Option<PolicyMode>,
    /// Whether packets of known flows between pods pass by BPF programs instead of the kernel's rules and
    /// routes, which decide about each flow's first packets: `off`, `auto` (where the kernel can) or
    /// `require` (the node is not ready without). Never in Calico's place [default: off].
    #[arg(long, env = "RUSSET_FAST_PATH", value_name = "WHEN")]
    pub fast_path: Option<FastPathMode>,
    /// Whether TCP of pods passes through the kernel in packets of more than 64 KiB: `off`, or `auto` (where pods are
    /// reached by plain routes, and kernel and uplink can). Never in Calico's place [default: off].
    #[arg(long, env = "RUSSET_BIG_TCP", value_name = "WHEN")]
    pub big_tcp: Option<BigTcpMode>,
    /// In Calico's place, with a store in the Kubernetes API: keep a kubeconfig for Calico's plugins
    /// here, as /etc/cni/net.d/calico-kubeconfig [default: none].
    #[arg(long, env = "RUSSET_CALICO_KUBECONFIG", value_name = "FILE")]
    pub calico_kubeconfig: Option<PathBuf>,
    /// MTU of pods; by default the underlay's less the encapsulation's overhead.
    #[arg(long, env = "RUSSET_MTU", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub mtu: Option<u32>,
    /// How much to log: error, warn, info, debug, trace, or a filter such as info,russet_agent=debug [default: info].
    #[arg(long, env = "RUSSET_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Log as text or as JSON [default: text].
    #[arg(long, env = "RUSSET_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

#[derive(Debug, Args)]
pub struct AgentArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Where /healthz, /readyz and /metrics are served: IP:PORT or unix:PATH [default: 127.0.0.1:9471]. Root also has /run/russet/health.sock.
    #[arg(long, env = "RUSSET_HEALTH_ADDRESS", value_name = "ADDRESS")]
    pub health_address: Option<HealthAddress>,
    /// Also serve the page of `russet ui` at this address of this machine, behind a token that /run/russet/ui-url has, as 127.0.0.1:9474 for
    /// `kubectl port-forward` [default: none].
    #[arg(long, env = "RUSSET_UI_ADDRESS", value_name = "IP:PORT")]
    pub ui_address: Option<ui::UiAddress>,
    /// DEL removes the interface before it answers (about 20 ms), instead of leaving that to the agent.
    #[arg(long, env = "RUSSET_SYNC_DELETE")]
    pub sync_delete: bool,
    /// With a store in the Kubernetes API: copy this conflist to the runtime, under its own name, once
    /// pods can start [default: none].
    #[arg(long, env = "RUSSET_CONFLIST", value_name = "FILE")]
    pub conflist: Option<PathBuf>,
    #[command(flatten)]
    pub leaks: repair::LeakArgs,
    #[command(flatten)]
    pub peers: peers::PeerArgs,
    #[command(flatten)]
    pub openshift: openshift::OpenshiftArgs,
}

/// `russet flanneld`: arguments in flannel's own syntax. `main` handles them before clap parses
/// anything.
#[derive(Debug, Args)]
pub struct FlanneldArgs {
    /// flannel's flags, or `docker-opts` and its flags.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAG")]
    pub words: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Number of nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub nodes: u8,
    /// Number of pods on each node.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub pods: u8,
    /// How nodes forward pods' packets, with the agent.
    #[arg(long, default_value = "vxlan", value_name = "MODE")]
    pub mode: DemoMode,
    /// The daemon and plugin that make the network: Russet's agent, or Russet's implementation of
    /// flannel.
    #[arg(long, default_value = "russet", value_name = "FABRIC")]
    pub fabric: DemoFabric,
    /// flannel's backend [default: vxlan].
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<FlannelBackend>,
    /// Keep the nodes' data in etcd: `spawn` starts one for the demo, a URL names one that contains
    /// no Calico data. By default the nodes share an embedded store.
    #[arg(long, value_name = "URL|spawn", conflicts_with = "clean")]
    pub etcd: Option<DemoEtcd>,
    /// In a Kubernetes cluster: a real etcd, API server, controller manager and scheduler; packaging/kubernetes/russet.yaml
    /// applied to them; and pods of a Deployment where the scheduler has bound them. The demo itself is each node's kubelet:
    /// it starts the agents and controllers of the manifest as processes with the tokens of their pods, and attaches pods
    /// through CNI. No kubelet, no container runtime and no image are in it; `cargo xtask e2e` has them.
    #[arg(long, conflicts_with_all = ["etcd", "fabric", "backend", "policy", "clean"])]
    pub kubernetes: bool,
    /// The directory of kube-apiserver, kube-controller-manager and kube-scheduler, 1.30 or newer, and of etcd unless PATH
    /// has it [default: those of PATH, else those that `cargo xtask test` has built in ~/.cache/russet/kubernetes].
    #[arg(long, value_name = "DIR", requires = "kubernetes")]
    pub kubernetes_programs: Option<PathBuf>,
    /// Show what network policies do: who reaches whom before there is one, after a deny-all, and after
    /// an allow, by pings and by the policies themselves. Exits with 3 if these differ.
    #[arg(long, conflicts_with = "clean")]
    pub policy: bool,
    /// Break the first node in nine ways, as other programs, a crash or a firewall would, while a pod sends pings to another
    /// node, and show what the agent noticed and restored, which process it names, and how many pings were lost. Exits with 3
    /// if a fault was not noticed, or not repaired.
    #[arg(long = "break", conflicts_with_all = ["clean", "kubernetes", "policy"])]
    pub break_nodes: bool,
    /// Leave everything running, and print how to enter a pod.
    #[arg(long, conflicts_with = "clean")]
    pub keep: bool,
    /// Remove what an earlier demo left, and do nothing else.
    #[arg(long)]
    pub clean: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// The namespace to listen in.
    #[arg(long)]
    pub netns: PathBuf,
    /// Where to listen there.
    #[arg(long)]
    pub listen: SocketAddr,
    /// The host and port to connect to from this process's namespace.
    #[arg(long)]
    pub to: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DemoEtcd {
    /// An etcd that the demo starts and stops.
    Spawn,
    /// A running etcd: its host and port.
    At(String),
}

/// How the demo's nodes forward pods' packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DemoMode {
    /// In VXLAN.
    Vxlan,
    /// By plain routes.
    Routed,
}

/// The implementation of the demo's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DemoFabric {
    /// `russet agent` and the plugin `russet`.
    Russet,
    /// `russet flanneld` and the plugin `flannel`.
    Flannel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlannelBackend {
    /// In VXLAN.
    Vxlan,
    /// By plain routes.
    HostGw,
    /// In UDP, through the daemon; IPv4 only.
    Udp,
}

/// How to print data.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// Print as a table for people, or as JSON or YAML for programs.
    #[arg(short = 'o', long = "output", default_value = "table", value_name = "FORMAT")]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct VersionArgs {
    /// The root directory of the node whose agent is asked for its version.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For people with room: more columns where there are more.
    Wide,
    /// For programs.
    Json,
    /// The same as YAML.
    Yaml,
}

/// A log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line an event.
    Text,
    /// One JSON object an event.
    Json,
}

/// A pool, or an explicit `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolArg(pub Option<IpNet>);

fn pool(text: &str) -> Result<PoolArg, String> {
    if text == "none" {
        return Ok(PoolArg(None));
    }
    let net: IpNet = text
        .parse()
        .map_err(|_| "an address prefix such as 10.244.0.0/16, or `none`, is wanted".to_owned())?;
    if net.trunc() == net {
        Ok(PoolArg(Some(net)))
    } else {
        Err(format!("bits are set behind the prefix; did you mean {}?", net.trunc()))
    }
}

impl std::str::FromStr for DemoEtcd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "spawn" {
            return Ok(Self::Spawn);
        }
        let wanted = || format!("{text:?} is neither `spawn` nor one URL such as http://127.0.0.1:2379");
        let location: StoreLocation = format!("etcd:{text}").parse().map_err(|_| wanted())?;
        match location {
            StoreLocation::Etcd(settings) => match &settings.endpoints[..] {
                [endpoint] => {
                    endpoint.strip_prefix("http://").map(|at| Self::At(at.to_owned())).ok_or_else(wanted)
                }
                _ => Err(wanted()),
            },
            _ => Err(wanted()),
        }
    }
}

impl std::str::FromStr for PoolArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        pool(text)
    }
}

/// Reads the process's command line.
pub fn parse() -> Result<Cli, clap::Error> {
    Cli::try_parse()
}

/// What [`parse`] makes of these words, the first of which is the executable.
pub fn parse_words(words: Vec<std::ffi::OsString>) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(words)
}

/// What [`parse`] makes of the single word `cni-direct`.
pub fn cni_direct() -> Result<Cli, clap::Error> {
    Ok(Cli { verb: Verb::CniDirect(NodeArgs::without_flags()?) })
}

// === impl NodeArgs ===

impl NodeArgs {
    /// The arguments of `russet cni-direct`, which runtimes start without flags: only environment
    /// and defaults.
    pub fn without_flags() -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("russet").no_binary_name(true));
        let matches = command.try_get_matches_from(std::iter::empty::<&str>())?;
        Self::from_arg_matches(&matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// Every subcommand with its path.
    fn commands() -> Vec<(String, clap::Command)> {
        let mut found = Vec::new();
        let mut command = Cli::command();
        command.build();
        let mut rest = vec![(command.get_name().to_owned(), command)];
        while let Some((path, command)) = rest.pop() {
            rest.extend(
                command.get_subcommands().map(|sub| (format!("{path} {}", sub.get_name()), sub.clone())),
            );
            found.push((path, command));
        }
        found
    }

    #[test]
    fn the_same_option_has_the_same_name_everywhere() {
        // Each with the name that all others have.
        let others = [
            ("node", "node-name"),
            ("conf-dir", "cni-conf-dir"),
            ("cache-dir", "cni-cache-dir"),
            ("plugin-path", "cni-bin-dir"),
        ];
        let commands = commands();
        assert!(commands.iter().any(|(path, _)| path == "russet ipam why"), "nested ones, too");
        for (path, command) in &commands {
            for long in command.get_arguments().filter_map(clap::Arg::get_long) {
                let usual = others.iter().find(|(other, _)| *other == long);
                assert!(usual.is_none(), "{path} --{long} is --{} elsewhere", usual.unwrap().1);
            }
        }
        let variables = |long: &str| -> std::collections::BTreeSet<String> {
            let all = commands.iter().flat_map(|(_, command)| command.get_arguments());
            let of_name = all.filter(|argument| argument.get_long() == Some(long));
            of_name.filter_map(|argument| Some(argument.get_env()?.to_str()?.to_owned())).collect()
        };
        for (long, variable) in
            [("node-name", "RUSSET_NODE_NAME"), ("store", "RUSSET_STORE"), ("root", "RUSSET_ROOT")]
        {
            assert_eq!(variables(long), [variable.to_owned()].into(), "--{long}");
        }
    }

    #[test]
    fn options_of_etcd_have_one_heading() {
        let mut seen = 0;
        for (path, command) in commands() {
            for argument in
                command.get_arguments().filter(|argument| argument.get_id().as_str().starts_with("etcd_"))
            {
                let heading = argument.get_help_heading();
                assert_eq!(heading, Some("Options for --store etcd:URL"), "{path} {}", argument.get_id());
                seen += 1;
            }
        }
        assert!(seen > 6, "{seen}");
    }

    #[test]
    fn a_pool_with_host_bits_names_the_prefix_that_was_meant() {
        let error = pool("10.244.7.0/16").unwrap_err();
        assert!(error.contains("10.244.0.0/16"), "{error}");
    }
}
