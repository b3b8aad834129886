//! The client of `cargo xtask bench cri`: makes COUNT sandboxes with RunPodSandbox, then ends each
//! with StopPodSandbox and RemovePodSandbox, AT_ONCE of them at any time.
//!
//! One line of JSON on standard output has the time of each and of all, in microseconds. After any
//! failure its own sandboxes are removed, and no others: a server that has sandboxes already is an
//! error.

use std::path::Path;

use russet_testkit::cri::{Cri, Pod, burst};

use crate::Result;

/// Does it on the server behind a socket.
pub fn run(socket: &str, count: &str, at_once: &str) -> Result<()> {
    let cri = Cri::new(Path::new(socket))?;
    let pod = |n| Pod::named(&format!("burst-{n}")).config();
    println!("{}", burst(&cri, count.parse()?, at_once.parse()?, pod)?);
    Ok(())
}
