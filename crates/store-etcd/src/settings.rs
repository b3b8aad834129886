//! The settings of a connection to a cluster: endpoints, certificates and credentials, checked
//! before the first connection.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tonic::transport::Uri;

use crate::Secret;
use crate::tls::address;

/// The prefix of locations of this engine: `etcd:http://10.0.0.1:2379,http://10.0.0.2:2379`.
pub const LOCATION_SCHEME: &str = "etcd:";
/// The time limit of a call, including reconnects and retries. Longer than etcd's own limit for a
/// request (7 s with default elections), so that the server's error "timed out" comes first.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// etcd's default client port.
const DEFAULT_PORT: u16 = 2379;
/// The most endpoints. etcd recommends 5 members and at most 7; a longer list is a mistake.
const MAX_ENDPOINTS: usize = 32;

/// The settings of a connection to an etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Client addresses of members, `http://host:port` or `https://host:port`; not all members need
    /// to be listed.
    pub endpoints: Vec<String>,
    /// PEM file with the authorities that issued the servers' certificates. Required for https.
    /// This and the next two files are read for each connection, so that renewed files take effect.
    pub ca: Option<PathBuf>,
    /// PEM file with the client certificate.
    pub cert: Option<PathBuf>,
    /// PEM file with its private key.
    pub key: Option<PathBuf>,
    /// The name that the servers' certificates must have, if it is not the endpoint's host.
    pub server_name: Option<String>,
    /// etcd user.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// The time limit of one call; for a list, of each of its pages.
    pub deadline: Duration,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The location does not begin with `etcd:`.
    #[error("{0:?} is no etcd location: it should look like etcd:http://127.0.0.1:2379,http://...")]
    NotEtcd(String),
    /// No endpoint, or too many.
    #[error("{0} etcd endpoints: name 1 to {MAX_ENDPOINTS}, separated by commas")]
    Count(usize),
    /// An endpoint that is no `http://host:port`.
    #[error("etcd endpoint {endpoint:?}: {reason}")]
    Endpoint {
        /// The endpoint as given.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Settings that contradict each other.
    #[error("etcd settings: {0}")]
    Mismatch(&'static str),
    /// A certificate or key file could not be read.
    #[error("read {}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// rustls refuses the certificates.
    #[error("TLS for etcd endpoint {endpoint}: {reason}")]
    Tls {
        /// The endpoint that the certificates are for.
        endpoint: String,
        /// The reason from rustls.
        reason: String,
    },
}

// === impl Settings ===

impl Settings {
    /// Settings for endpoints separated by commas, as in `ETCD_ENDPOINTS`, without credentials.
    pub fn for_endpoints(list: &str) -> Result<Self, SettingsError> {
        let endpoints = list
            .split(',')
            .map(str::trim)
            .filter(|endpoint| !endpoint.is_empty())
            .map(endpoint)
            .collect::<Result<Vec<_>, _>>()?;
        let settings = Self {
            endpoints,
            ca: None,
            cert: None,
            key: None,
            server_name: None,
            username: None,
            password: None,
            deadline: CALL_DEADLINE,
        };
        settings.count()?;
        Ok(settings)
    }

    fn count(&self) -> Result<(), SettingsError> {
        match self.endpoints.len() {
            1..=MAX_ENDPOINTS => Ok(()),
            count => Err(SettingsError::Count(count)),
        }
    }

    /// The first endpoint to which user and password would be sent unencrypted over a network;
    /// `None` for https and for this machine.
    pub fn plaintext_credentials(&self) -> Option<&str> {
        self.username.as_ref()?;
        let exposed = |endpoint: &&String| endpoint.starts_with("http:") && !is_loopback(endpoint);
        self.endpoints.iter().find(exposed).map(String::as_str)
    }

    /// Refuses settings that would fail later, or that are less secure than they seem.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.count()?;
        for given in &self.endpoints {
            endpoint(given)?;
        }
        let secured = self.endpoints.iter().filter(|endpoint| endpoint.starts_with("https:")).count();
        let objection = if secured != 0 && secured != self.endpoints.len() {
            "some endpoints are https and some http: what one protects the other gives away"
        } else if secured != 0 && self.ca.is_none() {
            "https needs `ca`, the file with the authority of the servers' certificates (for public ones the \
             system's bundle, as /etc/ssl/certs/ca-certificates.crt)"
        } else if self.cert.is_some() != self.key.is_some() {
            "`cert` and `key` go together"
        } else if secured == 0 && (self.cert.is_some() || self.ca.is_some()) {
            "certificates are of no use over http: make the endpoints https"
        } else if self.username.is_some() != self.password.is_some() {
            "`username` and `password` go together"
        } else if self.deadline.is_zero() {
            "the deadline is 0"
        } else {
            return Ok(());
        };
        Err(SettingsError::Mismatch(objection))
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    /// Parses a location, `etcd:http://127.0.0.1:2379,http://...`.
    fn from_str(location: &str) -> Result<Self, Self::Err> {
        let list = location.strip_prefix(LOCATION_SCHEME);
        Self::for_endpoints(list.ok_or_else(|| SettingsError::NotEtcd(location.to_owned()))?)
    }
}

/// Whether traffic to an endpoint stays on this machine.
fn is_loopback(endpoint: &str) -> bool {
    let Some((host, _)) = address(endpoint) else { return false };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// One endpoint in its full form. The default scheme is http, the default port etcd's.
fn endpoint(given: &str) -> Result<String, SettingsError> {
    let wrong = |reason| SettingsError::Endpoint { endpoint: without_password(given), reason };
    let full = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
    let uri: Uri = full.parse().map_err(|_| wrong("not a URL"))?;
    let scheme = uri.scheme_str().unwrap_or_default();
    if !matches!(scheme, "http" | "https") {
        return Err(wrong("the scheme is neither http nor https"));
    }
    let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(wrong(
            "credentials do not belong into a URL, which is printed: use username and password",
        ));
    }
    if uri.path() != "/" && !uri.path().is_empty() || uri.query().is_some() {
        return Err(wrong("something follows the port"));
    }
    if authority.host().is_empty() {
        return Err(wrong("it names no host"));
    }
    Ok(format!("{scheme}://{}:{}", authority.host(), authority.port_u16().unwrap_or(DEFAULT_PORT)))
}

/// The endpoint without its password, for messages.
fn without_password(given: &str) -> String {
    match given.rsplit_once('@') {
        Some((_, host)) => format!("...@{host}"),
        None => given.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(location: &str) -> Vec<String> {
        location.parse::<Settings>().unwrap().endpoints
    }

    #[test]
    fn a_location_names_one_or_several_endpoints() {
        assert_eq!(parsed("etcd:http://127.0.0.1:2379"), ["http://127.0.0.1:2379"]);
        assert_eq!(
            parsed("etcd:https://a.example:4001/, https://[fd00::1],"),
            ["https://a.example:4001", "https://[fd00::1]:2379"]
        );
        assert_eq!(parsed("etcd:10.0.0.1:2379,etcd-2"), ["http://10.0.0.1:2379", "http://etcd-2:2379"]);
    }

    #[test]
    fn mistaken_locations_are_refused_with_their_reason() {
        for (location, reason) in [
            ("http://127.0.0.1:2379", "no etcd location"),
            ("etcd:", "0 etcd endpoints"),
            ("etcd:ftp://a", "neither http nor https"),
            ("etcd:http://a/v2/keys", "follows the port"),
            ("etcd:http://a:b:c", "not a URL"),
            ("etcd:http://root:opensesame@a", "do not belong into a URL"),
        ] {
            let error = location.parse::<Settings>().unwrap_err().to_string();
            assert!(error.contains(reason), "{location}: {error}");
            assert!(!error.contains("opensesame"), "{error}");
        }
        let many = format!("etcd:{}", vec!["a"; 33].join(","));
        assert!(many.parse::<Settings>().unwrap_err().to_string().contains("33"));
    }

    #[test]
    fn settings_that_do_not_fit_together_are_refused() {
        let plain: Settings = "etcd:http://a".parse().unwrap();
        let secured: Settings = "etcd:https://a".parse().unwrap();
        plain.check().unwrap();
        let refused = [
            Settings { endpoints: vec!["http://a:1".into(), "https://b:1".into()], ..plain.clone() },
            Settings { cert: Some("c".into()), key: Some("k".into()), ..plain.clone() },
            Settings { username: Some("root".into()), ..plain.clone() },
            Settings { deadline: Duration::ZERO, ..plain.clone() },
            Settings { endpoints: vec!["what is this".into()], ..plain },
            Settings { ca: Some("ca".into()), cert: Some("c".into()), ..secured.clone() },
            secured,
        ];
        for settings in refused {
            assert!(settings.check().is_err(), "{settings:?}");
        }
    }

    #[test]
    fn credentials_over_http_are_exposed_unless_they_stay_on_this_machine() {
        let exposed = |location: &str| {
            let mut settings: Settings = location.parse().unwrap();
            assert_eq!(settings.plaintext_credentials(), None, "nothing is secret");
            settings.username = Some("root".into());
            settings.plaintext_credentials().map(str::to_owned)
        };
        for local in ["etcd:http://127.0.0.1", "etcd:http://[::1]:4001,http://localhost", "etcd:https://a"] {
            assert_eq!(exposed(local), None, "{local}");
        }
        assert_eq!(exposed("etcd:http://127.0.0.1,http://10.0.0.1").unwrap(), "http://10.0.0.1:2379");
        assert_eq!(exposed("etcd:http://localhost.example").unwrap(), "http://localhost.example:2379");
    }

    #[test]
    fn settings_print_without_their_password() {
        let mut settings: Settings = "etcd:http://a".parse().unwrap();
        settings.password = Some(Secret::new("opensesame"));
        assert!(!format!("{settings:?}").contains("opensesame"));
    }
}
