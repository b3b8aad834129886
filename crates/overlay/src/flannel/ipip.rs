//! The ipip backend: a device without a remote, and routes through it whose gateways are the peers themselves (flannel.md section
//! 6.4). Called by `fabric` for the device and by `rules` for the peers.

use std::net::IpAddr;

use russet_addr::{IpNet, host_net};
use russet_netlink::{
    Address, Batch, BatchError, Ipip, Link, LinkAdd, LinkDel, LinkKind, LinkSet, NetlinkError, Scope, Socket,
};

use super::rules::{Near, PeerPath};
use super::{FlannelError, Underlay};
use crate::apply::ignore_router_advertisements;
use crate::owner::Owner;
use crate::refusal::Reason;
use crate::report::{Kind, ReconcileReport};

/// The device's name.
pub(crate) const DEVICE: &str = "flannel.ipip";
const OVERHEAD: u32 = 20;
/// The feature's name in errors where the kernel lacks it.
const FEATURE: &str = "IP-in-IP tunnels (CONFIG_NET_IPIP, module ipip)";

/// The wanted device.
pub(crate) struct Device<'a> {
    pub(crate) underlay: &'a Underlay,
    /// Our own subnet, once leased.
    pub(crate) own: Option<IpNet>,
}

/// The path to the peer at `public`.
pub(crate) fn path(
    direct: bool,
    tunnel: Option<u32>,
    public: IpAddr,
    near: Near<'_>,
) -> Result<PeerPath, Reason> {
    let ifindex = if direct { near(public) } else { None };
    let ifindex = ifindex.or(tunnel).ok_or(Reason::NoTunnelEndpoint)?;
    Ok(PeerPath::Direct { ifindex, gateway: public })
}

// === impl Device ===

impl Device<'_> {
    /// Creates or adopts the device; returns its index.
    pub(crate) fn ensure(
        &self,
        socket: &mut Socket,
        owner: &Owner,
        report: &mut ReconcileReport,
    ) -> Result<u32, FlannelError> {
        let (Some(name), Some(local)) = (owner.names[0].as_ref(), self.underlay.v4) else {
            let interface = self.underlay.name.clone();
            return Err(FlannelError::NoAddress {
                interface,
                family: russet_addr::Family::V4,
                backend: "ipip",
            });
        };
        let wanted = Ipip { local: Some(local.into()), remote: None };
        let found = match socket.link_by_name(name) {
            Err(error) if error.is_not_found() => None,
            result => Some(result?),
        };
        let link = match found {
            Some(link) if link.kind.as_deref() != Some("ipip") => {
                return Err(FlannelError::Taken { device: name.clone(), wanted: "ipip" });
            }
            Some(link) if link.ipip == Some(wanted) => link,
            found => {
                let mut batch = Batch::new();
                if let Some(link) = found {
                    let why = differences(link.ipip.unwrap_or_default(), wanted);
                    report.replaced.push(format!("{name}: {why}"));
                    batch.delete_link(&LinkDel::Index(link.index));
                }
                let mtu_bytes = Some(self.mtu());
                batch.add_link(&LinkAdd { mtu_bytes, ..LinkAdd::new(name.clone(), LinkKind::Ipip(wanted)) });
                socket.execute(&batch).map_err(unsupported)?;
                report.count(Kind::Device);
                socket.link_by_name(name)?
            }
        };
        ignore_router_advertisements(name, report);
        self.adjust(socket, owner, &link, report)?;
        Ok(link.index)
    }

    /// Sets addresses and MTU. An MTU below the needed one is kept.
    fn adjust(
        &self,
        socket: &mut Socket,
        owner: &Owner,
        link: &Link,
        report: &mut ReconcileReport,
    ) -> Result<(), NetlinkError> {
        let mut batch = Batch::new();
        let mut kinds = Vec::new();
        if link.mtu_bytes > self.mtu() {
            batch.set_link(&LinkSet { mtu_bytes: Some(self.mtu()), ..LinkSet::index(link.index) });
            kinds.push(Kind::Device);
        }
        if let Some(own) = self.own {
            let own = host_net(own.addr());
            let found = socket.addresses_of(link.index)?;
            let ours = |a: &&Address| a.scope == Scope::Universe && owner.owns_address(&a.net);
            let (right, stale): (Vec<_>, Vec<_>) = found.iter().filter(ours).partition(|a| a.net == own);
            if right.is_empty() {
                batch.replace_address(&Address::new(link.index, own));
                kinds.push(Kind::Address);
            }
            for address in stale {
                batch.delete_address(address);
                kinds.push(Kind::Address);
            }
        }
        if !link.is_up() {
            batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(link.index) });
            kinds.push(Kind::Device);
        }
        socket.execute(&batch)?;
        kinds.into_iter().for_each(|kind| report.count(kind));
        Ok(())
    }

    fn mtu(&self) -> u32 {
        self.underlay.mtu.saturating_sub(OVERHEAD)
    }
}

/// Describes how a device differs from the wanted one.
fn differences(found: Ipip, wanted: Ipip) -> String {
    let address = |address: Option<IpAddr>| address.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let differ = |what: &str, is: Option<IpAddr>, should: Option<IpAddr>| {
        (is != should).then(|| format!("{what} address {}, not {}", address(is), address(should)))
    };
    let all = [differ("local", found.local, wanted.local), differ("remote", found.remote, wanted.remote)];
    all.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// The kernel answers EOPNOTSUPP for link kinds that it does not know.
fn unsupported(error: BatchError) -> FlannelError {
    match NetlinkError::from(error) {
        source if source.is_unsupported() => {
            FlannelError::Unsupported { backend: "ipip", feature: FEATURE, source }
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_a_device_name_both_values() {
        let wanted = Ipip { local: "10.0.0.1".parse().ok(), remote: None };
        assert_eq!(differences(wanted, wanted), "");
        let found = Ipip { local: "10.0.0.2".parse().ok(), remote: "10.0.0.3".parse().ok() };
        assert_eq!(
            differences(found, wanted),
            "local address 10.0.0.2, not 10.0.0.1; remote address 10.0.0.3, not none"
        );
    }
}
