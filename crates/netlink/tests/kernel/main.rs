//! Tests on the real kernel in new network namespaces, compared with `ip -j` and `bridge -j`.
//!
//! Run as root with `cargo test -p russet-netlink -- --include-ignored`.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod links;
mod monitor;
mod sockets;
mod tables;

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::process::Command;

use russet_netlink::{Batch, LinkAdd, LinkSet, NetlinkError, Peer, Socket};
use serde_json::Value;

/// Runs `body` on a new thread in a new network namespace.
fn in_new_netns<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    on_thread(|| {
        // SAFETY: no pointers; affects this thread only.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "root is needed");
        body()
    })
}

/// A network namespace that exists as long as the descriptor.
fn new_netns() -> File {
    in_new_netns(|| File::open("/proc/thread-self/ns/net").unwrap())
}

/// Runs `body` on a thread inside a namespace.
fn within<T: Send>(netns: &File, body: impl FnOnce() -> T + Send) -> T {
    on_thread(|| {
        // SAFETY: an open descriptor; affects this thread only.
        assert_eq!(unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        body()
    })
}

fn on_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(body).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The output of `ip -j` or `bridge -j` in this thread's namespace.
fn tool(command: &str) -> Vec<Value> {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    if output.stdout.is_empty() {
        return Vec::new();
    }
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The object that `ip -j -d link show` prints for one link.
fn ip_link(name: &str) -> Value {
    tool(&format!("ip -j -d link show dev {name}")).remove(0)
}

fn name(text: &str) -> russet_addr::IfName {
    text.parse().unwrap()
}

fn run(socket: &mut Socket, fill: impl FnOnce(&mut Batch) -> &mut Batch) -> Result<(), NetlinkError> {
    let mut batch = Batch::new();
    fill(&mut batch);
    socket.execute(&batch).map_err(NetlinkError::from)
}

/// Creates a veth pair with both ends up, the peer named with a `p` appended; returns the index of
/// the first end.
fn wire(socket: &mut Socket, called: &str) -> u32 {
    let other = name(&format!("{called}p"));
    run(socket, |batch| {
        batch.add_link(&LinkAdd { up: true, ..LinkAdd::veth(name(called), Peer::new(other.clone())) });
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::named(other) })
    })
    .unwrap();
    socket.link_by_name(&name(called)).unwrap().index
}

fn raw(netns: &File) -> Option<RawFd> {
    Some(netns.as_raw_fd())
}
