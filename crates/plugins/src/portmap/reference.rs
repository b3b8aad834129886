//! Host ports that the reference plugin `portmap` (versions 0.9 to 1.9) published before Russet
//! replaced it. Its rules are evaluated before ours: rules that it left would lead a container's
//! ports to an address that is gone.

use std::collections::BTreeSet;

use russet_addr::{ContainerId, EndpointId, Family, NetworkName};
use russet_attach::nat::{self, PortRule, ReferencePorts};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, Target};
use russet_wiring::LocalNode;

use super::legacy;

/// iptables' limit for chain names.
const CHAIN_CHARS: usize = 28;

/// Removes the ports that the reference plugin published for the request's container, in nf_tables
/// and in legacy iptables.
pub async fn remove(node: &LocalNode, request: &Request, target: &Target) -> Result<(), CniError> {
    let ports = ports_of(request.config.name.as_str(), target.id.container.as_str());
    let chains = BTreeSet::from([ports.dnat_chain.clone(), ports.snat_chain.clone()]);
    let removed = node.wiring.forget(move |nft| nat::remove_reference_ports(nft, &ports)).await;
    node.wiring.iptables(move || legacy::remove(&chains)).await.and(removed)
}

/// Removes the ports that it published for containers of the network that are not valid. Rules in
/// its own nf_tables table do not name their network: they are left to the container's DEL.
pub async fn collect(node: &LocalNode, network: &NetworkName, valid: &[EndpointId]) -> Result<(), CniError> {
    let valid: BTreeSet<ContainerId> = valid.iter().map(|it| it.container.clone()).collect();
    let (network, of_legacy) = (network.clone(), (network.clone(), valid.clone()));
    let collected = node.wiring.forget(move |nft| {
        for ports in stale(&nat::reference_comments(nft)?, &network, &valid) {
            nat::remove_reference_ports(nft, &ReferencePorts { container: String::new(), ..ports })?;
        }
        Ok(())
    });
    let collected = collected.await;
    let (network, valid) = of_legacy;
    let work = move || {
        let stale = stale(&legacy::comments()?, &network, &valid);
        legacy::remove(&stale.into_iter().flat_map(|it| [it.dnat_chain, it.snat_chain]).collect())
    };
    node.wiring.iptables(work).await.and(collected)
}

/// Whether the reference plugin publishes all of these ports for the request's container.
pub async fn publishes(
    node: &LocalNode,
    request: &Request,
    target: &Target,
    rules: Vec<PortRule>,
) -> Result<bool, CniError> {
    let ports = ports_of(request.config.name.as_str(), target.id.container.as_str());
    for family in Family::BOTH {
        let wanted = rules.iter().filter(|rule| Family::of(rule.to) == family).count();
        let (in_nft, in_legacy) = (ports.clone(), ports.clone());
        let mut found = node.wiring.nat(move |nft| nat::count_reference_ports(nft, &in_nft, family)).await?;
        if found < wanted {
            found += node.wiring.iptables(move || legacy::count(&in_legacy.dnat_chain, family)).await?;
        }
        if found < wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The published ports of the network's containers that are not valid.
fn stale(
    comments: &BTreeSet<String>,
    network: &NetworkName,
    valid: &BTreeSet<ContainerId>,
) -> Vec<ReferencePorts> {
    let stale = |comment: &String| {
        let (of, container) = nat::reference_comment(comment)?;
        let is_valid = valid.iter().any(|it| it.as_str() == container);
        (of == network.as_str() && !is_valid).then(|| ports_of(of, container))
    };
    comments.iter().filter_map(stale).collect()
}

fn ports_of(network: &str, container: &str) -> ReferencePorts {
    let digest = ring::digest::digest(&ring::digest::SHA512, format!("{network}{container}").as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let chain = |prefix: &str| format!("{prefix}{hex}").chars().take(CHAIN_CHARS).collect();
    ReferencePorts {
        container: container.to_owned(),
        dnat_chain: chain("CNI-DN-"),
        snat_chain: chain("CNI-SN-"),
    }
}

#[cfg(test)]
mod tests;
