//! Changes of the v1 data during the migration, on simulated stores.

use clap::Parser;
use russet_store::{BoxFuture, CommitError, Revision, Sim};
use russet_testkit::forward_store;

use super::*;

/// A new store; its first commit triggers a write to the old one.
struct Watched {
    store: Sim,
    old: Sim,
    change: Step,
}

impl Store for Watched {
    forward_store!(self.store: claims get list watch);

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            self.old.commit(vec![self.change.clone()]).await?;
            self.store.commit(steps).await
        })
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: CalicoV1Args,
}

#[test]
fn no_pool_is_written_if_v1_data_change_or_reopen() {
    let handle = |name: &str| Key::from_stored(format!("/calico/ipam/v2/handle/{name}"));
    let taken = r#"{"block":{"10.1.0.0/26":1}}"#;
    for change in [Step::put(handle("net.new"), taken), Step::put(V1Key::Ready.key(), "true")] {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            let (old, store) = (Sim::atomic(1), Sim::atomic(2));
            let pool = russet_model::v1::Pool::new("10.1.0.0/24".parse().unwrap());
            for (key, value) in [
                (V1Key::Ready.key(), b"false".to_vec()),
                (V1Key::Pool(pool.cidr).key(), pool.encode()),
                (handle("net.f00d"), taken.as_bytes().to_vec()),
            ] {
                old.commit(vec![Step::put(key, value)]).await.unwrap();
            }
            let target = Watched { store: store.clone(), old: old.clone(), change };
            let args = Line::parse_from(["russet", "--from", "http://a:1"]).args;
            let plan = read(&old, "a").await.unwrap();
            let compared = compare::with(&target, &plan).await.unwrap();
            let failed = migrate_all_but_pools(&old, &target, &args, &plan, &compared).await;
            assert!(failed.is_err());
            assert!(store.get(&handle("net.f00d")).await.unwrap().is_some());
            assert!(store.list(&Prefix::pools()).await.unwrap().records.is_empty());
            assert!(store.get(&Key::cluster_information()).await.unwrap().is_none());
        });
    }
}
