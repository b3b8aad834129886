//! HTTP/1 for small requests: a connection whose head or body does not arrive in time is closed, a
//! body is read completely before it is handled, and a request is dropped when its caller
//! disconnects.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_service::Service;

use crate::listener::{Acceptor, Admission, Busy, Connection, Listen};

/// The limits of requests.
#[derive(Debug, Clone, Copy)]
pub struct Requests {
    /// The largest body, in bytes.
    pub body_max_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
}

/// Limit of a request's head; hyper's minimum is 8 KiB.
const HEAD_MAX_BYTES: usize = 16 * 1024;

/// A request whose body is complete.
pub type Whole = Request<Full<Bytes>>;

/// Serves until `stop` resolves and the requests in progress are answered.
pub async fn serve<L, S, B>(
    listener: L,
    admission: Arc<Admission>,
    requests: Requests,
    service: S,
    stop: impl Future<Output = ()> + Send,
) where
    L: Listen,
    S: Service<Whole, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let acceptor = Acceptor::new(listener, admission);
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            connection = acceptor.accept() => {
                connections.spawn(serve_connection(connection, requests, service.clone(), stopped.clone()));
            }
        }
    }
    // No further connection is accepted, and idle ones are closed.
    drop(acceptor);
    let _ = stopping.send(true);
    while connections.join_next().await.is_some() {}
}

