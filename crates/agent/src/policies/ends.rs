//! The host ends of Calico's plugins in the kernel. Such a plugin may wire a pod without asking this agent: links and
//! routes say which there are, and a thread follows their changes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{Family, IfName};
use russet_netlink::{Change, Event, Monitor, NetlinkError, Route, RouteFilter, Socket, Topic};
use russet_policy::CALICO_PREFIX;

use super::{Policies, Request};

/// A host end in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// No other interface of this namespace has had it.
    pub index: u32,
    pub name: IfName,
    /// What the node routes there.
    pub addresses: BTreeSet<IpAddr>,
}

/// How long one wait for events takes; the number only bounds a thread that nothing else ends.
const WAIT: Duration = Duration::from_secs(60);
/// The pause after a failed wait.
const RETRY: Duration = Duration::from_secs(1);
/// Events that are read before they are reported: an ADD causes a dozen.
const TOGETHER_MAX: usize = 1000;

/// Those whose names have the prefix of Calico's plugins, or are among `others`.
pub fn read(others: &BTreeSet<IfName>) -> Result<Vec<End>, NetlinkError> {
    let mut socket = Socket::route()?;
    let named = socket.links()?.into_iter().filter_map(|link| {
        let name = IfName::new(link.name).ok()?;
        let is_end = name.as_str().starts_with(CALICO_PREFIX) || others.contains(&name);
        is_end.then(|| End { index: link.index, name, addresses: BTreeSet::new() })
    });
    let mut ends: Vec<End> = named.collect();
    if ends.is_empty() {
        return Ok(ends);
    }
    for family in Family::BOTH {
        let filter = RouteFilter { table: Some(Route::MAIN), ..RouteFilter::default() };
        let routes = match socket.routes_where(family, filter) {
            Err(error) if error.is_unsupported() => Vec::new(),
            routes => routes?,
        };
        for route in routes.iter().filter(|route| leads_to_a_host(route)) {
            let end = ends.iter_mut().find(|end| Some(end.index) == route.oif);
            end.into_iter().for_each(|end| _ = end.addresses.insert(route.dst.addr()));
        }
    }
    Ok(ends)
}

fn leads_to_a_host(route: &Route) -> bool {
    route.table == Route::MAIN
        && route.gateway.is_none()
        && route.dst.prefix_len() == route.dst.max_prefix_len()
}

/// Starts the thread that follows links and routes.
pub fn start(policies: Policies) -> std::io::Result<()> {
    let follow = move || {
        let mut indexes = BTreeSet::new();
        loop {
            follow(&policies, &mut indexes);
        }
    };
    std::thread::Builder::new().name("policy-ends".to_owned()).spawn(follow)?;
    Ok(())
}

/// Follows events until they cannot be read. `indexes` are those of the ends that were seen.
#[expect(
    clippy::disallowed_methods,
    reason = "a socket that cannot be opened or read has no event for the end of that"
)]
fn follow(policies: &Policies, indexes: &mut BTreeSet<u32>) {
    let followed = Monitor::open(&[Topic::Links, Topic::Routes]).and_then(|mut monitor| {
        indexes.extend(read(&BTreeSet::new())?.iter().map(|end| end.index));
        // What happened before the socket was there.
        policies.request(Request::Ends);
        loop {
            let first = monitor.next(WAIT)?;
            let mut concerns = false;
            let mut event = first;
            for _ in 0..TOGETHER_MAX {
                let Some(known) = event else { break };
                concerns |= note(&known, indexes);
                event = monitor.next(Duration::ZERO)?;
            }
            if concerns {
                policies.request(Request::Ends);
            }
        }
    });
    let Err::<std::convert::Infallible, NetlinkError>(error) = followed;
    tracing::debug!(%error, "changes of the host ends of Calico's plugins are not noticed for a moment");
    std::thread::sleep(RETRY);
}

/// Whether an event is about a host end, or may be.
fn note(event: &Event, indexes: &mut BTreeSet<u32>) -> bool {
    match event {
        Event::Set(Change::Link(link)) if link.name.starts_with(CALICO_PREFIX) => {
            indexes.insert(link.index);
            true
        }
        Event::Gone(Change::Link(link)) => indexes.remove(&link.index),
        Event::Set(Change::Route(route)) | Event::Gone(Change::Route(route)) => {
            leads_to_a_host(route) && route.oif.is_some_and(|index| indexes.contains(&index))
        }
        // The links that came meanwhile are not known either.
        Event::Overrun => {
            indexes.extend(read(&BTreeSet::new()).into_iter().flatten().map(|end| end.index));
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use russet_testkit::{eventually, in_new_netns, run};

    use super::*;

    #[test]
    #[ignore = "kernel: network namespaces need root; tool: ip"]
    fn an_end_is_what_has_calicos_prefix_with_what_is_routed_to_it_and_each_change_is_an_event() {
        in_new_netns(|| {
            let mut monitor = Monitor::open(&[Topic::Links, Topic::Routes]).unwrap();
            let mut indexes = BTreeSet::new();
            let ip = |words: &str| run("ip", &words.split(' ').collect::<Vec<_>>());
            let mut concerns = |monitor: &mut Monitor| {
                let events = std::iter::from_fn(|| monitor.next(Duration::ZERO).unwrap());
                let noted: Vec<bool> = events.map(|event| note(&event, &mut indexes)).collect();
                noted.contains(&true)
            };
            ip("link add russ1 type veth peer name p1");
            ip("link set russ1 up");
            ip("route add 10.65.0.9 dev russ1");
            assert!(!concerns(&mut monitor), "it is no end of Calico's plugins");
            ip("link add cali1 type veth peer name p2");
            ip("link set cali1 up");
            eventually(Duration::from_secs(5), || concerns(&mut monitor));
            assert_eq!(read(&BTreeSet::new()).unwrap()[0].addresses, BTreeSet::new());
            ip("route add 10.65.0.1 dev cali1");
            ip("route add 10.66.0.0/24 dev cali1");
            eventually(Duration::from_secs(5), || concerns(&mut monitor));
            let found = read(&BTreeSet::new()).unwrap();
            let [End { name, addresses, .. }] = found.as_slice() else { panic!("{found:?}") };
            assert_eq!((name.as_str(), addresses), ("cali1", &["10.65.0.1".parse().unwrap()].into()));
            let others = BTreeSet::from([IfName::new("russ1").unwrap()]);
            assert_eq!(read(&others).unwrap().len(), 2, "an operator may choose another prefix");
            ip("link del cali1");
            eventually(Duration::from_secs(5), || concerns(&mut monitor));
            assert_eq!(read(&BTreeSet::new()).unwrap(), []);
        });
    }
}
