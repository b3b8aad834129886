//! The name of this node, which must be byte for byte the name that Felix, BIRD and other IPAM
//! plugins use (calico-cni.md section 1.6).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use russet_addr::NodeName;
use russet_cni_spec::CniError;
use russet_model::Key;
use russet_store::Store;
use russet_wiring::failure;

use super::CalicoConf;

/// The node's name, as far as it is known without the datastore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeChoice {
    Name(NodeName),
    /// The file ends in white space, which peers take for a part of the name. It is removed only if
    /// there is a node of the shorter name.
    Trimmed {
        /// The name without white space.
        name: NodeName,
        /// The file.
        file: PathBuf,
    },
}

/// A longer file is not a name.
const FILE_MAX_BYTES: u64 = 4096;

// === impl CalicoConf ===

impl CalicoConf {
    /// From `nodename`, otherwise from the file, otherwise from `hostname`, otherwise the host's
    /// name in lower case.
    pub fn node_choice(&self, root: &Path) -> Result<NodeChoice, CniError> {
        if let Some(name) = &self.nodename {
            return given("nodename", name);
        }
        let file = self.nodename_file(root);
        if let Some(text) = read_nodename(&file)?.filter(|text| !text.is_empty()) {
            return from_file(&text, file);
        }
        if let Some(name) = &self.hostname {
            return given("hostname", name);
        }
        let name = rustix::system::uname();
        given("the host's name", &name.nodename().to_string_lossy().trim().to_lowercase())
    }

    /// Fails ADD and DEL of the main plugin while the file is missing, unless it is optional
    /// (calico-cni.md section 1.3).
    pub fn require_nodename_file(&self, root: &Path) -> Result<(), CniError> {
        let file = self.nodename_file(root);
        if self.nodename_file_optional || file.exists() {
            return Ok(());
        }
        let msg = format!("stat {}: no such file or directory", file.display());
        let details = "check that the calico/node container (or the russet agent in Calico mode) is running and has mounted /var/lib/calico/";
        Err(CniError::try_again_later(msg, details))
    }
}

fn given(what: &str, name: &str) -> Result<NodeChoice, CniError> {
    let wrong = |error| CniError::invalid_config(format!("{what} cannot be this node's name"), error);
    NodeName::new(name).map(NodeChoice::Name).map_err(wrong)
}

/// The unmodified contents; `None` if there is no such file. An unreadable file is an error,
/// because otherwise the node could work under two names.
fn read_nodename(file: &Path) -> Result<Option<String>, CniError> {
    let failed = |error: std::io::Error| CniError::io(format!("read {}", file.display()), error);
    match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if metadata.len() > FILE_MAX_BYTES => {
            let details = format!("at most {FILE_MAX_BYTES} bytes are a name");
            return Err(CniError::invalid_config(format!("{} is too large", file.display()), details));
        }
        Ok(_) => {}
    }
    std::fs::read_to_string(file).map(Some).map_err(failed)
}

fn from_file(text: &str, file: PathBuf) -> Result<NodeChoice, CniError> {
    if let Ok(name) = NodeName::new(text) {
        return Ok(NodeChoice::Name(name));
    }
    let wrong =
        |error| CniError::invalid_config(format!("{} does not hold this node's name", file.display()), error);
    let name = NodeName::new(text.trim()).map_err(wrong)?;
    Ok(NodeChoice::Trimmed { name, file })
}

// === impl NodeChoice ===

impl NodeChoice {
    /// The name for a DEL, which must be possible even if the node's record is gone.
    pub fn trimmed(self) -> NodeName {
        match self {
            Self::Name(name) | Self::Trimmed { name, .. } => name,
        }
    }

    /// The name, after the datastore has been asked if that is necessary.
    pub async fn resolve(self, store: &dyn Store) -> Result<NodeName, CniError> {
        let (name, file) = match self {
            Self::Name(name) => return Ok(name),
            Self::Trimmed { name, file } => (name, file),
        };
        let key = Key::node(&name);
        let record = store.get(&key).await;
        let failed = |error| failure::store("the node's record could not be read", &error, &error);
        if record.map_err(failed)?.is_some() {
            return Ok(name);
        }
        let msg = format!("{} ends in white space, which peers take for a part of the name", file.display());
        let details = format!("and there is no {key}; write the name without a newline");
        Err(CniError::invalid_config(msg, details))
    }
}
