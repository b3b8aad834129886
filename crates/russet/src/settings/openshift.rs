//! Settings of an agent in place of openshift-sdn.

use russet_model::openshift::PodNetwork;
use russet_openshift::{NetworkDefault, Settings};

use super::{File, SettingsError, or_file};
use crate::cli::openshift::OpenshiftArgs;

/// The default of OpenShift's installer.
const HOST_PREFIX: u32 = 23;
const IPV4_BITS: u32 = 32;

/// The settings; None if the node does not replace openshift-sdn.
pub(super) fn read(args: OpenshiftArgs, file: &File) -> Result<Option<Settings>, SettingsError> {
    let pods = or_file(args.openshift_cluster_network, file, "openshift_cluster_network")?;
    let service = or_file(args.openshift_service_network, file, "openshift_service_network")?;
    let prefix = match args.openshift_host_prefix {
        Some(prefix) => Some(prefix),
        None => file.integer("openshift_host_prefix", 1..=30)?,
    };
    let routable_mtu = match args.openshift_routable_mtu {
        Some(mtu) => Some(mtu),
        None => file.integer("openshift_routable_mtu", 576..=65535)?,
    };
    let kubeconfig = match args.openshift_kubeconfig {
        Some(path) => Some(path),
        None => file.parsed::<String>("openshift_kubeconfig")?.map(Into::into),
    };
    let trust = args.openshift_trust_annotations || file.flag("openshift_trust_annotations")?;
    let platform = or_file(args.openshift_platform, file, "openshift_platform")?.unwrap_or_default();
    let network = match pods {
        None => None,
        Some(cidr) => {
            Some(NetworkDefault { pods: pod_network(cidr, prefix.unwrap_or(HOST_PREFIX))?, service })
        }
    };
    let wanted = args.openshift || file.flag("openshift")?;
    Ok(wanted.then_some(Settings { network, kubeconfig, trust_annotations: trust, routable_mtu, platform }))
}

fn pod_network(cidr: russet_addr::Ipv4Net, prefix: u32) -> Result<PodNetwork, SettingsError> {
    let refused = |reason: String| SettingsError::Openshift { reason };
    if cidr.trunc() != cidr {
        return Err(refused(format!(
            "openshift_cluster_network: {cidr} has host bits, {} is meant",
            cidr.trunc()
        )));
    }
    if prefix < u32::from(cidr.prefix_len()) {
        return Err(refused(format!(
            "openshift_host_prefix: nodes' parts of {prefix} bits do not fit {cidr}"
        )));
    }
    let bits = IPV4_BITS.checked_sub(prefix).and_then(|bits| u8::try_from(bits).ok());
    let host_subnet_length = bits.ok_or_else(|| refused("openshift_host_prefix is no length".to_owned()))?;
    Ok(PodNetwork { cidr, host_subnet_length })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<Settings>, SettingsError> {
        let args = OpenshiftArgs {
            openshift: false,
            openshift_cluster_network: None,
            openshift_host_prefix: None,
            openshift_service_network: None,
            openshift_kubeconfig: None,
            openshift_trust_annotations: false,
            openshift_routable_mtu: None,
            openshift_platform: None,
        };
        read(args, &File::parse("russet.toml".to_owned(), text)?)
    }

    #[test]
    fn openshift_settings_exist_only_when_enabled() {
        assert!(of("openshift_platform = 'AWS'").unwrap().is_none());
        let text = "openshift = true\nopenshift_cluster_network = '10.128.0.0/14'\nopenshift_service_network = '172.30.0.0/16'\nopenshift_routable_mtu = 1350";
        let settings = of(text).unwrap().unwrap();
        let network = settings.network.unwrap();
        assert_eq!((network.pods.host_subnet_length, settings.routable_mtu), (9, Some(1350)));
        assert_eq!(network.service.unwrap().to_string(), "172.30.0.0/16");
    }

    #[test]
    fn invalid_networks_are_refused() {
        for text in [
            "openshift_cluster_network = '10.128.0.1/14'",
            "openshift_cluster_network = '10.128.0.0/24'",
            "openshift_cluster_network = 'fd00::/64'",
            "openshift_host_prefix = 31",
            "openshift_service_network = '172.30.0.0'",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
