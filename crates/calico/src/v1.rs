//! The `calico` plugin on the data of Calico v1.11, for clusters that are not migrated yet:
//! addresses, endpoints and profiles in the v1 model behind etcd's v2 API (calico-cni.md sections
//! 2.3, 2.6 and 3.6). The `calico` plugin calls it if [`choose`] finds that a configuration means
//! that data.
//!
//! Fixes of later v1.11 releases are included: profiles are not repeated, only allocations of the
//! failed request are released, and an endpoint records its newest container. An existing endpoint
//! keeps its addresses (calico-cni.md oracle 56) as long as the allocator says that this workload still holds
//! them.

mod choice;
mod conf;
mod delegated;
mod endpoint;
mod facts;
mod view;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use russet_addr::{IpNet, NodeName, host_net};
use russet_attach::{Attachment, Detachment, Dialect};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, IpConfig, Verb};
use russet_ipam::{Allocator, Clock, Held, IpamError, Request as AddressRequest, SystemClock, TIMESTAMP};
use russet_model::v1::{Endpoint, EndpointId, ORCHESTRATOR_CNI, ORCHESTRATOR_K8S};
use russet_model::{HandleId, time};
use russet_store::Store;
use russet_store_etcd::{EtcdV2, Settings as EtcdSettings};
use russet_wiring::{AttachFailure, Delegate, Pause, RequestLog, Target, failure};

use crate::conf::CalicoConf;
use crate::datastore::Datastore;
use crate::ipam::{BUDGET, Subject, requested_address, within};
use crate::node::CalicoNode;
use crate::plugin::{labels, one_of_a_family};
use endpoint::{Records, Stored, WriteFailure};
use view::V3View;

#[cfg(test)]
pub(crate) use choice::nothing_found;
pub use choice::{DataModel, choose, has_v1};
use facts::PodFacts;

/// The library's default MTU, if the configuration names none (calico-cni.md section 1.2).
const MTU_DEFAULT_BYTES: u32 = 1500;

/// The context of one request on the v1 model.
struct V1Request<'a> {
    node: &'a CalicoNode,
    request: &'a Request,
    conf: &'a CalicoConf,
    facts: Option<&'a PodFacts>,
    log: &'a RequestLog,
    name: NodeName,
    target: Target,
    id: EndpointId,
    records: Records,
    allocator: Allocator,
}

/// The addresses of an ADD.
struct Taken {
    addresses: Vec<IpAddr>,
    /// The mark of what this request allocated; `None` if it allocated nothing.
    mark: Option<String>,
    /// The other IPAM plugin that allocated them for this request.
    delegate: Option<Delegate>,
}

/// Executes a request on the data behind the v2 API of `etcd`.
pub async fn run(
    node: &CalicoNode,
    request: &Request,
    conf: &CalicoConf,
    etcd: EtcdSettings,
    log: &RequestLog,
) -> Result<Option<CniResult>, CniError> {
    let facts = PodFacts::read(node, request, conf).await?;
    let etcd =
        EtcdV2::connect(etcd).map_err(|error| CniError::invalid_config("etcd cannot be used", error))?;
    let store: Rc<dyn Store> = Rc::new(etcd.clone());
    let records = Records { store, directories: Some(etcd) };
    run_on(node, request, conf, records, facts.as_ref(), log).await
}

/// The datastore of a v1.11 configuration for `calico-ipam`: v1 data in the form of v3. `named`
/// says that the configuration names v1 data explicitly.
pub(crate) async fn datastore(settings: &EtcdSettings, named: bool) -> Result<Datastore, CniError> {
    if !choice::decide(settings, named).await? {
        // The caller has found no v3 data a moment ago.
        return Err(CniError::try_again_later("the datastore is being set up", "v3 data appeared just now"));
    }
    let etcd = EtcdV2::connect(settings.clone());
    let etcd = etcd.map_err(|error| CniError::invalid_config("etcd cannot be used", error))?;
    let view: Rc<dyn Store> = Rc::new(V3View::new(Rc::new(etcd)));
    let allocator = v1_allocator(view.clone());
    Ok(Datastore::new(view, allocator).with_v1_names())
}

