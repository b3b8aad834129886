//! A workload's endpoint and its network's profile in the v1 model (calico-cni.md sections 2.2.3, 2.3 and 2.6).

use std::net::IpAddr;
use std::rc::Rc;

use russet_cni_spec::CniError;
use russet_model::v1::{Endpoint, EndpointId, Profile, ProfilePart, V1Key};
use russet_model::{Key, Prefix};
use russet_store::{Record, Revision, Step, Store, StoreError};
use russet_store_etcd::EtcdV2;
use russet_wiring::failure;

/// Attempts at a record that others write at the same time; peers use the same number.
const TRIES_MAX: u32 = 6;

/// The records of the v1 model, without addresses.
pub struct Records {
    /// The store with the records.
    pub store: Rc<dyn Store>,
    /// The same etcd, outside tests, to remove empty directories.
    pub directories: Option<EtcdV2>,
}

/// An endpoint as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Its key; the interface in it may differ from that of the request.
    pub key: Key,
    pub endpoint: Endpoint,
    revision: Revision,
}

/// The endpoint could not be written.
#[derive(Debug)]
pub struct WriteFailure {
    pub error: CniError,
    /// True if the endpoint certainly does not exist, so that its addresses can be released.
    pub certainly_absent: bool,
}

impl From<CniError> for WriteFailure {
    fn from(error: CniError) -> Self {
        Self { error, certainly_absent: true }
    }
}

fn failed(msg: &str, error: &StoreError) -> CniError {
    failure::store(msg, error, error)
}

fn read(record: Record) -> Result<Stored, CniError> {
    let endpoint = Endpoint::decode(&record.value).map_err(|error| {
        CniError::new(failure::CORRUPT_RECORD, format!("{} cannot be read", record.key), error)
    })?;
    Ok(Stored { key: record.key, endpoint, revision: record.revision })
}

// === impl Records ===

impl Records {
    /// Fails while an upgrade or an operator has closed the datastore. Plugins before 1.11.2 did
    /// not check, and their clusters have no flag.
    pub async fn refuse_unready(&self) -> Result<(), CniError> {
        let ready = self.store.get(&V1Key::Ready.key()).await;
        match ready.map_err(|error| failed("the datastore could not be read", &error))? {
            Some(record) if record.value != b"true" => {
                let details =
                    "/calico/v1/Ready is not `true`: an upgrade is in progress, or an operator closed it";
                Err(CniError::try_again_later("Calico's datastore is not ready", details))
            }
            _ => Ok(()),
        }
    }

    /// The endpoint of a workload on this node, whatever its interface. More than one is an error,
    /// because nothing says which is the right one.
    pub async fn of_workload(&self, id: &EndpointId) -> Result<Option<Stored>, CniError> {
        let listed = self.list(&id.workload_prefix()).await?;
        match <[Stored; 1]>::try_from(listed) {
            Ok([one]) => Ok(Some(one)),
            Err(none) if none.is_empty() => Ok(None),
            Err(several) => {
                let keys: Vec<&str> = several.iter().map(|stored| stored.key.as_str()).collect();
                let msg = "the workload has more than one endpoint on this node";
                Err(CniError::internal(msg, format!("remove those that are left over: {}", keys.join(", "))))
            }
        }
    }

    /// The endpoint that a DEL may remove, and the addresses of the workload's newer containers.
    /// `container` is set for a pod, which outlives its containers. An unreadable endpoint stays,
    /// because otherwise the pod could never be deleted, and counts as a newer container's.
    pub async fn for_del(
        &self,
        id: &EndpointId,
        container: Option<&str>,
    ) -> Result<(Option<Stored>, Option<Vec<IpAddr>>), CniError> {
        let own = V1Key::Endpoint(id.clone()).key();
        let listed = self.store.list(&id.workload_prefix()).await;
        let listed = listed.map_err(|error| failed("the endpoint could not be read", &error))?;
        let (mut mine, mut newer): (Vec<Stored>, Option<Vec<IpAddr>>) = (Vec::new(), None);
        for record in listed.records {
            let at_own_key = record.key == own;
            match read(record) {
                Ok(stored) if container.is_none_or(|it| stored.endpoint.active_instance_id == it) => {
                    mine.push(stored);
                }
                Ok(other) => {
                    let addresses = other.endpoint.nets().map(|net| net.addr());
                    newer.get_or_insert_default().extend(addresses);
                }
                Err(error) => {
                    tracing::warn!(%error, "endpoint kept");
                    if at_own_key {
                        newer.get_or_insert_default();
                    }
                }
            }
        }
        let exact = mine.iter().position(|stored| stored.key == own);
        let mine = match (exact, mine.len()) {
            (Some(at), _) => Some(mine.swap_remove(at)),
            (None, 1) => mine.pop(),
            _ => None,
        };
        Ok((mine, newer))
    }

