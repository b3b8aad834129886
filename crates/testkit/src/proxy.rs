//! A relay in front of a server whose connections a test can close in an orderly way: both ends are
//! notified, and the client has closed its end when `cut` returns, so that no data is in transit.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A relay to one address.
#[derive(Debug)]
pub struct Proxy {
    /// Its own address.
    pub address: String,
    cut: watch::Sender<u64>,
    open: watch::Receiver<usize>,
    refuse: watch::Sender<bool>,
    /// Bytes that were sent to clients.
    pub relayed: watch::Receiver<usize>,
}

/// The state that its connections share.
#[derive(Clone)]
struct Shared {
    cuts: watch::Receiver<u64>,
    open: Arc<watch::Sender<usize>>,
    relayed: Arc<watch::Sender<usize>>,
    refusing: watch::Receiver<bool>,
}

// === impl Proxy ===

impl Proxy {
    /// Starts one on loopback, in the caller's runtime.
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cut, cuts) = watch::channel(0);
        let (opened, open) = watch::channel(0);
        let (bytes, relayed) = watch::channel(0);
        let (refuse, refusing) = watch::channel(false);
        let shared = Shared { cuts, open: Arc::new(opened), relayed: Arc::new(bytes), refusing };
        tokio::spawn(serve(listener, target.to_owned(), shared));
        Self { address, cut, open, refuse, relayed }
    }

    /// Blocks or unblocks new connections.
    pub async fn refuse(&self, refuse: bool) {
        self.refuse.send_replace(refuse);
        if refuse {
            self.cut().await;
        }
    }

    /// Closes every connection, and waits until its client has noticed.
    pub async fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
        self.open.clone().wait_for(|open| *open == 0).await.unwrap();
    }
}

async fn serve(listener: TcpListener, target: String, shared: Shared) {
    while let Ok((client, _)) = listener.accept().await {
        if *shared.refusing.borrow() {
            continue;
        }
        // Without a server the client's connection ends, as it would with a server that has just died.
        let Ok(server) = TcpStream::connect(&target).await else { continue };
        let mut shared = shared.clone();
        shared.cuts.mark_unchanged();
        shared.open.send_modify(|open| *open += 1);
        tokio::spawn(async move {
            relay(client, server, &mut shared).await;
            shared.open.send_modify(|open| *open -= 1);
        });
    }
}

async fn relay(client: TcpStream, server: TcpStream, shared: &mut Shared) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::select! {
        () = copy(&mut from_client, &mut to_server, |_| {}) => {}
        () = copy(&mut from_server, &mut to_client, |bytes| shared.relayed.send_modify(|all| *all += bytes)) => {}
        _ = shared.cuts.changed() => {}
    }
    drop((from_server, to_server));
    let _ = to_client.shutdown().await;
    let mut rest = [0; 4096];
    while from_client.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}

async fn copy(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, count: impl Fn(usize)) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        count(read);
    }
}
