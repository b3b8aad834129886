//! The API group of Calico's resources (kubernetes.md section 1.1): that of its resource definitions,
//! or the one in which newer clusters serve them natively.

use std::fmt;
use std::time::Duration;

use russet_kube::Failure;
use russet_store::{Cause, StoreError};
use russet_sync::random;
use serde_json::Value;
use tokio::time::Instant;

use crate::engine::{KubeStore, lock};
use crate::failure::{Effect, MISSING, Verdict, general, verdict};

/// A group with its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// `crd.projectcalico.org/v1`: metadata of Calico's API travels in an annotation.
    V1,
    /// `projectcalico.org/v3`.
    V3,
}

/// What is known about the group in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    group: Group,
    /// When it is looked for again.
    until: Instant,
}

/// Interval of looks at the groups that the cluster serves: a random time up to twice this, so that
/// not all nodes look at once.
const LOOK_AGAIN: Duration = Duration::from_secs(150);
/// The same while the group in use is locked, as during a migration to the other one.
const LOOK_AGAIN_LOCKED: Duration = Duration::from_secs(5);

// === impl KubeStore ===

impl KubeStore {
    /// The group of Calico's resources, found at first use. A long-lived process looks again beside
    /// its requests, which do not wait for that: a migration moves all objects to the other group,
    /// and leaves those of the old one locked (kubernetes.md section 1.14).
    pub async fn group(&self) -> Result<Group, StoreError> {
        if let Some(chosen) = self.inner.settings.group {
            return Ok(chosen);
        }
        let known = *lock(&self.inner.group);
        match known {
            Some(Known { group, until }) => {
                if Instant::now() >= until {
                    self.look_again(LOOK_AGAIN);
                }
                Ok(group)
            }
            None => {
                let found = discover(self).await?;
                self.use_group(found, LOOK_AGAIN);
                Ok(found)
            }
        }
    }

    /// Looks for the group at the next use, unless the operator has set it: a resource of it was
    /// missing.
    pub(crate) fn doubt_group(&self) {
        lock(&self.inner.group).take();
    }

    /// Looks again soon if this is the `ClusterInformation` of a locked group.
    pub(crate) fn heed_lock(&self, object: &Value) {
        let is_locked = object.pointer("/spec/datastoreReady").and_then(Value::as_bool) == Some(false);
        if is_locked && self.inner.settings.group.is_none() {
            let soon = Instant::now() + LOOK_AGAIN_LOCKED;
            let mut known = lock(&self.inner.group);
            if let Some(known) = known.as_mut().filter(|known| known.until > soon) {
                known.until = Instant::now();
            }
        }
    }

    /// The list of a group's resources.
    pub(crate) async fn discovered(&self, group: Group) -> Result<Value, Failure> {
        let (name, version) = group.parts();
        self.read(format!("list the resources of {group}"), &["apis", name, version], &[]).await
    }

    /// Looks in a task of its own. An error says nothing about the groups: the group stays.
    fn look_again(&self, interval: Duration) {
        if let Some(known) = &mut *lock(&self.inner.group) {
            known.until = Instant::now() + LOOK_AGAIN_LOCKED;
        }
        let store = self.clone();
        tokio::spawn(async move {
            let found = async {
                let group = discover(&store).await?;
                let is_locked = is_ready(&store, group).await? == Some(false);
                Ok::<_, StoreError>((group, if is_locked { LOOK_AGAIN_LOCKED } else { interval }))
            };
            match found.await {
                Ok((group, interval)) => store.use_group(group, interval),
                Err(error) => tracing::debug!(%error, "the group of Calico's resources stays as it was"),
            }
        });
    }

    fn use_group(&self, group: Group, interval: Duration) {
        let most = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
        let until = Instant::now() + interval + Duration::from_millis(random() % most);
        let before = lock(&self.inner.group).replace(Known { group, until });
        if before.is_some_and(|before| before.group != group) {
            tracing::info!(%group, "the cluster has moved to another group of Calico's resources");
            self.inner.memory.clear();
            self.inner.restarts.send_modify(|count| *count += 1);
        }
    }
}

// === impl Group ===

impl Group {
    /// The group that a value of Calico's `calico_api_group` or `CALICO_API_GROUP` chooses, as Calico
    /// reads it: none for an empty value, and the older one for any that is not the newer one's name.
    pub fn configured(text: &str) -> Option<Self> {
        match text {
            "" => None,
            text if text.eq_ignore_ascii_case(&Self::V3.to_string()) => Some(Self::V3),
            _ => Some(Self::V1),
        }
    }

    /// Name and version, as in paths.
    pub(crate) fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::V1 => ("crd.projectcalico.org", "v1"),
            Self::V3 => ("projectcalico.org", "v3"),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, version) = self.parts();
        write!(f, "{group}/{version}")
    }
}

/// The group that the cluster serves. With both, the older one, until it is locked and the newer one
/// is ready, as at the end of a migration.
pub(crate) async fn discover(store: &KubeStore) -> Result<Group, StoreError> {
    match (is_served(store, Group::V1).await?, is_served(store, Group::V3).await?) {
        (true, false) => Ok(Group::V1),
        (false, true) => Ok(Group::V3),
        (true, true) => {
            let moved = is_ready(store, Group::V1).await? == Some(false)
                && is_ready(store, Group::V3).await? == Some(true);
            Ok(if moved { Group::V3 } else { Group::V1 })
        }
        (false, false) => {
            let operation = "find Calico's resources in the cluster".to_owned();
            let text = format!("neither {} nor {} is served: {MISSING}", Group::V1, Group::V3);
            Err(StoreError::Unavailable { operation, source: Cause::text(text) })
        }
    }
}

async fn is_served(store: &KubeStore, group: Group) -> Result<bool, StoreError> {
    Ok(found(store.discovered(group).await)?.is_some())
}

/// Whether a group's `ClusterInformation` says that it may be used; none if there is none.
async fn is_ready(store: &KubeStore, group: Group) -> Result<Option<bool>, StoreError> {
    let (name, version) = group.parts();
    let path = ["apis", name, version, "clusterinformations", "default"];
    let answer = store.read(format!("get the cluster's information in {group}"), &path, &[]).await;
    Ok(found(answer)?.and_then(|object| object.pointer("/spec/datastoreReady")?.as_bool()))
}

fn found(answer: Result<Value, Failure>) -> Result<Option<Value>, StoreError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(failure) => match verdict(&failure) {
            Verdict::NotFound | Verdict::NoResource => Ok(None),
            _ => Err(general(failure, Effect::Read)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_in_calicos_configuration() {
        // kubernetes.md section 1.1
        assert_eq!(Group::configured("projectcalico.org/V3"), Some(Group::V3));
        assert_eq!(Group::configured("crd.projectcalico.org/v1"), Some(Group::V1));
        assert_eq!((Group::configured("v2"), Group::configured("")), (Some(Group::V1), None));
    }
}
