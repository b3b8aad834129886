//! The address of an API server, parsed once.

use std::fmt;

use hyper::Uri;

use super::ConfigError;

/// An API server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) tls: bool,
    /// A name or an address, IPv6 without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The path before `/api/v1`: empty, or that of a proxy, such as `/k8s/clusters/c-1`.
    pub(crate) base: String,
}

// === impl Server ===

impl Server {
    /// Parses `https://host:port/base`. Without a scheme it is https where TLS is configured.
    pub(crate) fn parse(given: &str, secured: bool) -> Result<Self, ConfigError> {
        // Credentials in a URL are never repeated in a message.
        let shown = given.rsplit_once('@').map_or(given.to_owned(), |(_, host)| format!("...@{host}"));
        let wrong = |reason| ConfigError::Server { server: shown.clone(), reason };
        let scheme = if secured { "https" } else { "http" };
        let full = if given.contains("://") { given.to_owned() } else { format!("{scheme}://{given}") };
        let uri: Uri = full.parse().map_err(|_| wrong("not a URL (an IPv6 address needs its brackets)"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("the scheme is neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("credentials do not belong into a URL"));
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        let bracketed = authority.host();
        let host = bracketed.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        // The authority ends where the port begins; an invalid port must not become the default
        // one.
        let port = match authority.as_str()[bracketed.len()..].strip_prefix(':') {
            None if authority.as_str().len() == bracketed.len() => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(port) => port.parse().map_err(|_| wrong("the port is no number up to 65535"))?,
            None => return Err(wrong("an IPv6 address needs its brackets")),
        };
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { tls, host: host.to_owned(), port, base })
    }

    /// The value of the `Host` header.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_parsed_with_its_defaults() {
        for (given, secured, shown) in [
            ("https://10.96.0.1:443", false, "https://10.96.0.1:443"),
            ("https://k8s.example/", false, "https://k8s.example:443"),
            ("http://127.0.0.1:8080", true, "http://127.0.0.1:8080"),
            ("10.0.0.1:6443", true, "https://10.0.0.1:6443"),
            ("localhost:8080", false, "http://localhost:8080"),
            ("https://[fd00::1]:6443", false, "https://[fd00::1]:6443"),
            ("https://r.example/k8s/clusters/c-1/", false, "https://r.example:443/k8s/clusters/c-1"),
        ] {
            let server = Server::parse(given, secured).unwrap();
            assert_eq!(server.to_string(), shown, "{given}");
        }
        assert_eq!(Server::parse("https://[fd00::1]", false).unwrap().host, "fd00::1");
    }

    #[test]
    fn invalid_servers_are_refused_and_passwords_not_repeated() {
        for given in [
            "",
            "ftp://a",
            "https://",
            "https://a:b:c",
            "https://fd00::1:6443",
            "https://a:70000",
            "https://a?x=y",
            "https://root:opensesame@a",
        ] {
            let error = Server::parse(given, false).unwrap_err().to_string();
            assert!(!error.contains("opensesame"), "{error}");
        }
    }
}
