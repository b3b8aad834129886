//! Which data a network configuration of Calico's means: v3, or the v1 model behind etcd's v2 API. A configuration of v1.11 often names
//! only endpoints, as a v3 one does; then the data decide. An empty v3 store is never taken for a cluster while v1 data may be there.

use russet_cni_spec::CniError;
use russet_model::v1::V1Key;
use russet_model::{Key, Prefix};
use russet_store::{Store, StoreError};
use russet_store_etcd::{Etcd, EtcdV2, Settings as EtcdSettings};

use crate::calico_conf::{CalicoConf, DatastoreKind};
use crate::failure;

/// The data of a network.
#[derive(Debug, Clone)]
pub enum Model {
    /// v3, in etcd or as Kubernetes objects.
    V3,
    /// The v1 model behind the v2 API of this etcd.
    V1(Box<EtcdSettings>),
}

/// What is found behind one of etcd's two APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Calico's data.
    Data,
    /// v3's cluster information and no more: an agent writes it before data are carried over.
    Information,
    /// Nothing of Calico's.
    Nothing,
    /// The server does not offer this API.
    NoApi,
}

/// What follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    V3,
    V1,
    /// v1 was asked for by name, and the cluster has moved on.
    Migrated,
    /// Neither has data.
    Neither,
    /// v1 was asked for, and the server has no v2 API.
    NoV2,
}

/// How to carry the data over.
const MIGRATE: &str = "russet migrate calico-v1 --from <etcd URLs> --to etcd:<etcd URLs>";

/// Decides which data the configuration means. Reads, and writes nothing.
pub async fn choose(conf: &CalicoConf) -> Result<Model, CniError> {
    let named_v1 = match (conf.datastore.kind, conf.datastore.explicit) {
        (DatastoreKind::Kubernetes, _) | (DatastoreKind::EtcdV3, true) => return Ok(Model::V3),
        (DatastoreKind::EtcdV3, false) => false,
        (DatastoreKind::EtcdV2, _) => true,
    };
    let settings = conf.datastore.etcd.v1_settings()?;
    decide(&settings, named_v1).await.map(|v1| if v1 { Model::V1(Box::new(settings)) } else { Model::V3 })
}

/// Whether the data of this etcd are those of v1; `named` when the configuration says so.
pub async fn decide(settings: &EtcdSettings, named: bool) -> Result<bool, CniError> {
    let v3 = look_v3(settings).await?;
    if v3 == Found::Data && !named {
        return Ok(false);
    }
    let v2 = look_v2(settings).await?;
    match verdict(named, v3, v2) {
        Verdict::V3 => Ok(false),
        Verdict::V1 => Ok(true),
        other => Err(refusal(other, &settings.endpoints.join(","))),
    }
}

/// What is said where neither of etcd's APIs leads to data of Calico's.
#[cfg(test)]
pub fn nothing_found(endpoints: &str) -> CniError {
    refusal(Verdict::Neither, endpoints)
}

fn verdict(named_v1: bool, v3: Found, v2: Found) -> Verdict {
    match (named_v1, v3, v2) {
        (false, Found::Data, _) => Verdict::V3,
        (true, Found::Data, _) => Verdict::Migrated,
        (_, _, Found::Data) => Verdict::V1,
        (false, Found::Information, _) => Verdict::V3,
        (true, Found::Information, _) => Verdict::Migrated,
        (true, _, Found::NoApi) => Verdict::NoV2,
        _ => Verdict::Neither,
    }
}

fn refusal(verdict: Verdict, endpoints: &str) -> CniError {
    match verdict {
        Verdict::Migrated => CniError::invalid_config(
            "datastore_type says etcdv2, but this etcd has Calico v3's data: addresses would be given twice",
            format!(
                "set datastore_type to \"etcdv3\"; if the v1 data were not carried over yet: {MIGRATE} (etcd at {endpoints})"
            ),
        ),
        Verdict::NoV2 => CniError::invalid_config(
            format!("etcd at {endpoints} does not serve the v2 API, behind which Calico v1 keeps its data"),
            format!(
                "etcd 3.4 and 3.5 need --enable-v2, later ones have none; carry the data over with: {MIGRATE}"
            ),
        ),
        _ => CniError::invalid_config(
            format!("etcd at {endpoints} holds no data of Calico's, neither of v3 nor of v1"),
            format!(
                "for a cluster of Calico v1.11: start its etcd with --enable-v2, or carry its data over with: {MIGRATE}; for a new v3 cluster set datastore_type to \"etcdv3\""
            ),
        ),
    }
}

