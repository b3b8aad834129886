//! ADD and DEL over the simulated store, with a fake `Wire` that records calls: tests decisions and
//! undo. The real wiring is tested in crates/russet/tests/whole/calico.rs.

mod container;
mod facts;
mod faults;
mod no_ipam;
mod pod;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_attach::{Attached, Attachment, Detachment};
use russet_cni_spec::CniResult;
use russet_ipam::{Allocator, DefaultPool, SystemClock};
use russet_kube::{Namespace, NodeWatch, Pod, Said, StatusPatch};
use russet_model::{EncapMode, HandleId, Key, KeyKind, WorkloadEndpoint, WorkloadEndpointSpec};
use russet_store::{BoxFuture, Sim, Step, Store as _};
use russet_wiring::AttachFailure;
use serde_json::json;

use super::wire::Wire;
use super::*;
use crate::datastore::Fixed;
use crate::{CalicoHost, Clusters};

/// A cluster with one node, and the calls to its kernel.
struct Stage {
    node: CalicoNode,
    sim: Sim,
    datastore: Datastore,
    log: RequestLog,
    wire: Paper,
    api: Rc<Api>,
}

/// A request for a [`Stage`].
#[derive(Clone)]
struct Ask {
    network: String,
    container: String,
    ifname: String,
    args: String,
    path: String,
    config: Value,
}

/// A fake kernel: host interfaces by name, with container and addresses.
#[derive(Default)]
struct Paper {
    links: RefCell<BTreeMap<String, Attachment>>,
    attached: Cell<u32>,
    refuse: Cell<bool>,
    refuse_detach: Cell<bool>,
    detached: RefCell<Vec<Detachment>>,
}

/// A fake API server with a few objects.
#[derive(Default)]
struct Api {
    pods: RefCell<BTreeMap<(String, String), Pod>>,
    namespaces: RefCell<BTreeMap<String, Namespace>>,
    nodes: RefCell<BTreeMap<String, russet_kube::Node>>,
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

fn missing<T>(what: &str) -> Result<T, KubeError> {
    Err(KubeError::NotFound(Said { operation: format!("get {what}"), message: "not found".into() }))
}

// === impl Stage ===

impl Stage {
    async fn new(sim: Sim) -> Self {
        let allocator = Rc::new(Allocator::new(Rc::new(sim.clone()), Rc::new(SystemClock)));
        for (name, cidr) in [("four", "10.1.0.0/24"), ("six", "fd00:1::/112")] {
            let cidr = cidr.parse().unwrap();
            let vxlan_mode = EncapMode::Never;
            let pool = DefaultPool { name: name.into(), cidr, vxlan_mode, nat_outgoing: false };
            allocator.ensure_pools(&[pool]).await.unwrap();
        }
        let api = Rc::new(Api::default());
        let datastore = Datastore::with_allocator(Rc::new(sim.clone()), Rc::clone(&allocator));
        let host = CalicoHost::new("/nonexistent", Rc::new(Fixed(datastore.clone())));
        let node = CalicoNode { clusters: Clusters::fixed(api.clone()), ..CalicoNode::for_request(host) };
        let log = RequestLog::new(NAME);
        let stage = Self { node, sim, datastore, log, wire: Paper::default(), api };
        stage.set_ready(json!({"datastoreReady": true})).await;
        let spec = json!({"kind": "Node", "metadata": {"name": "n1"}, "spec": {}}).to_string();
        stage.put(Key::node(&"n1".parse().unwrap()), spec).await;
        stage
    }

    async fn set_ready(&self, spec: Value) {
        let information =
            json!({"kind": "ClusterInformation", "metadata": {"name": "default"}, "spec": spec});
        self.put(Key::cluster_information(), information.to_string()).await;
    }

    async fn put(&self, key: Key, value: String) {
        self.sim.commit(vec![Step::put(key, value.into_bytes())]).await.unwrap();
    }

