//! The profile of a network whose policies are not Kubernetes': created once, and then left to the operator (calico-cni.md sections 2.3 and 2.7).

use russet_addr::NetworkName;
use russet_cni_spec::CniError;
use russet_model::{Key, Profile, ProfileSpec};
use russet_store::{Step, Store, StoreError};

use super::endpoint;
use crate::{Clock, failure};

/// Tries at a write whose answer gets lost.
const MAX_TRIES: u32 = 3;

/// Makes sure that there is a profile called like the network, and says whether there was none. One that exists is not looked at: a creation that loses is
/// as good as a read.
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
            // The next try is told that it exists if this one did take effect.
            Err(error) if error.outcome_unknown() && tries < MAX_TRIES => {}
            Err(error) => return Err(failure::store(&msg, &error, &error)),
        }
    }
}
