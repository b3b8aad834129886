//! `russet apply`: creates missing resources and changes existing ones, guarded by the revision
//! that was read or that the file names. Everything is checked before anything is written.

use russet_addr::IpNet;
use russet_model::{IpPool, Key, Resource, ResourceKind};
use russet_store::{BoxFuture, Record, Revision, Step, Store, StoreError};
use serde_json::Value;

use super::place::Place;
use super::{Failure, runtime};
use crate::cli::resources::{ApplyArgs, DoneFormat};
use crate::output;
use crate::resources::{
    Definition, Document, Kind, Problems, Refused, UnknownKinds, each_kind, is_built_in_tier, prepare, read,
};

/// Attempts at one change while others write the same resource; an attempt fails only if another
/// write took effect.
const TRIES_MAX: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Created,
    Configured,
    Unchanged,
}

/// A resource that is valid by itself, whatever is stored.
struct Prepared<S> {
    origin: String,
    resource: Resource<S>,
    key: Key,
    /// The revision that it must be changed from, if the file names one.
    revision: Option<Revision>,
}

#[derive(Debug, thiserror::Error)]
enum ApplyError {
    /// Another client changed it since the file was read.
    #[error(
        "{origin}: {subject} is at resourceVersion {stored}, not {named}: another client changed it; get it again"
    )]
    Outdated { origin: String, subject: String, named: u64, stored: u64 },
    /// It was deleted since the file was read.
    #[error("{origin}: {subject} does not exist any more; leave out resourceVersion to make it anew")]
    Gone { origin: String, subject: String },
    /// Other clients change it all the time.
    #[error("{origin}: {subject} was changed by others {TRIES_MAX} times in a row; try again")]
    Contended { origin: String, subject: String },
    /// The files contain no resource.
    #[error("there are no resources in the files")]
    Nothing,
    /// Some are applied and some are not.
    #[error("{applied} of {all} applied: {source}")]
    Part { applied: usize, all: usize, source: Failure },
}

/// Applies every resource of the files, in order.
pub fn run(mut args: ApplyArgs) -> Result<(), Failure> {
    let mut documents = Vec::new();
    let unknown = if args.skip_unknown_kinds { UnknownKinds::Skip } else { UnknownKinds::Refuse };
    for file in &args.files {
        documents.extend(read(file, unknown)?);
    }
    if documents.is_empty() {
        return Err(ApplyError::Nothing.into());
    }
    let namespace = args.namespace.namespace.clone();
    for document in &mut documents {
        settle_namespace(document, namespace.as_deref())?;
        each_kind!(document.kind, checked(document))?;
    }
    overlaps(&documents)?;
    runtime()?.block_on(async {
        let choice = std::mem::take(&mut args.place);
        // Pools may be written before the first agent starts.
        let place =
            if args.dry_run { Place::open(choice).await? } else { Place::open_or_make(choice).await? };
        for document in &documents {
            require_tier(&place, document, &documents).await?;
        }
        // First as a dry run, so that a refusal leaves everything unchanged.
        let mut would = Vec::new();
        for document in &documents {
            would.push(each_kind!(document.kind, boxed(&place, document, true)).await?);
        }
        let all = documents.len();
        for (applied, (document, would)) in documents.iter().zip(would).enumerate() {
            let outcome = match args.dry_run {
                true => would,
                false => each_kind!(document.kind, boxed(&place, document, false))
                    .await
                    .map_err(|source| ApplyError::Part { applied, all, source })?,
            };
            print_outcome(document, outcome, &args);
        }
        Ok(())
    })
}

/// Sets the command line's namespace on namespaced resources that name none.
fn settle_namespace(document: &mut Document, wanted: Option<&str>) -> Result<(), Refused> {
    if !document.kind.resource().namespaced() {
        return Ok(());
    }
    let Some(Value::Object(metadata)) = document.members.get_mut("metadata") else { return Ok(()) };
    let given = metadata.get("namespace").and_then(Value::as_str).map(str::to_owned);
    match (given, wanted) {
        (Some(given), Some(wanted)) if given != wanted => {
            let mut problems = Problems::default();
            problems.add("metadata.namespace", &format!("{given:.60?} is not the --namespace {wanted:.60?}"));
            Err(document.refused(problems))
        }
        (Some(_), _) => Ok(()),
        (None, wanted) => {
            metadata.insert("namespace".to_owned(), wanted.unwrap_or("default").into());
            Ok(())
        }
    }
}

fn checked<S: Definition>(document: &Document) -> Result<(), Refused> {
    prepared::<S>(document).map(|_| ())
}

