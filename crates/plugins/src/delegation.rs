//! A plugin that another plugin calls: run in this process if it is one of ours, executed by the
//! CNI protocol if the administrator installed another executable (cni-runtime.md section 1.11).
//!
//! What `CNI_PATH` finds decides. If there is no file of that name (an agent in a container may not
//! see the directory) or the file is our own executable, the plugin runs in this process; any other
//! file is executed.

use russet_cni_spec::table::{self, Plugin};
use russet_cni_spec::{Call, CniArgs, CniError, CniResult, NetworkConfig, Request, Target, Verb};
use russet_wiring::executable::{self, ExecutableOwner};
use russet_wiring::{Delegate, LocalNode, RequestLog};

/// A plugin to call, with its configuration.
pub struct Delegation<'n> {
    node: &'n LocalNode,
    kind: String,
    /// The caller's request with the plugin's own configuration; its verb is chosen later.
    request: Request,
    runner: Runner,
}

enum Runner {
    InProcess,
    Executable(Delegate),
}

// === impl Delegation ===

impl<'n> Delegation<'n> {
    /// The plugin `kind` for the container of `request`, with `stdin` as its configuration.
    pub fn new(node: &'n LocalNode, request: &Request, kind: &str, stdin: Vec<u8>) -> Result<Self, CniError> {
        let runner = if table::find(kind).is_some_and(Plugin::is_local)
            && executable::find(kind, &request.env.path) != ExecutableOwner::Foreign
        {
            Runner::InProcess
        } else {
            Runner::Executable(Delegate::new(kind, request, stdin.clone())?)
        };
        let mut env = request.env.clone();
        // As for executed plugins: arguments that the plugin does not know are meant for its
        // caller.
        let pairs: Vec<String> = env.args.pairs().map(|(key, value)| format!("{key}={value}")).collect();
        env.args = CniArgs::parse(&[pairs, vec!["IgnoreUnknown=1".to_owned()]].concat().join(";"))?;
        let request = Request { env, config: NetworkConfig::parse(&stdin)?, stdin };
        Ok(Self { node, kind: kind.to_owned(), request, runner })
    }

    /// Sets a key that the configuration does not have, for a plugin that runs in this process: one that is run gets what the caller wrote.
    pub fn default_here(mut self, key: &str, value: impl Into<serde_json::Value>) -> Self {
        if matches!(self.runner, Runner::InProcess) {
            self.request.config.settings.entry(key).or_insert(value.into());
        }
        self
    }

    pub async fn add(&self) -> Result<CniResult, CniError> {
        match &self.runner {
            Runner::Executable(delegate) => delegate.add().await,
            Runner::InProcess => {
                let missing = || CniError::internal(format!("{} gave no result", self.kind), "");
                self.run_in_process(Verb::Add).await?.ok_or_else(missing)
            }
        }
    }

    /// Calls any verb but ADD. Does nothing if the configuration's version does not have the verb.
    pub async fn call(&self, verb: Verb) -> Result<(), CniError> {
        if !self.request.config.cni_version.supports(verb) {
            return Ok(());
        }
        match &self.runner {
            Runner::Executable(delegate) => delegate.call(verb).await,
            Runner::InProcess => self.run_in_process(verb).await.map(drop),
        }
    }

    async fn run_in_process(&self, verb: Verb) -> Result<Option<CniResult>, CniError> {
        let mut request = self.request.clone();
        request.env.call = call_of(verb, request.env.target().cloned())?;
        // Boxed, because a plugin may call the next one this way.
        let log = RequestLog::new(&self.kind);
        Box::pin(crate::run_local(self.node, &self.kind, &request, &log)).await
    }
}

fn call_of(verb: Verb, target: Option<Target>) -> Result<Call, CniError> {
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
