//! Where Kubernetes' programs are: a directory that the caller names, the directories of `PATH`, or the cache that `cargo xtask test` makes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::demo::DemoError;

/// Programs of one version of Kubernetes, with an etcd.
#[derive(Debug, PartialEq, Eq)]
pub struct Programs {
    pub apiserver: PathBuf,
    pub controllers: PathBuf,
    pub scheduler: PathBuf,
    pub etcd: PathBuf,
}

/// Directories that are searched as one, because their programs belong together.
#[derive(Debug)]
struct Place {
    /// For messages.
    name: String,
    directories: Vec<PathBuf>,
}

/// What has to come from one place, so that the versions fit together.
const KUBERNETES: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const ETCD: &str = "etcd";

// === impl Programs ===

impl Programs {
    /// Finds them; an error names what is missing, where it was searched, and what to do.
    pub fn find(named: Option<&Path>) -> Result<Self, DemoError> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let cache = set("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&set("HOME")?).join(".cache")));
        let path: Vec<PathBuf> = set("PATH").iter().flat_map(std::env::split_paths).collect();
        Self::search(named, path, cache.map(|cache| cache.join("russet/kubernetes")))
    }

    fn search(named: Option<&Path>, path: Vec<PathBuf>, cache: Option<PathBuf>) -> Result<Self, DemoError> {
        let path = Place { name: "PATH".to_owned(), directories: path };
        let mut places: Vec<Place> = match named {
            Some(directory) => vec![Place::directory(directory.to_owned())],
            None => std::iter::once(path.clone()).chain(Place::of_cache(cache.as_deref())).collect(),
        };
        let chosen = places.iter().find(|place| KUBERNETES.iter().all(|name| place.program(name).is_some()));
        let chosen = chosen.ok_or_else(|| missing(&KUBERNETES, &places, cache.as_deref()))?;
        let required =
            |name: &str| chosen.program(name).ok_or_else(|| missing(&KUBERNETES, &places, cache.as_deref()));
        let (apiserver, controllers) = (required(KUBERNETES[0])?, required(KUBERNETES[1])?);
        let scheduler = required(KUBERNETES[2])?;
        // Any etcd of version 3.4 or newer serves.
        let etcd = chosen.program(ETCD).or_else(|| path.program(ETCD));
        let etcd = etcd.or_else(|| places.iter().find_map(|place| place.program(ETCD)));
        if let Some(etcd) = etcd {
            return Ok(Self { apiserver, controllers, scheduler, etcd });
        }
        if named.is_some() {
            places.push(path);
        }
        Err(missing(&[ETCD], &places, cache.as_deref()))
    }
}

// === impl Place ===

impl Clone for Place {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), directories: self.directories.clone() }
    }
}

impl Place {
    fn directory(directory: PathBuf) -> Self {
        Self { name: directory.display().to_string(), directories: vec![directory] }
    }

    /// Each version that is in the cache, in the order of their names, so that a run finds what the one before found.
    fn of_cache(cache: Option<&Path>) -> Vec<Self> {
        let entries = cache.and_then(|cache| fs::read_dir(cache).ok()).into_iter().flatten().flatten();
        let mut directories: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        directories.sort();
        directories.into_iter().map(Self::directory).collect()
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        const EXECUTABLE: u32 = 0o111;
        let is_program = |path: &PathBuf| {
            fs::metadata(path)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & EXECUTABLE != 0)
        };
        self.directories.iter().map(|directory| directory.join(name)).find(is_program)
    }
}

/// Programs of which no place has all.
fn missing(wanted: &[&str], places: &[Place], cache: Option<&Path>) -> DemoError {
    let absent: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|name| places.iter().all(|place| place.program(name).is_none()))
        .collect();
    let what = match absent.as_slice() {
        [] => format!("{} are not together in one directory", wanted.join(", ")),
        names => format!("{} not found", names.join(", ")),
    };
    let mut searched: Vec<String> = places.iter().map(|place| place.name.clone()).collect();
    if let Some(cache) = cache.filter(|_| places.iter().any(|place| place.name == "PATH")) {
        searched.push(format!("{}/*", cache.display()));
    }
    searched.dedup();
    DemoError::Refused(format!(
        "{what}; searched: {}. Name the directory of Kubernetes' server programs (1.30 or newer) with --kubernetes-programs DIR, or build them in a \
         clone of Russet (Go, some 10 minutes): cargo xtask kubernetes older/kube-apiserver older/kube-controller-manager older/kube-scheduler older/etcd",
        searched.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(directory: &Path, names: &[&str]) {
        fs::create_dir_all(directory).unwrap();
        for name in names {
            let path = directory.join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn programs_of_kubernetes_come_from_one_place_and_etcd_from_any() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        put(&at("bin"), &["kube-apiserver", "etcd"]);
        put(&at("cache/newest-1"), &["kube-apiserver", "etcd"]);
        put(&at("cache/older-2"), &KUBERNETES);
        let found = Programs::search(None, vec![at("bin")], Some(at("cache"))).unwrap();
        assert_eq!(found.apiserver, at("cache/older-2/kube-apiserver"));
        assert_eq!(found.etcd, at("bin/etcd"));
        put(&at("cache/older-2"), &["etcd"]);
        let found = Programs::search(None, vec![at("bin")], Some(at("cache"))).unwrap();
        assert_eq!(found.etcd, at("cache/older-2/etcd"));
        // A directory that is named is the only one for Kubernetes' own programs.
        assert!(Programs::search(Some(&at("bin")), Vec::new(), Some(at("cache"))).is_err());
    }

    #[test]
    fn an_error_names_what_is_missing_and_where_it_was_searched() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        put(&at("bin"), &["kube-apiserver", "kube-scheduler"]);
        let error = Programs::search(None, vec![at("bin")], Some(at("cache"))).unwrap_err().to_string();
        let begin =
            format!("kube-controller-manager not found; searched: PATH, {}/*. Name", at("cache").display());
        assert!(error.starts_with(&begin), "{error}");
        assert!(error.contains("cargo xtask kubernetes older/kube-apiserver"), "{error}");
        // A file without the right to execute it is no program.
        put(&at("all"), &KUBERNETES);
        fs::set_permissions(at("all").join("kube-scheduler"), fs::Permissions::from_mode(0o644)).unwrap();
        let error = Programs::search(Some(&at("all")), Vec::new(), None).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("kube-scheduler not found; searched: {}. ", at("all").display())),
            "{error}"
        );
        put(&at("all"), &["kube-scheduler"]);
        fs::set_permissions(at("all").join("kube-scheduler"), fs::Permissions::from_mode(0o755)).unwrap();
        let error = Programs::search(Some(&at("all")), vec![at("bin")], None).unwrap_err().to_string();
        assert!(error.starts_with("etcd not found; searched: "), "{error}");
        assert!(error.contains("PATH"), "{error}");
    }
}
