//! Records of containers, and the tasks that run them.

use crate::api::containers::v1::containers_client::ContainersClient;
use crate::api::containers::v1::{CreateContainerRequest, DeleteContainerRequest, ListContainersRequest};
use crate::api::tasks::v1 as tasks;
use crate::api::tasks::v1::tasks_client::TasksClient;
use crate::client::{QUICK, SLOW, answer, found};
use crate::{CallError, Client, Container, Mount, TaskStatus};

type Answer<T> = Result<T, CallError>;

const SIGKILL: u32 = 9;
/// For lists: gRPC's usual 4 MiB are some hundred containers with their specifications. containerd
/// sends up to 16 MiB by default.
const LIST_MAX_BYTES: usize = 256 * 1024 * 1024;

// === impl Client ===

impl Client {
    /// Writes the record of a container. Nothing runs yet, and its image and snapshot are not
    /// checked.
    pub async fn create_container(&self, container: Container) -> Answer<()> {
        let name = container.id.clone();
        let request = self.request(CreateContainerRequest { container: Some(container) });
        let mut service = ContainersClient::new(self.channel.clone());
        answer("create container", &name, QUICK, service.create(request)).await.map(drop)
    }

    /// The containers that match `filter`, in containerd's filter syntax.
    pub async fn containers(&self, filter: &str) -> Answer<Vec<Container>> {
        let request = self.request(ListContainersRequest { filters: vec![filter.to_owned()] });
        let mut service =
            ContainersClient::new(self.channel.clone()).max_decoding_message_size(LIST_MAX_BYTES);
        let answered = answer("list containers", filter, QUICK, service.list(request)).await?;
        Ok(answered.containers)
    }

    /// The record of a container, if there is one.
    pub async fn container(&self, name: &str) -> Answer<Option<Container>> {
        let request = self.request(crate::api::containers::v1::GetContainerRequest { id: name.to_owned() });
        let mut service = ContainersClient::new(self.channel.clone());
        let answered = found(answer("look for container", name, QUICK, service.get(request)).await)?;
        Ok(answered.and_then(|answered| answered.container))
    }

    /// Deletes the record of a container; returns false if there was none. Does not check whether
    /// it runs.
    pub async fn delete_container(&self, name: &str) -> Answer<bool> {
        let request = self.request(DeleteContainerRequest { id: name.to_owned() });
        let mut service = ContainersClient::new(self.channel.clone());
        let answered = answer("delete container", name, QUICK, service.delete(request)).await;
        Ok(found(answered)?.is_some())
    }

    /// Prepares a container's process on its file system, up to its execution; returns its pid.
    pub async fn create_task(&self, name: &str, rootfs: Vec<Mount>) -> Answer<u32> {
        let message = tasks::CreateTaskRequest { container_id: name.to_owned(), rootfs, options: None };
        let request = self.request(message);
        let created = answer("create the task of", name, SLOW, self.tasks().create(request)).await?;
        match created.pid {
            0 => Err(CallError::Answer {
                operation: "create the task of",
                subject: name.to_owned(),
                reason: "it has no process".to_owned(),
            }),
            pid => Ok(pid),
        }
    }

    /// Starts the prepared process.
    pub async fn start_task(&self, name: &str) -> Answer<()> {
        let request = self.request(tasks::StartRequest { container_id: name.to_owned() });
        answer("start the task of", name, SLOW, self.tasks().start(request)).await.map(drop)
    }

    /// The state of a container's task, if it has one.
    pub async fn task(&self, name: &str) -> Answer<Option<TaskStatus>> {
        let request = self.request(tasks::GetRequest { container_id: name.to_owned() });
        let answered = found(answer("look for the task of", name, QUICK, self.tasks().get(request)).await)?;
        Ok(answered.map(|answered| answered.process.map_or(TaskStatus::Unknown, |it| it.status())))
    }

    /// Kills a container's task, waits for its end and deletes it. A missing task is fine.
    pub async fn end_task(&self, name: &str) -> Answer<()> {
        if self.task(name).await?.is_none() {
            return Ok(());
        }
        let kill = tasks::KillRequest { container_id: name.to_owned(), signal: SIGKILL, all: false };
        let killed = answer("kill the task of", name, QUICK, self.tasks().kill(self.request(kill))).await;
        match killed {
            // It has ended by itself.
            Err(error) if error.is_not_found() || error.is_precondition() => {}
            other => drop(other?),
        }
        let wait = self.request(tasks::WaitRequest { container_id: name.to_owned() });
        found(answer("wait for the end of", name, SLOW, self.tasks().wait(wait)).await)?;
        let delete = self.request(tasks::DeleteTaskRequest { container_id: name.to_owned() });
        found(answer("delete the task of", name, SLOW, self.tasks().delete(delete)).await).map(drop)
    }

    fn tasks(&self) -> TasksClient<tonic::transport::Channel> {
        TasksClient::new(self.channel.clone())
    }
}
