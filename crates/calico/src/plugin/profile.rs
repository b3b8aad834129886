//! The profile of a network with other policies than Kubernetes': created once, and then left to
//! the operator (calico-cni.md sections 2.3 and 2.7).

use russet_addr::NetworkName;
use russet_cni_spec::CniError;
use russet_ipam::Clock;
use russet_model::{Key, Profile, ProfileSpec};
use russet_store::{Step, Store, StoreError};
use russet_wiring::failure;

use super::endpoint;

/// Attempts at a write whose answer gets lost.
const MAX_TRIES: u32 = 3;

/// Ensures that there is a profile named like the network; returns whether it was created. An
/// existing one is not read: a creation that fails because it exists is enough.
pub async fn ensure(
    store: &dyn Store,
    network: &NetworkName,
    only_from_network: bool,
    clock: &dyn Clock,
) -> Result<bool, CniError> {
    let msg = format!("the profile {network} could not be created");
    let key = Key::profile(network.as_str()).map_err(|error| CniError::invalid_config(msg.clone(), error))?;
    let mut profile =
        Profile::new(network.as_str(), ProfileSpec::of_network(network.as_str(), only_from_network));
    endpoint::stamp(&mut profile.metadata, clock);
    let mut tries = 0;
    loop {
        tries += 1;
        let create = Step::create(key.clone(), profile.encode());
        match store.commit(vec![create]).await.map_err(|failed| failed.error) {
            Ok(_) => return Ok(true),
            Err(StoreError::AlreadyExists { .. }) => return Ok(false),
            // If this attempt took effect, the next one finds that the profile exists.
            Err(error) if error.outcome_unknown() && tries < MAX_TRIES => {}
            Err(error) => return Err(failure::store(&msg, &error, &error)),
        }
    }
}
