//! `russet demo-forward`: lets the demo's nodes, which are in network namespaces, reach an etcd of
//! the host. Started by `russet demo`.

use std::net::TcpListener;

use russet_linux::NetNs;
use tokio::net::TcpStream;

use super::{Failure, runtime, stop_signal};
use crate::cli::ForwardArgs;

/// Forwards bytes until it is stopped.
pub fn run(args: ForwardArgs) -> Result<(), Failure> {
    let netns = NetNs::open(&args.netns)?;
    // A socket belongs to the namespace in which it was made; outgoing connections are made in this
    // process's namespace.
    let listener = netns.with(|| TcpListener::bind(args.listen))??;
    listener.set_nonblocking(true)?;
    runtime()?.block_on(async {
        let stop = stop_signal()?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let serve = async {
            loop {
                let (mut inside, _) = listener.accept().await?;
                let to = args.to.clone();
                tokio::spawn(async move {
                    // Either end may close at any time; the other is then closed too, and etcd's
                    // client reconnects.
                    if let Ok(mut outside) = TcpStream::connect(&to).await {
                        let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                    }
                });
            }
        };
        tokio::select! {
            failed = serve => failed,
            () = stop => std::io::Result::Ok(()),
        }
    })?;
    Ok(())
}
