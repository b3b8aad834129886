//! Lists of whole collections, page by page and never from the server's cache: for decisions that
//! rest on the absence of an object (kubernetes.md sections 3.2 and 4.2).

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::answer::Failure;
use crate::client::Client;
use crate::rest::{Request, Verb};

/// Objects per page, as in client-go.
const PAGE: &str = "500";
/// Limit of a page: 500 pods of 100 kB each, which is far above the usual 10 kB.
const MAX_PAGE_BYTES: usize = 64 << 20;
const PAGE_DEADLINE: Duration = Duration::from_secs(60);

/// How many pages a list may have: two million objects, beyond which something is wrong.
const ALL_PAGES: usize = 4_000;

/// What is listed.
#[derive(Debug, Clone)]
pub struct ListQuery<'a> {
    /// For messages: `list pods`.
    pub operation: &'a str,
    /// The path's segments: `api`, `v1`, `pods`.
    pub segments: &'a [&'a str],
    /// A label selector, or nothing.
    pub labels: Option<&'a str>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(rename = "continue", default)]
    next: Option<String>,
}

// === impl Client ===

impl Client {
    /// Passes every object of a collection to `take`, at one revision, which is the newest at the
    /// time of the call. After an error, what was passed on is void.
    pub async fn list(&self, query: &ListQuery<'_>, mut take: impl FnMut(Value)) -> Result<(), Failure> {
        let mut next: Option<String> = None;
        for _ in 0..ALL_PAGES {
            let page = self.page(query, next.take()).await?;
            page.items.unwrap_or_default().into_iter().for_each(&mut take);
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok(());
            }
        }
        Err(Failure::nonsense(query.operation, format!("the list has more than {ALL_PAGES} pages")))
    }

    async fn page(&self, query: &ListQuery<'_>, next: Option<String>) -> Result<Page, Failure> {
        let mut parameters = vec![("limit", PAGE.to_owned())];
        parameters.extend(query.labels.map(|labels| ("labelSelector", labels.to_owned())));
        parameters.extend(next.map(|next| ("continue", next)));
        let request = Request {
            operation: query.operation.to_owned(),
            verb: Verb::Read,
            segments: query.segments.iter().map(|segment| (*segment).to_owned()).collect(),
            query: parameters,
            body: Vec::new(),
            deadline: PAGE_DEADLINE,
            limit_bytes: MAX_PAGE_BYTES,
        };
        let answer = self.request(&request).await?;
        let nonsense =
            |error| Failure::nonsense(query.operation, format!("the answer makes no sense: {error}"));
        serde_json::from_slice(&answer.body).map_err(nonsense)
    }
}
