//! A model kernel that applies plans and refuses a wrong order.

use russet_addr::{Family, IpNet, Mac};
use russet_netlink::{FdbEntry, Neighbour, Route, RouteKind, Vxlan};
use russet_overlay::{DEVICE_ALIAS, Desired, FoundDevice, Hop, Observed, Op, ROUTE_PROTOCOL, is_ours};

/// All objects of the model, ours and foreign.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    pub all: Observed,
    next_index: u32,
}

impl Kernel {
    /// The result of `observe`.
    pub fn observe(&self) -> Observed {
        let mut observed = self.all.clone();
        for family in Family::BOTH {
            let device = self.index(family);
            for (_, routes) in observed.routes.iter_mut().filter(|(dst, _)| Family::of_net(dst) == family) {
                routes.retain(|route| route.protocol == ROUTE_PROTOCOL && is_ours(route, device));
            }
        }
        observed.routes.retain(|_, routes| !routes.is_empty());
        observed
    }

    /// Whether our objects are exactly the desired ones.
    pub fn equals(&self, desired: &Desired) -> bool {
        let observed = self.observe();
        let routes: Vec<(IpNet, Vec<Route>)> = observed.routes.into_iter().collect();
        let wanted = desired.routes.iter().map(|(dst, hop)| (*dst, vec![self.route(*dst, *hop)]));
        let fdb = desired.fdb.iter().all(|(key, dst)| {
            observed.fdb.get(key).is_some_and(|found| found.len() == 1 && found[0].dst == Some(*dst))
        });
        let neighbours = observed.neighbours.iter().map(|(address, n)| (*address, n.mac.unwrap()));
        routes == wanted.collect::<Vec<_>>()
            && fdb
            && observed.fdb.len() == desired.fdb.len()
            && neighbours.eq(desired.neighbours.iter().map(|(address, mac)| (*address, *mac)))
            && Family::BOTH.iter().all(|family| self.device_equals(*family, desired))
            && observed
                .loopback
                .iter()
                .filter(|(_, ours)| **ours)
                .map(|(address, _)| address)
                .eq(&desired.probes)
    }

    fn device_equals(&self, family: Family, desired: &Desired) -> bool {
        match (self.all.devices.get(&family), desired.devices.get(&family)) {
            (None, None) => true,
            (Some(found), None) => !found.marked,
            (None, Some(_)) => false,
            (Some(found), Some(wanted)) => {
                let vxlan = found.vxlan.as_ref().unwrap();
                found.up
                    && found.marked
                    && (found.mtu, found.mac) == (wanted.mtu, Some(wanted.mac))
                    && found.addresses.iter().eq(wanted.address.iter())
                    && (vxlan.local, vxlan.parent) == (Some(wanted.local), Some(wanted.parent))
                    && (vxlan.vni, vxlan.port) == (wanted.vni, wanted.port)
            }
        }
    }

    fn index(&self, family: Family) -> Option<u32> {
        self.all.devices.get(&family).filter(|device| device.vxlan.is_some()).map(|device| device.ifindex)
    }

    /// A route as the kernel shows it.
    pub fn route(&self, dst: IpNet, hop: Hop) -> Route {
        let device = self.index(Family::of_net(&dst));
        let base = match hop {
            Hop::Tunnel(gateway) => Route { oif: device, onlink: true, ..Route::via(dst, gateway) },
            Hop::Connected => Route::dev(dst, device.expect("the device is there")),
            Hop::Underlay { ifindex, gateway } => {
                Route { oif: Some(ifindex), onlink: true, ..Route::via(dst, gateway) }
            }
            Hop::Link(ifindex) => Route::dev(dst, ifindex),
            Hop::Blackhole => Route::blackhole(dst),
        };
        let metric = matches!(dst, IpNet::V6(_)).then_some(1024);
        Route { protocol: ROUTE_PROTOCOL, metric, ..base }
    }

