//! An owner for tests: it serves on its own thread, so that it can be stopped and started again.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use tokio::net::UnixListener;
use tokio::sync::oneshot;

use crate::{Embedded, serve};

pub(crate) struct Owner {
    socket: PathBuf,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

// === impl Owner ===

impl Owner {
    pub(crate) fn start(store: Embedded, socket: &Path) -> Self {
        let mut owner = Self { socket: socket.to_owned(), running: None };
        owner.restart(store);
        owner
    }

    /// Starts to serve (again); when this returns, clients can connect.
    pub(crate) fn restart(&mut self, store: Embedded) {
        self.stop();
        let (stop, stopped) = oneshot::channel();
        let (ready, listening) = std::sync::mpsc::channel();
        let socket = self.socket.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListener::bind(&socket).unwrap();
                ready.send(()).unwrap();
                serve(store, listener, async {
                    let _ = stopped.await;
                })
                .await;
            });
        });
        listening.recv().unwrap();
        self.running = Some((stop, thread));
    }

    /// Closes every connection and stops.
    pub(crate) fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(());
            thread.join().unwrap();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}
