//! FelixConfiguration: the settings of Calico's node agent. Russet reads some of them (policy.md section 1.8,
//! calico-cni.md section 4.4); the others are for Felix, which may run on other nodes of the cluster.

use russet_addr::IpNet;
use russet_model::{FelixConfigurationSpec, Resource};
use russet_verdict::felix::FelixSettings;
use russet_verdict::world::EndpointToHost;
use serde_json::Value;

use super::fields::Field;
use super::fields::Shape::{self, Any, Flag, Labels, List, Number, Object, Text};
use super::policy::check_meaning;
use super::{Definition, Problems, TableContext};

/// The largest VXLAN network identifier (RFC 7348).
const VNI_MAX: u64 = (1 << 24) - 1;

const PORTS: Shape = List(&Object(&[Field("protocol", Text), Field("port", Number), Field("net", Text)]));

/// The members of each type.
macro_rules! settings {
    ($($shape:expr => $($name:literal),*;)*) => { &[$($(Field($name, $shape),)*)*] };
}

/// Those of Calico 3.30, and the newer nodeSelector.
const SETTINGS: &[Field] = settings! {
    Flag =>
        "allowIPIPPacketsFromWorkloads", "allowVXLANPacketsFromWorkloads",
        "bpfConnectTimeLoadBalancingEnabled", "bpfDisableUnprivileged", "bpfEnabled",
        "bpfHostConntrackBypass", "bpfKubeProxyEndpointSlicesEnabled",
        "bpfKubeProxyIptablesCleanupEnabled", "bpfPolicyDebugEnabled", "debugDisableLogDropping",
        "disableConntrackInvalidCheck", "endpointReportingEnabled", "flowLogsCollectorDebugTrace",
        "genericXDPEnabled", "healthEnabled", "ipipEnabled", "ipv6Support",
        "prometheusGoMetricsEnabled", "prometheusMetricsEnabled", "prometheusProcessMetricsEnabled",
        "prometheusWireGuardMetricsEnabled", "removeExternalRoutes", "requireMTUFile",
        "routeSyncDisabled", "sidecarAccelerationEnabled", "usageReportingEnabled",
        "useInternalDataplaneDriver", "vxlanEnabled", "wireguardEnabled", "wireguardEnabledV6",
        "wireguardHostEncryptionEnabled", "wireguardThreadingEnabled", "xdpEnabled";
    Number =>
        "bpfExportBufferSizeMB", "bpfExtToServiceConnmark", "bpfMapSizeConntrack",
        "bpfMapSizeConntrackCleanupQueue", "bpfMapSizeIPSets", "bpfMapSizeIfState",
        "bpfMapSizeNATAffinity", "bpfMapSizeNATBackend", "bpfMapSizeNATFrontend",
        "bpfMapSizePerCpuConntrack", "bpfMapSizeRoute", "debugPort", "deviceRouteProtocol",
        "goGCThreshold", "goMaxProcs", "goMemoryLimitMB", "healthPort", "ipipMTU",
        "iptablesMarkMask", "maxIpsetSize", "metadataPort", "nftablesMarkMask",
        "prometheusMetricsPort", "vxlanMTU", "vxlanMTUV6", "vxlanPort", "vxlanVNI",
        "wireguardListeningPort", "wireguardListeningPortV6", "wireguardMTU", "wireguardMTUV6",
        "wireguardRoutingRulePriority";
    Text =>
        "awsSrcDstCheck", "bpfAttachType", "bpfCTLBLogFilter", "bpfConnectTimeLoadBalancing",
        "bpfConntrackLogLevel", "bpfConntrackMode", "bpfDataIfacePattern", "bpfDisableGROForIfaces",
        "bpfEnforceRPF", "bpfExternalServiceMode", "bpfHostNetworkedNATWithoutCTLB",
        "bpfJITHardening", "bpfKubeProxyMinSyncPeriod", "bpfL3IfacePattern", "bpfLogLevel",
        "bpfMapSizeConntrackScaling", "bpfProfiling", "bpfRedirectToPeer", "cgroupV2Path",
        "chainInsertMode", "dataplaneDriver", "dataplaneWatchdogTimeout", "debugHost",
        "debugMemoryProfilePath", "debugSimulateCalcGraphHangAfter",
        "debugSimulateDataplaneApplyDelay", "debugSimulateDataplaneHangAfter",
        "defaultEndpointToHostAction", "deviceRouteSourceAddress", "deviceRouteSourceAddressIPv6",
        "endpointReportingDelay", "endpointStatusPathPrefix", "featureDetectOverride",
        "featureGates", "floatingIPs", "flowLogsFlushInterval", "flowLogsGoldmaneServer",
        "flowLogsLocalReporter", "flowLogsPolicyEvaluationMode", "healthHost", "interfaceExclude",
        "interfacePrefix", "interfaceRefreshInterval", "ipForwarding", "ipsetsRefreshInterval",
        "iptablesBackend", "iptablesFilterAllowAction", "iptablesFilterDenyAction",
        "iptablesLockFilePath", "iptablesLockProbeInterval", "iptablesLockTimeout",
        "iptablesMangleAllowAction", "iptablesNATOutgoingInterfaceFilter",
        "iptablesPostWriteCheckInterval", "iptablesRefreshInterval", "logDebugFilenameRegex",
        "logFilePath", "logPrefix", "logSeverityFile", "logSeverityScreen", "logSeveritySys",
        "metadataAddr", "mtuIfacePattern", "natOutgoingAddress", "natOutgoingExclusions",
        "netlinkTimeout", "nftablesFilterAllowAction", "nftablesFilterDenyAction",
        "nftablesMangleAllowAction", "nftablesMode", "nftablesRefreshInterval", "nodeSelector",
        "openstackRegion", "policySyncPathPrefix", "programClusterRoutes", "prometheusMetricsHost",
        "reportingInterval", "reportingTTL", "routeRefreshInterval", "routeSource",
        "serviceLoopPrevention", "usageReportingInitialDelay", "usageReportingInterval",
        "windowsManageFirewallRules", "wireguardInterfaceName", "wireguardInterfaceNameV6",
        "wireguardKeepAlive", "workloadSourceSpoofing", "xdpRefreshInterval";
    List(&Text) =>
        "bpfDSROptoutCIDRs", "bpfExcludeCIDRsFromNAT", "bpfForceTrackPacketsFromIfaces",
        "externalNodesList";
    Labels =>
        "bpfLogFilters";
    Any =>
        "bpfConntrackTimeouts", "bpfPSNATPorts", "healthTimeoutOverrides", "kubeNodePortRanges",
        "natPortRange", "routeTableRange", "routeTableRanges";
    PORTS =>
        "failsafeInboundHostPorts", "failsafeOutboundHostPorts";
};

