//! Who has the two addresses, by the datastore.

use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use russet_ipam::audit::Holder;
use russet_verdict::snapshot::Snapshot;

use super::report::Report;
use crate::command::Failure;
use crate::command::place::Place;
use crate::command::policy::datastore::pod_name;

/// The entry with the longest prefix that contains an address.
pub fn longest<T>(table: impl IntoIterator<Item = (IpNet, T)>, address: IpAddr) -> Option<(IpNet, T)> {
    let covering = table.into_iter().filter(|(net, _)| net.contains(&address));
    covering.max_by_key(|(net, _)| net.prefix_len())
}

/// The name of a family's protocol.
pub fn family(address: IpAddr) -> &'static str {
    match Family::of(address) {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The node whose address it is.
pub fn node_at(snapshot: &Snapshot, address: IpAddr) -> Option<&str> {
    let mut nodes = snapshot.nodes.iter();
    nodes.find(|(_, node)| node.addresses.contains(&address)).map(|(name, _)| name.as_str())
}

/// Compares who has an address by the policies' view and by the allocator.
pub async fn owners(
    place: &Place,
    snapshot: &Snapshot,
    (source, destination): (IpAddr, IpAddr),
    report: &mut Report,
) -> Result<(), Failure> {
    for address in [source, destination] {
        let pools = place.allocator().pools().await?;
        let Some(pool) = pools.iter().find(|pool| pool.spec.cidr.contains(&address)) else { continue };
        let held = place.allocator().holder_of(address).await?;
        let pod = snapshot.workload_at(address).map(|(_, endpoint)| pod_name(endpoint));
        let holder = held.as_ref().map(|held| Holder::of(&held.attribute));
        let assigned =
            holder.as_ref().and_then(|it| Some(format!("{}/{}", it.namespace.as_ref()?, it.pod.as_ref()?)));
        let (cidr, name) = (pool.spec.cidr, &pool.metadata.name);
        let released = held.as_ref().and_then(|held| held.attribute.released_at.clone());
        match (&pod, &held, &assigned) {
            (None, None, _) => report.finding(
                "address",
                format!("{address} is the address of no pod: it is free in pool {name} ({cidr})"),
            ),
            (_, Some(_), _) if released.is_some() => {
                let at = released.unwrap_or_default();
                report.finding("address", format!("{address} is the address of no pod: it was released at {at}"));
            }
            (Some(pod), None, _) => report.finding(
                "address",
                format!("{address} is an address of {pod}, and the allocator has assigned it to nothing"),
            ),
            (Some(pod), _, Some(assigned)) if pod != assigned => report.finding(
                "address",
                format!("{address} is an address of {pod}, and the allocator has assigned it to {assigned}"),
            ),
            (None, Some(_), Some(assigned)) if !place.is_kubernetes => {
                report.fact(format!("{address} is assigned to {assigned}"));
            }
            (None, Some(_), Some(assigned)) => report.finding(
                "address",
                format!("{address} is assigned to {assigned}, which does not exist: its address has not been released"),
            ),
            (None, Some(_), None) if node_at(snapshot, address).is_none() => {
                let handle = holder.and_then(|it| it.handle).unwrap_or_else(|| "no handle".to_owned());
                report.note("address", format!("{address} is assigned to no pod: {handle}"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let table = [("10.0.0.0/8", 1), ("10.1.0.0/16", 2), ("10.1.2.0/24", 3)];
        let table = table.map(|(net, value)| (net.parse().unwrap(), value));
        let found = |address: &str| longest(table, address.parse().unwrap()).map(|(_, value)| value);
        assert_eq!(
            [found("10.1.2.3"), found("10.1.3.3"), found("10.9.0.1"), found("11.0.0.1")],
            [Some(3), Some(2), Some(1), None]
        );
    }
}
