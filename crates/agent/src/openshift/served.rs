//! What a server of ours has left in files outside of Russet's own directories, for `russet owned` and `russet uninstall`.

use std::path::PathBuf;

use super::files::Files;
use super::ipam;
use super::records::Records;
use crate::config::Paths;

/// Files in places that are OpenShift's.
#[derive(Debug)]
pub struct Served {
    /// What tells runtimes that pods can be attached, while it says what we write.
    pub conflist: Option<PathBuf>,
    /// The socket and what plugins are told.
    pub run_dir: PathBuf,
    /// The addresses of pods, in host-local's form.
    pub addresses: PathBuf,
}

// === impl Served ===

impl Served {
    /// None where no server of ours ever ran: the places are the stock server's, too.
    pub fn on(paths: &Paths) -> Option<Self> {
        let files = Files::below(paths.root());
        Records::of(paths).were_ever_kept().then(|| Self {
            conflist: files.told_runtimes(),
            run_dir: files.run_dir(),
            addresses: ipam::dir(paths.root()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_we_served_are_openshifts_places_ours() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        Files::below(root.path()).tell_runtimes().unwrap();
        assert!(Served::on(&paths).is_none(), "the stock server's");
        std::fs::create_dir_all(paths.state_dir()).unwrap();
        Records::of(&paths).boot().unwrap();
        let conflist = root.path().join("etc/cni/net.d/80-openshift-network.conf");
        assert_eq!(Served::on(&paths).unwrap().conflist.as_deref(), Some(&*conflist));
        std::fs::write(&conflist, "{}").unwrap();
        assert_eq!(Served::on(&paths).unwrap().conflist, None, "somebody else's by now");
    }
}
