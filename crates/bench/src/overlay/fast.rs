//! The fast path beside what is there already, as the agent keeps it (`russet_overlay::fast_path`).

use std::collections::BTreeMap;

use russet_linux::bpf::Way;
use russet_netlink::Socket;
use russet_overlay::ROUTE_PROTOCOL;
use russet_overlay::fast_path::{FastPath, FlowEpoch, KernelPath, content};

use crate::overlay::node::{HOST_PREFIX, Node};
use crate::{BoxError, Result};

/// Attaches it to a node that is complete.
pub fn start(node: &Node) -> Result<FastPath> {
    let attach = || {
        let way = Way::probe();
        let mut fast_path = FastPath::load(way, &FlowEpoch::default())?;
        let kernel = KernelPath::read(way, &mut Socket::route()?, &mut BTreeMap::new())?;
        let content = content(&kernel, HOST_PREFIX, ROUTE_PROTOCOL);
        if content.endpoints.is_empty() || content.prefixes.is_empty() {
            return Err(format!("the fast path leads nowhere: {content:?}").into());
        }
        let applied = fast_path.apply(content, usize::MAX)?;
        match applied.failed {
            Some(reason) => Err(reason.into()),
            None => Ok::<_, BoxError>(fast_path),
        }
    };
    let fast_path = node.host.run_in_thread(attach)??;
    // As the agent sets it. Nothing is tracked on a node without rules.
    let _ = node.set("net/netfilter/nf_conntrack_tcp_be_liberal", "1");
    Ok(fast_path)
}