fn prepared<S: Definition>(document: &Document) -> Result<Prepared<S>, Refused> {
    let (resource, revision) = prepare::<S>(document)?;
    let metadata = &resource.metadata;
    let key = Key::resource(S::KIND, metadata.namespace.as_deref(), &metadata.name).map_err(|error| {
        let mut problems = Problems::default();
        problems.add("metadata.name", &error.to_string());
        document.refused(problems)
    })?;
    Ok(Prepared { origin: document.origin.clone(), resource, key, revision })
}

/// The same type of future for every kind.
fn boxed<'a, S: Definition + 'a>(
    place: &'a Place,
    document: &'a Document,
    dry_run: bool,
) -> BoxFuture<'a, Result<Outcome, Failure>> {
    Box::pin(async move { prepared::<S>(document)?.apply(place, document, dry_run).await })
}

fn print_outcome(document: &Document, outcome: Outcome, args: &ApplyArgs) {
    if args.format == DoneFormat::Name {
        let name = document.metadata("name").unwrap_or_default();
        output::print(&(output::short_name(document.kind.resource(), &name) + "\n"));
        return;
    }
    let done = match outcome {
        Outcome::Created => "created",
        Outcome::Configured => "configured",
        Outcome::Unchanged => "unchanged",
    };
    let tried = if args.dry_run { " (dry run)" } else { "" };
    output::print(&format!("{} {done}{tried}\n", document.subject()));
}

/// Refuses a policy whose tier does not exist, as Calico's API does (policy.md section 1.4): it would come
/// after all tiers, and deny. The tier may be in the same files.
async fn require_tier(place: &Place, document: &Document, all: &[Document]) -> Result<(), Failure> {
    use Kind::{GlobalNetworkPolicy, NetworkPolicy, StagedGlobalNetworkPolicy, StagedNetworkPolicy};
    if !matches!(
        document.kind,
        GlobalNetworkPolicy | NetworkPolicy | StagedGlobalNetworkPolicy | StagedNetworkPolicy
    ) {
        return Ok(());
    }
    let tier = document.members.get("spec").and_then(|spec| spec.get("tier")).and_then(Value::as_str);
    let Some(tier) = tier.filter(|tier| !tier.is_empty() && !is_built_in_tier(tier)) else { return Ok(()) };
    let is_it = |it: &Document| it.kind == Kind::Tier && it.metadata("name").as_deref() == Some(tier);
    if all.iter().any(is_it) {
        return Ok(());
    }
    // A name that cannot be a key is that of no tier.
    if let Ok(key) = Key::resource(ResourceKind::Tier, None, tier)
        && place.store.get(&key).await?.is_some()
    {
        return Ok(());
    }
    let mut problems = Problems::default();
    problems
        .add("spec.tier", &format!("tier {tier:.60?} does not exist: apply it before, or in the same files"));
    Err(document.refused(problems).into())
}

/// Pools of the files that overlap each other.
fn overlaps(documents: &[Document]) -> Result<(), Refused> {
    let cidr = |document: &Document| -> Option<IpNet> {
        let spec = document.members.get("spec").filter(|_| document.kind == Kind::Pool)?;
        spec.get("cidr")?.as_str()?.parse().ok()
    };
    for (index, document) in documents.iter().enumerate() {
        for other in &documents[..index] {
            let (Some(net), Some(taken)) = (cidr(document), cidr(other)) else { continue };
            if document.subject() != other.subject() && (net.contains(&taken) || taken.contains(&net)) {
                let mut problems = Problems::default();
                problems.add(
                    "spec.cidr",
                    &format!("{net} overlaps {taken} of {}, {}", other.subject(), other.origin),
                );
                return Err(document.refused(problems));
            }
        }
    }
    Ok(())
}

// === impl Prepared ===

impl<S: Definition> Prepared<S> {
    async fn apply(&self, place: &Place, document: &Document, dry_run: bool) -> Result<Outcome, Failure> {
        let (origin, subject) = (self.origin.clone(), document.subject());
        for _ in 0..TRIES_MAX {
            let done = match (place.store.get(&self.key).await?, self.revision) {
                (None, Some(_)) => return Err(ApplyError::Gone { origin, subject }.into()),
                (Some(stored), Some(named)) if stored.revision != named => {
                    let (named, stored) = (named.0, stored.revision.0);
                    return Err(ApplyError::Outdated { origin, subject, named, stored }.into());
                }
                (None, None) => self.create(place, dry_run).await?,
                (Some(stored), _) => self.change(place, document, &stored, dry_run).await?,
            };
            if let Some(outcome) = done {
                return Ok(outcome);
            }
        }
        Err(ApplyError::Contended { origin, subject }.into())
    }

