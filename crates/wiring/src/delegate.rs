//! Executes plugins of other vendors by the CNI protocol, such as the IPAM plugin that a
//! configuration names (cni-runtime.md sections 1.4 and 2.2).

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use russet_cni_spec::plugin::Request;
use russet_cni_spec::table::{self, Plugin};
use russet_cni_spec::{CniError, CniResult, Verb, Version};
use russet_linux::execute::{ExecuteError, Execution, Finished};
use russet_sync::BlockingPool;

use crate::executable::{self, ExecutableOwner};
use crate::threads;

/// A plugin and its environment and configuration.
#[derive(Debug, Clone)]
pub struct Delegate {
    kind: String,
    dirs: Vec<PathBuf>,
    vars: Vec<(&'static str, OsString)>,
    stdin: Vec<u8>,
    version: Version,
}

/// Each running plugin occupies one thread.
static BLOCKING_POOL: LazyLock<BlockingPool> = threads::pool();
/// dockershim gave a chain 220 s, and CRI-O gives a DEL one minute: a plugin called by a plugin
/// must take less than either.
const DEADLINE: Duration = Duration::from_secs(45);
/// Environment variables that every plugin gets besides `CNI_COMMAND` and `CNI_ARGS`.
const VARS: [&str; 4] = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"];

// === impl Delegate ===

impl Delegate {
    /// The plugin `kind`, for the container of `request`, with `stdin` as its configuration. It is
    /// asked to ignore arguments that it does not know, which are Kubernetes' (calico-cni.md
    /// section 1.1). A plugin of ours that would wait for the request that it is part of is
    /// refused.
    pub fn new(kind: &str, request: &Request, stdin: Vec<u8>) -> Result<Self, CniError> {
        if table::find(kind).is_some_and(Plugin::takes_container_lock)
            && executable::find(kind, &request.env.path) == ExecutableOwner::Ours
        {
            let msg = format!("{kind:?} cannot work for another plugin: it would wait for that one to end");
            let details = "name it in the list of the network's plugins, and another one here";
            return Err(CniError::invalid_config(msg, details));
        }
        let var = |key: &str| {
            let found = request.env.vars.iter().rev().find(|(known, _)| known == key);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let mut vars: Vec<(&'static str, OsString)> =
            VARS.iter().map(|key| (*key, var(key).into())).collect();
        vars.push(("CNI_ARGS", format!("IgnoreUnknown=1;{}", var("CNI_ARGS")).trim_end_matches(';').into()));
        let (kind, dirs) = (kind.to_owned(), request.env.path.clone());
        Ok(Self { kind, dirs, vars, stdin, version: request.config.cni_version })
    }

    /// Runs its ADD and returns the result. If the result cannot be decoded, runs DEL to release
    /// what the plugin allocated.
    pub async fn add(&self) -> Result<CniResult, CniError> {
        let stdout = self.run(Verb::Add).await?;
        match CniResult::decode(&stdout, self.version).and_then(|it| it.convert(self.version)) {
            Ok(result) => Ok(result),
            Err(error) => {
                let mut error = CniError::from(error).during(&format!("the result of {}", self.kind));
                if let Err(also) = self.call(Verb::Del).await {
                    error.details = format!("{} what it took is held until DEL: {also}", error.details);
                }
                Err(error)
            }
        }
    }

    /// Runs any verb but ADD.
    pub async fn call(&self, verb: Verb) -> Result<(), CniError> {
        self.run(verb).await.map(drop)
    }

    async fn run(&self, verb: Verb) -> Result<Vec<u8>, CniError> {
        let Self { kind, dirs, mut vars, stdin, .. } = self.clone();
        vars.push(("CNI_COMMAND", verb.as_str().into()));
        threads::run(&BLOCKING_POOL, verb == Verb::Add, move || execute(&kind, &dirs, &vars, &stdin)).await
    }
}

fn execute(
    kind: &str,
    dirs: &[PathBuf],
    env: &[(&'static str, OsString)],
    stdin: &[u8],
) -> Result<Vec<u8>, CniError> {
    // A name with a slash would be searched for outside `CNI_PATH`.
    let found = dirs.iter().map(|dir| dir.join(kind)).find(|path| !kind.contains('/') && path.is_file());
    let Some(binary) = found else {
        let msg = format!("failed to find plugin {kind:?} in path {dirs:?}");
        return Err(CniError::invalid_config(msg, "install it, or change `type`"));
    };
    let execution = Execution { binary: &binary, env, stdin, deadline: DEADLINE };
    // The plugin is killed together with this process: the locks that this process held are then
    // free, and their next holder undoes what the plugin did so far.
    let finished = execution.run_tied_to_this_process();
    let finished = finished.map_err(|error| {
        let msg = format!("plugin {kind:?} did not finish");
        match error {
            ExecuteError::Deadline(_) => CniError::try_again_later(msg, error),
            _ => CniError::io(msg, error),
        }
    })?;
    if finished.status.success() { Ok(finished.stdout) } else { Err(complaint(kind, &finished)) }
}

/// The error of a plugin that failed: its own error object, if it printed one.
fn complaint(kind: &str, finished: &Finished) -> CniError {
    CniError::decode(&finished.stdout).unwrap_or_else(|_| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let details = format!("{}; {} {}", finished.status, text(&finished.stdout), text(&finished.stderr));
        CniError::internal(format!("plugin {kind:?} failed without an error object"), details.trim())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn request(dir: &std::path::Path, args: &str) -> Request {
        let vars = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "abc"),
            ("CNI_NETNS", "/run/netns/none"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", args),
            ("CNI_PATH", dir.to_str().unwrap()),
        ];
        let config = br#"{"cniVersion":"1.0.0","name":"n","type":"calico"}"#.to_vec();
        Request::new(vars, config).unwrap()
    }

    fn scripted(script: &str, args: &str) -> (tempfile::TempDir, Delegate) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fake");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let delegate = Delegate::new("fake", &request(dir.path(), args), b"{\"stdin\":1}".to_vec()).unwrap();
        (dir, delegate)
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_delegated_plugin_gets_the_containers_variables_and_ignore_unknown() {
        // calico-cni.md section 1.1
        let script = r#"cat >"$0.stdin"; env | grep ^CNI_ | sort >"$0.env"; echo '{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.5/8"}]}'"#;
        let (dir, delegate) = scripted(script, "K8S_POD_NAME=web");
        let result = wait(delegate.add()).unwrap();
        assert_eq!(result.ips[0].address.to_string(), "10.0.0.5/8");
        let env = std::fs::read_to_string(dir.path().join("fake.env")).unwrap();
        for line in ["CNI_COMMAND=ADD", "CNI_CONTAINERID=abc", "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web"] {
            assert!(env.lines().any(|it| it == line), "{line} is not in {env}");
        }
        assert_eq!(std::fs::read(dir.path().join("fake.stdin")).unwrap(), b"{\"stdin\":1}");
    }

    #[test]
    fn without_arguments_only_the_request_to_ignore_is_passed() {
        let (dir, delegate) = scripted(r#"echo "$CNI_ARGS $CNI_COMMAND" >"$0.args""#, "");
        wait(delegate.call(Verb::Del)).unwrap();
        assert_eq!(std::fs::read(dir.path().join("fake.args")).unwrap(), b"IgnoreUnknown=1 DEL\n");
    }

    #[test]
    fn a_plugins_own_error_is_passed_on_word_for_word() {
        // calico-cni.md section 2.3, step 3
        let (_dir, delegate) = scripted(r#"echo '{"code":77,"msg":"no more","details":"d"}'; exit 1"#, "");
        let error = wait(delegate.add()).unwrap_err();
        assert_eq!((error.code, error.msg.as_str(), error.details.as_str()), (77, "no more", "d"));
        let (_dir, delegate) = scripted("echo oh no >&2; exit 3", "");
        let error = wait(delegate.add()).unwrap_err();
        assert!(error.msg.contains("\"fake\"") && error.details.contains("oh no"), "{error}");
    }

    #[test]
    fn addresses_are_released_when_the_plugins_result_cannot_be_read() {
        // calico-cni.md section 2.3, step 4
        let (dir, delegate) = scripted(r#"echo "$CNI_COMMAND" >>"$0.verbs"; echo rubbish"#, "");
        let error = wait(delegate.add()).unwrap_err();
        assert!(error.msg.contains("the result of fake"), "{error}");
        assert_eq!(std::fs::read(dir.path().join("fake.verbs")).unwrap(), b"ADD\nDEL\n");
    }

    /// Runs in a child process, which the next test kills.
    #[test]
    fn waits_for_a_plugin() {
        if let Some(dir) = std::env::var_os(DIR) {
            let delegate = Delegate::new("fake", &request(dir.as_ref(), ""), Vec::new()).unwrap();
            wait(delegate.add()).unwrap_err();
        }
    }

    const DIR: &str = "RUSSET_TEST_DELEGATE_DIR";

    #[test]
    fn a_plugin_dies_with_the_process_that_waits_for_it() {
        let (dir, _) = scripted(r#"echo $$ >"$0.new"; mv "$0.new" "$0.pid"; exec sleep 600"#, "");
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", "delegate::tests::waits_for_a_plugin"]).env(DIR, dir.path());
        let mut child = child.stdout(std::process::Stdio::null()).spawn().unwrap();
        let pid = dir.path().join("fake.pid");
        russet_testkit::eventually(TEST_TIMEOUT, || pid.exists());
        let pid = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let plugin = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let ended = russet_linux::process::has_ended(&plugin, TEST_TIMEOUT).unwrap();
        if !ended {
            rustix::process::pidfd_send_signal(&plugin, rustix::process::Signal::KILL).unwrap();
        }
        assert!(ended);
    }

    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn the_error_names_a_missing_plugin() {
        let dir = tempfile::tempdir().unwrap();
        for kind in ["absent", "../absent"] {
            let delegate = Delegate::new(kind, &request(dir.path(), ""), Vec::new()).unwrap();
            let error = wait(delegate.call(Verb::Del)).unwrap_err();
            assert!(error.msg.contains(kind), "{error}");
        }
    }

    #[test]
    fn our_own_plugins_that_would_wait_for_their_caller_are_refused_at_once() {
        let (ours, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let made = |dir: &tempfile::TempDir, kind: &str| {
            Delegate::new(kind, &request(dir.path(), ""), Vec::new()).map(|delegate| delegate.kind)
        };
        for kind in ["russet", "calico", "loopback", "bridge"] {
            std::os::unix::fs::symlink("/proc/self/exe", ours.path().join(kind)).unwrap();
            std::fs::write(foreign.path().join(kind), "#!/bin/sh\n").unwrap();
            let error = made(&ours, kind).unwrap_err();
            assert!(error.code == 7 && error.msg.contains(kind) && !error.details.is_empty(), "{error}");
        }
        for kind in ["calico", "loopback", "bridge"] {
            made(&foreign, kind).unwrap();
        }
        // IPAM plugins wait for no other request.
        for kind in ["calico-ipam", "host-local"] {
            std::os::unix::fs::symlink("/proc/self/exe", ours.path().join(kind)).unwrap();
            made(&ours, kind).unwrap();
        }
    }
}
