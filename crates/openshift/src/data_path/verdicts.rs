//! The table of verdicts in the kernel: changes it in one transaction, and compares it with the
//! desired one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use russet_addr::IfName;
use russet_model::openshift::NetId;
use russet_nft::{Element, NetlinkError, Nft, Set, Transaction, Value};
use russet_overlay::ruleset::{ObservedTable, Ruleset};

use super::egress::{self, Egress, Outside};
use super::programs::STAMPED;
use super::rules::{self, Elements, Name};
use super::{Ports, SdnError, Settings};

/// The nf_tables socket, and what was written so far besides ports.
#[derive(Debug)]
pub(super) struct Verdicts {
    nft: Nft,
    /// The nodes that may send VXLAN.
    peers: BTreeSet<Ipv4Addr>,
    /// What pods may not reach outside of the cluster.
    egress: Egress,
}

/// What the table holds of ports' tenants.
#[derive(Debug, Default)]
pub(super) struct TenantsHeld {
    /// The network ID of every link that has one.
    pub netids: BTreeMap<IfName, NetId>,
    /// The addresses that every network ID reaches.
    pub reached: BTreeSet<Ipv4Addr>,
}

// === impl Verdicts ===

impl Verdicts {
    /// Opens nf_tables and reads the permitted senders of an earlier run, and what it denied.
    pub(super) fn open(settings: &Settings) -> Result<Self, SdnError> {
        ruleset(settings, &Ports::new(), &BTreeSet::new(), &Egress::new())?;
        let mut nft = Nft::open()?;
        let peers = addresses(&mut nft, Name::Peers)?;
        let netids = netids(&mut nft)?;
        let egress = egress::read(&mut nft, &netids)?;
        Ok(Self { nft, peers, egress })
    }

    pub(super) fn tenants(&mut self) -> Result<TenantsHeld, SdnError> {
        Ok(tenants(&mut self.nft)?)
    }

    pub(super) fn observe(&mut self) -> Result<ObservedTable, NetlinkError> {
        ObservedTable::read(&mut self.nft, &rules::table(), "")
    }

    /// Whether the table is exactly as it should be.
    pub(super) fn is_in_force(&self, settings: &Settings, ports: &Ports, found: &ObservedTable) -> bool {
        ruleset(settings, ports, &self.peers, &self.egress).is_ok_and(|wanted| wanted.is_in_force(found))
    }

    /// Changes the entries of `was` to those of `wanted`, and what is denied to `egress` if that is
    /// given, in one transaction of the difference, behind one that creates what it refers to; if
    /// the table was changed by another program, rewrites everything.
    pub(super) fn change(
        &mut self,
        settings: &Settings,
        was: &Ports,
        wanted: &Ports,
        egress: Option<Egress>,
    ) -> Result<(), SdnError> {
        let done = {
            let was = (was, &Outside::new(was, &self.egress));
            let wanted = (wanted, &Outside::new(wanted, egress.as_ref().unwrap_or(&self.egress)));
            let created = self.nft.commit(&egress::creation(was.1, wanted.1));
            created.and_then(|()| self.nft.commit(&difference(was, wanted)))
        };
        let done = match done {
            Err(error) if error.is_not_found() || error.is_exists() || error.outcome_unknown() => None,
            done => Some(done),
        };
        let before = egress.map(|egress| std::mem::replace(&mut self.egress, egress));
        let done = match done {
            None => self.rewrite(settings, wanted),
            Some(done) => done.map_err(SdnError::from),
        };
        if let (Err(_), Some(before)) = (&done, before) {
            self.egress = before;
        }
        done
    }

    /// Permits exactly these nodes to send.
    pub(super) fn permit_senders(
        &mut self,
        settings: &Settings,
        peers: BTreeSet<Ipv4Addr>,
        ports: &Ports,
    ) -> Result<(), SdnError> {
        let elements = |addresses: &mut dyn Iterator<Item = &Ipv4Addr>| -> Vec<Element> {
            addresses.copied().map(rules::peer).collect()
        };
        let gone = elements(&mut self.peers.difference(&peers));
        let come = elements(&mut peers.difference(&self.peers));
        let set = Name::Peers.set();
        let mut transaction = Transaction::new();
        transaction.delete_elements(&set, &gone).add_elements(&set, &come);
        let done = self.nft.commit(&transaction);
        self.peers = peers;
        match done {
            Ok(()) => Ok(()),
            Err(_) => self.rewrite(settings, ports),
        }
    }

    pub(super) fn senders(&self) -> &BTreeSet<Ipv4Addr> {
        &self.peers
    }

    /// Removes the table; returns whether it existed.
    pub(super) fn withdraw(&mut self) -> Result<bool, SdnError> {
        let there = self.nft.tables()?.iter().any(|info| info.table == rules::table());
        if there {
            let mut transaction = Transaction::new();
            self.nft.commit(transaction.destroy_table(&rules::table()))?;
        }
        self.peers.clear();
        Ok(there)
    }

    /// Rewrites everything in one transaction, so that packets never pass without a verdict.
    /// Existing chains stay and are filled again: with two chains at a hook, a packet could pass
    /// the new one before the change and the old one after it.
    pub(super) fn rewrite(&mut self, settings: &Settings, ports: &Ports) -> Result<(), SdnError> {
        let table = rules::table();
        let mut wanted = ruleset(settings, ports, &self.peers, &self.egress)?;
        let found = self.observe()?;
        let mut transaction = Transaction::new();
        if wanted.is_framed_by(&found, |name| !egress::is_of_netid(name)) {
            transaction.flush_table(&table);
            keep_denied(&mut transaction, &mut wanted, &found);
        } else {
            transaction.destroy_table(&table);
        }
        transaction.add_table_with_comment(&table, "russet: tenants of OpenShift, docs/openshift-tenants.md");
        wanted.add_to(&mut transaction);
        Ok(self.nft.commit(&transaction)?)
    }
}

