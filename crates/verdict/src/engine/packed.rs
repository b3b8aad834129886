//! Policies in few bytes. Most policies of a cluster select nothing on this node; unpacked, ten thousand of them
//! would take most of the engine's memory.
//!
//! What decisions depend on comes first, and what explains them behind it.

use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{Family, IpNet};
use russet_model::Selector;
use russet_model::packed::{pack_number, pack_text, take_byte, take_number, take_text};

use super::labels::Labels;
use crate::ir::{
    Action, Directions, Entity, HostUse, Icmp, Order, Policy, PolicyId, Port, Problem, Protocol, Rule,
    ServiceId,
};

/// A policy without its identity, which its key has. Equal ones are equal here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackedPolicy(Arc<[u8]>);

/// What is in a policy besides its subject.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Content {
    pub(super) tier: Arc<str>,
    pub(super) order: Order,
    pub(super) directions: Directions,
    pub(super) ingress: Vec<Rule>,
    pub(super) egress: Vec<Rule>,
}

/// What can be written as bytes and read again.
trait Pack: Sized {
    fn pack(&self, bytes: &mut Vec<u8>);
    /// `None` if these are no bytes of [`Pack::pack`].
    fn unpack(bytes: &mut &[u8]) -> Option<Self>;
}

/// Where a policy applies to host endpoints, by their numbers.
const HOST_USES: [HostUse; 4] = [HostUse::Normal, HostUse::Forward, HostUse::Untracked, HostUse::PreDnat];
/// The bit beside that number that a staged policy has.
const STAGED: u8 = 0x80;
/// The bit of one with rules that ask for HTTP, whose places are behind the paths of all rules.
const HTTP: u8 = 0x40;

fn host_use(number: u8) -> Option<HostUse> {
    HOST_USES.get(usize::from(number)).copied()
}

// === impl PackedPolicy ===

impl PackedPolicy {
    pub(super) fn new(policy: &Policy) -> Self {
        let Policy { tier, order, subject, directions, staged, host_use, ingress, egress, .. } = policy;
        let counts = staged.is_none() && matches!(host_use, HostUse::Normal | HostUse::Forward);
        let mut bytes = Vec::new();
        counts.pack(&mut bytes);
        subject.pack(&mut bytes);
        tier.pack(&mut bytes);
        order.pack(&mut bytes);
        (directions.ingress, directions.egress).pack(&mut bytes);
        ingress.pack(&mut bytes);
        egress.pack(&mut bytes);
        policy.pack_explanation(&mut bytes);
        Self(bytes.into())
    }

    /// An enforced policy as it was, for explanations. `None` if it does not count for workloads.
    pub(super) fn policy(&self, id: &PolicyId) -> Option<Policy> {
        self.enforced(id).filter(|_| self.counts())
    }

    /// An enforced policy as it was, also if it counts for host endpoints alone.
    pub(super) fn enforced(&self, id: &PolicyId) -> Option<Policy> {
        let mut bytes = self.0.get(1..)?;
        let subject = Selector::unpack(&mut bytes)?;
        let bytes = &mut bytes;
        let Content { tier, order, directions, mut ingress, mut egress } = Content::unpack(bytes)?;
        let (name, byte) = (Pack::unpack(bytes)?, take_byte(bytes)?);
        let (is_enforced, host_use) = (byte & STAGED == 0, host_use(byte & !(STAGED | HTTP))?);
        for rule in ingress.iter_mut().chain(&mut egress) {
            rule.path = Pack::unpack(bytes)?;
        }
        let with_http: Vec<u16> = if byte & HTTP == 0 { Vec::new() } else { Pack::unpack(bytes)? };
        for place in with_http.into_iter().map(usize::from) {
            match place.checked_sub(ingress.len()) {
                None => ingress.get_mut(place)?.http = true,
                Some(place) => egress.get_mut(place)?.http = true,
            }
        }
        let problems = Pack::unpack(bytes)?;
        let id = id.clone();
        let policy = Policy {
            id,
            name,
            tier,
            order,
            subject,
            directions,
            staged: None,
            host_use,
            ingress,
            egress,
            problems,
        };
        is_enforced.then_some(policy)
    }

    /// Whether it counts for workloads.
    pub(super) fn counts(&self) -> bool {
        self.0.first().is_some_and(|byte| *byte != 0)
    }

    /// The endpoints to which it applies.
    pub(super) fn subject(&self) -> Option<Selector> {
        Selector::unpack(&mut self.0.get(1..)?)
    }

    /// Whether it applies to an endpoint with these labels.
    pub(super) fn selects(&self, labels: &Labels<'_>) -> bool {
        let matches = |mut bytes| labels.match_packed(&mut bytes);
        self.0.get(1..).and_then(matches).unwrap_or(false)
    }