    async fn add(&self, ask: &Ask) -> Result<CniResult, CniError> {
        let (request, target, conf) = ask.parts("ADD");
        let conf = conf?;
        let done = add::run(&mut self.context(&request, &conf, &target), &self.wire).await?;
        if let Some(policy) = done.policy {
            policy.wait().await;
        }
        let result = done.result.unwrap();
        result.validate().unwrap_or_else(|error| panic!("{error}"));
        let of_pod = result.interfaces.iter().filter(|it| !it.sandbox.is_empty());
        assert_eq!(of_pod.filter(|it| it.name.is_empty() || it.mac.is_empty()).count(), 0, "{result:?}");
        Ok(result)
    }

    /// Runs a DEL after its interface was removed.
    async fn del(&self, ask: &Ask) -> Result<(), CniError> {
        let (request, target, conf) = ask.parts("DEL");
        let conf = conf?;
        self.wire.links.borrow_mut().retain(|_, attachment| !attachment.id.same_interface(&target.id));
        del::remove_records(&mut self.context(&request, &conf, &target)).await
    }

    fn context<'a>(
        &'a self,
        request: &'a Request,
        conf: &'a CalicoConf,
        target: &'a Target,
    ) -> RequestContext<'a> {
        let workload = Workload::from_request(request, conf, target, "n1".parse().unwrap());
        let (datastore, log) = (self.datastore.clone(), &self.log);
        RequestContext {
            node: &self.node,
            request,
            target,
            conf,
            workload,
            datastore,
            log,
            stdin: request.stdin.clone(),
        }
    }

    fn endpoints(&self) -> BTreeMap<String, WorkloadEndpoint> {
        let records = self.sim.records().into_iter();
        let endpoints = records.filter_map(|(key, record)| match key.kind() {
            KeyKind::WorkloadEndpoint { namespace, name } => {
                Some((format!("{namespace}/{name}"), WorkloadEndpoint::decode(&record.value).unwrap()))
            }
            _ => None,
        });
        endpoints.collect()
    }

    /// The only endpoint.
    fn endpoint(&self) -> WorkloadEndpointSpec {
        let endpoints = self.endpoints();
        assert_eq!(endpoints.len(), 1, "{:?}", endpoints.keys());
        endpoints.into_values().next().unwrap().spec
    }

    async fn held(&self, network: &str, container: &str) -> Vec<IpAddr> {
        let handle = HandleId::pod(&network.parse().unwrap(), &container.parse().unwrap());
        let quiet = Allocator::new(Rc::new(self.sim.clone()), Rc::new(SystemClock));
        let held = quiet.ips_by_handle(&handle).await.unwrap();
        held.into_iter().map(|held| held.address).collect()
    }

    /// Asserts that no address is held, and that there is no endpoint and no interface.
    async fn assert_bare(&self, containers: &[&str]) {
        for container in containers {
            assert_eq!(self.held("net1", container).await, Vec::<IpAddr>::new(), "{container}");
        }
        assert_eq!(self.endpoints(), BTreeMap::new());
        assert_eq!(*self.wire.links.borrow(), BTreeMap::new());
    }

    fn pod(&self, name: &str, annotations: Value) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "test", "annotations": annotations,
                "labels": {"app": "web"}, "uid": "u"},
            "spec": {"serviceAccountName": "default", "nodeName": "n1"},
        });
        let pod = serde_json::from_value(pod).unwrap();
        self.api.pods.borrow_mut().insert(("test".into(), name.into()), pod);
        self.api.namespaces.borrow_mut().entry("test".into()).or_default();
    }

    fn namespace(&self, annotations: Value) {
        let namespace = json!({"metadata": {"name": "test", "annotations": annotations}});
        let namespace = serde_json::from_value(namespace).unwrap();
        self.api.namespaces.borrow_mut().insert("test".into(), namespace);
    }
}

// === impl Ask ===

impl Ask {
    fn container(container: &str) -> Self {
        Self {
            network: "net1".into(),
            container: container.into(),
            ifname: "eth0".into(),
            args: String::new(),
            path: "/nowhere".into(),
            config: json!({"ipam": {"type": "calico-ipam"}}),
        }
    }

    fn pod(container: &str, pod: &str) -> Self {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=test;K8S_POD_NAME={pod}");
        Self { args, ..Self::container(container) }.with(json!({"policy": {"type": "k8s"}}))
    }

    fn with(mut self, members: Value) -> Self {
        let members = members.as_object().unwrap().clone();
        self.config.as_object_mut().unwrap().extend(members);
        self
    }

