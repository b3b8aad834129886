//! `portmap`: publishes ports of a pod on the node (cni-runtime.md sections 5 and A.4,
//! docs/plugins.md). Chained after the plugin that made the interface. All changes are one
//! transaction in nf_tables, and every element is labelled with its owner.

mod conf;
mod legacy;
mod reference;

use std::net::IpAddr;

use russet_addr::IpNet;
use russet_attach::Owner;
use russet_attach::nat::{self, Publication, PublishError};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, Target};
use russet_wiring::{LocalNode, failure};

use conf::Conf;

/// The plugin's name.
pub const NAME: &str = "portmap";

pub async fn run(node: &LocalNode, request: &Request) -> Result<Option<CniResult>, CniError> {
    match &request.env.call {
        Call::Add(target) => add(node, request, target).await.map(Some),
        Call::Check(target) => check(node, request, target).await.map(|()| None),
        Call::Del(target) => {
            let owner = Owner::new(&target.id);
            let unpublished = node.wiring.forget(move |nft| nat::unpublish(nft, &owner)).await;
            reference::remove(node, request, target).await.and(unpublished).map(|()| None)
        }
        Call::Gc => {
            let valid = request.config.required_attachments()?;
            let network = request.config.name.clone();
            let owners: Vec<Owner> = valid.iter().map(Owner::new).collect();
            let collected = node.wiring.forget(move |nft| nat::collect_ports(nft, &network, &owners)).await;
            reference::collect(node, &request.config.name, &valid).await.and(collected).map(|()| None)
        }
        Call::Status => {
            Conf::read(request)?;
            node.wiring.nat(|nft| Ok(nft.tables().map(drop)?)).await.map(|()| None)
        }
    }
}

async fn add(node: &LocalNode, request: &Request, target: &Target) -> Result<CniResult, CniError> {
    let previous = previous(request)?;
    let conf = Conf::read(request)?;
    if conf.is_empty() {
        return Ok(previous);
    }
    let what = conf.publication(Owner::new(&target.id), &previous);
    let from_loopback: Vec<IpAddr> = what.hairpin.iter().map(IpNet::addr).filter(IpAddr::is_ipv4).collect();
    node.wiring.nat(move |nft| Ok(nat::publish(nft, &what))).await?.map_err(refused)?;
    // Only now: the transaction above contains the guard that keeps other hosts from reaching the
    // node's 127.0.0.1.
    for pod in from_loopback {
        if let Err(mut error) = node.wiring.route_localnet(pod).await {
            let owner = Owner::new(&target.id);
            if let Err(also) = node.wiring.nat(move |nft| nat::unpublish(nft, &owner)).await {
                error.details = format!("{}; the ports are published until DEL: {also}", error.details);
            }
            return Err(error);
        }
    }
    // The reference plugin's rules come before ours: while they exist, a port that this ADD moved
    // leads to its old address.
    reference::remove(node, request, target).await?;
    Ok(previous)
}

async fn check(node: &LocalNode, request: &Request, target: &Target) -> Result<(), CniError> {
    let conf = Conf::read(request)?;
    let previous = previous(request)?;
    if conf.is_empty() {
        return Ok(());
    }
    let what: Publication = conf.publication(Owner::new(&target.id), &previous);
    let rules = what.rules.clone();
    let missing = node.wiring.nat(move |nft| nat::unpublished(nft, &what)).await?;
    if missing.is_empty() || reference::publishes(node, request, target, rules).await? {
        return Ok(());
    }
    Err(CniError::new(failure::WIRING, "portmap: not everything is published any more", missing.join("; ")))
}

/// The previous result. Without one the plugin cannot work, because it makes no interface of its
/// own.
fn previous(request: &Request) -> Result<CniResult, CniError> {
    let previous = request.config.prev_result()?;
    previous.ok_or_else(|| {
        CniError::internal("portmap: must be called as chained plugin", "prevResult is missing")
    })
}

fn refused(error: PublishError) -> CniError {
    match error {
        PublishError::Nat(error) => failure::nat(error),
        taken @ PublishError::Taken { .. } => {
            CniError::new(failure::PORT_TAKEN, "portmap: a port of the node is taken", taken)
        }
    }
}

#[cfg(test)]
mod tests;
