//! The command line and the environment, in Go's `flag` syntax (flannel.md sections 1.1 to 1.3):
//! every flag of v0.10.0 and of today's flanneld, and ours. `russet flanneld` passes its arguments
//! on unchanged.

mod table;
mod value;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use russet_http::Secret;
use russet_overlay::fast_path::FastPathMode;

pub use table::{FLAGS, Flag, Kind, Origin};

/// The parsed options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `etcd-endpoints`, as given.
    pub etcd_endpoints: String,
    /// `etcd-prefix`, as given.
    pub etcd_prefix: String,
    /// `etcd-keyfile`.
    pub etcd_keyfile: String,
    /// `etcd-certfile`.
    pub etcd_certfile: String,
    /// `etcd-cafile`.
    pub etcd_cafile: String,
    /// `etcd-username`.
    pub etcd_username: String,
    /// `etcd-password`.
    pub etcd_password: Secret,
    /// `etcd-password-file`; empty for none.
    pub etcd_password_file: PathBuf,
    /// `allow-plaintext-credentials`.
    pub allow_plaintext_credentials: bool,
    /// `iface`, in the order given.
    pub iface: Vec<String>,
    /// `iface-regex`, in the order given.
    pub iface_regex: Vec<String>,
    /// `iface-can-reach`.
    pub iface_can_reach: String,
    /// `subnet-file`.
    pub subnet_file: PathBuf,
    /// `public-ip`.
    pub public_ip: String,
    /// `public-ipv6`.
    pub public_ipv6: String,
    /// `subnet-lease-renew-margin`, minutes; not yet checked.
    pub renew_margin_min: i64,
    /// `ip-masq`.
    pub ip_masq: bool,
    /// Whether `ip-masq` was given, with either value.
    pub ip_masq_given: bool,
    /// `ip-masq-fully-random-disable`.
    pub fully_random_disable: bool,
    /// `iptables-resync`, seconds.
    pub resync_s: i64,
    /// `iptables-forward-rules`.
    pub forward_rules: bool,
    /// `ip-blackhole-route`.
    pub blackhole_route: bool,
    /// `kube-subnet-mgr`.
    pub kube_subnet_mgr: bool,
    /// `kube-api-url`.
    pub kube_api_url: String,
    /// `kubeconfig-file`.
    pub kubeconfig_file: String,
    /// `kube-annotation-prefix`.
    pub kube_annotation_prefix: String,
    /// `net-config-path`.
    pub net_config_path: PathBuf,
    /// `set-node-network-unavailable`.
    pub set_node_network_unavailable: bool,
    /// `healthz-ip`.
    pub healthz_ip: String,
    /// `healthz-port`; 0 is off.
    pub healthz_port: i64,
    /// `version`.
    pub version: bool,
    /// `v`.
    pub verbosity: i64,
    /// `etcd-api`: the API of etcd.
    pub etcd_api: EtcdApi,
    /// `store`: another store than the etcd of `etcd-endpoints`.
    pub store: String,
    /// `firewall`; none if the daemon chooses.
    pub firewall: Option<FirewallKind>,
    /// `lease-lost`.
    pub lease_lost: LeaseLost,
    /// `allow-extension`.
    pub allow_extension: bool,
    /// `extension-shell`.
    pub extension_shell: bool,
    /// `tunnel-guard`.
    pub tunnel_guard: bool,
    /// `pod-guard`.
    pub pod_guard: bool,
    /// `fast-path`.
    pub fast_path: FastPathMode,
    /// `takeover`.
    pub takeover: bool,
    /// `takeover-check`.
    pub takeover_check: bool,
}

/// The etcd API that holds the leases; the stores of both do not see each other (flannel.md section
/// 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdApi {
    /// The keys API of flannel up to v0.17.
    V2,
    /// The API since v0.18.
    V3,
}

/// Where the masquerade and forward rules are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirewallKind {
    /// A table of our own.
    Nft,
    Iptables,
}

/// The reaction to the loss of the node's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseLost {
    /// The daemon exits with 0, like flannel's.
    Exit,
    /// It acquires the same subnet again if that is free, else another one.
    Reacquire,
}

/// The result of parsing a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Run the daemon; the notes about unusable variables are logged.
    Run(Box<Options>, Vec<String>),
    /// Print the version on standard error and exit with 0.
    Version,
    /// Print this on standard error and exit with 0, as the original does for help and for errors.
    Usage(String),
}

// === impl Options ===

impl Default for Options {
    /// The defaults of the table.
    fn default() -> Self {
        let mut options = Self::empty();
        for flag in FLAGS.iter().filter(|flag| flag.kind != Kind::Many && !flag.default.is_empty()) {
            // A test checks that the table's defaults are valid.
            let _ = (flag.set)(&mut options, flag.default);
        }
        options.ip_masq_given = false;
        options
    }
}

