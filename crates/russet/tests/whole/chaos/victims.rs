//! Agents and the store that they share, which one thread kills and starts.

use std::time::Duration;

use russet_testkit::{Process, eventually, let_pass};

use super::RECOVERY;
use super::shared_store::SharedStore;
use super::site::Site;

/// The nodes' agents, and their common store.
pub struct Victims<'a> {
    pub shared: Option<&'a mut SharedStore>,
    pub sites: Vec<&'a Site>,
    agents: Vec<Process>,
}

// === impl Victims ===

impl<'a> Victims<'a> {
    pub fn new(shared: Option<&'a mut SharedStore>, sites: Vec<&'a Site>) -> Self {
        let agents = sites.iter().map(|site| site.node.spawn_agent()).collect();
        let victims = Self { shared, sites, agents };
        victims.wait_until_ready();
        victims
    }

    pub fn wait_until_ready(&self) {
        if let Some(shared) = &self.shared {
            eventually(RECOVERY, || shared.serves());
        }
        for site in &self.sites {
            eventually(RECOVERY, || site.is_ready());
        }
    }

    /// Ends an agent as a crash would, and starts another after a while.
    pub fn kill_agent(&mut self, index: usize, down: Duration) {
        self.end_agent(index);
        let_pass(down);
        self.agents[index] = self.sites[index].node.spawn_agent();
    }

    pub fn kill_store(&mut self, down: Duration) {
        self.shared.as_mut().expect("there is no shared store").kill_and_restart(down);
    }

    /// They were not killed since their start, so they must run.
    pub fn assert_alive(&mut self) {
        for (agent, site) in self.agents.iter_mut().zip(&self.sites) {
            assert_eq!(agent.has_ended(), None, "an agent ended:\n{}", site.node.log());
        }
    }

    /// Ends the agent for good.
    pub fn end_agent(&mut self, index: usize) {
        self.agents[index].kill().unwrap();
        self.agents[index].wait().unwrap();
    }
}
