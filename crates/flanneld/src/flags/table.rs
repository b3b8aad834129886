//! All flags with name, kind, default, origin, help, and the function that sets them.

use russet_http::Secret;

use super::value::{boolean, integer};
use super::{EtcdApi, FirewallKind, LeaseLost, Options};

/// One flag.
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// Its default, as it would be written on a command line.
    pub default: &'static str,
    pub origin: Origin,
    pub help: &'static str,
    /// Parses a value into the options.
    pub set: fn(&mut Options, &str) -> Result<(), &'static str>,
}

/// The kind of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Takes a value only with `=`.
    Bool,
    /// A number.
    Int,
    /// Any text.
    Text,
    /// Text, and each use of the flag adds one.
    Many,
}

/// The origin of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// flannel's since v0.10.0 or before.
    V010,
    /// flannel's, newer than v0.10.0.
    Newer,
    /// Former flannel flags, accepted and ignored.
    Dropped,
    /// Russet's own.
    Ours,
}

use Kind::{Bool, Int, Many, Text};
use Origin::{Dropped, Newer, Ours, V010};

macro_rules! flags {
    ($($name:literal $kind:ident $default:literal $origin:ident $help:literal |$options:ident, $value:ident| $set:expr;)*) => {
        /// All flags; `usage` sorts them.
        pub const FLAGS: &[Flag] = &[$(Flag {
            name: $name,
            kind: $kind,
            default: $default,
            origin: $origin,
            help: $help,
            set: |$options, $value| { $set; Ok(()) },
        }),*];
    };
}

