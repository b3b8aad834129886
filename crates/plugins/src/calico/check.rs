//! CHECK and STATUS, of which Calico's own plugin has nothing to offer (calico-cni.md section 3.7).

use std::net::IpAddr;

use russet_addr::IpNet;
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, Interface, IpConfig, Verb};

use super::{Scene, add, endpoint, own_ipam, ready, wire};
use crate::calico_conf::CalicoConf;
use crate::delegate::Delegate;
use crate::target::Target;
use crate::{CalicoNode, failure};

/// Compares endpoint, addresses and interface with what ADD reported.
pub async fn run(scene: &mut Scene<'_>) -> Result<(), CniError> {
    let (request, target) = (scene.request, scene.target);
    let netns = target.open_netns()?;
    let spec = match endpoint::find(&*scene.datastore.store, &scene.workload).await? {
        Some(stored) => stored.endpoint.spec,
        None => return Err(lost("the pod has no endpoint", "somebody deleted it while the pod was running")),
    };
    if spec.container_id != target.container.as_str() {
        let details = format!("it belongs to container {}", spec.container_id);
        return Err(lost("the pod's endpoint is not this container's", &details));
    }
    let endpoints: Vec<IpAddr> = spec.ip_networks.iter().map(IpNet::addr).collect();
    let reported = reported(request, target)?.unwrap_or_else(|| endpoints.clone());
    if let Some(missing) = reported.iter().find(|address| !endpoints.contains(address)) {
        return Err(lost(&format!("{missing} is not in the pod's endpoint"), "somebody changed it"));
    }
    let mut attachment = wire::attachment(scene.node, scene.conf, target)?;
    attachment.routes = add::routes(scene).await?;
    check_ipam(scene, &reported).await?;
    attachment.addresses = reported;
    attachment.mac = spec.mac;
    attachment.mtu =
        recorded_mtu(request, target)?.map_or_else(|| ready::mtu_bytes(scene.conf, scene.root()), Ok)?;
    let mismatches = scene.node.wiring.check(attachment, netns).await?;
    if mismatches.is_empty() {
        return Ok(());
    }
    let details: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
    Err(CniError::new(failure::WIRING, "the interface is not as ADD left it", details.join("; ")))
}

fn lost(msg: &str, details: &str) -> CniError {
    CniError::new(failure::NO_ADDRESS, msg, details)
}

/// Whether the addresses are still the container's.
async fn check_ipam(scene: &Scene<'_>, addresses: &[IpAddr]) -> Result<(), CniError> {
    match scene.conf.ipam.kind.as_str() {
        "" => Ok(()),
        // Addresses that an annotation took without asking are held by nobody.
        "calico-ipam" if scene.conf.ip_addrs_no_ipam => Ok(()),
        "calico-ipam" => {
            let held = own_ipam::held(scene).await?;
            match addresses.iter().find(|address| !held.contains(address)) {
                None => Ok(()),
                Some(missing) => {
                    let msg = format!("{missing} is no longer held by {}", scene.workload.container);
                    Err(lost(&msg, "somebody released it while the pod was running"))
                }
            }
        }
        kind => Delegate::new(kind, scene.request, scene.stdin.clone())?.tell(Verb::Check).await,
    }
}

/// The addresses that ADD reported for this interface.
fn reported(request: &Request, target: &Target) -> Result<Option<Vec<IpAddr>>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours = |ip: &&IpConfig| previous.interface_of(ip).is_none_or(|it| it.name == target.ifname.as_str());
    Ok(Some(previous.ips.iter().filter(ours).map(|ip| ip.address.addr()).collect()))
}

/// The MTU that ADD reported: the file's may have changed since.
fn recorded_mtu(request: &Request, target: &Target) -> Result<Option<u32>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours = |it: &&Interface| it.name == target.ifname.as_str() && !it.sandbox.is_empty();
    Ok(previous.interfaces.iter().find(ours).and_then(|interface| interface.mtu))
}

/// Whether an ADD could be served.
pub async fn status(node: &CalicoNode, request: &Request, conf: &CalicoConf) -> Result<(), CniError> {
    crate::russet::status(&*node.not_ready)?;
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
        kind => Delegate::new(kind, request, request.stdin.clone())?.tell(Verb::Status).await,
    }
}