/// The allocator over a view of v1 data.
fn v1_allocator(view: Rc<dyn Store>) -> Allocator {
    Allocator::new(view, Rc::new(SystemClock)).with_backoff(Rc::new(Pause)).with_strict_blocks()
}

/// Whether a configuration that names only this etcd means its v1 data.
pub(crate) async fn means_v1(settings: &EtcdSettings) -> Result<bool, CniError> {
    choice::decide(settings, false).await
}

async fn run_on(
    node: &CalicoNode,
    request: &Request,
    conf: &CalicoConf,
    records: Records,
    facts: Option<&PodFacts>,
    log: &RequestLog,
) -> Result<Option<CniResult>, CniError> {
    let target = match &request.env.call {
        Call::Add(target) | Call::Del(target) | Call::Check(target) => target,
        // Both came with CNI 1.1.0, which no configuration of v1.11 names; DEL leaves nothing to
        // collect.
        Call::Gc => return Ok(None),
        Call::Status => return records.refuse_unready().await.map(|()| None),
    };
    let work = V1Request::new(node, request, conf, target, records, facts, log)?;
    match &request.env.call {
        Call::Add(_) => work.add().await.map(Some),
        Call::Del(_) => work.del().await.map(|()| None),
        _ => work.check().await.map(|()| None),
    }
}

// === impl V1Request ===

impl<'a> V1Request<'a> {
    fn new(
        node: &'a CalicoNode,
        request: &'a Request,
        conf: &'a CalicoConf,
        target: &russet_cni_spec::Target,
        records: Records,
        facts: Option<&'a PodFacts>,
        log: &'a RequestLog,
    ) -> Result<Self, CniError> {
        let target = Target::from_request(request, target)?;
        let name = conf.v1_node_name()?;
        let (orchestrator, workload) = match &target.pod {
            Some(pod) => (ORCHESTRATOR_K8S, format!("{}.{}", pod.namespace, pod.name)),
            None => (ORCHESTRATOR_CNI, target.id.container.to_string()),
        };
        let id = EndpointId::new(name.clone(), orchestrator, &workload, target.id.ifname.as_str());
        let id = id.map_err(|error| CniError::environment("the workload cannot be named", error))?;
        let allocator = v1_allocator(Rc::new(V3View::new(records.store.clone())));
        Ok(Self { node, request, conf, facts, log, name, target, id, records, allocator })
    }

    fn is_pod(&self) -> bool {
        self.target.pod.is_some()
    }

    async fn add(&self) -> Result<CniResult, CniError> {
        self.refuse_blind_policy()?;
        self.records.refuse_unready().await?;
        let netns = self.target.open_netns()?;
        let existing = self.records.of_workload(&self.id).await?;
        if let Some(stored) = &existing {
            let (nets, host) = (shown(stored.endpoint.nets()), &stored.endpoint.name);
            let found =
                format!("Calico CNI found existing endpoint: {} IPs={nets} Interface={host:?}", stored.key);
            self.log.fact(found, &self.target);
        }
        if let Some(stored) = existing.as_ref().filter(|_| !self.is_pod()) {
            return self.join_network(stored).await;
        }
        let taken = self.take(existing.as_ref()).await?;
        let nets = taken.addresses.iter().copied().map(host_net);
        self.log.fact(format!("Calico CNI using IPs: {}", shown(nets)), &self.target);
        let attachment = self.attachment(&taken.addresses);
        let host_name = &attachment.host_name;
        self.log.fact(format!("Setting the host side veth name to {host_name}"), &self.target);
        let attached = match self.node.wiring.attach(attachment, netns).await {
            Ok(attached) => attached,
            Err(AttachFailure { error, undone }) => {
                return Err(if undone { self.give_back(&taken, error).await } else { error });
            }
        };
        let mut endpoint = existing.as_ref().map_or_else(fresh, |stored| stored.endpoint.clone());
        endpoint.name = attached.host_name.to_string();
        endpoint.mac = Some(attached.pod_mac);
        endpoint.active_instance_id = self.target.id.container.to_string();
        endpoint.set_addresses(taken.addresses.iter().copied());
        self.describe(&mut endpoint);
        if let Err(error) = self.publish(&endpoint, existing.as_ref()).await {
            return Err(self.undo(&taken, attached.reused, error).await);
        }
        Ok(self.result(&taken.addresses))
    }

