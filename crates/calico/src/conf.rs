//! The network configuration of Calico's plugins, combined with the runtime's environment
//! (calico-cni.md sections 1.2 to 1.7, calico-ipam.md section 4.1). `calico` and `calico-ipam` read
//! it; the latter gets the main plugin's whole configuration.

mod datastore;
mod fields;
mod log_file;
mod log_settings;
mod node_name;

use std::path::{Path, PathBuf};

use russet_addr::NetworkName;
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, Version};
use russet_store_etcd::Secret;
use russet_wiring::failure;
use serde_json::{Map, Value};

pub(crate) use datastore::plaintext;
pub use datastore::{DatastoreKind, DatastoreSettings, EtcdMembers};
pub use log_settings::LogSettings;

use fields::Fields;

/// A network configuration of Calico. Members that no plugin reads on Linux are ignored, like
/// unknown ones.
#[derive(Debug, Clone, PartialEq)]
pub struct CalicoConf {
    /// `name`: the network, and the profile if the policy is not Kubernetes'.
    pub network: NetworkName,
    /// The CNI version of ADD's result.
    pub result_version: Version,
    /// `nodename`.
    pub nodename: Option<String>,
    /// `nodename_file`; see [`nodename_file`](Self::nodename_file).
    nodename_file: Option<PathBuf>,
    /// `nodename_file_optional`: the main plugin works without the file.
    pub nodename_file_optional: bool,
    /// `hostname`: the old name of `nodename`.
    pub hostname: Option<String>,
    /// The datastore and how to reach it.
    pub datastore: DatastoreSettings,
    /// `log_level` and `log_file_...`.
    pub log: LogSettings,
    /// `ipam`.
    pub ipam: IpamSettings,
    /// `ipam_lock_file`; see [`ipam_lock_file`](Self::ipam_lock_file).
    ipam_lock_file: Option<PathBuf>,
    /// `mtu`; `None` means the one in the node's MTU file.
    pub mtu_bytes: Option<u32>,
    /// `require_mtu_file`: an ADD without that file fails.
    pub require_mtu_file: bool,
    /// `num_queues` of the veth, at least 1.
    pub num_queues: u32,
    /// `device_type`: empty, `veth` or `netkit`; the main plugin refuses others.
    pub device_type: String,
    /// `container_settings.allow_ip_forwarding`.
    pub allow_ip_forwarding: bool,
    /// `include_default_routes`, beside explicit `ipam.routes`.
    pub include_default_routes: bool,
    /// `dataplane_options`.
    pub dataplane_options: Map<String, Value>,
    /// `feature_control.ip_addrs_no_ipam`.
    pub ip_addrs_no_ipam: bool,
    /// `feature_control.floating_ips`.
    pub floating_ips: bool,
    /// `readiness_gates`: URLs.
    pub readiness_gates: Vec<String>,
    /// `policy_setup_timeout_seconds`; 0 is off.
    pub policy_setup_timeout_s: u32,
    /// `endpoint_status_dir`; see [`endpoint_status_dir`](Self::endpoint_status_dir).
    endpoint_status_dir: Option<PathBuf>,
    /// `policy`.
    pub policy: PolicySettings,
    /// `kubernetes`, and other settings for the connection to Kubernetes.
    pub kubernetes: KubernetesSettings,
    /// Labels of a Mesos task, not yet sanitised:
    /// `args."org.apache.mesos".network_info.labels.labels`.
    pub mesos_labels: Vec<(String, String)>,
    /// The first entry of `FELIX_INTERFACEPREFIX`: the prefix of the names of host interfaces.
    pub interface_prefix: Option<String>,
}

/// `ipam`.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamSettings {
    /// `type`.
    pub kind: String,
    /// `subnet`, which only `host-local` uses.
    pub subnet: Option<String>,
    /// `assign_ipv4`: everything but exactly `"false"` means yes.
    pub assign_ipv4: bool,
    /// `assign_ipv6`: only exactly `"true"` means yes.
    pub assign_ipv6: bool,
    /// `ipv4_pools`: prefixes or names.
    pub ipv4_pools: Vec<String>,
    /// `ipv6_pools`.
    pub ipv6_pools: Vec<String>,
}

/// `policy`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicySettings {
    /// `type`: empty, or `k8s`.
    pub kind: String,
}

/// How to reach Kubernetes, including the environment's settings (calico-ipam.md section 4.1).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KubernetesSettings {
    /// `kubernetes.kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `kubernetes.k8s_api_root` or `policy.k8s_api_root`, cut at `/api/`.
    pub api_root: Option<String>,
    /// `policy.k8s_auth_token`.
    pub token: Option<Secret>,
    /// `allow_plaintext_credentials`: the token may go to another machine over http.
    pub allow_plaintext: bool,
    /// `policy.k8s_client_certificate`.
    pub client_certificate: Option<PathBuf>,
    /// `policy.k8s_client_key`.
    pub client_key: Option<PathBuf>,
    /// `policy.k8s_certificate_authority`.
    pub certificate_authority: Option<PathBuf>,
    /// `kubernetes.node_name`, for the node's pod prefix.
    pub node_name: Option<String>,
    /// `qps`.
    pub qps: Option<f64>,
    /// `burst`.
    pub burst: Option<u32>,
    /// `calico_api_group`.
    pub api_group: Option<String>,
}

