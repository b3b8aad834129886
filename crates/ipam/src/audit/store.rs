//! The audit of a whole store, record by record, for `russet ipam check`. Writes nothing.

use std::cell::RefCell;

use russet_model::{Key, Prefix, ResourceKind};
use russet_store::{MARKED_RECORDS, Record, Revision, Store, StoreError};

use super::{Audit, Auditor, live};
use crate::IpamError;

/// The prefix of the allocator's records. All of them are read at one revision, where the store
/// writes a handle and its block together; on other stores findings are looked at again.
const IPAM: &str = "/calico/ipam/v2/";
/// Attempts of a scan, if the store compacts its revision meanwhile. Compactions are minutes apart,
/// a scan takes seconds.
const SCANS_MAX: u32 = 3;

/// Checks everything, and returns the revision at which the allocator's records were read.
pub async fn audit_store(store: &dyn Store) -> Result<(Audit, Revision), IpamError> {
    let mut scans = 0;
    loop {
        let mut auditor = Auditor::default();
        // Endpoints and nodes come first, so that one that is deleted afterwards still counts.
        let information = Prefix::resources(ResourceKind::ClusterInformation);
        for prefix in [information, Prefix::pools(), Prefix::nodes(), Prefix::workload_endpoints()] {
            scan(store, &prefix, &mut auditor).await.map_err(|error| failed(&prefix, error))?;
        }
        let prefix = Prefix::from_stored(IPAM);
        scans += 1;
        let revision = match scan_books(store, &prefix, &mut auditor).await {
            Ok(revision) => revision,
            Err(error) if error.retryable() && scans < SCANS_MAX => continue,
            Err(error) => return Err(failed(&prefix, error)),
        };
        if auditor.must_see_names_again() {
            for prefix in [Prefix::nodes(), Prefix::workload_endpoints()] {
                let mut take = |record: Record| auditor.named_again(&record);
                store.scan(&prefix, &mut take).await.map_err(|error| failed(&prefix, error))?;
            }
        }
        for key in auditor.doubts() {
            let record = store.get(&key).await;
            let record = record.map_err(|error| IpamError::store(format!("read {key}"), error))?;
            record.iter().for_each(|record| auditor.again(record));
        }
        let mut audit = auditor.finish();
        if !store.claims().atomic {
            // What is written step by step may also be seen so.
            let mut findings = Vec::new();
            for finding in audit.findings {
                if live::holds(store, &finding).await? {
                    findings.push(finding);
                }
            }
            audit.findings = findings;
        }
        return Ok((audit, revision));
    }
}

async fn scan(store: &dyn Store, prefix: &Prefix, auditor: &mut Auditor) -> Result<Revision, StoreError> {
    store.scan(prefix, &mut |record: Record| auditor.add(&record)).await
}

/// Handles come after the blocks, which say what handles there must be.
async fn scan_books(
    store: &dyn Store,
    prefix: &Prefix,
    auditor: &mut Auditor,
) -> Result<Revision, StoreError> {
    let auditor = RefCell::new(auditor);
    let handles = Prefix::handles();
    let mut marks = |at: &Key| match at.as_str() {
        before if before < handles.as_str() => vec![Key::from_stored(handles.as_str())],
        at if at == handles.as_str() => {
            let mut marks = auditor.borrow().marks(MARKED_RECORDS);
            marks.push(Key::from_stored(Prefix::all_affinities().as_str()));
            marks
        }
        _ => Vec::new(),
    };
    let mut take = |record: Record| auditor.borrow_mut().add(&record);
    store.scan_marked(prefix, &mut marks, &mut take).await
}

fn failed(prefix: &Prefix, error: StoreError) -> IpamError {
    IpamError::store(format!("scan {prefix}"), error)
}
