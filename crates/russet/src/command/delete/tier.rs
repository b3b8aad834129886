//! Deletes a tier: as in Calico's API, not one that every cluster has, and not one that has policies.

use russet_model::{
    CalicoPolicy, GlobalNetworkPolicySpec, NetworkPolicySpec, Prefix, Resource,
    StagedGlobalNetworkPolicySpec, StagedNetworkPolicySpec,
};
use russet_store::StoreError;

use super::{DeleteError, Target};
use crate::command::Failure;
use crate::command::place::Place;
use crate::resources::{Definition, is_built_in_tier};

pub async fn delete(place: &Place, target: &Target, dry_run: bool) -> Result<(), Failure> {
    if is_built_in_tier(&target.name) {
        return Err(DeleteError::BuiltInTier(target.name.clone()).into());
    }
    let tier = &target.name;
    let policies = [
        policies_in::<GlobalNetworkPolicySpec>(place, tier).await?,
        policies_in::<NetworkPolicySpec>(place, tier).await?,
        policies_in::<StagedGlobalNetworkPolicySpec>(place, tier).await?,
        policies_in::<StagedNetworkPolicySpec>(place, tier).await?,
    ];
    match policies.iter().sum() {
        0 if dry_run => target.read(place).await.map(drop),
        0 => target.remove(place).await,
        count => Err(DeleteError::TierInUse { tier: tier.clone(), count }.into()),
    }
}

/// The number of policies of a kind in the tier. Records that cannot be read name no tier.
async fn policies_in<S: Definition + AsMut<CalicoPolicy>>(
    place: &Place,
    tier: &str,
) -> Result<usize, Failure> {
    let records = match place.store.list(&Prefix::resources(S::KIND)).await {
        Ok(snapshot) => snapshot.records,
        // This store has no policies of the kind.
        Err(StoreError::Unsupported { .. }) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let policies = records.iter().filter_map(|record| Resource::<S>::decode(&record.value).ok());
    Ok(policies.map(|mut policy| policy.spec.as_mut().tier == tier).filter(|is_in| *is_in).count())
}
