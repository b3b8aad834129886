//! The files of our OpenShift server outside of Russet's own directories, for `russet owned` and
//! `russet uninstall`.

use std::path::PathBuf;

use super::files::Files;
use super::ipam;
use super::records::Records;
use crate::config::Paths;

/// Files in OpenShift's directories.
#[derive(Debug)]
pub struct Served {
    /// The configuration for runtimes, if its content is ours.
    pub conflist: Option<PathBuf>,
    /// The directory with the socket and the plugins' settings.
    pub run_dir: PathBuf,
    /// The directory of pods' addresses, in host-local's format.
    pub addresses: PathBuf,
}

// === impl Served ===

impl Served {
    /// None if no server of ours ever ran here: the stock server uses the same paths.
    pub fn on(paths: &Paths) -> Option<Self> {
        let files = Files::below(paths.root());
        Records::new(paths).were_ever_kept().then(|| Self {
            conflist: files.runtime_config(),
            run_dir: files.run_dir(),
            addresses: ipam::dir(paths.root()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openshifts_paths_are_ours_only_where_our_server_ran() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        Files::below(root.path()).write_runtime_config().unwrap();
        assert!(Served::on(&paths).is_none(), "the stock server's");
        std::fs::create_dir_all(paths.state_dir()).unwrap();
        Records::new(&paths).boot().unwrap();
        let conflist = root.path().join("etc/cni/net.d/80-openshift-network.conf");
        assert_eq!(Served::on(&paths).unwrap().conflist.as_deref(), Some(&*conflist));
        std::fs::write(&conflist, "{}").unwrap();
        assert_eq!(Served::on(&paths).unwrap().conflist, None, "it is foreign by now");
    }
}
