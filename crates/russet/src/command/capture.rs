//! `russet capture`: the packets of a pod, of the tunnel to a node, or of an interface, as pcapng.
//!
//! One thread reads the sockets of all interfaces, chooses, and fills blocks; another one writes them, so that a reader that
//! stops does not keep a signal from being seen. Between them is a short queue: when it is full the sockets are read no more,
//! and the kernel counts what it drops.

mod headers;
mod pause;
mod pcapng;
mod target;
mod writer;

use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, AsRawFd};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use russet_agent::Paths;
use russet_linux::packet::{Packet, PacketSocket, PacketStatistics};
use russet_model::time::rfc3339;
use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{Failure, runtime, stop_signal};
use crate::cli::Format;
use crate::cli::capture::CaptureArgs;
use crate::output;
use pause::Pause;
use pcapng::{Captured, InterfaceCounts, LinkType};
use target::{Choice, Place, Plan};
use writer::Writer;

/// A capture while it runs.
struct Capture {
    watched: Vec<Watched>,
    choice: Choice,
    limits: Limits,
    begin: Duration,
    /// The interface that is looked at first for the next packet, so that a busy one does not hide the others.
    next: usize,
    buffer: Vec<u8>,
    /// Blocks that are not yet given to the writer.
    pending: Vec<u8>,
    packets: u64,
    /// Of the file so far.
    size_bytes: u64,
}

/// The interface of a place.
struct Watched {
    place: Place,
    link_type: LinkType,
    socket: AsyncFd<PacketSocket>,
    written: u64,
    statistics: PacketStatistics,
    note: Option<String>,
    /// Its socket failed for good.
    is_over: bool,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    packets: u64,
    size_bytes: u64,
    snap_bytes: u32,
}

/// What was captured, for people and programs.
#[derive(Debug, Serialize)]
struct Summary {
    schema: u32,
    /// None: standard output.
    file: Option<PathBuf>,
    size_bytes: u64,
    packets: u64,
    interfaces: Vec<InterfaceSummary>,
}

#[derive(Debug, Serialize)]
struct InterfaceSummary {
    name: String,
    description: String,
    /// Packets in the file.
    written: u64,
    /// Packets that the interface sent and received.
    seen: u64,
    /// Packets that were lost because they came too fast.
    dropped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Exit code for a command line that makes no sense.
const USAGE: u8 = 2;
/// So much is gathered for a write while packets come fast.
const PENDING_BYTES: usize = 64 * 1024;
/// `linux/if_arp.h`: interfaces whose packets begin with an Ethernet header.
const ETHERNETS: [u16; 2] = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK];
/// The same for an IP header: tunnels, `tun` and WireGuard.
const PLAIN: [u16; 5] =
    [libc::ARPHRD_TUNNEL, libc::ARPHRD_TUNNEL6, libc::ARPHRD_SIT, libc::ARPHRD_NONE, ARPHRD_RAWIP];
const ARPHRD_RAWIP: u16 = 519;

