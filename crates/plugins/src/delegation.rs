//! A plugin that another one calls: in this process where it is one of ours, by the CNI protocol where somebody installed another
//! (cni-runtime.md section 1.11).
//!
//! What `CNI_PATH` finds decides. No file of that name (an agent in a container may not see the directory), or one that is our own executable, is
//! us; anything else is run.

use russet_cni_spec::{Call, CniArgs, CniError, CniResult, NetworkConfig, Request, Target, Verb};

use crate::delegate::Delegate;
use crate::executable::{self, Found};
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

// === impl Delegation ===

impl<'n> Delegation<'n> {
    /// The plugin `kind` for the container of `request`, with `stdin` as its configuration.
    pub fn new(node: &'n LocalNode, request: &Request, kind: &str, stdin: Vec<u8>) -> Result<Self, CniError> {
        let place = if crate::is_local(kind) && executable::find(kind, &request.env.path) != Found::Foreign {
            Place::Here
        } else {
            Place::There(Delegate::new(kind, request, stdin.clone())?)
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
