//! GC: takes down what is in a network on this node and in nobody's list (cni-runtime.md section 1.5).

use russet_addr::{ContainerId, Family, IfName, NetworkName};
use russet_attach::OwnedLink;
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, ValidAttachment};
use russet_model::{Attribute, Block, HandleId, Key, KeyKind, Prefix};

use crate::failure;
use crate::node::Node;

/// What a container holds in a block of this node.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    container: ContainerId,
    /// None in entries of Go peers, which do not say.
    ifname: Option<IfName>,
}

/// Goes on past errors and tells them together. A request without a list says nothing about what is valid.
pub async fn run(node: &Node, request: &Request) -> Result<(), CniError> {
    let Some(valid) = request.config.valid_attachments()? else { return Ok(()) };
    let network = &request.config.name;
    let mut errors = detach_stale(node, network, &valid).await?;
    for entry in entries(node, network).await? {
        if is_valid(&valid, &entry.container, entry.ifname.as_ref()) {
            continue;
        }
        let handle = HandleId::pod(network, &entry.container);
        let released = node.allocator.release_by_handle(&handle, entry.ifname.as_ref()).await;
        errors.extend(released.err().map(|error| error.to_string()));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(CniError::new(failure::WIRING, "some of what is no longer valid is still there", errors.join("; ")))
}

fn is_valid(valid: &[ValidAttachment], container: &ContainerId, ifname: Option<&IfName>) -> bool {
    valid.iter().any(|it| it.container_id == *container && ifname.is_none_or(|ifname| it.ifname == *ifname))
}

async fn detach_stale(
    node: &Node,
    network: &NetworkName,
    valid: &[ValidAttachment],
) -> Result<Vec<String>, CniError> {
    let mut errors = Vec::new();
    let stale = |link: &OwnedLink| {
        let container = link.owner.container();
        // A container whose name did not fit into the alias is left to its own DEL.
        !link.doomed
            && link.owner.network() == network
            && container.is_some_and(|it| !is_valid(valid, it, link.owner.ifname()))
    };
    for link in node.wiring.list().await?.into_iter().filter(stale) {
        let removal = node.teardown.removal();
        errors.extend(node.wiring.detach_owned(link, removal).await.err().map(|error| error.to_string()));
    }
    node.teardown.doomed();
    Ok(errors)
}

/// What containers of `network` hold in this node's own blocks.
async fn entries(node: &Node, network: &NetworkName) -> Result<Vec<Entry>, CniError> {
    let failed = |error: russet_store::StoreError| {
        failure::store("the node's blocks could not be read", &error, &error)
    };
    let mut entries = Vec::new();
    for family in Family::BOTH {
        let owned = node.store.list(&Prefix::affinities_of(&node.name, family)).await.map_err(failed)?;
        for record in owned.records {
            let KeyKind::Affinity { block, .. } = record.key.kind() else { continue };
            let Some(record) = node.store.get(&Key::block(block)).await.map_err(failed)? else { continue };
            let Ok(block) = Block::decode(&record.value) else { continue };
            entries.extend(block.attributes().iter().filter_map(|attribute| entry(node, network, attribute)));
        }
    }
    entries.sort();
    entries.dedup();
    Ok(entries)
}

/// Only what this node holds in this network: blocks are shared with peers (calico-cni.md section 3.7).
fn entry(node: &Node, network: &NetworkName, attribute: &Attribute) -> Option<Entry> {
    if attribute.get("node") != Some(node.name.as_str()) {
        return None;
    }
    let handle = attribute.handle_id.as_deref()?;
    let container = handle.strip_prefix(network.as_str())?.strip_prefix('.')?;
    Some(Entry {
        container: ContainerId::new(container).ok()?,
        ifname: attribute.get("interface").and_then(|name| IfName::new(name).ok()),
    })
}
