//! The floor: one small static process that sends the same netlink messages as ours and has no addresses to manage.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::cni::FLOOR;
use crate::bench::cni::scratch::Sandbox;
use crate::bench::cni::subject::{Binaries, Subject};
use crate::error::Result;
use crate::process;

/// crates/bench-floor.
pub struct Floor {
    plugin: PathBuf,
}

/// The group that its DEL puts links into; not ours (7273), so that an agent in the same namespace leaves it alone.
const DOOMED_GROUP: &str = "7274";

// === impl Floor ===

impl Floor {
    pub fn new(binaries: &Binaries) -> Self {
        Self { plugin: binaries.floor.clone() }
    }
}

impl Subject for Floor {
    fn name(&self) -> &'static str {
        FLOOR
    }

    fn plugin(&self) -> &Path {
        &self.plugin
    }

    fn config(&self) -> &str {
        r#"{"cniVersion":"1.0.0","name":"bench","type":"russet-bench-floor"}"#
    }

    fn arguments(&self, pod: &Sandbox) -> String {
        let [high, low] = (pod.number as u16).to_be_bytes();
        format!("IP=10.253.{high}.{low}")
    }

    fn settle(&self) -> Result<()> {
        process::run(Command::new("ip").args(["link", "delete", "group", DOOMED_GROUP]))
    }
}
