//! CHECK and STATUS, which Go's plugin has not: CHECK verifies what ADD left, STATUS what ADD would
//! need.

use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, IpConfig};
use russet_wiring::failure;

use super::{Subject, Wanted};
use crate::conf::CalicoConf;
use crate::datastore::{CalicoHost, Datastore};

/// Checks that the interface still holds the addresses that ADD allocated.
pub(super) async fn check(
    host: &CalicoHost,
    conf: &CalicoConf,
    request: &Request,
    target: &russet_cni_spec::Target,
) -> Result<(), CniError> {
    let subject = Subject::from_request(request, target)?;
    let datastore = host.datastore(conf).await?;
    let held = datastore.allocator.ips_by_handle(&subject.handle()).await;
    let held = held.map_err(|error| failure::ipam("the pod's addresses could not be read", error))?;
    let held: Vec<IpAddr> = held.iter().filter(|held| subject.holds(held)).map(|held| held.address).collect();
    let lost = |address: &dyn std::fmt::Display| {
        let msg = format!("{address} is not held by handle {}", subject.handle());
        CniError::new(failure::NO_ADDRESS, msg, "it was released while the pod was running; recreate the pod")
    };
    let Some(reported) = reported(request, &subject)? else {
        return if held.is_empty() { Err(lost(&"an address")) } else { Ok(()) };
    };
    if !reported.iter().any(|address| held.contains(address)) {
        return Err(lost(&format!("none of {reported:?}")));
    }
    for address in reported.iter().filter(|address| !held.contains(address)) {
        if in_a_pool(&datastore, *address).await? {
            return Err(lost(address));
        }
    }
    Ok(())
}

/// The addresses of `prevResult` on this interface. The main plugin may have combined results of
/// several plugins.
fn reported(request: &Request, subject: &Subject) -> Result<Option<Vec<IpAddr>>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours =
        |ip: &&IpConfig| previous.interface_of(ip).is_none_or(|it| it.name == subject.id.ifname.as_str());
    Ok(Some(previous.ips.iter().filter(ours).map(|ip| ip.address.addr()).collect()))
}

/// Addresses outside all pools come from another plugin.
async fn in_a_pool(datastore: &Datastore, address: IpAddr) -> Result<bool, CniError> {
    let host = IpNet::from(address);
    Ok(datastore.pools().await?.iter().any(|pool| pool.spec.cidr.contains(&host)))
}

/// Succeeds if an ADD could be served: the datastore answers, and each requested family has an
/// enabled pool.
pub(super) async fn status(host: &CalicoHost, conf: &CalicoConf) -> Result<(), CniError> {
    let unavailable =
        |error: CniError| CniError::not_available("no address can be given on this node", error);
    let Wanted::Families { v4, v6, .. } = Wanted::from_conf(conf, None)? else { return Ok(()) };
    let pools = async {
        let datastore = host.datastore(conf).await?;
        let node = datastore.node_name(conf, &host.root).await?;
        datastore.require_node(&node).await?;
        datastore.pools().await
    };
    let pools = conf.datastore.answer_in_time(pools).await.map_err(unavailable)?;
    for family in [(v4, Family::V4), (v6, Family::V6)].into_iter().filter_map(|(on, it)| on.then_some(it)) {
        if !pools.iter().any(|pool| pool.spec.family() == family && pool.is_enabled()) {
            let details = "create one, or switch the family off in `ipam`";
            return Err(CniError::not_available(format!("there is no enabled {family} pool"), details));
        }
    }
    Ok(())
}
