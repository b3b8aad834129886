//! Lists: pages of one snapshot of each collection that a prefix needs (kubernetes.md sections 1.15
//! and 4.1), or a streamed list where the server has them.

use std::time::Duration;

use russet_kube::{Failure, Request};
use russet_model::Prefix;
use russet_store::{Record, Revision, Snapshot, StoreError, refused};
use serde::Deserialize;
use serde_json::Value;

use crate::companion::revision_of;
use crate::convert::{ConvertError, Converted, Form, pod_key, to_record};
use crate::engine::KubeStore;
use crate::failure::{Effect, Verdict, general, verdict};
use crate::place::{Collection, Scope};

/// Objects per page, as in client-go.
const PAGE: usize = 500;
/// Limit of a page: a server may return a whole collection at once, whatever the limit.
const MAX_PAGE_BYTES: usize = 512 << 20;
const LIST_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
    /// How many objects come after this page.
    remaining_item_count: Option<u32>,
}

/// What an object of a list or an event means.
pub(crate) enum Read {
    Record(Record),
    /// A pod's endpoint that cannot be read. Its pod may have any address: who decides by a list that
    /// an address is unused must see that there is such a record, as in other stores.
    Unreadable(Record),
    /// No record, or not any more.
    Gone(russet_model::Key),
    /// It never has a record, or it is invalid, which was logged.
    Nothing,
}

// === impl KubeStore ===

impl KubeStore {
    pub(crate) async fn list_records(&self, prefix: &Prefix) -> Result<Snapshot, StoreError> {
        let mut snapshot = Snapshot::default();
        for scope in Scope::of(prefix)? {
            let Some((records, revision)) = self.list_scope(&scope, prefix).await? else { continue };
            snapshot.records.extend(records);
            snapshot.revision = snapshot.revision.max(revision);
        }
        // Names of objects are in another order than keys.
        snapshot.records.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(snapshot)
    }

