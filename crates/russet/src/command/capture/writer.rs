//! The thread that writes a capture.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::command::Failure;

/// Takes blocks for a file or a pipe.
pub struct Writer {
    queue: mpsc::Sender<Vec<u8>>,
    result: Receiver<io::Result<()>>,
}

/// Each has some 64 KiB, or one packet: some megabytes at most.
const QUEUE_MAX: usize = 32;
/// How long a reader may take for the rest after the end.
const REST_LIMIT: Duration = Duration::from_secs(3);

// === impl Writer ===

impl Writer {
    /// Writes to standard output.
    pub fn stream() -> Result<Self, Failure> {
        Ok(Self::start(io::stdout().as_fd().try_clone_to_owned()?.into()))
    }

    /// Writes a new file with mode 0600.
    pub fn file(path: &Path, force: bool) -> Result<Self, Failure> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{} exists; give another --file, or replace it with --force", path.display())
            }
            _ => format!("write {}: {error}", path.display()),
        };
        if force {
            // A link is replaced, and not what it leads to.
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error).into()),
                _ => {}
            }
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        Ok(Self::start(file.map_err(failed)?))
    }

    fn start(mut file: File) -> Self {
        let (queue, mut blocks) = mpsc::channel::<Vec<u8>>(QUEUE_MAX);
        let (send, result) = sync_channel(1);
        std::thread::spawn(move || {
            let mut written = Ok(());
            while let Some(block) = blocks.blocking_recv() {
                written = file.write_all(&block);
                if written.is_err() {
                    break;
                }
            }
            // Dropped before the result is there: the file is closed for the one that waits.
            drop((blocks, file));
            let _ = send.send(written);
        });
        Self { queue, result }
    }

    /// Waits for room in the queue; false if nothing can be written any more.
    pub async fn send(&self, bytes: Vec<u8>) -> bool {
        self.queue.send(bytes).await.is_ok()
    }

    /// Writes the last blocks. A reader that has closed its pipe has what it wanted.
    pub async fn finish(self, bytes: Vec<u8>) -> Result<(), Failure> {
        // Without room, or without a writer, the result says why.
        let _ = tokio::time::timeout(REST_LIMIT, self.queue.send(bytes)).await;
        drop(self.queue);
        match self.result.recv_timeout(REST_LIMIT) {
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(format!("write the capture: {error}").into())
            }
            Err(RecvTimeoutError::Timeout) => {
                Err("the output is not read to its end; the capture is not complete".into())
            }
            _ => Ok(()),
        }
    }
}
