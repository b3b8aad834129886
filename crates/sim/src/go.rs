//! A model of the Go allocator (calico-ipam.md sections 2, 3 and 7): the order of its steps, its retries, its compensations and its bugs, in the behaviours
//! of <=3.31, 3.32 and 3.33. Written from that description, not from its code; shares no code with our allocator, so that it cannot share a mistake.
//!
//! What it does not have: hosts of Windows, load balancers, KubeVirt, the garbage collector. Blocks are searched from the same hash, less scrambled.

mod affinity;
mod assign;
mod block;
mod find;
mod handle;
mod kv;
mod release;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::SystemTime;

use russet_addr::{Family, NodeName};
use russet_model::{Attribute, HandleId, time};
use russet_store::{Store, StoreError};

use block::Wanted;

/// Which behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 3.31 and older.
    V331,
    /// 3.32.
    V332,
    /// 3.33.
    V333,
}

/// One process.
pub struct Go {
    store: Rc<dyn Store>,
    environment: Rc<dyn Environment>,
    host: NodeName,
    version: Version,
}

/// What a process has besides its store.
pub trait Environment {
    /// The time.
    fn now(&self) -> SystemTime;

    /// Notes an error that the allocator only logs.
    fn note(&self, line: &dyn Fn() -> String);
}

/// calico-ipam.md section 2.2.
#[allow(missing_docs, reason = "names as there")]
#[derive(Debug)]
pub enum GoError {
    /// A guarded update lost; also a wrong handle or sequence number in a release.
    Conflict,
    AlreadyExists,
    NotFound,
    /// Time-outs, lost connections and all else: taken for "not done".
    Datastore(StoreError),
    Corrupt(String),
    ClaimConflict,
    StaleAffinity,
    NotEmpty,
    NoFreeBlocks,
    BlockLimit,
    Affinity,
    Other(&'static str),
}

type Result<T> = std::result::Result<T, GoError>;

/// `datastoreRetries`: for every loop, without a pause.
const RETRIES: u32 = 100;

// === impl Go ===

impl Go {
    /// A process on `host`.
    pub fn new(
        store: Rc<dyn Store>,
        environment: Rc<dyn Environment>,
        host: NodeName,
        version: Version,
    ) -> Self {
        Self { store, environment, host, version }
    }

    /// CNI ADD (calico-ipam.md section 4.2), and the main plugin's DEL when it fails.
    pub async fn add(&self, handle: &HandleId, pod: &str, v4: u32, v6: u32) -> Result<Vec<IpAddr>> {
        let result = self.assign_both(handle, pod, v4 as usize, v6 as usize).await;
        if result.is_err() {
            let _ = self.del(handle).await;
        }
        result
    }

    async fn assign_both(&self, handle: &HandleId, pod: &str, v4: usize, v6: usize) -> Result<Vec<IpAddr>> {
        let owner = self.owner(handle, pod);
        let four = self.auto_assign(Family::V4, v4, handle, &owner).await?;
        let six = self.auto_assign(Family::V6, v6, handle, &owner).await?;
        if four.len() == v4 && six.len() == v6 {
            return Ok(four.into_iter().chain(six).collect());
        }
        // Dual-stack shortfall: by address, without handle or sequence number.
        let all = four.iter().chain(&six).map(|address| Wanted::unguarded(*address)).collect();
        let _ = self.release_ips(all).await;
        Err(GoError::Other("Assigned too few addresses"))
    }

    /// CNI ADD with `IP=`.
    pub(crate) async fn pin(&self, handle: &HandleId, pod: &str, address: IpAddr) -> Result<()> {
        let result = self.assign_ip(handle, &self.owner(handle, pod), address).await;
        if result.is_err() {
            let _ = self.del(handle).await;
        }
        result
    }

    /// CNI DEL (calico-ipam.md section 4.3): by handle, and by the workload's name for the sake of v2.
    pub(crate) async fn del(&self, handle: &HandleId) -> Result<()> {
        let old = HandleId::new(format!("default.{handle}")).map_err(|_| GoError::Other("bad handle"))?;
        for handle in [handle, &old] {
            match self.release_by_handle(handle).await {
                Ok(()) | Err(GoError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What `calicoctl ipam release` and the garbage collector do with what a handle holds.
    pub(crate) async fn del_addresses(&self, handle: &HandleId) -> Result<()> {
        let held = match self.ips_by_handle(handle).await {
            Err(GoError::NotFound) => return Ok(()),
            held => held?,
        };
        self.release_ips(held).await
    }

    fn owner(&self, handle: &HandleId, pod: &str) -> Attribute {
        let timestamp = time::go_timestamp(self.environment.now());
        let secondary = [
            ("node", self.host.to_string()),
            ("pod", pod.to_owned()),
            ("namespace", "default".into()),
            ("timestamp", timestamp),
        ];
        let secondary: BTreeMap<String, String> =
            secondary.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Attribute { handle_id: Some(handle.to_string()), secondary: Some(secondary), ..Attribute::default() }
    }
}

impl fmt::Display for GoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Datastore(error) => error.fmt(f),
            Self::Corrupt(text) => f.write_str(text),
            Self::Other(text) => f.write_str(text),
            other => fmt::Debug::fmt(other, f),
        }
    }
}

impl std::error::Error for GoError {}

#[cfg(test)]
mod tests;