impl Options {
    fn empty() -> Self {
        Self {
            etcd_endpoints: String::new(),
            etcd_prefix: String::new(),
            etcd_keyfile: String::new(),
            etcd_certfile: String::new(),
            etcd_cafile: String::new(),
            etcd_username: String::new(),
            etcd_password: Secret::default(),
            etcd_password_file: PathBuf::new(),
            allow_plaintext_credentials: false,
            iface: Vec::new(),
            iface_regex: Vec::new(),
            iface_can_reach: String::new(),
            subnet_file: PathBuf::new(),
            public_ip: String::new(),
            public_ipv6: String::new(),
            renew_margin_min: 0,
            ip_masq: false,
            ip_masq_given: false,
            fully_random_disable: false,
            resync_s: 0,
            forward_rules: false,
            blackhole_route: false,
            kube_subnet_mgr: false,
            kube_api_url: String::new(),
            kubeconfig_file: String::new(),
            kube_annotation_prefix: String::new(),
            net_config_path: PathBuf::new(),
            set_node_network_unavailable: false,
            healthz_ip: String::new(),
            healthz_port: 0,
            version: false,
            verbosity: 0,
            etcd_api: EtcdApi::V3,
            store: String::new(),
            firewall: None,
            lease_lost: LeaseLost::Exit,
            allow_extension: false,
            extension_shell: false,
            tunnel_guard: true,
            fast_path: FastPathMode::Off,
            pod_guard: true,
            takeover: false,
            takeover_check: false,
        }
    }

    /// The interval between comparisons of the rules; at least a second.
    pub fn resync(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.resync_s).unwrap_or(0).max(1))
    }

    pub fn firewall(&self) -> FirewallKind {
        self.firewall.unwrap_or(FirewallKind::Nft)
    }

    /// Whether any of the flags that name an interface was given.
    pub fn names_an_interface(&self) -> bool {
        !(self.iface.is_empty() && self.iface_regex.is_empty() && self.iface_can_reach.is_empty())
    }
}

/// Parses the arguments after the program's name, then the environment for flags that they left
/// out.
pub fn parse(
    program: &str,
    words: impl IntoIterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Request {
    let mut options = Options::default();
    let given = match parse_words(&mut options, words) {
        Ok(given) => given,
        Err(Stop::Help) => return Request::Usage(usage(program)),
        Err(Stop::Wrong(reason)) => return Request::Usage(format!("{reason}\n{}", usage(program))),
    };
    let notes = parse_environment(&mut options, &given, environment);
    if options.version {
        return Request::Version;
    }
    Request::Run(Box::new(options), notes)
}

/// Why parsing ends early.
enum Stop {
    Help,
    Wrong(String),
}

/// Parses flags up to the first word that is not a flag, or `--`; returns the names of the given
/// flags.
fn parse_words(
    options: &mut Options,
    words: impl IntoIterator<Item = String>,
) -> Result<BTreeSet<&'static str>, Stop> {
    let mut given = BTreeSet::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let Some(text) = word.strip_prefix('-').filter(|text| !text.is_empty() && *text != "-") else {
            break;
        };
        let text = text.strip_prefix('-').unwrap_or(text);
        if text.is_empty() || text.starts_with(['-', '=']) {
            return Err(Stop::Wrong(format!("bad flag syntax: {word}")));
        }
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) else {
            let help = matches!(name, "h" | "help");
            let wrong = || Stop::Wrong(format!("flag provided but not defined: -{name}"));
            return Err(if help { Stop::Help } else { wrong() });
        };
        let value = match inline {
            Some(value) => value,
            None if flag.kind == Kind::Bool => "true".to_owned(),
            None => words.next().ok_or_else(|| Stop::Wrong(format!("flag needs an argument: -{name}")))?,
        };
        (flag.set)(options, &value).map_err(|reason| {
            let value = value.escape_debug();
            Stop::Wrong(format!("invalid value \"{value}\" for flag -{name}: {reason}"))
        })?;
        given.insert(flag.name);
    }
    Ok(given)
}

/// Reads `FLANNELD_*` for flags that were not given; returns notes about unusable variables.
fn parse_environment(
    options: &mut Options,
    given: &BTreeSet<&str>,
    environment: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut notes = Vec::new();
    for flag in FLAGS.iter().filter(|flag| !given.contains(flag.name)) {
        let variable = flag.variable();
        let Some(value) = environment(&variable).filter(|value| !value.is_empty()) else { continue };
        if let Err(reason) = (flag.set)(options, &value) {
            notes.push(format!("{variable}={} is ignored: {reason}", value.escape_debug()));
        }
    }
    notes
}

/// The text of `-h`.
pub fn usage(program: &str) -> String {
    let mut text = format!("Usage: {program} [OPTION]...\n");
    let mut flags: Vec<&Flag> = FLAGS.iter().collect();
    flags.sort_by_key(|flag| flag.name);
    for flag in flags {
        let default = match (flag.kind, flag.default) {
            (_, "" | "0" | "false") | (Kind::Many, _) => String::new(),
            (Kind::Text, default) => format!(" (default {default:?})"),
            (_, default) => format!(" (default {default})"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  -{}{}\n    \t{}{default}", flag.name, flag.kind.word(), flag.help);
    }
    text
}

#[cfg(test)]
mod tests;