    /// Whether there is any record: one object of each collection usually shows it.
    pub(crate) async fn holds_any(&self, prefix: &Prefix) -> Result<bool, StoreError> {
        for scope in Scope::of(prefix)? {
            let form = self.form_of(scope.collection).await?;
            let (page, _, next) = match self.page_of(&scope, Some(1), None).await {
                Err(failure) if self.lacks(scope.collection, &failure).await => continue,
                done => done.map_err(|failure| self.list_failed(failure))?,
            };
            let first = page.iter().any(|object| {
                let read = self.read_object(&scope, prefix, &form, object);
                matches!(read, Read::Record(_) | Read::Unreadable(_))
            });
            if first {
                return Ok(true);
            }
            if next.is_none() {
                continue;
            }
            let listed = self.list_scope(&scope, prefix).await?;
            if listed.is_some_and(|(records, _)| !records.is_empty()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The records of a scope, in the order of their objects' names. Watches report those that are
    /// [readable](is_readable) only. None if the cluster lacks the resource, and need not have it.
    pub(crate) async fn list_scope(
        &self,
        scope: &Scope,
        prefix: &Prefix,
    ) -> Result<Option<(Vec<Record>, Revision)>, StoreError> {
        let form = self.form_of(scope.collection).await?;
        let record = |object: &Value| match self.read_object(scope, prefix, &form, object) {
            Read::Record(record) | Read::Unreadable(record) => Some(record),
            Read::Gone(_) | Read::Nothing => None,
        };
        let listed = match self.pages(scope, Some(PAGE), record).await {
            // The pages expired because reading them took too long: everything in one answer.
            Err(failure) if failure.expired => self.pages(scope, None, record).await,
            done => done,
        };
        match listed {
            Err(failure) if self.lacks(scope.collection, &failure).await => Ok(None),
            done => done.map(Some).map_err(|failure| self.list_failed(failure)),
        }
    }

    /// Whether a request has failed because the cluster lacks a resource that Russet works without, such
    /// as those that newer versions of Calico have added. The answer 404 alone does not show it: it is the
    /// same when the whole group is gone, as at the end of a migration to the other one.
    async fn lacks(&self, collection: Collection, failure: &Failure) -> bool {
        if !collection.is_optional() || verdict(failure) != Verdict::NoResource {
            return false;
        }
        let Ok(form) = self.form_of(collection).await else { return false };
        let Ok(found) = self.discovered(form.group).await else { return false };
        let resources = found.get("resources").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let has = |plural: &str| {
            resources.iter().any(|resource| resource.get("name").and_then(Value::as_str) == Some(plural))
        };
        has(Collection::Blocks.names(form.group).1) && !has(collection.names(form.group).1)
    }

    /// The objects of a scope as the server has them in its cache, which costs it least; they may be
    /// a little old, and are written under their guards only.
    pub(crate) async fn cached_objects(&self, scope: &Scope) -> Result<Vec<Value>, StoreError> {
        self.form_of(scope.collection).await?;
        let mut request = self.list_request(scope).await.map_err(|failure| self.list_failed(failure))?;
        request.query.push(("resourceVersion", "0".to_owned()));
        let listed = self.list(&request).await.map_err(|failure| self.list_failed(failure))?;
        Ok(listed.items.unwrap_or_default())
    }

    /// Reads all pages of one snapshot.
    async fn pages<T>(
        &self,
        scope: &Scope,
        limit: Option<usize>,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<(Vec<T>, Revision), Failure> {
        let mut found = Vec::new();
        let mut next = None;
        loop {
            let (objects, revision, more) = self.page_of(scope, limit, next.take()).await?;
            found.extend(objects.iter().filter_map(&read));
            match more {
                None => return Ok((found, revision)),
                more => next = more,
            }
        }
    }

    /// One page: its objects, the revision of the list, and the token of the next page.
    async fn page_of(
        &self,
        scope: &Scope,
        limit: Option<usize>,
        next: Option<String>,
    ) -> Result<(Vec<Value>, Revision, Option<String>), Failure> {
        let mut request = self.list_request(scope).await?;
        request.query.extend(limit.map(|limit| ("limit", limit.to_string())));
        request.query.extend(next.map(|next| ("continue", next)));
        let list = self.list(&request).await?;
        let nonsense = |reason: String| Failure::nonsense(&request.operation, reason);
        let revision = list.metadata.resource_version.parse().map(Revision);
        let revision =
            revision.map_err(|_| nonsense("the list's resourceVersion is no number".to_owned()))?;
        let next = list.metadata.next.filter(|next| !next.is_empty());
        Ok((list.items.unwrap_or_default(), revision, next))
    }

    async fn list(&self, request: &Request) -> Result<List, Failure> {
        self.decoded(&request.operation, &self.send(request).await?)
    }

    /// About how many nodes the cluster has: one list of one object.
    pub async fn count_nodes(&self) -> Result<u32, StoreError> {
        let scope = Scope { collection: Collection::Nodes, namespace: None, labels: None, fields: None };
        let counted = async {
            let mut request = self.list_request(&scope).await?;
            request.query.push(("limit", "1".to_owned()));
            self.list(&request).await
        };
        let list = counted.await.map_err(|failure| self.list_failed(failure))?;
        let first = u32::try_from(list.items.unwrap_or_default().len()).unwrap_or(u32::MAX);
        Ok(list.metadata.remaining_item_count.unwrap_or(0).saturating_add(first))
    }

    /// The revision of a collection now, for comparison with what a watch knows.
    pub(crate) async fn current(&self, scope: &Scope) -> Result<Revision, Failure> {
        self.page_of(scope, Some(1), None).await.map(|(_, revision, _)| revision)
    }

    pub(crate) async fn list_request(&self, scope: &Scope) -> Result<Request, Failure> {
        let plural = scope.collection.names(crate::Group::V1).1;
        let operation = format!("list {plural}");
        let form = self.form_of(scope.collection).await;
        let form = form.map_err(|error| Failure::nonsense(&operation, error.to_string()))?;
        Ok(Request {
            operation,
            verb: self.reads,
            segments: scope.collection.path(form.group, scope.namespace.as_deref()),
            query: scope.query(),
            body: Vec::new(),
            deadline: LIST_DEADLINE,
            limit_bytes: MAX_PAGE_BYTES,
        })
    }

    pub(crate) fn list_failed(&self, failure: Failure) -> StoreError {
        if verdict(&failure) == Verdict::NoResource {
            self.doubt_group();
        }
        general(failure, Effect::Read)
    }

    /// The record of a pod's endpoint, as a list would have it; none if the pod has none. The update of
    /// this record then needs no read.
    pub fn endpoint(&self, pod: &Value) -> Option<Record> {
        let scope = Scope { collection: Collection::Pods, namespace: None, labels: None, fields: None };
        let interface_prefix = self.inner.settings.interface_prefix.clone();
        let form = Form { group: crate::Group::V1, interface_prefix };
        match self.read_object(&scope, &Prefix::workload_endpoints(), &form, pod) {
            Read::Record(record) | Read::Unreadable(record) => Some(record),
            Read::Gone(_) | Read::Nothing => None,
        }
    }

    /// What an object means for a prefix. An invalid one is skipped alone, and logged once.
    pub(crate) fn read_object(&self, scope: &Scope, prefix: &Prefix, form: &Form, object: &Value) -> Read {
        let named = || {
            let part = |name: &str| object.pointer(&format!("/metadata/{name}")).and_then(Value::as_str);
            format!(
                "{} {}/{}",
                scope.collection.names(form.group).0,
                part("namespace").unwrap_or(""),
                part("name").unwrap_or("")
            )
        };
        let converted = match to_record(scope.collection, form, object) {
            Ok(Some(converted)) => converted,
            Ok(None) => return Read::Nothing,
            Err(error) => {
                refused("object of the Kubernetes API not used", named(), &error);
                return unreadable(scope, prefix, object, &error);
            }
        };
        let Converted { key, value } = converted;
        let Some(revision) = revision_of(object) else {
            refused("object of the Kubernetes API not used", named(), "its resourceVersion is no number");
            return Read::Nothing;
        };
        match value {
            _ if !prefix.covers(&key) => Read::Nothing,
            None => Read::Gone(key),
            Some(value) => {
                self.heed(scope.collection, object);
                // There may be hundreds of thousands of handles, and one process writes a few.
                if scope.collection != Collection::Handles {
                    self.inner.memory.keep(&key, object);
                }
                Read::Record(Record { key, value, revision })
            }
        }
    }
}

/// What an object without a valid record means. Only a pod's key does not depend on its invalid members.
fn unreadable(scope: &Scope, prefix: &Prefix, object: &Value, error: &ConvertError) -> Read {
    let key = pod_key(object).filter(|key| scope.collection == Collection::Pods && prefix.covers(key));
    match (key, revision_of(object)) {
        (Some(key), Some(revision)) => {
            Read::Unreadable(Record { key, value: unreadable_value(error), revision })
        }
        _ => Read::Nothing,
    }
}

/// A value that cannot be decoded, and says why.
pub(crate) fn unreadable_value(error: &ConvertError) -> Vec<u8> {
    format!("unreadable: {error}").into_bytes()
}

/// Whether a record has a value that was converted, which is always a JSON object.
pub(crate) fn is_readable(record: &Record) -> bool {
    record.value.first() == Some(&b'{')
}
