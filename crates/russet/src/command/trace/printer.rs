//! Output that does not stop a trace while it is not read: a thread writes it.
//!
//! A write to a pipe or a terminal blocks while its reader waits (`less`, Ctrl-S). The trace must go on to its deadline then, so the
//! thread is left behind, and ends with the process.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// Writes texts in order.
#[derive(Debug)]
pub struct Printer {
    texts: SyncSender<String>,
    written: Receiver<()>,
    /// Texts that were taken and are not written.
    waiting: u64,
    is_closed: bool,
}

/// The most texts that wait to be written, besides what a pipe holds. A packet is a text of about a kilobyte.
const WAITING_MAX: usize = 1024;

// === impl Printer ===

impl Printer {
    pub fn start(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (texts, to_write) = mpsc::sync_channel::<String>(WAITING_MAX);
        // One more than can wait, so that the thread never waits for a look at what is written.
        let (done, written) = mpsc::sync_channel(WAITING_MAX + 1);
        thread::Builder::new().name("trace-output".to_owned()).spawn(move || {
            for text in to_write {
                let is_written = out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok();
                if !is_written || done.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { texts, written, waiting: 0, is_closed: false })
    }

    /// Takes a text, if there is place for it.
    pub fn print(&mut self, text: String) -> bool {
        self.look();
        let is_taken = self.texts.try_send(text).is_ok();
        self.waiting += u64::from(is_taken);
        is_taken
    }

    /// Whether the output has a reader, which may be slow.
    pub fn has_reader(&mut self) -> bool {
        self.look();
        !self.is_closed
    }

    /// Waits until all is written, but not longer than `limit`. Returns how many texts are left.
    pub fn finish(mut self, limit: Duration) -> u64 {
        let deadline = Instant::now() + limit;
        while self.waiting > 0 {
            match self.written.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => self.waiting -= 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        self.waiting
    }

    fn look(&mut self) {
        loop {
            match self.written.try_recv() {
                Ok(()) => self.waiting = self.waiting.saturating_sub(1),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use russet_testkit::eventually;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn an_output_that_is_not_read_stops_no_printer_and_one_that_is_read_gets_all() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut printer = Printer::start(ours).unwrap();
        let text = "x".repeat(1024);
        let mut taken = 0;
        while printer.print(text.clone()) {
            taken += 1;
        }
        assert!(taken >= WAITING_MAX && printer.has_reader());
        theirs.read_exact(&mut vec![0; taken * text.len()]).unwrap();
        assert_eq!(printer.finish(TIMEOUT), 0);

        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut printer = Printer::start(ours).unwrap();
        // More than the socket holds.
        assert!(printer.print("x".repeat(16 << 20)) && printer.print(text));
        assert_eq!(printer.finish(Duration::ZERO), 2);
    }

    #[test]
    fn the_end_of_a_reader_is_noticed_and_what_was_written_is_not_left() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut printer = Printer::start(ours).unwrap();
        assert!(printer.print("one\n".to_owned()));
        theirs.read_exact(&mut [0; 4]).unwrap();
        drop(theirs);
        printer.print("two\n".to_owned());
        eventually(TIMEOUT, || !printer.has_reader());
        assert!(!printer.print("three\n".to_owned()));

        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut printer = Printer::start(ours).unwrap();
        assert!(printer.print("one\n".to_owned()));
        assert_eq!(printer.finish(TIMEOUT), 0);
    }
}