flags! {
    "etcd-endpoints" Text "http://127.0.0.1:4001,http://127.0.0.1:2379" V010
        "etcd's client addresses, separated by commas" |to, value| to.etcd_endpoints = value.to_owned();
    "etcd-prefix" Text "/coreos.com/network" V010
        "where in etcd the network is" |to, value| to.etcd_prefix = value.to_owned();
    "etcd-keyfile" Text "" V010
        "private key for TLS to etcd, PEM" |to, value| to.etcd_keyfile = value.to_owned();
    "etcd-certfile" Text "" V010
        "client certificate for TLS to etcd, PEM" |to, value| to.etcd_certfile = value.to_owned();
    "etcd-cafile" Text "" V010
        "authorities of etcd's certificates, PEM" |to, value| to.etcd_cafile = value.to_owned();
    "etcd-username" Text "" V010
        "etcd user" |to, value| to.etcd_username = value.to_owned();
    "etcd-password" Text "" V010
        "the etcd user's password" |to, value| to.etcd_password = Secret::new(value);
    "iface" Many "" V010
        "interface towards the other nodes, by name or address; the first use that matches counts" |to, value| to.iface.push(value.to_owned());
    "iface-regex" Many "" V010
        "the same by a regular expression over addresses, then names; tried after all of iface" |to, value| to.iface_regex.push(value.to_owned());
    "iface-can-reach" Text "" Newer
        "the same by the route to an address; tried last" |to, value| to.iface_can_reach = value.to_owned();
    "subnet-file" Text "/run/flannel/subnet.env" V010
        "where to write this node's subnet and MTU" |to, value| to.subnet_file = value.into();
    "public-ip" Text "" V010
        "address by which other nodes reach this one" |to, value| to.public_ip = value.to_owned();
    "public-ipv6" Text "" Newer
        "IPv6 address by which other nodes reach this one" |to, value| to.public_ipv6 = value.to_owned();
    "subnet-lease-renew-margin" Int "60" V010
        "minutes before its end at which the lease is renewed, 1 to 1439" |to, value| to.renew_margin_min = integer(value)?;
    "ip-masq" Bool "false" V010
        "masquerade what leaves the network" |to, value| (to.ip_masq, to.ip_masq_given) = (boolean(value)?, true);
    "ip-masq-fully-random-disable" Bool "false" Newer
        "masquerade without fully random source ports" |to, value| to.fully_random_disable = boolean(value)?;
    "iptables-resync" Int "5" Newer
        "seconds between comparisons of the rules; changes that the kernel reports are repaired at once" |to, value| to.resync_s = integer(value)?;
    "iptables-forward-rules" Bool "true" Newer
        "accept forwarded packets from and to the network" |to, value| to.forward_rules = boolean(value)?;
    "ip-blackhole-route" Bool "false" Newer
        "keep a blackhole route for this node's own subnet" |to, value| to.blackhole_route = boolean(value)?;
    "kube-subnet-mgr" Bool "false" V010
        "take the subnet from the Kubernetes API instead of etcd" |to, value| to.kube_subnet_mgr = boolean(value)?;
    "kube-api-url" Text "" V010
        "Kubernetes API server" |to, value| to.kube_api_url = value.to_owned();
    "kubeconfig-file" Text "" V010
        "kubeconfig; without it and kube-api-url the pod's service account is used" |to, value| to.kubeconfig_file = value.to_owned();
    "kube-annotation-prefix" Text "flannel.alpha.coreos.com" Newer
        "prefix of the node annotations" |to, value| to.kube_annotation_prefix = value.to_owned();
    "net-config-path" Text "/etc/kube-flannel/net-conf.json" Newer
        "network configuration with kube-subnet-mgr" |to, value| to.net_config_path = value.into();
    "set-node-network-unavailable" Bool "true" Newer
        "set the node's condition NetworkUnavailable to false once the network is up" |to, value| to.set_node_network_unavailable = boolean(value)?;
    "use-multi-cluster-cidr" Bool "false" Dropped
        "flannel v0.21 and v0.22 only; without effect" |_to, value| boolean(value)?;
    "healthz-ip" Text "0.0.0.0" V010
        "address of the health server" |to, value| to.healthz_ip = value.to_owned();
    "healthz-port" Int "0" V010
        "port of the health server, 0 for none" |to, value| to.healthz_port = integer(value)?;
    "version" Bool "false" V010
        "print the version and exit" |to, value| to.version = boolean(value)?;
    "v" Int "0" V010
        "how much to log: 0 changes, 1 to 3 also why, 4 and above everything" |to, value| to.verbosity = integer(value)?;
    "vmodule" Text "" V010
        "verbosity of single source files of flannel; without effect" |_to, value| modules(value)?;
    "log_backtrace_at" Text "" V010
        "source line of flannel; without effect" |_to, value| line(value)?;
    "etcd-api" Text "v3" Ours
        "v3, or v2 for peers of flannel v0.10 to v0.17" |to, value| to.etcd_api = match value {
            "v3" => EtcdApi::V3,
            "v2" => EtcdApi::V2,
            _ => return Err("it must be v2 or v3"),
        };
    "store" Text "" Ours
        "etcd:URL,... or embedded[:DIR] or unix:SOCKET instead of etcd-endpoints; embedded is one machine's own store" |to, value| to.store = value.to_owned();
    "firewall" Text "" Ours
        "nft for a table of our own, iptables for flannel's chains; by default nft, and with takeover what is there" |to, value| to.firewall = match value {
            "nft" => Some(FirewallKind::Nft),
            "iptables" => Some(FirewallKind::Iptables),
            _ => return Err("it must be nft or iptables"),
        };
    "lease-lost" Text "exit" Ours
        "exit with 0 when the lease is lost, or reacquire" |to, value| to.lease_lost = match value {
            "exit" => LeaseLost::Exit,
            "reacquire" => LeaseLost::Reacquire,
            _ => return Err("it must be exit or reacquire"),
        };
    "etcd-password-file" Text "" Ours
        "file with the etcd user's password, which other users of the node then do not see in the list of processes" |to, value| to.etcd_password_file = value.into();
    "allow-plaintext-credentials" Bool "false" Ours
        "send the etcd password or the Kubernetes token over plain http to other machines" |to, value| to.allow_plaintext_credentials = boolean(value)?;
    "allow-extension" Bool "false" Ours
        "run the commands of backend `extension`: every client that can write the network's configuration then runs commands on this node" |to, value| to.allow_extension = boolean(value)?;
    "tunnel-guard" Bool "true" Ours
        "drop tunnel packets from addresses that no lease names; false where peers send from others" |to, value| to.tunnel_guard = boolean(value)?;
    "pod-guard" Bool "true" Ours
        "drop what pods behind bridges of this node send from addresses outside of these bridges' networks, and their IP in IP and GRE to nodes" |to, value| to.pod_guard = boolean(value)?;
    "fast-path" Text "off" Ours
        "off, auto or require: whether BPF programs carry packets of backend `udp`; auto where the kernel can, with require the node is not ready without" |to, value| to.fast_path = value.parse().map_err(|_| "it must be off, auto or require")?;
    "extension-shell" Bool "false" Ours
        "run the commands of backend `extension` by sh -c" |to, value| to.extension_shell = boolean(value)?;
    "takeover" Bool "false" Ours
        "take the place of the flanneld that runs, or ran, on this node without losing a packet, or change nothing and exit with 1" |to, value| to.takeover = boolean(value)?;
    "takeover-check" Bool "false" Ours
        "say whether takeover would work, change nothing, and exit with 0 or 1" |to, value| to.takeover_check = boolean(value)?;
}

/// glog's `vmodule`: `pattern=N,...`.
fn modules(text: &str) -> Result<(), &'static str> {
    let mut entries = text.split(',').filter(|entry| !entry.is_empty());
    let whole = entries.all(|entry| {
        entry.split_once('=').is_some_and(|(name, level)| !name.is_empty() && level.parse::<i32>().is_ok())
    });
    if whole { Ok(()) } else { Err("syntax error: expect comma-separated list of filename=N") }
}

/// glog's `log_backtrace_at`: `file.go:N`.
fn line(text: &str) -> Result<(), &'static str> {
    let whole = text.rsplit_once(':').is_some_and(|(file, line)| {
        file.contains('.') && !file.contains(':') && line.parse::<u32>().is_ok_and(|line| line > 0)
    });
    if text.is_empty() || whole { Ok(()) } else { Err("syntax error: expect file.go:234") }
}

// === impl Flag ===

impl Flag {
    /// The environment variable for the flag.
    pub fn variable(&self) -> String {
        format!("FLANNELD_{}", self.name.replace('-', "_").to_ascii_uppercase())
    }
}

// === impl Kind ===

impl Kind {
    /// The kind as printed in Go's help.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Bool => "",
            Int => " int",
            Text => " string",
            Many => " value",
        }
    }
}
