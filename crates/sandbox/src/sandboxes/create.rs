//! Makes a sandbox that is ready, or nothing (cni-runtime.md sections 3.1 and 3.3).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Sandboxes;
use super::table::{Known, Record};
use crate::checkpoint::{Checkpoint, Live, Network, Phase};
use crate::error::SandboxError;
use crate::event::EventKind;
use crate::fault::step;
use crate::metrics::SET_UP;
use crate::{Config, SandboxId, files, sysctls};

// === impl Sandboxes ===

impl Sandboxes {
    /// Makes a sandbox; it is ready when this returns. A failed one leaves nothing, or is listed as
    /// not ready until it is removed.
    ///
    /// A sandbox of the same name that is not ready is removed first; one that is ready, or being
    /// made, is an error.
    pub fn run(&self, config: Config) -> Result<SandboxId, SandboxError> {
        let began = Instant::now();
        let made = self.create(config);
        self.metrics.run_seconds.observe(began.elapsed().as_secs_f64());
        match &made {
            Ok(id) => tracing::info!(sandbox = %id, "a sandbox is ready"),
            Err(error) => {
                self.metrics.run_errors.inc();
                tracing::warn!(%error, "a sandbox could not be made");
            }
        }
        made
    }

    fn create(&self, config: Config) -> Result<SandboxId, SandboxError> {
        config.validate()?;
        let id = SandboxId::random().map_err(|error| SandboxError::step("make", "an ID", error))?;
        let claim = self.claim(&config.metadata, &id)?;
        let _pod = self.locks.lock_blocking([config.metadata.pod_key()]);
        let network = self.network_of(&config)?;
        if let Some(stale) = &claim.stale {
            self.take_down(stale)?;
        }
        if let Some(path) = &config.log_directory {
            files::make_log_directory(path)?;
        }
        step();
        let checkpoint = Arc::new(self.checkpoint(&id, config, network)?);
        step();
        let known = Known::As(checkpoint.clone());
        let record = Record { known, live: Live::default(), announced: false, trouble: None };
        self.table().insert(id.clone(), record);
        let built = self.build(&id, &checkpoint);
        let undone = if built.is_err() { self.take_down(&id) } else { Ok(()) };
        if built.is_ok() || undone.is_err() {
            claim.keep();
        }
        let failed = |source| SandboxError::Create {
            id: id.clone(),
            source: Box::new(source),
            left: undone.err().map(Box::new),
        };
        built.map_err(failed).map(|()| id.clone())
    }

    /// None in the node's network. Before anything exists: without a network nothing is started.
    fn network_of(&self, config: &Config) -> Result<Option<Network>, SandboxError> {
        if config.host_network {
            return Ok(None);
        }
        let list = self.networks.current().map_err(SandboxError::NetworkNotReady)?;
        Network::of(config, &list).map(Some)
    }

    /// On disk before there is anything that must be undone.
    fn checkpoint(
        &self,
        id: &SandboxId,
        config: Config,
        network: Option<Network>,
    ) -> Result<Checkpoint, SandboxError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_at_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let checkpoint = Checkpoint {
            id: id.clone(),
            boot_id: self.records.boot_id.clone(),
            created_at_ns,
            config,
            network,
        };
        let written = self.records.write_checkpoint(&checkpoint);
        if written.is_err() {
            // It may exist, without being durable.
            let _ = self.records.remove(id);
        }
        written.map(|()| checkpoint)
    }

    fn build(&self, id: &SandboxId, checkpoint: &Checkpoint) -> Result<(), SandboxError> {
        let (config, dir) = (&checkpoint.config, self.dir(id));
        files::prepare(&dir, config)?;
        step();
        let made = self.engine.create(id, config, &dir)?;
        step();
        if let Some(record) = self.table().get_mut(id) {
            record.announced = true;
        }
        self.notify(id, EventKind::Created);
        let resolv_conf = made.resolv_conf.unwrap_or_else(|| dir.join("resolv.conf"));
        files::rewrite_resolv_conf(&resolv_conf, config.dns.as_ref())?;
        step();
        let mut live = Live { netns: made.netns, pid: made.pid, ..Live::default() };
        if let Some(network) = &checkpoint.network {
            self.attach(id, config, network, &mut live)?;
        }
        live.phase = Phase::Ready;
        let pid = live.pid;
        self.set(id, live)?;
        step();
        let has_ended = self.deaths.watch(id, pid);
        self.notify(id, EventKind::Started);
        if has_ended {
            self.look(id);
        }
        Ok(())
    }

    fn attach(
        &self,
        id: &SandboxId,
        config: &Config,
        network: &Network,
        live: &mut Live,
    ) -> Result<(), SandboxError> {
        let missing = || SandboxError::step("attach", id, "the engine made no network namespace");
        let netns: PathBuf = live.netns.clone().ok_or_else(missing)?;
        let sysctls = sysctls::of_interfaces(config)
            .map_err(|error| SandboxError::step("check the sysctls of", id, error))?;
        self.inside.raise_loopback(&netns)?;
        step();
        live.attached = true;
        self.set(id, live.clone())?;
        step();
        let attach = || {
            let name = network.attach(&self.runtime, id, config, &netns)?;
            self.inside.set_sysctls(&netns, &sysctls)?;
            let addresses = self.inside.addresses(&netns)?;
            if addresses.is_empty() { Err(SandboxError::NoAddress { network: name }) } else { Ok(addresses) }
        };
        live.addresses = self.metrics.observe(&SET_UP, attach)?;
        step();
        files::rewrite_hosts(&self.dir(id), config, &live.addresses)
    }

    /// Unlike a change, this must be on disk before the next step.
    fn set(&self, id: &SandboxId, live: Live) -> Result<(), SandboxError> {
        self.records.write_live(id, &live)?;
        if let Some(record) = self.table().get_mut(id) {
            record.live = live;
        }
        Ok(())
    }
}