    /// Applies one request, or returns why it cannot.
    pub fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::DeleteDevice(family, ifindex) => self.delete_device(*family, *ifindex),
            Op::CreateDevice(family, device) => {
                self.next_index = self.next_index.max(100) + 1;
                let vxlan = Vxlan {
                    local: Some(device.local),
                    parent: Some(device.parent),
                    ..Vxlan::new(device.vni, device.port)
                };
                let found = FoundDevice {
                    ifindex: self.next_index,
                    vxlan: Some(vxlan),
                    mtu: device.mtu,
                    mac: Some(device.mac),
                    up: false,
                    marked: false,
                    addresses: [].into(),
                };
                self.all.devices.insert(*family, found).map_or(Ok(()), |_| Err("device exists".into()))
            }
            Op::MarkDevice(family) => {
                self.device(*family).map(|device| device.marked = !DEVICE_ALIAS.is_empty())
            }
            Op::SetMtu(family, mtu) => self.device(*family).map(|device| device.mtu = *mtu),
            Op::RaiseDevice(family) => self.device(*family).map(|device| device.up = true),
            Op::AddAddress(family, net) => {
                self.device(*family).map(|device| _ = device.addresses.insert(*net))
            }
            Op::DeleteAddress(family, net) => {
                self.device(*family).map(|device| _ = device.addresses.remove(net))
            }
            Op::AddProbeAddress(address) => {
                self.all.loopback.insert(*address, true).map_or(Ok(()), |_| Err("the address exists".into()))
            }
            Op::DeleteProbeAddress(address) => {
                self.all.loopback.remove(address).map(drop).ok_or_else(|| "no such address".to_owned())
            }
            Op::PutNeighbour(address, mac) => {
                let ifindex = self.index(Family::of(*address)).ok_or("no device")?;
                self.all.neighbours.insert(*address, Neighbour::permanent(ifindex, *address, *mac));
                Ok(())
            }
            Op::DeleteNeighbour(neighbour) => self.delete_neighbour(neighbour),
            Op::PutFdb(family, mac, dst) => {
                let ifindex = self.index(*family).ok_or("no device")?;
                self.all.fdb.insert((*family, *mac), vec![FdbEntry::remote(ifindex, *mac, *dst)]);
                Ok(())
            }
            Op::DeleteFdb(entry) => self.delete_fdb(entry),
            Op::AddRoute(dst, hop, _) => self.put_route(*dst, *hop, false),
            Op::ReplaceRoute(dst, hop, _) => self.put_route(*dst, *hop, true),
            Op::DeleteRoute(route) => self.delete_route(route),
        }
    }

    fn device(&mut self, family: Family) -> Result<&mut FoundDevice, String> {
        self.all.devices.get_mut(&family).ok_or_else(|| "no device".to_owned())
    }

    fn delete_device(&mut self, family: Family, ifindex: u32) -> Result<(), String> {
        let device =
            self.all.devices.remove(&family).filter(|device| device.ifindex == ifindex).ok_or("no device")?;
        self.all.neighbours.retain(|_, neighbour| neighbour.ifindex != device.ifindex);
        self.all.fdb.retain(|(of, _), _| *of != family);
        for routes in self.all.routes.values_mut() {
            routes.retain(|route| route.oif != Some(ifindex));
        }
        Ok(())
    }

    fn put_route(&mut self, dst: IpNet, hop: Hop, replace: bool) -> Result<(), String> {
        if let Hop::Tunnel(gateway) = hop {
            let mac =
                self.all.neighbours.get(&gateway).and_then(|n| n.mac).ok_or("the neighbour is not ready")?;
            self.all.fdb.get(&(Family::of(gateway), mac)).ok_or("the forwarding entry is not ready")?;
            let device = self.index(Family::of(gateway));
            let away = |route: &Route| route.kind == RouteKind::Unicast && route.oif != device;
            // The longest match decides; IPv4 does not check.
            let covering =
                self.all.routes.iter().filter(|(net, routes)| net.contains(&gateway) && !routes.is_empty());
            if gateway.is_ipv6()
                && covering.max_by_key(|(net, _)| net.prefix_len()).is_some_and(|(_, r)| away(&r[0]))
            {
                return Err(format!("{gateway}: invalid gateway or device mismatch"));
            }
        }
        let route = self.route(dst, hop);
        let routes = self.all.routes.entry(dst).or_default();
        match routes.iter().position(|found| found.metric == route.metric) {
            Some(index) if replace => routes[index] = route,
            Some(_) => return Err(format!("{dst} exists")),
            None if replace => return Err(format!("nothing to replace at {dst}")),
            None => routes.push(route),
        }
        Ok(())
    }

    fn delete_route(&mut self, route: &Route) -> Result<(), String> {
        let routes = self.all.routes.entry(route.dst).or_default();
        let index = routes.iter().position(|found| found == route).ok_or("no such route")?;
        routes.remove(index);
        Ok(())
    }

    fn delete_neighbour(&mut self, neighbour: &Neighbour) -> Result<(), String> {
        let uses =
            |route: &Route| route.gateway == Some(neighbour.address) && route.oif == Some(neighbour.ifindex);
        if self.all.routes.values().flatten().any(uses) {
            return Err(format!("{} is still a next hop", neighbour.address));
        }
        self.all.neighbours.remove(&neighbour.address).map(drop).ok_or_else(|| "no such neighbour".to_owned())
    }

    fn delete_fdb(&mut self, entry: &FdbEntry) -> Result<(), String> {
        let family = *self.all.devices.iter().find(|(_, d)| d.ifindex == entry.ifindex).ok_or("no device")?.0;
        let key: (Family, Mac) = (family, entry.mac);
        let entries = self.all.fdb.get_mut(&key).ok_or("no such entry")?;
        entries.retain(|found| found != entry);
        if entries.is_empty() {
            self.all.fdb.remove(&key);
        }
        Ok(())
    }
}
