//! Refuses calls that are not served by their names: calls about containers and images, and unknown
//! ones.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body as HttpBody, Frame, SizeHint};
use russet_cri_api::RUNTIME_SERVICE;
use russet_http::listener::Busy;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Status};

use crate::cri::connection::Requests;
use crate::cri::health::Calls;

/// `inner` serves [`RUNTIME_SERVICE`]; calls that it does not know are refused with a reason.
#[derive(Debug, Clone)]
pub struct Named<S> {
    /// The service.
    pub inner: S,
    /// The metrics of calls.
    pub calls: Calls,
}

type Request = http::Request<Body>;
type Response = http::Response<Body>;
type Answer = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// How much of a call's name a refusal repeats.
const SHOWN_CHARS: usize = 100;

// === impl Named ===

impl<S> Service<Request> for Named<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Answer {
        let call = request.uri().path().trim_start_matches('/').to_owned();
        let (service, name) = call.split_once('/').unwrap_or((&call, ""));
        if service != RUNTIME_SERVICE {
            self.calls.started("").answered(Code::Unimplemented);
            return Box::pin(async move { Ok(refusal(&call)) });
        }
        let busy = request.extensions().get::<Requests>().map(Requests::start);
        let (under_way, answer) = (self.calls.started(name), self.inner.call(request));
        Box::pin(async move {
            let answer = answer.await?;
            under_way.answered(code(&answer));
            let answer = if is_bare(&answer) { refusal(&call) } else { answer };
            Ok(answer.map(|body| Body::new(TrackedBody { body, _busy: busy })))
        })
    }
}

/// The body of an answer; its request is in progress until the last part is sent, which for a watch
/// is when the client leaves.
struct TrackedBody {
    body: Body,
    _busy: Option<Busy>,
}

// === impl TrackedBody ===

impl HttpBody for TrackedBody {
    type Data = <Body as HttpBody>::Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The code of an answer: a failed one has it in its headers, and nothing follows.
fn code(answer: &Response) -> Code {
    let code = answer.headers().get(Status::GRPC_STATUS);
    code.map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()))
}

/// Whether this is generated code's answer to an unknown method.
fn is_bare(answer: &Response) -> bool {
    code(answer) == Code::Unimplemented && !answer.headers().contains_key(Status::GRPC_MESSAGE)
}

fn refusal(call: &str) -> Response {
    let call: String = call.chars().take(SHOWN_CHARS).collect();
    Status::unimplemented(format!(
        "{call} is not served: russet keeps pods' sandboxes, no containers and no images"
    ))
    .into_http()
}
