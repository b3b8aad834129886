//! Measures leases at 5,000 and 15,000 nodes, on a real etcd: printed, for docs/performance.md.

use std::time::Instant;

use russet_lease::{Event, SubnetManager};
use russet_store::{Step, Store};
use russet_store_etcd::{Etcd, Settings};
use russet_testkit::etcd::{Cluster, TIMEOUT};

use crate::bench::{key, keys, manager, path, put, value, wish};

const CONFIG: &str = r#"{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}"#;
/// Nodes that start, one after the other.
const STARTS: u8 = 7;

fn lease(n: u32) -> Step {
    let address = format!("192.{}.{}.{}", 1 + n / 62_500, n / 250 % 250, n % 250);
    let text = value(7).replace("192.0.2.7", &address);
    Step::create(path(&format!("subnets/10.{}.{}.0-24", 1 + n / 256, n % 256)), text)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[tokio::test]
#[ignore = "tool: etcd; a measurement, to be run alone and in release mode"]
async fn a_start_among_many_nodes() {
    let cluster = Cluster::single();
    let store = Etcd::connect(Settings::for_endpoints(&cluster.members[0].client).unwrap()).unwrap();
    put(&store, "config", CONFIG).await;
    for count in [1u32, 5_000, 15_000] {
        let there = u32::try_from(keys(&store).await.len()).unwrap();
        let steps: Vec<Step> = (there..count).map(lease).collect();
        for commit in steps.chunks(100) {
            store.commit(commit.to_vec()).await.unwrap();
        }
        let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for start in 0..STARTS {
            let fresh = Etcd::connect(Settings::for_endpoints(&cluster.members[0].client).unwrap()).unwrap();
            let manager = manager(&fresh, u64::from(start));
            let mut now = Instant::now();
            let mut lap = |of: usize, now: &mut Instant| {
                times[of].push(now.elapsed().as_secs_f64() * 1e3);
                *now = Instant::now();
            };
            let config = manager.network().await.unwrap();
            lap(0, &mut now);
            let lease = manager.acquire(&config, &wish(100 + start)).await.unwrap();
            lap(1, &mut now);
            let mut watch = manager.watch(&lease.key).await.unwrap();
            let Event::Snapshot(all) = watch.next().await else { panic!("a snapshot first") };
            lap(2, &mut now);
            assert!(all.len() >= count as usize);
            let other = format!("subnets/10.200.{start}.0-24");
            put(&store, &other, &value(200)).await;
            let reported = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap();
            assert!(
                matches!(reported, Event::Put(lease) if lease.key == key(&format!("10.200.{start}.0-24")))
            );
            lap(3, &mut now);
            for gone in [format!("subnets/{}", lease.key), other] {
                crate::bench::delete(&store, &gone).await;
            }
        }
        let [config, acquire, watch, one] = times.map(median);
        println!(
            "{count} leases: config {config:.1} ms, acquire {acquire:.1} ms, snapshot {watch:.1} ms, first change {one:.1} ms"
        );
    }
}
