//! BIG TCP: how large packets of pods may be inside the kernel. A new veth has its sizes from the message that creates
//! it; this changes those of links that are there. Which links get which sizes is the agent's decision
//! (`agent/src/big_tcp.rs`).

mod probe;

use std::path::Path;

use russet_addr::IfName;
use russet_linux::NetNs;
use russet_netlink::{Batch, Link, LinkSet, NetlinkError, PacketSizes, Socket};

use crate::executor::AttachCause;
use crate::inspect;

pub use probe::{ProbeError, probe};

/// Gives both ends of a pod's veth these sizes. The host end is last: if it has them, so has the pod's. `host_end` is
/// the host end as it is, and `netns` the pod's namespace.
pub fn set_pod(
    host: &mut Socket,
    host_end: &Link,
    (netns, ifname): (&Path, &IfName),
    sizes: PacketSizes,
) -> Result<(), AttachCause> {
    let pod_netns = NetNs::open(netns)?;
    if inspect::is_own(&pod_netns)? {
        return Err(AttachCause::OwnNamespace(netns.to_owned()));
    }
    let mut pod = pod_netns.with(Socket::route)??;
    let pair = |pod: &Link| inspect::is_pair(host_end, pod);
    let pod_end = inspect::by_name(&mut pod, ifname)?.filter(pair);
    let pod_end = pod_end.ok_or_else(|| AttachCause::Vanished(ifname.to_string()))?;
    set_link(&mut pod, &pod_end, sizes)?;
    Ok(set_link(host, host_end, sizes)?)
}

/// Gives a link these sizes, if it has others.
pub fn set_link(socket: &mut Socket, link: &Link, sizes: PacketSizes) -> Result<(), NetlinkError> {
    if link.sizes == sizes {
        return Ok(());
    }
    let mut batch = Batch::new();
    batch.set_link(&LinkSet { sizes: Some(sizes), ..LinkSet::index(link.index) });
    socket.execute(&batch).map_err(NetlinkError::from)
}
