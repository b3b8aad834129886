//! GC: releases addresses that this node holds in the network and that are not in the request's
//! list of valid attachments.

use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use russet_wiring::gc::{stale_addresses, unused};
use russet_wiring::{RequestLog, failure};

use crate::conf::CalicoConf;
use crate::datastore::CalicoHost;

use super::assign::{BUDGET, within};

/// A request without a list is refused, because it does not say what is valid.
pub(super) async fn gc(
    host: &CalicoHost,
    conf: &CalicoConf,
    request: &Request,
    log: &RequestLog,
) -> Result<(), CniError> {
    let valid = request.config.required_attachments()?;
    let datastore = host.datastore(conf).await?;
    let node = datastore.node_name(conf, &host.root).await?;
    let allocator = within(&datastore.allocator, BUDGET);
    let stale = stale_addresses(&allocator, &node, &conf.network, &valid).await?;
    let stale = unused(&*datastore.store, stale, &valid).await?;
    if stale.is_empty() {
        return Ok(());
    }
    let released = allocator.release_ips(&stale).await;
    let released = released
        .map_err(|error| failure::ipam("addresses that are no longer valid are still held", error))?;
    log.info(format!("Calico CNI IPAM released {:?}: no valid attachment has them", released.addresses));
    Ok(())
}
