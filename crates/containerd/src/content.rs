//! Blobs by their digests, names of images, and leases that keep objects without a name.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::api::content::v1 as content;
use crate::api::content::v1::content_client::ContentClient;
use crate::api::content::v1::{WriteAction, WriteContentRequest, WriteContentResponse};
use crate::api::images::v1::images_client::ImagesClient;
use crate::api::images::v1::{CreateImageRequest, GetImageRequest, Image};
use crate::api::leases::v1::leases_client::LeasesClient;
use crate::api::leases::v1::{CreateRequest, DeleteRequest};
use crate::api::{Descriptor, FieldMask};
use crate::client::{QUICK, SLOW, answer, found};
use crate::{CallError, Client};

type Answer<T> = Result<T, CallError>;
pub(crate) type Labels = HashMap<String, String>;

/// A blob that is being written.
pub(crate) struct Writer {
    digest: String,
    requests: mpsc::Sender<WriteContentRequest>,
    answers: Streaming<WriteContentResponse>,
    offset: i64,
}

/// A pull that is not complete by then has died, and its blobs are collected.
const LEASE_LIFE: Duration = Duration::from_secs(60 * 60);
const LEASE_EXPIRES: &str = "containerd.io/gc.expire";
const WRITE: &str = "write blob";

// === impl Client ===

impl Client {
    /// The target of an image's name, if it exists.
    pub(crate) async fn image(&self, name: &str) -> Answer<Option<Descriptor>> {
        let request = self.request(GetImageRequest { name: name.to_owned() });
        let mut service = ImagesClient::new(self.channel.clone());
        let answered = found(answer("look for image", name, QUICK, service.get(request)).await)?;
        Ok(answered.and_then(|answered| answered.image?.target))
    }

    /// Creates an image's name. Another client may have created it first.
    pub(crate) async fn create_image(&self, name: &str, target: Descriptor) -> Answer<()> {
        let image = Image { name: name.to_owned(), labels: Labels::new(), target: Some(target) };
        let request = self.request(CreateImageRequest { image: Some(image) });
        let mut service = ImagesClient::new(self.channel.clone());
        match answer("create image", name, QUICK, service.create(request)).await {
            Err(error) if error.is_already_there() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Makes a lease that expires by itself.
    pub(crate) async fn create_lease(&self, name: &str) -> Answer<()> {
        let end = russet_model::time::rfc3339(SystemTime::now() + LEASE_LIFE);
        let labels = Labels::from([(LEASE_EXPIRES.to_owned(), end)]);
        let request = self.request(CreateRequest { id: name.to_owned(), labels });
        let mut service = LeasesClient::new(self.channel.clone());
        answer("create lease", name, QUICK, service.create(request)).await.map(drop)
    }

    pub(crate) async fn delete_lease(&self, name: &str) -> Answer<()> {
        let request = self.request(DeleteRequest { id: name.to_owned() });
        let mut service = LeasesClient::new(self.channel.clone());
        found(answer("delete lease", name, QUICK, service.delete(request)).await).map(drop)
    }

    /// A blob of at most `max_bytes`, whole.
    pub(crate) async fn read_blob(&self, digest: &str, max_bytes: usize) -> Answer<Vec<u8>> {
        const READ: &str = "read blob";
        let request = self.request(content::ReadContentRequest { digest: digest.to_owned() });
        let mut stream = answer(READ, digest, QUICK, self.content().read(request)).await?;
        let mut bytes = Vec::new();
        while let Some(part) = next(READ, digest, &mut stream).await? {
            bytes.extend_from_slice(&part.data);
            if bytes.len() > max_bytes {
                let reason = format!("it is larger than {max_bytes} bytes");
                return Err(CallError::Answer { operation: READ, subject: digest.to_owned(), reason });
            }
        }
        Ok(bytes)
    }

    /// Adds a label to a blob: containerd's garbage collection follows some labels to other blobs.
    pub(crate) async fn label_blob(&self, digest: &str, key: String, value: &str) -> Answer<()> {
        let paths = vec![format!("labels.{key}")];
        let labels = Labels::from([(key, value.to_owned())]);
        let info = content::Info { digest: digest.to_owned(), size: 0, labels };
        let update = content::UpdateRequest { info: Some(info), update_mask: Some(FieldMask { paths }) };
        let request = self.request(update);
        answer("label blob", digest, QUICK, self.content().update(request)).await.map(drop)
    }

    /// Starts to write a blob; None if it exists already. `name` must be unique until the commit.
    pub(crate) async fn write_blob(&self, name: &str, digest: &str, size: i64) -> Answer<Option<Writer>> {
        let (requests, receiver) = mpsc::channel(1);
        let first = WriteContentRequest {
            action: WriteAction::Stat.into(),
            r#ref: name.to_owned(),
            total: size,
            expected: digest.to_owned(),
            ..WriteContentRequest::default()
        };
        // The channel has room for one.
        let _ = requests.try_send(first);
        let request = self.request(ReceiverStream::new(receiver));
        let opening = async {
            let answers = answer(WRITE, digest, SLOW, self.content().write(request)).await?;
            let mut writer = Writer { digest: digest.to_owned(), requests, answers, offset: 0 };
            writer.answer().await.map(|_| writer)
        };
        match opening.await {
            Err(error) if error.is_already_there() => Ok(None),
            other => other.map(Some),
        }
    }

    fn content(&self) -> ContentClient<tonic::transport::Channel> {
        ContentClient::new(self.channel.clone())
    }
}

// === impl Writer ===

impl Writer {
    /// Writes a part of it.
    pub(crate) async fn write(&mut self, data: Bytes) -> Answer<()> {
        let length = i64::try_from(data.len()).unwrap_or(i64::MAX);
        let action = WriteAction::Write.into();
        let part = WriteContentRequest {
            action,
            offset: self.offset,
            data: data.into(),
            ..WriteContentRequest::default()
        };
        self.say(part).await?;
        self.offset = self.offset.saturating_add(length);
        let offset = self.answer().await?.offset;
        if offset == self.offset {
            return Ok(());
        }
        let reason = format!("{} bytes were written, and it has {offset}", self.offset);
        Err(CallError::Answer { operation: WRITE, subject: self.digest.clone(), reason })
    }

    /// The blob exists when this returns, if its digest matches.
    pub(crate) async fn commit(mut self, labels: Labels) -> Answer<()> {
        let commit = WriteContentRequest {
            action: WriteAction::Commit.into(),
            total: self.offset,
            offset: self.offset,
            expected: self.digest.clone(),
            labels,
            ..WriteContentRequest::default()
        };
        self.say(commit).await?;
        match self.answer().await {
            Err(error) if error.is_already_there() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn say(&mut self, request: WriteContentRequest) -> Answer<()> {
        // If the receiver is gone, it has sent the reason, or the connection broke.
        if self.requests.send(request).await.is_err() {
            self.answer().await?;
        }
        Ok(())
    }

    async fn answer(&mut self) -> Answer<WriteContentResponse> {
        let answered = next(WRITE, &self.digest, &mut self.answers).await?;
        answered.ok_or_else(|| CallError::Answer {
            operation: WRITE,
            subject: self.digest.clone(),
            reason: "the answer ended too early".to_owned(),
        })
    }
}

async fn next<T>(operation: &'static str, subject: &str, stream: &mut Streaming<T>) -> Answer<Option<T>> {
    let part = async { stream.message().await.map(tonic::Response::new) };
    answer(operation, subject, SLOW, part).await
}
