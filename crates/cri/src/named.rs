//! Calls that are not served are refused by their names: about containers, about images, and those that nobody knows.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use russet_cri_api::RUNTIME_SERVICE;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Status};

use crate::health::Calls;

/// `inner` serves [`RUNTIME_SERVICE`]; what it does not know is refused with a reason.
#[derive(Debug, Clone)]
pub struct Named<S> {
    /// What serves.
    pub inner: S,
    /// Where calls are counted.
    pub calls: Calls,
}

type Request = http::Request<Body>;
type Response = http::Response<Body>;
type Answer = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// What a refusal repeats of the call's name.
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
            self.calls.begun("").answered(Code::Unimplemented);
            return Box::pin(async move { Ok(refusal(&call)) });
        }
        let (under_way, answer) = (self.calls.begun(name), self.inner.call(request));
        Box::pin(async move {
            let answer = answer.await?;
            under_way.answered(code(&answer));
            Ok(if is_bare(&answer) { refusal(&call) } else { answer })
        })
    }
}

/// How an answer ended: one that failed says so at once, and nothing follows.
fn code(answer: &Response) -> Code {
    let code = answer.headers().get(Status::GRPC_STATUS);
    code.map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()))
}

/// How generated code answers a method that it does not have.
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
