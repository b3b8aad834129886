//! The calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use russet_cri_api as v1;
use russet_sandbox::{Sandbox, SandboxError, SandboxId, Sandboxes};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::crew::{Crew, Place};
use crate::events::Events;
use crate::server::Options;
use crate::turns::{Turn, Turns};
use crate::{answer, failure, info, request};

/// Answers calls about sandboxes.
pub struct Runtime {
    sandboxes: Arc<Sandboxes>,
    options: Options,
    crews: Crews,
    turns: Turns,
    /// What the network was like when it was last asked.
    network: Arc<Mutex<Option<Result<(), String>>>>,
    pod_cidr: Mutex<Vec<String>>,
    watchers: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

/// Who does what blocks. An ADD that hangs must keep nobody from taking a sandbox down, and nobody from looking.
#[derive(Clone)]
pub struct Crews {
    /// Makes sandboxes.
    run: Crew,
    /// Stops and removes them.
    end: Crew,
    /// Lists and looks at them.
    look: Crew,
    /// Asks the network's plugins how they are.
    ask: Crew,
}

/// Of the interface between kubelet and runtimes, since it exists.
const KUBELET_API_VERSION: &str = "0.1.0";
const RUNTIME_NAME: &str = "russet";
const RUNTIME_API_VERSION: &str = "v1";

/// Sandboxes that are made at once: kubelet starts pods one for each worker, and plugins spend most of their time waiting.
const RUNS_MAX: u32 = 24;
/// Sandboxes that are taken down at once.
const ENDS_MAX: u32 = 24;
/// Looks at once: each is short.
const LOOKS_MAX: u32 = 12;
/// Callers that watch events: kubelet, and people.
const WATCHERS_MAX: usize = 16;
/// How long Status waits for plugins. kubelet waits two minutes, and every other caller with it, so the answer from before must do.
const NETWORK_PATIENCE: Duration = Duration::from_secs(1);

// === impl Crews ===

impl Crews {
    /// Those of one server.
    pub fn new() -> Self {
        Self { run: Crew::of(RUNS_MAX), end: Crew::of(ENDS_MAX), look: Crew::of(LOOKS_MAX), ask: Crew::of(1) }
    }

    /// Has `work` done by one of those who take sandboxes down.
    pub async fn end<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.end.execute(work).await
    }

    /// Has `work` done by one of those who look.
    pub async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.look.execute(work).await
    }

    /// Lets nobody change anything any more.
    pub fn close(&self) {
        self.run.close();
        self.end.close();
    }

    /// Waits for those who are changing something. False if some are still at it at `deadline`.
    pub async fn rest(&self, deadline: Instant) -> bool {
        let (run, end) = tokio::join!(self.run.rest(deadline), self.end.rest(deadline));
        run && end
    }
}

// === impl Runtime ===

impl Runtime {
    /// Serves `sandboxes` until `stopped` says so.
    pub fn new(
        sandboxes: Arc<Sandboxes>,
        options: Options,
        crews: Crews,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        Self {
            sandboxes,
            options,
            crews,
            turns: Turns::default(),
            network: Arc::default(),
            pod_cidr: Mutex::default(),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
            stopped,
        }
    }

