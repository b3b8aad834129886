//! The first step: creates the veth in place, finds it, or removes links with its names.

use std::os::fd::AsRawFd as _;

use russet_addr::{IfName, IpNet, Mac};
use russet_linux::NetNs;
use russet_netlink::{Batch, Ipv4Conf, Link, LinkAdd, LinkDel, LinkSet, NetlinkError, Peer, Scope, Socket};

use super::AttachCause;
use super::obstacle::{self, Decision, InTheWay};
use super::record::Reversal;
use super::run::{Ends, Run, open_in};
use crate::attachment::Pair;
use crate::detach;
use crate::inspect::{self, PRECREATED_GROUP};
use crate::plan::{Plan, Setting, Side};
use crate::rules;

/// Attempts to create the veth: each removes one link that is in the way, and there are two names.
const CREATE_MAX_TRIES: usize = 4;

// === impl Run ===

impl Run<'_> {
    /// Creates the veth, or finds an existing one; removes links in the way where that is allowed.
    pub(super) fn create(&mut self) -> Result<(), AttachCause> {
        if let Some(precreated) = self.precreated.take() {
            return self.adopt_precreated(Some(precreated.host));
        }
        for _ in 0..CREATE_MAX_TRIES {
            match create_veth(self.host, self.plan, self.netns) {
                Ok(()) => return self.adopt_precreated(None),
                Err(AttachCause::Netlink(error)) if error.is_exists() => {}
                Err(error) => return Err(error),
            }
            if self.make_room()? {
                return Ok(());
            }
        }
        Err(AttachCause::Vanished(self.plan.host_name.to_string()))
    }

    /// Writes the owner on a veth that was just created. `seen` is its host end if it is known
    /// already.
    fn adopt_precreated(&mut self, seen: Option<Link>) -> Result<(), AttachCause> {
        let name = &self.plan.host_name;
        self.record.push(Reversal::DeleteLink(LinkDel::Name(name.clone())));
        let host = seen.map_or_else(|| self.host.link_by_name(name), Ok)?;
        let pod_ifindex = host.link.ok_or_else(|| AttachCause::Vanished(self.plan.ifname.to_string()))?;
        let mut batch = Batch::new();
        let alias = Some(self.plan.owner.to_string());
        let settings = || self.plan.host_settings();
        let ipv4_conf = settings().filter_map(|setting| ipv4_conf(name, setting)).collect();
        batch.set_link(&LinkSet { alias, group: Some(0), ipv4_conf, ..LinkSet::index(host.index) });
        if settings().any(|setting| is_proxy_delay(name, setting)) {
            batch.set_proxy_delay(host.index, 0);
        }
        self.host.execute(&batch).map_err(NetlinkError::from)?;
        self.ends = Some(Ends { host, pod_ifindex, reused: None });
        Ok(())
    }

    /// Handles links that have our names; true if the veth exists already.
    fn make_room(&mut self) -> Result<bool, AttachCause> {
        let pod_socket = open_in(&mut self.pod, self.netns)?;
        let host = inspect::by_name(self.host, &self.plan.host_name)?;
        let pod = inspect::by_name(pod_socket, &self.plan.ifname)?;
        let peer = match pod.as_ref().and_then(|pod| pod.link) {
            Some(index) => inspect::by_index(self.host, index)?,
            None => None,
        };
        match obstacle::decide(self.plan, InTheWay { host, pod, peer }, self.netns.path()) {
            Decision::Retry => Ok(false),
            Decision::Refuse(cause) => Err(cause),
            Decision::Reuse { host, pod } if self.is_another(&host, &pod)? => {
                self.remove(&host, Some(&pod)).map(|()| false)
            }
            Decision::Reuse { host, pod } => self.reuse(host, pod).map(|()| true),
            Decision::Remove { host, pod } => self.remove(&host, pod.as_ref()).map(|()| false),
        }
    }

    /// Whether the veth has a MAC or an address that differs from this attachment: then it belongs
    /// to another one. (Correcting a MAC would flush the link's neighbours, and could not be undone
    /// without remembering them.)
    fn is_another(&mut self, host: &Link, pod: &Link) -> Result<bool, AttachCause> {
        if host.mac != Some(Mac::GATEWAY) || pod.mac != Some(self.plan.pod_mac) {
            return Ok(true);
        }
        let wanted: Vec<IpNet> = self.plan.addresses().collect();
        let found = open_in(&mut self.pod, self.netns)?.addresses_of(pod.index)?;
        Ok(found.iter().any(|a| a.scope == Scope::Universe && !wanted.contains(&a.net)))
    }

    /// Keeps an existing veth, and corrects its MTU and owner.
    fn reuse(&mut self, host: Link, pod: Link) -> Result<(), AttachCause> {
        let (alias, mtu) = (self.plan.owner.to_string(), self.plan.mtu);
        if host.alias.as_ref() != Some(&alias) {
            let old = LinkSet { alias: host.alias.clone(), ..LinkSet::index(host.index) };
            let new = LinkSet { alias: Some(alias), ..LinkSet::index(host.index) };
            self.change(Side::Host, &new, old)?;
        }
        for (side, link) in [(Side::Host, &host), (Side::Pod, &pod)] {
            if link.mtu_bytes != mtu {
                let with = |mtu_bytes| LinkSet { mtu_bytes: Some(mtu_bytes), ..LinkSet::index(link.index) };
                self.change(side, &with(mtu), with(link.mtu_bytes))?;
            }
        }
        self.ends = Some(Ends { host, pod_ifindex: pod.index, reused: Some(pod) });
        Ok(())
    }

    fn change(&mut self, side: Side, new: &LinkSet, old: LinkSet) -> Result<(), AttachCause> {
        let mut batch = Batch::new();
        batch.set_link(new);
        self.socket(side)?.execute(&batch).map_err(NetlinkError::from)?;
        self.record.push(Reversal::Link { side, old });
        Ok(())
    }

    /// Removes a link in the way. Only this is not reversed: it belonged to a sandbox that is gone.
    fn remove(&mut self, host: &Link, pod: Option<&Link>) -> Result<(), AttachCause> {
        let pod = match pod {
            Some(pod) => {
                let socket = open_in(&mut self.pod, self.netns)?;
                rules::remove(socket, &self.plan.ifname)?;
                Some((socket, pod.index))
            }
            None => None,
        };
        // Without an alias of ours `reap` would never delete it.
        let deferred = !self.plan.sync_delete && inspect::owner(host).is_some();
        let removed = if deferred {
            detach::doom(self.host, host.index, pod)
        } else {
            detach::delete(self.host, host.index)
        };
        removed?;
        let alias = host.alias.as_deref().unwrap_or_default();
        tracing::info!(link = %host.name, alias = ?alias, wanted = %self.plan.owner, deferred, "link made room");
        Ok(())
    }
}