    async fn list(&self, prefix: &Prefix) -> Result<Vec<Stored>, CniError> {
        let listed = self.store.list(prefix).await;
        let listed = listed.map_err(|error| failed("the endpoint could not be read", &error))?;
        listed.records.into_iter().map(read).collect()
    }

    /// Writes an endpoint: a new one, or over the one that was read. If the answer is lost, reads
    /// whether the write took effect.
    pub async fn write(
        &self,
        id: &EndpointId,
        endpoint: &Endpoint,
        before: Option<&Stored>,
    ) -> Result<(), WriteFailure> {
        let value = endpoint.encode();
        let step = match before {
            Some(stored) => Step::update(stored.key.clone(), value.clone(), stored.revision),
            None => Step::create(V1Key::Endpoint(id.clone()).key(), value.clone()),
        };
        let key = step.key().clone();
        let msg = "the endpoint could not be written";
        match self.store.commit(vec![step]).await.map_err(|error| error.error) {
            Ok(_) => Ok(()),
            Err(error) if error.outcome_unknown() => match self.store.get(&key).await {
                Ok(Some(record)) if record.value == value => Ok(()),
                _ => Err(WriteFailure { error: failed(msg, &error), certainly_absent: false }),
            },
            Err(error) => Err(failed(msg, &error).into()),
        }
    }

    /// Removes an endpoint as long as it is this container's, and the directories that become
    /// empty.
    pub async fn remove(&self, id: &EndpointId, mut stored: Stored) -> Result<(), CniError> {
        let msg = "the endpoint could not be removed";
        for _ in 0..TRIES_MAX {
            let step = Step::delete(stored.key.clone(), Some(stored.revision));
            match self.store.commit(vec![step]).await.map_err(|error| error.error) {
                Ok(_) | Err(StoreError::NotFound { .. }) => return self.remove_directories(id).await,
                Err(error) if error.lost_race() || error.outcome_unknown() => {}
                Err(error) => return Err(failed(msg, &error)),
            }
            let now = self.store.get(&stored.key).await.map_err(|error| failed(msg, &error))?;
            match now.map(read).transpose()? {
                None => return self.remove_directories(id).await,
                // A newer container has taken it over.
                Some(now) if now.endpoint.active_instance_id != stored.endpoint.active_instance_id => {
                    return Ok(());
                }
                Some(now) => stored = now,
            }
        }
        let details = format!("{} is being written all the time", stored.key);
        Err(CniError::try_again_later(msg, details))
    }

    /// The v2 API keeps empty directories for ever; peers remove them, too. A failure leaves only
    /// empty directories.
    async fn remove_directories(&self, id: &EndpointId) -> Result<(), CniError> {
        let Some(etcd) = &self.directories else { return Ok(()) };
        for directory in id.own_directories() {
            if let Err(error) = etcd.remove_empty_directory(&directory).await {
                tracing::debug!(%directory, %error, "an empty directory stays");
                return Ok(());
            }
        }
        Ok(())
    }

    /// Creates the network's profile if there is none, and returns whether it did; an existing one
    /// is not changed.
    pub async fn ensure_profile(&self, network: &str, only_from_network: bool) -> Result<bool, CniError> {
        let msg = "the network's profile could not be made";
        let key = |part| V1Key::Profile { name: network.to_owned(), part }.key();
        let tags = self.store.get(&key(ProfilePart::Tags)).await;
        if tags.map_err(|error| failed(msg, &error))?.is_some() {
            return Ok(false);
        }
        let profile = Profile::of_network(network, only_from_network);
        // The tags are written last: a reader that finds them assumes that the profile is complete.
        for part in [ProfilePart::Labels, ProfilePart::Rules, ProfilePart::Tags] {
            let step = Step::create(key(part), profile.encode(part));
            match self.store.commit(vec![step]).await.map_err(|error| error.error) {
                // Another node creates the same profile.
                Ok(_) | Err(StoreError::AlreadyExists { .. }) => {}
                Err(error) => return Err(failed(msg, &error)),
            }
        }
        Ok(true)
    }
}
