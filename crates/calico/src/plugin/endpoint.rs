//! The workload endpoint in the datastore: lookup, writes by compare-and-swap, removal
//! (calico-cni.md sections 2.1 and 2.2).

use russet_addr::{ContainerId, IfName, IpNet};
use russet_cni_spec::CniError;
use russet_ipam::Clock;
use russet_linux::random::random;
use russet_model::{Key, WorkloadEndpoint, WorkloadEndpointSpec, time, uid};
use russet_store::{Record, Revision, Step, Store, StoreError};
use russet_wiring::failure;

use super::workload::Workload;

/// An endpoint as stored in the datastore.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub key: Key,
    pub endpoint: WorkloadEndpoint,
    /// The revision that a write must find.
    pub revision: Revision,
}

/// The endpoint could not be written.
#[derive(Debug)]
pub struct WriteFailure {
    pub error: CniError,
    /// True if the endpoint certainly does not exist, so that its addresses can be released.
    pub certainly_absent: bool,
}

/// Attempts at a write whose answers get lost.
const WRITE_MAX_TRIES: u32 = 3;
/// Attempts at a removal that races with other writers (calico-cni.md section 3.6).
const REMOVE_MAX_TRIES: u32 = 6;

/// Finds the endpoint of the workload, whatever its interface. More than one is an error, because
/// nothing says which is the right one.
pub async fn find(store: &dyn Store, workload: &Workload) -> Result<Option<Stored>, CniError> {
    let prefix = workload.prefix()?;
    let failed =
        |error: StoreError| failure::store("the pod's endpoint could not be looked for", &error, &error);
    let own = workload.key()?;
    let mut found = Vec::new();
    for record in store.list(&prefix).await.map_err(failed)?.records {
        let (at_own_name, key) = (record.key == own, record.key.clone());
        match decode(record) {
            Ok(stored) if workload.owns(&stored.endpoint.spec) => found.push(stored),
            // Another workload's: `mypod--x` is below the prefix `mypod-`.
            Ok(_) => {}
            Err(error) if at_own_name => return Err(error),
            Err(error) => russet_store::refused("an endpoint is passed over", &key, &error),
        }
    }
    if found.len() > 1 {
        let keys: Vec<&str> = found.iter().map(|stored| stored.key.as_str()).collect();
        let details = format!("delete those that no pod has any more: {}", keys.join(", "));
        return Err(CniError::new(failure::CORRUPT_RECORD, "the pod has several endpoints", details));
    }
    Ok(found.pop())
}

/// Reads the endpoint of exactly this interface.
pub async fn get(store: &dyn Store, workload: &Workload) -> Result<Option<Stored>, CniError> {
    let key = workload.key()?;
    let failed = |error: StoreError| failure::store("the pod's endpoint could not be read", &error, &error);
    store.get(&key).await.map_err(failed)?.map(decode).transpose()
}

fn decode(record: Record) -> Result<Stored, CniError> {
    let Record { key, value, revision } = record;
    match WorkloadEndpoint::decode(&value) {
        Ok(endpoint) => Ok(Stored { key, endpoint, revision }),
        Err(error) => {
            let msg = format!("the endpoint {key} cannot be decoded");
            Err(CniError::new(failure::CORRUPT_RECORD, msg, error))
        }
    }
}

/// Builds the endpoint of this workload with this specification. An existing endpoint keeps its
/// name, its identity and the members that Russet does not know.
pub fn prepare(
    workload: &Workload,
    existing: Option<&Stored>,
    spec: WorkloadEndpointSpec,
    clock: &dyn Clock,
) -> Result<WorkloadEndpoint, CniError> {
    let mut endpoint = match existing {
        Some(stored) => {
            let mut endpoint = stored.endpoint.clone();
            let (interface, extra) =
                (endpoint.spec.endpoint.clone(), std::mem::take(&mut endpoint.spec.extra));
            endpoint.spec = WorkloadEndpointSpec { endpoint: interface, extra, ..spec };
            endpoint
        }
        None => {
            let mut endpoint = WorkloadEndpoint::new(workload.name()?, spec);
            endpoint.metadata.namespace = Some(workload.namespace.clone());
            endpoint
        }
    };
    stamp(&mut endpoint.metadata, clock);
    Ok(endpoint)
}

