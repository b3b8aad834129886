//! Reads manifests and blobs of a registry (the OCI distribution specification), as one user or
//! anonymously.

use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode, Uri};
use serde::Deserialize;

use crate::authorization::Challenge;
use crate::connection::{cut, get, part, shown};
use crate::image::digest_of;
use crate::manifest;
use crate::{Credential, Reference, RegistryError};

type Answer<T> = Result<T, RegistryError>;

/// Requests to a registry about one image.
pub(crate) struct Registry<'a> {
    image: &'a Reference,
    credential: Option<&'a Credential>,
    /// The last accepted authorization, which is reused.
    authorization: Option<String>,
}

/// A manifest, or a list of manifests, unparsed.
pub(crate) struct Fetched {
    pub(crate) bytes: Vec<u8>,
    pub(crate) media_type: String,
    pub(crate) digest: String,
}

/// A blob in transfer.
pub(crate) struct Blob {
    url: Uri,
    body: Incoming,
}

/// The answer of a token server.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// Registries refuse larger manifests themselves.
pub(crate) const MANIFEST_MAX_BYTES: usize = 4 * 1024 * 1024;
const TOKEN_MAX_BYTES: usize = 64 * 1024;
/// How much of an error page is shown.
const DETAIL_MAX_BYTES: usize = 300;
/// Registries redirect clients to blob servers, which may redirect once more.
const REDIRECTS_MAX: usize = 5;
const BLOB: &str = "application/octet-stream, */*";

// === impl Registry ===

impl<'a> Registry<'a> {
    pub(crate) fn new(image: &'a Reference, credential: Option<&'a Credential>) -> Self {
        Self { image, credential, authorization: None }
    }

    /// The manifest of a tag or a digest; for a digest its bytes are verified.
    pub(crate) async fn manifest(&mut self, version: &str) -> Answer<Fetched> {
        let (url, response) = self.fetch("manifests", version, &manifest::accepted()).await?;
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
        let media_type = media_type.to_owned();
        let bytes = whole(&url, response.into_body(), MANIFEST_MAX_BYTES).await?;
        let digest = digest_of(&bytes);
        if version.contains(':') && version != digest {
            return Err(RegistryError::Answer {
                url: shown(&url),
                reason: format!("what it gives is {digest}"),
            });
        }
        Ok(Fetched { bytes, media_type, digest })
    }

    /// The blob of a digest; it is not verified here.
    pub(crate) async fn blob(&mut self, digest: &str) -> Answer<Blob> {
        let (url, response) = self.fetch("blobs", digest, BLOB).await?;
        Ok(Blob { url, body: response.into_body() })
    }

    async fn fetch(&mut self, kind: &str, name: &str, accept: &str) -> Answer<(Uri, Response<Incoming>)> {
        let text = format!("{}/v2/{}/{kind}/{name}", self.image.server(), self.image.path());
        let url = parse(&text)?;
        let mut response = get(&url, accept, self.authorization.as_deref()).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.authorize(&url, &response).await?;
            response = get(&url, accept, self.authorization.as_deref()).await?;
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(unauthorized(&url, "it does not take these credentials"));
        }
        follow(url, response, accept).await
    }

    async fn authorize(&mut self, url: &Uri, response: &Response<Incoming>) -> Answer<()> {
        let headers = response.headers().get_all(WWW_AUTHENTICATE).iter();
        let challenges: Vec<_> = headers.filter_map(|value| Challenge::parse(value.to_str().ok()?)).collect();
        let bearer = challenges.iter().find(|challenge| **challenge != Challenge::Basic);
        self.authorization = match bearer.or(challenges.first()) {
            Some(Challenge::Bearer { realm, service, scope }) => {
                Some(self.token(url, realm, service.as_deref(), scope.as_deref()).await?)
            }
            Some(Challenge::Basic) => {
                let none =
                    || unauthorized(url, "it asks for a name and a password, and there are none for it");
                Some(self.credential.ok_or_else(none)?.basic())
            }
            None => return Err(unauthorized(url, "it asks for what we cannot give")),
        };
        Ok(())
    }

    /// Passwords are sent only over TLS, and to loopback addresses.
    async fn token(
        &self,
        from: &Uri,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
    ) -> Answer<String> {
        let url = parse(&Challenge::token_url(realm, service, scope, self.image.path()))?;
        if !may_get_the_password(from, &url) {
            return Err(unauthorized(from, "it sends us to a server without TLS for a token"));
        }
        let basic = self.credential.map(Credential::basic);
        let response = get(&url, "application/json", basic.as_deref()).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(unauthorized(&url, "it does not take these credentials"));
        }
        let response = good(&url, response).await?;
        let bytes = whole(&url, response.into_body(), TOKEN_MAX_BYTES).await?;
        let token = serde_json::from_slice::<Token>(&bytes).ok();
        let token = token.and_then(|token| token.token.or(token.access_token));
        let none =
            || RegistryError::Answer { url: shown(&url), reason: "there is no token in its answer".into() };
        token.map(|token| format!("Bearer {token}")).ok_or_else(none)
    }
}