    /// Kubernetes policies select pods by labels from Kubernetes: an endpoint without its labels
    /// would escape them, so it is refused.
    fn refuse_blind_policy(&self) -> Result<(), CniError> {
        if !self.conf.policy.is_k8s() || !self.is_pod() || self.facts.is_some() {
            return Ok(());
        }
        Err(CniError::unsupported_field(
            "policy.type: \"k8s\" on the data of Calico v1: the pod's labels are not known here",
            "without them its policies would not hold; migrate the data with: russet migrate calico-v1",
        ))
    }

    /// Joins a container that is on another network already: it gets the network's profile and
    /// nothing else (calico-cni.md section 2.3, step 2).
    async fn join_network(&self, stored: &Stored) -> Result<CniResult, CniError> {
        let mut endpoint = stored.endpoint.clone();
        self.add_profile(&mut endpoint);
        let network = &self.target.id.network;
        if endpoint == stored.endpoint {
            self.log.fact(format!("Calico CNI endpoint already has profile: {network}"), &self.target);
        } else {
            self.log.fact(format!("Calico CNI appending profile: {network}"), &self.target);
            self.publish(&endpoint, Some(stored)).await.map_err(|failure| failure.error)?;
        }
        let addresses: Vec<IpAddr> = endpoint.nets().map(|net| net.addr()).collect();
        Ok(self.result(&addresses))
    }

    /// Returns the endpoint's existing addresses, or allocates new ones.
    async fn take(&self, existing: Option<&Stored>) -> Result<Taken, CniError> {
        if !self.conf.ipam.is_calico() {
            return self.take_delegated(existing).await;
        }
        let requested = requested_address(self.request)?;
        if let Some(stored) = existing
            && let Some(addresses) = self.still_held(&stored.endpoint).await?
            && requested.is_none_or(|requested| addresses.contains(&requested))
        {
            return Ok(Taken { addresses, mark: None, delegate: None });
        }
        let mark = time::go_timestamp(SystemClock.now());
        let pod = self.target.pod.as_ref().map(|pod| (pod.namespace.as_str(), pod.name.as_str()));
        let request = AddressRequest::pod(self.name.clone(), self.handle()).with(TIMESTAMP, mark.clone());
        let facts = self.facts.cloned().unwrap_or_default();
        let request = AddressRequest {
            v4: u32::from(self.conf.ipam.assign_ipv4),
            v6: u32::from(self.conf.ipam.assign_ipv6),
            pools4: pools("ipv4_pools", facts.ipv4_pools.as_ref().unwrap_or(&self.conf.ipam.ipv4_pools))?,
            pools6: pools("ipv6_pools", facts.ipv6_pools.as_ref().unwrap_or(&self.conf.ipam.ipv6_pools))?,
            ..request.with_owner(&self.target.id.ifname, pod)
        };
        let exact = facts.ip_addrs.clone().or_else(|| requested.map(|address| vec![address]));
        match (exact, facts.ip_addrs_no_ipam) {
            (Some(_), Some(addresses)) if facts.ip_addrs.is_none() && one_a_family(&addresses) => {
                // No IPAM plugin is called, so nothing reads `CNI_ARGS` (calico-cni.md section
                // 2.5.3).
                Ok(Taken { addresses, mark: None, delegate: None })
            }
            (None, None) => {
                let assigned = within(&self.allocator, BUDGET).auto_assign(&request).await;
                let assigned =
                    assigned.map_err(|error| failure::ipam("no address could be allocated", error))?;
                let addresses = assigned.addresses.iter().map(IpNet::addr).collect();
                Ok(Taken { addresses, mark: Some(mark).filter(|_| !assigned.existing), delegate: None })
            }
            (Some(addresses), None) if one_a_family(&addresses) => {
                self.take_exactly(&request, addresses, mark).await
            }
            (None, Some(addresses)) if one_a_family(&addresses) => {
                Ok(Taken { addresses, mark: None, delegate: None })
            }
            _ => Err(CniError::invalid_config(
                "the annotations ipAddrs and ipAddrsNoIpam cannot be used",
                "they exclude each other, and each names at least one address, and at most one of each family",
            )),
        }
    }