/// Captures until a limit or a signal.
pub fn run(args: CaptureArgs) -> Result<ExitCode, Failure> {
    let is_stream = args.file.as_deref() == Some(Path::new("-"));
    if is_stream && io::stdout().is_terminal() {
        output::progress(
            "error: packets are not text, and standard output is a terminal; give --file FILE, or a pipe",
        );
        return Ok(ExitCode::from(USAGE));
    }
    let choice = Choice { host: args.host, port: args.port, ..Choice::default() };
    let paths = Paths::new(&args.root);
    let plan = target::plan(&paths, &args.target, choice)?;
    let file = args.file.clone().unwrap_or_else(|| default_file(&plan.name, SystemTime::now()));
    let limits = Limits {
        packets: args.count.unwrap_or(u64::MAX),
        size_bytes: if is_stream { u64::MAX } else { args.size_limit << 20 },
        snap_bytes: args.snap_length,
    };
    let duration = args.duration.map(|span| span.0);
    let pause = (!plan.passed_by.is_empty()).then(|| Pause::begin(&paths, &plan.passed_by));
    let summary = runtime()?.block_on(async {
        // Before the file: without the right to capture there is nothing to write.
        let capture = Capture::new(plan, limits)?;
        let writer = if is_stream { Writer::stream() } else { Writer::file(&file, args.force) }?;
        capture.announce();
        capture.run(writer, (!is_stream).then_some(file), duration).await
    });
    drop(pause);
    let summary = summary?;
    match args.output.format {
        Format::Json | Format::Yaml if !is_stream => {
            output::print_as(args.output.format, &summary, String::new)
        }
        _ => output::progress(summary.text().trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

/// `russet-capture-TARGET-TIME.pcapng`, where any file system can have it.
fn default_file(target: &str, now: SystemTime) -> PathBuf {
    const NAME_MAX_CHARS: usize = 63;
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let target: String = target.chars().map(plain).take(NAME_MAX_CHARS).collect();
    let time: String = rfc3339(now).chars().filter(char::is_ascii_alphanumeric).collect();
    PathBuf::from(format!("russet-capture-{target}-{time}.pcapng"))
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

// === impl Capture ===

impl Capture {
    fn new(plan: Plan, limits: Limits) -> Result<Self, Failure> {
        let mut pending = Vec::new();
        pcapng::section(&mut pending, concat!("russet ", env!("CARGO_PKG_VERSION")));
        let mut watched = Vec::new();
        for place in plan.places {
            let one = Watched::open(place)?;
            let names = (one.place.name.as_str(), one.place.description.as_str());
            pcapng::interface(&mut pending, one.link_type, limits.snap_bytes, names);
            watched.push(one);
        }
        let buffer = vec![0; usize::try_from(limits.snap_bytes)?];
        let (choice, begin) = (plan.choice, now());
        Ok(Self { watched, choice, limits, begin, next: 0, buffer, pending, packets: 0, size_bytes: 0 })
    }

    fn announce(&self) {
        for Watched { place, .. } in &self.watched {
            output::progress(&format!("{}: {}", output::visible(&place.name), place.description));
        }
    }

    /// Captures until a limit, a signal, the end of the reader, or an error of the writer.
    async fn run(
        mut self,
        writer: Writer,
        file: Option<PathBuf>,
        duration: Option<Duration>,
    ) -> Result<Summary, Failure> {
        let mut end = pin!(ended(stop_signal()?, duration, file.is_none()));
        while self.packets < self.limits.packets {
            let event = tokio::select! {
                biased;
                () = &mut end => break,
                event = std::future::poll_fn(|context| self.poll_packet(context)) => Some(event),
                // No packet is there now: who reads the file sees all that came.
                () = std::future::ready(()), if !self.pending.is_empty() => None,
            };
            let is_idle = event.is_none();
            let goes_on = match event {
                Some((number, Ok(packet))) => self.add(number, packet),
                Some((number, Err(error))) => self.failed(number, &error),
                None => true,
            };
            let is_due = is_idle || self.pending.len() >= PENDING_BYTES;
            if !goes_on || (is_due && !self.flush(&writer, end.as_mut()).await) {
                break;
            }
        }
        self.finish(writer, file).await
    }

    /// The next packet of any interface, which is in the buffer then.
    fn poll_packet(&mut self, context: &mut Context<'_>) -> Poll<(usize, io::Result<Packet>)> {
        let (before, from) = (0..self.next, self.next..self.watched.len());
        for number in from.chain(before) {
            let Some(watched) = self.watched.get(number).filter(|watched| !watched.is_over) else { continue };
            while let Poll::Ready(ready) = watched.socket.poll_read_ready(context) {
                let mut guard = match ready {
                    Ok(guard) => guard,
                    Err(error) => return Poll::Ready((number, Err(error))),
                };
                let none = || io::Error::from(io::ErrorKind::WouldBlock);
                let read =
                    guard.try_io(|socket| socket.get_ref().receive(&mut self.buffer)?.ok_or_else(none));
                // Otherwise there is none now, and the next round of the loop waits for one.
                if let Ok(read) = read {
                    self.next = (number + 1) % self.watched.len();
                    return Poll::Ready((number, read));
                }
            }
        }
        Poll::Pending
    }

    /// Adds a packet of an interface, if it is wanted; false if the file would become too large.
    fn add(&mut self, number: usize, packet: Packet) -> bool {
        let Some(watched) = self.watched.get_mut(number) else { return true };
        let bytes = self.buffer.get(..packet.captured_bytes).unwrap_or_default();
        if !self.choice.takes(&watched.place.wanted, watched.link_type, bytes) {
            return true;
        }
        let before = self.pending.len();
        let interface = u32::try_from(number).unwrap_or(u32::MAX);
        let Packet { at, direction, whole_bytes, .. } = packet;
        pcapng::packet(&mut self.pending, &Captured { interface, at, direction, bytes, whole_bytes });
        if self.size_bytes + self.pending.len() as u64 > self.limits.size_bytes {
            self.pending.truncate(before);
            return false;
        }
        watched.written += 1;
        self.packets += 1;
        true
    }

    /// Notes an error of an interface's socket; false if no interface is left. One that is down can come up again.
    fn failed(&mut self, number: usize, error: &io::Error) -> bool {
        if let Some(watched) = self.watched.get_mut(number) {
            watched.is_over = error.raw_os_error() != Some(libc::ENETDOWN);
            watched.note = Some(match watched.is_over {
                true => error.to_string(),
                false => "it went down, or was deleted".to_owned(),
            });
        }
        self.watched.iter().any(|watched| !watched.is_over)
    }

    /// Gives what is pending to the writer; false at the end, or if nothing can be written any more.
    async fn flush(&mut self, writer: &Writer, end: Pin<&mut impl Future<Output = ()>>) -> bool {
        let bytes = std::mem::take(&mut self.pending);
        let len = bytes.len() as u64;
        let sent = tokio::select! {
            biased;
            sent = writer.send(bytes) => sent,
            () = end => return false,
        };
        self.size_bytes += len;
        sent
    }

    /// Writes the counts, and waits for the writer.
    async fn finish(mut self, writer: Writer, file: Option<PathBuf>) -> Result<Summary, Failure> {
        let end = now();
        for (number, watched) in self.watched.iter_mut().enumerate() {
            watched.statistics = watched.socket.get_ref().take_statistics()?;
            let PacketStatistics { seen, dropped } = watched.statistics;
            let (interface, accepted) = (u32::try_from(number)?, watched.written);
            let counts = InterfaceCounts { interface, begin: self.begin, end, seen, dropped, accepted };
            pcapng::counts(&mut self.pending, &counts);
        }
        self.size_bytes += self.pending.len() as u64;
        writer.finish(self.pending).await?;
        let interfaces = self.watched.into_iter().map(InterfaceSummary::from).collect();
        Ok(Summary { schema: 1, file, size_bytes: self.size_bytes, packets: self.packets, interfaces })
    }
}

/// Resolves at the end of the time, at a signal, or when nothing reads standard output any more.
async fn ended(stop: impl Future<Output = ()>, duration: Option<Duration>, is_stream: bool) {
    let timer = async {
        match duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let closed = async {
        // A file is never closed, and cannot be waited for.
        if !is_stream || closed_output().await.is_err() {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = stop => {}
        () = timer => {}
        () = closed => {}
    }
}

/// Resolves when the other end of the pipe at standard output is closed.
async fn closed_output() -> io::Result<()> {
    let output = registered(io::stdout().as_fd().try_clone_to_owned()?, Interest::ERROR)?;
    loop {
        let mut guard = output.ready(Interest::ERROR).await?;
        if guard.ready().is_error() {
            return Ok(());
        }
        guard.clear_ready();
    }
}

/// Registers a descriptor with the runtime.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that lie about their descriptor; a PacketSocket and an OwnedFd do not"
)]
fn registered<T: AsRawFd>(inner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(inner, interest)
}

// === impl Watched ===

impl Watched {
    fn open(place: Place) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let name = output::visible(&place.name);
            match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    format!("capture on {name}: {error}; it needs CAP_NET_RAW: run it as root")
                }
                _ => format!("capture on {name}: {error}"),
            }
        };
        let socket = PacketSocket::open(place.ifindex).map_err(failed)?;
        let link_type = match socket.hardware() {
            hardware if ETHERNETS.contains(&hardware) => LinkType::Ethernet,
            hardware if PLAIN.contains(&hardware) => LinkType::Ip,
            hardware => {
                return Err(
                    failed(io::Error::other(format!("its hardware type {hardware} is unknown"))).into()
                );
            }
        };
        let socket = registered(socket, Interest::READABLE).map_err(failed)?;
        let statistics = PacketStatistics::default();
        Ok(Self { place, link_type, socket, written: 0, statistics, note: None, is_over: false })
    }
}

