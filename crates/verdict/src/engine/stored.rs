//! Endpoints as the engine keeps them: a cluster has many more of them than of anything else, so that each takes
//! little memory and shares its texts with others.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::IfName;

use super::labels::OwnLabels;
use crate::world::{Endpoint, EndpointKind, NamedPort};

/// An [`Endpoint`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredEndpoint {
    pub(super) kind: EndpointKind,
    pub(super) namespace: Option<Arc<str>>,
    name: Arc<str>,
    pub(super) node: Arc<str>,
    /// In order, each once.
    pub(super) addresses: Box<[IpAddr]>,
    /// In the order of their names, each once.
    labels: Box<[(Arc<str>, Arc<str>)]>,
    pub(super) profiles: Box<[Arc<str>]>,
    pub(super) ports: Box<[NamedPort]>,
    pub(super) local: Option<IfName>,
    pub(super) age: u64,
}

/// Texts, of which each is kept once.
#[derive(Debug, Default)]
pub(super) struct Texts {
    known: BTreeSet<Arc<str>>,
    /// With so many, those that nothing uses any more are removed.
    limit: usize,
}

/// Fewer texts are not worth a search for unused ones.
const LIMIT_MIN: usize = 1024;

// === impl StoredEndpoint ===

impl StoredEndpoint {
    pub(super) fn new(endpoint: &Endpoint, texts: &mut Texts) -> Self {
        let Endpoint { kind, namespace, name, node, addresses, labels, profiles, ports, local, age } =
            endpoint;
        let kind = match kind {
            EndpointKind::Workload => EndpointKind::Workload,
            EndpointKind::Host { interface } => EndpointKind::Host { interface: texts.shared(interface) },
        };
        let named = |port: &NamedPort, texts: &mut Texts| NamedPort {
            name: texts.shared(&port.name),
            protocol: port.protocol,
            port: port.port,
        };
        Self {
            kind,
            namespace: namespace.as_ref().map(|namespace| texts.shared(namespace)),
            name: texts.shared(name),
            node: texts.shared(node),
            addresses: addresses.iter().copied().collect(),
            labels: labels.iter().map(|(name, value)| (texts.shared(name), texts.shared(value))).collect(),
            profiles: profiles.iter().map(|profile| texts.shared(profile)).collect(),
            ports: ports.iter().map(|port| named(port, texts)).collect(),
            local: local.clone(),
            age: *age,
        }
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint {
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            node: self.node.clone(),
            addresses: self.addresses.iter().copied().collect(),
            labels: self.labels.iter().cloned().collect(),
            profiles: self.profiles.to_vec(),
            ports: self.ports.to_vec(),
            local: self.local.clone(),
            age: self.age,
        }
    }

    pub(super) fn labels(&self) -> OwnLabels<'_> {
        OwnLabels::Sorted(&self.labels)
    }

    /// Whether it differs from another one in nothing but labels and names for people.
    pub(super) fn is_same_but_labels(&self, other: &Self) -> bool {
        let Self { kind, namespace, name: _, node, addresses, labels: _, profiles, ports, local, age } = self;
        (kind, namespace, node, addresses, profiles)
            == (&other.kind, &other.namespace, &other.node, &other.addresses, &other.profiles)
            && (ports, local, age) == (&other.ports, &other.local, &other.age)
    }
}

// === impl Texts ===

impl Texts {
    /// A text of its own: the caller's would keep the memory around it, where all else is temporary.
    pub(super) fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        if self.known.len() >= self.limit.max(LIMIT_MIN) {
            self.known.retain(|text| Arc::strong_count(text) > 1);
            self.limit = 2 * self.known.len();
        }
        let own: Arc<str> = text.into();
        self.known.insert(own.clone());
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Protocol;

    #[test]
    fn an_endpoint_is_the_same_after_it_was_stored() {
        let endpoint = Endpoint {
            kind: EndpointKind::Host { interface: "eth0".into() },
            namespace: Some("a".into()),
            name: "b".into(),
            node: "n".into(),
            addresses: ["fd00::1", "10.0.0.1"].map(|it| it.parse().unwrap()).into(),
            labels: [("z", "1"), ("a", "2")].map(|(name, value)| (name.into(), value.into())).into(),
            profiles: vec!["kns.b".into(), "kns.a".into()],
            ports: vec![NamedPort { name: "web".into(), protocol: Protocol::TCP, port: 80 }],
            local: IfName::new("eth0").ok(),
            age: 7,
        };
        assert_eq!(StoredEndpoint::new(&endpoint, &mut Texts::default()).endpoint(), endpoint);
    }

    #[test]
    fn a_text_is_kept_once_and_not_longer_than_it_is_used() {
        let mut texts = Texts::default();
        let kept = texts.shared("kept");
        assert!(Arc::ptr_eq(&kept, &texts.shared("kept")));
        for number in 0..10 * LIMIT_MIN {
            texts.shared(&number.to_string());
        }
        assert!(texts.known.contains("kept"));
        assert!(texts.known.len() <= LIMIT_MIN, "{}", texts.known.len());
    }
}