    /// Everything else. Bytes that cannot be read, of which there are none, isolate.
    pub(super) fn content(&self) -> Content {
        self.read().unwrap_or_else(|| Content {
            tier: "default".into(),
            order: Order::FIRST,
            directions: Directions { ingress: true, egress: true },
            ingress: Vec::new(),
            egress: Vec::new(),
        })
    }

    fn read(&self) -> Option<Content> {
        let mut bytes = self.0.get(1..)?;
        Selector::unpack(&mut bytes)?;
        Content::unpack(&mut bytes)
    }
}

// === impl Content ===

impl Content {
    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        let (tier, order) = (Pack::unpack(bytes)?, Pack::unpack(bytes)?);
        let (ingress, egress) = Pack::unpack(bytes)?;
        let directions = Directions { ingress, egress };
        Some(Self { tier, order, directions, ingress: Pack::unpack(bytes)?, egress: Pack::unpack(bytes)? })
    }
}

// === impl Policy ===

impl Policy {
    /// What [`PackedPolicy::enforced`] needs besides [`Content`].
    fn pack_explanation(&self, bytes: &mut Vec<u8>) {
        self.name.pack(bytes);
        let host_use = HOST_USES.iter().position(|it| *it == self.host_use).unwrap_or_default();
        let staged = if self.staged.is_some() { STAGED } else { 0 };
        let rules = || self.ingress.iter().chain(&self.egress);
        let with_http = (0..=u16::MAX).zip(rules()).filter(|(_, rule)| rule.http).map(|(place, _)| place);
        let with_http: Vec<u16> = with_http.collect();
        let http = if with_http.is_empty() { 0 } else { HTTP };
        bytes.push(u8::try_from(host_use).unwrap_or_default() | staged | http);
        rules().for_each(|rule| rule.path.pack(bytes));
        if http != 0 {
            with_http.pack(bytes);
        }
        self.problems.pack(bytes);
    }
}

// === impl Pack ===

impl Pack for u8 {
    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.push(*self);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        take_byte(bytes)
    }
}

impl Pack for u16 {
    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.to_be_bytes());
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        take(bytes).map(Self::from_be_bytes)
    }
}

impl Pack for bool {
    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        take_byte(bytes).map(|byte| byte != 0)
    }
}

impl Pack for Arc<str> {
    fn pack(&self, bytes: &mut Vec<u8>) {
        pack_text(self, bytes);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        take_text(bytes).map(Into::into)
    }
}

impl<T: Pack> Pack for Option<T> {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.is_some().pack(bytes);
        self.iter().for_each(|it| it.pack(bytes));
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        match bool::unpack(bytes)? {
            true => T::unpack(bytes).map(Some),
            false => Some(None),
        }
    }
}

impl<T: Pack> Pack for Vec<T> {
    fn pack(&self, bytes: &mut Vec<u8>) {
        pack_number(self.len(), bytes);
        self.iter().for_each(|it| it.pack(bytes));
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        let count = take_number(bytes)?;
        (0..count).map(|_| T::unpack(bytes)).collect()
    }
}

impl<A: Pack, B: Pack> Pack for (A, B) {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.0.pack(bytes);
        self.1.pack(bytes);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        Some((A::unpack(bytes)?, B::unpack(bytes)?))
    }
}

impl Pack for Selector {
    fn pack(&self, bytes: &mut Vec<u8>) {
        Self::pack(self, bytes);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        Self::unpack(bytes)
    }
}

impl Pack for IpNet {
    fn pack(&self, bytes: &mut Vec<u8>) {
        match self.addr() {
            IpAddr::V4(address) => {
                bytes.push(4);
                bytes.extend(address.octets());
            }
            IpAddr::V6(address) => {
                bytes.push(6);
                bytes.extend(address.octets());
            }
        }
        bytes.push(self.prefix_len());
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        let address = match take_byte(bytes)? {
            4 => IpAddr::from(take::<4>(bytes)?),
            6 => IpAddr::from(take::<16>(bytes)?),
            _ => return None,
        };
        Self::new(address, take_byte(bytes)?).ok()
    }
}

impl Pack for Order {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.number().is_some().pack(bytes);
        // Adding zero makes -0 equal to 0.
        bytes.extend(self.number().into_iter().flat_map(|number| (number + 0.0).to_be_bytes()));
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        match bool::unpack(bytes)? {
            true => take(bytes).map(|number| Self::new(Some(f64::from_be_bytes(number)))),
            false => Some(Self::LAST),
        }
    }
}

