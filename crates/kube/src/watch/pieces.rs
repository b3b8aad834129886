//! A watch whose lists come object by object, so that a large cluster's pods are never in memory all
//! at once: streamed by the server (`sendInitialEvents`), or else in pages (kubernetes.md section 4.1).

use std::collections::VecDeque;

use serde_json::Value;

use super::{List, Objects, PAGE, WatchState, Watched, read};
use crate::answer::Failure;
use crate::lines::Lines;
use crate::{KubeError, ObjectEvent};

/// The watch.
pub struct Pieces<T> {
    objects: Objects<T>,
    listing: Option<Listing<T>>,
    /// Whether the server may stream lists.
    streams: bool,
    /// Whether a list may have several pages: the rest of the last one expired, if not.
    has_pages: bool,
}

/// News of such a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece<T> {
    /// A list begins, the first one or a new one. What an unfinished one said still counts.
    Begin,
    /// An object was listed, added, or changed.
    Changed(T),
    /// An object is gone; this is its last known state.
    Deleted(T),
    /// The list is complete. Objects that did not come since it began are gone.
    Complete,
}

/// A list in progress.
enum Listing<T> {
    Streamed(Lines),
    Paged { objects: VecDeque<T>, revision: String, next: Option<String> },
}

/// What the beginning of a streamed list says.
enum Said<T> {
    Piece(Piece<T>),
    /// The list is complete at this revision.
    End(String),
    Nothing,
}

/// Where the bookmark at the end of a streamed list says so.
const END: &str = "/metadata/annotations/k8s.io~1initial-events-end";

// === impl Pieces ===

impl<T: Watched> Pieces<T> {
    pub(super) const fn new(objects: Objects<T>) -> Self {
        Self { objects, listing: None, streams: true, has_pages: true }
    }

    /// The next piece. Dropping the future loses nothing.
    pub async fn advance(&mut self) -> Result<Piece<T>, KubeError> {
        loop {
            match &mut self.listing {
                None => match self.objects.next_change().await? {
                    Some(ObjectEvent::Changed(object)) => return Ok(Piece::Changed(object)),
                    Some(ObjectEvent::Deleted(object)) => return Ok(Piece::Deleted(object)),
                    // None is needed: a list that is cut off begins again.
                    Some(ObjectEvent::Snapshot(_)) | None => {
                        self.listing = Some(self.begin().await?);
                        return Ok(Piece::Begin);
                    }
                },
                Some(Listing::Streamed(lines)) => {
                    let said = lines.next().await.and_then(|line| self.objects.listed(&line));
                    match said {
                        Ok(Said::Piece(piece)) => return Ok(piece),
                        Ok(Said::End(revision)) => {
                            if let Some(Listing::Streamed(lines)) = self.listing.take() {
                                self.objects.state = WatchState::Following(revision, lines);
                            }
                            return Ok(Piece::Complete);
                        }
                        Ok(Said::Nothing) => {}
                        Err(failure) => {
                            self.listing = None;
                            self.streams &= !is_unsupported(&failure);
                            self.objects.interrupted(failure).await?;
                        }
                    }
                }
                Some(Listing::Paged { objects, revision, next }) => {
                    if let Some(object) = objects.pop_front() {
                        return Ok(Piece::Changed(object));
                    }
                    let Some(next) = next.clone() else {
                        self.objects.state = WatchState::Known(std::mem::take(revision));
                        (self.listing, self.has_pages) = (None, true);
                        return Ok(Piece::Complete);
                    };
                    match self.page(Some(&next)).await {
                        Ok(page) => self.listing = Some(page),
                        Err(failure) if failure.expired => {
                            (self.listing, self.has_pages) = (None, false);
                        }
                        Err(failure) => return Err(failure.error),
                    }
                }
            }
        }
    }

    async fn begin(&mut self) -> Result<Listing<T>, KubeError> {
        if self.streams {
            let query = [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
            match self.objects.watch(&query).await {
                Ok(lines) => return Ok(Listing::Streamed(lines)),
                Err(failure) if is_unsupported(&failure) => self.streams = false,
                Err(failure) => return Err(self.objects.list_error(failure)),
            }
        }
        self.page(None).await.map_err(|failure| self.objects.list_error(failure))
    }

    /// A page. Not from the server's cache, which would answer with one page, however long.
    async fn page(&self, next: Option<&str>) -> Result<Listing<T>, Failure> {
        let mut query: Vec<(&str, &str)> = Vec::new();
        if self.has_pages {
            query.push(("limit", PAGE));
        }
        query.extend(next.map(|next| ("continue", next)));
        let List { metadata, items } = self.objects.page(self.objects.kind.path(&query)).await?;
        Ok(Listing::Paged {
            objects: items.unwrap_or_default().into(),
            revision: metadata.resource_version,
            next: metadata.next.filter(|next| !next.is_empty()),
        })
    }
}

// === impl Objects ===

impl<T: Watched> Objects<T> {
    /// The same watch with lists that come object by object.
    pub const fn in_pieces(self) -> Pieces<T> {
        Pieces::new(self)
    }

    /// Reads a line of a streamed list.
    fn listed(&self, line: &[u8]) -> Result<Said<T>, Failure> {
        Ok(match read(self.kind.plural, line)? {
            super::WatchLine::Event(event, _) => match *event {
                ObjectEvent::Deleted(object) => Said::Piece(Piece::Deleted(object)),
                ObjectEvent::Changed(object) => Said::Piece(Piece::Changed(object)),
                ObjectEvent::Snapshot(_) => Said::Nothing,
            },
            super::WatchLine::Bookmark(revision) if is_end(line) => Said::End(revision),
            super::WatchLine::Bookmark(_) => Said::Nothing,
            super::WatchLine::Failed(failure) => return Err(failure),
        })
    }
}

fn is_end(bookmark: &[u8]) -> bool {
    let line: Value = serde_json::from_slice(bookmark).unwrap_or_default();
    line.get("object").and_then(|object| object.pointer(END)).is_some()
}

/// Whether a failure says that the server does not stream lists. A connection that breaks says
/// nothing about that.
fn is_unsupported(failure: &Failure) -> bool {
    failure.code.is_some() && !failure.expired && !matches!(failure.code, Some(401 | 403 | 404 | 429))
}
