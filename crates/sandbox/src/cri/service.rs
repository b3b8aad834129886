//! The calls of RuntimeService.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::{Sandbox, SandboxError, SandboxId, Sandboxes};
use russet_cri_api as v1;
use russet_sync::{BlockingPool, KeyedLock, LockGuard, Permit};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::cri::events::Events;
use crate::cri::server::Options;
use crate::cri::{answer, failure, info, request};

/// Serves calls about sandboxes.
pub struct Runtime {
    sandboxes: Arc<Sandboxes>,
    options: Options,
    pools: WorkerPools,
    /// By pod. A request that changes a pod waits here, where waiting needs no thread and can be
    /// cancelled, and holds no pool permit meanwhile: requests for one hanging pod must not use up
    /// the permits of all others. A request that waits for a permit holds no lock either.
    locks: KeyedLock,
    /// The network's state at the last STATUS.
    network: Arc<Mutex<Option<Result<(), String>>>>,
    pod_cidr: Mutex<Vec<String>>,
    watchers: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

/// The pools for blocking work. A hanging ADD must neither delay removals nor lists.
#[derive(Clone)]
pub struct WorkerPools {
    run: BlockingPool,
    end: BlockingPool,
    /// Lists and inspects them.
    look: BlockingPool,
    /// Runs STATUS of the network's plugins.
    ask: BlockingPool,
}

/// The version of the interface between kubelet and runtimes, unchanged since its first release.
const KUBELET_API_VERSION: &str = "0.1.0";
const RUNTIME_NAME: &str = "russet";
const RUNTIME_API_VERSION: &str = "v1";

/// Concurrent creations: kubelet has one per worker, and plugins spend most of their time waiting.
const RUNS_MAX: u32 = 24;
/// Concurrent removals.
const ENDS_MAX: u32 = 24;
/// Concurrent lists: each is short.
const LOOKS_MAX: u32 = 12;
/// Clients that watch events: kubelet, and people.
const WATCHERS_MAX: usize = 16;
/// How long Status waits for plugins. kubelet and its other calls wait with it, so after this the
/// previous result is used.
const NETWORK_STATUS_TIMEOUT: Duration = Duration::from_secs(1);

// === impl WorkerPools ===

impl WorkerPools {
    /// The pools of one server.
    pub fn new() -> Self {
        Self {
            run: BlockingPool::new(RUNS_MAX, 0),
            end: BlockingPool::new(ENDS_MAX, 0),
            look: BlockingPool::new(LOOKS_MAX, 0),
            ask: BlockingPool::new(1, 0),
        }
    }

    /// Runs `work` in the pool for removals.
    pub async fn end<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.end.run(work).await.map_err(failure::without_result)
    }

    /// Runs `work` in the pool for lists.
    pub async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.look.run(work).await.map_err(failure::without_result)
    }

    /// Lets no further change start.
    pub fn close(&self) {
        self.run.close();
        self.end.close();
    }

    /// Waits for changes in progress. Returns false if some still run at `deadline`.
    pub async fn rest(&self, deadline: Instant) -> bool {
        let (run, end) = tokio::join!(self.run.drained(deadline), self.end.drained(deadline));
        run && end
    }
}

// === impl Runtime ===

impl Runtime {
    /// Serves `sandboxes` until `stopped` is set.
    pub fn new(
        sandboxes: Arc<Sandboxes>,
        options: Options,
        pools: WorkerPools,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        Self {
            sandboxes,
            options,
            pools,
            locks: KeyedLock::default(),
            network: Arc::default(),
            pod_cidr: Mutex::default(),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
            stopped,
        }
    }

