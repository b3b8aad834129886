//! Credentials for registries: the files in which Docker and kubelet keep them (cni-runtime.md
//! section 3.1, `ensureSandboxImageExists`).

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::Reference;
use crate::reference::{DOCKER_HUB, split_port};

/// A user name and a password, and their file.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    user: String,
    /// The password, which is never logged and leaves this module only in a header.
    password: String,
    /// Where it stands.
    file: PathBuf,
}

/// All credentials, by their registries.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    /// The key is `host[:port][/path]`; parts of the host may be patterns.
    entries: BTreeMap<String, Vec<Credential>>,
}

/// What `config.json` holds.
#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
}

#[derive(Deserialize)]
struct Auth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    /// Both of them, in base64 with a colon between.
    #[serde(default)]
    auth: String,
}

/// The format before `config.json`, which has only the contents of `auths`.
const OLD_NAME: &str = ".dockercfg";
const NAME: &str = "config.json";
const KUBELET: &str = "/var/lib/kubelet";
/// Files with hundreds of entries have some ten kilobytes.
const FILE_MAX_BYTES: u64 = 1024 * 1024;
/// The name of Docker Hub in `docker login`, without scheme and version.
const DOCKER_HUB_KEY: &str = "index.docker.io";

/// The files in which kubelet and Docker look for credentials, by the current environment.
pub fn usual_files() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let docker = std::env::var_os("DOCKER_CONFIG").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    files_of(docker.as_deref(), home.as_deref())
}

fn files_of(docker: Option<&Path>, home: Option<&Path>) -> Vec<PathBuf> {
    let kubelet = Path::new(KUBELET);
    let mut files = vec![kubelet.join(NAME)];
    files.extend(docker.map(|dir| dir.join(NAME)));
    files.extend(home.map(|home| home.join(".docker").join(NAME)));
    files.push(Path::new("/.docker").join(NAME));
    files.push(kubelet.join(OLD_NAME));
    files.extend(home.map(|home| home.join(OLD_NAME)));
    files.push(Path::new("/").join(OLD_NAME));
    let mut seen = Vec::new();
    files.retain(|file| {
        !seen.contains(file) && {
            seen.push(file.clone());
            true
        }
    });
    files
}

// === impl Keyring ===

impl Keyring {
    /// Reads all existing files. An unreadable one is logged and left out: the others may suffice.
    pub fn read(files: &[PathBuf]) -> Self {
        let mut keyring = Self::default();
        for file in files {
            match read(file) {
                Ok(auths) => auths.into_iter().for_each(|(place, auth)| keyring.add(&place, auth, file)),
                Err(error) => {
                    tracing::warn!(file = %file.display(), error, "a file with credentials for registries is left out");
                }
            }
        }
        keyring
    }

    fn add(&mut self, place: &str, auth: Auth, file: &Path) {
        match auth.credential(file) {
            Ok(Some(credential)) => {
                let of_place = self.entries.entry(key(place)).or_default();
                if !of_place.contains(&credential) {
                    of_place.push(credential);
                }
            }
            // A helper program has it; helpers are not run.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(file = %file.display(), place, error, "credentials for a registry are left out");
            }
        }
    }

    /// Every credential for the image, those for longer paths first.
    pub fn matching(&self, image: &Reference) -> Vec<Credential> {
        let repository = image.repository();
        let fitting = self.entries.iter().rev().filter(|(key, _)| key_matches(key, &repository));
        let mut found: Vec<Credential> = fitting.flat_map(|(_, credentials)| credentials.clone()).collect();
        if found.is_empty() && image.host() == DOCKER_HUB {
            found = self.entries.get(DOCKER_HUB_KEY).cloned().unwrap_or_default();
        }
        let mut tried: Vec<Credential> = Vec::new();
        for credential in found {
            if !tried.iter().any(|it| (&it.user, &it.password) == (&credential.user, &credential.password)) {
                tried.push(credential);
            }
        }
        tried
    }
}

// === impl Credential ===

impl Credential {
    /// The value for HTTP's basic authorization.
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "as {:.100?} of {}", self.user, self.file.display())
    }
}

// === impl Auth ===

impl Auth {
    fn credential(self, file: &Path) -> Result<Option<Credential>, &'static str> {
        let (user, password) = if self.auth.is_empty() {
            (self.username, self.password)
        } else {
            let bytes = STANDARD.decode(self.auth.trim()).map_err(|_| "auth is not base64")?;
            let text = String::from_utf8(bytes).map_err(|_| "auth is no text")?;
            // Docker pads with zeros.
            let (user, password) = text.split_once(':').ok_or("auth has no colon")?;
            (user.to_owned(), password.trim_end_matches('\0').to_owned())
        };
        let is_empty = user.is_empty() && password.is_empty();
        Ok((!is_empty).then(|| Credential { user, password, file: file.to_owned() }))
    }
}

/// Empty if the file does not exist.
fn read(file: &Path) -> Result<BTreeMap<String, Auth>, String> {
    let mut bytes = Vec::new();
    match std::fs::File::open(file).and_then(|file| file.take(FILE_MAX_BYTES).read_to_end(&mut bytes)) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(BTreeMap::new());
        }
        other => drop(other.map_err(|error| error.to_string())?),
    }
    // Only the position of an error is reported: the contents are secret.
    let place = |error: serde_json::Error| format!("no such JSON at line {}", error.line());
    if file.file_name().is_some_and(|name| name == OLD_NAME) {
        return serde_json::from_slice(&bytes).map_err(place);
    }
    serde_json::from_slice::<ConfigJson>(&bytes).map(|config| config.auths).map_err(place)
}

/// `https://index.docker.io/v1/` is `index.docker.io`: scheme, version and a last slash are
/// ignored.
fn key(place: &str) -> String {
    let bare = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://")).unwrap_or(place);
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let path = path.strip_prefix("v1/").or_else(|| path.strip_prefix("v2/")).unwrap_or(path);
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// Compares host parts, each of which may be a pattern, the port, and the path's prefix.
fn key_matches(key: &str, repository: &str) -> bool {
    let (wanted, path) = key.split_once('/').unwrap_or((key, ""));
    let (host, name) = repository.split_once('/').unwrap_or((repository, ""));
    let ((wanted, wanted_port), (host, port)) = (split_port(wanted), split_port(host));
    let parts = |text: &str| text.split('.').count();
    wanted_port == port
        && parts(wanted) == parts(host)
        && wanted
            .split('.')
            .zip(host.split('.'))
            .all(|(pattern, part)| matches(pattern.as_bytes(), part.as_bytes()))
        && name.starts_with(path)
}

/// `*` matches any characters, `?` one. Backtracking to the last star suffices.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut again) = (0, 0, None);
    while let Some(letter) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                again = Some((p, t));
            }
            Some(wanted) if *wanted == b'?' || wanted == letter => (p, t) = (p + 1, t + 1),
            _ => match again {
                Some((star, from)) => {
                    (p, t) = (star, from + 1);
                    again = Some((star, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|left| *left == b'*')
}

#[cfg(test)]
mod tests;
