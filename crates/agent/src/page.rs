//! The agent's page for a browser: on its health socket, which root can reach, and, if the settings name an address, there behind a token.
//! `russet_view` renders it; this module gathers what is shown ([`gather`], [`cluster`]) and serves it.
//!
//! It runs on the thread of health and metrics and takes no time from requests: a page is made from memory, at most once a second however
//! many ask. What memory does not have of the cluster is read by a task of the main thread, at most every ten seconds, and only while the page
//! is read.

pub(crate) mod cluster;
mod gather;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use axum::routing::get;
use russet_http::local::{Gate, restrict};
use russet_linux::file::write_atomic_with_mode;
use russet_linux::random;
use russet_view::map::Styling;
use russet_view::page::{ICON, NodePage, SCRIPT, STYLE};
use serde::Serialize;

use crate::config::Paths;
use crate::drift::lock;

pub use gather::Sources;

/// The page on the health socket; `russet ui` puts a token in the place of this.
pub const PREFIX: &str = "/ui";
/// A page is shown for so long before it is made anew.
const FRESH: Duration = Duration::from_secs(1);
const TOKEN_BYTES: usize = 16;

/// The page. Clones share it.
#[derive(Clone)]
pub struct Pages(Arc<Shared>);

struct Shared {
    sources: Sources,
    last: Mutex<Option<(Instant, Arc<NodePage>)>>,
}

// === impl Pages ===

impl Pages {
    pub fn new(sources: Sources) -> Self {
        Self(Arc::new(Shared { sources, last: Mutex::default() }))
    }

    /// Everything below [`PREFIX`].
    pub fn router(&self) -> Router {
        let text = |text: &'static str, kind: &'static str| {
            get(move || async move { answer(kind, text.as_bytes().to_vec()) })
        };
        Router::new()
            .route("/ui/", get(html))
            .route("/ui/sections.json", get(sections))
            .route("/ui/data.json", get(data))
            .route("/ui/map.svg", get(map))
            .route("/ui/style.css", text(STYLE, "text/css; charset=utf-8"))
            .route("/ui/script.js", text(SCRIPT, "text/javascript; charset=utf-8"))
            .route("/ui/icon.svg", text(ICON, "image/svg+xml"))
            .with_state(self.clone())
    }

    fn page(&self) -> Arc<NodePage> {
        let mut last = lock(&self.0.last);
        match &*last {
            Some((made, page)) if made.elapsed() < FRESH => Arc::clone(page),
            _ => {
                let page = Arc::new(self.0.sources.gather());
                *last = Some((Instant::now(), Arc::clone(&page)));
                page
            }
        }
    }
}

/// The page behind a new token, for an address of this machine. Its whole address goes into a file that root can read.
pub fn guarded(pages: &Pages, address: SocketAddr, paths: &Paths) -> io::Result<Gate<Router>> {
    let token = new_token()?;
    let url = format!("http://{address}/{token}/\n");
    write_atomic_with_mode(paths.ui_url_file(), url.as_bytes(), 0o600).map_err(io::Error::other)?;
    Ok(Gate::new(&token, PREFIX, pages.router()))
}

/// A token that cannot be guessed, of characters that need no escape in a path.
pub fn new_token() -> io::Result<String> {
    let bytes: [u8; TOKEN_BYTES] = random::secret()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

type Answer = (StatusCode, HeaderMap, Vec<u8>);

async fn html(State(pages): State<Pages>) -> Answer {
    answer("text/html; charset=utf-8", pages.page().html().into_bytes())
}

async fn sections(State(pages): State<Pages>) -> Answer {
    json(&pages.page().sections())
}

async fn data(State(pages): State<Pages>) -> Answer {
    json(&*pages.page())
}

/// The picture has a style of its own, which the policy of pages does not allow within a page; by itself it is a file.
async fn map(State(pages): State<Pages>) -> Answer {
    let (status, mut headers, body) =
        answer("image/svg+xml", pages.page().map.svg(Styling::Own).into_bytes());
    let policy =
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");
    headers.insert("content-security-policy", policy);
    (status, headers, body)
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => answer("application/json", bytes),
        Err(error) => {
            let (_, headers, body) = answer("text/plain; charset=utf-8", format!("{error}\n").into_bytes());
            (StatusCode::INTERNAL_SERVER_ERROR, headers, body)
        }
    }
}

fn answer(kind: &'static str, body: Vec<u8>) -> Answer {
    let mut headers = HeaderMap::new();
    restrict(&mut headers);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    (StatusCode::OK, headers, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_new_each_time_and_needs_no_escape() {
        let (one, other) = (new_token().unwrap(), new_token().unwrap());
        assert!(
            one != other && one.len() == 2 * TOKEN_BYTES && one.chars().all(|c| c.is_ascii_hexdigit()),
            "{one} {other}"
        );
    }

    #[test]
    fn everything_is_below_the_prefix_of_the_gate() {
        assert_eq!(PREFIX, "/ui");
        let (_, headers, _) = answer("text/css", Vec::new());
        assert!(headers.keys().all(|name| !name.as_str().starts_with("access-control")));
        assert!(headers["content-security-policy"].to_str().unwrap().contains("script-src 'self'"));
    }
}
