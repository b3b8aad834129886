//! The reachability matrix: every ordered pair of pods, and the outside host from each pod, on both
//! families.

use std::net::IpAddr;

use russet_addr::Family;
use russet_linux::NetNs;

use super::lab::{OUTSIDE_SERVICES, namespace_path};
use super::ping::Pinger;
use super::report::{Ping, PodReport};
use super::{DemoError, Interrupt};

/// A pod's two ICMP sockets, opened inside it.
pub struct Prober<'a> {
    pub pod: &'a PodReport,
    pub pingers: Vec<(Family, Pinger)>,
}

/// Pings every address from every pod.
pub fn measure(pods: &[PodReport], interrupt: &Interrupt) -> Result<Vec<Ping>, DemoError> {
    let mut pings = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        interrupt.check()?;
        let mut asker = Prober::open(pod, index as u16)?;
        for target in pods.iter().filter(|target| target.name != pod.name) {
            asker.ask(&target.name, &target.ips, &mut pings);
        }
        asker.ask("outside", &OUTSIDE_SERVICES, &mut pings);
    }
    Ok(pings)
}

// === impl Prober ===

impl<'a> Prober<'a> {
    pub fn open(pod: &'a PodReport, ident: u16) -> Result<Self, DemoError> {
        let failed =
            |source: std::io::Error| DemoError::io(format!("open ping sockets in pod {}", pod.name), source);
        let name = pod.netns.rsplit('/').next().unwrap_or_default();
        let netns = NetNs::open(namespace_path(name)).map_err(DemoError::namespace)?;
        let _inside = netns.enter().map_err(DemoError::namespace)?;
        let mut pingers = Vec::new();
        for family in Family::BOTH {
            if pod.ips.iter().any(|ip| Family::of(*ip) == family) {
                pingers.push((family, Pinger::open(family, ident).map_err(failed)?));
            }
        }
        Ok(Self { pod, pingers })
    }

    /// The socket for packets from an address of the pod.
    pub fn of(&mut self, source: IpAddr) -> Option<&mut Pinger> {
        let is_it = |(family, _): &&mut (Family, Pinger)| *family == Family::of(source);
        self.pingers.iter_mut().find(is_it).map(|(_, pinger)| pinger)
    }

    /// The socket for packets to an address.
    pub fn into_pinger(self, target: IpAddr) -> Option<Pinger> {
        let is_it = |(family, _): &(Family, Pinger)| *family == Family::of(target);
        self.pingers.into_iter().find(is_it).map(|(_, pinger)| pinger)
    }

    fn ask(&mut self, to: &str, addresses: &[IpAddr], pings: &mut Vec<Ping>) {
        for (family, pinger) in &mut self.pingers {
            let Some(address) = addresses.iter().find(|ip| Family::of(**ip) == *family) else { continue };
            let result = pinger.ping(*address);
            pings.push(Ping {
                from: self.pod.name.clone(),
                to: to.to_owned(),
                family: if *family == Family::V4 { 4 } else { 6 },
                ok: result.is_ok(),
                rtt_us: result.as_ref().ok().map(|rtt| rtt.as_micros() as u64),
                error: result.err().map(|error| error.to_string()),
            });
        }
    }
}
