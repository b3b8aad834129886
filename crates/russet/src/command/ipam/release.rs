//! `russet ipam release`: releases one address, or those that reports list as leaked. Each release
//! is guarded by what was read: an address with a new owner is kept.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use russet_agent::repair;
use russet_ipam::audit::{Finding, Holder};
use russet_ipam::{Allocator, IpamError, ReleaseOptions};
use russet_model::HandleId;
use russet_store::Revision;

use super::super::{Failure, PROBLEMS};
use super::Place;
use super::check::CheckReport;
use crate::cli::ipam::ReleaseArgs;
use crate::output;

/// Why an address is not released, or a report is not used.
#[derive(Debug, thiserror::Error)]
enum ReleaseError {
    /// It has no owner.
    #[error("{0} is not assigned")]
    NotAssigned(IpAddr),
    /// It was released recently and is in its cooling period.
    #[error("{0} was released at {1} and is cooling down")]
    Cooling(IpAddr, String),
    #[error(
        "{address} ({holder}) is in use: {user} has it; delete the pod, or release it with --force: then the next ADD may be given it, too"
    )]
    InUse {
        address: IpAddr,
        /// The owner by the store.
        holder: String,
        /// The endpoint or interface that has it.
        user: String,
    },
    /// The report cannot be read.
    #[error("read report {0}: {1}")]
    Read(String, std::io::Error),
    /// A file of another kind, or of another version.
    #[error("{0} is no report of `russet ipam check`: {1}")]
    NoReport(String, String),
}

/// Releases one address, or the leaks that reports list.
pub async fn run(place: &Place, args: ReleaseArgs) -> Result<ExitCode, Failure> {
    let ipam = place.allocator();
    match args.ip {
        Some(address) => one(place, &ipam, address, args.force).await.map(|()| ExitCode::SUCCESS),
        None => from_reports(&ipam, &args.from_report).await,
    }
}

async fn one(place: &Place, ipam: &Allocator, address: IpAddr, force: bool) -> Result<(), Failure> {
    let held = ipam.holder_of(address).await?.ok_or(ReleaseError::NotAssigned(address))?;
    if let Some(at) = held.attribute.released_at {
        return Err(ReleaseError::Cooling(address, at).into());
    }
    let holder = Holder::of(&held.attribute);
    if !force && let Some(user) = repair::user_of(&*place.store, address).await? {
        let (holder, user) = (output::visible(&holder.to_string()), output::visible(&user));
        return Err(ReleaseError::InUse { address, holder, user }.into());
    }
    if !release(ipam, address, &holder, held.sequence_number).await? {
        return Err(ReleaseError::NotAssigned(address).into());
    }
    output::print(&format!("released {address}: {}\n", output::visible(&holder.to_string())));
    Ok(())
}

/// Releases an address from exactly this holder; returns whether it had one.
async fn release(ipam: &Allocator, address: IpAddr, holder: &Holder, number: u64) -> Result<bool, IpamError> {
    let handle = holder.handle.as_deref().and_then(|handle| HandleId::new(handle).ok());
    let options = ReleaseOptions { address, handle, sequence_number: Some(number) };
    Ok(!ipam.release_ips(&[options]).await?.addresses.is_empty())
}

async fn from_reports(ipam: &Allocator, files: &[PathBuf]) -> Result<ExitCode, Failure> {
    let mut leaks: Option<Vec<Finding>> = None;
    for file in files {
        let listed = read(file)?;
        leaks = Some(match leaks {
            None => listed,
            Some(before) => before.into_iter().filter(|leak| listed.contains(leak)).collect(),
        });
    }
    let leaks = leaks.unwrap_or_default();
    let mut released = 0;
    for leak in &leaks {
        let line = match release_leak(ipam, leak).await {
            Ok(()) => {
                released += 1;
                format!("released {}\n", subject(leak))
            }
            Err(reason) => format!("kept {}: {reason}\n", subject(leak)),
        };
        output::print(&line);
    }
    output::print(&format!("{released} of {} leaks released\n", leaks.len()));
    Ok(if released == leaks.len() { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) })
}

fn subject(leak: &Finding) -> String {
    let text = match leak {
        Finding::HandleMissing { address, holder, .. } | Finding::EndpointMissing { address, holder, .. } => {
            format!("{address}: {holder}")
        }
        Finding::HandleLeaked { handle, .. } => format!("handle {handle}"),
        other => other.to_string(),
    };
    output::visible(&text)
}

/// Releases one leak, if it is still as the report describes it.
async fn release_leak(ipam: &Allocator, leak: &Finding) -> Result<(), String> {
    let done = match leak {
        Finding::HandleMissing { address, sequence_number, holder, .. } => {
            match handle_lists(ipam, *address, holder).await {
                Ok(true) => return Err("its handle has a record again".to_owned()),
                Ok(false) => release(ipam, *address, holder, *sequence_number).await,
                Err(error) => Err(error),
            }
        }
        Finding::EndpointMissing { address, sequence_number, holder, .. } => {
            release(ipam, *address, holder, *sequence_number).await
        }
        Finding::HandleLeaked { handle, revision } => ipam.settle_handle(handle, Revision(*revision)).await,
        other => return Err(format!("{} is nothing that can be released", other.kind())),
    };
    match done {
        Ok(true) => Ok(()),
        Ok(false) => Err("it has changed since the report".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the holder's handle lists the address, so that a DEL will release it.
async fn handle_lists(ipam: &Allocator, address: IpAddr, holder: &Holder) -> Result<bool, IpamError> {
    let Some(handle) = holder.handle.as_deref().and_then(|handle| HandleId::new(handle).ok()) else {
        return Ok(false);
    };
    Ok(ipam.ips_by_handle(&handle).await?.iter().any(|held| held.address == address))
}

fn read(file: &Path) -> Result<Vec<Finding>, ReleaseError> {
    let shown = file.display().to_string();
    let bytes = std::fs::read(file).map_err(|error| ReleaseError::Read(shown.clone(), error))?;
    let report: CheckReport = serde_json::from_slice(&bytes)
        .map_err(|error| ReleaseError::NoReport(shown.clone(), error.to_string()))?;
    if report.schema != CheckReport::SCHEMA {
        let reason = format!("its schema is {}, this version reads {}", report.schema, CheckReport::SCHEMA);
        return Err(ReleaseError::NoReport(shown, reason));
    }
    let leaks = report.findings.into_iter().filter(|entry| entry.leaked && entry.finding.can_be_released());
    Ok(leaks.map(|entry| entry.finding).collect())
}
