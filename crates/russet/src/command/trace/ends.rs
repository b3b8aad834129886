//! The addresses of the two ends, and their names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_agent::Paths;
use russet_verdict::explain::{Peer, Probe, Question};
use russet_verdict::ir::Protocol;

use super::table::PAIRS_MAX;
use crate::cli::store::StoreChoice;
use crate::command::Failure;
use crate::command::place::Place;
use crate::command::policy::datastore::{Datastore, OtherPod};

/// What is traced, and how addresses are called.
#[derive(Debug, Default)]
pub struct Ends {
    pub pairs: BTreeSet<(IpAddr, IpAddr)>,
    pub names: BTreeMap<IpAddr, String>,
}

/// Why nothing can be traced.
#[derive(Debug, thiserror::Error)]
enum EndsError {
    #[error("{0} and {1} have no addresses of the same family")]
    NoPair(Peer, Peer),
    #[error(
        "{0} and {1} are {2} pairs of addresses, and a trace has at most {PAIRS_MAX}; name pods or addresses"
    )]
    TooMany(Peer, Peer, usize),
    #[error("`world` is no end of a trace; give an address")]
    World,
}

/// Finds the addresses: those of this node's pods in the journal, and others in the datastore, which is read only for them.
pub async fn find(paths: &Paths, (from, to): (&Peer, &Peer), place: StoreChoice) -> Result<Ends, Failure> {
    if [from, to].contains(&&Peer::World) {
        return Err(EndsError::World.into());
    }
    let pods = pods(paths)?;
    let known = [from, to].map(|peer| of_node(&pods, peer));
    let pairs = match known {
        [Some(from), Some(to)] => pairs(&from, &to),
        _ => of_cluster((from, to), &known, place).await?,
    };
    match pairs.len() {
        0 => return Err(EndsError::NoPair(from.clone(), to.clone()).into()),
        1..=PAIRS_MAX => {}
        count => return Err(EndsError::TooMany(from.clone(), to.clone(), count).into()),
    }
    let mut names: BTreeMap<IpAddr, String> =
        pods.iter().flat_map(|(name, of)| of.iter().map(|address| (*address, name.clone()))).collect();
    for (source, destination) in &pairs {
        for (address, peer) in [(source, from), (destination, to)] {
            if !matches!(peer, Peer::Address(_)) {
                names.entry(*address).or_insert_with(|| peer.to_string());
            }
        }
    }
    Ok(Ends { pairs, names })
}

/// The pods of this node and their addresses.
fn pods(paths: &Paths) -> Result<BTreeMap<String, Vec<IpAddr>>, Failure> {
    let path = paths.journal_file();
    let view = russet_journal::view(&path)
        .map_err(|error| format!("read the journal {}: {error}", path.display()))?;
    let mut pods: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for attachment in view.into_iter().flat_map(|view| view.attachments) {
        if let Some(pod) = attachment.pod {
            pods.entry(pod).or_default().extend(attachment.addresses);
        }
    }
    Ok(pods)
}

/// The addresses of an end, if the datastore is not needed for them.
fn of_node(pods: &BTreeMap<String, Vec<IpAddr>>, peer: &Peer) -> Option<Vec<IpAddr>> {
    match peer {
        Peer::Address(address) => Some(vec![*address]),
        Peer::Pod(namespace, name) => {
            pods.get(&format!("{namespace}/{name}")).filter(|addresses| !addresses.is_empty()).cloned()
        }
        Peer::Node(_) | Peer::Service(_) | Peer::World => None,
    }
}

/// All pairs of the same family.
fn pairs(from: &[IpAddr], to: &[IpAddr]) -> BTreeSet<(IpAddr, IpAddr)> {
    let of = |from: &IpAddr| {
        let from = *from;
        to.iter().filter(move |to| to.is_ipv4() == from.is_ipv4()).map(move |to| (from, *to))
    };
    from.iter().flat_map(of).collect()
}

async fn of_cluster(
    (from, to): (&Peer, &Peer),
    known: &[Option<Vec<IpAddr>>; 2],
    place: StoreChoice,
) -> Result<BTreeSet<(IpAddr, IpAddr)>, Failure> {
    let place = Place::open_cluster(place).await?;
    let data = Datastore::read(&place).await?;
    let mut found = BTreeSet::new();
    // An end that is known here may be unknown to the datastore, so that its addresses are asked one by one.
    let at = |addresses: &mut dyn Iterator<Item = &IpAddr>| addresses.copied().map(Peer::Address).collect();
    let forms = |peer: &Peer, known: &Option<Vec<IpAddr>>| -> Vec<Peer> {
        match (known, data.others.get(&peer.to_string())) {
            (Some(addresses), _) => at(&mut addresses.iter()),
            (None, Some(OtherPod::Unrecorded { addresses, .. })) => at(&mut addresses.iter()),
            (None, Some(OtherPod::HostNetwork(node))) => vec![Peer::Node(node.clone())],
            _ => vec![peer.clone()],
        }
    };
    let [of_from, of_to] = known;
    let family = |peer: &Peer| match peer {
        Peer::Address(address) => Some(address.is_ipv4()),
        _ => None,
    };
    for from in forms(from, of_from) {
        for to in forms(to, of_to) {
            if family(&from).zip(family(&to)).is_some_and(|(from, to)| from != to) {
                continue;
            }
            let probe = Some(Probe { protocol: Protocol::ICMP, port: 0 });
            let question = Question { from: from.clone(), to, probe, family: None };
            let flows = question.flows(&data.cluster.snapshot)?;
            found.extend(flows.iter().map(|flow| (flow.source, flow.destination)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_paired_within_a_family_and_found_without_the_datastore() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let pods = BTreeMap::from([("shop/web".to_owned(), vec![ip("10.0.0.1"), ip("fd00::1")])]);
        let web = of_node(&pods, &"shop/web".parse().unwrap()).unwrap();
        let other = of_node(&pods, &"10.0.0.2".parse().unwrap()).unwrap();
        assert_eq!(pairs(&web, &other), [(ip("10.0.0.1"), ip("10.0.0.2"))].into());
        assert_eq!(pairs(&web, &web).len(), 2);
        assert!(pairs(&other, &[ip("fd00::1")]).is_empty());
        assert_eq!(of_node(&pods, &"shop/db".parse().unwrap()), None);
    }
}
