//! Processes that a test starts, and questions to them.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Runs `body` in a thread that has no capabilities.
#[track_caller]
pub fn without_capabilities(body: impl FnOnce() + Send) {
    let thread = || {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).expect("give up capabilities");
        body();
    };
    let joined = std::thread::scope(|scope| scope.spawn(thread).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// A process that ends with the test: dropping it kills it.
#[derive(Debug)]
pub struct Process(Child);

// === impl Process ===

impl Process {
    /// Starts a command.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}")))
    }

    /// Sends a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("send a signal");
    }

    /// Its exit status, once it has ended.
    #[track_caller]
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("wait for a child")
    }

    /// Sends a signal, and waits for the end.
    #[track_caller]
    pub fn end(mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.0.wait().expect("wait for a child")
    }
}

impl From<Child> for Process {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The answer of an HTTP server to a GET, with its heading.
pub fn http_get(address: impl ToSocketAddrs, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Starts a command, whose output is collected, and writes its standard input.
#[track_caller]
pub fn spawn_with_input(command: &mut Command, input: impl AsRef<[u8]>) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
    // A program that refuses early closes its end; that is its answer, not a fault of the test.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_ref());
    child
}
