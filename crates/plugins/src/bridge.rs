//! `bridge`: a pod's interface as a port of a bridge, like the reference plugin of that name
//! (cni-runtime.md section 5, docs/plugins.md).
//!
//! Addresses are allocated first, then everything is wired in a few batches. After a failure, what
//! was done is undone and the addresses are released. IPAM plugins of ours run in this process.

mod addresses;
mod check;
mod conf;

use std::collections::BTreeSet;

use russet_attach::nat;
use russet_attach::{Attached, Bridge, Detachment, Dialect, Owner, Port};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, Interface, Verb};
use russet_netlink::BridgePort;
use russet_wiring::stages::{Stage, during};
use russet_wiring::{AttachFailure, LocalNode, Target, failure, gc};

use crate::delegation::Delegation;
use crate::requested;
use conf::Conf;
pub(crate) use conf::GUARD_BY_DEFAULT;

/// The plugin's name.
pub const NAME: &str = "bridge";

pub async fn run(node: &LocalNode, request: &Request) -> Result<Option<CniResult>, CniError> {
    let ipam = match request.config.ipam_kind() {
        Some(kind) => Some(Delegation::new(node, request, kind, request.stdin.clone())?),
        None => None,
    };
    match &request.env.call {
        Call::Add(target) => {
            add(node, request, &Target::from_request(request, target)?, ipam.as_ref()).await.map(Some)
        }
        Call::Del(target) => {
            del(node, request, &Target::from_request(request, target)?, ipam.as_ref()).await.map(|()| None)
        }
        Call::Check(target) => {
            check::check(node, request, &Target::from_request(request, target)?, ipam.as_ref())
                .await
                .map(|()| None)
        }
        Call::Gc => collect(node, request, ipam.as_ref()).await.map(|()| None),
        Call::Status => {
            Conf::read(request)?;
            match ipam {
                Some(ipam) => ipam.call(Verb::Status).await.map(|()| None),
                None => Ok(None),
            }
        }
    }
}

async fn add(
    node: &LocalNode,
    request: &Request,
    target: &Target,
    ipam: Option<&Delegation<'_>>,
) -> Result<CniResult, CniError> {
    request.env.args.check_known(&requested::ARGS)?;
    let conf = Conf::read(request)?;
    let netns = target.open_netns()?;
    // Before IPAM: the DEL after a failure would release an address of the existing interface.
    if node.wiring.has_interface(netns, target.id.ifname.clone()).await? {
        let msg = format!("container veth name ({}) already exists", target.id.ifname);
        return Err(CniError::new(failure::WIRING, msg, "DEL removes it"));
    }
    let Some(ipam) = ipam else {
        let mut result = CniResult::empty(request.config.cni_version);
        result.dns = request.config.dns.clone();
        let attached = wire(node, &conf, target, &result).await.map_err(|failure| failure.error)?;
        return Ok(with_interfaces(result, &conf, target, &attached));
    };
    let mut result = during(Stage::Address, ipam.add()).await?;
    match wire_with_addresses(node, request, &conf, target, &mut result).await {
        Ok(attached) => Ok(with_interfaces(result, &conf, target, &attached)),
        Err(failure) => Err(failure.give_back(ipam.call(Verb::Del)).await),
    }
}

/// Wires the interface with the addresses from IPAM. A failure undoes what was done.
async fn wire_with_addresses(
    node: &LocalNode,
    request: &Request,
    conf: &Conf,
    target: &Target,
    result: &mut CniResult,
) -> Result<Attached, AttachFailure> {
    if result.ips.is_empty() {
        let missing = "IPAM plugin returned missing IP config";
        return Err(CniError::internal(missing, "a pod behind a bridge needs an address").into());
    }
    result.cni_version = request.config.cni_version;
    addresses::complete(result, conf);
    if !request.config.dns.is_empty() {
        result.dns = request.config.dns.clone();
    }
    let attached = wire(node, conf, target, result).await?;
    if conf.ip_masq {
        let (owner, nets) = (owner(target), result.ips.iter().map(|ip| ip.address).collect::<Vec<_>>());
        let masqueraded = node.wiring.nat(move |nft| nat::masquerade(nft, &owner, &nets)).await;
        if let Err(mut error) = masqueraded {
            let undone = node.wiring.detach(detachment(node, target), target.netns_if_any()).await;
            node.teardown.doomed();
            if let Err(also) = &undone {
                error.details = format!("{}; the interface is still there: {also}", error.details);
            }
            return Err(AttachFailure { error, undone: undone.is_ok() });
        }
    }
    Ok(attached)
}