impl Pack for Action {
    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.push(match self {
            Self::Allow => 0,
            Self::Deny => 1,
            Self::Pass => 2,
            Self::Log => 3,
        });
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        Some(match take_byte(bytes)? {
            0 => Self::Allow,
            1 => Self::Deny,
            2 => Self::Pass,
            3 => Self::Log,
            _ => return None,
        })
    }
}

impl Pack for Family {
    fn pack(&self, bytes: &mut Vec<u8>) {
        (*self == Self::V6).pack(bytes);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        Some(if bool::unpack(bytes)? { Self::V6 } else { Self::V4 })
    }
}

impl Pack for Port {
    fn pack(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Range(first, last) => {
                bytes.push(0);
                (*first, *last).pack(bytes);
            }
            Self::Named(name) => {
                bytes.push(1);
                name.pack(bytes);
            }
        }
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        Some(match take_byte(bytes)? {
            0 => Self::Range(u16::unpack(bytes)?, u16::unpack(bytes)?),
            1 => Self::Named(Arc::unpack(bytes)?),
            _ => return None,
        })
    }
}

/// Structures, member by member.
macro_rules! pack_members {
    ($($of:ident { $($member:ident),* } $(as $($default:ident),*)?;)*) => {$(
        impl Pack for $of {
            fn pack(&self, bytes: &mut Vec<u8>) {
                let Self { $($member,)* $($($default: _,)*)? } = self;
                $($member.pack(bytes);)*
            }

            fn unpack(bytes: &mut &[u8]) -> Option<Self> {
                Some(Self { $($member: Pack::unpack(bytes)?,)* $($($default: Default::default(),)*)? })
            }
        }
    )*};
}

pack_members! {
    Icmp { kind, code };
    ServiceId { namespace, name };
    Entity { nets, not_nets, selector, not_selector, nodes, service, ports, not_ports };
    // Where it stands in its object, and whether it asks for HTTP, is behind all rules: decisions do not read it.
    Rule { action, family, protocol, not_protocol, icmp, not_icmp, source, destination } as path, http;
    Problem { path, text };
}

impl Pack for Protocol {
    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.0);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        take_byte(bytes).map(Self)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::super::tests::random::Random;
    use super::*;
    use crate::world::Update;

    #[test]
    fn a_packed_policy_has_what_decisions_depend_on() {
        let mut random = Random::new(11);
        let mut policies = 0;
        while policies < 500 {
            let Update::Policy(_, Some(policy)) = random.update() else { continue };
            policies += 1;
            let packed = PackedPolicy::new(&policy);
            let without_paths = |rules: &[Rule]| -> Vec<Rule> {
                rules.iter().map(|rule| Rule { path: "".into(), ..rule.clone() }).collect()
            };
            let wanted = Content {
                tier: policy.tier.clone(),
                order: policy.order,
                directions: policy.directions,
                ingress: without_paths(&policy.ingress),
                egress: without_paths(&policy.egress),
            };
            assert_eq!(packed.content(), wanted);
            assert_eq!(packed.subject().as_ref(), Some(&policy.subject));
            let of_hosts = matches!(policy.host_use, HostUse::Untracked | HostUse::PreDnat);
            assert_eq!(packed.counts(), policy.staged.is_none() && !of_hosts);
            assert_eq!(packed.policy(&policy.id), packed.counts().then(|| (*policy).clone()));
            assert_eq!(packed.enforced(&policy.id), policy.staged.is_none().then(|| (*policy).clone()));
            assert_eq!(packed, PackedPolicy::new(&policy.clone()));
        }
    }

    #[test]
    fn a_packed_rule_keeps_that_it_asks_for_http() {
        let mut random = Random::new(7);
        let policy = std::iter::repeat_with(|| random.update()).find_map(|update| match update {
            Update::Policy(_, Some(policy)) if policy.staged.is_none() => Some((*policy).clone()),
            _ => None,
        });
        let rule = |http| Rule { http, ..Rule::any(Action::Allow, "rule") };
        let rules = [false, true, false, true].map(rule).to_vec();
        let policy = Policy { ingress: rules.clone(), egress: rules, ..policy.unwrap() };
        assert_eq!(PackedPolicy::new(&policy).enforced(&policy.id), Some(policy));
    }

    #[test]
    fn a_packed_policy_takes_a_tenth_of_an_unpacked_one() {
        let scale = crate::scale::Scale { namespaces: 1, pods: 0, policies: 20 };
        for update in scale.updates() {
            let Update::Policy(id, Some(policy)) = update else { continue };
            let length = PackedPolicy::new(&policy).0.len();
            // Its three rules alone take 1,900 bytes without what they point to.
            assert!(length < 400, "{id}: {length} bytes");
        }
    }
}