/// The file in which calico/node or the agent writes the node's name.
const NODENAME_FILE: &str = "var/lib/calico/nodename";
/// The lock that serialises IPAM on a host.
const IPAM_LOCK_FILE: &str = "var/run/calico/ipam.lock";
/// The directory in which Felix reports endpoints whose policy is in place.
const ENDPOINT_STATUS_DIR: &str = "var/run/calico/endpoint-status";
/// The kernel's limit for veth.
const MTU_MAX_BYTES: u32 = 65535;
/// The kernel's limit for queues of a device.
const QUEUES_MAX: u32 = 4096;
/// Longer than any runtime waits.
const POLICY_TIMEOUT_MAX_S: u32 = 3600;

// === impl CalicoConf ===

impl CalicoConf {
    /// Reads a request's configuration. A member of the wrong type is an error with code 7 that
    /// names it; `null` means absent, as in Go.
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let config = &request.config;
        let root = Fields::new("", &config.settings);
        let overrides = &request.env.overrides;
        let features = root.object("feature_control")?;
        Ok(Self {
            network: config.name.clone(),
            result_version: result_version(request),
            nodename: root.text("nodename")?,
            nodename_file: root.path("nodename_file")?,
            nodename_file_optional: root.flag("nodename_file_optional")?,
            hostname: root.text("hostname")?,
            datastore: DatastoreSettings::read(&root, overrides)?,
            log: LogSettings::read(&root)?,
            ipam: IpamSettings::read(config.ipam.as_ref())?,
            ipam_lock_file: root.path("ipam_lock_file")?,
            mtu_bytes: root.number("mtu", 0..=MTU_MAX_BYTES)?.filter(|mtu| *mtu != 0),
            require_mtu_file: root.flag("require_mtu_file")?,
            num_queues: root.integer("num_queues")?.unwrap_or(1).clamp(1, QUEUES_MAX.into()) as u32,
            device_type: root.text("device_type")?.unwrap_or_default(),
            allow_ip_forwarding: root.object("container_settings")?.flag("allow_ip_forwarding")?,
            include_default_routes: root.flag("include_default_routes")?,
            dataplane_options: root.object("dataplane_options")?.to_map(),
            ip_addrs_no_ipam: features.flag("ip_addrs_no_ipam")?,
            floating_ips: features.flag("floating_ips")?,
            readiness_gates: root.texts("readiness_gates")?,
            policy_setup_timeout_s: root
                .number("policy_setup_timeout_seconds", 0..=POLICY_TIMEOUT_MAX_S)?
                .unwrap_or_default(),
            endpoint_status_dir: root.path("endpoint_status_dir")?,
            policy: PolicySettings { kind: root.object("policy")?.text("type")?.unwrap_or_default() },
            kubernetes: KubernetesSettings::read(&root, overrides)?,
            mesos_labels: mesos_labels(&config.args)?,
            interface_prefix: interface_prefix(overrides.bare("FELIX_INTERFACEPREFIX")),
        })
    }

    /// Warnings about settings that work but do not mean what they seem to.
    pub fn remarks(&self) -> Vec<&'static str> {
        let old_name = self.hostname.is_some() && self.nodename.is_none();
        let remarks = [
            (old_name, "`hostname` is deprecated, use `nodename`"),
            (
                self.datastore.etcd.has_idle_certificates(),
                "certificates are named, but no etcd endpoint is https: they are not used",
            ),
        ];
        remarks.into_iter().filter_map(|(applies, remark)| applies.then_some(remark)).collect()
    }

    /// The file with the node's name; the default lies below `root`, which is `/` except in tests
    /// and demos.
    pub fn nodename_file(&self, root: &Path) -> PathBuf {
        self.nodename_file.clone().unwrap_or_else(|| root.join(NODENAME_FILE))
    }

    /// The file that Calico's IPAM plugins of one host lock.
    pub fn ipam_lock_file(&self, root: &Path) -> PathBuf {
        self.ipam_lock_file.clone().unwrap_or_else(|| root.join(IPAM_LOCK_FILE))
    }

    /// The directory in which Felix reports endpoints whose policy is in place.
    pub fn endpoint_status_dir(&self, root: &Path) -> PathBuf {
        self.endpoint_status_dir.clone().unwrap_or_else(|| root.join(ENDPOINT_STATUS_DIR))
    }
}

/// Without a `cniVersion`, Calico's plugins answer in 0.2.0 (calico-cni.md section 1.1); other
/// plugins answer in 0.1.0, which has the same format.
fn result_version(request: &Request) -> Version {
    let version = request.config.cni_version;
    if version != Version::V0_1_0 {
        return version;
    }
    let stdin: Option<Value> = serde_json::from_slice(&request.stdin).ok();
    let said = stdin.as_ref().and_then(|stdin| stdin.get("cniVersion")?.as_str());
    if said.is_some_and(|text| !text.is_empty()) { version } else { Version::V0_2_0 }
}

