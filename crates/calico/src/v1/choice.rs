//! Decides which data a network configuration means: v3, or the v1 model behind etcd's v2 API. A
//! configuration of v1.11 often names only endpoints, like one of v3; then the data decide. An
//! empty v3 store is never used while v1 data may exist.

use russet_cni_spec::CniError;
use russet_model::v1::V1Key;
use russet_model::{Key, Prefix};
use russet_store::{Store, StoreError};
use russet_store_etcd::{Etcd, EtcdV2, Settings as EtcdSettings};
use russet_wiring::failure;

use crate::conf::{CalicoConf, DatastoreKind};

/// The data model of a network.
#[derive(Debug, Clone)]
pub enum DataModel {
    /// v3, in etcd or as Kubernetes objects.
    V3,
    /// The v1 model behind the v2 API of this etcd.
    V1(Box<EtcdSettings>),
}

/// What one of etcd's two APIs contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApiContents {
    /// Calico's data.
    Data,
    /// Only v3's cluster information, which an agent writes before data are migrated.
    Information,
    /// Nothing of Calico.
    Nothing,
    /// The server does not offer this API.
    NoApi,
}

/// The decision that follows from the contents of both APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    V3,
    V1,
    /// v1 was configured, but the cluster has been migrated.
    Migrated,
    /// Neither has data.
    Neither,
    /// v1 was configured, but the server has no v2 API.
    NoV2,
}

/// The command that migrates the data.
const MIGRATE: &str = "russet migrate calico-v1 --from <etcd URLs> --to etcd:<etcd URLs>";

/// Decides which data the configuration means. Only reads.
pub async fn choose(conf: &CalicoConf) -> Result<DataModel, CniError> {
    let named_v1 = match (conf.datastore.kind, conf.datastore.explicit) {
        (DatastoreKind::Kubernetes, _) | (DatastoreKind::EtcdV3, true) => return Ok(DataModel::V3),
        (DatastoreKind::EtcdV3, false) => false,
        (DatastoreKind::EtcdV2, _) => true,
    };
    let settings = conf.datastore.etcd.v1_settings()?;
    decide(&settings, named_v1)
        .await
        .map(|v1| if v1 { DataModel::V1(Box::new(settings)) } else { DataModel::V3 })
}

/// Whether the data of this etcd are those of v1; `named` says that the configuration names v1
/// explicitly.
pub async fn decide(settings: &EtcdSettings, named: bool) -> Result<bool, CniError> {
    let v3 = look_v3(settings).await?;
    if v3 == ApiContents::Data && !named {
        return Ok(false);
    }
    let v2 = look_v2(settings).await?;
    match decide_from(named, v3, v2) {
        Decision::V3 => Ok(false),
        Decision::V1 => Ok(true),
        other => Err(refusal(other, &settings.endpoints.join(","))),
    }
}

/// The error if neither of etcd's APIs has data of Calico.
#[cfg(test)]
pub fn nothing_found(endpoints: &str) -> CniError {
    refusal(Decision::Neither, endpoints)
}

fn decide_from(named_v1: bool, v3: ApiContents, v2: ApiContents) -> Decision {
    match (named_v1, v3, v2) {
        (false, ApiContents::Data, _) => Decision::V3,
        (true, ApiContents::Data, _) => Decision::Migrated,
        (_, _, ApiContents::Data) => Decision::V1,
        (false, ApiContents::Information, _) => Decision::V3,
        (true, ApiContents::Information, _) => Decision::Migrated,
        (true, _, ApiContents::NoApi) => Decision::NoV2,
        _ => Decision::Neither,
    }
}

fn refusal(decide_from: Decision, endpoints: &str) -> CniError {
    match decide_from {
        Decision::Migrated => CniError::invalid_config(
            "datastore_type says etcdv2, but this etcd has Calico v3's data: addresses would be given twice",
            format!(
                "set datastore_type to \"etcdv3\"; if the v1 data are not migrated yet: {MIGRATE} (etcd at {endpoints})"
            ),
        ),
        Decision::NoV2 => CniError::invalid_config(
            format!("etcd at {endpoints} does not serve the v2 API, behind which Calico v1 keeps its data"),
            format!(
                "etcd 3.4 and 3.5 need --enable-v2, later ones have none; migrate the data with: {MIGRATE}"
            ),
        ),
        _ => CniError::invalid_config(
            format!("etcd at {endpoints} holds no data of Calico's, neither of v3 nor of v1"),
            format!(
                "for a cluster of Calico v1.11: start its etcd with --enable-v2, or migrate its data with: {MIGRATE}; for a new v3 cluster set datastore_type to \"etcdv3\""
            ),
        ),
    }
}