fn ruleset(
    settings: &Settings,
    ports: &Ports,
    peers: &BTreeSet<Ipv4Addr>,
    egress: &Egress,
) -> Result<Ruleset, SdnError> {
    // The constant names fit, but only the type could prove that.
    rules::ruleset(settings, ports, peers, egress).map_err(|_| {
        let operation = format!("name the tunnel device {}", super::DEVICE);
        SdnError::Netlink(NetlinkError::Invalid { operation, reason: "it is no interface name" })
    })
}

/// Empties all sets of a table without rules, except for what is denied as it is wanted, and deletes what is denied
/// otherwise. A set of ranges that is emptied and filled in one transaction may miss packets meanwhile.
fn keep_denied(transaction: &mut Transaction, wanted: &mut Ruleset, found: &ObservedTable) {
    let table = rules::table();
    let is_kept =
        |set: &Set, elements: &[Element]| egress::is_of_netid(&set.name) && found.holds(set, elements);
    let kept: BTreeSet<String> = wanted
        .sets
        .iter()
        .filter(|(set, elements)| is_kept(set, elements))
        .map(|(set, _)| set.name.clone())
        .collect();
    wanted.sets.retain(|(set, _)| !kept.contains(&set.name));
    let emptied = found.sets.iter().filter(|(set, _)| !egress::is_of_netid(&set.name));
    emptied.for_each(|(set, _)| _ = transaction.flush_set(&table, &set.name));
    // Nothing refers to these any more: the map is empty, and there is no rule.
    let is_wanted = |name: &str| wanted.chains.iter().any(|chain| chain.name == name);
    for chain in found.chains.iter().filter(|it| egress::is_of_netid(&it.name) && !is_wanted(&it.name)) {
        transaction.delete_chain(&table, &chain.name);
    }
    for (set, _) in found.sets.iter().filter(|(set, _)| egress::is_of_netid(&set.name)) {
        if !kept.contains(&set.name) {
            transaction.delete_set(&table, &set.name);
        }
    }
}

/// What changes the entries of ports, with what applies to them outside, to others.
fn difference(was: (&Ports, &Outside<'_>), wanted: (&Ports, &Outside<'_>)) -> Transaction {
    let changes = |link: &IfName| {
        let verdict = |(ports, outside): (&Ports, &Outside<'_>)| outside.verdict(ports.get(link)?.netid?);
        was.0.get(link) != wanted.0.get(link) || verdict(was) != verdict(wanted)
    };
    let changed = |(ports, outside): (&Ports, &Outside<'_>)| {
        let ports = ports.iter().filter(|(link, _)| changes(link));
        gathered(ports.flat_map(|(_, port)| rules::elements_of(port, outside)))
    };
    let (gone, come) = (changed(was), changed(wanted));
    let mut transaction = Transaction::new();
    for name in Name::ALL {
        let [gone, come] = [&gone, &come].map(|all| all.get(&name).cloned().unwrap_or_default());
        // The transaction keeps the order of its requests: an element may be deleted and added
        // with another value.
        let stays = |element: &Element, others: &[Element]| others.contains(element);
        let set = name.set();
        let going: Vec<Element> = gone.iter().filter(|element| !stays(element, &come)).cloned().collect();
        let coming: Vec<Element> = come.iter().filter(|element| !stays(element, &gone)).cloned().collect();
        transaction.delete_elements(&set, &going).add_elements(&set, &coming);
    }
    egress::delete(&mut transaction, was.1, wanted.1);
    transaction
}

fn gathered(elements: impl Iterator<Item = (Name, Vec<Element>)>) -> Elements {
    let mut all = Elements::new();
    for (name, elements) in elements {
        all.entry(name).or_default().extend(elements);
    }
    all
}

pub(super) fn tenants(nft: &mut Nft) -> Result<TenantsHeld, NetlinkError> {
    Ok(TenantsHeld { netids: netids(nft)?, reached: addresses(nft, Name::Globals)? })
}

/// The addresses in a set.
fn addresses(nft: &mut Nft, name: Name) -> Result<BTreeSet<Ipv4Addr>, NetlinkError> {
    let address = |element: &Element| match element.key.first()?.first_address()? {
        std::net::IpAddr::V4(address) => Some(address),
        std::net::IpAddr::V6(_) => None,
    };
    Ok(elements(nft, &name.set())?.iter().filter_map(address).collect())
}

/// The network ID of every link that has one.
fn netids(nft: &mut Nft) -> Result<BTreeMap<IfName, NetId>, NetlinkError> {
    let found = elements(nft, &Name::Netids.set())?;
    Ok(found.iter().filter_map(netid_of).collect())
}

fn elements(nft: &mut Nft, set: &Set) -> Result<Vec<Element>, NetlinkError> {
    match nft.elements(set) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        result => result,
    }
}

fn netid_of(element: &Element) -> Option<(IfName, NetId)> {
    let link = egress::link_of(element.key.first()?)?;
    let Some(Value::Data(mark)) = &element.value else { return None };
    let mark = u32::from_ne_bytes(mark.as_slice().try_into().ok()?);
    (mark & STAMPED != 0).then_some(())?;
    Some((link, NetId::new(mark & !STAMPED).ok()?))
}