// === impl Blob ===

impl Blob {
    /// The next part of it; None at its end.
    pub(crate) async fn part(&mut self) -> Answer<Option<Bytes>> {
        part(&self.url, &mut self.body).await
    }

    pub(crate) async fn whole(self, max_bytes: usize) -> Answer<Vec<u8>> {
        whole(&self.url, self.body, max_bytes).await
    }

    /// An error about it.
    pub(crate) fn wrong(&self, reason: String) -> RegistryError {
        RegistryError::Answer { url: shown(&self.url), reason }
    }
}

/// Whether the registry at `from` may direct the password to `to`: over TLS, or to itself over the
/// same transport.
fn may_get_the_password(from: &Uri, to: &Uri) -> bool {
    let is_itself = to.scheme() == from.scheme() && to.authority() == from.authority();
    to.scheme_str() == Some("https") || is_itself
}

/// Follows redirects. Another server gets no authorization: its URL has its own signature.
async fn follow(
    mut url: Uri,
    mut response: Response<Incoming>,
    accept: &str,
) -> Answer<(Uri, Response<Incoming>)> {
    for _ in 0..REDIRECTS_MAX {
        if !response.status().is_redirection() {
            return good(&url, response).await.map(|response| (url, response));
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let wrong = |reason: &str| RegistryError::Answer { url: shown(&url), reason: reason.to_owned() };
        let location = location.ok_or_else(|| wrong("it sends us on, and does not say where to"))?;
        let to = match location.starts_with('/') {
            true => parse(&format!(
                "{}://{}{location}",
                url.scheme_str().unwrap_or_default(),
                url.authority().map_or("", |authority| authority.as_str())
            ))?,
            false => parse(location)?,
        };
        if url.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
            return Err(wrong("it sends us to a server without TLS"));
        }
        url = to;
        response = get(&url, accept, None).await?;
    }
    Err(RegistryError::Answer { url: shown(&url), reason: "we were sent on too often".to_owned() })
}

async fn good(url: &Uri, response: Response<Incoming>) -> Answer<Response<Incoming>> {
    let status = response.status();
    if status == StatusCode::OK {
        return Ok(response);
    }
    let mut body = response.into_body();
    let begin = part(url, &mut body).await.ok().flatten().unwrap_or_default();
    let begin = begin.get(..begin.len().min(DETAIL_MAX_BYTES)).unwrap_or_default();
    let detail = String::from_utf8_lossy(begin).trim().escape_debug().to_string();
    Err(RegistryError::Status { url: shown(url), status: status.as_u16(), detail })
}

async fn whole(url: &Uri, mut body: Incoming, max_bytes: usize) -> Answer<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(part) = part(url, &mut body).await? {
        if bytes.len() + part.len() > max_bytes {
            let reason = format!("it is larger than {max_bytes} bytes");
            return Err(RegistryError::Answer { url: shown(url), reason });
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

fn unauthorized(url: &Uri, reason: &str) -> RegistryError {
    RegistryError::Unauthorized { url: shown(url), reason: reason.to_owned() }
}

fn parse(text: &str) -> Answer<Uri> {
    let url = text.parse::<Uri>().ok().filter(|url| {
        matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some_and(|host| !host.is_empty())
    });
    let none = || RegistryError::Answer {
        // Without the query, as everywhere.
        url: cut(text.split_once('?').map_or(text, |(url, _)| url)),
        reason: "this is no address of HTTP".to_owned(),
    };
    url.ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_shown_without_its_signature_and_not_whole() {
        let shown_url = |text: &str| parse(text).unwrap_err().to_string();
        let none = "this is no address of HTTP";
        assert_eq!(shown_url("ftp://store/blob?X-Amz-Signature=secret"), format!("ftp://store/blob: {none}"));
        assert_eq!(shown_url("http://?signature=secret"), format!("http://: {none}"));
        assert_eq!(shown_url(&"a".repeat(5000)), format!("{}: {none}", "a".repeat(300)));
    }

    #[test]
    fn a_password_goes_over_tls_or_to_the_registry_of_this_machine() {
        // The distribution specification's token authentication: the realm is what the registry says it is
        for (from, realm, expected) in [
            ("https://quay.io/v2/", "https://auth.example/token", true),
            ("https://quay.io/v2/", "https://quay.io/token", true),
            ("https://quay.io/v2/", "http://quay.io/token", false),
            ("https://quay.io/v2/", "http://auth.example/token", false),
            ("https://quay.io:5000/v2/", "http://quay.io:5000/token", false),
            ("http://127.0.0.1:5000/v2/", "http://127.0.0.1:5000/token", true),
            ("http://127.0.0.1:5000/v2/", "http://127.0.0.1:5001/token", false),
            ("http://127.0.0.1:5000/v2/", "http://quay.io/token", false),
            ("http://127.0.0.1:5000/v2/", "https://quay.io/token", true),
        ] {
            let allowed = may_get_the_password(&parse(from).unwrap(), &parse(realm).unwrap());
            assert_eq!(allowed, expected, "{from} sends to {realm}");
        }
    }
}
