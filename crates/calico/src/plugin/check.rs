//! CHECK and STATUS, which Calico's own plugin does not implement (calico-cni.md section 3.7).

use std::net::IpAddr;

use russet_addr::IpNet;
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, Interface, IpConfig, Verb};
use russet_wiring::{Delegate, Target, failure};

use super::{RequestContext, add, endpoint, own_ipam, ready, wire};
use crate::CalicoNode;
use crate::conf::CalicoConf;

/// Compares endpoint, addresses and interface with what ADD reported.
pub async fn run(context: &mut RequestContext<'_>) -> Result<(), CniError> {
    let (request, target) = (context.request, context.target);
    let netns = target.open_netns()?;
    let spec = match endpoint::find(&*context.datastore.store, &context.workload).await? {
        Some(stored) => stored.endpoint.spec,
        None => {
            return Err(lost(
                "the pod has no endpoint",
                "it was deleted while the pod was running; recreate the pod",
            ));
        }
    };
    if spec.container_id != target.id.container.as_str() {
        let details = format!("it belongs to container {}", spec.container_id);
        return Err(lost("the pod's endpoint is not this container's", &details));
    }
    let endpoints: Vec<IpAddr> = spec.ip_networks.iter().map(IpNet::addr).collect();
    let reported = reported(request, target)?.unwrap_or_else(|| endpoints.clone());
    if let Some(missing) = reported.iter().find(|address| !endpoints.contains(address)) {
        return Err(lost(
            &format!("{missing} is not in the pod's endpoint"),
            "the endpoint was changed after ADD; recreate the pod",
        ));
    }
    let mut attachment = wire::attachment(context.node, context.conf, target)?;
    attachment.routes = add::routes(context).await?;
    check_ipam(context, &reported).await?;
    attachment.addresses = reported;
    attachment.mac = spec.mac;
    attachment.mtu =
        recorded_mtu(request, target)?.map_or_else(|| ready::mtu_bytes(context.conf, context.root()), Ok)?;
    let mismatches = context.node.wiring.check(attachment, netns).await?;
    if mismatches.is_empty() {
        return Ok(());
    }
    let details: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
    Err(CniError::new(failure::WIRING, "the interface is not as ADD left it", details.join("; ")))
}

fn lost(msg: &str, details: &str) -> CniError {
    CniError::new(failure::NO_ADDRESS, msg, details)
}

/// Checks that the container still holds the addresses.
async fn check_ipam(context: &RequestContext<'_>, addresses: &[IpAddr]) -> Result<(), CniError> {
    match context.conf.ipam.kind.as_str() {
        "" => Ok(()),
        // Addresses from the annotation `ipAddrsNoIpam` are in no allocation.
        "calico-ipam" if context.conf.ip_addrs_no_ipam => Ok(()),
        "calico-ipam" => {
            let held = own_ipam::held(context).await?;
            match addresses.iter().find(|address| !held.contains(address)) {
                None => Ok(()),
                Some(missing) => {
                    let msg = format!("{missing} is no longer held by {}", context.workload.id.container);
                    Err(lost(&msg, "it was released while the pod was running; recreate the pod"))
                }
            }
        }
        kind => Delegate::new(kind, context.request, context.stdin.clone())?.call(Verb::Check).await,
    }
}

/// The addresses that ADD reported for this interface.
fn reported(request: &Request, target: &Target) -> Result<Option<Vec<IpAddr>>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours =
        |ip: &&IpConfig| previous.interface_of(ip).is_none_or(|it| it.name == target.id.ifname.as_str());
    Ok(Some(previous.ips.iter().filter(ours).map(|ip| ip.address.addr()).collect()))
}

/// The MTU that ADD reported; the MTU file may have changed since.
fn recorded_mtu(request: &Request, target: &Target) -> Result<Option<u32>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours = |it: &&Interface| it.name == target.id.ifname.as_str() && !it.sandbox.is_empty();
    Ok(previous.interfaces.iter().find(ours).and_then(|interface| interface.mtu))
}

/// Whether an ADD could be served.
pub async fn status(node: &CalicoNode, request: &Request, conf: &CalicoConf) -> Result<(), CniError> {
    russet_wiring::status(&*node.not_ready)?;
    conf.require_nodename_file(&node.host.root)?;
    let ready = async {
        let datastore = node.host.datastore(conf).await?;
        ready::datastore(&datastore).await?;
        if conf.ipam.is_calico() {
            datastore.require_node(&datastore.node_name(conf, &node.host.root).await?).await?;
        }
        Ok(())
    };
    let ready = conf.datastore.answer_in_time(ready);
    ready.await.map_err(|error: CniError| {
        CniError::not_available(
            "pods cannot be attached on this node yet",
            format!("{}; {}", error.msg, error.details),
        )
    })?;
    match conf.ipam.kind.as_str() {
        "" | "calico-ipam" => Ok(()),
        kind => Delegate::new(kind, request, request.stdin.clone())?.call(Verb::Status).await,
    }
}
