//! The files of our OpenShift server outside of Russet's own directories, for `russet owned` and
//! `russet uninstall`.

use std::path::{Path, PathBuf};

use super::files::Files;
use super::ipam;
use super::records::Records;

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
    /// None if no server of ours ever ran here: the stock server uses the same paths. The directories
    /// are those of [`super::Node`].
    pub fn below(root: &Path, run_dir: &Path, state_dir: &Path) -> Option<Self> {
        let files = Files::below(root);
        Records::new(run_dir, state_dir).were_ever_kept().then(|| Self {
            conflist: files.runtime_config(),
            run_dir: files.run_dir(),
            addresses: ipam::dir(root),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openshifts_paths_are_ours_only_where_our_server_ran() {
        let root = tempfile::tempdir().unwrap();
        let (run, state) = (root.path().join("run/russet"), root.path().join("var/lib/russet"));
        let served = || Served::below(root.path(), &run, &state);
        Files::below(root.path()).write_runtime_config().unwrap();
        assert!(served().is_none(), "the stock server's");
        std::fs::create_dir_all(&state).unwrap();
        Records::new(&run, &state).boot().unwrap();
        let conflist = root.path().join("etc/cni/net.d/80-openshift-network.conf");
        assert_eq!(served().unwrap().conflist.as_deref(), Some(&*conflist));
        std::fs::write(&conflist, "{}").unwrap();
        assert_eq!(served().unwrap().conflist, None, "it is foreign by now");
    }
}