async fn wire(
    node: &LocalNode,
    conf: &Conf,
    target: &Target,
    result: &CniResult,
) -> Result<Attached, AttachFailure> {
    let port = port(node, conf, target, result)?;
    node.wiring.attach_port(port, target.open_netns()?, conf.check_required).await
}

/// The interface that implements `result`.
fn port(node: &LocalNode, conf: &Conf, target: &Target, result: &CniResult) -> Result<Port, CniError> {
    Ok(Port {
        id: target.id.clone(),
        host_name: Port::default_host_name(&target.id),
        bridge: Bridge {
            name: conf.bridge.clone(),
            mtu: conf.mtu,
            promiscuous: conf.promiscuous,
            gateways: addresses::gateways(result, conf),
            force_address: conf.force_address,
            mac: None,
        },
        mode: BridgePort { hairpin: conf.hairpin, isolated: conf.isolated },
        addresses: result.ips.iter().map(|ip| ip.address).collect(),
        routes: addresses::routes(result)?,
        mtu: conf.mtu,
        mac: conf.mac,
        sync_delete: node.teardown.is_synchronous(),
        source_check: conf.source_check.clone(),
    })
}

/// Adds bridge, host interface and pod interface, in the order of the reference plugin.
fn with_interfaces(mut result: CniResult, conf: &Conf, target: &Target, attached: &Attached) -> CniResult {
    let of_node = |name: String, mac: Option<String>| Interface {
        name,
        mac: mac.unwrap_or_default(),
        ..Interface::default()
    };
    result.interfaces = vec![
        of_node(conf.bridge.to_string(), attached.bridge_mac.map(|mac| mac.to_string())),
        of_node(attached.host_name.to_string(), Some(attached.host_mac.to_string())),
        Interface {
            name: target.id.ifname.to_string(),
            mac: attached.pod_mac.to_string(),
            sandbox: target.netns_path().to_owned(),
            mtu: Some(attached.mtu),
            ..Interface::default()
        },
    ];
    result
}

/// Removes the interface before the addresses: as long as it exists, it answers for them.
async fn del(
    node: &LocalNode,
    request: &Request,
    target: &Target,
    ipam: Option<&Delegation<'_>>,
) -> Result<(), CniError> {
    let detached = node.wiring.detach(detachment(node, target), target.netns_if_any()).await;
    node.teardown.doomed();
    detached?;
    if let (Some(netns), Some(bridge)) = (target.netns_if_any(), Conf::bridge_of(request)) {
        // The interface that the Go plugin made, if it did.
        node.wiring.detach_port(netns, target.id.ifname.clone(), bridge).await?;
    }
    let owner = owner(target);
    let masquerade_removed = node.wiring.forget(move |nft| nat::unmasquerade(nft, &owner)).await;
    if let Some(ipam) = ipam {
        during(Stage::Release, ipam.call(Verb::Del)).await?;
    }
    masquerade_removed
}

/// Continues after errors and reports them together.
async fn collect(node: &LocalNode, request: &Request, ipam: Option<&Delegation<'_>>) -> Result<(), CniError> {
    let valid = request.config.required_attachments()?;
    let network = request.config.name.clone();
    let (_, mut errors): (BTreeSet<_>, Vec<String>) =
        gc::detach_stale(&node.wiring, &node.teardown, &network, &valid).await?;
    if let Some(ipam) = ipam.filter(|_| errors.is_empty()) {
        errors.extend(ipam.call(Verb::Gc).await.err().map(|error| error.to_string()));
    }
    let valid: Vec<Owner> = valid.iter().map(Owner::new).collect();
    let collected = node.wiring.forget(move |nft| nat::collect_masquerade(nft, &network, &valid)).await;
    errors.extend(collected.err().map(|error| error.to_string()));
    if errors.is_empty() {
        return Ok(());
    }
    Err(CniError::new(
        failure::WIRING,
        "attachments that are no longer valid could not be removed",
        errors.join("; "),
    ))
}

fn owner(target: &Target) -> Owner {
    Owner::new(&target.id)
}

fn detachment(node: &LocalNode, target: &Target) -> Detachment {
    Detachment {
        id: target.id.clone(),
        host_name: Some(Port::default_host_name(&target.id)),
        by_name_alone: false,
        dialect: Dialect::Native,
        removal: node.teardown.removal(),
    }
}

#[cfg(test)]
mod tests;
