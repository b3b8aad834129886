//! `russet delete`: deletes resources, and with each what depends on it: a pool's blocks, a node's
//! addresses.

mod node;
mod pool;
mod tier;

use russet_model::{Key, ResourceKind};
use russet_store::{Record, Revision, Step};

use super::place::Place;
use super::{Failure, runtime};
use crate::cli::resources::{DeleteArgs, DoneFormat};
use crate::output;
use crate::resources::{Kind, UnknownKinds, read};

/// Attempts while others write the same resource.
const TRIES_MAX: u32 = 20;

/// A resource to delete.
struct Target {
    kind: Kind,
    namespace: Option<String>,
    name: String,
    /// Delete only if it is at this revision.
    revision: Option<Revision>,
}

#[derive(Debug, thiserror::Error)]
enum DeleteError {
    /// It does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// Another client changed it since the file was read.
    #[error("{subject} is at resourceVersion {stored}, not {named}: another client changed it; get it again")]
    Outdated { subject: String, named: u64, stored: u64 },
    /// Every cluster has it.
    #[error("Tier/{0} belongs to every cluster and cannot be deleted")]
    BuiltInTier(String),
    /// Policies are in it.
    #[error("Tier/{tier} has {count} policies; delete them or move them to another tier first")]
    TierInUse { tier: String, count: usize },
    /// Other clients change it all the time.
    #[error("{0} was changed by others {TRIES_MAX} times in a row; try again")]
    Contended(String),
    /// A file without a name.
    #[error("{0}: metadata.name is missing")]
    Unnamed(String),
    /// A resourceVersion that is not a number.
    #[error("{origin}: metadata.resourceVersion {text:.60?} is no revision")]
    Revision { origin: String, text: String },
}

/// Deletes the named resources, in order.
pub fn run(mut args: DeleteArgs) -> Result<(), Failure> {
    let targets = targets(&args)?;
    runtime()?.block_on(async {
        let place = Place::open(std::mem::take(&mut args.place)).await?;
        for target in &targets {
            let subject = target.subject();
            match delete(&place, target, &args).await {
                Ok(()) if args.format == DoneFormat::Name => {
                    output::print(&(output::short_name(target.resource(), &target.name) + "\n"));
                }
                Ok(()) if args.dry_run => output::print(&format!("{subject} would be deleted (dry run)\n")),
                Ok(()) => output::print(&format!("{subject} deleted\n")),
                Err(error) if args.skip_not_exists && is_missing(&error) => {
                    if args.format == DoneFormat::Text {
                        output::print(&format!("{subject} does not exist\n"));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
}

fn is_missing(error: &Failure) -> bool {
    matches!(error.downcast_ref(), Some(DeleteError::Missing(_)))
}

fn targets(args: &DeleteArgs) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    for file in &args.files {
        for document in read(file, UnknownKinds::Refuse)? {
            let text = |name: &str| document.metadata(name);
            let revision = match text("resourceVersion") {
                None => None,
                Some(text) => match text.parse() {
                    Ok(number) => Some(Revision(number)),
                    Err(_) => return Err(DeleteError::Revision { origin: document.origin, text }.into()),
                },
            };
            let name = text("name").ok_or_else(|| DeleteError::Unnamed(document.origin.clone()))?;
            let namespace = text("namespace").unwrap_or_else(|| args.namespace.or_default().to_owned());
            targets.push(Target::new(document.kind, namespace, name, revision));
        }
    }
    for (kind, name) in args.kind.iter().flat_map(|kind| args.names.iter().map(move |name| (*kind, name))) {
        targets.push(Target::new(kind, args.namespace.or_default().to_owned(), name.clone(), None));
    }
    Ok(targets)
}

async fn delete(place: &Place, target: &Target, args: &DeleteArgs) -> Result<(), Failure> {
    match target.kind {
        Kind::Pool => pool::delete(place, target, args.dry_run).await,
        Kind::Node => node::delete(place, target, args).await,
        Kind::Tier => tier::delete(place, target, args.dry_run).await,
        _ if args.dry_run => target.read(place).await.map(drop),
        _ => target.remove(place).await,
    }
}

// === impl Target ===

impl Target {
    fn new(kind: Kind, namespace: String, name: String, revision: Option<Revision>) -> Self {
        let namespace = kind.resource().namespaced().then_some(namespace);
        Self { kind, namespace, name, revision }
    }

    fn resource(&self) -> ResourceKind {
        self.kind.resource()
    }

    fn key(&self) -> Result<Key, Failure> {
        Ok(Key::resource(self.resource(), self.namespace.as_deref(), &self.name)?)
    }

    fn subject(&self) -> String {
        output::visible(&match &self.namespace {
            Some(namespace) => format!("{}/{namespace}/{}", self.resource().kind(), self.name),
            None => format!("{}/{}", self.resource().kind(), self.name),
        })
    }

    /// Returns the record, if it is at the revision that was named.
    async fn read(&self, place: &Place) -> Result<Record, Failure> {
        let record = place.store.get(&self.key()?).await?;
        let record = record.ok_or_else(|| DeleteError::Missing(self.subject()))?;
        match self.revision.filter(|named| *named != record.revision) {
            None => Ok(record),
            Some(named) => {
                let (named, stored) = (named.0, record.revision.0);
                Err(DeleteError::Outdated { subject: self.subject(), named, stored }.into())
            }
        }
    }

    /// Removes the record alone.
    async fn remove(&self, place: &Place) -> Result<(), Failure> {
        for _ in 0..TRIES_MAX {
            let record = self.read(place).await?;
            let step = Step::delete(record.key.clone(), Some(record.revision));
            match place.store.commit(vec![step]).await {
                Ok(_) => return Ok(()),
                Err(error) if error.error.lost_race() => {}
                Err(error)
                    if error.error.outcome_unknown() && place.store.get(&record.key).await?.is_none() =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(DeleteError::Contended(self.subject()).into())
    }
}
