//! A connection to containerd, and the way of its calls: with a namespace, a timeout, and errors
//! that name their subject.

use std::path::Path;
use std::time::Duration;

use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::CallError;

/// A connection. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) channel: Channel,
    namespace: AsciiMetadataValue,
    lease: Option<AsciiMetadataValue>,
}

/// A local socket accepts at once, or its server is not running.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// For calls that change or read a record.
pub(crate) const QUICK: Duration = Duration::from_secs(15);
/// For calls that start or end processes, or write a file system: a loaded machine takes seconds.
pub(crate) const SLOW: Duration = Duration::from_secs(60);
/// For calls that unpack a layer: minutes on a slow disk. The caller has its own timeout for the
/// whole image.
pub(crate) const UNPACK: Duration = Duration::from_secs(10 * 60);
const NAMESPACE: &str = "containerd-namespace";
const LEASE: &str = "containerd-lease";

// === impl Client ===

impl Client {
    /// Connects to the socket. All objects are in `namespace` of containerd.
    pub async fn connect(socket: &Path, namespace: &str) -> Result<Self, CallError> {
        let failed = |source| CallError::Connect { socket: socket.to_owned(), source };
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
        let channel = endpoint.connect_timeout(CONNECT_LIMIT).connect().await.map_err(failed)?;
        Ok(Self { channel, namespace: header(namespace)?, lease: None })
    }

    /// The same connection, under a lease: objects that are made are kept while the lease exists.
    pub(crate) fn leased(&self, lease: &str) -> Result<Self, CallError> {
        Ok(Self { lease: Some(header(lease)?), ..self.clone() })
    }

    /// A request with its headers.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(NAMESPACE, self.namespace.clone());
        if let Some(lease) = &self.lease {
            request.metadata_mut().insert(LEASE, lease.clone());
        }
        request
    }
}

/// The answer to a call.
pub(crate) async fn answer<T>(
    operation: &'static str,
    subject: &str,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(source)) => {
            Err(CallError::Call { operation, subject: subject.to_owned(), source: Box::new(source) })
        }
        Err(_) => Err(CallError::Late { operation, subject: subject.to_owned(), limit_s: limit.as_secs() }),
    }
}

/// Maps "not found" to None.
pub(crate) fn found<T>(result: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match result {
        Err(error) if error.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

fn header(text: &str) -> Result<AsciiMetadataValue, CallError> {
    text.parse().map_err(|_| CallError::Header(text.to_owned()))
}
