//! EndpointSlices become the endpoints of Services. Several slices of one Service are merged.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::ir::{Problem, Protocol, ServiceId};
use crate::translate::ports;
use crate::translate::read::At;
use crate::world::{Service, Update};

/// The label of a slice with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The largest number of pairs of an address and a port in one slice. Kubernetes' own limits are
/// 1,000 endpoints and 100 ports.
const SLICE_MEMBERS_MAX: usize = 100_000;

/// Namespace and name of a slice.
type SliceKey = (Arc<str>, Arc<str>);

/// The slices that are there.
#[derive(Debug, Clone, Default)]
pub(in crate::translate) struct Slices {
    slices: BTreeMap<SliceKey, (ServiceId, Service)>,
    names: BTreeMap<ServiceId, std::collections::BTreeSet<SliceKey>>,
}

/// Reads a slice. One without a Service has no use here.
pub(in crate::translate) fn slice(document: &At<'_>) -> Result<Option<(ServiceId, Service)>, Problem> {
    let metadata = document.metadata()?;
    let namespace = metadata.wanted_namespace()?;
    let labels = metadata.labels()?;
    let Some(name) = labels.get(SERVICE_NAME) else { return Ok(None) };
    let id = ServiceId { namespace: namespace.into(), name: Arc::clone(name) };
    if document.opt_text("addressType")? == Some("FQDN") {
        return Ok(Some((id, Service::default())));
    }
    let ports: Vec<(Protocol, u16)> =
        document.list("ports")?.iter().filter_map(|at| port(at).transpose()).collect::<Result<_, _>>()?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for endpoint in document.list("endpoints")? {
        for address in endpoint.list("addresses")? {
            addresses.push(address.parse()?);
        }
    }
    if addresses.len().saturating_mul(ports.len()) > SLICE_MEMBERS_MAX {
        return Err(
            document.problem(format!("it has more than {SLICE_MEMBERS_MAX} pairs of address and port"))
        );
    }
    let pairs = addresses
        .iter()
        .flat_map(|address| ports.iter().map(|(protocol, port)| (*address, *protocol, *port)));
    let endpoints = pairs.collect();
    Ok(Some((id, Service { addresses: addresses.into_iter().collect(), endpoints })))
}

/// A port; one without a number is every port, which Calico leaves out.
fn port(at: &At<'_>) -> Result<Option<(Protocol, u16)>, Problem> {
    let Some(number) = at.member("port") else { return Ok(None) };
    Ok(Some((ports::kubernetes_protocol(at)?, ports::number(&number)?)))
}

// === impl Slices ===

impl Slices {
    /// Adds, changes or removes a slice; `None` is one that is gone, or without a Service.
    pub fn set(&mut self, namespace: &str, name: &str, content: Option<(ServiceId, Service)>) -> Vec<Update> {
        let key: SliceKey = (namespace.into(), name.into());
        let now = content.as_ref().map(|(service, _)| service.clone());
        let before = match content {
            Some(content) => self.slices.insert(key.clone(), content),
            None => self.slices.remove(&key),
        };
        let before = before.map(|(service, _)| service);
        if let Some(service) = before.as_ref().filter(|before| Some(*before) != now.as_ref()) {
            self.forget(service, &key);
        }
        if let Some(service) = &now {
            self.names.entry(service.clone()).or_default().insert(key);
        }
        let changed = before.into_iter().chain(now);
        changed.collect::<std::collections::BTreeSet<_>>().into_iter().map(|id| self.merged(id)).collect()
    }

    fn forget(&mut self, service: &ServiceId, key: &SliceKey) {
        if let Some(names) = self.names.get_mut(service) {
            names.remove(key);
            if names.is_empty() {
                self.names.remove(service);
            }
        }
    }

    fn merged(&self, id: ServiceId) -> Update {
        let service = self.names.get(&id).map(|names| {
            let mut merged = Service::default();
            for (_, part) in names.iter().filter_map(|name| self.slices.get(name)) {
                merged.addresses.extend(&part.addresses);
                merged.endpoints.extend(&part.endpoints);
            }
            Arc::new(merged)
        });
        Update::Service(id, service)
    }
}