impl Definition for FelixConfigurationSpec {
    const WORDS: &'static [&'static str] = &["felixconfig", "felixconfigs"];
    const FIELDS: &'static [Field] = SETTINGS;
    const STATUS: &'static [Field] = &[];

    fn heading(wide: bool) -> &'static [&'static str] {
        if wide { &["NAME", "ENDPOINT-TO-HOST", "FAILSAFE-IN", "FAILSAFE-OUT"] } else { &["NAME"] }
    }

    fn row(felix: &Resource<Self>, wide: bool, _seen: &TableContext) -> Vec<String> {
        let mut row = vec![felix.metadata.name.clone()];
        if wide {
            let of = |name: &str| felix.spec.extra.get(name).filter(|value| !value.is_null());
            row.push(of(EndpointToHost::MEMBER).map(shown).unwrap_or_default());
            let lists = [FelixSettings::FAILSAFE_INBOUND, FelixSettings::FAILSAFE_OUTBOUND];
            row.extend(lists.map(|name| of(name).map(ports).unwrap_or_default()));
        }
        row
    }

    fn check(felix: &mut Resource<Self>, problems: &mut Problems) {
        let spec = &felix.spec;
        for (value, first, last, name) in [
            (spec.vxlan_vni, 1, VNI_MAX, "vxlanVNI"),
            (spec.vxlan_port, 1, u16::MAX.into(), "vxlanPort"),
            (spec.vxlan_mtu, 0, u16::MAX.into(), "vxlanMTU"),
            (spec.vxlan_mtu_v6, 0, u16::MAX.into(), "vxlanMTUV6"),
        ] {
            let is_good = value.is_none_or(|value| (first..=last).contains(&value));
            problems.unless(is_good, &format!("spec.{name}"), &format!("it is from {first} to {last}"));
        }
        for (index, node) in spec.external_nodes_list.iter().flatten().enumerate() {
            let is_good = node.parse::<IpNet>().is_ok() || node.parse::<std::net::IpAddr>().is_ok();
            problems.unless(
                is_good,
                &format!("spec.externalNodesList[{index}]"),
                "a prefix or an address is wanted",
            );
        }
        check_meaning(felix, problems);
    }
}