    /// Has `work` done by one of `crew`.
    async fn by<T: Send + 'static>(
        &self,
        crew: &Crew,
        work: impl FnOnce(&Sandboxes) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let sandboxes = Arc::clone(&self.sandboxes);
        crew.execute(move || work(&sandboxes)).await?
    }

    /// Has `work` done by one of `crew` when it is its turn at `pod`, and nothing else done to that meanwhile.
    async fn alone_at<T: Send + 'static>(
        &self,
        pod: String,
        crew: &Crew,
        work: impl FnOnce(&Sandboxes) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (turn, place) = self.turn_and_place(pod, crew).await?;
        let sandboxes = Arc::clone(&self.sandboxes);
        let work = move || {
            let done = work(&sandboxes);
            turn.end();
            done
        };
        crew.execute_at(place, work).await?
    }

    /// Both at once. Who waits for one has not the other: where all of a crew hang, one who waits for them keeps nobody from its pod's older sandboxes.
    async fn turn_and_place(&self, pod: String, crew: &Crew) -> Result<(Turn, Place), Status> {
        loop {
            let turn = self.turns.at(pod.clone()).await;
            if let Some(place) = crew.try_place() {
                return Ok((turn, place));
            }
            turn.end();
            let place = crew.place().await?;
            if let Some(turn) = self.turns.try_at(pod.clone()) {
                return Ok((turn, place));
            }
        }
    }

    /// Stops or removes the sandbox that `text` names. What nobody knows is stopped and removed already (cni-runtime.md section 3.2). Looks that hang keep
    /// nobody from it.
    async fn end(
        &self,
        text: String,
        how: fn(&Sandboxes, &SandboxId) -> Result<(), SandboxError>,
    ) -> Result<(), Status> {
        let found = self.by(&self.crews.end, move |sandboxes| {
            Ok(find(sandboxes, &text)?.and_then(|id| sandboxes.pod_key(&id).map(|pod| (id, pod))))
        });
        let Some((id, pod)) = found.await? else { return Ok(()) };
        let done = self.alone_at(pod, &self.crews.end, move |sandboxes| match how(sandboxes, &id) {
            Ok(()) | Err(SandboxError::NotFound(_)) => Ok(()),
            Err(error) => Err(failure::status(&error)),
        });
        done.await
    }

    /// Whether pods can be attached, as plugins say, or as they said last if they do not answer soon.
    pub(crate) async fn network(&self) -> Result<(), String> {
        let (sandboxes, known) = (Arc::clone(&self.sandboxes), Arc::clone(&self.network));
        let asked = self.crews.ask.execute(move || {
            let answer = sandboxes.network_ready();
            *known.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer.clone());
            answer
        });
        match tokio::time::timeout(NETWORK_PATIENCE, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(status)) => Err(status.message().to_owned()),
            Err(_elapsed) => {
                let known = self.network.lock().unwrap_or_else(PoisonError::into_inner).clone();
                known.unwrap_or_else(|| Err("the network's plugins have not answered yet".to_owned()))
            }
        }
    }
}

/// The sandbox that `text` names: by its ID, or by the beginning of it if no other begins so. None if there is none. Nothing is looked at for it.
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
        _ => Err(Status::invalid_argument(format!("pod_sandbox_id: several begin with {text:?}"))),
    }
}

/// The same when there must be one.
fn find_one(sandboxes: &Sandboxes, text: &str) -> Result<SandboxId, Status> {
    find(sandboxes, text)?.ok_or_else(|| Status::not_found(format!("no sandbox {text:?}")))
}

fn stats_of(sandboxes: &Sandboxes, id: &SandboxId) -> Result<v1::PodSandboxStats, SandboxError> {
    sandboxes.stats(id).map(|(sandbox, stats)| answer::stats(&sandbox, &stats))
}

/// Those of a list: one that has gone since is not in it, and one whose interfaces cannot be read keeps nobody from hearing of the others.
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
        let made = self.alone_at(config.metadata.pod_key(), &self.crews.run, move |sandboxes| {
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
        let found = self.by(&self.crews.look, move |sandboxes| {
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
        let items = self.by(&self.crews.look, move |sandboxes| {
            Ok(sandboxes.list(&filter).iter().map(answer::item).collect())
        });
        Ok(Response::new(v1::ListPodSandboxResponse { items: items.await? }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Result<Response<v1::PodSandboxStatsResponse>, Status> {
        let text = request.into_inner().pod_sandbox_id;
        let stats = self.by(&self.crews.look, move |sandboxes| {
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
        let stats = self.by(&self.crews.look, move |sandboxes| {
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
        // Addresses are given by the network's plugins, from pools of the cluster: there is nothing to render.
        tracing::info!(?cidr, "kubelet has told the pods' network");
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
        let place = Arc::clone(&self.watchers).try_acquire_owned();
        let full = |_| Status::resource_exhausted(format!("{WATCHERS_MAX} callers watch events already"));
        Events::begin(&self.sandboxes, self.stopped.clone(), place.map_err(full)?).map(Response::new)
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
