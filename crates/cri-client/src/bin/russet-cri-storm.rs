//! Sandboxes made and taken down through CRI, so many at a time: the caller of `cargo xtask bench cri`.
//!
//! `russet-cri-storm SOCKET COUNT AT_ONCE` makes COUNT sandboxes with RunPodSandbox, then ends each with StopPodSandbox and RemovePodSandbox, AT_ONCE of
//! them under way at any time. One line of JSON on standard output tells what each took and what all took, in microseconds. Whatever fails, what was made
//! is removed before it ends, and nothing else: a server that has sandboxes already is left alone.

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
