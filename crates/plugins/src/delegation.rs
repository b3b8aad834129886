//! A plugin that another one calls: in this process where it is one of ours, by the CNI protocol where somebody installed another
//! (cni-runtime.md section 1.11).
//!
//! What `CNI_PATH` finds decides. No file of that name (an agent in a container may not see the directory), or one that is our own executable, is
//! us; anything else is run.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use russet_cni_spec::{Call, CniArgs, CniError, CniResult, NetworkConfig, Request, Target, Verb, relay};

use crate::delegate::Delegate;
use crate::node::LocalNode;
use crate::request_log::RequestLog;

/// A plugin, the configuration that it gets, and where it runs.
pub struct Delegation<'n> {
    node: &'n LocalNode,
    kind: String,
    /// The caller's request with the plugin's own configuration; its verb is chosen later.
    request: Request,
    place: Place,
}

enum Place {
    Here,
    There(Delegate),
}

/// What our executables are called, whatever links lead to them.
const OURS: [&str; 2] = ["russet", "russet-cni"];
/// The largest file in which our mark is looked for; the small executable has less than one, the command some ten.
const EXECUTABLE_MAX_BYTES: u64 = 64 * 1024 * 1024;

// === impl Delegation ===

impl<'n> Delegation<'n> {
    /// The plugin `kind` for the container of `request`, with `stdin` as its configuration.
    pub fn new(node: &'n LocalNode, request: &Request, kind: &str, stdin: Vec<u8>) -> Result<Self, CniError> {
        let place = if crate::is_local(kind) && !is_foreign(kind, &request.env.path) {
            Place::Here
        } else {
            Place::There(Delegate::new(kind, request, stdin.clone()))
        };
        let mut env = request.env.clone();
        // As for plugins that are run: arguments that it does not know are for its caller.
        let pairs: Vec<String> = env.args.pairs().map(|(key, value)| format!("{key}={value}")).collect();
        env.args = CniArgs::parse(&[pairs, vec!["IgnoreUnknown=1".to_owned()]].concat().join(";"))?;
        let request = Request { env, config: NetworkConfig::parse(&stdin)?, stdin };
        Ok(Self { node, kind: kind.to_owned(), request, place })
    }

    /// Its ADD.
    pub async fn add(&self) -> Result<CniResult, CniError> {
        match &self.place {
            Place::There(delegate) => delegate.add().await,
            Place::Here => {
                let missing = || CniError::internal(format!("{} gave no result", self.kind), "");
                self.here(Verb::Add).await?.ok_or_else(missing)
            }
        }
    }

    /// Any of its other verbs. One that its version does not have is not asked for.
    pub async fn tell(&self, verb: Verb) -> Result<(), CniError> {
        if !self.request.config.cni_version.supports(verb) {
            return Ok(());
        }
        match &self.place {
            Place::There(delegate) => delegate.tell(verb).await,
            Place::Here => self.here(verb).await.map(drop),
        }
    }

    async fn here(&self, verb: Verb) -> Result<Option<CniResult>, CniError> {
        let mut request = self.request.clone();
        request.env.call = call(verb, request.env.target().cloned())?;
        // On the heap: a plugin may call the next one this way.
        let log = RequestLog::new(&self.kind);
        Box::pin(crate::run_local(self.node, &self.kind, &request, &log)).await
    }
}

fn call(verb: Verb, target: Option<Target>) -> Result<Call, CniError> {
    let target = || target.ok_or_else(|| CniError::internal(format!("{verb} of no container"), ""));
    Ok(match verb {
        Verb::Add => Call::Add(target()?),
        Verb::Check => Call::Check(target()?),
        Verb::Del => Call::Del(target()?),
        Verb::Gc => Call::Gc,
        Verb::Status => Call::Status,
        Verb::Version => return Err(CniError::internal("VERSION needs no plugin", "")),
    })
}

/// Whether the runtime would find somebody else's executable under that name.
fn is_foreign(kind: &str, dirs: &[PathBuf]) -> bool {
    dirs.iter().map(|dir| dir.join(kind)).find(|path| path.is_file()).is_some_and(|path| !is_ours(&path))
}

fn is_ours(path: &Path) -> bool {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.file_name().and_then(|name| name.to_str()).is_some_and(|name| OURS.contains(&name)) {
        return true;
    }
    let id = |path: &Path| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    id(&target).is_some_and(|it| Some(it) == id(Path::new("/proc/self/exe"))) || has_mark(&target)
}

/// Whether it is a copy of ours. Run, it would ask the agent, which waits for us.
fn has_mark(path: &Path) -> bool {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(EXECUTABLE_MAX_BYTES).read_to_end(&mut bytes));
    read.is_ok() && memchr::memmem::find(&bytes, relay::MARK.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_is_not_our_executable_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_owned()];
        let path = dir.path().join("host-local");
        assert!(!is_foreign("host-local", &dirs), "absent");
        std::os::unix::fs::symlink("/proc/self/exe", &path).unwrap();
        assert!(!is_foreign("host-local", &dirs), "this very executable");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(dir.path().join("russet"), "").unwrap();
        std::os::unix::fs::symlink("russet", &path).unwrap();
        assert!(!is_foreign("host-local", &dirs), "a link to ours");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(is_foreign("host-local", &dirs));
        std::fs::remove_file(&path).unwrap();
        std::fs::copy("/proc/self/exe", &path).unwrap();
        assert!(!is_foreign("host-local", &dirs), "a copy");
        let other = tempfile::tempdir().unwrap();
        assert!(!is_foreign("host-local", &[other.path().to_owned()]));
    }
}
