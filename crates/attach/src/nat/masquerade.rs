//! Pods whose packets get the node's address when they leave the pod's own network: `ipMasq` of the
//! reference plugins.

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, NetworkName};
use russet_nft::{
    self as nft, Chain, ChainKind, Element, Hook, KeyPart, KeyType, Nft, Rule, Set, Transaction, priority,
};

use super::{NatError, change, elements, is_stale, label, table};
use crate::owner::Owner;

const CHAIN: &str = "masq-postrouting";

/// Masquerades packets of `owner`'s addresses, except those to their own networks and to multicast
/// groups.
pub fn masquerade(nft: &mut Nft, owner: &Owner, addresses: &[IpNet]) -> Result<(), NatError> {
    let label = owner.label();
    change(nft, "masquerade a pod", &mut |nft| {
        let mut transaction = Transaction::new();
        add_chain(&mut transaction);
        for family in Family::BOTH {
            let mine: Vec<IpNet> =
                addresses.iter().copied().filter(|net| Family::of_net(net) == family).collect();
            if mine.is_empty() {
                continue;
            }
            for (set, wanted) in [(pods(family), pod_elements(&mine)), (local(family), local_elements(&mine))]
            {
                // The addresses are allocated to this owner, so elements of another one are stale.
                let ours = |element: &Element| {
                    mine.iter().any(|net| element.key.first() == Some(&net.addr().into()))
                };
                let others = elements(nft, &set, &ours)?;
                if !others.is_empty() {
                    transaction.delete_elements(&set, &others);
                }
                let wanted: Vec<Element> = wanted.into_iter().map(|it| it.comment(label.clone())).collect();
                transaction.add_elements(&set, &wanted);
            }
        }
        Ok(transaction)
    })
}

/// Removes an owner's addresses, if there are any.
pub fn unmasquerade(nft: &mut Nft, owner: &Owner) -> Result<(), NatError> {
    let wanted = owner.label();
    forget(nft, &|element| label(element) == wanted)
}

/// Removes the addresses of a network's owners that are not valid.
pub fn collect(nft: &mut Nft, network: &NetworkName, valid: &[Owner]) -> Result<(), NatError> {
    let network = Owner::network_label(network);
    forget(nft, &|element| is_stale(element, &network, valid))
}

/// Whether all of these addresses of the owner are masqueraded.
pub fn masqueraded(nft: &mut Nft, owner: &Owner, addresses: &[IpNet]) -> Result<bool, NatError> {
    let wanted = owner.label();
    for net in addresses {
        let found = elements(nft, &pods(Family::of_net(net)), &|element| {
            label(element) == wanted && element.key.first() == Some(&net.addr().into())
        })?;
        if found.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The owners of masqueraded addresses.
pub(super) fn addresses(nft: &mut Nft) -> Result<Vec<(String, Option<IpAddr>)>, NatError> {
    let mut found = Vec::new();
    for family in Family::BOTH {
        for element in elements(nft, &pods(family), &|_| true)? {
            let address = element.key.first().and_then(KeyPart::first_address);
            found.push((label(&element).to_owned(), address));
        }
    }
    Ok(found)
}

/// Removes the elements with these labels.
pub(super) fn forget_labelled(nft: &mut Nft, labels: &BTreeSet<String>) -> Result<(), NatError> {
    forget(nft, &|element| labels.contains(label(element)))
}

fn forget(nft: &mut Nft, unwanted: &dyn Fn(&Element) -> bool) -> Result<(), NatError> {
    change(nft, "forget masqueraded pods", &mut |nft| {
        let mut transaction = Transaction::new();
        for set in Family::BOTH.into_iter().flat_map(|family| [pods(family), local(family)]) {
            let found = elements(nft, &set, unwanted)?;
            if !found.is_empty() {
                transaction.delete_elements(&set, &found);
            }
        }
        Ok(transaction)
    })
}

fn add_chain(transaction: &mut Transaction) {
    let table = table();
    let chain = Chain::base(&table, CHAIN, ChainKind::Nat, Hook::Postrouting, priority::SRCNAT);
    transaction.add_table(&table).add_chain(&chain).flush_chain(&table, CHAIN);
    for family in Family::BOTH {
        let (pods, local) = (pods(family), local(family));
        transaction.add_set(&pods).add_set(&local);
        let (saddr, daddr) = match family {
            Family::V4 => (nft::Field::Saddr(Family::V4), nft::Field::Daddr(Family::V4)),
            Family::V6 => (nft::Field::Saddr(Family::V6), nft::Field::Daddr(Family::V6)),
        };
        transaction.add_rule(&Rule::new(&chain).is_in(&[saddr, daddr], local.name.clone()).accept());
        let out = Rule::new(&chain).saddr_in(family, pods.name.clone()).daddr_not(groups(family));
        transaction.add_rule(&out.masquerade(nft::Masquerade::default()));
    }
}

/// The pods' addresses.
fn pods(family: Family) -> Set {
    let name = match family {
        Family::V4 => "masq-pods4",
        Family::V6 => "masq-pods6",
    };
    Set::new(&table(), name, [KeyType::address(family)])
}

/// Each pod's address with its own network.
fn local(family: Family) -> Set {
    let name = match family {
        Family::V4 => "masq-local4",
        Family::V6 => "masq-local6",
    };
    Set::new(&table(), name, [KeyType::address(family), KeyType::address(family)]).interval()
}

fn pod_elements(addresses: &[IpNet]) -> Vec<Element> {
    addresses.iter().map(|net| Element::new(net.addr())).collect()
}

fn local_elements(addresses: &[IpNet]) -> Vec<Element> {
    let both = |net: &IpNet| Element::concatenation([KeyPart::from(net.addr()), KeyPart::from(net.trunc())]);
    addresses.iter().map(both).collect()
}

/// Packets to multicast groups keep their source, as with the Go plugin.
fn groups(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(224, 0, 0, 0), 4)),
        Family::V6 => {
            IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8))
        }
    }
}