/// Addresses as Calico's plugin prints them.
pub fn shown(nets: &[IpNet]) -> String {
    format!("[{}]", nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

/// Fills what every resource must have when it is created (calico-ipam.md section 1.8).
pub fn stamp(metadata: &mut russet_model::Metadata, clock: &dyn Clock) {
    metadata.uid.get_or_insert_with(|| uid(random()));
    metadata.creation_timestamp.get_or_insert_with(|| time::rfc3339(clock.now()));
}

/// Creates the endpoint, or replaces the one that was found. If another writer was faster, that is
/// an error; only a write whose answer was lost is repeated.
pub async fn write(
    store: &dyn Store,
    workload: &Workload,
    existing: Option<&Stored>,
    endpoint: &WorkloadEndpoint,
) -> Result<(), WriteFailure> {
    let key = match existing {
        Some(stored) => stored.key.clone(),
        None => workload.key().map_err(WriteFailure::certainly_absent)?,
    };
    let bytes = endpoint.encode();
    let mut tries = 0;
    loop {
        tries += 1;
        let step = match existing {
            Some(stored) => Step::update(key.clone(), bytes.clone(), stored.revision),
            None => Step::create(key.clone(), bytes.clone()),
        };
        let Err(failed) = store.commit(vec![step]).await else { return Ok(()) };
        let detached =
            failure::store("the pod's endpoint could not be written", &failed.error, &failed.error);
        if !failed.error.outcome_unknown() && tries == 1 {
            return Err(WriteFailure::certainly_absent(detached));
        }
        // An earlier attempt may have taken effect.
        match store.get(&key).await {
            Ok(Some(record)) if says(&record.value, endpoint) => return Ok(()),
            Ok(_) if failed.error.outcome_unknown() && tries < WRITE_MAX_TRIES => {}
            Ok(_) => {
                return Err(WriteFailure {
                    error: detached,
                    certainly_absent: !failed.error.outcome_unknown(),
                });
            }
            Err(_) => return Err(WriteFailure { error: detached, certainly_absent: false }),
        }
    }
}

/// Whether a stored endpoint says what was meant to be written: in the Kubernetes API it is made anew
/// from its pod at each read, so its bytes differ.
fn says(stored: &[u8], meant: &WorkloadEndpoint) -> bool {
    WorkloadEndpoint::decode(stored).is_ok_and(|stored| {
        stored.spec.container_id == meant.spec.container_id
            && stored.spec.ip_networks == meant.spec.ip_networks
    })
}

/// Removes the endpoint, unless it belongs to another container by now. Returns whether it was
/// removed; that there is none is success. An endpoint that cannot be parsed stays, because
/// otherwise the pod could never be deleted.
pub async fn remove(
    store: &dyn Store,
    workload: &Workload,
    container: &ContainerId,
) -> Result<bool, CniError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let stored = match get(store, workload).await {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(false),
            Err(error) if error.code == failure::CORRUPT_RECORD => {
                tracing::warn!(%error, "endpoint kept");
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let holder = &stored.endpoint.spec.container_id;
        if holder != container.as_str() {
            tracing::info!(key = %stored.key, holder, %container, "endpoint kept: it is another container's");
            return Ok(false);
        }
        let delete = Step::delete(stored.key, Some(stored.revision));
        let Err(failed) = store.commit(vec![delete]).await else { return Ok(true) };
        let again = failed.error.lost_race() || failed.error.outcome_unknown();
        if !again || tries == REMOVE_MAX_TRIES {
            let msg = "the pod's endpoint could not be removed";
            return Err(failure::store(msg, &failed.error, &failed.error));
        }
    }
}

/// Removes an endpoint that is named after another interface of the container but describes this
/// one, because its addresses are about to be released (calico-cni.md oracle 50).
pub async fn remove_described(
    store: &dyn Store,
    workload: &Workload,
    host_name: &IfName,
) -> Result<(), CniError> {
    let found = find(store, workload).await;
    let Some(stored) = found.or_else(|error| match error.code {
        failure::CORRUPT_RECORD => Ok(None),
        _ => Err(error),
    })?
    else {
        return Ok(());
    };
    let spec = &stored.endpoint.spec;
    if spec.container_id != workload.id.container.as_str() || spec.interface_name.as_ref() != Some(host_name)
    {
        return Ok(());
    }
    let removed = store.commit(vec![Step::delete(stored.key, Some(stored.revision))]).await;
    let msg = "the endpoint of the container could not be removed";
    removed.map(drop).map_err(|failed| failure::store(msg, &failed.error, &failed.error))
}

// === impl WriteFailure ===

impl WriteFailure {
    fn certainly_absent(error: CniError) -> Self {
        Self { error, certainly_absent: true }
    }
}