    /// Returns None if another client created it first.
    async fn create(&self, place: &Place, dry_run: bool) -> Result<Option<Outcome>, Failure> {
        let mut resource = Resource::<S>::decode(&self.resource.encode())?;
        stamp(&mut resource)?;
        let value = resource.encode();
        if is_pool::<S>() {
            // The allocator refuses pools that overlap others, or blocks of another size.
            let pool = IpPool::decode(&value)?;
            let created = match dry_run {
                true => place.allocator().check_pool(&pool).await,
                false => place.allocator().create_pool(pool).await,
            };
            return match created {
                Ok(()) => Ok(Some(Outcome::Created)),
                Err(russet_ipam::IpamError::Store { source, .. }) if source.lost_race() => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
        if dry_run {
            return Ok(Some(Outcome::Created));
        }
        commit(
            &*place.store,
            &self.key,
            &value,
            Step::create(self.key.clone(), value.clone()),
            Outcome::Created,
        )
        .await
    }

    /// The resource, with the members of the stored spec that only a newer release of Calico knows:
    /// no file of ours can contain them (calico-ipam.md section 1.10).
    fn with_unknown_members(&self, old: &Resource<S>) -> Result<Resource<S>, Failure> {
        let mut value = self.resource.to_value();
        let stored = old.to_value();
        for (name, member) in stored["spec"].as_object().into_iter().flatten() {
            if !S::FIELDS.iter().any(|field| field.0 == name) {
                value["spec"][name] = member.clone();
            }
        }
        Ok(Resource::decode(value.to_string().as_bytes())?)
    }

    /// Returns None if another client changed it in between.
    async fn change(
        &self,
        place: &Place,
        document: &Document,
        stored: &Record,
        dry_run: bool,
    ) -> Result<Option<Outcome>, Failure> {
        let old = Resource::<S>::decode(&stored.value)?;
        let mut new = self.with_unknown_members(&old)?;
        let mut problems = Problems::default();
        if let (Some(wanted), Some(found)) = (&new.metadata.uid, &old.metadata.uid) {
            problems.unless(wanted == found, "metadata.uid", "another resource has this name now");
        }
        S::check_change(&old, &mut new, &mut problems);
        if !problems.is_empty() {
            return Err(document.refused(problems).into());
        }
        new.metadata.uid = old.metadata.uid;
        new.metadata.creation_timestamp = old.metadata.creation_timestamp;
        new.metadata.deletion_timestamp = old.metadata.deletion_timestamp;
        new.metadata.generate_name = new.metadata.generate_name.or(old.metadata.generate_name);
        for (name, value) in old.metadata.extra {
            new.metadata.extra.entry(name).or_insert(value);
        }
        new.status = old.status;
        stamp(&mut new)?;
        let value = new.encode();
        if value == stored.value {
            return Ok(Some(Outcome::Unchanged));
        }
        if dry_run {
            return Ok(Some(Outcome::Configured));
        }
        let step = Step::update(self.key.clone(), value.clone(), stored.revision);
        commit(&*place.store, &self.key, &value, step, Outcome::Configured).await
    }
}

fn is_pool<S: Definition>() -> bool {
    S::KIND == Kind::Pool.resource()
}

/// Returns None if another client was faster. If the outcome is unknown, the stored value decides.
async fn commit(
    store: &dyn Store,
    key: &Key,
    value: &[u8],
    step: Step,
    outcome: Outcome,
) -> Result<Option<Outcome>, Failure> {
    let error: StoreError = match store.commit(vec![step]).await {
        Ok(_) => return Ok(Some(outcome)),
        Err(error) => error.into(),
    };
    if error.lost_race() {
        return Ok(None);
    }
    let done = error.outcome_unknown() && store.get(key).await?.is_some_and(|record| record.value == value);
    if done { Ok(Some(outcome)) } else { Err(error.into()) }
}

/// Sets the members that every stored resource must have (calico-ipam.md section 1.8).
fn stamp<S>(resource: &mut Resource<S>) -> std::io::Result<()> {
    let metadata = &mut resource.metadata;
    if metadata.uid.is_none() {
        metadata.uid = Some(std::fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned());
    }
    let now = || russet_model::time::rfc3339(std::time::SystemTime::now());
    metadata.creation_timestamp.get_or_insert_with(now);
    Ok(())
}
