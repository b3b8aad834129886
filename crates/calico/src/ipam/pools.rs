//! Pools that a configuration names by prefix or by name (calico-ipam.md section 4.1), and the
//! labels by which pools select namespaces.

use std::collections::BTreeMap;

use russet_addr::{Family, IpNet};
use russet_cni_spec::CniError;
use russet_model::{IpPool, Key, Profile, ResourceKind};
use russet_wiring::{RequestLog, failure};

use crate::datastore::Datastore;

/// The prefix of a namespace's labels in its profile (calico-cni.md section 2.7).
const NAMESPACE_LABEL: &str = "pcns.";

/// The prefixes of `named`; `None` if it is empty. The datastore is read only if there are names.
pub(super) async fn resolve(
    datastore: &Datastore,
    family: Family,
    named: &[String],
) -> Result<Option<Vec<IpNet>>, CniError> {
    if named.is_empty() {
        return Ok(None);
    }
    let parsed: Vec<Option<IpNet>> = named.iter().map(|text| text.parse::<IpNet>().ok()).collect();
    let pools = if parsed.contains(&None) { datastore.pools().await? } else { Vec::new() };
    let one = |(text, parsed): (&String, Option<IpNet>)| {
        let net = parsed.map(|net| net.trunc()).or_else(|| by_name(&pools, text));
        let unknown = || {
            let msg = format!("error parsing pool {text:?}: invalid CIDR address: {text}");
            CniError::invalid_config(msg, "and there is no pool of that name")
        };
        let net = net.ok_or_else(unknown)?;
        if Family::of_net(&net) != family {
            let msg = format!("pool {text:?}: {:?} isn't a {family} address", net.addr().to_string());
            return Err(CniError::invalid_config(
                msg,
                format!("ipam: {net} stands among pools for {family}"),
            ));
        }
        Ok(net)
    };
    named.iter().zip(parsed).map(one).collect::<Result<_, _>>().map(Some)
}

fn by_name(pools: &[IpPool], name: &str) -> Option<IpNet> {
    pools.iter().find(|pool| pool.metadata.name == name).map(|pool| pool.spec.cidr)
}

/// The labels of a pod's namespace, if any pool selects by them. In etcd they are in the
/// namespace's profile, which kube-controllers writes.
pub(super) async fn namespace_labels(
    datastore: &Datastore,
    namespace: &str,
    log: &RequestLog,
) -> Result<BTreeMap<String, String>, CniError> {
    if !datastore.selects_namespaces().await? {
        return Ok(BTreeMap::new());
    }
    let name = format!("kns.{namespace}");
    let key = Key::resource(ResourceKind::Profile, None, &name)
        .map_err(|error| CniError::environment("the pod's namespace cannot be looked up", error))?;
    let failed = |error| failure::store("the namespace's profile could not be read", &error, &error);
    let Some(record) = datastore.store.get(&key).await.map_err(failed)? else {
        log.warn(format!("there is no profile {name}: pools that select namespaces by label are not used"));
        return Ok(BTreeMap::new());
    };
    let corrupt = |error| CniError::new(failure::CORRUPT_RECORD, format!("{key} cannot be read"), error);
    let profile = Profile::decode(&record.value).map_err(corrupt)?;
    let labels = profile.spec.labels_to_apply.into_iter();
    Ok(labels
        .filter_map(|(name, value)| Some((name.strip_prefix(NAMESPACE_LABEL)?.to_owned(), value)))
        .collect())
}
