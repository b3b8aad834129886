//! The envelope of v3 resources: kind, metadata, spec, status (calico-ipam.md section 1.8). Each
//! kind's spec has its own file.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json::{self, DecodeError, Extra, Fields, Object};
use crate::{HandleId, ResourceKind};

/// The `apiVersion` of v3 resources.
pub const API_VERSION: &str = "projectcalico.org/v3";

/// One resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource<S> {
    /// Its metadata.
    pub metadata: Metadata,
    /// Its spec.
    pub spec: S,
    /// Its status, unchanged.
    pub status: Option<Extra>,
    /// Members that we do not know.
    pub extra: Extra,
}

/// A resource's metadata. `resourceVersion` and `selfLink` are never stored: the revision is the store's own.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    /// The name, as in the key.
    pub name: String,
    /// The prefix from which the name was generated.
    pub generate_name: Option<String>,
    /// The namespace, as in the key.
    pub namespace: Option<String>,
    /// A random UUID. Peers cannot update a resource without one.
    pub uid: Option<String>,
    /// RFC 3339. Peers cannot update a resource without one.
    pub creation_timestamp: Option<String>,
    /// RFC 3339; set while the resource is being deleted.
    pub deletion_timestamp: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Members that we do not know.
    pub extra: Extra,
}

/// The specific part of a kind of resource.
pub trait Spec: Sized {
    /// Its kind.
    const KIND: ResourceKind;
    /// The name in errors.
    const WHAT: &'static str;

    /// Takes the spec's members; the rest is the spec's own [`Extra`].
    #[doc(hidden)]
    fn from_members(members: SpecMembers) -> Result<Self, DecodeError>;

    /// Writes the spec.
    #[doc(hidden)]
    fn to_value(&self) -> Value;
}

/// The members of a spec that is being read; opaque outside this crate.
pub struct SpecMembers(pub(crate) Fields);

// === impl Resource ===

impl<S: Spec> Resource<S> {
    /// A resource of that name, without UID or creation time, which are set when it is stored.
    pub fn new(name: impl Into<String>, spec: S) -> Self {
        let metadata = Metadata { name: name.into(), ..Metadata::default() };
        Self { metadata, spec, status: None, extra: Extra::new() }
    }

    /// Reads a resource and checks that it is of this kind.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::parse(S::WHAT, bytes)?;
        let (_, wanted) = S::KIND.document();
        if let Some(kind) = fields.string("kind")?
            && kind != wanted
        {
            return Err(fields.error("kind", format!("{wanted} is wanted, not {kind:.60?}")));
        }
        fields.string("apiVersion")?;
        let Some(metadata) = fields.object("metadata")? else {
            return Err(fields.error("metadata", "it is missing"));
        };
        let metadata = Metadata::from_fields(metadata)?;
        let Some(spec) = fields.object("spec")? else { return Err(fields.error("spec", "it is missing")) };
        let spec = S::from_members(SpecMembers(spec))?;
        let status = fields.object("status")?.map(Fields::rest);
        Ok(Self { metadata, spec, status, extra: fields.rest() })
    }

    /// Writes the resource.
    pub fn encode(&self) -> Vec<u8> {
        json::encode(&self.to_value())
    }

    /// The resource as a JSON value, for printing.
    pub fn to_value(&self) -> Value {
        let (version, kind) = S::KIND.document();
        Object::default()
            .put("kind", kind)
            .put("apiVersion", version)
            .put("metadata", self.metadata.to_value())
            .put("spec", self.spec.to_value())
            .put_some("status", self.status.clone())
            .finish(&self.extra)
    }

    /// Whether the status holds the condition `kind` with this `status`.
    pub fn has_condition(&self, kind: &str, status: &str) -> bool {
        let conditions = self.status.as_ref().and_then(|status| status.get("conditions"));
        let is = |condition: &Value, name: &str, text: &str| {
            condition.get(name).and_then(Value::as_str) == Some(text)
        };
        conditions
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().any(|c| is(c, "type", kind) && is(c, "status", status)))
    }
}

// === impl Metadata ===

impl Metadata {
    fn from_fields(mut fields: Fields) -> Result<Self, DecodeError> {
        let name = fields.string("name")?.unwrap_or_default();
        if HandleId::new(name.as_str()).is_err() {
            return Err(fields.error("name", "it is missing or cannot stand in a key"));
        }
        fields.value("resourceVersion");
        fields.value("selfLink");
        Ok(Self {
            name,
            generate_name: fields.string("generateName")?,
            namespace: fields.string("namespace")?,
            uid: fields.string("uid")?,
            creation_timestamp: fields.string("creationTimestamp")?,
            deletion_timestamp: fields.string("deletionTimestamp")?,
            labels: fields.string_map("labels")?.unwrap_or_default(),
            annotations: fields.string_map("annotations")?.unwrap_or_default(),
            extra: fields.rest(),
        })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put("name", self.name.clone())
            .put_some("generateName", self.generate_name.clone())
            .put_some("namespace", self.namespace.clone())
            .put_some("uid", self.uid.clone())
            .put("creationTimestamp", self.creation_timestamp.clone())
            .put_some("deletionTimestamp", self.deletion_timestamp.clone())
            .put_map("labels", &self.labels)
            .put_map("annotations", &self.annotations)
            .finish(&self.extra)
    }
}