    /// Allocates the addresses that the pod's annotation names, all of them or none.
    async fn take_exactly(
        &self,
        request: &AddressRequest,
        addresses: Vec<IpAddr>,
        mark: String,
    ) -> Result<Taken, CniError> {
        let taken = Taken { addresses, mark: Some(mark), delegate: None };
        let allocator = within(&self.allocator, BUDGET);
        for address in &taken.addresses {
            if let Err(error) = allocator.assign_ip(request, *address).await {
                let error = failure::ipam("a requested address cannot be had", error);
                return Err(self.give_back(&taken, error).await);
            }
        }
        Ok(taken)
    }

    /// The endpoint's addresses, if this workload still holds all of them. An address that was
    /// released meanwhile may belong to another workload.
    async fn still_held(&self, endpoint: &Endpoint) -> Result<Option<Vec<IpAddr>>, CniError> {
        let addresses: Vec<IpAddr> = endpoint.nets().map(|net| net.addr()).collect();
        for address in &addresses {
            let held = self.holder(*address).await?;
            if !held.is_some_and(|held| self.is_ours(&held, endpoint)) {
                tracing::info!(%address, workload = self.id.workload, "the endpoint's address is no longer its own");
                return Ok(None);
            }
        }
        Ok((!addresses.is_empty()).then_some(addresses))
    }

    async fn holder(&self, address: IpAddr) -> Result<Option<Held>, CniError> {
        let held = self.allocator.holder_of(address).await;
        held.map_err(|error| failure::ipam("the pod's addresses could not be read", error))
    }

    /// Whether the holder of an address is this workload: by its name, or by one of its containers.
    fn is_ours(&self, held: &Held, endpoint: &Endpoint) -> bool {
        let attribute = &held.attribute;
        if let (Some(pod), Some(of), Some(namespace)) =
            (&self.target.pod, attribute.get("pod"), attribute.get("namespace"))
        {
            return pod.name == of && pod.namespace == namespace;
        }
        let of_container = |container: &str| format!("{}.{container}", self.target.id.network);
        let known = [
            self.id.workload.clone(),
            of_container(self.target.id.container.as_str()),
            of_container(&endpoint.active_instance_id),
        ];
        attribute
            .handle_id
            .as_deref()
            .is_some_and(|id| known.iter().any(|known| known == HandleId::sanitized(id)))
    }

    /// The handle of addresses since 1.11.2.
    fn handle(&self) -> HandleId {
        HandleId::pod(&self.target.id.network, &self.target.id.container)
    }

    fn attachment(&self, addresses: &[IpAddr]) -> Attachment {
        let (id, pod) = (self.target.id.clone(), self.target.pod.clone());
        let mut attachment = Attachment::new(Dialect::Calico, id, pod);
        attachment.addresses = addresses.to_vec();
        attachment.mtu = self.conf.mtu_bytes.unwrap_or(MTU_DEFAULT_BYTES);
        attachment.sync_delete = self.node.teardown.is_synchronous();
        attachment
    }

    /// Sets labels and profiles of an endpoint (calico-cni.md sections 2.3 and 2.6).
    fn describe(&self, endpoint: &mut Endpoint) {
        if let Some(pod) = &self.target.pod {
            endpoint.labels = self.facts.map(|facts| facts.labels.clone()).unwrap_or_default();
            endpoint.labels.insert(Endpoint::NAMESPACE_LABEL.to_owned(), pod.namespace.clone());
        } else {
            endpoint.labels = labels::from_mesos(&self.conf.mesos_labels);
        }
        match &self.target.pod {
            Some(pod) if self.conf.policy.is_k8s() => {
                endpoint.profile_ids = vec![format!("k8s_ns.{}", pod.namespace)];
            }
            _ => self.add_profile(endpoint),
        }
    }

    fn add_profile(&self, endpoint: &mut Endpoint) {
        let network = self.target.id.network.to_string();
        if !endpoint.profile_ids.contains(&network) {
            endpoint.profile_ids.push(network);
        }
    }