    fn parts(&self, verb: &str) -> (Request, Target, Result<CalicoConf, CniError>) {
        let mut config = json!({"cniVersion": "1.0.0", "name": self.network, "type": "calico",
            "etcd_endpoints": "http://127.0.0.1:1", "nodename": "n1", "mtu": 1400,
            "ipam_lock_file": "/proc/none/ipam.lock"});
        config.as_object_mut().unwrap().extend(self.config.as_object().unwrap().clone());
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", &self.container),
            ("CNI_NETNS", "/run/netns/none"),
            ("CNI_IFNAME", &self.ifname),
            ("CNI_ARGS", &self.args),
            ("CNI_PATH", &self.path),
        ];
        let request = Request::new(vars, config.to_string().into_bytes()).unwrap();
        let target = Target::from_request(&request, request.env.target().unwrap()).unwrap();
        let conf = CalicoConf::read(&request);
        (request, target, conf)
    }
}

// === impl Paper ===

impl Wire for Paper {
    fn attach(&self, attachment: Attachment) -> BoxFuture<'_, Result<Attached, AttachFailure>> {
        Box::pin(async move {
            if self.refuse.get() {
                return Err(CniError::internal("the kernel says no", "").into());
            }
            self.attached.set(self.attached.get() + 1);
            let attached = Attached {
                host_name: attachment.host_name.clone(),
                host_ifindex: 7,
                host_mac: russet_addr::Mac::GATEWAY,
                pod_ifindex: 2,
                pod_mac: attachment.pod_mac(),
                mtu: attachment.mtu,
                reused: self.links.borrow().get(attachment.host_name.as_str()) == Some(&attachment),
                bridge_mac: None,
            };
            // Like Calico's plugin, replaces an existing interface of the name.
            self.links.borrow_mut().insert(attachment.host_name.to_string(), attachment);
            Ok(attached)
        })
    }

    fn allow_sources(
        &self,
        _host_name: russet_addr::IfName,
        _nets: Vec<russet_addr::IpNet>,
    ) -> BoxFuture<'_, Result<(), CniError>> {
        Box::pin(async { Ok(()) })
    }

    fn detach(&self, what: Detachment) -> BoxFuture<'_, Result<(), CniError>> {
        Box::pin(async move {
            if self.refuse_detach.get() {
                return Err(CniError::internal("the kernel holds it", ""));
            }
            self.links.borrow_mut().retain(|_, attachment| !attachment.id.same_interface(&what.id));
            self.detached.borrow_mut().push(what);
            Ok(())
        })
    }
}

// === impl Api ===

impl Kubernetes for Api {
    fn node<'a>(&'a self, name: &'a str) -> russet_kube::BoxFuture<'a, Result<russet_kube::Node, KubeError>> {
        let found = self.nodes.borrow().get(name).cloned();
        Box::pin(async move { found.map_or_else(|| missing(name), Ok) })
    }

    fn namespace<'a>(&'a self, name: &'a str) -> russet_kube::BoxFuture<'a, Result<Namespace, KubeError>> {
        let found = self.namespaces.borrow().get(name).cloned();
        Box::pin(async move { found.map_or_else(|| missing(name), Ok) })
    }

    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> russet_kube::BoxFuture<'a, Result<Pod, KubeError>> {
        let found = self.pods.borrow().get(&(namespace.to_owned(), name.to_owned())).cloned();
        Box::pin(async move { found.map_or_else(|| missing(name), Ok) })
    }

    fn patch_pod_status<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a StatusPatch,
    ) -> russet_kube::BoxFuture<'a, Result<Pod, KubeError>> {
        unreachable!("pods are patched in Kubernetes' datastore only")
    }

    fn patch_node_status<'a>(
        &'a self,
        _: &'a str,
        _: &'a StatusPatch,
    ) -> russet_kube::BoxFuture<'a, Result<russet_kube::Node, KubeError>> {
        unreachable!("this plugin patches no node")
    }

    fn watch_nodes(&self) -> russet_kube::BoxFuture<'_, Result<Box<dyn NodeWatch>, KubeError>> {
        unreachable!("this plugin watches no node")
    }
}
