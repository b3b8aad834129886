//! The order of requests of Go's main plugin `calico` with `calico-ipam`, for a container that
//! Kubernetes does not know (calico-cni.md sections 2.1, 2.3 and 3.6): the main plugin's requests,
//! and between them, from a process and thus a session of its own, those of `calico-ipam`.
//!
//! Requests alone: no process is started, no namespace is touched, no interface is made. Only an
//! ordinary ADD and DEL are supported.

use std::net::IpAddr;
use std::rc::Rc;

use russet_addr::{ContainerId, IfName, host_net};
use russet_model::{
    ClusterInformation, DecodeError, Key, Prefix, Profile, WorkloadEndpoint, WorkloadEndpointSpec, time,
};
use russet_store::{BoxFuture, Step, Store, StoreError};
use russet_store_etcd::Settings;

use super::{Go, Manner};
use crate::Result;
use crate::ipam::burst::{Caller, Pod};
use crate::ipam::calico::NETWORK;
use crate::ipam::counted::Counts;

/// One process of `calico`, or one after the other.
pub struct Calico {
    ipam: Go,
}

/// Where endpoints of such containers live.
const NAMESPACE: &str = "default";
const ORCHESTRATOR: &str = "cni";
const IFNAME: &str = "eth0";

// === impl Calico ===

impl Calico {
    /// As many processes of one host, with one lock.
    pub fn callers(
        settings: &Settings,
        counts: &Rc<Counts>,
        manner: Manner,
        count: usize,
    ) -> Result<Vec<Rc<dyn Caller>>> {
        let all = Go::processes(settings, counts, manner, count)?;
        Ok(all.into_iter().map(|ipam| Rc::new(Self { ipam }) as Rc<dyn Caller>).collect())
    }

    /// calico-cni.md section 2.1 step 9.
    async fn refuse_locked(session: &dyn Store) -> Result<()> {
        let known = read(session, &Key::cluster_information(), ClusterInformation::decode).await?;
        match known.and_then(|known| known.spec.datastore_ready) {
            Some(true) => Ok(()),
            _ => Err("the datastore is locked".into()),
        }
    }

    fn endpoint_name(&self, container: &ContainerId) -> Result<String> {
        let ifname: IfName = IFNAME.parse()?;
        Ok(WorkloadEndpointSpec::cni_name(&self.ipam.node, container, &ifname)?)
    }

    fn endpoint(&self, container: &ContainerId, address: IpAddr) -> Result<WorkloadEndpoint> {
        let spec = WorkloadEndpointSpec {
            orchestrator: ORCHESTRATOR.to_owned(),
            node: self.ipam.node.to_string(),
            container_id: container.to_string(),
            endpoint: IFNAME.to_owned(),
            ip_networks: vec![host_net(address)],
            profiles: vec![NETWORK.to_owned()],
            interface_name: Some(format!("cali{:.11}", container.as_str()).parse()?),
            ..WorkloadEndpointSpec::default()
        };
        let mut endpoint = WorkloadEndpoint::new(self.endpoint_name(container)?, spec);
        endpoint.metadata.namespace = Some(NAMESPACE.to_owned());
        endpoint.metadata.creation_timestamp = Some(time::rfc3339(std::time::SystemTime::now()));
        Ok(endpoint)
    }
}

impl Caller for Calico {
    fn add<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<IpAddr>> {
        Box::pin(async move {
            let container = pod.container()?;
            let session = self.ipam.session()?;
            Self::refuse_locked(&*session).await?;
            // calico-cni.md section 2.1 step 11.
            let start = WorkloadEndpointSpec::name_prefix(&self.ipam.node, ORCHESTRATOR, container.as_str())?;
            let prefix = Prefix::workload_endpoints_named(NAMESPACE, &start)?;
            if !session.list(&prefix).await?.records.is_empty() {
                return Err("there is an endpoint: this is no ordinary ADD".into());
            }
            // calico-cni.md section 2.3 step 3.
            let address = self.ipam.add(pod).await?;
            // Step 9, which the current plugin does before step 8.
            let endpoint = self.endpoint(&container, address)?;
            let key = Key::workload_endpoint(NAMESPACE, &endpoint.metadata.name)?;
            if !write(&*session, Step::create(key, endpoint.encode())).await? {
                return Err("the endpoint is there already".into());
            }
            // Step 8.
            let profile = read(&*session, &Key::profile(NETWORK)?, Profile::decode).await?;
            profile.ok_or("there is no profile: this is no warm ADD")?;
            Ok(address)
        })
    }

    /// calico-cni.md section 3.6: addresses first, then the endpoint, without a guard.
    fn del<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let session = self.ipam.session()?;
            Self::refuse_locked(&*session).await?;
            self.ipam.del(pod).await?;
            let key = Key::workload_endpoint(NAMESPACE, &self.endpoint_name(&pod.container()?)?)?;
            match write(&*session, Step::delete(key, None)).await? {
                true => Ok(()),
                false => Err("DEL found no endpoint".into()),
            }
        })
    }
}

async fn read<T>(
    store: &dyn Store,
    key: &Key,
    decode: fn(&[u8]) -> std::result::Result<T, DecodeError>,
) -> Result<Option<T>> {
    let Some(record) = store.get(key).await? else { return Ok(None) };
    Ok(Some(decode(&record.value)?))
}

/// One transaction; false when its guard failed.
async fn write(store: &dyn Store, step: Step) -> Result<bool> {
    match store.commit(vec![step]).await.map_err(|error| error.error) {
        Ok(_) => Ok(true),
        Err(StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } | StoreError::NotFound { .. }) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use russet_store::Sim;

    use super::*;
    use crate::ipam::calico;
    use crate::ipam::counted::Counted;
    use crate::ipam::go::Reach;
    use crate::ipam::stage::GO_NODE;

    /// calico-cni.md sections 2.1, 2.3, 3.6; calico-ipam.md's share is 8 and 2, then 6 and 2.
    #[tokio::test(flavor = "current_thread")]
    async fn an_add_is_eleven_reads_and_three_transactions_and_a_del_takes_everything_back() {
        let store: Rc<dyn Store> = Rc::new(Sim::atomic(1));
        calico::fill(&store, &[GO_NODE]).await.unwrap();
        let before = store.list(&Prefix::workload_endpoints()).await.unwrap().records.len();
        let counts = Rc::new(Counts::default());
        let reach = Reach::Kept(Rc::new(Counted::new(Rc::clone(&store), &counts)));
        let ipam = Go { reach, node: GO_NODE.parse().unwrap(), lock: None };
        let (plugin, pod) = (Calico { ipam }, Pod::first());
        let address = plugin.add(&pod).await.unwrap();
        assert_eq!((counts.reads(), counts.commits()), (11, 3));
        let endpoints = store.list(&Prefix::workload_endpoints()).await.unwrap().records;
        let written = WorkloadEndpoint::decode(&endpoints[0].value).unwrap().spec;
        assert_eq!((endpoints.len(), written.ip_networks), (before + 1, vec![host_net(address)]));
        counts.reset();
        plugin.del(&pod).await.unwrap();
        assert_eq!((counts.reads(), counts.commits()), (7, 3));
        assert_eq!(store.list(&Prefix::workload_endpoints()).await.unwrap().records.len(), before);
        assert_eq!(plugin.del(&pod).await.unwrap_err().to_string(), "DEL found no handle");
    }
}
