//! The floor: one small static process that sends the same netlink messages as ours and has no addresses to manage.

use serde_json::json;

use crate::bench::cni::FLOOR;
use crate::bench::cni::subject::{Binaries, Subject};

/// The group that its DEL puts links into; not ours (7273), so that an agent in the same namespace leaves it alone.
const DOOMED_GROUP: &str = "7274";

/// crates/bench/src/floor.rs.
pub fn subject(binaries: &Binaries) -> Subject {
    let config = json!({"cniVersion": "1.0.0", "name": "bench", "type": "russet-bench-floor"});
    let mut floor = Subject::new(FLOOR, &binaries.floor, &config);
    floor.doomed_group = Some(DOOMED_GROUP);
    floor.arguments = |pod| {
        let [high, low] = (pod.number as u16).to_be_bytes();
        format!("IP=10.253.{high}.{low}")
    };
    floor
}