    /// Runs `work` in `pool`.
    async fn by<T: Send + 'static>(
        &self,
        pool: &BlockingPool,
        work: impl FnOnce(&Sandboxes) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let sandboxes = Arc::clone(&self.sandboxes);
        pool.run(move || work(&sandboxes)).await.map_err(failure::without_result)?
    }

    /// Runs `work` in `pool` while it holds the lock of `pod`.
    async fn run_locked<T: Send + 'static>(
        &self,
        pod: String,
        pool: &BlockingPool,
        work: impl FnOnce(&Sandboxes) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (guard, permit) = self.lock_and_permit(pod, pool).await?;
        let sandboxes = Arc::clone(&self.sandboxes);
        let work = move || {
            let done = work(&sandboxes);
            drop(guard);
            done
        };
        pool.run_with(permit, work).await.map_err(failure::without_result)?
    }

    /// Acquires both together. A caller that waits for one does not hold the other: if all threads
    /// of a pool hang, a waiting caller must not block its pod's older sandboxes.
    async fn lock_and_permit(&self, pod: String, pool: &BlockingPool) -> Result<(LockGuard, Permit), Status> {
        loop {
            let guard = self.locks.lock([pod.clone()]).await;
            if let Some(permit) = pool.try_acquire_unreserved() {
                return Ok((guard, permit));
            }
            drop(guard);
            let permit = pool.acquire().await.map_err(failure::without_result)?;
            if let Some(guard) = self.locks.try_lock(pod.clone()) {
                return Ok((guard, permit));
            }
        }
    }

    /// Stops or removes the sandbox that `text` names. An unknown one counts as stopped and removed
    /// (cni-runtime.md section 3.2). Lists that hang do not block this.
    async fn end(
        &self,
        text: String,
        how: fn(&Sandboxes, &SandboxId) -> Result<(), SandboxError>,
    ) -> Result<(), Status> {
        let found = self.by(&self.pools.end, move |sandboxes| {
            Ok(find(sandboxes, &text)?.and_then(|id| sandboxes.pod_key(&id).map(|pod| (id, pod))))
        });
        let Some((id, pod)) = found.await? else { return Ok(()) };
        let done = self.run_locked(pod, &self.pools.end, move |sandboxes| match how(sandboxes, &id) {
            Ok(()) | Err(SandboxError::NotFound(_)) => Ok(()),
            Err(error) => Err(failure::status(&error)),
        });
        done.await
    }

    /// Whether pods can be attached: the plugins' STATUS, or their previous one if they do not
    /// answer soon.
    pub(crate) async fn network(&self) -> Result<(), String> {
        let (sandboxes, known) = (Arc::clone(&self.sandboxes), Arc::clone(&self.network));
        let status = self.pools.ask.run(move || {
            let answer = sandboxes.network_ready();
            *known.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer.clone());
            answer
        });
        match tokio::time::timeout(NETWORK_STATUS_TIMEOUT, status).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(failure::without_result(error).message().to_owned()),
            Err(_elapsed) => {
                let known = self.network.lock().unwrap_or_else(PoisonError::into_inner).clone();
                known.unwrap_or_else(|| Err("the network's plugins have not answered yet".to_owned()))
            }
        }
    }
}

/// The sandbox that `text` names: by its ID, or by a unique prefix of it. None if there is none.
/// Needs no I/O.
fn find(sandboxes: &Sandboxes, text: &str) -> Result<Option<SandboxId>, Status> {
    if let Ok(id) = text.parse::<SandboxId>() {
        return Ok(Some(id));
    }
    if text.is_empty() {
        return Err(Status::invalid_argument("pod_sandbox_id: is missing"));
    }
    let mut found = sandboxes.beginning_with(text);
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(Status::invalid_argument(format!("pod_sandbox_id: several IDs begin with {text:?}"))),
    }
}

/// The same, but a missing one is an error.
fn find_one(sandboxes: &Sandboxes, text: &str) -> Result<SandboxId, Status> {
    find(sandboxes, text)?.ok_or_else(|| Status::not_found(format!("no sandbox {text:?}")))
}

fn stats_of(sandboxes: &Sandboxes, id: &SandboxId) -> Result<v1::PodSandboxStats, SandboxError> {
    sandboxes.stats(id).map(|(sandbox, stats)| answer::stats(&sandbox, &stats))
}

/// One entry of a list: a sandbox that is gone is left out, and unreadable interfaces of one must
/// not fail the whole list.
fn stats_or_log(sandboxes: &Sandboxes, sandbox: &Sandbox) -> Option<v1::PodSandboxStats> {
    let stats = stats_of(sandboxes, &sandbox.id);
    if let Err(error) = &stats
        && !matches!(error, SandboxError::NotFound(_))
    {
        tracing::warn!(sandbox = %sandbox.id, %error, "a sandbox's numbers cannot be read; they are left out of the list");
    }
    stats.ok()
}

