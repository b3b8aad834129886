//! One HTTP/1.1 exchange over a unix socket, limited to what the agent's own server uses.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::{RelayResponse, STDERR_HEADER, TIMING_HEADER, Timing};
use crate::base64;

/// Where an exchange failed, which decides whether the request may have been carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Before anything was sent.
    #[error("connect: {0}")]
    Connect(io::Error),
    /// Later: the agent may have done the work.
    #[error("connection lost: {0}")]
    Lost(io::Error),
}

/// The agent's server sends about 120 bytes of headers.
const HEAD_MAX_BYTES: usize = 16 * 1024;
/// A result with 100 interfaces and 1,000 routes takes 100 KiB.
const BODY_MAX_BYTES: usize = 1024 * 1024;

/// A chunk's length in hexadecimal digits, and its extensions, which are not used.
const CHUNK_HEAD_MAX_BYTES: usize = 256;

/// Posts `body` to the agent's `path` and reads the answer, within `limit` altogether.
pub fn post(socket: &Path, path: &str, body: &[u8], limit: Duration) -> Result<RelayResponse, Failure> {
    post_to(socket, "russet", path, body, limit)
}

/// [`post`] to a server that may not be ours, with the name `host`.
pub fn post_to(
    socket: &Path,
    host: &str,
    path: &str,
    body: &[u8],
    limit: Duration,
) -> Result<RelayResponse, Failure> {
    let end = Instant::now() + limit;
    let mut stream = connect(socket, limit).map_err(Failure::Connect)?;
    let mut message = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    message.extend_from_slice(body);
    // An agent that refuses a request early stops reading, but has sent its answer.
    let sent =
        stream.set_write_timeout(Some(left(end).map_err(Failure::Lost)?)).and(stream.write_all(&message));
    read(&mut stream, end).map_err(|error| Failure::Lost(sent.err().unwrap_or(error)))
}

/// Connecting blocks forever if the queue of a stopped agent is full, unless the socket's send
/// timeout is set first: the kernel applies it to this wait, too. `std` cannot create a socket
/// before it connects.
fn connect(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(limit))?;
    match rustix::net::connect(&stream, &address) {
        Err(Errno::AGAIN) => Err(ErrorKind::TimedOut.into()),
        connected => connected.map(|()| stream.into()).map_err(io::Error::from),
    }
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn read(stream: &mut UnixStream, end: Instant) -> io::Result<RelayResponse> {
    let mut received = Vec::with_capacity(4096);
    loop {
        if let Some(response) = parse(&received, false)? {
            return Ok(response);
        }
        let mut chunk = [0; 4096];
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut chunk) {
            Ok(0) => return parse(&received, true)?.ok_or_else(|| ErrorKind::UnexpectedEof.into()),
            Ok(count) => received.extend(chunk.iter().take(count)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
}

/// The response, once `received` holds all of it; without a length it ends where the stream does.
fn parse(received: &[u8], ended: bool) -> io::Result<Option<RelayResponse>> {
    let bad = |text: &str| io::Error::new(ErrorKind::InvalidData, text);
    let Some(end) = received.windows(4).take(HEAD_MAX_BYTES).position(|window| window == b"\r\n\r\n") else {
        return if received.len() > HEAD_MAX_BYTES {
            Err(bad("the answer's head is too long"))
        } else {
            Ok(None)
        };
    };
    let (head, body) = received.split_at_checked(end).unwrap_or_default();
    let head = std::str::from_utf8(head).map_err(|_| bad("the answer's head is no text"))?;
    let body = body.get(4..).unwrap_or_default();
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let status = words.next().filter(|_| http).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(|| bad("the answer is no HTTP"))?;
    let stderr = stderr(lines.clone());
    let timing = header(lines.clone(), TIMING_HEADER).and_then(Timing::decode);
    let length = length(lines).ok_or_else(|| bad("the answer's length is not understood"))?;
    if length == Length::Chunked {
        let body = chunks(body).map_err(bad)?;
        return Ok(body.map(|body| RelayResponse { status, body, stderr, timing }));
    }
    let length = if let Length::Bytes(length) = length { Some(length) } else { None };
    if length.unwrap_or(body.len()) > BODY_MAX_BYTES {
        return Err(bad("the answer is too long"));
    }
    let whole = match length {
        Some(length) => body.get(..length),
        None => ended.then_some(body),
    };
    Ok(whole.map(|body| RelayResponse { status, body: body.to_vec(), stderr, timing }))
}

/// What the agent prints on stderr. An invalid value is ignored.
fn stderr<'a>(headers: impl Iterator<Item = &'a str>) -> String {
    let bytes =
        header(headers, STDERR_HEADER).and_then(|value| base64::decode(value).ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn header<'a>(headers: impl Iterator<Item = &'a str>, wanted: &str) -> Option<&'a str> {
    let mut values = headers.filter_map(|header| header.split_once(':'));
    values.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
}

/// How the end of a body is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// By its length.
    Bytes(usize),
    /// By an empty chunk: Go's server sends answers above 2 KiB like this.
    Chunked,
    /// By the end of the stream.
    Stream,
}

/// None if the headers are not understood.
fn length<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Length> {
    let mut length = Length::Stream;
    for header in headers {
        let (name, value) = header.split_once(':')?;
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return value.trim().eq_ignore_ascii_case("chunked").then_some(Length::Chunked);
        }
        if name.eq_ignore_ascii_case("content-length") {
            length = Length::Bytes(value.trim().parse().ok()?);
        }
    }
    Some(length)
}

