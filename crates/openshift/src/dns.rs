//! A resolver of names to addresses of IPv4 that says how long they hold, which the system's own does not: it asks the
//! servers of `resolv.conf` (RFC 1035). Names are absolute.

mod message;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

pub use message::{Answer, Failure};
use message::{Reply, query};

/// The servers, in the order in which they are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolver {
    servers: Vec<SocketAddr>,
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("it is no name of DNS")]
    Name,
    #[error("resolv.conf names no server")]
    NoServer,
    #[error("{server}: {source}")]
    Io { server: SocketAddr, source: io::Error },
    #[error("{0} did not answer in time")]
    Timeout(SocketAddr),
    #[error("{server}: {failure}")]
    Failed { server: SocketAddr, failure: Failure },
}

/// As in the C library.
const SERVERS_MAX: usize = 3;
const PORT: u16 = 53;
/// How often all servers are asked.
const ROUNDS: usize = 2;
/// How long a server has for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest message over UDP without extensions is 512 bytes; some servers send more.
const UDP_MAX_BYTES: usize = 4096;
/// Limit of the bytes of resolv.conf that are read.
const FILE_MAX_BYTES: u64 = 64 << 10;

// === impl Resolver ===

impl Resolver {
    /// The resolver of a machine, by its `resolv.conf`.
    pub fn read(file: &Path) -> io::Result<Self> {
        use std::io::Read as _;
        let mut text = Vec::new();
        std::fs::File::open(file)?.take(FILE_MAX_BYTES).read_to_end(&mut text)?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Self {
        let server = |line: &str| {
            let mut words = line.split_whitespace();
            (words.next()? == "nameserver").then_some(())?;
            Some(SocketAddr::new(words.next()?.parse().ok()?, PORT))
        };
        Self { servers: text.lines().filter_map(server).take(SERVERS_MAX).collect() }
    }

    /// The addresses of a name. Fails if it has none.
    pub async fn resolve(&self, name: &str) -> Result<Answer, ResolveError> {
        let mut last = ResolveError::NoServer;
        for server in self.servers.iter().copied().cycle().take(self.servers.len() * ROUNDS) {
            match ask(server, name).await {
                Ok(answer) => return Ok(answer),
                Err(ResolveError::Name) => return Err(ResolveError::Name),
                // A server has said so.
                Err(error @ ResolveError::Failed { failure: Failure::NoAddress, .. }) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

async fn ask(server: SocketAddr, name: &str) -> Result<Answer, ResolveError> {
    let id = random_id();
    let message = query(id, name).ok_or(ResolveError::Name)?;
    let wait = async {
        match over_udp(server, id, &message).await? {
            Reply::Truncated => over_tcp(server, id, &message).await,
            reply => Ok(reply),
        }
    };
    let reply = timeout(ANSWER_TIMEOUT, wait).await.map_err(|_| ResolveError::Timeout(server))?;
    match reply.map_err(|source| ResolveError::Io { server, source })? {
        Reply::Answer(answer) => Ok(answer),
        Reply::Failed(failure) => Err(ResolveError::Failed { server, failure }),
        Reply::Truncated => Err(ResolveError::Failed { server, failure: Failure::Malformed }),
    }
}

/// The first message that answers the query; others may be forged.
async fn over_udp(server: SocketAddr, id: u16, query: &[u8]) -> io::Result<Reply> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; UDP_MAX_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(reply) = buffer.get(..length).and_then(|bytes| message::reply(id, query, bytes)) {
            return Ok(reply);
        }
    }
}

async fn over_tcp(server: SocketAddr, id: u16, query: &[u8]) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], query].concat()).await?;
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(message::reply(id, query, &bytes).unwrap_or(Reply::Failed(Failure::Malformed)))
}

/// A number that others cannot guess.
fn random_id() -> u16 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let number = RandomState::new().build_hasher().finish();
    u16::try_from(number & 0xffff).unwrap_or_default()
}

#[cfg(test)]
mod tests;