/// Failsafe ports in short: `tcp:22,udp:68:10.0.0.0/8`.
fn ports(list: &Value) -> String {
    let items = list.as_array().map_or(&[][..], Vec::as_slice);
    let one = |port: &Value| {
        let parts = [Some(port.get("protocol").map_or("tcp".to_owned(), shown)), port.get("port").map(shown)];
        let net = port.get("net").map(shown).filter(|net| !net.is_empty());
        parts.into_iter().chain([net]).flatten().collect::<Vec<_>>().join(":")
    };
    if items.is_empty() { "none".to_owned() } else { items.iter().map(one).collect::<Vec<_>>().join(",") }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::fields;

    fn problems(spec: &Value) -> String {
        let document = json!({ "apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration",
            "metadata": { "name": "default" }, "spec": spec });
        let mut problems = Problems::default();
        fields::check(document.as_object().unwrap(), SETTINGS, &[], &mut problems);
        match Resource::decode(document.to_string().as_bytes()) {
            Ok(mut felix) => FelixConfigurationSpec::check(&mut felix, &mut problems),
            Err(error) => problems.add(&error.at, &error.problem),
        }
        problems.to_string()
    }

    #[test]
    fn settings_that_nothing_could_read_are_refused_with_their_field() {
        let port = |port: Value| json!({ "failsafeInboundHostPorts": [port] });
        for good in [
            json!({}),
            json!({ "failsafeInboundHostPorts": [], "failsafeOutboundHostPorts": [{ "protocol": "udp", "port": 53 }] }),
            json!({ "bpfEnabled": false, "logSeverityScreen": "Info", "natPortRange": "1:2", "vxlanVNI": 4096,
                "externalNodesList": ["10.0.0.0/8", "fd00::1"], "bpfLogFilters": { "all": "tcp" } }),
            port(json!({ "protocol": "TCP", "port": 22, "net": "10.0.0.0/8" })),
        ] {
            assert_eq!(problems(&good), "", "{good}");
        }
        for (bad, field) in [
            (
                json!({ "bpfEnabld": true }),
                "spec.bpfEnabld: there is no such field; did you mean bpfEnabled?",
            ),
            (json!({ "bpfEnabled": "yes" }), "spec.bpfEnabled"),
            (json!({ "defaultEndpointToHostAction": "Deny" }), "spec.defaultEndpointToHostAction"),
            (json!({ "failsafeOutboundHostPorts": "none" }), "spec.failsafeOutboundHostPorts"),
            (port(json!({ "protocol": "icmp", "port": 1 })), "spec.failsafeInboundHostPorts[0].protocol"),
            (port(json!({ "protocol": "tcp", "port": 0 })), "spec.failsafeInboundHostPorts[0].port"),
            (port(json!({ "protocol": "tcp" })), "spec.failsafeInboundHostPorts[0].port"),
            (port(json!({ "port": 1, "net": "10.0.0" })), "spec.failsafeInboundHostPorts[0].net"),
            (port(json!({ "port": 1, "nets": [] })), "spec.failsafeInboundHostPorts[0].nets"),
            (
                json!({ "failsafeInboundHostPorts": vec![json!({ "port": 1 }); 257] }),
                "spec.failsafeInboundHostPorts",
            ),
            (json!({ "vxlanPort": 65_536 }), "spec.vxlanPort"),
            (json!({ "vxlanVNI": 1 << 24 }), "spec.vxlanVNI"),
            (json!({ "externalNodesList": ["x"] }), "spec.externalNodesList[0]"),
        ] {
            let found = problems(&bad);
            assert!(found.starts_with(field), "{bad}: {found}");
        }
    }

    #[test]
    fn a_wide_table_shows_what_russet_reads() {
        let row = |spec: Value| {
            let document = json!({ "metadata": { "name": "default" }, "spec": spec }).to_string();
            let felix = Resource::<FelixConfigurationSpec>::decode(document.as_bytes()).unwrap();
            FelixConfigurationSpec::row(&felix, true, &TableContext::elsewhere())
        };
        assert_eq!(row(json!({ "vxlanVNI": 5 })), ["default", "", "", ""]);
        let ports = json!([{ "protocol": "udp", "port": 68 }, { "port": 22, "net": "10.0.0.0/8" }]);
        let spec = json!({ "defaultEndpointToHostAction": "Drop", "failsafeInboundHostPorts": ports, "failsafeOutboundHostPorts": [] });
        assert_eq!(row(spec), ["default", "Drop", "udp:68,tcp:22:10.0.0.0/8", "none"]);
    }
}