#[tonic::async_trait]
impl v1::runtime_service_server::RuntimeService for Runtime {
    type GetContainerEventsStream = Events;

    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        Ok(Response::new(v1::VersionResponse {
            version: KUBELET_API_VERSION.to_owned(),
            runtime_name: RUNTIME_NAME.to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: RUNTIME_API_VERSION.to_owned(),
        }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Result<Response<v1::RunPodSandboxResponse>, Status> {
        let config = request::config(request.into_inner())?;
        let made = self.run_locked(config.metadata.pod_key(), &self.pools.run, move |sandboxes| {
            sandboxes.run(config).map_err(|error| failure::status(&error))
        });
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: made.await?.to_string() }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Result<Response<v1::StopPodSandboxResponse>, Status> {
        let text = request.into_inner().pod_sandbox_id;
        self.end(text, Sandboxes::stop).await?;
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Result<Response<v1::RemovePodSandboxResponse>, Status> {
        let text = request.into_inner().pod_sandbox_id;
        self.end(text, Sandboxes::remove).await?;
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Result<Response<v1::PodSandboxStatusResponse>, Status> {
        let v1::PodSandboxStatusRequest { pod_sandbox_id, verbose } = request.into_inner();
        let found = self.by(&self.pools.look, move |sandboxes| {
            let id = find_one(sandboxes, &pod_sandbox_id)?;
            sandboxes.status(&id).map_err(|error| failure::status(&error))
        });
        let sandbox = found.await?;
        Ok(Response::new(v1::PodSandboxStatusResponse {
            status: Some(answer::status(&sandbox)),
            info: if verbose { info::of_sandbox(&sandbox) } else { HashMap::new() },
            timestamp: answer::nanoseconds(SystemTime::now()),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        let filter = request::filter(request.into_inner().filter)?;
        let items = self.by(&self.pools.look, move |sandboxes| {
            Ok(sandboxes.list(&filter).iter().map(answer::item).collect())
        });
        Ok(Response::new(v1::ListPodSandboxResponse { items: items.await? }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Result<Response<v1::PodSandboxStatsResponse>, Status> {
        let text = request.into_inner().pod_sandbox_id;
        let stats = self.by(&self.pools.look, move |sandboxes| {
            let id = find_one(sandboxes, &text)?;
            stats_of(sandboxes, &id).map_err(|error| failure::status(&error))
        });
        Ok(Response::new(v1::PodSandboxStatsResponse { stats: Some(stats.await?) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Result<Response<v1::ListPodSandboxStatsResponse>, Status> {
        let filter = request::stats_filter(request.into_inner().filter);
        let stats = self.by(&self.pools.look, move |sandboxes| {
            let all = sandboxes.list(&filter);
            Ok(all.iter().filter_map(|sandbox| stats_or_log(sandboxes, sandbox)).collect())
        });
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats: stats.await? }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Result<Response<v1::UpdateRuntimeConfigResponse>, Status> {
        let cidr: Vec<String> =
            request::pod_cidr(request.into_inner())?.iter().map(ToString::to_string).collect();
        // The network's plugins assign addresses, from pools of the cluster: there is nothing to
        // configure.
        tracing::info!(cidr = cidr.join(", "), "kubelet has set the pods' network");
        *self.pod_cidr.lock().unwrap_or_else(PoisonError::into_inner) = cidr;
        Ok(Response::new(v1::UpdateRuntimeConfigResponse {}))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let network = self.network().await;
        let (reason, message) = match &network {
            Ok(()) => (String::new(), String::new()),
            Err(message) => ("NetworkPluginNotReady".to_owned(), message.clone()),
        };
        let runtime =
            v1::RuntimeCondition { r#type: "RuntimeReady".to_owned(), status: true, ..Default::default() };
        let pods = v1::RuntimeCondition {
            r#type: "NetworkReady".to_owned(),
            status: network.is_ok(),
            reason,
            message,
        };
        let cidr = self.pod_cidr.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let verbose = request.into_inner().verbose;
        let info =
            if verbose { info::of_runtime(&self.options.about, &network, &cidr) } else { HashMap::new() };
        Ok(Response::new(v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions: vec![runtime, pods] }),
            info,
            runtime_handlers: vec![v1::RuntimeHandler {
                name: String::new(),
                features: Some(v1::RuntimeHandlerFeatures::default()),
            }],
        }))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<Events>, Status> {
        let permit = Arc::clone(&self.watchers).try_acquire_owned();
        let full = |_| Status::resource_exhausted(format!("{WATCHERS_MAX} callers watch events already"));
        Events::start(&self.sandboxes, self.stopped.clone(), permit.map_err(full)?).map(Response::new)
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Result<Response<v1::RuntimeConfigResponse>, Status> {
        let cgroup_driver = self.options.cgroup_driver.into();
        Ok(Response::new(v1::RuntimeConfigResponse {
            linux: Some(v1::LinuxRuntimeConfiguration { cgroup_driver }),
        }))
    }
}
