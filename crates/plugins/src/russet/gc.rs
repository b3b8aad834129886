//! GC: removes interfaces and addresses of a network on this node that are not in the request's
//! list of valid attachments (cni-runtime.md section 1.5).

use russet_addr::{EndpointId, NetworkName};
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use russet_wiring::failure;
use russet_wiring::gc::{detach_stale, stale_addresses};

use crate::node::Node;

/// Continues after errors and reports them together. A request without a list is refused, because
/// it does not say what is valid.
pub async fn run(node: &Node, request: &Request) -> Result<(), CniError> {
    let valid = request.config.required_attachments()?;
    let network = &request.config.name;
    let (_, mut errors) = detach_stale(&node.host.wiring, &node.host.teardown, network, &valid).await?;
    // Interfaces that disappeared without a DEL have stale verdicts, too.
    let verdicts = node.host.wiring.reconcile_verdicts().await;
    if errors.is_empty() {
        // Only if all interfaces are gone: one that could not be removed may still answer for its
        // address. A stale verdict does not matter for that.
        release_stale(node, network, &valid).await?;
        return verdicts.map(drop);
    }
    errors.extend(verdicts.err().map(|error| error.to_string()));
    Err(CniError::new(
        failure::WIRING,
        "attachments that are no longer valid could not be removed",
        errors.join("; "),
    ))
}

async fn release_stale(node: &Node, network: &NetworkName, valid: &[EndpointId]) -> Result<(), CniError> {
    let stale = stale_addresses(&node.allocator, &node.name, network, valid).await?;
    let released = node.allocator.release_ips(&stale).await;
    released
        .map(drop)
        .map_err(|error| failure::ipam("addresses that are no longer valid are still held", error))
}
