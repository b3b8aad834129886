//! A relay in front of a member whose connections a test can cut, orderly: both ends see the end, and the client has closed its own
//! when `cut` returns, so that nothing is on its way.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Relays to one address.
pub struct Proxy {
    /// Where it listens.
    pub address: String,
    cut: watch::Sender<u64>,
    open: watch::Receiver<usize>,
    refuse: watch::Sender<bool>,
}

// === impl Proxy ===

impl Proxy {
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cut, cuts) = watch::channel(0);
        let (count, open) = watch::channel(0);
        let (refuse, refusing) = watch::channel(false);
        tokio::spawn(serve(listener, target.to_owned(), cuts, count, refusing));
        Self { address, cut, open, refuse }
    }

    /// Lets nobody through any more, or again.
    pub async fn refuse(&self, refuse: bool) {
        self.refuse.send_replace(refuse);
        if refuse {
            self.cut().await;
        }
    }

    /// Ends every connection, and waits until its client has noticed.
    pub async fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
        self.open.clone().wait_for(|open| *open == 0).await.unwrap();
    }
}

async fn serve(
    listener: TcpListener,
    target: String,
    cuts: watch::Receiver<u64>,
    count: watch::Sender<usize>,
    refusing: watch::Receiver<bool>,
) {
    while let Ok((client, _)) = listener.accept().await {
        if *refusing.borrow() {
            continue;
        }
        let server = TcpStream::connect(&target).await.unwrap();
        let (mut cuts, count) = (cuts.clone(), count.clone());
        cuts.mark_unchanged();
        count.send_modify(|open| *open += 1);
        tokio::spawn(async move {
            relay(client, server, cuts).await;
            count.send_modify(|open| *open -= 1);
        });
    }
}

async fn relay(client: TcpStream, server: TcpStream, mut cuts: watch::Receiver<u64>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::select! {
        () = copy(&mut from_client, &mut to_server) => {}
        () = copy(&mut from_server, &mut to_client) => {}
        _ = cuts.changed() => {}
    }
    drop((from_server, to_server));
    let _ = to_client.shutdown().await;
    let mut rest = [0; 4096];
    while from_client.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}

async fn copy(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