    /// Writes the profile before the endpoint that refers to it: without the profile, Felix drops
    /// the endpoint's packets.
    async fn publish(&self, endpoint: &Endpoint, before: Option<&Stored>) -> Result<(), WriteFailure> {
        if self.conf.policy.kind.is_empty() {
            let network = &self.target.id.network;
            if self.records.ensure_profile(network.as_str(), !self.is_pod()).await? {
                self.log.fact(format!("Calico CNI creating profile: {network}"), &self.target);
            }
        }
        self.records.write(&self.id, endpoint, before).await
    }

    /// The result in the form of v1.11: addresses only, without gateways and interfaces
    /// (calico-cni.md section 1.10).
    fn result(&self, addresses: &[IpAddr]) -> CniResult {
        let mut result = CniResult::empty(self.request.config.cni_version);
        result.ips = addresses.iter().map(|address| IpConfig::new(host_net(*address))).collect();
        result
    }

    /// Undoes an ADD whose endpoint could not be written: removes a new interface and releases this
    /// request's addresses. An interface that existed before belongs to a running container, as do
    /// its addresses; the addresses of an endpoint that may have been written are left to DEL.
    async fn undo(&self, taken: &Taken, reused: bool, failed: WriteFailure) -> CniError {
        let WriteFailure { error, certainly_absent } = failed;
        if reused {
            return failure::addresses_held(error, "the interface was there before");
        }
        let detached = self.node.wiring.detach(self.detachment(true), self.target.netns_if_any()).await;
        self.node.teardown.doomed();
        match detached {
            Ok(()) if certainly_absent => self.give_back(taken, error).await,
            Ok(()) => failure::addresses_held(error, "the endpoint may have been written"),
            Err(also) => failure::addresses_held(error, also.msg),
        }
    }

    /// Releases what this request allocated; allocations of an earlier request stay.
    async fn give_back(&self, taken: &Taken, error: CniError) -> CniError {
        let given = match (&taken.delegate, &taken.mark) {
            (Some(delegate), _) => delegate.call(Verb::Del).await.map_err(|error| error.to_string()),
            (None, Some(mark)) => {
                let release = within(&self.allocator, BUDGET).release_of_request(&self.handle(), mark).await;
                release.map_err(|error| error.to_string())
            }
            (None, None) => return error,
        };
        match given {
            Ok(()) => error,
            Err(also) => failure::addresses_held(error, also),
        }
    }

    fn detachment(&self, by_name: bool) -> Detachment {
        Detachment {
            id: self.target.id.clone(),
            host_name: by_name.then(|| self.attachment(&[]).host_name),
            by_name_alone: false,
            dialect: Dialect::Calico,
            removal: self.node.teardown.removal(),
        }
    }

    /// Removes the interface, then the endpoint, then the addresses, because an address is free
    /// only when nothing answers for it and nothing refers to it. A container that is not the
    /// newest of the endpoint removes only its own state (calico-cni.md section 3.6).
    async fn del(&self) -> Result<(), CniError> {
        self.records.refuse_unready().await?;
        let container = self.is_pod().then_some(self.target.id.container.as_str());
        let (mine, newer) = self.records.for_del(&self.id, container).await?;
        // The addresses of newer containers matter only if this container has no endpoint.
        let newer = newer.filter(|_| mine.is_none());
        if let Some(stored) = mine.as_ref().filter(|_| self.conf.ipam.kind.is_empty()) {
            self.refuse_others_addresses(stored).await?;
        }
        let detached =
            self.node.wiring.detach(self.detachment(newer.is_none()), self.target.netns_if_any()).await;
        self.node.teardown.doomed();
        detached?;
        let endpoint = mine.as_ref().map(|stored| stored.endpoint.clone());
        if let Some(stored) = mine {
            self.records.remove(&self.id, stored).await?;
        }
        if !matches!(self.conf.ipam.kind.as_str(), "" | "calico-ipam") {
            return self.release_delegated(newer.as_deref()).await;
        }
        let released = self.release(endpoint.as_ref(), newer.as_deref()).await;
        released.map_err(|error| failure::ipam("the pod's addresses could not be released", error))
    }

