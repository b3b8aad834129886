//! A store whose renewals change the revision of the records that live by the lease, as etcd's v2 API does (flannel.md section 3.1a).

use std::sync::Arc;
use std::time::Duration;

use russet_lease::SubnetManager;
use russet_model::Key;
use russet_store::{BoxFuture, LeaseId, Record, Sim, Step, Store, StoreError, Tenure};
use russet_testkit::forward_store;

use crate::bench::{DAY, PREFIX, V4, acquire, manager, network, path, stored, value, wish};

/// The simulated store with such renewals.
#[derive(Clone)]
struct Renewing(Sim);

impl Store for Renewing {
    forward_store!(self.0: claims get list commit watch);

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        self.0.tenure(key)
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        self.0.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move {
            let ttl = self.0.keep_alive(lease).await?;
            for (key, record) in self.0.records() {
                if let Some((_, Tenure::Leased(Some(id)))) = self.0.tenure(&key).await?
                    && id == lease
                {
                    self.0.commit(vec![Step::put(key, record.value).with_lease(lease)]).await?;
                }
            }
            Ok(ttl)
        })
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.revoke(lease)
    }
}

#[test]
fn publishing_does_not_lose_a_race_against_its_own_renewal() {
    crate::bench::run(async {
        let sim = network(1, V4).await;
        let manager = manager(&Renewing(sim.clone()), 1);
        let mut lease = acquire(&manager, &wish(11)).await;
        Arc::make_mut(&mut lease.attributes).backend_data =
            Some(r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:77"}"#.into());
        manager.publish(&lease).await.unwrap();
        let published = String::from_utf8(lease.attributes.to_json()).unwrap();
        assert_eq!(stored(&sim).await, [(lease.key.to_string(), published)]);
        manager.ready(&lease).await.unwrap();
    });
}

#[test]
fn an_overwritten_lease_is_repaired_by_the_next_renewal() {
    crate::bench::run(async {
        let sim = network(1, V4).await;
        let manager = manager(&Renewing(sim.clone()), 1);
        let lease = acquire(&manager, &wish(11)).await;
        let own = path(&format!("subnets/{}", lease.key));
        let (_, tenure) = sim.tenure(&own).await.unwrap().unwrap();
        let Tenure::Leased(Some(id)) = tenure else { panic!("{tenure:?}") };
        let overwritten = value(11).replace("0b\"", "99\"");
        sim.commit(vec![Step::put(own, overwritten).with_lease(id)]).await.unwrap();
        let margin = DAY - Duration::from_secs(60);
        let kept = tokio::time::timeout(Duration::from_secs(90), manager.keep(&lease, margin)).await;
        assert!(kept.is_err(), "{kept:?} below {PREFIX}");
        assert_eq!(stored(&sim).await, [(lease.key.to_string(), value(11))]);
    });
}
