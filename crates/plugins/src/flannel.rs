//! `flannel`: calls another plugin, usually `bridge`, with a configuration made from the lease that
//! the flannel daemon of this node wrote to a file (flannel.md section 8, docs/plugins.md). If that
//! plugin and its IPAM plugin are ours, the whole chain runs in this process.

mod rendered;
mod state;
mod subnet_env;

use std::path::{Path, PathBuf};

use russet_cni_spec::plugin::Request;
use russet_cni_spec::{ATTACHMENT_KEYS, Call, CniError, CniResult, Target, Verb};
use russet_wiring::{LocalNode, RequestLog};
use serde_json::{Map, Value};

use crate::delegation::Delegation;
use state::{ConfigFiles, SavedConfig};
use subnet_env::SubnetEnv;

/// The plugin's name.
pub const NAME: &str = "flannel";

/// The daemon's file, below the root.
const SUBNET_FILE: &str = "run/flannel/subnet.env";
/// The configurations that ADD saves for DEL, below the root.
const DATA_DIR: &str = "var/lib/cni/flannel";
/// The largest `subnet.env` that is read; real ones have six lines.
const SUBNET_FILE_MAX_BYTES: u64 = 64 * 1024;

struct FlannelRequest<'r> {
    node: &'r LocalNode,
    request: &'r Request,
    log: &'r RequestLog,
    subnet_file: PathBuf,
    state: ConfigFiles,
}

pub async fn run(
    node: &LocalNode,
    request: &Request,
    log: &RequestLog,
) -> Result<Option<CniResult>, CniError> {
    let path = |key: &str, default: &str| path_setting(request, key, &node.root.join(default));
    let (subnet_file, data_dir) = (path("subnetFile", SUBNET_FILE)?, path("dataDir", DATA_DIR)?);
    let flannel = FlannelRequest { node, request, log, subnet_file, state: ConfigFiles::at(data_dir) };
    match &request.env.call {
        Call::Add(target) => flannel.add(target).await.map(Some),
        Call::Del(target) => flannel.del(target).await.map(|()| None),
        Call::Check(target) => flannel.check(target).await.map(|()| None),
        Call::Gc => flannel.gc().await.map(|()| None),
        Call::Status => flannel.status().await.map(|()| None),
    }
}

// === impl FlannelRequest ===

