//! `russet migrate`: migrates data of other programs.

mod calico_v1;
mod flannel_v2;
mod host_local;

use std::process::ExitCode;

use russet_agent::{EtcdSettings, Secret};

use super::{Failure, runtime};
use crate::cli::migrate::{MigrateArgs, MigrateVerb, V2Source};

pub fn run(args: MigrateArgs) -> Result<ExitCode, Failure> {
    match args.verb {
        MigrateVerb::CalicoV1(args) => runtime()?.block_on(calico_v1::run(args)),
        MigrateVerb::FlannelV2(args) => runtime()?.block_on(flannel_v2::run(args)),
        MigrateVerb::HostLocal(args) => host_local::run(args),
    }
}

/// Connection settings for an etcd with v2 data.
fn source(source: &V2Source) -> Result<EtcdSettings, Failure> {
    let password = match &source.from_password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| format!("read {}: {e}", path.display()))?;
            Some(Secret::new(text.trim_end_matches(['\r', '\n'])))
        }
        None => None,
    };
    Ok(EtcdSettings {
        ca: source.from_ca_file.clone(),
        cert: source.from_cert_file.clone(),
        key: source.from_key_file.clone(),
        username: source.from_username.clone(),
        password,
        ..EtcdSettings::for_endpoints(&source.from)?
    })
}
