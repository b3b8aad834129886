//! The body of a watch: one JSON document a line, read as it arrives.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::answer::{Again, Failure};
use crate::client::MAX_OBJECT_BYTES;

/// A watch without an event or a bookmark for this long is dead: the server sends a bookmark every
/// minute (kubernetes.md sections 4.1 and 4.2 item 4).
pub const SILENCE: Duration = Duration::from_secs(90);

/// The lines of an answer that has no end of its own.
pub struct Lines {
    /// For messages.
    operation: String,
    body: Incoming,
    /// The beginning of an incomplete line.
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` that were searched for a line's end.
    searched: usize,
    /// When the server should have ended the answer.
    until: Instant,
    /// When the last piece arrived.
    heard: Instant,
    /// A server that sends nothing for this long is gone.
    silence: Duration,
}

// === impl Lines ===

impl Lines {
    /// Reads a body that ends within `lifetime` and is never silent for longer than `silence`.
    pub(crate) fn new(operation: String, body: Incoming, lifetime: Duration, silence: Duration) -> Self {
        let heard = Instant::now();
        Self { operation, body, buffer: Vec::new(), searched: 0, until: heard + lifetime, heard, silence }
    }

    /// The next line; waits until there is one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(line) = self.line() {
                return Ok(line);
            }
            if self.buffer.len() > MAX_OBJECT_BYTES {
                let message = format!("an event is longer than {MAX_OBJECT_BYTES} bytes");
                return Err(Failure::nonsense(&self.operation, message));
            }
            let broken = |cause| Err(Failure::broken(&self.operation, cause, Again::IfRead));
            let until = self.until.min(self.heard + self.silence);
            match tokio::time::timeout_at(until, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    self.heard = Instant::now();
                    self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
                }
                Ok(Some(Err(error))) => return broken(error.into()),
                Ok(None) => return broken("the server ended it".into()),
                Err(_) => return broken("the server is silent".into()),
            }
        }
    }

    /// The first complete line in the buffer.
    fn line(&mut self) -> Option<Vec<u8>> {
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(end) = unsearched.iter().position(|byte| *byte == b'\n').map(|at| self.searched + at) else {
            self.searched = self.buffer.len();
            return None;
        };
        let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
        line.pop();
        self.searched = 0;
        Some(line)
    }
}
