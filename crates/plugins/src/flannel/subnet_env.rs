//! Parses `subnet.env`, in which the flannel daemon of this node describes its lease (flannel.md
//! section 7.3). Pure.

use russet_addr::{Ipv4Net, Ipv6Net};

/// The contents that the plugin needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetEnv {
    /// IPv4 networks of all pods; several during a migration.
    pub networks: Vec<Ipv4Net>,
    /// IPv6 networks of all pods.
    pub networks_v6: Vec<Ipv6Net>,
    /// This node's IPv4 subnet, without host bits.
    pub subnet: Option<Ipv4Net>,
    /// This node's IPv6 subnet, without host bits.
    pub subnet_v6: Option<Ipv6Net>,
    /// MTU of pods, in bytes.
    pub mtu: u32,
    /// Whether the daemon masquerades.
    pub ip_masq: bool,
}

// === impl SubnetEnv ===

impl SubnetEnv {
    /// Parses the file's text. Unknown keys are ignored; missing ones are reported together.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut mtu, mut ip_masq) = (None, None);
        let mut env = Self {
            networks: Vec::new(),
            networks_v6: Vec::new(),
            subnet: None,
            subnet_v6: None,
            mtu: 0,
            ip_masq: false,
        };
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            match key {
                "FLANNEL_NETWORK" => env.networks = nets(key, value)?,
                "FLANNEL_IPV6_NETWORK" => env.networks_v6 = nets(key, value)?,
                "FLANNEL_SUBNET" => env.subnet = Some(net::<Ipv4Net>(key, value)?.trunc()),
                "FLANNEL_IPV6_SUBNET" => env.subnet_v6 = Some(net::<Ipv6Net>(key, value)?.trunc()),
                "FLANNEL_MTU" => {
                    mtu = Some(value.parse().map_err(|_| format!("{key}: {value:?} is no MTU"))?)
                }
                "FLANNEL_IPMASQ" => ip_masq = Some(value == "true"),
                _ => {}
            }
        }
        let missing: Vec<&str> = [
            (
                env.networks.is_empty() && env.networks_v6.is_empty(),
                "FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK",
            ),
            (env.subnet.is_none() && env.subnet_v6.is_none(), "FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET"),
            (mtu.is_none(), "FLANNEL_MTU"),
            (ip_masq.is_none(), "FLANNEL_IPMASQ"),
        ]
        .into_iter()
        .filter_map(|(missing, key)| missing.then_some(key))
        .collect();
        match (mtu, ip_masq) {
            (Some(mtu), Some(ip_masq)) if missing.is_empty() => Ok(Self { mtu, ip_masq, ..env }),
            _ => Err(format!("missing {}", missing.join(", "))),
        }
    }
}

/// A list separated by commas, without duplicates.
fn nets<N: std::str::FromStr + PartialEq>(key: &str, value: &str) -> Result<Vec<N>, String> {
    let mut nets = Vec::new();
    for text in value.split(',') {
        let net = net(key, text.trim())?;
        if !nets.contains(&net) {
            nets.push(net);
        }
    }
    Ok(nets)
}

fn net<N: std::str::FromStr>(key: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{key}: {text:?} is no network"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// flannel.md section 7.3
    const DUAL: &str = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:5::/48\nFLANNEL_IPV6_SUBNET=fd00:10:5:30::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    #[test]
    fn subnets_are_masked_and_networks_listed_once() {
        let env = SubnetEnv::parse(DUAL).unwrap();
        assert_eq!(env.subnet.unwrap().to_string(), "10.5.29.0/24");
        assert_eq!(env.subnet_v6.unwrap().to_string(), "fd00:10:5:30::/64");
        assert_eq!((env.mtu, env.ip_masq), (1450, true));
        let text = DUAL.replace("=10.5.0.0/16", "=10.5.0.0/16,10.6.0.0/16,10.5.0.0/16");
        assert_eq!(SubnetEnv::parse(&text).unwrap().networks.len(), 2);
        let text = DUAL.replace("IPMASQ=true", "IPMASQ=True");
        assert!(!SubnetEnv::parse(&text).unwrap().ip_masq, "only the exact text is true");
    }

    #[test]
    fn what_is_missing_is_named() {
        // flannel.md section 8, ADD step 1
        for (gone, named) in [
            (&["FLANNEL_MTU"][..], "missing FLANNEL_MTU"),
            (&["FLANNEL_IPMASQ"], "missing FLANNEL_IPMASQ"),
            (&["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"], "missing FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET"),
            (&["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"], "missing FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK"),
        ] {
            let left: Vec<&str> =
                DUAL.lines().filter(|line| !gone.contains(&line.split('=').next().unwrap())).collect();
            assert_eq!(SubnetEnv::parse(&left.join("\n")), Err(named.to_owned()));
        }
        let error = SubnetEnv::parse("").unwrap_err();
        assert!(["NETWORK", "SUBNET", "MTU", "IPMASQ"].iter().all(|key| error.contains(key)), "{error}");
        for bad in
            ["FLANNEL_MTU=x", "FLANNEL_SUBNET=10.5.0.0", "FLANNEL_NETWORK=", "FLANNEL_IPV6_SUBNET=10.0.0.0/8"]
        {
            let error = SubnetEnv::parse(&format!("{DUAL}{bad}\n")).unwrap_err();
            assert!(error.contains(bad.split('=').next().unwrap()), "{error}");
        }
    }
}
