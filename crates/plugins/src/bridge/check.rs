//! CHECK of `bridge`: compares the previous result with the kernel's state.

use russet_addr::{IfName, Mac};
use russet_attach::{Owner, Port, nat, plan_port};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, CniResult, Interface, Verb};
use russet_wiring::{LocalNode, Target, failure};

use super::conf::Conf;
use crate::delegation::Delegation;

pub async fn check(
    node: &LocalNode,
    request: &Request,
    target: &Target,
    ipam: Option<&Delegation<'_>>,
) -> Result<(), CniError> {
    let conf = Conf::read(request)?;
    let netns = target.open_netns()?;
    if let Some(ipam) = ipam {
        ipam.call(Verb::Check).await?;
    }
    let previous = request.config.prev_result()?;
    let previous = previous
        .ok_or_else(|| CniError::invalid_config("required prevResult missing", "CHECK compares with it"))?;
    let named = Named::find(&previous, &conf, target)?;
    let mut port = super::port(node, &conf, target, &of_pod(&previous, named.pod_index))?;
    port.host_name = named.host.clone();
    port.mac = Some(named.pod_mac);
    let ours = port.host_name == Port::default_host_name(&target.id);
    let owner = port.owner();
    let addresses = port.addresses.clone();
    let plan =
        plan_port(&port).map_err(|error| CniError::invalid_config("the interface cannot be", error))?;
    let mut found: Vec<String> =
        node.wiring.check_plan(plan, netns).await?.iter().map(ToString::to_string).collect();
    found.extend(bridge_differs(node, &conf, &named).await?);
    // The Go plugin puts no guard on its port.
    if ours && !node.wiring.is_port_guarded(port).await? {
        let what = "what its port of the bridge may send is not what table bridge russet-policy checks";
        found.push(what.to_owned());
    }
    // The Go plugin masquerades by iptables, which is not checked.
    if conf.ip_masq && ours {
        found.extend(masquerade_missing(node, owner, addresses).await?);
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(CniError::new(failure::WIRING, "the interface is not as it was made", found.join("; ")))
}

/// The interfaces of this plugin in a result.
struct Named {
    bridge_mac: String,
    host: IfName,
    pod_mac: Mac,
    pod_index: u32,
}

// === impl Named ===

impl Named {
    fn find(previous: &CniResult, conf: &Conf, target: &Target) -> Result<Self, CniError> {
        let missing = |what: &str| CniError::invalid_config(format!("prevResult names no {what}"), "");
        let of_node = |it: &&Interface| it.sandbox.is_empty();
        let bridge = previous.interfaces.iter().filter(of_node).find(|it| it.name == conf.bridge.as_str());
        let bridge = bridge.ok_or_else(|| missing(&format!("bridge {}", conf.bridge)))?;
        let host = previous.interfaces.iter().filter(of_node).find(|it| it.name != bridge.name);
        let host =
            host.and_then(|it| IfName::new(it.name.as_str()).ok()).ok_or_else(|| missing("host end"))?;
        let is_pod =
            |it: &Interface| it.name == target.id.ifname.as_str() && it.sandbox == target.netns_path();
        let pod = previous.interfaces.iter().enumerate().find(|(_, it)| is_pod(it));
        let (index, pod) =
            pod.ok_or_else(|| missing(&format!("{} in {:?}", target.id.ifname, target.netns_path())))?;
        let mac = pod.mac.parse();
        Ok(Self {
            bridge_mac: bridge.mac.clone(),
            host,
            pod_mac: mac.map_err(|_| missing(&format!("MAC of {}", target.id.ifname)))?,
            pod_index: u32::try_from(index).unwrap_or(u32::MAX),
        })
    }
}

/// The result with the pod's own addresses only: other plugins of the chain may have added
/// addresses of other interfaces.
fn of_pod(previous: &CniResult, index: u32) -> CniResult {
    let mut result = previous.clone();
    result.ips.retain(|ip| ip.interface.is_none_or(|it| it == index));
    result
}

async fn bridge_differs(node: &LocalNode, conf: &Conf, named: &Named) -> Result<Option<String>, CniError> {
    let name = &conf.bridge;
    let Some(link) = node.wiring.link(name.clone()).await? else {
        return Ok(Some(format!("bridge {name}: missing")));
    };
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    Ok(if link.kind.as_deref() != Some("bridge") {
        Some(format!("{name} does not have link type of bridge"))
    } else if !named.bridge_mac.is_empty() && named.bridge_mac != mac {
        Some(format!("mac of {name}: {mac}, should be {}", named.bridge_mac))
    } else if link.is_promiscuous() != conf.promiscuous {
        Some(format!("promiscuity of {name}: {}, should be {}", link.is_promiscuous(), conf.promiscuous))
    } else {
        None
    })
}

async fn masquerade_missing(
    node: &LocalNode,
    owner: Owner,
    addresses: Vec<russet_addr::IpNet>,
) -> Result<Option<String>, CniError> {
    let there = node.wiring.nat(move |nft| nat::masqueraded(nft, &owner, &addresses)).await?;
    Ok((!there).then(|| "the pod's addresses are not masqueraded".to_owned()))
}