/// Creates a plan's pair of links, each end in its namespace.
pub(crate) fn create_veth(host: &mut Socket, plan: &Plan, netns: &NetNs) -> Result<(), AttachCause> {
    if inspect::is_own(netns)? {
        return Err(AttachCause::OwnNamespace(netns.path().to_owned()));
    }
    let (mtu_bytes, sizes) = (Some(plan.mtu), plan.sizes);
    let peer = Peer {
        netns: Some(netns.as_raw_fd()),
        mtu_bytes,
        mac: Some(plan.pod_mac),
        sizes,
        ..Peer::new(plan.ifname.clone())
    };
    let host_name = plan.host_name.clone();
    let pair = match plan.pair {
        Pair::Veth => LinkAdd::veth(host_name, peer),
        Pair::Netkit => LinkAdd::netkit(host_name, peer),
    };
    let mut batch = Batch::new();
    batch.add_link(&LinkAdd {
        mtu_bytes,
        mac: Some(Mac::GATEWAY),
        group: Some(PRECREATED_GROUP),
        sizes,
        ..pair
    });
    host.execute(&batch).map_err(|error| NetlinkError::from(error).into())
}

/// Whether the message that writes the owner of a precreated host end includes this setting.
pub(super) fn is_set_at_creation(host_name: &IfName, setting: &Setting) -> bool {
    ipv4_conf(host_name, setting).is_some() || is_proxy_delay(host_name, setting)
}

fn ipv4_conf(host_name: &IfName, setting: &Setting) -> Option<(Ipv4Conf, u32)> {
    let file = file_below(setting, "net/ipv4/conf/", host_name)?;
    Some((Ipv4Conf::from_name(file)?, setting.value.parse().ok()?))
}

fn is_proxy_delay(host_name: &IfName, setting: &Setting) -> bool {
    file_below(setting, "net/ipv4/neigh/", host_name) == Some("proxy_delay") && setting.value == "0"
}

/// The file name in the link's own directory below `directory`.
fn file_below<'s>(setting: &'s Setting, directory: &str, link: &IfName) -> Option<&'s str> {
    let (owner, file) = setting.path.strip_prefix(directory)?.rsplit_once('/')?;
    (owner == link.as_str() && !setting.lasting).then_some(file)
}