fn mesos_labels(args: &Map<String, Value>) -> Result<Vec<(String, String)>, CniError> {
    let args = Fields::new("args", args);
    let labels = args.object("org.apache.mesos")?.object("network_info")?.object("labels")?;
    let label = |label: Map<String, Value>| {
        let label = Fields::new("args.org.apache.mesos.network_info.labels.labels", &label);
        Ok((label.text("key")?.unwrap_or_default(), label.text("value")?.unwrap_or_default()))
    };
    labels.objects("labels")?.into_iter().map(label).collect()
}

fn interface_prefix(value: Option<&str>) -> Option<String> {
    let first = value?.split(',').next()?.trim();
    (!first.is_empty()).then(|| first.to_owned())
}

// === impl IpamSettings ===

impl IpamSettings {
    /// The IPAM plugin that the configuration names.
    pub fn named_kind(&self) -> Result<&str, CniError> {
        if self.kind.is_empty() {
            let details = "name an IPAM plugin: \"calico-ipam\", \"host-local\"";
            return Err(CniError::invalid_config("ipam.type is missing", details));
        }
        Ok(&self.kind)
    }

    /// The error for a result of the IPAM plugin without addresses.
    pub fn no_addresses(&self) -> CniError {
        let details = format!("ipam.type is {:?}", self.kind);
        CniError::new(failure::NO_ADDRESS, "IPAM plugin did not return any IP addresses", details)
    }

    /// Whether addresses come from Calico's IPAM.
    pub fn is_calico(&self) -> bool {
        self.kind == "calico-ipam"
    }

    fn read(ipam: Option<&Map<String, Value>>) -> Result<Self, CniError> {
        let none = Map::new();
        let ipam = Fields::new("ipam", ipam.unwrap_or(&none));
        let switch = |key: &str| {
            ipam.text(key).map_err(|mut error| {
                error.details.push_str("; write it in quotes: \"true\" or \"false\"");
                error
            })
        };
        Ok(Self {
            kind: ipam.text("type")?.unwrap_or_default(),
            subnet: ipam.text("subnet")?,
            assign_ipv4: switch("assign_ipv4")?.as_deref() != Some("false"),
            assign_ipv6: switch("assign_ipv6")?.as_deref() == Some("true"),
            ipv4_pools: ipam.texts("ipv4_pools")?,
            ipv6_pools: ipam.texts("ipv6_pools")?,
        })
    }
}

// === impl PolicySettings ===

impl PolicySettings {
    /// Whether Kubernetes objects define a pod's profiles and labels.
    pub fn is_k8s(&self) -> bool {
        self.kind == "k8s"
    }
}

// === impl KubernetesSettings ===

impl KubernetesSettings {
    fn read(root: &Fields<'_>, overrides: &russet_cni_spec::Overrides) -> Result<Self, CniError> {
        let (policy, kubernetes) = (root.object("policy")?, root.object("kubernetes")?);
        let chosen = |name: &str, given: Option<String>| fields::choose(overrides, name, given);
        let path = |name: &str, given: Option<PathBuf>| fields::choose_path(overrides, name, given);
        let api_root = kubernetes.text("k8s_api_root")?.or(policy.text("k8s_api_root")?);
        let number = |name: &str| overrides.bare(name).and_then(|text| text.parse::<f64>().ok());
        let burst = root.number("burst", 0..=u32::MAX)?.filter(|burst| *burst > 0);
        Ok(Self {
            kubeconfig: path("KUBECONFIG", kubernetes.path("kubeconfig")?),
            api_root: chosen("K8S_API_ENDPOINT", api_root).map(|text| without_path(&text).to_owned()),
            token: chosen("K8S_API_TOKEN", policy.text("k8s_auth_token")?).map(Secret::new),
            allow_plaintext: root.flag("allow_plaintext_credentials")?,
            client_certificate: path("K8S_CERT_FILE", policy.path("k8s_client_certificate")?),
            client_key: path("K8S_KEY_FILE", policy.path("k8s_client_key")?),
            certificate_authority: path("K8S_CA_FILE", policy.path("k8s_certificate_authority")?),
            node_name: kubernetes.text("node_name")?,
            qps: root.float("qps")?.filter(|qps| *qps > 0.0).or_else(|| number("K8S_CLIENT_QPS")),
            burst: burst.or_else(|| number("K8S_CLIENT_BURST").map(|burst| burst as u32)),
            api_group: chosen("CALICO_API_GROUP", root.text("calico_api_group")?),
        })
    }
}

/// Removes `/api/v1/`, which old configurations include and clients add themselves.
fn without_path(api_root: &str) -> &str {
    api_root.split("/api/").next().unwrap_or(api_root)
}

#[cfg(test)]
mod tests;
