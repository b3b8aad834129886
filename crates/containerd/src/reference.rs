//! Names of images: `registry.k8s.io/pause:3.10`, `busybox`, `127.0.0.1:5000/pause@sha256:...`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A complete image name, with defaults for omitted parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// `registry.k8s.io`, `127.0.0.1:5000`.
    host: String,
    /// `pause`, `library/busybox`.
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// The text is not the name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid name of an image {name:.200?}: {reason}")]
pub struct ReferenceError {
    name: String,
    reason: &'static str,
}

/// The registry of names without one, and its server.
pub(crate) const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_SERVER: &str = "registry-1.docker.io";
/// The prefix of Docker Hub's official repositories.
const DOCKER_HUB_OWN: &str = "library";
const LATEST: &str = "latest";
/// The limit of registries.
const NAME_MAX_BYTES: usize = 255;
const TAG_MAX_BYTES: usize = 128;

// === impl Reference ===

impl Reference {
    /// `registry.k8s.io/pause`: the key for credentials.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The scheme, host and port of its registry. Only loopback addresses are used without TLS.
    pub(crate) fn server(&self) -> String {
        let host = if self.host == DOCKER_HUB { DOCKER_HUB_SERVER } else { &self.host };
        let scheme = if is_this_machine(host) { "http" } else { "https" };
        format!("{scheme}://{host}")
    }

    /// The repository within its registry.
    pub(crate) fn path(&self) -> &str {
        &self.repository
    }

    /// The version for the manifest request: a digest takes precedence over a tag.
    pub(crate) fn version(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or(LATEST)
    }

    /// The digest that its manifest must have, if the name has one.
    pub(crate) fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let refuse = |reason| ReferenceError { name: text.to_owned(), reason };
        if text.len() > NAME_MAX_BYTES + TAG_MAX_BYTES {
            return Err(refuse("it is too long"));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.to_owned())),
            None => (text, None),
        };
        if digest.as_deref().is_some_and(|digest| !is_digest(digest)) {
            return Err(refuse("its digest is not sha256: and 64 hexadecimal digits"));
        }
        let (name, tag) = match name.rsplit_once(':') {
            // Otherwise the colon is that of a port.
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_owned())),
            _ => (name, None),
        };
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(refuse("its tag is not 1 to 128 letters, digits, '_', '.' and '-'"));
        }
        let (host, repository) = match name.split_once('/') {
            Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest.to_owned()),
            Some(_) => (DOCKER_HUB, name.to_owned()),
            None => (DOCKER_HUB, format!("{DOCKER_HUB_OWN}/{name}")),
        };
        if !is_host(host) {
            return Err(refuse("its registry is not a host with or without a port"));
        }
        if !repository.split('/').all(is_component) {
            return Err(refuse(
                "a repository is made of lower-case letters and digits, with '.', '_' and '-' between them",
            ));
        }
        let tag = tag.or_else(|| digest.is_none().then(|| LATEST.to_owned()));
        Ok(Self { host: host.to_owned(), repository, tag, digest })
    }
}

impl fmt::Display for Reference {
    /// The name in the form of containerd's other clients.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// `sha256:` and 64 digits, the only digests in use.
pub(crate) fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_tag(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=TAG_MAX_BYTES).contains(&text.len()) && text.bytes().all(good) && !text.starts_with(['.', '-'])
}

fn is_component(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let good = |byte: u8| plain(byte) || matches!(byte, b'_' | b'.' | b'-');
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.iter().all(|end| end.is_some_and(plain)) && text.bytes().all(good) && !text.contains("..")
}

fn is_host(text: &str) -> bool {
    let (host, port) = split_port(text);
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let is_six = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let named = !host.is_empty() && host.bytes().all(good);
    (named || is_six.is_some_and(|six| six.parse::<IpAddr>().is_ok()))
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0))
}

/// A host and its port, if it has one; an IPv6 address is in brackets.
pub(crate) fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn is_this_machine(host: &str) -> bool {
    let (host, _) = split_port(host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Reference {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_is_completed_as_every_client_of_registries_does() {
        for (text, full, server) in [
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10", "https://registry.k8s.io"),
            ("busybox", "docker.io/library/busybox:latest", "https://registry-1.docker.io"),
            ("some/one:v1", "docker.io/some/one:v1", "https://registry-1.docker.io"),
            ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest", "http://127.0.0.1:5000"),
            ("localhost/a", "localhost/a:latest", "http://localhost"),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "http://[::1]:5000"),
            ("10.0.0.1:5000/a", "10.0.0.1:5000/a:latest", "https://10.0.0.1:5000"),
        ] {
            assert_eq!((parse(text).to_string(), parse(text).server()), (full.to_owned(), server.to_owned()));
        }
        let digest = format!("sha256:{}", "a".repeat(64));
        let pinned = parse(&format!("quay.io/a:v1@{digest}"));
        assert_eq!((pinned.version(), pinned.digest()), (digest.as_str(), Some(digest.as_str())));
        assert_eq!(parse(&format!("quay.io/a@{digest}")).to_string(), format!("quay.io/a@{digest}"));
    }

    #[test]
    fn invalid_names_are_refused() {
        let long = "a".repeat(500);
        for text in [
            "",
            "/",
            "a//b",
            "A",
            "a:",
            "a:b c",
            "a@sha256:1",
            "quay.io/",
            "quay.io:0/a",
            "x.y:z/a",
            "a/../b",
            "a\n",
            &long,
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }
}