    async fn release(&self, mine: Option<&Endpoint>, newer: Option<&[IpAddr]>) -> Result<(), IpamError> {
        let allocator = within(&self.allocator, BUDGET);
        if let Some(in_use) = newer {
            // The newer container may use addresses that this one's handle holds.
            let handle = self.handle();
            let held = allocator.ips_to_free(&handle).await?;
            let freed = held.into_iter().filter(|held| !in_use.contains(&held.address));
            return allocator.release_held(&handle, freed).await;
        }
        allocator.release_by_handle(&self.handle(), None).await?;
        // Plugins before 1.11.2 used the workload's own name as the handle, which may look like
        // another container's handle.
        if let Ok(workload) = HandleId::new(self.id.workload.as_str()) {
            let subject = Subject { id: self.target.id.clone(), pod: self.target.pod.clone() };
            let held = allocator.ips_to_free(&workload).await?;
            let ours = held.into_iter().filter(|held| subject.may_hold(&workload, held));
            allocator.release_held(&workload, ours).await?;
        }
        // Addresses that an earlier container of the workload allocated and this one used again.
        for address in mine.into_iter().flat_map(Endpoint::nets).map(|net| net.addr()) {
            let held = match allocator.holder_of(address).await {
                Ok(Some(held)) => held,
                Ok(None) => continue,
                Err(error @ IpamError::Corrupt { .. }) => {
                    tracing::error!(%address, %error, "not released: russet ipam check names the record");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(id) = held.attribute.handle_id.as_deref() else { continue };
            if mine.is_some_and(|endpoint| self.is_ours(&held, endpoint))
                && let Ok(handle) = HandleId::new(HandleId::sanitized(id))
            {
                allocator.release_held(&handle, [held]).await?;
            }
        }
        Ok(())
    }

    async fn check(&self) -> Result<(), CniError> {
        let netns = self.target.open_netns()?;
        let stored = self.records.of_workload(&self.id).await?;
        let container = self.target.id.container.as_str();
        let ours = |stored: &Stored| stored.endpoint.active_instance_id == container;
        let Some(stored) = stored.filter(ours) else {
            let msg = format!("{container} has no endpoint");
            return Err(CniError::new(failure::WIRING, msg, "it was removed, or a newer container has it"));
        };
        let addresses: Vec<IpAddr> = stored.endpoint.nets().map(|net| net.addr()).collect();
        let attachment = Attachment { mac: stored.endpoint.mac, ..self.attachment(&addresses) };
        self.check_delegated().await?;
        let mismatches = self.node.wiring.check(attachment, netns).await?;
        if mismatches.is_empty() {
            return Ok(());
        }
        let details: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
        Err(CniError::new(failure::WIRING, "the interface is not as ADD left it", details.join("; ")))
    }
}

/// Addresses as Calico's plugin prints them.
fn shown(nets: impl Iterator<Item = IpNet>) -> String {
    format!("[{}]", nets.map(|net| net.to_string()).collect::<Vec<_>>().join(" "))
}

fn fresh() -> Endpoint {
    Endpoint {
        state: Endpoint::ACTIVE.to_owned(),
        name: String::new(),
        active_instance_id: String::new(),
        mac: None,
        profile_ids: Vec::new(),
        ipv4_nets: Vec::new(),
        ipv6_nets: Vec::new(),
        ipv4_nat: Vec::new(),
        ipv6_nat: Vec::new(),
        labels: BTreeMap::new(),
        extra: Default::default(),
    }
}

/// Whether there is at least one address, and at most one of each family.
fn one_a_family(addresses: &[IpAddr]) -> bool {
    !addresses.is_empty() && one_of_a_family(addresses)
}

/// The pools of `named`, which v1 names by their networks; `None` if it is empty, which means all.
fn pools(key: &str, named: &[String]) -> Result<Option<Vec<IpNet>>, CniError> {
    let parse = |text: &String| {
        text.parse().map_err(|_| {
            CniError::invalid_config(
                format!("{key}: {text:?} is no network"),
                "Calico v1 names pools by their CIDR",
            )
        })
    };
    if named.is_empty() {
        return Ok(None);
    }
    named.iter().map(parse).collect::<Result<Vec<_>, _>>().map(Some)
}

#[cfg(test)]
mod tests;