// === impl Summary ===

impl Summary {
    fn text(&self) -> String {
        let row = |it: &InterfaceSummary| {
            let counts = [it.written, it.seen, it.dropped].map(|count| count.to_string());
            let note = it.note.clone().unwrap_or_else(|| it.description.clone());
            [&[output::visible(&it.name)][..], &counts, &[note]].concat()
        };
        let rows: Vec<Vec<String>> = self.interfaces.iter().map(row).collect();
        let table = output::table(&["INTERFACE", "WRITTEN", "SEEN", "DROPPED", "WHAT"], &rows);
        let file = self
            .file
            .as_ref()
            .map_or_else(|| "standard output".to_owned(), |file| file.display().to_string());
        format!("{table}{file}: {} packets, {} bytes\n", self.packets, self.size_bytes)
    }
}

impl From<Watched> for InterfaceSummary {
    fn from(watched: Watched) -> Self {
        let Watched { place, written, statistics: PacketStatistics { seen, dropped }, note, .. } = watched;
        Self { name: place.name, description: place.description, written, seen, dropped, note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_names_the_target_and_the_time() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_860_000);
        assert_eq!(
            default_file("shop/web\u{1b}", at),
            Path::new("russet-capture-shop-web--20261128T100000Z.pcapng")
        );
    }
}