/// The body of a chunked answer, once all chunks have arrived.
fn chunks(mut rest: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else {
            let wrong = "the answer's chunks are not understood";
            return if rest.len() > CHUNK_HEAD_MAX_BYTES { Err(wrong) } else { Ok(None) };
        };
        let (head, after) = rest.split_at_checked(end).unwrap_or_default();
        let head = std::str::from_utf8(head).ok().and_then(|head| head.split(';').next());
        let size = head.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let size = size.ok_or("the answer's chunks are not understood")?;
        if size > BODY_MAX_BYTES || body.len() + size > BODY_MAX_BYTES {
            return Err("the answer is too long");
        }
        if size == 0 {
            return Ok(Some(body));
        }
        rest = after.get(2..).unwrap_or_default();
        let Some(chunk) = rest.get(..size) else { return Ok(None) };
        body.extend_from_slice(chunk);
        let Some(next) = rest.get(size + 2..) else { return Ok(None) };
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::HTTP_PATH;
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(10);

    fn answer(text: &str, ended: bool) -> io::Result<Option<RelayResponse>> {
        parse(text.as_bytes(), ended)
    }

    /// An agent that reads `expect` bytes, answers `answer` and closes the connection.
    fn exchange(body: &[u8], expect: usize, answer: &'static [u8]) -> Result<RelayResponse, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let agent = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut vec![0; expect]).unwrap();
            stream.write_all(answer).unwrap();
        });
        let response = post(&path, HTTP_PATH, body, LIMIT);
        agent.join().unwrap();
        response
    }

    #[test]
    fn an_answer_is_read_by_its_length() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(answer(text, false).unwrap().unwrap().body, b"{}");
        for end in 0..text.len() {
            assert_eq!(answer(&text[..end], true).unwrap(), None, "{end}");
        }
    }

    #[test]
    fn the_agents_stderr_text_is_part_of_the_answer() {
        let said = |value: &str| {
            let text = format!("HTTP/1.1 200 OK\r\nRusset-Stderr: {value}\r\nContent-Length: 2\r\n\r\n{{}}");
            answer(&text, false).unwrap().unwrap().stderr
        };
        assert_eq!(said(&base64::encode(b"line\n")), "line\n");
        assert_eq!(said("*"), "");
    }

    #[test]
    fn the_stages_are_part_of_the_answer() {
        let timing = Timing { plugin: "russet".into(), total_us: 7, stages: vec![("turn".into(), 5)] };
        let decoded = |value: &str| {
            let text = format!("HTTP/1.1 200 OK\r\nRusset-Timing: {value}\r\nContent-Length: 2\r\n\r\n{{}}");
            answer(&text, false).unwrap().unwrap().timing
        };
        assert_eq!(decoded(&timing.encode()), Some(timing));
        assert_eq!(decoded("7 ms"), None);
    }

    #[test]
    fn an_answer_without_a_length_ends_with_the_stream() {
        let text = "HTTP/1.0 503 x\r\n\r\n{\"code\":11}";
        assert_eq!(answer(text, false).unwrap(), None);
        let response = answer(text, true).unwrap().unwrap();
        assert_eq!((response.status, response.body.len()), (503, 11));
    }

    #[test]
    fn an_answer_in_chunks_ends_with_an_empty_one() {
        // what Go's net/http sends when a handler wrote more than 2 KiB
        let text = "HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        let response = answer(text, false).unwrap().unwrap();
        assert_eq!((response.status, response.body), (400, b"abc0123456789".to_vec()));
        let end = text.len() - "0\r\n\r\n".len();
        for end in 0..end {
            assert_eq!(answer(&text[..end], true).unwrap(), None, "{end}");
        }
        let endless = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            "1\r\nx\r\n".repeat(BODY_MAX_BYTES + 1)
        );
        assert!(answer(&endless, false).is_err());
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for bad in [
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100001\r\n\r\n",
            "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
        ] {
            assert!(answer(bad, true).is_err(), "{bad}");
        }
        assert!(parse(&vec![b'a'; HEAD_MAX_BYTES + 1], false).is_err());
        assert!(parse(b"HTTP/1.1 200 \xff\r\n\r\n", false).is_err());
    }

    #[test]
    fn a_request_reaches_the_agent() {
        let response = exchange(b"{}", 100, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull").unwrap();
        let (body, stderr) = (b"null".to_vec(), String::new());
        assert_eq!(response, RelayResponse { status: 200, body, stderr, timing: None });
    }

    #[test]
    fn an_early_refusal_is_read_although_sending_failed() {
        let body = vec![b' '; 4 * 1024 * 1024];
        let refusal = b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\n\r\n";
        match exchange(&body, 1, refusal) {
            Ok(response) => assert_eq!(response.status, 413),
            // The kernel may drop what was not read yet when the other side closes with unread
            // data.
            Err(Failure::Lost(_)) => {}
            Err(Failure::Connect(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn a_connection_lost_after_sending_differs_from_one_never_made() {
        // ARCHITECTURE.md, "ADD and DEL"
        assert!(matches!(exchange(b"{}", 10, b""), Err(Failure::Lost(_))));
        assert!(matches!(
            exchange(b"{}", 10, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
            Err(Failure::Lost(_))
        ));
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("s");
        let Err(Failure::Connect(error)) = post(&absent, HTTP_PATH, b"", LIMIT) else { panic!() };
        assert_eq!(error.kind(), ErrorKind::NotFound);
        drop(UnixListener::bind(&absent).unwrap());
        let Err(Failure::Connect(error)) = post(&absent, HTTP_PATH, b"", LIMIT) else { panic!() };
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_silent_agent_does_not_hold_us() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let Err(Failure::Lost(error)) = post(&path, HTTP_PATH, b"{}", Duration::from_millis(20)) else {
            panic!()
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_full_queue_does_not_hold_us() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path, Duration::from_millis(200)) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 10_000);
        };
        assert!(matches!(full.kind(), ErrorKind::TimedOut), "{full}");
    }
}
