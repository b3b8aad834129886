//! The table of verdicts in the kernel: changes it in one transaction, and compares it with the
//! desired one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use russet_addr::IfName;
use russet_model::openshift::NetId;
use russet_nft::{Element, NetlinkError, Nft, Set, Transaction, Value};
use russet_overlay::ruleset::{ObservedTable, Ruleset};

use super::programs::STAMPED;
use super::rules::{self, Elements, Name};
use super::{Port, Ports, SdnError, Settings};

/// The nf_tables socket, and the peers written so far.
#[derive(Debug)]
pub(super) struct Verdicts {
    nft: Nft,
    /// The nodes that may send VXLAN.
    peers: BTreeSet<Ipv4Addr>,
}

// === impl Verdicts ===

impl Verdicts {
    /// Opens nf_tables and reads the permitted senders of an earlier run.
    pub(super) fn open(settings: &Settings) -> Result<Self, SdnError> {
        ruleset(settings, &Ports::new(), &BTreeSet::new())?;
        let mut nft = Nft::open()?;
        let peers = elements(&mut nft, &Name::Peers.set())?;
        let address = |element: &Element| match element.key.first()?.first_address()? {
            std::net::IpAddr::V4(address) => Some(address),
            std::net::IpAddr::V6(_) => None,
        };
        Ok(Self { nft, peers: peers.iter().filter_map(address).collect() })
    }

    /// The network ID of every link that has one.
    pub(super) fn netids(&mut self) -> Result<BTreeMap<IfName, NetId>, SdnError> {
        let found = elements(&mut self.nft, &Name::Netids.set())?;
        Ok(found.iter().filter_map(netid_of).collect())
    }

    pub(super) fn observe(&mut self) -> Result<ObservedTable, NetlinkError> {
        ObservedTable::read(&mut self.nft, &rules::table(), "")
    }

    /// Whether the table is exactly as it should be.
    pub(super) fn is_in_force(&self, settings: &Settings, ports: &Ports, found: &ObservedTable) -> bool {
        ruleset(settings, ports, &self.peers).is_ok_and(|wanted| wanted.is_in_force(found))
    }

    /// Changes the entries of `was` to those of `wanted` in one transaction of the difference; if
    /// the table was changed by another program, rewrites everything.
    pub(super) fn change(
        &mut self,
        settings: &Settings,
        was: &Ports,
        wanted: &Ports,
    ) -> Result<(), SdnError> {
        let gone = was.iter().filter(|(link, port)| wanted.get(*link) != Some(*port));
        let come = wanted.iter().filter(|(link, port)| was.get(*link) != Some(*port));
        let (gone, come) = (gathered(gone.map(|(_, port)| port)), gathered(come.map(|(_, port)| port)));
        let mut transaction = Transaction::new();
        for name in Name::ALL {
            let [gone, come] = [&gone, &come].map(|all| all.get(&name).cloned().unwrap_or_default());
            // The transaction keeps the order of its requests: an element may be deleted and added
            // with another value.
            let stays = |element: &Element, others: &[Element]| others.contains(element);
            let set = name.set();
            let going: Vec<Element> = gone.iter().filter(|element| !stays(element, &come)).cloned().collect();
            let coming: Vec<Element> =
                come.iter().filter(|element| !stays(element, &gone)).cloned().collect();
            transaction.delete_elements(&set, &going).add_elements(&set, &coming);
        }
        match self.nft.commit(&transaction) {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() || error.is_exists() || error.outcome_unknown() => {
                self.rewrite(settings, wanted)
            }
            Err(error) => Err(error.into()),
        }
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
        let (table, wanted) = (rules::table(), ruleset(settings, ports, &self.peers)?);
        let mut transaction = Transaction::new();
        if wanted.is_framed(&self.observe()?) {
            transaction.flush_table(&table);
            wanted.sets.iter().for_each(|(set, _)| _ = transaction.flush_set(&table, &set.name));
        } else {
            transaction.destroy_table(&table);
        }
        transaction.add_table_with_comment(&table, "russet: tenants of OpenShift, docs/openshift-tenants.md");
        wanted.add_to(&mut transaction);
        Ok(self.nft.commit(&transaction)?)
    }
}

fn ruleset(settings: &Settings, ports: &Ports, peers: &BTreeSet<Ipv4Addr>) -> Result<Ruleset, SdnError> {
    // The constant names fit, but only the type could prove that.
    rules::ruleset(settings, ports.values(), peers).map_err(|_| {
        let operation = format!("name the tunnel device {}", super::DEVICE);
        SdnError::Netlink(NetlinkError::Invalid { operation, reason: "it is no interface name" })
    })
}

fn gathered<'a>(ports: impl Iterator<Item = &'a Port>) -> Elements {
    let mut all = Elements::new();
    for (name, elements) in ports.flat_map(rules::elements_of) {
        all.entry(name).or_default().extend(elements);
    }
    all
}

fn elements(nft: &mut Nft, set: &Set) -> Result<Vec<Element>, NetlinkError> {
    match nft.elements(set) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        result => result,
    }
}

fn netid_of(element: &Element) -> Option<(IfName, NetId)> {
    let (name, _) = element.key.first()?.bytes();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let link = IfName::new(std::str::from_utf8(name.get(..end)?).ok()?).ok()?;
    let Some(Value::Data(mark)) = &element.value else { return None };
    let mark = u32::from_ne_bytes(mark.as_slice().try_into().ok()?);
    (mark & STAMPED != 0).then_some(())?;
    Some((link, NetId::new(mark & !STAMPED).ok()?))
}