/// Looks for what every used v3 cluster has: a pool or a handle, otherwise for the cluster
/// information. A v3 API that does not answer may have data; only a cluster of etcd 2 certainly has
/// none.
async fn look_v3(settings: &EtcdSettings) -> Result<ApiContents, CniError> {
    let unusable = |error| CniError::invalid_config("etcd cannot be used", error);
    let failed = |error| failure::store("the datastore could not be read", &error, &error);
    let old = EtcdV2::connect(settings.clone()).map_err(unusable)?;
    if old.cluster_version().await.map_err(failed)?.starts_with("2.") {
        return Ok(ApiContents::NoApi);
    }
    let etcd = Etcd::connect(settings.clone()).map_err(unusable)?;
    found_v3(&etcd).await.map_err(failed)
}

async fn found_v3(store: &dyn Store) -> Result<ApiContents, StoreError> {
    for prefix in [Prefix::pools(), Prefix::handles()] {
        if !store.list(&prefix).await?.records.is_empty() {
            return Ok(ApiContents::Data);
        }
    }
    let information = store.get(&Key::cluster_information()).await?;
    Ok(information.map_or(ApiContents::Nothing, |_| ApiContents::Information))
}

/// Whether there are v1 data behind the v2 API of this etcd.
pub async fn has_v1(settings: &EtcdSettings) -> Result<bool, CniError> {
    Ok(look_v2(settings).await? == ApiContents::Data)
}

/// Looks for what every v1 cluster has: the ready flag, or a pool.
async fn look_v2(settings: &EtcdSettings) -> Result<ApiContents, CniError> {
    let etcd = EtcdV2::connect(settings.clone());
    let etcd = etcd.map_err(|error| CniError::invalid_config("etcd cannot be used", error))?;
    match any(&etcd, &V1Key::Ready.key(), &Prefix::from_stored("/calico/v1/ipam/")).await {
        Ok(found) => Ok(found),
        Err(StoreError::Invalid { operation, reason }) => {
            tracing::debug!(operation, reason, "no v2 API");
            Ok(ApiContents::NoApi)
        }
        Err(error) => Err(failure::store("the datastore could not be read", &error, &error)),
    }
}

async fn any(store: &dyn Store, key: &Key, prefix: &Prefix) -> Result<ApiContents, StoreError> {
    if store.get(key).await?.is_some() || !store.list(prefix).await?.records.is_empty() {
        return Ok(ApiContents::Data);
    }
    Ok(ApiContents::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ApiContents::{Data, Information, NoApi, Nothing};
    use russet_store::{Sim, Step};

    #[test]
    fn an_empty_v3_store_is_never_taken_for_the_cluster() {
        for v2 in [Data, Nothing, NoApi] {
            assert_eq!(decide_from(false, Data, v2), Decision::V3);
            assert_eq!(decide_from(true, Data, v2), Decision::Migrated, "two models of one cluster");
        }
        for v3 in [Nothing, NoApi] {
            for named in [false, true] {
                assert_eq!(decide_from(named, v3, Data), Decision::V1);
                assert_eq!(decide_from(named, v3, Nothing), Decision::Neither);
            }
            assert_eq!(decide_from(false, v3, NoApi), Decision::Neither);
            assert_eq!(decide_from(true, v3, NoApi), Decision::NoV2);
        }
    }

    #[test]
    fn the_cluster_information_alone_does_not_outweigh_v1_data() {
        for named in [false, true] {
            assert_eq!(decide_from(named, Information, Data), Decision::V1);
        }
        assert_eq!(decide_from(false, Information, Nothing), Decision::V3);
        assert_eq!(decide_from(true, Information, Nothing), Decision::Migrated);
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            let store = Sim::atomic(1);
            assert_eq!(found_v3(&store).await.unwrap(), Nothing);
            store.commit(vec![Step::create(Key::cluster_information(), "{}")]).await.unwrap();
            assert_eq!(found_v3(&store).await.unwrap(), Information);
            store.commit(vec![Step::create(Key::pool("p").unwrap(), "{}")]).await.unwrap();
            assert_eq!(found_v3(&store).await.unwrap(), Data);
        });
    }

    #[test]
    fn every_refusal_names_the_migration_command() {
        for decide_from in [Decision::Migrated, Decision::NoV2, Decision::Neither] {
            let error = refusal(decide_from, "http://a:2379");
            let text = format!("{} {}", error.msg, error.details);
            assert!(text.contains("russet migrate calico-v1") && text.contains("http://a:2379"), "{text}");
        }
    }
}
