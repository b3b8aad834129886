//! A proxy in front of containerd that forwards everything but the calls that a test wants to
//! answer otherwise: some states of containerd come only from a race or a broken disk.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};

type Body = BoxBody<Bytes, hyper::Error>;

/// An answer in place of containerd's.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The call, as in `/containerd.services.images.v1.Images/Get`.
    pub call: &'static str,
    /// gRPC's number for it: 5 is not found, 6 is already there, 13 is an internal error.
    pub code: u8,
    /// The words.
    pub message: &'static str,
}

/// A proxy; it ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    directory: TempDir,
    instead: Arc<Mutex<VecDeque<Answer>>>,
    runtime: Option<tokio::runtime::Runtime>,
}

// === impl Proxy ===

impl Proxy {
    /// Starts one before the server behind `socket`.
    pub fn start(socket: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // One thread, which has the namespaces of the calling one: the server behind is on the same machine.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let instead = Arc::<Mutex<VecDeque<Answer>>>::default();
        let entered = runtime.enter();
        let listener = UnixListener::bind(directory.path().join("p.sock")).unwrap();
        runtime.spawn(serve(listener, socket.to_owned(), instead.clone()));
        drop(entered);
        Self { directory, instead, runtime: Some(runtime) }
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("p.sock")
    }

    /// The next calls of these names get these answers, in this order for each name; later ones are
    /// forwarded again.
    pub fn answer(&self, answers: &[Answer]) {
        self.instead.lock().unwrap_or_else(PoisonError::into_inner).extend(answers.iter().cloned());
    }

    /// The number of answers that no call has used.
    pub fn unasked(&self) -> usize {
        self.instead.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(listener: UnixListener, socket: PathBuf, instead: Arc<Mutex<VecDeque<Answer>>>) {
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = UnixStream::connect(&socket).await else { continue };
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(server)).await;
        let Ok((sender, connection)) = shaken else { continue };
        tokio::spawn(connection);
        let instead = instead.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (mut sender, wrong) = (sender.clone(), take(&instead, request.uri().path()));
            async move {
                match wrong {
                    Some(answer) => Ok::<_, hyper::Error>(refusal(&answer)),
                    None => sender.send_request(request).await.map(|response| response.map(BodyExt::boxed)),
                }
            }
        });
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(serving.serve_connection(TokioIo::new(client), service));
    }
}

fn take(instead: &Mutex<VecDeque<Answer>>, call: &str) -> Option<Answer> {
    let mut instead = instead.lock().unwrap_or_else(PoisonError::into_inner);
    let at = instead.iter().position(|answer| answer.call == call)?;
    instead.remove(at)
}

/// An error of gRPC is a response whose headers say so, without a body.
fn refusal(answer: &Answer) -> Response<Body> {
    let body = Empty::<Bytes>::new().map_err(|never: Infallible| match never {}).boxed();
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", answer.code.to_string())
        .header("grpc-message", answer.message)
        .body(body)
        .unwrap()
}
