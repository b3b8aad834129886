//! The node's private key, in a file that outlives the daemon, so that peers keep their
//! configuration (flannel.md section 6.5). Called by `wireguard`.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use russet_linux::file::{self, FileError};
use russet_linux::random;
use russet_netlink::wireguard::Key;

/// Readable by root only, and never written again.
const MODE: u32 = 0o400;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file exists and cannot be read, or the file or its directory cannot be created.
    #[error("{operation} {}: {source}", .path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] FileError),
    /// The content is not a key; it is not repeated in the message.
    #[error("{subject} is not the base64 text of 32 bytes")]
    Text { subject: String },
}

/// A preshared key of all nodes. It has no `Debug` or `Display` that prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Psk(pub(super) Key);

// === impl Psk ===

impl FromStr for Psk {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        parse("PSK", text).map(Self)
    }
}

/// Reads the key in `path`, or creates it if there is no such file.
pub(super) fn load(path: &Path) -> Result<Key, KeyError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&format!("private key in {}", path.display()), &text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path),
        Err(source) => Err(KeyError::Io { operation: "read private key", path: path.to_owned(), source }),
    }
}

/// Parses a key's base64 text.
pub(super) fn parse(subject: &str, text: &str) -> Result<Key, KeyError> {
    let bytes = STANDARD.decode(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.map(Key).ok_or_else(|| KeyError::Text { subject: subject.to_owned() })
}

pub(super) fn text(key: &Key) -> String {
    STANDARD.encode(key.0)
}

fn create(path: &Path) -> Result<Key, KeyError> {
    if let Some(directory) = path.parent() {
        let failed = |source| KeyError::Io { operation: "create", path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    let failed = |source| KeyError::Io { operation: "make private key", path: path.to_owned(), source };
    let mut bytes = random::secret::<32>().map_err(failed)?;
    // Clamped as Curve25519 requires (RFC 7748 section 5).
    bytes[0] &= 0xf8;
    bytes[31] = bytes[31] & 0x7f | 0x40;
    let key = Key(bytes);
    // Without a newline, which flannel's own reader does not accept.
    file::write_atomic_with_mode(path, text(&key).as_bytes(), MODE)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_created_once_readable_by_root_only_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("flannel/wgkey");
        let key = load(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o400);
        assert_eq!((key.0[0] & 7, key.0[31] & 0xc0), (0, 0x40));
        assert_eq!(load(&path).unwrap(), key);
        assert_eq!(std::fs::read_to_string(&path).unwrap().len(), 44, "flannel reads the same file");
        let another = load(&directory.path().join("another")).unwrap();
        assert_ne!(another, key);
    }

    #[test]
    fn a_preshared_key_is_never_shown() {
        let text = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3I=";
        let psk: Psk = text.parse().unwrap();
        assert_eq!(format!("{psk:?}"), "Psk(Key(..))");
        let error = text[..20].parse::<Psk>().unwrap_err();
        assert_eq!(error.to_string(), "PSK is not the base64 text of 32 bytes");
        assert!(!format!("{error:?}").contains(&text[..8]));
    }

    #[test]
    fn a_broken_key_gives_an_error_without_its_text_and_the_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wgkey");
        for text in ["", "c2VjcmV0", "not base64", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
            std::fs::write(&path, text).unwrap();
            let error = load(&path).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("private key in {} is not the base64 text of 32 bytes", path.display())
            );
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
