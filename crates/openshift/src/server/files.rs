//! The files by which plugin and runtime find the server (cni-runtime.md section 4.1), with the
//! stock modes.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use russet_addr::Ipv4Net;
use russet_linux::file::{FileError, write_atomic_with_mode};
use serde_json::{Map, Value};

/// The files below one root directory.
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
}

/// The content of `config.json`, for plugins of OpenShift 3 and 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginConfig {
    /// MTU of pods, in bytes.
    pub mtu: u32,
    /// MTU of their routes, in bytes.
    pub routable_mtu: Option<u32>,
    /// The cloud platform, with OpenShift's name for it.
    pub platform: String,
    /// The network of services.
    pub service: Option<Ipv4Net>,
}

const RUN_DIR: &str = "var/run/openshift-sdn/cniserver";
const CONFIG: &str = "config.json";
const SOCKET: &str = "socket";
/// The configuration that runtimes read. Its existence is the sign that pods can be attached.
const CNI_CONFIG: &str = "etc/cni/net.d/80-openshift-network.conf";
/// The stock servers' last version, and the newest that stock plugins support.
const CNI_CONFIG_TEXT: &str =
    "{\n  \"cniVersion\": \"0.3.1\",\n  \"name\": \"openshift-sdn\",\n  \"type\": \"openshift-sdn\"\n}\n";
const DIR_MODE: u32 = 0o700;
const CONFIG_MODE: u32 = 0o444;
const CNI_CONFIG_MODE: u32 = 0o600;

// === impl Files ===

impl Files {
    /// The files below `root`.
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn socket(&self) -> PathBuf {
        self.run_dir().join(SOCKET)
    }

    pub fn run_dir(&self) -> PathBuf {
        self.root.join(RUN_DIR)
    }

    /// Creates the directory, for root only. In a directory with the right owner and mode only the
    /// files of an earlier server are removed; anything else in its place is removed completely.
    pub fn prepare(&self) -> io::Result<()> {
        let dir = self.run_dir();
        match fs::symlink_metadata(&dir) {
            Ok(found) if found.is_dir() && found.permissions().mode() & 0o7777 == DIR_MODE => {
                for name in [SOCKET, CONFIG] {
                    gone_is_fine(fs::remove_file(dir.join(name)))?;
                }
                return Ok(());
            }
            Ok(found) if found.is_dir() => fs::remove_dir_all(&dir)?,
            Ok(_) => fs::remove_file(&dir)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if let Some(parent) = dir.parent() {
            DirBuilder::new().recursive(true).mode(DIR_MODE).create(parent)?;
        }
        DirBuilder::new().mode(DIR_MODE).create(&dir)?;
        // Independent of the umask.
        fs::set_permissions(&dir, Permissions::from_mode(DIR_MODE))
    }

    /// Writes the settings that plugins use for every interface.
    pub fn write_plugin_config(&self, config: &PluginConfig) -> Result<(), FileError> {
        write_atomic_with_mode(self.run_dir().join(CONFIG), &config.encode(), CONFIG_MODE)
    }

    /// The configuration for runtimes, if its content is ours.
    pub fn runtime_config(&self) -> Option<PathBuf> {
        let path = self.root.join(CNI_CONFIG);
        fs::read(&path).is_ok_and(|text| text == CNI_CONFIG_TEXT.as_bytes()).then_some(path)
    }

    /// Writes the configuration for runtimes by a rename within the directory. An existing one with
    /// the same content is left alone.
    pub fn write_runtime_config(&self) -> Result<(), FilesError> {
        let path = self.root.join(CNI_CONFIG);
        let there = fs::metadata(&path).is_ok_and(|it| it.permissions().mode() & 0o7777 == CNI_CONFIG_MODE);
        if there && self.runtime_config().is_some() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .map_err(|source| FilesError::Make { path: parent.to_owned(), source })?;
        }
        Ok(write_atomic_with_mode(path, CNI_CONFIG_TEXT.as_bytes(), CNI_CONFIG_MODE)?)
    }
}

/// Why the configuration for runtimes could not be written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("make {}: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] FileError),
}

// === impl PluginConfig ===

impl PluginConfig {
    fn encode(&self) -> Vec<u8> {
        let mut object = Map::new();
        object.insert("mtu".to_owned(), self.mtu.into());
        if let Some(mtu) = self.routable_mtu {
            object.insert("routableMTU".to_owned(), mtu.into());
        }
        object.insert("platformType".to_owned(), self.platform.as_str().into());
        if let Some(service) = self.service {
            object.insert("serviceNetworkCIDR".to_owned(), service.to_string().into());
        }
        Value::Object(object).to_string().into_bytes()
    }
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_directory_is_for_root_only_whatever_existed_before() {
        // cni-runtime.md section 4.1: run dir
        let root = tempfile::tempdir().unwrap();
        let files = Files::below(root.path());
        let dir = root.path().join(RUN_DIR);
        files.prepare().unwrap();
        assert_eq!(mode(&dir), 0o700);
        for name in ["socket", "config.json", "other"] {
            fs::write(dir.join(name), "x").unwrap();
        }
        files.prepare().unwrap();
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["other"], "only socket and config are removed");
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        files.prepare().unwrap();
        assert_eq!((mode(&dir), fs::read_dir(&dir).unwrap().count()), (0o700, 0), "another mode: all of it");
        fs::remove_dir(&dir).unwrap();
        fs::write(&dir, "a file").unwrap();
        files.prepare().unwrap();
        assert_eq!(mode(&dir), 0o700);
    }

    #[test]
    fn config_json_suits_plugins_of_openshift_3_and_4() {
        // cni-runtime.md section 4.1: config
        let root = tempfile::tempdir().unwrap();
        let files = Files::below(root.path());
        files.prepare().unwrap();
        let mut config =
            PluginConfig { mtu: 1400, routable_mtu: Some(1350), platform: "AWS".to_owned(), service: None };
        files.write_plugin_config(&config).unwrap();
        let path = root.path().join(RUN_DIR).join("config.json");
        let read = || fs::read_to_string(&path).unwrap();
        assert_eq!(
            (read().as_str(), mode(&path)),
            (r#"{"mtu":1400,"routableMTU":1350,"platformType":"AWS"}"#, 0o444)
        );
        config = PluginConfig { routable_mtu: None, service: "172.30.0.0/16".parse().ok(), ..config };
        files.write_plugin_config(&config).unwrap();
        assert_eq!(read(), r#"{"mtu":1400,"platformType":"AWS","serviceNetworkCIDR":"172.30.0.0/16"}"#);
    }

    #[test]
    fn the_configuration_for_runtimes_is_for_root_and_written_once() {
        // cni-runtime.md section 4.1: CNI conf
        use std::os::unix::fs::MetadataExt as _;
        let root = tempfile::tempdir().unwrap();
        let files = Files::below(root.path());
        files.write_runtime_config().unwrap();
        let path = root.path().join(CNI_CONFIG);
        let inode = fs::metadata(&path).unwrap().ino();
        assert_eq!(mode(&path), 0o600);
        files.write_runtime_config().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode, "no runtime has to look again");
        fs::write(&path, "").unwrap();
        files.write_runtime_config().unwrap();
        assert_ne!(fs::metadata(&path).unwrap().len(), 0);
        let others = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(others, 1, "nothing else is left in the directory");
    }
}
