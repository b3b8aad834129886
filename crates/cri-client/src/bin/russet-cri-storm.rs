//! Makes and removes many sandboxes concurrently through CRI: the client of `cargo xtask bench
//! cri`.
//!
//! `russet-cri-storm SOCKET COUNT AT_ONCE` makes COUNT sandboxes with RunPodSandbox, then ends each
//! with StopPodSandbox and RemovePodSandbox, AT_ONCE of them at any time. One line of JSON on
//! standard output has the time of each and of all, in microseconds. After any failure its own
//! sandboxes are removed, and no others: a server that has sandboxes already is an error.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use russet_cri_client::{Cri, Pod, storm};
use serde_json::Value;

fn main() -> ExitCode {
    match run() {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("russet-cri-storm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Value, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or("usage: russet-cri-storm SOCKET COUNT AT_ONCE");
    let (socket, count, at_once) = (word()?, word()?.parse()?, word()?.parse()?);
    let cri = Cri::new(Path::new(&socket))?;
    storm::storm(&cri, count, at_once, |n| Pod::named(&format!("storm-{n}")).config())
}