/// Looks for what every v3 cluster in use has: a pool, or a handle; else for its information. A v3 API that does not answer may have data; only a cluster of etcd 2
/// surely has none.
async fn look_v3(settings: &EtcdSettings) -> Result<Found, CniError> {
    let unusable = |error| CniError::invalid_config("etcd cannot be used", error);
    let failed = |error| failure::store("the datastore could not be read", &error, &error);
    let old = EtcdV2::connect(settings.clone()).map_err(unusable)?;
    if old.cluster_version().await.map_err(failed)?.starts_with("2.") {
        return Ok(Found::NoApi);
    }
    let etcd = Etcd::connect(settings.clone()).map_err(unusable)?;
    found_v3(&etcd).await.map_err(failed)
}

async fn found_v3(store: &dyn Store) -> Result<Found, StoreError> {
    for prefix in [Prefix::pools(), Prefix::handles()] {
        if !store.list(&prefix).await?.records.is_empty() {
            return Ok(Found::Data);
        }
    }
    let information = store.get(&Key::cluster_information()).await?;
    Ok(information.map_or(Found::Nothing, |_| Found::Information))
}

/// Whether there are v1 data behind the v2 API of this etcd.
pub async fn has_v1(settings: &EtcdSettings) -> Result<bool, CniError> {
    Ok(look_v2(settings).await? == Found::Data)
}

/// Looks for what every v1 cluster has: the flag that it is ready, or a pool.
async fn look_v2(settings: &EtcdSettings) -> Result<Found, CniError> {
    let etcd = EtcdV2::connect(settings.clone());
    let etcd = etcd.map_err(|error| CniError::invalid_config("etcd cannot be used", error))?;
    match any(&etcd, &V1Key::Ready.key(), &Prefix::from_stored("/calico/v1/ipam/")).await {
        Ok(found) => Ok(found),
        Err(StoreError::Invalid { operation, reason }) => {
            tracing::debug!(operation, reason, "no v2 API");
            Ok(Found::NoApi)
        }
        Err(error) => Err(failure::store("the datastore could not be read", &error, &error)),
    }
}

async fn any(store: &dyn Store, key: &Key, prefix: &Prefix) -> Result<Found, StoreError> {
    if store.get(key).await?.is_some() || !store.list(prefix).await?.records.is_empty() {
        return Ok(Found::Data);
    }
    Ok(Found::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Found::{Data, Information, NoApi, Nothing};
    use russet_store::{Sim, Step};

    #[test]
    fn an_empty_v3_store_is_never_taken_for_the_cluster() {
        for v2 in [Data, Nothing, NoApi] {
            assert_eq!(verdict(false, Data, v2), Verdict::V3);
            assert_eq!(verdict(true, Data, v2), Verdict::Migrated, "two models of one cluster");
        }
        for v3 in [Nothing, NoApi] {
            for named in [false, true] {
                assert_eq!(verdict(named, v3, Data), Verdict::V1);
                assert_eq!(verdict(named, v3, Nothing), Verdict::Neither);
            }
            assert_eq!(verdict(false, v3, NoApi), Verdict::Neither);
            assert_eq!(verdict(true, v3, NoApi), Verdict::NoV2);
        }
    }

    #[test]
    fn the_cluster_information_alone_does_not_outweigh_v1_data() {
        for named in [false, true] {
            assert_eq!(verdict(named, Information, Data), Verdict::V1);
        }
        assert_eq!(verdict(false, Information, Nothing), Verdict::V3);
        assert_eq!(verdict(true, Information, Nothing), Verdict::Migrated);
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
    fn every_refusal_names_the_way_out() {
        for verdict in [Verdict::Migrated, Verdict::NoV2, Verdict::Neither] {
            let error = refusal(verdict, "http://a:2379");
            let text = format!("{} {}", error.msg, error.details);
            assert!(text.contains("russet migrate calico-v1") && text.contains("http://a:2379"), "{text}");
        }
    }
}