impl FlannelRequest<'_> {
    /// The saved configuration stays if the delegate fails: the DEL that follows needs it.
    async fn add(&self, target: &Target) -> Result<CniResult, CniError> {
        let config = self.render()?;
        let delegation = self.delegation(&config)?;
        let text = config.to_string();
        self.saved(target, move |state, target| state.save(target, text.as_bytes())).await?;
        delegation.add().await
    }

    /// Removes the saved configuration only after the delegate's DEL; the Go plugin 1.2.0 removes
    /// it before, and leaks the address if the delegate fails.
    async fn del(&self, target: &Target) -> Result<(), CniError> {
        let (config, own) = match self.saved(target, ConfigFiles::load).await? {
            SavedConfig::Absent => return Ok(()),
            SavedConfig::Config { config, own } => (config, own),
            SavedConfig::Broken(why) => return self.del_without(target, &why).await,
        };
        match self.delegation(&config) {
            Ok(delegation) => delegation.call(Verb::Del).await?,
            // No later DEL could do better with this configuration.
            Err(error) => self.log.warn(format!("flannel: the saved configuration cannot be used: {error}")),
        }
        if own { self.saved(target, ConfigFiles::forget).await } else { Ok(()) }
    }

    /// DEL with an unreadable saved configuration, as after a power failure: a configuration
    /// rendered now usually finds the address. If none can be rendered, the DEL succeeds anyway, so
    /// that the pod can be deleted; if the delegate fails, the DEL fails, as with a readable
    /// configuration.
    async fn del_without(&self, target: &Target, why: &str) -> Result<(), CniError> {
        self.log.warn(format!("flannel: {why}; going by today's configuration"));
        let delegation = match self.render().and_then(|config| self.delegation(&config)) {
            Ok(delegation) => delegation,
            Err(error) => {
                self.log.warn(format!("flannel: nothing could be taken back: {error}"));
                return Ok(());
            }
        };
        delegation.call(Verb::Del).await?;
        self.saved(target, ConfigFiles::forget).await
    }

    async fn check(&self, target: &Target) -> Result<(), CniError> {
        let mut config = match self.saved(target, ConfigFiles::load).await? {
            SavedConfig::Config { config, .. } => config,
            SavedConfig::Absent => return Err(not_ours("there is no saved configuration")),
            SavedConfig::Broken(why) => return Err(not_ours(&why)),
        };
        let previous = self.given()?.get("prevResult").cloned();
        if let (Value::Object(config), Some(previous)) = (&mut config, previous) {
            config.insert("prevResult".to_owned(), previous);
        }
        self.delegation(&config)?.call(Verb::Check).await
    }

    /// The delegate collects what it made; then the configurations saved for it are removed.
    async fn gc(&self) -> Result<(), CniError> {
        let valid = self.request.config.required_attachments()?;
        let mut config = self.render()?;
        let given = self.given()?;
        if let Value::Object(config) = &mut config {
            let listed =
                ATTACHMENT_KEYS.iter().filter_map(|key| Some(((*key).to_owned(), given.get(*key)?.clone())));
            config.extend(listed);
        }
        self.delegation(&config)?.call(Verb::Gc).await?;
        let network = self.request.config.name.clone();
        self.files(move |state| state.collect(network.as_str(), &valid)).await
    }

    /// Works on the saved configuration of an interface.
    async fn saved<T: Send + 'static>(
        &self,
        target: &Target,
        work: impl FnOnce(&ConfigFiles, &Target) -> Result<T, CniError> + Send + 'static,
    ) -> Result<T, CniError> {
        let target = target.clone();
        self.files(move |state| work(state, &target)).await
    }

    /// Works on files, which flushes disks, away from the thread that serves requests.
    async fn files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ConfigFiles) -> Result<T, CniError> + Send + 'static,
    ) -> Result<T, CniError> {
        let state = self.state.clone();
        let done = tokio::task::spawn_blocking(move || work(&state)).await;
        done.unwrap_or_else(|error| {
            Err(CniError::internal("flannel: the work on files was interrupted", error))
        })
    }

    /// Succeeds if the daemon has written its file and the delegate is ready.
    async fn status(&self) -> Result<(), CniError> {
        let env = self.subnet_env();
        env.map_err(|error| CniError::not_available("flannel: the daemon is not ready", error))?;
        self.delegation(&self.render()?)?.call(Verb::Status).await
    }

    fn render(&self) -> Result<Value, CniError> {
        let env = self.subnet_env().map_err(|error| {
            let details = format!("{error}; flannel writes the file once it has a lease");
            CniError::try_again_later("flannel: failed to load the node's subnet", details)
        })?;
        rendered::render(&self.request.config, &self.given()?, &env)
    }

    fn subnet_env(&self) -> Result<SubnetEnv, String> {
        use std::io::Read as _;
        let shown = self.subnet_file.display();
        let mut text = String::new();
        let read = std::fs::File::open(&self.subnet_file)
            .and_then(|file| file.take(SUBNET_FILE_MAX_BYTES).read_to_string(&mut text));
        read.map_err(|error| format!("{shown}: {error}"))?;
        SubnetEnv::parse(&text).map_err(|error| format!("{shown}: {error}"))
    }

    fn given(&self) -> Result<Map<String, Value>, CniError> {
        serde_json::from_slice(&self.request.stdin)
            .map_err(|error| CniError::decoding("failed to decode the network configuration", error))
    }

    fn delegation(&self, config: &Value) -> Result<Delegation<'_>, CniError> {
        let kind = rendered::kind(config)
            .ok_or_else(|| CniError::invalid_config("flannel: the delegate has no type", config))?;
        if kind == NAME {
            return Err(CniError::invalid_config("flannel: it cannot be its own delegate", config));
        }
        let delegation = Delegation::new(self.node, self.request, kind, config.to_string().into_bytes())?;
        // All pods of this bridge are flannel's, and their addresses are known.
        Ok(delegation.default_here(crate::bridge::GUARD_BY_DEFAULT, true))
    }
}

fn path_setting(request: &Request, key: &str, default: &Path) -> Result<PathBuf, CniError> {
    match request.config.settings.get(key) {
        None | Some(Value::Null) => Ok(default.to_owned()),
        Some(Value::String(path)) if path.is_empty() => Ok(default.to_owned()),
        Some(Value::String(path)) if Path::new(path).is_absolute() => Ok(path.into()),
        Some(other) => Err(CniError::invalid_config(format!("flannel: {key} is no absolute path"), other)),
    }
}

fn not_ours(why: &str) -> CniError {
    CniError::new(
        russet_wiring::failure::WIRING,
        "flannel: the interface was not made by this plugin, or its traces are not_ours",
        why,
    )
}

#[cfg(test)]
mod tests;