async fn serve_connection<T, S, B>(
    connection: Connection<T>,
    requests: Requests,
    service: S,
    mut stopped: watch::Receiver<bool>,
) where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    S: Service<Whole, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let (begin, late_head) = (connection.requests(), connection.late_head());
    let service = service_fn(move |request| {
        let (mut service, busy) = (service.clone(), begin());
        async move { answer(request, requests, &mut service, busy).await }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(connection.limits().greeting_timeout);
    server.max_buf_size(HEAD_MAX_BYTES);
    let serving = server.serve_connection(TokioIo::new(connection), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        // The end of the server means the same.
        () = async { _ = stopped.wait_for(|stop| *stop).await } => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    // Other errors are the connection's own, which it has counted, or the peer's.
    if ended.is_err_and(|error| error.is_timeout()) {
        late_head();
    }
}

/// An answer of ours or of the service. The caller's going away drops this, and with it what the service does.
async fn answer<S, B>(
    request: Request<Incoming>,
    requests: Requests,
    service: &mut S,
    _busy: Busy,
) -> Result<Response<Either<B, Full<Bytes>>>, Infallible>
where
    S: Service<Whole, Response = Response<B>, Error = Infallible>,
{
    let (head, body) = request.into_parts();
    let read = Limited::new(body, requests.body_max_bytes).collect();
    let body = match tokio::time::timeout(requests.body_timeout, read).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Ok(refusal(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large").map(Either::Right));
        }
        // The caller is gone, or sends what is no body.
        Ok(Err(_)) => {
            return Ok(
                refusal(StatusCode::BAD_REQUEST, "the request's body cannot be read").map(Either::Right)
            );
        }
        Err(_elapsed) => {
            let text = "the request does not come to its end";
            return Ok(refusal(StatusCode::REQUEST_TIMEOUT, text).map(Either::Right));
        }
    };
    let Ok(response) = service.call(Request::from_parts(head, Full::new(body))).await;
    Ok(response.map(Either::Left))
}

fn refusal(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    // The rest of the request is not read.
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    use super::*;
    use crate::listener::{Allowed, Limits, Reason};

    const LIMITS: Limits = Limits {
        name: "test",
        connections: 8,
        per_peer: 4,
        allowed: Allowed::Anyone,
        greeting_bytes: 0,
        greeting_timeout: Duration::from_millis(200),
        idle_timeout: None,
    };
    const REQUESTS: Requests = Requests { body_max_bytes: 100, body_timeout: Duration::from_millis(200) };
    const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
    /// Longer than any step takes.
    const DEADLINE: Duration = Duration::from_secs(60);

    #[derive(Clone)]
    struct Echo;

    impl Service<Whole> for Echo {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Whole) -> Self::Future {
            std::future::ready(Ok(Response::new(request.into_body())))
        }
    }

    struct Server {
        address: std::net::SocketAddr,
        admission: Arc<Admission>,
        stop: oneshot::Sender<()>,
        task: tokio::task::JoinHandle<()>,
    }

    async fn serve_with(limits: Limits) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, admission) = (listener.local_addr().unwrap(), Admission::new(limits));
        let (stop, stopped) = oneshot::channel();
        let serving = serve(listener, Arc::clone(&admission), REQUESTS, Echo, async { _ = stopped.await });
        Server { address, admission, stop, task: tokio::spawn(serving) }
    }

    impl Server {
        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }

        async fn wait_for_slots(&self, count: usize) {
            let all = async {
                while self.admission.connections() != count {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(DEADLINE, all).await.expect("they get their slots");
        }

        async fn end(self) {
            let _ = self.stop.send(());
            tokio::time::timeout(DEADLINE, self.task).await.expect("it ends").unwrap();
        }
    }

    /// Everything until the server closes the connection.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        // A connection may be closed while bytes are being sent.
        let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.expect("it hangs up");
        String::from_utf8(bytes).unwrap()
    }

    /// The head of the answer on a connection that stays open.
    async fn ask(stream: &mut TcpStream, request: &[u8]) -> String {
        stream.write_all(request).await.unwrap();
        let mut head = [0; 15];
        tokio::time::timeout(DEADLINE, stream.read_exact(&mut head)).await.expect("it answers").unwrap();
        String::from_utf8(head.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn silent_connections_do_not_prevent_service() {
        let server = serve_with(Limits { greeting_timeout: DEADLINE, ..LIMITS }).await;
        let mut silent = Vec::new();
        for count in 1..=LIMITS.per_peer {
            silent.push(server.connect().await);
            server.wait_for_slots(count).await;
        }
        let mut new = server.connect().await;
        assert_eq!(ask(&mut new, GET).await, "HTTP/1.1 200 OK");
        assert_eq!(rest(&mut silent[0]).await, "", "the connection that waited longest was closed");
        assert_eq!(server.admission.closed(Reason::Displaced), 1);
        drop((silent, new));
        server.end().await;
    }

    #[tokio::test]
    async fn a_missing_head_ends_the_connection_and_is_counted() {
        let server = serve_with(LIMITS).await;
        let mut slow = server.connect().await;
        slow.write_all(&GET[..10]).await.unwrap();
        rest(&mut slow).await;
        // The server counts it after it has closed the connection.
        server.wait_for_slots(0).await;
        let counted = async {
            while server.admission.closed(Reason::Greeting) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(DEADLINE, counted).await.expect("it is counted");
        server.end().await;
    }

    #[tokio::test]
    async fn a_connection_that_rests_too_long_after_an_answer_is_closed_and_counted() {
        let idle = Duration::from_millis(50);
        let limits = Limits { greeting_timeout: DEADLINE, idle_timeout: Some(idle), ..LIMITS };
        let server = serve_with(limits).await;
        let mut peer = server.connect().await;
        let began = std::time::Instant::now();
        assert_eq!(ask(&mut peer, GET).await, "HTTP/1.1 200 OK");
        rest(&mut peer).await;
        assert!(began.elapsed() >= idle);
        server.wait_for_slots(0).await;
        assert_eq!(server.admission.closed(Reason::Idle), 1);
        server.end().await;
    }

    #[tokio::test]
    async fn a_body_that_is_late_or_too_large_is_refused() {
        let server = serve_with(LIMITS).await;
        let mut late = server.connect().await;
        late.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab").await.unwrap();
        let answer = rest(&mut late).await;
        assert!(answer.starts_with("HTTP/1.1 408 ") && answer.ends_with("to its end\n"), "{answer}");
        let mut large = server.connect().await;
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n{}", "x".repeat(101));
        large.write_all(head.as_bytes()).await.unwrap();
        assert!(rest(&mut large).await.starts_with("HTTP/1.1 413 "));
        server.end().await;
    }

    #[tokio::test]
    async fn a_server_that_stops_closes_idle_connections_at_once() {
        let server = serve_with(Limits { greeting_timeout: DEADLINE, ..LIMITS }).await;
        let mut idle = server.connect().await;
        assert_eq!(ask(&mut idle, GET).await, "HTTP/1.1 200 OK");
        server.end().await;
        rest(&mut idle).await;
    }
}
