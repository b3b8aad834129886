//! Runs the core part of the store's conformance suite over an API server whose records of the
//! allocator may be deleted: `conformance KUBECONFIG`. It needs Calico's resource definitions, or
//! those in packaging/kubernetes/crds.

#![allow(clippy::unwrap_used, reason = "a failed case ends the program")]

#[path = "../tests/api/subject.rs"]
mod subject;

use std::process::ExitCode;

use russet_kube::Source;
use subject::OnServer;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: conformance KUBECONFIG");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let source = Source::kubeconfig(std::path::PathBuf::from(path));
    runtime.block_on(russet_store::conformance::core(async || OnServer::emptied(source.clone()).await));
    println!("passed");
    ExitCode::SUCCESS
}
